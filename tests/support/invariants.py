"""Invariants of a sweep: of its journal, however often it was killed, and after each step."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ray.tune.experiment import Trial

from tunekit.core.events import (
    AttemptBegan,
    AttemptStarted,
    CheckpointSaved,
    Event,
    Exploited,
    Processed,
    Reported,
    TrialErrored,
    TrialFailed,
    TrialRetried,
    ValidationEnded,
    ValidationRequested,
)
from tunekit.core.queue import Next, Queue
from tunekit.core.report import Stage
from tunekit.core.validation import FAILED, ValidationKey
from tunekit.driver.callback import ValidationCallback
from tunekit.driver.run import Run


def place_of(request_id: str) -> str:
    """Return trial, generation and iteration of a request, without the run.

    Example:
        >>> place_of("trial_7:0:3:2")
        'trial_7:0:3'
    """
    key = ValidationKey.parse(request_id)
    return f"{key.trial_id}:{key.generation}:{key.iteration}"


@dataclass
class JournalSummary:
    """Summarize a journal: its scores, decisions and exploits.

    Attributes:
        scores: The validated metrics, by ``"trial:generation:iteration"``.
        decisions: The decisions, in order: (``"trial:generation:iteration"``, decision).
        exploits: The exploits, in order.
        running: How many validations were running when the driver was killed, and ran again.

    Example:
        >>> check_journal([])
        JournalSummary(scores={}, decisions=[], exploits=[], running=0)
    """

    scores: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    decisions: list[tuple[str, str]] = field(default_factory=list)
    exploits: list[Exploited] = field(default_factory=list)
    running: int = 0


def check_journal(events: Iterable[Event]) -> JournalSummary:
    """Check a journal line by line, and return its summary.

    - Each validation that was requested has ended, once, and did not run again afterwards, unless
      it had failed and was requested again.
    - A report is processed once, after its validation, and in the order of a trial's iterations.
    - A trial that failed reports nothing before it restarts.

    Args:
        events: The journal of a sweep that has ended.

    Raises:
        AssertionError: If one of these does not hold; names the offending line.

    Example:
        >>> saved = CheckpointSaved(n=1, trial_id="a", id="a:0:1:1", validates=True)
        >>> began = AttemptBegan(n=2, id="a:0:1:1", attempt=1)
        >>> check_journal([saved, began])
        Traceback (most recent call last):
        AssertionError: lost: a:0:1:1
        >>> scored = {"status": "validated", "metrics": {"x": 1}, "attempts": 1}
        >>> check_journal([saved, began, ValidationEnded(n=3, id="a:0:1:1", **scored)]).scores
        {'a:0:1': {'x': 1}}
    """
    summary = JournalSummary()
    requested: set[str] = set()
    ended: dict[str, ValidationEnded] = {}
    begun: Counter[tuple[str, int]] = Counter()
    newest: dict[str, tuple[int, int]] = {}
    down: set[str] = set()
    last = 0

    def rule(holds: bool, broken: str, event: Event) -> None:
        if not holds:
            raise AssertionError(f"{broken}: {event}")

    for event in events:
        rule(event.n > last, "out of order", event)
        last = event.n
        match event:
            case ValidationRequested() | CheckpointSaved(validates=True):
                earlier = ended.pop(event.id, None)
                failed = earlier is not None and earlier.status in FAILED
                rule(event.id not in requested or failed, "requested twice", event)
                requested.add(event.id)
            case AttemptStarted() | AttemptBegan():
                due = event.id in requested and event.id not in ended
                rule(due, "computed twice", event)
                begun[event.id, event.attempt] += isinstance(event, AttemptBegan)
            case ValidationEnded():
                rule(event.id in requested and event.id not in ended, "ended twice", event)
                ended[event.id] = event
                if event.status == "validated":
                    rule(begun[event.id, event.attempts] > 0, "has not begun", event)
                    summary.scores[place_of(event.id)] = event.metrics
            case Processed():
                known, trial = ended.get(event.id), event.trial_id
                rule(event.id not in requested or known is not None, "too early", event)
                if event.ranked:
                    rule(known is not None and known.status == "validated", "no score", event)
                    in_turn = event.place > newest.get(trial, (-1, -1))
                    rule(in_turn, "ranked twice or out of order", event)
                    newest[trial] = event.place
                    summary.decisions.append((place_of(event.id), event.decision))
            case Exploited():
                summary.exploits.append(event)
            case TrialFailed() | TrialErrored():
                down.add(event.trial_id)
            case TrialRetried():
                down.discard(event.trial_id)
            case Reported():
                rule(event.trial_id not in down, "has failed", event)
    lost = sorted(requested - ended.keys())
    if lost:
        raise AssertionError(f"lost: {', '.join(lost)}")
    summary.running = sum(count - 1 for count in begun.values() if count)
    return summary


# After each step --------------------------------------------------------------------------------


def check_sweeps() -> None:
    """From now on, check each sweep in this process and in those that it forks."""
    on_step_end = ValidationCallback.on_step_end

    @functools.wraps(on_step_end)
    def checked(self: ValidationCallback, *known: Any, **named: Any) -> None:
        on_step_end(self, *known, **named)
        wrong = [] if self.run is None else list(broken(self.run))
        assert not wrong, "; ".join(wrong)

    ValidationCallback.on_step_end = checked  # type: ignore[method-assign]


def broken(sweep: Run) -> Iterator[str]:
    """Yield a description of each broken invariant; it takes time that grows with the sweep."""
    tune, queues = sweep.controller, sweep.controller.queues
    under_way = {one.id for one in sweep.validator.pool.pending()}
    if queues.closing:
        return  # what waits stays pending
    for name in sweep.state.unfinished.keys() ^ under_way:
        yield f"{name} is requested but not validated, or the other way round"
    waiting_for = sweep.sweep.queues
    scoring = sum(one.stage is Stage.SCORING for queue in waiting_for.values() for one in queue)
    # Of reports that were processed before a restore.
    alone = sum(
        report not in sweep.sweep.queue_of(ValidationKey.parse(name).trial_id)
        for name, report in sweep.sweep._scoring.items()
    )
    if scoring + alone != len(under_way):
        yield f"{scoring} reports wait for {len(under_way)} validations"
    for trial_id, queue in waiting_for.items():
        trial = sweep.trials[trial_id]
        yield from (f"{trial}: {fault}" for fault in broken_in(queue))
        if trial.status != Trial.RUNNING:
            yield f"{trial} is {trial.status}, and has reports that Tune has not processed"
    for trial in tune._running_trials:
        queue = tune.sweep.queue_of(trial.trial_id)
        if trial not in tune._trial_to_actor and not queue:
            yield f"{trial} has neither an actor nor reports to process"
        idle = trial in tune._trial_to_actor and trial not in queues.waiting_in_place
        idle = idle and trial not in tune.processes.training and trial not in tune.processing.idle
        if idle and queue and queue.over and not trial.is_saving:
            yield f"{trial} has ended, and does not stand"
    waiting, situation = sweep.waiting, tune.facts.situation()
    now = waiting.circumstances(situation)
    for trial, then in queues.waiting_in_place.items():
        one = tune.facts.trial(trial)
        # While it is saved, time alone may turn a release into training; it is asked afterwards. So
        # it stands rightly if it would have when it began to, too: less time is left ever since.
        asked = [situation.now, *([waiting._since[trial.trial_id]] if one.queue.saves else [])]
        if then == now and Next.WAIT not in {waiting.what(one, now, at) for at in asked}:
            yield f"{trial} stands, and would not if it was asked again"


def broken_in(queue: Queue) -> Iterator[str]:
    """Yield a description of each broken invariant of one queue."""
    reports = [entry.iteration for entry in queue if entry.report and entry.iteration]
    if reports != sorted(set(reports)):
        yield f"its reports are not in order: {reports}"
    for entry in list(queue)[:-1]:
        if entry.last:
            yield f"iteration {entry.iteration} was its last, but it has reported again"
    for entry in queue:
        if entry.stage is Stage.SCORING and entry.checkpoint is None:
            yield f"iteration {entry.iteration} has no checkpoint, but is validated"
