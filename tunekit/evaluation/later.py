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
from tunekit.core.events import Event, relocated
from tunekit.core.failures import place_of
from tunekit.core.later_validations import (
    ALL,
    LaterSession,
    SavedCheckpoint,
    in_force,
    name_problem,
    rows_of,
    saved_in,
)
from tunekit.core.metric_names import meant
from tunekit.core.problems import Problems, shown
from tunekit.core.signatures import name_of, signature_of, still_lacks
from tunekit.core.timeline import Timeline
from tunekit.core.validation import Request
from tunekit.evaluation.evaluation import Source
from tunekit.evaluation.session import Session, called
from tunekit.file_checkpoint import checkpoint_at
from tunekit.journal.confined import is_inside, link_out_of
from tunekit.journal.home import Home
from tunekit.journal.journal import later_sessions, record_of
from tunekit.journal.storage import Folder, folder_at

logger = logging.getLogger(__name__)

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


def validate_later(
    swept: Swept,
    config: ValidationConfig,
    which: int | str | Collection[str],
    *,
    name: str | None = None,
    replace: bool = False,
) -> None:
    """Validate checkpoints of a sweep; see :meth:`tunekit.Sweep.validate`."""
    own = name_of(config.fn).rsplit(".", 1)[-1]
    call = _Call("Sweep.validate", swept, config, called=own if name is None else name)
    if name is None and not own.isidentifier():
        call.problems.add("fn has no name to show its metrics under. Pass name='robust'.")
    else:
        call.check_name("the function's own name, " if name is None else "")
    call.check_call()
    former = [] if replace else call.former()
    for other in former[-1:]:
        if other.function != called(config) and any(one.scored for one in former):
            call.problems.add(
                f"name={call.called!r} has scores of {other.function}, which cannot be compared "
                f"with those of {called(config)}. Pass another name, or replace=True (--replace) "
                "to hide them."
            )
    requests = call.requests(which)
    call.problems.raise_any()
    scored = {row["id"] for row in rows_of(former) if row["status"] == "validated"}
    left = [request for request in requests if request.id not in scored]
    if len(left) < len(requests):
        count = len(requests) - len(left)
        logger.info("Already validated: %d of %d checkpoints.", count, len(requests))
    if left:
        call.run(Source(left), replaces=replace)


class _Call:
    """A call's checks, checkpoints, prefix of the metrics' names, and existing scores.

    Args:
        call: The call that errors name.
        swept: The sweep.
        config: How checkpoints are validated.
        called: The prefix of the metrics' names.
    """

    def __init__(self, call: str, swept: Swept, config: ValidationConfig, *, called: str):
        self.swept, self.config, self.called = swept, config, called
        self.problems = Problems(call)
        self._call = call
        self._folder: Folder = folder_at(swept.filesystem, swept.path)
        self._home = Home(swept.path)
        found = record_of(self._folder).events
        self.events = [relocated(event, self._home.path) for event in found]
        self._sessions = later_sessions(self._folder)

    def check_name(self, whose: str = "") -> None:
        """Check the name, and add its problems."""
        name = self.called
        if self.problems.instance("name", name, str, "Pass 'robust', for example."):
            wrong = name_problem(name, self.swept.names)
            if wrong is not None:
                self.problems.add(f"{whose}name={name!r} {wrong}")

    def check_call(self) -> None:
        """Check that the function can be called, and add any problem."""
        kwargs = self.config.task_config.fn_kwargs or {}
        lacks = still_lacks(signature_of(self.config.fn), kwargs)
        if lacks:
            self.problems.add(
                f"{name_of(self.config.fn)} has no value for {', '.join(map(repr, lacks))}. Pass "
                "it in ValidationConfig(task_config=ValidationTaskConfig(fn_kwargs={...})), or "
                "give it a default: no report provides it."
            )

    def former(self) -> list[LaterSession]:
        """Return the sessions whose scores are shown under the name, oldest first."""
        shown = in_force(self._sessions, self.swept.began)
        return [one for one in shown if one.name == self.called]

    def requests(self, which: int | str | Collection[str]) -> list[Request]:
        """Return the requests to validate the checkpoints; add any problems.

        Args:
            which: As for :meth:`tunekit.Sweep.validate`.
        """
        wrong = list(_wrong(which, self.swept.ranked))
        for what in wrong:
            self.problems.add(f"checkpoints{what}")
        if wrong:
            return []
        swept = self.swept
        there: dict[str, set[str]] = {}

        def is_kept(one: SavedCheckpoint) -> bool:
            above = posixpath.dirname(one.path)
            if not is_inside(swept.filesystem, swept.path, one.path):
                return False
            if above not in there:
                there[above] = set(paths_in(swept.filesystem, above))
            return one.path in there[above]

        kept, gone = _chosen(which, swept, self.events, is_kept)
        for one in kept:
            link = link_out_of(swept.filesystem, swept.path, one.path)
            if link is not None:
                self.problems.add(
                    f"{link!r} in a checkpoint is a link that leads out of the experiment's "
                    "folder, so it is not read. Replace it with a copy, or choose other "
                    "checkpoints."
                )
        if not kept:
            self.problems.add(
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
        task = self.config.task_config
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

    def run(self, source: Source, *, replaces: bool) -> None:
        """Run a session.

        Args:
            source: The checkpoints.
            replaces: Whether it hides the earlier scores of the name.
        """
        head = {"sweep": self.swept.began, "name": self.called, "replaces": replaces}
        Session(self._folder, self._home, self.config).run(source, call=self._call, about=head)


# Which checkpoints ------------------------------------------------------------------------------


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
