"""End Tune's wait for its trials as soon as something else is ready."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from ray.tune.execution.tune_controller import TuneController


class Waker:
    """Await objects of Ray in addition to Tune's trials.

    Args:
        tune: The sweep's controller.
    """

    def __init__(self, tune: TuneController):
        self._tune = tune
        self._awaited: set[Any] = set()
        self._woken = False

    def wake_on(self, awaited: Iterable[Any]) -> None:
        """End Tune's step as soon as an awaited object is ready, not after 0.1 s (decision 2).

        Args:
            awaited: References to all awaited objects, or streams of them.
        """
        now = set(awaited)
        if now == self._awaited:
            return
        events = self._tune._actor_manager._actor_task_events
        for former in self._awaited - now:
            events.discard_future(former)
        for one in now - self._awaited:
            there = functools.partial(self._wake, one)
            events.track_future(one, on_result=there, on_error=there)
        self._awaited = now

    def _wake(self, awaited: Any, _: Any) -> None:
        self._awaited.discard(awaited)
        self._woken = True

    def woken(self) -> bool:
        """Return whether an awaited object has become ready since the last call."""
        woken, self._woken = self._woken, False
        return woken
