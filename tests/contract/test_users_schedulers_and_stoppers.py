"""What users write for Tune works as with Tune alone, on validated results."""

from __future__ import annotations

from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTraining

from tests.contract.test_every_scheduler import check_contract
from tests.contract.test_pbt_clones_what_it_ranked import check_exact, validate
from tests.support.schedulers import seed_all, space
from tests.support.sweeps import LENGTH, index_of, quality, sweep
from tests.support.versioned import Versioned, Versions


class Tournament(PopulationBasedTraining):
    """Two trials meet at every second iteration, and the worse one becomes a clone of the other.

    The first to come stands still, or pauses, until the other is there.
    """

    def __init__(self, waits: str):
        mutations = {"lr": tune.uniform(0.0, 1.0)}
        super().__init__(hyperparam_mutations=mutations, log_config=False)
        self.waits, self.first, self.matches = waits, None, 0

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        state, score = self._trial_state[trial], result[self._metric]
        state.last_score, state.last_result = score, result
        if result["training_iteration"] % 2:
            return self.CONTINUE
        if self.first is None:
            self.first = trial
            return self.waits
        other, self.first = self.first, None
        self.matches += 1
        better = self._trial_state[other].last_score > score
        winner, loser = (other, trial) if better else (trial, other)
        saved = winner.checkpoint
        if winner.status != Trial.PAUSED:
            saved = tune_controller._schedule_trial_save(winner).resolve().checkpoint
        self._trial_state[winner].last_checkpoint = saved
        self._synch = loser.status == Trial.PAUSED  # else the base class refuses to overwrite it
        self._exploit(tune_controller, loser, winner)
        if winner is trial:
            return self.CONTINUE
        if self.waits == self.NOOP:
            tune_controller._tune_controller._schedule_trial_train(winner)
        return self.NOOP

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: Any) -> None:
        if self.first is trial:
            self.first = None

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        ready = (Trial.PENDING, Trial.PAUSED)
        trials = tune_controller.get_trials()
        return next((t for t in trials if t.status in ready and t is not self.first), None)


@pytest.mark.parametrize("waits", ["NOOP", "PAUSE"])
@pytest.mark.parametrize("on_pending", ["auto", "wait", "continue"])
def test_a_tournament_of_two(tmp_path, waits, on_pending):
    seed_all(0)
    base, versions = Tournament(waits), Versions()
    ran = sweep(
        tmp_path,
        base,
        on_pending=on_pending,
        trainable=Versioned,
        trials=4,
        validate=validate,
        validation_s=lambda attempt: 1.5,
        later_callbacks=(versions,),
        stop={"training_iteration": 7},
        **space(),
    )
    check_contract(ran)
    assert check_exact(ran, versions) == base.matches > 4
    assert set(ran.lengths().values()) == {7}


class Counts(tune.Stopper):
    """Ends a trial at its fourth result, and the sweep after 20 of them."""

    def __init__(self) -> None:
        self.seen: dict[str, list[float]] = {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.seen.setdefault(trial_id, []).append(result["accuracy"])
        return len(self.seen[trial_id]) == 4

    def stop_all(self) -> bool:
        return sum(map(len, self.seen.values())) >= 20


@pytest.mark.parametrize("on_pending", ["auto", "wait", "continue"])
def test_a_stopper_that_counts_and_a_callback_that_logs(tmp_path, on_pending):
    stopper, rows = Counts(), {}

    class Logs(tune.Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            rows.setdefault(index_of(trial), []).append(result["accuracy"])

    ran = sweep(
        tmp_path,
        on_pending=on_pending,
        trials=4,
        validation_s=lambda attempt: 2.5,
        later_callbacks=(Logs(),),
        stop=stopper,
    )
    check_contract(ran)
    scores = {index: [quality(index, n) for n in range(1, 5)] for index in range(4)}
    assert rows == scores and len(rows[0]) < LENGTH
    assert {int(trial_id[-1]): seen for trial_id, seen in stopper.seen.items()} == scores
