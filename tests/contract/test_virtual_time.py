"""What a sweep takes and decides, in virtual time."""

from __future__ import annotations

import random
from typing import Any

import pandas as pd
import pytest
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tests.local_sweep import _LocalActors
from tests.virtual import VirtualSweep

LENGTH = 9


def table(seed: int = 0, trials: int = 18) -> pd.DataFrame:
    """Noisy curves that cross."""
    rng = random.Random(seed)
    rows = []
    for trial in range(trials):
        talent, speed = rng.random(), rng.uniform(0.2, 0.9)
        for i in range(1, LENGTH + 1):
            accuracy = talent * (1 - speed**i) + rng.gauss(0, 0.02)
            rows.append((f"t{trial}", i, accuracy, rng.uniform(0.3, 0.5)))
    return pd.DataFrame(rows, columns=["trial", "training_iteration", "accuracy", "took"])


def asha() -> ASHAScheduler:
    return ASHAScheduler(
        max_t=LENGTH, grace_period=1, reduction_factor=3, time_attr="training_iteration"
    )


def validating(**settings: Any) -> tunekit.ValidationConfig:
    return tunekit.ValidationConfig(fn=lambda checkpoint: {}, **settings)


def only_decisions(**settings: Any) -> dict[str, Any]:
    config = validating(when="decisions", **settings)
    return {"config": config, "policy": tunekit.policies.AtDecisions()}


def test_beside_training_a_sweep_takes_what_is_the_longer_of_the_two():
    places = {"slots": 4, "validation_slots": 4}
    quick = VirtualSweep(table(trials=4), train_s=1, validate_s=0.5, **places).run()
    slow = VirtualSweep(table(trials=4), train_s=1, validate_s=2, **places).run()
    assert quick.now == pytest.approx(LENGTH + 0.5, abs=0.01)
    # When training has ended, validations have its slots, too.
    assert LENGTH + 2 < slow.now < 2 * LENGTH


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("validate_s", [0.1, 0.4, 0.8])
def test_decisions_in_the_place_of_trials_are_those_of_validating_inline_at_rungs(seed, validate_s):
    # No two reports are at the same time.
    options = {"train_s": "took", "validate_s": validate_s, "slots": 4}
    inline = VirtualSweep(table(seed), asha(), inline="decisions", **options).run()
    beside = VirtualSweep(table(seed), asha(), **options, **only_decisions()).run()
    what = ["trial", "iteration", "score", "decision"]
    at_rungs = inline.decisions[inline.decisions.iteration.isin([1, 3, 9])]
    assert beside.decisions[what].values.tolist() == at_rungs[what].values.tolist()
    assert beside.now == pytest.approx(inline.now, rel=0.01)
    # At the end, when no trial is left to begin, one may train on in vain where places are idle.
    assert beside.iterations_after_stop <= 2
    assert beside.iterations - beside.iterations_after_stop == inline.iterations
    assert beside.regret == inline.regret


def test_late_scores_cost_iterations_and_the_bound_limits_them():
    late = VirtualSweep(
        table(),
        asha(),
        config=validating(on_pending="continue"),
        train_s=0.1,
        validate_s=5.0,
        validation_slots=2,
    ).run()
    assert late.iterations_after_stop > 0
    # Nobody is trained past the rung after the one whose score is pending.
    stopped = late.decisions[late.decisions.decision == "STOP"]
    assert (stopped.reached <= stopped.iteration * 3).all()


def beside_one_slot(trials: int, on_pending: str) -> VirtualSweep:
    """One place for trials, and another for validations, which take as long as an iteration."""
    return VirtualSweep(
        table(trials=trials),
        asha(),
        **only_decisions(on_pending=on_pending),
        reuse_actors=True,
        train_s=1,
        validate_s=1,
        slots=1,
        validation_slots=1,
    ).run()


def test_a_trial_trains_on_while_its_score_is_pending_where_nobody_could_use_its_place():
    stands, trains = beside_one_slot(1, "wait"), beside_one_slot(1, "auto")
    # It waits at the rungs 1 and 3, and both wait for the last score.
    assert stands.now == pytest.approx(LENGTH + 2 + 1, abs=0.01)
    assert trains.now == pytest.approx(LENGTH + 1, abs=0.01)
    assert list(trains.decisions["reached"]) == [2, 4, LENGTH]
    assert list(trains.decisions["decision"]) == list(stands.decisions["decision"])


def test_a_trial_does_not_train_on_where_another_could_use_its_place():
    first = beside_one_slot(2, "auto").decisions.iloc[0]
    assert (first["iteration"], first["reached"]) == (1, 1)


def first_decisions(start_s: float, validate_s: float) -> list[float]:
    """When four trials are decided first, of which one trains at a time; two validate beside."""
    ran = VirtualSweep(
        table(trials=4),
        asha(),
        **only_decisions(),
        train_s=1,
        validate_s=validate_s,
        slots=1,
        validation_slots=2,
        start_s=start_s,
    ).run()
    first = ran.decisions.drop_duplicates("trial")
    assert list(first["trial"]) == ["t0", "t1", "t2", "t3"]
    return list(first["time_s"])


def test_another_trial_starts_in_the_place_of_one_that_waits_for_longer():
    _, second, third, _ = first_decisions(start_s=0.5, validate_s=3)
    assert third - second < 3, "their validations overlap"


def test_no_trial_starts_in_the_place_of_one_that_waits_for_less():
    _, second, third, _ = first_decisions(start_s=4, validate_s=0.5)
    assert third - second == pytest.approx(4 + 1 + 0.5, abs=0.01)


def test_a_trial_that_goes_on_in_a_kept_process_does_not_start_another(monkeypatch):
    starts, start = [], _LocalActors._start

    def starting(actors, actor, *known):
        starts.append(actor)
        return start(actors, actor, *known)

    monkeypatch.setattr(_LocalActors, "_start", starting)
    VirtualSweep(
        table(trials=5),
        asha(),
        **only_decisions(evaluators=1),
        reuse_actors=True,
        train_s=1,
        validate_s=2,
        slots=2,
        start_s=2,
    ).run()
    assert len(starts) == 1, "the other slot is for validations"


def test_a_validation_starts_a_process_where_it_takes_longer_than_a_trial_may_stand_still():
    ran = VirtualSweep(
        table(trials=1), train_s=4, validate_s=2, slots=1, validation_slots=1, start_s=1
    ).run()
    # The trial starts for 1 s and trains 4; its first validation, of which nothing is known, takes
    # 2 in its process. The next one starts another, which the others use.
    assert [score.time_s for score in ran.scores] == pytest.approx(
        [7, 3 + 8 + 1 + 2] + [3 + 4 * i + 2 for i in range(3, LENGTH + 1)], abs=0.01
    )


@pytest.mark.parametrize(("where", "stands"), [("trial", True), ("auto", False)])
def test_where_starts_cost_nothing_trials_validate_if_they_are_asked_to(where, stands):
    ran = VirtualSweep(
        table(trials=1),
        config=validating(where=where),
        train_s=1,
        validate_s=1,
        slots=1,
        validation_slots=1,
    ).run()
    assert ran.now == pytest.approx(LENGTH * 2 if stands else LENGTH + 1, abs=0.01)
