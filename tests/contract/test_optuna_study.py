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
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tests.support import readers
from tests.support.kills import Killed, killed_after
from tests.support.schedulers import pbt, seed_all
from tests.support.sweeps import LENGTH, Endless, Ran, sweep
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


def asha(folder: Path, **options: Any) -> Ran:
    base = ASHAScheduler(max_t=LENGTH, grace_period=1, reduction_factor=3)
    options = {"trainable": Endless, "trials": 12, **options}
    return sweep(folder, base, param_space=SPACE, **options)


def recorded(ran: Ran, space: dict[str, Any]) -> Ran:
    """Run a sweep that writes down what is searched, as that of a ``tunekit.Tuner`` does."""
    ran.validation.program.space = described_space(space)
    ran.sweep.run(most=50_000)
    return ran


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> tuple[Ran, tunekit.Sweep, optuna.Study]:
    ran = recorded(asha(tmp_path_factory.mktemp("asha"), run=False), SPACE)
    sweep = tunekit.load(ran.home)
    return ran, sweep, sweep.to_optuna()


@pytest.mark.parametrize("low", [float("nan"), float("-inf"), None])
def test_range_recorded_without_finite_limits_is_inferred_from_the_trials(tmp_path, low):
    space = {"lr": {"kind": "float", "low": low, "high": 1.0}}
    about = {"time": 1e9, "required": ["accuracy"], "mode": "max", "space": space}
    journal = Journal(LocalFolder(tmp_path), about=about)
    for name, lr in (("a", 0.1), ("b", 0.2)):
        readers.trial(journal, name, 0.5, lr=lr)
    found = tunekit.load(tmp_path).to_optuna().trials[0].distributions["lr"]
    assert (found.low, found.high) == (0.1, 0.2)


def test_study_values_and_intermediate_values_are_the_validation_scores(ended):
    ran, _, study = ended
    assert [trial.user_attrs["trial_id"] for trial in study.trials] == [
        trial.trial_id for trial in ran.trials
    ]
    scores = ran.validated()
    for number, trial in enumerate(study.trials):
        assert trial.number == number
        assert trial.intermediate_values == scores[number]
        assert trial.value == max(scores[number].values())
        at = trial.user_attrs["iteration"]
        assert scores[number][at] == trial.value == trial.user_attrs["metrics"]["accuracy"]
    assert len(study.trials) == 12
    other = tunekit.load(ran.home, mode="min").to_optuna()
    assert [trial.value for trial in other.trials] == [min(own.values()) for own in scores.values()]
    assert [one.direction.name for one in (study, other)] == ["MAXIMIZE", "MINIMIZE"]


def test_trial_is_pruned_in_the_study_only_if_the_scheduler_stopped_it_early(ended):
    ran, sweep, study = ended
    lengths = list(ran.lengths().values())
    states = [trial.state for trial in study.trials]
    told = [TrialState.COMPLETE if n >= LENGTH else TrialState.PRUNED for n in lengths]
    assert states == told and len(set(states)) == 2
    assert [trial.stopped for trial in sweep.timeline.trials.values()] == [
        n < LENGTH for n in lengths
    ]
    whole = [trial for trial in study.trials if trial.state is TrialState.COMPLETE]
    assert study.best_trial.value == max(trial.value for trial in whole)


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


def test_study_distributions_are_inferred_without_a_recorded_search_space(tmp_path):
    so_many = {"trials": 60, "stop": {"training_iteration": 1}}  # to tell one scale from the other
    ran = asha(tmp_path, **so_many)
    study = tunekit.load(ran.home).to_optuna()
    rates = [trial.config["lr"] for trial in ran.trials]
    widths = [trial.config["net"]["width"] for trial in ran.trials]
    found = study.trials[0].distributions
    assert found["lr"] == FloatDistribution(min(rates), max(rates), log=True)
    assert found["net/width"] == IntDistribution(min(widths), max(widths), log=False)
    assert isinstance(found["net/act"], CategoricalDistribution)
    assert set(found["net/act"].choices) == {"relu", "tanh"} and "epochs" not in found


def test_failed_trials_and_trials_without_a_score_have_state_fail_in_the_study(tmp_path):
    def validate(attempt: Any) -> dict[str, float]:
        if attempt.request.trial_id.endswith("_00001"):
            raise RuntimeError("no such image")
        return {"accuracy": float(attempt.request.iteration)}

    space = {"fail_at": tune.grid_search([4, 0, 0])}
    options: dict[str, Any] = {"settings": {"max_retries": 0}, "param_space": space}
    ran = sweep(tmp_path, trials=1, validate=validate, **options)
    study = tunekit.load(ran.home).to_optuna()
    assert [(t.state.name, t.value) for t in study.trials] == [
        ("FAIL", None),
        ("FAIL", None),
        ("COMPLETE", 9.0),
    ]
    assert study.trials[0].intermediate_values == ran.validated()[0]


def test_trials_with_pending_validations_run_in_the_study_of_a_killed_sweep(tmp_path):
    with pytest.raises(Killed), killed_after(60):
        asha(tmp_path, validation_slots=1)
    sweep = tunekit.load(tmp_path / "sweep")
    study = sweep.to_optuna()
    pending = {row["trial_id"] for row in sweep.timeline.validations if row["ended"] is None}
    running = [t for t in study.trials if t.state is TrialState.RUNNING]
    assert pending and pending <= {trial.user_attrs["trial_id"] for trial in running}
    assert all(trial.datetime_complete is None for trial in running)


def test_study_has_exploits_and_the_parameters_that_led_to_each_value(tmp_path):
    seed_all(1)
    space = {"lr": tune.uniform(0.1, 0.2)}
    # Without resampling, a rate changes by a factor of 0.8 or 1.2, also out of the space.
    base = pbt(hyperparam_mutations=space, quantile_fraction=0.5, resample_probability=0.0)
    options: dict[str, Any] = {"on_pending": "wait", "param_space": space, "run": False}
    ran = recorded(sweep(tmp_path, base, trials=4, **options), space)
    loaded = tunekit.load(ran.home)
    study = loaded.to_optuna()
    exploits = loaded.lineage.to_dataframe()
    assert len(exploits)
    for trial in study.trials:
        own = exploits[exploits.trial_id == trial.user_attrs["trial_id"]]
        told = trial.user_attrs.get("exploits", [])
        assert [one["donor_id"] for one in told] == list(own["donor_id"])
        assert [one["config"]["lr"] for one in told] == list(own["config/lr"])
        generation = trial.user_attrs.get("value_generation", 0)
        config = loaded.timeline.config_of(trial.user_attrs["trial_id"], generation)
        assert trial.params == {"lr": config["lr"]}
        assert trial.state is TrialState.COMPLETE
    low, high = (study.trials[0].distributions["lr"].low, study.trials[0].distributions["lr"].high)
    rates = [*loaded.trials["config/lr"], *exploits["config/lr"], *exploits["old_config/lr"]]
    assert (low, high) == (min(0.1, *rates), max(0.2, *rates)) and (low, high) != (0.1, 0.2)


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
    options: dict[str, Any] = {"param_space": space, "trials": 8, "run": False}
    ran = recorded(sweep(tmp_path, **options), space)
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
