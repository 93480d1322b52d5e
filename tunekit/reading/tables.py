"""Build the tables of a sweep, with their columns and types.

The properties of :class:`tunekit.Sweep` document the columns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from tunekit.core.metrics import GENERATION, ITERATION, REPORT_TIME, RUNS, flatten
from tunekit.core.ranking import Ranked
from tunekit.core.summaries import VALIDATION
from tunekit.core.timeline import Timeline
from tunekit.core.validation import PENDING
from tunekit.reading.lineage import frame_of

#: The first columns of the reports.
LEADING = ("trial_id", GENERATION, ITERATION, RUNS, REPORT_TIME)
#: The columns of the trials.
TRIALS = (
    *("trial_id", "folder", "status", "stopped", "failures", "iteration", "unprocessed"),
    "generation",
    *("best", "best_iteration", "best_generation", "best_checkpoint"),
    *("last", "last_iteration", "last_generation", "last_checkpoint"),
    *("validated", "not_validated", "pending", "trained_s", "waited_s"),
    *("added", "ended"),
)
#: The columns of the validations.
VALIDATIONS = tuple(name for name in VALIDATION if name != "metrics")
_LATER = ("name", "function", *VALIDATIONS)
#: The columns of the decisions.
DECISIONS = ("time", "trial_id", "generation", "iteration", "decision", "score", "reached")
_COUNTED = ("validated", "not_validated", "pending")
_MOMENTS = ("added", "ended", "requested", "started", "ran_from", "time", REPORT_TIME)
_NUMBERS = ("best", "last", "waited_s", "ran_s", "lag_s", "score")
_WHOLE = (
    *("rank", "best_iteration", "best_generation", "last_iteration", "last_generation"),
    "lag_iterations",
)


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """Return rows as a table with these columns, followed by any others that the rows have."""
    made = frame_of(rows)
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


def trials(timeline: Timeline, ranked: Iterable[Ranked]) -> pd.DataFrame:
    """Return one row per trial, in the order in which they were added.

    Args:
        timeline: The history of the sweep.
        ranked: The ranking of its trials.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in timeline.validations:
        kind = "pending" if row["status"] in PENDING else "not_validated"
        counts[row["trial_id"]]["validated" if row["status"] == "validated" else kind] += 1
    known = {one.trial_id: one for one in ranked}
    rows = []
    for trial_id, trial in timeline.trials.items():
        one, row = known[trial_id], {**vars(trial), **dict.fromkeys(_COUNTED, 0)}
        scores = (("best", one.best, one.best_value), ("last", one.last, one.last_value))
        for name, scored, value in scores:
            if scored is not None:
                row[name] = value
                row[f"{name}_iteration"] = scored.iteration
                row[f"{name}_generation"] = scored.generation
                row[f"{name}_checkpoint"] = scored.checkpoint
        del row["config"], row["failed_at"]
        config = flatten(timeline.config_of(trial_id))
        rows.append({**row, **counts[trial_id], **{f"config/{k}": v for k, v in config.items()}})
    return table(rows, TRIALS)


def reports(timeline: Timeline) -> pd.DataFrame:
    """Return one row per trial, generation and iteration, in that order."""
    rows = [
        flatten({"trial_id": trial_id, **row})
        for trial_id in timeline.trials
        for row in timeline.rows(trial_id)
    ]
    return table(rows, LEADING)


def validations(rows: Iterable[Mapping[str, Any]], *, later: bool = False) -> pd.DataFrame:
    """Return one row per validation, in the given order.

    Args:
        rows: The rows of the sweep's own validations, or of later ones, as in a timeline.
        later: Whether they are later validations.
    """
    found = [{**row, **flatten({"metrics": row["metrics"]})} for row in rows]
    without = ["metrics", *(["lag_s", "lag_iterations"] if later else [])]
    return table(found, _LATER if later else VALIDATIONS).drop(columns=without, errors="ignore")


def decisions(timeline: Timeline) -> pd.DataFrame:
    """Return one row per decision of the scheduler, in order."""
    return table(timeline.decisions, DECISIONS)
