"""When the scheduler and the searcher may see a score.

They see only validated results, each once, in iteration order within a trial: a score that
overtakes an older one waits until the older validation has ended, with or without a score. If they
use only some scores, these do not wait for the others, and a score that arrives after a newer one
was delivered is dropped. The end of a trial is delivered after its last validation. When a trial is
overwritten with other weights, scores of its former weights are no longer delivered.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunekit.core.metrics import merge
from tunekit.core.validation import Outcome, Request


@dataclass(frozen=True)
class Scored:
    """A validated result to deliver: the report of an iteration merged with its score."""

    trial_id: str
    iteration: int
    result: Mapping[str, Any]
    request: Request = field(compare=False, repr=False)


@dataclass(frozen=True)
class Completion:
    """The end of a trial to deliver, with its newest validated result (None if there is none)."""

    trial_id: str
    result: Mapping[str, Any] | None


@dataclass
class _Line:
    """The undelivered validations of one trial, in iteration order."""

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

    def clear(self) -> None:
        """Drop every validation."""
        self.requests.clear()
        self.outcomes.clear()
        self.order.clear()


# The line of a trial that has none.
_EMPTY = _Line()


class Delivery:
    """Order the scores of each trial and deliver each once.

    Feed it with :meth:`requested`, :meth:`ended`, :meth:`offered` and :meth:`complete`, in any
    possible order; :meth:`due` returns what may be delivered now.

    Args:
        counts: Returns whether a validated result has the metrics to decide by. One that has not is
            not delivered, and no trial ends with it.
        merged: ``merged(report, metrics)`` returns the validated result.

    Example:
        >>> from tunekit.core.validation import Outcome, Request, Status
        >>> delivery = Delivery()
        >>> requests = [Request("a", i, report={"loss": 1.0}) for i in (1, 2)]
        >>> for request in requests:
        ...     delivery.offered("a", request.iteration)
        ...     delivery.requested(request)
        >>> delivery.ended(Outcome(requests[1], Status.VALIDATED, {"accuracy": 0.9}))
        >>> delivery.due("a")  # nothing: iteration 1 has not ended
        >>> delivery.ended(Outcome(requests[0], Status.FAILED))
        >>> delivery.due("a")
        Scored(trial_id='a', iteration=2, result={'loss': 1.0, 'accuracy': 0.9})
        >>> delivery.delivered("a", (0, 2))
        >>> delivery.due("a")
    """

    def __init__(
        self,
        counts: Callable[[Mapping[str, Any]], bool] = lambda result: True,
        merged: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]] = merge,
    ) -> None:
        self._counts, self._merged = counts, merged
        #: Whether every score has to be delivered; if not, unused ones may be overtaken.
        self.all_count = True
        self._lines: dict[str, _Line] = {}

    # Events ------------------------------------------------------------------------------------

    def offered(
        self, trial_id: str, iteration: int, generation: int = 0, *, offered: bool = True
    ) -> None:
        """Record whether Tune showed the scheduler the report of an iteration.

        It does not show a report that ends the trial (``done``, or a stopping criterion).
        As in Tune, the score of such a report is delivered only with the completion, even if an
        earlier run of the iteration did not end the trial.
        """
        line = self._line(trial_id)
        if generation == line.generation:
            most = max(line.offered, iteration)
            line.offered = most if offered else min(line.offered, iteration - 1)

    def requested(self, request: Request) -> None:
        """Record that a checkpoint will be validated: scores of later iterations wait for it."""
        line = self._line(request.trial_id)
        if request.generation != line.generation:
            return
        if request.iteration not in line.requests:
            bisect.insort(line.order, request.iteration)
        line.requests[request.iteration] = request
        line.outcomes.pop(request.iteration, None)

    def ended(self, outcome: Outcome) -> None:
        """Record an outcome; ignore one that a newer run of its iteration has replaced."""
        line, iteration = self._line(outcome.request.trial_id), outcome.request.iteration
        request = line.requests.get(iteration)
        if request is not None and request.id == outcome.request.id:
            line.outcomes[iteration] = outcome

    def overwritten(self, trial_id: str, generation: int, iteration: int) -> None:
        """Record that the trial continues with other weights, saved at ``iteration``.

        Scores of its former generations are no longer delivered.
        """
        line = self._line(trial_id)
        line.generation = generation
        line.offered = line.delivered = iteration
        line.newest = None
        line.clear()

    def close(self, trial_id: str) -> None:
        """Record that the scheduler has stopped the trial, and gets no more of its results."""
        self._line(trial_id).closed = True

    def complete(self, trial_id: str) -> None:
        """Record that the trial has ended; its completion follows its last validation."""
        self._line(trial_id).complete = True

    def reopen(self, trial_id: str) -> None:
        """Record that the trial continues, after a failure or a restore: it will end again."""
        line = self._line(trial_id)
        line.complete = line.over = False

    def forget(self, trial_id: str) -> None:
        """Record that the trial has failed for good: nothing more of it is delivered."""
        line = self._line(trial_id)
        line.clear()
        line.over = True

    def delivered(self, trial_id: str, place: tuple[int, int], *, counts: bool = True) -> None:
        """Record that a score was delivered; without ``counts``, that it cannot be decided by."""
        line, (generation, iteration) = self._line(trial_id), place
        if generation != line.generation:
            return
        while line.order and line.order[0] <= iteration:
            older = line.order[0]
            known = counts if older == iteration else None
            self._leave(line, older, self._score(line, trial_id, older), counts=known)
        line.delivered = max(line.delivered, iteration)

    def end_delivered(self, trial_id: str) -> None:
        """Record that the trial's end was delivered: its remaining scores never are."""
        line = self._line(trial_id)
        for iteration in list(line.order):
            self._leave(line, iteration, self._score(line, trial_id, iteration))
        line.over = True

    def settle(self, trial_id: str) -> list[Scored]:
        """Drop what precedes the next score to deliver and will never be delivered.

        Examples are a validation without a score, and that of a trial's last report, which is
        delivered with the trial's end only. Return the scores that cannot be decided by.
        """
        line, passed_over = self._known(trial_id), []
        for iteration in list(self._in_turn(line)):
            scored = self._score(line, trial_id, iteration)
            if scored is None or not self._may_be_heard(line, iteration):
                self._leave(line, iteration, scored)
            elif self._counts(scored.result):
                break
            else:
                self.delivered(trial_id, scored.request.place, counts=False)
                passed_over.append(scored)
        return passed_over

    # Queries -----------------------------------------------------------------------------------

    def waits(self, trial_id: str) -> bool:
        """Return whether a validation of the trial has not ended or not been delivered."""
        return bool(self._known(trial_id).order)

    def pending(self, trial_id: str) -> list[Request]:
        """Return the trial's requests whose scores are not delivered, in iteration order."""
        line = self._known(trial_id)
        return [line.requests[iteration] for iteration in line.order]

    def pending_decisions(self, trial_id: str) -> int:
        """Return how many of the trial's pending scores the scheduler will decide by."""
        return sum(request.used for request in self.pending(trial_id))

    def holds(self, request: Request) -> bool:
        """Return whether the score of a request still has to arrive or to be delivered."""
        kept = self._known(request.trial_id).requests.get(request.iteration)
        return kept is not None and kept.id == request.id

    def completed(self, trial_id: str) -> bool:
        """Return whether :meth:`complete` or :meth:`forget` was called for the trial."""
        line = self._known(trial_id)
        return line.complete or line.over

    def closed(self, trial_id: str) -> bool:
        """Return whether :meth:`close` was called for the trial."""
        return self._known(trial_id).closed

    def over(self, trial_id: str) -> bool:
        """Return whether the trial's end was delivered, or nothing more of it will be."""
        return self._known(trial_id).over

    def due(self, trial_id: str) -> Scored | Completion | None:
        """Return what to deliver next for a trial; None if nothing may be delivered now.

        It stays due until :meth:`delivered` or :meth:`end_delivered` is called.
        """
        line = self._known(trial_id)
        for iteration in self._in_turn(line):
            scored = self._score(line, trial_id, iteration)
            if scored is not None and self._may_be_heard(line, iteration):
                return scored
        if line.complete and not line.over and not line.order:
            return Completion(trial_id, line.newest)
        return None

    def score_at(self, trial_id: str, place: tuple[int, int]) -> Scored | None:
        """Return the score of a generation and iteration that has not been delivered."""
        line, (generation, iteration) = self._known(trial_id), place
        if generation != line.generation or iteration not in line.order:
            return None
        return self._score(line, trial_id, iteration)

    def end(self, trial_id: str) -> Completion:
        """Return the trial's end as it is if its undelivered validations never end."""
        line = self._known(trial_id)
        left = (self._score(line, trial_id, iteration) for iteration in line.order)
        counted = [one.result for one in left if one is not None and self._counts(one.result)]
        return Completion(trial_id, counted[-1] if counted else line.newest)

    def _in_turn(self, line: _Line) -> Iterator[int]:
        """Yield, in order, the iterations that have ended and need not wait for older ones."""
        overtakes = False
        for iteration in line.order:
            outcome, used = line.outcomes.get(iteration), line.requests[iteration].used
            offered = iteration <= line.offered
            if outcome is None:
                if used or self.all_count:
                    return
                overtakes = True
            elif outcome.validated and not offered and not line.complete:
                return  # saved before its report was processed
            elif not overtakes or (used and offered):  # the scheduler waits only for used scores
                yield iteration

    @staticmethod
    def _may_be_heard(line: _Line, iteration: int) -> bool:
        return iteration <= line.offered and not line.closed

    def _score(self, line: _Line, trial_id: str, iteration: int) -> Scored | None:
        """Return a validated result, unless a newer one was delivered."""
        outcome = line.outcomes.get(iteration)
        if outcome is None or not outcome.validated or iteration <= line.delivered:
            return None
        result = self._merged(outcome.request.report, outcome.metrics)
        return Scored(trial_id, iteration, result, outcome.request)

    def _leave(
        self, line: _Line, iteration: int, scored: Scored | None, *, counts: bool | None = None
    ) -> None:
        """Remove a validation from its trial's line."""
        line.order.remove(iteration)
        line.outcomes.pop(iteration, None)
        del line.requests[iteration]
        if scored is not None:
            line.delivered = iteration
            if self._counts(scored.result) if counts is None else counts:
                line.newest = scored.result

    def _known(self, trial_id: str) -> _Line:
        """Return the line of a trial, not to be changed."""
        return self._lines.get(trial_id, _EMPTY)

    def _line(self, trial_id: str) -> _Line:
        return self._lines.setdefault(trial_id, _Line())
