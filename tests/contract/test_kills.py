"""A sweep that is killed at any line, and restored, comes to what it would have come to."""

from __future__ import annotations

import csv
import itertools
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining
from ray.tune.search import BasicVariantGenerator

import tunekit
from tests.invariants import JournalSummary, check_journal
from tests.kills import run_killed
from tests.schedulers import CASES, every_case, seed_all
from tests.seeds import SCHEDULES, seeds
from tests.sweeps import Endless, Ran, index_of, sweep
from tunekit.core.values import number
from tunekit.journal.journal import events_in
from tunekit.schedulers import MOASHA, PromotionASHA

#: Each so-and-so-manieth write is one to be killed at.
STRIDE = 1 if SCHEDULES > 10 else 13

BOTH = pytest.mark.parametrize("on_pending", ["wait", "wait-paused"])


def in_turn(*names: str) -> Any:
    """Run a test with these sweeps in both modes; at each push, in one and the other in turn."""
    cases = [
        pytest.param(name, mode, marks=[pytest.mark.at_night] * ((number + paused) % 2))
        for number, name in enumerate(names)
        for paused, mode in enumerate(["wait", "wait-paused"])
    ]
    return pytest.mark.parametrize(("name", "on_pending"), cases)


def happened(folder: Path) -> JournalSummary:
    """What a sweep came to, by its journal."""
    lives = check_journal(events_in(folder / "sweep"))
    known = ("trial_id", "generation", "donor_id", "iteration", "config")
    lives.exploits = [
        {name: getattr(exploit, name) for name in known} for exploit in lives.exploits
    ]
    lives.running = 0  # is another matter
    return lives


# Where the order is given, all is the same -------------------------------------------------------


def asha(
    folder: Path, on_pending: str, seed: int = 0, scheduler: Any = None, **options: Any
) -> Ran:
    """One trial at a time: nothing depends on which of two is faster."""
    generator = BasicVariantGenerator(random_state=seed, max_concurrent=1)
    generator._uuid_prefix = f"{seed:05x}_"
    return sweep(
        folder,
        scheduler or ASHAScheduler(max_t=5, grace_period=1, reduction_factor=2),
        on_pending=on_pending,
        trials=4,
        seed=seed,
        search_alg=generator,
        listening=False,
        run=False,
        **options,
    )


def pbt(folder: Path, on_pending: str, seed: int = 0, **options: Any) -> Ran:
    """All wait for all, the worst clones the best: nothing is left to chance."""
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": [0.1]},
        custom_explore_fn=lambda config: {**config, "lr": config["line"]},
        quantile_fraction=0.25,
        synch=True,
        log_config=False,
    )
    return sweep(
        folder,
        scheduler,
        on_pending=on_pending,
        trainable=Endless,
        trials=1,  # of each point of the grid
        seed=seed,
        stop={"training_iteration": 5},
        param_space={"lr": 0.1, "line": tune.grid_search([0.4, 0.3, 0.2, 0.1])},
        listening=False,
        run=False,
        **options,
    )


def promotion(folder: Path, on_pending: str, seed: int = 0, **options: Any) -> Ran:
    """One trial at a time, so that those that wait for others have to make room."""
    scheduler = PromotionASHA(max_t=5, grace_period=1, reduction_factor=2)
    return asha(folder, on_pending, seed, scheduler, trainable=Endless, **options)


def limited(folder: Path, on_pending: str, seed: int = 0, **options: Any) -> Ran:
    """By two metrics, with a constraint that later iterations break."""
    metrics = {"accuracy": "max", "loss": "min"}
    scheduler = MOASHA(metrics, max_t=5, grace_period=1, reduction_factor=2)
    settings = {"constraints": [tunekit.Constraint("loss >= 0.3")]}
    return asha(folder, on_pending, seed, scheduler, settings=settings, **options)


IN_ORDER = {"asha": asha, "promotion": promotion, "limited": limited}
SWEEPS = {**IN_ORDER, "pbt": pbt}


@in_turn("asha", "promotion", "limited", "pbt")
def test_killed_once_at_any_write(tmp_path, on_pending, name):
    def made(folder: Path, **options: Any) -> Ran:
        return SWEEPS[name](folder, on_pending, **options)

    undisturbed, _ = run_killed(tmp_path / "undisturbed", made, iter([]))
    expected = happened(tmp_path / "undisturbed")
    assert expected.exploits or name in IN_ORDER
    for at in itertools.count(step=STRIDE):
        folder = tmp_path / f"killed-{at}"
        ran, kills = run_killed(folder, made, iter([at]), torn=bool(at // STRIDE % 2))
        assert same(happened(folder), expected, name), at
        assert ran.scores() == undisturbed.scores()
        assert ran.lengths() == undisturbed.lengths()
        if not kills:
            break
    assert at >= 60


@in_turn("promotion", "asha", "pbt")
def test_killed_where_only_what_decides_is_validated(tmp_path, on_pending, name):

    def made(folder: Path, **options: Any) -> Ran:
        auto = {"settings": {"when": "auto"}, "validation_s": lambda attempt: 0.7}
        return SWEEPS[name](folder, on_pending, **auto, **options)

    undisturbed, _ = run_killed(tmp_path / "undisturbed", made, iter([]))
    expected = happened(tmp_path / "undisturbed")
    for at in itertools.count(start=1, step=2 * STRIDE):
        folder = tmp_path / f"killed-{at}"
        ran, kills = run_killed(folder, made, iter([at]), torn=bool(at // STRIDE % 2))
        lives = happened(folder)
        if name in IN_ORDER:
            assert sorted(lives.decisions) == sorted(expected.decisions), at
        assert {place for place, _ in lives.decisions} == {p for p, _ in expected.decisions}, at
        assert ran.lengths() == undisturbed.lengths()
        assert ran.validation.validator.pool.idle
        if not kills:
            break
    assert at >= 50


def same(one: JournalSummary, other: JournalSummary, name: str) -> bool:
    if name in IN_ORDER:
        return one == other

    # The order of trials that run at the same time may be another one.
    def in_order(exploits: list[Any]) -> list[Any]:
        return sorted(exploits, key=lambda exploit: (exploit["trial_id"], exploit["generation"]))

    return (
        one.scores == other.scores
        and in_order(one.exploits) == in_order(other.exploits)
        and {place for place, _ in one.decisions} == {place for place, _ in other.decisions}
    )


@in_turn("asha", "promotion", "pbt")
def test_killed_again_and_again(tmp_path, on_pending, name):
    draw, killed = random.Random(1), 0

    def made(folder: Path, **options: Any) -> Ran:
        often = {"saved_every_s": draw.choice([0.0, 0.0, float("inf")])}
        return SWEEPS[name](folder, on_pending, **often, **options)

    undisturbed, _ = run_killed(tmp_path / "undisturbed", made, iter([]))
    expected = happened(tmp_path / "undisturbed")
    for run in range(2 * SCHEDULES):
        folder = tmp_path / f"killed-{run}"
        lives = (draw.randrange(5, 80) for _ in itertools.count())
        ran, kills = run_killed(folder, made, lives, torn=bool(run % 2), elsewhere=run % 4 < 2)
        assert same(happened(folder), expected, name), run
        assert ran.scores() == undisturbed.scores()
        assert ran.lengths() == undisturbed.lengths()
        killed += kills
    assert killed > 5 * SCHEDULES


# Whatever the order, nothing is lost and nothing is done twice ----------------------------------


def killed_often(seed: int) -> Iterator[int]:
    draw = random.Random(seed)
    return iter([draw.randrange(5, 400) for _ in range(draw.randrange(1, 4))])


def make_any(name: str, on_pending: str, seed: int) -> Any:
    draw, case = random.Random(seed), CASES[name]
    when = draw.choice([1, "auto"])  # a restore cannot change it

    def made(folder: Path, **options: Any) -> Ran:
        seed_all(seed)
        return sweep(
            folder,
            case.make(folder / "policies"),
            on_pending=on_pending,
            trainable=Endless,
            seed=seed,
            listening=False,
            run=False,
            loggers=True,
            validation_s=lambda attempt: draw.choice([0.2, 1.0, 4.0, 7.0]),
            settings={"max_in_flight": draw.choice([None, 2]), "when": when},
            saved_every_s=draw.choice([0.0, float("inf"), float("inf")]),
            **({"trials": 5, "stop": {"training_iteration": 9}} | case.options()),
            **options,
        )

    return made


def rows_of(trial: Any) -> list[dict[str, Any]]:
    path = Path(trial.local_path, "result.json")
    return [json.loads(line) for line in path.read_text().splitlines()]


@every_case
def test_nothing_is_lost_or_done_twice(tmp_path, name, on_pending):
    for seed in seeds(1, name, on_pending):
        folder = tmp_path / str(seed)
        ran, _ = run_killed(
            folder,
            make_any(name, on_pending, seed),
            killed_often(seed),
            torn=bool(seed % 2),
            elsewhere=seed % 4 < 2,
        )
        lives = check_journal(events_in(folder / "sweep"))
        assert all(trial.status == "TERMINATED" for trial in ran.trials)
        assert {name: metrics["accuracy"] for name, metrics in lives.scores.items()} == {
            f"{trial.trial_id}:{generation}:{iteration}": score
            for trial in ran.trials
            for (generation, iteration), score in ran.scores()[index_of(trial)].items()
        }
        for trial in ran.trials:
            rows = rows_of(trial)
            places = [(row["generation"], row["training_iteration"]) for row in rows]
            assert places == sorted(set(places)), "an iteration has two rows"
            newest = max(generation for generation, _ in places)
            assert [i for g, i in places if g == 0][:1] == [1]
            scored = {
                p: row["accuracy"]
                for p, row in zip(places, rows, strict=True)
                if number(row.get("accuracy")) is not None
            }
            assert scored == ran.processed()[index_of(trial)]
            last = [i for g, i in places if g == newest]
            assert last == list(range(last[0], last[-1] + 1)), "an iteration has no row"


# What the searcher knows, and what cannot be saved ----------------------------------------------


def optuna_sweep(folder: Path, **options: Any) -> Ran:
    """One trial at a time, its score its learning rate."""
    import optuna
    from ray.tune.search import ConcurrencyLimiter
    from ray.tune.search.optuna import OptunaSearch

    search = OptunaSearch(
        {"lr": tune.uniform(0.0, 1.0)},
        metric="accuracy",
        mode="max",
        sampler=optuna.samplers.TPESampler(seed=3, n_startup_trials=2),
    )
    return sweep(
        folder,
        CASES["fifo"].make(folder),
        on_pending="wait",
        search_alg=ConcurrencyLimiter(search, max_concurrent=1),
        trials=5,
        validate=lambda attempt: {"accuracy": attempt.request.report["config"]["lr"]},
        listening=False,
        run=False,
        metric=None,
        mode=None,
        **options,
    )


def study_of(ran: Ran) -> list[tuple[Any, ...]]:
    study = ran.sweep.controller.search_alg.searcher.searcher._ot_study
    return [(t.state, t.values, t.params, t.intermediate_values) for t in study.trials]


def test_the_searcher_knows_what_it_knew_and_suggests_what_it_would_have(tmp_path):
    undisturbed, _ = run_killed(tmp_path / "undisturbed", optuna_sweep, iter([]))
    expected = study_of(undisturbed)
    assert len(expected) == 5
    draw, killed = random.Random(0), 0
    for run in range(5 * SCHEDULES):
        lives = iter([draw.randrange(10, 200) for _ in range(2)])
        ran, kills = run_killed(tmp_path / str(run), optuna_sweep, lives)
        killed += kills
        assert study_of(ran) == expected
        assert [t.config for t in ran.trials] == [t.config for t in undisturbed.trials]
    assert killed > 5 * SCHEDULES


class Unpicklable(ASHAScheduler):
    """Has something that cannot be saved."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.lock = threading.Lock()


@pytest.mark.sampled(2)
@BOTH
def test_a_scheduler_that_cannot_be_saved_is_shown_everything_again(tmp_path, on_pending):
    def made(folder: Path, **options: Any) -> Ran:
        scheduler = Unpicklable(max_t=5, grace_period=1, reduction_factor=2)
        return asha(folder, on_pending, scheduler=scheduler, saved_every_s=0.0, **options)

    undisturbed, _ = run_killed(tmp_path / "undisturbed", made, iter([]))
    for at in range(10, 180, 40):
        ran, kills = run_killed(tmp_path / str(at), made, iter([at]))
        assert kills
        assert happened(tmp_path / str(at)) == happened(tmp_path / "undisturbed")
        assert ran.scores() == undisturbed.scores()


class StopsAnother(FIFOScheduler):
    """By chance, as it were: stops the second trial by a score of the first, in a restore only."""

    def __init__(self, lives: int):
        super().__init__()
        self.lives, self.lock = lives, threading.Lock()
        self.ended: set[str] = set()
        self.heard_after_end: list[str] = []

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if trial.trial_id in self.ended:
            self.heard_after_end.append(trial.trial_id)
        first, second = sorted(tune_controller.get_trials(), key=lambda known: known.trial_id)
        if self.lives > 1 and trial is first and result["training_iteration"] == 2:
            tune_controller.stop_trial(second)
        return self.CONTINUE

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        self.ended.add(trial.trial_id)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        self.ended.add(trial.trial_id)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("at", [30, 59, 70])  # at 59 its own scores are still to come
@pytest.mark.parametrize("on_pending", ["continue", "wait", "wait-paused"])
def test_a_scheduler_that_stops_a_trial_in_a_restore_hears_no_more_of_it(tmp_path, on_pending, at):
    """Unless the trial ran on before: then it runs on, and the scheduler hears of no end."""
    made: list[StopsAnother] = []

    def make(folder: Path, **options: Any) -> Ran:
        made.append(StopsAnother(len(made) + 1))
        return sweep(
            folder,
            made[-1],
            on_pending=on_pending,
            trainable=Endless,
            validation_s=lambda attempt: 1.5,
            stop={"training_iteration": 9},
            trials=2,
            saved_every_s=0.0,
            listening=False,
            run=False,
            **options,
        )

    ran, kills = run_killed(tmp_path, make, iter([at]))
    assert kills == 1 and len(made[-1].ended) == 2
    assert not made[-1].heard_after_end
    assert ran.lengths()[0] == 9


# Rows -------------------------------------------------------------------------------------------


def test_each_iteration_has_one_row_after_50_pauses_and_5_restores(tmp_path):
    def made(folder: Path, **options: Any) -> Ran:
        return sweep(
            folder,
            CASES["fifo"].make(folder),
            on_pending="wait-paused",
            trainable=Endless,
            trials=1,
            stop={"training_iteration": 55},
            validation_s=lambda attempt: 0.5,
            loggers=True,
            listening=False,
            run=False,
            **options,
        )

    ran, kills = run_killed(tmp_path, made, iter([77, 90, 60, 101, 42]))
    assert kills == 5
    [trial] = ran.trials
    scores = {iteration: score for (_, iteration), score in ran.scores()[0].items()}
    every = list(range(1, 56))
    assert sorted(scores) == every
    in_json = [(row["training_iteration"], row["accuracy"]) for row in rows_of(trial)]
    assert in_json == sorted(scores.items())
    with Path(trial.local_path, "progress.csv").open() as file:
        in_csv = [
            (int(r["training_iteration"]), float(r["accuracy"])) for r in csv.DictReader(file)
        ]
    assert in_csv == in_json
    [frame] = tune.ExperimentAnalysis(f"{tmp_path}/sweep").trial_dataframes.values()
    assert list(zip(frame["training_iteration"], frame["accuracy"], strict=True)) == in_json
