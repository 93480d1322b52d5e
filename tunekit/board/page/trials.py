"""What the page shows of one trial: its configuration, checkpoints, validations and error."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tunekit.board.page.charts import Findings
from tunekit.core.metrics import plain
from tunekit.core.ranking import Ranked
from tunekit.reading.sweep import Sweep

__all__ = ["joined", "most_rows", "panels"]

# So many rows of validations all panels have together, and each has no fewer and no more than.
_ROWS, _FEWEST, _MOST = 5_000, 5, 200


def most_rows(trials: int) -> int:
    """Return how many validations each panel shows, of so many trials that are shown at once.

    Example:
        >>> most_rows(1), most_rows(100), most_rows(100_000)
        (200, 50, 5)
    """
    return max(_FEWEST, min(_MOST, _ROWS // max(1, trials)))


def panels(
    found: Findings, errors: Mapping[str, str], trial_ids: Iterable[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return what is shown of trials in full: their configurations, checkpoints and errors.

    Args:
        found: What the sweep has come to.
        errors: What Tune recorded of failures, by trial.
        trial_ids: Which ones; by default all.
    """
    ranked = {one.trial_id: one for one in found.ranked}
    wanted = list(ranked) if trial_ids is None else [one for one in trial_ids if one in ranked]
    rows: dict[str, list[Mapping[str, Any]]] = {trial_id: [] for trial_id in wanted}
    for row in found.sweep.timeline.validations:
        if row["trial_id"] in rows:
            rows[row["trial_id"]].append(row)
    most = most_rows(len(wanted))
    return {
        trial_id: _panel(found, ranked[trial_id], rows[trial_id], errors.get(trial_id), most)
        for trial_id in wanted
    }


def _panel(
    found: Findings, one: Ranked, rows: Sequence[Mapping[str, Any]], error: str | None, most: int
) -> dict[str, Any]:
    sweep, trial = found.sweep, one.trial
    best = None if one.best is None else one.best.place
    scores = sweep.timeline.scores(one.trial_id)
    values = {scored.place: scored.value(found.metric) for scored in scores}
    newest = sorted(rows, key=lambda row: (row["generation"], row["iteration"], row["run"]))[::-1]
    shown = []
    for n, row in enumerate(newest):
        place = (row["generation"], row["iteration"])
        if n < most or place == best:
            run = sweep.timeline.run_of(one.trial_id, *place)
            counts = row["status"] == "validated" and row["run"] >= run
            own = {
                "score": values.get(place) if counts else None,
                "is_best": counts and place == best,
                "loads": _loads(sweep, row["checkpoint"]),
            }
            shown.append({**row, **own})
    return {
        "one": one,
        "status": one.trial.shown_status,
        "generation": 0 if one.best is None else one.best.generation,
        "generations": any(row["generation"] for row in shown),
        "config_json": json.dumps(plain(one.config), default=str),
        "rows": shown,
        "left_out": len(newest) - len(shown),
        "loads": None if one.best is None else _loads(sweep, one.best.checkpoint),
        "folder": _path(sweep, f"{sweep.path or '.'}/{trial.folder}"),
        "error": error,
    }


def _path(sweep: Sweep, path: str) -> str:
    """Return where something of the sweep's is, as another process finds it: a path, or a URI."""
    if sweep.source is not None and path.startswith(f"{sweep.path}/"):
        return joined(sweep.source, path[len(sweep.path) + 1 :])
    return path


def joined(source: str, below: str) -> str:
    """Return the path or URI of what is below a folder; a URI's query stays at its end.

    Example:
        >>> joined("/results", "digits"), joined("s3://bucket/results?region=eu", "digits")
        ('/results/digits', 's3://bucket/results/digits?region=eu')
    """
    if not below:
        return source
    base, mark, query = source.partition("?") if "://" in source else (source, "", "")
    return f"{base.rstrip('/')}/{below}{mark}{query}"


def _loads(sweep: Sweep, path: str) -> str:
    """Return the Python that loads a checkpoint."""
    own = "" if sweep.source is not None else ", filesystem"
    return f"ray.tune.Checkpoint({_path(sweep, path)!r}{own})"
