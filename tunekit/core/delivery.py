"""When the scheduler and the searcher may see a score.

They see only validated results, each once, in iteration order within a trial: a score that
overtakes an older one waits until the older one has ended, one way or another. Where they look only
at some scores, these do not wait for the others, and one that ends after a newer one was delivered
is no longer delivered. The end of a trial is delivered after its last validation. When a trial is
overwritten with other weights, scores of its former weights are no longer delivered.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
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

    def clear(self) -> None:
        """Drop every validation."""
        self.requests.clear()
        self.outcomes.clear()
        self.order.clear()


# What is known of a trial of which nothing is.
_EMPTY = _Line()


class Delivery:
    """Puts the scores of each trial in order and gives each out once.

    Feed it with :meth:`requested`, :meth:`ended`, :meth:`offered` and :meth:`complete`, in any
    order in which they can happen; :meth:`due` returns what may be delivered now.

    Args:
        counts: Returns whether a validated result can be judged by; one that cannot is delivered
            to nobody, and no trial ends with it.
        merged: ``merged(report, metrics)`` is the validated result.

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
        # What was delivered against the rules, in words.
        self._broken: list[str] = []

    # What happens ------------------------------------------------------------------------------

    def offered(
        self, trial_id: str, iteration: int, generation: int = 0, *, offered: bool = True
    ) -> None:
        """Note whether Tune asked the scheduler about the report of an iteration.

        It does not ask about a report that ends the trial by itself (``done``, or a stopping
        criterion). The score of such a report goes only with the completion, as in Tune, even if a
        former run of the iteration did not end the trial.
        """
        line = self._line(trial_id)
        if generation == line.generation:
            most = max(line.offered, iteration)
            line.offered = most if offered else min(line.offered, iteration - 1)

    def requested(self, request: Request) -> None:
        """Note that a checkpoint will be validated: scores of later iterations wait for it."""
        line = self._line(request.trial_id)
        if request.generation != line.generation:
            return
        if request.iteration not in line.requests:
            bisect.insort(line.order, request.iteration)
        line.requests[request.iteration] = request
        line.outcomes.pop(request.iteration, None)

    def ended(self, outcome: Outcome) -> None:
        """Take an outcome; one that was replaced by a newer run of its iteration is ignored."""
        line, iteration = self._line(outcome.request.trial_id), outcome.request.iteration
        request = line.requests.get(iteration)
        if request is not None and request.id == outcome.request.id:
            line.outcomes[iteration] = outcome

    def overwritten(self, trial_id: str, generation: int, iteration: int) -> None:
        """Note that the trial goes on with other weights, saved at ``iteration``.

        Scores of its former generations are no longer delivered.
        """
        line = self._line(trial_id)
        line.generation = generation
        line.offered = line.delivered = iteration
        line.newest = None
        line.clear()

    def close(self, trial_id: str) -> None:
        """Note that the scheduler has stopped the trial, and gets no more of its results."""
        self._line(trial_id).closed = True

    def complete(self, trial_id: str) -> None:
        """Note that the trial has ended; its completion follows its last validation."""
        self._line(trial_id).complete = True

    def reopen(self, trial_id: str) -> None:
        """Note that the trial goes on, after a failure or a restore: it will end again."""
        line = self._line(trial_id)
        line.complete = line.over = False

    def forget(self, trial_id: str) -> None:
        """Note that the trial is gone with an error: nothing more of it is delivered."""
        line = self._line(trial_id)
        line.clear()
        line.over = True

    def delivered(self, trial_id: str, place: tuple[int, int], *, counts: bool = True) -> None:
        """Note that a score was delivered, or that it cannot be judged by, if not ``counts``."""
        line, (generation, iteration) = self._line(trial_id), place
        if generation != line.generation:
            return
        if iteration <= line.delivered:
            self._broken.append(
                f"the score of trial {trial_id} at {iteration} was delivered twice, or too late"
            )
        while line.order and line.order[0] <= iteration:
            older = line.order[0]
            if line.requests[older].used and older not in line.outcomes:
                self._broken.append(
                    f"trial {trial_id} is judged at {iteration}, before its score at {older}"
                )
            known = counts if older == iteration else None
            self._leave(line, older, self._score(line, trial_id, older), counts=known)
        line.delivered = max(line.delivered, iteration)

    def end_delivered(self, trial_id: str) -> None:
        """Note that the trial's end was delivered: what is left of it never is."""
        line = self._line(trial_id)
        for iteration in list(line.order):
            self._leave(line, iteration, self._score(line, trial_id, iteration))
        line.over = True

    def settle(self, trial_id: str) -> list[Scored]:
        """Leave behind what comes before the next score to deliver and will never be delivered.

        Such as a validation without a score; or one of a trial's last report, which is not due by
        itself but goes with the trial's end. Return those that cannot be judged by.
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

    # What follows ------------------------------------------------------------------------------

    def waits(self, trial_id: str) -> bool:
        """Return whether a validation of the trial has not ended or not been delivered."""
        return bool(self._known(trial_id).order)

    def pending(self, trial_id: str) -> list[Request]:
        """Return the trial's requests whose scores were not delivered, in iteration order."""
        line = self._known(trial_id)
        return [line.requests[iteration] for iteration in line.order]

    def pending_decisions(self, trial_id: str) -> int:
        """Return how many of the trial's pending scores the scheduler will decide by."""
        return sum(request.used for request in self.pending(trial_id))

    def holds(self, request: Request) -> bool:
        """Return whether the score of that request still has to be delivered or waited for."""
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
        """Return what to deliver next of a trial, if anything may be delivered now.

        It stays due until :meth:`delivered` or :meth:`end_delivered` says that it was.
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
        """Return the score of a generation and iteration, if it has not been delivered."""
        line, (generation, iteration) = self._known(trial_id), place
        if generation != line.generation or iteration not in line.order:
            return None
        return self._score(line, trial_id, iteration)

    def broken(self) -> Iterator[str]:
        """Yield what is wrong with the lines of scores; see :meth:`tunekit.core.engine.Engine`."""
        yield from self._broken
        for trial_id, line in self._lines.items():
            if line.order != sorted(line.requests):
                yield f"trial {trial_id} waits in the order {line.order} for {set(line.requests)}"
            if not line.outcomes.keys() <= line.requests.keys():
                yield f"trial {trial_id} has outcomes that nobody asked for"
            for request in line.requests.values():
                if request.generation != line.generation:
                    yield f"the score {request.id} is of weights that its trial has lost"

    def end(self, trial_id: str) -> Completion:
        """Return the trial's end as it is if what has not been delivered by now never is."""
        line = self._known(trial_id)
        left = (self._score(line, trial_id, iteration) for iteration in line.order)
        counted = [one.result for one in left if one is not None and self._counts(one.result)]
        return Completion(trial_id, counted[-1] if counted else line.newest)

    def _in_turn(self, line: _Line) -> Iterator[int]:
        """Yield in order the iterations that have ended and need not wait for older ones."""
        overtakes = False
        for iteration in line.order:
            outcome, used = line.outcomes.get(iteration), line.requests[iteration].used
            offered = iteration <= line.offered
            if outcome is None:
                if used or self.all_count:
                    return
                overtakes = True
            elif outcome.validated and not offered and not line.complete:
                return  # saved before its report was looked at
            elif not overtakes or (used and offered):  # nobody waits for others: they keep theirs
                yield iteration

    @staticmethod
    def _may_be_heard(line: _Line, iteration: int) -> bool:
        return iteration <= line.offered and not line.closed

    def _score(self, line: _Line, trial_id: str, iteration: int) -> Scored | None:
        """Return a validated result, unless it is older than what was delivered."""
        outcome = line.outcomes.get(iteration)
        if outcome is None or not outcome.validated or iteration <= line.delivered:
            return None
        result = self._merged(outcome.request.report, outcome.metrics)
        return Scored(trial_id, iteration, result, outcome.request)

    def _leave(
        self, line: _Line, iteration: int, scored: Scored | None, *, counts: bool | None = None
    ) -> None:
        """Take a validation of a trial out of its line."""
        line.order.remove(iteration)
        line.outcomes.pop(iteration, None)
        del line.requests[iteration]
        if scored is not None:
            line.delivered = iteration
            if self._counts(scored.result) if counts is None else counts:
                line.newest = scored.result

    def _known(self, trial_id: str) -> _Line:
        """Return what is known of a trial; not to be changed."""
        return self._lines.get(trial_id, _EMPTY)

    def _line(self, trial_id: str) -> _Line:
        return self._lines.setdefault(trial_id, _Line())
