"""The ranking of trials: which checkpoint stands for each, and how far each has run."""

from __future__ import annotations

import pytest

from tests.unit.core.test_timeline import added, told, validated
from tunekit.core.problems import Problems
from tunekit.core.ranking import (
    best_scored,
    checked_goal,
    ranking_of,
)

TWO = [added(), *validated(1, 1.0, 0.9), *validated(2, 2.0, 0.7)]


@pytest.mark.parametrize(("mode", "at"), [("max", 1), ("min", 2)])
def test_its_best_checkpoint_stands_for_a_trial(mode, at):
    timeline = told(*TWO)
    scored = timeline.score("a", "accuracy", mode)
    assert scored is not None and scored.iteration == at
    assert best_scored(timeline, ["a"], "accuracy", mode) == ("a", scored)


@pytest.mark.parametrize(
    ("metric", "mode", "rank", "last"),
    [("accuracy", "max", 1, 0.7), ("accuracy", None, None, 0.7), (None, "max", None, None)],
)
def test_without_a_metric_and_a_mode_no_trial_is_ranked(metric, mode, rank, last):
    [one] = ranking_of(told(*TWO), metric, mode)
    assert (one.rank, one.last_value) == (rank, last)
    assert one.hyperparameters == {"lr": 1}


def test_all_that_is_wrong_with_a_goal_is_said():
    problems = Problems("best")
    known = {"default": (None, None), "names": ["accuracy"], "problems": problems}
    checked_goal(None, None, **known)
    checked_goal("acuracy", None, **known)
    told = str(problems.error())
    for part in ("metric is missing", "mode is missing", "mean 'accuracy'?"):
        assert part in told
