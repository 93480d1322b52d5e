"""When a validated result may be told to those who listen."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunekit.core.validation import Outcome, Request

__all__ = ["InOrder", "Told"]


@dataclass(frozen=True)
class Told:
    """What loggers were told of a trial: a report, or a validated result.

    Attributes:
        report: The report; of a validated result, that of the iteration that saved the checkpoint.
        metrics: The validated metrics; None if it is a report.
    """

    report: Mapping[str, Any]
    metrics: Mapping[str, Any] | None = None


@dataclass
class _Line:
    """The validations of one trial that have not been told, by (generation, iteration)."""

    order: list[tuple[int, int]] = field(default_factory=list)
    requests: dict[tuple[int, int], Request] = field(default_factory=dict)
    outcomes: dict[tuple[int, int], Outcome] = field(default_factory=dict)


class InOrder:
    """Puts the outcomes of each trial in the order of its iterations, and gives each out once.

    Unlike the scheduler, those who listen hear of everything: also what comes after a STOP, and
    what belongs to a former generation. An outcome that overtakes an older one waits until the
    older one has ended. That of a former run of an iteration is not given out once the newer run
    has asked for a validation.

    Example:
        >>> from tunekit.core.validation import Status
        >>> order = InOrder()
        >>> first, second = (Request("a", iteration) for iteration in (1, 2))
        >>> order.requested(first), order.requested(second)
        (None, None)
        >>> order.ended(Outcome(second, Status.VALIDATED, {"accuracy": 0.9}))
        []
        >>> [due.request.iteration for due in order.ended(Outcome(first, Status.FAILED))]
        [1, 2]
    """

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    def requested(self, request: Request) -> None:
        """A checkpoint is going to be validated: what is newer waits for it."""
        line, place = self._lines.setdefault(request.trial_id, _Line()), request.place
        known = line.requests.get(place)
        if known is not None and known.id == request.id:
            return
        if known is None:
            bisect.insort(line.order, place)
        line.requests[place] = request
        line.outcomes.pop(place, None)

    def ended(self, outcome: Outcome) -> list[Outcome]:
        """A validation has ended, one way or another: what may be told now, in order."""
        request = outcome.request
        line = self._lines.get(request.trial_id)
        known = None if line is None else line.requests.get(request.place)
        if line is None or known is None or known.id != request.id:
            return []  # a newer run of its iteration has taken its place
        line.outcomes[request.place] = outcome
        due = []
        while line.order and line.order[0] in line.outcomes:
            place = line.order.pop(0)
            del line.requests[place]
            due.append(line.outcomes.pop(place))
        if not line.order:
            del self._lines[request.trial_id]
        return due
