"""The scores of later validations, beside those that the sweep was decided by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tunekit.core.metrics import flatten
from tunekit.core.values import number
from tunekit.reading.sweep import Sweep

__all__ = ["later_scores", "names_in"]


def later_scores(sweep: Sweep, name: str) -> list[dict[str, Any]]:
    """Return the checkpoints that were validated later, the best by the sweep's metric first.

    Each row has the trial, generation and iteration; the ``score`` by which the sweep is ranked;
    the new ``metrics``, by their full names; the ``status`` and ``reason``; whether the score was
    ``cached``; and the path of the ``checkpoint``.

    Args:
        sweep: The sweep.
        name: What the names of the new metrics begin with.
    """
    table = sweep.later_validations
    known = {
        (trial_id, scored.generation, scored.iteration): scored
        for trial_id in sweep.timeline.trials
        for scored in sweep.timeline.scores(trial_id)
    }
    rows = []
    for row in table[table["name"] == name].to_dict("records"):
        scored = known.get((row["trial_id"], row["generation"], row["iteration"]))
        metrics = {} if scored is None else flatten(scored.metrics)
        own = None if scored is None or sweep.metric is None else scored.value(sweep.metric)
        same = ("trial_id", "generation", "iteration", "status", "cached", "checkpoint")
        rows.append(
            {
                **{column: row[column] for column in same},
                "reason": row["reason"] if row["status"] != "validated" else None,
                "score": own,
                "metrics": {n: v for n, v in metrics.items() if n.startswith(f"{name}/")},
            }
        )
    sign = -1.0 if sweep.mode == "max" else 1.0
    rows.sort(key=lambda row: (row["score"] is None, sign * (row["score"] or 0.0)))
    return rows


def names_in(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of the new metrics that are numbers, in order of appearance.

    Example:
        >>> names_in([{"metrics": {"robust/f1": 0.5, "robust/note": "-"}}])
        ['robust/f1']
    """
    found: dict[str, None] = {}
    for row in rows:
        found.update((n, None) for n, v in row["metrics"].items() if number(v) is not None)
    return list(found)
