"""Tune's controller, except that it processes a result only once it is validated.

Every part of Tune that gets results gets validated ones, each once and in the order of reports:
stoppers, the scheduler, the searcher, loggers, ``trial.last_result``, the checkpoint manager.
"""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

from ray.train._internal.session import _FutureTrainingResult, _TrainingResult
from ray.tune import TuneError
from ray.tune.callback import Callback, CallbackList
from ray.tune.experiment import Trial
from ray.tune.logger import CSVLoggerCallback, LoggerCallback
from ray.tune.result import DONE, RESULT_DUPLICATE, SHOULD_CHECKPOINT, TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler
from ray.tune.stopper import NoopStopper
from ray.tune.trainable.metadata import _TrainingRunMetadata

from tunekit._ray.compat import become, check_controller
from tunekit._ray.controller import Controller
from tunekit._ray.processes import WaitingRules, overriding
from tunekit._ray.scheduler_kinds import controller_in
from tunekit._ray.searchers import ScoredSearch
from tunekit._ray.stoppers import WithoutScore
from tunekit._ray.storage import exists
from tunekit.core.constraints import Constraint
from tunekit.core.metrics import COUNTS, flatten
from tunekit.core.queue import Circumstances, Next, Queue
from tunekit.core.report import Report, State
from tunekit.errors import TunekitError
from tunekit.messages.advice import late_request_advice

logger = logging.getLogger(__name__)


class ReportRules(Protocol):
    """Rules for the reports of a sweep before Tune gets them."""

    @property
    def names(self) -> AbstractSet[str]:
        """The names of the metrics that validation produces, or that the sweep uses."""

    @property
    def idle(self) -> bool:
        """Whether no validation is pending."""

    def holds(self, queue: Queue, *, trains: bool) -> bool:
        """Return whether all reports wait, because validation's metrics are not known yet."""

    def reported(self, trial: Trial, queue: Queue, report: dict[str, Any]) -> Report:
        """Return the entry of a report that the policies have seen; it may be one to save."""

    def returned(self, trial: Trial, queue: Queue, *, saves: bool = False) -> Report | None:
        """Record that a trial has ended; return its last report if that is to be saved now.

        Args:
            trial: The trial.
            queue: Its queue.
            saves: Whether it can still save.
        """

    def saved(self, trial: Trial, entry: Report) -> None:
        """Record the checkpoint of an entry, and request its validation if it has one."""

    def dropped(self, trial: Trial, entries: list[Report]) -> None:
        """Cancel the validations of entries that a decision has made void."""

    def result(self, trial: Trial, entry: Report) -> dict[str, Any]:
        """Return the result that Tune gets: the report, merged with the score."""

    def rank(self, trial: Trial, entry: Report, result: Mapping[str, Any]) -> bool:
        """Return whether the scheduler and the searcher get a result."""

    def is_rankable(self, result: Mapping[str, Any]) -> bool:
        """Return whether a result has everything that the scheduler and the searcher use."""

    def processing(self) -> None:
        """Record that Tune is about to process a result."""

    def processed(self, trial: Trial, entry: Report, decision: str) -> None:
        """Record a result that Tune has processed, before it carries out the decision."""


class ValidatingController(Controller):
    """Tune's controller, which gets each result of a trial once it is validated.

    A running controller becomes one by :meth:`install`.
    """

    # Tune's own, replaced by others while they must not get a result.
    _callbacks: Any
    _stopper: Any
    _search_alg: Any
    _scheduler_alg: Any

    @classmethod
    def install(cls, tune_controller: Any) -> ValidatingController:
        """Change a controller that has not processed a result into a validating one.

        It must be connected before it processes one.

        Args:
            tune_controller: The controller, as Tune passes it to a scheduler.
        """
        controller = controller_in(tune_controller)
        check_controller(controller)
        # Tune creates its own controller and accepts no other. Only the controller can hold back a
        # result from all its recipients (decision 1).
        become(controller, cls)
        return cast(ValidatingController, controller)

    def connect(
        self,
        validation: Callback,
        reports: ReportRules,
        rules: WaitingRules,
        constraints: Sequence[Constraint],
    ) -> None:
        """Connect a new controller to the rules for reports and processes.

        Args:
            validation: The callback before which callbacks get each report immediately, as training
                made it; the others get the validated result.
            reports: The rules for reports.
            rules: The rules for processes.
            constraints: The constraints on scores.
        """
        saved = set(vars(self))
        self.begin(rules)
        self._constraints = constraints
        self._reports = reports
        first = self.callbacks.index(validation)
        self._callbacks = SplitCallbacks(self.callbacks, first, reports)
        # The reports that have not been processed; a trial without any has no queue.
        self._queues: dict[Trial, Queue] = {}
        # The entry of each trial that is being processed.
        self._processed: dict[Trial, Report] = {}
        # The recorded decision on the result being processed again.
        self._recorded: dict[str, str] = {}
        #: The trials that wait in their processes, in order, each with the circumstances in which
        #: that was decided; None: it is decided again at the end of the step.
        self.waiting_in_place: dict[Trial, Circumstances | None] = {}
        # The trials that do nothing until the scheduler acts on them.
        self._idle: set[Trial] = set()
        #: Whether the sweep is being interrupted: what waits stays pending.
        self.closing = False
        # Whether Tune stops all trials if there is a reason to.
        self._ends = False
        self._scheduler = self._scheduler_alg
        # Whether the search algorithm gets what is replayed.
        self._for_searcher = True
        # Whether a warning about a late request for a checkpoint was logged.
        self._has_warned = False
        self._unsaved = {"_unsaved", *vars(self).keys() - saved}

    def __getstate__(self) -> dict[str, Any]:
        """Return what Tune saves of itself."""
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name not in self._unsaved}

    def is_finished(self) -> bool:
        """Return whether all trials have ended, and no validation is pending.

        In a restored sweep, validations of ended trials may be.
        """
        return bool(super().is_finished()) and self._reports.idle

    # Reports arrive ----------------------------------------------------------------------------

    def _on_training_result(self, trial: Trial, result: Any) -> None:
        self._training.discard(trial)  # a trial in an iteration
        for report in result if isinstance(result, list) else [result]:
            self._enqueue(trial, report)
        self.advance(trial)

    def _enqueue(self, trial: Trial, report: dict[str, Any]) -> None:
        queue = self._queues.setdefault(trial, Queue())
        if RESULT_DUPLICATE in report:  # a function has returned after its last report
            entry = self._reports.returned(trial, queue, saves=True)
            queue.append(Report(report, last=True))
        else:
            report["trial_id"] = trial.trial_id
            self._rules.reported(trial.trial_id)
            self._callbacks.on_trial_report(self._iteration, self._trials, trial, report)
            entry = self._reports.reported(trial, queue, report)
            queue.append(entry)
        if entry is not None and entry.state is State.SAVING:
            # At once, before the next iteration: the weights are those of the report (decision 1).
            # The index in the name of a checkpoint counts all that were saved, not those that Tune
            # knows.
            trial.storage.current_checkpoint_index += 1
            self._schedule_trial_task(
                trial,
                "save",
                on_result=lambda trial, saved: self._on_saved(trial, entry, saved),
                on_error=self._trial_task_failure,
            )

    def _on_saved(self, trial: Trial, entry: Report, saved: _TrainingResult) -> None:
        if entry.state is not State.SAVING:
            return  # the trial was stopped meanwhile
        newest = saved.metrics or {}
        if saved.checkpoint is not None and newest.get(TRAINING_ITERATION) == entry.iteration:
            entry.saved(saved)
            self._reports.saved(trial, entry)
        else:
            entry.lost()
        self.advance(trial)

    def scored(self, trial: Trial, entry: Report, metrics: Mapping[str, Any] | None) -> None:
        """Process the results that the end of a validation has completed.

        Args:
            trial: The trial.
            entry: The report whose checkpoint was validated.
            metrics: The score; None if there is none.
        """
        entry.scored(metrics)
        queue = self.queue_of(trial)
        if entry in queue:
            if entry is queue[0]:
                self._queues[trial] = self._queues.pop(trial)  # see advance_all
            with self._raising_as_tune():
                self.advance(trial)

    def _trial_task_failure(self, trial: Trial, exception: Exception) -> None:
        self._training.discard(trial)
        queue = self._queues.setdefault(trial, Queue())
        restarts = self.restarts_after(trial, exception)
        self._reports.dropped(trial, queue.fail(exception, restarts=restarts))
        self._rules.stops_waiting(trial.trial_id)
        if not restarts:
            self._reports.returned(trial, queue)
        self.advance(trial)

    # A restore ---------------------------------------------------------------------------------

    def replay(
        self, trial: Trial, entry: Report, decision: str, *, for_searcher: bool, for_stoppers: bool
    ) -> None:
        """Process a report that was processed before the sweep was interrupted.

        Args:
            trial: The trial, which has no actor.
            entry: The report.
            decision: The decision on it, which takes precedence because it was carried out.
            for_searcher: Whether the search algorithm gets it, because it has not yet.
            for_stoppers: Whether stoppers do.
        """
        self._set_trial_status(trial, Trial.RUNNING)
        self._recorded[trial.trial_id] = decision
        stopper = self._stopper if for_stoppers else NoopStopper()
        with overriding(self, _for_searcher=for_searcher, _stopper=stopper):
            self._process(trial, entry)

    def replay_end(self, trial: Trial, *, for_searcher: bool) -> None:
        """End a trial that had ended before the sweep was interrupted."""
        with overriding(self, _for_searcher=for_searcher):
            self.stop_trial(trial)

    def silent(self) -> AbstractContextManager[None]:
        """Silence callbacks while results that they already have are replayed."""
        return overriding(self, _callbacks=CallbackList([]))

    def requeue(self, trial: Trial, queue: Queue) -> None:
        """Make a trial without an actor wait for its unprocessed reports."""
        self._queues[trial] = queue
        self._set_trial_status(trial, Trial.RUNNING)

    # Tune processes them, in order -------------------------------------------------------------

    def advance(self, trial: Trial) -> None:
        """Pass a trial's complete reports to Tune, and then carry out the trial's next action."""
        if trial in self._processed:
            return
        # The queue is looked up for each report, because a decision on the previous one drops it.
        while trial not in self._idle and (queue := self._queues.get(trial)):
            trains = trial in self._trial_to_actor
            # A decision would abort a save in progress and leave its folder behind.
            holds = queue.saves or self._reports.holds(queue, trains=trains)
            entry = None if holds else queue.take()
            if entry is None:
                break
            if entry.failure is not None:
                del self._queues[trial]
                super()._trial_task_failure(trial, entry.failure)
                return
            self._process(trial, entry)
        if self._queues.get(trial):
            if trial in self._trial_to_actor and trial not in self._training:
                self.waiting_in_place[trial] = None
            return
        self._queues.pop(trial, None)
        self._continue_trial(trial, self._rules.circumstances())

    def advance_all(self) -> None:
        """Pass on what waited for the sweep's first scores, in the order of those scores."""
        with self._raising_as_tune():
            for trial in list(self._queues):
                self.advance(trial)

    @contextmanager
    def _raising_as_tune(self) -> Iterator[None]:
        """Raise what Tune raises if the processing of a result fails (``_schedule_trial_task``)."""
        try:
            yield
        except TunekitError:
            raise
        except Exception as error:
            if self._fail_fast == self.RAISE:
                raise
            raise TuneError(traceback.format_exc()) from error

    def continue_waiting(self) -> None:
        """Carry out the next actions of trials that wait in their processes, after a change."""
        moved = self._rules.pop_moved()
        if not self.waiting_in_place:
            return
        now = self._rules.circumstances()
        for trial, then in list(self.waiting_in_place.items()):
            if then != now or trial.trial_id in moved:
                self._continue_trial(trial, now)
                if trial not in self.waiting_in_place:
                    now = self._rules.circumstances()

    def _process(self, trial: Trial, entry: Report) -> None:
        self._processed[trial] = entry
        become(trial.run_metadata, _Averages)
        try:
            if RESULT_DUPLICATE in entry.report:
                entry.give()
                with self._passing(entry):
                    super()._on_training_result(trial, dict(entry.report))
                return
            result = self._reports.result(trial, entry)
            if entry.checkpoint is not None:
                # Before anything decides: an exploit registers its donor's checkpoint in the
                # middle of the processing, and that must be the newest (decision 1).
                # Tune's analysis expects the sweep's metrics with each checkpoint.
                metrics = _with_columns(result, self._reports.names)
                entry.checkpoint = _TrainingResult(entry.checkpoint.checkpoint, metrics)
                self._process_trial_save(trial, entry.checkpoint)
                trial.storage.current_checkpoint_index -= 1  # it is counted already
                self._callbacks.on_trial_save(
                    iteration=self._iteration, trials=self._trials, trial=trial
                )
            self._reports.processing()
            entry.give(ranked=self._reports.rank(trial, entry, result))
            with self._passing(entry):
                super()._on_training_result(trial, result)
        finally:
            self._processed.pop(trial, None)

    def _passing(self, entry: Report) -> AbstractContextManager[None]:
        """Hide a report that was not validated from the scheduler and the searcher."""
        stopper = self._stopper
        if RESULT_DUPLICATE in entry.report:
            stopper = NoopStopper()  # Tune asks again at the end of a function that has returned
        elif not entry.ranked:
            stopper = WithoutScore(stopper, self._reports.names)
        scheduler = self._scheduler if entry.ranked else _Unscored(self._scheduler)
        search = self._searching(scored=entry.ranked)
        return overriding(self, _stopper=stopper, _search_alg=search, _scheduler_alg=scheduler)

    def _searching(self, *, scored: bool) -> ScoredSearch:
        search = self._search_alg
        if isinstance(search, ScoredSearch):  # within the processing of a result
            search = search.search_alg
        return ScoredSearch(search, self._constraints, scored=scored, receives=self._for_searcher)

    def stop_trial(self, trial: Trial) -> None:
        """Stop a trial; the search algorithm gets its newest score if it has one."""
        with overriding(self, _search_alg=self._searching(scored=False)):
            super().stop_trial(trial)

    def _continue_trial(self, trial: Trial, now: Circumstances) -> None:
        """Carry out a trial's next action."""
        stays = trial.status != Trial.RUNNING or trial in self._training or trial in self._idle
        if stays or trial.is_saving:
            self.waiting_in_place.pop(trial, None)
            return
        queue = self._queues.get(trial) or Queue()
        what = self._rules.next(trial, queue, now)
        if what is Next.WAIT and trial in self._trial_to_actor:
            self.waiting_in_place[trial] = now
            return
        self.waiting_in_place.pop(trial, None)
        if trial not in self._trial_to_actor:  # it has released its slot
            if not queue:
                self.starts_first[trial] = None
                self._set_trial_status(trial, Trial.PENDING)
        elif what is Next.TRAIN:
            super()._schedule_trial_train(trial)
        else:
            self.release_slot(trial)

    def _set_trial_status(self, trial: Trial, status: str) -> None:
        super()._set_trial_status(trial, status)
        # Synchronous PBT waits for live trials. Tune counts failed ones among them, but not those
        # that were continued after they had ended.
        if trial.is_finished():
            self._live_trials.discard(trial)
        else:
            self._live_trials.add(trial)
        self._mark_trial_to_checkpoint(trial)  # also one that another trial's result has changed

    # Tune acts on what it has processed --------------------------------------------------------

    def _checkpoint_trial_if_needed(self, trial: Trial, force: bool = False) -> None:
        entry = self._processed.get(trial)
        if entry is None:
            super()._checkpoint_trial_if_needed(trial, force=force)
            return
        late = force and not entry.report.get(SHOULD_CHECKPOINT)
        if late and not self._has_warned:
            self._has_warned = True
            logger.warning("%s", late_request_advice(trial.trial_id, entry.iteration))
        at_end = trial.checkpoint_at_end and trial.last_result.get(DONE)
        if (late or at_end) and entry.checkpoint is None and not self._is_past(trial):
            # Its checkpoint would have been saved when the report arrived, had that been known to
            # be the last.
            super()._schedule_trial_save(trial)

    def _is_past(self, trial: Trial) -> bool:
        """Return whether a trial has left the state that the processed result was made in."""
        returned = RESULT_DUPLICATE in self._processed[trial].report
        away = trial in self._training or trial not in self._trial_to_actor
        return returned or away or bool(self._queues.get(trial))

    def _schedule_trial_save(self, trial: Trial, result: Any = None) -> Any:
        entry = self._processed.get(trial)
        saved = None if entry is None else entry.checkpoint
        if saved is None:
            saved = trial.latest_checkpoint_result
            if saved is None:
                return super()._schedule_trial_save(trial, result)
            # A scheduler that looks at a trial while it processes another one's result must not
            # clone what it has not ranked.
            if not self._reports.is_rankable(saved.metrics):
                saved = None
        # A pause needs no other checkpoint, and a clone gets the weights that were scored
        # (decision 1).
        if decision := self._cached_trial_decisions.pop(trial.trial_id, None):
            self._queue_decision(trial, decision)
            self._maybe_execute_queued_decision(trial, after_save=True)
        if entry is not None:
            entry.cloneable = True
        return _Saved(saved)

    def _on_saving_result(self, trial: Trial, checkpoint_value: Any) -> None:
        super()._on_saving_result(trial, checkpoint_value)
        self.advance(trial)

    def _validate_result_metrics(self, result: Any) -> None:
        if self._scheduler_alg is self._scheduler:  # others may lack the sweep's metric
            super()._validate_result_metrics(result)

    def _process_trial_result(self, trial: Trial, result: dict[str, Any]) -> Any:
        decision = super()._process_trial_result(trial, result)
        recorded = self._recorded.pop(trial.trial_id, None)
        if recorded is not None:
            decision = self._queued_trial_decisions[trial.trial_id] = recorded
        elif decision == TrialScheduler.NOOP and trial.status == Trial.RUNNING:
            self._idle.add(trial)
        entry = self._processed[trial]
        if RESULT_DUPLICATE not in entry.report:
            decided = decision or self._cached_trial_decisions.get(trial.trial_id)
            decided = decided or TrialScheduler.CONTINUE
            if entry.decision_point is not None:
                self._rules.decided(continues=decided == TrialScheduler.CONTINUE)
            self._reports.processed(trial, entry, decided)
        return decision

    def _schedule_trial_pause(self, trial: Trial, should_checkpoint: bool = True) -> None:
        if trial in self._trial_to_actor:
            super()._schedule_trial_pause(trial, should_checkpoint)
        elif trial.status == Trial.RUNNING:  # it has released its slot
            self._drop(trial)
            self._set_trial_status(trial, Trial.PAUSED)

    def _schedule_trial_train(self, trial: Trial) -> None:
        if trial in self._idle and trial not in self._processed:
            self._idle.discard(trial)
            self.advance(trial)
        elif trial not in self._processed and trial not in self._training:
            super()._schedule_trial_train(trial)

    def _schedule_trial_stop(self, trial: Trial, exception: Exception | None = None) -> None:
        self._drop(trial)
        super()._schedule_trial_stop(trial, exception)

    def _drop(self, trial: Trial) -> None:
        """Discard what a trial has trained past a decision."""
        self.waiting_in_place.pop(trial, None)
        self._idle.discard(trial)
        if queue := self._queues.pop(trial, None):
            self.closing = self.closing or (self._ends and self.cuts_short)
            self._reports.dropped(trial, [] if self.closing else queue.drop())
            self._rules.stops_waiting(trial.trial_id)

    def release_slot(self, trial: Trial) -> None:
        """Release the slot of a waiting trial; it resumes from what is scored (decision 2)."""
        # Without its queue, which the stop would drop.
        queue = self._queues.pop(trial, None)
        self.waiting_in_place.pop(trial, None)
        self._slots = self._occupied
        super()._schedule_trial_stop(trial)
        self._set_trial_status(trial, Trial.RUNNING)  # for Tune it still runs
        if queue:
            queue.continues()  # it will continue
            self._queues[trial] = queue
        self.advance(trial)

    def is_processing(self, trial: Trial) -> bool:
        """Return whether a result of a trial is being processed."""
        return trial in self._processed

    def queue_of(self, trial: Trial) -> Queue:
        """Return the reports of a trial that have not been processed."""
        return self._queues.get(trial) or Queue()

    def _stop_experiment_if_needed(self) -> None:
        self._ends = True
        super()._stop_experiment_if_needed()
        self._ends = False

    def _cleanup_trials(self) -> None:
        self.closing = True  # Tune ends all actors; a restored sweep continues
        super()._cleanup_trials()


def is_saved_at(trial: Trial, report: Mapping[str, Any], *, last: bool) -> bool:
    """Return whether Tune would save a trial after a report, which may be its last one."""
    every, iteration = trial.checkpoint_freq, report.get(TRAINING_ITERATION, 0)
    at_end = last and trial.checkpoint_at_end
    return bool(report.get(SHOULD_CHECKPOINT) or at_end or (every and iteration % every == 0))


class SplitCallbacks(CallbackList):
    """The callbacks of a sweep, the first of which get each report when it arrives.

    Args:
        callbacks: The callbacks, in order.
        first: The number of those.
        reports: The rules for reports.
    """

    def __init__(self, callbacks: list[Callback], first: int, reports: ReportRules):
        super().__init__(callbacks)
        self._first, self._reports = first, reports
        # The trials whose start they have been notified of in this session.
        self._begun: set[Trial] = set()
        for callback in callbacks:
            if isinstance(callback, LoggerCallback):
                _keep_local(callback)

    def on_trial_report(
        self, iteration: int, trials: list[Trial], trial: Trial, report: dict[str, Any]
    ) -> None:
        """Pass on a report as training made it."""
        for callback in self._callbacks[: self._first]:
            callback.on_trial_result(iteration=iteration, trials=trials, trial=trial, result=report)

    def on_trial_start(self, *, trial: Trial, **info: Any) -> None:
        """Notify the callbacks that a trial's process has started."""
        self._begun.add(trial)
        super().on_trial_start(trial=trial, **info)

    def on_trial_result(self, *, trial: Trial, result: dict[str, Any], **info: Any) -> None:
        """Pass on a result that Tune processes.

        Tune's CSV logger writes the columns that a trial's first result has, so it gets NaN for
        each missing validated metric; others would show NaN as the newest value. In a restored
        sweep, a trial may have results before it starts; loggers such as MLflow's must be notified
        of it first.
        """
        if trial not in self._begun:
            self._begun.add(trial)
            for callback in self._callbacks[self._first + 1 :]:
                callback.on_trial_start(trial=trial, **info)
        for callback in self._callbacks[self._first :]:
            table = isinstance(callback, CSVLoggerCallback)
            row = _with_columns(result, self._reports.names) if table else result
            callback.on_trial_result(trial=trial, result=row, **info)


def _with_columns(result: dict[str, Any], names: AbstractSet[str]) -> dict[str, Any]:
    """Return a result with NaN for each metric that it lacks."""
    if names <= result.keys():
        return dict(result)
    return {**dict.fromkeys(sorted(names - flatten(result).keys()), math.nan), **result}


def _keep_local(logger: LoggerCallback) -> None:
    """Make a logger fetch the synced file of a trial only if there is one, and no local one.

    Whenever a trial starts, Tune's logger for ``result.json`` overwrites the local file with the
    synced one, and loses the rows in between.
    """
    restore = type(logger)._restore_from_remote
    own: Any = logger

    def restore_if_lacking(file_name: str, trial: Trial) -> None:
        if trial.checkpoint is None or Path(trial.local_path, file_name).exists():
            return  # without a checkpoint, Tune restores nothing
        if exists(trial.storage.storage_filesystem, f"{trial.storage.trial_fs_path}/{file_name}"):
            restore(logger, file_name, trial)

    own._restore_from_remote = restore_if_lacking


class _Averages(_TrainingRunMetadata):
    """Tune's metadata of a trial, with averages in which each value counts once.

    Tune takes the iteration for the number of values, but not each iteration has a score. Averages
    of our counts would take a twentieth of the driver's time.
    """

    def update_metric(self, metric: str, value: Any, step: int | None = 1) -> None:
        if metric not in COUNTS:
            counts: dict[str, int] = self.__dict__.setdefault("_values", {})
            counts[metric] = counts.get(metric, 0) + 1
            super().update_metric(metric, value, counts[metric])


class _Saved(_FutureTrainingResult):
    """A checkpoint that already exists where Tune expects a future one, or None."""

    def __init__(self, saved: _TrainingResult | None):
        self._saved = saved

    def resolve(self, block: bool = True) -> _TrainingResult | None:
        return self._saved


class _Unscored:
    """The scheduler, except that a result without a score does not reach it."""

    def __init__(self, scheduler: TrialScheduler):
        self._scheduler = scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def on_trial_result(self, *result: Any) -> str:
        """Let the trial continue."""
        return TrialScheduler.CONTINUE
