"""What is to be done for a sweep: the commands that follow from its facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from tunekit.core.events import Event, ValidationEnded
from tunekit.core.failures import FailureNotice
from tunekit.core.queue import Circumstances
from tunekit.core.report import Report
from tunekit.core.validation import Attempt, Request


class Record(NamedTuple):
    """Write an event to the journal, and apply it to the state of the sweep."""

    event: Event


class Save(NamedTuple):
    """Save a trial now, before it trains on: the weights are those of the report."""

    trial_id: str
    report: Report


class Validate(NamedTuple):
    """Run a validation, whose request is recorded."""

    request: Request


class Cancel(NamedTuple):
    """End all validations of a trial."""

    trial_id: str


class Delete(NamedTuple):
    """Delete a checkpoint that Tune will never get."""

    checkpoint: Any


class Inspect(NamedTuple):
    """Look at a report, as long as no checkpoint has been saved: it may be that none ever is."""

    trial_id: str
    report: Mapping[str, Any]


class Notify(NamedTuple):
    """Tell the user of a validation without a score; how, unless it was only skipped."""

    event: ValidationEnded
    notice: FailureNotice | None


class NotifyUnranked(NamedTuple):
    """Tell the user of a result whose score cannot be ranked."""

    trial_id: str
    report: Report
    result: Mapping[str, Any]


class Advance(NamedTuple):
    """Give Tune the complete reports of a trial, in order; then the trial continues or waits."""

    trial_id: str


class Train(NamedTuple):
    """Let a trial train its next iteration in its process."""

    trial_id: str


class Stay(NamedTuple):
    """Let a trial wait in its process, until the circumstances or its validations change."""

    trial_id: str
    circumstances: Circumstances


class Release(NamedTuple):
    """End the process of a trial that waits: its slot is for others."""

    trial_id: str


class StartAgain(NamedTuple):
    """Start a process for a trial that has released its own, before those of new trials."""

    trial_id: str


class Stop(NamedTuple):
    """End a trial that a user has stopped by hand, once Tune has processed its reports."""

    trial_id: str


class Start(NamedTuple):
    """Start an attempt of a validation, in the process of its trial or elsewhere."""

    attempt: Attempt
    in_trial: bool


class NotifyStarved(NamedTuple):
    """Tell the user that a trial releases its slot because all trials starve validations."""

    trial_id: str
    trials: int


Command: TypeAlias = (
    Record
    | Save
    | Validate
    | Cancel
    | Delete
    | Inspect
    | Notify
    | NotifyUnranked
    | Advance
    | Train
    | Stay
    | Release
    | StartAgain
    | Stop
    | Start
    | NotifyStarved
)
