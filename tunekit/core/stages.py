"""Further stages of validation: which checkpoints they get, and their outcomes.

Schedulers decide by the sweep's own validations. A further stage validates the same checkpoints by
another function: some of them, or those that turn out to matter. It follows the sweep's events and
records its requests and their outcomes in the sweep's journal. The engine ignores these, because it
has not made the requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tunekit.core.backlog import Backlog
from tunekit.core.commands import Command, Notify, Show
from tunekit.core.engine import Engine, Input
from tunekit.core.events import (
    CheckpointSaved,
    Chosen,
    EndDelivered,
    Exploited,
    OfTrial,
    ScoreDelivered,
    TrialEnded,
    TrialErrored,
    ValidationEnded,
    ValidationRequested,
)
from tunekit.core.validation import Request

#: The values of ``Stage(every=...)``, apart from numbers.
EVERY = ("promoted", "last")


@dataclass
class _Saved:
    """A trial's checkpoints, for a stage.

    Attributes:
        count: The number of checkpoints that it has saved.
        newest: The request that would validate its newest one.
        undecided: The requests for those whose scores the scheduler has not decided by.
        paused: The request for the one by whose score the trial was paused.
    """

    count: int = 0
    newest: Request | None = None
    undecided: dict[tuple[int, int], Request] = field(default_factory=dict)
    paused: Request | None = None


class StageState:
    """Follow the events of a sweep, and derive the requests of a stage from them.

    Like the engine, it is restored by applying the same events. So it makes a request again that
    was not recorded when the driver was killed.

    Args:
        name: The name of the stage.
        every: Which checkpoints it validates. A number n: every n-th of a trial, counted from its
            first. ``"promoted"``: those by whose scores the scheduler let their trials
                continue, and the last ones of trials that were not stopped early. ``"last"``: the
                last one of each trial.
        engine: The sweep's engine, which gets each event first.

    Example:
        >>> stage = StageState("full", 2, engine := Engine())
        >>> for n in (1, 2):
        ...     saved = CheckpointSaved(trial_id="a", id=f"a:0:{n}:1", iteration=n, checkpoint="c")
        ...     for one in (engine, stage):
        ...         commands = one.apply(saved)
        >>> list(stage.backlog.owed)
        ['a:0:2:1:full']
    """

    def __init__(self, name: str, every: int | str, engine: Engine):
        self.name, self._every, self._engine = name, every, engine
        self._trials: dict[str, _Saved] = {}
        # The names of all requests so far.
        self._known: set[str] = set()
        #: Its validations.
        self.backlog = Backlog(engine.leases)

    def apply(self, event: Input) -> list[Command]:
        """Apply an event of the sweep; return the commands that show scores."""
        match event:
            case ValidationRequested():
                self.backlog.request(event.id)
            case ValidationEnded():
                return self._end(event)
            case TrialErrored() | Exploited():
                self._abandon(event.trial_id)
            case OfTrial():
                self._owe(self._due(event))
        return []

    def _due(self, event: OfTrial) -> Request | None:
        """Return the request that follows from an event, if any."""
        trial = self._trials.setdefault(event.trial_id, _Saved())
        rejected = event.trial_id in self._engine.rejected
        promoted = last = None
        match event:
            case CheckpointSaved():
                request = self._engine.request_of(event)
                request = replace(request, stage=self.name, optional=False)
                trial.count, trial.newest = trial.count + 1, request
                if request.used:
                    trial.undecided[request.place] = request
                if isinstance(self._every, int):
                    return None if trial.count % self._every else request
                last = request if self._engine.delivery.completed(event.trial_id) else None
            case ScoreDelivered():
                decided = trial.undecided.pop(event.place, None)
                for older in [known for known in trial.undecided if known < event.place]:
                    del trial.undecided[older]  # passed over
                trial.paused = decided if event.decision == "PAUSE" else None
                promoted = None if rejected or trial.paused else decided
            case Chosen():
                promoted, trial.paused = trial.paused, None
            case TrialEnded():
                last = trial.newest
            case EndDelivered():
                promoted = None if rejected else trial.newest
        return {"promoted": promoted, "last": last}.get(str(self._every))

    def _owe(self, request: Request | None) -> None:
        """Add a request to be made, each only once."""
        if request is not None and request.id not in self._known:
            self._known.add(request.id)
            self.backlog.owe(request)

    def _abandon(self, trial_id: str) -> None:
        """Drop a trial's checkpoints: it failed, or continues with other, better weights."""
        trial = self._trials.setdefault(trial_id, _Saved())
        trial.undecided.clear()
        trial.newest = trial.paused = None
        self.backlog.drop_owed(trial_id)

    def _end(self, event: ValidationEnded) -> list[Command]:
        outcome = self.backlog.end(event)
        if outcome is None:
            return []
        self.backlog.let_go(outcome.request)
        counts = self._engine.history.staged(outcome)
        return [Show(outcome), Notify(outcome)] if counts else []
