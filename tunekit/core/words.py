"""What is read by people: lengths of time, scores, names of trials."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["duration", "number", "short_names"]


def duration(seconds: float) -> str:
    """Return a length of time in words.

    Example:
        >>> [duration(seconds) for seconds in (0.4, 14, 119, 200, 3 * 3600 + 60, 500 * 3600)]
        ['0 s', '14 s', '119 s', '3 min 20 s', '3 h 1 min', '20 d 20 h']
    """
    whole = int(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 2 * 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def number(value: float | None, nothing: str = "") -> str:
    """Return a score with as many digits as the one below it; ``nothing`` if there is none.

    Example:
        >>> number(0.98), number(0.0821), number(-12.0), number(31415.9), number(1e-5), number(None)
        ('0.9800', '0.0821', '-12.0000', '3.142e+04', '1.000e-05', '')
    """
    if value is None:
        return nothing
    return f"{value:.4f}" if value == 0 or 1e-2 <= abs(value) < 1e4 else f"{value:.3e}"


def short_names(trial_ids: Sequence[str]) -> dict[str, str]:
    """Return what trials are called in charts: what tells their names apart.

    Example:
        >>> short_names(["4f1c_00000", "4f1c_00001"])
        {'4f1c_00000': '00000', '4f1c_00001': '00001'}
        >>> short_names(["a_0", "b_0"])
        {'a_0': 'a_0', 'b_0': 'b_0'}
    """
    ends = {trial_id: trial_id.rsplit("_", 1)[-1] for trial_id in trial_ids}
    distinct = len(set(ends.values())) == len(ends)
    return ends if distinct else {trial_id: trial_id for trial_id in trial_ids}
