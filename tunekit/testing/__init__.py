"""Doubles for tests: time, validations and a whole sweep, in one process and without waiting."""

from tunekit._ray.local import LocalSweep
from tunekit.clock import FakeClock
from tunekit.testing.context import validation_context
from tunekit.testing.executor import FakeExecutor

__all__ = [
    "FakeClock",
    "FakeExecutor",
    "LocalSweep",
    "validation_context",
]
