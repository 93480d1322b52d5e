"""Who drives a sweep, and whether that driver is still alive.

A driver writes down who it is in the experiment's folder, and again every few seconds that it is
alive. Another one asks this module what that means. On the machine of the holder it is certain: its
process and its thread are there, or they are not. Elsewhere the last heartbeat has to do.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from enum import Enum

import msgspec

__all__ = ["BEAT_S", "SILENT_S", "Here", "Holder", "Standing", "Verdict", "judge"]

#: How often a driver says that it is alive.
BEAT_S = 10.0

#: For how long it must not have said so to count as dead: three times it did not.
SILENT_S = 3 * BEAT_S


# What a process's number can be, and a time that can be told: that of the year 9999.
_MOST, _LAST_S = 2**31 - 1, 253_402_300_799.0


class Standing(Enum):
    """How a sweep's lock stands."""

    FREE = "free"
    HELD = "held"
    STALE = "stale"


@dataclass(frozen=True)
class Holder:
    """A driver, as its lock says.

    Attributes:
        token: Tells this driver from all others.
        host: Its machine's name.
        place: Tells where its process and thread numbers mean anything: the machine since it was
            started, and the container.
        pid: Its process.
        born: When that process was started, in the system's own unit; None if that is not known.
            Numbers of processes are used again.
        thread: Its thread.
        since: When it began, in seconds since the epoch.
        beat: When it was last heard of, likewise.
    """

    token: str
    host: str
    place: str
    pid: int
    born: int | None
    thread: int
    since: float
    beat: float

    def encoded(self) -> bytes:
        """The holder as its lock's file has it."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decoded(cls, data: bytes) -> Holder | None:
        """The holder that a lock's file names; None if the file is half written, or no lock.

        Example:
            >>> holder = Holder("t", "gpu1", "gpu1|b", 7, 99, 7, since=1.0, beat=2.0)
            >>> Holder.decoded(holder.encoded()) == holder, Holder.decoded(b'{"tok')
            (True, None)
        """
        try:
            found = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None
        possible = 0 < found.pid <= _MOST and min(found.since, found.beat) >= 0
        return found if possible and max(found.since, found.beat) <= _LAST_S else None


@dataclass(frozen=True)
class Here:
    """Where the question is asked.

    Attributes:
        place: As for :class:`Holder`.
        pid: This process.
        thread: This thread.
        threads: The threads of this process that are alive.
    """

    place: str
    pid: int
    thread: int
    threads: Collection[int]


@dataclass(frozen=True)
class Verdict:
    """What a lock means to somebody else.

    Attributes:
        standing: Whether it is held.
        left_s: After how many seconds without a heartbeat it will count as stale; None if that is
            no question of time.
    """

    standing: Standing
    left_s: float | None = None


def judge(
    holder: Holder | None, here: Here, now: float, *, born: int | None, there: bool
) -> Verdict:
    """Say whether a lock is held by a driver that is alive.

    Args:
        holder: Who the lock says holds it; None if there is none.
        here: Who asks.
        now: Seconds since the epoch.
        born: When the process of the holder's number was started that is here now; None if that is
            not known.
        there: Whether there is one here.

    Example:
        >>> holder = Holder("t", "gpu1", "gpu1|b", 7, 99, 7, since=0.0, beat=100.0)
        >>> elsewhere = Here("laptop|c", 8, 8, {8})
        >>> judge(holder, elsewhere, 104.0, born=None, there=False)
        Verdict(standing=<Standing.HELD: 'held'>, left_s=26.0)
        >>> judge(holder, elsewhere, 130.0, born=None, there=False).standing.value
        'stale'
        >>> other_process = Here("gpu1|b", 8, 8, {8})
        >>> judge(holder, other_process, 104.0, born=99, there=True).standing.value
        'held'
        >>> judge(holder, other_process, 104.0, born=None, there=False).standing.value
        'stale'
    """
    if holder is None:
        return Verdict(Standing.FREE)
    if holder.place != here.place:
        left = SILENT_S - (now - holder.beat)
        return Verdict(Standing.HELD, left) if left > 0 else Verdict(Standing.STALE)
    reused = None not in (born, holder.born) and born != holder.born
    if not there or reused:
        return Verdict(Standing.STALE)
    if holder.pid == here.pid and (
        # Whoever asks runs in the thread in which that driver ran: it does not any more.
        holder.thread == here.thread or holder.thread not in here.threads
    ):
        return Verdict(Standing.STALE)
    return Verdict(Standing.HELD)
