"""When a scheduler is shown results again that it has seen."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

__all__ = ["Reminders"]

# The first lets it act, the second shows it what it has done.
_MOST = 2


class Reminders:
    """Reminds a scheduler that waits for all trials of a round, of which some have ended.

    Synchronous PBT and HyperBand go on when the result of the last of some trials comes in, and
    Tune's would wait for ever for one that has ended or failed before. They get results again that
    they have seen, which changes nothing but that they count the trials: but only when nothing
    else can happen, and not again before something has.

    Example:
        >>> reminders = Reminders()
        >>> [reminders.due({"a": 3, "b": 3}) for _ in range(3)]
        [True, True, False]
        >>> reminders.due({"a": 6, "b": 3})
        True
    """

    def __init__(self) -> None:
        self._standing: dict[str, Hashable] = {}
        self._given = 0

    def due(self, standing: Mapping[str, Hashable]) -> bool:
        """Return whether to remind it now that nothing else can happen.

        Args:
            standing: Where each trial that is left stands.
        """
        if standing != self._standing:
            self._standing, self._given = dict(standing), 0
        if self._given == _MOST:
            return False
        self._given += 1
        return True
