"""Who holds the slots of a machine that is not there: trials, and validations beside them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Slots"]


@dataclass
class Slots:
    """So many places for trials and validations, and some for validations alone.

    A validation takes one of its own if one is free, else one that it shares with trials.

    Attributes:
        shared: How many slots trials and validations share.
        own: How many validations have for themselves.
        kept: How many of the shared ones no trial may take.
        trials: How many trials hold one.
        validations: How many validations hold one, of either kind.

    Example:
        >>> slots = Slots(shared=2, own=1)
        >>> slots.trials = 1
        >>> slots.for_validations, slots.for_trials
        (2, 1)
        >>> slots.validations = 2
        >>> slots.for_validations, slots.for_trials
        (0, 0)
    """

    shared: int
    own: int = 0
    kept: int = 0
    trials: int = 0
    validations: int = 0

    @property
    def _taken(self) -> int:
        """Return how many shared slots validations hold."""
        return max(0, self.validations - self.own)

    @property
    def for_validations(self) -> int:
        """Return how many more validations fit."""
        free = self.shared - self.trials - self._taken
        return max(0, self.own - self.validations) + max(0, free)

    @property
    def for_trials(self) -> int:
        """Return how many more trials fit."""
        return max(0, self.shared - self.trials - max(self.kept, self._taken))
