"""What failed in a sweep, and what the failures have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tunekit.core.failures import kind_of
from tunekit.reading.sweep import Sweep

__all__ = ["causes_of", "failures_of"]

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
