"""The state of a sweep: what is true now, from the events in its journal.

The driver applies each event as it is recorded, a restore those of earlier sessions, and readers
those that they have read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunekit.core.events import (
    AttemptEvent,
    CheckpointEvent,
    CheckpointSaved,
    Event,
    Exploited,
    Processed,
    Reported,
    SessionCutShort,
    StopRequested,
    TrialEnded,
    TrialErrored,
    TrialFailed,
    TrialResumed,
    TrialRetried,
    ValidationEnded,
    ValidationRequested,
    Waited,
)
from tunekit.core.lineage import Ancestry
from tunekit.core.metrics import ITERATION, flat_items, metric_of
from tunekit.core.retention import Leases, clone_holder, scheduler_holder
from tunekit.core.validation import FAILED, Status, ValidationKey
from tunekit.core.values import finite_number

# The decisions that invalidate what a trial has reported since.
_FINAL = ("STOP", "PAUSE")


@dataclass(eq=False, slots=True)
class RecordedReport:
    """A report, with what the journal records about its checkpoint.

    Attributes:
        reported: The event.
        key: The name of its validation; it has one even if it is not validated.
        saved: Its checkpoint, if one was saved.
        requested: The request to validate it, if there is one.
        ended: The end of its validation, if that has ended.
    """

    reported: Reported
    key: ValidationKey
    saved: CheckpointSaved | None = None
    requested: CheckpointEvent | None = None
    ended: ValidationEnded | None = None

    @property
    def checkpoint(self) -> str:
        """Return the path of the checkpoint to validate; empty if none is."""
        return "" if self.requested is None else self.requested.checkpoint

    @property
    def metrics(self) -> Mapping[str, Any] | None:
        """Return its score; None if it has none."""
        return self.ended.metrics if self.ended is not None and self.ended.validated else None


class OpenReports:
    """The reports that Tune has not processed, in order.

    Example:
        >>> reports = OpenReports()
        >>> for n in (1, 2):
        ...     event = Reported(trial_id="a", report={"training_iteration": n})
        ...     reports.add(RecordedReport(event, ValidationKey("a", 0, n, 1)))
        >>> reports.process(Processed(trial_id="a", iteration=1))
        >>> [report.key.iteration for report in reports.of("a")]
        [2]
        >>> reports.process(Processed(trial_id="a", iteration=2, decision="PAUSE"))
        >>> reports.of("a")
        []
    """

    def __init__(self) -> None:
        # By trial, and by (generation, iteration) within one.
        self._trials: dict[str, dict[tuple[int, int], RecordedReport]] = {}

    def of(self, trial_id: str) -> list[RecordedReport]:
        """Return those of a trial."""
        return list(self._trials.get(trial_id, {}).values())

    def count(self, trial_id: str) -> int:
        """Return how many a trial has."""
        return len(self._trials.get(trial_id, ()))

    def at(self, where: CheckpointEvent | ValidationKey) -> RecordedReport | None:
        """Return the report of a checkpoint; None if it was processed or dropped."""
        return self._trials.get(where.trial_id, {}).get(where.place)

    def add(self, report: RecordedReport) -> None:
        """Add a trial's newest report."""
        own, place = self._trials.setdefault(report.key.trial_id, {}), report.key.place
        while own and next(reversed(own)) >= place:
            own.popitem()  # a restored trial has repeated iterations that were not saved
        own[place] = report

    def process(self, event: Processed) -> None:
        """Remove a report that Tune has processed, and those that its decision invalidates."""
        if event.decision in _FINAL:
            self.drop(event.trial_id)
        else:
            own, last = self._trials.get(event.trial_id, {}), event.place
            for place in [place for place in own if place <= last]:
                del own[place]

    def drop(self, trial_id: str) -> None:
        """Remove the reports of a trial, which does not continue from them."""
        self._trials.pop(trial_id, None)

    def restored(self) -> None:
        """Start another session: trials repeat what they reported after their last checkpoint."""
        for own in self._trials.values():
            while own and own[next(reversed(own))].saved is None:
                own.popitem()


class History:
    """The runs of a sweep's iterations, and the scores of the newest ones.

    When a trial returns to an older checkpoint and repeats an iteration, only the newest run
    counts. A trial that is overwritten with other weights starts a new generation, whose iterations
    are separate.

    Example:
        >>> history = History()
        >>> run = history.reported("a", 3)
        >>> history.validated(ValidationKey("a", 0, 3, run), {"accuracy": 0.9})
        >>> history.score_at(ValidationKey("a", 0, 3, run)), history.names
        ({'accuracy': 0.9}, {'accuracy': True})
        >>> history.reported("a", 3), history.score_at(ValidationKey("a", 0, 3, run))
        (2, None)
    """

    def __init__(self) -> None:
        # By trial, and by (generation, iteration) within one.
        self._runs: dict[str, dict[tuple[int, int], int]] = {}
        self._scores: dict[str, dict[tuple[int, int], Mapping[str, Any]]] = {}
        #: The flat names of all metrics of validations, in order of appearance, and whether each
        #: was ever a number.
        self.names: dict[str, bool] = {}

    def reported(self, trial_id: str, iteration: int, generation: int = 0) -> int:
        """Count a run of an iteration; return the number of runs, including this one."""
        runs, place = self._runs.setdefault(trial_id, {}), (generation, iteration)
        runs[place] = runs.get(place, 0) + 1
        self._scores.get(trial_id, {}).pop(place, None)  # of an older run
        return runs[place]

    def run_of(self, trial_id: str, iteration: int, generation: int = 0) -> int:
        """Return the number of the newest run of an iteration, 1 if it has not been reported."""
        return self._runs.get(trial_id, {}).get((generation, iteration), 1)

    def is_newest(self, key: ValidationKey) -> bool:
        """Return whether an iteration has not been run again."""
        return key.run >= self.run_of(key.trial_id, key.iteration, key.generation)

    def validated(self, key: ValidationKey, metrics: Mapping[str, Any]) -> None:
        """Record a score, unless its iteration was run again."""
        if self.is_newest(key):
            self._scores.setdefault(key.trial_id, {})[key.place] = metrics
            for name, value in flat_items(metrics):
                if not self.names.get(name):
                    self.names[name] = finite_number(value) is not None

    def score_at(self, key: ValidationKey) -> Mapping[str, Any] | None:
        """Return the score of an iteration's newest run; None if it has none."""
        return self._scores.get(key.trial_id, {}).get(key.place)


@dataclass
class SweepState:
    """Track the state of a sweep's trials and validations.

    Example:
        >>> state = SweepState.after([
        ...     Reported(trial_id="a", report={"training_iteration": 1}),
        ...     CheckpointSaved(trial_id="a", id="a:0:1:1", iteration=1, validates=True),
        ... ])
        >>> list(state.unfinished), len(state.open.of("a"))
        (['a:0:1:1'], 1)
        >>> metrics = {"score": 1}
        >>> state.apply(ValidationEnded(id="a:0:1:1", status="validated", metrics=metrics))
        >>> list(state.history.names)
        ['score']
    """

    #: The metrics that the scheduler, the searcher and the stoppers of the sweep use.
    required: frozenset[str] = frozenset()
    #: The reports that Tune has not processed.
    open: OpenReports = field(default_factory=OpenReports)
    #: The validated metrics.
    history: History = field(default_factory=History)
    #: The exploits: trials that were overwritten with checkpoints.
    ancestry: Ancestry = field(default_factory=Ancestry)
    #: The checkpoints that are needed.
    leases: Leases = field(default_factory=Leases)
    #: The reports whose validations have not ended, by the validations' names, in order.
    unfinished: dict[str, RecordedReport] = field(default_factory=dict)
    #: Those whose validations have failed since the last success. The function may be broken, so a
    #: restored sweep requests them again.
    suspect: dict[str, RecordedReport] = field(default_factory=dict)
    #: How validations have failed, by their names: their statuses.
    failed_validations: dict[str, str] = field(default_factory=dict)
    #: The number of ended validations by status.
    counts: Counter[str] = field(default_factory=Counter)
    #: The total time that validations ran, in seconds.
    ran_s: float = 0.0
    #: The total time that trials waited for scores, in seconds.
    waited_s: float = 0.0
    #: Whether any checkpoint was saved.
    has_saved: bool = False
    #: The iteration of each trial's newest checkpoint that was selected for validation.
    selected_at: dict[str, int] = field(default_factory=dict)
    #: Whether the scheduler has decided on any score.
    has_decided: bool = False
    #: The trials that are to be stopped by hand and have not ended.
    stopping: set[str] = field(default_factory=set)
    #: The trials that have ended.
    ended: set[str] = field(default_factory=set)
    #: The trials that have failed and not restarted, and whether they have failed for good.
    failed: dict[str, bool] = field(default_factory=dict)
    #: The trials that a time budget or ``fail_fast`` has stopped; a restore continues them.
    cut_short: set[str] = field(default_factory=set)
    # The validations that were pending when the first score arrived, and still are.
    _may_name: set[str] = field(default_factory=set)

    @classmethod
    def after(cls, events: Iterable[Event]) -> SweepState:
        """Return the state after the events of a journal."""
        state = cls()
        for event in events:
            state.apply(event)
        return state

    def apply(self, event: Event) -> None:
        """Apply an event."""
        match event:
            case Reported():
                trial_id, (generation, iteration) = event.trial_id, event.place
                run = self.history.reported(trial_id, iteration, generation)
                self.open.add(
                    RecordedReport(event, ValidationKey(trial_id, generation, iteration, run))
                )
            case CheckpointSaved():
                self.has_saved = True
                if (report := self.open.at(event)) is not None:
                    report.saved = event
                if event.validates:
                    self.selected_at[event.trial_id] = event.iteration
                    self._request(event)
            case AttemptEvent():
                pass  # no decision needs it
            case ValidationEnded():
                self._end(event)
            case Processed():
                self.has_decided |= event.ranked
                self.open.process(event)
                if event.checkpoint:  # from now on the trial restarts from its own
                    self.leases.release(clone_holder(event.trial_id, event.generation))
                if event.cloneable:
                    holder = scheduler_holder(event.trial_id)
                    self.leases.acquire(holder, event.checkpoint, event.trial_id)
            case Exploited():
                trial_id, generation, path = event.trial_id, event.generation, event.checkpoint
                self.open.drop(trial_id)
                self.ancestry.add(event)
                self.leases.acquire(clone_holder(trial_id, generation), path, event.donor_id)
                self.leases.release(clone_holder(trial_id, generation - 1))
            case StopRequested():
                self.stopping.add(event.trial_id)
            case TrialEnded():  # perhaps by its scheduler, which is about to decide on a report
                self._end_trial(event.trial_id)
            case TrialErrored():
                self.open.drop(event.trial_id)
                self.failed[event.trial_id] = True
                self._end_trial(event.trial_id)
            case TrialFailed():
                self.open.drop(event.trial_id)
                self.failed[event.trial_id] = False
            case TrialRetried():
                self.open.drop(event.trial_id)
                self.failed.pop(event.trial_id, None)
                self.ended.discard(event.trial_id)
            case TrialResumed():
                self.open.drop(event.trial_id)
            case Waited():
                self.waited_s += event.seconds
            case ValidationRequested():
                self._request(event)
            case SessionCutShort():
                self.cut_short.update(event.trial_ids)

    def _request(self, event: CheckpointEvent) -> None:
        report = self.suspect.pop(event.id, None)
        if report is not None and report.ended is not None:
            self.counts[report.ended.status] -= 1
        elif (report := self.open.at(event)) is None:  # none is of a running sweep
            row = {ITERATION: event.iteration}
            reported = Reported(trial_id=event.trial_id, report=row, generation=event.generation)
            report = RecordedReport(
                reported, ValidationKey(event.trial_id, *event.place, event.run)
            )
        self.failed_validations.pop(event.id, None)
        report.requested, report.ended = event, None
        self.unfinished[event.id] = report

    def _end(self, event: ValidationEnded) -> None:
        report = self.unfinished.pop(event.id, None)
        if report is None:
            return  # it was not requested
        report.ended = event
        self.counts[event.status] += 1
        if event.status in FAILED:
            self.failed_validations[event.id] = event.status
        self.ran_s += event.ran_s
        if event.status in FAILED and self.history.is_newest(report.key):
            self.suspect[event.id] = report
        if event.validated:
            self.suspect.clear()
            is_named = bool(self.history.names)
            self.history.validated(report.key, event.metrics)
            if self.history.names and not is_named:
                self._may_name = set(self.unfinished)
        self._may_name.discard(event.id)

    def _end_trial(self, trial_id: str) -> None:
        self.stopping.discard(trial_id)
        self.cut_short.discard(trial_id)
        self.ended.add(trial_id)
        generation = self.ancestry.generation(trial_id)
        self.leases.release(clone_holder(trial_id, generation))
        self.leases.release(scheduler_holder(trial_id))

    # Queries -----------------------------------------------------------------------------------

    def outcome_of(self, key: ValidationKey) -> str | None:
        """Return how a validation ended, a status; None if it was skipped or has not ended.

        Example:
            >>> state = SweepState.after([
            ...     CheckpointSaved(trial_id="a", id="a:0:1:1", iteration=1, validates=True),
            ...     ValidationEnded(id="a:0:1:1", status="failed"),
            ... ])
            >>> state.outcome_of(ValidationKey("a", 0, 1, 1)), state.outcome_of(
            ...     ValidationKey("a", 0, 2, 1)
            ... )
            ('failed', None)
        """
        scored = self.history.is_newest(key) and self.history.score_at(key) is not None
        return Status.VALIDATED.value if scored else self.failed_validations.get(str(key))

    @property
    def knows_names(self) -> bool:
        """Return whether it is known which of the sweep's metrics are validation's.

        Each name that a validation has returned is validation's. A metric of the sweep belongs to
        training once all validations that were pending when the first score arrived have ended
        without it; a later validation that returns it takes it over.
        """
        names = self.history.names
        return bool(names) and (not self._may_name or self.required <= names.keys())

    @property
    def unscored(self) -> set[str]:
        """Return the metrics that the sweep uses and validations returned, but never as a number.

        Example:
            >>> SweepState(required=frozenset({"accuracy"})).unscored
            set()
        """
        return {name for name in self.required if self.history.names.get(name) is False}

    def can_stop(self, trial_id: str) -> bool:
        """Return whether a trial can be stopped by hand: it has not ended and is not about to."""
        return trial_id not in self.ended and trial_id not in self.stopping

    def lacks(self, result: Mapping[str, Any]) -> list[str]:
        """Return the metrics that the sweep uses and that are not finite numbers in a result."""
        return sorted(n for n in self.required if finite_number(metric_of(result, n)) is None)
