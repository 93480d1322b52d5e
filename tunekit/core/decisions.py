"""Which reports' scores the scheduler will use.

Most schedulers decide only at some reports: at a rung, at a perturbation interval. A rule tells
what a scheduler's books say about one trial now: when it decides, and what it has already used.
What the books cannot know is kept here: the reports that are due and whose scores have not arrived.

One report too many does no harm: the scheduler looks at it and goes on. One too few leaves it
without a score to decide by. Where the two cannot be told apart, the report is due.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Always", "DecisionRule", "Decisions", "Interval", "Never", "Rungs"]


class DecisionRule(Protocol):
    """When a scheduler uses a score of one trial, as its books now stand."""

    def serves(self, now: float, coming: Collection[float]) -> float | None:
        """Return what a report's score would serve in the scheduler's books; None if nothing.

        Args:
            now: The time of the report, in the scheduler's own unit.
            coming: What this method returned for reports whose scores are on their way.
        """
        ...


@dataclass(frozen=True)
class Rungs:
    """Due at the first report at or past each milestone: ASHA, HyperBand, a replayed PBT.

    Args:
        times: The milestones, sorted.
        served: The milestones that the scheduler has a score for, or will not ask one for.
        each: What a report that has passed several open milestones at once serves. False: all of
            them. True: the highest; the next report serves the next lower one, as in ASHA.

    Example:
        >>> rule = Rungs((1, 4, 16))
        >>> [rule.serves(now, coming=()) for now in (0.5, 1, 3, 4, 20)]
        [None, 1, 1, 4, 16]
        >>> [rule.serves(now, coming=(4,)) for now in (5, 15, 16)]
        [None, None, 16]
        >>> [Rungs((1, 4, 16), each=True).serves(now, coming=(4,)) for now in (5, 15, 16)]
        [1, 1, 16]
        >>> Rungs((1, 4, 16), served=frozenset({1, 4})).serves(5, coming=())
    """

    times: tuple[float, ...]
    served: frozenset[float] = frozenset()
    each: bool = False

    def serves(self, now: float, coming: Collection[float]) -> float | None:
        """Return the milestone that a report at ``now`` would serve."""
        for time in reversed(self.times):
            if time <= now:
                if time not in self.served and time not in coming:
                    return time
                if not self.each:
                    return None
        return None


@dataclass(frozen=True)
class Interval:
    """Due when the last score that was used is ``interval`` old: PBT and PB2.

    Args:
        interval: The time between two scores that are used.
        burn_in: No score is used before this time.
        last: The time of the last score that the scheduler has used, 0 at first.

    Example:
        >>> rule = Interval(4, burn_in=6)
        >>> [now for now in range(10) if rule.serves(now, coming=()) is not None]
        [6, 7, 8, 9]
        >>> [now for now in range(12) if rule.serves(now, coming=(6,)) is not None]
        [10, 11]
    """

    interval: float
    burn_in: float = 0.0
    last: float = 0.0

    def serves(self, now: float, coming: Collection[float]) -> float | None:
        """Return ``now``, if it is late enough."""
        last = max([self.last, *coming])
        return now if now >= self.burn_in and now - last >= self.interval else None


@dataclass(frozen=True)
class Always:
    """Every report is due: the scheduler uses all scores, or nobody knows which.

    Example:
        >>> Always().serves(3, coming=())
        3
    """

    def serves(self, now: float, coming: Collection[float]) -> float | None:
        """Return ``now``."""
        return now


@dataclass(frozen=True)
class Never:
    """No report is due but the trial's last: the scheduler decides nothing.

    Example:
        >>> Never().serves(3, coming=())
    """

    def serves(self, now: float, coming: Collection[float]) -> float | None:
        """Return None."""
        return None


@dataclass
class _Trial:
    # The iteration of the newest report.
    newest: int = 0
    # The iterations of the reports that are due.
    due: set[int] = field(default_factory=set)
    # What those whose scores have not arrived will serve, by iteration.
    coming: dict[int, float] = field(default_factory=dict)


class Decisions:
    """Keeps track of which reports of a sweep's trials are due.

    Read the rule anew for each report. As soon as the scheduler has got a score, or never will,
    call :meth:`settled`: from then on its books say so, and the next rule shows them.
    A rule that shows no books works, too, as long as it is not called.

    A trial that goes back reports an iteration that is not newer than its last. What was due from
    there on and has not been used is due again; what the scheduler has used is in its books. Time
    does not show that a trial went back: a scheduler's time may stand still for some reports.

    Example:
        >>> decisions = Decisions()
        >>> rungs = Rungs((1, 3, 9))
        >>> [i for i in range(1, 13) if decisions.asked("a", i, i, rungs, done=i == 12)]
        [1, 3, 9, 12]
        >>> decisions.due("a", 3), decisions.due("a", 4)
        (True, False)

        The validation of a checkpoint fails; the next one takes its place:

        >>> decisions.asked("b", 1, 1, rungs, done=False)
        True
        >>> decisions.settled("b", 1)
        >>> [decisions.asked("b", i, i, rungs, done=False) for i in (2, 3, 4)]
        [True, True, False]

        The scheduler used the score of iteration 1; the trial fails and goes back from 3 to 2:

        >>> decisions.settled("b", 2)
        >>> rungs = Rungs((1, 3, 9), served=frozenset({1}))
        >>> [decisions.asked("b", i, i, rungs, done=False) for i in (2, 3, 4)]
        [False, True, False]
    """

    def __init__(self) -> None:
        self._trials: dict[str, _Trial] = {}

    # What happens ------------------------------------------------------------------------------

    def asked(
        self, trial_id: str, iteration: int, now: float | None, rule: DecisionRule, *, done: bool
    ) -> bool:
        """Return whether the next report of a trial is due; ask about each once, in order.

        Args:
            trial_id: The trial.
            iteration: The report's iteration.
            now: Its time in the scheduler's own unit; None if it lacks that, and the scheduler will
                not use it.
            rule: When the scheduler uses a score of the trial, as its books now stand.
            done: Whether the report is the trial's last, which is always due.
        """
        trial = self._trials.setdefault(trial_id, _Trial())
        if iteration <= trial.newest:
            trial.due = {past for past in trial.due if past < iteration}
            trial.coming = {past: it for past, it in trial.coming.items() if past < iteration}
        trial.newest = iteration
        serves = None if now is None else rule.serves(now, trial.coming.values())
        if serves is not None:
            trial.coming[iteration] = serves
        if serves is not None or done:
            trial.due.add(iteration)
        return iteration in trial.due

    def settled(self, trial_id: str, iteration: int) -> None:
        """Note that the scheduler got the score of a due report, or never will.

        Its books show what the score served; if there is none, a later report takes its place.
        """
        if trial_id in self._trials:
            self._trials[trial_id].coming.pop(iteration, None)

    def moved(self, trial_id: str) -> None:
        """Note that the trial was given other weights, of any iteration: no old score counts.

        The time that the scheduler counts from now on is in its books.
        """
        trial = self._trials.get(trial_id)
        if trial is not None:
            trial.coming.clear()

    # What follows ------------------------------------------------------------------------------

    def due(self, trial_id: str, iteration: int) -> bool:
        """Return the answer for the newest report of that iteration; False if there was none."""
        trial = self._trials.get(trial_id)
        return trial is not None and iteration in trial.due

    def serves(self, trial_id: str, iteration: int) -> float | None:
        """Return what a due report's score, which has not arrived, serves in the scheduler's books.

        None if the scheduler will not use it.
        """
        trial = self._trials.get(trial_id)
        return None if trial is None else trial.coming.get(iteration)

    def decides_again(self, trial_id: str, rule: DecisionRule) -> bool:
        """Return whether a later report of a trial can be due, in addition to those that are.

        Args:
            trial_id: The trial.
            rule: When the scheduler uses a score of it, as its books now stand.

        Example:
            >>> decisions, rungs = Decisions(), Rungs((1, 3))
            >>> for time in (1, 3):
            ...     due = decisions.asked("a", time, time, rungs, done=False)
            ...     print(decisions.decides_again("a", rungs))
            True
            False
        """
        trial = self._trials.get(trial_id)
        return rule.serves(math.inf, trial.coming.values() if trial else ()) is not None

    def past_last(self, trial_id: str, rule: DecisionRule) -> bool:
        """Return whether a trial has reported after the last report of it that can be due.

        Args:
            trial_id: The trial.
            rule: When the scheduler uses a score of it, as its books now stand.

        Example:
            >>> decisions, rungs = Decisions(), Rungs((1, 3))
            >>> for time in (2, 3, 4):
            ...     due = decisions.asked("a", time, time, rungs, done=False)
            ...     print(decisions.past_last("a", rungs))
            False
            False
            True
        """
        trial = self._trials.get(trial_id)
        if trial is None or trial.newest in trial.due:
            return False
        return not self.decides_again(trial_id, rule)

    def state(self) -> dict[str, Any]:
        """Return what to save for a restore."""
        return {
            trial_id: {
                "newest": trial.newest,
                "due": sorted(trial.due),
                "coming": dict(trial.coming),
            }
            for trial_id, trial in self._trials.items()
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Load what :meth:`state` returned."""
        self._trials = {
            trial_id: _Trial(saved["newest"], set(saved["due"]), dict(saved["coming"]))
            for trial_id, saved in state.items()
        }
