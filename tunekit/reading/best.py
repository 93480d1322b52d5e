"""The best validated checkpoint of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ray import tune

from tunekit.core.confirmation import Confirmed
from tunekit.core.seeds import Configuration

__all__ = ["BestCheckpoint"]


@dataclass(frozen=True)
class BestCheckpoint:
    """The best validated checkpoint that was found.

    Attributes:
        trial_id: The trial that saved it.
        generation: How many times the trial had been overwritten by then (PBT).
        iteration: The training iteration at which it was saved.
        metric: The metric by which it is the best.
        score: Its validated value of that metric.
        metrics: All its validated metrics.
        config: The hyperparameters that it was last trained with; values that JSON cannot represent
            are texts.
        path: Where it is, or was.
        checkpoint: What to load it from; None if it has been deleted since
            (``CheckpointConfig(num_to_keep=...)``), has not been uploaded, or is not in the
            experiment's folder.
        configuration: The configuration that its trial is one seed of, with the mean over seeds;
            None if trials were compared one by one.
        confirmation: How it was confirmed to be the best, and how sure that is; None if it is the
            best by the sweep's own score. Then ``score`` may not be the best of all.

    Example:
        >>> found = {"metrics": {"accuracy": 0.9}, "config": {"lr": 0.1}, "path": "/sweep/a/c"}
        >>> BestCheckpoint("a", 0, 3, "accuracy", 0.9, **found, checkpoint=None)
        BestCheckpoint(trial_id='a', generation=0, iteration=3, metric='accuracy', score=0.9)
    """

    trial_id: str
    generation: int
    iteration: int
    metric: str
    score: float
    metrics: Mapping[str, Any] = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)
    path: str = field(repr=False)
    checkpoint: tune.Checkpoint | None = field(repr=False)
    configuration: Configuration | None = field(default=None, repr=False)
    confirmation: Confirmed | None = field(default=None, repr=False)
