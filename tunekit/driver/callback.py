"""The callback that runs a sweep's validations, from the report to the scheduler's decision.

Tune calls the hooks of :class:`ValidationCallback`, which emit events. Each event is recorded in
the journal, and then applied to the state of the sweep.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TuneReporterBase

from tunekit._ray.checkpoints import LeasingCheckpointManager
from tunekit._ray.cluster import check_readable
from tunekit._ray.progress import show
from tunekit._ray.searchers import innermost_searcher
from tunekit._ray.tuner import type_and_settings
from tunekit._ray.validating_controller import ValidatingController
from tunekit._ray.worker_errors import fail_for_good
from tunekit.config import ValidationConfig, check_config
from tunekit.core.events import (
    Event,
    Home,
    SessionClosed,
    StopRequested,
    TrialEnded,
    TrialErrored,
)
from tunekit.core.shares import Shares, shares, total
from tunekit.core.state import State
from tunekit.core.timing import Clock, Pace
from tunekit.core.validation import Status
from tunekit.driver.reports import Reports
from tunekit.driver.restore import Restore, check_unused, saved_scheduler
from tunekit.driver.sweep_outcome import SweepOutcome
from tunekit.driver.waiting import Waiting
from tunekit.errors import AlreadyRunningError, ConfigError, RestoreError, TunekitError, WiringError
from tunekit.journal.ledger import Ledger, about
from tunekit.journal.stop_requests import asked_to_stop, request_file
from tunekit.messages.advice import resume_advice, reuse_advice
from tunekit.messages.formatting import format_counts, format_starved, format_waiting_trials
from tunekit.messages.problems import Problems
from tunekit.policies import AtDecisions, DefaultPolicy
from tunekit.results.lineage import Lineage
from tunekit.validating.executor import Executor
from tunekit.validating.ray_executor import executor_of
from tunekit.validating.validator import Validator

logger = logging.getLogger(__name__)

# The pause between steps, in seconds, while a sweep waits only for validations.
_PAUSE_S = 0.02

# Requests to stop trials are read once a second, less often if reading takes more than this share
# of the time.
_STOP_SHARE, _STOP_INTERVAL_S = 0.05, 1.0

# The saved attributes: constructor arguments, and settings made later.
_GIVEN = ("config", "_given")
_SET = ("trainable", "space", "_owned")

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
        #: The trials so far.
        self.trials: dict[str, Trial] = {}
        #: Whether Tune has added a trial, so that the sweep has a controller.
        self.has_begun = False
        # Tune's reporter that shows the sweep in a notebook.
        self._reporter: TuneReporterBase | None = None

        #: The trainable's import path, for the record.
        self.trainable: str | None = None
        #: The parameters of the search space, by flat name, for the record.
        self.space: Mapping[str, Any] | None = None
        # Whether a ``tunekit.Tuner`` made it, so that only that Tuner may run it.
        self._owned = self._run_by_owner = False
        #: Whether the sweep has ended; False if it was interrupted, None while it runs.
        self.has_ended: bool | None = None
        #: The sweep's records.
        self.ledger = Ledger(self.clock, on_lost=self._give_way)
        self._refused: TunekitError | None = None
        self._restore = Restore()
        self._state_taken = False
        self._paused_at = 0.0
        # When to read requests to stop trials, and why that failed last.
        self._stop_pace = Pace(_STOP_SHARE, _STOP_INTERVAL_S)
        self._complained = ""
        #: The state of the sweep.
        self.engine = State()
        #: Runs validations in processes.
        self.executor = executor or executor_of(config)
        #: How trials and validations share the cluster, as far as known.
        self.shares = Shares()
        #: Runs the validations.
        self.validator = Validator(config, self.executor, self.clock, emit=self.emit)
        self._outcome = SweepOutcome(config, self.engine, self.emit)

        # What follows is made by attach, once the sweep has a controller.
        #: The sweep's controller.
        self.controller: ValidatingController
        #: The sweep's :class:`~tunekit.ValidatedScheduler`.
        self.scheduler: Any
        #: Decides what trials do while their scores are pending.
        self.waiting: Waiting
        #: Decides which reports are validated, and what Tune then gets.
        self.reports: Reports

    def __getstate__(self) -> dict[str, Any]:
        """Return only the settings: the rest is in the journal and in Tune's state."""
        return {name: vars(self)[name] for name in (*_GIVEN, *_SET)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the settings; the rest is initialized again."""
        executor, clock = state["_given"]
        ValidationCallback.__init__(self, state["config"], executor=executor, clock=clock)
        for name in _SET:
            setattr(self, name, state[name])

    @property
    def home(self) -> Home:
        """Return the location of the experiment."""
        return self.ledger.home

    def describe(self, trainable: str | None, space: Mapping[str, Any]) -> None:
        """Record what a ``tunekit.Tuner`` tunes; only that Tuner may run the sweep.

        Args:
            trainable: The trainable's import path; None if it cannot be imported.
            space: The parameters of the search space, by flat name.
        """
        self.trainable, self.space, self._owned = trainable, space, True

    def record_trainable(self, path: str | None) -> None:
        """Record the import path of the trainable that a restored sweep continues with."""
        self.trainable = path

    def renew(self, config: ValidationConfig) -> None:
        """Change the settings of a restored sweep that is not running yet."""
        given = (None, self._given[1])
        self.__setstate__({**self.__getstate__(), "config": config, "_given": given})

    def share(
        self,
        cluster: Mapping[str, float],
        bundles: Sequence[Mapping[str, float]],
        *,
        have_workers: bool = False,
        limit: int | None = None,
        alongside: Mapping[str, float] | None = None,
    ) -> bool:
        """Divide a cluster between trials and validations.

        Args:
            cluster: The cluster's resources, by name.
            bundles: The resources of each bundle of a trial.
            have_workers: Whether trials are runs of a trainer, each of whose workers has a bundle.
            limit: The limit on concurrent trials that the user has set; None: it is set here.
            alongside: What must be free for each trial in addition, if anything; then no more
                trials run than that allows, whatever the user's limit.

        Returns:
            Whether checkpoints are validated in the processes of waiting trials.
        """
        most, need = self.config.most_in_flight or 1, self.executor.need
        known = shares(cluster, total(*bundles, alongside or {}), need, most=most, limit=limit)
        if limit is not None:
            known = replace(known, alongside=None, at_once=known.at_once if alongside else None)
        if alongside and known.alongside is None:
            known = replace(known, alongside=known.at_once)
        self.shares = replace(known, have_workers=have_workers)
        waits = self.config.on_pending != "continue"
        return waits and self.executor.fits_in(self.shares.processes(bundles))

    # Wiring ------------------------------------------------------------------------------------

    def attach(self, tune_controller: Any, scheduler: Any) -> None:
        """Connect to a sweep; called by the scheduler when Tune adds the first trial.

        Args:
            tune_controller: The controller, as Tune passes it to a scheduler.
            scheduler: The sweep's :class:`~tunekit.ValidatedScheduler`.
        """
        config, engine, validator, emit = self.config, self.engine, self.validator, self.emit
        self.scheduler = scheduler
        self.controller = controller = ValidatingController.install(tune_controller)
        self.has_begun = True
        self.waiting = waiting = Waiting(
            config=config,
            engine=engine,
            validator=validator,
            clock=self.clock,
            controller=controller,
            scheduler=scheduler.scheduler,
            shares=self.shares,
            emit=emit,
        )
        validator.run_in(waiting)
        self.reports = Reports(
            config=config,
            engine=engine,
            validator=validator,
            outcome=self._outcome,
            controller=controller,
            scheduler=scheduler.scheduler,
            emit=emit,
        )
        controller.connect(self, self.reports, waiting, config.constraints)
        for listener in controller.callbacks:
            if isinstance(listener, (AtDecisions, DefaultPolicy)):
                listener.attach(self.reports.saves, controller.can_save)
        goals = {*controller.required_metrics(), *scheduler.objectives}
        engine.require([*goals, *(one.metric for one in config.constraints)])
        controller.preprocess_reports(self.reports.receive)
        self._open_experiment(goals)
        show(self, controller, self._reporter)

    @property
    def restores(self) -> bool:
        """Return whether the user's scheduler will be restored to a state that knows the trials."""
        return (self._restore.saved or {}).get("scheduler") is not None

    def begin(self) -> None:
        """Record that the ``tunekit.Tuner`` that created the callback runs the sweep.

        Raises:
            tunekit.errors.ConfigError: If the sweep has already run.
        """
        if self.ledger.folder is not None:
            raise ConfigError(
                "Tuner.fit",
                [
                    "it was already called: a Tuner runs its sweep once. tuner.get_results() has "
                    "the results. To continue the sweep:\n"
                    f"{resume_advice(self._where(), self.trainable)}\n"
                    "For another sweep, make a new Tuner with another RunConfig(name=...)."
                ],
            )
        self._run_by_owner = True

    def show_in(self, reporter: TuneReporterBase | None) -> None:
        """Show the sweep in Tune's reporter for notebooks, if there is one."""
        self._reporter = reporter

    @property
    def _run_by_ray(self) -> bool:
        """Return whether Ray's own Tuner is about to run a sweep made by ``tunekit.Tuner``."""
        return self._owned and not self._run_by_owner

    def _where(self) -> str:
        """Return the location of the experiment, if known."""
        if self.home.folder is not None or not self.has_begun:
            return self.home.folder or "PATH"
        return str(self.controller.storage.experiment_fs_path)

    def adopt(self, trial: Trial) -> None:
        """Add a trial: a new one, or one of a restored experiment."""
        self.trials[trial.trial_id] = trial
        self.controller.use_current_folder(trial)
        # As Tune does when it schedules an actor: every record of the trial names the same folder.
        trial.init_local_path()
        self._checkpoints_of(trial)
        self.ledger.add(trial)

    # The life of a sweep -----------------------------------------------------------------------

    def setup(self, **info: Any) -> None:
        """Prepare the sweep; called by Tune before it begins."""
        restore = self._restore
        if self._run_by_ray:
            raise RestoreError(_NOT_BY_RAY.format(resume_advice(self._where(), self.trainable)))
        if self._refused is not None:
            raise self._refused
        if restore.searcher_line is not None and not (self.has_begun and self.controller.resumed):
            raise RestoreError(
                "Tune could not restore the sweep, for the reason logged above, and would start a "
                "new one. The sweep's files are unchanged: fix the cause and restore again."
            )
        if not self.has_begun:
            return
        controller = self.controller
        if controller.resumed:
            controller.begin_session()
        if restore.past:
            restore.replay(self.trials, self.reports, self.scheduler, self.home)
            self._record_stop_requests()
        if controller.is_finished():
            self._outcome.conclude(list(self.trials.values()))
            self._raise_error()
            self._outcome.record_end(True)
        self._delete_surplus()

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Follow a trial whose actor has started, for the first time or again."""
        if not self.has_begun:
            raise WiringError(
                "The sweep has a ValidationCallback, but its scheduler is not a "
                "ValidatedScheduler: it would decide on reports, not on validation scores. Pass "
                "TuneConfig(scheduler=tunekit.ValidatedScheduler(ASHAScheduler())), with your own "
                "scheduler or FIFOScheduler() inside, or use tunekit.Tuner."
            )
        fail_for_good(trial)
        self._checkpoints_of(trial)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Poll validations, and let trials continue; called by Tune after each event."""
        if not self.has_begun:
            return
        controller, now = self.controller, self.clock.monotonic()
        if controller.cuts_short:
            self._outcome.record_cut_short(trials)
        self._keep()
        controller.check_nodes(now)
        for trial in controller.begun():
            self.waiting.starts.begins(trial.trial_id, now)
        for ended in self.validator.poll(at_once=controller.woken()):
            self.reports.ended(ended)
        self._record_stop_requests()
        self._stop_by_hand()
        self.reports.release_held()
        self.waiting.relieve()
        controller.continue_waiting()
        if finished := controller.is_finished():
            self._outcome.conclude(trials)
        self._raise_error()
        self._outcome.record_end(finished)
        self._delete_surplus()
        controller.wake_on(self.executor.awaited())
        self.waiting.spare()
        if controller.awaits_nothing and not self.validator.pool.idle:
            self._pause()

    def _record_stop_requests(self) -> None:
        """Record the requests to stop trials since the last call, at most once a second."""
        began, folder = self.clock.monotonic(), self.ledger.folder
        if folder is None or not self._stop_pace.is_ready(began):
            return
        try:
            for trial_id in asked_to_stop(folder):
                if trial_id in self.trials and self.engine.can_stop(trial_id):
                    self.emit(StopRequested(trial_id=trial_id))
                    logger.info("Trial %s is stopped, as requested by hand.", trial_id)
                folder.remove(request_file(trial_id))
        except Exception as error:  # storages raise whatever their libraries raise
            if str(error) != self._complained:
                self._complained = str(error)
                logger.warning("Requests to stop trials cannot be read: %s", error)
        self._stop_pace.ran(began, self.clock.monotonic())

    def _stop_by_hand(self) -> None:
        """Stop the trials that a user has stopped by hand."""
        for trial_id in sorted(self.engine.stopping):
            trial = self.trials.get(trial_id)
            if trial is not None and not trial.is_saving:
                self.controller.stop_trial(trial)

    def _checkpoints_of(self, trial: Trial) -> LeasingCheckpointManager:
        """Return the manager of a trial's checkpoints, which keeps those that are needed."""
        return LeasingCheckpointManager.of(trial, self.engine.leases)

    def _delete_surplus(self) -> None:
        """Delete checkpoints that are no longer needed, of the trials that changed in this step.

        This runs at the end of a step, when all leases on them have been taken.
        """
        for trial_id in self.engine.leases.pop_touched():
            trial = self.trials.get(trial_id)  # None: a donor that a restored experiment lacks
            if trial is not None:
                self._checkpoints_of(trial).prune()
                self.controller.mark_changed(trial)

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Record that Tune has registered a checkpoint of a trial."""
        self.engine.leases.touch(trial.trial_id)

    def _pause(self) -> None:
        """Sleep briefly, because Tune would take its next step immediately, with nothing to do."""
        left = self._paused_at + _PAUSE_S - self.clock.monotonic()
        if left > 0:
            self.clock.sleep(left)
        self._paused_at = self.clock.monotonic()

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Record that a trial has finished or was stopped; its actor still runs."""
        # Stopped on the result of another trial.
        removed = not self.controller.is_processing(trial)
        self.emit(TrialEnded(trial_id=trial.trial_id, removed=removed))
        self._outcome.ended(trial)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Record that a trial has failed for good."""
        self.emit(TrialErrored(trial_id=trial.trial_id))

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """Close the session; called by Tune last. A sweep that has not ended was interrupted."""
        self._keep()
        self.has_ended = self.has_begun and self._outcome.has_ended(self.controller.trials_to_come)
        self.validator.close()
        if self.has_ended and not self.controller.reuses_actors:
            starts = self.waiting.starts
            if advice := reuse_advice(starts.avoidable_s, starts.total_s):
                logger.info("%s", advice)
        self.close(finished=self.has_ended)

    def close(self, *, finished: bool = False) -> None:
        """Record the end of the session, even if the process ends without Tune."""
        self.emit(SessionClosed(finished=finished))
        self.ledger.close()

    def _give_way(self, error: AlreadyRunningError) -> None:
        """End the sweep here, because another driver has taken it over."""
        self._refused = error
        self._outcome.end(error)

    def _raise_error(self) -> None:
        """Raise the error that ends the sweep, if any; Tune saves the sweep first."""
        if (error := self._outcome.error) is not None:
            if self._refused is None and self.has_begun:
                self.controller.save()
            raise error

    def emit(self, event: Event) -> None:
        """Record an event, and then apply it."""
        if self._restore.replays:
            self._restore.repeated(event)
            return
        # The journal comes first, so that a kill loses nothing that has had an effect (decision 3).
        event = event if event.time else structs.replace(event, time=self.clock.time())
        self.ledger.append(event)
        self.engine.apply(event)

    # Results and saved state -------------------------------------------------------------------

    @property
    def lineage(self) -> Lineage:
        """Return, as tables, the trials that were overwritten with checkpoints.

        Example:
            >>> config = ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.9})
            >>> ValidationCallback(config).lineage
            Lineage(0 exploits)
        """
        return Lineage(self.engine.ancestry)

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
        ended = {status.value: self.engine.counts[status.value] for status in Status}
        return {**ended, **self.validator.counts()}

    def progress(self) -> list[str]:
        """Return the progress of the validations and of the trials that wait, as lines of text.

        Example:
            >>> config = ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.9})
            >>> ValidationCallback(config).progress()
            ['Validations: none yet']
        """
        left_over = [t for t in self.trials.values() if not t.is_finished()]
        left = len(left_over)
        waiting = sum(self.waiting.waits(t.trial_id) for t in left_over)
        lines = [
            format_counts(self.summary()),
            format_waiting_trials(waiting, left),
            format_starved(self.validator.pool.starved_s(self.clock.monotonic())),
        ]
        return [line for line in lines if line is not None]

    def timing(self) -> dict[str, float]:
        """Return where time went, in seconds.

        - ``validations_ran_s``: how long validations ran in total;
        - ``trials_waited_s``: how long trials waited for their scores in total.

        Example:
            >>> config = ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.9})
            >>> ValidationCallback(config).timing()["trials_waited_s"]
            0.0
        """
        return {
            "validations_ran_s": self.engine.ran_s,
            "trials_waited_s": self.engine.waited_s,
        }

    def restore(self, searcher_line: int) -> None:
        """Restore the sweep from its files.

        Args:
            searcher_line: The journal line as of which the searcher was saved; 0 if it was saved
                with the rest.
        """
        self._restore = Restore(searcher_line)

    def _open_experiment(self, goals: Collection[str]) -> None:
        """Open the experiment's folder: load the saved state, and open the journal."""
        if self._run_by_ray:
            return
        storage = self.controller.storage
        problems = Problems("Tuner.fit")
        check_readable(
            storage.experiment_fs_path,
            storage.storage_filesystem,
            self.executor.need,
            self.config.ray_remote_kwargs,
            problems,
        )
        try:
            problems.raise_any()
            folder = self.ledger.claim(storage)
            restored = self._restore.load(self.ledger)
            if not restored:
                check_unused(folder, resume_advice(self._where(), self.trainable), problems)
                problems.raise_any()
        except (AlreadyRunningError, ConfigError) as error:
            self.ledger.let_go()
            self._refused = error  # Tune replaces errors that are raised while it restores
            raise
        known = {
            **about(self.clock.time(), self.config),
            "required": sorted(goals),
            "mode": self.scheduler.mode,
            "objectives": self.scheduler.objectives,
            "scheduler": type_and_settings(self.scheduler.scheduler),
            "search_alg": type_and_settings(innermost_searcher(self.controller.search_alg)),
            "trainable": self.trainable,
            **({} if self.space is None else {"space": self.space}),
        }
        self.ledger.begin(anew=not restored, after=self._restore.as_of, about=known)

    def _keep(self) -> None:
        saved, self._state_taken = self._state_taken, False
        if self.has_begun:
            self.ledger.keep(self.controller, saved=saved)

    def get_state(self) -> dict[str, Any]:
        """Return the state for Tune to save; everything else follows from the journal."""
        self._state_taken = True
        # Tune's state is as of this line; later ones are replayed (decision 3). It restores paused
        # trials as pending ones.
        paused = [name for name, one in self.trials.items() if one.status == Trial.PAUSED]
        state: dict[str, Any] = {"as_of": self.ledger.last, "paused": paused}
        if not self.has_begun:
            return state
        scheduler = saved_scheduler(self.scheduler.scheduler, self.home, self.trials)
        # Without it, a restored scheduler gets all results again.
        return state if scheduler is None else {**state, "scheduler": scheduler}

    def set_state(self, state: dict[str, Any]) -> None:
        """Keep the state that Tune saved until the experiment's folder is known."""
        self._restore.saved = state
