"""The scheduler that a sweep was run with, made again from its record."""

from __future__ import annotations

from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, HyperBandScheduler, TrialScheduler

from tunekit.core.problems import Problems
from tunekit.reading.sweep import Sweep

__all__ = ["scheduler_of"]


def scheduler_of(sweep: Sweep) -> TrialScheduler:
    """Return a scheduler like the one of a sweep.

    Only those of its settings that are numbers are recorded. That is enough for FIFO, for ASHA with
    one bracket that counts iterations, and for HyperBand.

    Args:
        sweep: The sweep.

    Raises:
        tunekit.ConfigError: If the sweep has another scheduler, or none is recorded.
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
        "is recorded of it. In Python, pass it: tunekit.simulate(tunekit.load(path), "
        "tune_config=TuneConfig(scheduler=...))."
    )
    raise problems.error()
