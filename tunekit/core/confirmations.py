"""Which confirmation of a winner counts, as the sweep may have gone on since."""

from __future__ import annotations

from collections.abc import Sequence

from tunekit.core.confirmation import Confirmed
from tunekit.core.metrics import flatten
from tunekit.core.timeline import Scored, Timeline, better
from tunekit.core.values import number

__all__ = ["confirmation_that_counts", "is_outdated", "winning_score"]


def confirmation_that_counts(
    confirmations: Sequence[Confirmed], timeline: Timeline, metric: str, mode: str, by: str
) -> Confirmed | None:
    """Return the newest confirmation of what is asked for; None if there is none that holds.

    An older one does not take the place of one that is outdated.

    Args:
        confirmations: Those that have ended; newest last.
        timeline: What became of the sweep.
        metric: What the winner is the best by, as a flat name.
        mode: ``"min"`` or ``"max"``.
        by: ``"trial"`` or ``"configuration"``.

    Example:
        >>> confirmation_that_counts([], Timeline(()), "accuracy", "max", "trial") is None
        True
    """
    for one in reversed(confirmations):
        if (one.metric, one.mode, one.by) == (metric, mode, by):
            counts = winning_score(one, timeline) is not None and not is_outdated(one, timeline)
            return one if counts else None
    return None


def is_outdated(confirmed: Confirmed, timeline: Timeline) -> bool:
    """Return whether the sweep has validated since what would have been a candidate."""
    places = {(one.trial_id, *one.place) for one in confirmed.candidates}
    scores: dict[bool, list[float]] = {True: [], False: []}
    for row in timeline.validations:
        there = (row["trial_id"], row["generation"], row["iteration"]) in places
        if row["status"] == "validated" and (there or row["ended"] > confirmed.began):
            value = number(flatten(row["metrics"]).get(confirmed.metric))
            if value is not None:
                scores[there].append(value)
    worst = (min if confirmed.mode == "max" else max)(scores[True], default=None)
    return worst is not None and any(
        better(confirmed.mode, value, worst) for value in scores[False]
    )


def winning_score(confirmed: Confirmed, timeline: Timeline) -> Scored | None:
    """Return the score of a confirmed checkpoint, unless the trial has run that again since."""
    winner = confirmed.winner
    if winner.trial_id not in timeline.trials:
        return None
    for scored in timeline.scores(winner.trial_id):
        known = scored.value(confirmed.metric)
        if (scored.generation, scored.iteration) == winner.place and known is not None:
            return scored
    return None
