from __future__ import annotations

from dataclasses import replace

from tests.unit.core.deliveries import take
from tunekit.core.delivery import Delivery, Scored
from tunekit.core.validation import Outcome, Request, Status


def request(iteration: int, run: int = 1, trial: str = "a") -> Request:
    return Request(trial, iteration, run, report={"training_iteration": iteration, "loss": 1.0})


def validated(one: Request, accuracy: float = 0.5) -> Outcome:
    return Outcome(one, Status.VALIDATED, {"accuracy": accuracy})


def asked(*iterations: int) -> Delivery:
    delivery = Delivery()
    for iteration in iterations:
        delivery.offered("a", iteration)
        delivery.requested(request(iteration))
    return delivery


def taken(delivery: Delivery) -> list[int | None]:
    return [step.iteration if isinstance(step, Scored) else None for step in take(delivery, "a")]


def test_a_checkpoint_that_was_saved_before_its_report_was_looked_at_waits_for_that():
    delivery = Delivery()
    delivery.requested(request(4))
    delivery.ended(validated(request(4)))
    assert taken(delivery) == []
    delivery.offered("a", 4)
    assert taken(delivery) == [4]


def test_a_newer_run_replaces_an_older_one_that_is_pending():
    delivery = asked(1)
    delivery.requested(request(1, run=2))
    delivery.ended(validated(request(1), 0.1))
    assert taken(delivery) == []
    delivery.ended(validated(request(1, run=2), 0.9))
    assert [s.result["accuracy"] for s in take(delivery, "a")] == [0.9]


def test_scores_of_a_former_generation_are_not_delivered():
    delivery = asked(1, 2)
    delivery.ended(validated(request(1)))
    delivery.overwritten("a", generation=1, iteration=1)
    assert taken(delivery) == [] and not delivery.waits("a")
    delivery.ended(validated(request(2)))
    assert taken(delivery) == []
    late = replace(request(3), generation=0)
    delivery.offered("a", 3, generation=0)
    delivery.requested(late)
    delivery.ended(validated(late))
    assert taken(delivery) == [] and not delivery.holds(late)
    own = replace(request(2), generation=1)
    delivery.offered("a", 2, generation=1)
    delivery.requested(own)
    assert delivery.holds(own)
    delivery.ended(validated(own))
    assert taken(delivery) == [2]


def test_a_trial_does_not_end_with_a_result_that_cannot_be_judged_by():
    delivery = Delivery(counts=lambda result: "accuracy" in result)
    for iteration, metrics in ((1, {"accuracy": 0.5}), (2, {"other": 1})):
        delivery.offered("a", iteration)
        delivery.requested(request(iteration))
        delivery.ended(Outcome(request(iteration), Status.VALIDATED, metrics))
    delivery.complete("a")
    *_, completion = take(delivery, "a")
    assert completion.result["accuracy"] == 0.5


def judged_at(*decisions: int, of: tuple[int, ...]) -> Delivery:
    """A trial with pending scores, of which the scheduler uses some."""
    delivery = Delivery()
    delivery.all_count = False
    for iteration in of:
        delivery.offered("a", iteration)
        delivery.requested(replace(request(iteration), used=iteration in decisions))
    return delivery


def test_a_score_that_is_used_does_not_wait_for_older_ones_that_are_not():
    delivery = judged_at(3, of=(1, 2, 3))
    delivery.ended(validated(request(3)))
    assert taken(delivery) == [3]
    for late in (1, 2):
        delivery.ended(validated(request(late)))
    assert taken(delivery) == []
    assert not delivery.waits("a")


def test_a_score_that_is_not_used_keeps_its_turn():
    delivery = judged_at(3, of=(1, 2, 3))
    delivery.ended(validated(request(2)))
    assert taken(delivery) == []
    delivery.ended(validated(request(1)))
    assert taken(delivery) == [1, 2]


def test_a_trial_ends_after_what_was_overtaken_has_ended_and_with_its_newest_score():
    delivery = judged_at(2, of=(1, 2))
    delivery.complete("a")
    delivery.ended(validated(request(2), accuracy=0.7))
    assert taken(delivery) == [2, None]
    delivery = judged_at(of=(1, 2))
    delivery.complete("a")
    delivery.ended(validated(request(2), accuracy=0.7))
    assert taken(delivery) == []
    delivery.ended(validated(request(1), accuracy=0.1))
    assert taken(delivery) == [1, 2, None]
