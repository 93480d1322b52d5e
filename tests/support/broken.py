"""Broken invariants of a sweep; tests check them at the end of each step."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from ray.tune.experiment import Trial

from tunekit.core.queue import Next, Queue
from tunekit.driver.callback import ValidationCallback


def check_sweeps() -> None:
    """Check each sweep in this process, and in those that it forks, from now on."""
    on_step_end = ValidationCallback.on_step_end

    @functools.wraps(on_step_end)
    def checked(self: ValidationCallback, *known: Any, **named: Any) -> None:
        on_step_end(self, *known, **named)
        wrong = list(broken(self)) if self.has_begun else []
        assert not wrong, "; ".join(wrong)

    ValidationCallback.on_step_end = checked  # type: ignore[method-assign]


def broken(sweep: ValidationCallback) -> Iterator[str]:
    """Yield a description of each broken invariant; it takes time that grows with the sweep."""
    tune, under_way = sweep.controller, {one.id for one in sweep.validator.pool.pending()}
    if tune.closing:
        return  # what waits stays pending
    for name in sweep.engine.unfinished.keys() ^ under_way:
        yield f"{name} is requested but not validated, or the other way round"
    scoring = sum(entry.scoring for queue in tune._queues.values() for entry in queue)
    if scoring != len(under_way):
        yield f"{scoring} reports wait for {len(under_way)} validations"
    for trial, queue in tune._queues.items():
        yield from (f"{trial}: {fault}" for fault in of_queue(queue))
        if trial.status != Trial.RUNNING:
            yield f"{trial} is {trial.status}, and has reports that Tune has not processed"
    for trial in tune._running_trials:
        queue = tune.queue_of(trial)
        if trial not in tune._trial_to_actor and not queue:
            yield f"{trial} has neither an actor nor reports to process"
        idle = trial in tune._trial_to_actor and trial not in tune.waiting_in_place
        idle = idle and trial not in tune._training and trial not in tune._idle
        if idle and queue and queue.over and not trial.is_saving:
            yield f"{trial} has ended, and does not stand"
    waiting, now = sweep.waiting, sweep.waiting.circumstances()
    for trial, then in tune.waiting_in_place.items():
        if then == now and waiting._next(trial, tune.queue_of(trial), now) is not Next.WAIT:
            yield f"{trial} stands, and would not if it was asked again"


def of_queue(queue: Queue) -> Iterator[str]:
    """Yield a description of each broken invariant of one queue."""
    reports = [entry.iteration for entry in queue if entry.report and entry.iteration]
    if reports != sorted(set(reports)):
        yield f"its reports are not in order: {reports}"
    for entry in list(queue)[:-1]:
        if entry.last:
            yield f"iteration {entry.iteration} was its last, but it has reported again"
    for entry in queue:
        if entry.scoring and entry.checkpoint is None:
            yield f"iteration {entry.iteration} has no checkpoint, but is validated"
