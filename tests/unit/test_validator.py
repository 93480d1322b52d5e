"""The journal has one line for each attempt that begins at once, and two for one that waits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fakes import FakeClock, FakeExecutor
from tunekit.config import ValidationConfig
from tunekit.core.events import AttemptBegan, AttemptStarted, Event
from tunekit.core.validation import Request
from tunekit.validating.validator import Validator


def lines(**options: Any) -> list[tuple[Any, ...]]:
    """Poll each half second; return type, number and delay of the attempts' lines."""
    clock, events = FakeClock(), list[Event]()
    executor = FakeExecutor(clock, lambda attempt: {"accuracy": 0.5}, **options)
    config = ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.5})
    validator = Validator(config, executor, clock, record=events.append)
    validator.submit(Request("a", iteration=1))
    for _ in range(8):
        events += validator.poll()
        for attempt in validator.pool.start(0, clock.monotonic()):
            validator.start(attempt)
        validator.look()
        clock.sleep(0.5)
    return [(type(event), event.attempt, event.after_s) for event in events]


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
