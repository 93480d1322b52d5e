"""The exploits of a sweep as tables: which weights went where, with which hyperparameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from tunekit.core.events import Exploited
from tunekit.core.lineage import Ancestry
from tunekit.core.metrics import flatten
from tunekit.core.values import encodable
from tunekit.messages.problems import Problems, format_argument


class Lineage:
    """The exploits of a sweep, as tables.

    An exploit overwrites a trial with a checkpoint, usually another trial's, and begins a new
    *generation* of the trial. ``tuner.validation.lineage`` has the exploits of a sweep that is
    running or has run in this process, ``tunekit.load(path).lineage`` those of any sweep.

    Args:
        exploits: The exploits, in order.

    Example:
        >>> lineage = Lineage([Exploited(
        ...     time=12.5, trial_id="b", generation=1, reached=5, donor_id="a", donor_generation=0,
        ...     iteration=4, checkpoint="a/checkpoint_3", score=0.9, old_config={"lr": 9.0},
        ...     donor_config={"lr": 1.0}, config={"lr": 2.0},
        ... )])
        >>> lineage.to_dataframe()[["trial_id", "donor_id", "iteration", "score", "config/lr"]]
          trial_id donor_id  iteration  score  config/lr
        0        b        a          4    0.9        2.0
        >>> lineage.schedule("b")
           iteration   lr
        0          0  1.0
        1          4  2.0
    """

    def __init__(self, exploits: Iterable[Exploited] = ()):
        self._ancestry = Ancestry(exploits)

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per exploit, in order.

        Columns:

        - ``time``: a UTC timestamp;
        - ``trial_id``, ``generation``: the trial that was overwritten, and the generation that
          began, 1 for the first exploit;
        - ``reached``: the last training iteration that it had reported;
        - ``donor_id``, ``donor_generation``: the trial that had saved the checkpoint;
        - ``iteration``: the training iteration of the checkpoint, from which the trial continued;
        - ``checkpoint``: the checkpoint's path at that time;
        - ``score``: the validated score by which the donor was ranked;
        - ``old_config/...``: the trial's hyperparameters until then, one column each;
        - ``donor_config/...``: the hyperparameters that the checkpoint was trained with;
        - ``config/...``: the hyperparameters that the trial continued with.
        """
        return _table(self._ancestry)

    def ancestors(self, trial_id: str, generation: int | None = None) -> pd.DataFrame:
        """Return the exploits that led to a trial's weights, oldest first.

        The columns are those of :meth:`to_dataframe`.

        Args:
            trial_id: The trial.
            generation: Which of its generations; the newest by default.

        Raises:
            tunekit.errors.ConfigError: If the trial has no such generation.
        """
        return _table(self._line(trial_id, generation))

    def schedule(self, trial_id: str, generation: int | None = None) -> pd.DataFrame:
        """Return the hyperparameters that a trial's weights were trained with, as they changed.

        One row per change: ``iteration``, from which on they applied, and a column for each
        hyperparameter, by its flat name. Empty for weights without an exploit, which were trained
        with a single configuration.

        Args:
            trial_id: The trial.
            generation: Which of its generations; the newest by default.

        Raises:
            tunekit.errors.ConfigError: If the trial has no such generation.
        """
        self._line(trial_id, generation)
        changes = self._ancestry.schedule(trial_id, generation)
        return frame_of({"iteration": at, **flatten(config)} for at, config in changes)

    def _line(self, trial_id: str, generation: int | None) -> list[Exploited]:
        problems = Problems("Lineage")
        known = problems.instance("trial_id", trial_id, str, "Pass the ID of a trial.")
        newest = self._ancestry.generation(trial_id) if known else 0
        is_number = isinstance(generation, int)
        if generation is not None and not (is_number and 0 <= generation <= newest):
            problems.add(
                f"generation={format_argument(generation)} of trial {trial_id!r} does not exist. "
                f"Pass {newest}, its newest, or less."
            )
        problems.raise_any()
        return self._ancestry.line(trial_id, generation)

    def __len__(self) -> int:
        """Return how many exploits there were."""
        return len(self._ancestry)

    def __repr__(self) -> str:
        return f"Lineage({len(self)} exploits)"


def frame_of(rows: Iterable[Mapping[str, Any]], **options: Any) -> pd.DataFrame:
    """Return rows as a table, without lone surrogates, which pandas does not accept."""
    plain = [
        {encodable(k): encodable(v) if type(v) is str else v for k, v in row.items()}
        for row in rows
    ]
    return pd.DataFrame(plain, **options)


def _table(exploits: Iterable[Exploited]) -> pd.DataFrame:
    names = [name for name in Exploited.__struct_fields__ if name != "n"]
    columns = [name for name in names if not name.endswith("config")]
    fields = [{name: getattr(exploit, name) for name in names} for exploit in exploits]
    rows = [flatten({k: v for k, v in one.items() if v or k in columns}) for one in fields]
    table = frame_of(rows, columns=None if rows else columns)
    table["time"] = pd.to_datetime(pd.to_numeric(table["time"]), unit="s", utc=True)
    return table
