"""The results of later validations, as text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from tunekit.cli.layout import WIDTH, cut, grid
from tunekit.core.values import number as as_number
from tunekit.core.words import number, place_in_words, printable


def scores_as_text(known: Mapping[str, Any], path: str) -> str:
    """Return scores as a table, with the command to rank by them.

    Args:
        known: As returned by :func:`tunekit.reading.findings.later_scores`.
        path: The sweep, as the user named it.

    Example:
        >>> row = {"trial_id": "a", "generation": 0, "iteration": 3, "status": "validated"}
        >>> row |= {"score": 0.9, "metrics": {"robust/accuracy": 0.7}}
        >>> known = {"name": "robust", "function": "evals:robust", "metric": "accuracy"}
        >>> known |= {"names": ["robust/accuracy"], "scored": 1, "unscored": 0, "rows": [row]}
        >>> print(scores_as_text(known, "/digits"))
        robust: evals:robust has validated 1 checkpoint
        <BLANKLINE>
        trial  iteration  accuracy  robust/accuracy
        a              3    0.9000           0.7000
        <BLANKLINE>
        tunekit best /digits --metric robust/accuracy --mode max    # or min
    """
    known = printable(known)
    rows, names, count = known["rows"], known["names"], known["scored"]
    head = f"{known['name']}: {known['function']} has validated {count} checkpoint"
    head += "s" * (count != 1)
    head += f", and not {known['unscored']}" if known["unscored"] else ""
    cells = [("trial", "iteration", known["metric"] or "score", *names)]
    for row in rows:
        at = f"{row['generation']}:" * bool(row["generation"]) + str(row["iteration"])
        new = (number(as_number(row["metrics"].get(name)), "-") for name in names)
        cells.append((row["trial_id"], at, number(row["score"], "-"), *new))
    lines = [head, "", *grid(cells, WIDTH, optional=len(names))]
    for row in rows:
        if row["status"] != "validated":
            why = f"{row['status'].replace('_', ' ')}: {row['reason'] or 'it has not ended'}"
            where = f"{row['trial_id']} at {place_in_words(row['generation'], row['iteration'])}"
            lines.append(cut(f"{where}: {why}", WIDTH))
    if names:
        way = f"tunekit best {shlex.quote(path)}"
        lines += ["", f"{way} --metric {shlex.quote(names[0])} --mode max    # or min"]
    return "\n".join(lines)
