"""``when="decisions"``: the same decisions, with the checkpoints and validations they need only."""

from __future__ import annotations

import pytest
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler

import tunekit
from tests.contract.test_every_scheduler import check_contract, run
from tests.support.broken import broken
from tests.support.fakes import FakeExecutor
from tests.support.journals import read
from tests.support.schedulers import every_case, pbt, seed_all, space
from tests.support.sweeps import LENGTH, Endless, index_of, quality, sweep
from tunekit.schedulers import PromotionASHA

pytestmark = pytest.mark.sampled(2)

ONLY = {"settings": {"when": "decisions"}, "policy": tunekit.policies.AtDecisions()}


def asha():
    return ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3)


def promotion():
    return PromotionASHA(max_t=27, grace_period=1, reduction_factor=3)


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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [asha, promotion])
def test_the_same_is_decided_with_four_checkpoints_as_with_27(tmp_path, make):
    options = {"on_pending": "wait", "trainable": Endless, "trials": 9}
    each = sweep(tmp_path / "each", make(), **options)
    few = sweep(tmp_path / "few", make(), **options, **ONLY)
    check_contract(few)
    assert decided(few) == decided(each)
    assert few.lengths() == each.lengths()
    validated = few.validated()
    for index, length in few.lengths().items():
        rungs = [rung for rung in (1, 3, 9, 27) if rung <= length]
        assert sorted(validated[index]) == rungs
        assert (saved(few)[index], saved(each)[index]) == (len(rungs), length)
    assert 27 in few.lengths().values()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("base", "decides"),
    [
        (asha(), {1, 3, 9, 27}),
        (pbt(perturbation_interval=4, quantile_fraction=0.0), {*range(4, 27, 4), 27}),
    ],
    ids=["asha", "pbt"],
)
def test_trials_that_train_on_are_validated_where_that_decides_only(tmp_path, base, decides):
    late = {"validation_s": lambda attempt: 2.5, "stop": {"training_iteration": 27}}
    ran = sweep(tmp_path, base, trainable=Endless, **late, **ONLY, **space())
    check_contract(ran)
    assert {iteration for own in ran.validated().values() for iteration in own} == decides


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
    assert max(e["report"]["training_iteration"] for e in read(ran.home) if "report" in e) <= 10


def test_nobody_trains_on_because_validations_lack_a_node(tmp_path, monkeypatch):
    """It is added after a minute, and trials hold nothing that validations need."""
    ran = run("asha", tmp_path, trainable=Endless, trials=8, run=False)
    ran.executor._delay = lambda attempt: max(0.0, 60.0 - ran.clock.monotonic())
    monkeypatch.setattr(FakeExecutor, "need", {"validator": 1.0})
    ran.sweep.run(most=50_000)
    check_contract(ran)
    assert max(ran.lengths().values()) <= 10


def test_without_decisions_only_the_end_is_validated(tmp_path):
    ran = sweep(tmp_path, trials=2, **ONLY)
    assert ran.validated() == {0: {9: ran.validated()[0][9]}, 1: {9: ran.validated()[1][9]}}


@pytest.mark.parametrize(
    "base",
    [
        HyperBandScheduler(max_t=9, reduction_factor=3),
        ASHAScheduler(max_t=9, grace_period=3, reduction_factor=3),
        PromotionASHA(max_t=9, grace_period=3, reduction_factor=3),
        pbt(perturbation_interval=3),
    ],
    ids=lambda base: type(base).__name__,
)
def test_a_failed_validation_at_a_rung_is_made_up_for(tmp_path, base):
    """The scheduler gets the next report's score, rather than none."""
    ran = sweep(
        tmp_path,
        base,
        on_pending="wait",
        trials=5,
        validate=lambda attempt: (
            {"accuracy": 0.5} if attempt.request.iteration != 3 else "no score"
        ),
        settings={"when": "decisions", "max_retries": 0},
        policy=tunekit.policies.AtDecisions(),
        **space(),
    )
    check_contract(ran)
    heard = [ran.heard.of(index_of(t)) for t in ran.trials]
    assert any(4 in own for own in heard) and not any(3 in own for own in heard)


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


def both(attempt):
    """The metrics of ``tests.support.schedulers.moasha``, both from the validation."""
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
