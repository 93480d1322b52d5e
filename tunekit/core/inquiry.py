"""What a training loop asks for in the middle of an iteration."""

from __future__ import annotations

from typing import NamedTuple


class Inquiry(NamedTuple):
    """A question for the checkpoints that a trial has reported, with their scores.

    Attributes:
        blocks: Whether the loop waits until each requested validation of the trial has ended.
        timeout_s: The most seconds that it waits; None for no limit.
    """

    blocks: bool = False
    timeout_s: float | None = None

    def until(self, now: float) -> float:
        """Return until when the loop waits, at most, if it asks at a time in seconds.

        Example:
            >>> Inquiry().until(5.0), Inquiry(True, 3.0).until(5.0), Inquiry(True).until(5.0)
            (5.0, 8.0, inf)
        """
        if not self.blocks:
            return now
        return float("inf") if self.timeout_s is None else now + self.timeout_s
