"""Evaluate checkpoints outside of a sweep's driver, with a separate journal.

The journal is ``validations/<session>/000001.jsonl`` in the experiment's folder, unless a folder is
followed (:mod:`tunekit.evaluation.following`). The sweep's own journal is not written to, so the
sweep may be running, or be restored later.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from typing import Any

import ray
from msgspec import structs

from tunekit._ray.interruption import ended_by_sigterm
from tunekit.clock import SystemClock
from tunekit.config import ValidationConfig
from tunekit.core.events import (
    Event,
    SessionClosed,
    ValidationEnded,
    ValidationRequested,
    relocated,
)
from tunekit.core.failures import HOPELESS
from tunekit.core.problems import Problems
from tunekit.core.progress import News, counted, starved
from tunekit.core.signatures import name_of
from tunekit.core.validation import Outcome, Status
from tunekit.errors import ValidationFailedError
from tunekit.evaluation.evaluation import Evaluation, Source
from tunekit.journal.home import Home
from tunekit.journal.journal import LATER, Journal
from tunekit.journal.session import about, import_path
from tunekit.journal.storage import Folder
from tunekit.validating.executor import Executor
from tunekit.validating.ray_executor import executor_of
from tunekit.validating.too_large import say_what_is_too_much
from tunekit.validating.watch import watched

logger = logging.getLogger(__name__)

# How long to wait for an event, and how often to log the progress.
_WAIT_S, _FIRST_NEWS_S, _NEWS_INTERVAL_S = 0.2, 5.0, 30.0
_HOW_TO_CONTINUE = "    the same call again: finished validations are not repeated"


class Session:
    """Run one session of evaluations, with its own journal.

    Args:
        folder: The folder that contains the journal.
        home: Its location.
        config: How checkpoints are validated.
        series: The journal's folder there; None: a new one below ``validations/``.
        before: The events of former sessions that this one continues.
    """

    def __init__(
        self,
        folder: Folder,
        home: Home,
        config: ValidationConfig,
        *,
        series: str | None = None,
        before: Sequence[Event] = (),
    ):
        self._folder, self._home, self._config = folder, home, config
        self._clock = SystemClock()
        self._series, self._begins = series, not before
        self._journal: Journal
        self._source: Source
        self._requested = 0
        self._ended = Counter(one.status for one in before if isinstance(one, ValidationEnded))
        self._news = News(_FIRST_NEWS_S, _NEWS_INTERVAL_S)
        self._starved = False

    def run(
        self,
        source: Source,
        *,
        call: str,
        about: Mapping[str, Any],
    ) -> None:
        """Validate the checkpoints; scores are recorded even if the session ends early.

        Args:
            source: The source of the checkpoints.
            call: The call that errors name.
            about: Additional items for the first line of the journal.

        Raises:
            tunekit.errors.ConfigError: If a validation requests more than the cluster has.
            tunekit.errors.ValidationFailedError: If the first validations have failed alike.
        """
        with ExitStack() as around:
            executor, self._source = None, source
            if not source.over() or source.wanted():
                executor = around.enter_context(self._executing(call))
            check_ray: Callable[[], None] = lambda: None  # noqa: E731
            if executor is not None:
                check_ray = around.enter_context(watched(lambda: _HOW_TO_CONTINUE))
            around.enter_context(ended_by_sigterm())
            around.enter_context(self._recorded(about))
            if executor is not None:
                self._run(source, executor, check_ray)

    @contextmanager
    def _executing(self, call: str) -> Iterator[Executor]:
        """Connect to Ray, or start it, and provide an executor."""
        executor = executor_of(self._config)
        try:
            _start_ray(executor, call)
            yield executor
        finally:
            executor.close()

    @contextmanager
    def _recorded(self, own: Mapping[str, Any]) -> Iterator[None]:
        """Write a journal; its last line records how the session ended."""
        now = self._clock.time()
        stamp = datetime.fromtimestamp(now, timezone.utc).strftime("%Y%m%d-%H%M%S")
        head = {**about(now, config=self._config), "function": called(self._config), **own}
        series = self._series or f"{LATER}/{stamp}-{secrets.token_hex(4)}"
        journal = self._journal = Journal(
            self._folder, series=series, begins=self._begins, about=head
        )
        finished = False
        try:
            yield
            finished = True
        finally:
            journal.append(SessionClosed(time=self._clock.time(), finished=finished))
            if not journal.close():
                logger.error("The end of the session could not be written; run it again.")

    def _run(self, source: Source, executor: Executor, check_ray: Callable[[], None]) -> None:
        evaluation = Evaluation(
            self._config,
            executor,
            self._clock,
            source=source,
            emit=self._emit,
            gives_up=self._config.on_failure != "ignore"
            and not self._ended[Status.VALIDATED.value],
        )
        evaluation.check_ray = check_ray
        try:
            while evaluation.ask() or not (evaluation.idle and _is_over(evaluation, source)):
                evaluation.poll(at_once=True)
                while evaluation.ask():
                    evaluation.poll(at_once=True)
                self._tell(evaluation)
                if not (evaluation.idle and _is_over(evaluation, source)):
                    _wait(evaluation.awaited())
        finally:
            if not source.continues:
                evaluation.drop_all("was interrupted")
            evaluation.close()
            self._tell(evaluation)
        if evaluation.broken_by is not None:
            raise self._gave_up(evaluation.broken_by)

    def _emit(self, event: Event) -> None:
        """Record an event."""
        event = structs.replace(event, time=event.time or self._clock.time())
        self._journal.append(relocated(event, self._home.record))
        self._source.recorded(event)
        if isinstance(event, ValidationRequested):
            self._requested += 1
        elif isinstance(event, ValidationEnded):
            self._ended[event.status] += 1

    def _gave_up(self, outcome: Outcome) -> ValidationFailedError:
        trace = f"\n{outcome.error}" if outcome.error else f" {outcome.reason}"
        return ValidationFailedError(
            f"The first {HOPELESS} validations have failed alike, and "
            f"none has succeeded. Correct {name_of(self._config.fn)}, and validate again. To "
            "continue despite failures, pass ValidationConfig(on_failure='ignore'). The failure:"
            f"{trace}"
        )

    def _tell(self, evaluation: Evaluation) -> None:
        if not evaluation.idle and self._news.due(self._clock.monotonic()):
            counts = {**self._ended, **evaluation.counts()}
            logger.info("%s, of %d.", counted(counts), self._requested)
        short = starved(evaluation.starved_s())
        if short is not None and not self._starved:
            logger.warning("%s.", short)
        self._starved = short is not None


def called(config: ValidationConfig) -> str:
    """Return the name by which the record knows a validation function."""
    return import_path(config.fn) or name_of(config.fn)


def _start_ray(executor: Executor, call: str) -> None:
    """Connect to Ray, or start it; raise if a validation requests more than the cluster has."""
    if not ray.is_initialized():
        ray.init()
    problems = Problems(call)
    advice = "Ask for less with ray_remote_kwargs."
    say_what_is_too_much("validation", executor.need, ray.cluster_resources(), advice, problems)
    problems.raise_any()


def _is_over(evaluation: Evaluation, source: Source) -> bool:
    return evaluation.broken_by is not None or source.over()


def _wait(awaited: Collection[Any]) -> None:
    """Wait for an event, at most for a moment."""
    if awaited:
        ray.wait(list(awaited), num_returns=1, timeout=_WAIT_S)
    else:
        SystemClock().sleep(_WAIT_S)
