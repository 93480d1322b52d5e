"""When it is to be said that something has stopped to answer, and that it answers again."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Outages"]


class Outages:
    """Knows since when services do not answer, and says so once for each outage.

    Args:
        patience_s: For how many seconds a service must not answer, before that is told. It takes
            two looks at least.

    Example:
        >>> outages = Outages(patience_s=5.0)
        >>> [outages.looked({"GCS": answers}, now) for answers, now in [(True, 0), (False, 3)]]
        [({}, []), ({}, [])]
        >>> outages.looked({"GCS": False}, 9), outages.looked({"GCS": False}, 12)
        (({'GCS': 6}, []), ({}, []))
        >>> outages.looked({"GCS": True}, 15)
        ({}, ['GCS'])
    """

    def __init__(self, patience_s: float):
        self._patience_s = patience_s
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def looked(self, answers: Mapping[str, bool], now: float) -> tuple[dict[str, float], list[str]]:
        """Take whether services answer; return those to tell of, and those that are back.

        Args:
            answers: Whether each service answers.
            now: The time, in seconds.

        Returns:
            For how many seconds services have not answered of which it is to be told now; and
            those of which that was told and that answer again.
        """
        gone: dict[str, float] = {}
        back: list[str] = []
        for name, answered in answers.items():
            if answered:
                self._since.pop(name, None)
                if name in self._told:
                    self._told.discard(name)
                    back.append(name)
                continue
            silent = now - self._since.setdefault(name, now)
            if silent >= self._patience_s and name not in self._told:
                self._told.add(name)
                gone[name] = silent
        return gone, back
