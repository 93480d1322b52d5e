"""The validations of a sweep, pending and ended."""

from __future__ import annotations

from collections import Counter

from tunekit.core.events import ValidationEnded
from tunekit.core.validation import Outcome, Request, Status


class Backlog:
    """The validations of a sweep.

    Example:
        >>> backlog = Backlog()
        >>> backlog.request(Request("a", 1, path="a/c1"))
        >>> list(backlog.unfinished)
        ['a:0:1:1']
    """

    def __init__(self) -> None:
        #: The requests that have not ended, by name, in order.
        self.unfinished: dict[str, Request] = {}
        #: The number of ended validations by status.
        self.counts: Counter[Status] = Counter()
        #: The total time that validations ran, in seconds.
        self.ran_s = 0.0

    def request(self, request: Request) -> None:
        """Add a request."""
        self.unfinished[request.id] = request

    def end(self, event: ValidationEnded) -> Outcome | None:
        """Record how a validation ended; return its outcome, None if it was not requested."""
        request = self.unfinished.pop(event.id, None)
        if request is None:
            return None
        outcome = event.outcome(request)
        self.counts[outcome.status] += 1
        self.ran_s += outcome.ran_s
        return outcome
