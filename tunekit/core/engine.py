"""The rules of a sweep as one state machine: events in, commands out.

:meth:`Engine.apply` takes an event that is in the journal and returns the commands that follow. A
restored sweep passes the journal's events through :meth:`Engine.apply`, which restores the engine's
state, and then calls :meth:`Engine.reconcile` for the commands that remain. Only events are saved.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tunekit.core.backlog import Backlog
from tunekit.core.commands import (
    Ask,
    Cancel,
    Command,
    Deliver,
    Fold,
    NoteFailure,
    Notify,
    PassOver,
    Stop,
    Validate,
)
from tunekit.core.constraints import Constraint
from tunekit.core.delivery import Delivery
from tunekit.core.events import (
    Asked,
    AttemptBegan,
    AttemptStarted,
    CheckpointSaved,
    Chosen,
    CutShort,
    Decided,
    EndDelivered,
    Event,
    Exploited,
    OfTrial,
    Reminded,
    Reported,
    ScoreDelivered,
    SessionClosed,
    SnapshotTaken,
    TrialAdded,
    TrialEnded,
    TrialErrored,
    TrialFailed,
    TrialRetried,
    ValidationEnded,
    ValidationRequested,
    Waited,
    never,
)
from tunekit.core.history import ITERATION, History
from tunekit.core.lineage import Ancestry
from tunekit.core.metrics import flatten, hide, merge
from tunekit.core.retention import Leases, for_clone, for_validation
from tunekit.core.validation import Outcome, Request, Selection
from tunekit.core.values import number

_STOP = "STOP"
_SHOULD_CHECKPOINT, _DONE = "should_checkpoint", "done"


@dataclass
class TrialRecord:
    """The state of a trial.

    Attributes:
        report: Its last report, with its hyperparameters.
        serves: What that report's score would serve in its scheduler's internal state.
        used: Whether the scheduler will use that score, or whether it is the trial's last.
        saved: The generation, iteration and run of its newest checkpoint.
        clone: The checkpoint that it was overwritten with, until it saves another.
        failed: Whether it has failed and has not restarted.
        unlogged: Outcomes that loggers get only after older ones, in order.
        ended: The requests that have ended and whose scores are not delivered.
        last: The request for its newest checkpoint, if that is validated only if it is the last.
        stopped: Whether it was stopped by hand, and has not ended.
    """

    report: Mapping[str, Any] | None = None
    serves: float | None = None
    used: bool = False
    saved: tuple[int, int, int] | None = None
    clone: str | None = None
    failed: bool = False
    unlogged: list[Outcome] = field(default_factory=list)
    ended: list[Request] = field(default_factory=list)
    last: Request | None = None
    stopped: bool = False


@dataclass(frozen=True)
class Hears:
    """Allow the scheduler to get results of a trial, which it considers running or ended.

    Attributes:
        trial_id: The trial.
    """

    trial_id: str


@dataclass(frozen=True)
class JudgedBy:
    """The metrics that the scheduler and the stoppers of a sweep use, reported in each session.

    Attributes:
        names: The metrics.
        all_count: Whether the scheduler, or anything else, uses every score.
    """

    names: frozenset[str] = frozenset()
    all_count: bool = True


#: The engine's inputs: events, and facts that are not recorded as each session reports them again.
Input: TypeAlias = Event | JudgedBy | Hears


class Engine:
    """Track the state of a sweep's trials and validations, and derive commands from it.

    Args:
        when: Which checkpoints to validate, as in ``ValidationConfig(when=...)``.
        constraints: The constraints on scores, as in ``ValidationConfig(constraints=...)``.

    Example:
        >>> engine = Engine()
        >>> named = {"trial_id": "a", "id": "a:0:1:1", "iteration": 1}
        >>> engine.apply(Reported(trial_id="a", report={"training_iteration": 1}, offered=True))
        []
        >>> [ask] = engine.apply(CheckpointSaved(**named, checkpoint="a/c1"))
        >>> ask.request.path
        'a/c1'
        >>> [type(one).__name__ for one in engine.apply(ValidationRequested(**named))]
        ['Validate']
        >>> ended = ValidationEnded(id="a:0:1:1", status="validated", metrics={"score": 0.5})
        >>> [type(one).__name__ for one in engine.apply(ended)]
        ['Fold', 'Notify', 'Deliver']
        >>> engine.delivery.due("a").result["score"]
        0.5
    """

    def __init__(self, when: int | str = 1, constraints: Sequence[Constraint] = ()):
        #: The constraints on scores.
        self.constraints = constraints
        #: The metrics that the sweep uses.
        self.judged_by = JudgedBy()
        self.trials: dict[str, TrialRecord] = {}
        #: The validated metrics.
        self.history = History()
        #: The exploits: trials that were overwritten with checkpoints.
        self.ancestry = Ancestry()
        #: The scores to deliver to the scheduler.
        self.delivery = Delivery(counts=self._can_be_judged, merged=self.merged)
        #: The trials that the scheduler stopped early, in order.
        self.rejected: dict[str, None] = {}
        self._selection = Selection(when)
        #: The checkpoints that are needed, including by the scheduler.
        self.leases = Leases()
        #: The validations that the scheduler decides by.
        self.backlog = Backlog()
        #: Outcomes for loggers, in order, until it is known which metrics are validation's.
        self.postponed: list[Outcome] = []
        # The trials with something to deliver, once existing scores can be decided by.
        self._undelivered: dict[str, None] = {}
        # The trials with events since the last cleanup of what is never delivered, which depends
        # on which metrics are validation's.
        self._unsettled: dict[str, None] = {}
        # The requests that an earlier session did not get to make.
        self._from_before: frozenset[str] = frozenset()
        # The metrics that any validation has returned as a number.
        self._scored: set[str] = set()
        # The commands that follow from the event that is being applied.
        self._commands: list[Command] = []
        #: The total time that trials waited for scores, in seconds.
        self.waited_s = 0.0
        #: Whether any checkpoint was saved.
        self.has_saved = False
        #: Whether any score was delivered to the scheduler.
        self.has_delivered = False

    def record(self, trial_id: str) -> TrialRecord:
        """Return the state of a trial."""
        return self.trials.setdefault(trial_id, TrialRecord())

    # Events ------------------------------------------------------------------------------------

    def reconcile(self) -> list[Command]:
        """Return the commands that a restored sweep has still to carry out.

        Loggers have already received their outcomes.
        """
        self.postponed = []
        self._from_before = frozenset(self.backlog.owed)
        return [
            *(Validate(request, again=True) for request in self.backlog.unfinished.values()),
            *(Ask(request) for request in self.backlog.owed.values()),
            *map(Cancel, self.rejected),
        ]

    def apply(self, event: Input) -> list[Command]:
        """Apply an event and return the commands that follow, in order."""
        self._commands = []
        self._take(event)
        if self._undelivered and not self.hesitates():
            self._commands += map(Deliver, self._undelivered)
            self._undelivered.clear()
        if isinstance(event, (OfTrial, ValidationEnded)):
            self._unsettled[event.trial_id] = None
            self._settle(event.trial_id)
        return self._commands

    def _take(self, event: Input) -> None:
        match event:
            case Reported():
                self._report(event)
            case CheckpointSaved():
                self._save(event)
            case ValidationRequested():
                self._request(event)
            case ValidationEnded():
                self._end(event)
            case ScoreDelivered():
                self.has_delivered = True
                self.delivery.delivered(event.trial_id, event.place)
                self._decide(event)
            case Reminded() | Decided():
                self._decide(event)
            case Asked():
                self.record(event.trial_id).stopped = True
                self._commands.append(Stop(event.trial_id))
            case TrialEnded():
                self.record(event.trial_id).stopped = False
                self._require_last(event.trial_id)
                self.delivery.complete(event.trial_id)
                if event.removed:
                    self.delivery.close(event.trial_id)
                self._undelivered[event.trial_id] = None
            case EndDelivered():
                self.delivery.end_delivered(event.trial_id)
            case TrialFailed():
                self.record(event.trial_id).failed = True
            case TrialRetried():
                self.record(event.trial_id).failed = False
                self.delivery.reopen(event.trial_id)
            case TrialErrored():
                self.record(event.trial_id).failed = False
                self.record(event.trial_id).stopped = False
                self.delivery.forget(event.trial_id)
            case Exploited():
                trial_id, generation, path = event.trial_id, event.generation, event.checkpoint
                self.ancestry.add(event)
                self.leases.take(for_clone(trial_id, generation), path, event.donor_id)
                self.leases.release(for_clone(trial_id, generation - 1))
                self.delivery.overwritten(trial_id, generation, event.iteration)
                self.record(trial_id).clone = path
                self.record(trial_id).last = None
            case Waited():
                self.waited_s += event.seconds
            case TrialAdded():
                self.record(event.trial_id)
            case AttemptStarted() | AttemptBegan() | CutShort():
                pass
            case Chosen() | SnapshotTaken() | SessionClosed():
                pass
            case Hears():
                self._undelivered[event.trial_id] = None
            case JudgedBy():
                self.judged_by, self.delivery.all_count = event, event.all_count
            case _:
                never(event)

    def _settle(self, trial_id: str) -> None:
        """Release what is no longer needed, as far as that is known."""
        known = not self.hesitates()
        for one in self._unsettled if known else (trial_id,):
            if known:
                self._commands += map(PassOver, self.delivery.settle(one))
            ended = self.trials[one].ended if one in self.trials else []
            held = [request for request in ended if self.delivery.holds(request)]
            if len(held) == len(ended):
                continue
            self.trials[one].ended = held
            for request in ended:
                if request not in held:
                    self.leases.release(for_validation(request.id))
        if known:
            self._unsettled.clear()

    def _report(self, event: Reported) -> None:
        trial_id, (generation, iteration) = event.trial_id, event.place
        record = self.record(trial_id)
        record.report, record.serves = event.report, event.serves
        record.used = event.serves is not None or bool(event.report.get(_DONE))
        self.history.reported(trial_id, iteration, generation)
        self.delivery.offered(trial_id, iteration, generation, offered=event.offered)

    def _save(self, event: CheckpointSaved) -> None:
        trial_id, record = event.trial_id, self.record(event.trial_id)
        self.has_saved = True
        record.saved, record.clone, record.last = (*event.place, event.run), None, None
        self.history.saved(trial_id, event.place, event.checkpoint)
        # From now on the trial restarts from its own checkpoints.
        self.leases.release(for_clone(trial_id, event.generation))
        if self._selection.wants(trial_id, event.iteration, event.wish, used=event.used):
            self._owe(self.request_of(event))
        elif event.wish is None and self._selection.takes_last:
            record.last = self.request_of(event)
            if self.delivery.completed(trial_id):  # saved as the trial ended
                self._require_last(trial_id)

    def request_of(self, event: CheckpointSaved) -> Request:
        """Return the request that would validate a checkpoint."""
        record = self.record(event.trial_id)
        report, last = {**(event.report or record.report or {})}, record.report or {}
        report.pop(_SHOULD_CHECKPOINT, None)  # Tune stores the report without it
        return Request(
            trial_id=event.trial_id,
            iteration=event.iteration,
            run=event.run,
            generation=event.generation,
            path=event.checkpoint,
            report=report,
            kwargs=event.kwargs,
            timeout_s=event.timeout_s,
            config=report.get("config", {}),
            used=event.used,
            serves=record.serves if last.get(ITERATION) == event.iteration else None,
        )

    def _request(self, event: ValidationRequested) -> None:
        request = self.backlog.request(event.id)
        if request is None:  # it is already pending, or its line is lost
            return
        self._commands.append(Validate(request, again=event.id in self._from_before))
        self.history.requested(event.id)
        self.delivery.requested(request)
        if request.run > 1:  # the older run may have held up newer scores
            self._undelivered[request.trial_id] = None

    def _require_last(self, trial_id: str) -> None:
        """Request the score of a trial's newest checkpoint at its end.

        Not if the scheduler has stopped the trial early.
        """
        record = self.record(trial_id)
        if record.last is not None and not self.delivery.closed(trial_id):
            self._owe(record.last)
        record.last = None

    def _owe(self, request: Request) -> None:
        self.leases.take(for_validation(request.id), request.path, request.trial_id)
        self.backlog.owe(request)
        self._commands.append(Ask(request))

    def _end(self, event: ValidationEnded) -> None:
        outcome = self.backlog.end(event)
        if outcome is None:
            return
        request = outcome.request
        self.record(request.trial_id).ended.append(request)
        if self._take_score(outcome):
            self._commands.append(Fold(outcome))
            self.leases.touch(request.trial_id)
        if not outcome.validated:
            self._commands.append(NoteFailure(outcome))
        self._notify(outcome)
        self._undelivered[request.trial_id] = None

    def _take_score(self, outcome: Outcome) -> bool:
        """Record an outcome; return whether it is a score of the newest run of its iteration."""
        metrics = flatten(outcome.metrics) if outcome.validated else {}
        self._scored.update(name for name in metrics if number(metrics[name]) is not None)
        self.delivery.ended(outcome)
        return self.history.ended(outcome)

    def _notify(self, outcome: Outcome) -> None:
        """Pass scores to loggers in order, once the names that hide training's are known."""
        self.postponed += self._in_order(outcome)
        if self.hesitates():
            return
        due, self.postponed = self.postponed, []
        self._commands += [Notify(one) for one in due if self.history.counts(one)]

    def _in_order(self, outcome: Outcome) -> list[Outcome]:
        """Return the outcomes that loggers may get now: none before an older one has ended.

        Unlike the scheduler, they get everything, including outcomes after a STOP and scores of an
        earlier generation.
        """
        record = self.record(outcome.request.trial_id)
        bisect.insort(record.unlogged, outcome, key=lambda one: one.request.place)
        pending = self.backlog.pending(outcome.request.trial_id)
        waits = [one.place for one in pending]
        due = [one for one in record.unlogged if not waits or one.request.place < min(waits)]
        del record.unlogged[: len(due)]
        return due

    def _decide(self, event: ScoreDelivered | Reminded | Decided) -> None:
        if event.decision == _STOP:
            self.delivery.close(event.trial_id)
            self.record(event.trial_id).stopped = False
            if not (isinstance(event, ScoreDelivered) and event.finished):
                self.rejected[event.trial_id] = None
                self._commands.append(Cancel(event.trial_id))

    # Queries -----------------------------------------------------------------------------------

    @property
    def required(self) -> frozenset[str]:
        """Return the metrics that the sweep uses."""
        return self.judged_by.names

    @property
    def unscored(self) -> set[str]:
        """Return the metrics that the sweep uses, and that each validation returned as no number.

        Example:
            >>> engine = Engine()
            >>> _ = engine.apply(JudgedBy(frozenset({"accuracy"})))
            >>> engine.unscored
            set()
        """
        return {name for name in self.required if name in self.history.names} - self._scored

    def can_stop(self, trial_id: str) -> bool:
        """Return whether a trial can be stopped by hand: it has not ended, and is not about to."""
        over = self.delivery.completed(trial_id) or self.delivery.closed(trial_id)
        return not (over or self.record(trial_id).stopped)

    def undecided(self) -> set[str]:
        """Return the metrics of the sweep that may be validation's or training's."""
        return self.history.undecided(self.required)

    def coming(self, trial_id: str, before: float = math.inf) -> list[float]:
        """Return what the pending scores of a trial will serve in its scheduler's internal state.

        Args:
            trial_id: The trial.
            before: Only scores of iterations below this one count, because a trial that goes back
                runs the others again.
        """
        pending = self.delivery.pending(trial_id)
        return [one.serves for one in pending if one.serves is not None and one.iteration < before]

    def hesitates(self) -> bool:
        """Return whether decisions on existing scores depend on validations that have not ended."""
        return self.history.hesitates(self.required)

    def lacks(self, result: Mapping[str, Any]) -> list[str]:
        """Return the metrics that the sweep uses and a flat result lacks as finite numbers."""
        return sorted(name for name in self.required if number(result.get(name)) is None)

    def _can_be_judged(self, result: Mapping[str, Any]) -> bool:
        return not self.lacks(flatten(result))

    def merged(self, report: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return a validated result; metrics of validation are never taken from training."""
        return merge(hide(report, self.history.names), metrics)
