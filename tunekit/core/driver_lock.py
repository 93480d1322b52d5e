"""Who drives a sweep, and whether that driver is still alive.

A driver writes down who it is in the experiment's folder, and again every few seconds that it is
alive. On the machine of the holder its process shows whether it is; elsewhere the last heartbeat
has to do.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

import msgspec

__all__ = ["BEAT_S", "SILENT_S", "Holder", "alive_for_s"]

#: How often a driver says that it is alive.
BEAT_S = 10.0

#: For how long it must not have said so to count as dead: three times it did not.
SILENT_S = 3 * BEAT_S

# What a process's number can be, and a time that can be told: that of the year 9999.
_MOST, _LAST_S = 2**31 - 1, 253_402_300_799.0


@dataclass(frozen=True)
class Holder:
    """A driver, as its lock says.

    Attributes:
        token: Tells this driver from all others.
        host: Its machine's name.
        place: Tells where its process number means anything: the machine since it was started, and
            the container.
        pid: Its process.
        born: When that process was started, in the system's own unit; 0 if that is not known.
            Numbers of processes are used again, above all in containers.
        since: When it began, in seconds since the epoch.
        beat: When it was last heard of, likewise.
    """

    token: str
    host: str
    place: str
    pid: int
    born: int
    since: float
    beat: float

    def encoded(self) -> bytes:
        """The holder as its lock's file has it."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decoded(cls, data: bytes) -> Holder | None:
        """The holder that a lock's file names; None if the file is half written, or no lock.

        Example:
            >>> holder = Holder("t", "gpu1", "gpu1|b", 7, 99, since=1.0, beat=2.0)
            >>> Holder.decoded(holder.encoded()) == holder, Holder.decoded(b'{"tok')
            (True, None)
        """
        try:
            found = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None
        possible = 0 < found.pid <= _MOST and min(found.since, found.beat) >= 0
        return found if possible and max(found.since, found.beat) <= _LAST_S else None


def alive_for_s(holder: Holder, now: float, *, there: bool | None) -> float:
    """Return for how many more seconds a driver counts as alive if it is not heard of.

    Args:
        holder: Who the lock says holds it.
        now: Seconds since the epoch.
        there: Whether its process is there; None if that cannot be told from here.

    Returns:
        0 if it counts as dead, infinity if it is certain to be alive.

    Example:
        >>> holder = Holder("t", "gpu1", "gpu1|b", 7, 99, since=0.0, beat=100.0)
        >>> [alive_for_s(holder, now, there=None) for now in (104.0, 130.0)]
        [26.0, 0.0]
        >>> [alive_for_s(holder, 104.0, there=there) for there in (True, False)]
        [inf, 0.0]
    """
    if there is None:
        return max(0.0, SILENT_S - (now - holder.beat))
    return math.inf if there else 0.0
