"""Play a sweep in virtual time, with trials that follow recorded curves on a simulated machine.

It runs in Tune's own controller, with tunekit's own code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.result import DONE, TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler

from tunekit._ray.local import LocalSweep
from tunekit._ray.scheduler_kinds import exhausts, rule_for
from tunekit.clock import FakeClock
from tunekit.config import ValidationConfig
from tunekit.core.validation import Attempt, Status
from tunekit.core.values import number
from tunekit.driver.callback import ValidationCallback
from tunekit.driver.scheduler import ValidatedScheduler
from tunekit.lab.curves import Curves
from tunekit.lab.executor import Room, VirtualExecutor
from tunekit.policies import CheckpointPolicy

_CURVE = "curve"
_MACHINE = "machine"

# The simulated machines, by the number in the trials' configurations. Trials look them up, because
# Tune copies the trainable and all objects that it refers to.
_machines: dict[int, Machine] = {}

# The loggers of a sweep's progress, silenced during a simulation.
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


@dataclass(eq=False)
class Machine:
    """A simulated machine, and the sweep that runs on it.

    Attributes:
        curves: The curves that its trials follow.
        metric: The metric to rank by.
        scheduler: The scheduler, which only this machine uses.
        train_s: ``train_s(curve, iteration)``: how long an iteration takes, in seconds.
        validate_s: How long its validation takes, likewise.
        room: The resources of the cluster, of a trial and of a validation.
        start_s: ``start_s(curve)``: how long a trial's process takes to start.
        validation_start_s: How long a validation's process takes to start.
        import_s: How much longer the first validation in such a process takes.
        resume_s: How long a trial takes to resume.
        inline: As in :func:`tunekit.lab.simulate`.
    """

    curves: Curves
    metric: str
    mode: str
    scheduler: TrialScheduler
    train_s: Callable[[int, int], float]
    validate_s: Callable[[int, int], float]
    room: Room
    start_s: Callable[[int], float]
    validation_start_s: float
    import_s: float
    resume_s: float
    inline: str | None

    def __post_init__(self) -> None:
        self._clock = FakeClock()
        #: The trainable of each trial that has one.
        self.live: dict[str, Replayed] = {}
        self._curve_of: dict[str, int] = {}
        self._newest: dict[str, int] = {}
        self._judged: dict[str, int] = {}
        self._paid: set[tuple[str, int]] = set()
        #: The trial and the iteration of each report, in order.
        self.reports: list[tuple[str, int]] = []
        #: The scores and the decisions, likewise.
        self.scores: list[Score] = []
        self.decided: list[Decision] = []
        #: How many iterations, and how many scores, were not recorded.
        self.extrapolated = self.invented = 0
        #: For how many seconds trials trained, and validations ran.
        self.trained_s = self.validated_s = 0.0
        #: How many validations ended with a score, and how many were skipped.
        self.validated = self.skipped = 0
        #: How many processes validations started, and how many ran in processes of trials.
        self.started = self.hosted = 0

    def run(
        self,
        folder: Path,
        config: ValidationConfig,
        policy: CheckpointPolicy,
        *,
        max_concurrent: int,
        reuse_actors: bool,
        seed: int,
    ) -> None:
        """Run the sweep, with a policy that only this machine uses."""
        self._listen()
        executor = VirtualExecutor(
            config,
            self._clock,
            self.room,
            lambda: sweep.running,
            self._validate,
            self._lasts,
            self.validation_start_s,
            self.import_s,
        )
        scheduler, callbacks = self.scheduler, [_Reports(self)]
        validation = None
        if self.inline is None:
            validation = ValidationCallback(config, executor=executor, clock=self._clock)
            scheduler = ValidatedScheduler(self.scheduler)
            callbacks += [policy, validation]
            validation.share(self.room.cluster, [self.room.trial])
            validation.validator.pool.durations.starts.append(self.validation_start_s)
        _machines[id(self)] = self
        try:
            with _quietly():
                sweep = LocalSweep(
                    tune.with_resources(
                        Replayed, tune.PlacementGroupFactory([dict(self.room.trial)])
                    ),
                    folder,
                    self._clock,
                    param_space={
                        _CURVE: tune.grid_search([*range(len(self.curves))]),
                        _MACHINE: id(self),
                    },
                    scheduler=scheduler,
                    callbacks=callbacks,
                    metric=self.metric,
                    mode=self.mode,
                    slots=lambda: self._trials_fit(sweep),
                    max_concurrent=max_concurrent,
                    reuse_actors=reuse_actors,
                    seconds=self._takes,
                    next_due=executor.next_due,
                    seed=seed,
                )
                sweep.run(most=10_000_000)
        finally:
            del _machines[id(self)]
        self.validated_s += executor.busy_s
        self.started, self.hosted = executor.started, executor.hosted
        self.validated = len(self.scores)
        if validation is not None:
            self.validated = validation.engine.backlog.counts[Status.VALIDATED]
            self.skipped = validation.engine.backlog.counts[Status.SKIPPED]

    def _trials_fit(self, sweep: LocalSweep) -> int:
        self.room.trials = sweep.running
        return sweep.running + self.room.for_trials

    # Simulation --------------------------------------------------------------------------------

    def _takes(self, trial: Trial, method: str) -> float:
        """Return how long a call of a trial's method takes."""
        if method == "start":
            return self.start_s(trial.config[_CURVE])
        if method == "restore":
            return self.resume_s
        if method != "train":
            return 0.0
        replayed = self.live[trial.trial_id]
        curve, iteration = replayed.curve, replayed.steps + 1
        seconds = self.train_s(curve, iteration)
        self.trained_s += seconds
        if self.inline is not None and self._pays(trial, iteration):
            self._paid.add((trial.trial_id, iteration))
            validating = self.validate_s(curve, iteration)
            self.validated_s += validating
            seconds += validating
        return seconds

    def _pays(self, trial: Trial, iteration: int) -> bool:
        """Return whether a trial that validates inline does so after an iteration."""
        if self.inline == "every":
            return True
        serves = rule_for(self.scheduler, trial).serves(iteration, coming=())
        return serves is not None or iteration >= self.curves.length

    def stops_at(self, iteration: int) -> bool:
        """Return whether the scheduler stops each trial at an iteration, as at its ``max_t``.

        There, a trial does not end itself, but waits for its last score.
        """
        return exhausts(self.scheduler, {TRAINING_ITERATION: iteration})

    def reported(self, trial: Trial, report: Mapping[str, Any]) -> None:
        """Record a report."""
        trial_id, iteration = trial.trial_id, report[TRAINING_ITERATION]
        self._newest[trial_id] = iteration
        self.reports.append((trial_id, iteration))
        self._curve_of.setdefault(trial_id, trial.config[_CURVE])
        if (trial_id, iteration) in self._paid:
            self._scored(trial_id, iteration, report.get(self.metric))

    def _validate(self, attempt: Attempt) -> dict[str, Any]:
        request = attempt.request
        curve, iteration = request.report["config"][_CURVE], request.iteration
        value = self.curves.at(curve, iteration)[self.metric]
        if self.curves.is_recorded(curve, iteration):  # others count as extrapolated iterations
            self.invented += not self.curves.is_recorded(curve, iteration, self.metric)
        self._scored(request.trial_id, iteration, value)
        return {self.metric: value}

    def _lasts(self, attempt: Attempt) -> float:
        request = attempt.request
        return self.validate_s(request.report["config"][_CURVE], request.iteration)

    def _scored(self, trial_id: str, iteration: int, value: Any) -> None:
        score = number(value)
        if score is not None:
            self.scores.append(Score(self.now, self._name_of(trial_id), iteration, score))

    @property
    def now(self) -> float:
        """Return the time, rounded: the controller passes a microsecond instead of waiting."""
        return round(self._clock.monotonic(), 4)

    @property
    def late(self) -> int:
        """Return how many iterations trials reported beyond the one for which they were stopped."""
        stopped = {
            trial_id: judged
            for trial_id, judged in self._judged.items()
            if self._newest[trial_id] < self.curves.length
        }
        return sum(made > stopped.get(trial, made) for trial, made in self.reports)

    def _name_of(self, trial_id: str) -> Any:
        return self.curves.order[self._curve_of[trial_id]]

    def _listen(self) -> None:
        """Start to record the scheduler's results and decisions, without changing its type."""
        on_result = self.scheduler.on_trial_result

        def listening(controller: Any, trial: Trial, result: dict[str, Any]) -> str:
            arrived = dict(result)
            self._curve_of.setdefault(trial.trial_id, trial.config[_CURVE])
            decision = str(on_result(controller, trial, result))
            trial_id, iteration = trial.trial_id, arrived[TRAINING_ITERATION]
            self._judged[trial_id] = iteration
            self.decided.append(
                Decision(
                    self.now,
                    self._name_of(trial_id),
                    iteration,
                    self._newest.get(trial_id, iteration),
                    number(arrived.get(self.metric)),
                    decision,
                )
            )
            return decision

        self.scheduler.on_trial_result = listening


class Replayed(tune.Trainable):
    """Play a recorded curve as a trial."""

    def setup(self, config: dict[str, Any]) -> None:
        """Select the curve."""
        self._machine = _machines[config[_MACHINE]]
        self.curve, self.steps = config[_CURVE], 0
        self._machine.live[self.trial_id] = self

    def step(self) -> dict[str, Any]:
        """Report the next row."""
        machine = self._machine
        self.steps += 1
        machine.extrapolated += not machine.curves.is_recorded(self.curve, self.steps)
        row = machine.curves.at(self.curve, self.steps)
        if machine.inline is None:
            row.pop(machine.metric, None)
        return {
            **row,
            DONE: self.steps >= machine.curves.length and not machine.stops_at(self.steps),
        }

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Save the position on the curve."""
        return {"curve": self.curve, "steps": self.steps}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Continue from the saved position."""
        if checkpoint is not None:
            self.curve, self.steps = checkpoint["curve"], checkpoint["steps"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Start over as another trial."""
        self.setup(new_config)
        return True


class _Reports(tune.Callback):
    """Pass the trials' reports to a machine."""

    def __init__(self, machine: Machine):
        self._machine = machine

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        self._machine.reported(trial, result)


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence messages about simulated events."""
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
