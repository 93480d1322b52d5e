"""A randomised population, and the interleavings of its events that once went wrong.

Trials fail, save and restore slowly, validations are late or fail, few checkpoints are kept, and
the experiment is interrupted and restored. Each trial writes down what it loads, so that what a
clone goes on with is known from the trial itself and not from what the scheduler believes.
"""

from __future__ import annotations

import json
import pickle
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.experiment.trial import _TrainingRunMetadata
from ray.tune.schedulers import FIFOScheduler, ResourceChangingScheduler, TrialScheduler

import tunekit
from tests import schedulers
from tests.journals import scores_of
from tests.schedulers import MODES, more_and_less, pb2, pbt, seed_all
from tests.sweeps import Ran, sweep
from tunekit.core.events import Event as Recorded
from tunekit.core.events import Exploited
from tunekit.core.validation import Attempt
from tunekit.core.values import number

pytestmark = pytest.mark.sampled(2)

#: A sweep that is not over after so many steps hangs.
MOST_STEPS = 30_000

Event: TypeAlias = dict[str, Any]


class Settings(SimpleNamespace):
    """What kind of a population.

    Attributes:
        kind: Its scheduler.
        on_pending: What a trial does that waits for its score.
        trials, slots: How many there are, and how many may run at once.
        lag_s, save_s, restore_s: What a validation, a save and a restore take, at most.
        keep: How many checkpoints of each trial; None for all.
        ranked: Whether the best are kept, rather than the newest.
        failing: The probability that a call of the trainable fails.
        invalid: The probability that a validation fails.
        max_in_flight: As in ``ValidationConfig``.
        interval, burn_in: How often PBT perturbs, and from when.
        every: Iterations from one checkpoint to the next.
        length: How many iterations, if ``end_by`` is not a score.
        end_by: ``"done"`` by the trainable, ``"stop"`` by an iteration, ``"stop_metric"`` by a
            score.
        at_end: Whether a trial saves a checkpoint when it ends.
        reuse: Whether trials take over each other's actors.
        loggers: Whether results are written to files.
        restore_at: After which steps the experiment is interrupted and restored.
    """


def draw(seed: int, *, restores: int = 0, **fixed: Any) -> Settings:
    """Settings at random, but for those that are given."""
    rng = random.Random(seed)
    settings = Settings(
        kind=rng.choice(["pbt", "pbt", "pbt-sync", "pb2", "replay", "resources-pbt"]),
        on_pending=rng.choice(MODES),
        trials=rng.randint(2, 7),
        lag_s=rng.choice([0.0, 1.0, 4.0, 10.0]),
        slots=rng.randint(1, 8),
        keep=rng.choice([None, 1, 2]),
        ranked=rng.choice([True, False]),
        failing=rng.choice([0.0, 0.0, 0.05]),
        save_s=rng.choice([0.0, 0.3, 2.5]),
        restore_s=rng.choice([0.0, 0.3, 1.5]),
        max_in_flight=rng.choice([None, 1, 3]),
        invalid=rng.choice([0.0, 0.0, 0.2]),
        interval=rng.choice([1, 2, 3]),
        every=rng.choice([1, 1, 2]),
        length=rng.choice([6, 12]),
        reuse=rng.choice([False, False, True]),
        burn_in=rng.choice([0, 2]),
        at_end=rng.choice([False, True]),
        loggers=rng.choice([False, False, True]),
        end_by=rng.choice(["done", "stop", "stop_metric"]),
        restore_at=tuple(sorted(rng.sample(range(5, 400), restores))),
    )
    return _compatible(Settings(**{**vars(settings), **fixed}))


def _compatible(settings: Settings) -> Settings:
    """The same, without what does not go together."""
    if settings.kind == "pbt-sync" and settings.on_pending == "continue":
        settings.on_pending = "wait"
    if settings.kind == "resources-pbt" and settings.on_pending == "wait-reused":
        settings.on_pending = "wait"
    if settings.on_pending == "wait-reused":
        settings.reuse = True
    if settings.on_pending == "wait-paused" or settings.kind == "resources-pbt":
        settings.reuse = False
    if settings.kind == "replay":
        settings.trials = 1
    return settings


def scheduler(settings: Settings, folder: Path, constants: dict[str, Any]) -> TrialScheduler:
    """The scheduler of a population; ``constants`` are what all of its trials are configured with.

    A replay knows the whole configuration, so they are put into its policy.
    """
    interval = settings.interval
    if settings.kind == "pbt":
        return pbt(perturbation_interval=interval, burn_in_period=settings.burn_in, log_config=True)
    if settings.kind == "pbt-sync":
        return pbt(perturbation_interval=interval, synch=True)
    if settings.kind == "pb2":
        return pb2(folder)
    if settings.kind == "resources-pbt":
        return ResourceChangingScheduler(pbt(perturbation_interval=interval), more_and_less)
    replay = schedulers.replay(folder)
    for config in [replay.config, *(config for _, config in replay._policy)]:
        config.update(constants)
    return replay


def write(log: Path, event: str, **what: Any) -> None:
    """Add an event to the log of a population."""
    with log.open("a") as file:
        file.write(json.dumps({"event": event, **what}) + "\n")


def read(log: Path) -> list[Event]:
    """What was written so far."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def quality(version: str, steps: int) -> float:
    """The score of a version: no two have the same, and training helps a bit."""
    return random.Random(version).random() + 0.05 * steps


class Logged(tune.Trainable):
    """Its weights are a version, another one after each step; it logs those that it saves or loads.

    Any of its calls may fail.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self.config = config
        self.steps, self.version = 0, "new"
        # Another one in each actor, also in those of one trial.
        self.rng = random.Random(f"{config['seed']}/{len(read(Path(config['log'])))}")
        self.note("setup")

    def step(self) -> dict[str, Any]:
        self.may_fail()
        self.steps += 1
        self.version = f"{self.rng.getrandbits(64):016x}"
        length = self.config["length"]
        done = length is not None and self.steps >= length
        return {"loss": 1.0, "version": self.version, "done": done}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        self.may_fail()
        self.note("save")
        return {"version": self.version, "steps": self.steps, "lr": self.config["lr"]}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.may_fail()
        self.version, self.steps = checkpoint["version"], checkpoint["steps"]
        self.note("load", iteration=self.iteration)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.config = new_config
        self.steps, self.version = 0, "reset"
        return True

    def may_fail(self) -> None:
        if self.rng.random() < self.config["failing"]:
            raise RuntimeError("fails on purpose")

    def note(self, event: str, **more: Any) -> None:
        write(
            Path(self.config["log"]),
            event,
            trial=self.trial_id,
            version=self.version,
            lr=self.config["lr"],
            **more,
        )


class Population:
    """Runs a population, and looks for what must not happen.

    Args:
        seed: Of all that is drawn while it runs.
        folder: Where its files go.
        settings: What kind of a population.
    """

    def __init__(self, seed: int, folder: Path, settings: Settings):
        self.seed, self.folder, self.settings = seed, folder, settings
        self.log = folder / "events.jsonl"
        self.found_other: list[str] = []
        self._failures = random.Random(seed)
        self._lags = random.Random(seed + 1)
        self._calls = random.Random(seed + 2)
        self._built = 0
        seed_all(seed)
        self.ran = self._build()

    def run(self) -> None:
        """Run it to the end, with its interruptions; look for what must not happen."""
        steps = 0
        while not self.ran.sweep.controller.is_finished():
            self.ran.sweep.step()
            steps += 1
            assert steps <= MOST_STEPS, "the sweep does not end"
            if steps in self.settings.restore_at:
                self._restore()
            if steps % 7 == 0:
                check_disk(self.ran)
        self.ran.sweep.run(most=1)  # what comes after the last step
        events = read(self.log)
        assert not self.found_other, "a validation found other content than was reported"
        check_clones(events)
        check_ends(self.ran, may_fail=self.settings.failing > 0)
        check_left(self.ran)
        if self.settings.keep is not None:
            check_kept(self.ran, self.settings.keep)
        if self.settings.loggers:
            check_rows(self.ran, events)

    def _build(self) -> Ran:
        settings = self.settings
        constants = {
            "log": str(self.log),
            "seed": self.seed,
            "failing": settings.failing,
            "length": settings.length if settings.end_by == "done" else None,
        }
        base = scheduler(settings, self.folder, constants)
        searched = {} if settings.kind == "replay" else {"lr": tune.uniform(0.0, 1.0)}
        ran = sweep(
            self.folder,
            base,
            on_pending=settings.on_pending,
            trainable=Logged,
            trials=settings.trials,
            seed=self.seed,
            validate=self._validate,
            validation_s=lambda attempt: settings.lag_s * self._lags.random(),
            training_s=self._training_s,
            settings={"max_in_flight": settings.max_in_flight, "max_retries": 0},
            policy=tunekit.EveryIterations(settings.every),
            loggers=settings.loggers,
            checkpoint_config=tune.CheckpointConfig(
                num_to_keep=settings.keep,
                checkpoint_at_end=settings.at_end,
                checkpoint_score_attribute="accuracy" if settings.ranked else None,
            ),
            slots=settings.slots,
            max_failures=-1 if settings.failing else 0,
            param_space={**constants, **searched} if searched else {},
            stop=self._stop(),
            run=False,
        )
        _forget_listeners(base)
        self._log_exploits(ran.validation)
        controller = ran.sweep.controller
        controller._reuse_actors = settings.reuse
        # Tune names the files of an experiment's state by the second at which it began, and
        # restores the newest: a restored one may begin within the same second.
        controller._session_str = f"{self._built:04d}"
        self._built += 1
        return ran

    def _restore(self) -> None:
        """Save the experiment, drop it, and go on with another one that is restored from it."""
        if self.ran.sweep.controller.is_finished():
            return
        self.ran.sweep.controller.checkpoint(force=True, wait=True)
        self.ran.validation.ledger.let_go()
        self.ran = self._build()
        self.ran.sweep.controller.resume(tune.ResumeConfig())
        self.ran.sweep.controller._resumed = True  # as Tune does then
        self.ran.validation.setup()  # which Tune calls when it has resumed

    def _stop(self) -> dict[str, float] | None:
        length = self.settings.length
        return {
            "done": None,
            "stop": {"training_iteration": length},
            "stop_metric": {"accuracy": 1.5, "training_iteration": 3 * length},
        }[self.settings.end_by]

    def _training_s(self, trial: Trial, method: str) -> float:
        share = self._calls.random()
        if method == "train":
            return 0.5 + share
        return share * {"save": self.settings.save_s, "restore": self.settings.restore_s}.get(
            method, 0.0
        )

    def _validate(self, attempt: Attempt) -> dict[str, float]:
        request = attempt.request
        saved = pickle.loads(Path(request.path, "_dict_checkpoint.pkl").read_bytes())
        if saved["version"] != request.report["version"]:
            self.found_other.append(attempt.id)
        if self._failures.random() < self.settings.invalid:
            raise ValueError("fails on purpose")
        score = quality(saved["version"], saved["steps"])
        write(self.log, "validated", path=request.path, score=score, **saved)
        return {"accuracy": score}

    def _log_exploits(self, validation: tunekit.ValidationCallback) -> None:
        real = validation.emit

        def emit(event: Recorded) -> None:
            if isinstance(event, Exploited):
                write(
                    self.log,
                    "exploited",
                    trial=event.trial_id,
                    path=event.checkpoint,
                    score=event.score,
                    iteration=event.iteration,
                    donor_lr=event.donor_config["lr"],
                    lr=event.config["lr"],
                )
            real(event)

        validation.emit = emit


def _forget_listeners(base: TrialScheduler) -> None:
    """Undo ``tests.sweeps.listen``, with which a scheduler cannot be saved."""
    for name in ("on_trial_result", "on_trial_complete", "on_trial_remove", "on_trial_error"):
        vars(base).pop(name, None)


def check_disk(ran: Ran) -> None:
    """While it runs: what Tune may still restore is there."""
    for trial in ran.trials:
        if not trial.local_path or trial.is_saving:
            continue
        gone = {path for path in known(trial) if not Path(path).exists()}
        assert not gone, f"{trial}: a checkpoint that Tune knows was deleted: {gone}"
        if trial.checkpoint and not trial.is_finished():
            assert Path(trial.checkpoint.path).exists(), f"{trial} would be restored from nothing"
    assert all(Path(path).exists() for path in ran.validation.engine.leases), "it may be cloned"
    for _, metadata in ran.sweep.controller._get_trial_checkpoints().values():
        manager = _TrainingRunMetadata.from_json_state(metadata).checkpoint_manager
        saved = [result.checkpoint.path for result in manager._checkpoint_results]
        assert all(Path(path).exists() for path in saved), "the saved state knows a deleted one"


def check_clones(events: list[Event]) -> None:
    """Each clone has loaded what was scored, and goes on as was recorded."""
    scored: dict[tuple[str, float], Event] = {}
    # By trial, what it is to load until it saves something of its own.
    due: dict[str, tuple[Event, Event]] = {}
    for event in events:
        if event["event"] == "validated":
            scored[event["path"], event["score"]] = event
        elif event["event"] == "exploited":
            version = scored[event["path"], event["score"]]
            assert version["lr"] == event["donor_lr"], "it is that of the checkpoint"
            due[event["trial"]] = (event, version)
        elif event["event"] == "load" and event["trial"] in due:
            exploit, version = due[event["trial"]]
            assert event["version"] == version["version"], (event, exploit, version)
            for name in ("lr", "iteration"):
                assert event[name] == exploit[name], (event, exploit)
        elif event["event"] == "save":
            due.pop(event["trial"], None)


def check_ends(ran: Ran, *, may_fail: bool) -> None:
    """At the end: all trials have come to theirs."""
    for trial in ran.trials:
        file = Path(trial.local_path, "error.txt") if trial.local_path else None
        error = file.read_text() if file and file.exists() else ""
        assert trial.status == Trial.TERMINATED, (str(trial), trial.status, error[-500:])
        assert may_fail or not trial.num_failures, (str(trial), error[-500:])
        assert "not exist" not in error, "it was restored from a checkpoint that is gone"


def check_left(ran: Ran) -> None:
    """At the end: nothing is left to do, and nothing is kept but what a trial is restored from."""
    tune = ran.validation.controller
    assert not (tune._queues or tune.standing or tune._cached_trial_decisions)
    restorable = {trial.checkpoint.path for trial in ran.trials if trial.checkpoint}
    assert restorable.issuperset(ran.validation.engine.leases), "a lease that nobody needs"
    assert all(Path(path).exists() for path in ran.validation.engine.leases)


def check_kept(ran: Ran, keep: int) -> None:
    """At the end: each trial has what was to be kept, its newest checkpoint and what is leased."""
    for trial in ran.trials:
        assert len(known(trial) - set(ran.validation.engine.leases)) <= keep + 1, str(trial)


def check_rows(ran: Ran, events: list[Event]) -> None:
    """At the end: the rows of each trial are in order, with the scores of what they report."""
    versions = {e["score"]: e["version"] for e in events if e["event"] == "validated"}
    for trial in ran.trials:
        file = Path(trial.local_path or "", "result.json")
        if not trial.local_path or not file.exists():
            continue
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        # A trial that has failed runs some iterations again, as in Tune.
        newest = {(row["generation"], row["training_iteration"]): row for row in rows}
        assert list(newest) == sorted(newest), str(trial)
        history = scores_of(ran.home)[trial.trial_id].items()
        scores = {place: metrics["accuracy"] for place, metrics in history}
        for place, row in newest.items():
            score = scores.get(place)
            assert number(row.get("accuracy")) == score, (str(trial), place)
            assert score is None or row["version"] == versions[score], (str(trial), place)


def known(trial: Trial) -> set[str]:
    """The paths of the checkpoints that Tune has of a trial."""
    results = trial.run_metadata.checkpoint_manager._checkpoint_results
    return {result.checkpoint.path for result in results}


def calm(seed: int, **settings: Any) -> Settings:
    """A population in which only validations are late: for what is to be shown alone."""
    return draw(
        seed,
        **{
            "trials": 6,
            "slots": 6,
            "lag_s": 10.0,
            "keep": 1,
            "failing": 0.0,
            "invalid": 0.0,
            "interval": 1,
            "every": 1,
            "length": 12,
            "end_by": "stop_metric",
            "reuse": False,
            "burn_in": 0,
            "loggers": False,
            **settings,
        },
    )


@pytest.mark.parametrize("seed", range(12))
def test_any_population(tmp_path, seed):
    settings = draw(seed, restores=seed % 3)
    Population(seed, tmp_path, settings).run()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", [400, 402])
@pytest.mark.parametrize(
    "settings",
    [
        # A trial without a score at a perturbation goes past it, where the others wait for it; one
        # that has just become a clone is a donor of what it stands at, not of what it was.
        {"kind": "pbt-sync", "invalid": 0.2},
        # All trials go past the iteration at which they are to be compared.
        {"kind": "pbt-sync", "every": 2, "trials": 2, "end_by": "stop", "length": 8},
        # Where trials stand, what is offered and what is to be cloned is leased again.
        *(
            {"kind": "pbt", "lag_s": 4.0, "on_pending": mode, "at_end": False, "restores": 1}
            for mode in MODES
        ),
    ],
)
def test_populations_in_which_only_validations_are_late(tmp_path, seed, settings):
    Population(seed, tmp_path, calm(seed, **settings)).run()


def test_a_checkpoint_that_is_gone_already_ends_no_sweep(tmp_path):
    """As after a crash: the restored state knows one that was deleted since it was saved."""
    ran = sweep(
        tmp_path,
        FIFOScheduler(),
        trials=1,
        on_pending="wait",
        validate=lambda attempt: {"accuracy": attempt.request.iteration},
        checkpoint_config=tune.CheckpointConfig(
            num_to_keep=2, checkpoint_score_attribute="accuracy"
        ),
        run=False,
    )
    gone: list[str] = []
    while not ran.sweep.controller.is_finished():
        ran.sweep.step()
        for trial in ran.trials:
            results = trial.run_metadata.checkpoint_manager._checkpoint_results
            if len(results) > 1 and not gone:
                gone.append(results[0].checkpoint.path)
                shutil.rmtree(gone[0])
    assert gone, "no checkpoint was there to be deleted: the test shows nothing"
    assert ran.trials[0].status == Trial.TERMINATED
