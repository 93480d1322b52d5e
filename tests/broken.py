"""Broken invariants of a sweep; tests check them after each event and at the end of each step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from tunekit.core.backlog import Backlog
from tunekit.core.delivery import Delivery
from tunekit.core.engine import Engine
from tunekit.core.retention import Leases, for_clone, for_validation
from tunekit.driver.callback import ValidationCallback


def check_sweeps() -> None:
    """Check each sweep in this process, and in those that it forks, from now on."""
    _after(ValidationCallback, "apply", lambda sweep, event: broken(sweep.engine))
    _after(ValidationCallback, "on_step_end", _left)
    delivered = Delivery.delivered

    def noted(self: Delivery, trial_id: str, place: tuple[int, int], **how: Any) -> None:
        faults = vars(self).setdefault("faults", [])  # for the check after the event
        faults += _of_a_delivery(self, trial_id, *place)
        delivered(self, trial_id, place, **how)

    Delivery.delivered = noted  # type: ignore[method-assign]


def _after(cls: type, name: str, faults: Callable[..., Iterator[str]]) -> None:
    method = getattr(cls, name)

    @functools.wraps(method)
    def checked(self: Any, *known: Any, **named: Any) -> Any:
        found = method(self, *known, **named)
        wrong = list(faults(self, *known, **named))
        assert not wrong, f"{'; '.join(wrong)} (after {name}{known})"
        return found

    setattr(cls, name, checked)


def broken(engine: Engine) -> Iterator[str]:
    """Yield a description of each broken invariant; it takes time that grows with the sweep."""
    yield from _of_backlog(engine.backlog, engine.leases)
    backlog, delivery, leases = engine.backlog, engine.delivery, engine.leases
    kept = {for_validation(one) for one in backlog.owed | backlog.unfinished}
    for trial_id, record in engine.trials.items():
        kept |= {for_validation(one.id) for one in record.ended}
        if record.stopped and delivery.completed(trial_id):
            yield f"trial {trial_id} has ended, and is to be stopped by hand"
        needed = {for_validation(one.id): one.path for one in delivery.pending(trial_id)}
        if record.clone is not None:
            needed[for_clone(trial_id, engine.ancestry.generation(trial_id))] = record.clone
        for holder, path in needed.items():
            if leases.held(holder) != path:
                yield f"{path} may be deleted, though it is needed: {holder}"
    for holder in leases._paths.keys() - kept:
        if holder == for_validation(holder[-1]):
            yield f"{leases.held(holder)} is kept, though it is not needed: {holder}"
    for trial_id in engine.rejected:
        if not delivery.closed(trial_id):
            yield f"trial {trial_id} was stopped by its scheduler, and may be delivered"
    yield from _of_delivery(delivery)


def undelivered(engine: Engine) -> list[str]:
    """Return the trials with something to deliver, once existing scores can be decided by.

    After all commands are carried out, these are trials whose scores the scheduler does not get
    now, such as a paused one.
    """
    due = (one for one in engine.trials if engine.delivery.due(one) is not None)
    return [] if engine.hesitates() else list(due)


def _left(sweep: ValidationCallback, *known: Any, **info: Any) -> Iterator[str]:
    """Yield what should have happened by the end of a step."""
    if sweep.controller is not None:
        for trial_id in filter(sweep.user_scheduler.hears, undelivered(sweep.engine)):
            yield f"a score of trial {trial_id} is due but was not delivered"
        under_way = {one.id for one in sweep.validator.pool.pending()}
        for name in sweep.engine.backlog.unfinished.keys() - under_way:
            yield f"{name} was requested but is not validated"


def _of_backlog(backlog: Backlog, leases: Leases) -> Iterator[str]:
    known = {name for names in backlog._of_trial.values() for name in names}
    for key in known ^ (backlog.owed.keys() | backlog.unfinished.keys()):
        yield f"{key} is {'not ' if key in known else ''}pending, and its trial differs"
    for key in backlog.owed.keys() & backlog.unfinished.keys():
        yield f"{key} is both requested and still to be requested"
    for key, request in (backlog.owed | backlog.unfinished).items():
        if leases.held(for_validation(key)) != request.path:
            yield f"the checkpoint of {key} may be deleted, though it is needed"


def _of_delivery(delivery: Delivery) -> Iterator[str]:
    yield from vars(delivery).get("faults", ())
    for trial_id, line in delivery._lines.items():
        if line.order != sorted(line.requests):
            yield f"trial {trial_id} waits in the order {line.order} for {set(line.requests)}"
        if not line.outcomes.keys() <= line.requests.keys():
            yield f"trial {trial_id} has outcomes without requests"
        for request in line.requests.values():
            if request.generation != line.generation:
                yield f"the score {request.id} is of weights that its trial has lost"


def _of_a_delivery(
    delivery: Delivery, trial_id: str, generation: int, iteration: int
) -> Iterator[str]:
    line = delivery._known(trial_id)
    if generation != line.generation:
        return
    if iteration <= line.delivered:
        yield f"the score of trial {trial_id} at {iteration} was delivered twice, or too late"
    for older in line.order:
        if older <= iteration and line.requests[older].used and older not in line.outcomes:
            yield f"trial {trial_id} is decided on at {iteration}, before its score at {older}"
