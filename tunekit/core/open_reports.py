"""The reports in a journal that Tune had not processed as of a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunekit.core.events import (
    CheckpointEvent,
    CheckpointSaved,
    Event,
    Exploited,
    Processed,
    Reported,
    TrialErrored,
    TrialFailed,
    TrialResumed,
    TrialRetried,
    ValidationEnded,
    ValidationKey,
    ValidationRequested,
)

#: The decisions that invalidate what a trial has reported since.
FINAL = ("STOP", "PAUSE")


@dataclass(eq=False)
class OpenReport:
    """A report in the journal, with what the journal records about its checkpoint.

    Attributes:
        report: The report.
        key: The name of its validation; it has one even if it is not validated.
        saved: Its checkpoint, if one was saved.
        requested: The request to validate it, if there is one.
        ended: The end of that, if it has ended.
    """

    report: Reported
    key: ValidationKey
    saved: CheckpointSaved | None = None
    requested: CheckpointEvent | None = None
    ended: ValidationEnded | None = None

    @property
    def metrics(self) -> Mapping[str, Any] | None:
        """Return its score; None if it has none."""
        return self.ended.metrics if self.ended is not None and self.ended.validated else None


@dataclass
class OpenReports:
    """Follow a journal, and track what Tune had not processed as of each line.

    Example:
        >>> lines = OpenReports()
        >>> for iteration in (1, 2):
        ...     report = {"training_iteration": iteration, "generation": 0}
        ...     lines.apply(Reported(trial_id="a", report=report))
        >>> lines.apply(Processed(trial_id="a", iteration=1))
        >>> [one.report.place for one in lines.of("a")]
        [(0, 2)]
        >>> lines.apply(Processed(trial_id="a", iteration=2, decision="PAUSE"))
        >>> lines.of("a")
        []
    """

    _trials: dict[str, list[OpenReport]] = field(default_factory=dict)
    # The number of runs of each iteration, by trial and place.
    _runs: Counter[tuple[str, int, int]] = field(default_factory=Counter)

    def of(self, trial_id: str) -> list[OpenReport]:
        """Return the reports of a trial that were not processed, in order."""
        return self._trials.get(trial_id, [])

    def at(self, where: CheckpointEvent | ValidationKey) -> OpenReport | None:
        """Return the report of a checkpoint; None if it was processed, or the journal lacks it."""
        own = self.of(where.trial_id)
        return next((one for one in own if one.report.place == where.place), None)

    def apply(self, event: Event) -> None:
        """Apply the next line."""
        match event:
            case Reported():
                place = (event.trial_id, *event.place)
                self._runs[place] += 1
                # A restored trial has repeated iterations that were not saved.
                own = [one for one in self.of(event.trial_id) if one.report.place < event.place]
                own.append(OpenReport(event, ValidationKey(*place, self._runs[place])))
                self._trials[event.trial_id] = own
            case CheckpointSaved():
                if (one := self.at(event)) is not None:
                    one.saved, one.requested = event, event if event.validates else None
            case ValidationRequested():
                if (one := self.at(event)) is not None:
                    one.requested, one.ended = event, None
            case ValidationEnded():
                one = self.at(event.key)
                if one is not None and one.requested is not None and one.requested.id == event.id:
                    one.ended = event
            case Processed() if event.decision in FINAL:
                self._trials.pop(event.trial_id, None)
            case Processed():
                own = [one for one in self.of(event.trial_id) if one.report.place > event.place]
                self._trials[event.trial_id] = own
            case Exploited() | TrialFailed() | TrialErrored() | TrialRetried() | TrialResumed():
                # Not at the end of a trial: its scheduler may end it while it decides.
                self._trials.pop(event.trial_id, None)

    def restored(self) -> None:
        """Start another session: trials repeat what they reported after their last checkpoint."""
        for own in self._trials.values():
            while own and own[-1].saved is None:
                own.pop()
