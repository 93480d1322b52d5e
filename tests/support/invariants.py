"""Invariants of the journal of a sweep, however often it was killed and restored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunekit.core.events import (
    AttemptStarted,
    Event,
    Exploited,
    Processed,
    ValidationEnded,
    ValidationRequested,
)
from tunekit.core.validation import ValidationKey


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

    - Each validation that was requested has ended, once, and did not run again afterwards.
    - A report is processed once, after its validation, and in the order of a trial's iterations.

    Args:
        events: The journal of a sweep that has ended.

    Raises:
        AssertionError: If one of these does not hold; names the offending line.

    Example:
        >>> from tunekit.core.events import ValidationEnded, ValidationRequested
        >>> requested = ValidationRequested(n=1, trial_id="a", id="a:0:1:1")
        >>> check_journal([requested])
        Traceback (most recent call last):
        AssertionError: lost: a:0:1:1
        >>> ended = ValidationEnded(n=2, id="a:0:1:1", status="validated", metrics={"x": 1})
        >>> check_journal([requested, ended]).scores
        {'a:0:1': {'x': 1}}
    """
    summary = JournalSummary()
    requested: set[str] = set()
    ended: dict[str, ValidationEnded] = {}
    started: Counter[tuple[str, int]] = Counter()
    newest: dict[str, tuple[int, int]] = {}
    last = 0

    def rule(holds: bool, broken: str, event: Event) -> None:
        if not holds:
            raise AssertionError(f"{broken}: {event}")

    for event in events:
        rule(event.n > last, "out of order", event)
        last = event.n
        match event:
            case ValidationRequested():
                rule(event.id not in requested, "requested twice", event)
                requested.add(event.id)
            case AttemptStarted():
                due = event.id in requested and event.id not in ended
                rule(due, "computed twice", event)
                started[event.id, event.attempt] += 1
            case ValidationEnded():
                rule(event.id in requested and event.id not in ended, "ended twice", event)
                ended[event.id] = event
                if event.status == "validated":
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
    lost = sorted(requested - ended.keys())
    if lost:
        raise AssertionError(f"lost: {', '.join(lost)}")
    summary.running = sum(count - 1 for count in started.values())
    return summary
