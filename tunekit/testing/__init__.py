"""Doubles for tests: time, validations and a whole sweep, in one process and without waiting."""

from tunekit._ray.local import LocalSweep
from tunekit.deprecated import former_names
from tunekit.testing.clock import FakeClock
from tunekit.testing.context import validation_context
from tunekit.testing.executor import FakeExecutor
from tunekit.testing.journal import JournalSummary, check_journal
from tunekit.testing.journal import check_lives as check_lives  # deprecated

__all__ = [
    "FakeClock",
    "FakeExecutor",
    "JournalSummary",
    "LocalSweep",
    "check_journal",
    "validation_context",
]

__getattr__ = former_names(__name__)
