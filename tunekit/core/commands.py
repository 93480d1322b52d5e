"""What a sweep's shell has to do about an event: one type for each thing to be done.

:meth:`tunekit.core.engine.Engine.handle` returns them, in the order in which they are to be carried
out, and ``tunekit.driver.callback`` carries them out. They are data: a test compares them, and a
restore that must not do again what was done drops them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tunekit.core.delivery import Scored
from tunekit.core.events import Asked
from tunekit.core.validation import Outcome, Request

__all__ = [
    "Ask",
    "Cancel",
    "CarryOut",
    "Command",
    "Deliver",
    "Fold",
    "NoteFailure",
    "Notify",
    "PassOver",
    "Show",
    "Told",
    "Validate",
]


@dataclass(frozen=True)
class Ask:
    """Record that a checkpoint is going to be validated."""

    request: Request


@dataclass(frozen=True)
class Validate:
    """Hand a recorded request to what runs validations.

    Attributes:
        request: The request.
        again: Whether a former session recorded it: the checkpoint may be gone.
    """

    request: Request
    again: bool = False


@dataclass(frozen=True)
class Cancel:
    """End the validations of a trial that the scheduler has stopped early."""

    trial_id: str


@dataclass(frozen=True)
class CarryOut:
    """Do what was asked for by hand."""

    asked: Asked


@dataclass(frozen=True)
class Fold:
    """Show a score in its trial."""

    outcome: Outcome


@dataclass(frozen=True)
class Show:
    """Show in a trial what a further stage has found: nothing is ranked or decided by it."""

    outcome: Outcome


@dataclass(frozen=True)
class NoteFailure:
    """Log, or count, a validation that has ended without a score."""

    outcome: Outcome


@dataclass(frozen=True)
class PassOver:
    """Log that a score is delivered to nobody: it lacks a metric that the sweep is judged by."""

    scored: Scored


@dataclass(frozen=True)
class Notify:
    """Give a score to loggers."""

    outcome: Outcome


@dataclass(frozen=True)
class Told:
    """What loggers were told of a trial: a report, or a validated result.

    Attributes:
        report: The report; of a validated result, that of the iteration that saved the checkpoint.
        metrics: The validated metrics; None if it is a report.
    """

    report: Mapping[str, Any]
    metrics: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Deliver:
    """Give the scheduler and the searcher what is due of a trial."""

    trial_id: str


Command: TypeAlias = (
    Ask | Validate | Cancel | CarryOut | Fold | Show | NoteFailure | PassOver | Notify | Deliver
)
