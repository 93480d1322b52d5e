"""What must hold in the journal of a sweep that was killed and restored, however often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Lives", "check_lives", "place_of"]


def place_of(request_id: str) -> str:
    """Trial, generation and iteration of a request; how often that was run is another matter.

    Example:
        >>> place_of("trial_7:0:3:2")
        'trial_7:0:3'
    """
    return request_id.rsplit(":", 1)[0]


@dataclass
class Lives:
    """What became of a sweep's validations.

    Attributes:
        scores: The validated metrics, by trial, generation and iteration.
        decisions: What was decided, in order: (trial, generation and iteration; decision).
        exploits: The exploits, in order.
        running: How many validations ran when the driver was killed, and were run again.

    Example:
        >>> check_lives([])
        Lives(scores={}, decisions=[], exploits=[], running=0)
    """

    scores: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    decisions: list[tuple[str, str]] = field(default_factory=list)
    exploits: list[Mapping[str, Any]] = field(default_factory=list)
    running: int = 0


def check_lives(events: Iterable[Mapping[str, Any]]) -> Lives:
    """Check a journal line by line, and return what became of the sweep.

    - Each validation that was requested has ended, once, and did not run again afterwards.
    - A score is delivered after it has ended, once, older iterations of a trial before newer ones.
    - A trial's end is delivered once, after its last score.

    Args:
        events: The journal of a sweep that is over.

    Raises:
        AssertionError: If one of these does not hold; says which line breaks it.

    Example:
        >>> line = {"n": 1, "event": "requested", "id": "a:0:1:1"}
        >>> check_lives([line])
        Traceback (most recent call last):
        AssertionError: lost: a:0:1:1
        >>> end = {"event": "ended", "id": "a:0:1:1", "status": "validated", "metrics": {"x": 1}}
        >>> check_lives([line, {"n": 2, **end}]).scores
        {'a:0:1': {'x': 1}}
    """
    lives = Lives()
    requested: set[str] = set()
    ended: dict[str, Mapping[str, Any]] = {}
    started: Counter[tuple[str, int]] = Counter()
    newest: dict[str, tuple[int, int]] = {}
    finished: set[str] = set()
    last = 0

    def rule(holds: bool, broken: str, event: Mapping[str, Any]) -> None:
        if not holds:
            raise AssertionError(f"{broken}: {dict(event)}")

    for event in events:
        kind, name, trial = event["event"], event.get("id", ""), event.get("trial_id", "")
        rule(event["n"] > last, "out of order", event)
        last = event["n"]
        if kind == "requested":
            rule(name not in requested, "requested twice", event)
            requested.add(name)
        elif kind == "started":
            rule(name in requested and name not in ended, "computed twice", event)
            started[name, event["attempt"]] += 1
        elif kind == "ended":
            rule(name in requested and name not in ended, "ended twice", event)
            ended[name] = event
            if event["status"] == "validated":
                lives.scores[place_of(name)] = event["metrics"]
        elif kind == "delivered":
            at = (event["generation"], event["iteration"])
            rule(ended.get(name, {}).get("status") == "validated", "no score", event)
            rule(at > newest.get(trial, (-1, -1)), "delivered twice or out of order", event)
            rule(trial not in finished, "delivered after the trial's end", event)
            newest[trial] = at
            lives.decisions.append((place_of(name), event["decision"]))
        elif kind == "finished":
            rule(trial not in finished, "its end was delivered twice", event)
            finished.add(trial)
        elif kind == "exploited":
            lives.exploits.append(event)
    lost = sorted(requested - ended.keys())
    if lost:
        raise AssertionError(f"lost: {', '.join(lost)}")
    lives.running = sum(count - 1 for count in started.values())
    return lives
