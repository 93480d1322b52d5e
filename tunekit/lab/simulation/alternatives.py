"""How a recorded sweep would have done with other settings, on the machine that it ran on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray import tune
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, HyperBandScheduler, TrialScheduler

from tunekit.config import ValidationConfig
from tunekit.core.problems import Problems
from tunekit.core.words import duration
from tunekit.errors import ConfigError
from tunekit.lab.simulation.outcome import Simulation
from tunekit.lab.simulation.run import not_called, simulate
from tunekit.policies import AtDecisions, EveryIterations
from tunekit.reading.sweep import Sweep

__all__ = ["AS_RUN", "INLINE", "Alternatives", "alternatives", "scheduler_of", "simulated"]

#: The setting that a sweep was run with.
AS_RUN = "as it was run"
#: What most people would do instead of validating alongside training.
INLINE = {
    "inline, every iteration": "every",
    "inline, where it decides": "decision",
}
# A longer record takes seconds for each setting.
_MOST_REPORTS = 1_000
# A simulation that is further off what the sweep took says nothing about other settings.
_FACTOR = 2.0
# The recorded settings of validation that make a difference to a sweep's time.
_SETTINGS = ("evaluators", "every", "max_in_flight", "on_pending")
# Saving a smaller share of the time is not worth another setting.
_WORTHWHILE = 0.05


@dataclass(frozen=True)
class Alternatives:
    """Simulations of a recorded sweep, as it was run and with other settings.

    Attributes:
        slots: How many trials and validations the machine runs at once.
        validation_slots: How many more validations it runs at once, in slots of their own.
        took_s: What the sweep took, in seconds.
        by_setting: The simulations, by setting; the first is :data:`AS_RUN`.
    """

    slots: int
    validation_slots: int
    took_s: float
    by_setting: Mapping[str, Simulation]

    @property
    def advice(self) -> str:
        """Say what would have made the sweep shorter."""
        ran = self.by_setting[AS_RUN]
        work = ran.training_busy + ran.validation_busy
        share = ran.validation_busy / work if work else 0.0
        where = f"Validation was {share:.0%} of the work"
        own = {name: one for name, one in self.by_setting.items() if name not in INLINE}
        best = min(own, key=lambda name: own[name].makespan_s)
        saved = ran.makespan_s - own[best].makespan_s
        if saved < _WORTHWHILE * ran.makespan_s:
            return f"{where}; none of these settings would have saved 5 % of the time."
        return f"{where}; {best} would have saved {duration(saved)}."


def alternatives(sweep: Sweep) -> Alternatives | None:
    """Simulate a sweep that has ended: as it was run, with other settings, and validating inline.

    Args:
        sweep: The sweep.

    Returns:
        What they come to; None if that cannot be said: the sweep has not ended or was restored; its
        scheduler, its machine, its trials' resources or what was validated is not recorded well
        enough; it has more than 1,000 reports; or its simulation as it was run is not within a
        factor of 2 of what it took.

    Example:
        >>> alternatives(Sweep([])) is None
        True
    """
    machine, first, last = sweep.slots, sweep.timeline.first, sweep.timeline.last
    settings = sweep.sessions[-1].get("validation") if sweep.sessions else None
    ended = sweep.timeline.end == "finished" and len(sweep.sessions) == 1
    small = sweep.timeline.iterations <= _MOST_REPORTS
    if machine is None or first is None or last is None or not (settings and ended and small):
        return None
    kept: dict[str, Any] = {name: settings[name] for name in _SETTINGS if name in settings}
    if kept.get("every") == "requested":
        return None  # it is not recorded which reports asked for it
    took = last - first
    try:
        ran = simulated(sweep, *machine, **kept)
        if not took / _FACTOR <= ran.makespan_s <= took * _FACTOR:
            return None
        found = {AS_RUN: ran}
        if kept.get("on_pending") not in ("auto", "yield"):
            found['on_pending="auto"'] = simulated(
                sweep, *machine, **{**kept, "on_pending": "auto"}
            )
        if kept.get("every") != "decision":
            others = {**kept, "every": "decision"}
            found['every="decision" with AtDecisions()'] = simulated(sweep, *machine, **others)
        for name, inline in INLINE.items():
            found[name] = simulated(sweep, *machine, inline=inline)
    except ConfigError:  # its scheduler cannot be made again, for example
        return None
    return Alternatives(*machine, took, found)


def simulated(
    sweep: Sweep,
    slots: int,
    validation_slots: int,
    *,
    inline: str | None = None,
    train_s: float | None = None,
    validate_s: float | None = None,
    resume_s: float = 0.0,
    start_s: float = 0.0,
    **settings: Any,
) -> Simulation:
    """Simulate a sweep with its own scheduler.

    Args:
        sweep: The sweep.
        slots: How many trials and validations run at once.
        validation_slots: How many more validations run at once, in slots of their own.
        inline: As for :func:`tunekit.simulate`.
        train_s: Seconds that an iteration takes; by default as recorded.
        validate_s: Seconds that a validation takes; likewise.
        resume_s: Seconds to resume a trial.
        start_s: Seconds to start a process.
        **settings: Settings of ``ValidationConfig``; the trials save where these need it.

    Raises:
        tunekit.ConfigError: If the sweep cannot be simulated.
    """
    return simulate(
        sweep,
        tune_config=tune.TuneConfig(
            metric=sweep.metric, mode=sweep.mode, scheduler=scheduler_of(sweep)
        ),
        validation_config=ValidationConfig(fn=not_called, **settings),
        checkpoint_policy=(
            AtDecisions() if settings.get("every") == "decision" else EveryIterations(1)
        ),
        slots=slots,
        validation_slots=validation_slots,
        inline=inline,
        train_s=train_s,
        validate_s=validate_s,
        resume_s=resume_s,
        start_s=start_s,
    )


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
