"""The events of a sweep: one type for each kind of line in its journal.

A line is a JSON object with the fields of its event, except those that have their default: ``n`` is
the line's number, ``event`` the name of the type in snake case (``trial_added``), ``time`` is in
seconds since the epoch.

A new field has a default, and readers ignore unknown fields. A new event, or one whose meaning
changes, needs a new version of the format, ``tunekit.journal.versions.VERSION``.

The field ``checkpoint`` is a path below the experiment's folder, which may be moved.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import inspect

from tunekit.core.constraints import Constraint
from tunekit.core.metrics import ITERATION
from tunekit.core.parameters import Parameter
from tunekit.core.validation import Status, ValidationKey
from tunekit.core.values import MOST, MOST_SECONDS, encodable, finite_number, format_value

_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
#: The generation and the iteration of a report.
Place = tuple[_Count, _Count]
# Seconds since the epoch. A clock may be wrong; this range can be shown, until the year 2242.
_Time = Annotated[float, msgspec.Meta(ge=-MOST_SECONDS, le=MOST_SECONDS)]
# Seconds that passed: negative if a clock was put back.
_Seconds = Annotated[float, msgspec.Meta(ge=-MOST_SECONDS, le=MOST_SECONDS)]

_Mode = Literal["min", "max"]

_Kind = TypeVar("_Kind", bound="CheckpointEvent")


# The first line of a session -------------------------------------------------------------------


class _TypeAndSettings(msgspec.Struct):
    type: str
    settings: Mapping[str, Any]


class _Cluster(msgspec.Struct):
    nodes: _Count
    resources: Mapping[str, float]


class _Validation(msgspec.Struct):
    constraints: Sequence[str] = ()

    def __post_init__(self) -> None:
        for text in self.constraints:
            Constraint(text)  # checks it


class SessionHeader(msgspec.Struct, kw_only=True):
    """Check the fields of a session's first line; the line may have others, too.

    Attributes:
        n: The number of its line.
        begins: Whether a new sweep begins.
        after: The number of the last line before it; 0 if there is none.
        follows: The checksum of that line.
        time: When the session began, in seconds since the epoch.
        packages, cluster: What it ran with and on.
        validation: How checkpoints were validated; ``constraints``: on scores, as text.
        required: The metrics that decisions depend on.
        mode: Which values of a single one are better.
        objectives: The metrics that the scheduler ranks by, with their modes.
        scheduler, search_alg: Their types and settings.
        trainable: Where the trainable can be imported from.
        space: The search space: the attributes of each :class:`~tunekit.core.parameters.Parameter`.
        followed: The folder whose checkpoints are evaluated.
        sweep: When the sweep began that is validated later.
        name, function: The prefix of the later validations' metrics, and their function.
    """

    n: _Count
    begins: bool
    after: _Count
    follows: str
    time: _Time | None = None
    packages: Mapping[str, str] = {}
    cluster: _Cluster | None = None
    validation: _Validation | None = None
    required: Sequence[str] = ()
    mode: _Mode | None = None
    objectives: Mapping[str, _Mode | None] = {}
    scheduler: _TypeAndSettings | None = None
    search_alg: _TypeAndSettings | None = None
    trainable: str | None = None
    space: Mapping[str, Parameter] = {}
    followed: str | None = None
    sweep: _Time | None = None
    name: str | None = None
    function: str | None = None


# Events ------------------------------------------------------------------------------------------


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class JournalEvent(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event",
    tag=_snake_case,
):
    """The fields of all events.

    Attributes:
        n: The number of its line; 0 until it is written.
        time: When it happened, in seconds since the epoch.
    """

    n: _Count = 0
    time: _Time = 0.0


class TrialEvent(JournalEvent, frozen=True, kw_only=True):
    """An event of a trial."""

    trial_id: str


class CheckpointEvent(TrialEvent, frozen=True, kw_only=True):
    """An event of a trial's checkpoint.

    Attributes:
        id: The name of its validation, a :class:`~tunekit.core.validation.ValidationKey`.
        generation: The number of times the trial had been overwritten.
        iteration: The iteration.
        run: The number of times the trial has run the iteration.
        checkpoint: The checkpoint's path; empty if there is none.
    """

    id: str = ""
    generation: _Count = 0
    iteration: _Count = 0
    run: _Count = 1
    checkpoint: str = ""

    @property
    def place(self) -> tuple[int, int]:
        """Return ``(generation, iteration)``."""
        return (self.generation, self.iteration)

    @classmethod
    def of(cls: type[_Kind], key: ValidationKey, checkpoint: str, **more: Any) -> _Kind:
        """Make the event of the checkpoint that a key names."""
        return cls(**key._asdict(), id=str(key), checkpoint=checkpoint, **more)


class ValidationEvent(JournalEvent, frozen=True, kw_only=True):
    """An event of a validation, named by a :class:`~tunekit.core.validation.ValidationKey`."""

    id: str

    @property
    def key(self) -> ValidationKey:
        """Return the key of its validation."""
        return ValidationKey.parse(self.id)

    @property
    def trial_id(self) -> str:
        """Return the trial that saved the checkpoint."""
        return self.id.rsplit(":", 3)[0]


# The life of a trial ---------------------------------------------------------------------------


class TrialAdded(TrialEvent, frozen=True, kw_only=True):
    """A trial was added to the sweep.

    Attributes:
        config: Its hyperparameters, with texts for values that JSON cannot represent.
        folder: The name of its folder in the experiment's.
        search: The archive with the searcher that suggested it, if one was saved.
        tune: Tune's own record of the trial and its results, unless it is in the last snapshot.
    """

    config: Mapping[Any, Any] = {}
    folder: str = ""
    search: str | None = None
    tune: Sequence[str] = ()


class Reported(TrialEvent, frozen=True, kw_only=True):
    """A trial reported an iteration.

    Attributes:
        report: What it reported, without its hyperparameters.
        generation: The number of times the trial had been overwritten.
        decision_point: The decision point that its score would fill, such as a rung; None if none.
    """

    report: Mapping[Any, Any]
    generation: _Count = 0
    decision_point: float | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Return ``(generation, iteration)``."""
        return self.generation, self.report[ITERATION]


class CheckpointSaved(CheckpointEvent, frozen=True, kw_only=True):
    """A trial saved a checkpoint at a reported iteration.

    Attributes:
        validates: Whether this also requests its validation.
        kwargs: The report's keyword arguments for the validation.
        timeout_s: The report's time limit for the validation, in seconds, if any; 0: no limit.
        files: Of a checkpoint that another program wrote, the files by which it is recognized: by
            relative name, the size in bytes and when it was written, in seconds since the epoch.
    """

    validates: bool = False
    kwargs: Mapping[str, Any] = {}
    timeout_s: _Seconds | None = None
    files: Mapping[str, Any] = {}


class TrialEnded(TrialEvent, frozen=True, kw_only=True):
    """A trial ended; ``removed``: not because of its own result."""

    removed: bool = False


class Waited(TrialEvent, frozen=True, kw_only=True):
    """A trial has waited for a score for the last ``seconds``."""

    seconds: _Seconds


class TrialFailed(TrialEvent, frozen=True, kw_only=True):
    """A trial failed; Tune may restart it."""


class TrialRetried(TrialEvent, frozen=True, kw_only=True):
    """A trial restarts after a failure."""


class TrialErrored(TrialEvent, frozen=True, kw_only=True):
    """A trial failed for good."""


class Exploited(TrialEvent, frozen=True, kw_only=True):
    """A trial is overwritten with a checkpoint, its own or another trial's.

    Attributes:
        generation: The trial's new generation: 1 after the first exploit.
        reached: The trial's last reported iteration.
        donor_id: The trial that saved the checkpoint; the same one for a replayed schedule.
        donor_generation: The donor's generation at that time.
        iteration: The training iteration of the checkpoint, from which the trial continues.
        checkpoint: The checkpoint's path.
        score: The validation score for which the donor was chosen.
        old_config: The trial's previous hyperparameters.
        donor_config: The hyperparameters that the checkpoint was trained with.
        config: The trial's new hyperparameters.
    """

    generation: _Count
    reached: _Count
    donor_id: str
    donor_generation: _Count
    iteration: _Count
    checkpoint: str
    score: Any = None
    old_config: Mapping[Any, Any] = {}
    donor_config: Mapping[Any, Any] = {}
    config: Mapping[Any, Any] = {}


# The life of a validation ----------------------------------------------------------------------


class ValidationRequested(CheckpointEvent, frozen=True, kw_only=True):
    """A checkpoint will be validated that was saved earlier.

    Its trial has ended with it, it has failed and is validated again after a restore, or it is not
    a running sweep that validates it.
    """


class AttemptEvent(ValidationEvent, frozen=True, kw_only=True):
    """An event of an attempt.

    Attributes:
        attempt: Its number, counted from 1.
        after_s: Seconds since it was handed to Ray.
    """

    attempt: _Count
    after_s: _Seconds = 0.0


class AttemptStarted(AttemptEvent, frozen=True, kw_only=True):
    """An attempt was handed to Ray a while ago and has not begun, or has failed before it did."""


class AttemptBegan(AttemptEvent, frozen=True, kw_only=True):
    """An attempt has its resources and runs."""


class ValidationEnded(ValidationEvent, frozen=True, kw_only=True):
    """A validation ended for good.

    Attributes:
        status: How it ended, a :class:`~tunekit.core.validation.Status`.
        metrics: What the validation function returned; empty unless validated.
        reason: Why it was not validated, in one line.
        error: The traceback, if there is one.
        attempts: The number of attempts that were started.
        waited_s: Seconds from the request to the start of the last attempt (or to the end, if
            none was started).
        ran_s: Seconds that the last attempt ran.
    """

    status: Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(Status)})$")]
    metrics: Mapping[Any, Any] = {}
    reason: str | None = None
    error: str | None = None
    attempts: _Count = 0
    waited_s: _Seconds = 0.0
    ran_s: _Seconds = 0.0

    @property
    def validated(self) -> bool:
        """Return whether there is a score."""
        return self.status == Status.VALIDATED.value


# What the scheduler decides --------------------------------------------------------------------


class Processed(CheckpointEvent, frozen=True, kw_only=True):
    """Tune has processed a report of a trial, with its score if it has one.

    Tune has its checkpoint now, if there is one.

    Attributes:
        cloneable: Whether the scheduler may clone the checkpoint later.
        ranked: Whether the scheduler and the searcher got it.
        decision: What the trial does then.
        finished: Whether a trial that was stopped had finished, rather than being stopped early.
    """

    cloneable: bool = False
    ranked: bool = False
    decision: str = "CONTINUE"
    finished: bool = False


class TrialResumed(TrialEvent, frozen=True, kw_only=True):
    """The scheduler resumes a paused trial."""


class StopRequested(TrialEvent, frozen=True, kw_only=True):
    """A user stopped a trial by hand."""


# The sweep -------------------------------------------------------------------------------------


class SessionCutShort(JournalEvent, frozen=True, kw_only=True):
    """The time budget is used up, or a trial has failed and ``FailureConfig(fail_fast=True)``.

    ``trial_ids`` were stopped, and have not ended.
    """

    trial_ids: Sequence[str]


class SnapshotTaken(JournalEvent, frozen=True, kw_only=True):
    """The sweep's state as of this line is in a ``file`` of the experiment's folder."""

    file: str


class SessionClosed(JournalEvent, frozen=True, kw_only=True):
    """The session ended; ``finished``: whether the sweep ended too."""

    finished: bool


_OfTrial = TrialAdded | Reported | TrialEnded | Waited | TrialFailed | TrialRetried | TrialErrored
_OfDecision = CheckpointSaved | Exploited | Processed | TrialResumed | StopRequested
_OfValidation = ValidationRequested | AttemptStarted | AttemptBegan | ValidationEnded
Event = _OfTrial | _OfDecision | _OfValidation | SessionCutShort | SnapshotTaken | SessionClosed


class Home:
    """Translate paths below an experiment's folder, which may have moved since they were recorded.

    Args:
        folder: The experiment's folder; None leaves paths as they are.

    Example:
        >>> home = Home("/results/digits")
        >>> home.record("/results/digits/trial_a/checkpoint_000001")
        './trial_a/checkpoint_000001'
        >>> Home("bucket/digits").path("./trial_a/checkpoint_000001")
        'bucket/digits/trial_a/checkpoint_000001'
        >>> home.record("/elsewhere/checkpoint")
        '/elsewhere/checkpoint'
    """

    def __init__(self, folder: str | None = None):
        self.folder = folder

    def record(self, path: str) -> str:
        """Return a path as it is recorded."""
        if self.folder is not None and path.startswith(f"{self.folder}/"):
            return f"./{path[len(self.folder) + 1 :]}"
        return path

    def path(self, recorded: str) -> str:
        """Return the current path of a recorded one."""
        if self.folder is not None and recorded.startswith("./"):
            return f"{self.folder}/{recorded[2:]}"
        return recorded

    def recorded(self, event: Event) -> Event:
        """Return an event as recorded: with the recorded path of its checkpoint."""
        return _relocated(event, self.record)

    def located(self, event: Event) -> Event:
        """Return a recorded event with the current path of its checkpoint."""
        return _relocated(event, self.path)


def _relocated(event: Event, where: Callable[[str], str]) -> Event:
    if path := getattr(event, "checkpoint", ""):
        return msgspec.structs.replace(event, checkpoint=where(path))
    return event


def parse_event(line: Any) -> Event:
    """Return the event in a line of a journal, as decoded from JSON.

    Raises:
        msgspec.ValidationError: If there is no such event, or a field is missing or wrong.

    Example:
        >>> parse_event({"n": 7, "event": "waited", "time": 9, "trial_id": "a", "seconds": 1.5})
        Waited(n=7, time=9.0, trial_id='a', seconds=1.5)
        >>> parse_event({"n": 8, "event": "vanished"})
        Traceback (most recent call last):
        msgspec.ValidationError: Invalid value 'vanished' - at `$.event`
    """
    event: Event = msgspec.convert(line, Event)
    return event


def readable(event: Event) -> tuple[Event, dict[str, Any]]:
    """Return an event with fields that :func:`parse_event` accepts, and what it replaces.

    Numbers of any kind become Python's and are brought into the range of their field, and texts can
    be encoded. Values of users (reports, scores, hyperparameters) are encoded elsewhere.

    Returns:
        The event, and the replaced values by the names of their fields.

    Example:
        >>> readable(Waited(trial_id="a", seconds=10**20))
        (Waited(n=0, time=0.0, trial_id='a', seconds=8589934592.0), {'seconds': 1000...})
        >>> readable(Waited(trial_id="a", seconds=1.5))[1]
        {}
        >>> report = readable(Reported(trial_id="a", report={}, decision_point=math.nan))[0]
        >>> print(report.decision_point)
        None
    """
    bare = msgspec.structs.replace(event, **_free_fields(type(event)))
    with suppress(Exception):  # whatever a value of another type raises
        if _DECODER.decode(msgspec.json.encode(bare)) == bare:
            return event, {}
    own: dict[str, Any] = {}
    for name, kind in _typed_fields(type(event)):
        value = getattr(event, name)
        fitted = _fitted(value, kind)
        if fitted is not value:
            own[name] = fitted
    replaced = {name: getattr(event, name) for name in own if getattr(event, name) != own[name]}
    return (msgspec.structs.replace(event, **own) if own else event), replaced


_DECODER = msgspec.json.Decoder(Event)
# Fields with values of users.
_FREE = (inspect.AnyType, inspect.DictType)


@cache
def _typed_fields(kind: type[JournalEvent]) -> list[tuple[str, Any]]:
    fields = inspect.type_info(kind).fields  # type: ignore[attr-defined]
    return [(one.name, one.type) for one in fields if not isinstance(one.type, _FREE)]


@cache
def _free_fields(kind: type[JournalEvent]) -> dict[str, Any]:
    fields = inspect.type_info(kind).fields  # type: ignore[attr-defined]
    free = (one for one in fields if isinstance(one.type, _FREE))
    return {one.name: {} if isinstance(one.type, inspect.DictType) else None for one in free}


def _fitted(value: Any, kind: Any) -> Any:
    """Return the value nearest to a given one that a field may have; itself if it may."""
    match kind:
        case inspect.UnionType(types=types):
            other = next(one for one in types if not isinstance(one, inspect.NoneType))
            number = isinstance(other, inspect.FloatType)
            missing = value is None or (number and finite_number(value) is None)
            return None if missing else _fitted(value, other)
        case inspect.IntType() | inspect.FloatType():
            plain = int if isinstance(kind, inspect.IntType) else float
            low = -math.inf if kind.ge is None else kind.ge
            high = math.inf if kind.le is None else kind.le
            nearest = min(max(finite_number(value) or 0.0, low), high)
            return value if type(value) is plain and value == nearest else plain(nearest)
        case inspect.BoolType():
            return value if type(value) is bool else bool(value)
        case inspect.StrType():
            text = encodable(value) if isinstance(value, str) else format_value(value)
            return value if type(value) is str and text == value else text
        case _:
            parts = [_fitted(part, kind.item_type) for part in value]
            return value if all(map(operator.is_, parts, value)) else parts


# What a journal says about its sweep -------------------------------------------------------------


def has_begun(events: Iterable[Event]) -> bool:
    """Return whether the sweep's trials have done anything, so that it must not start over.

    Args:
        events: The events of the sweep's journal.

    Example:
        >>> added = TrialAdded(trial_id="a")
        >>> has_begun([added, SnapshotTaken(file="state/000000002-snapshot.zip")])
        False
        >>> has_begun([added, Reported(trial_id="a", report={})])
        True
    """
    nothing = (StopRequested, TrialAdded, SnapshotTaken, SessionClosed)
    return any(not isinstance(event, nothing) for event in events)
