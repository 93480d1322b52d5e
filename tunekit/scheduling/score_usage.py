"""Which scores a scheduler will use: it need not get the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.tune.result import DONE, TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler

from tunekit._ray.decisions import rule_for, time_attr_of
from tunekit._ray.stand_ins import StandIn
from tunekit.core.decisions import Decisions
from tunekit.core.metrics import flatten
from tunekit.core.validation import Request

__all__ = ["ScoreUsage"]


class ScoreUsage:
    """Reads in a scheduler's own books which scores it will use; ``when="decisions"`` goes by it.

    Args:
        base: The user's scheduler.

    Example:
        >>> from ray.tune.schedulers import FIFOScheduler
        >>> usage = ScoreUsage(FIFOScheduler())
        >>> usage.used(Request("a", 1))  # nobody has asked about that report
        False
    """

    def __init__(self, base: TrialScheduler):
        self._base = base
        self._decisions = Decisions()
        # The report of each trial that was asked about last, and the answer.
        self._asked: dict[str, tuple[Mapping[str, Any], bool]] = {}
        # The iteration of each trial whose score will be used, and which has not been saved.
        self._unsaved: dict[str, int] = {}

    def uses(self, stand_in: StandIn, report: Mapping[str, Any]) -> bool:
        """Return whether the score of a report will be used, or that is the trial's last.

        To be asked with each report, as often as one likes.
        """
        trial_id, asked = stand_in.trial_id, self._asked.get(stand_in.trial_id)
        if asked is not None and asked[0] is report:
            return asked[1]
        unsaved = self._unsaved.pop(trial_id, None)
        if unsaved is not None:
            self._decisions.settled(trial_id, unsaved)
        iteration = report[TRAINING_ITERATION]
        due = self._decisions.asked(
            trial_id,
            iteration,
            flatten(report).get(time_attr_of(self._base)),
            rule_for(self._base, stand_in),
            done=bool(report.get(DONE)),
        )
        if due:
            self._unsaved[trial_id] = iteration
        self._asked[trial_id] = (report, due)
        return due

    def decides_again(self, stand_in: StandIn) -> bool:
        """Return whether a score of a later report of a trial can be used, too."""
        return self._decisions.decides_again(stand_in.trial_id, rule_for(self._base, stand_in))

    def past_last(self, stand_in: StandIn) -> bool:
        """Return whether a trial has reported after the last report whose score can be used."""
        return self._decisions.past_last(stand_in.trial_id, rule_for(self._base, stand_in))

    def used(self, request: Request) -> bool:
        """Return whether the score of a checkpoint will be used that was saved."""
        if self._unsaved.get(request.trial_id) == request.iteration:
            del self._unsaved[request.trial_id]
        return self._decisions.due(request.trial_id, request.iteration)

    def serves(self, request: Request) -> float | None:
        """Return what the score of a checkpoint serves in the scheduler's books; None: nothing."""
        return self._decisions.serves(request.trial_id, request.iteration)

    def heard(self, request: Request) -> None:
        """Take that a score was delivered: the books tell, or a later one takes its place."""
        self._decisions.settled(request.trial_id, request.iteration)

    def overwritten(self, trial_id: str) -> None:
        """Take that a trial was overwritten: scores of what it was do not come any more."""
        self._decisions.moved(trial_id)

    def state(self) -> Any:
        """Return what to save for a restore."""
        return self._decisions.state()

    def load(self, state: Any) -> None:
        """Take up what :meth:`state` returned."""
        self._decisions.load(state)
