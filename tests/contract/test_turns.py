"""A scheduler that takes the first trial that waits gets it without a look at all of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule

from tests.schedulers import MODES
from tests.sweeps import Counting, sweep
from tunekit._ray.proxies import Proxies, ProxyController


def waiting(ran):
    """The trials that a scheduler would be offered, one after the other."""
    rows = ran.sweep.controller.scheduler_alg._proxies._rows
    return [proxy for row in rows.values() for proxy in row.values()]


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
    seen, with_only = [], ProxyController.with_only

    def watched(view, trials):
        def checked():
            first = FIFOScheduler.choose_trial_to_run(None, view)
            offered = trials()
            assert offered == ([] if first is None else [first])
            seen.append(first)
            return offered

        return with_only(view, checked)

    monkeypatch.setattr(ProxyController, "with_only", watched)
    return seen


@pytest.mark.one_mode
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
    assert not waiting(ran), "trials that have failed for good would be looked at ever after"


def test_a_trial_that_has_begun_to_run_waits_no_more():
    """Nor does one that has failed, whether or not the scheduler has heard of it."""
    proxies = Proxies()
    for name, status in enumerate(["RUNNING", "ERROR", "PENDING", "PENDING"]):
        proxies.add(SimpleNamespace(trial_id=str(name), status=status))
    assert [judged.trial_id for judged in proxies.first_in_turn()] == ["2"]


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
