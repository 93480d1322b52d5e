"""Evaluates checkpoints outside of a sweep's driver, with a journal of its own.

That is ``validations/<session>/000001.jsonl`` in the experiment's folder. The sweep's own journal
is left alone: a driver that runs is not disturbed, a restored sweep knows nothing of it, and so the
sweep may have ended or not.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import ray

from tunekit._ray.interruption import ended_by_sigterm
from tunekit._ray.tuner import is_remote
from tunekit.clock import SystemClock
from tunekit.config import ValidationConfig
from tunekit.core.calls import name_of, takes_resume
from tunekit.core.estimates import Estimate
from tunekit.core.events import Event, SessionClosed, ValidationEnded, ValidationRequested
from tunekit.core.failures import HOPELESS, gone
from tunekit.core.later_validations import LaterSession
from tunekit.core.problems import Problems
from tunekit.core.progress import News, counted, starved
from tunekit.core.validation import Outcome, Request, Status
from tunekit.errors import ValidationFailedError
from tunekit.evaluation.evaluation import Evaluation
from tunekit.journal.lines import Journal, record_of
from tunekit.journal.places import Places
from tunekit.journal.session import about, import_path
from tunekit.journal.storage import Folder
from tunekit.validating.cache import ValidationCache
from tunekit.validating.capacity import say_what_is_too_much
from tunekit.validating.executor import Executor, executor_of
from tunekit.validating.validator import Around
from tunekit.validating.watch import watched

__all__ = ["SERIES", "Plan", "Session", "read_sessions"]

logger = logging.getLogger(__name__)

#: The folder, in the experiment's, of the sessions' journals.
SERIES = "validations"

_SESSION = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}")
# For how long to wait for something to happen, and how often to say how far it is.
_WAIT_S, _FIRST_NEWS_S, _NEWS_INTERVAL_S = 0.2, 5.0, 30.0
_HOW_TO_GO_ON = "    the same call again: what has been validated is not validated again"


def read_sessions(folder: Folder) -> list[LaterSession]:
    """Return the sessions of later validations beside a sweep.

    Raises:
        tunekit.errors.JournalError: If a session's journal is damaged, or of another version.
        OSError: If the storage fails.

    Example:
        >>> import pathlib, tempfile
        >>> from tunekit.journal.storage import LocalFolder
        >>> read_sessions(LocalFolder(pathlib.Path(tempfile.mkdtemp())))
        []
    """
    found = []
    for name in folder.names(SERIES):
        if _SESSION.fullmatch(name):
            record = record_of(folder, series=f"{SERIES}/{name}")
            if record.sessions:
                found.append(LaterSession(name, record.sessions[0], record.events))
    return found


class Plan(Around):
    """What a session evaluates: here, each of some checkpoints once.

    Args:
        requests: The requests to validate them.
    """

    def __init__(self, requests: Sequence[Request]):
        self._requests = requests

    def wanted(self) -> Sequence[Request]:
        """Return what has to end; what was returned before may be among it."""
        return self._requests

    def take(self, outcome: Outcome) -> Outcome:
        """Take how a validation ended; return what to record."""
        return outcome


class Session:
    """One session of evaluations, with a journal of its own.

    Args:
        folder: The folder that the journal is kept in.
        places: Where that is.
        config: How checkpoints are validated.
        plan: Which ones, and when.
        call: The call that errors name.
        about: What the first line of its journal says besides.
        is_there: Returns whether a checkpoint is still at a path.
        estimates: What unfinished validations have yielded before, by their names.
        cache: Where scores are looked up, and kept.
    """

    def __init__(
        self,
        folder: Folder,
        places: Places,
        config: ValidationConfig,
        plan: Plan,
        *,
        call: str,
        about: Mapping[str, Any],
        is_there: Callable[[str], bool],
        estimates: Mapping[str, Mapping[str, Estimate]],
        cache: ValidationCache | None = None,
    ):
        self._folder, self._places, self._config = folder, places, config
        self._plan, self._call, self._about = plan, call, about
        self._is_there, self._cache = is_there, cache
        self._estimates = estimates if takes_resume(config.fn) else {}
        self._clock = SystemClock()
        self._journal: Journal
        self._evaluation: Evaluation | None = None
        self._requests: dict[str, Request] = {}
        self._counts: Counter[str] = Counter()
        self._news = News(_FIRST_NEWS_S, _NEWS_INTERVAL_S)
        self._starved = False

    def run(self, known: Iterable[tuple[Request, Mapping[str, Any]]]) -> None:
        """Validate; whatever ends it, what has been validated is recorded.

        Args:
            known: The metrics of what has been validated in other sessions.

        Raises:
            tunekit.errors.ConfigError: If a validation asks for more than the cluster has.
            tunekit.errors.ValidationFailedError: If the first validations have failed alike.
        """
        with ExitStack() as around:
            executor = None
            if self._plan.wanted():
                executor = around.enter_context(self._executing())
            check_ray: Callable[[], None] = lambda: None  # noqa: E731
            if executor is not None and not is_remote():
                check_ray = around.enter_context(watched(lambda: _HOW_TO_GO_ON))
            around.enter_context(ended_by_sigterm())
            around.enter_context(self._recorded())
            for request, metrics in known:
                self._record(request)
                self._conclude(Outcome(request, Status.VALIDATED, metrics))
            if executor is not None:
                self._run(executor, check_ray)

    @contextmanager
    def _executing(self) -> Iterator[Executor]:
        """Join Ray, or start it here, and provide an executor."""
        executor = executor_of(self._config, self._cache)
        try:
            _start_ray(executor, self._call)
            yield executor
        finally:
            executor.close()
            if self._cache is not None:
                self._cache.close()

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        """Write a journal, which says at its end how the session ended."""
        now = self._clock.time()
        stamp = datetime.fromtimestamp(now, timezone.utc).strftime("%Y%m%d-%H%M%S")
        function = import_path(self._config.fn) or name_of(self._config.fn)
        head = {**about(now, config=self._config), "function": function, **self._about}
        series = f"{SERIES}/{stamp}-{secrets.token_hex(4)}"
        journal = self._journal = Journal(self._folder, series=series, about=head)
        finished = False
        try:
            yield
            finished = True
        finally:
            journal.append(SessionClosed(time=self._clock.time(), finished=finished))
            if not journal.close():
                logger.error("The end of the session could not be written; run it again.")

    def _run(self, executor: Executor, check_ray: Callable[[], None]) -> None:
        evaluation = self._evaluation = Evaluation(
            self._config,
            executor,
            self._clock,
            gives_up=self._config.on_failure != "ignore" and not self._counts,
            emit=self._write,
            conclude=self._conclude,
            around=self._plan,
            cache=self._cache,
        )
        evaluation.check_ray = check_ray
        try:
            while self._ask(evaluation) or not evaluation.idle:
                evaluation.poll(at_once=True)
                while self._ask(evaluation):
                    evaluation.poll(at_once=True)
                self._tell(evaluation)
                if not evaluation.idle:
                    _wait(evaluation.awaited())
        finally:
            evaluation.drop_all("was interrupted")
            evaluation.conclude()
            self._tell(evaluation)
        if evaluation.broken_by is not None:
            raise self._gave_up(evaluation.broken_by)

    def _ask(self, evaluation: Evaluation) -> bool:
        """Ask for what the plan wants now; return whether that is anything new."""
        if evaluation.broken_by is not None:
            return False
        new = [one for one in self._plan.wanted() if one.id not in self._requests]
        for request in new:
            self._record(request)
        for request in new:
            evaluation.submit(replace(request, known=self._estimates.get(request.id, {})))
        return bool(new)

    def _record(self, request: Request) -> None:
        self._requests[request.id] = request
        where = self._places.record(request.path)
        self._write(ValidationRequested.of(request, self._clock.time(), checkpoint=where))

    def _write(self, event: Event) -> None:
        self._journal.append(event)

    def _conclude(self, outcome: Outcome) -> None:
        """Record how a validation ended, and act on it."""
        outcome = self._plan.take(outcome)
        failed = outcome.status in (Status.FAILED, Status.TIMED_OUT)
        if failed and not self._is_there(outcome.request.path):
            outcome = replace(outcome, reason=gone(outcome.request.path), error=None)
        self._write(ValidationEnded.of(outcome, self._clock.time()))
        self._counts[outcome.status.value] += 1
        if self._evaluation is not None and failed:
            self._evaluation.failed(outcome)
        elif self._evaluation is not None and outcome.validated:
            self._evaluation.succeeded()

    def _gave_up(self, outcome: Outcome) -> ValidationFailedError:
        trace = f"\n{outcome.error}" if outcome.error else f" {outcome.reason}"
        return ValidationFailedError(
            f"The first {HOPELESS} validations have failed alike, and "
            f"none has succeeded. Correct {name_of(self._config.fn)}, and validate again. To go "
            "on however many fail, pass ValidationConfig(on_failure='ignore'). The failure:"
            f"{trace}"
        )

    def _tell(self, evaluation: Evaluation) -> None:
        if self._news.due(self._clock.monotonic()):
            counts = {**self._counts, **evaluation.counts()}
            logger.info("%s, of %d.", counted(counts), len(self._requests))
        short = starved(evaluation.starved_s())
        if short is not None and not self._starved:
            logger.warning("%s.", short)
        self._starved = short is not None


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
