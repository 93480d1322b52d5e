"""The comparison of population based training with random search, on a small scale."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import pytest

from tunekit.demo import perceptron

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        return importlib.import_module("pbt_digits")


@pytest.fixture(scope="module")
def outcomes(script, ray_cluster):
    return script.compare(0, population=4, epochs=8, interval=2)


def test_the_population_exploits_and_random_search_does_not(outcomes):
    assert outcomes["PBT"].exploits > 0
    assert outcomes["random"].exploits == 0


def test_random_search_trains_no_fewer_epochs(outcomes):
    pbt, random = (outcomes[name].epochs for name in ("PBT", "random"))
    assert pbt <= random < pbt + 4
    assert random == 4 * math.ceil(pbt / 4)


@pytest.mark.parametrize("search", ["PBT", "random"])
def test_the_best_checkpoint_scores_what_was_said(outcomes, search):
    outcome = outcomes[search]
    assert 0 < outcome.validated <= 1 and 0 < outcome.test <= 1
    assert outcome.best.metrics["validated_iteration"] == outcome.best.metrics["training_iteration"]
    again = perceptron.validate(outcome.best.checkpoint)["accuracy"]
    assert again == pytest.approx(outcome.validated)
    assert perceptron.accuracy_of(outcome.best.checkpoint) == pytest.approx(outcome.test)


def test_both_begin_with_the_same_configurations(outcomes):
    """The first row of each trial is of the same loss: same weights, batches and configuration."""
    pbt, random = outcomes["PBT"].first_losses, outcomes["random"].first_losses
    assert pbt == random and len(set(pbt)) == 4


def test_the_table_says_which_is_better(script, outcomes):
    ahead = outcomes["PBT"].validated > outcomes["random"].validated
    printed = script.table({0: outcomes})
    assert ("PBT is better than" if ahead else "PBT is not better than") in printed
    assert f"{outcomes['PBT'].validated:.2%}" in printed
