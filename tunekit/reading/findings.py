"""Summarize a sweep: its best checkpoint, failures and later validations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow.fs

from tunekit.core.failures import failure_kind
from tunekit.core.metrics import flatten
from tunekit.core.timeline import Timeline
from tunekit.core.validation import FAILED
from tunekit.core.values import finite_number
from tunekit.journal.lock import Driver

if TYPE_CHECKING:
    from ray import tune


@dataclass(frozen=True)
class BestCheckpoint:
    """The best validated checkpoint of a sweep.

    Attributes:
        trial_id: The trial that saved it.
        generation: How many times the trial had been overwritten by then (PBT).
        iteration: The training iteration at which it was saved.
        metric: The metric that it was ranked by.
        score: Its validated value of that metric.
        metrics: All validated metrics of the checkpoint.
        config: The hyperparameters that it was last trained with; values that JSON cannot represent
            are text.
        path: Its path, even if it was deleted.
        filesystem: The storage that it is in; None if it was deleted
            (``CheckpointConfig(num_to_keep=...)``), has not been uploaded, or is not in the
            experiment's folder.
        violation: By how much it violates the sweep's constraints: the sum of the excesses, each
            relative to its bound. If it is not 0, no validated checkpoint satisfies them.

    Example:
        >>> found = {"metrics": {"accuracy": 0.9}, "config": {"lr": 0.1}, "path": "/sweep/a/c"}
        >>> BestCheckpoint("a", 0, 3, "accuracy", 0.9, **found, filesystem=None)
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
    filesystem: pyarrow.fs.FileSystem | None = field(repr=False)
    violation: float = field(default=0.0, repr=False)

    @cached_property
    def checkpoint(self) -> tune.Checkpoint | None:
        """Return the checkpoint itself; None without a ``filesystem``."""
        if self.filesystem is None:
            return None
        from tunekit._ray.file_checkpoints import checkpoint_at  # it imports Ray

        return checkpoint_at(self.path, self.filesystem)


# Summaries in JSON types -----------------------------------------------------------------------


def sweep_state(end: str | None, driver: Driver | None) -> str:
    """Return the state of a sweep, as in :meth:`tunekit.Sweep.summary`.

    Args:
        end: How its newest session ended, if it has.
        driver: The driver that its lock names.

    Example:
        >>> sweep_state("finished", None), sweep_state(None, None)
        ('finished', 'open')
    """
    if driver is None:
        return end or "open"
    if driver.alive and end != "finished":  # an interrupted sweep may have been restored
        return "running"
    return end or "killed"


def how_to_continue(session: Mapping[str, Any], source: str) -> str:
    """Return the command that continues a sweep.

    Args:
        session: How its newest session was run.
        source: Its path or URI, quoted for a shell.

    Example:
        >>> how_to_continue({"trainable": "train:main"}, "/sweep")
        'tunekit resume /sweep'
        >>> how_to_continue({}, "/sweep")
        'tunekit resume /sweep --trainable FILE.py:NAME'
    """
    if "followed" in session:
        return f"tunekit validate {source} --fn {session.get('function')} --follow"
    trainable = "" if session.get("trainable") else " --trainable FILE.py:NAME"
    return f"tunekit resume {source}{trainable}"


def summary_json(timeline: Timeline, driver: Driver | None) -> dict[str, Any]:
    """Summarize trials and validations, independently of the metric to rank by."""
    trials, every = list(timeline.trials.values()), timeline.validations
    return {
        "state": sweep_state(timeline.end, driver),
        "driver": driver and {name: getattr(driver, name) for name in ("host", "pid", "heard")},
        "began": timeline.first,
        "last": timeline.last,
        "trials": dict(Counter(trial.status for trial in trials)),
        "validations": _counts(every),
        "trained_s": sum(trial.trained_s for trial in trials),
        "trials_waited_s": sum(trial.waited_s for trial in trials),
        "validations_ran_s": sum(row["ran_s"] or 0.0 for row in every),
        "iterations": timeline.iterations,
        "unprocessed": sum(trial.unprocessed for trial in trials),
        "exploits": len(timeline.state.ancestry),
        "later": {name: _later(name, rows) for name, rows in _by_name(timeline.later).items()},
    }


def _later(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    metrics = (flatten({name: row["metrics"]}) for row in rows if row["metrics"])
    names = list(dict.fromkeys(chain.from_iterable(metrics)))
    return {"function": rows[0]["function"], "metrics": names, "validations": _counts(rows)}


def _by_name(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found = defaultdict(list)
    for row in rows:
        found[row["name"]].append(row)
    return found


def _counts(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    return dict(Counter(row["status"] for row in rows))


def best_json(best: BestCheckpoint) -> dict[str, Any]:
    """Return the best checkpoint with its path, score and hyperparameters."""
    names = ("trial_id", "generation", "iteration", "score", "violation")
    checkpoint = {"checkpoint": best.path, "kept": best.filesystem is not None}
    return {n: getattr(best, n) for n in names} | checkpoint | {"config": dict(best.config)}


# Failures --------------------------------------------------------------------------------------


def failures_of(timeline: Timeline, errors: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the trials that failed, and the validations that failed or timed out.

    Each row has the kind (``of``: ``"trial"``, ``"validation"`` or ``"later validation"``), the
    trial, generation and iteration, the ``status``, the number of attempts (``times``), the
    ``reason`` in a line, and the traceback (``details``), both None if they are not known.

    Args:
        timeline: The history of the sweep.
        errors: The failures that Tune recorded, by trial.
    """
    found = []
    names = ("trial_id", "generation", "iteration", "status")
    for trial in timeline.trials.values():
        if trial.failures:
            text = errors.get(trial.trial_id)
            reason = text.splitlines()[-1].strip() if text else None
            own = dict(zip(names, (trial.trial_id, *trial.failed_at, trial.status), strict=True))
            own |= {"times": trial.failures, "reason": reason, "details": text}
            found.append({"of": "trial", **own})
    every = {"validation": timeline.validations, "later validation": timeline.later}
    for of, rows in every.items():
        for row in rows:
            if row["status"] in FAILED:
                own = {name: row[name] for name in (*names, "reason")}
                own |= {"times": row["attempts"], "details": row["error"]}
                found.append({"of": of, **own})
    return found


def causes_of(failures: Iterable[Mapping[str, Any]]) -> list[Sequence[Mapping[str, Any]]]:
    """Group failures that differ only in numbers, IDs and paths.

    Failures of trials come first, then the most frequent ones.

    Example:
        >>> rows = [{"of": "validation", "status": "failed", "reason": f"no {n}"} for n in range(3)]
        >>> [len(cause) for cause in causes_of([*rows, {**rows[0], "of": "trial"}])]
        [1, 3]
    """
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in failures:
        found.setdefault((row["of"], failure_kind(row["reason"] or row["status"])), []).append(row)
    return sorted(found.values(), key=lambda rows: (rows[0]["of"] != "trial", -len(rows)))


# Later validations -----------------------------------------------------------------------------


def later_scores(
    timeline: Timeline, name: str, metric: str | None, mode: str | None
) -> dict[str, Any]:
    """Return the scores of one later validation function as JSON values.

    - ``name``, ``function``; ``metric``: the one that the sweep is ranked by;
    - ``names``: the numeric new metrics;
    - ``scored``, ``unscored``: how many checkpoints have a score, and how many do not;
    - ``rows``: the checkpoints, the best by the sweep's metric first, each with its trial,
      generation and iteration; the ``score`` that the sweep is ranked by; the new ``metrics``, by
      their full names; the ``status`` and ``reason``; and the path of the ``checkpoint``.

    Args:
        timeline: The history of the sweep.
        name: The prefix of the new metrics' names.
        metric: The sweep's metric, by flat name.
        mode: ``"min"`` or ``"max"``.
    """
    later = [row for row in timeline.later if row["name"] == name]
    known = {
        (trial_id, *scored.place): scored
        for trial_id in {row["trial_id"] for row in later}
        for scored in timeline.scores(trial_id)
    }
    rows = []
    for row in later:
        scored = known.get((row["trial_id"], row["generation"], row["iteration"]))
        metrics = {} if scored is None else flatten(scored.metrics)
        same = ("trial_id", "generation", "iteration", "status", "checkpoint")
        rows.append(
            {
                **{column: row[column] for column in same},
                "reason": row["reason"] if row["status"] != "validated" else None,
                "score": None if scored is None or metric is None else scored.value(metric),
                "metrics": {n: v for n, v in metrics.items() if n.startswith(f"{name}/")},
            }
        )
    sign = -1.0 if mode == "max" else 1.0
    rows.sort(key=lambda row: (row["score"] is None, sign * (row["score"] or 0.0)))
    values = chain.from_iterable(row["metrics"].items() for row in rows)
    scored = sum(row["status"] == "validated" for row in rows)
    return {
        "name": name,
        "function": later[0]["function"] if later else None,
        "metric": metric,
        "names": list(
            dict.fromkeys(name for name, value in values if finite_number(value) is not None)
        ),
        "scored": scored,
        "unscored": len(rows) - scored,
        "rows": rows,
    }
