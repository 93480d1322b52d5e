"""The journal has one line for each attempt that begins at once, and two for one that waits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fakes import FakeClock, FakeExecutor
from tunekit.config import ValidationConfig
from tunekit.core.events import AttemptBegan, AttemptStarted, Event
from tunekit.core.executor import Failed
from tunekit.core.validation import Request
from tunekit.validating.validator import Validator


def validate(checkpoint: Any) -> dict[str, float]:
    return {"accuracy": 0.5}


def lines(
    kind: type[FakeExecutor] = FakeExecutor, polls: int = 8, retries: int = 0, **options: Any
) -> list[tuple[Any, ...]]:
    """Poll each half second; return type, number and delay of the attempts' lines, with ends."""
    clock, events = FakeClock(), list[Event]()
    executor = kind(clock, lambda attempt: {"accuracy": 0.5}, **options)
    config = ValidationConfig(fn=validate, max_retries=retries)
    validator = Validator(config, executor, clock, record=events.append)
    validator.submit(Request("a", iteration=1))
    for _ in range(polls):
        events += validator.poll()
        for attempt in validator.pool.start(0, clock.monotonic()):
            validator.start(attempt)
        validator.look()
        clock.sleep(0.5)
    return [
        (type(event), event.attempt, event.after_s)
        if isinstance(event, (AttemptStarted, AttemptBegan))
        else (event.status, event.attempts, event.ran_s)
        for event in events
    ]


@pytest.mark.parametrize(
    ("delay", "expected"),
    [
        (0.0, [(AttemptBegan, 1, 0.5)]),
        (0.8, [(AttemptBegan, 1, 1.0)]),
        (1.2, [(AttemptStarted, 1, 1.0), (AttemptBegan, 1, 1.5)]),
        (99.0, [(AttemptStarted, 1, 1.0)]),
    ],
)
def test_attempt_has_a_journal_line_for_its_start_only_if_it_does_not_begin_at_once(
    delay, expected
):
    hangs = {"delay": lambda attempt: delay, "seconds": lambda attempt: 99.0}
    assert lines(**hangs) == expected


class FailsToStart(FakeExecutor):
    """The first attempt fails before it begins."""

    def poll(self):
        if (lost := self.started[:1]) and lost[0].id in self._live:
            del self._live[lost[0].id]
            yield Failed(lost[0].id, "lost its process")
        yield from super().poll()


def test_attempt_that_fails_before_it_begins_has_a_journal_line_for_its_start():
    failed = (AttemptStarted, 1, 0.5)
    assert lines(FailsToStart) == [failed, ("failed", 1, 0.0)]
    again = {"retries": 1, "seconds": lambda attempt: 1.0}
    assert lines(FailsToStart, **again) == [failed, (AttemptBegan, 2, 0.5), ("validated", 2, 0.5)]
