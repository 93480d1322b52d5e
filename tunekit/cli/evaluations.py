"""What later validations and confirmations have come to: as data, as text, and while they run."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tunekit.cli.layout import WIDTH, cut, grid, table
from tunekit.core.progress import counted
from tunekit.core.values import number as as_number
from tunekit.core.words import confirmation_in_words, duration, number, printable
from tunekit.reading.later_scores import later_scores, names_in
from tunekit.reading.sweep import Sweep

__all__ = [
    "Progress",
    "confirmation_as_data",
    "confirmation_as_text",
    "later_as_data",
    "later_as_text",
]

_MOST_ROWS = 20


def later_as_data(sweep: Sweep, name: str) -> dict[str, Any]:
    """Return the later validations of a name, in what JSON knows.

    - ``name``, ``function``; ``metric``: the one that the sweep is ranked by;
    - ``scored``, ``unscored``: how many checkpoints have a score, and have none;
    - ``rows``: as of :func:`tunekit.reading.later_scores.later_scores`.

    Args:
        sweep: The sweep.
        name: The name.
    """
    rows = later_scores(sweep, name)
    scored = sum(row["status"] == "validated" for row in rows)
    return {
        "name": name,
        "function": sweep.summary()["later"].get(name, {}).get("function"),
        "metric": sweep.metric,
        "scored": scored,
        "unscored": len(rows) - scored,
        "rows": rows,
    }


def later_as_text(known: Mapping[str, Any], path: str) -> str:
    """Return what :func:`later_as_data` has found as a table, and how to rank by it.

    Example:
        >>> row = {"trial_id": "a", "generation": 0, "iteration": 3, "status": "validated"}
        >>> row |= {"score": 0.9, "metrics": {"robust/accuracy": 0.7}, "cached": True}
        >>> known = {"name": "robust", "function": "evals:robust", "metric": "accuracy"}
        >>> print(later_as_text({**known, "scored": 1, "unscored": 0, "rows": [row]}, "/digits"))
        robust: evals:robust has validated 1 checkpoint (1 from the cache)
        <BLANKLINE>
        trial  iteration  accuracy  robust/accuracy
        a              3    0.9000           0.7000
        <BLANKLINE>
        tunekit best /digits --metric robust/accuracy --mode max    # or min
    """
    known = printable(known)
    rows, count = known["rows"], known["scored"]
    cached = sum(row["cached"] for row in rows)
    head = f"{known['name']}: {known['function']} has validated {count} checkpoint"
    head += "s" * (count != 1) + (f" ({cached} from the cache)" if cached else "")
    head += f", and not {known['unscored']}" if known["unscored"] else ""
    first = rows[:_MOST_ROWS]
    columns = [
        ("trial", "<", [row["trial_id"] for row in first]),
        ("iteration", ">", [_at(row) for row in first]),
    ]
    if any(row["score"] is not None for row in first):
        columns.append((known["metric"], ">", [number(row["score"], "-") for row in first]))
    names = names_in(rows)
    new = [
        (name, ">", [number(as_number(row["metrics"].get(name)), "-") for row in first])
        for name in names
    ]
    lines = [head, "", *table(columns, WIDTH, more=new)]
    if len(rows) > _MOST_ROWS:
        lines.append(f"and {len(rows) - _MOST_ROWS} more: --json has all")
    for row in rows:
        if row["status"] != "validated":
            why = f"{row['status'].replace('_', ' ')}: {row['reason'] or 'it has not ended'}"
            lines.append(cut(f"{row['trial_id']} at {row['iteration']}: {why}", WIDTH))
    if names:
        way = f"tunekit best {shlex.quote(path)} --metric {shlex.quote(names[0])} --mode max"
        lines += ["", f"{way}    # or min"]
    return "\n".join(lines)


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
            winner = _place(own["winner"])
            checkpoint = next(row["checkpoint"] for row in rows if _place(row) == winner)
    return {"confirmation": own, "metric": sweep.metric, "checkpoint": checkpoint, "rows": rows}


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
    failed = [row for row in known["rows"] if row["reason"]]
    if found is None:
        lines = ["No candidate could be evaluated, so nothing is confirmed."]
        return "\n".join([*lines, *(f"{row['trial_id']}: {row['reason']}" for row in failed)])
    scores = {_place(row): row["score"] for row in known["rows"]}
    rows = [("trial", "iteration", known["metric"], "confirmed", "interval", "n")]
    for one in found["candidates"]:
        score, mean = number(scores.get(_place(one)), "-"), number(one["mean"], "-")
        n = "" if one["n"] is None else str(one["n"])
        rows.append((one["trial_id"], _at(one), score, mean, _interval(one), n))
    lines = [f"{found['in_words']} ({found['function']})", "", *grid(rows, WIDTH)]
    lines += [f"{row['trial_id']} at {row['iteration']}: {row['reason']}" for row in failed]
    return "\n".join([*lines, "", "checkpoint", f"  {known['checkpoint']}"])


def _place(row: Mapping[str, Any]) -> tuple[str, int, int]:
    return (row["trial_id"], row["generation"], row["iteration"])


def _at(row: Mapping[str, Any]) -> str:
    return f"{row['generation']}:" * bool(row["generation"]) + str(row["iteration"])


def _interval(one: Mapping[str, Any]) -> str:
    low, high = one["low"], one["high"]
    if one["mean"] is None or low is None or not math.isfinite(high - low):
        return "-"
    return "exact" if low == high else f"{number(low)} to {number(high)}"


class Progress:
    """One line on the terminal, written over and over; nothing where there is no terminal."""

    def __init__(self) -> None:
        #: Whether it shows anything.
        self.shows = sys.stderr.isatty()
        self._began = time.monotonic()
        self._written = False

    def show(self, counts: Mapping[str, int]) -> None:
        """Show how many validations are how far."""
        took = duration(time.monotonic() - self._began)
        line = f"{counted(counts)}; {counts['total']} in all, {took}"
        # What is logged meanwhile begins where the line does.
        sys.stderr.write(f"\r\x1b[K{cut(line, WIDTH)}\r")
        sys.stderr.flush()
        self._written = True

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._written:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
