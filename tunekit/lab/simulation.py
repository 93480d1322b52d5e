"""Run a sweep again in virtual time, with recorded curves and other settings."""

from __future__ import annotations

import copy
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pandas as pd
from ray import train, tune
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import FIFOScheduler, create_scheduler

from tunekit.config import ValidationConfig
from tunekit.core.problems import Problems
from tunekit.core.room import slots as slots_of
from tunekit.core.values import number
from tunekit.driver.scheduler import unwrapped
from tunekit.lab.curves import TRIAL, Curves
from tunekit.lab.executor import Room
from tunekit.lab.measured import Measured, not_called
from tunekit.lab.replay import Decision, Machine, Score
from tunekit.policies import CheckpointPolicy, EveryIterations
from tunekit.reading.sweep import Sweep
from tunekit.validating.ray_executor import executor_of

logger = logging.getLogger(__name__)

# The default number of trials and validations that run at once.
_SLOTS = 6


@dataclass(frozen=True)
class Simulation:
    """The durations, the amount of training and the scores of a sweep in virtual time.

    Attributes:
        makespan_s: The time from start to end, in virtual seconds.
        iterations: The number of iterations trained.
        iterations_after_stop: How many of these came after the iteration whose score stopped their
            trial.
        validations: The number of validations that ended with a score.
        skipped: The number of checkpoints that should have been validated but were not.
        best: The trial with the best score.
        best_score: Its score.
        regret: The gap between ``best_score`` and the best recorded score of all curves; at least
            0.
        extrapolated: The number of iterations trained past the record, with its last values.
        training_busy: The share of all slots' time in which trials trained, from 0 to 1.
        validation_busy: The share in which validations ran, from 0 to 1.
        scores: All scores, in the order in which they became known.
        mode: ``"min"`` or ``"max"``.
        decided: The decisions; :attr:`decisions` has them as a table.

    Example:
        >>> import pandas, ray.tune, tunekit
        >>> rows = [(t, i, t + i / 4) for t in range(4) for i in (1, 2, 3)]
        >>> curves = pandas.DataFrame(rows, columns=["trial", "training_iteration", "accuracy"])
        >>> goal = ray.tune.TuneConfig(metric="accuracy", mode="max")
        >>> ran = tunekit.lab.simulate(
        ...     curves, tune_config=goal, slots=2, train_s=1, validate_s=0.5
        ... )
        >>> ran.iterations, ran.validations, ran.best, ran.best_score
        (12, 12, 3, 3.75)
    """

    makespan_s: float
    iterations: int
    iterations_after_stop: int
    validations: int
    skipped: int
    best: Any
    best_score: float
    regret: float
    extrapolated: int
    training_busy: float
    validation_busy: float
    mode: str = field(repr=False)
    scores: Sequence[Score] = field(repr=False)
    decided: Sequence[Decision] = field(repr=False)

    def time_to(self, score: float) -> float | None:
        """Return the seconds until a score at least this good was known; None if there was none.

        Args:
            score: The value of the metric.

        Example:
            >>> import pandas, ray.tune, tunekit
            >>> rows = [("a", i, i / 10) for i in range(1, 5)]
            >>> curves = pandas.DataFrame(rows, columns=["trial", "training_iteration", "accuracy"])
            >>> goal = ray.tune.TuneConfig(metric="accuracy", mode="max")
            >>> ran = tunekit.lab.simulate(curves, tune_config=goal, train_s=1.0, validate_s=0.5)
            >>> ran.time_to(0.2), ran.time_to(0.9)
            (2.5, None)
        """
        sign = 1.0 if self.mode == "max" else -1.0
        return next((s.time_s for s in self.scores if sign * s.value >= sign * score), None)

    @property
    def decisions(self) -> pd.DataFrame:
        """Return one row per decision of the scheduler, in order.

        Columns: ``time_s``; ``trial``; ``iteration`` and ``score``: those of the result that the
        scheduler received; ``reached``: the iteration that the trial had reported by then;
        ``decision``.
        """
        columns = [field.name for field in fields(Decision)]
        return pd.DataFrame([vars(one) for one in self.decided], columns=columns)


def simulate(
    curves: pd.DataFrame | Sweep,
    *,
    tune_config: tune.TuneConfig | None = None,
    validation_config: train.ValidationConfig | None = None,
    checkpoint_policy: CheckpointPolicy | None = None,
    train_s: float | str | None = None,
    validate_s: float | str | None = None,
    slots: int | None = None,
    validation_slots: int = 0,
    resume_s: float = 0.0,
    start_s: float | None = None,
    inline: str | None = None,
    seed: int = 0,
) -> Simulation:
    """Run a sweep with other settings, in virtual time on recorded curves.

    Tune's controller, the scheduler and tunekit run as in a real sweep, but in one process and
    without waiting; only training and validation are replayed, in virtual seconds. Trials start in
    the order of ``curves``.

    For a sweep, the machine is the recorded one: its cluster, the resources of a trial and of a
    validation, how long processes took to start, and where validations ran. Past the end of the
    record, values are extrapolated, with a warning.

    The record cannot show the effect of new hyperparameters from a scheduler of the PBT family: a
    clone continues on its donor's curve. The driver itself takes no time.

    Args:
        curves: A table with the columns ``trial``, ``training_iteration`` and one for each metric;
            or a sweep, as :func:`tunekit.load` returns it. A trial that is trained further than
            recorded keeps its last values. Trials without a value of the metric are left out.
        tune_config: Its ``metric``, ``mode``, ``scheduler``, ``max_concurrent_trials`` and
            ``reuse_actors`` are used; by default the sweep's metric, and FIFO.
        validation_config: How to validate; its function is not called. By default as in the sweep.
        checkpoint_policy: When to save; after each iteration by default.
        train_s: The seconds per iteration, or the column that holds them; by default 0.4, or as
            recorded in the sweep.
        validate_s: The seconds per validation, likewise.
        slots: The number of slots, each for a trial or a validation; by default 6, or as many as
            the sweep's cluster had room for.
        validation_slots: The number of additional slots, for validations only.
        resume_s: The seconds that it takes to resume a trial.
        start_s: The seconds that it takes to start a process, for a trial or validation that does
            not reuse one. By default 0, or as recorded in the sweep. With 0, no validation runs in
            a trial's process.
        inline: None: validate alongside training. ``"every"``: validate inside the trainable after
            each iteration, as stock Tune does; ``"decisions"``: only where the scheduler uses the
            score.
        seed: The seed of Tune's random choices.

    Returns:
        The simulated sweep, with times in virtual seconds.

    Raises:
        tunekit.errors.ConfigError: If an argument is wrong; the message lists every mistake.

    Example:
        >>> import pandas
        >>> from ray.tune.schedulers import ASHAScheduler
        >>> rows = [(t, i, t / 10 + i / 100) for t in range(6) for i in range(1, 10)]
        >>> curves = pandas.DataFrame(rows, columns=["trial", "training_iteration", "accuracy"])
        >>> asha = ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)
        >>> goal = tune.TuneConfig(metric="accuracy", mode="max", scheduler=asha)
        >>> late = simulate(curves, tune_config=goal, slots=2)
        >>> stock = simulate(curves, tune_config=goal, slots=2, inline="every")
        >>> late.best, late.regret, stock.best
        (5, 0.0, 5)
    """
    problems = Problems("tunekit.lab.simulate")
    table = None
    kinds = (pd.DataFrame, Sweep)
    if problems.instance("curves", curves, kinds, "Pass a DataFrame, or tunekit.load(path)."):
        table = _curves_of(curves)
    config = copy.copy(tune_config) or tune.TuneConfig()
    metric, mode = config.metric, config.mode
    if isinstance(curves, Sweep):
        metric, mode = metric or curves.metric, mode or curves.mode
    if metric is None or mode is None:
        problems.add(
            f"metric={metric!r} and mode={mode!r}: both are needed to rank trials. Pass "
            "TuneConfig(metric=..., mode=...)."
        )
    if slots is not None:
        problems.integer("slots", slots, least=1)
    problems.integer("validation_slots", validation_slots, least=0)
    if inline is not None:
        problems.choice("inline", inline, ["every", "decisions"])
    for name, cost in (("resume_s", resume_s), ("start_s", 0.0 if start_s is None else start_s)):
        if not isinstance(cost, (int, float)) or not 0 <= cost < float("inf"):
            problems.add(f"{name}={cost!r} must be a number of seconds. Pass 0 or more.")
    columns = set() if table is None else table.names
    for name, given in (("train_s", train_s), ("validate_s", validate_s)):
        if isinstance(given, str) and given not in columns:
            problems.add(f"{name}={given!r} is not a column of curves. Pass seconds, or a column.")
        elif given is not None and not isinstance(given, str) and not 0 <= given < float("inf"):
            problems.add(f"{name}={given!r} must be a number of seconds. Pass 0 or more.")
    known = None if table is None or metric is None else table.having(metric)
    if known is not None and not known:
        problems.add(
            f"metric={metric!r} is not a column of curves with numbers. Pass one of "
            f"{sorted(columns)}."
        )
    problems.raise_any()
    assert known is not None  # otherwise an error was raised
    recorded = Measured(curves) if isinstance(curves, Sweep) else None
    if validation_config is not None:
        validation = ValidationConfig.of(validation_config)
    else:
        validation = ValidationConfig(fn=not_called) if recorded is None else recorded.config
    scheduler = config.scheduler
    if isinstance(scheduler, str):
        scheduler = create_scheduler(scheduler)
    started = recorded if start_s is None else None
    same_s = float(start_s or 0.0)
    machine = Machine(
        known,
        metric=str(metric),
        mode=str(mode),
        scheduler=copy.deepcopy(unwrapped(scheduler) or FIFOScheduler()),
        train_s=_seconds(known, train_s, None if recorded is None else recorded.train_s),
        validate_s=_seconds(known, validate_s, None if recorded is None else recorded.validate_s),
        room=_room(recorded, validation, slots, validation_slots),
        start_s=lambda curve: started.start_s(known.order[curve]) if started else same_s,
        validation_start_s=started.validation_start_s if started else same_s,
        import_s=0.0 if recorded is None or validate_s is not None else recorded.import_s,
        resume_s=float(resume_s),
        inline=inline,
    )
    with tempfile.TemporaryDirectory() as folder:
        machine.run(
            Path(folder),
            validation,
            copy.deepcopy(checkpoint_policy or EveryIterations(1)),
            max_concurrent=config.max_concurrent_trials or 0,
            reuse_actors=bool(config.reuse_actors or (recorded is not None and recorded.reuses)),
            seed=seed,
        )
    beyond = []
    if left_out := len(table or ()) - len(known):
        beyond.append(f"{left_out} trials without a score are left out")
    if recorded is not None and config.scheduler is None and recorded.scheduler != "FIFOScheduler":
        beyond.append(f"FIFO replaces {recorded.scheduler} (tune_config has no scheduler)")
    beyond += _extrapolated(machine, recorded, validation)
    if beyond:
        logger.warning("This simulation goes beyond the record: %s.", "; ".join(beyond))
    return _outcome(machine)


def _curves_of(curves: pd.DataFrame | Sweep) -> Curves:
    """Return the curves of a table, or of a sweep."""
    if not isinstance(curves, Sweep):
        return Curves.of(curves)
    table = curves.reports.rename(columns={"trial_id": TRIAL})
    return Curves.of(table.drop_duplicates([TRIAL, TRAINING_ITERATION], keep="last"))


def _seconds(
    curves: Curves,
    given: float | str | None,
    recorded: Callable[[Any, int], float] | None,
) -> Callable[[int, int], float]:
    """Return a function of curve and iteration that returns a duration in seconds."""
    if isinstance(given, str):
        return lambda curve, iteration: number(curves.at(curve, iteration).get(given)) or 0.0
    if given is None and recorded is not None:
        return lambda curve, iteration: recorded(curves.order[curve], iteration)
    seconds = 0.4 if given is None else float(given)
    return lambda curve, iteration: seconds


def _room(
    recorded: Measured | None, validation: ValidationConfig, slots: int | None, more: int
) -> Room:
    """Return the room for trials and validations: the recorded machine, or the given slots."""
    if recorded is not None and recorded.cluster and slots is None and not more:
        return Room(recorded.cluster, recorded.trial, executor_of(validation).need)
    slots = slots or (recorded.slots if recorded is not None and recorded.cluster else _SLOTS)
    # A trial takes a CPU, like a validation, and a slot, whose number limits the trials.
    return Room({"CPU": slots + more, "slot": slots}, {"CPU": 1.0, "slot": 1.0}, {"CPU": 1.0})


def _extrapolated(
    machine: Machine, recorded: Measured | None, validation: ValidationConfig
) -> Iterator[str]:
    """Yield, in words, the parts of a simulation that the record does not cover."""
    if machine.extrapolated:
        yield f"{machine.extrapolated} iterations were never trained"
    if machine.invented:
        yield f"{machine.invented} checkpoints were never validated"
    if recorded is None or not recorded.cluster:
        return
    old, new = executor_of(recorded.config), executor_of(validation)
    was, now = slots_of(recorded.cluster, recorded.trial, old.need), machine.room.slots
    if was != now:
        yield f"there is room for {_places(now)}, not for {_places(was)}"
    if machine.inline is None and old.need != new.need:
        yield f"validations take {new.need}, not {old.need}"
    if machine.started and not recorded.elsewhere:
        yield (
            f"validations start {machine.started} processes, but none is recorded (each is assumed "
            f"to take {machine.validation_start_s:.1f} s, as a trial's does)"
        )
    if machine.hosted and not recorded.in_trials:
        yield "validations run in the processes of trials, not in their own"


def _places(slots: tuple[int, int] | None) -> str:
    """Return in words how many trials fit, and how many validations in addition."""
    return "{} trials and {} more validations".format(*slots or ("any number of", "no"))


def _outcome(machine: Machine) -> Simulation:
    """Return the outcome of a simulated sweep."""
    sign = 1.0 if machine.mode == "max" else -1.0
    curves, makespan = machine.curves, machine.now
    best = max(machine.scores, key=lambda one: sign * one.value)
    possible = [v for curve in range(len(curves)) for v in curves.scores(curve, machine.metric)]
    whole = makespan * sum(machine.room.slots or (1,)) or 1.0
    return Simulation(
        makespan_s=makespan,
        iterations=len(machine.reports),
        iterations_after_stop=machine.late,
        validations=machine.validated,
        skipped=machine.skipped,
        best=best.trial,
        best_score=best.value,
        regret=max(0.0, max(sign * value for value in possible) - sign * best.value),
        extrapolated=machine.extrapolated,
        training_busy=machine.trained_s / whole,
        validation_busy=machine.validated_s / whole,
        mode=machine.mode,
        scores=machine.scores,
        decided=machine.decided,
    )
