"""The validated metrics of a trial, iteration by iteration."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from tunekit.core.metrics import flatten, hide, leaves, merge, without
from tunekit.core.validation import Outcome, is_score

#: The key, in a report, of the number of times its trial had been overwritten with other weights.
GENERATION = "generation"

#: The key, in a report, of the iteration it belongs to (Tune's ``training_iteration``).
ITERATION = "training_iteration"
#: The key, in a trial's newest result, of the iteration whose checkpoint the score belongs to.
VALIDATED_ITERATION = "validated_iteration"
#: The key, in a row, of the name of its checkpoint's folder, which ``Result.from_path`` reads.
CHECKPOINT = "checkpoint_dir_name"
#: The key, in a row, of the number of times the iteration was run.
RUNS = "iteration_runs"


def place_in(report: Mapping[str, Any]) -> tuple[int, int]:
    """Return the ``(generation, iteration)`` of a report.

    Example:
        >>> place_in({"training_iteration": 3, "loss": 0.5})
        (0, 3)
    """
    return report.get(GENERATION, 0), report[ITERATION]


class History:
    """The validated metrics of a sweep, each in its row.

    A score belongs to the run of the iteration that saved its checkpoint. When a trial returns to
    an older checkpoint and repeats an iteration, the row is the newest run's, and a score of an
    older run is no longer shown in it. A trial that is overwritten with other weights starts a new
    generation, whose iterations have separate rows.

    Example:
        >>> from tunekit.core.validation import Outcome, Request, Status
        >>> history = History()
        >>> run = history.reported("a", 3)
        >>> history.ended(Outcome(Request("a", 3, run), Status.VALIDATED, {"accuracy": 0.9}))
        True
        >>> history.newest("a")
        (3, {'accuracy': 0.9})
        >>> list(history.rows("a", [{"training_iteration": 2}, {"training_iteration": 3}]))
        [{'training_iteration': 2, 'generation': 0, 'iteration_runs': 0}, {'training_iteration': 3, 'generation': 0, 'accuracy': 0.9, 'iteration_runs': 1}]
    """  # noqa: E501

    def __init__(self) -> None:
        # By trial, and by (generation, iteration) within one.
        self._runs: dict[str, dict[tuple[int, int], int]] = {}
        self._saved: dict[str, dict[tuple[int, int], str]] = {}
        self._scores: dict[str, dict[tuple[int, int], Mapping[str, Any]]] = {}
        self._order: dict[str, list[tuple[int, int]]] = {}
        #: Flat names of all metrics of validations, in order of appearance.
        self.names: dict[str, None] = {}
        # The metrics of later validations, below their names, by trial and (generation, iteration).
        self._later: dict[str, dict[tuple[int, int], Mapping[str, Any]]] = {}
        #: Flat names of all metrics of later validations, in order of appearance.
        self.later_names: dict[str, None] = {}
        # The requests that are pending, and those that were pending when the first score arrived.
        self._pending: set[str] = set()
        self._may_tell: set[str] = set()

    def reported(self, trial_id: str, iteration: int, generation: int = 0) -> int:
        """Count a run of an iteration; return the number of runs, including this one."""
        runs, place = self._runs.setdefault(trial_id, {}), (generation, iteration)
        runs[place] = runs.get(place, 0) + 1
        if self._scores.get(trial_id, {}).pop(place, None) is not None:
            self._order[trial_id].remove(place)  # the score of an older run
        self._later.get(trial_id, {}).pop(place, None)
        self._saved.get(trial_id, {}).pop(place, None)
        return runs[place]

    def saved(self, trial_id: str, place: tuple[int, int], path: str) -> None:
        """Record the checkpoint of the newest run of an iteration."""
        self._saved.setdefault(trial_id, {})[place] = path.rstrip("/").rpartition("/")[2]

    def run_of(self, trial_id: str, iteration: int, generation: int = 0) -> int:
        """Return the number of the newest run of an iteration, 1 if it has not been reported."""
        return self._runs.get(trial_id, {}).get((generation, iteration), 1)

    def requested(self, request_id: str) -> None:
        """Record that a checkpoint will be validated."""
        self._pending.add(request_id)

    def undecided(self, judged: Collection[str]) -> set[str]:
        """Return the metrics that may still turn out to belong to validation.

        A name that any validation has produced belongs to validation. A name that is missing from
        the first validations (all that were pending when the first score arrived) belongs to
        training, unless a later one produces it.

        Args:
            judged: The metrics that the sweep uses.

        Example:
            >>> from tunekit.core.validation import Outcome, Request, Status
            >>> history, requests = History(), [Request("a", 1), Request("b", 1)]
            >>> for request in requests:
            ...     history.requested(request.id)
            >>> history.ended(Outcome(requests[0], Status.VALIDATED, {"loss": 0.5}))
            True
            >>> history.undecided(["accuracy"]), history.hesitates(["accuracy"])
            ({'accuracy'}, True)
            >>> history.ended(Outcome(requests[1], Status.VALIDATED, {"loss": 0.5}))
            True
            >>> history.undecided(["accuracy"])
            set()
        """
        return set(judged).difference(self.names) if self._may_tell or not self.names else set()

    def hesitates(self, judged: Collection[str]) -> bool:
        """Return whether decisions on existing scores must wait for other validations to end."""
        return bool(self._may_tell) and not self.names.keys() >= set(judged)

    def counts(self, outcome: Outcome) -> bool:
        """Return whether it is a score, and its trial has not repeated the iteration since.

        Example:
            >>> from tunekit.core.validation import Outcome, Request, Status
            >>> history, outcome = History(), Outcome(Request("a", 3), Status.VALIDATED, {"x": 1})
            >>> history.reported("a", 3), history.counts(outcome)
            (1, True)
            >>> history.reported("a", 3), history.counts(outcome)
            (2, False)
        """
        request = outcome.request
        newest = self.run_of(request.trial_id, request.iteration, request.generation)
        return outcome.validated and request.run >= newest

    def ended(self, outcome: Outcome) -> bool:
        """Record an outcome; return whether it is a score of the newest run of its iteration."""
        request = outcome.request
        self._pending.discard(request.id)
        self._may_tell.discard(request.id)
        if not self.counts(outcome):
            return False
        if not self.names:
            self._may_tell = set(self._pending)
        scores = self._scores.setdefault(request.trial_id, {})
        if request.place not in scores:
            bisect.insort(self._order.setdefault(request.trial_id, []), request.place)
        scores[request.place] = outcome.metrics
        self.names.update((name, None) for name, _ in leaves(outcome.metrics))
        return True

    def later(self, name: str, outcome: Outcome) -> bool:
        """Record an outcome of another function; return whether it is a score of the newest run.

        Its metrics are shown below its name; no decision depends on them.

        Example:
            >>> from tunekit.core.validation import Outcome, Request, Status
            >>> history = History()
            >>> history.later("full", Outcome(Request("a", 3), Status.VALIDATED, {"accuracy": 0.8}))
            True
            >>> list(history.later_scores("a")), list(history.names), list(history.later_names)
            ([((0, 3), {'full': {'accuracy': 0.8}})], [], ['full/accuracy'])
        """
        if not self.counts(outcome):
            return False
        request = outcome.request
        # Metrics that the sweep decides by keep their names.
        metrics = without({name: outcome.metrics}, self.names)
        scores = self._later.setdefault(request.trial_id, {})
        scores[request.place] = merge(scores.get(request.place, {}), metrics)
        self.later_names.update((name, None) for name, _ in leaves(metrics))
        return True

    def later_scores(self, trial_id: str) -> Iterator[tuple[tuple[int, int], Mapping[str, Any]]]:
        """Yield ``((generation, iteration), metrics)`` of later validations, in order."""
        return iter(sorted(self._later.get(trial_id, {}).items(), key=lambda one: one[0]))

    def scores(self, trial_id: str) -> Iterator[tuple[tuple[int, int], Mapping[str, Any]]]:
        """Yield ``((generation, iteration), metrics)`` of validated iterations, in order."""
        scores = self._scores.get(trial_id, {})
        return ((place, scores[place]) for place in self._order.get(trial_id, []))

    def score(self, trial_id: str, place: tuple[int, int]) -> Mapping[str, Any]:
        """Return the validated metrics of a generation and iteration; empty if there are none."""
        return self._scores.get(trial_id, {}).get(place, {})

    def newest(
        self, trial_id: str, judged: Collection[str] = ()
    ) -> tuple[int, Mapping[str, Any]] | None:
        """Return ``(iteration, metrics)`` of a trial's newest validated iteration.

        Args:
            trial_id: The trial.
            judged: The metrics that the sweep uses: an iteration at which they are NaN or infinite
                counts only if there is no other.
        """
        order, scores = self._order.get(trial_id), self._scores.get(trial_id, {})
        if not order:
            return None
        places = (place for place in reversed(order) if is_score(scores[place], judged))
        place = next(places, order[-1])
        return place[1], scores[place]

    def changes(self, trial_id: str) -> bool:
        """Return whether the rows of a trial differ from its reports."""
        return bool(self.names or self._saved.get(trial_id)) or any(
            n > 1 for n in self._runs.get(trial_id, {}).values()
        )

    def rows(self, trial_id: str, reports: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Merge the validated metrics into a trial's reports: one row per iteration, in order.

        Args:
            trial_id: The trial.
            reports: Its reports in the order they were made, repeated iterations included.

        Yields:
            The newest report of each iteration of each generation, with the metrics of the
            checkpoint saved there, and the name of its folder; rows of iterations that were not
            validated lack the validated names.
        """
        newest = {place_in(report): report for report in reports}
        scores, saved = self._scores.get(trial_id, {}), self._saved.get(trial_id, {})
        for place in sorted(newest):
            report, score = newest[place], scores.get(place, {})
            # A row that was merged before has its validated metrics already.
            own = dict(leaves(score)) if RUNS in report else {}
            hidden = hide(report, [name for name in self.names if name not in own])
            row = merge({**hidden, GENERATION: place[0]}, score)
            if self.later_names:
                later = self._later.get(trial_id, {}).get(place, {})
                row = merge(hide(without(row, flatten(later)), self.later_names), later)
            row[RUNS] = self._runs.get(trial_id, {}).get(place, 0)
            if place in saved:  # only functions that report a checkpoint name it themselves
                row[CHECKPOINT] = saved[place]
            yield row
