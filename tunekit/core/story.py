"""What happened to one trial, in order, and why it waits: as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from tunekit.core.commands import Release
from tunekit.core.engine import Engine, JudgedBy
from tunekit.core.events import (
    AttemptBegan,
    AttemptStarted,
    BudgetExpired,
    CheckpointSaved,
    Decided,
    EndDelivered,
    Event,
    Exploited,
    OfTrial,
    OfValidation,
    Reminded,
    Reported,
    Resumed,
    ScoreDelivered,
    SessionClosed,
    TrialAdded,
    TrialEnded,
    TrialErrored,
    TrialFailed,
    TrialRetried,
    ValidationEnded,
    ValidationKey,
    ValidationRequested,
    Waited,
)
from tunekit.core.history import GENERATION, ITERATION
from tunekit.core.metrics import flatten
from tunekit.core.pending import Waits, stands_still, waits_for
from tunekit.core.reconcile import Action, Actual, Desired, next_action
from tunekit.core.timeline import UNENDED, Timeline
from tunekit.core.validation import Request
from tunekit.core.values import number
from tunekit.core.words import duration, place_in_words, printable, setting
from tunekit.core.words import number as digits

__all__ = ["story"]

_PHASES = {"STOP": Desired.ENDED, "PAUSE": Desired.PAUSED}


def story(
    events: Sequence[Event],
    trial_id: str,
    *,
    sessions: Sequence[Mapping[str, Any]] = (),
    state: str = "open",
    now: float | None = None,
) -> str:
    """Return what happened to a trial, a line each, and then what it does now.

    Times count from the trial's first line. Iterations in which nothing else happened share a line.
    Why the trial waits is what the engine says after the same events.

    Args:
        events: The events of the journal, those of checkpoints included.
        trial_id: The trial.
        sessions: The first line of each session: the newest one has the settings.
        state: What the sweep does, as in ``Sweep.summary()``.
        now: Seconds since the epoch; by default, when the sweep was last heard of.

    Example:
        >>> saved = {"trial_id": "a", "id": "a:0:1:1", "iteration": 1}
        >>> print(story([
        ...     TrialAdded(time=1.0, trial_id="a", config={"lr": 0.1}),
        ...     Reported(time=2.0, trial_id="a", report={"training_iteration": 1}, offered=True),
        ...     CheckpointSaved(time=2.0, **saved, used=True),
        ...     ValidationRequested(time=2.0, **saved),
        ...     AttemptBegan(time=2.5, id="a:0:1:1", attempt=1),
        ... ], "a", sessions=[{"validation": {"on_pending": "wait"}}], now=9.0))
        Trial a, from 1970-01-01 00:00:01 UTC: lr=0.1
          +0.0 s  added
          +1.0 s  iteration 1 reported, checkpoint saved, validation requested
          +1.5 s  validation of iteration 1 runs
        It waits for the score of iteration 1.
          The validation of iteration 1 was requested 7 s ago, and has run for 6 s.
    """
    told, restored = _Told(trial_id, sessions[-1] if sessions else {}), list(sessions[1:])
    for event in events:
        while restored and event.n > restored[0]["n"]:
            told.restored(restored.pop(0))
        told.take(event)
    for session in restored:
        told.restored(session)
    timeline = Timeline(events, sessions=sessions)
    until = now if now is not None and state in ("open", "running") else timeline.last or 0.0
    config = flatten(timeline.trials[trial_id].config) if trial_id in timeline.trials else {}
    began = datetime.fromtimestamp(told.began, timezone.utc)
    values = ", ".join(f"{name}={setting(value)}" for name, value in config.items())
    head = f"Trial {trial_id}, from {began:%Y-%m-%d %H:%M:%S} UTC" + f": {values}" * bool(values)
    times = [f"+{_short(time - told.began)}" for time, _ in told.lines]
    width = max(map(len, times), default=0)
    lines = [f"  {at:>{width}}  {line}" for at, (_, line) in zip(times, told.lines, strict=True)]
    lines = [head, *lines, *_now(told, timeline, state, until)]
    return "\n".join(printable(lines))


class _Told:
    """The lines about a trial so far, and where it is in the eyes of its scheduler."""

    def __init__(self, trial_id: str, session: Mapping[str, Any]):
        known, self.trial_id = session.get("validation", {}), trial_id
        stages = {stage["name"]: stage["every"] for stage in known.get("stages", ())}
        self.engine = Engine(known.get("when", 1), stages=stages)
        self.on_pending: str = known.get("on_pending", "auto")
        self._judged = session.get("judged") or ()
        self.engine.apply(JudgedBy(frozenset(self._judged)))
        self.lines: list[tuple[float, str]] = []
        self.phase, self.doing = Desired.PENDING, Actual.STARTING
        #: The generation and iteration of its newest report.
        self.at = (0, 0)
        self._ends_by = ""
        # The first of the iterations on the last line, while that says nothing else.
        self._first: int | None = None

    @property
    def began(self) -> float:
        """Return when its first line happened, in seconds since the epoch."""
        return self.lines[0][0] if self.lines else 0.0

    def restored(self, session: Mapping[str, Any]) -> None:
        """Take that the sweep was restored."""
        if self.lines:
            self._add(number(session.get("time")) or self.lines[-1][0], "the sweep was restored")

    def take(self, event: Event) -> None:
        """Take what happened."""
        commands = self.engine.handle(event)
        if isinstance(event, (OfTrial, OfValidation)):
            if event.trial_id == self.trial_id:
                self._take_own(event)
            elif isinstance(event, Exploited) and event.donor_id == self.trial_id:
                at = place_in_words(event.donor_generation, event.iteration)
                self._add(event.time, f"trial {event.trial_id} is overwritten with its {at}")
        elif isinstance(event, BudgetExpired) and self.trial_id in event.trial_ids:
            self._ends_by = ": the time budget is used up"
        elif isinstance(event, SessionClosed) and not event.finished and self.lines:
            self._add(event.time, "the sweep was interrupted")
        released = [
            place_in_words(*key.place)
            for command in commands
            if isinstance(command, Release) and command.holder[0] == "validation"
            if (key := ValidationKey.parse(command.holder[1])).trial_id == self.trial_id
        ]
        if released:
            self._extend(f"checkpoint of {', '.join(released)} released")

    def _take_own(self, event: OfTrial | OfValidation) -> None:
        now, first = event.time, self._first
        match event:
            case Reported():
                self._report(event)
            case CheckpointSaved() if first is not None and event.place == self.at:
                several = first != event.iteration
                self._extend("checkpoint" + f" of iteration {event.iteration}" * several + " saved")
            case CheckpointSaved():
                self._add(now, f"checkpoint of {place_in_words(*event.place)} saved")
            case ValidationRequested():
                stage = f" in stage {event.stage}" if event.stage else ""
                if self.lines[-1:] and self.lines[-1][1].endswith(" saved"):
                    self._extend(f"validation{stage} requested")
                else:
                    self._add(now, f"{_validation(event)} requested")
            case AttemptStarted() if event.attempt > 1:
                self._add(now, f"{_validation(event)} retried (attempt {event.attempt})")
            case AttemptBegan():
                self._add(now, f"{_validation(event)} runs")
            case ValidationEnded():
                self._add(now, f"{_validation(event)} {self._how(event)}")
            case ScoreDelivered():
                self._decide(event, f"score of {place_in_words(*event.place)} delivered: ")
            case Reminded():
                at = place_in_words(event.generation, event.iteration)
                self._decide(event, f"score of {at} delivered again: ")
            case Decided():
                self._decide(event, "decided by another trial's score: ")
            case Resumed():
                self.phase = Desired.RUNNING if event.runs else Desired.PENDING
                self._add(now, "resumed by its scheduler")
            case Exploited():
                donor = place_in_words(event.donor_generation, event.iteration)
                self.at = (event.generation, event.iteration)
                self._add(now, f"overwritten with trial {event.donor_id}'s {donor}")
                self._extend(f"generation {event.generation} begins")
            case Waited():
                self._add(now, f"has waited {_short(event.seconds)} for scores")
            case TrialAdded():
                self._add(now, "added")
            case TrialFailed():
                self._add(now, "failed")
            case TrialRetried():
                self.phase, self.doing, self._ends_by = Desired.PENDING, Actual.STARTING, ""
                saved = self.engine.record(self.trial_id).saved
                newest = place_in_words(*saved[:2]) if saved else "none"
                self._add(now, f"started again (newest checkpoint: {newest})")
            case TrialErrored():
                self.doing = Actual.ENDED
                self._add(now, "failed for good")
            case TrialEnded():
                self.doing = Actual.ENDED
                self._add(now, "ended" + self._ends_by)
            case EndDelivered():
                self._add(now, "its end was delivered to its scheduler")

    def _report(self, event: Reported) -> None:
        generation, iteration = event.report.get(GENERATION, 0), event.report[ITERATION]
        if self.phase is Desired.PENDING:
            self.phase = Desired.RUNNING
        if event.report.get("done"):
            self._ends_by = " by itself, or by its stopping criterion"
        first, reported = self._first, place_in_words(generation, iteration)
        if first is not None and self.at == (generation, iteration - 1):
            self.lines.pop()
            self._add(event.time, f"iterations {first} to {reported[10:]} reported")
        else:
            self._add(event.time, f"{reported} reported")
            first = iteration
        self.doing, self.at, self._first = Actual.HELD, (generation, iteration), first

    def _decide(self, event: ScoreDelivered | Reminded | Decided, what: str) -> None:
        self.phase = _PHASES.get(event.decision, Desired.RUNNING)
        if event.decision == "STOP":
            self._ends_by = ", stopped by its scheduler"
        self._add(event.time, what + event.decision)

    def _how(self, event: ValidationEnded) -> str:
        if event.status != "validated":
            return f"{event.status.replace('_', ' ')}: {event.reason or 'no reason recorded'}"
        found = flatten(event.metrics)
        scores = [f"{name} {digits(number(found.get(name)), '?')}" for name in self._judged]
        how = " (cached)" if event.cached else f" (ran {_short(event.ran_s)})"
        return f"ended: {', '.join(scores) or 'validated'}{how}"

    def _add(self, time: float, line: str) -> None:
        self._first = None
        self.lines.append((time, line))

    def _extend(self, more: str) -> None:
        self._first = None
        if self.lines:
            self.lines[-1] = (self.lines[-1][0], f"{self.lines[-1][1]}, {more}")


# What it does now ------------------------------------------------------------------------------


def _now(told: _Told, timeline: Timeline, state: str, until: float) -> list[str]:
    """Return what the trial does, by the rules that the driver follows."""
    engine, trial_id = told.engine, told.trial_id
    delivery, on_pending = engine.delivery, told.on_pending
    pending = delivery.pending(trial_id)
    deciding = [one for one in pending if one.used]
    way = waits_for(on_pending)
    waits = stands_still(way, scores=len(pending), decisions=len(deciding))
    action = next_action(told.phase, told.doing, waits=waits and bool(pending))
    lines = []
    if state in ("killed", "interrupted") and not delivery.over(trial_id):
        lines.append(f"The sweep was {state}: nothing runs until it is resumed. As last recorded:")
    newest = place_in_words(*told.at)
    if told.doing is Actual.ENDED:
        but = "" if delivery.over(trial_id) else "; that was not delivered to its scheduler yet"
        what = f"It has ended{but}."
    elif engine.record(trial_id).failed:
        what = "It has failed, and is started again if Tune's settings allow that."
    elif action is Action.STOP:
        what = f"Its scheduler has stopped it; it has reached {newest}."
    elif told.doing is Actual.STARTING or told.phase is Desired.PENDING:
        what = "It waits to be started" + (" again." if told.at[1] else ".")
    elif action is Action.PAUSE:
        others = sum(row["status"] in UNENDED for row in timeline.validations)
        what = "Its scheduler has paused it, and decides by the scores of other trials, too "
        what += f"(validations pending in the sweep: {others})."
    elif action is Action.TRAIN:
        until_then = " on up to its next decision" if deciding else ""
        what = f"It trains{until_then}; it has reached {newest}."
    else:
        scores = pending if way is Waits.EACH else deciding
        named = ", ".join(place_in_words(*one.place) for one in scores)
        what = f"It waits for the score of {named}"
        hedge = ', or trains on while nothing can use its slot (on_pending="auto")'
        what += hedge * (on_pending == "auto") + "."
    lines.append(what)
    runs = told.phase in (Desired.RUNNING, Desired.ENDED)
    after = "those of older iterations" if runs else "the trial is resumed"
    lines += [_status(one, timeline, until, after) for one in pending]
    return lines


def _status(request: Request, timeline: Timeline, until: float, comes_after: str) -> str:
    """Return how far a validation is, or what its score ``comes_after``."""
    rows = [row for row in timeline.validations if row["status"] in UNENDED]
    row = next((row for row in rows if row["id"] == request.id), None)
    what = f"  The validation of {place_in_words(*request.place)}"
    if row is None:
        return f"{what} has ended; its score is delivered after {comes_after}."
    asked = f"was requested {duration(max(0.0, until - row['requested']))} ago"
    if row["status"] == "running":
        return f"{what} {asked}, and has run for {duration(max(0.0, until - row['ran_from']))}."
    if row["status"] == "starting":
        return f"{what} {asked}, and waits for resources, or for its process to start."
    others = sum(one["status"] == "waiting" for one in rows) - 1
    behind = f" with {others} other{'s' * (others != 1)}" if others else ""
    return f"{what} {asked}, and is queued{behind}."


def _validation(event: OfValidation | ValidationRequested) -> str:
    stage = f" in stage {event.key.stage}" if event.key.stage else ""
    return f"validation of {place_in_words(*event.key.place)}{stage}"


def _short(seconds: float) -> str:
    return f"{seconds:.1f} s" if abs(seconds) < 120 else duration(seconds)
