"""Run any Tune scheduler on validated results."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    HyperBandForBOHB,
    PopulationBasedTraining,
    ResourceChangingScheduler,
    TrialScheduler,
)
from ray.tune.search import BasicVariantGenerator

from tunekit._ray.scheduler_kinds import innermost, mode_of, objectives_of, traits_of
from tunekit._ray.searchers import FIT_VALUES, innermost_searcher
from tunekit._ray.session import parts_of
from tunekit.config import ValidationConfig
from tunekit.core.constraints import penalize
from tunekit.core.events import TrialFailed, TrialResumed, TrialRetried
from tunekit.driver.callback import ValidationCallback, join
from tunekit.driver.run import Run
from tunekit.errors import WiringError
from tunekit.messages.problems import Problems

# The scheduler acts on the first reminder, and sees the result of that in the second.
_REMINDERS = 2


def unwrapped(scheduler: Any) -> Any:
    """Return the scheduler inside a :class:`ValidatedScheduler`; any other is returned as is."""
    return scheduler.scheduler if isinstance(scheduler, ValidatedScheduler) else scheduler


class ValidatedScheduler(TrialScheduler):
    """Run any Tune scheduler, unchanged, on validated results.

    A result reaches your scheduler once its checkpoint is validated, merged with the score, after
    all older results of its trial; a report without a validated checkpoint never reaches it. It
    gets Tune's own trials: population based training clones exactly the checkpoint that it has
    ranked, because Tune knows of no newer one.

    The sweep also needs a :class:`~tunekit.ValidationCallback`. ``TuneConfig(metric=...)`` and the
    scheduler's own metric may be one that only validation produces.

    Args:
        scheduler: The scheduler; it is not changed.

    Raises:
        tunekit.errors.ConfigError: If ``scheduler`` is not a scheduler, or is already wrapped.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler
        >>> scheduler = ValidatedScheduler(ASHAScheduler(max_t=27, grace_period=1))
    """

    def __init__(self, scheduler: TrialScheduler):
        problems = Problems("ValidatedScheduler")
        if isinstance(scheduler, ValidatedScheduler):
            problems.add("scheduler is already a ValidatedScheduler. Pass the scheduler inside it.")
        elif problems.instance(
            "scheduler", scheduler, TrialScheduler, "Pass a scheduler of ray.tune.schedulers."
        ) and isinstance(innermost(scheduler), ValidatedScheduler):
            problems.add(
                "scheduler has a ValidatedScheduler inside. Wrap the outer one only: "
                "ValidatedScheduler(ResourceChangingScheduler(scheduler))."
            )
        problems.raise_any()
        super().__init__()
        self.scheduler = scheduler
        self._traits = traits_of(scheduler)
        # The mode in ``TuneConfig``; None if it is not set.
        self._mode: str | None = None
        self._run: Run | None = None
        # The newest result of each trial that the scheduler got, if it may have to be reminded.
        self._last_results: dict[str, dict[str, Any]] = {}
        # The results that it was reminded of, and how often.
        self._reminded: dict[str, int] = {}
        self._reminders = 0

    def __getstate__(self) -> dict[str, Any]:
        """Return your scheduler as it was passed; the rest is saved separately."""
        return {"scheduler": self.scheduler, "mode": self._mode}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore your scheduler; the rest is initialized again."""
        ValidatedScheduler.__init__(self, state["scheduler"])
        self._mode = state["mode"]

    def _join(self, tune_controller: Any) -> Run:
        """Return the running sweep, which begins at the first call."""
        if self._run is None:
            validation = self._validation_of(tune_controller)
            self._run = join(validation, tune_controller, self)
        return self._run

    def _validation_of(self, tune_controller: Any) -> ValidationCallback:
        """Return the sweep's callback, if the parts of the sweep fit together."""
        listeners, search_alg, reuse_actors = parts_of(tune_controller)
        callbacks = [one for one in listeners if isinstance(one, ValidationCallback)]
        if len(callbacks) != 1:
            raise WiringError(
                f"ValidatedScheduler found {len(callbacks)} ValidationCallbacks among the "
                "sweep's callbacks; it needs one. Put "
                "tunekit.ValidationCallback(tunekit.ValidationConfig(fn=validate)) into "
                "RunConfig(callbacks=[...]), or use tunekit.Tuner."
            )
        problems = Problems("ValidatedScheduler")
        check_combination(
            self.scheduler,
            callbacks[0].config,
            reuse_actors=reuse_actors,
            search_alg=search_alg,
            problems=problems,
        )
        problems.raise_any()
        return callbacks[0]

    @property
    def metric(self) -> str | None:
        """Return the metric of your scheduler."""
        return self.scheduler.metric

    @property
    def mode(self) -> str | None:
        """Return the mode of the metric, ``"min"`` or ``"max"``; None if unknown."""
        return self._mode or mode_of(self.scheduler)

    @property
    def objectives(self) -> dict[str, str | None]:
        """Return the metrics that your scheduler ranks trials by, each with its mode."""
        return objectives_of(self.scheduler, self.mode)

    def _penalized(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return a flat result as your scheduler gets it, which ignores constraints."""
        constraints = () if self._run is None else self._run.config.constraints
        return penalize(result, self.objectives, constraints) if constraints else result

    @property
    def supports_buffered_results(self) -> bool:
        """Return False, because a trial that waits for a score must not run ahead."""
        return False

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Pass ``TuneConfig``'s metric and mode to your scheduler."""
        self._mode = mode or self._mode
        return bool(self.scheduler.set_search_properties(metric, mode, **spec))

    def debug_string(self) -> str:
        """Return the summaries of your scheduler and of the validations."""
        text = self.scheduler.debug_string()
        return text if self._run is None else "\n".join([text, *self._run.progress()])

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Add a trial; one that restarts after a failure is already known to your scheduler.

        So its comparisons do not depend on which machine failed. With Tune alone, the trial is new
        to the scheduler, and joins another bracket of HyperBand.
        """
        run = self._join(tune_controller)
        # Tune adds it again, but its scheduler was not notified of the failure (decision 1).
        if trial.trial_id in run.trials:
            run.ledger.record(TrialRetried(trial_id=trial.trial_id))
            return
        run.adopt(trial)
        if not run.restore.is_due:
            self.scheduler.on_trial_add(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Record that a trial failed; your scheduler is notified only if it failed for good."""
        run = self._join(tune_controller)
        run.validator.ray_watch.check()
        run.ledger.record(TrialFailed(trial_id=trial.trial_id))
        if trial.status != Trial.ERROR:  # otherwise, Tune restarts it: _requeue_trial
            self.scheduler.on_trial_error(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Return the decision of your scheduler on a validated result."""
        run = self._join(tune_controller)
        penalized = self.recall(trial, result)
        decision = str(self.scheduler.on_trial_result(tune_controller, trial, penalized))
        # HyperBandForBOHB adds what its searcher reads.
        result.update((name, penalized[name]) for name in penalized.keys() - result.keys())
        run.controller.processing.scheduler_stops = decision == TrialScheduler.STOP
        return decision

    def recall(self, trial: Trial, result: dict[str, Any]) -> dict[str, Any]:
        """Record a flat result; return it as your scheduler gets it."""
        penalized = self._penalized(result)
        if self._traits.waits_for_all:
            self._last_results[trial.trial_id] = penalized
        return penalized

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Notify your scheduler of a trial's end, with its newest score.

        A trial without a score is removed: ``MedianStoppingRule`` would compare others with a
        metric that the result lacks, and fail. Tune itself lets no such result through.
        """
        run = self._join(tune_controller)
        lacking = run.state.lacks(result)
        if not self.objectives.keys().isdisjoint(lacking):
            self.scheduler.on_trial_remove(tune_controller, trial)
            return
        penalized = self._penalized(result)
        for name in lacking:
            penalized.pop(name, None)  # NaN
        self.scheduler.on_trial_complete(tune_controller, trial, penalized)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Notify your scheduler of the end of a trial that was not running."""
        self.scheduler.on_trial_remove(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Return the next trial to start; trials that shared their slots come first."""
        run = self._join(tune_controller)
        processes = run.controller.processes
        if processes.left == 0 and not processes.has_cached_actors:
            return None
        ready = next((one for one in processes.starts_first if one.status == Trial.PENDING), None)
        if ready is None and not (self._traits.pauses or processes.has_cached_actors):
            return None  # it would search all trials, and Tune starts the first one anyway
        trial = ready or self.scheduler.choose_trial_to_run(tune_controller)
        if trial is None:
            self._remind(tune_controller)
        if trial is not None and trial.status == Trial.PAUSED:
            run.ledger.record(TrialResumed(trial_id=trial.trial_id))
        return trial

    def choose_again(self, tune_controller: Any) -> None:
        """Make your scheduler repeat its choice of a trial from before the interruption."""
        while self.scheduler.choose_trial_to_run(tune_controller) is None:
            if not self._remind(tune_controller):
                break

    def _remind(self, tune_controller: Any) -> bool:
        """Repeat earlier results for a scheduler that waits for trials that have ended.

        Synchronous PBT and HyperBand continue when the last result of a round arrives, and would
        wait forever for a trial that has ended or failed without one. The repeated results only
        make them count the trials, and are passed only when nothing else can happen, and not again
        until something has.

        Returns:
            Whether they were passed.
        """
        if not self._traits.waits_for_all:
            return False
        left = [trial for trial in tune_controller.get_trials() if not trial.is_finished()]
        if any(one.status != Trial.PAUSED for one in left):
            return False
        run = self._join(tune_controller)
        known = {one.trial_id: id(self._last_results.get(one.trial_id)) for one in left}
        if known != self._reminded:
            self._reminded, self._reminders = known, 0
        if self._reminders == _REMINDERS:
            return False
        self._reminders += 1
        run.controller.exploits.watch()
        for trial in left:
            result = self._last_results.get(trial.trial_id)
            if trial.status != Trial.PAUSED or result is None:
                continue
            decision = self.scheduler.on_trial_result(tune_controller, trial, result)
            if trial.status == Trial.PAUSED and decision == TrialScheduler.STOP:
                tune_controller.stop_trial(trial)
            elif trial.status == Trial.PAUSED and decision == TrialScheduler.CONTINUE:
                run.controller.session.set_status(trial, Trial.PENDING)
        run.controller.exploits.record()
        return True


def check_combination(
    scheduler: Any,
    config: ValidationConfig,
    *,
    reuse_actors: bool,
    search_alg: Any,
    problems: Problems,
) -> None:
    """Add a problem for each setting of a sweep that cannot be combined with its scheduler.

    Args:
        scheduler: The scheduler, not wrapped; other objects are ignored.
        config: The settings of the validations.
        reuse_actors: ``TuneConfig(reuse_actors=...)``.
        search_alg: ``TuneConfig(search_alg=...)``, as it was passed.
        problems: Where to add it.
    """
    decides = innermost(scheduler)
    name = type(decides).__name__
    for kind in (name, type(innermost_searcher(search_alg)).__name__) if config.constraints else ():
        if kind in FIT_VALUES:
            problems.add(
                f"constraints need a scheduler and a searcher that rank scores, but {kind} fits a "
                "model to their values. Use PopulationBasedTraining or OptunaSearch, or leave "
                "constraints out."
            )
    if config.on_pending == "continue" and traits_of(decides).synchronous:
        problems.add(
            f"{name} compares all trials at the same iteration, but on_pending='continue' lets "
            "them continue. Use on_pending='wait', or synch=False with population based training."
        )
    if (
        isinstance(decides, PopulationBasedTraining)
        and search_alg is not None
        and not isinstance(search_alg, BasicVariantGenerator)
    ):
        problems.add(
            f"{name} chooses hyperparameters itself, and search_alg={search_alg!r} would too. "
            "Leave search_alg out."
        )
    if isinstance(decides, HyperBandForBOHB) and not hasattr(
        innermost_searcher(search_alg), "on_pause"
    ):
        problems.add(
            f"{name} notifies its searcher when a trial pauses, but search_alg={search_alg!r} does "
            "not support that. Pass TuneConfig(search_alg=ray.tune.search.bohb.TuneBOHB()), or use "
            "HyperBandScheduler."
        )
    if isinstance(scheduler, ResourceChangingScheduler) and reuse_actors:
        problems.add(
            "ResourceChangingScheduler restarts trials to change their resources, but "
            "reuse_actors=True keeps their actors. Set TuneConfig(reuse_actors=False)."
        )
