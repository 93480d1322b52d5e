"""The interface of executors, which run attempts and return their events to the driver."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # each validation imports this in its own process
    from tunekit.core.validation import Attempt


@dataclass(frozen=True)
class Began:
    """An attempt has its resources and runs."""

    attempt_id: str


@dataclass(frozen=True)
class Returned:
    """An attempt's function has returned a value, which is plain data (``pack_result``)."""

    attempt_id: str
    value: Any


@dataclass(frozen=True)
class Failed:
    """An attempt's function has raised an exception, or its process is gone.

    Attributes:
        error: The traceback.
        kind: The name of the exception's class, if the function raised one.
        host_ended: Whether it has ended the workers of the trial in which it ran, or damaged the
            trial's process.
    """

    attempt_id: str
    reason: str
    error: str | None = None
    kind: str = field(default="", repr=False)
    host_ended: bool = field(default=False, repr=False)


@dataclass(frozen=True)
class HostEnded:
    """An attempt has ended the process of the trial in which it ran.

    Attributes:
        trial_id: The trial.
    """

    trial_id: str


#: An event of an attempt, in order.
AttemptEvent = Began | Returned | Failed | HostEnded


class Executor:
    """Run attempts alongside the sweep. No method waits for an attempt to end.

    Attributes:
        poll_interval_s: The seconds between polls, about 100 times as long as a poll takes.
        in_trials: Whether attempts can run in the processes of waiting trials.
    """

    poll_interval_s: float = 0.0
    in_trials: bool = False

    @property
    def need(self) -> dict[str, float]:
        """Return the logical resources of one attempt: ``{"CPU": 1, ...}``."""
        return {"CPU": 1.0}

    def fits_in(self, processes: Sequence[Mapping[str, float]]) -> bool:
        """Return whether an attempt can run in the processes of a waiting trial.

        Args:
            processes: The resources of each process.
        """
        return False

    def forbid_workers_in_trials(self) -> None:
        """Never run a function with ``bundles`` in trials, because these have no workers."""

    def start(self, attempt: Attempt, *, host: Any = None) -> None:
        """Start an attempt; :meth:`poll` also yields its failures.

        Args:
            attempt: The attempt.
            host: Tune's trial in whose process it runs; None: elsewhere.
        """
        raise NotImplementedError

    def poll(self) -> Iterator[AttemptEvent]:
        """Yield the events since the last call, in order."""
        raise NotImplementedError

    def awaited(self) -> Collection[Any]:
        """Return references to Ray objects; once one is ready, a :meth:`poll` is worthwhile."""
        return ()

    def cancel(self, attempt: Attempt, *, too_long: bool = True) -> str | None:
        """End an attempt immediately; :meth:`poll` yields no more of its events.

        Args:
            attempt: The attempt.
            too_long: Whether it has exceeded its time limit. Otherwise, its score is not needed.

        Returns:
            The trial whose process has ended with it, if any.
        """
        raise NotImplementedError

    def capacity(self, promised: Iterable[tuple[Mapping[str, float], int]]) -> int:
        """Return how many more attempts the free resources can run now.

        Args:
            promised: The resources of waiting processes that have priority, each with the number of
                processes that need them; iterated over at most once.
        """
        raise NotImplementedError

    def unplaced(self) -> int:
        """Return how many started attempts are waiting for resources.

        Attempts that have their resources and whose processes are starting do not count.
        """
        return 0

    def spare(self, keep: int) -> None:
        """End idle evaluators except ``keep`` of them, because others need the resources."""

    def close(self) -> None:
        """Release all resources; no further attempt will run."""
