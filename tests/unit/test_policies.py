from __future__ import annotations

from types import SimpleNamespace

import pytest

from tunekit import EveryIterations
from tunekit.errors import ConfigError
from tunekit.policies import CheckpointWhen, EverySeconds, OnImprovement


def trial(name: str = "a") -> SimpleNamespace:
    return SimpleNamespace(trial_id=name)


def due(policy, reports, name: str = "a") -> list[int]:
    asked = []
    for report in reports:
        result = dict(report)
        policy.on_trial_result(0, [], trial(name), result)
        if result.get("should_checkpoint"):
            asked.append(result["training_iteration"])
            policy.on_trial_save(0, [], trial(name))
    return asked


def losses(*values: float) -> list[dict]:
    return [{"training_iteration": n, "loss": v} for n, v in enumerate(values, 1)]


def test_every_n_iterations():
    assert due(EveryIterations(3), losses(*range(10))) == [3, 6, 9]


def test_every_t_seconds_counts_from_the_last_checkpoint_of_the_trial():
    policy, now = EverySeconds(10), [0.0]
    policy._clock = lambda: now[0]

    def at(seconds: float, name: str = "a") -> bool:
        now[0] = seconds
        return bool(due(policy, [{"training_iteration": 1}], name))

    assert [at(s) for s in (0, 9, 10, 15, 20)] == [False, False, True, False, True]
    assert [at(s, "b") for s in (25, 34, 35)] == [False, False, True]
    now[0] = 41
    policy.on_trial_save(0, [], trial())  # somebody else asked for one
    assert [at(s) for s in (45, 51)] == [False, True]


@pytest.mark.parametrize(
    ("mode", "delta", "expected"),
    [("min", 0.0, [1, 2, 5]), ("min", 0.15, [1, 2, 5]), ("max", 0.0, [1, 3])],
)
def test_on_improvement(mode, delta, expected):
    nan = float("nan")
    assert due(OnImprovement("loss", mode, delta), losses(0.9, 0.5, 0.95, nan, 0.3)) == expected


def test_improvement_by_too_little_does_not_count():
    assert due(OnImprovement("loss", "min", 0.1), losses(0.9, 0.85, 0.79)) == [1, 3]


def test_improvement_of_a_nested_metric_that_is_not_always_there():
    reports = [
        {"training_iteration": 1},
        {"training_iteration": 2, "eval": {"loss": 0.5}},
        {"training_iteration": 3, "eval": 7},
        {"training_iteration": 4, "eval": {"loss": "low"}},
        {"training_iteration": 5, "eval": {"loss": 0.4}},
    ]
    assert due(OnImprovement("eval/loss", "min"), reports) == [2, 5]


def test_trials_do_not_share_their_best():
    policy = OnImprovement("loss", "min")
    assert due(policy, losses(0.1), "a") == [1]
    assert due(policy, losses(0.9, 0.5), "b") == [1, 2]


def test_when_asks_a_predicate_with_the_trial_and_its_result():
    policy = CheckpointWhen(lambda trial, result: trial.trial_id == "b" and result["loss"] < 0.5)
    assert due(policy, losses(0.9, 0.4), "a") == []
    assert due(policy, losses(0.9, 0.4), "b") == [2]


def test_any_of_lets_every_policy_see_every_report():
    improvement = OnImprovement("loss", "min")
    policy = EveryIterations(2) | improvement | CheckpointWhen(lambda trial, result: False)
    assert due(policy, losses(0.9, 0.8, 0.85, 0.95, 0.81)) == [1, 2, 4]
    assert improvement._best == {"a": -0.8}


def test_a_policy_does_not_take_back_what_another_asked():
    result = {"training_iteration": 1, "should_checkpoint": True}
    EveryIterations(5).on_trial_result(0, [], trial(), result)
    assert result["should_checkpoint"]


def test_combinations_are_flat_and_shown():
    policy = EveryIterations(2) | EverySeconds(60) | OnImprovement("loss", mode="min", delta=0.1)
    assert len(policy.policies) == 3
    assert repr(policy) == (
        "EveryIterations(2) | EverySeconds(60) | OnImprovement('loss', mode='min', delta=0.1)"
    )


def test_the_best_survives_a_restore():
    before = EveryIterations(100) | OnImprovement("loss", "min")
    assert due(before, losses(0.5)) == [1]
    after = EveryIterations(100) | OnImprovement("loss", "min")
    after.set_state(before.get_state())
    assert due(after, losses(0.6, 0.4)) == [2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: EveryIterations(0),
        lambda: EveryIterations(2.0),
        lambda: EverySeconds(0),
        lambda: EverySeconds("60"),
        lambda: OnImprovement(3, "min"),
        lambda: OnImprovement("loss", "lower"),
        lambda: OnImprovement("loss", "min", delta=-1),
        lambda: OnImprovement("loss", "min", delta="x"),
        lambda: CheckpointWhen(True),
    ],
)
def test_wrong_arguments(make):
    with pytest.raises(ConfigError):
        make()


def test_policies_combine_with_policies_only():
    with pytest.raises(TypeError, match="unsupported operand"):
        EveryIterations(1) | 60


def test_all_mistakes_are_in_one_message():
    with pytest.raises(ConfigError) as caught:
        OnImprovement(3, "lower", delta=-1)
    assert len(caught.value.problems) == 3
