"""Later validations: those of a sweep's checkpoints by another function, after the sweep.

Each session of later validations has its own journal next to the sweep's. The first line names the
function and the prefix of its metrics' names; the other lines are events as in the sweep's own
journal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tunekit.core.events import CheckpointSaved, Event, ValidationKey, ValidationRequested
from tunekit.core.metric_names import FILLED_IN, listed
from tunekit.core.timeline import Timeline

#: Selects all checkpoints that are kept.
ALL = "all"

Place = tuple[str, int, int]  # trial, generation, iteration


# Checkpoints ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint that a trial has saved.

    Attributes:
        key: The key of its validation.
        path: Its path; it may be deleted.
    """

    key: ValidationKey
    path: str


def saved_in(events: Iterable[Event]) -> dict[Place, SavedCheckpoint]:
    """Return the checkpoints that a journal names, by place: the newest run of each.

    Example:
        >>> events = [
        ...     CheckpointSaved(trial_id="a", id="a:0:2:1", checkpoint="./a/c1"),
        ...     CheckpointSaved(trial_id="a", id="a:0:2:2", checkpoint="./a/c2"),
        ... ]
        >>> saved_in(events)["a", 0, 2].path
        './a/c2'
    """
    found: dict[Place, SavedCheckpoint] = {}
    for event in events:
        if isinstance(event, (CheckpointSaved, ValidationRequested)) and event.checkpoint:
            key = ValidationKey.parse(event.id)
            place = (key.trial_id, *key.place)
            if place not in found or found[place].key.run <= key.run:
                found[place] = SavedCheckpoint(key, event.checkpoint)
    return found


# Names ------------------------------------------------------------------------------------------


def name_problem(name: str, taken: Collection[str]) -> str | None:
    """Return why later validations cannot use a name; None if they can.

    Args:
        name: The prefix of their metrics' names, joined with ``/``.
        taken: The flat names of the metrics that the sweep itself has reported and validated.

    Example:
        >>> name_problem("robust", ["loss", "accuracy"])
        >>> name_problem("eval", ["loss", "eval/accuracy"])
        "is taken: the sweep itself has 'eval/accuracy'. Pass another name."
        >>> name_problem("config", [])
        'is a name reserved by Tune or tunekit. Pass another name.'
    """
    parts = name.split("/")
    if not all(part and part == part.strip() and part.isprintable() for part in parts):
        return (
            "cannot begin a metric's name: it must not be empty or start or end with a space. "
            "Pass a name such as 'robust'; the metrics are then 'robust/accuracy' and so on."
        )
    if parts[0] in FILLED_IN:
        return "is a name reserved by Tune or tunekit. Pass another name."
    same = [
        one
        for one in taken
        if one == name or one.startswith(f"{name}/") or name.startswith(f"{one}/")
    ]
    if same:
        return f"is taken: the sweep itself has {listed(same)}. Pass another name."
    return None


# Scores that count ------------------------------------------------------------------------------


@dataclass(frozen=True)
class LaterSession:
    """A session of later validations, from its journal.

    Attributes:
        id: The name of its folder.
        head: Its journal's first line.
        events: The other lines.
    """

    id: str
    head: Mapping[str, Any]
    events: Sequence[Event]

    @property
    def name(self) -> str:
        """Return the name under which its metrics are shown."""
        return str(self.head.get("name") or self.id)

    @property
    def function(self) -> str:
        """Return the name of its function."""
        return str(self.head.get("function") or "a function")

    @property
    def replaces(self) -> bool:
        """Return whether it hides the earlier scores of its name."""
        return bool(self.head.get("replaces"))

    @property
    def began(self) -> float:
        """Return the time of its start, in seconds since the epoch."""
        return float(self.head.get("time") or 0.0)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each validation, as in :attr:`tunekit.core.timeline.Timeline`."""
        return Timeline(self.events).validations

    @property
    def scored(self) -> bool:
        """Return whether any of its validations has ended with a score."""
        return any(row["status"] == "validated" for row in self.rows)


def began_of(sessions: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the start time of a sweep, which identifies it among others in the same folder.

    Args:
        sessions: The first line of each session, the first session first.

    Example:
        >>> began_of([{"time": 5.0}, {"time": 6.0}]), began_of([])
        (5.0, None)
    """
    return sessions[0].get("time") if sessions else None


def in_force(sessions: Iterable[LaterSession], sweep: float | None) -> list[LaterSession]:
    """Return the sessions whose scores are shown, in the order in which they started.

    All scores under one name are of one function, so that they can be compared. A session with
    ``replaces``, or of another function than those before, which have no score, hides these.

    Args:
        sessions: All sessions of later validations in the sweep's folder.
        sweep: The sweep's start time. Another sweep may have run in the same folder since.

    Example:
        >>> def session(id, time, **about):
        ...     head = {"name": "robust", "time": time, "sweep": 5.0, "function": "f", **about}
        ...     return LaterSession(id, head, [])
        >>> old, more = session("s1", 6.0), session("s2", 7.0)
        >>> new = session("s3", 8.0, replaces=True)
        >>> [one.id for one in in_force([more, old], 5.0)]
        ['s1', 's2']
        >>> [one.id for one in in_force([new, more, old], 5.0)], in_force([old], 99.0)
        (['s3'], [])
    """
    own = sorted(
        (one for one in sessions if one.head.get("sweep") == sweep),
        key=lambda one: (one.began, one.id),
    )
    shown: dict[str, list[LaterSession]] = {}
    for session in own:
        known = shown.setdefault(session.name, [])
        if session.replaces or any(one.function != session.function for one in known):
            known.clear()
        known.append(session)
    return [one for one in own if one in shown[one.name]]


def rows_of(sessions: Iterable[LaterSession]) -> list[dict[str, Any]]:
    """Return a row for each validation, under each name.

    Args:
        sessions: The sessions in force, oldest first. Outcomes of a later one replace those of an
            earlier one, except that a failure does not replace a score.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for session in sessions:
        own = {"name": session.name, "function": session.function}
        for row in session.rows:
            known = found.get((session.name, row["id"]))
            if known is None or known["status"] != "validated" or row["status"] == "validated":
                found[session.name, row["id"]] = {**row, **own}
    return list(found.values())
