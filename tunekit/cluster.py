"""What fits on the cluster: trials, and validations beside them."""

from __future__ import annotations

import logging
from collections.abc import Callable

import ray
from ray.tune.search import ConcurrencyLimiter, SearchAlgorithm

from tunekit._ray.cluster import cannot_grow
from tunekit._ray.tuner import Settings, is_distributed, stand, trial_bundles
from tunekit.core.problems import Problems
from tunekit.core.room import one_at_a_time, total
from tunekit.driver.callback import ValidationCallback
from tunekit.driver.scheduler import base_of
from tunekit.driver.shares import share
from tunekit.scheduling.searcher import ValidatedSearcher
from tunekit.validating.capacity import listed, say_what_is_too_much

__all__ = ["leave_room"]

logger = logging.getLogger(__name__)

# How often to check whether the cluster has grown.
_LOOK_INTERVAL_S = 1.0
# What trials do about pending scores if that was left open: whether validations can run in their
# place, and whether other trials can go on there.
_WHAT_TRIALS_DO = {
    (True, True): "wait where the scheduler decides, and meanwhile validations run in their place, "
    "or the next trial does",
    (True, False): "wait where the scheduler decides, and meanwhile validations that find no free "
    "resources run in their place",
    (False, True): "wait where the scheduler decides, and meanwhile the next trial goes on in "
    "their place",
    (False, False): "train on while scores are pending, up to their next decision: nothing can use "
    "their place meanwhile (a validation does not fit into it, and reuse_actors is off)",
}


# What they do in addition where validations have resources that no trial can use.
_WHERE_IT_PAYS = (
    "; where validations take longer than trials take to start, others start in their place"
)


def leave_room(settings: Settings, validation: ValidationCallback) -> None:
    """Make trials and validations fit beside each other on the cluster; start Ray for that.

    This limits the trials that train at once or, if the scheduler pauses trials, reserves resources
    for validations. If something does not fit, it says what is needed and what there is.

    Args:
        settings: The sweep's settings; ``max_concurrent_trials`` is set in them.
        validation: The sweep's validations.

    Raises:
        tunekit.errors.ConfigError: If a trial or a validation needs what this machine does not
            have and no other machine can join.
    """
    if not ray.is_initialized():
        ray.init()
    cluster = ray.cluster_resources()
    problems = Problems("Tuner.fit")
    bundles = trial_bundles(settings.trainable, settings.param_space)
    per_trial = None if bundles is None else total(*bundles)
    if per_trial is not None:
        advice = "Ask for less with tune.with_resources, or with fewer workers in scaling_config."
        say_what_is_too_much("trial", per_trial, cluster, advice, problems)
    config, per_validation = settings.tune_config, validation.validator.resources
    advice = "Ask for less with ray_remote_kwargs."
    say_what_is_too_much("validation", per_validation, cluster, advice, problems)
    for name, per_stage in validation.stages.resources.items():
        what = f"validation of stage {name!r}"
        say_what_is_too_much(what, per_stage, cluster, advice, problems)
    problems.raise_any()
    if not is_distributed(settings.trainable):
        validation.validator.without_workers()
    if bundles is None or per_trial is None:
        return
    scheduler, swaps = base_of(config.scheduler), bool(config.reuse_actors)
    validation.waiting.have_workers = is_distributed(settings.trainable)
    turns = _Turns(per_trial, per_validation, validation.clock.monotonic)
    room = share(validation, scheduler, cluster, bundles, swaps=swaps, turns=turns)
    if room.themselves and validation.waiting.have_workers:
        stand(settings.trainable)
    if validation.config.where == "trial" and not room.themselves:
        problems.add(
            f"where='trial' needs a trial that has what a validation takes in one process: a trial "
            f"has {listed(per_trial)}, and a validation takes {listed(per_validation)}. Ask for "
            "less with ray_remote_kwargs, or leave where out."
        )
        problems.raise_any()
    if room.alone:
        logger.info(
            "A trial (%s) and a validation (%s) only fit on this cluster one after the other: "
            "checkpoints are validated when no trial runs, and before the next one starts.",
            listed(per_trial),
            listed(per_validation),
        )
        return
    if validation.config.on_pending == "auto":
        lends = validation.validator.fits_in(validation.waiting.place(bundles))
        sooner = _WHERE_IT_PAYS if validation.waiting.room_beside and not swaps else ""
        logger.info("on_pending='auto': trials %s%s.", _WHAT_TRIALS_DO[lends, swaps], sooner)
    if config.max_concurrent_trials:
        return
    if room.known and room.limit is None:
        if room.validations:
            validation.validator.reserve(room.validations)
        return
    search_alg = config.search_alg
    if isinstance(search_alg, ValidatedSearcher):
        search_alg = search_alg.searcher
    if isinstance(search_alg, (SearchAlgorithm, ConcurrencyLimiter)):
        return  # the user has set a limit, or Tune would not keep to one
    if room.limit is not None:
        config.max_concurrent_trials = room.limit
        if not room.validations:
            return
        logger.info(
            "At most %d %s (%s each) at once, to leave room for validation (%s each). "
            "Set TuneConfig(max_concurrent_trials=...) to change that%s.",
            room.limit,
            "trials train" if room.limit != 1 else "trial trains",
            listed(per_trial),
            listed(per_validation),
            "" if cannot_grow() else ", if the cluster is going to grow",
        )
    elif validation.waiting.shares_with_trials:
        logger.warning(
            "A trial (%s) and a validation (%s) do not fit beside each other on this cluster "
            "(%s): scores arrive when trials end, or wait for them. Ask for less with "
            "ray_remote_kwargs or tune.with_resources, or use on_pending='wait'.",
            listed(per_trial),
            listed(per_validation),
            listed({name: cluster.get(name, 0.0) for name in per_validation}),
        )


class _Turns:
    """Whether a trial and a validation can still only run one after the other.

    Args:
        trial: What one trial takes.
        validation: What one validation takes.
        now: Returns the time, in seconds.
    """

    def __init__(
        self,
        trial: dict[str, float],
        validation: dict[str, float],
        now: Callable[[], float],
    ):
        self._trial, self._validation, self._now = trial, validation, now
        self._next_look = now() + _LOOK_INTERVAL_S
        self._taken = True

    def __call__(self) -> bool:
        now = self._now()
        if self._taken and now >= self._next_look:  # the cluster may have grown
            self._next_look = now + _LOOK_INTERVAL_S
            self._taken = one_at_a_time(ray.cluster_resources(), self._trial, self._validation)
        return self._taken
