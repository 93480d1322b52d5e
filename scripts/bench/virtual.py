"""Sweeps in virtual time: trials follow given curves, and share slots with validations.

They run in Tune's own controller, with tunekit's own code. Each trial and each validation takes a
CPU.
"""

from __future__ import annotations

import copy
import heapq
import logging
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.result import DONE, TRAINING_ITERATION
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

import tunekit
from tests.support.fakes import FakeClock
from tests.support.local_sweep import LocalSweep
from tunekit._ray.scheduler_kinds import exhausts, rule_for
from tunekit.core.executor import AttemptEvent, Began, Executor, Returned
from tunekit.core.shares import divide, fits
from tunekit.core.timing import Clock
from tunekit.core.validation import Attempt
from tunekit.validating.ray_executor import executor_of

METRIC = "accuracy"
_CURVE, _SWEEP = "curve", "sweep"
# Seconds without work after which an evaluator releases its CPU.
_IDLE_S = 30.0
# The sweeps that run, by the number in their trials' configurations. Trials look them up, because
# Tune copies the trainable and all objects that it refers to.
_sweeps: dict[int, VirtualSweep] = {}


@dataclass(frozen=True)
class Score:
    """A score, and when it was known, in seconds."""

    time_s: float
    trial: Any
    iteration: int
    value: float


@dataclass(frozen=True)
class Decision:
    """What the scheduler said to a result, and how far its trial had got by then."""

    time_s: float
    trial: Any
    iteration: int
    reached: int
    score: float | None
    decision: str


class VirtualSweep:
    """Run a sweep over curves of equal length, which its trials follow in the given order.

    Args:
        curves: The columns ``trial``, ``training_iteration`` (from 1) and ``accuracy``, the metric.
        scheduler: Used by this sweep only; FIFO by default.
        config: How to validate; its function is not called.
        policy: When to save.
        reuse_actors: As in ``TuneConfig``.
        train_s: The seconds per iteration, or the column that holds them.
        validate_s: The seconds per validation, or the column that holds them.
        weight: The column with what a trial holds in its slot, such as a number of GPUs.
        slots: The number of slots, each for a trial or a validation.
        validation_slots: The number of additional slots, for validations only.
        start_s: The seconds that the process of a trial or a validation takes to start.
        inline: None: validate alongside training. ``"every"``: validate inside the trainable after
            each iteration, as stock Tune does; ``"decisions"``: only where the scheduler uses the
            score.
    """

    def __init__(
        self,
        curves: pd.DataFrame,
        scheduler: TrialScheduler | None = None,
        *,
        config: tunekit.ValidationConfig | None = None,
        policy: tunekit.policies.CheckpointPolicy | None = None,
        reuse_actors: bool = False,
        train_s: float | str = 0.4,
        validate_s: float | str = 0.4,
        weight: str | None = None,
        slots: int = 6,
        validation_slots: int = 0,
        start_s: float = 0.0,
        inline: str | None = None,
    ):
        by_trial = dict(iter(curves.groupby("trial", sort=False)))
        self._order = list(by_trial)
        self._curves = [rows.to_dict("records") for rows in by_trial.values()]
        self.length = len(self._curves[0])
        self.scheduler = scheduler or FIFOScheduler()
        self.inline = inline
        self._config = config or tunekit.ValidationConfig(fn=lambda checkpoint: {})
        self._policy = copy.deepcopy(policy or tunekit.EveryIterations(1))
        self._reuse_actors = reuse_actors
        self._train_s, self._validate_s, self._start_s = train_s, validate_s, start_s
        self._weight = weight
        #: The seconds for which trials have held their slots, times their weights.
        self.held_s = 0.0
        self.room = Room(slots, validation_slots)
        self._clock = FakeClock()
        #: The trainable of each trial that has one.
        self.live: dict[str, Follows] = {}
        self._curve_of: dict[str, int] = {}
        self._newest: dict[str, int] = {}
        self._judged: dict[str, int] = {}
        self._paid: set[tuple[str, int]] = set()
        self._reports: list[str] = []
        #: The scores, in the order in which they became known.
        self.scores: list[Score] = []
        self._decided: list[Decision] = []
        #: The number of validations that ended with a score, and of those that were skipped.
        self.validations = self.skipped = 0

    def run(self) -> VirtualSweep:
        """Run to the end."""
        self._listen()
        executor = VirtualExecutor(
            self._config,
            self._clock,
            self.room,
            lambda: sweep.running,
            self._validate,
            lambda attempt: self._lasts(
                self._validate_s, attempt.request.config[_CURVE], attempt.request.iteration
            ),
            self._start_s,
        )
        scheduler, callbacks = self.scheduler, [_Reports(self)]
        validation = None
        if self.inline is None:
            validation = tunekit.ValidationCallback(
                self._config, executor=executor, clock=self._clock
            )
            scheduler = tunekit.ValidatedScheduler(self.scheduler)
            callbacks += [self._policy, validation]
            most, need = self._config.most_in_flight or 1, validation.executor.need
            validation.shares = divide(self.room.cluster, [self.room.trial], need, most=most)
            validation.validator.pool.durations.starts.append(self._start_s)
        _sweeps[id(self)] = self
        try:
            with _quietly(), tempfile.TemporaryDirectory() as folder:
                place = tune.PlacementGroupFactory([dict(self.room.trial)])
                sweep = LocalSweep(
                    tune.with_resources(Follows, place),
                    Path(folder),
                    self._clock,
                    param_space={
                        _CURVE: tune.grid_search([*range(len(self._curves))]),
                        _SWEEP: id(self),
                    },
                    scheduler=scheduler,
                    callbacks=callbacks,
                    metric=METRIC,
                    mode="max",
                    slots=lambda: self._trials_fit(sweep),
                    reuse_actors=self._reuse_actors,
                    seconds=self._takes,
                    next_due=executor.next_due,
                )
                sweep.run(most=10_000_000)
        finally:
            del _sweeps[id(self)]
        self.validations = len(self.scores)
        if validation is not None:
            counts = validation.ledger.state.counts
            self.validations, self.skipped = counts["validated"], counts["skipped"]
        return self

    # Results -----------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Return the time, rounded: the controller passes a microsecond instead of waiting."""
        return round(self._clock.monotonic(), 4)

    @property
    def iterations(self) -> int:
        """Return the number of iterations trained."""
        return len(self._reports)

    @property
    def iterations_after_stop(self) -> int:
        """Return how many of these came after the one for which their trial was stopped."""
        return sum(
            self._newest[trial] - judged
            for trial, judged in self._judged.items()
            if self._newest[trial] < self.length
        )

    @property
    def regret(self) -> float:
        """Return the gap between the best score and the best one of all curves."""
        best = max(row[METRIC] for rows in self._curves for row in rows)
        return float(best - max(score.value for score in self.scores))

    @property
    def decisions(self) -> pd.DataFrame:
        """Return one row per :class:`Decision`, in order."""
        return pd.DataFrame([vars(one) for one in self._decided])

    # Simulation --------------------------------------------------------------------------------

    def row(self, curve: int, iteration: int) -> dict[str, Any]:
        """Return a row of a curve; the last one holds past its end."""
        rows = self._curves[curve]
        return rows[min(iteration, len(rows)) - 1]

    def _trials_fit(self, sweep: LocalSweep) -> int:
        self.room.trials = sweep.running
        return sweep.running + self.room.for_trials

    def _takes(self, trial: Trial, method: str) -> float:
        """Return how long a call of a trial's method takes."""
        if method == "start":
            return self._start_s
        if method != "train":
            return 0.0
        follows = self.live[trial.trial_id]
        iteration = follows.steps + 1
        seconds = self._lasts(self._train_s, follows.curve, iteration)
        if self.inline is not None and self._pays(trial, iteration):
            self._paid.add((trial.trial_id, iteration))
            seconds += self._lasts(self._validate_s, follows.curve, iteration)
        return seconds

    def _lasts(self, seconds: float | str, curve: int, iteration: int) -> float:
        return self.row(curve, iteration)[seconds] if isinstance(seconds, str) else seconds

    def held(self, curve: int, since: float) -> None:
        """Record that a trial has held its slot since a time."""
        weight = 1.0 if self._weight is None else self.row(curve, 1)[self._weight]
        self.held_s += weight * (self.now - since)

    def _pays(self, trial: Trial, iteration: int) -> bool:
        """Return whether a trial that validates inline does so after an iteration."""
        if self.inline == "every":
            return True
        serves = rule_for(self.scheduler, trial).decision_point(iteration, pending=())
        return serves is not None or iteration >= self.length

    def stops_at(self, iteration: int) -> bool:
        """Return whether the scheduler stops each trial at an iteration, as at its ``max_t``.

        There, a trial does not end itself, but waits for its last score.
        """
        return exhausts(self.scheduler, {TRAINING_ITERATION: iteration})

    def reported(self, trial: Trial, report: Mapping[str, Any]) -> None:
        """Record a report."""
        trial_id, iteration = trial.trial_id, report[TRAINING_ITERATION]
        self._newest[trial_id] = iteration
        self._reports.append(trial_id)
        self._curve_of.setdefault(trial_id, trial.config[_CURVE])
        if (trial_id, iteration) in self._paid:
            self._scored(trial_id, iteration, report[METRIC])

    def _validate(self, attempt: Attempt) -> dict[str, Any]:
        request = attempt.request
        value = self.row(request.report["config"][_CURVE], request.iteration)[METRIC]
        self._scored(request.trial_id, request.iteration, value)
        return {METRIC: value}

    def _scored(self, trial_id: str, iteration: int, value: float) -> None:
        self.scores.append(Score(self.now, self._name_of(trial_id), iteration, value))

    def _name_of(self, trial_id: str) -> Any:
        return self._order[self._curve_of[trial_id]]

    def _listen(self) -> None:
        """Start to record the scheduler's results and decisions, without changing its type."""
        on_result = self.scheduler.on_trial_result

        def listening(controller: Any, trial: Trial, result: dict[str, Any]) -> str:
            trial_id, iteration = trial.trial_id, result[TRAINING_ITERATION]
            score = result.get(METRIC)
            self._curve_of.setdefault(trial_id, trial.config[_CURVE])
            decision = str(on_result(controller, trial, result))
            self._judged[trial_id] = iteration
            reached = self._newest.get(trial_id, iteration)
            at = (self.now, self._name_of(trial_id), iteration, reached)
            self._decided.append(Decision(*at, score, decision))
            return decision

        self.scheduler.on_trial_result = listening


class Follows(tune.Trainable):
    """A trial that follows a curve."""

    def setup(self, config: dict[str, Any]) -> None:
        self._sweep = _sweeps[config[_SWEEP]]
        self.curve, self.steps = config[_CURVE], 0
        self._sweep.live[self.trial_id] = self
        self._since = self._sweep.now

    def step(self) -> dict[str, Any]:
        self.steps += 1
        sweep = self._sweep
        ends = self.steps >= sweep.length and not sweep.stops_at(self.steps)
        if sweep.inline is None:
            return {DONE: ends}
        return {METRIC: sweep.row(self.curve, self.steps)[METRIC], DONE: ends}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"curve": self.curve, "steps": self.steps}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        if checkpoint is not None:
            self.curve, self.steps = checkpoint["curve"], checkpoint["steps"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self.setup(new_config)
        return True

    def cleanup(self) -> None:
        self._sweep.held(self.curve, self._since)


class _Reports(tune.Callback):
    """Pass the trials' reports to a sweep."""

    def __init__(self, sweep: VirtualSweep):
        self._sweep = sweep

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        self._sweep.reported(trial, result)


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence messages about simulated events."""
    levels = {
        name: logging.getLogger(name).level for name in ("ray", "ray.train", "ray.tune", "tunekit")
    }
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


@dataclass
class Room:
    """Slots for trials and validations, more for validations only, and how many hold one."""

    slots: int
    extra: int = 0
    trials: int = 0
    validations: int = 0

    trial = {"CPU": 1.0, "slot": 1.0}

    @property
    def cluster(self) -> dict[str, float]:
        """Return all resources, by name."""
        return {"CPU": self.slots + self.extra, "slot": self.slots}

    @property
    def _free(self) -> dict[str, float]:
        cpus = self.slots + self.extra - self.trials - self.validations
        return {"CPU": cpus, "slot": self.slots - self.trials}

    @property
    def for_trials(self) -> int:
        """Return how many more trials fit."""
        return max(0, fits(self._free, (), self.trial))

    def for_validations(self, promised: Iterable[tuple[Mapping[str, float], int]] = ()) -> int:
        """Return how many more validations fit beside what is promised, as far as that fits."""
        return max(0, fits(self._free, promised, {"CPU": 1.0}))


class VirtualExecutor(Executor):
    """Run validations for a given virtual time.

    In the order in which they are started, they wait for a slot and then for a process: their
    trial's, an idle one, or a new one.

    Args:
        config: How to validate; its processes are as in a real sweep.
        clock: The clock.
        room: The slots.
        trials: Returns how many trials hold slots.
        validate: Returns the result of an attempt.
        seconds: Returns how long an attempt runs, in seconds.
        start_s: How long a process takes to start, in seconds.
    """

    def __init__(
        self,
        config: tunekit.ValidationConfig,
        clock: Clock,
        room: Room,
        trials: Callable[[], int],
        validate: Callable[[Attempt], Any],
        seconds: Callable[[Attempt], float],
        start_s: float = 0.0,
    ):
        self._real, self._most = executor_of(config), config.evaluators
        self.in_trials = self._real.in_trials
        self._clock, self._room, self._trials = clock, room, trials
        self._validate, self._seconds, self._start_s = validate, seconds, start_s
        self._unplaced: deque[Attempt] = deque()
        # The next events: the time, the order, the attempt, and whether it begins.
        self._events: list[tuple[float, int, Attempt, bool]] = []
        # Whether each attempt that runs is in the process of a trial.
        self._hosted: dict[str, bool] = {}
        # The times since which other processes have been idle.
        self._idle: list[float] = []
        self._order = 0
        #: How many processes were started.
        self.started = 0

    @property
    def need(self) -> dict[str, float]:
        return self._real.need

    def fits_in(self, place: Sequence[Mapping[str, float]]) -> bool:
        return self._real.fits_in(place)

    def start(self, attempt: Attempt, *, host: Any = None) -> None:
        if host is None:
            self._unplaced.append(attempt)
        else:
            self._begin(attempt, 0.0, hosted=True)

    def poll(self) -> Iterator[AttemptEvent]:
        self._end_idle(_IDLE_S)
        self._begin_unplaced()
        while self._events and self._events[0][0] <= self._clock.monotonic():
            _, _, attempt, begins = heapq.heappop(self._events)
            if attempt.id not in self._hosted:  # it was cancelled
                continue
            if begins:
                yield Began(attempt.id)
                continue
            self._leave(attempt)
            yield Returned(attempt.id, self._validate(attempt))
            self._begin_unplaced()

    def _begin_unplaced(self) -> None:
        """Begin unplaced attempts for which there is a slot, or an idle evaluator."""
        while self._unplaced and self._can_begin:
            attempt = self._unplaced.popleft()
            if self._most is None or not self._idle:
                self._room.validations += 1
            if self._idle:
                self._idle.pop()
                self._begin(attempt, 0.0)
            else:
                self.started += 1
                self._begin(attempt, self._start_s)

    @property
    def _can_begin(self) -> bool:
        self._room.trials = self._trials()
        if self._most is not None and self._idle:
            return True
        more = self._most is None or self._room.validations < self._most
        return more and self._room.for_validations() > 0

    def _begin(self, attempt: Attempt, start_s: float, *, hosted: bool = False) -> None:
        self._hosted[attempt.id] = hosted
        begins = self._clock.monotonic() + start_s
        self._push(begins, attempt, begins=True)
        self._push(begins + self._seconds(attempt), attempt, begins=False)

    def _push(self, when: float, attempt: Attempt, *, begins: bool) -> None:
        self._order += 1
        heapq.heappush(self._events, (when, self._order, attempt, begins))

    def _leave(self, attempt: Attempt, *, lives_on: bool = True) -> None:
        """Release the process and the slot of an attempt."""
        if self._hosted.pop(attempt.id):
            return
        if lives_on:
            self._idle.append(self._clock.monotonic())
        if not lives_on or self._most is None:
            self._room.validations -= 1

    def cancel(self, attempt: Attempt, *, too_long: bool = True) -> None:
        if attempt in self._unplaced:
            self._unplaced.remove(attempt)
        elif attempt.id in self._hosted:
            self._leave(attempt, lives_on=False)

    def spare(self, keep: int) -> None:
        self._end_idle(0.0, keep)

    def close(self) -> None:
        self.in_trials = False
        self._end_idle(0.0)

    def _end_idle(self, after_s: float, keep: int = 0) -> None:
        """End evaluators that have been idle for ``after_s`` seconds, except ``keep`` of them."""
        idle, now = self._idle, self._clock.monotonic()
        while (
            self._most is not None
            and idle
            and now - idle[0] >= after_s
            and self._room.validations > keep
        ):
            idle.pop(0)
            self._room.validations -= 1

    def capacity(self, promised: Iterable[tuple[Mapping[str, float], int]]) -> int:
        self._room.trials = self._trials()
        room = self._room.for_validations(promised) - len(self._unplaced)
        if self._most is None:
            return room
        return len(self._idle) + max(0, min(room, self._most - self._room.validations))

    def unplaced(self) -> int:
        return len(self._unplaced)

    def next_due(self) -> float | None:
        """Return the time of the next event: now if an attempt can begin; None if there is none."""
        if self._unplaced and self._can_begin:
            return self._clock.monotonic()
        return self._events[0][0] if self._events else None
