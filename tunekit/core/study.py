"""A sweep as a study: each trial with one value, its intermediate values and a state.

The states are Optuna's (https://optuna.readthedocs.io, ``optuna.trial.TrialState``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunekit.core.lineage import Exploit
from tunekit.core.metrics import flatten, plain
from tunekit.core.timeline import UNENDED, Scored, Timeline, TrialSummary

__all__ = ["COMPLETE", "FAIL", "PRUNED", "RUNNING", "StudyTrial", "state_of", "study_trials"]

COMPLETE, PRUNED, FAIL, RUNNING = "COMPLETE", "PRUNED", "FAIL", "RUNNING"


@dataclass(frozen=True)
class StudyTrial:
    """A trial of a study.

    Attributes:
        trial_id: The trial.
        state: ``"COMPLETE"``, ``"PRUNED"``, ``"FAIL"`` or ``"RUNNING"``.
        value: Its validated value; None without one, and for a trial that failed.
        hyperparameters: By flat name, those that led to the value.
        intermediate: Its validated values by training iteration.
        began: When it was added, in seconds since the epoch.
        ended: When it ended, likewise; None if it has not.
        attributes: What else is known of it, in types that JSON has.
    """

    trial_id: str
    state: str
    value: float | None
    hyperparameters: Mapping[str, Any]
    intermediate: Mapping[int, float]
    began: float
    ended: float | None
    attributes: Mapping[str, Any] = field(default_factory=dict)


def state_of(trial: TrialSummary, *, validating: bool, whole: bool, scored: bool) -> str:
    """Return a trial's state in a study.

    - ``"FAIL"``: it failed for good, or ran its course without a score, which leaves no value;
    - ``"RUNNING"``: it has not ended, or not all of its validations have;
    - ``"PRUNED"``: its scheduler stopped it before it had got as far as trials get;
    - ``"COMPLETE"``: all others.

    Args:
        trial: What became of it.
        validating: Whether one of its validations has not ended.
        whole: Whether it got as far as trials get: ASHA also stops those that reach ``max_t``.
        scored: Whether it has a validated value.

    Example:
        >>> stopped = TrialSummary("a", status="terminated", stopped=True)
        >>> state_of(stopped, validating=False, whole=False, scored=True)
        'PRUNED'
        >>> state_of(stopped, validating=False, whole=True, scored=True)
        'COMPLETE'
        >>> state_of(TrialSummary("b", status="terminated"), validating=False, whole=True,
        ...          scored=False)
        'FAIL'
    """
    if trial.status == "error":
        return FAIL
    if trial.status != "terminated" or validating:
        return RUNNING
    if trial.stopped and not whole:
        return PRUNED
    return COMPLETE if scored else FAIL


def study_trials(
    timeline: Timeline,
    exploits: Iterable[Exploit],
    metric: str,
    *,
    stands_for: Callable[[str], Scored | None],
    config_of: Callable[[str, int | None], Mapping[str, Any]],
    is_whole: Callable[[TrialSummary], bool],
) -> list[StudyTrial]:
    """Return the trials of a sweep as those of a study, in the order in which they were added.

    Args:
        timeline: What became of the sweep.
        exploits: Which trials were overwritten with which weights.
        metric: The validated metric, by flat name.
        stands_for: Returns the checkpoint whose score is a trial's value.
        config_of: Returns the hyperparameters of a trial in a generation; None for the newest.
        is_whole: Whether a trial that was stopped had got as far as trials get.
    """
    validating = {row["trial_id"] for row in timeline.validations if row["status"] in UNENDED}
    overwritten: dict[str, list[dict[str, Any]]] = {}
    for exploit in exploits:
        overwritten.setdefault(exploit.trial_id, []).append(_told(exploit))
    found = []
    for trial_id, trial in timeline.trials.items():
        scored = stands_for(trial_id)
        value = None if scored is None else scored.value(metric)
        state = state_of(
            trial,
            validating=trial_id in validating,
            whole=is_whole(trial),
            scored=value is not None,
        )
        intermediate = {
            one.iteration: own
            for one in timeline.scores(trial_id)  # of an iteration, the newest generation's
            if (own := one.value(metric)) is not None
        }
        attributes: dict[str, Any] = {"trial_id": trial_id, "generation": trial.generation}
        if scored is not None:
            metrics = flatten(scored.metrics)
            attributes |= {"iteration": scored.iteration, "metrics": plain(metrics)}
        if trial_id in overwritten:
            attributes |= {
                "value_generation": None if scored is None else scored.generation,
                "exploits": overwritten[trial_id],
            }
        found.append(
            StudyTrial(
                trial_id,
                state,
                None if state == FAIL else value,
                flatten(config_of(trial_id, None if scored is None else scored.generation)),
                intermediate,
                trial.added,
                None if state == RUNNING else trial.ended,
                attributes,
            )
        )
    return found


def _told(exploit: Exploit) -> dict[str, Any]:
    names = ("generation", "reached", "donor_id", "donor_generation", "iteration", "score")
    known = {name: getattr(exploit, name) for name in names}
    told: dict[str, Any] = plain({**known, "config": flatten(exploit.config)})
    return told
