"""The engine's commands: one type for each action.

:meth:`tunekit.core.engine.Engine.apply` returns them in the order in which
``tunekit.driver.callback`` carries them out. They are data: tests compare them, and a restore drops
those that were already carried out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tunekit.core.delivery import Scored
from tunekit.core.validation import Outcome, Request


@dataclass(frozen=True)
class Ask:
    """Record that a checkpoint is going to be validated."""

    request: Request


@dataclass(frozen=True)
class Validate:
    """Pass a recorded request to the validator.

    Attributes:
        request: The request.
        again: Whether an earlier session recorded it: the checkpoint may be gone.
    """

    request: Request
    again: bool = False


@dataclass(frozen=True)
class Cancel:
    """Cancel the validations of a trial that the scheduler has stopped early."""

    trial_id: str


@dataclass(frozen=True)
class Stop:
    """Stop a trial that a user stops by hand."""

    trial_id: str


@dataclass(frozen=True)
class Fold:
    """Merge a score into its trial's result."""

    outcome: Outcome


@dataclass(frozen=True)
class NoteFailure:
    """Log or count a validation that ended without a score."""

    outcome: Outcome


@dataclass(frozen=True)
class PassOver:
    """Log that a score is not delivered, because it lacks a metric that the sweep ranks by."""

    scored: Scored


@dataclass(frozen=True)
class Notify:
    """Pass a score to loggers."""

    outcome: Outcome


@dataclass(frozen=True)
class Told:
    """A report or a validated result that loggers have received.

    Attributes:
        report: The report; of a validated result, that of the iteration that saved the checkpoint.
        metrics: The validated metrics; None if it is a report.
    """

    report: Mapping[str, Any]
    metrics: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Deliver:
    """Deliver a trial's next score, or its end, to the scheduler and the searcher."""

    trial_id: str


Command: TypeAlias = (
    Ask | Validate | Cancel | Stop | Fold | NoteFailure | PassOver | Notify | Deliver
)
