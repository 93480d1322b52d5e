"""A training loop that asks gets the scores of its weights, and may wait for them."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ray import train, tune

from tests.support.kills import run_killed
from tests.support.local_sweep import index_of
from tests.support.modes import Mode
from tests.support.schedulers import asha, every_case, pbt, planned, seed_all, space
from tests.support.sweeps import Plan, Ran
from tests.support.trainables import ANSWERS, Asking, quality
from tunekit.core.inquiry import Inquiry


def asking(inquiry: Inquiry) -> type[Asking]:
    """Return a trainable that asks; ``ANSWERS`` will have the answers to its trials."""
    ANSWERS.clear()
    return type("Asks", (Asking,), {"inquiry": inquiry})


def run(plan: Plan, inquiry: Inquiry) -> Ran:
    """Run a sweep whose trials ask, to the end of each."""
    ran = plan.training(asking(inquiry)).run()
    assert all(trial.status == "TERMINATED" for trial in ran.trials)
    return ran


@pytest.mark.sampled(2)
@every_case
def test_loop_that_waits_gets_all_its_scores_and_its_sweep_ends(tmp_path, name, mode):
    seed_all(1)
    plan = planned(name, tmp_path, mode, trials=5).training(slots=5).validating(seconds=2.5)
    run(plan, Inquiry(blocks=True))
    # Where nothing fits next to a trial, it is resumed with its scores instead.
    assert ANSWERS or mode is Mode.WAIT_PAUSED
    for trial_id, steps, answer in ANSWERS:
        assert {status for _, status, _ in answer} == {"VALIDATED"}, (trial_id, steps)
        assert [iteration for iteration, _, _ in answer] == list(range(1, steps + 1))


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.WAIT, Mode.CONTINUE])
def test_loop_that_does_not_wait_gets_each_checkpoint_with_its_score_or_as_pending(tmp_path, mode):
    run(Plan(tmp_path, mode=mode, trials=1).validating(seconds=2.5), Inquiry())
    pending = [sum(status != "VALIDATED" for _, status, _ in answer) for *_, answer in ANSWERS]
    assert len(ANSWERS) == 8 and max(pending) == (mode is not Mode.WAIT)
    for _, steps, answer in ANSWERS:
        assert [iteration for iteration, _, _ in answer] == list(range(1, steps + 1))
        for iteration, status, score in answer:
            assert score == (quality(0, iteration) if status == "VALIDATED" else None)


def test_loop_waits_no_longer_than_its_timeout(tmp_path):
    plan = Plan(tmp_path, trials=1).validating(seconds=100.0)
    ran = run(plan, Inquiry(True, timeout_s=0.5))
    assert all(status == "PENDING_VALIDATION" for *_, answer in ANSWERS for _, status, _ in answer)
    assert len(ANSWERS) == 8 and ran.clock.monotonic() < 17 + 8 * 0.7 + 101


@pytest.mark.parametrize("inquiry", [Inquiry(), Inquiry(blocks=True)])
def test_loop_gets_the_status_of_failed_and_timed_out_validations(tmp_path, inquiry):
    def validate(attempt: Any) -> dict[str, float]:
        if attempt.request.iteration == 2:
            raise ValueError("fails on purpose")
        return {"accuracy": 0.5}

    plan = Plan(tmp_path, trials=1).validating(
        validate,
        seconds=lambda attempt: 50.0 if attempt.request.iteration == 3 else 0.1,
        task_config=train.ValidationTaskConfig(timeout_s=5.0),
        max_retries=0,
    )
    run(plan, inquiry)
    *_, (_, _, answer) = ANSWERS
    assert {iteration: status for iteration, status, _ in answer[:4]} == {
        1: "VALIDATED",
        2: "VALIDATION_FAILED",
        3: "VALIDATION_TIMEOUT",
        4: "VALIDATED",
    }


def test_loop_gets_checkpoints_that_are_not_validated_as_committed(tmp_path):
    run(Plan(tmp_path, trials=1).validating(when=3), Inquiry(blocks=True))
    *_, (_, _, answer) = ANSWERS
    assert all((score is None) == (status != "VALIDATED") for _, status, score in answer)
    validated = [iteration for iteration, status, _ in answer if status == "VALIDATED"]
    assert validated == [3, 6]
    assert {status for _, status, _ in answer} == {"VALIDATED", "COMMITTED"}


def test_loop_gets_only_checkpoints_that_exist_with_num_to_keep(tmp_path, monkeypatch):
    there: list[bool] = []
    monkeypatch.setattr(
        Asking,
        "heard",
        lambda self, told: there.extend(Path(one.checkpoint.path).exists() for one in told),
    )
    keep = tune.CheckpointConfig(num_to_keep=2)
    run(Plan(tmp_path, trials=2).tuning(checkpoint_config=keep), Inquiry(blocks=True))
    assert len(there) > 8 and all(there)


def test_clone_gets_the_scores_of_its_donor_up_to_the_cloned_checkpoint_then_its_own(tmp_path):
    seed_all(3)
    plan = Plan(tmp_path, pbt(), trials=4).training(slots=4).tuning(**space())
    ran = run(plan, Inquiry(blocks=True))
    ancestry = ran.validation.run.state.ancestry
    number = {trial.trial_id: index_of(trial) for trial in ran.trials}

    def scores(trial_id: str, generation: int, steps: int) -> list[float]:
        line = [(e.donor_id, e.iteration) for e in ancestry.line(trial_id, generation)]
        ends = [0, *(end for _, end in line), steps]
        return [
            quality(number[of], i)
            for (of, _), (begin, end) in zip([*line, (trial_id, 0)], pairwise(ends), strict=True)
            for i in range(begin + 1, end + 1)
        ]

    told = Counter[int]()
    for trial_id, steps, answer in ANSWERS:
        generations = range(ancestry.generation(trial_id) + 1)
        got = [score for _, _, score in answer]
        told.update(g for g in generations if scores(trial_id, g, steps) == got)
        assert any(scores(trial_id, g, steps) == got for g in generations)
    assert max(told) > 0


def test_scheduler_decides_the_same_if_loops_ask_for_scores(tmp_path):
    plain = Plan(tmp_path / "plain", asha(), Mode.WAIT, trials=6).run()
    asks = run(Plan(tmp_path / "asks", asha(), Mode.WAIT, trials=6), Inquiry())
    assert ANSWERS and sorted(asks.heard.results) == sorted(plain.heard.results)


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.WAIT, Mode.CONTINUE])
def test_restored_loop_gets_the_scores_of_reports_before_the_kill(tmp_path, mode):
    asks = asking(Inquiry(blocks=True))

    def make(folder: Path) -> Plan:
        return Plan(folder, asha(), mode, trials=2).training(asks, slots=2)

    run_killed(tmp_path, make, iter([25, 40]))
    assert max(steps for _, steps, _ in ANSWERS) >= 8
    for _, steps, answer in ANSWERS:
        assert [iteration for iteration, _, _ in answer] == list(range(1, steps + 1))
        assert {status for _, status, _ in answer} == {"VALIDATED"}
