"""What Tune's controller heeds besides trials; Tune itself does not run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tunekit._ray.controller import Controller


class Tune:
    """As much of Tune's controller as its part that heeds validations looks at."""

    def __init__(self):
        self.over, self.blocked, self.added, self.evicted = False, [], 0, 0
        self._insufficient_resources_manager = SimpleNamespace(_no_running_trials_since=12.0)
        self._staged_trials, self._trial_to_actor, self._actor_to_trial = set(), {}, {}
        self._pending_trials_list, self._trials = [], []
        self.cancelled = []
        self._actor_manager = SimpleNamespace(
            is_actor_started=lambda actor: actor == "started", remove_actor=self.cancelled.append
        )
        self._actor_cache = SimpleNamespace(decrease_max=lambda resources: None)

    def is_finished(self):
        return self.over

    def _update_trial_queue(self, blocking=False, timeout=600):
        self.blocked.append(blocking)
        return False

    def _maybe_add_actors(self):
        self.added += 1

    def _cleanup_cached_actors(self, force_all=False):
        self.evicted += force_all


@pytest.fixture
def heeding():
    """A controller, and what may be said to it."""
    tune, says = Tune(), SimpleNamespace(pending=False, first=False)
    Controller(tune).heed(pending=lambda: says.pending, first=lambda: says.first)
    return tune, says


def test_a_sweep_is_not_over_while_validations_are_pending(heeding):
    tune, says = heeding
    says.pending = True
    assert not tune.is_finished()
    tune.over = True
    assert not tune.is_finished()
    says.pending = False
    assert tune.is_finished()


def test_tune_does_not_stand_still_until_the_search_algorithm_has_its_scores(heeding):
    tune, says = heeding
    tune._update_trial_queue(blocking=True)
    says.pending = True
    tune._update_trial_queue(blocking=True)
    tune._update_trial_queue()
    assert tune.blocked == [True, False, False]


def test_tune_does_not_warn_that_no_trial_runs_while_validations_are_pending(heeding):
    tune, says = heeding
    tune._maybe_add_actors()
    assert tune._insufficient_resources_manager._no_running_trials_since == 12.0
    says.pending = True
    tune._maybe_add_actors()
    assert tune._insufficient_resources_manager._no_running_trials_since == -1
    assert tune.added == 2


def test_what_is_kept_for_trials_that_are_to_start_is_given_back(heeding):
    tune, says = heeding
    trials = [
        SimpleNamespace(number=n, status="PENDING", placement_group_factory=None) for n in range(4)
    ]
    trials = [Hashable(trial) for trial in trials]
    tune._trials = list(trials)
    tune._staged_trials = set(trials[:3])
    tune._trial_to_actor = {trials[0]: "started", trials[1]: "b", trials[2]: "c"}
    tune._actor_to_trial = {actor: trial for trial, actor in tune._trial_to_actor.items()}
    tune._pending_trials_list = [trials[3]]
    says.pending = says.first = True
    tune._maybe_add_actors()
    assert not tune.added
    assert sorted(tune.cancelled) == ["b", "c"]
    assert tune._staged_trials == {trials[0]}, "it has its resources"
    assert tune._actor_to_trial == {"started": trials[0]}
    assert tune._pending_trials_list == trials[1:], "in the order in which they were made"
    assert tune.evicted == 1


class Hashable:
    """A trial that can be in a set."""

    def __init__(self, what):
        self.__dict__.update(vars(what))


def test_nothing_that_heeds_is_among_what_tune_saves(heeding):
    tune, _ = heeding
    assert vars(tune).keys() == vars(Tune()).keys()
