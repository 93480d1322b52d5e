from __future__ import annotations

from types import SimpleNamespace

import pytest

from tunekit import EveryIterations
from tunekit.errors import ConfigError


def due(policy, reports) -> list[int]:
    asked = []
    for report in reports:
        result = dict(report)
        policy.on_trial_result(0, [], SimpleNamespace(trial_id="a"), result)
        if result.get("should_checkpoint"):
            asked.append(result["training_iteration"])
    return asked


def test_every_n_iterations():
    assert due(EveryIterations(3), [{"training_iteration": n} for n in range(1, 11)]) == [3, 6, 9]


def test_a_policy_does_not_take_back_what_another_asked():
    asked = {"training_iteration": 1, "should_checkpoint": True}
    assert due(EveryIterations(5), [asked]) == [1]


@pytest.mark.parametrize("n", [0, 2.0])
def test_wrong_arguments(n):
    with pytest.raises(ConfigError):
        EveryIterations(n)
