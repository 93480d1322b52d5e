"""Where validations run, as the driver sees it: attempts go in, and events of attempts come out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # each validation imports this in its own process
    from ray.tune.experiment import Trial

    from tunekit.core.validation import Attempt

__all__ = ["AttemptEvent", "Began", "Estimated", "Executor", "Failed", "Lost", "Returned"]


@dataclass(frozen=True)
class Began:
    """An attempt has got its resources and runs."""

    attempt_id: str


@dataclass(frozen=True)
class Estimated:
    """An attempt's function has yielded what it knows so far."""

    attempt_id: str
    value: Any


@dataclass(frozen=True)
class Returned:
    """An attempt's function has returned a value.

    Attributes:
        key: The name that the score has in the cache; None without a cache.
        cached: Whether it was there, and the function was not called.
    """

    attempt_id: str
    value: Any
    key: str | None = field(default=None, repr=False)
    cached: bool = field(default=False, repr=False)


@dataclass(frozen=True)
class Failed:
    """An attempt's function has raised, or its process is gone.

    Attributes:
        error: The traceback.
        kind: The name of the exception's class, if the function has raised one.
        lost: Whether workers of the trial in which it ran have ended with it.
    """

    attempt_id: str
    reason: str
    error: str | None = None
    kind: str = field(default="", repr=False)
    lost: bool = field(default=False, repr=False)


@dataclass(frozen=True)
class Lost:
    """The process of a trial has ended with an attempt that ran in it.

    Attributes:
        trial_id: The trial.
    """

    trial_id: str


#: What comes of an attempt, in order.
AttemptEvent = Began | Estimated | Returned | Failed | Lost


class Executor:
    """Runs attempts alongside the sweep. No method waits for one to end.

    Attributes:
        poll_interval_s: Seconds to let pass between two polls: 100 times what one costs.
        in_trials: Whether attempts can run in the processes of trials that stand still.
    """

    poll_interval_s: float = 0.0
    in_trials: bool = False

    @property
    def need(self) -> dict[str, float]:
        """Return the logical resources of one attempt: ``{"CPU": 1, ...}``."""
        return {"CPU": 1.0}

    def fits_in(self, place: Sequence[Mapping[str, float]]) -> bool:
        """Return whether an attempt could run in the processes of a trial that stands still.

        Args:
            place: What each of them has.
        """
        return False

    def without_workers(self) -> None:
        """Trials have no workers: what workers run does not run in a trial's process."""

    def start(self, attempt: Attempt, *, host: Trial | None = None) -> None:
        """Start an attempt; whatever goes wrong with it comes out of :meth:`poll`.

        Args:
            attempt: The attempt.
            host: The trial in whose process it runs; None: elsewhere.
        """
        raise NotImplementedError

    def poll(self) -> list[AttemptEvent]:
        """Return what has happened since the last call, in order."""
        raise NotImplementedError

    def awaited(self) -> Collection[Any]:
        """Return references to Ray objects; once one is ready, a :meth:`poll` is worthwhile."""
        return ()

    def cancel(self, attempt: Attempt) -> None:
        """End an attempt at once; :meth:`poll` says nothing more about it."""
        raise NotImplementedError

    def stop(self, attempt: Attempt) -> None:
        """End an attempt that has yielded enough, at its next yield; its process lives on.

        :meth:`poll` says nothing more about it.
        """
        self.cancel(attempt)

    def capacity(self, promised: Iterable[Mapping[str, float]]) -> int:
        """Return how many more attempts the free resources can run now.

        Args:
            promised: The needs of others that wait for resources and go first; iterated over at
                most once.
        """
        raise NotImplementedError

    def queued(self) -> int:
        """Return how many attempts were started and wait for resources because none are free.

        Attempts that have their resources and whose processes are starting are not among them.
        """
        return 0

    def spare(self, keep: int) -> None:
        """Give back what is kept only for later attempts, but for so many: others need it now."""

    def close(self) -> None:
        """Give back what it holds: nothing more will run."""
