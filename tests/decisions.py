"""Finds the due reports of a sweep, by a rule and by the pending scores."""

from __future__ import annotations

from collections import defaultdict

from tunekit.core.decision_points import DecisionRule
from tunekit.core.queue import Entry, Queue


class Decisions:
    """Trials that save at each due report, so that it is validated."""

    def __init__(self) -> None:
        self.queues: defaultdict[str, Queue] = defaultdict(Queue)

    def asked(
        self, trial: str, iteration: int, now: float | None, rule: DecisionRule, *, done: bool
    ) -> bool:
        """Report for a trial; return whether the report is due."""
        queue = self.queues[trial]
        serves = None if now is None else rule.serves(now, queue.coming(iteration))
        due = serves is not None or done
        queue.append(Entry(iteration=iteration, serves=serves, last=done, scoring=due))
        return due

    def settled(self, trial: str, iteration: int) -> None:
        """End the validation of a report, with or without a score; Tune gets what it can."""
        queue = self.queues[trial]
        for entry in queue:
            if entry.iteration == iteration:
                entry.scoring = False
        while queue.take():
            pass

    def moved(self, trial: str) -> None:
        """Continue a trial with other weights."""
        self.queues[trial].drop()
