"""What the confirmation of a sweep's winner has come to: as data, and as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tunekit.core.words import confirmation_in_words, number, printable
from tunekit.reading.later_scores import later_scores
from tunekit.reading.sweep import Sweep

__all__ = ["confirmation_as_data", "confirmation_as_text"]


def confirmation_as_data(sweep: Sweep, name: str) -> dict[str, Any]:
    """Return the newest confirmation of a name, in what JSON knows.

    - ``confirmation``: as of :meth:`tunekit.Sweep.summary`; None if it has not ended, or if none of
      the candidates could be evaluated;
    - ``metric``: the one that they are compared by; ``checkpoint``: the path of the winner's;
    - ``rows``: as of :func:`tunekit.reading.later_scores.later_scores`.

    Args:
        sweep: The sweep.
        name: What the names of its metrics begin with.
    """
    rows, own, checkpoint = later_scores(sweep, name), None, None
    for found in sweep.confirmations:
        if (found.name, found.metric, found.mode) == (name, sweep.metric, sweep.mode):
            own = {**asdict(found), "in_words": confirmation_in_words(found)}
            winner = (found.winner.trial_id, *found.winner.place)
            checkpoint = next(row["checkpoint"] for row in rows if _place(row) == winner)
    return {
        "confirmation": own,
        "metric": sweep.metric,
        "checkpoint": checkpoint,
        "rows": rows,
    }


def confirmation_as_text(known: Mapping[str, Any]) -> str:
    """Return what :func:`confirmation_as_data` has found: the verdict, and each candidate.

    Example:
        >>> one = {"trial_id": "a", "generation": 0, "iteration": 3, "mean": 0.8, "n": 500}
        >>> two = {"trial_id": "b", "generation": 0, "iteration": 2, "mean": 0.7, "n": None}
        >>> candidates = [{**one, "low": 0.7, "high": 0.9}, {**two, "low": 0.7, "high": 0.7}]
        >>> said = "trial a at iteration 3 is the best of 2"
        >>> confirmation = {"in_words": said, "candidates": candidates, "function": "validate"}
        >>> row = {"trial_id": "a", "generation": 0, "iteration": 3, "score": 0.9, "reason": None}
        >>> known = {"confirmation": confirmation, "metric": "accuracy", "rows": [row]}
        >>> print(confirmation_as_text({**known, "checkpoint": "/digits/a/c3"}))
        trial a at iteration 3 is the best of 2 (validate)
        <BLANKLINE>
        trial  iteration  accuracy  confirmed         interval    n
        a              3    0.9000     0.8000  0.7000 to 0.9000  500
        b              2         -     0.7000             exact
        <BLANKLINE>
        checkpoint
          /digits/a/c3
    """
    known = printable(known)
    found = known["confirmation"]
    if found is None:
        lines = ["No candidate could be evaluated, so nothing is confirmed."]
        lines += [f"{row['trial_id']}: {row['reason']}" for row in known["rows"] if row["reason"]]
        return "\n".join(lines)
    own = {_place(row): row for row in known["rows"]}
    table = [("trial", "iteration", known["metric"], "confirmed", "interval", "n")]
    reasons = []
    for one in found["candidates"]:
        row = own.get(_place(one), {})
        generation = f"{one['generation']}:" if one["generation"] else ""
        place = f"{generation}{one['iteration']}"
        score, mean = number(row.get("score"), "-"), number(one["mean"], "-")
        count = "" if one["n"] is None else str(one["n"])
        table.append((one["trial_id"], place, score, mean, _interval(one), count))
        if row.get("reason"):
            reasons.append(f"{one['trial_id']} at {one['iteration']}: {row['reason']}")
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [f"{found['in_words']} ({found['function']})", ""]
    for first, *others in table:
        cells = [f"{first:<{widths[0]}}"]
        cells += [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    lines += [*reasons, "", "checkpoint", f"  {known['checkpoint']}"]
    return "\n".join(lines)


def _place(row: Mapping[str, Any]) -> tuple[str, int, int]:
    return (row["trial_id"], row["generation"], row["iteration"])


def _interval(one: Mapping[str, Any]) -> str:
    low, high = one["low"], one["high"]
    if one["mean"] is None or low is None or not math.isfinite(high - low):
        return "-"
    return "exact" if low == high else f"{number(low)} to {number(high)}"
