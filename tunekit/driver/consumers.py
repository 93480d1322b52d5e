"""What a sweep's validations need of its scheduler, and of its searcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tunekit.core.confidence import Interval
from tunekit.core.delivery import Scored
from tunekit.core.events import Event
from tunekit.core.lineage import Exploit
from tunekit.core.validation import Request
from tunekit.journal.places import Places
from tunekit.validating.validator import Standing

__all__ = ["SchedulerConsumer", "SearcherConsumer"]


class SchedulerConsumer(Protocol):
    """What a sweep's validations need of its scheduler."""

    @property
    def objectives(self) -> set[str]:
        """The metric that it judges by, if it does."""
        ...

    @property
    def compares_all(self) -> bool:
        """Return whether it compares all trials at the same time."""
        ...

    @property
    def mode(self) -> str | None:
        """``"min"`` or ``"max"``: what is better of the metric; None if nobody has said."""
        ...

    @property
    def base(self) -> TrialScheduler:
        """The user's scheduler."""
        ...

    def hears(self, trial_id: str) -> bool:
        """Return whether it may get a result of the trial, or its end, now."""
        ...

    def judge(
        self, trial: Trial, result: dict[str, Any], scored: Scored, decided: str | None = None
    ) -> str:
        """Take a validated result, flat, and decide, unless that was ``decided`` before."""
        ...

    def has_run_its_course(self, trial_id: str) -> bool:
        """Return whether a trial that was stopped was as long as it was to be."""
        ...

    def finish(self, trial: Trial, result: Mapping[str, Any] | None) -> None:
        """Take a trial's end, with its newest validated result."""
        ...

    def started(self, trial: Trial) -> None:
        """A trial's actor is up."""
        ...

    def uses(self, trial: Trial, result: Mapping[str, Any]) -> bool:
        """Return whether it will use the score of a report, or that is the trial's last."""
        ...

    def used(self, request: Request) -> bool:
        """Return whether it will use the score of the newest report of that iteration."""
        ...

    def past_last(self, trial_id: str) -> bool:
        """Return whether a trial has reported after the last report that it can decide by."""
        ...

    def decides_alike(self, request: Request, metric: str, interval: Interval) -> bool:
        """Return whether it decides the same wherever in an interval a metric is."""
        ...

    def settled(self, request: Request) -> None:
        """The score of a request was delivered, or never will be."""
        ...

    def standing(self) -> dict[str, Standing]:
        """Return the trials that stand still: they wait for a score, or were stopped."""
        ...

    def act(self) -> None:
        """Carry out what is decided."""
        ...

    def errored(self, trial: Trial) -> None:
        """A trial has failed for good."""
        ...

    def advance(self) -> None:
        """Go on with trials that have ended, of which it has not heard."""
        ...

    def conclude(self, trial: Trial) -> None:
        """Be done with a trial: the sweep is over."""
        ...

    def get_state(self, places: Places) -> bytes | None:
        """Return what to save for a restore."""
        ...

    def set_state(self, saved: bytes, places: Places) -> None:
        """Take that up."""
        ...

    def take_leases(self) -> None:
        """Keep the checkpoints that its saved state names."""
        ...

    def catch_up(self, event: Event, trial: Trial) -> None:
        """Do again what was done before the sweep was interrupted."""
        ...

    def judge_again(
        self, trial: Trial, result: dict[str, Any], scored: Scored, decided: str
    ) -> str:
        """Take a result again; what was decided before holds."""
        ...

    def exploit_again(
        self, trial: Trial, exploit: Exploit, version: Any, *, carried_out: bool
    ) -> None:
        """Overwrite a trial as it was."""
        ...

    def retried(self, trial: Trial) -> None:
        """A trial is started again."""
        ...

    def resume(self) -> None:
        """Go on from where the sweep was interrupted."""
        ...


class SearcherConsumer(Protocol):
    """What a sweep's validations need of its searcher."""

    @property
    def objectives(self) -> set[str]:
        """The metrics that it learns from."""
        ...

    def attach(self, refresh: Callable[[], None]) -> None:
        """Get what to call before a suggestion, to hear all that is known."""
        ...

    def receive(self, trial_id: str, result: dict[str, Any]) -> None:
        """Take a validated result, flat."""
        ...

    def finish(self, trial_id: str, result: Mapping[str, Any] | None) -> None:
        """Take a trial's end, with its newest validated result."""
        ...
