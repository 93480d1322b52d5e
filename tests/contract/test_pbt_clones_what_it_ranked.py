"""PBT clones exactly the checkpoint that it ranked, however late its score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pandas.testing import assert_frame_equal
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.result import DONE, RESULT_DUPLICATE
from ray.tune.schedulers import PopulationBasedTraining

import tunekit
from tests.support.contract import check_contract, lags
from tests.support.journals import read
from tests.support.kills import killed_at_each
from tests.support.local_sweep import index_of
from tests.support.modes import Mode
from tests.support.schedulers import PB2_SEARCH, pb2, pb2_module, pbt, seed_all, space
from tests.support.seeds import seeds
from tests.support.sweeps import Plan, Ran
from tests.support.trainables import Endless
from tests.support.versioned import Versioned, Versions, score_of, version_at
from tunekit.core.validation import Attempt
from tunekit.policies import AtDecisions

pytestmark = pytest.mark.sampled(2)


def validate(attempt):
    """Return what the checkpoint contains when its validation ends."""
    return {"accuracy": score_of(version_at(attempt.request.path))}


def population(
    folder: Path, base: Any, mode: Mode = Mode.CONTINUE, *, trials: int = 8, seed: int = 0
) -> Plan:
    seed_all(seed)
    plan = Plan(folder, base, mode, trials=trials, seed=seed).training(Versioned)
    plan = plan.validating(validate, seconds=lags(seed, 10.0))
    return plan.tuning(stop={"training_iteration": 24}, **space())


def check_exact(ran: Ran, versions: Versions) -> int:
    """Every clone that went on did so from what was scored, with the donor's hyperparameters."""
    exact = 0
    for exploit in ran.validation.ledger.state.ancestry:
        assert versions.is_exact(exploit) is not False, exploit
        exact += bool(versions.is_exact(exploit))
        assert exploit.old_config.keys() == exploit.config.keys() == exploit.donor_config.keys()
    assert not any(t.status == Trial.ERROR for t in ran.trials)
    return exact


@pytest.mark.parametrize(
    ("mode", "synch", "when"),
    [
        *((mode, False, 1) for mode in (Mode.CONTINUE, Mode.WAIT, Mode.WAIT_PAUSED)),
        *((mode, True, 1) for mode in (Mode.WAIT, Mode.WAIT_PAUSED)),
        (Mode.CONTINUE, False, "decisions"),
    ],
)
def test_clone_continues_from_the_scored_checkpoint_with_the_donors_configuration(
    tmp_path, mode, synch, when
):
    runs, exact = seeds(1), 0
    donors: list[tuple[int, str, int, int]] = []
    for seed in runs:
        versions, saves = Versions(), AtDecisions() if when == "decisions" else None
        ran = (
            population(tmp_path / str(seed), pbt(synch=synch), mode, seed=seed)
            .training(slots=4 if synch else None, saves=saves)
            .validating(when=when)
            .calling(last=(versions,))
            .run()
        )
        check_contract(ran)
        exact += check_exact(ran, versions)
        lineages = ran.validation.lineage, tunekit.load(ran.home).lineage
        assert_frame_equal(*(lineage.to_dataframe() for lineage in lineages))
        donors += [
            (seed, e["donor_id"], e["donor_generation"], e["iteration"])
            for e in read(ran.home, "exploited")
        ]
    assert exact >= 12 * len(runs)
    assert len(set(donors)) < len(donors), "no checkpoint was cloned twice"
    assert any(generation for _, _, generation, _ in donors), "no clone was a donor"


def test_late_score_of_a_former_generation_does_not_reach_the_scheduler(tmp_path):
    ran = population(tmp_path, pbt(), seed=1).run()
    late = 0
    for index, scores in ran.scores().items():
        told = ran.heard.places(index)
        newest = max(generation for generation, _ in told)
        late += len({place for place in scores if place[0] < newest} - {*told})
    assert late > 5


def test_pb2_clones_with_hyperparameters_of_its_own_search(tmp_path, monkeypatch):
    """The other tests leave out its search, which is slow."""
    monkeypatch.setattr(pb2_module, "_select_config", PB2_SEARCH)
    seed_all(1)
    plan = Plan(tmp_path, pb2(tmp_path), Mode.WAIT, trials=4).training(Endless)
    ran = plan.tuning(stop={"training_iteration": 5}, **space()).run()
    exploits = list(ran.validation.ledger.state.ancestry)
    assert exploits and all(0 <= exploit.config["lr"] <= 1 for exploit in exploits)
    assert set(ran.lengths().values()) == {5}


# A scheduler of a user's own --------------------------------------------------------------------


class Tournament(PopulationBasedTraining):
    """Two trials meet at every second iteration, and the worse one becomes a clone of the other.

    The first one waits in its process, or pauses, until the other arrives.
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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("waits", ["NOOP", "PAUSE"])
@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.WAIT, Mode.CONTINUE])
def test_scheduler_derived_from_pbt_clones_the_checkpoint_that_it_ranked(tmp_path, waits, mode):
    base, versions = Tournament(waits), Versions()
    plan = population(tmp_path, base, mode, trials=4).validating(seconds=1.5)
    ran = plan.tuning(stop={"training_iteration": 7}).calling(last=(versions,)).run()
    check_contract(ran)
    assert check_exact(ran, versions) == base.matches > 4
    assert set(ran.lengths().values()) == {7}


class Returns(Versioned):
    """Ends after six iterations, as a function does that returns: without another result."""

    def step(self) -> dict[str, Any]:
        if self.training_iteration >= 6:
            return {DONE: True, RESULT_DUPLICATE: True}
        return super().step()


def overwritten_at_its_end(folder: Path, mode: Mode) -> Plan:
    """The second trial is overwritten after its last iteration, and has nothing to report then."""

    def training_s(trial: Trial, method: str) -> float:
        """The donor's last iteration is validated first, and the donor has not ended yet."""
        return 0.9 + 0.1 * index_of(trial) if method == "train" else 0.0

    def score(attempt: Attempt) -> dict[str, float]:
        return {"accuracy": float(attempt.request.trial_id[-1] == "0")}

    plan = population(folder, pbt(perturbation_interval=3), mode, trials=2)
    return plan.training(Returns, seconds=training_s).validating(score, seconds=0.05)


def check_own_results(ran: Ran) -> None:
    for index, trial in enumerate(ran.trials):
        newest, last = max(ran.processed()[index]), trial.last_result
        shown = last["trial_id"], last["tunekit/validated_at"], last["accuracy"]
        assert shown == (trial.trial_id, newest[1], ran.scores()[index][newest])


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.CONTINUE, Mode.WAIT])
def test_trial_that_ends_after_it_was_overwritten_shows_its_own_newest_score(tmp_path, mode):
    ran = overwritten_at_its_end(tmp_path, mode).run()
    [exploit] = ran.validation.ledger.state.ancestry
    assert (exploit.trial_id[-1], exploit.iteration) == ("1", 6)
    check_contract(ran)
    check_own_results(ran)


def test_trial_that_ends_at_once_after_a_restore_shows_its_own_newest_score(tmp_path):
    def plan(folder: Path) -> Plan:
        return overwritten_at_its_end(folder, Mode.WAIT).tuning(saved_every_s=0.0)

    for ran, _ in killed_at_each(tmp_path, plan, every=4, start=160):  # among its last writes
        check_own_results(ran)
