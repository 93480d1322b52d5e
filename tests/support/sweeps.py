"""A sweep for tests: a trainable whose score is a function of its state, run in this process."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback
from ray.tune.result import RESULT_DUPLICATE
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

import tunekit
from tests.support.fakes import FakeClock, FakeExecutor
from tests.support.journals import read, scores_of
from tests.support.local_sweep import LocalSweep, index_of
from tunekit._ray.asking import INQUIRY
from tunekit.core.inquiry import Inquiry
from tunekit.core.metrics import GENERATION
from tunekit.core.shares import Shares
from tunekit.core.validation import Attempt
from tunekit.core.values import finite_number
from tunekit.driver.restore import Restore

LENGTH = 9


def quality(index: int, iteration: int, seed: int = 0) -> float:
    """Return the score of a trial's weights: the longer it trained, the better, with noise."""
    draw = random.Random(f"{seed}/{index}/{iteration}")
    talent = random.Random(f"{seed}/{index}").random()
    return talent * iteration + draw.random()


def rows_of(trial: Trial) -> list[dict[str, Any]]:
    """Return the rows of a trial's ``result.json``."""
    lines = Path(trial.local_path, "result.json").read_text().splitlines()
    return [json.loads(line) for line in lines]


class SavesWhen(tunekit.policies.CheckpointPolicy):
    """A checkpoint at the iterations that a test names."""

    def __init__(self, due: Callable[[Trial, Mapping[str, Any]], bool]):
        self._due = due

    def due(self, trial: Trial, result: Mapping[str, Any]) -> bool:
        return bool(self._due(trial, result))


class Counting(tune.Trainable):
    """Its state is the number of its iterations; it ends by itself after ``LENGTH`` of them."""

    def setup(self, config: dict[str, Any]) -> None:
        self.steps = 0
        self.fail_at = config.get("fail_at")

    def step(self) -> dict[str, Any]:
        self.steps += 1
        if self.fail_at == self.steps and not self.iteration_was_restored():
            raise RuntimeError(f"fails at {self.steps}")
        return {"loss": 1.0 / self.steps, "done": self.steps >= LENGTH}

    def iteration_was_restored(self) -> bool:
        return self._restored

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.steps = checkpoint["steps"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True


#: What trials were told: ``(trial ID, iteration, [(iteration, status, score), ...])``.
ANSWERS: list[tuple[str, int, list[tuple[int, str, float | None]]]] = []


class Asking(Counting):
    """Asks for its scores after each of its reports, in the middle of an iteration."""

    inquiry = Inquiry(blocks=True)
    told: list[Any]

    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        self.owes = False

    def step(self) -> dict[str, Any]:
        if self.owes:
            self.owes = False
            return {INQUIRY: self.inquiry, RESULT_DUPLICATE: True}
        if "told" in vars(self):
            self.heard(vars(self).pop("told"))
        result, self.owes = super().step(), True
        return result

    def heard(self, told: list[Any]) -> None:
        """Note what it was told."""
        answer = [
            (one.metrics["training_iteration"], one.status.value, one.metrics.get("accuracy"))
            for one in told
        ]
        ANSWERS.append((self.trial_id, self.steps, answer))


class Endless(Counting):
    """Like the class above, but never ends by itself."""

    def step(self) -> dict[str, Any]:
        return {**super().step(), "done": False}


class FailsOnce(Counting):
    """Fails when it is trained for the sixth time, and not again."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        self.fail_at = 6

    def iteration_was_restored(self) -> bool:
        mark = Path(self.logdir, "has-failed")
        again = mark.exists()
        mark.touch()
        return again


class Most(tune.Callback):
    """Return the largest number of trials of a kind at one time."""

    def __init__(self, kind: Callable[[Trial], bool]):
        self.kind, self.most = kind, 0

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        self.most = max(self.most, sum(map(self.kind, trials)))


@dataclass
class Heard:
    """The calls that a scheduler received, and its decisions.

    ``results`` has (trial, iteration, score, decision), ``generations`` that of each result.
    """

    results: list[tuple[int, int, float, str]] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    ends: list[tuple[int, float | None]] = field(default_factory=list)
    added: list[int] = field(default_factory=list)
    errors: list[int] = field(default_factory=list)

    def of(self, index: int) -> list[int]:
        return [iteration for trial, iteration, _, _ in self.results if trial == index]

    def places(self, index: int) -> list[tuple[int, int]]:
        """(generation, iteration) of the results of a trial."""
        both = zip(self.generations, self.results, strict=True)
        return [(generation, result[1]) for generation, result in both if result[0] == index]


def listen(base: TrialScheduler, metric: str = "accuracy") -> Heard:
    """Record the calls and decisions of a scheduler, which keeps its type."""
    heard = Heard()
    on_result, on_complete = base.on_trial_result, base.on_trial_complete
    on_remove, on_error = base.on_trial_remove, base.on_trial_error
    on_add = base.on_trial_add

    def add(controller: Any, trial: Trial) -> None:
        heard.added.append(index_of(trial))
        on_add(controller, trial)

    def result(controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        if trial.status == Trial.PAUSED:  # it is reminded of a result that it has heard
            return on_result(controller, trial, result)
        heard.statuses.append(trial.status)
        score, at = result.get(metric), len(heard.results)
        decision = on_result(controller, trial, result)
        told = (index_of(trial), result["training_iteration"], score, decision)
        heard.results.insert(at, told)
        heard.generations.insert(at, result.get(GENERATION, 0))
        return decision

    by_itself: list[int] = []  # HyperBand tells itself to remove a trial that it hears of

    def complete(controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        heard.ends.append((index_of(trial), result.get(metric)))
        by_itself.append(index_of(trial))
        on_complete(controller, trial, result)
        by_itself.pop()

    def remove(controller: Any, trial: Trial) -> None:
        if by_itself[-1:] != [index_of(trial)]:
            heard.ends.append((index_of(trial), None))
        on_remove(controller, trial)

    def error(controller: Any, trial: Trial) -> None:
        heard.errors.append(index_of(trial))
        by_itself.append(index_of(trial))
        on_error(controller, trial)
        by_itself.pop()

    base.on_trial_result, base.on_trial_complete = result, complete
    base.on_trial_remove, base.on_trial_error = remove, error
    base.on_trial_add = add
    return heard


@dataclass
class Ran:
    """A finished sweep."""

    sweep: LocalSweep
    validation: tunekit.ValidationCallback
    executor: FakeExecutor
    clock: FakeClock
    heard: Heard

    @property
    def trials(self) -> list[Trial]:
        return self.sweep.trials

    @property
    def home(self) -> Path:
        """The experiment's folder."""
        return Path(self.sweep.controller._storage.experiment_fs_path)

    def lengths(self) -> dict[int, int]:
        return {index_of(t): t.last_result["training_iteration"] for t in self.trials}

    def validated(self, generation: int = 0) -> dict[int, dict[int, float]]:
        """By trial and iteration, the scores of a generation."""
        return {
            index: {i: score for (of, i), score in scores.items() if of == generation}
            for index, scores in self.scores().items()
        }

    def processed(self) -> dict[int, dict[tuple[int, int], float]]:
        """By trial, and by (generation, iteration), the scores that Tune has processed."""
        told = {
            (e["trial_id"], e["generation"], e["iteration"])
            for e in read(self.home, "processed")
            if e["ranked"]
        }
        names = {index_of(trial): trial.trial_id for trial in self.trials}
        return {
            index: {
                place: score for place, score in scores.items() if (names[index], *place) in told
            }
            for index, scores in self.scores().items()
        }

    def scores(self) -> dict[int, dict[tuple[int, int], float]]:
        """By trial, and by (generation, iteration), the scores."""
        found = scores_of(self.home)
        return {
            index_of(t): {
                place: m["accuracy"]
                for place, m in found[t.trial_id].items()
                if finite_number(m["accuracy"]) is not None
            }
            for t in self.trials
        }


@dataclass(frozen=True)
class Mode:
    """What trials do while scores are pending, and how they share the cluster with validations.

    Attributes:
        on_pending: As for ``ValidationConfig``.
        reuse_actors: As for ``TuneConfig``.
        shares: How trials and validations share the cluster.
        need: What a validation needs, if trials never have it.
    """

    on_pending: str
    reuse_actors: bool = False
    shares: Shares = field(default_factory=Shares)
    need: dict[str, float] | None = None


_BESIDE = Shares(apart=True, dedicated=True)
_PAUSED = Shares(exclusive=True)
_APART = {"validating": 1.0}
#: By their names in tests.
MODES: dict[str, Mode] = {
    "auto": Mode("auto"),
    "auto-beside": Mode("auto", shares=_BESIDE),  # validations have resources of their own
    "wait": Mode("wait"),
    "wait-reused": Mode("wait", reuse_actors=True),
    "wait-paused": Mode("wait", shares=_PAUSED, need=_APART),  # a trial or a validation runs
    "continue": Mode("continue"),
    "continue-reused": Mode("continue", reuse_actors=True),
}


def sweep(
    folder: Path,
    base: TrialScheduler | None = None,
    *,
    on_pending: str = "continue",
    trainable: type[tune.Trainable] = Counting,
    trials: int = 8,
    seed: int = 0,
    validate: Callable[[Attempt], Any] | None = None,
    validation_s: Callable[[Attempt], float] = lambda attempt: 1.0,
    training_s: Callable[[Trial, str], float] | None = None,
    settings: dict[str, Any] | None = None,
    policy: tunekit.policies.CheckpointPolicy | None = None,
    more_callbacks: tuple[tune.Callback, ...] = (),
    later_callbacks: tuple[tune.Callback, ...] = (),
    loggers: bool = False,
    run: bool = True,
    validation_slots: int = 1_000_000,
    metric: str | None = "accuracy",
    mode: str | None = "max",
    mended: int | None = None,
    listening: bool = True,
    executor_class: type[FakeExecutor] = FakeExecutor,
    **options: Any,
) -> Ran:
    """Run a sweep whose validations have the durations and outcomes that a test sets.

    Args:
        folder: The folder of the experiment's files.
        base: The scheduler; FIFO by default.
        on_pending: The name of one of :data:`MODES`.
        trainable, trials, metric, mode: What is trained, how often, and what ranks it.
        seed: That of Tune's random choices, and of the scores by default (:func:`quality`).
        validate: ``validate(attempt)`` returns the metrics of an attempt, or raises an error.
        validation_s: ``validation_s(attempt)`` returns its duration, in seconds.
        validation_slots: How many validations run at once outside of trials.
        training_s: As ``seconds`` of :class:`LocalSweep`; by default, 1 s for each iteration.
        settings: Of the ``ValidationConfig``. By default, each checkpoint is validated, and
            failures are ignored.
        policy: When trials save; by default, at each iteration.
        more_callbacks, later_callbacks: Before and after the one that validates.
        loggers: Whether Tune's own loggers write files.
        run: Whether it is run to its end.
        mended: In a restore, the line of the journal up to which the searcher was saved.
        listening: Whether calls of the scheduler are recorded.
        executor_class: What runs the validations.
        options: Further ones of :class:`LocalSweep`.
    """
    base, clock = base or FIFOScheduler(), FakeClock()
    numbers: dict[str, int] = {}

    def by_default(attempt: Attempt) -> dict[str, float]:
        request = attempt.request
        index = numbers.get(request.trial_id)
        if index is None:  # of a restored sweep, and not started since
            index = int(request.trial_id.rsplit("_", 1)[-1], 16)
        return {"accuracy": quality(index, request.iteration, seed)}

    executor = executor_class(
        clock,
        validate or by_default,
        validation_s,
        slots=validation_slots,
        in_trials=on_pending == "auto",
    )
    how = MODES[on_pending]
    if how.reuse_actors:
        options.setdefault("reuse_actors", True)
    by_itself = {
        "fn": lambda checkpoint: {},
        "when": 1,
        "on_pending": how.on_pending,
        "on_failure": "ignore",
    }
    config = tunekit.ValidationConfig(**{**by_itself, **(settings or {})})
    validation = tunekit.ValidationCallback(
        config,
        executor=executor,
        clock=clock,
    )
    if how.need is not None:
        executor.__class__ = type("Apart", (executor_class,), {"need": how.need})
    validation.shares = how.shares
    if mended is not None:
        validation.restore = Restore(mended)
    heard = listen(base) if listening else Heard()
    policy = policy or tunekit.EveryIterations(1)
    callbacks = [_Numbers(numbers), policy, *more_callbacks, validation, *later_callbacks]
    if loggers:
        callbacks += [JsonLoggerCallback(), CSVLoggerCallback()]
    local = LocalSweep(
        trainable,
        folder,
        clock,
        num_samples=trials,
        scheduler=tunekit.ValidatedScheduler(base),
        callbacks=callbacks,
        metric=metric,
        mode=mode,
        seconds=training_s or (lambda trial, method: 1.0 if method == "train" else 0.0),
        next_due=executor.next_due,
        seed=seed,
        **options,
    )
    if run:
        try:
            local.run(most=50_000)
        except (Exception, KeyboardInterrupt):
            validation.ledger.let_go()  # as Tuner.fit does
            raise
    return Ran(local, validation, executor, clock, heard)


class _Numbers(tune.Callback):
    """Keeps the number of each trial, which is part of its score."""

    def __init__(self, numbers: dict[str, int]):
        self.numbers = numbers

    def on_trial_start(self, iteration: int, trials: list, trial: Trial, **info: Any) -> None:
        self.numbers[trial.trial_id] = index_of(trial)
