"""What a sweep has come to, as the command line and the report say it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyarrow.fs import FileSystem

from tunekit.core.failures import kind_of
from tunekit.core.metrics import flatten
from tunekit.core.values import number
from tunekit.core.words import number as digits
from tunekit.errors import TunekitError
from tunekit.reading.best import BestCheckpoint
from tunekit.reading.sweep import Sweep, load

__all__ = ["causes_of", "failures_of", "later_scores", "names_in", "newest_differs", "outline"]

_FAILED = ("failed", "timed_out")


def failures_of(sweep: Sweep) -> list[dict[str, Any]]:
    """Return the trials that failed, and the validations that failed or took too long.

    Each row has what failed (``of``: ``"trial"``, ``"validation"`` or ``"later validation"``), the
    trial, generation and iteration, the ``status``, how many ``times`` it was tried, the ``reason``
    in a line, and the traceback (``details``), both None if they are not known.

    Args:
        sweep: The sweep.
    """
    errors, found = sweep.trial_errors(), []
    names = ("trial_id", "generation", "iteration", "status")
    for trial in sweep.timeline.trials.values():
        if trial.failures:
            text = errors.get(trial.trial_id)
            reason = text.splitlines()[-1].strip() if text else None
            own = {name: getattr(trial, name) for name in names}
            own |= {"times": trial.failures, "reason": reason, "details": text}
            found.append({"of": "trial", **own})
    later = sweep.later_validations.to_dict("records")
    for of, rows in (("validation", sweep.timeline.of_all_stages), ("later validation", later)):
        for row in rows:
            if row["status"] in _FAILED:
                own = {name: row[name] for name in (*names, "reason")}
                own |= {"times": row["attempts"], "details": row["error"]}
                found.append({"of": of, **own})
    return found


def causes_of(failures: Iterable[Mapping[str, Any]]) -> list[Sequence[Mapping[str, Any]]]:
    """Return failures that are alike but for numbers, ids and paths together.

    Those of trials come first, and then the most frequent ones.

    Example:
        >>> rows = [{"of": "validation", "status": "failed", "reason": f"no {n}"} for n in range(3)]
        >>> [len(cause) for cause in causes_of([*rows, {**rows[0], "of": "trial"}])]
        [1, 3]
    """
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in failures:
        found.setdefault((row["of"], kind_of(row["reason"] or row["status"])), []).append(row)
    return sorted(found.values(), key=lambda alike: (alike[0]["of"] != "trial", -len(alike)))


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


def newest_differs(
    sweep: Sweep, best: BestCheckpoint, names: Mapping[str, str] | None = None
) -> str | None:
    """Say which checkpoint ``ResultGrid.get_best_result()`` names, if it is another one.

    Args:
        sweep: The sweep.
        best: Its best checkpoint.
        names: What trials are called, if not by their ids.
    """
    newest = sweep.best(best.metric, sweep.mode, scope="last", by="trial")
    if best.confirmation is not None or newest.path == best.path:
        return None
    name = (names or {}).get(newest.trial_id, newest.trial_id)
    return (
        f"get_best_result() names trial {name} at iteration {newest.iteration}, "
        f"{best.metric} {digits(newest.score)}: it compares the newest score of each trial."
    )


def outline(path: str, filesystem: FileSystem, **goal: str | None) -> dict[str, Any]:
    """Return a sweep in short, for a list of several.

    Args:
        path: Its folder.
        filesystem: The storage that it is in.
        goal: The metric and the mode, as for :func:`tunekit.load`.

    Returns:
        Of its summary the ``state`` and so on. If its journal is damaged, the state is
        ``"unreadable"``, and there is a ``reason``.
    """
    try:
        summary = load(path, filesystem, **goal).summary()
    except (TunekitError, OSError) as error:
        return {"state": "unreadable", "reason": str(error)}
    names = ("state", "began", "last", "metric", "mode", "trials", "validations", "best")
    return {name: summary[name] for name in names}
