"""Which checkpoints the further stages of validation get.

Schedulers judge by the first stage. The others validate the same checkpoints by other functions:
all of them, some, or those that turn out to matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tunekit.core.validation import Request

__all__ = ["EVERY", "StageSelection"]

#: What ``Stage(every=...)`` may be, apart from a number.
EVERY = ("promoted", "last")


@dataclass
class _Saved:
    """What is known of a trial's checkpoints.

    Attributes:
        count: How many it has saved.
        newest: The request that would validate its newest one.
        undecided: The requests for those whose scores the scheduler has not decided by.
        paused: The request for the one by whose score it was paused.
        rejected: Whether the scheduler has stopped it before it had run its course.
        ended: Whether it has ended.
    """

    count: int = 0
    newest: Request | None = None
    undecided: dict[tuple[int, int], Request] = field(default_factory=dict)
    paused: Request | None = None
    rejected: bool = False
    ended: bool = False


class StageSelection:
    """Picks the checkpoints that each further stage validates.

    Args:
        stages: The stages' names, and which checkpoints each validates. A number n: every n-th of a
            trial, counted from its first. ``"promoted"``: those by whose scores the scheduler let
            their trials go on, and the last ones of trials that were not stopped early.
            ``"last"``: the last one of each trial.

    Example:
        >>> selection = StageSelection({"full": "promoted", "record": 2})
        >>> first, second = Request("a", 1), Request("a", 2)
        >>> [request.id for one in (first, second) for request in selection.saved(one)]
        ['a:0:2:1:record']
        >>> [request.id for request in selection.decided("a", (0, 1), "CONTINUE")]
        ['a:0:1:1:full']
        >>> selection.decided("a", (0, 2), "STOP"), selection.ran_its_course("a")
        ([], [])
    """

    def __init__(self, stages: Mapping[str, int | str] | None = None):
        self._stages = dict(stages or {})
        self._trials: dict[str, _Saved] = {}

    def __bool__(self) -> bool:
        return bool(self._stages)

    def _of(self, trial_id: str) -> _Saved:
        """Return what is known of a trial; one that has saved nothing is not kept."""
        return self._trials.get(trial_id) or _Saved()

    def saved(self, request: Request) -> list[Request]:
        """Record a checkpoint that a trial has saved; return what is due at once.

        Args:
            request: The request that would validate it in the first stage.
        """
        if not self._stages:
            return []
        trial = self._trials.setdefault(request.trial_id, _Saved())
        trial.count, trial.newest = trial.count + 1, request
        if request.used:
            trial.undecided[request.place] = request
        counted = [n for n in self._stages.values() if isinstance(n, int) and not trial.count % n]
        return self._for(request, *counted, *(["last"] if trial.ended else []))

    def decided(
        self, trial_id: str, place: tuple[int, int], decision: str, *, finished: bool = False
    ) -> list[Request]:
        """Record a decision of the scheduler's; return what is due now.

        Args:
            trial_id: The trial that it has decided about.
            place: The generation and iteration by whose score it has.
            decision: The decision.
            finished: Whether a trial that was stopped had run its course.
        """
        trial = self._of(trial_id)
        request = trial.undecided.pop(place, None)
        for older in [known for known in trial.undecided if known < place]:
            del trial.undecided[older]  # passed over
        trial.paused = request if decision == "PAUSE" else None
        if decision == "STOP" and not finished:
            trial.rejected = True
            return []
        return [] if decision == "PAUSE" else self._for(request, "promoted")

    def resumed(self, trial_id: str) -> list[Request]:
        """Record that the scheduler resumes a trial that it had paused; return what is due."""
        trial = self._of(trial_id)
        request, trial.paused = trial.paused, None
        return self._for(request, "promoted")

    def rejected(self, trial_id: str) -> None:
        """Record that the scheduler has stopped a trial on another one's result."""
        trial = self._of(trial_id)
        trial.rejected, trial.paused = True, None

    def overwritten(self, trial_id: str) -> None:
        """Record that a trial continues with other weights: its own were not good enough."""
        trial = self._of(trial_id)
        trial.undecided.clear()
        trial.newest = trial.paused = None

    def ended(self, trial_id: str) -> list[Request]:
        """Record that a trial has ended; return what is due now.

        What it saves from now on, as it ends, is due when it is saved.
        """
        trial = self._of(trial_id)
        trial.ended = True
        return self._for(trial.newest, "last")

    def ran_its_course(self, trial_id: str) -> list[Request]:
        """Record that no more is decided about a trial that has ended; return what is due now."""
        trial = self._of(trial_id)
        return self._for(None if trial.rejected else trial.newest, "promoted")

    def goes_on(self, trial_id: str) -> None:
        """Record that a trial that had ended continues, after a failure."""
        trial = self._of(trial_id)
        trial.rejected = trial.ended = False

    def forget(self, trial_id: str) -> None:
        """Record that a trial has failed for good: nothing more of it is due."""
        self._trials.pop(trial_id, None)

    def _for(self, request: Request | None, *due: int | str) -> list[Request]:
        if request is None:
            return []
        return [replace(request, stage=name) for name, own in self._stages.items() if own in due]
