"""Which checkpoints are validated."""

from __future__ import annotations

__all__ = ["Selection"]


class Selection:
    """Picks each n-th checkpoint of a trial, unless the report of a checkpoint says otherwise.

    Args:
        every: Validate each ``every``-th checkpoint of a trial, counted from its first; or
            ``"decision"``: those whose score is used; or ``"requested"``: those whose report asks.

    Example:
        >>> selection = Selection(every=2)
        >>> [selection.wants("a") for _ in range(4)]
        [False, True, False, True]
        >>> selection.wants("a", wish=True), selection.wants("a", wish=False)
        (True, False)
        >>> asked = Selection(every="requested")
        >>> asked.wants("a"), asked.wants("a", wish=True)
        (False, True)
    """

    def __init__(self, every: int | str = 1):
        self._every = every
        self._saved: dict[str, int] = {}

    def wants(self, trial_id: str, wish: bool | None = None, *, used: bool = True) -> bool:
        """Count one more checkpoint of the trial and say whether to validate it.

        Args:
            trial_id: The trial that saved it.
            wish: What its report asked for: True or False decide, None leaves it to ``every``.
            used: Whether the scheduler will use its score, or it is the trial's last.
        """
        count = self._saved[trial_id] = self._saved.get(trial_id, 0) + 1
        if wish is not None:
            return wish
        if isinstance(self._every, str):
            return used and self._every == "decision"
        return count % self._every == 0
