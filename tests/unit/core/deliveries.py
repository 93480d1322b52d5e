"""How the tests take from a delivery all that is due."""

from __future__ import annotations

from collections.abc import Iterator

from tunekit.core.delivery import Completion, Delivery, Scored


def take(delivery: Delivery, trial_id: str) -> Iterator[Scored | Completion]:
    """Deliver, one by one, what may be delivered now."""
    delivery.settle(trial_id)
    while due := delivery.due(trial_id):
        if isinstance(due, Scored):
            delivery.delivered(trial_id, due.request.place)
        else:
            delivery.end_delivered(trial_id)
        delivery.settle(trial_id)
        yield due
