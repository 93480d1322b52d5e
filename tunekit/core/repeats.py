"""A sweep's trials as repeats: what each one contributes to its configuration's mean over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tunekit.core.metrics import flatten
from tunekit.core.ranking import ConfigOf, stands_for
from tunekit.core.seeds import Repeat, ending_of
from tunekit.core.timeline import UNENDED, Timeline, TrialSummary
from tunekit.core.values import number

__all__ = ["repeats_of", "whole_trials"]


def repeats_of(
    timeline: Timeline,
    config_of: ConfigOf,
    is_whole: Callable[[TrialSummary], bool],
    *,
    metric: str,
    mode: str,
    scope: str,
) -> Iterator[Repeat]:
    """Yield each trial as a repeat of its configuration, in the order in which they were added.

    Args:
        timeline: What became of the sweep.
        config_of: Returns the hyperparameters of a trial in a generation.
        is_whole: Returns whether a trial that was stopped had got as far as trials get.
        metric: A validated metric, by flat name.
        mode: ``"min"`` or ``"max"``.
        scope: What stands for a trial: ``"best"`` or ``"last"``.
    """
    validating = {row["trial_id"] for row in timeline.validations if row["status"] in UNENDED}
    for trial_id, story in timeline.trials.items():
        scored = stands_for(timeline, trial_id, metric, mode, scope)
        pending, whole = trial_id in validating, is_whole(story)
        yield Repeat(
            trial_id,
            flatten(config_of(trial_id, None if scored is None else scored.generation)),
            None if scored is None else scored.value(metric),
            ending_of(story, validating=pending, whole=whole),
        )


def whole_trials(timeline: Timeline, session: Mapping[str, Any]) -> Callable[[TrialSummary], bool]:
    """Return a function that says whether a trial that was stopped had got as far as trials get.

    That is the scheduler's ``max_t``, if it is recorded; otherwise, as far as any trial got. A
    ``FIFOScheduler`` stops none: a stopping criterion of the user's did, which says when a trial
    has run its course.

    Args:
        timeline: What became of the sweep.
        session: What the journal says of how the sweep was run, in its newest session.

    Example:
        >>> from tunekit.core.events import Reported, TrialAdded
        >>> timeline = Timeline([
        ...     TrialAdded(time=0.0, trial_id="a"),
        ...     Reported(time=1.0, trial_id="a", report={"training_iteration": 3}),
        ... ])
        >>> asha = {"type": "ASHAScheduler", "settings": {}}
        >>> for max_t in (3, 9):
        ...     asha["settings"] = {"max_t": max_t, "time_attr": "training_iteration"}
        ...     whole_trials(timeline, {"scheduler": asha})(timeline.trials["a"])
        True
        False
        >>> whole_trials(timeline, {})(timeline.trials["a"])
        True
    """
    scheduler = session.get("scheduler") or {}
    settings = scheduler.get("settings") or {}
    most, time_attr = number(settings.get("max_t")), settings.get("time_attr")
    furthest = max((story.iteration for story in timeline.trials.values()), default=0)

    def is_whole(story: TrialSummary) -> bool:
        if scheduler.get("type") == "FIFOScheduler":
            return True
        if most is not None and isinstance(time_attr, str):
            reached = timeline.reached(story.trial_id, time_attr)
            return reached is not None and reached >= most
        return story.iteration >= furthest

    return is_whole
