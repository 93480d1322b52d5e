"""Where an experiment lies, which may be moved."""

from __future__ import annotations

__all__ = ["Places"]


class Places:
    """Paths below an experiment's folder, which may have been moved since they were written down.

    Args:
        home: The experiment's folder; None leaves paths as they are.

    Example:
        >>> places = Places("/results/digits")
        >>> places.record("/results/digits/trial_a/checkpoint_000001")
        './trial_a/checkpoint_000001'
        >>> Places("bucket/digits").path("./trial_a/checkpoint_000001")
        'bucket/digits/trial_a/checkpoint_000001'
        >>> places.record("/elsewhere/checkpoint")
        '/elsewhere/checkpoint'
    """

    def __init__(self, home: str | None = None):
        self.home = home

    def record(self, path: str) -> str:
        """Return how a path is written down."""
        if self.home is not None and path.startswith(f"{self.home}/"):
            return f"./{path[len(self.home) + 1 :]}"
        return path

    def path(self, recorded: str) -> str:
        """The path that was written down."""
        if self.home is not None and recorded.startswith("./"):
            return f"{self.home}/{recorded[2:]}"
        return recorded
