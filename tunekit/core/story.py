"""The history of one trial as text, and why it waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from tunekit.core.engine import Engine, JudgedBy
from tunekit.core.events import (
    Asked,
    AttemptStarted,
    BudgetExpired,
    CheckpointSaved,
    Event,
    Exploited,
    OfTrial,
    OfValidation,
    Reminded,
    Reported,
    ScoreDelivered,
    SessionClosed,
    ValidationEnded,
    ValidationRequested,
)
from tunekit.core.metrics import flatten
from tunekit.core.timeline import Timeline, TrialSummary
from tunekit.core.validation import PENDING
from tunekit.core.values import number
from tunekit.core.words import amounts, duration, place_in_words, printable, setting
from tunekit.core.words import number as digits

# The text of each event, by the name of its type in the journal; other events have none.
_TEXTS: Mapping[str, str] = {
    "added": "added",
    "reported": "{at} reported",
    "saved": "checkpoint saved",
    "requested": "validation{stage} requested",
    "started": "validation of {at}{stage} retried (attempt {event.attempt})",
    "began": "validation of {at}{stage} runs",
    "ended": "validation of {at}{stage} {how}",
    "delivered": "score of {at} delivered: {event.decision}",
    "reminded": "score of {at} delivered again: {event.decision}",
    "decided": "decided by another trial's score: {event.decision}",
    "asked": "{event.action} by hand: {how}",
    "chosen": "resumed by its scheduler",
    "exploited": "overwritten with {event.donor_id}'s {at}: generation {event.generation} begins",
    "waited": "has waited {event.seconds:.1f} s for scores",
    "failed": "failed",
    "retried": "started again",
    "errored": "failed for good",
    "completed": "ended",
    "finished": "its end was delivered to its scheduler",
    "expired": "the time budget is used up",
    "closed": "the sweep was interrupted",
}


def story(
    events: Sequence[Event],
    trial_id: str,
    *,
    sessions: Sequence[Mapping[str, Any]] = (),
    state: str = "open",
    now: float | None = None,
) -> str:
    """Return the history of a trial, one line per event, and its current state.

    Times count from the trial's first line. Consecutive iterations without other events share a
    line. Why the trial waits follows from the engine's state after the same events.

    Args:
        events: The events of the journal, including those of checkpoints.
        trial_id: The trial.
        sessions: The first line of each session; the newest one has the settings.
        state: The state of the sweep, as in ``Sweep.summary()``.
        now: Seconds since the epoch; by default, the time of the sweep's last sign of life.

    Example:
        >>> from tunekit.core.events import AttemptBegan, TrialAdded
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
          The validation of iteration 1 was requested 7 s ago, and is running.
    """
    timeline = Timeline(events, sessions=sessions)
    trial = timeline.trials[trial_id]
    until = now if now is not None and state in ("open", "running") else timeline.last or 0.0
    session = sessions[-1] if sessions else {}
    lines = _lines(events, trial_id, session.get("judged") or ())
    began, _ = lines[0]
    restored = [(number(one.get("time")) or 0.0, "the sweep was restored") for one in sessions[1:]]
    lines += [one for one in restored if one[0] >= began]
    lines.sort(key=lambda line: line[0])
    times = [f"+{_short(time - began)}" for time, _ in lines]
    width = max(map(len, times))
    values = ", ".join(f"{name}={setting(v)}" for name, v in flatten(trial.config).items())
    head = f"Trial {trial_id}, from {datetime.fromtimestamp(began, timezone.utc):%F %T} UTC"
    told = [head + f": {values}" * bool(values)]
    told += [f"  {at:>{width}}  {text}" for at, (_, text) in zip(times, lines, strict=True)]
    told += _now(events, trial, session, timeline, state, until)
    return "\n".join(printable(told))


def _lines(
    events: Sequence[Event], trial_id: str, judged: Sequence[str]
) -> list[tuple[float, str]]:
    """Return the events of a trial as ``(time, text)``."""
    lines: list[tuple[float, str]] = []
    # The place of the last line, while it has only a report and what was saved there; and the
    # first iteration on it, while it has only reports.
    at: tuple[int, int] | None = None
    first: int | None = None
    for event in events:
        text = _text(event, trial_id, judged)
        if text is None:
            continue
        if isinstance(event, Reported):
            generation, iteration = event.place
            if first is not None and at == (generation, iteration - 1):
                lines.pop()
                text = f"iterations {first} to {text[10:]}"
            else:
                first = iteration
            at = event.place
        elif isinstance(event, (CheckpointSaved, ValidationRequested)):
            first = None
            if event.place == at:
                lines[-1] = (lines[-1][0], f"{lines[-1][1]}, {text}")
                continue
            text = f"{text} at {place_in_words(*event.place)}"
        else:
            at = first = None
        lines.append((event.time, text))
    return lines


def _text(event: Event, trial_id: str, judged: Sequence[str]) -> str | None:
    """Return the text of an event for a trial; None if it has none."""
    if isinstance(event, Exploited) and event.donor_id == trial_id != event.trial_id:
        at = place_in_words(event.donor_generation, event.iteration)
        return f"trial {event.trial_id} is overwritten with its {at}"
    own = isinstance(event, (Asked, OfTrial, OfValidation)) and event.trial_id == trial_id
    ends = isinstance(event, BudgetExpired) and trial_id in event.trial_ids
    if not (own or ends or (isinstance(event, SessionClosed) and not event.finished)):
        return None
    form = _TEXTS.get(str(event.__struct_config__.tag))
    if form is None or (isinstance(event, AttemptStarted) and event.attempt == 1):
        return None
    place, stage, how = (0, 0), "", ""
    match event:
        case Reported():
            place = event.place
        case ValidationRequested() | OfValidation():
            place, stage = event.key.place, event.key.stage
        case Asked():
            how = f"refused, {event.refused}" if event.refused else "accepted"
        case ScoreDelivered() | Reminded():
            place = event.generation, event.iteration
        case Exploited():
            place = event.donor_generation, event.iteration
    if isinstance(event, ValidationEnded):
        how = f"{event.status.replace('_', ' ')}: {event.reason or 'no reason recorded'}"
        if event.status == "validated":
            found = flatten(event.metrics)
            scores = [f"{name} {digits(number(found.get(name)), '?')}" for name in judged]
            took = "cached" if event.cached else f"ran {_short(event.ran_s)}"
            how = f"ended: {', '.join(scores) or 'validated'} ({took})"
    in_stage = f" in stage {stage}" if stage else ""
    return form.format(event=event, at=place_in_words(*place), stage=in_stage, how=how)


def _short(seconds: float) -> str:
    return f"{seconds:.1f} s" if abs(seconds) < 120 else duration(seconds)


# What it does now ------------------------------------------------------------------------------


def _now(
    events: Sequence[Event],
    trial: TrialSummary,
    session: Mapping[str, Any],
    timeline: Timeline,
    state: str,
    until: float,
) -> list[str]:
    """Return the current state of a trial, as far as the journal shows it.

    The journal does not record whether a trial that does not wait for every score was held in the
    meantime, nor which trial has which resources.
    """
    known = session.get("validation", {})
    engine = Engine(known.get("when", 1))
    engine.apply(JudgedBy(frozenset(session.get("judged") or ())))
    for event in events:
        engine.apply(event)
    record, over = engine.record(trial.trial_id), engine.delivery.over(trial.trial_id)
    decision, on_pending = timeline.decided.get(trial.trial_id), known.get("on_pending", "auto")
    pending = engine.delivery.pending(trial.trial_id)
    deciding = [one for one in pending if one.used]
    awaited = {"wait": pending, "continue": deciding}.get(on_pending, deciding or pending)
    scores = ", ".join(place_in_words(*one.place) for one in awaited)
    lines = []
    if state in ("killed", "interrupted") and not over:
        lines.append(f"The sweep was {state}: nothing runs until it is resumed. As last recorded:")
    if trial.ended is not None:
        what = f"It has ended{'' if over else '; that was not delivered to its scheduler yet'}."
    elif record.stopped:
        what = "It was stopped by hand, and ends."
    elif record.paused:
        what = "It is paused by hand, until `tunekit continue`."
    elif record.failed:
        what = "It has failed; it restarts if Tune's settings allow that."
    elif trial.status == "pending" or decision is None:
        what = _unstarted(trial, timeline, session)
    elif decision == "STOP":
        what = "Its scheduler has stopped it."
    elif decision == "PAUSE":
        others = sum(row["status"] in PENDING for row in timeline.validations)
        what = "Its scheduler has paused it, and also decides by the scores of other trials "
        what += f"(validations pending in the sweep: {others})."
    elif awaited and on_pending == "wait":
        what = f"It waits for the score of {scores}."
    elif awaited:
        what = f'It trains, or waits for the score of {scores} (on_pending="{on_pending}"); '
        what += "the journal does not record which."
    else:
        what = "It trains."
    lines.append(what)
    rows = {row["id"]: row for row in timeline.validations if row["status"] in PENDING}
    for one in pending:
        validation = f"  The validation of {place_in_words(*one.place)}"
        row = rows.get(one.id)
        if row is None:
            lines.append(f"{validation} has ended; its score is still to be delivered.")
            continue
        ago = duration(max(0.0, until - row["requested"]))
        lines.append(f"{validation} was requested {ago} ago, and is {row['status']}.")
    return lines


def _unstarted(trial: TrialSummary, timeline: Timeline, session: Mapping[str, Any]) -> str:
    """Return a sentence about a trial that waits to be started, with the recorded reasons."""
    started = sum(one.status == "running" for one in timeline.trials.values())
    what = f"It waits to be started (trials that have started and not ended: {started}"
    if trial.resources:
        what += f"; a trial takes {amounts(trial.resources)}"
        cluster = (session.get("cluster") or {}).get("resources") or {}
        if cluster:
            of = {name: cluster.get(name, 0.0) for name in trial.resources}
            what += f", and the cluster had {amounts(of)}"
    return f"{what})."
