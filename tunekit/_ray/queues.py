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
from ray.tune.stopper import NoopStopper

from tunekit._ray.asking import INQUIRY
from tunekit.core.metrics import VALIDATION_KEY, sanitize_report
from tunekit.core.queue import Circumstances
from tunekit.core.report import Report, Stage
from tunekit.core.waiting import Situation
from tunekit.errors import TunekitError
from tunekit.journal.pickles import portable


class Queues:
    """Report what happens to trials, and give Tune what is complete.

    Args:
        tune: The sweep's controller.
    """

    def __init__(self, tune: TuneController):
        self._tune = tune
        #: The trials that wait in their processes, in order, each with the circumstances in which
        #: that was decided; None: it is decided again at the end of the step.
        self.waiting_in_place: dict[Trial, Circumstances | None] = {}
        #: Whether the sweep is being interrupted: what waits stays pending.
        self.closing = False
        #: Whether Tune stops all trials if there is a reason to.
        self.ends = False
        #: The paused trials that it has stopped so.
        self.cut_while_paused: set[Trial] = set()

    # Reports arrive ----------------------------------------------------------------------------

    def convert(self, trial: Trial, result: dict[str, Any], *, saved: bool) -> None:
        """Convert a report, or the report of a save, in place for Tune and the journal.

        If both are there, Ray may pass on a report before that of the preceding save.
        """
        reached = trial.run_metadata.last_result.get(TRAINING_ITERATION, 0)
        for report in self._tune.sweep.queue_of(trial.trial_id):
            reached = report.iteration
            if saved and report.stage is Stage.SAVING:
                break
        if saved:  # the rest is in the queue
            own = result.get(TRAINING_ITERATION)
            other: Mapping[str, Any] = {TRAINING_ITERATION: own if type(own) is int else reached}
        else:
            other = sanitize_report(result, reached + 1, portable, keep=("config", VALIDATION_KEY))
        if other is not result:  # Tune has a reference to it
            result.clear()
            result.update(other)

    def receive(self, trial: Trial, result: Any) -> None:
        """Handle what a trial has reported."""
        tune, trial_id = self._tune, trial.trial_id
        tune.processes.training.discard(trial)
        for report in result if isinstance(result, list) else [result]:
            if INQUIRY in report:
                tune.inquiries.ask(trial, report[INQUIRY])
                continue
            if RESULT_DUPLICATE in report:  # a function has returned after its last report
                tune.do(tune.sweep.returned(trial_id, report))
                continue
            report["trial_id"] = trial_id
            tune.waiting.starts.reported(trial_id, tune.facts.now)
            tune._callbacks.on_trial_report(tune._iteration, tune._trials, trial, report)
            about = tune.facts.about(trial, report)
            tune.do(tune.sweep.reported(trial_id, report, about))
        self.advance(trial)

    def save(self, trial: Trial, report: Report) -> None:
        """Save a trial, before its next iteration."""
        # The index in the name of a checkpoint counts all that were saved, not those that Tune
        # knows.
        trial.storage.current_checkpoint_index += 1
        on_saved = partial(self._on_saved, report)
        self._tune._schedule_trial_task(trial, "save", on_result=on_saved, on_error=self.fail)

    def _on_saved(self, report: Report, trial: Trial, saved: _TrainingResult) -> None:
        newest, checkpoint = saved.metrics or {}, saved.checkpoint
        if newest.get(TRAINING_ITERATION) != report.iteration:
            checkpoint = None  # it is of another iteration
        path = "" if checkpoint is None else checkpoint.path
        self._tune.do(self._tune.sweep.saved(trial.trial_id, report, checkpoint, path=path))

    def fail(self, trial: Trial, exception: Exception) -> None:
        """Handle the failure of a trial."""
        self._tune.processes.training.discard(trial)
        restarts = self._tune.reuse.restarts_after(trial, exception)
        self._tune.do(self._tune.sweep.failed(trial.trial_id, exception, restarts=restarts))
        self._stops_waiting(trial)
        self.advance(trial)

    # Tune processes them, in order -------------------------------------------------------------

    def advance(self, trial: Trial) -> None:
        """Give Tune a trial's complete reports, and then carry out the trial's next action."""
        tune, trial_id = self._tune, trial.trial_id
        if trial in tune.processing:
            return
        while trial not in tune.processing.idle:
            # A stopper may end a trial based on training's reports alone.
            trains = tune.processes.has_actor(trial) and isinstance(tune._stopper, NoopStopper)
            report = tune.sweep.next_report(trial_id, trains=trains)
            if report is None:
                break
            if report.failure is not None:
                TuneController._trial_task_failure(tune, trial, report.failure)
                return
            tune.processing.process(trial, report)
        if trial_id not in tune.sweep.queues:
            self._continue_trial(trial, tune.facts.situation())
        elif tune.processes.has_actor(trial) and trial not in tune.processes.training:
            self.waiting_in_place[trial] = None

    @contextmanager
    def raising_as_tune(self) -> Iterator[None]:
        """Raise what Tune raises if the processing of a result fails (``_schedule_trial_task``)."""
        try:
            yield
        except (TunekitError, TuneError):
            raise
        except Exception as error:
            if self._tune._fail_fast == TuneController.RAISE:
                raise
            raise TuneError(traceback.format_exc()) from error

    # What trials do next -----------------------------------------------------------------------

    def continue_waiting(self) -> None:
        """Carry out the next actions of trials that wait in their processes, after a change."""
        tune = self._tune
        waiting, facts = tune.waiting, tune.facts
        moved = waiting.pool.pop_moved()
        if not self.waiting_in_place:
            return
        situation = facts.situation()
        now = waiting.circumstances(situation)
        for trial, then in list(self.waiting_in_place.items()):
            asks = tune.inquiries.until(trial) is not None  # perhaps no longer than until now
            if then != now or trial.trial_id in moved or asks:
                self._continue_trial(trial, situation, now)
                if trial not in self.waiting_in_place:
                    situation = facts.situation()
                    now = waiting.circumstances(situation)

    def _continue_trial(
        self, trial: Trial, situation: Situation, now: Circumstances | None = None
    ) -> None:
        """Carry out a trial's next action."""
        tune = self._tune
        busy = trial in tune.processes.training or trial in tune.processing.idle
        if trial.status != Trial.RUNNING or busy or trial.is_saving:
            self.waiting_in_place.pop(trial, None)
        else:
            tune.do(tune.waiting.next(tune.facts.trial(trial), situation, now))

    def train(self, trial: Trial) -> None:
        """Let a trial train its next iteration."""
        self.waiting_in_place.pop(trial, None)
        self._tune._schedule_trial_train(trial)

    def start_again(self, trial: Trial) -> None:
        """Start a process for a trial that has released its slot, before those of new trials."""
        self._tune.processes.starts_first[trial] = None
        self._tune._set_trial_status(trial, Trial.PENDING)

    def release_slot(self, trial: Trial) -> None:
        """Release the slot of a waiting trial; it resumes from what is scored (decision 2)."""
        self.waiting_in_place.pop(trial, None)
        self._tune.processes.training.discard(trial)
        queues = self._tune.sweep.queues
        queue = queues.pop(trial.trial_id, None)  # which the stop would drop
        self._tune.processes.releases()
        self._tune._schedule_trial_stop(trial)
        self._tune._set_trial_status(trial, Trial.RUNNING)  # for Tune it still runs
        if queue:
            queue.continues()  # it will continue
            queues[trial.trial_id] = queue
        self.advance(trial)

    def moved_on(self, trial: Trial) -> bool:
        """Return whether a trial has left the state that its processed result was made in."""
        away = trial in self._tune.processes.training or not self._tune.processes.has_actor(trial)
        return away or bool(self._tune.sweep.queue_of(trial.trial_id))

    @property
    def drain(self) -> bool:
        """Return whether time is up, and all trials end once Tune has processed all reports.

        With a scheduler that compares trials in rounds, they end at once: HyperBand raises an error
        if a result ends a round and a trial that continues with the next one does not start.
        """
        tune = self._tune
        return (
            tune.session.out_of_time
            and not tune.facts.has_rounds
            and any(tune.sweep.queues.values())
        )

    def end_iterations(self) -> None:
        """End the iterations of all trials, as time is up."""
        for trial in sorted(self._tune.processes.training, key=lambda one: str(one.trial_id)):
            if not self._tune.sweep.queue_of(trial.trial_id).saves:
                self.release_slot(trial)

    def drop(self, trial: Trial) -> None:
        """Discard what a trial has trained past a decision."""
        self.waiting_in_place.pop(trial, None)
        self._tune.processing.idle.discard(trial)
        sweep, trial_id = self._tune.sweep, trial.trial_id
        if trial_id not in sweep.queues:
            return
        self.closing = self.closing or (self.ends and self._tune.session.cuts_short)
        if self.closing:
            del sweep.queues[trial_id]  # a restored sweep has them again
        else:
            self._tune.do(sweep.dropped(trial_id))
        self._stops_waiting(trial)

    def _stops_waiting(self, trial: Trial) -> None:
        tune = self._tune
        tune.do(tune.waiting.stops_waiting(trial.trial_id, tune.facts.now))
