from __future__ import annotations

from tests.unit.core.deliveries import take
from tunekit.core.delivery import Delivery, Scored
from tunekit.core.validation import Outcome, Request, Status


def request(iteration: int, run: int = 1, trial: str = "a") -> Request:
    return Request(trial, iteration, run, report={"training_iteration": iteration, "loss": 1.0})


def validated(one: Request, accuracy: float = 0.5) -> Outcome:
    return Outcome(one, Status.VALIDATED, {"accuracy": accuracy})


def taken(delivery: Delivery) -> list[int | None]:
    return [step.iteration if isinstance(step, Scored) else None for step in take(delivery, "a")]


def test_a_checkpoint_that_was_saved_before_its_report_was_looked_at_waits_for_that():
    delivery = Delivery()
    delivery.requested(request(4))
    delivery.ended(validated(request(4)))
    assert taken(delivery) == []
    delivery.offered("a", 4)
    assert taken(delivery) == [4]


def test_a_trial_does_not_end_with_a_result_that_cannot_be_judged_by():
    delivery = Delivery(counts=lambda result: "accuracy" in result)
    for iteration, metrics in ((1, {"accuracy": 0.5}), (2, {"other": 1})):
        delivery.offered("a", iteration)
        delivery.requested(request(iteration))
        delivery.ended(Outcome(request(iteration), Status.VALIDATED, metrics))
    delivery.complete("a")
    *_, completion = take(delivery, "a")
    assert completion.result["accuracy"] == 0.5
