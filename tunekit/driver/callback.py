"""The callback that runs a sweep's validations: Tune's hooks, and what users read."""

from __future__ import annotations

import time
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TuneReporterBase

from tunekit._ray.worker_errors import fail_for_good
from tunekit.config import ValidationConfig, check_config
from tunekit.core.events import TrialErrored
from tunekit.core.executor import Executor
from tunekit.core.shares import Shares
from tunekit.core.timing import Clock
from tunekit.driver.ledger import Ledger
from tunekit.driver.program import Program
from tunekit.driver.progress import Progress
from tunekit.driver.restore import Restore
from tunekit.driver.run import Run, counts
from tunekit.errors import AlreadyRunningError, ConfigError, RestoreError, TunekitError, WiringError
from tunekit.messages.advice import resume_advice
from tunekit.messages.problems import Problems
from tunekit.reading.lineage import Lineage
from tunekit.validating.ray_executor import executor_of
from tunekit.validating.validator import Validator

_NOT_BY_RAY = (
    "ray.tune.Tuner.restore ignores tunekit's records of this sweep: trials would fail, and "
    "pending validations would be lost. Nothing was changed. To continue the sweep:\n{}"
)


class ValidationCallback(tune.Callback):
    """Validate the checkpoints that trials save, alongside training, and merge in the scores.

    Tune gets a report once its checkpoint is validated, merged with the score, after all older
    reports of its trial. So everything in Tune, and each callback after this one in the list, gets
    validated results; callbacks before it get each report immediately, as training made it.

    :class:`tunekit.Tuner` does all of this. With a plain ``ray.tune.Tuner``, put the callback into
    ``RunConfig(callbacks=[...])``, after any checkpoint policies and before all loggers. The
    scheduler must be a :class:`~tunekit.ValidatedScheduler` (around a ``FIFOScheduler()`` if you
    have none).

    Args:
        config: The settings.
        executor: Runs validations; by default, in Ray tasks.
        clock: The source of the time; the system's clock by default.

    Raises:
        tunekit.errors.ConfigError: If ``config`` is not a ``ValidationConfig``.
        tunekit.errors.WiringError: When the first trial starts, if the sweep's scheduler is not a
            :class:`~tunekit.ValidatedScheduler`.

    Example:
        >>> from ray import tune
        >>> from ray.tune.schedulers import ASHAScheduler
        >>> import tunekit
        >>> def train(config): ...
        >>> config = tunekit.ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.9})
        >>> validation = tunekit.ValidationCallback(config)
        >>> tuner = tune.Tuner(
        ...     tunekit.checkpointable(train),  # for functions that call checkpoint_with
        ...     tune_config=tune.TuneConfig(
        ...         metric="accuracy",
        ...         mode="max",
        ...         scheduler=tunekit.ValidatedScheduler(ASHAScheduler(max_t=27)),
        ...     ),
        ...     run_config=tune.RunConfig(callbacks=[tunekit.EveryIterations(5), validation]),
        ... )
    """

    def __init__(
        self,
        config: ValidationConfig,
        *,
        executor: Executor | None = None,
        clock: Clock | None = None,
    ):
        problems = Problems("ValidationCallback")
        if check_config("config", config, problems) is None and not problems:
            problems.add("config is None. Pass tunekit.ValidationConfig(fn=...).")
        problems.raise_any()
        self.config = config
        self._given = (executor, clock)
        #: The sweep's clock.
        self.clock = clock or time
        #: Runs validations in processes.
        self.executor = executor or executor_of(config)
        #: What the sweep runs, for the record.
        self.program = Program()
        #: Whether the ``tunekit.Tuner`` that made it runs the sweep.
        self.is_run_by_owner = False
        #: How trials and validations share the cluster, as far as known.
        self.shares = Shares()
        #: Tune's reporter that shows the sweep in a notebook.
        self.reporter: TuneReporterBase | None = None
        #: Shows the sweep while it runs, instead of Tune's output.
        self.progress: Progress | None = None
        #: What is to be restored.
        self.restore = Restore()
        #: The sweep's records, and its state.
        self.ledger = Ledger(self.clock)
        #: Runs the validations.
        self.validator = Validator(
            config,
            self.executor,
            self.clock,
            record=self.ledger.record,
            required=lambda: self.ledger.state.required,
        )
        #: The sweep, once Tune has added a trial.
        self.run: Run | None = None
        #: Why it could not begin. Tune replaces errors that are raised while it restores.
        self.refused: TunekitError | None = None
        #: Whether the sweep has ended; False if it was interrupted, None while it runs.
        self.has_ended: bool | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return only the settings: the rest is in the journal and in Tune's state."""
        return {"config": self.config, "given": self._given, "program": self.program}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the settings; the rest is initialized again."""
        executor, clock = state["given"]
        ValidationCallback.__init__(self, state["config"], executor=executor, clock=clock)
        self.program = state["program"]

    # Tune's hooks ------------------------------------------------------------------------------

    def setup(self, **info: Any) -> None:
        """Prepare the sweep; called by Tune before it begins."""
        run = self.run
        if self.program.is_owned and not self.is_run_by_owner:
            where = "PATH" if run is None else run.where
            raise RestoreError(_NOT_BY_RAY.format(resume_advice(where, self.program.trainable)))
        if self.refused is not None:
            raise self.refused
        was_restored = run is not None and run.controller.resumed
        if self.restore.searcher_line is not None and not was_restored:
            raise RestoreError(
                "Tune could not restore the sweep, for the reason logged above, and would start a "
                "new one. The sweep's files are unchanged: fix the cause and restore again."
            )
        if run is not None:
            run.begin()

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Follow a trial whose actor has started, for the first time or again."""
        if self.run is None:
            raise WiringError(
                "The sweep has a ValidationCallback, but its scheduler is not a "
                "ValidatedScheduler: it would decide on reports, not on validation scores. Pass "
                "TuneConfig(scheduler=tunekit.ValidatedScheduler(ASHAScheduler())), with your own "
                "scheduler or FIFOScheduler() inside, or use tunekit.Tuner."
            )
        fail_for_good(trial)
        self.run.checkpoints_of(trial)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Poll validations, and let trials continue; called by Tune after each event."""
        if self.run is not None:
            self.run.step()

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Record that Tune has registered a checkpoint of a trial."""
        self.ledger.state.leases.touch(trial.trial_id)

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Record that a trial has finished or was stopped; its actor still runs."""
        if self.run is not None:
            self.run.ended(trial)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Record that a trial has failed for good."""
        self.ledger.record(TrialErrored(trial_id=trial.trial_id))

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """Close the session; called by Tune last. A sweep that has not ended was interrupted."""
        self.has_ended = self.run is not None and self.run.end()
        self.validator.close()
        self.ledger.close(finished=self.has_ended)

    def get_state(self) -> dict[str, Any]:
        """Return the state for Tune to save; everything else follows from the journal."""
        if self.run is None:
            return {"as_of": self.ledger.last, "paused": []}
        return self.run.saved_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Keep the state that Tune saved until the experiment's folder is known."""
        self.restore.saved = state

    # What users read ---------------------------------------------------------------------------

    @property
    def lineage(self) -> Lineage:
        """Return, as tables, the trials that were overwritten with checkpoints.

        Example:
            >>> config = ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.9})
            >>> ValidationCallback(config).lineage
            Lineage(0 exploits)
        """
        return Lineage(self.ledger.state.ancestry)

    def summary(self) -> dict[str, int]:
        """Return the numbers of validations by status.

        ``starting`` counts validations that were passed to Ray and have not begun; of these,
        ``unplaced`` ones have no resources yet.

        Example:
            >>> config = ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.9})
            >>> ValidationCallback(config).summary()
            {'validated': 0, 'failed': 0, 'timed_out': 0, 'skipped': 0, 'running': 0,
             'starting': 0, 'unplaced': 0, 'queued': 0}
        """
        return counts(self.ledger.state, self.validator)

    def timing(self) -> dict[str, float]:
        """Return where time went, in seconds.

        - ``validations_ran_s``: how long validations ran in total;
        - ``trials_waited_s``: how long trials waited for their scores in total.

        Example:
            >>> config = ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.9})
            >>> ValidationCallback(config).timing()["trials_waited_s"]
            0.0
        """
        state = self.ledger.state
        return {"validations_ran_s": state.ran_s, "trials_waited_s": state.waited_s}


def join(validation: ValidationCallback, tune_controller: Any, scheduler: Any) -> Run:
    """Begin to run a sweep; called by its scheduler when Tune adds the first trial.

    Args:
        validation: The sweep's callback.
        tune_controller: The controller, as Tune passes it to a scheduler.
        scheduler: The sweep's :class:`~tunekit.ValidatedScheduler`.
    """
    run = Run(
        config=validation.config,
        program=validation.program,
        restore=validation.restore,
        shares=validation.shares,
        clock=validation.clock,
        ledger=validation.ledger,
        validator=validation.validator,
        progress=validation.progress,
        callback=validation,
        tune_controller=tune_controller,
        scheduler=scheduler,
    )
    # Otherwise, Ray's own Tuner is about to run it, which the callback refuses.
    if validation.is_run_by_owner or not validation.program.is_owned:
        try:
            run.open()
        except (AlreadyRunningError, ConfigError) as error:
            validation.ledger.let_go()
            validation.refused = error
            raise
    run.show_in(validation.reporter)
    validation.run = run
    return run
