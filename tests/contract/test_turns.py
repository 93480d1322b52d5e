"""A scheduler that takes the first trial that waits gets it without a look at all of them."""

from __future__ import annotations

import pytest
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule

import tunekit
from tests.kills import run_killed
from tests.schedulers import MODES
from tests.sweeps import Counting, sweep


class Failing(Counting):
    """Every third trial fails at its second iteration, more often than it may be started again."""

    def step(self):
        result = super().step()
        if int(self.trial_id.rsplit("_", 1)[1]) % 3 == 0 and self.steps == 2:
            raise RuntimeError("fails at 2")
        return result


SCHEDULERS = {
    "fifo": FIFOScheduler,
    "asha": lambda: ASHAScheduler(max_t=5, grace_period=1, reduction_factor=2),
    "median": lambda: MedianStoppingRule(grace_period=1, min_samples_required=2),
}


@pytest.fixture
def chosen(monkeypatch):
    """What was chosen; the test fails where a look at all trials would have found another."""
    seen, told = [], tunekit.ValidatedScheduler._next_in_turn

    def checked(self):
        first = FIFOScheduler.choose_trial_to_run(self.base, self._view)
        offered = told(self)
        assert offered == ([] if first is None else [first])
        seen.append(first)
        return offered

    monkeypatch.setattr(tunekit.ValidatedScheduler, "_next_in_turn", checked)
    return seen


@pytest.mark.parametrize("on_pending", MODES)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_first_that_waits_is_offered(tmp_path, chosen, name, on_pending):
    ran = sweep(
        tmp_path,
        SCHEDULERS[name](),
        on_pending=on_pending,
        trainable=Failing,
        trials=12,
        slots=3,
        max_failures=1,
        validation_slots=2,
    )
    assert all(trial.is_finished() for trial in ran.trials)
    assert any(chosen)


@pytest.mark.parametrize("on_pending", MODES)
def test_the_first_that_waits_is_offered_in_a_restored_sweep(tmp_path, chosen, on_pending):
    def make(folder, **options):
        return sweep(
            folder,
            SCHEDULERS["asha"](),
            on_pending=on_pending,
            trainable=Failing,
            trials=12,
            slots=3,
            max_failures=1,
            run=False,
            listening=False,
            **options,
        )

    _, kills = run_killed(tmp_path, make, iter([40, 90, 150]))
    assert kills
    assert any(chosen)


def test_a_scheduler_that_chooses_in_its_own_way_sees_all_trials(tmp_path, chosen):
    class Last(FIFOScheduler):
        seen = 0

        def choose_trial_to_run(self, tune_controller):
            trials = tune_controller.get_trials()
            self.seen = max(self.seen, len(trials))
            return next((t for t in reversed(trials) if t.status == "PENDING"), None)

    base = Last()
    sweep(tmp_path, base, trials=6, slots=1)
    assert base.seen == 6
    assert not chosen
