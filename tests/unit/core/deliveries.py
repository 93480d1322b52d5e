"""How the tests take from a delivery all that is due."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tunekit.core.delivery import Completion, Delivery, Scored


def take(
    delivery: Delivery, trial_id: str, ready: Callable[[], bool] = lambda: True
) -> Iterator[Scored | Completion]:
    """Deliver, one by one, what may be delivered now."""
    while ready():
        due = delivery.due(trial_id)
        if due is None:
            return
        if isinstance(due, Scored):
            delivery.delivered(trial_id, due.request.place)
        else:
            delivery.end_delivered(trial_id)
        yield due
