"""A sweep that begins from another one: what runs first, what the searcher is told, after kills."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import FIFOScheduler, PopulationBasedTraining
from ray.tune.search import ConcurrencyLimiter, Repeater, Searcher
from ray.tune.search.optuna import OptunaSearch

import tunekit
from tests.contract.test_searchers import every_searcher, importable, made
from tests.kills import run_killed
from tests.sweeps import Counting, Ran, sweep
from tunekit._ray.tuner import innermost_searcher, settings_of
from tunekit.core.metrics import flatten
from tunekit.core.validation import Attempt

pytestmark = pytest.mark.sampled(2)

SPACE = {"lr": tune.loguniform(1e-4, 1.0), "net": {"width": tune.choice([8, 16, 32])}, "epochs": 9}


def accuracy(config: dict[str, Any], iteration: int) -> float:
    """The best rate is 0.03, wide networks are better, and all learn in time."""
    off = abs(math.log10(config["lr"] / 0.03))
    width = config.get("net", {}).get("width", 8)
    return float(math.exp(-off) * (1 - math.exp(-iteration / 3)) + 0.001 * width)


def scores(attempt: Attempt) -> dict[str, float]:
    config, at = attempt.request.report["config"], attempt.request.iteration
    return {"accuracy": accuracy(config, at), "latency": 10.0 * config["lr"]}


def former(folder: Path, space: Any = None, trials: int = 12, **options: Any) -> Path:
    options = {"validate": scores, "param_space": space or SPACE, "trials": trials, **options}
    ran = sweep(folder, options.pop("scheduler", FIFOScheduler()), **options)
    return ran.home


def begun(home: Any, **given: Any) -> tune.Tuner:
    """Return a Tuner that begins from a sweep."""
    search = {"metric": "accuracy", "mode": "max", "num_samples": 8}
    search |= {k: given.pop(k) for k in ("search_alg", "scheduler", "num_samples") if k in given}
    validation = {"fn": lambda checkpoint: {}, "when": 1, **given.pop("validation", {})}
    return tunekit.Tuner(
        Counting,
        param_space=given.pop("space", SPACE),
        tune_config=tune.TuneConfig(**{**search, **given.pop("tune_config", {})}),
        validation_config=tunekit.ValidationConfig(**validation),
        warm_start=home,
        **given,
    )


def run(folder: Path, home: Any, base: Any = None, trials: int = 8, **given: Any) -> Ran:
    """Run what a Tuner would, in this process."""
    own = ("run", "resume", "mended", "trainable", "checkpoint_config", "saved_every_s")
    options = {k: given.pop(k) for k in own if k in given}
    options |= {"settings": given.get("validation", {})}
    tuner = begun(home, num_samples=trials, scheduler=base, **given)
    settings = settings_of(tuner)
    return sweep(
        folder,
        settings.tune_config.scheduler.scheduler,
        param_space=settings.param_space,
        search_alg=settings.tune_config.search_alg,
        trials=trials,
        validate=scores,
        listening=False,
        warm_start=tuner.validation.warm_start,
        **options,
    )


def configs(ran: Ran) -> list[dict[str, Any]]:
    return [flatten(trial.config) for trial in ran.trials]


def best(home: Path, n: int) -> list[dict[str, Any]]:
    return [one.hyperparameters for one in tunekit.load(home).ranking()[:n]]


def test_the_best_quarter_runs_first(tmp_path):
    home = former(tmp_path / "former")
    ran = run(tmp_path / "new", home)
    assert configs(ran)[:2] == best(home, 2)
    assert len(ran.trials) == 8 and configs(ran)[2:4] != best(home, 4)[2:]
    again = run(tmp_path / "loaded", tunekit.load(home), space={**SPACE, "epochs": 3})
    assert configs(again)[:2] == [{**one, "epochs": 3} for one in best(home, 2)]


def listened(searcher: Any) -> list[tuple[dict[str, Any], Any]]:
    """Return the configurations that a searcher has suggested, with what it is told of each."""
    told, suggested = [], {}
    suggest, complete = searcher.suggest, searcher.on_trial_complete

    def suggests(trial_id: str) -> Any:
        suggested[trial_id] = suggest(trial_id)
        return suggested[trial_id]

    def completes(trial_id: str, result: Any = None, error: bool = False) -> None:
        told.append((suggested[trial_id], result))
        complete(trial_id, result=result, error=error)

    searcher.suggest, searcher.on_trial_complete = suggests, completes
    return told


@every_searcher
@pytest.mark.parametrize("mode", ["max", "min"])
def test_searchers_are_told(tmp_path, make, mode):
    space = {"lr": tune.loguniform(1e-4, 1.0), "net": {"momentum": tune.uniform(0.1, 0.9)}}
    home = former(tmp_path / "former", space)
    config = {"metric": "accuracy", "mode": mode}
    tuner = begun(home, space=space, search_alg=make(), tune_config=config)
    found = settings_of(tuner).tune_config.search_alg
    found.set_search_properties("accuracy", mode, space)
    searcher = innermost_searcher(found)
    told = listened(searcher)
    first = [found.suggest(f"t{n}") for n in range(3)]
    former_scores = {
        round(one.config["lr"], 9): one.last_value for one in tunekit.load(home).ranking()
    }
    told_scores = {round(one["lr"], 9): result["accuracy"] for one, result in told}
    assert told_scores == ({} if hasattr(searcher, "on_pause") else former_scores)
    assert len(told) == len(told_scores)
    order = sorted(former_scores, key=former_scores.get, reverse=mode == "max")
    if type(searcher).__name__ != "BayesOptSearch":  # it does not repeat what it knows
        assert [round(one["lr"], 9) for one in first[:2]] == order[:2]


def test_nested_choices_with_hyperopt(tmp_path):
    if not importable("hyperopt"):
        pytest.skip("needs hyperopt")
    home = former(tmp_path / "former")
    search_alg = made("hyperopt.HyperOptSearch", random_state_seed=1)
    told = listened(search_alg)
    ran = run(tmp_path / "new", home, search_alg=search_alg, trials=4)
    known = [accuracy(one, 9) for one, _ in told[:12]]
    assert [result["accuracy"] for _, result in told[:12]] == pytest.approx(known)
    assert ran.trials[0].config["net"] == tunekit.load(home).best().config["net"]


def test_optuna_goes_on_where_the_former_one_was(tmp_path):
    home = former(tmp_path / "former", search_alg=None)
    ran = run(tmp_path / "new", home, search_alg=ConcurrencyLimiter(OptunaSearch(seed=1), 2))
    study = innermost_searcher(ran.sweep.controller.search_alg)._ot_study
    values = [one.value for one in study.trials]
    assert len(values) == 12 + 8
    assert sorted(values[:12]) == sorted(one.last_value for one in tunekit.load(home).ranking())
    assert configs(ran)[:2] == best(home, 2)


def test_repeated_and_seeded_configurations(tmp_path):
    space = {"lr": tune.loguniform(1e-4, 1.0), "seed": tune.grid_search([0, 1, 2])}
    home = former(tmp_path / "former", space, trials=4, seed_param="seed")
    first = tunekit.load(home).ranked_configurations()[0].hyperparameters
    ran = run(tmp_path / "new", home, space=space, trials=4, seed_param="seed")
    assert configs(ran)[:3] == [{**first, "seed": n} for n in range(3)]
    assert len(ran.trials) == 12
    repeated = Repeater(OptunaSearch(seed=1), repeat=2)
    space = {"lr": tune.loguniform(1e-4, 1.0)}
    ran = run(tmp_path / "repeated", home, space=space, search_alg=repeated, trials=8)
    assert [one["lr"] for one in configs(ran)[:2]] == [first["lr"]] * 2


def test_constraints_are_those_of_the_new_sweep(tmp_path):
    home = former(tmp_path / "former")
    limits = {"constraints": [tunekit.Constraint("latency <= 0.01")]}
    ran = run(tmp_path / "new", home, search_alg=OptunaSearch(seed=1), validation=limits)
    assert ran.trials[0].config["lr"] <= 1e-3 < tunekit.load(home).best().config["lr"]
    told = innermost_searcher(ran.sweep.controller.search_alg)._ot_study.trials[:12]
    assert len({one.value > -1 for one in told}) == 2
    assert all((one.params["lr"] <= 1e-3) == (one.value > -1) for one in told)


def test_several_objectives(tmp_path):
    home = former(tmp_path / "former")
    search_alg = OptunaSearch(metric=["accuracy", "latency"], mode=["max", "min"], seed=1)
    goal = {"metric": None, "mode": None}
    tuner = begun(home, search_alg=search_alg, tune_config=goal)
    found = settings_of(tuner).tune_config.search_alg
    found.set_search_properties(None, None, SPACE)
    found.suggest("new")
    values = [one.values for one in innermost_searcher(found)._ot_study.trials[:12]]
    assert len(values) == 12 and all(len(one) == 2 for one in values)


class Plain(Searcher):
    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {}

    def on_trial_complete(self, *args: Any, **kwargs: Any) -> None: ...


def refusal(home: Any, **given: Any) -> str:
    with pytest.raises(tunekit.errors.ConfigError) as caught:
        begun(home, **given)
    return str(caught.value)


def test_what_does_not_fit_is_refused_by_name(tmp_path):
    home = former(tmp_path / "former")
    space = {"lr": tune.loguniform(0.9, 1.0), "dropout": tune.uniform(0, 1), "epochs": 3}
    said = refusal(home, space=space)
    assert "3 problems" in said
    assert "'lr' was " in said and "outside of param_space=: (0.9, 1.0)" in said
    assert "searches 'dropout', which the former sweep does not have" in said
    assert "former sweep searched 'net/width'" in said and "epochs" not in said
    narrow = {**SPACE, "net": {"width": tune.choice([8, 64])}}
    assert "'net/width' was " in refusal(home, space=narrow, search_alg=OptunaSearch())
    assert "Use tune.choice" in refusal(home, space={"lr": tune.grid_search([0.1])})
    assert "Plain does not support points" in refusal(home, search_alg=Plain())
    own = OptunaSearch({"lr": tune.uniform(0, 1)}, metric="accuracy", mode="max")
    goal = {"metric": None, "mode": None}
    assert "has its own space" in refusal(home, search_alg=own, tune_config=goal)
    assert "validated 'f1', but 'accuracy'" in refusal(home, tune_config={"metric": "f1"})
    assert "Pass TuneConfig(metric" in refusal(home, tune_config=goal)
    assert "does not exist" in refusal(tmp_path / "none")
    assert "Pass the former experiment's folder" in refusal(3)


def test_values_that_json_changes_come_back_as_they_were(tmp_path):
    space = {"lr": tune.loguniform(1e-4, 1.0), "norm": tune.choice([math.sqrt, math.exp])}
    home = former(tmp_path / "former", space)
    assert run(tmp_path / "new", home, space=space).trials[0].config["norm"] in (
        math.sqrt,
        math.exp,
    )


def test_a_running_sweep_is_refused(tmp_path):
    running = sweep(tmp_path, FIFOScheduler(), validate=scores, param_space=SPACE, run=False)
    for _ in range(30):
        running.sweep.step()
    assert "is being run" in refusal(running.home)
    running.validation.let_go()
    begun(running.home)


def test_failed_trials_are_left_out(tmp_path):
    space = {"lr": tune.loguniform(1e-4, 1.0), "fail_at": tune.choice([0, 5])}
    home = former(tmp_path / "former", space)
    told = begun(home, space=space, search_alg=OptunaSearch()).validation.warm_start.told
    assert told and all(point["fail_at"] == 0 for point, _ in told)


# Populations ------------------------------------------------------------------------------------


class Longer(Counting):
    """It goes on where the former trials ended."""

    def step(self) -> dict[str, Any]:
        return {**super().step(), "steps": self.steps, "done": self.steps >= 18}


def pbt(**options: Any) -> PopulationBasedTraining:
    return PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=3,
        hyperparam_mutations={"lr": tune.loguniform(1e-4, 1.0)},
        **options,
    )


def test_a_population_starts_from_the_best_checkpoints(tmp_path):
    home = former(tmp_path / "former", scheduler=pbt())
    ranking = [one for one in tunekit.load(home).ranking() if one.best]
    kept = {one.best.checkpoint for one in ranking}

    options = {"checkpoint_config": tune.CheckpointConfig(num_to_keep=1), "trainable": Longer}
    ran = run(tmp_path / "new", home, pbt(), trials=6, **options)
    new = tunekit.load(ran.home)
    firsts = new.reports[(new.reports.generation == 0) & (new.reports.training_iteration == 1)]
    # Of trials that were cloned and have the same configuration, the best.
    expected = list({one.config["lr"]: one for one in reversed(ranking)}.values())[::-1]
    expected = sorted(expected, key=ranking.index)[:6]
    assert list(firsts.steps) == [one.best.iteration + 1 for one in expected]
    assert [new.config_of(one, 0)["lr"] for one in firsts.trial_id] == [
        one.config["lr"] for one in expected
    ]
    assert all(Path(path).exists() for path in kept)
    assert new.newest_session["warm_start"] == str(home)


def test_a_population_needs_its_checkpoints(tmp_path):
    import shutil

    home = former(tmp_path / "former", scheduler=pbt())
    for folder in home.glob("*/checkpoint_*"):
        shutil.rmtree(folder)
    assert "no longer exist" in refusal(home, scheduler=pbt())


# Kills ------------------------------------------------------------------------------------------


def killed(folder: Path, home: Path, at: int, most: int, **given: Any) -> Ran:
    def make(where: Path, **options: Any) -> Ran:
        fresh = {k: v() if k in ("base", "search_alg") else v for k, v in given.items()}
        return run(where, home, run=False, **fresh, **options)

    ran, kills = run_killed(folder, make, iter([at] * most))
    assert kills == most
    return ran


@pytest.mark.parametrize("at", [1, 2, 3, 5, 8, 13, 30, 60])
def test_a_killed_sweep_begins_with_the_same(tmp_path, at):
    home = former(tmp_path / "former")
    one_by_one = lambda: ConcurrencyLimiter(OptunaSearch(seed=1), 1)  # noqa: E731
    ran = killed(tmp_path / "new", home, at, 3, search_alg=one_by_one, trials=5)
    study = innermost_searcher(ran.sweep.controller.search_alg)._ot_study
    told = [one.value for one in study.trials[:12]]
    assert sorted(told) == sorted(one.last_value for one in tunekit.load(home).ranking())
    assert len(study.trials) == 12 + 5
    assert configs(ran)[0] == best(home, 1)[0]


@pytest.mark.skipif(not importable("hyperopt"), reason="needs hyperopt")
@pytest.mark.parametrize("at", [3, 13, 60])
def test_a_restored_searcher_is_told_once(tmp_path, at, caplog):
    home = former(tmp_path / "former")
    one_by_one = lambda: ConcurrencyLimiter(  # noqa: E731
        made("hyperopt.HyperOptSearch", random_state_seed=1), 1
    )
    ran = killed(tmp_path / "new", home, at, 3, search_alg=one_by_one, trials=5)
    trials = innermost_searcher(ran.sweep.controller.search_alg)._hpopt_trials
    assert len(trials.trials) == 12 + 5
    assert {one["result"]["status"] for one in trials.trials} == {"ok"}
    assert "left out" not in caplog.text  # nor was anything played again


@pytest.mark.parametrize("at", [1, 2, 3, 5, 8, 13, 30, 60, 90])
def test_a_killed_population_starts_from_the_same(tmp_path, at):
    home = former(tmp_path / "former", trials=4)
    ranking = tunekit.load(home).ranking()
    assert len({one.config["lr"] for one in ranking}) == 4
    options = {"base": pbt, "trials": 4, "trainable": Longer, "saved_every_s": 0.0}
    ran = killed(tmp_path / "new", home, at, 1, **options)
    reports = tunekit.load(ran.home).reports
    first = reports[(reports.generation == 0) & (reports.training_iteration == 1)]
    assert list(first.steps) == [one.best.iteration + 1 for one in ranking]
    assert reports.training_iteration.max() >= 9
    # At most the newest iteration of each trial runs again.
    assert (reports.iteration_runs - 1).sum() <= 4
