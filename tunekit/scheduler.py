"""Any Tune scheduler, judging by validated results."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import DEFAULT_METRIC, DONE, TRAINING_ITERATION
from ray.tune.schedulers import (
    HyperBandScheduler,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
    TrialScheduler,
)

from tunekit._ray.checkpoints import latest_checkpoint
from tunekit._ray.controller import Controller
from tunekit.callback import ValidationCallback
from tunekit.core.problems import Problems
from tunekit.errors import WiringError
from tunekit.searcher import ValidatedSearcher

__all__ = ["ValidatedScheduler"]

logger = logging.getLogger(__name__)

# Longer than it takes to start a worker process.
_STARVED_S = 10.0

# Schedulers that pause, resume or overwrite trials by their own books, and are not shown to be
# right with scores that arrive late.
_NOT_YET = (
    HyperBandScheduler,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
)


class ValidatedScheduler(TrialScheduler):
    """Lets an unmodified Tune scheduler see validated results only, in iteration order.

    Each report of a trial goes to the base scheduler when the checkpoint saved at it has been
    validated, merged with its score; each once, older iterations of a trial before newer ones, the
    trial's end after its last score. What the trial does meanwhile is
    ``ValidationConfig(on_pending=...)``. A report without a validated checkpoint does not reach
    the base scheduler at all.

    It needs a :class:`~tunekit.ValidationCallback` among the callbacks of the same sweep.
    ``TuneConfig(metric=...)`` and the scheduler's own metric may name what only validation
    produces. A stopping criterion of ``RunConfig(stop={...})`` on such a metric works, too.

    Args:
        base: The scheduler; not changed.

    Raises:
        tunekit.ConfigError: If ``base`` is no scheduler, or is wrapped already.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler
        >>> scheduler = ValidatedScheduler(ASHAScheduler(max_t=27, grace_period=1))
    """

    def __init__(self, base: TrialScheduler):
        problems = Problems("ValidatedScheduler")
        if isinstance(base, ValidatedScheduler):
            problems.add("base is a ValidatedScheduler already. Pass the scheduler itself.")
        elif isinstance(base, _NOT_YET):
            problems.add(
                f"base is a {type(base).__name__}, which is not supported yet: it pauses, resumes "
                "or overwrites trials by results that must not come late. Use FIFOScheduler, "
                "ASHAScheduler or MedianStoppingRule."
            )
        else:
            problems.instance(
                "base", base, TrialScheduler, "Pass a scheduler of ray.tune.schedulers."
            )
        problems.raise_any()
        super().__init__()
        self.base = base
        self._controller: Controller | None = None
        self._validation: ValidationCallback | None = None
        # Trials that reported and were told to wait: for a save, then for its score.
        self._held: dict[str, Trial] = {}
        # Trials that gave their resources back to wait for a score.
        self._paused: dict[str, Trial] = {}
        # Trials that did so and may go on.
        self._ready: dict[str, Trial] = {}
        # When a trial began to wait for a score.
        self._since: dict[str, float] = {}
        # Trials that the base scheduler has stopped, until they have ended.
        self._stopping: dict[str, Trial] = {}
        # Trials that it has paused, until that is done.
        self._pausing: set[str] = set()

    # What Tune asks before and around the sweep ------------------------------------------------

    @property
    def metric(self) -> None:
        """None: Tune is not to look for the metric in reports, which need not have it."""
        return None

    @property
    def judged(self) -> set[str]:
        """The metric that the base scheduler judges by, if it does."""
        metric = self.base.metric
        return {metric} if isinstance(metric, str) and metric != DEFAULT_METRIC else set()

    @property
    def supports_buffered_results(self) -> bool:
        """False: a trial that waits for a score must not have run ahead."""
        return False

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Hand ``TuneConfig``'s metric and mode to the base scheduler."""
        return bool(self.base.set_search_properties(metric, mode, **spec))

    def debug_string(self) -> str:
        """The base scheduler's summary, and that of the validations."""
        text = self.base.debug_string()
        if self._validation is None:
            return text
        counts = self._validation.summary()
        shown = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        return f"{text}\nValidations: {shown or 'none yet'}"

    def save(self, checkpoint_path: str) -> None:
        """Save the base scheduler."""
        self.base.save(checkpoint_path)

    def restore(self, checkpoint_path: str) -> None:
        """Restore the base scheduler."""
        self.base.restore(checkpoint_path)

    # What Tune tells while the sweep runs ------------------------------------------------------

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """A trial was added, or is about to be restarted after a failure."""
        self._wire(tune_controller).adopt(trial)
        self.base.on_trial_add(self._view(), trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """A trial failed; it may be restarted."""
        self._forget(trial)
        self.base.on_trial_error(self._view(), trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """A trial reported: whether it is validated is not known before it has saved."""
        validation = self._wire(tune_controller)
        validation.offered(trial.trial_id, result[TRAINING_ITERATION])
        if validation.config.on_pending == "continue":
            if trial.trial_id in self._stopping:
                return TrialScheduler.STOP
            if trial.trial_id in self._pausing:
                self._pausing.discard(trial.trial_id)
                return TrialScheduler.PAUSE
            return TrialScheduler.CONTINUE
        self._held[trial.trial_id] = trial
        return TrialScheduler.NOOP

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """A trial ended; the base scheduler hears of it after the trial's last score."""
        self._forget(trial)
        self._wire(tune_controller).complete(trial.trial_id)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """A trial that was not running ended."""
        self.on_trial_complete(tune_controller, trial, {})

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """The next trial to start: those that have waited for a score first, then the base's."""
        self._wire(tune_controller)
        for trial_id, trial in list(self._ready.items()):
            if trial.status == Trial.PAUSED:
                return trial
            del self._ready[trial_id]
        return self.base.choose_trial_to_run(self._view())

    # What the validations tell -----------------------------------------------------------------

    def judge(self, trial: Trial, result: dict[str, Any]) -> str:
        """Give the base scheduler a validated result of a trial; return what it decided.

        The decision is carried out by :meth:`act`, or at the trial's next report.
        """
        validation = self._validation
        unfinished = {**result, DONE: False}
        if validation is not None and validation.reached(trial.trial_id, unfinished):
            decision = TrialScheduler.STOP
        else:
            decision = self.base.on_trial_result(self._view(), trial, unfinished)
        if decision == TrialScheduler.STOP:
            self._stopping[trial.trial_id] = trial
        elif decision == TrialScheduler.PAUSE and not trial.is_finished():
            self._pausing.add(trial.trial_id)
        return decision

    def finish(self, trial: Trial, result: Mapping[str, Any] | None) -> None:
        """Tell the base scheduler that a trial has ended, with its newest validated result."""
        if result is None:
            self.base.on_trial_remove(self._view(), trial)
        else:
            self.base.on_trial_complete(self._view(), trial, {**result, DONE: True})

    def act(self) -> None:
        """Carry out what is known: let trials go on, wait in the way they should, or stop."""
        if self._controller is None or self._validation is None:
            return
        for trial_id, trial in list(self._stopping.items()):
            if trial.is_finished():
                del self._stopping[trial_id]
            # A trial that is saving is left alone: Tune would keep a STOP for its next save, and
            # end it then, long after it was overruled.
            elif not trial.is_saving:
                del self._stopping[trial_id]
                self._forget(trial)
                self._controller.stop(trial)
        for trial in list(self._held.values()):
            self._act_on_held(trial, self._controller, self._validation)
        for trial_id, trial in list(self._paused.items()):
            if not self._validation.waits(trial_id):
                del self._paused[trial_id]
                self._waited(trial_id, self._validation)
                if trial_id in self._pausing:
                    self._pausing.discard(trial_id)  # it is; the base scheduler resumes it
                else:
                    self._ready[trial_id] = trial
        self._relieve_starvation(self._controller, self._validation)

    def _act_on_held(
        self, trial: Trial, controller: Controller, validation: ValidationCallback
    ) -> None:
        trial_id = trial.trial_id
        if trial.status != Trial.RUNNING:
            del self._held[trial_id]
        elif trial.is_saving:
            return
        elif validation.waits(trial_id):
            self._since.setdefault(trial_id, validation.now())
            if validation.config.on_pending == "pause":
                self._pause_until_scored(trial, controller)
        else:
            del self._held[trial_id]
            self._waited(trial_id, validation)
            if trial_id in self._pausing:
                self._pausing.discard(trial_id)
                saved = latest_checkpoint(trial)
                step = trial.last_result.get(TRAINING_ITERATION)
                controller.pause(
                    trial, save=saved is None or saved[1].get(TRAINING_ITERATION) != step
                )
            else:
                controller.train(trial)

    def _waited(self, trial_id: str, validation: ValidationCallback) -> None:
        since = self._since.pop(trial_id, None)
        if since is not None:
            validation.waited(validation.now() - since)

    def _pause_until_scored(self, trial: Trial, controller: Controller) -> None:
        del self._held[trial.trial_id]
        self._paused[trial.trial_id] = trial
        controller.pause(trial, save=False)  # it resumes the checkpoint that is being validated

    def _relieve_starvation(self, controller: Controller, validation: ValidationCallback) -> None:
        """Let a held trial give way if held trials keep every validation from starting.

        Holding and pausing lead to the same decisions; all actors waiting for scores that wait
        for the actors' resources would lead to none.
        """
        if not self._held or validation.validator.starved_s() < _STARVED_S:
            return
        waiting = [
            trial
            for trial in self._held.values()
            if validation.waits(trial.trial_id) and not trial.is_saving
        ]
        running = [t for t in self._view().get_live_trials() if t.status == Trial.RUNNING]
        if waiting and len(waiting) == len(running):
            logger.warning(
                "Validations get no resources because all trials hold theirs while they wait for "
                "scores; trial %s is paused to make room. Set max_concurrent_trials so that "
                "something is left for validation, or use on_pending='pause'.",
                waiting[0].trial_id,
            )
            self._pause_until_scored(waiting[0], controller)
            validation.validator.relieved()

    # How it is kept ----------------------------------------------------------------------------

    def _wire(self, tune_controller: Any) -> ValidationCallback:
        if self._validation is None:
            controller = Controller(tune_controller)
            callbacks = [c for c in controller.callbacks if isinstance(c, ValidationCallback)]
            if len(callbacks) != 1:
                raise WiringError(
                    f"ValidatedScheduler found {len(callbacks)} ValidationCallbacks among the "
                    "sweep's callbacks; it needs one. Put "
                    "tunekit.ValidationCallback(tunekit.ValidationConfig(fn=validate)) into "
                    "RunConfig(callbacks=[...]), or use tunekit.Tuner."
                )
            self._controller, self._validation = controller, callbacks[0]
            self._validation.attach(controller, self, ValidatedSearcher.within(controller))
        return self._validation

    def _view(self) -> Any:
        """The controller as the base scheduler sees it: without those that wait for a score."""
        if self._controller is None:
            raise WiringError("ValidatedScheduler was called before Tune added a trial to it.")
        return self._controller.for_scheduler(hidden=self._paused.values())

    def _forget(self, trial: Trial) -> None:
        """The trial is not waiting for anything any more; one that was stopped still is."""
        if self._validation is not None:
            self._waited(trial.trial_id, self._validation)
        for kept in (self._held, self._paused, self._ready):
            kept.pop(trial.trial_id, None)
        self._pausing.discard(trial.trial_id)
