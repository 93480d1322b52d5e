"""The record of every validation's life, appended before it is acted on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from tunekit.core.lineage import Exploit
from tunekit.core.validation import Attempt, Outcome, Request

__all__ = ["FILE_NAME", "VERSION", "Journal", "read"]

#: The journal's name in the experiment's directory.
FILE_NAME = "validations.jsonl"

#: The version of the format, in the journal's first line.
VERSION = 1


class Journal:
    """Appends events, one JSON object a line, to a file.

    The first line is ``{"journal": "tunekit", "version": 1}``; each other line has ``event``,
    ``time`` (seconds since the epoch) and, if it is about one validation, ``id``
    (``trial:generation:iteration:run``). A line is handed to the operating system before a method
    returns: it outlives this process.

    Args:
        path: The file; it is made, with its directory, if it does not exist.
    """

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("a", encoding="utf-8")
        if path.stat().st_size == 0:
            self._write({"journal": "tunekit", "version": VERSION})

    def requested(self, request: Request, at: float) -> None:
        """A checkpoint is to be validated."""
        self._write(
            {
                "event": "requested",
                "time": at,
                "id": request.id,
                "trial_id": request.trial_id,
                "iteration": request.iteration,
                "run": request.run,
                "generation": request.generation,
                "checkpoint": request.path,
            }
        )

    def started(self, attempt: Attempt, at: float) -> None:
        """An attempt was handed to Ray."""
        self._write(
            {"event": "started", "time": at, "id": attempt.request.id, "attempt": attempt.number}
        )

    def ended(self, outcome: Outcome, at: float) -> None:
        """A validation ended for good."""
        self._write(
            {
                "event": "ended",
                "time": at,
                "id": outcome.request.id,
                "status": outcome.status.value,
                "metrics": dict(outcome.metrics),
                "reason": outcome.reason,
                "error": outcome.error,
                "attempts": outcome.attempts,
                "waited_s": round(outcome.waited_s, 4),
                "ran_s": round(outcome.ran_s, 4),
            }
        )

    def delivered(self, request: Request, decision: str, at: float) -> None:
        """The scheduler got a validated result, and decided."""
        self._write(
            {
                "event": "delivered",
                "time": at,
                "id": request.id,
                "trial_id": request.trial_id,
                "iteration": request.iteration,
                "generation": request.generation,
                "decision": decision,
            }
        )

    def decided(self, trial_id: str, decision: str, at: float) -> None:
        """The scheduler decided about a trial on another one's result."""
        self._write({"event": "decided", "time": at, "trial_id": trial_id, "decision": decision})

    def reminded(
        self, trial_id: str, generation: int, iteration: int, decision: str, at: float
    ) -> None:
        """The scheduler got a result again that it has seen, and decided."""
        self._write(
            {
                "event": "reminded",
                "time": at,
                "trial_id": trial_id,
                "iteration": iteration,
                "generation": generation,
                "decision": decision,
            }
        )

    def exploited(self, exploit: Exploit) -> None:
        """A trial is overwritten with a checkpoint."""
        self._write({"event": "exploited", **asdict(exploit)})

    def close(self) -> None:
        """Close the file; nothing can be appended afterwards."""
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, default=str) + "\n")
        self._file.flush()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal; a torn last line is left out.

    Example:
        >>> import tempfile
        >>> from tunekit.core.validation import Request
        >>> path = Path(tempfile.mkdtemp()) / FILE_NAME
        >>> journal = Journal(path)
        >>> journal.requested(Request("a", 1), at=12.5)
        >>> [(event["event"], event["id"]) for event in read(path)]
        [('requested', 'a:0:1:1')]
    """
    with path.open(encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                return
            event = json.loads(line)
            if "event" in event:
                yield event
