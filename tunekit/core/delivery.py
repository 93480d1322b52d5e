"""When the scheduler and the searcher may see a score.

They see validated results only, each once, in iteration order within a trial: a score that
overtakes an older one waits until the older one has ended, one way or another. The end of a trial
is delivered after its last validation. When a trial is overwritten with other weights, the scores
of its former ones are not delivered any more.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tunekit.core.metrics import merge
from tunekit.core.validation import Outcome, Request

__all__ = ["Completion", "Delivery", "Scored"]


@dataclass(frozen=True)
class Scored:
    """A validated result to deliver: the report of an iteration merged with its score."""

    trial_id: str
    iteration: int
    result: Mapping[str, Any]
    request: Request = field(compare=False, repr=False)


@dataclass(frozen=True)
class Completion:
    """The end of a trial to deliver, with its newest validated result (None if it has none)."""

    trial_id: str
    result: Mapping[str, Any] | None


@dataclass
class _Line:
    """The validations of one trial that have not been delivered, in iteration order."""

    generation: int = 0
    requests: dict[int, Request] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    offered: int = 0
    delivered: int = 0
    newest: Mapping[str, Any] | None = None
    closed: bool = False
    complete: bool = False
    over: bool = False


class Delivery:
    """Puts the scores of each trial in order and gives each out once.

    Feed it with :meth:`requested`, :meth:`ended`, :meth:`offered` and :meth:`complete`, in any
    order in which they can happen, and take with :meth:`take` what may be delivered now.

    Args:
        counts: Whether a validated result can be judged by; a trial does not end with one that
            cannot.
        merged: ``merged(report, metrics)`` is the validated result.

    Example:
        >>> from tunekit.core.validation import Outcome, Request, Status
        >>> delivery = Delivery()
        >>> requests = [Request("a", i, report={"loss": 1.0}) for i in (1, 2)]
        >>> for request in requests:
        ...     delivery.offered("a", request.iteration)
        ...     delivery.requested(request)
        >>> delivery.ended(Outcome(requests[1], Status.VALIDATED, {"accuracy": 0.9}))
        >>> list(delivery.take("a"))  # iteration 1 has not ended
        []
        >>> delivery.ended(Outcome(requests[0], Status.FAILED))
        >>> list(delivery.take("a"))
        [Scored(trial_id='a', iteration=2, result={'loss': 1.0, 'accuracy': 0.9})]
    """

    def __init__(
        self,
        counts: Callable[[Mapping[str, Any]], bool] = lambda result: True,
        merged: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]] = merge,
    ) -> None:
        self._counts, self._merged = counts, merged
        self._lines: dict[str, _Line] = {}

    # What happens ------------------------------------------------------------------------------

    def offered(self, trial_id: str, iteration: int, generation: int = 0) -> None:
        """Tune asked the scheduler about the report of an iteration.

        It does not ask about a report that ends the trial by itself (``done``, or a stopping
        criterion); the score of such a report goes with the completion only, as in Tune.
        """
        line = self._line(trial_id)
        if generation == line.generation:
            line.offered = max(line.offered, iteration)

    def requested(self, request: Request) -> None:
        """A checkpoint is going to be validated: scores of later iterations wait for it."""
        line = self._line(request.trial_id)
        if request.generation != line.generation:
            return
        if request.iteration not in line.requests:
            bisect.insort(line.order, request.iteration)
        line.requests[request.iteration] = request
        line.outcomes.pop(request.iteration, None)

    def ended(self, outcome: Outcome) -> None:
        """A validation ended; one that was replaced by a newer run of its iteration is ignored."""
        line, iteration = self._line(outcome.request.trial_id), outcome.request.iteration
        request = line.requests.get(iteration)
        if request is not None and request.id == outcome.request.id:
            line.outcomes[iteration] = outcome

    def overwritten(self, trial_id: str, generation: int, iteration: int) -> None:
        """The trial goes on with other weights, saved at ``iteration``.

        Scores of its former generations are not delivered any more.
        """
        line = self._line(trial_id)
        line.generation = generation
        line.offered = line.delivered = iteration
        line.newest = None
        line.requests.clear()
        line.outcomes.clear()
        line.order.clear()

    def close(self, trial_id: str) -> None:
        """The scheduler has stopped the trial: it gets no more results of it."""
        self._line(trial_id).closed = True

    def complete(self, trial_id: str) -> None:
        """The trial has ended; its completion follows its last validation."""
        self._line(trial_id).complete = True

    def reopen(self, trial_id: str) -> None:
        """The trial goes on, after a failure or a restore: it will end again."""
        line = self._line(trial_id)
        line.complete = line.over = False

    def forget(self, trial_id: str) -> None:
        """The trial is gone with an error: nothing of it is delivered any more."""
        line = self._line(trial_id)
        line.requests.clear()
        line.outcomes.clear()
        line.order.clear()
        line.over = True

    # What follows ------------------------------------------------------------------------------

    def waits(self, trial_id: str) -> bool:
        """Whether a validation of the trial has not ended or not been delivered."""
        line = self._lines.get(trial_id)
        return line is not None and bool(line.order)

    def holds(self, request: Request) -> bool:
        """Whether the score of that request is still to be delivered, or to be waited for."""
        line = self._lines.get(request.trial_id)
        kept = None if line is None else line.requests.get(request.iteration)
        return kept is not None and kept.id == request.id

    def undelivered(self) -> Iterator[Request]:
        """The requests that have ended and whose scores wait to be delivered."""
        for line in self._lines.values():
            for outcome in line.outcomes.values():
                yield outcome.request

    def head(self, trial_id: str) -> tuple[int, int] | None:
        """Generation and iteration of what the trial's other scores wait for, if anything."""
        line = self._lines.get(trial_id)
        return (line.generation, line.order[0]) if line is not None and line.order else None

    def completed(self, trial_id: str) -> bool:
        """Whether :meth:`complete` or :meth:`forget` was called for the trial."""
        line = self._lines.get(trial_id)
        return line is not None and (line.complete or line.over)

    def over(self, trial_id: str) -> bool:
        """Whether the trial's end was delivered, or nothing of it is any more."""
        line = self._lines.get(trial_id)
        return line is not None and line.over

    def take(
        self, trial_id: str, ready: Callable[[], bool] = lambda: True
    ) -> Iterator[Scored | Completion]:
        """Give out, one by one, what may be delivered now.

        A result is taken when it is yielded. The caller may :meth:`close` the trial between two,
        or let it be :meth:`overwritten`.

        Args:
            trial_id: The trial.
            ready: Asked before each: whether anything of the trial may be delivered.
        """
        line = self._line(trial_id)
        while line.order and ready():
            iteration = line.order[0]
            outcome = line.outcomes.get(iteration)
            if outcome is None:
                return
            if outcome.validated and iteration > line.offered and not line.complete:
                return  # saved before its report was looked at
            del line.order[0], line.outcomes[iteration], line.requests[iteration]
            if not outcome.validated or iteration <= line.delivered:
                continue
            line.delivered = iteration
            result = self._merged(outcome.request.report, outcome.metrics)
            if self._counts(result):
                line.newest = result
            if iteration <= line.offered and not line.closed:
                yield Scored(trial_id, iteration, result, outcome.request)
        if line.complete and not line.over and not line.order and ready():
            line.over = True
            yield Completion(trial_id, line.newest)

    def state(self, recorded: Callable[[str], str] = str) -> dict[str, Any]:
        """What to save for a restore, with paths as ``recorded`` writes them down.

        How far each trial was delivered, its newest result, and the outcomes that wait for older
        ones. Requests that have not ended are to be requested again by whoever restores.
        """
        return {
            trial_id: {
                "ended": [
                    replace(outcome, request=_bare(outcome.request, recorded))
                    for outcome in line.outcomes.values()
                ],
                "generation": line.generation,
                "offered": line.offered,
                "delivered": line.delivered,
                "newest": line.newest,
                "closed": line.closed,
                "complete": line.complete,
                "over": line.over,
            }
            for trial_id, line in self._lines.items()
        }

    def load(self, state: Mapping[str, Any], path: Callable[[str], str] = str) -> None:
        """Take up what :meth:`state` returned; ``path`` reads a path that was written down."""
        self._lines = {}
        for trial_id, saved in state.items():
            ended = saved["ended"]
            self._lines[trial_id] = _Line(**{k: v for k, v in saved.items() if k != "ended"})
            for outcome in ended:
                outcome = replace(outcome, request=_bare(outcome.request, path))
                self.requested(outcome.request)
                self.ended(outcome)

    def _line(self, trial_id: str) -> _Line:
        return self._lines.setdefault(trial_id, _Line())


def _bare(request: Request, path: Callable[[str], str]) -> Request:
    return replace(request, checkpoint=None, path=path(request.path))
