"""Messages about a sweep's validations while it runs."""

from __future__ import annotations

from collections.abc import Mapping

from tunekit.core.words import duration

_COUNTED = ("validated", "running", "starting", "waiting", "failed", "timed_out", "skipped")
# The seconds for which validations may wait for resources before a message says so.
_STARVED_S = 10.0


class News:
    """Schedule messages: one soon after the start, and then at intervals.

    Args:
        first_s: Seconds from the start to the first time.
        every_s: Seconds from one time to the next.

    Example:
        >>> news = News(first_s=2, every_s=10)
        >>> [now for now in range(100, 130) if news.due(now)]
        [102, 112, 122]
    """

    def __init__(self, first_s: float, every_s: float):
        self._first_s, self._every_s = first_s, every_s
        self._next: float | None = None

    def due(self, now: float) -> bool:
        """Return whether a message is due; the first call is the start."""
        if self._next is None:
            self._next = now + self._first_s
        if now < self._next:
            return False
        self._next = now + self._every_s
        return True


def counted(counts: Mapping[str, int]) -> str:
    """Return the numbers of validations by status, in words.

    Args:
        counts: By ``validated``, ``failed``, ``timed_out``, ``skipped``, ``running``, ``starting``,
            ``queued`` (out of ``starting``) and ``waiting``.

    Example:
        >>> counted({"validated": 12, "running": 2, "starting": 1, "waiting": 2, "failed": 1})
        'Validations: 12 validated, 2 running, 1 starting, 2 waiting, 1 failed'
        >>> counted({"running": 1, "starting": 2, "queued": 1, "waiting": 2})
        'Validations: 1 running, 2 starting (1 queued for resources), 2 waiting'
        >>> counted({"validated": 0})
        'Validations: none yet'
    """
    queued = f" ({counts['queued']} queued for resources)" if counts.get("queued") else ""
    parts = [
        f"{counts[name]} {name.replace('_', ' ')}" + queued * (name == "starting")
        for name in _COUNTED
        if counts.get(name)
    ]
    return f"Validations: {', '.join(parts) or 'none yet'}"


def waiting_trials(waiting: int, left: int) -> str | None:
    """Return how many trials wait for scores, in words; None if there are none.

    Args:
        waiting: The number of trials that wait.
        left: The number of trials that have not ended.

    Example:
        >>> waiting_trials(1, 6), waiting_trials(2, 6)
        ('1 of 6 trials waits for a score', '2 of 6 trials wait for a score')
        >>> waiting_trials(4, 4), waiting_trials(1, 1)
        ('All 4 trials that have not ended wait for a score',
         'The one trial that has not ended waits for a score')
        >>> waiting_trials(0, 4)
    """
    if not waiting:
        return None
    if waiting == left == 1:
        return "The one trial that has not ended waits for a score"
    if waiting == left:
        return (
            f"{'Both' if left == 2 else f'All {left}'} trials that have not ended wait for a score"
        )
    return f"{waiting} of {left} trials {'waits' if waiting == 1 else 'wait'} for a score"


def starved(seconds: float) -> str | None:
    """Return for how long no validation has had resources, in words; None if not for long.

    Example:
        >>> starved(45)
        'No validation is running: none has had resources for 45 s'
        >>> starved(5)
    """
    if seconds < _STARVED_S:
        return None
    return f"No validation is running: none has had resources for {duration(seconds)}"
