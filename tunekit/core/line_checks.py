"""Rules for a journal's lines beyond their types, so that readers can rely on them.

A journal written by tunekit satisfies them. One that was edited by hand, or written by other
software, may not; it is rejected when it is read, and nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from tunekit.core.constraints import Constraint
from tunekit.core.events import (
    MOST,
    CheckpointSaved,
    Event,
    OfValidation,
    Reported,
    ValidationEnded,
    ValidationKey,
    ValidationRequested,
)
from tunekit.core.history import GENERATION, ITERATION
from tunekit.core.validation import Status
from tunekit.core.values import NESTED, is_too_deep

_STATUSES = frozenset(status.value for status in Status)

_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
_Time = Annotated[float, msgspec.Meta(ge=-(2.0**33), le=2.0**33)]
_Amounts = Mapping[str, float]


class _Named(TypedDict):
    type: str
    settings: Mapping[str, Any]


class _Described(_Named, total=False):
    rungs: list[int] | None


class _Cluster(TypedDict):
    nodes: int
    resources: _Amounts


_Every = Annotated[int, msgspec.Meta(ge=1, le=MOST)] | str


class _Validation(TypedDict, total=False):
    fn: str
    when: _Every
    on_pending: str
    constraints: list[str]
    resources: _Amounts


class _Kind(TypedDict):
    kind: str


class _Parameter(_Kind, total=False):
    low: float
    high: float
    log: bool
    choices: list[Any]


class _Begin(TypedDict):
    n: Annotated[int, msgspec.Meta(ge=1, le=MOST)]
    begins: bool
    after: _Count
    follows: str


class _Head(_Begin, total=False):
    time: _Time
    tunekit: str
    ray: str
    python: str
    packages: Mapping[str, Any]
    machine: str
    cluster: _Cluster | None
    judged: list[str]
    mode: Literal["min", "max"] | None
    objectives: Mapping[str, Literal["min", "max"] | None]
    validation: _Validation
    trainable: str | None
    scheduler: _Described
    search_alg: _Described
    space: Mapping[str, _Parameter]
    sweep: _Time | None
    name: str
    function: str
    replaces: bool


def check_head(head: Mapping[str, Any]) -> None:
    """Check the first line of a session.

    Raises:
        ValueError: If it breaks a rule; the message names the rule.

    Example:
        >>> check_head({"n": 1, "begins": True, "after": 0, "follows": ""})
        >>> check_head({"n": 1, "begins": True, "after": 0, "follows": "", "time": "noon"})
        Traceback (most recent call last):
        msgspec.ValidationError: Expected `float`, got `str` - at `$.time`
        >>> named = {"n": 1, "begins": True, "after": 0, "follows": ""}
        >>> check_head({**named, "validation": {"when": 0}})
        Traceback (most recent call last):
        msgspec.ValidationError: Expected `int` >= 1 - at `$.validation.when`
    """
    msgspec.convert(head, _Head)
    if is_too_deep(head):
        raise ValueError(f"it is nested more than {NESTED} levels deep")
    json.dumps(head, ensure_ascii=False).encode()  # raises if it has lone surrogates
    for text in head.get("validation", {}).get("constraints", ()):
        Constraint(text)  # raises if it is malformed
    if head["after"] >= head["n"]:
        raise ValueError("it follows a line that comes later")


def check(event: Event) -> None:
    """Check an event that was read from a journal.

    Args:
        event: The event.

    Raises:
        ValueError: If it breaks a rule; the message names the rule.

    Example:
        >>> check(Reported(n=2, trial_id="a", report={"training_iteration": 3}))
        >>> check(Reported(n=2, trial_id="a", report={}))
        Traceback (most recent call last):
        ValueError: its report has no training_iteration that is a whole number
    """
    match event:
        case Reported():
            _check_report(event.report)
        case CheckpointSaved(id=""):
            pass
        case CheckpointSaved() | ValidationRequested():
            place = (event.trial_id, event.generation, event.iteration, event.run)
            if _key_of(event.id)[:4] != place:
                raise ValueError(f"its id {event.id!r} is not that of its checkpoint")
        case OfValidation():
            _key_of(event.id)
            if isinstance(event, ValidationEnded) and event.status not in _STATUSES:
                raise ValueError(f"its status {event.status!r} is unknown")


def _check_report(report: Mapping[Any, Any]) -> None:
    for name, default in ((ITERATION, None), (GENERATION, 0)):
        found = report.get(name, default)
        if type(found) is not int or not 0 <= found <= MOST:
            raise ValueError(f"its report has no {name} that is a whole number")
    if "config" in report:
        raise ValueError("its report has hyperparameters")


@lru_cache(maxsize=4096)  # a validation has some six lines, close to one another
def _key_of(name: str) -> ValidationKey:
    try:
        key = ValidationKey.parse(name)
    except ValueError:
        raise ValueError(f"its id {name[:80]!r} is not the name of a validation") from None
    if str(key) != name or not all(0 <= part <= MOST for part in key[1:4]):
        raise ValueError(f"its id {name[:80]!r} is not the name of a validation")
    return key
