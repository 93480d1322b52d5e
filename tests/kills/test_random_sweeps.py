"""A randomly killed sweep loses nothing and does nothing twice, with every scheduler.

Trials fail, save and restore slowly, validations are late or fail, few checkpoints are kept, and
the driver is killed. Each report names the weights that it began with, so that what a clone
continues with is known from the trial itself and not from what the scheduler believes.
"""

from __future__ import annotations

import math
import pickle
import random
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.experiment.trial import _TrainingRunMetadata
from ray.tune.result import RESULT_DUPLICATE
from ray.tune.schedulers import TrialScheduler

from tests.support.invariants import check_journal
from tests.support.journals import scores_of
from tests.support.kills import run_killed
from tests.support.modes import MODES, Mode
from tests.support.schedulers import CASES, every_case, pbt, seed_all, space
from tests.support.seeds import seeds
from tests.support.sweeps import Plan, Ran, rows_of
from tunekit._ray.asking import INQUIRY
from tunekit.core.events import Exploited, Reported, TrialAdded, ValidationEnded
from tunekit.core.inquiry import Inquiry
from tunekit.core.metrics import GENERATION
from tunekit.core.validation import FAILED, Attempt
from tunekit.core.values import finite_number
from tunekit.journal.journal import events_in
from tunekit.policies import AtDecisions, EveryIterations


class Settings(SimpleNamespace):
    """The settings of a sweep.

    Attributes:
        kind: Its scheduler.
        mode: What trials do while scores are pending.
        when: As in ``ValidationConfig``.
        trials, slots: How many there are, and how many may run at once.
        lag_s, save_s, restore_s: What a validation, a save and a restore take, at most.
        keep: How many checkpoints of each trial; None for all.
        ranked: Whether the best are kept, rather than the newest.
        failing: The probability that a call of the trainable fails.
        invalid: The probability that a validation fails, or has no finite score.
        retries: As ``max_retries`` in ``ValidationConfig``.
        max_in_flight: As in ``ValidationConfig``.
        interval, burn_in: How often PBT perturbs, and from when.
        every: Iterations from one checkpoint to the next; None for one where the scheduler decides.
        length: How many iterations, if ``end_by`` is not a score.
        end_by: ``"done"`` by the trainable, ``"stop"`` by an iteration, ``"stop_metric"`` by a
            score.
        at_end: Whether a trial saves a checkpoint when it ends.
        reuse: Whether trials take over each other's actors.
        loggers: Whether results are written to files.
        lives: After how many writes each driver is killed, but the last.
        torn: Whether it is killed in the middle of a write.
        elsewhere: Whether it is restored on another machine.
        saved_every_s: How often Tune saves its state.
        asks: The probability that a trial asks for its scores after a report, and perhaps waits.
    """


#: Half of the populations: all their validations are late, and each clone is of what was scored.
CALM = {"trials": 6, "slots": 6, "lag_s": 10.0, "keep": 1, "failing": 0.0, "invalid": 0.0}
CALM |= {"interval": 1, "every": 1, "length": 12, "end_by": "stop_metric", "reuse": False}
CALM |= {"burn_in": 0, "loggers": False}


def draw(seed: int, *, kills: int = 0, **fixed: Any) -> Settings:
    """Return random settings, except for those that are given."""
    rng = random.Random(seed)
    settings = Settings(
        kind="pbt",
        mode=rng.choice(MODES),
        when=rng.choice([1, "auto"]),
        trials=rng.randint(2, 7),
        lag_s=rng.choice([0.0, 1.0, 4.0, 10.0]),
        slots=rng.randint(2, 8),  # one at a time, PBT may overwrite its trials for ever
        keep=rng.choice([None, 1, 2]),
        ranked=rng.choice([True, False]),
        failing=rng.choice([0.0, 0.0, 0.05]),
        save_s=rng.choice([0.0, 0.3, 2.5]),
        restore_s=rng.choice([0.0, 0.3, 1.5]),
        max_in_flight=rng.choice([None, 1, 3]),
        invalid=rng.choice([0.0, 0.0, 0.2]),
        interval=rng.choice([1, 2, 3]),
        every=rng.choice([1, 1, 2, None]),
        length=rng.choice([6, 12]),
        reuse=rng.choice([False, False, True]),
        burn_in=rng.choice([0, 2]),
        at_end=rng.choice([False, True]),
        loggers=rng.choice([False, True]),
        end_by=rng.choice(["done", "stop", "stop_metric"]),
        lives=rng.sample(range(5, 300), kills),
        saved_every_s=rng.choice([0.0, float("inf"), float("inf")]),
        asks=rng.choice([0.0, 0.0, 0.5]),
        retries=rng.choice([0, 0, 1]),
        torn=rng.choice([False, True]),
        elsewhere=rng.choice([False, True]),
    )
    if fixed.get("kind", "pbt") in ("pbt", "pbt-sync") and rng.random() < 0.5:
        vars(settings).update(CALM)
    vars(settings).update(fixed)
    if settings.mode is Mode.WAIT_REUSED:
        settings.reuse = True
    if settings.mode is Mode.WAIT_PAUSED or settings.kind == "resources":
        settings.reuse = False
    return settings


def scheduler(settings: Settings, folder: Path) -> TrialScheduler:
    interval = settings.interval
    if settings.kind == "pbt":
        return pbt(perturbation_interval=interval, burn_in_period=settings.burn_in, log_config=True)
    if settings.kind == "pbt-sync":
        return pbt(perturbation_interval=interval, synch=True)
    return CASES[settings.kind].make(folder / "policies")


def quality(version: str, steps: int) -> float:
    """The score of a version: no two have the same, and training helps a bit."""
    return random.Random(version).random() + 0.05 * steps


#: What trials were told that is wrong.
WRONG: list[str] = []


class Drawn(tune.Trainable):
    """Its weights are a version, another one after each step; any of its calls may fail."""

    failing = asks = 0.0
    length: int | None = None

    def setup(self, config: dict[str, Any]) -> None:
        self.steps, self.version = 0, "new"
        # The versions that have led to its weights.
        self.line: list[str] = []
        self.owes = False
        # Other ones in each actor, also in those of one trial.
        actors = Path(self.logdir, "actors")
        with actors.open("a") as file:
            file.write("one more\n")
        name = f"{self.trial_id}/{actors.stat().st_size}"
        self.rng, self.asker = random.Random(name), random.Random(f"{name}/asks")

    def step(self) -> dict[str, Any]:
        self.may_fail()
        if "told" in vars(self):
            known = [one.metrics["version"] for one in vars(self).pop("told")]
            if not {*known} <= {*self.line}:
                WRONG.append(f"{self.trial_id} was told of other weights than its own")
        if self.owes and self.asker.random() < self.asks:
            self.owes = False
            inquiry = Inquiry(self.asker.random() < 0.7, self.asker.choice([None, 0.5, 3.0]))
            return {INQUIRY: inquiry, RESULT_DUPLICATE: True}
        self.owes = True
        former, self.version = self.version, f"{self.rng.getrandbits(64):016x}"
        self.steps += 1
        self.line.append(self.version)
        done = self.length is not None and self.steps >= self.length
        known = {"version": self.version, "former": former, "lr": self.config["lr"]}
        return {"loss": 1.0, "done": done, **known}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        self.may_fail()
        own = {"version": self.version, "steps": self.steps, "lr": self.config["lr"]}
        return {**own, "line": list(self.line)}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.may_fail()
        self.version, self.steps = checkpoint["version"], checkpoint["steps"]
        self.line, self.owes = list(checkpoint["line"]), False

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.config = new_config
        self.steps, self.version, self.line, self.owes = 0, "reset", [], False
        return True

    def may_fail(self) -> None:
        if self.rng.random() < self.failing:
            raise RuntimeError("fails on purpose")


class Looks(tune.Callback):
    """Looks at the disk after each seventh step."""

    ran: Ran

    def __init__(self) -> None:
        self.steps = 0

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        self.steps += 1
        if self.steps % 7 == 0:
            check_disk(self.ran)


class Watched(Plan):
    """A plan of a sweep at whose disk a test looks."""

    def start(self) -> Ran:
        looks = Looks()
        looks.ran = Plan.start(self.calling(looks))
        return looks.ran


def run(folder: Path, seed: int, settings: Settings) -> None:
    """Run a sweep to its end, with its kills; look for what must not happen."""
    calls, failures, lags = (random.Random(seed + n) for n in range(3))
    # By score: a restored session may repeat a step of a killed one, with other hyperparameters.
    scored: dict[float, list[dict[str, Any]]] = {}
    found_other: list[str] = []

    def training_s(trial: Trial, method: str) -> float:
        share, known = calls.random(), {"save": settings.save_s, "restore": settings.restore_s}
        return 0.5 + share if method == "train" else share * known.get(method, 0.0)

    def validate(attempt: Attempt) -> Any:
        saved = pickle.loads(Path(attempt.request.path, "_dict_checkpoint.pkl").read_bytes())
        if saved["version"] != attempt.request.report["version"]:
            found_other.append(attempt.id)
        if failures.random() < settings.invalid:
            outcome = failures.choice([ValueError("fails on purpose"), "no metrics", math.nan])
            if isinstance(outcome, Exception):
                raise outcome
            return outcome if isinstance(outcome, str) else {"accuracy": outcome}
        score = quality(saved["version"], saved["steps"])
        scored.setdefault(score, []).append(saved)
        return {"accuracy": score}

    length = settings.length
    ends = {"length": length if settings.end_by == "done" else None}
    ends |= {"failing": settings.failing, "asks": settings.asks}

    def made(folder: Path) -> Plan:
        case, base = CASES[settings.kind], scheduler(settings, folder)
        trials = case.trials or settings.trials
        plan = (
            Watched(folder, base, settings.mode, trials=trials, seed=seed)
            .training(
                type("Drawn", (Drawn,), ends),
                seconds=training_s,
                slots=settings.slots,
                saves=EveryIterations(settings.every) if settings.every else AtDecisions(),
            )
            .validating(
                validate,
                seconds=lambda attempt: settings.lag_s * lags.random(),
                when=settings.when,
                max_in_flight=settings.max_in_flight,
                max_retries=settings.retries,
            )
            .tuning(
                checkpoint_config=tune.CheckpointConfig(
                    num_to_keep=settings.keep,
                    checkpoint_at_end=settings.at_end,
                    checkpoint_score_attribute="accuracy" if settings.ranked else None,
                ),
                max_failures=-1 if settings.failing else 0,
                stop={
                    "done": None,
                    "stop": {"training_iteration": length},
                    "stop_metric": {"accuracy": 1.5, "training_iteration": 3 * length},
                }[settings.end_by],
                reuse_actors=settings.reuse,
                saved_every_s=settings.saved_every_s,
                **{**space(), **case.tuning()},
            )
        )
        return plan.logging() if settings.loggers else plan

    seed_all(seed)
    WRONG.clear()
    killed = {"torn": settings.torn, "elsewhere": settings.elsewhere}
    ran, _ = run_killed(folder, made, iter(settings.lives), **killed)
    assert not WRONG
    assert not found_other, "a validation found other content than was reported"
    events = events_in(ran.home)
    check_journal(events)
    check_clones(events, scored)
    check_ends(ran, may_fail=settings.failing > 0)
    check_left(ran, settings)
    if settings.loggers:
        check_rows(ran, scored)


def known(trial: Trial) -> set[str]:
    """The paths of the checkpoints that Tune has of a trial."""
    results = trial.run_metadata.checkpoint_manager._checkpoint_results
    return {result.checkpoint.path for result in results}


def check_disk(ran: Ran) -> None:
    """While it runs, every checkpoint that Tune may restore exists."""
    for trial in ran.trials:
        if not trial.local_path or trial.is_saving:
            continue
        gone = {path for path in known(trial) if not Path(path).exists()}
        assert not gone, f"{trial}: a checkpoint that Tune knows was deleted: {gone}"
        if trial.checkpoint and not trial.is_finished():
            assert Path(trial.checkpoint.path).exists(), f"{trial} would be restored from nothing"
    assert all(Path(path).exists() for path in ran.validation.ledger.state.leases), (
        "it may be cloned"
    )
    for _, metadata in ran.sweep.controller._get_trial_checkpoints().values():
        manager = _TrainingRunMetadata.from_json_state(metadata).checkpoint_manager
        saved = [result.checkpoint.path for result in manager._checkpoint_results]
        assert all(Path(path).exists() for path in saved), "the saved state knows a deleted one"


def check_clones(events: list[Any], scored: dict[float, list[dict[str, Any]]]) -> None:
    """Each clone has begun with what was scored, and with the hyperparameters that are recorded."""
    first: dict[tuple[str, int], dict[str, Any]] = {}
    for event in (one for one in events if isinstance(one, Reported)):
        first.setdefault((event.trial_id, event.generation), event.report)
    for event in (one for one in events if isinstance(one, Exploited)):
        donors, report = scored[event.score], first.get((event.trial_id, event.generation))
        donor = next((one for one in donors if one["lr"] == event.donor_config["lr"]), None)
        assert donor is not None, f"no checkpoint has these: {event}"
        if report is not None:  # it has continued
            assert report["former"] == donor["version"], event
            assert report["lr"] == event.config["lr"], event
            assert report["training_iteration"] == event.iteration + 1, event


def check_ends(ran: Ran, *, may_fail: bool) -> None:
    """At the end, all trials have ended, in the folders that the journal names."""
    added = [event for event in events_in(ran.home) if isinstance(event, TrialAdded)]
    folders = {trial.trial_id: trial.storage.trial_dir_name for trial in ran.trials}
    assert {event.trial_id: event.folder for event in added} == folders
    for trial in ran.trials:
        file = Path(trial.local_path, "error.txt") if trial.local_path else None
        error = file.read_text() if file and file.exists() else ""
        assert trial.status == Trial.TERMINATED, (str(trial), trial.status, error[-500:])
        assert may_fail or not trial.num_failures, (str(trial), error[-500:])
        assert "not exist" not in error, "it was restored from a checkpoint that is gone"


def check_left(ran: Ran, settings: Settings) -> None:
    """At the end, nothing is pending, and only requested or leased checkpoints are kept.

    What is leased is what a trial would be restored from.
    """
    tune, leases = ran.validation.run.controller, {*ran.validation.ledger.state.leases}
    assert not (
        ran.validation.run.sweep.queues
        or tune.queues.waiting_in_place
        or tune._cached_trial_decisions
    )
    restorable = {trial.checkpoint.path for trial in ran.trials if trial.checkpoint}
    assert restorable >= leases, "a lease that nobody needs"
    assert all(Path(path).exists() for path in leases)
    for trial in ran.trials if settings.keep is not None else ():
        # The newest one, too, if others are the best.
        assert len(known(trial) - leases) <= settings.keep + settings.ranked, str(trial)


def check_rows(ran: Ran, scored: dict[float, list[dict[str, Any]]]) -> None:
    """At the end: the rows of each trial are in order, with the scores of what they report."""
    history = scores_of(ran.home)
    # A restored sweep validates some again that Tune has processed without a score.
    failed = {
        (event.trial_id, event.key.place)
        for event in events_in(ran.home)
        if isinstance(event, ValidationEnded) and event.status in FAILED
    }
    for trial in ran.trials:
        if not trial.local_path or not Path(trial.local_path, "result.json").exists():
            continue
        # A trial that has failed runs some iterations again, as in Tune.
        newest = {(row[GENERATION], row["training_iteration"]): row for row in rows_of(trial)}
        assert list(newest) == sorted(newest), str(trial)
        for _, own in groupby(newest, key=itemgetter(0)):
            iterations = [iteration for _, iteration in own]
            assert iterations == list(range(iterations[0], iterations[-1] + 1)), "one has no row"
        own_scores = history[trial.trial_id].items()
        scores = {place: finite_number(metrics["accuracy"]) for place, metrics in own_scores}
        for place, row in newest.items():
            score = scores.get(place)
            if row.get("accuracy") is None and (trial.trial_id, place) in failed:
                continue
            assert finite_number(row.get("accuracy")) == score, (str(trial), place)
            assert score is None or row["version"] == scored[score][0]["version"], (
                str(trial),
                place,
            )


#: A part of each sweep's path, as Tune, storages and shells must not read it.
ODD_NAME = "100% %2e#1 lr=0.1&x;y größe \N{SNOWMAN} ~ $HOME {a} c]2"


@pytest.mark.filterwarnings("ignore:Using `CheckpointConfig.num_to_keep")
@every_case
def test_random_killed_sweep_loses_and_repeats_nothing_with_every_scheduler(tmp_path, name, mode):
    for seed in seeds(1, name, str(mode)):
        known = {"kind": name, "mode": mode, "kills": seed % 4}
        run(tmp_path / f"{seed} {ODD_NAME}", seed, draw(seed, **known))


def test_clone_of_a_clone_that_has_not_run_since_begins_with_its_donors_weights(tmp_path):
    """Synchronous PBT takes the result of what its donor was before that was overwritten."""
    run(tmp_path, 3, draw(3, kind="pbt-sync", mode=Mode.AUTO))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("repetition", range(4))  # which trials are first depends on their names
def test_halving_that_a_kill_interrupts_is_completed_after_the_restore(tmp_path, repetition):
    """The journal has the ends of the worst trials, but not that the others continue."""
    run(tmp_path, 45, draw(45, kind="bohb", mode=Mode.WAIT_PAUSED, kills=1))
