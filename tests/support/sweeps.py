"""Sweeps for tests, planned step by step and run in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import ResumeConfig
from ray.tune.experiment import Trial
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

import tunekit
from tests.support.fakes import FakeClock, FakeExecutor
from tests.support.heard import Heard, listen
from tests.support.journals import read, scores_of
from tests.support.local_sweep import LocalSweep, index_of
from tests.support.modes import Mode
from tests.support.restores import prepare_restore
from tests.support.trainables import Counting, quality
from tunekit.core.validation import Attempt
from tunekit.core.values import finite_number
from tunekit.driver.restore import Restore
from tunekit.policies import CheckpointPolicy


def rows_of(trial: Trial) -> list[dict[str, Any]]:
    """Return the rows of a trial's ``result.json``."""
    lines = Path(trial.local_path, "result.json").read_text().splitlines()
    return [json.loads(line) for line in lines]


class SavesWhen(CheckpointPolicy):
    """A checkpoint at the iterations that a test names."""

    def __init__(self, due: Callable[[Trial, Mapping[str, Any]], bool]):
        self._due = due

    def due(self, trial: Trial, result: Mapping[str, Any]) -> bool:
        return bool(self._due(trial, result))


class Most(tune.Callback):
    """Return the largest number of trials of a kind at one time."""

    def __init__(self, kind: Callable[[Trial], bool]):
        self.kind, self.most = kind, 0

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        self.most = max(self.most, sum(map(self.kind, trials)))


@dataclass
class Ran:
    """A sweep that has run, or can be run step by step."""

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
class Plan:
    """A sweep to be run, with validations as long and as good as a test sets; FIFO by default.

    Each method below returns a new plan; what the method is not given stays as it was.

    Attributes:
        folder: The storage path; the experiment is in its subfolder ``sweep``.
        base: The scheduler; it keeps state, so that a plan with one is run once.
        mode: What trials do while scores are pending.
        trials: How many.
        seed: That of Tune's random choices, and of the scores by default (:func:`quality`).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plan = Plan(Path(folder), mode=Mode.WAIT, trials=2).training(slots=1)
        ...     ran = plan.validating(lambda attempt: {"accuracy": 0.5}, seconds=3.0).run()
        >>> ran.lengths(), ran.validation.summary()["validated"]
        ({0: 9, 1: 9}, 18)
    """

    folder: Path
    base: TrialScheduler | None = None
    mode: Mode = Mode.CONTINUE
    _: KW_ONLY
    trials: int = 8
    seed: int = 0
    _trainable: type[tune.Trainable] = Counting
    _training_s: Mapping[str, float] | Callable[[Trial, str], float] = field(
        default_factory=lambda: {"train": 1.0}
    )
    _slots: int | Callable[[], int] = 1_000_000
    _saves: tune.Callback | None = None
    _outcome: Callable[[Attempt], Any] | None = None
    _validation_s: float | Callable[[Attempt], float] = 1.0
    _validation_slots: int = 1_000_000
    _executor: type[FakeExecutor] = FakeExecutor
    _settings: Mapping[str, Any] = field(default_factory=dict)
    _tuning: Mapping[str, Any] = field(default_factory=dict)
    _first: tuple[tune.Callback, ...] = ()
    _last: tuple[tune.Callback, ...] = ()
    _resume: ResumeConfig | None = None

    def training(
        self,
        trainable: type[tune.Trainable] | None = None,
        *,
        seconds: Mapping[str, float] | Callable[[Trial, str], float] | None = None,
        slots: int | Callable[[], int] | None = None,
        saves: tune.Callback | None = None,
    ) -> Plan:
        """Set what is trained.

        Args:
            trainable: By default, :class:`Counting`.
            seconds: The duration of each method, or a function of the trial and the method; by
                default, 1 s for each iteration.
            slots: How many trials run at once, or a function that returns that.
            saves: The policy of when trials save; by default, at each iteration.
        """
        return self._with(_trainable=trainable, _training_s=seconds, _slots=slots, _saves=saves)

    def validating(
        self,
        outcome: Callable[[Attempt], Any] | None = None,
        *,
        seconds: float | Callable[[Attempt], float] | None = None,
        slots: int | None = None,
        executor: type[FakeExecutor] | None = None,
        **settings: Any,
    ) -> Plan:
        """Set how checkpoints are validated.

        Args:
            outcome: ``outcome(attempt)`` returns the metrics of an attempt, or raises an error.
            seconds: The duration of an attempt, or a function of it.
            slots: How many validations run at once outside of trials.
            executor: The class of what runs them.
            settings: Of the ``ValidationConfig``. By default, each checkpoint is validated, and
                failures are ignored.
        """
        return self._with(
            _outcome=outcome,
            _validation_s=seconds,
            _validation_slots=slots,
            _executor=executor,
            _settings={**self._settings, **settings},
        )

    def tuning(self, **options: Any) -> Plan:
        """Set further options of :class:`LocalSweep`; the metric is ``accuracy`` by default."""
        return self._with(_tuning={**self._tuning, **options})

    def calling(self, *callbacks: tune.Callback, last: tuple[tune.Callback, ...] = ()) -> Plan:
        """Add callbacks before the one that validates, and after it."""
        return self._with(_first=(*self._first, *callbacks), _last=(*self._last, *last))

    def logging(self) -> Plan:
        """Let Tune's own loggers write files."""
        return self.calling(last=(JsonLoggerCallback(), CSVLoggerCallback()))

    def restored(self, **resume: Any) -> Plan:
        """Continue the sweep in the folder, as with a ``ResumeConfig``."""
        return self._with(_resume=ResumeConfig(**resume))

    def _with(self, **parts: Any) -> Plan:
        return replace(self, **{name: part for name, part in parts.items() if part is not None})

    def start(self) -> Ran:
        """Prepare the sweep without running a step."""
        base, clock = self.base or FIFOScheduler(), FakeClock()
        numbers: dict[str, int] = {}

        def by_default(attempt: Attempt) -> dict[str, float]:
            request = attempt.request
            index = numbers.get(request.trial_id)
            if index is None:  # of a restored sweep, and not started since
                index = int(request.trial_id.rsplit("_", 1)[-1], 16)
            return {"accuracy": quality(index, request.iteration, self.seed)}

        validation_s, training_s = self._validation_s, self._training_s
        executor = self._executor(
            clock,
            self._outcome or by_default,
            validation_s if callable(validation_s) else lambda attempt: validation_s,
            slots=self._validation_slots,
            in_trials=self.mode is Mode.AUTO,
        )
        if self.mode.need is not None:
            executor.__class__ = type("Apart", (self._executor,), {"need": self.mode.need})
        settings = {
            "fn": lambda checkpoint: {},
            "when": 1,
            "on_pending": self.mode.on_pending,
            "on_failure": "ignore",
        }
        config = tunekit.ValidationConfig(**{**settings, **self._settings})
        validation = tunekit.ValidationCallback(config, executor=executor, clock=clock)
        validation.shares = self.mode.shares
        if self._resume is not None:
            validation.restore = Restore(prepare_restore(self.folder / "sweep"))
        heard = listen(base, self._tuning.get("metric") or "accuracy")
        policy = self._saves or tunekit.EveryIterations(1)
        options = {
            "metric": "accuracy",
            "mode": "max",
            "reuse_actors": self.mode.reuse_actors,
            "resume": self._resume,
            **self._tuning,
        }
        local = LocalSweep(
            self._trainable,
            self.folder,
            clock,
            num_samples=self.trials,
            scheduler=tunekit.ValidatedScheduler(base),
            callbacks=[_Numbers(numbers), policy, *self._first, validation, *self._last],
            slots=self._slots,
            seconds=(
                training_s
                if callable(training_s)
                else lambda trial, method: training_s.get(method, 0.0)
            ),
            next_due=executor.next_due,
            seed=self.seed,
            **options,
        )
        return Ran(local, validation, executor, clock, heard)

    def run(self) -> Ran:
        """Run the sweep to its end."""
        ran = self.start()
        try:
            ran.sweep.run(most=50_000)
        except (Exception, KeyboardInterrupt):
            ran.validation.ledger.let_go()  # as Tuner.fit does
            raise
        return ran


class _Numbers(tune.Callback):
    """Keeps the number of each trial, which is part of its score."""

    def __init__(self, numbers: dict[str, int]):
        self.numbers = numbers

    def on_trial_start(self, iteration: int, trials: list, trial: Trial, **info: Any) -> None:
        self.numbers[trial.trial_id] = index_of(trial)
