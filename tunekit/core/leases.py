"""Which checkpoints must not be deleted, and for whom they are kept."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

__all__ = ["Leases"]


class Leases:
    """Checkpoints that somebody still needs: a validation, a scheduler, a clone.

    A holder has one lease at a time; taking another gives the first one back. Several holders may
    have a lease on the same checkpoint, which is free when the last one has given it back.

    Example:
        >>> leases = Leases()
        >>> leases.take("validation 1", "trial_a/checkpoint_3")
        >>> leases.take("clone b", "trial_a/checkpoint_3")
        >>> leases.release("validation 1")
        >>> "trial_a/checkpoint_3" in leases
        True
        >>> leases.release("clone b")
        'trial_a/checkpoint_3'
    """

    def __init__(self) -> None:
        self._paths: dict[Hashable, str] = {}
        self._holders: dict[str, set[Hashable]] = {}

    def take(self, holder: Hashable, path: str) -> str | None:
        """Keep ``path`` for ``holder``; return the path that became free by that, if any."""
        if self._paths.get(holder) == path:
            return None
        freed = self.release(holder)
        self._paths[holder] = path
        self._holders.setdefault(path, set()).add(holder)
        return freed

    def release(self, holder: Hashable) -> str | None:
        """Give back what ``holder`` has; return its path if nobody else needs it."""
        path = self._paths.pop(holder, None)
        if path is None:
            return None
        holders = self._holders[path]
        holders.discard(holder)
        if holders:
            return None
        del self._holders[path]
        return path

    def held(self, holder: Hashable) -> str | None:
        """The path that is kept for ``holder``, if any."""
        return self._paths.get(holder)

    def __contains__(self, path: object) -> bool:
        return path in self._holders

    def __iter__(self) -> Iterator[str]:
        return iter(self._holders)

    def __len__(self) -> int:
        """Return how many checkpoints are kept."""
        return len(self._holders)
