"""Which validations run in the place of which trials that wait."""

from __future__ import annotations

from collections.abc import Callable, Collection

__all__ = ["Loans"]


class Loans:
    """The places that trials lend to validations, each until the validation has ended.

    Example:
        >>> loans = Loans()
        >>> loans.wanted(deciding=2, in_flight=1, others_wait=False)
        2
        >>> loans.take("b:0:3:1#1", of="b", lenders=["a", "b"])
        'b'
        >>> loans.lends("b"), loans.lends("a"), len(loans)
        (True, False, 1)
        >>> loans.settle(still_runs=lambda attempt_id: False)
        >>> len(loans)
        0
    """

    def __init__(self) -> None:
        self._lenders: dict[str, str] = {}  # by attempt

    def __len__(self) -> int:
        return len(self._lenders)

    def lends(self, trial_id: str) -> bool:
        """Return whether a validation runs in the place of a trial."""
        return trial_id in self._lenders.values()

    def wanted(self, *, deciding: int, in_flight: int, others_wait: bool) -> int:
        """Return how many more places are wanted.

        If another trial could go on in a place, that is the better use of it, unless a validation
        would have to wait for more than one other.

        Args:
            deciding: How many validations that the scheduler will decide by wait to be started.
            in_flight: How many validations have been started, including those in the place of
                trials.
            others_wait: Whether a trial that could go on in such a place is waiting.
        """
        elsewhere = in_flight - len(self._lenders)
        return deciding - (elsewhere if others_wait else 0)

    def take(self, attempt_id: str, *, of: str, lenders: Collection[str]) -> str:
        """Take the place of a trial, preferably the validation's own; return which trial's it is.

        Args:
            attempt_id: The attempt.
            of: The trial whose checkpoint it validates.
            lenders: The trials whose places can be had, at least one.
        """
        lender = of if of in lenders else next(iter(lenders))
        self._lenders[attempt_id] = lender
        return lender

    def settle(self, still_runs: Callable[[str], bool]) -> None:
        """Give back the places of all attempts that have ended, in whatever way."""
        for attempt_id in [one for one in self._lenders if not still_runs(one)]:
            del self._lenders[attempt_id]
