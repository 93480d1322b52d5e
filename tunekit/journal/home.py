"""Translate recorded paths after an experiment's folder has moved."""

from __future__ import annotations


class Home:
    """Translate paths below an experiment's folder, which may have moved since they were recorded.

    Args:
        folder: The experiment's folder; None leaves paths as they are.

    Example:
        >>> home = Home("/results/digits")
        >>> home.record("/results/digits/trial_a/checkpoint_000001")
        './trial_a/checkpoint_000001'
        >>> Home("bucket/digits").path("./trial_a/checkpoint_000001")
        'bucket/digits/trial_a/checkpoint_000001'
        >>> home.record("/elsewhere/checkpoint")
        '/elsewhere/checkpoint'
    """

    def __init__(self, folder: str | None = None):
        self.folder = folder

    def record(self, path: str) -> str:
        """Return a path as it is recorded."""
        if self.folder is not None and path.startswith(f"{self.folder}/"):
            return f"./{path[len(self.folder) + 1 :]}"
        return path

    def path(self, recorded: str) -> str:
        """Return the current path of a recorded one."""
        if self.folder is not None and recorded.startswith("./"):
            return f"{self.folder}/{recorded[2:]}"
        return recorded
