"""Failures of trials that Tune is not to retry."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial

from tunekit.errors import NotResumedError

__all__ = ["fail_for_good"]


class _Final(Trial):
    """A trial that is not retried where each attempt would fail alike."""

    def handle_error(self, exc: Any = None) -> None:
        # Part of what Tune does not save.
        self.temporary_state.is_final = isinstance(getattr(exc, "cause", exc), NotResumedError)
        super().handle_error(exc)

    def should_recover(self) -> bool:
        final = getattr(self.temporary_state, "is_final", False)
        return not final and bool(super().should_recover())


def fail_for_good(trial: Trial) -> None:
    """Let a trial end with a failure that every retry would repeat.

    ``FailureConfig(max_failures=...)`` is about other failures; -1 would retry for ever.
    """
    if type(trial) is Trial:
        trial.__class__ = _Final
