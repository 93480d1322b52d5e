"""Validations: their names, requests and outcomes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from tunekit.core.metrics import flat_items, is_reserved
from tunekit.core.values import finite_number, format_value


class Status(str, Enum):
    """How a validation ended."""

    VALIDATED = "validated"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    SKIPPED = "skipped"


#: The outcomes after which a validation may be requested again.
FAILED = (Status.FAILED.value, Status.TIMED_OUT.value)

#: The values of ``when`` with which a trial's last checkpoint is validated, whatever its scheduler.
LAST_ALSO = ("auto", "decisions")


def is_selected(
    when: int | str, since: int, requested: bool | None = None, *, used: bool = True
) -> bool:
    """Return whether to validate a checkpoint, the newest of its trial.

    Args:
        when: A number: checkpoints at least that many iterations apart; ``"auto"`` and
            ``"decisions"``: those whose score is used, and each trial's last one; ``"requested"``:
            those whose report requests it.
        since: The iterations since the trial's last checkpoint that was to be validated, or since
            its start; negative if the trial has gone back.
        requested: True or False decides, None leaves it to ``when``.
        used: Whether the scheduler will use its score, or whether it is the trial's last.

    Example:
        >>> [is_selected(2, since) for since in (1, 2, 3, -4)]
        [False, True, True, True]
        >>> is_selected(2, 1, requested=True), is_selected(2, 3, requested=False)
        (True, False)
        >>> is_selected("auto", 1, used=False), is_selected("requested", 1)
        (False, False)
    """
    if requested is not None:
        return requested
    if isinstance(when, str):
        return used and when in LAST_ALSO
    return not 0 < since < when


class ValidationKey(NamedTuple):
    """The name of one validation in a sweep, the same after a restore.

    Attributes:
        trial_id: The trial that saved the checkpoint.
        generation: The number of times the trial had been overwritten with other weights.
        iteration: The training iteration at which it was saved.
        run: Which run of that iteration it was saved in: 1 for the first, 2 for its rerun.

    Example:
        >>> key = ValidationKey.parse("train_7f:0:3:1")
        >>> key.trial_id, key.place, str(key)
        ('train_7f', (0, 3), 'train_7f:0:3:1')
    """

    trial_id: str
    generation: int
    iteration: int
    run: int

    @classmethod
    def parse(cls, text: str) -> ValidationKey:
        """Parse a key from its ``str``."""
        trial_id, generation, iteration, run = text.rsplit(":", 3)
        return cls(trial_id, int(generation), int(iteration), int(run))

    @property
    def place(self) -> tuple[int, int]:
        """Return ``(generation, iteration)``, which identifies the row of its trial."""
        return (self.generation, self.iteration)

    def __str__(self) -> str:
        return f"{self.trial_id}:{self.generation}:{self.iteration}:{self.run}"


@dataclass(frozen=True)
class Request:
    """A checkpoint to be validated.

    Attributes:
        trial_id: The trial that saved the checkpoint.
        iteration: The training iteration at which it was saved.
        run: The number of times the trial has run that iteration, initially 1. A trial that returns
            to an older checkpoint repeats iterations.
        generation: The number of times the trial had been overwritten with other weights.
        checkpoint: The argument of the validation function; opaque here.
        path: The checkpoint's path, for records and leases.
        report: The report of that iteration, nested as reported; it must not be changed.
        kwargs: Keyword arguments of the validation function.
        timeout_s: The time limit in seconds, counted from when it starts to run; None for no limit.
        config: The hyperparameters that the checkpoint was trained with, those of its generation;
            they must not be changed.
        used: Whether the scheduler decides on the score, or it is the trial's last.
        decision_point: The decision point that the score fills; None if none.
    """

    trial_id: str
    iteration: int
    run: int = 1
    generation: int = 0
    checkpoint: Any = field(default=None, compare=False, repr=False)
    path: str = ""
    report: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    kwargs: Mapping[str, Any] = field(default_factory=dict, compare=False)
    timeout_s: float | None = None
    config: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    used: bool = field(default=True, compare=False, repr=False)
    decision_point: float | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> ValidationKey:
        """Return the key of the validation."""
        return ValidationKey(self.trial_id, self.generation, self.iteration, self.run)

    @cached_property
    def id(self) -> str:
        """Return a name that is unique in the sweep, and the same after a restore."""
        return str(self.key)

    @property
    def place(self) -> tuple[int, int]:
        """Return ``(generation, iteration)``, which identifies the row of its trial."""
        return (self.generation, self.iteration)


@dataclass(frozen=True)
class Attempt:
    """One attempt at a request; ``number`` counts from 1."""

    request: Request
    number: int

    @cached_property
    def id(self) -> str:
        """Return a name that is unique in the sweep."""
        return f"{self.request.id}#{self.number}"


class PendingStatus(str, Enum):
    """The status of a validation that has not ended.

    While it is starting, it may be *unplaced*: Ray has no resources for it yet. The journal does
    not record that.
    """

    QUEUED = "queued"  #: it was requested, but not passed to Ray
    STARTING = "starting"  #: Ray has it: it is unplaced, or its process is starting
    RUNNING = "running"  #: its function was called


#: The statuses of validations that have not ended, as they are in tables.
PENDING = tuple(status.value for status in PendingStatus)


def score_problem(returned: object, required: Collection[str]) -> str | None:
    """Return why a validation function's return value is a mistake; None if it is not one.

    It must be a dict with string keys, none of them reserved (:func:`is_reserved`). Metrics that a
    scheduler or searcher uses must, if they occur in it, be numbers; NaN or infinity, for example
    from a trial that has diverged or an episode that has not ended, means that there is no score.
    Other metrics may be anything. :func:`~tunekit.core.values.sanitize` has made the keys strings.

    Args:
        returned: The return value.
        required: Flat names of the metrics that the sweep uses.

    Example:
        >>> required = {"accuracy"}
        >>> score_problem({"accuracy": 0.9, "note": "fine"}, required)
        >>> score_problem({"accuracy": float("nan")}, required)
        >>> score_problem(0.9, required)
        'returned a float, not a dict of metrics'
        >>> score_problem({"accuracy": "high"}, required)
        "returned 'high' (a str) for 'accuracy', not a number"
    """
    if not isinstance(returned, Mapping):
        return f"returned a {type(returned).__name__}, not a dict of metrics"
    if not returned:
        return "returned an empty dict, without any metric"
    if taken := sorted(filter(is_reserved, returned)):
        return f"returned {taken[0]!r}, a name reserved by Tune or tunekit"
    for name, value in flat_items(returned):
        if name in required and type(value) is not float and finite_number(value) is None:
            kind = type(value).__name__
            return f"returned {format_value(value)} (a {kind}) for {name!r}, not a number"
    return None
