"""What a sweep would have come to with other settings: as data, which JSON knows, and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunekit.core.words import duration, number, printable
from tunekit.lab.simulation import Simulation
from tunekit.lab.simulation.alternatives import INLINE, simulated
from tunekit.reading.sweep import Sweep

__all__ = ["table_of", "what_if"]


def what_if(
    sweep: Sweep,
    ways: Sequence[str],
    *,
    every: int | str,
    slots: int,
    validators: int,
    **times: Any,
) -> list[dict[str, Any]]:
    """Simulate a sweep with each way of waiting for scores, and with validation inline.

    Args:
        sweep: The sweep.
        ways: Each an ``on_pending``.
        every: As in ``ValidationConfig``.
        slots: Those that trials and validations share.
        validators: Those for validations alone.
        **times: ``train_s``, ``validate_s``, ``resume_s`` and ``start_s``, where not as recorded.

    Returns:
        One row for each: ``setting``, and what a :class:`tunekit.Simulation` has.

    Raises:
        tunekit.ConfigError: If the sweep cannot be simulated.
    """
    rows = []
    for way in ways:
        own: dict[str, Any] = {"every": every, "on_pending": way}
        rows.append(
            _row(f"on_pending={way!r}", simulated(sweep, slots, validators, **own, **times))
        )
    for name, inline in INLINE.items():
        rows.append(_row(name, simulated(sweep, slots, validators, inline=inline, **times)))
    return rows


def _row(setting: str, ran: Simulation) -> dict[str, Any]:
    names = (
        "makespan_s",
        "iterations",
        "iterations_after_stop",
        "validations",
        "skipped",
        "best",
        "best_score",
        "regret",
        "extrapolated",
    )
    return {"setting": setting, **{name: getattr(ran, name) for name in names}}


def table_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a table, and what was not recorded.

    Example:
        >>> row = {"setting": "on_pending='auto'", "makespan_s": 61.0, "iterations": 240}
        >>> row |= {"iterations_after_stop": 0, "validations": 90, "skipped": 2}
        >>> row |= {"best": "a_3", "best_score": 0.91, "regret": 0.0, "extrapolated": 24}
        >>> print(table_of([row]))
        setting            time  iterations  after a stop  validated  best score  trial
        on_pending='auto'  61 s         240             0         90      0.9100  a_3
        <BLANKLINE>
        Up to 24 iterations were not recorded: the last values of their trials stand for them.
    """
    rows = printable(rows)
    heads = ("setting", "time", "iterations", "after a stop", "validated", "best score", "trial")
    cells = [
        (
            row["setting"],
            duration(row["makespan_s"]),
            str(row["iterations"]),
            str(row["iterations_after_stop"]),
            str(row["validations"]),
            number(row["best_score"]),
            str(row["best"]),
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in (heads, *cells)) for i in range(len(heads))]
    lines = []
    for line in (heads, *cells):
        left = {0, len(heads) - 1}
        padded = (
            f"{cell:<{width}}" if i in left else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        lines.append("  ".join(padded).rstrip())
    most = max(row["extrapolated"] for row in rows)
    if most:
        lines += [
            "",
            f"Up to {most} iterations were not recorded: the last values of their trials stand for "
            "them.",
        ]
    return "\n".join(lines)
