"""``tunekit simulate``: what a sweep would have come to with other settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ray import tune
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, HyperBandScheduler, TrialScheduler

from tunekit.cli.layout import grid
from tunekit.config import ValidationConfig
from tunekit.core.problems import Problems
from tunekit.core.words import duration, number
from tunekit.lab.simulation import not_called, simulate
from tunekit.policies import AtDecisions, EveryIterations
from tunekit.reading.sweep import Sweep

__all__ = ["scheduler_of", "table_of", "what_if"]

# What most people would do instead of validating alongside training.
_INLINE = {"inline, every iteration": "every", "inline, where it decides": "decisions"}
_SHOWN = (
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


def what_if(
    sweep: Sweep, ways: Sequence[str], *, when: int | str, **machine: Any
) -> list[dict[str, Any]]:
    """Simulate a sweep with each way of waiting for scores, and with validation inline.

    Args:
        sweep: The sweep.
        ways: Each an ``on_pending``.
        when: As in ``ValidationConfig``; trials save where it needs that.
        **machine: The slots and the times, as for :func:`tunekit.lab.simulate`.

    Returns:
        One row for each: ``setting``, and what a :class:`tunekit.lab.Simulation` has.

    Raises:
        tunekit.errors.ConfigError: If the sweep cannot be simulated.
    """
    judged = tune.TuneConfig(metric=sweep.metric, mode=sweep.mode, scheduler=scheduler_of(sweep))
    ran = {}
    for way in ways:
        ran[f"on_pending={way!r}"] = simulate(
            sweep,
            tune_config=judged,
            validation_config=ValidationConfig(fn=not_called, when=when, on_pending=way),
            checkpoint_policy=AtDecisions() if when == "decisions" else EveryIterations(1),
            **machine,
        )
    for setting, inline in _INLINE.items():
        ran[setting] = simulate(sweep, tune_config=judged, inline=inline, **machine)
    return [
        {"setting": setting, **{name: getattr(one, name) for name in _SHOWN}}
        for setting, one in ran.items()
    ]


def table_of(rows: Sequence[Mapping[str, Any]], width: int) -> str:
    """Return the rows as a table, and what was not recorded.

    Example:
        >>> row = {"setting": "on_pending='auto'", "makespan_s": 61.0, "iterations": 240}
        >>> row |= {"iterations_after_stop": 0, "validations": 90, "skipped": 2}
        >>> row |= {"best": "a_3", "best_score": 0.91, "regret": 0.0, "extrapolated": 24}
        >>> print(table_of([row], 100))
        setting            time  iterations  after a stop  validated  best score  trial
        on_pending='auto'  61 s         240             0         90      0.9100  a_3
        <BLANKLINE>
        Up to 24 iterations were not recorded: the last values of their trials stand for them.
    """
    table = [("setting", "time", "iterations", "after a stop", "validated", "best score", "trial")]
    for row in rows:
        counts = (row["iterations"], row["iterations_after_stop"], row["validations"])
        score = number(row["best_score"])
        table.append(
            (row["setting"], duration(row["makespan_s"]), *map(str, counts), score, row["best"])
        )
    lines = grid(table, width, left=(0, 6))
    most = max(row["extrapolated"] for row in rows)
    if most:
        lines += [
            "",
            f"Up to {most} iterations were not recorded: the last values of their trials ",
        ]
        lines[-1] += "stand for them."
    return "\n".join(lines)


def scheduler_of(sweep: Sweep) -> TrialScheduler:
    """Return a scheduler like the one of a sweep.

    Only those of its settings that are numbers are recorded. That is enough for FIFO, for ASHA with
    one bracket that counts iterations, and for HyperBand.

    Args:
        sweep: The sweep.

    Raises:
        tunekit.errors.ConfigError: If the sweep has another scheduler, or none is recorded.
    """
    known = (sweep.sessions[-1] if sweep.sessions else {}).get("scheduler") or {}
    kind, settings = known.get("type"), known.get("settings", {})
    rungs = known.get("rungs") or []
    if kind == "FIFOScheduler":
        return FIFOScheduler()
    if kind == "AsyncHyperBandScheduler" and rungs:
        return ASHAScheduler(
            time_attr=TRAINING_ITERATION,
            max_t=settings["max_t"],
            grace_period=min(rungs),
            reduction_factor=settings["reduction_factor"],
        )
    if kind == "HyperBandScheduler":
        return HyperBandScheduler(
            time_attr=settings["time_attr"],
            max_t=settings["max_t_attr"],
            reduction_factor=settings["eta"],
        )
    problems = Problems("tunekit simulate")
    problems.add(
        f"the sweep's scheduler, {kind or 'which is not recorded'}, cannot be made again from what "
        "is recorded of it. In Python, pass it: tunekit.lab.simulate(tunekit.load(path), "
        "tune_config=TuneConfig(scheduler=...))."
    )
    raise problems.error()
