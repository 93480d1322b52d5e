"""The results that Tune is processing: what it gets, and what it decides."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from ray.train._internal.session import _FutureTrainingResult, _TrainingResult
from ray.tune.callback import CallbackList
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.result import DONE, RESULT_DUPLICATE, SHOULD_CHECKPOINT
from ray.tune.schedulers import TrialScheduler
from ray.tune.stopper import NoopStopper
from ray.tune.trainable.metadata import _TrainingRunMetadata

from tunekit._ray.compat import become, overriding
from tunekit._ray.scheduler_kinds import exhausts
from tunekit._ray.searchers import ScoredSearch
from tunekit._ray.split_callbacks import with_columns
from tunekit._ray.stoppers import WithoutScore
from tunekit.core.constraints import Constraint
from tunekit.core.metrics import COUNTS, VALIDATED_AT, merge
from tunekit.core.report import Report
from tunekit.core.values import finite_number
from tunekit.messages.advice import late_request_advice

logger = logging.getLogger(__name__)


class Processing:
    """Pass complete reports to Tune, and record what Tune decides.

    Args:
        tune: The sweep's controller.
        constraints: The constraints on scores.
    """

    def __init__(self, tune: TuneController, constraints: Sequence[Constraint]):
        self._tune, self._constraints = tune, constraints
        self._scheduler = tune._scheduler_alg
        #: The trials that do nothing until the scheduler acts on them.
        self.idle: set[Trial] = set()
        # The report of each trial that is being processed.
        self._reports: dict[Trial, Report] = {}
        # Its checkpoint, with its result.
        self._saved: dict[Trial, _TrainingResult] = {}
        # The newest result of each trial, with its newest score.
        self._newest: dict[Trial, dict[str, Any]] = {}
        #: Whether the scheduler stops the trial whose result is being processed.
        self.scheduler_stops = False
        # The recorded decision on the result being processed again.
        self._recorded: dict[str, str] = {}
        # Whether the search algorithm gets what is replayed.
        self._for_searcher = True
        # Whether a warning about a late request for a checkpoint was logged.
        self._has_warned = False

    def __contains__(self, trial: Trial) -> bool:
        """Return whether a result of a trial is being processed."""
        return trial in self._reports

    # What Tune gets ----------------------------------------------------------------------------

    def process(self, trial: Trial, report: Report) -> None:
        """Give Tune a trial's oldest report."""
        self._reports[trial] = report
        become(trial.run_metadata, _Analysis)
        trial.run_metadata.scores = sorted(self._tune.sweep.state.required)
        tune, trial_id = self._tune, trial.trial_id
        try:
            if RESULT_DUPLICATE in report.report:
                self.show_newest(trial)
                report.give()
                with self._passing(report):
                    TuneController._on_training_result(tune, trial, dict(report.report))
                return
            result = tune.sweep.result(trial_id, report)
            if report.checkpoint is not None:
                # Before anything decides: an exploit registers its donor's checkpoint in the
                # middle of the processing, and that must be the newest (decision 1).
                # Tune's analysis expects the sweep's metrics with each checkpoint.
                metrics = with_columns(result, tune.sweep.names)
                self._saved[trial] = _TrainingResult(report.checkpoint, metrics)
                tune._process_trial_save(trial, self._saved[trial])
                trial.storage.current_checkpoint_index -= 1  # it is counted already
                tune._callbacks.on_trial_save(
                    iteration=tune._iteration, trials=tune._trials, trial=trial
                )
            tune.exploits.watch()
            self.scheduler_stops = False
            tune.do(tune.sweep.give(trial_id, report, result))
            with self._passing(report):
                TuneController._on_training_result(tune, trial, result)
        finally:
            self._reports.pop(trial, None)
            self._saved.pop(trial, None)

    def _passing(self, report: Report) -> AbstractContextManager[None]:
        """Hide a report that was not validated from the scheduler and the searcher."""
        tune, stopper = self._tune, self._tune._stopper
        if RESULT_DUPLICATE in report.report:
            stopper = NoopStopper()  # Tune asks again at the end of a function that has returned
        elif not report.ranked:
            stopper = WithoutScore(stopper, tune.sweep.names)
        scheduler = self._scheduler if report.ranked else Unscored(self._scheduler)
        search = self.searching(scored=report.ranked)
        return overriding(tune, _stopper=stopper, _search_alg=search, _scheduler_alg=scheduler)

    def searching(self, *, scored: bool) -> ScoredSearch:
        """Return the search algorithm, which gets a result only if it has a score."""
        search: Any = self._tune._search_alg
        if isinstance(search, ScoredSearch):  # within the processing of a result
            search = search.search_alg
        return ScoredSearch(search, self._constraints, scored=scored, receives=self._for_searcher)

    # What Tune decides -------------------------------------------------------------------------

    def decided(self, trial: Trial, decision: Any) -> Any:
        """Record what Tune has decided on a result; return the decision that is carried out."""
        recorded = self._recorded.pop(trial.trial_id, None)
        if recorded is not None:
            decision = self._tune._queued_trial_decisions[trial.trial_id] = recorded
        elif decision == TrialScheduler.NOOP and trial.status == Trial.RUNNING:
            self.idle.add(trial)
        report, tune = self._reports[trial], self._tune
        if RESULT_DUPLICATE not in report.report:
            decided = decision or tune._cached_trial_decisions.get(trial.trial_id)
            decided = decided or TrialScheduler.CONTINUE
            if report.decision_point is not None:
                tune.waiting.decided(continues=decided == TrialScheduler.CONTINUE)
            self._record(trial, report, decided)
        return decision

    def _record(self, trial: Trial, report: Report, decision: str) -> None:
        """Record a decision, and what follows from it before Tune carries it out."""
        tune, result, trial_id = self._tune, trial.run_metadata.last_result, trial.trial_id
        finished = decision == TrialScheduler.STOP and (
            report.last or not self.scheduler_stops or exhausts(self._scheduler.scheduler, result)
        )
        tune.do(tune.sweep.decided(trial_id, report, decision, finished=finished))
        if newest := tune.sweep.newest.get(trial_id):
            iteration, metrics = newest
            shown = result if report.ranked else merge(result, metrics)
            trial.run_metadata.last_result = {**shown, VALIDATED_AT: iteration}
        self._newest[trial] = trial.run_metadata.last_result
        # After the decision: a restore replays that with new random donors, and then finds the
        # recorded ones, which take precedence (decision 3).
        tune.exploits.record()

    def show_newest(self, trial: Trial) -> None:
        """Let a trial that is about to end show its own newest result again.

        When Tune restores a process, it shows the result that its checkpoint was saved with: one
        without ``VALIDATED_AT``, and after an exploit the donor's.
        """
        result = self._newest.get(trial)
        newest = self._tune.sweep.newest.get(trial.trial_id)
        if result is None and newest is not None and VALIDATED_AT not in trial.last_result:
            iteration, metrics = newest  # of an earlier session
            own = {**trial.last_result, "trial_id": trial.trial_id}
            result = {**merge(own, metrics), VALIDATED_AT: iteration}
        if result is not None:
            trial.run_metadata.last_result = result

    def needs_save(self, trial: Trial, *, force: bool) -> bool:
        """Return whether a trial is saved only after its result, if it has not moved on.

        Its checkpoint would have been saved when the report arrived, had that been known to be the
        last.
        """
        report = self._reports[trial]
        late = force and not report.report.get(SHOULD_CHECKPOINT)
        if late and not self._has_warned:
            self._has_warned = True
            logger.warning("%s", late_request_advice(trial.trial_id, report.iteration))
        at_end = trial.checkpoint_at_end and trial.last_result.get(DONE)
        saves = (late or at_end) and report.checkpoint is None
        return bool(saves and RESULT_DUPLICATE not in report.report)

    def save(self, trial: Trial, result: Any) -> Any:
        """Return the checkpoint of the result being processed, or save a trial without any."""
        report, tune = self._reports.get(trial), self._tune
        saved = self._saved.get(trial)
        if saved is None:
            saved = trial.latest_checkpoint_result
            if saved is None:
                return TuneController._schedule_trial_save(tune, trial, result)
            # A scheduler that looks at a trial while it processes another one's result must not
            # clone what it has not ranked.
            if tune.sweep.state.lacks(saved.metrics):
                saved = None
        # A pause needs no other checkpoint, and a clone gets the weights that were scored
        # (decision 1).
        if decision := tune._cached_trial_decisions.pop(trial.trial_id, None):
            tune._queue_decision(trial, decision)
            tune._maybe_execute_queued_decision(trial, after_save=True)
        if report is not None:
            report.cloneable = True
        return _Saved(saved)

    # A restore ---------------------------------------------------------------------------------

    def replay(
        self, trial: Trial, report: Report, decision: str, *, for_searcher: bool, for_stoppers: bool
    ) -> None:
        """Process a report that was processed before the sweep was interrupted.

        Args:
            trial: The trial, which has no actor.
            report: The report.
            decision: The decision on it, which takes precedence because it was carried out.
            for_searcher: Whether the search algorithm gets it, because it has not yet.
            for_stoppers: Whether stoppers do.
        """
        self._tune._set_trial_status(trial, Trial.RUNNING)
        self._recorded[trial.trial_id] = decision
        stopper = self._tune._stopper if for_stoppers else NoopStopper()
        with (
            overriding(self, _for_searcher=for_searcher),
            overriding(self._tune, _stopper=stopper),
        ):
            self.process(trial, report)

    def replay_end(self, trial: Trial, *, for_searcher: bool) -> None:
        """End a trial that had ended before the sweep was interrupted."""
        with overriding(self, _for_searcher=for_searcher):
            self._tune.stop_trial(trial)

    def silent(self) -> AbstractContextManager[None]:
        """Silence callbacks while results that they already have are replayed."""
        return overriding(self._tune, _callbacks=CallbackList([]))


class _Analysis(_TrainingRunMetadata):
    """Tune's metadata of a trial, with averages in which each value counts once.

    Tune takes the iteration for the number of values, but not each iteration has a score. NaN and
    infinity are not scores, and Tune would pass over a trial whose newest value is one of them.
    Averages of our counts would take a twentieth of the driver's time.

    Attributes:
        scores: The metrics of which only finite values count.
    """

    scores: Sequence[str]

    def update_metric(self, metric: str, value: Any, step: int | None = 1) -> None:
        has_no_score = metric in self.scores and finite_number(value) is None
        if metric not in COUNTS and not has_no_score:
            counts: dict[str, int] = self.__dict__.setdefault("_values", {})
            counts[metric] = counts.get(metric, 0) + 1
            super().update_metric(metric, value, counts[metric])


class _Saved(_FutureTrainingResult):
    """A checkpoint that already exists where Tune expects a future one, or None."""

    def __init__(self, saved: _TrainingResult | None):
        self._saved = saved

    def resolve(self, block: bool = True) -> _TrainingResult | None:
        return self._saved


class Unscored:
    """The scheduler, except that a result without a score does not reach it."""

    def __init__(self, scheduler: TrialScheduler):
        self._scheduler = scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def on_trial_result(self, *result: Any) -> str:
        """Let the trial continue."""
        return TrialScheduler.CONTINUE
