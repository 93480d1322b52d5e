"""How far the demonstration is, in a line, while it runs."""

from __future__ import annotations

import sys
import time
from typing import Any

from ray import tune

import tunekit
from tunekit.core.progress import News
from tunekit.demo.words import progress_line
from tunekit.terminal import terminal_width

__all__ = ["Progress"]


class Progress(tune.Callback):
    """Prints how far the sweep is: in a terminal in one line, twice a second; else every 10 s.

    Example:
        >>> progress = Progress("accuracy")
    """

    def __init__(self, metric: str):
        self._metric = metric
        #: Whose validations are counted.
        self.validation: tunekit.ValidationCallback | None = None
        self._began = time.monotonic()
        self._in_place = sys.stdout.isatty()
        self._news = News(0.0, 0.5) if self._in_place else News(1.0, 10.0)

    def __getstate__(self) -> dict[str, Any]:
        """Return what tells another process to print nothing: Tune pickles callbacks."""
        return {"_metric": self._metric}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore it, to begin anew."""
        Progress.__init__(self, **{name.strip("_"): value for name, value in state.items()})

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Print a line, if it is time."""
        now = time.monotonic()
        if self.validation is None or not self._news.due(now):
            return
        line = progress_line(
            now - self._began,
            [trial.status for trial in trials],
            self.validation.summary(),
            self._best([trial.trial_id for trial in trials]),
        )
        if self._in_place:
            width = (terminal_width() or 80) - 1
            # What is logged meanwhile is written over it.
            print(f"{line[:width]:<{width}}", end="\r", flush=True)
        else:
            print(line, flush=True)

    def close(self) -> None:
        """End the line."""
        if self._in_place:
            print()

    def _best(self, trial_ids: list[str]) -> float | None:
        assert self.validation is not None
        scores = (
            metrics.get(self._metric)
            for trial_id in trial_ids
            for _, metrics in self.validation.history.scores(trial_id)
        )
        return max((score for score in scores if isinstance(score, float)), default=None)
