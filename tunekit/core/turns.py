"""Who is first among those that wait, in a row of many that do not."""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["Turns"]

T = TypeVar("T", bound=Hashable)


class Turns(Generic[T]):
    """Keeps track of those that wait in a row, so that nobody has to look through the whole row.

    Members are in the order in which they came. A member may wait for one thing or another, or for
    nothing.

    Example:
        >>> turns = Turns()
        >>> for name in "abc":
        ...     turns.add(name, "pending")
        >>> turns.put("a", None)
        >>> turns.put("b", "paused")
        >>> list(turns.of("pending")), list(turns.of("paused"))
        (['c'], ['b'])
        >>> turns.put("a", "pending")  # it has kept its place
        >>> list(turns.of("pending"))
        ['a', 'c']
        >>> turns.add("a", "pending")  # and now comes last
        >>> list(turns.of("pending"))
        ['c', 'a']
    """

    def __init__(self) -> None:
        self._came = 0
        self._places: dict[T, int] = {}
        self._members: dict[int, T] = {}
        self._waits: dict[T, Hashable] = {}
        # The places of those that wait for something, in order.
        self._rows: dict[Hashable, list[int]] = {}

    def add(self, one: T, waits: Hashable | None) -> None:
        """Put a member last in the row, even if it stood elsewhere before.

        Example:
            >>> turns = Turns()
            >>> turns.add("a", "pending")
            >>> list(turns.of("pending"))
            ['a']
        """
        self.put(one, None)
        self._members.pop(self._places.get(one, -1), None)
        self._places[one] = self._came
        self._members[self._came] = one
        self._came += 1
        self.put(one, waits)

    def put(self, one: T, waits: Hashable | None) -> None:
        """Set what a member waits for, None for nothing; who is not in the row is ignored.

        Example:
            >>> turns = Turns()
            >>> turns.put("a", "pending")
            >>> list(turns.of("pending"))
            []
        """
        place, before = self._places.get(one), self._waits.get(one)
        if place is None or before == waits:
            return
        if before is not None:
            row = self._rows[before]
            del row[bisect.bisect_left(row, place)]
            del self._waits[one]
        if waits is not None:
            bisect.insort(self._rows.setdefault(waits, []), place)
            self._waits[one] = waits

    def of(self, waits: Hashable) -> Iterator[T]:
        """Yield those that wait for something, in order; nobody may be moved meanwhile.

        Example:
            >>> list(Turns().of("pending"))
            []
        """
        for place in self._rows.get(waits, ()):
            yield self._members[place]
