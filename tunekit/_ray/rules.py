"""What Tune's controller asks about the reports of trials, and about trials that wait."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

from ray.tune.experiment import Trial

from tunekit.core.queue import Circumstances, Entry, Next, Queue


class ReportRules(Protocol):
    """Rules for the reports of a sweep before Tune gets them."""

    @property
    def names(self) -> AbstractSet[str]:
        """The names of the metrics that validation produces, or that the sweep uses."""

    @property
    def idle(self) -> bool:
        """Whether no validation is pending."""

    def receive(self, trial: Trial, result: dict[str, Any], *, saved: bool) -> None:
        """Convert a report, or the report of a save, in place for Tune and the journal."""

    def holds(self, queue: Queue, *, trains: bool) -> bool:
        """Return whether all reports wait, because validation's metrics are not known yet."""

    def reported(self, trial: Trial, queue: Queue, report: dict[str, Any]) -> Entry:
        """Return the entry of a report that the policies have seen; it may be one to save."""

    def returned(self, trial: Trial, queue: Queue) -> Entry | None:
        """Record that a trial has ended; return its last entry if that still has to be saved."""

    def saved(self, trial: Trial, entry: Entry) -> None:
        """Record the checkpoint of an entry, and request its validation if it has one."""

    def dropped(self, trial: Trial, entries: list[Entry]) -> None:
        """Cancel the validations of entries that a decision has made void."""

    def result(self, trial: Trial, entry: Entry) -> dict[str, Any]:
        """Return the result that Tune gets: the report, merged with the score."""

    def rank(self, trial: Trial, entry: Entry, result: Mapping[str, Any]) -> bool:
        """Return whether the scheduler and the searcher get a result."""

    def is_rankable(self, result: Mapping[str, Any]) -> bool:
        """Return whether a result has everything that the scheduler and the searcher use."""

    def processing(self) -> None:
        """Record that Tune is about to process a result."""

    def processed(self, trial: Trial, entry: Entry, decision: str) -> None:
        """Record a result that Tune has processed, before it carries out the decision."""


class WaitingRules(Protocol):
    """What trials do while their scores are pending, and which resources validations leave them."""

    def reported(self, trial_id: str) -> None:
        """Record that a trial has finished an iteration."""

    def decided(self, *, continues: bool) -> None:
        """Count a decision of the scheduler, and whether the trial continues."""

    def circumstances(self) -> Circumstances:
        """Return the circumstances that all waiting trials share until one of them moves on."""

    def pop_moved(self) -> Collection[str]:
        """Return and clear the trials whose validations were started or will be retried."""

    def next(self, trial: Trial, queue: Queue, now: Circumstances) -> Next:
        """Return what a trial does next."""

    def stops_waiting(self, trial_id: str) -> None:
        """Record that a trial has ended or paused, so that it waits for nothing."""

    def has_pending(self) -> bool:
        """Return whether validations are pending, so that Tune does not warn that no trial runs."""

    def slots(self) -> int | None:
        """Return how many trials may have a process at once; None if only resources limit them.

        While it is 0, resources that Tune has requested for trials, or holds in cached actors, are
        released.
        """

    def lacks_resources(self) -> bool:
        """Return whether a validation lacks resources that a cached actor may hold."""
