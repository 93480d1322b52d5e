"""``when="decisions"``: the same decisions, with the checkpoints and validations they need only."""

from __future__ import annotations

import pytest
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, HyperBandScheduler

import tunekit
from tests.broken import broken
from tests.contract.test_contract import check_contract, journal, run
from tests.doubles import FakeExecutor
from tests.schedulers import CASES, every_case, pbt, seed_all, space
from tests.sweeps import LENGTH, Counting, Endless, index_of, quality, sweep
from tests.versions import Versioned, Versions
from tunekit.schedulers import PromotionASHA

pytestmark = pytest.mark.sampled(2)

ONLY = {"settings": {"when": "decisions"}, "policy": tunekit.policies.AtDecisions()}


def asha():
    return ASHAScheduler(max_t=81, grace_period=1, reduction_factor=3)


def promotion():
    return PromotionASHA(max_t=81, grace_period=1, reduction_factor=3)


def decided(ran):
    """What ended where: by trial, the iteration of its last result and the decision."""
    return {
        index_of(t): [
            (i, d)
            for index, i, _, d in ran.heard.results
            if index == index_of(t) and d != "CONTINUE"
        ]
        for t in ran.trials
    }


def saved(ran):
    return {index_of(t): t.storage.current_checkpoint_index + 1 for t in ran.trials}


@pytest.mark.parametrize("make", [asha, promotion])
@pytest.mark.parametrize("on_pending", ["wait", "wait-paused"])
def test_the_same_is_decided_with_five_checkpoints_as_with_81(tmp_path, on_pending, make):
    full = 0
    for seed in range(3):
        options = {"on_pending": on_pending, "trainable": Endless, "seed": seed, "trials": 9}
        each = sweep(tmp_path / f"each{seed}", make(), **options)
        few = sweep(
            tmp_path / f"few{seed}",
            make(),
            **options,
            settings={"when": "decisions"},
            policy=tunekit.policies.AtDecisions(),
        )
        check_contract(few)
        assert decided(few) == decided(each)
        assert few.lengths() == each.lengths()
        for index, length in few.lengths().items():
            rungs = [rung for rung in (1, 3, 9, 27, 81) if rung <= length]
            assert sorted(few.validated()[index]) == rungs
            assert saved(few)[index] == len(rungs)
            assert saved(each)[index] == length
            full += length == 81
    assert full >= 3


def test_asha_that_trains_on_stops_at_the_same_rungs(tmp_path):
    def heard_rungs(ran):
        return {index: max(i, default=0) for index in ran.lengths() for i in [ran.heard.of(index)]}

    for seed in range(3):
        few = sweep(
            tmp_path / str(seed),
            asha(),
            trainable=Endless,
            seed=seed,
            trials=9,
            validation_s=lambda attempt: 2.5,
            settings={"when": "decisions"},
            policy=tunekit.policies.AtDecisions(),
        )
        check_contract(few)
        assert set(heard_rungs(few).values()) <= {1, 3, 9, 27, 81}
        [bracket] = few.sweep.controller._scheduler_alg.scheduler._brackets
        for milestone, scores in bracket._rungs:
            for trial in few.trials:
                score = few.validated()[index_of(trial)].get(milestone)
                assert scores.get(trial.trial_id) in (score, None)


def test_a_trial_saves_at_its_end_too(tmp_path):
    base = ASHAScheduler(max_t=81, grace_period=4, reduction_factor=4)
    ran = sweep(tmp_path, base, trials=1, **ONLY)
    assert set(ran.validated()[0]) == {4, LENGTH}
    assert ran.trials[0].checkpoint_at_end, "also if no report says that it is the last"


@pytest.mark.parametrize("name", ["asha", "hyperband", "promotion"])
def test_nobody_reports_twice_past_the_last_decision(tmp_path, name):
    ran = run(name, tmp_path, trainable=Endless, trials=8, validation_s=lambda attempt: 20.0)
    check_contract(ran)
    assert max(ran.lengths().values()) == 9
    # A function that ends there is not kept from it: nobody waits before it has reported again.
    assert max(e["report"]["training_iteration"] for e in journal(ran) if "report" in e) <= 10


def test_nobody_trains_on_because_validations_lack_a_node(tmp_path, monkeypatch):
    """It is added after a minute, and trials hold nothing that validations need."""
    ran = run("asha", tmp_path, trainable=Endless, trials=8, run=False)
    ran.executor._delay = lambda attempt: max(0.0, 60.0 - ran.clock.monotonic())
    monkeypatch.setattr(FakeExecutor, "need", {"validator": 1.0})
    ran.sweep.run(most=50_000)
    check_contract(ran)
    assert max(ran.lengths().values()) <= 10


@every_case
def test_every_scheduler(tmp_path, name, on_pending):
    ran = run(
        name,
        tmp_path,
        on_pending=on_pending,
        settings={"when": "decisions"},
        policy=tunekit.policies.AtDecisions(),
        validation_s=lambda attempt: 1.5,
        trials=10,
        slots=4,
    )
    check_contract(ran)
    assert all(t.status == Trial.TERMINATED for t in ran.trials)
    counts = ran.validation.summary()["validated"]
    reports = sum(len(runs) for runs in ran.validation.engine.history._runs.values())
    if not name.startswith("median"):
        assert counts < reports
    for trial in ran.trials:
        if trial.last_result["training_iteration"] == 9 and not CASES[name].stops:
            generation = ran.validation.engine.ancestry.generation(trial.trial_id)
            assert (generation, 9) in ran.scores()[index_of(trial)], "the end is validated"


def test_without_decisions_only_the_end_is_validated(tmp_path):
    ran = sweep(tmp_path, FIFOScheduler(), trials=2, **ONLY)
    assert ran.validated() == {0: {9: ran.validated()[0][9]}, 1: {9: ran.validated()[1][9]}}


def test_a_failed_validation_at_a_rung_is_made_up_for(tmp_path):
    """The scheduler gets the next report's score, rather than none."""
    ran = sweep(
        tmp_path,
        HyperBandScheduler(max_t=9, reduction_factor=3),
        on_pending="wait",
        trials=5,
        validate=lambda attempt: (
            {"accuracy": 0.5} if attempt.request.iteration != 3 else "no score"
        ),
        settings={"when": "decisions", "max_retries": 0},
        policy=tunekit.policies.AtDecisions(),
        trainable=Counting,
    )
    check_contract(ran)
    assert any(4 in ran.heard.of(index_of(t)) for t in ran.trials)


def test_with_checkpoints_elsewhere_the_first_after_a_rung_is_validated(tmp_path):
    ran = sweep(
        tmp_path,
        ASHAScheduler(max_t=9, grace_period=2, reduction_factor=2),
        on_pending="wait",
        trials=4,
        settings={"when": "decisions"},
        policy=tunekit.EveryIterations(3),
    )
    check_contract(ran)
    assert all(set(scores) <= {3, 6, 9} and 3 in scores for scores in ran.validated().values())


def test_population_based_training_is_exact_and_validates_at_its_interval(tmp_path):
    seed_all(0)
    versions = Versions()
    from tests.contract.test_pbt import check_exact, lags, validate

    ran = sweep(
        tmp_path,
        pbt(perturbation_interval=4),
        trials=8,
        trainable=Versioned,
        validate=validate,
        validation_s=lags(0),
        later_callbacks=(versions,),
        settings={"when": "decisions"},
        policy=tunekit.policies.AtDecisions(),
        stop={"training_iteration": 24},
        **space(),
    )
    check_contract(ran)
    assert check_exact(ran, versions) >= 5
    reports = sum(map(len, versions.reports.values()))
    assert ran.validation.summary()["validated"] <= reports / 3


def both(attempt):
    """The metrics of ``tests.schedulers.moasha``, both from the validation."""
    index, iteration = int(attempt.request.trial_id.rsplit("_", 1)[1]), attempt.request.iteration
    return {"accuracy": quality(index, iteration), "loss": 1 / iteration}


@every_case
def test_by_default_what_decides_is_validated_or_all_where_nothing_decides(
    tmp_path, name, on_pending
):

    def ran(when):
        seed_all(0)
        options = {"on_pending": on_pending, "validation_s": lambda attempt: 1.5}
        options |= {"trials": 10, "slots": 4, "settings": {"when": when}}
        if name.startswith("moasha"):  # else scores wait until loss is known as training's
            options["validate"] = both
        return run(name, tmp_path / str(when), **options)

    # Without decisions, everything is validated.
    auto, few = ran("auto"), ran(1 if name == "fifo" else "decisions")
    check_contract(few)
    assert auto.heard.results == few.heard.results
    assert auto.lengths() == few.lengths()
    counts = auto.validation.summary()
    assert counts == few.validation.summary()
    assert auto.heard.ends == few.heard.ends
    assert not any(counts[name] for name in ("running", "starting", "queued", "waiting"))
    assert list(broken(auto.validation)) == []


@pytest.mark.parametrize("lag_s", [0.3, 2.5])
def test_a_trials_end_has_its_last_score_whenever_that_came(tmp_path, lag_s):
    """Of its last checkpoint, which decides nothing: before it ends, and after."""
    ran = sweep(
        tmp_path,
        ASHAScheduler(max_t=100, grace_period=3, reduction_factor=4),
        policy=tunekit.EveryIterations(4),
        trials=2,
        slots=1,
        on_pending="continue",
        validation_s=lambda attempt: lag_s,
        settings={"when": "auto"},
    )
    assert set(ran.lengths().values()) == {LENGTH}
    assert sorted(ran.heard.ends) == [(n, quality(n, 8)) for n in (0, 1)]


def test_what_may_stop_a_trial_decides(tmp_path):
    """A metric that nobody is judged by, and that nobody knows to be validation's at first."""
    ran = sweep(
        tmp_path,
        ASHAScheduler(max_t=100, grace_period=8, reduction_factor=2),
        trials=1,
        validate=lambda attempt: {"accuracy": 0.5, "recall": attempt.request.iteration / 10},
        stop={"recall": 0.3},
        settings={"when": "auto"},
    )
    assert ran.lengths()[0] < LENGTH
