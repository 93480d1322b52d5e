"""What a sweep cost: figures computed by hand, in CPU and GPU seconds."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from tunekit.core.cost import Cost, cost_in_words
from tunekit.core.events import event_of
from tunekit.core.timeline import Timeline

EVENTS = {
    "took": {"trial_id": "a", "resources": {"CPU": 2.0, "GPU": 0.5, "custom": 7.0}},
    "released": {"trial_id": "a"},
    "began": {"id": "a:0:1:1", "attempt": 1, "resources": {"CPU": 1.0, "GPU": 0.25}},
    "retrying": {"id": "a:0:1:1", "attempt": 1},
    "ended": {"id": "a:0:1:1", "status": "validated"},
    "waited": {"trial_id": "a"},
    "closed": {"finished": False},
}


def line(kind: str, time: float, **fields: Any) -> Any:
    return event_of({"event": kind, "time": time, **EVENTS[kind], **fields})


def cost_of(*lines: tuple[Any, ...]) -> Cost:
    cost = Cost()
    for kind, time, *fields in lines:
        cost.take(line(kind, time, **(fields[0] if fields else {})))
    return cost


def seconds(cost: Cost, trial_id: str | None = None, name: str = "CPU") -> tuple[float, ...]:
    """Of training, validation and waiting."""
    return tuple(round(3600 * hours, 6) for hours in cost.hours(trial_id)[name].values())


def test_a_slot_is_held_until_it_is_released() -> None:
    cost = cost_of(("took", 10.0), ("released", 40.0), ("took", 100.0), ("released", 110.0))
    assert seconds(cost) == (80, 0, 0)
    assert seconds(cost, name="GPU") == (20, 0, 0)
    assert set(cost.hours()) == {"CPU", "GPU"}


def test_a_validation_elsewhere_costs_beside_the_training_that_it_overlaps() -> None:
    cost = cost_of(("took", 0.0), ("began", 5.0), ("ended", 25.0), ("released", 30.0))
    assert seconds(cost) == (60, 20, 0)
    assert seconds(cost, name="GPU") == (15, 5, 0)


def test_a_trial_that_keeps_its_slot_waits_in_it() -> None:
    cost = cost_of(("took", 0.0), ("waited", 20.0, {"seconds": 8.0}), ("released", 30.0))
    assert seconds(cost) == (44, 0, 16)


def test_a_trial_that_has_given_its_slot_up_waits_for_nothing() -> None:
    cost = cost_of(("took", 0.0), ("released", 10.0), ("waited", 60.0, {"seconds": 52.0}))
    assert seconds(cost) == (16, 0, 4)


def test_a_slot_shared_with_a_validation_counts_for_that_and_once() -> None:
    cost = cost_of(
        ("took", 0.0),
        ("began", 10.0, {"in_trial": True, "resources": {}}),
        ("ended", 16.0),
        ("waited", 18.0, {"seconds": 9.0}),
        ("released", 20.0),
    )
    # 0 to 9 and 18 to 20 training, 10 to 16 validation, 9 to 10 and 16 to 18 waiting.
    assert seconds(cost) == (22, 12, 6)


def test_a_last_validation_in_a_process_costs_its_slot_after_the_trial_has_ended() -> None:
    hosted = ("began", 12.0, {"in_trial": True})
    assert seconds(cost_of(("took", 0.0), ("released", 10.0), hosted, ("ended", 15.0))) == (
        20,
        6,
        0,
    )


def test_two_validations_in_one_process_share_its_slot() -> None:
    other = {"id": "a:0:2:1", "in_trial": True}
    cost = cost_of(
        ("took", 0.0),
        ("began", 1.0, {"in_trial": True}),
        ("began", 2.0, other),
        ("ended", 3.0),
        ("ended", 5.0, {"id": "a:0:2:1"}),
        ("released", 6.0),
    )
    assert seconds(cost) == (4, 8, 0)


def test_attempts_that_failed_or_were_given_up_cost() -> None:
    cost = cost_of(
        ("began", 0.0),
        ("retrying", 7.0),
        ("began", 50.0, {"attempt": 2}),
        ("ended", 53.0, {"status": "skipped"}),
    )
    assert seconds(cost) == (0, 10, 0)


def test_the_gap_after_a_killed_session_costs_nothing() -> None:
    events = [
        line("took", 0.0),
        line("began", 2.0),
        line("waited", 10.0, seconds=0.0),
        line("took", 1000.0),
        line("began", 1001.0, attempt=2),
        line("ended", 1004.0),
        line("closed", 1010.0),
    ]
    events = [structs.replace(event, n=n) for n, event in enumerate(events, start=1)]
    sessions = [{"n": 0, "time": 0.0}, {"n": 3, "time": 999.0}]
    # The trial 10 s and 10 s; its validation from 2 to 10 and 3 s.
    timeline = Timeline(events, sessions=sessions)
    assert seconds(timeline.cost) == (40, 11, 0)
    assert seconds(timeline.cost, "b") == (0, 0, 0)


def test_what_is_held_counts_until_the_last_line() -> None:
    cost = cost_of(("took", 0.0), ("began", 2.0), ("waited", 5.0, {"seconds": 1.0}))
    assert seconds(cost) == (8, 3, 2)
    assert seconds(cost) == (8, 3, 2)  # to ask changes nothing
    for late in (line("waited", 8.0, seconds=2.0), line("ended", 8.0)):
        cost.take(late)
    assert seconds(cost) == (10, 6, 6)


def test_a_clock_that_is_put_back_costs_nothing() -> None:
    cost = cost_of(("took", 100.0), ("began", 110.0), ("ended", 50.0), ("released", 60.0))
    assert seconds(cost) == (0, 0, 0)


def test_each_trial_has_its_own() -> None:
    cost = cost_of(("took", 0.0), ("took", 0.0, {"trial_id": "b"}), ("released", 4.0))
    cost.take(line("began", 4.0, id="b:0:3:1:full"))
    cost.take(line("ended", 9.0, id="b:0:3:1:full"))
    assert (seconds(cost, "a"), seconds(cost, "b")) == ((8, 0, 0), (18, 5, 0))
    assert seconds(cost) == (26, 5, 0)


def test_in_words() -> None:
    assert cost_in_words(Cost().hours()) == ""
    cost = {"CPU": {"training": 1.6}, "GPU": {"training": 40.0, "waiting": 0.04}}
    assert cost_in_words(cost) == (
        "1.6 CPU hours: training 1.6; 40.0 GPU hours: training 40.0, waiting 0.04"
    )
