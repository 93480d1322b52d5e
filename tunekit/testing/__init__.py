"""Doubles for tests: time, validations and a whole sweep, in one process and without waiting."""

from tunekit._ray.local import LocalSweep
from tunekit.clock import FakeClock
from tunekit.testing.context import validation_context
from tunekit.testing.executor import FakeExecutor
from tunekit.testing.journal import JournalSummary, check_journal

__all__ = [
    "FakeClock",
    "FakeExecutor",
    "JournalSummary",
    "LocalSweep",
    "check_journal",
    "validation_context",
]
