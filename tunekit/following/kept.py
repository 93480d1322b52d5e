"""Validate checkpoints of a sweep with another function."""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.fs

from tunekit._ray.storage import paths_in
from tunekit.config import ValidationConfig
from tunekit.core.events import (
    CheckpointSaved,
    Event,
    ValidationEnded,
    ValidationKey,
    ValidationRequested,
    relocated,
)
from tunekit.core.failures import place_of
from tunekit.core.metric_names import meant
from tunekit.core.problems import Problems, shown
from tunekit.core.signatures import name_of, signature_of, still_lacks
from tunekit.core.timeline import Timeline
from tunekit.core.validation import Request
from tunekit.file_checkpoint import checkpoint_at
from tunekit.following.loop import Source, validate_all
from tunekit.following.record import Recorder, name_problem, series_of
from tunekit.journal.confined import is_inside, link_out_of
from tunekit.journal.home import Home
from tunekit.journal.journal import record_of
from tunekit.journal.storage import folder_at

logger = logging.getLogger(__name__)

#: Selects all checkpoints that are kept.
ALL = "all"

Place = tuple[str, int, int]  # trial, generation, iteration

_MOST_NAMED = 5
_FORMS = (
    f"neither a number, {ALL!r} nor a list of trials. Pass 10 for the best checkpoint of each of "
    f"the ten best trials, the ids of trials for all of their checkpoints, or {ALL!r}."
)


@dataclass(frozen=True)
class Swept:
    """A sweep as a source of checkpoints.

    Attributes:
        filesystem: The storage that it is in.
        path: The experiment's folder there.
        began: When it began, in seconds since the epoch.
        ranked: The trials, best first, and the (generation, iteration) of each one's scored
            checkpoints, best first.
        names: The flat names of all its reported and validated metrics.
        timeline: Its history.
    """

    filesystem: pyarrow.fs.FileSystem
    path: str
    began: float | None
    ranked: Mapping[str, Sequence[tuple[int, int]]]
    names: Collection[str]
    timeline: Timeline


def validate_kept(
    swept: Swept,
    config: ValidationConfig,
    which: int | str | Collection[str],
    *,
    name: str | None = None,
    replace: bool = False,
) -> None:
    """Validate checkpoints of a sweep; see :meth:`tunekit.Sweep.validate`."""
    call, own = "Sweep.validate", name_of(config.fn).rsplit(".", 1)[-1]
    problems, whose = Problems(call), "the function's own name, " if name is None else ""
    if name is None and not own.isidentifier():
        problems.add("fn has no name to show its metrics under. Pass name='robust'.")
    name = own if name is None else name
    if problems.instance("name", name, str, "Pass 'robust', for example."):
        wrong = name_problem(name, swept.names) if own.isidentifier() or not whose else None
        if wrong is not None:
            problems.add(f"{whose}name={name!r} {wrong}")
    lacks = still_lacks(signature_of(config.fn), config.task_config.fn_kwargs or {})
    if lacks:
        problems.add(
            f"{name_of(config.fn)} has no value for {', '.join(map(repr, lacks))}. Pass it in "
            "ValidationConfig(task_config=ValidationTaskConfig(fn_kwargs={...})), or give it a "
            "default: no report provides it."
        )
    requests = _requests(swept, config, which, problems)
    problems.raise_any()
    recorder = Recorder(
        swept.filesystem,
        swept.path,
        config,
        {"sweep": swept.began, "name": name},
        series=series_of(name),
        otherwise="Pass another name, or replace=True (--replace) to hide them.",
    )
    with recorder.held():
        before = recorder.continued(call, replace=replace)
        ended = {event.id for event in before if isinstance(event, ValidationEnded)}
        left = [request for request in requests if request.id not in ended]
        if len(left) < len(requests):
            done = len(requests) - len(left)
            logger.info("Already validated: %d of %d checkpoints.", done, len(requests))
        if left:
            validate_all(Source(left), recorder, config, before, call=call)


# Which checkpoints ------------------------------------------------------------------------------


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


def _requests(
    swept: Swept,
    config: ValidationConfig,
    which: int | str | Collection[str],
    problems: Problems,
) -> list[Request]:
    """Return the requests to validate the checkpoints; add any problems."""
    wrong = list(_wrong(which, swept.ranked))
    for what in wrong:
        problems.add(f"checkpoints{what}")
    if wrong:
        return []
    found = record_of(folder_at(swept.filesystem, swept.path)).events
    events = [relocated(event, Home(swept.path).path) for event in found]
    there: dict[str, set[str]] = {}

    def is_kept(one: SavedCheckpoint) -> bool:
        above = posixpath.dirname(one.path)
        if not is_inside(swept.filesystem, swept.path, one.path):
            return False
        if above not in there:
            there[above] = set(paths_in(swept.filesystem, above))
        return one.path in there[above]

    kept, gone = _chosen(which, swept, events, is_kept)
    for one in kept:
        link = link_out_of(swept.filesystem, swept.path, one.path)
        if link is not None:
            problems.add(
                f"{link!r} in a checkpoint is a link that leads out of the experiment's "
                "folder, so it is not read. Replace it with a copy, or choose other "
                "checkpoints."
            )
    if not kept:
        problems.add(
            f"none of the checkpoints is in the sweep's folder: {_in_short(gone)}. "
            "CheckpointConfig(num_to_keep=...) sets how many a sweep keeps."
            if gone
            else "no saved checkpoint can be validated. Pass other trials."
        )
    elif gone:
        logger.warning(
            "Skipped because they are no longer in the sweep's folder (num_to_keep): %s.",
            _in_short(gone),
        )
    task = config.task_config
    return [
        Request(
            trial_id=one.key.trial_id,
            iteration=one.key.iteration,
            run=one.key.run,
            generation=one.key.generation,
            checkpoint=checkpoint_at(one.path, swept.filesystem),
            path=one.path,
            kwargs=task.fn_kwargs or {},
            timeout_s=task.timeout_s,
            config=swept.timeline.config_of(one.key.trial_id, one.key.generation),
        )
        for one in kept
    ]


def _wrong(which: Any, ranked: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """Yield the problems with a choice of checkpoints."""
    if isinstance(which, int) and not isinstance(which, bool):
        if which < 1:
            yield f"={which} must be at least 1. Pass 1 or more, or {ALL!r}."
        elif not any(ranked.values()):
            yield (
                f"={which} means the best, but no trial has a score of the metric to rank by. "
                f"Name a metric that trials have and its mode, or pass {ALL!r}."
            )
    elif isinstance(which, str) or not isinstance(which, Collection):
        if which != ALL:
            yield f"={shown(which)} is {_FORMS}"
    elif not which:
        yield f"={which!r} names no trial. Name one, or pass {ALL!r}."
    else:
        for one in which:
            if one not in ranked:
                near = meant(str(one), ranked)
                hint = f"Did you mean {near!r}? " if near else ""
                yield (
                    f" has {one!r}, which is not a trial of the sweep. {hint}Its trials are "
                    f"{_some(ranked)}."
                )


def _chosen(
    which: int | str | Collection[str],
    swept: Swept,
    events: Iterable[Event],
    is_kept: Callable[[SavedCheckpoint], bool],
) -> tuple[list[SavedCheckpoint], list[SavedCheckpoint]]:
    """Return the checkpoints to validate, and those that no longer exist."""
    run_of = swept.timeline.run_of
    saved = {at: one for at, one in saved_in(events).items() if one.key.run >= run_of(*at)}
    kept: list[SavedCheckpoint] = []
    gone: list[SavedCheckpoint] = []
    if isinstance(which, int):
        for trial_id, places in swept.ranked.items():
            known = [(trial_id, *place) for place in places]
            found = [saved[place] for place in known if place in saved]
            for one in found if len(kept) < which else ():
                if is_kept(one):
                    kept.append(one)
                    break
                gone.append(one)
        return kept, gone
    order = {trial_id: number for number, trial_id in enumerate(swept.ranked)}
    wanted = [one for one in saved.values() if which == ALL or one.key.trial_id in which]
    for one in sorted(wanted, key=lambda w: (order.get(w.key.trial_id, len(order)), w.key)):
        (kept if is_kept(one) else gone).append(one)
    return kept, gone


def _in_short(checkpoints: Collection[SavedCheckpoint]) -> str:
    """Return the number of checkpoints, and the names of the first ones, as text."""
    keys = [one.key for one in checkpoints]
    count = f"{len(keys)} checkpoint{'s' * (len(keys) != 1)}"
    return f"{count} ({_some(place_of(k.trial_id, k.iteration, k.generation) for k in keys)})"


def _some(names: Iterable[str]) -> str:
    known = list(names)
    more = len(known) - _MOST_NAMED
    return ", ".join(known[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
