"""Format durations, scores, names of trials and the progress of a sweep for people."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

# Characters that move the cursor, begin a line or change its direction; joiners belong to letters.
_UNSEEN, _JOINERS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"}), "\u200c\u200d"
_COUNTED = ("validated", "running", "starting", "queued", "failed", "timed_out", "skipped")
# The seconds for which validations may wait for resources before a message says so.
_STARVED_S = 10.0


def printable(data: Any) -> Any:
    """Return data with all its texts made safe for a terminal: each stays within its line.

    Control characters in a sweep, such as an escape sequence in a trial's name, are shown as Python
    escapes.

    Args:
        data: Texts, in dicts, lists and tuples of any depth; anything else is returned unchanged.

    Example:
        >>> print(printable({"trial": "a" + chr(27), "why": ["one" + chr(10)], "score": 0.5}))
        {'trial': 'a\\\\x1b', 'why': ['one\\\\n'], 'score': 0.5}
    """
    if isinstance(data, str):
        if data.isprintable():
            return data
        return "".join(
            char.encode("unicode_escape").decode()
            if unicodedata.category(char) in _UNSEEN and char not in _JOINERS
            else char
            for char in data
        )
    if isinstance(data, Mapping):
        return {printable(name): printable(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(map(printable, data))
    return data


def format_duration(seconds: float) -> str:
    """Return a duration in words; ``0 s`` if it is negative because a clock was set back.

    Example:
        >>> [format_duration(s) for s in (0.4, 14, 119, 200, 3 * 3600 + 60, 500 * 3600, -9)]
        ['0 s', '14 s', '119 s', '3 min 20 s', '3 h 1 min', '20 d 20 h', '0 s']
    """
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 2 * 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def format_score(value: float | None, nothing: str = "") -> str:
    """Return a score with a fixed number of digits; ``nothing`` if it is None.

    Example:
        >>> [format_score(score) for score in (0.98, 0.0821, -12.0, 31415.9, 1e-5, None)]
        ['0.9800', '0.0821', '-12.0000', '3.142e+04', '1.000e-05', '']
    """
    if value is None:
        return nothing
    return f"{value:.4f}" if value == 0 or 1e-2 <= abs(value) < 1e4 else f"{value:.3e}"


def format_resources(resources: Mapping[str, float]) -> str:
    """Return amounts of resources in words.

    Example:
        >>> format_resources({"CPU": 2.0, "GPU": 0.5}), format_resources({})
        ('2 CPU, 0.5 GPU', 'nothing')
    """
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items()) or "nothing"


def format_iteration(generation: int, iteration: int) -> str:
    """Return the name of an iteration of a trial.

    Example:
        >>> format_iteration(0, 7), format_iteration(2, 7)
        ('iteration 7', 'iteration 7 of generation 2')
    """
    return f"iteration {iteration}" + (f" of generation {generation}" if generation else "")


def format_setting(value: Any) -> str:
    """Return a hyperparameter's value in short.

    Example:
        >>> format_setting(0.0123456), format_setting(32), format_setting("relu")
        ('0.0123', '32', 'relu')
    """
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def differing_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names whose values differ between rows.

    Example:
        >>> differing_names([{"lr": 0.1, "width": 8}, {"lr": 0.2, "width": 8}])
        ['lr']
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if len({repr(row.get(name)) for row in rows}) > 1]


# The progress of a sweep -------------------------------------------------------------------------


def format_counts(counts: Mapping[str, int]) -> str:
    """Return the numbers of validations by status, in words.

    Args:
        counts: By ``validated``, ``failed``, ``timed_out``, ``skipped``, ``running``, ``starting``,
            ``unplaced`` (out of ``starting``) and ``queued``.

    Example:
        >>> format_counts({"validated": 12, "running": 2, "starting": 1, "queued": 2, "failed": 1})
        'Validations: 12 validated, 2 running, 1 starting, 2 queued, 1 failed'
        >>> format_counts({"running": 1, "starting": 2, "unplaced": 1, "queued": 2})
        'Validations: 1 running, 2 starting (1 without resources), 2 queued'
        >>> format_counts({"validated": 0})
        'Validations: none yet'
    """
    unplaced = f" ({counts['unplaced']} without resources)" if counts.get("unplaced") else ""
    parts = [
        f"{counts[name]} {name.replace('_', ' ')}" + unplaced * (name == "starting")
        for name in _COUNTED
        if counts.get(name)
    ]
    return f"Validations: {', '.join(parts) or 'none yet'}"


def format_waiting_trials(waiting: int, left: int) -> str | None:
    """Return how many trials wait for scores, in words; None if there are none.

    Args:
        waiting: The number of trials that wait.
        left: The number of trials that have not ended.

    Example:
        >>> format_waiting_trials(1, 6), format_waiting_trials(2, 6)
        ('1 of 6 trials waits for a score', '2 of 6 trials wait for a score')
        >>> format_waiting_trials(4, 4), format_waiting_trials(1, 1)
        ('All 4 trials that have not ended wait for a score',
         'The one trial that has not ended waits for a score')
        >>> format_waiting_trials(0, 4)
    """
    if not waiting:
        return None
    if waiting == left == 1:
        return "The one trial that has not ended waits for a score"
    if waiting == left:
        return (
            f"{'Both' if left == 2 else f'All {left}'} trials that have not ended wait for a score"
        )
    return f"{waiting} of {left} trials {'waits' if waiting == 1 else 'wait'} for a score"


def format_starved(seconds: float) -> str | None:
    """Return how long no validation has had resources, in words; None if not for long.

    Example:
        >>> format_starved(45)
        'No validation is running: none has had resources for 45 s'
        >>> format_starved(5)
    """
    if seconds < _STARVED_S:
        return None
    return f"No validation is running: none has had resources for {format_duration(seconds)}"
