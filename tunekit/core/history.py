"""The validated metrics of a trial, iteration by iteration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tunekit.core.metrics import leaves
from tunekit.core.validation import ValidationKey

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
    """The runs of a sweep's iterations, and the scores of the newest ones.

    When a trial returns to an older checkpoint and repeats an iteration, only the newest run
    counts. A trial that is overwritten with other weights starts a new generation, whose iterations
    are separate.

    Example:
        >>> history = History()
        >>> run = history.reported("a", 3)
        >>> history.validated(ValidationKey("a", 0, 3, run), {"accuracy": 0.9})
        >>> list(history.scores("a")), list(history.names)
        ([((0, 3), {'accuracy': 0.9})], ['accuracy'])
        >>> history.reported("a", 3), list(history.scores("a"))
        (2, [])
    """

    def __init__(self) -> None:
        # By trial, and by (generation, iteration) within one.
        self._runs: dict[str, dict[tuple[int, int], int]] = {}
        self._scores: dict[str, dict[tuple[int, int], Mapping[str, Any]]] = {}
        #: Flat names of all metrics of validations, in order of appearance.
        self.names: dict[str, None] = {}

    def reported(self, trial_id: str, iteration: int, generation: int = 0) -> int:
        """Count a run of an iteration; return the number of runs, including this one."""
        runs, place = self._runs.setdefault(trial_id, {}), (generation, iteration)
        runs[place] = runs.get(place, 0) + 1
        self._scores.get(trial_id, {}).pop(place, None)  # of an older run
        return runs[place]

    def run_of(self, trial_id: str, iteration: int, generation: int = 0) -> int:
        """Return the number of the newest run of an iteration, 1 if it has not been reported."""
        return self._runs.get(trial_id, {}).get((generation, iteration), 1)

    def validated(self, key: ValidationKey, metrics: Mapping[str, Any]) -> None:
        """Record a score, unless its iteration was run again."""
        if key.run >= self.run_of(key.trial_id, key.iteration, key.generation):
            self._scores.setdefault(key.trial_id, {})[key.place] = metrics
            self.names.update((name, None) for name, _ in leaves(metrics))

    def scores(self, trial_id: str) -> Iterator[tuple[tuple[int, int], Mapping[str, Any]]]:
        """Yield ``((generation, iteration), metrics)`` of validated iterations, in order."""
        return iter(sorted(self._scores.get(trial_id, {}).items(), key=lambda one: one[0]))
