"""Doubles for tests: time, validations and a whole sweep, in one process and without waiting."""

from tunekit._ray.local import LocalSweep
from tunekit.testing.clock import FakeClock
from tunekit.testing.context import validation_context
from tunekit.testing.executor import FakeExecutor
from tunekit.testing.lives import Lives, check_lives

__all__ = ["FakeClock", "FakeExecutor", "Lives", "LocalSweep", "check_lives", "validation_context"]
