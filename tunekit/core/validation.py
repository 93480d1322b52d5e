"""Validations: which checkpoints get one, what is asked for, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tunekit.core.estimates import Estimate
from tunekit.core.metrics import leaves
from tunekit.core.values import number, text

__all__ = [
    "PENDING",
    "RESERVED",
    "Attempt",
    "Outcome",
    "Pending",
    "PendingStatus",
    "Request",
    "Selection",
    "Status",
    "rejected",
]


class Selection:
    """Picks the checkpoints to validate, unless the report of a checkpoint says otherwise.

    Args:
        when: A number: those at least so many iterations after the one before, or after the start
            of the trial; or ``"decisions"``: those whose score is used; or ``"requested"``: those
            whose report asks. ``"auto"``: all, some of them only if there is room.

    Example:
        >>> selection = Selection(when=2)
        >>> [selection.wants("a", iteration) for iteration in (1, 2, 3, 5, 6, 7)]
        [False, True, False, True, False, True]
        >>> selection.wants("a", 3)  # the trial has gone back
        True
        >>> selection.wants("a", 8, wish=True), selection.wants("a", 20, wish=False)
        (True, False)
        >>> asked = Selection(when="requested")
        >>> asked.wants("a", 1), asked.wants("a", 1, wish=True)
        (False, True)
    """

    def __init__(self, when: int | str = 1):
        self._when = 1 if when == "auto" else when
        # The newest iteration of each trial that was picked.
        self._newest: dict[str, int] = {}

    def wants(
        self, trial_id: str, iteration: int, wish: bool | None = None, *, used: bool = True
    ) -> bool:
        """Return whether to validate a checkpoint, the newest of its trial.

        Args:
            trial_id: The trial that saved it.
            iteration: When it was saved.
            wish: What its report asked for: True or False decide, None leaves it to ``when``.
            used: Whether the scheduler will use its score, or it is the trial's last.
        """
        if wish is not None:
            return wish
        if isinstance(self._when, str):
            return used and self._when == "decisions"
        apart = iteration - self._newest.get(trial_id, 0)
        if 0 < apart < self._when:
            return False
        self._newest[trial_id] = iteration  # or an older one: the trial has gone back
        return True


#: Names of a row that Tune or tunekit fill in themselves; a validation must not overwrite them.
RESERVED = frozenset(
    {
        "config",
        "done",
        "generation",
        "iteration_runs",
        "reported",
        "should_checkpoint",
        "time_total_s",
        "timestamp",
        "training_iteration",
        "trial_id",
        "validated_iteration",
    }
)


# What no score can be better than, by which values are better.
_BEST: dict[str | None, float] = {"min": -math.inf, "max": math.inf}


class Status(str, Enum):
    """How a validation ended."""

    VALIDATED = "validated"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Request:
    """A checkpoint to be validated.

    Attributes:
        trial_id: The trial that saved the checkpoint.
        iteration: The training iteration at which it was saved.
        run: How many times the trial has run that iteration, 1 at first. A trial that goes back
            to an older checkpoint runs iterations again.
        generation: How often the trial had been overwritten with other weights.
        checkpoint: What the validation function gets; opaque here.
        path: Where the checkpoint lies, for records and leases.
        report: The report of that iteration, nested as reported; not to be changed.
        kwargs: Keyword arguments of the validation function.
        timeout_s: Seconds from the start of running, or None for no limit.
        config: The hyperparameters that the checkpoint was trained with, those of its generation;
            not to be changed.
        used: Whether the scheduler will use the score, or it is the trial's last: the scheduler
            decides by it.
        serves: What the score serves in the scheduler's internal state; None if nothing.
        optional: Whether it is only run where that costs nobody anything: it decides nothing.
        known: What an earlier attempt has yielded, by the flat names of the metrics.
        stage: The further stage that validates it; empty for the one that schedulers judge by.
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
    serves: float | None = field(default=None, compare=False, repr=False)
    optional: bool = field(default=False, compare=False, repr=False)
    known: Mapping[str, Estimate] = field(default_factory=dict, compare=False, repr=False)
    stage: str = ""

    @property
    def id(self) -> str:
        """A name that is unique in the sweep, and the same after a restore."""
        own = f"{self.trial_id}:{self.generation}:{self.iteration}:{self.run}"
        return f"{own}:{self.stage}" if self.stage else own

    @property
    def place(self) -> tuple[int, int]:
        """``(generation, iteration)``: the row of its trial that it belongs to."""
        return (self.generation, self.iteration)


@dataclass(frozen=True)
class Attempt:
    """One try at a request; ``number`` counts from 1."""

    request: Request
    number: int

    @property
    def id(self) -> str:
        """A name that is unique in the sweep."""
        return f"{self.request.id}#{self.number}"


class PendingStatus(str, Enum):
    """How far a validation is that has not ended.

    While it is starting, it may be *queued*: Ray has no resources for it yet. The journal does not
    record that.
    """

    WAITING = "waiting"  #: it was requested; Ray does not have it
    STARTING = "starting"  #: Ray has it: it is queued, or its process starts
    RUNNING = "running"  #: its function was called


#: What the status of a validation is that has not ended, as tables have it.
PENDING = tuple(status.value for status in PendingStatus)


@dataclass(frozen=True)
class Pending:
    """A request that has not ended.

    Attributes:
        request: What was asked for.
        status: How far it is.
        for_s: For how many seconds it has run; if it does not run, since it was asked for.
        queued: Whether it is starting, and no resources are free for it.
    """

    request: Request
    status: PendingStatus
    for_s: float
    queued: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a request ended, for good.

    Attributes:
        request: What was asked for.
        status: How it ended.
        metrics: What the validation function returned; empty unless validated.
        reason: One line that says why it was not validated.
        error: The traceback, where there is one.
        attempts: How many attempts were started.
        waited_s: Seconds from the request to the start of the last attempt (or to the end, if
            none was started).
        ran_s: Seconds that the last attempt ran.
        cached: Whether the score was taken from a cache.
    """

    request: Request
    status: Status
    metrics: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None
    error: str | None = None
    attempts: int = 0
    waited_s: float = 0.0
    ran_s: float = 0.0
    cached: bool = False

    @property
    def validated(self) -> bool:
        """Return whether there is a score."""
        return self.status is Status.VALIDATED

    @property
    def shown(self) -> Mapping[str, Any]:
        """Return the metrics as they are shown: those of a further stage below its name."""
        return {self.request.stage: self.metrics} if self.request.stage else self.metrics


def rejected(returned: object, judged: Mapping[str, str | None]) -> str | None:
    """Say why what a validation function returned is no score; None if it is one.

    A score is a dict with string keys, none of them :data:`RESERVED`. Metrics that a scheduler or
    searcher judges by must, where they occur in it, be numbers other than NaN, and none that wins
    over every other: an infinite one that loses, as of a trial that has diverged, is a score. The
    others may be anything. (What comes from a validation function has string keys:
    :func:`~tunekit.core.values.admitted` has seen to it.)

    Args:
        returned: What the function returned.
        judged: Flat names of the metrics that are judged by, each with which values are better,
            ``"min"`` or ``"max"``; None if that is not known.

    Example:
        >>> judged = {"accuracy": "max"}
        >>> rejected({"accuracy": 0.9, "note": "fine"}, judged)
        >>> rejected(0.9, judged)
        'returned a float, not a dict of metrics'
        >>> rejected({"accuracy": float("nan")}, judged)
        "returned NaN for 'accuracy'"
        >>> print(rejected({"accuracy": float("inf")}, judged))
        returned inf for 'accuracy', which would win over every other. Was something divided by
        zero? Return a finite number
        >>> rejected({"accuracy": float("-inf")}, judged)
        >>> rejected({"accuracy": "high"}, judged)
        "returned 'high' (a str) for 'accuracy', not a number"
    """
    if not isinstance(returned, Mapping):
        return f"returned a {type(returned).__name__}, not a dict of metrics"
    if not returned:
        return "returned an empty dict: no metric to judge by"
    odd = _odd_key(returned)
    if odd is not None:
        return f"returned a dict with the key {text(odd[0])}; keys must be strings"
    taken = sorted(name for name in returned if name.split("/")[0] in RESERVED)
    if taken:
        return f"returned {taken[0]!r}, a name that Tune or tunekit use themselves"
    for name, value in leaves(returned):
        if name not in judged:
            continue
        if type(value) is float and math.isnan(value):
            return f"returned NaN for {name!r}"
        score = number(value)
        if score is None:
            return f"returned {text(value)} (a {type(value).__name__}) for {name!r}, not a number"
        if score == _BEST.get(judged[name]):
            return (
                f"returned {score} for {name!r}, which would win over every other. Was something "
                "divided by zero? Return a finite number"
            )
    return None


def _odd_key(metrics: Mapping[Any, Any]) -> tuple[Any] | None:
    """A key that is not a string, at any level, in a tuple; None if there is none."""
    for key, value in metrics.items():
        if not isinstance(key, str):
            return (key,)
        if isinstance(value, Mapping):
            odd = _odd_key(value)
            if odd is not None:
                return odd
    return None
