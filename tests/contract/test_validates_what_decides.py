"""``when="decisions"`` decides the same with only the checkpoints and validations it needs."""

from __future__ import annotations

import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, HyperBandScheduler

import tunekit
from tests.support.contract import check_contract
from tests.support.fakes import FakeExecutor
from tests.support.invariants import broken
from tests.support.journals import read, scores_of
from tests.support.local_sweep import index_of
from tests.support.modes import Mode
from tests.support.schedulers import asha, every_case, pbt, planned, seed_all, space
from tests.support.sweeps import Plan, SavesWhen
from tests.support.trainables import LENGTH, Endless, quality
from tunekit import EveryIterations
from tunekit.core.events import Processed
from tunekit.driver.shell import VOID
from tunekit.journal.journal import events_in
from tunekit.schedulers import PromotionASHA

pytestmark = pytest.mark.sampled(2)


def at_decisions(plan: Plan) -> Plan:
    """Saves and validates only what decides."""
    return plan.training(saves=tunekit.policies.AtDecisions()).validating(when="decisions")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("base", "decides"),
    [
        (asha(max_t=27), {1, 3, 9, 27}),
        (ASHAScheduler(max_t=81, grace_period=4, reduction_factor=4), {4, 16, 27}),
        (pbt(perturbation_interval=4, quantile_fraction=0.0), {*range(4, 27, 4), 27}),
        (FIFOScheduler(), {27}),
    ],
    ids=["asha", "asha-that-does-not-end-it", "pbt", "nothing-decides"],
)
def test_only_decision_points_and_the_last_checkpoint_of_each_trial_are_validated(
    tmp_path, base, decides
):
    plan = at_decisions(Plan(tmp_path, base)).training(Endless).validating(seconds=2.5)
    ran = plan.tuning(stop={"training_iteration": 27}, **space()).run()
    check_contract(ran)
    assert {iteration for own in ran.validated().values() for iteration in own} == decides
    assert {event["iteration"] for event in read(ran.home, "checkpoint_saved")} == decides


def test_trial_that_ends_by_itself_has_only_its_last_checkpoint_validated(tmp_path):
    ran = at_decisions(Plan(tmp_path, trials=1)).run()
    assert set(ran.validated()[0]) == {LENGTH}
    assert ran.trials[0].checkpoint_at_end, "also if no report says that it is the last"


@pytest.mark.parametrize("name", ["asha", "hyperband", "promotion"])
def test_no_trial_reports_twice_past_its_last_decision_point(tmp_path, name):
    ran = planned(name, tmp_path, trials=8).training(Endless).validating(seconds=20.0).run()
    check_contract(ran)
    assert max(ran.lengths().values()) == 9
    # A function that ends there is not kept from it: nobody waits before it has reported again.
    assert max(e["report"]["training_iteration"] for e in read(ran.home) if "report" in e) <= 10


def test_no_trial_trains_past_its_last_rung_while_validations_lack_a_node(tmp_path, monkeypatch):
    """It is added after a minute, and trials hold nothing that validations need."""
    ran = planned("asha", tmp_path, trials=8).training(Endless).start()
    ran.executor._delay = lambda attempt: max(0.0, 60.0 - ran.clock.monotonic())
    monkeypatch.setattr(FakeExecutor, "need", {"validator": 1.0})
    ran.sweep.run(most=50_000)
    check_contract(ran)
    assert max(ran.lengths().values()) <= 10


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
def test_scheduler_uses_the_next_score_after_a_failed_validation_at_a_rung(tmp_path, base):
    """The scheduler gets the next report's score, rather than none."""

    def validate(attempt):
        return {"accuracy": 0.5} if attempt.request.iteration != 3 else "no score"

    plan = at_decisions(Plan(tmp_path, base, Mode.WAIT, trials=5)).tuning(**space())
    ran = plan.validating(validate, max_retries=0).run()
    check_contract(ran)
    heard = [ran.heard.of(index_of(t)) for t in ran.trials]
    assert any(4 in own for own in heard) and not any(3 in own for own in heard)


def test_first_checkpoint_after_a_rung_is_validated_if_the_rung_has_none(tmp_path):
    base = ASHAScheduler(max_t=9, grace_period=2, reduction_factor=2)
    plan = Plan(tmp_path, base, Mode.WAIT, trials=4).training(saves=tunekit.EveryIterations(3))
    ran = plan.validating(when="decisions").run()
    check_contract(ran)
    assert all(set(scores) <= {3, 6, 9} and 3 in scores for scores in ran.validated().values())


def both(attempt):
    """The metrics of ``tests.support.schedulers.moasha``, both from the validation."""
    index, iteration = int(attempt.request.trial_id.rsplit("_", 1)[1]), attempt.request.iteration
    return {"accuracy": quality(index, iteration), "loss": 1 / iteration}


@every_case
def test_validations_by_default_cover_decision_points_or_all_if_nothing_decides(
    tmp_path, name, mode
):
    def ran(when):
        seed_all(0)
        plan = planned(name, tmp_path / str(when), mode, trials=10).training(slots=4)
        if name.startswith("moasha"):  # else scores wait until loss is known as training's
            plan = plan.validating(both)
        return plan.validating(seconds=1.5, when=when).run()

    # Without decisions, everything is validated.
    auto, few = ran("auto"), ran(1 if name == "fifo" else "decisions")
    check_contract(few)
    assert auto.heard.results == few.heard.results
    assert auto.lengths() == few.lengths()
    counts = auto.validation.summary()
    assert counts == few.validation.summary()
    assert auto.heard.ends == few.heard.ends
    assert not any(counts[name] for name in ("running", "starting", "unplaced", "queued"))
    assert list(broken(auto.validation.run)) == []


@pytest.mark.parametrize("lag_s", [0.3, 2.5])
def test_trial_ends_with_its_last_score_if_that_arrives_before_or_after_its_end(tmp_path, lag_s):
    base = ASHAScheduler(max_t=100, grace_period=3, reduction_factor=4)
    plan = Plan(tmp_path, base, Mode.CONTINUE, trials=2)
    plan = plan.training(slots=1, saves=tunekit.EveryIterations(4))
    ran = plan.validating(seconds=lag_s, when="auto").run()
    assert set(ran.lengths().values()) == {LENGTH}
    assert sorted(ran.heard.ends) == [(n, quality(n, 8)) for n in (0, 1)]


def test_metric_of_a_stop_condition_is_validated_where_it_may_stop_a_trial(tmp_path):
    """A metric that ranks nothing, and is not known to be validation's at first."""

    def validate(attempt):
        return {"accuracy": 0.5, "recall": attempt.request.iteration / 10}

    base = ASHAScheduler(max_t=100, grace_period=8, reduction_factor=2)
    plan = Plan(tmp_path, base, trials=1).validating(validate, when="auto")
    ran = plan.tuning(stop={"recall": 0.3}).run()
    assert ran.lengths()[0] < LENGTH


# Which go first, and what becomes of those of trials that are stopped ---------------------------


def one_at_a_time(folder, length=LENGTH):
    """Validations one at a time, each as long as two iterations: they queue up."""
    return (
        planned("asha", folder, Mode.AUTO, trials=6)
        .training(Endless, slots=3)
        .validating(seconds=2.0, max_in_flight=1)
        .tuning(stop={"training_iteration": length})
        .run()
    )


def test_pending_validations_of_a_trial_stopped_early_are_skipped_with_a_reason(tmp_path):
    ran = one_at_a_time(tmp_path)
    table = tunekit.load(ran.home).validations
    skipped = table[table.status == "skipped"]
    assert len(skipped) and set(skipped.reason) == {VOID}
    assert set(table.status) == {"validated", "skipped"}
    stops = tunekit.load(ran.home).decisions.query("decision == 'STOP'")
    rejected = set(stops[stops.iteration < LENGTH].trial_id)
    assert set(skipped.trial_id) <= rejected


def test_trial_that_reached_max_t_has_all_its_checkpoints_validated(tmp_path):
    ran = one_at_a_time(tmp_path, 3 * LENGTH)  # ASHA ends it
    ended = [e for e in events_in(ran.home) if isinstance(e, Processed) and e.finished]
    assert ended and {event.iteration for event in ended} == {LENGTH}
    for event in ended:
        scores = [place[1] for place, _ in scores_of(ran.home)[event.trial_id].items()]
        assert scores == list(range(1, LENGTH + 1))


# Checkpoints that something else requests -------------------------------------------------------


def saved_at(trial) -> list[int]:
    """The iterations of the checkpoints that Tune has of a trial."""
    results = trial.run_metadata.checkpoint_manager.best_checkpoint_results
    return sorted(result.metrics["training_iteration"] for result in results)


def test_checkpoint_policy_keeps_the_request_of_another_callback():
    report = {"training_iteration": 1, "should_checkpoint": True}
    EveryIterations(5).on_trial_result(0, [], None, report)
    assert report["should_checkpoint"]


class Late(tune.Callback):
    """Asks for checkpoints after the ValidationCallback."""

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if result["training_iteration"] in (2, 4):
            result["should_checkpoint"] = True


def test_checkpoint_requested_by_a_later_callback_is_saved_but_not_validated(tmp_path, caplog):
    ran = (
        Plan(tmp_path, trials=1)
        .training(saves=SavesWhen(lambda trial, result: result["training_iteration"] in (1, 5)))
        .validating(seconds=0.5)
        .calling(last=(Late(),))
        .run()
    )
    [trial] = ran.trials
    assert trial.status == "TERMINATED" and sorted(ran.validated()[0]) == [1, 5]
    assert {1, 5} < {*saved_at(trial)} <= {1, 2, 4, 5}
    [warned] = [r.getMessage() for r in caplog.records if "should_checkpoint" in r.getMessage()]
    assert "checkpoint_policy=" in warned


def test_trial_that_a_stopper_ends_saves_at_its_end_with_checkpoint_at_end(tmp_path):
    ran = (
        Plan(tmp_path, trials=1)
        .training(saves=SavesWhen(lambda trial, result: result["training_iteration"] == 2))
        .validating(seconds=0.5)
        .tuning(
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
            stop=lambda trial_id, result: result["training_iteration"] == 4,
        )
        .run()
    )
    [trial] = ran.trials
    assert trial.status == "TERMINATED"
    assert saved_at(trial) == [2, 4]
