"""Trials whose weights are a number, to tell whether a clone has the weights that were scored."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION

from tunekit.core.events import Exploited
from tunekit.core.metrics import GENERATION
from tunekit.journal.journal import events_in


class Versioned(tune.Trainable):
    """A trial whose weights are a version: a unique number that grows by one each iteration.

    ``config["length"]`` iterations long, unless that is missing.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Start with a unique version."""
        self.version = self._first_version()

    def _first_version(self) -> int:
        return random.Random(self.trial_id).randrange(1, 10**9) * 1000

    def step(self) -> dict[str, Any]:
        """Increase the version by one."""
        self.version += 1
        length = self.config.get("length", float("inf"))
        return {"version": self.version, "done": self.iteration + 1 >= length}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """The version in a file."""
        Path(checkpoint_dir, "version").write_text(str(self.version))

    def load_checkpoint(self, checkpoint: Any) -> None:
        """The version from a file."""
        self.version = int(Path(checkpoint, "version").read_text())

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Start as the trial with the new configuration."""
        self.version = self._first_version()
        return True


def version_at(path: str | Path) -> int:
    """The version in a checkpoint's directory."""
    return int(Path(path, "version").read_text())


def score_of(version: int, noise: float = 1.9) -> float:
    """The validated score of a version: the better, the longer it was trained, with some noise.

    No two versions have the same.

    Args:
        version: The version.
        noise: As much as so many iterations, at most.
    """
    return version % 1000 + noise * random.Random(version).random() + version / 1e15


@dataclass
class Versions(tune.Callback):
    """Record the version of each result; pass it after the validation callback."""

    reports: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    noise: float = 1.9

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Called by Tune with each result, which has the trial's generation."""
        self.reports.setdefault(trial.trial_id, []).append(result)

    def first_of(self, exploit: Exploited) -> dict[str, Any] | None:
        """The first result of a generation; None if there was none."""
        reports = self.reports.get(exploit.trial_id, [])
        return next((r for r in reports if r.get(GENERATION) == exploit.generation), None)

    def is_exact(self, exploit: Exploited) -> bool | None:
        """Return whether a clone went on from the version that was scored; None if it has not gone
        on."""
        first = self.first_of(exploit)
        if first is None:
            return None
        return (
            score_of(first["version"] - 1, self.noise) == exploit.score
            and first[TRAINING_ITERATION] == exploit.iteration + 1
        )

    def exact_clones(self, results: tune.ResultGrid) -> int:
        """Return how many clones have gone on; each from the version that was scored."""
        exploits = [e for e in events_in(results.experiment_path) if isinstance(e, Exploited)]
        exact = [self.is_exact(exploit) for exploit in exploits]
        assert False not in exact
        return exact.count(True)


class AfterExploits(tune.Stopper):
    """End all trials at an iteration, or later, once clones have continued that often."""

    def __init__(self, length: int, exploits: int):
        self.length, self.missing = length, exploits
        self.versions: dict[str, int] = {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        version = result["version"]
        self.missing -= version != self.versions.get(trial_id, version - 1) + 1
        self.versions[trial_id] = version
        return result["training_iteration"] >= self.length and self.missing <= 0

    def stop_all(self) -> bool:
        return False
