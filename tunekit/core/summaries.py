"""What readers show of a sweep: summaries of its trials, checkpoints and validations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunekit.core.metrics import flatten
from tunekit.core.validation import PendingStatus
from tunekit.core.values import finite_number

#: The row of a validation about which nothing is known.
VALIDATION: Mapping[str, Any] = {
    **dict.fromkeys(("id", "trial_id", "generation", "iteration", "run")),
    "status": PendingStatus.QUEUED.value,
    **dict.fromkeys(("requested", "started", "ran_from", "ended")),
    "attempts": 0,
    **dict.fromkeys(("waited_s", "ran_s", "lag_s", "lag_iterations", "reason", "error")),
    "checkpoint": None,
    "metrics": {},
}


@dataclass(frozen=True)
class ScoredCheckpoint:
    """A validated checkpoint.

    Attributes:
        generation: Its trial's generation.
        iteration: The training iteration at which it was saved.
        metrics: Its validated metrics, nested as they were returned.
        checkpoint: Its path; it may be deleted.
        violation: Its violation of the sweep's constraints; 0 if it satisfies them.
        run: Which run of the iteration it was saved in.
    """

    generation: int
    iteration: int
    metrics: Mapping[str, Any]
    checkpoint: str
    violation: float = 0.0
    run: int = 1

    @property
    def place(self) -> tuple[int, int]:
        """Return ``(generation, iteration)``."""
        return (self.generation, self.iteration)

    def value(self, metric: str) -> float | None:
        """Return its validated value of a metric, by flat name; None if it has no such number."""
        return finite_number(flatten(self.metrics).get(metric))

    def sort_key(self, metric: str, mode: str) -> tuple[float, float]:
        """Return the sort key for ranking, smallest first; without the metric, it comes last.

        Checkpoints that satisfy the constraints precede those that do not.

        Args:
            metric: The metric, by flat name.
            mode: ``"min"`` or ``"max"``.

        Example:
            >>> checkpoints = [
            ...     ScoredCheckpoint(0, n, {"accuracy": n / 10}, f"c{n}", violation=n // 3)
            ...     for n in range(1, 5)
            ... ]
            >>> ranked = sorted(checkpoints, key=lambda one: one.sort_key("accuracy", "max"))
            >>> [one.iteration for one in ranked]
            [2, 1, 4, 3]
        """
        value = self.value(metric)
        if value is None:
            return (math.inf, math.inf)
        return (self.violation, -value if mode == "max" else value)


@dataclass(frozen=True)
class Span:
    """A period of time in the life of a trial or a validation.

    Attributes:
        trial_id: The trial.
        kind: ``"training"``, ``"waiting"`` (the trial, for a score), ``"requested"`` (a validation,
            until it runs) or ``"validating"``.
        begin: The start, in seconds since the epoch.
        end: The end, in seconds since the epoch.
        generation: The trial's generation.
        iteration: The iteration that was trained, waited for or validated.
        note: How a validation ended.
    """

    trial_id: str
    kind: str
    begin: float
    end: float
    generation: int
    iteration: int
    note: str = ""


@dataclass
class TrialSummary:
    """A trial's summary.

    Attributes:
        trial_id: The trial.
        config: Its initial hyperparameters.
        folder: The name of its folder in the experiment's folder.
        status: ``"pending"``, ``"running"``, ``"terminated"`` or ``"error"``.
        generation: How many times it was overwritten.
        iteration: The training iteration of its last result.
        unprocessed: The number of later reports, which wait for scores.
        stopped: Whether its scheduler ended it, or it was stopped by hand.
        by_hand: Whether it was stopped by hand.
        failures: The number of its failures.
        failed_at: The generation and the training iteration after which it failed last.
        added: When it was added, in seconds since the epoch.
        ended: When it ended, in seconds since the epoch; None if it has not.
        trained_s: The seconds that it trained.
        waited_s: The seconds that it waited for scores, in waits that have ended.
    """

    trial_id: str
    config: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ""
    status: str = "pending"
    generation: int = 0
    iteration: int = 0
    unprocessed: int = 0
    stopped: bool = False
    by_hand: bool = False
    failures: int = 0
    failed_at: tuple[int, int] = (0, 0)
    added: float = math.nan
    ended: float | None = None
    trained_s: float = 0.0
    waited_s: float = 0.0

    @property
    def shown_status(self) -> str:
        """Return its status for display, which shows who has stopped it."""
        return shown_status(vars(self))


def shown_status(row: Mapping[str, Any]) -> str:
    """Return a trial's status for display, which shows who has stopped it.

    Args:
        row: The attributes of a :class:`TrialSummary`.
    """
    if row["by_hand"]:
        return "stopped by hand"
    return str("stopped" if row["stopped"] else row["status"])
