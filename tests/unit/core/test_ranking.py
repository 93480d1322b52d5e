"""The ranking of trials: which checkpoint stands for each, and how far each has run."""

from __future__ import annotations

import pytest

from tests.unit.core.test_timeline import added, event, reported, told, validated
from tunekit.core.problems import Problems
from tunekit.core.ranking import (
    best_scored,
    checked_goal,
    ranking_of,
    whole_trials,
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


@pytest.mark.parametrize(
    ("scheduler", "whole"),
    [
        (None, True),
        ({"type": "ASHAScheduler", "settings": {"max_t": 2, "time_attr": "training_iteration"}}, 1),
        ({"type": "ASHAScheduler", "settings": {"max_t": 3, "time_attr": "training_iteration"}}, 0),
        ({"type": "ASHAScheduler", "settings": {"max_t": 3}}, True),
        ({"type": "FIFOScheduler", "settings": {"max_t": 3}}, True),
    ],
)
def test_a_stopped_trial_is_whole_if_it_got_as_far_as_trials_get(scheduler, whole):
    stop = event("decided", 3.0, decision="STOP")
    timeline = told(*TWO, stop, event("completed", 3.0))
    session = {"scheduler": scheduler}
    assert whole_trials(timeline, session) == ({"a"} if whole else set())


def test_a_trial_is_not_whole_where_another_one_got_further():
    further = {**reported(5, 4.0), "trial_id": "b"}
    timeline = told(*TWO, further)
    assert whole_trials(timeline, {}) == {"b"}
    assert whole_trials(timeline, {"scheduler": {"type": "FIFOScheduler"}}) == {"a", "b"}
