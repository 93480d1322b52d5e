"""Validates checkpoints of a sweep with another function, when the sweep has ended or beside it.

A session of such validations has a journal of its own, ``validations/<session>/000001.jsonl`` in
the experiment's folder. The sweep's own journal is left alone: a driver that runs is not disturbed,
a restored sweep knows nothing of it, and an older tunekit does not see it.
"""

from __future__ import annotations

import logging
import posixpath
import re
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.fs
import ray
from ray import tune

from tunekit._ray.interruption import ended_by_sigterm
from tunekit._ray.storage import exists, paths_in
from tunekit._ray.tuner import is_remote
from tunekit.clock import Clock, SystemClock
from tunekit.config import ValidationConfig
from tunekit.core.calls import name_of, signature_of, still_lacks
from tunekit.core.events import Event, SessionClosed, ValidationEnded, ValidationRequested
from tunekit.core.failures import HOPELESS, Failures, gone, place_of
from tunekit.core.later_validations import (
    ALL,
    Choice,
    LaterSession,
    SavedCheckpoint,
    choose,
    in_force,
    name_problem,
    rows_of,
    saved_in,
)
from tunekit.core.names import meant
from tunekit.core.problems import Problems, shown
from tunekit.core.progress import News, counted, starved
from tunekit.core.validation import Outcome, Request, Status
from tunekit.errors import ValidationFailedError
from tunekit.journal.confined import is_inside, link_out_of
from tunekit.journal.lines import Journal, record_of
from tunekit.journal.places import Places
from tunekit.journal.session import about, import_path
from tunekit.journal.storage import Folder, folder_at
from tunekit.validating.cache import FunctionMark, ValidationCache, digest_of
from tunekit.validating.capacity import say_what_is_too_much
from tunekit.validating.executor import Executor, executor_of
from tunekit.validating.fingerprint import fingerprint
from tunekit.validating.validator import Around, Validator
from tunekit.validating.watch import watched

__all__ = [
    "SERIES",
    "LaterRun",
    "Swept",
    "chosen_checkpoints",
    "executing",
    "guarded",
    "in_short",
    "read_sessions",
    "request_of",
    "validate_later",
]

logger = logging.getLogger(__name__)

#: The folder, in the experiment's, of the sessions' journals.
SERIES = "validations"

_SESSION = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}")
_CALL = "Sweep.validate"
# What of the sweep's journal says which checkpoints there are.
_UNNEEDED = ("reported", "started", "began", "ended", "delivered", "decided", "snapshot")
# For how long to wait for something to happen, and how often to say how far it is.
_WAIT_S, _NEWS_INTERVAL_S = 0.2, 30.0
# So many checkpoints are read at once to look them up in the cache.
_READERS = 4
_MOST_NAMED = 5
_INTERRUPTED = "was interrupted"
_GIVEN_UP = "was given up: the first ones had failed alike"


def read_sessions(folder: Folder) -> list[LaterSession]:
    """Return the sessions of later validations beside a sweep.

    Raises:
        tunekit.errors.JournalError: If a session's journal is damaged, or of another version.
        OSError: If the storage fails.

    Example:
        >>> import tempfile
        >>> from tunekit.journal.storage import LocalFolder
        >>> read_sessions(LocalFolder(Path(tempfile.mkdtemp())))
        []
    """
    found = []
    for name in folder.names(SERIES):
        if _SESSION.fullmatch(name):
            record = record_of(folder, series=f"{SERIES}/{name}")
            if record.sessions:
                found.append(LaterSession(name, record.sessions[0], record.events))
    return found


@dataclass(frozen=True)
class Swept:
    """What has to be known of a sweep to validate its checkpoints.

    Attributes:
        filesystem: The storage that it is in.
        path: The experiment's folder there.
        began: When it began, in seconds since the epoch.
        ranked: The trials, the best first, and the (generation, iteration) of each one's scored
            checkpoints, the best first.
        names: The flat names of all that it has reported and validated.
        run_of: ``run_of(trial_id, generation, iteration)`` returns how many times a trial has run
            an iteration.
        config_of: ``config_of(trial_id, generation)`` returns the hyperparameters of a trial.
    """

    filesystem: pyarrow.fs.FileSystem
    path: str
    began: float | None
    ranked: Mapping[str, Sequence[tuple[int, int]]]
    names: Collection[str]
    run_of: Callable[[str, int, int], int]
    config_of: Callable[[str, int], Mapping[str, Any]]


def validate_later(
    swept: Swept,
    config: ValidationConfig,
    which: int | str | Collection[str],
    *,
    name: str | None = None,
    cache: str | Path | None = None,
    replace: bool = False,
    progress: Callable[[Mapping[str, int]], None] | None = None,
) -> None:
    """Validate checkpoints of a sweep; see :meth:`tunekit.Sweep.validate`."""
    problems = Problems(_CALL)
    folder = folder_at(swept.filesystem, swept.path)
    called = _name(name, config, swept, problems)
    kwargs = config.task_config.fn_kwargs or {}
    lacks = still_lacks(signature_of(config.fn), kwargs)
    if lacks:
        problems.add(
            f"{name_of(config.fn)} has no value for {', '.join(map(repr, lacks))}. Pass it in "
            "ValidationConfig(task_config=ValidationTaskConfig(fn_kwargs={...})), or give it a "
            "default: there is no report to bring it."
        )
    own = fingerprint(config.fn, sorted(kwargs.items()))
    former = _former(read_sessions(folder), swept.began, called, own, problems, replace=replace)
    mark = FunctionMark(config.fn).of(kwargs)
    where = config.cache if cache is None else cache
    scores = None if where is None else _opened(where, mark, problems)
    choice = chosen_checkpoints(swept, which, folder, problems)
    problems.raise_any()
    if choice.gone:
        logger.warning(
            "Left out, as they are not in the sweep's folder any more (num_to_keep): %s.",
            in_short(choice.gone),
        )
    wanted = [request_of(swept, config, one) for one in choice.kept]
    known = sum(request.id in former.scores for request in wanted)
    if known:
        logger.info("Validated before: %d of %d checkpoints.", known, len(wanted))
    left = [request for request in wanted if request.id not in former.shown]
    hits = {
        request.id: former.scores[request.id] for request in left if request.id in former.scores
    }
    keys: dict[str, str] = {}
    with ExitStack() as around:
        if scores is not None:
            around.callback(scores.close)
            others = [request for request in left if request.id not in hits]
            keys = _keys(scores, others, mark or "", swept)
            found = {key: score for key in keys if (score := scores.get(keys[key])) is not None}
            hits.update(found)
            logger.info("In the cache: %d of %d checkpoints.", len(found), len(others))
        if not left:
            return
        executor = None
        if len(hits) < len(left):
            executor = around.enter_context(executing(config, _CALL))

        def keep(outcome: Outcome) -> None:
            key = keys.get(outcome.request.id)
            if scores is not None and key is not None:
                scores.keep(key, outcome, name_of(config.fn))

        clock = SystemClock()
        run = LaterRun(
            folder,
            Places(swept.path),
            config,
            clock,
            executor,
            about={
                **about(clock.time(), config=config),
                "sweep": swept.began,
                "name": called,
                "function": import_path(config.fn) or name_of(config.fn),
                "fingerprint": own,
            },
            is_there=lambda path: exists(swept.filesystem, path),
            keep=keep,
            progress=progress,
        )
        around.enter_context(guarded(run, watches=executor is not None))
        run.run(left, hits)


@contextmanager
def executing(config: ValidationConfig, call: str) -> Iterator[Executor]:
    """Join Ray, or start it here, and provide an executor.

    Args:
        config: How checkpoints are validated.
        call: The call that errors name.

    Raises:
        tunekit.errors.ConfigError: If a validation asks for more than there is.
    """
    executor = executor_of(config)
    try:
        _start_ray(executor, call)
        yield executor
    finally:
        executor.close()


@contextmanager
def guarded(run: LaterRun, *, watches: bool) -> Iterator[None]:
    """Let SIGTERM end a session as Ctrl-C does, and notice if Ray itself is gone.

    Args:
        run: The session.
        watches: Whether it runs anything on Ray.
    """
    with ExitStack() as around:
        if watches and not is_remote():
            run.check_ray = around.enter_context(watched(lambda: _HOW_TO_GO_ON))
        around.enter_context(ended_by_sigterm())
        yield


def _name(name: str | None, config: ValidationConfig, swept: Swept, problems: Problems) -> str:
    """Return what the names of the metrics begin with."""
    if name is None:
        own = name_of(config.fn).rsplit(".", 1)[-1]
        if not own.isidentifier():
            problems.add("fn has no name to show its metrics under. Pass name='robust'.")
        elif wrong := name_problem(own, swept.names):
            problems.add(f"name={own!r} (the function's own) {wrong}")
        return own
    if problems.instance("name", name, str, "Pass 'robust', for example."):
        wrong = name_problem(name, swept.names)
        if wrong is not None:
            problems.add(f"name={name!r} {wrong}")
    return name


@dataclass(frozen=True)
class _Former:
    """What was validated in former sessions, with the same function and arguments.

    Attributes:
        shown: The ids of what is shown under the name already.
        scores: The metrics, by id, under whatever name.
    """

    shown: set[str]
    scores: dict[str, Mapping[str, Any]]


def _former(
    sessions: Sequence[LaterSession],
    began: float | None,
    name: str,
    own: str | None,
    problems: Problems,
    *,
    replace: bool,
) -> _Former:
    """Return what need not be validated again; a name that is another function's is a problem."""
    same = [one for one in sessions if one.head.get("sweep") == began and one.fingerprint == own]
    scores = {row["id"]: row["metrics"] for row in rows_of(same) if row["status"] == "validated"}
    shown = [one for one in in_force(sessions, began) if one.name == name]
    if shown and shown[-1].fingerprint == own:
        return _Former({r["id"] for r in rows_of(shown) if r["status"] == "validated"}, scores)
    if any(one.scored for one in shown) and not replace:
        other = shown[-1]
        when = datetime.fromtimestamp(other.began, timezone.utc)
        problems.add(
            f"name={name!r} is that of scores of {other.function}, of {when:%Y-%m-%d %H:%M} UTC, "
            "which was another function, or had other code or arguments then: they cannot be "
            "compared with what is to come. Pass another name, or replace=True (--replace) to show "
            "them no more."
        )
    return _Former(set(), scores)


_HOW_TO_GO_ON = "    the same call again: what has been validated is not validated again"


def chosen_checkpoints(
    swept: Swept,
    which: int | str | Collection[str],
    folder: Folder,
    problems: Problems,
    called: str = "checkpoints",
) -> Choice:
    """Return the checkpoints to validate, and those that are not there any more.

    Args:
        swept: The sweep.
        which: As of :meth:`tunekit.Sweep.validate`.
        folder: The experiment's folder.
        problems: What is wrong goes there.
        called: What the argument is called in the call.
    """
    nothing = Choice([], [])
    if isinstance(which, bool) or not isinstance(which, (int, str, Collection)):
        problems.add(f"checkpoints={shown(which)} is {_FORMS}")
        return nothing
    if isinstance(which, int) and which < 1:
        problems.add(f"checkpoints={which} must be at least 1. Pass 1 or more, or {ALL!r}.")
        return nothing
    if isinstance(which, str) and which != ALL:
        problems.add(f"checkpoints={which!r} is {_FORMS}")
        return nothing
    if not isinstance(which, (int, str)):
        unknown = [one for one in which if one not in swept.ranked]
        for one in unknown:
            near = meant(str(one), swept.ranked)
            problems.add(
                f"checkpoints has {one!r}, which is no trial of the sweep. "
                f"{f'Did you mean {near!r}? ' if near else ''}Its trials are {_some(swept.ranked)}."
            )
        if not which:
            problems.add(f"checkpoints={which!r} names no trial. Name one, or pass {ALL!r}.")
        if unknown or not which:
            return nothing
    elif isinstance(which, int) and not any(swept.ranked.values()):
        problems.add(
            f"{called}={which} asks for the best, and no trial has a score of the metric to "
            f"rank by. Name the metric and the mode of one that trials have, or pass {ALL!r}."
        )
        return nothing
    places = Places(swept.path)
    there: dict[str, set[str]] = {}

    def is_kept(one: SavedCheckpoint) -> bool:
        path = places.path(one.path)
        above = posixpath.dirname(path)
        if not is_inside(swept.filesystem, swept.path, path):
            return False
        if above not in there:
            there[above] = set(paths_in(swept.filesystem, above))
        return path in there[above]

    saved = {
        place: one
        for place, one in saved_in(record_of(folder, without=_UNNEEDED).events).items()
        if one.key.run >= swept.run_of(*place)
    }
    choice = choose(which, swept.ranked, saved, is_kept)
    for kept in choice.kept:
        link = link_out_of(swept.filesystem, swept.path, places.path(kept.path))
        if link is not None:
            problems.add(
                f"{link!r} in a checkpoint is a link that leads out of the experiment's folder: "
                "nothing there is read. Put a copy in its place, or choose other checkpoints."
            )
    if not choice.kept:
        problems.add(
            f"none of the checkpoints is in the sweep's folder: {in_short(choice.gone)}. A sweep "
            "keeps what CheckpointConfig(num_to_keep=...) says."
            if choice.gone
            else "no checkpoint was saved that could be validated. Pass other trials."
        )
    return choice


_FORMS = (
    f"neither a number, {ALL!r} nor a list of trials. Pass 10 for the best checkpoint of each of "
    f"the ten best trials, the ids of trials for all of their checkpoints, or {ALL!r}."
)


def in_short(checkpoints: Collection[SavedCheckpoint]) -> str:
    """Return how many checkpoints there are, and the first ones."""
    keys = [one.key for one in checkpoints]
    count = f"{len(keys)} checkpoint{'s' * (len(keys) != 1)}"
    return f"{count} ({_some(place_of(k.trial_id, k.iteration, k.generation) for k in keys)})"


def _some(names: Iterable[str]) -> str:
    known = list(names)
    more = len(known) - _MOST_NAMED
    return ", ".join(known[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def request_of(swept: Swept, config: ValidationConfig, one: SavedCheckpoint) -> Request:
    """Return the request to validate a checkpoint of a sweep."""
    key, path = one.key, Places(swept.path).path(one.path)
    return Request(
        trial_id=key.trial_id,
        iteration=key.iteration,
        run=key.run,
        generation=key.generation,
        checkpoint=tune.Checkpoint(path, swept.filesystem),
        path=path,
        kwargs=config.task_config.fn_kwargs or {},
        timeout_s=config.task_config.timeout_s,
        config=swept.config_of(key.trial_id, key.generation),
    )


def _opened(cache: str | Path, mark: str | None, problems: Problems) -> ValidationCache | None:
    """Return the cache; None if it cannot be used."""
    if mark is None:
        problems.add(
            f"cache={str(cache)!r} cannot be used: the function, or one of its arguments, cannot "
            "be pickled, so that nothing tells it from others. Leave cache out."
        )
        return None
    try:
        return ValidationCache.at(cache)
    except (OSError, ValueError) as error:
        problems.add(
            f"cache={str(cache)!r} cannot be used: {error}. Pass a local folder, or a URI of a "
            "storage that pyarrow knows, such as s3://bucket/scores."
        )
        return None


def _keys(
    scores: ValidationCache, requests: Sequence[Request], mark: str, swept: Swept
) -> dict[str, str]:
    """Return the cache's names of the requests' scores; none for those that cannot be read."""

    def key(request: Request) -> str | None:
        try:
            digest = digest_of(swept.filesystem, request.path)
        except OSError:  # the validation will tell
            return None
        return scores.key(digest, mark, request.config)

    with ThreadPoolExecutor(_READERS) as threads:
        found = list(threads.map(key, requests))
    return {request.id: key for request, key in zip(requests, found, strict=True) if key}


def _start_ray(executor: Executor, call: str) -> None:
    """Join Ray, or start it here; say if a validation asks for more than there is."""
    if not ray.is_initialized():
        ray.init()
    problems = Problems(call)
    advice = "Ask for less with ray_remote_kwargs."
    say_what_is_too_much("validation", executor.need, ray.cluster_resources(), advice, problems)
    problems.raise_any()


def _wait(awaited: Collection[Any]) -> None:
    """Wait until something has happened, or for a moment."""
    if awaited:
        ray.wait(list(awaited), num_returns=1, timeout=_WAIT_S)
    else:
        SystemClock().sleep(_WAIT_S)


class LaterRun(Around):
    """One session of later validations, with a journal of its own.

    Args:
        folder: The experiment's folder.
        places: Where that is.
        config: How checkpoints are validated.
        clock: What the time is read from.
        executor: Where validations run; None if none has to.
        about: What the first line of its journal says.
        is_there: Returns whether a checkpoint is still at a path.
        keep: Called with each outcome that is a score.
        progress: Called now and then with how many validations are how far.
        wait: Waits until one of the given references of Ray is ready, or for a moment.
    """

    #: Raises if Ray itself is gone, so that what fails because of that is not recorded as failed.
    check_ray: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        folder: Folder,
        places: Places,
        config: ValidationConfig,
        clock: Clock,
        executor: Executor | None,
        *,
        about: Mapping[str, Any],
        is_there: Callable[[str], bool] = lambda path: True,
        keep: Callable[[Outcome], None] = lambda outcome: None,
        progress: Callable[[Mapping[str, int]], None] | None = None,
        wait: Callable[[Collection[Any]], None] = _wait,
    ):
        self._folder, self._places, self._config = folder, places, config
        self._clock, self._executor, self._about = clock, executor, about
        self._is_there, self._keep = is_there, keep
        self._progress, self._wait = progress, wait
        self._journal: Journal | None = None
        self._validator: Validator
        self._requests: dict[str, Request] = {}
        self._counts: Counter[str] = Counter()
        self._failures = Failures(gives_up=config.on_failure != "ignore")
        self._hopeless: Outcome | None = None
        self._news = News(_NEWS_INTERVAL_S, _NEWS_INTERVAL_S)
        self._starved = False

    def run(self, requests: Sequence[Request], known: Mapping[str, Mapping[str, Any]]) -> None:
        """Validate; whatever ends it, what has been validated is recorded.

        Args:
            requests: What is to be validated.
            known: The metrics, by id, of those that have been validated elsewhere.

        Raises:
            tunekit.errors.ValidationFailedError: If the first validations have failed alike.
        """
        now = self._clock.time()
        stamp = datetime.fromtimestamp(now, timezone.utc).strftime("%Y%m%d-%H%M%S")
        series = f"{SERIES}/{stamp}-{secrets.token_hex(4)}"
        journal = self._journal = Journal(self._folder, series=series, about=self._about)
        finished = False
        try:
            for request in requests:
                where = self._places.record(request.path)
                self._requests[request.id] = request
                self._write(ValidationRequested.of(request, self._clock.time(), checkpoint=where))
            if known:
                self._failures.succeeded()
            for key, metrics in known.items():
                self._end(Outcome(self._requests[key], Status.VALIDATED, metrics))
            self._run([one for one in requests if one.id not in known])
            finished = True
        finally:
            journal.append(SessionClosed(time=self._clock.time(), finished=finished))
            if not journal.close():
                logger.error("The end of the session could not be written; run it again.")

    def _run(self, requests: Sequence[Request]) -> None:
        if not requests or self._executor is None:
            return
        validator = self._validator = Validator(
            self._config,
            self._executor,
            self._clock,
            emit=self._emit,
            conclude=self._conclude,
            around=self,
        )
        validator.check_ray = self.check_ray
        try:
            self._submit(requests)
            while not validator.idle and self._hopeless is None:
                validator.poll(at_once=True)
                while self._go_on():
                    validator.poll(at_once=True)
                self._tell(validator)
                if not validator.idle:
                    self._wait(validator.awaited())
        finally:
            why = _INTERRUPTED if self._hopeless is None else _GIVEN_UP
            for trial_id in {request.trial_id for request in validator.pending()}:
                validator.drop(trial_id, why)
            for more in self._failures.rest():
                logger.warning("Validations have failed: %s.", more)
            self._tell(validator)
        if self._hopeless is not None:
            raise self._gave_up(self._hopeless)

    def _submit(self, requests: Sequence[Request]) -> None:
        """Begin with the requests that have no score."""
        for request in requests:
            self._validator.submit(request)

    def _go_on(self) -> bool:
        """Ask for more, if there is any; return whether something was asked for."""
        return False

    def _emit(self, event: Event) -> None:
        """Take what the validator says; it is acted on afterwards."""
        self._write(event)

    def _write(self, event: Event) -> None:
        """Write down an event."""
        if isinstance(event, ValidationEnded) and event.status == Status.FAILED.value:
            request = self._requests[event.id]
            if not self._is_there(request.path):
                event = msgspec.structs.replace(event, reason=gone(request.path), error=None)
        assert self._journal is not None
        self._journal.append(event)

    def _end(self, outcome: Outcome) -> None:
        self._write(ValidationEnded.of(outcome, self._clock.time()))
        self._counts[outcome.status.value] += 1

    def _conclude(self, outcome: Outcome) -> None:
        """Record an outcome, and act on it."""
        self._end(outcome)
        if outcome.validated:
            self._keep(outcome)
            self._failures.succeeded()
        elif outcome.status is not Status.SKIPPED:
            self._tell_of_failure(outcome)

    def _tell_of_failure(self, outcome: Outcome) -> None:
        request, reason = outcome.request, f"failed: it {outcome.reason or 'failed'}"
        trace = f"\n{outcome.error}" if outcome.error else ""
        if not self._is_there(request.path):
            reason, trace = gone(request.path), ""
        place = place_of(request.trial_id, request.iteration, request.generation)
        verdict = self._failures.failed(place, reason)
        if verdict.hopeless:
            self._hopeless = outcome
        elif verdict.first:
            logger.warning("The validation of %s %s.%s", place, reason, trace)
        if verdict.more is not None:
            logger.warning("Validations have failed: %s.", verdict.more)

    def _gave_up(self, outcome: Outcome) -> ValidationFailedError:
        trace = f"\n{outcome.error}" if outcome.error else f" {outcome.reason}"
        return ValidationFailedError(
            f"The first {HOPELESS} validations have failed alike, and "
            f"none has succeeded. Correct {name_of(self._config.fn)}, and validate again. To go "
            "on however many fail, pass ValidationConfig(on_failure='ignore'). The failure:"
            f"{trace}"
        )

    def _tell(self, validator: Validator) -> None:
        counts = {**self._counts, **validator.counts(), "total": len(self._requests)}
        if self._progress is not None:
            self._progress(counts)
        elif self._news.due(self._clock.monotonic()):
            logger.info("%s, of %d.", counted(counts), len(self._requests))
        short = starved(validator.starved_s())
        if short is not None and not self._starved:
            logger.warning("%s.", short)
        self._starved = short is not None
