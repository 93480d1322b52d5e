"""The validations of a sweep: to be requested, pending and ended."""

from __future__ import annotations

from collections import Counter

from tunekit.core.events import ValidationEnded
from tunekit.core.validation import Outcome, Request, Status


class Backlog:
    """The validations that the scheduler decides by.

    Example:
        >>> backlog = Backlog()
        >>> backlog.owe(Request("a", 1, path="a/c1"))
        >>> backlog.request("a:0:1:1").path, list(backlog.unfinished)
        ('a/c1', ['a:0:1:1'])
    """

    def __init__(self) -> None:
        #: The requests to be made, by name, in order.
        self.owed: dict[str, Request] = {}
        #: The requests that have not ended, by name, in order.
        self.unfinished: dict[str, Request] = {}
        # The names of both, by trial.
        self._of_trial: dict[str, dict[str, None]] = {}
        #: The number of ended validations by status.
        self.counts: Counter[Status] = Counter()
        #: The total time that validations ran, in seconds.
        self.ran_s = 0.0

    def owe(self, request: Request) -> None:
        """Add a request to be made."""
        self.owed[request.id] = request
        self._of_trial.setdefault(request.trial_id, {})[request.id] = None

    def request(self, name: str) -> Request | None:
        """Record that a validation is requested; return the request, None if it is unknown."""
        request = self.owed.pop(name, None)
        if request is not None:
            self.unfinished[name] = request
        return request

    def end(self, event: ValidationEnded) -> Outcome | None:
        """Record how a validation ended; return its outcome, None if it was not requested."""
        request = self.unfinished.pop(event.id, None)
        if request is None:
            return None
        del self._of_trial[request.trial_id][request.id]
        outcome = event.outcome(request)
        self.counts[outcome.status] += 1
        self.ran_s += outcome.ran_s
        return outcome

    def pending(self, trial_id: str) -> list[Request]:
        """Return a trial's requests that have not ended, including those still to be made."""
        names = self._of_trial.get(trial_id, ())
        return [self.owed.get(name) or self.unfinished[name] for name in names]
