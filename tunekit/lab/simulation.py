"""Runs a sweep again in virtual time, on recorded curves and with other settings.

Tune's own controller and this library's own code run it.
"""

from __future__ import annotations

import copy
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pandas as pd
from ray import train, tune
from ray.tune.experiment import Trial
from ray.tune.result import DONE, TIME_THIS_ITER_S, TRAINING_ITERATION
from ray.tune.schedulers import FIFOScheduler, TrialScheduler, create_scheduler

from tunekit._ray.decisions import room_for, rule_for
from tunekit._ray.local import LocalSweep
from tunekit.clock import VirtualClock
from tunekit.combinations import pauses
from tunekit.config import ValidationConfig
from tunekit.core.decisions import Decisions
from tunekit.core.problems import Problems
from tunekit.core.room import shares
from tunekit.core.validation import Attempt, Status
from tunekit.core.values import number
from tunekit.driver.callback import ValidationCallback
from tunekit.driver.scheduler import ValidatedScheduler, base_of
from tunekit.lab.curves import TRIAL, Curves
from tunekit.lab.executor import Slots, VirtualExecutor
from tunekit.policies import CheckpointPolicy, EveryIterations
from tunekit.reading.sweep import Sweep

__all__ = ["Decision", "Score", "Simulation", "not_called", "simulate"]

_CURVE = "curve"
_MACHINE = "machine"

# The machines that are being simulated, by the number in the trials' configurations: Tune copies
# the trainable, and what it refers to.
_machines: dict[int, _Machine] = {}

# The loggers that tell what happens in a sweep; nothing really happens in this one.
_LOGGERS = ("ray", "ray.train", "ray.tune", "tunekit")


@dataclass(frozen=True)
class Score:
    """A score, and when it was known.

    Attributes:
        time_s: When, in seconds since the sweep began.
        trial: The trial, as ``curves`` names it.
        iteration: The iteration of the checkpoint.
        value: The value of the metric.
    """

    time_s: float
    trial: Any
    iteration: int
    value: float


@dataclass(frozen=True)
class Decision:
    """A decision of the scheduler.

    Attributes:
        time_s: When, in seconds since the sweep began.
        trial: The trial, as ``curves`` names it.
        iteration: The iteration of the result that the scheduler got.
        reached: The iteration that the trial had reported by then.
        score: The metric's value in that result; None if it had none.
        decision: ``"CONTINUE"``, ``"PAUSE"``, ``"STOP"`` or ``"NOOP"``.
    """

    time_s: float
    trial: Any
    iteration: int
    reached: int
    score: float | None
    decision: str


@dataclass(frozen=True)
class Simulation:
    """A sweep in virtual time: how long it took, what it trained, and what it found.

    Attributes:
        makespan_s: The time from its beginning to its end, in virtual seconds.
        iterations: How many iterations were trained.
        iterations_after_stop: How many of these were reported by trials that the scheduler had
            stopped, or would stop for a score that was on its way: those beyond the iteration it
            judged.
        validations: How many validations ended with a score.
        skipped: How many checkpoints should have been validated and were not.
        best: The trial with the best score.
        best_score: That score.
        regret: How far that falls short of the best score of all curves, each as far as it was
            recorded.
        extrapolated: How many iterations were trained beyond what was recorded; the last recorded
            values stand in for theirs.
        training_busy: The share of the time of all slots during which trials trained.
        validation_busy: The share during which validations ran.
        scores: Every score, in the order in which they were known.
        mode: ``"min"`` or ``"max"``: which scores are better.
        decided: The decisions; :attr:`decisions` has them as a table.

    Example:
        >>> import pandas, ray.tune, tunekit
        >>> rows = [(t, i, t + i / 4) for t in range(4) for i in (1, 2, 3)]
        >>> curves = pandas.DataFrame(rows, columns=["trial", "training_iteration", "accuracy"])
        >>> judged = ray.tune.TuneConfig(metric="accuracy", mode="max")
        >>> ran = tunekit.lab.simulate(
        ...     curves, tune_config=judged, slots=2, train_s=1, validate_s=0.5
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
        """Return when a score at least this good was first known, in seconds; None if never.

        Args:
            score: The value of the metric.

        Example:
            >>> import pandas, ray.tune, tunekit
            >>> rows = [("a", i, i / 10) for i in range(1, 5)]
            >>> curves = pandas.DataFrame(rows, columns=["trial", "training_iteration", "accuracy"])
            >>> judged = ray.tune.TuneConfig(metric="accuracy", mode="max")
            >>> ran = tunekit.lab.simulate(curves, tune_config=judged, train_s=1.0, validate_s=0.5)
            >>> ran.time_to(0.2), ran.time_to(0.9)
            (2.5, None)
        """
        sign = 1.0 if self.mode == "max" else -1.0
        return next((s.time_s for s in self.scores if sign * s.value >= sign * score), None)

    @property
    def decisions(self) -> pd.DataFrame:
        """Return one row per decision of the scheduler, in order.

        Columns: ``time_s``: when; ``trial``; ``iteration``: that of the result that the scheduler
        got; ``score``: the metric in it; ``reached``: the iteration that the trial had reported by
        then; ``decision``.
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
    slots: int = 6,
    validation_slots: int = 0,
    resume_s: float = 0.0,
    start_s: float = 0.0,
    inline: str | None = None,
    seed: int = 0,
) -> Simulation:
    """Run a sweep in virtual time on recorded curves: what if it had been run in another way?

    Tune's own controller, the scheduler and this library's own code run as in a real sweep, but in
    one process and without waiting. Only training and validation are played from the record, and
    take virtual seconds. Trials start in the order of ``curves``.

    The record does not have what a scheduler of the PBT family changes in a trial: a clone goes on
    along its donor's curve. The driver takes no time.

    Args:
        curves: A table with the columns ``trial``, ``training_iteration`` and one for each metric;
            or a sweep, as :func:`tunekit.load` returns it. Where a trial is trained further than it
            was then, its last values hold. Trials without a value of the metric are left out: it is
            not known what they would have scored.
        tune_config: Its ``metric``, ``mode``, ``scheduler``, ``max_concurrent_trials`` and
            ``reuse_actors`` are used; by default the sweep's metric, and FIFO.
        validation_config: How to validate; its function is not called.
        checkpoint_policy: When to save; after each iteration by default.
        train_s: Seconds that an iteration takes, or the column that has them; by default 0.4, or
            as recorded in the sweep.
        validate_s: Seconds that a validation takes, likewise.
        slots: How many trials and validations run at once, one of either in each slot.
        validation_slots: How many more validations run at once, in slots of their own.
        resume_s: What it costs to resume a trial, in seconds.
        start_s: What it costs to start a process, in seconds: for a trial that does not get
            another's process, and for a validation when no process of an ended one can be used
            again.
        inline: None: validate alongside training. ``"every"``: validate inside the trainable after
            each iteration, as stock Tune does; ``"decisions"``: only where the scheduler uses the
            score.
        seed: The seed of Tune's random choices.

    Returns:
        What came of it, with times in virtual seconds.

    Raises:
        tunekit.errors.ConfigError: If any argument is wrong; the message lists them all.

    Example:
        >>> import pandas
        >>> from ray.tune.schedulers import ASHAScheduler
        >>> rows = [(t, i, t / 10 + i / 100) for t in range(6) for i in range(1, 10)]
        >>> curves = pandas.DataFrame(rows, columns=["trial", "training_iteration", "accuracy"])
        >>> asha = ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)
        >>> judged = tune.TuneConfig(metric="accuracy", mode="max", scheduler=asha)
        >>> late = simulate(curves, tune_config=judged, slots=2)
        >>> stock = simulate(curves, tune_config=judged, slots=2, inline="every")
        >>> late.best, late.regret, stock.best
        (5, 0.0, 5)
    """
    problems = Problems("tunekit.lab.simulate")
    recorded = None
    kinds = (pd.DataFrame, Sweep)
    if problems.instance("curves", curves, kinds, "Pass a DataFrame, or tunekit.load(path)."):
        recorded = _recorded(curves)
    config = copy.copy(tune_config) or tune.TuneConfig()
    metric, mode = config.metric, config.mode
    if isinstance(curves, Sweep):
        metric, mode = metric or curves.metric, mode or curves.mode
    if metric is None or mode is None:
        problems.add(
            f"metric={metric!r} and mode={mode!r} say what to judge by. Pass "
            "TuneConfig(metric=..., mode=...)."
        )
    for name, value, least in (("slots", slots, 1), ("validation_slots", validation_slots, 0)):
        problems.integer(name, value, least=least)
    if inline is not None:
        problems.choice("inline", inline, ["every", "decisions"])
    for name, cost in (("resume_s", resume_s), ("start_s", start_s)):
        if not isinstance(cost, (int, float)) or not 0 <= cost < float("inf"):
            problems.add(f"{name}={cost!r} must be a number of seconds. Pass 0 or more.")
    columns = set() if recorded is None else recorded.names
    for name, given in (("train_s", train_s), ("validate_s", validate_s)):
        if isinstance(given, str) and given not in columns:
            problems.add(f"{name}={given!r} is no column of curves. Pass seconds, or a column.")
        elif given is not None and not isinstance(given, str) and not 0 <= given < float("inf"):
            problems.add(f"{name}={given!r} must be a number of seconds. Pass 0 or more.")
    known = None if recorded is None or metric is None else recorded.having(metric)
    if known is not None and not known:
        problems.add(
            f"metric={metric!r} is no column of curves with a number in it. Pass one of "
            f"{sorted(columns)}."
        )
    problems.raise_any()
    assert known is not None  # or it was raised
    measured = isinstance(curves, Sweep)
    scheduler = config.scheduler
    if isinstance(scheduler, str):
        scheduler = create_scheduler(scheduler)
    machine = _Machine(
        known,
        metric=str(metric),
        mode=str(mode),
        scheduler=copy.deepcopy(base_of(scheduler) or FIFOScheduler()),
        train_s=_seconds(known, train_s, TIME_THIS_ITER_S if measured else None),
        validate_s=_seconds(known, validate_s, _RAN_S if measured else None),
        slots=Slots(shared=slots, own=validation_slots),
        resume_s=float(resume_s),
        start_s=float(start_s),
        inline=inline,
    )
    validation = ValidationConfig.of(validation_config or ValidationConfig(fn=not_called))
    policy = copy.deepcopy(checkpoint_policy or EveryIterations(1))
    _machines[id(machine)] = machine
    try:
        with _quietly(), tempfile.TemporaryDirectory() as folder:
            return machine.run(
                Path(folder),
                validation,
                policy,
                max_concurrent=config.max_concurrent_trials or 0,
                reuse_actors=bool(config.reuse_actors),
                seed=seed,
            )
    finally:
        del _machines[id(machine)]


_RAN_S = "validation/ran_s"


def _recorded(curves: pd.DataFrame | Sweep) -> Curves:
    """Return the curves of a table, or of a sweep."""
    if not isinstance(curves, Sweep):
        return Curves.of(curves)
    table = curves.reports.rename(columns={"trial_id": TRIAL})
    table = table.drop_duplicates([TRIAL, TRAINING_ITERATION], keep="last")
    table_of = curves.validations
    ran = table_of.loc[table_of["stage"] == "", ["trial_id", "iteration", "ran_s"]]
    ran.columns = [TRIAL, TRAINING_ITERATION, _RAN_S]
    ran = ran.drop_duplicates([TRIAL, TRAINING_ITERATION], keep="last")
    return Curves.of(table.merge(ran, how="left", on=[TRIAL, TRAINING_ITERATION]))


def _seconds(
    curves: Curves, given: float | str | None, recorded: str | None
) -> Callable[[int, int], float]:
    """Return a function that says how long something takes, by curve and iteration."""
    column = given if isinstance(given, str) else recorded
    if column is None or not (given is None or isinstance(given, str)):
        seconds = 0.4 if given is None else float(given)
        return lambda curve, iteration: seconds
    return lambda curve, iteration: number(curves.at(curve, iteration).get(column)) or 0.0


def not_called(checkpoint: Any) -> dict[str, Any]:
    """Stand in for the validation function of a simulated sweep."""
    raise NotImplementedError("a simulation takes scores from the record")


@dataclass(eq=False)
class _Machine:
    """A simulated machine, and the sweep that runs on it."""

    curves: Curves
    metric: str
    mode: str
    scheduler: TrialScheduler
    train_s: Callable[[int, int], float]
    validate_s: Callable[[int, int], float]
    slots: Slots
    resume_s: float
    start_s: float
    inline: str | None

    def __post_init__(self) -> None:
        self._clock, self._decisions = VirtualClock(), Decisions()
        #: The trainable of each trial that has one.
        self.live: dict[str, Replayed] = {}
        self._curve_of: dict[str, int] = {}
        self._reports: list[tuple[str, int]] = []
        self._scores: list[Score] = []
        self._decided: list[Decision] = []
        self._newest: dict[str, int] = {}
        self._judged: dict[str, int] = {}
        self._paid: set[tuple[str, int]] = set()
        self._trained_s = self._inline_s = 0.0
        self._extrapolated = 0

    def run(
        self,
        folder: Path,
        config: ValidationConfig,
        policy: CheckpointPolicy,
        *,
        max_concurrent: int,
        reuse_actors: bool,
        seed: int,
    ) -> Simulation:
        """Run the sweep, with a policy that is its own."""
        self._listen()
        policy.go_by(self._clock.monotonic)
        executor = VirtualExecutor(
            self._clock,
            self.slots,
            lambda: sweep.running,
            self._validate,
            self._lasts,
            self.start_s,
        )
        scheduler, callbacks = self.scheduler, [_Reports(self)]
        validation = None
        if self.inline is None:
            validation = ValidationCallback(config, executor=executor, clock=self._clock)
            scheduler = ValidatedScheduler(self.scheduler)
            validation.waiting.shares_with_trials = True
            callbacks += [policy, validation]
            if not max_concurrent:
                max_concurrent = self._leave_room(config, executor, swaps=reuse_actors)
        sweep = LocalSweep(
            Replayed,
            folder,
            self._clock,
            param_space={_CURVE: tune.grid_search([*range(len(self.curves))]), _MACHINE: id(self)},
            scheduler=scheduler,
            callbacks=callbacks,
            metric=self.metric,
            mode=self.mode,
            slots=lambda: self._trials_fit(sweep),
            max_concurrent=max_concurrent,
            reuse_actors=reuse_actors,
            seconds=self._takes,
            next_due=executor.next_due,
            start_s=self.start_s,
            seed=seed,
        )
        sweep.run(most=10_000_000)
        return self._outcome(validation, executor)

    def _trials_fit(self, sweep: LocalSweep) -> int:
        self.slots.trials = sweep.running
        return sweep.running + self.slots.for_trials

    def _leave_room(
        self, config: ValidationConfig, executor: VirtualExecutor, *, swaps: bool
    ) -> int:
        """Leave room for validations as a sweep does by default; return for how many trials."""
        if self.slots.own:
            return 0
        one, pausing = {"CPU": 1.0}, pauses(self.scheduler)
        found = shares(
            {"CPU": self.slots.shared},
            one,
            one,
            on_pending=config.on_pending,
            when=room_for(config.when, self.scheduler),
            most=config.most_in_flight or 1,
            lends=True,
            in_trials=False,
            pausing=pausing or (swaps and config.on_pending != "continue"),
        )
        if found.known and found.limit is None:
            executor.reserve(found.validations)
        return found.limit or 0

    # What it does ------------------------------------------------------------------------------

    def _takes(self, trial: Trial, method: str) -> float:
        """Return how long a call of a trial's method takes."""
        if method == "restore":
            return self.resume_s
        if method != "train":
            return 0.0
        replayed = self.live[trial.trial_id]
        curve, iteration = replayed.curve, replayed.steps + 1
        seconds = self.train_s(curve, iteration)
        self._trained_s += seconds
        if self.inline is not None and self._pays(trial, iteration):
            self._paid.add((trial.trial_id, iteration))
            validating = self.validate_s(curve, iteration)
            self._inline_s += validating
            seconds += validating
        return seconds

    def _pays(self, trial: Trial, iteration: int) -> bool:
        """Return whether a trainable that validates by itself does so after an iteration."""
        if self.inline == "every":
            return True
        done = iteration >= self.curves.length
        rule = rule_for(self.scheduler, trial)
        return self._decisions.asked(trial.trial_id, iteration, iteration, rule, done=done)

    def trained(self, curve: int, iteration: int) -> None:
        """Record that an iteration was trained."""
        self._extrapolated += not self.curves.is_recorded(curve, iteration)

    def reported(self, trial: Trial, report: Mapping[str, Any]) -> None:
        """Record a report."""
        trial_id, iteration = trial.trial_id, report[TRAINING_ITERATION]
        self._newest[trial_id] = iteration
        self._reports.append((trial_id, iteration))
        self._curve_of.setdefault(trial_id, trial.config[_CURVE])
        if (trial_id, iteration) in self._paid:
            self._scored(trial_id, iteration, report.get(self.metric))

    def _validate(self, attempt: Attempt) -> dict[str, Any]:
        request = attempt.request
        value = self.curves.at(request.report["config"][_CURVE], request.iteration)[self.metric]
        self._scored(request.trial_id, request.iteration, value)
        return {self.metric: value}

    def _lasts(self, attempt: Attempt) -> float:
        request = attempt.request
        return self.validate_s(request.report["config"][_CURVE], request.iteration)

    def _scored(self, trial_id: str, iteration: int, value: Any) -> None:
        score = number(value)
        if score is not None:
            self._scores.append(Score(self._now, self._name_of(trial_id), iteration, score))

    @property
    def _now(self) -> float:
        """Return the time, rounded: the controller lets a microsecond pass instead of waiting."""
        return round(self._clock.monotonic(), 4)

    def _name_of(self, trial_id: str) -> Any:
        return self.curves.order[self._curve_of[trial_id]]

    def _listen(self) -> None:
        """Record what the scheduler gets and decides; its type stays what it is."""
        on_result = self.scheduler.on_trial_result

        def listening(controller: Any, trial: Trial, result: dict[str, Any]) -> str:
            arrived = dict(result)
            self._curve_of.setdefault(trial.trial_id, trial.config[_CURVE])
            decision = str(on_result(controller, trial, result))
            trial_id, iteration = trial.trial_id, arrived[TRAINING_ITERATION]
            self._decisions.settled(trial_id, iteration)
            self._judged[trial_id] = iteration
            self._decided.append(
                Decision(
                    self._now,
                    self._name_of(trial_id),
                    iteration,
                    self._newest.get(trial_id, iteration),
                    number(arrived.get(self.metric)),
                    decision,
                )
            )
            return decision

        self.scheduler.on_trial_result = listening

    # What came of it ---------------------------------------------------------------------------

    def _outcome(
        self, validation: ValidationCallback | None, executor: VirtualExecutor
    ) -> Simulation:
        makespan = self._now
        sign = 1.0 if self.mode == "max" else -1.0
        best = max(self._scores, key=lambda one: sign * one.value)
        each = range(len(self.curves))
        possible = [v for curve in each for v in self.curves.scores(curve, self.metric)]
        whole = makespan * (self.slots.shared + self.slots.own) or 1.0
        stopped = {
            trial_id: judged
            for trial_id, judged in self._judged.items()
            if self._newest[trial_id] < self.curves.length
        }
        late = sum(made > stopped.get(trial, made) for trial, made in self._reports)
        validated, skipped = len(self._scores), 0
        if validation is not None:
            validated = validation.state.counts[Status.VALIDATED]
            skipped = validation.state.counts[Status.SKIPPED]
        return Simulation(
            makespan_s=makespan,
            iterations=len(self._reports),
            iterations_after_stop=late,
            validations=validated,
            skipped=skipped,
            best=best.trial,
            best_score=best.value,
            regret=max(0.0, max(sign * value for value in possible) - sign * best.value),
            extrapolated=self._extrapolated,
            training_busy=self._trained_s / whole,
            validation_busy=(executor.busy_s + self._inline_s) / whole,
            mode=self.mode,
            scores=self._scores,
            decided=self._decided,
        )


class Replayed(tune.Trainable):
    """A trial that plays a recorded curve."""

    def setup(self, config: dict[str, Any]) -> None:
        """Begin with a curve."""
        self._machine = _machines[config[_MACHINE]]
        self.curve, self.steps = config[_CURVE], 0
        self._machine.live[self.trial_id] = self

    def step(self) -> dict[str, Any]:
        """Report the next row."""
        machine = self._machine
        self.steps += 1
        machine.trained(self.curve, self.steps)
        row = machine.curves.at(self.curve, self.steps)
        if machine.inline is None:
            row.pop(machine.metric, None)
        return {**row, DONE: self.steps >= machine.curves.length}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Save where it is."""
        return {"curve": self.curve, "steps": self.steps}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Go on from where it was saved."""
        if checkpoint is not None:
            self.curve, self.steps = checkpoint["curve"], checkpoint["steps"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become another trial."""
        self.setup(new_config)
        return True


class _Reports(tune.Callback):
    """Tells a machine what its trials report."""

    def __init__(self, machine: _Machine):
        self._machine = machine

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        self._machine.reported(trial, result)


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence what would tell of things that are only simulated."""
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
