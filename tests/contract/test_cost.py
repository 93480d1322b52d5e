"""What a sweep cost is at most what there was, whatever its scheduler and however trials wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray.train import ValidationTaskConfig

import tunekit
from tests.schedulers import CASES, MODES
from tests.sweeps import Ran, sweep
from tunekit.cli.compare import comparison_as_text
from tunekit.cli.status import status_of, text_of
from tunekit.core.events import AttemptBegan, AttemptFailed, SlotReleased, SlotTaken
from tunekit.core.validation import Attempt
from tunekit.journal.journal import record_of
from tunekit.journal.storage import folder_at
from tunekit.lab import compare

pytestmark = pytest.mark.sampled(2)

SLOTS = 3


def check_cost(ran: Ran, *, slots: int, beside: int) -> dict[str, float]:
    known = tunekit.load(ran.home, metric="accuracy", mode="max")
    cost, timeline = known.summary()["cost"]["CPU"], known.timeline
    events = record_of(folder_at(known.filesystem, known.path)).events
    taken = [event for event in events if isinstance(event, SlotTaken)]
    a_trial = max(event.resources.get("CPU", 0.0) for event in taken)
    wall = (timeline.last - timeline.first) / 3600
    total = sum(cost.values())
    assert total <= (slots * a_trial + beside) * wall + 1e-9
    assert cost["training"] + cost["waiting"] <= slots * a_trial * wall + 1e-9
    assert sum(known.trials["cpu_hours"]) == pytest.approx(total)
    assert ran.validation.cost()["CPU"] == pytest.approx(cost)
    # What is taken is released: all of it, one after the other, of each trial.
    held: dict[str, bool] = {}
    slot_s = 0.0
    for event in events:
        if isinstance(event, (SlotTaken, SlotReleased)):
            assert held.get(event.trial_id, False) is isinstance(event, SlotReleased)
            held[event.trial_id] = isinstance(event, SlotTaken)
            slot_s += event.time * (-1 if held[event.trial_id] else 1)
    assert not any(held.values())
    if len({tuple(event.resources.items()) for event in taken}) == 1 and not ran.executor.in_trials:
        assert cost["training"] + cost["waiting"] == pytest.approx(slot_s * a_trial / 3600)
    return cost


@pytest.mark.parametrize("on_pending", MODES)
@pytest.mark.parametrize("name", ["fifo", "asha", "hyperband", "pbt", "median", "resources"])
def test_no_more_than_there_was(name: str, on_pending: str, tmp_path: Path) -> None:
    case = CASES[name]
    if on_pending not in case.modes:
        pytest.skip("not a mode of this scheduler")
    options = {"slots": SLOTS, "validation_slots": 2, "trials": 5, **case.options()}
    ran = sweep(
        tmp_path,
        case.make(tmp_path),
        on_pending=on_pending,
        validation_s=lambda attempt: 0.5 + attempt.request.iteration % 3,
        **options,
    )
    cost = check_cost(ran, slots=options["slots"], beside=2)
    assert cost["training"] > 0
    # Those for which trials pause take no CPU.
    assert (cost["validation"] > 0) is (on_pending != "wait-paused")
    if on_pending in ("wait", "wait-reused"):
        assert cost["waiting"] > 0


def test_attempts_that_fail_or_take_too_long_cost_until_they_end(tmp_path: Path) -> None:
    def validate(attempt: Attempt) -> dict[str, float]:
        if attempt.number == 1 and attempt.request.iteration == 2:
            raise RuntimeError("once")
        return {"accuracy": 0.5}

    ran = sweep(
        tmp_path,
        CASES["fifo"].make(tmp_path),
        trials=1,
        validate=validate,
        validation_s=lambda attempt: 100.0 if attempt.request.iteration == 3 else 2.0,
        settings={"task_config": ValidationTaskConfig(timeout_s=5.0), "max_retries": 1},
    )
    cost = check_cost(ran, slots=1, beside=20)
    # Of nine, seven took 2 s, one twice as long, and one was given up twice, after 5 s each.
    # How an attempt ended is seen 0.1 s later at most.
    least = 7 * 2.0 + 2 * 2.0 + 2 * 5.0
    assert least <= 3600 * cost["validation"] <= least + 11 * 0.1 + 1e-9
    events = record_of(folder_at(*_place(ran))).events
    assert sum(isinstance(event, AttemptFailed) for event in events) == 2
    assert all(e.resources == {"CPU": 1.0} for e in events if isinstance(e, AttemptBegan))


def _place(ran: Ran) -> tuple:
    known = tunekit.load(ran.home)
    return known.filesystem, known.path


def test_validations_in_the_processes_of_trials_are_not_counted_twice(tmp_path: Path) -> None:
    ran = sweep(
        tmp_path,
        CASES["fifo"].make(tmp_path),
        on_pending="auto",
        trials=1,
        slots=1,
        validation_slots=0,
    )
    cost = check_cost(ran, slots=1, beside=0)
    assert 3600 * cost["validation"] == pytest.approx(9.0)
    assert 3600 * cost["training"] == pytest.approx(9.0)


def test_it_is_shown(tmp_path: Path) -> None:
    ran = sweep(tmp_path, CASES["asha"].make(tmp_path), on_pending="wait", slots=SLOTS)
    known = tunekit.load(ran.home, metric="accuracy", mode="max")
    [line] = [
        line for line in text_of(status_of(known, now=0.0)).splitlines() if line.startswith("cost")
    ]
    assert "CPU hours: training" in line and "GPU" not in line
    assert "cpu_hours" in comparison_as_text(compare([known, known], names=["a", "b"]), 200)
    assert "gpu_hours" not in comparison_as_text(compare([known, known], names=["a", "b"]), 200)
