"""The tables of a sweep: which columns they have, and of which types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

__all__ = [
    "CONFIGURATIONS",
    "DECISIONS",
    "LATER",
    "LEADING",
    "MEANS",
    "TRIALS",
    "VALIDATIONS",
    "table",
]

#: The first columns of the reports.
LEADING = ("trial_id", "generation", "training_iteration", "iteration_runs", "reported_at")
#: The columns of the trials.
TRIALS = (
    "trial_id",
    "folder",
    "status",
    "stopped",
    "failures",
    "iteration",
    "generation",
    "best",
    "best_iteration",
    "best_generation",
    "best_checkpoint",
    "last",
    "last_iteration",
    "last_generation",
    "last_checkpoint",
    "validated",
    "not_validated",
    "pending",
    "trained_s",
    "waited_s",
    "added",
    "ended",
)
#: The columns of the validations.
VALIDATIONS = (
    "id",
    "trial_id",
    "generation",
    "iteration",
    "run",
    "stage",
    "status",
    "requested",
    "started",
    "ran_from",
    "ended",
    "attempts",
    "waited_s",
    "ran_s",
    "lag_s",
    "lag_iterations",
    "reason",
    "error",
    "checkpoint",
)
#: What is known of the mean over seeds.
MEANS = ("mean", "std", "low", "high")
#: The columns of the configurations, beside their hyperparameters.
CONFIGURATIONS = (
    "seeds",
    "trials",
    "complete",
    *MEANS,
    "best_trial",
    "worst_trial",
    "trial_ids",
)
#: The columns of the later validations.
LATER = ("name", "function", *VALIDATIONS[:-1], "cached", "checkpoint")
#: The columns of the decisions.
DECISIONS = (
    "time",
    "trial_id",
    "generation",
    "iteration",
    "on",
    "decision",
    "score",
    "reached",
    "late_iterations",
    "late_s",
)
_MOMENTS = ("added", "ended", "requested", "started", "ran_from", "time", "reported_at")
_NUMBERS = ("best", "last", "waited_s", "ran_s", "lag_s", "score", "late_s", *MEANS)
_WHOLE = (
    "rank",
    "best_iteration",
    "best_generation",
    "last_iteration",
    "last_generation",
    "lag_iterations",
)


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """Return rows as a table of these columns, followed by any others that the rows have."""
    made = pd.DataFrame(list(rows))
    made = made.reindex(columns=[*columns, *(n for n in made.columns if n not in columns)])
    for name in columns:
        if name in _MOMENTS:
            seconds = pd.to_numeric(made[name], errors="coerce")
            made[name] = pd.to_datetime(seconds, unit="s", utc=True)
        elif name in _NUMBERS:
            made[name] = pd.to_numeric(made[name], errors="coerce")
        elif name in _WHOLE:
            made[name] = pd.to_numeric(made[name], errors="coerce").astype("Int64")
    return made
