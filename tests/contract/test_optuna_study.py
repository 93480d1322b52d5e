"""``Sweep.to_optuna`` returns an Optuna study with the sweep's trials, scores and search space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState
from ray import tune

import tunekit
from tests.support import readers, schedulers
from tests.support.kills import Killed, killed_after
from tests.support.modes import Mode
from tests.support.schedulers import planned
from tests.support.sweeps import Plan, Ran
from tests.support.trainables import LENGTH, Endless
from tunekit._ray.tuner import described_space
from tunekit.core.parameters import parameters_of
from tunekit.journal.journal import Journal
from tunekit.journal.storage import LocalFolder
from tunekit.reading.optuna_study import distribution_of

SPACE = {
    "lr": tune.loguniform(1e-3, 1e-1),
    "net": {"width": tune.randint(4, 64), "act": tune.choice(["relu", "tanh"])},
    "epochs": 9,
}


def asha(folder: Path) -> Plan:
    return Plan(folder, schedulers.asha(), trials=12).training(Endless)


def recorded(plan: Plan, space: dict[str, Any]) -> Ran:
    """Run a sweep that writes down what is searched, as that of a ``tunekit.Tuner`` does."""
    ran = plan.tuning(param_space=space).start()
    ran.validation.program.space = described_space(space)
    ran.sweep.run(most=50_000)
    return ran


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> tuple[Ran, tunekit.Sweep, optuna.Study]:
    ran = recorded(asha(tmp_path_factory.mktemp("asha")), SPACE)
    sweep = tunekit.load(ran.home)
    return ran, sweep, sweep.to_optuna()


def test_study_values_and_intermediate_values_are_the_validation_scores(ended):
    ran, _, study = ended
    scores = ran.validated()
    for number, (trial, of) in enumerate(zip(study.trials, ran.trials, strict=True)):
        assert (trial.number, trial.user_attrs["trial_id"]) == (number, of.trial_id)
        assert trial.intermediate_values == scores[number]
        at = trial.user_attrs["iteration"]
        assert trial.value == max(scores[number].values()) == scores[number][at]
        assert trial.user_attrs["metrics"] == {"accuracy": trial.value}
    other = tunekit.load(ran.home, mode="min").to_optuna()
    assert [trial.value for trial in other.trials] == [min(own.values()) for own in scores.values()]
    assert [one.direction.name for one in (study, other)] == ["MAXIMIZE", "MINIMIZE"]


def test_trial_is_pruned_in_the_study_only_if_the_scheduler_stopped_it_early(ended):
    ran, sweep, study = ended
    stopped = [length < LENGTH for length in ran.lengths().values()]
    assert [trial.state is TrialState.PRUNED for trial in study.trials] == stopped
    assert [trial.stopped for trial in sweep.timeline.trials.values()] == stopped
    whole = [trial for trial in study.trials if trial.state is TrialState.COMPLETE]
    assert 0 < len(whole) == stopped.count(False) < len(stopped)
    assert study.best_trial.value == max(trial.value for trial in whole)


@pytest.mark.parametrize("name", ["hyperband", "bohb"])
def test_trial_that_hyperband_ends_at_its_last_iteration_is_complete_in_the_study(tmp_path, name):
    plan = planned(name, tmp_path, Mode.WAIT, trials=6).training(Endless, slots=3)
    plan = plan.tuning(param_space={"lr": tune.uniform(0.0, 1.0)})
    sweep = tunekit.load(plan.run().home)
    whole = [trial.iteration >= LENGTH for trial in sweep.timeline.trials.values()]
    states = [trial.state is TrialState.COMPLETE for trial in sweep.to_optuna().trials]
    assert states == whole and whole.count(True) > 0


def test_study_parameters_have_the_distributions_of_the_recorded_search_space(ended):
    ran, _, study = ended
    for trial, of in zip(study.trials, ran.trials, strict=True):
        assert trial.params == {
            "lr": of.config["lr"],
            "net/width": of.config["net"]["width"],
            "net/act": of.config["net"]["act"],
        }
        assert trial.distributions == {
            "lr": FloatDistribution(1e-3, 1e-1, log=True),
            "net/width": IntDistribution(4, 63),
            "net/act": CategoricalDistribution(("relu", "tanh")),
        }
    assert study.user_attrs == {"metric": "accuracy", "constants": {"epochs": 9}}


@pytest.mark.parametrize("low", [float("nan"), float("-inf"), None])
def test_study_distributions_are_inferred_unless_finite_ranges_are_recorded(tmp_path, low):
    space = {"lr": {"kind": "float", "low": low, "high": 1.0}}
    about = {"time": 1e9, "required": ["accuracy"], "mode": "max", "space": space}
    journal = Journal(LocalFolder(tmp_path), about=about)
    rates, widths = [10 ** (-n / 20) for n in range(20, 60)], range(10, 50)
    for n, (rate, width) in enumerate(zip(rates, widths, strict=True)):
        net = {"width": width, "act": ("relu", "tanh")[n % 2]}
        readers.trial(journal, f"t{n}", 0.5, lr=rate, net=net, epochs=9)
    assert tunekit.load(tmp_path).to_optuna().trials[0].distributions == {
        "lr": FloatDistribution(min(rates), max(rates), log=True),
        "net/width": IntDistribution(10, 49),
        "net/act": CategoricalDistribution(("relu", "tanh")),
    }


def test_failed_trials_and_trials_without_a_score_have_state_fail_in_the_study(tmp_path):
    def validate(attempt: Any) -> dict[str, float]:
        if attempt.request.trial_id.endswith("_00001"):
            raise RuntimeError("no such image")
        return {"accuracy": float(attempt.request.iteration)}

    space = {"fail_at": tune.grid_search([4, 0, 0])}
    plan = Plan(tmp_path, trials=1).tuning(param_space=space)
    ran = plan.validating(validate, max_retries=0).run()
    study = tunekit.load(ran.home).to_optuna()
    outcomes = [(t.state.name, t.value) for t in study.trials]
    assert outcomes == [("FAIL", None), ("FAIL", None), ("COMPLETE", 9.0)]
    assert study.trials[0].intermediate_values == ran.validated()[0]


def test_trials_with_pending_validations_run_in_the_study_of_a_killed_sweep(tmp_path):
    with pytest.raises(Killed), killed_after(60):
        asha(tmp_path).validating(slots=1).tuning(param_space=SPACE).run()
    sweep = tunekit.load(tmp_path / "sweep")
    pending = {row["trial_id"] for row in sweep.timeline.validations if row["ended"] is None}
    running = [t for t in sweep.to_optuna().trials if t.state is TrialState.RUNNING]
    assert pending and pending <= {trial.user_attrs["trial_id"] for trial in running}
    assert all(trial.datetime_complete is None for trial in running)


def test_study_has_exploits_and_the_parameters_that_led_to_each_value(tmp_path):
    schedulers.seed_all(1)
    space = {"lr": tune.uniform(0.1, 0.2)}
    # Without resampling, a rate changes by a factor of 0.8 or 1.2, also out of the space.
    base = schedulers.pbt(
        hyperparam_mutations=space, quantile_fraction=0.5, resample_probability=0.0
    )
    loaded = tunekit.load(recorded(Plan(tmp_path, base, Mode.WAIT, trials=4), space).home)
    study, exploits = loaded.to_optuna(), loaded.lineage.to_dataframe()
    assert len(exploits)
    for trial in study.trials:
        known = trial.user_attrs
        own = exploits[exploits.trial_id == known["trial_id"]]
        told = [(one["donor_id"], one["config"]["lr"]) for one in known.get("exploits", [])]
        assert told == list(zip(own["donor_id"], own["config/lr"], strict=True))
        config = loaded.timeline.config_of(known["trial_id"], known.get("value_generation", 0))
        assert trial.params == {"lr": config["lr"]} and trial.state is TrialState.COMPLETE
    found = study.trials[0].distributions["lr"]
    rates = [*loaded.trials["config/lr"], *exploits["config/lr"], *exploits["old_config/lr"]]
    assert (found.low, found.high) == (min(0.1, *rates), max(0.2, *rates)) != (0.1, 0.2)


@pytest.mark.filterwarnings("ignore")
def test_study_is_stored_under_its_name_and_a_second_of_that_name_is_refused(ended, tmp_path):
    _, sweep, study = ended
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(tmp_path / "studies"))
    )
    sweep.to_optuna(storage)
    read = optuna.load_study(study_name="sweep", storage=storage)
    assert [(t.value, t.params, t.user_attrs) for t in read.trials] == [
        (t.value, t.params, t.user_attrs) for t in study.trials
    ]
    with pytest.raises(tunekit.errors.ConfigError, match="study_name='sweep'"):
        sweep.to_optuna(storage)
    assert len(sweep.to_optuna(storage, "again").trials) == 12


def test_choices_of_compound_values_are_texts_or_flattened_in_the_study(tmp_path):
    space = {
        "widths": tune.choice([(8, 8), (4,)]),
        "optimizer": tune.choice([{"momentum": 0.9}, {"momentum": 0.5}]),
        "limit": tune.choice([float("inf"), None]),
    }
    ran = recorded(Plan(tmp_path), space)
    study = tunekit.load(ran.home).to_optuna()
    assert study.trials[0].distributions == {
        "widths": CategoricalDistribution(("[8, 8]", "[4]")),
        "limit": CategoricalDistribution(("inf", None)),
        "optimizer/momentum": FloatDistribution(0.5, 0.9),
    }
    for trial, of in zip(study.trials, ran.trials, strict=True):
        assert trial.params["widths"] == str(list(of.config["widths"]))
        assert trial.params["optimizer/momentum"] == of.config["optimizer"]["momentum"]


@pytest.mark.parametrize(
    ("domain", "known"),
    [
        (tune.quniform(0.1, 1.0, 0.1), {"kind": "float", "low": 0.1, "high": 1.0}),
        (tune.qrandint(1, 10, 3), {"kind": "int", "low": 1, "high": 10}),
        (tune.qrandint(1, 10, 1), {"kind": "int", "low": 1, "high": 9}),
        (tune.lograndint(1, 100), {"kind": "int", "low": 1, "high": 99, "log": True}),
        (tune.randn(0, 1), None),
        (tune.sample_from(lambda spec: 1), None),
        (0.1, None),
    ],
)
def test_recorded_search_space_has_exactly_the_range_that_tune_draws_from(domain, known):
    found = described_space({"x": domain})
    assert found == ({} if known is None else {"x": known})
    if known is not None:
        drawn = [domain.sample() for _ in range(200)]
        parameter = parameters_of([{"x": value} for value in drawn], found)["x"]
        # Nothing is drawn from outside, which would widen it.
        assert (parameter.low, parameter.high) == (known["low"], known["high"])
        distribution = distribution_of(parameter)
        assert all(distribution._contains(value) for value in drawn)
