"""The reports that Tune has not processed, and what their trials do meanwhile."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from ray.train._internal.session import _TrainingResult
from ray.tune import TuneError
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.result import RESULT_DUPLICATE, TRAINING_ITERATION

from tunekit.core.queue import Circumstances, Next, Queue
from tunekit.core.report import Report, State
from tunekit.errors import TunekitError


class Queues:
    """Hold back reports until they are complete, and carry out what trials do next.

    Args:
        tune: The sweep's controller.
    """

    def __init__(self, tune: TuneController):
        self._tune = tune
        # The reports that have not been processed; a trial without any has no queue.
        self._queues: dict[Trial, Queue] = {}
        #: The trials that wait in their processes, in order, each with the circumstances in which
        #: that was decided; None: it is decided again at the end of the step.
        self.waiting_in_place: dict[Trial, Circumstances | None] = {}
        #: Whether the sweep is being interrupted: what waits stays pending.
        self.closing = False
        #: Whether Tune stops all trials if there is a reason to.
        self.ends = False

    def of(self, trial: Trial) -> Queue:
        """Return the reports of a trial that have not been processed."""
        return self._queues.get(trial) or Queue()

    # Reports arrive ----------------------------------------------------------------------------

    def receive(self, trial: Trial, result: Any) -> None:
        """Add what a trial has reported."""
        self._tune.processes.training.discard(trial)
        for report in result if isinstance(result, list) else [result]:
            self._enqueue(trial, report)
        self.advance(trial)

    def _enqueue(self, trial: Trial, report: dict[str, Any]) -> None:
        queue, tune = self._queues.setdefault(trial, Queue()), self._tune
        if RESULT_DUPLICATE in report:  # a function has returned after its last report
            entry = tune.reports.returned(trial, queue, saves=True)
            queue.append(Report(report, last=True))
        else:
            report["trial_id"] = trial.trial_id
            tune.rules.reported(trial.trial_id)
            tune._callbacks.on_trial_report(tune._iteration, tune._trials, trial, report)
            entry = tune.reports.reported(trial, queue, report)
            queue.append(entry)
        if entry is not None and entry.state is State.SAVING:
            # At once, before the next iteration: the weights are those of the report (decision 1).
            # The index in the name of a checkpoint counts all that were saved, not those that Tune
            # knows.
            trial.storage.current_checkpoint_index += 1
            on_saved = partial(self._on_saved, entry)
            tune._schedule_trial_task(trial, "save", on_result=on_saved, on_error=self.fail)

    def _on_saved(self, entry: Report, trial: Trial, saved: _TrainingResult) -> None:
        if entry.state is not State.SAVING:
            return  # the trial was stopped meanwhile
        newest = saved.metrics or {}
        if saved.checkpoint is not None and newest.get(TRAINING_ITERATION) == entry.iteration:
            entry.saved(saved)
            self._tune.reports.saved(trial, entry)
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
        queue = self.of(trial)
        if entry in queue:
            if entry is queue[0]:
                self._queues[trial] = self._queues.pop(trial)  # see advance_all
            with self._raising_as_tune():
                self.advance(trial)

    def fail(self, trial: Trial, exception: Exception) -> None:
        """Add the failure of a trial."""
        self._tune.processes.training.discard(trial)
        queue = self._queues.setdefault(trial, Queue())
        restarts = self._tune.reuse.restarts_after(trial, exception)
        self._tune.reports.dropped(trial, queue.fail(exception, restarts=restarts))
        self._tune.rules.stops_waiting(trial.trial_id)
        if not restarts:
            self._tune.reports.returned(trial, queue)
        self.advance(trial)

    def requeue(self, trial: Trial, queue: Queue) -> None:
        """Make a trial without an actor wait for its unprocessed reports."""
        self._queues[trial] = queue
        self._tune._set_trial_status(trial, Trial.RUNNING)

    # Tune processes them, in order -------------------------------------------------------------

    def advance(self, trial: Trial) -> None:
        """Pass a trial's complete reports to Tune, and then carry out the trial's next action."""
        if trial in self._tune.processing:
            return
        # The queue is looked up for each report, because a decision on the previous one drops it.
        while trial not in self._tune.processing.idle and (queue := self._queues.get(trial)):
            trains = self._tune.processes.has_actor(trial)
            # A decision would abort a save in progress and leave its folder behind.
            holds = queue.saves or self._tune.reports.holds(queue, trains=trains)
            entry = None if holds else queue.take()
            if entry is None:
                break
            if entry.failure is not None:
                del self._queues[trial]
                TuneController._trial_task_failure(self._tune, trial, entry.failure)
                return
            self._tune.processing.process(trial, entry)
        if self._queues.get(trial):
            if self._tune.processes.has_actor(trial) and trial not in self._tune.processes.training:
                self.waiting_in_place[trial] = None
            return
        self._queues.pop(trial, None)
        self._continue_trial(trial, self._tune.rules.circumstances())

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
            if self._tune._fail_fast == TuneController.RAISE:
                raise
            raise TuneError(traceback.format_exc()) from error

    # What trials do next -----------------------------------------------------------------------

    def continue_waiting(self) -> None:
        """Carry out the next actions of trials that wait in their processes, after a change."""
        moved = self._tune.rules.pop_moved()
        if not self.waiting_in_place:
            return
        now = self._tune.rules.circumstances()
        for trial, then in list(self.waiting_in_place.items()):
            if then != now or trial.trial_id in moved:
                self._continue_trial(trial, now)
                if trial not in self.waiting_in_place:
                    now = self._tune.rules.circumstances()

    def _continue_trial(self, trial: Trial, now: Circumstances) -> None:
        """Carry out a trial's next action."""
        busy = trial in self._tune.processes.training or trial in self._tune.processing.idle
        if trial.status != Trial.RUNNING or busy or trial.is_saving:
            self.waiting_in_place.pop(trial, None)
            return
        queue = self.of(trial)
        what = self._tune.rules.next(trial, queue, now)
        if what is Next.WAIT and self._tune.processes.has_actor(trial):
            self.waiting_in_place[trial] = now
            return
        self.waiting_in_place.pop(trial, None)
        if not self._tune.processes.has_actor(trial):  # it has released its slot
            if not queue:
                self._tune.processes.starts_first[trial] = None
                self._tune._set_trial_status(trial, Trial.PENDING)
        elif what is Next.TRAIN:
            self._tune._schedule_trial_train(trial)
        else:
            self.release_slot(trial)

    def release_slot(self, trial: Trial) -> None:
        """Release the slot of a waiting trial; it resumes from what is scored (decision 2)."""
        queue = self._queues.pop(trial, None)  # which the stop would drop
        self._tune.processes.releases()
        self._tune._schedule_trial_stop(trial)
        self._tune._set_trial_status(trial, Trial.RUNNING)  # for Tune it still runs
        if queue:
            queue.continues()  # it will continue
            self._queues[trial] = queue
        self.advance(trial)

    def moved_on(self, trial: Trial) -> bool:
        """Return whether a trial has left the state that its processed result was made in."""
        away = trial in self._tune.processes.training or not self._tune.processes.has_actor(trial)
        return away or bool(self._queues.get(trial))

    def drop(self, trial: Trial) -> None:
        """Discard what a trial has trained past a decision."""
        self.waiting_in_place.pop(trial, None)
        self._tune.processing.idle.discard(trial)
        if queue := self._queues.pop(trial, None):
            self.closing = self.closing or (self.ends and self._tune.session.cuts_short)
            self._tune.reports.dropped(trial, [] if self.closing else queue.drop())
            self._tune.rules.stops_waiting(trial.trial_id)
