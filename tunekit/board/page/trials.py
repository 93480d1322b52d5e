"""What the page shows of one trial: its configuration, checkpoints, validations and error."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunekit.board.page.drawing import Findings
from tunekit.core.metrics import plain
from tunekit.core.ranking import Ranked
from tunekit.journal.places import Places
from tunekit.reading.sweep import Sweep

__all__ = ["Panel", "Validated", "joined", "most_rows", "panels", "status_in_words"]

# So many rows of validations all panels have together, and each has no fewer and no more than.
_ROWS, _FEWEST, _MOST = 5_000, 5, 200


@dataclass(frozen=True)
class Validated:
    """A checkpoint that was validated, or is to be.

    Attributes:
        generation: Of its trial.
        iteration: At which it was saved.
        status: Of its validation.
        score: Its validated value of the metric that trials are ranked by; None without.
        waited_s: From the request to the last attempt, in seconds; None before.
        ran_s: How long that attempt ran, likewise.
        reason: Why there is no score.
        loads: The Python expression that loads the checkpoint.
        is_best: Whether it is its trial's best.
    """

    generation: int
    iteration: int
    status: str
    score: float | None
    waited_s: float | None
    ran_s: float | None
    reason: str | None
    loads: str
    is_best: bool


@dataclass(frozen=True)
class Panel:
    """A trial, to be shown in full.

    Attributes:
        trial_id: The trial.
        name: Its short name.
        status: What became of it, in words.
        rank: Its place in the ranking; None without a score.
        score: Its best validated value of the metric; None without.
        iteration: That it has reported last.
        generation: Of its best checkpoint.
        config: Its hyperparameters by flat name, as of that.
        config_json: The same as JSON, nested as they are.
        rows: Its validated checkpoints, the newest first.
        left_out: How many of them are left out.
        loads: The Python that loads its best checkpoint; None if there is none.
        folder: Where its files are.
        error: What Tune recorded of its failures; None if nothing.
        trained_s: How long it trained, in seconds.
        waited_s: How long it waited for scores, in seconds.
    """

    trial_id: str
    name: str
    status: str
    rank: int | None
    score: float | None
    iteration: int
    generation: int
    config: Mapping[str, Any]
    config_json: str
    rows: Sequence[Validated]
    left_out: int
    loads: str | None
    folder: str
    error: str | None
    trained_s: float
    waited_s: float

    @property
    def generations(self) -> bool:
        """Return whether its checkpoints are of more generations than the first."""
        return any(row.generation for row in self.rows)


def status_in_words(one: Ranked) -> str:
    """Return what became of a trial."""
    stopped = one.story.stopped and one.story.status == "terminated"
    return "stopped" if stopped else one.story.status


def most_rows(trials: int) -> int:
    """Return how many validations each panel shows, of so many trials that are shown at once.

    Example:
        >>> most_rows(1), most_rows(100), most_rows(100_000)
        (200, 50, 5)
    """
    return max(_FEWEST, min(_MOST, _ROWS // max(1, trials)))


def panels(
    found: Findings, errors: Mapping[str, str], trial_ids: Iterable[str] | None = None
) -> dict[str, Panel]:
    """Return trials as panels.

    Args:
        found: What the sweep has come to.
        errors: What Tune recorded of failures, by trial.
        trial_ids: Which ones; by default all.
    """
    ranked = {one.trial_id: one for one in found.ranked}
    wanted = list(ranked) if trial_ids is None else [one for one in trial_ids if one in ranked]
    rows: dict[str, list[Mapping[str, Any]]] = {trial_id: [] for trial_id in wanted}
    for row in found.sweep.timeline.validations:
        if row["trial_id"] in rows:
            rows[row["trial_id"]].append(row)
    most = most_rows(len(wanted))
    return {
        trial_id: _panel(found, ranked[trial_id], rows[trial_id], errors.get(trial_id), most)
        for trial_id in wanted
    }


def _panel(
    found: Findings, one: Ranked, rows: Sequence[Mapping[str, Any]], error: str | None, most: int
) -> Panel:
    sweep, story = found.sweep, one.story
    best = None if one.best is None else (one.best.generation, one.best.iteration)
    values = {
        (scored.generation, scored.iteration): scored.value(found.metric)
        for scored in sweep.timeline.scores(one.trial_id)
    }
    newest = sorted(rows, key=lambda row: (row["generation"], row["iteration"], row["run"]))[::-1]
    shown = [
        _validated(sweep, row, values, best)
        for n, row in enumerate(newest)
        if n < most or (row["generation"], row["iteration"]) == best
    ]
    return Panel(
        trial_id=one.trial_id,
        name=one.name,
        status=status_in_words(one),
        rank=one.rank,
        score=one.best_value,
        iteration=story.iteration,
        generation=0 if one.best is None else one.best.generation,
        config=one.hyperparameters,
        config_json=json.dumps(plain(one.config), default=str),
        rows=shown,
        left_out=len(newest) - len(shown),
        loads=None if one.best is None else _loads(sweep, one.best.checkpoint),
        folder=_path(sweep, f"./{story.folder}"),
        error=error,
        trained_s=story.trained_s,
        waited_s=story.waited_s,
    )


def _validated(
    sweep: Sweep,
    row: Mapping[str, Any],
    values: Mapping[tuple[int, int], float | None],
    best: tuple[int, int] | None,
) -> Validated:
    place = (row["generation"], row["iteration"])
    run = sweep.timeline.run_of(row["trial_id"], *place)
    counts = row["status"] == "validated" and row["run"] >= run
    return Validated(
        generation=row["generation"],
        iteration=row["iteration"],
        status=row["status"],
        score=values.get(place) if counts else None,
        waited_s=row["waited_s"],
        ran_s=row["ran_s"],
        reason=row["reason"],
        loads=_loads(sweep, row["checkpoint"]),
        is_best=counts and place == best,
    )


def _path(sweep: Sweep, recorded: str) -> str:
    """Return where something of the sweep's is, as another process finds it: a path, or a URI."""
    path = Places(sweep.path or None).path(recorded)
    if sweep.source is not None and path.startswith(f"{sweep.path}/"):
        return joined(sweep.source, path[len(sweep.path) + 1 :])
    return path


def joined(source: str, below: str) -> str:
    """Return the path or URI of what is below a folder; a URI's query stays at its end.

    Example:
        >>> joined("/results", "digits"), joined("s3://bucket/results?region=eu", "digits")
        ('/results/digits', 's3://bucket/results/digits?region=eu')
    """
    if not below:
        return source
    base, mark, query = source.partition("?") if "://" in source else (source, "", "")
    return f"{base.rstrip('/')}/{below}{mark}{query}"


def _loads(sweep: Sweep, recorded: str) -> str:
    """Return the Python that loads a checkpoint."""
    own = "" if sweep.source is not None else ", filesystem"
    return f"ray.tune.Checkpoint({_path(sweep, recorded)!r}{own})"
