"""Confirms the winner of a sweep: runs what the rule asks for, and records it."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from ray import train

from tunekit._ray.storage import TUNER_FILE, exists
from tunekit._ray.tuner import callbacks_in
from tunekit.clock import SystemClock
from tunekit.config import ValidationConfig
from tunekit.confirm import Confirm
from tunekit.core.calls import (
    is_generator,
    name_of,
    signature_of,
    still_lacks,
    takes_resume,
    takes_seed,
)
from tunekit.core.confidence import Interval
from tunekit.core.confirmation import Confirmation, confirmed_by
from tunekit.core.estimates import Estimate
from tunekit.core.events import (
    AttemptStarted,
    Event,
    ValidationEnded,
    ValidationEstimated,
)
from tunekit.core.later_validations import LaterSession, in_force, name_problem, rows_of
from tunekit.core.problems import Problems
from tunekit.core.sequential import Sequential, resumable
from tunekit.core.validation import Outcome, Request, Status
from tunekit.errors import ConfigError
from tunekit.evaluation.later import (
    LaterRun,
    Swept,
    chosen_checkpoints,
    executing,
    guarded,
    in_short,
    read_sessions,
    request_of,
)
from tunekit.journal.lines import record_of
from tunekit.journal.places import Places
from tunekit.journal.session import about, import_path
from tunekit.journal.storage import Folder, folder_at
from tunekit.validating.fingerprint import essence, fingerprint

__all__ = ["ConfirmationRun", "confirm_winner"]

logger = logging.getLogger(__name__)

_CALL = "Sweep.confirm"
# What of the sweep's journal does not tell how far its validations came.
_UNNEEDED = ("reported", "saved", "started", "began", "delivered", "decided", "snapshot")
_NOT_ITS_TURN = "it is another one's turn"


def confirm_winner(
    swept: Swept,
    settings: Confirm,
    *,
    metric: str,
    mode: str,
    by: str,
    validated: int,
    functions: Collection[str],
    own: ValidationConfig | None = None,
    progress: Any = None,
) -> None:
    """Evaluate the best checkpoints of a sweep once more; see :meth:`tunekit.Sweep.confirm`.

    Args:
        swept: The sweep, its trials ranked as candidates are to be taken.
        settings: What the user has said.
        metric: What to compare them by, as a flat name.
        mode: ``"min"`` or ``"max"``.
        by: ``"trial"`` or ``"configuration"``: what the ranked trials stand for.
        validated: How many checkpoints the sweep itself has validated.
        functions: The names of the sweep's own validation functions.
        own: The sweep's own settings, if they are known; otherwise they are read, if needed.
        progress: As of :meth:`tunekit.Sweep.validate`.
    """
    problems = Problems(_CALL)
    folder = folder_at(swept.filesystem, swept.path)
    wrong = name_problem(settings.name, swept.names)
    if wrong is not None:
        problems.add(f"name={settings.name!r} {wrong}")
    config = _config(settings, own, folder, problems)
    choice = chosen_checkpoints(swept, settings.top, folder, problems, called="top")
    problems.raise_any()
    if choice.gone:
        logger.warning(
            "No candidates, as they are not in the sweep's folder any more (num_to_keep): %s.",
            in_short(choice.gone),
        )
    same_examples = settings.fn is None or name_of(config.fn) in functions
    kwargs = config.task_config.fn_kwargs or {}
    by_rounds = not is_generator(config.fn) and takes_seed(config.fn, kwargs)
    requests = [request_of(swept, config, one) for one in choice.kept]
    told: dict[str, Any] = {
        "metric": metric,
        "mode": mode,
        "by": by,
        "confidence": settings.confidence,
        "candidates": [request.id for request in requests],
        "chosen_from": max(validated, len(requests)) if same_examples else None,
        "max_rounds": settings.max_rounds if by_rounds else None,
    }
    confirmation = Confirmation(
        told["candidates"],
        metric=metric,
        mode=mode,
        confidence=settings.confidence,
        max_rounds=told["max_rounds"],
        resumes=takes_resume(config.fn),
        chosen_from=told["chosen_from"],
    )
    own_code = essence(config.fn) or config.fn
    mark = fingerprint(own_code, sorted(kwargs.items()), json.dumps(told, sort_keys=True))
    sessions = read_sessions(folder)
    former = _former(sessions, swept.began, settings.name, mark, problems)
    problems.raise_any()
    if _is_done(in_force(sessions, swept.began), settings.name, mark, told):
        logger.info("The winner was confirmed before, under the name %r.", settings.name)
        return
    if settings.fn is None and takes_resume(config.fn):
        _recall(confirmation, record_of(folder, without=_UNNEEDED).events, told["candidates"])
    hits: dict[str, Mapping[str, Any]] = {}
    for session in former:
        hits |= _recall(confirmation, session.events, told["candidates"])
    for key, metrics in hits.items():
        confirmation.exhausted(key, metrics)
    with ExitStack() as around:
        executor = None
        if confirmation.next() is not None:
            executor = around.enter_context(executing(config, _CALL))
        clock = SystemClock()
        run = ConfirmationRun(
            confirmation,
            metric,
            folder,
            Places(swept.path),
            _sequential(config, confirmation.each),
            clock,
            executor,
            about={
                **about(clock.time(), config=config),
                "sweep": swept.began,
                "name": settings.name,
                "function": import_path(config.fn) or name_of(config.fn),
                "fingerprint": mark,
                "confirm": told,
            },
            is_there=lambda path: exists(swept.filesystem, path),
            progress=progress,
        )
        around.enter_context(guarded(run, watches=executor is not None))
        run.run(requests, {})


def _config(
    settings: Confirm, own: ValidationConfig | None, folder: Folder, problems: Problems
) -> ValidationConfig:
    """Return how the candidates are evaluated."""
    fn = settings.fn
    if isinstance(fn, train.ValidationConfig):
        config = ValidationConfig.of(fn)
    elif fn is not None:
        config = ValidationConfig(fn)
    else:
        config = own or _own(folder, problems)
    kwargs = config.task_config.fn_kwargs or {}
    given = {*kwargs, "resume", "seed"}
    lacks = still_lacks(signature_of(config.fn), given)
    if lacks:
        problems.add(
            f"{name_of(config.fn)} has no value for {', '.join(map(repr, lacks))}. Pass it in "
            "fn=ValidationConfig(fn, task_config=ValidationTaskConfig(fn_kwargs={...})), or give "
            "it a default: there is no report to bring it."
        )
    return config


def _own(folder: Folder, problems: Problems) -> ValidationConfig:
    """Return how the sweep itself validates, as Tune has written it down."""
    why = f"there is no {TUNER_FILE}"
    if TUNER_FILE in folder.names(""):
        try:
            callbacks = callbacks_in(folder.read(TUNER_FILE))
        except Exception as error:  # whatever unpickling its parts raises
            why = f"{TUNER_FILE} cannot be read: {type(error).__name__}: {error}"
        else:
            for callback in callbacks:
                found = getattr(callback, "config", None)
                if isinstance(found, ValidationConfig):
                    return found
            why = f"{TUNER_FILE} has none: it was started with a plain ray.tune.Tuner"
    problems.add(
        f"fn=None stands for the sweep's own validation function, and {why}. Pass the function."
    )
    problems.raise_any()
    raise AssertionError  # it was raised


def _sequential(config: ValidationConfig, each: float) -> ValidationConfig:
    """Return the settings with intervals of another confidence, and no limits of examples."""
    found = copy.copy(config)
    found.sequential = Sequential(confidence=each, min_examples=1, best_in_full=False)
    return found


def _former(
    sessions: Sequence[LaterSession],
    began: float | None,
    name: str,
    mark: str | None,
    problems: Problems,
) -> list[LaterSession]:
    """Return the sessions of this very confirmation; a name that is taken is a problem."""
    shown = [one for one in in_force(sessions, began) if one.name == name]
    if any(one.head.get("confirm") is None and one.scored for one in shown):
        problems.add(
            f"name={name!r} is that of scores of {shown[-1].function}, which Sweep.validate has "
            "made. Pass another name."
        )
    return [
        one
        for one in sessions
        if one.head.get("sweep") == began and one.name == name and one.fingerprint == mark
    ]


def _is_done(
    shown: Sequence[LaterSession], name: str, mark: str | None, told: Mapping[str, Any]
) -> bool:
    """Return whether this very confirmation has ended, with every candidate, and is shown."""
    own = [one for one in shown if one.name == name and one.fingerprint == mark]
    rows = rows_of(own)
    found = confirmed_by(name, "", told, rows)
    return found is not None and all(one.mean is not None for one in found.candidates)


def _recall(
    confirmation: Confirmation, events: Sequence[Event], candidates: Collection[str]
) -> dict[str, Mapping[str, Any]]:
    """Tell the rule what is recorded; return the scores of those that were evaluated in full."""
    estimates: dict[str, tuple[Mapping[str, Estimate], int]] = {}
    scores: dict[str, Mapping[str, Any]] = {}
    for event in events:
        if isinstance(event, ValidationEstimated) and event.id in candidates:
            estimates[event.id] = resumable(event.estimates), event.attempt
        elif isinstance(event, ValidationEnded) and event.status == Status.VALIDATED.value:
            scores[event.id] = event.metrics
    for key, (known, attempt) in estimates.items():
        if confirmation.resumes or confirmation.by_rounds:
            confirmation.recall(key, known, attempt)
    if confirmation.by_rounds:
        return {}
    return {
        key: metrics
        for key, metrics in scores.items()
        if key in candidates and confirmation.is_exact(metrics)
    }


class ConfirmationRun(LaterRun):
    """One session of a confirmation, with a journal of its own.

    What a validation ends with is a turn of its candidate, or a round. The journal gets what is
    known then as ``estimated``, and the candidate's score as ``ended`` when it needs no more.

    Args:
        confirmation: The rule.
        metric: The metric to compare by, as a flat name.
        *where: As of :class:`~tunekit.evaluation.later.LaterRun`.
        **options: Likewise.
    """

    def __init__(self, confirmation: Confirmation, metric: str, *where: Any, **options: Any):
        super().__init__(*where, **options)
        self._confirmation, self._metric = confirmation, metric
        # Those that were handed to the executor, and the one that waits to be.
        self._running: set[str] = set()
        self._next: str | None = None
        self._stopped: set[str] = set()
        self._outcomes: dict[str, Outcome] = {}
        self._dropping = False
        # Whether there have been fewer slots than candidates.
        self._crowded = False

    def _run(self, requests: Sequence[Request]) -> None:
        super()._run(requests)
        self._settle()  # also if nothing was left to evaluate

    def judged(self) -> Mapping[str, str | None]:
        """Return the metric that is confirmed."""
        return {self._metric: None}  # the rule takes finite numbers only

    def _submit(self, requests: Sequence[Request]) -> None:
        self._offer()

    def _go_on(self) -> bool:
        """See whether there was a slot for who waits for one; let the next one wait."""
        self._crowded = self._crowded or self._next is not None
        return self._offer()

    def _offer(self) -> bool:
        """Let the candidate wait for a slot whose turn it is; return whether it is another one."""
        if self._hopeless is not None:
            return False
        turn = self._confirmation.next(self._running)
        if turn is not None and turn.candidate == self._next:
            return False
        if self._next is not None:
            self._dropping = True
            self._validator.drop(self._requests[self._next].trial_id, _NOT_ITS_TURN)
            self._dropping, self._next = False, None
        if turn is None:
            return False
        request = self._requests[turn.candidate]
        if turn.seed is not None:
            request = replace(request, kwargs={**request.kwargs, "seed": turn.seed})
        self._next = turn.candidate
        self._validator.submit(replace(request, known=turn.known))
        return True

    def alike(self, request: Request, name: str, interval: Interval) -> bool:
        """Return whether the candidate is out, wherever in an interval its metric is."""
        if self._confirmation.by_rounds:
            return False
        enough = self._confirmation.evaluated(
            request.id, interval, self._running, crowded=self._crowded
        )
        if enough:
            self._stopped.add(request.id)
        return enough

    def _emit(self, event: Event) -> None:
        if isinstance(event, ValidationEstimated) and self._confirmation.by_rounds:
            return
        if isinstance(event, AttemptStarted):
            if event.id == self._next:
                self._next = None
            self._running.add(event.id)
            self._confirmation.started(event.id)
        self._write(event)

    def _conclude(self, outcome: Outcome) -> None:
        key = outcome.request.id
        if self._dropping:
            return
        if key == self._next:  # it could not even be called
            self._next = None
        self._running.discard(key)
        stopped = key in self._stopped
        self._stopped.discard(key)
        if outcome.validated:
            try:
                self._take(key, outcome, stopped=stopped)
            except ConfigError as error:
                reason = f"returned {' '.join(map(str, error.problems))}"
                outcome = replace(outcome, status=Status.FAILED, metrics={}, reason=reason)
        if outcome.validated:
            self._failures.succeeded()
        else:
            self._end(outcome)
            if outcome.status is Status.SKIPPED:
                return
            self._confirmation.failed(key)
            self._tell_of_failure(outcome)
        self._settle()
        self._offer()

    def _take(self, key: str, outcome: Outcome, *, stopped: bool) -> None:
        """Take what a turn has come to, and write it down."""
        known, confirmation = outcome.request.known, self._confirmation
        if stopped:
            confirmation.yielded(key, known, outcome.metrics)
        elif confirmation.by_rounds:
            confirmation.scored(key, outcome.metrics, known)
        else:
            confirmation.exhausted(key, outcome.metrics, known)
        self._outcomes[key] = outcome
        found = confirmation.known(key)
        if found:
            number = confirmation.rounds(key) or max(1, outcome.attempts)
            now = self._clock.time()
            self._write(ValidationEstimated.of(f"{key}#{number}", found, now))

    def _settle(self) -> None:
        """Write down the scores of the candidates that need no more."""
        for key, metrics in self._confirmation.settled(self._running):
            outcome = self._outcomes.get(key) or Outcome(self._requests[key], Status.VALIDATED)
            self._end(replace(outcome, metrics=metrics))
