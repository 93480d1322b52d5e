"""Divide the resources of a cluster between trials and validations."""

from __future__ import annotations

import logging

import ray

from tunekit._ray.cluster import cannot_grow, check_fits
from tunekit._ray.tuner import Settings, is_distributed, trial_bundles
from tunekit.core.shares import total
from tunekit.driver.callback import ValidationCallback
from tunekit.messages.formatting import format_resources
from tunekit.messages.problems import Problems

logger = logging.getLogger(__name__)


def share_cluster(settings: Settings, validation: ValidationCallback) -> None:
    """Make trials and validations fit together on the cluster, starting Ray if necessary.

    If something does not fit, report its need and the cluster's resources.

    Args:
        settings: The sweep's settings.
        validation: The sweep's validations.

    Raises:
        tunekit.errors.ConfigError: If a trial or a validation needs resources that this machine
            lacks, and no other machine can join.
    """
    if not ray.is_initialized():
        ray.init()
    cluster = ray.cluster_resources()
    problems = Problems("Tuner.fit")
    bundles = trial_bundles(settings.trainable, settings.param_space)
    per_trial = None if bundles is None else total(*bundles)
    if per_trial is not None:
        advice = "Ask for less with tune.with_resources, or with fewer workers in scaling_config."
        check_fits("trial", per_trial, cluster, advice, problems)
    per_validation = validation.executor.need
    advice = "Ask for less with ray_remote_kwargs."
    check_fits("validation", per_validation, cluster, advice, problems)
    problems.raise_any()
    have_workers = is_distributed(settings.trainable)
    if not have_workers:
        validation.executor.forbid_workers_in_trials()
    if bundles is None or per_trial is None:
        return
    search_alg = settings.tune_config.search_alg
    limit = settings.tune_config.max_concurrent_trials or getattr(search_alg, "max_concurrent", 0)
    themselves = validation.share(cluster, bundles, have_workers=have_workers, limit=limit or None)
    if themselves and have_workers:
        settings.trainable.host_validations()
    if validation.config.where == "trial" and not themselves:
        problems.add(
            f"where='trial' needs a trial with the resources that a validation takes in one "
            f"process, but a trial has {format_resources(per_trial)} and a validation takes "
            f"{format_resources(per_validation)}. Ask for less with ray_remote_kwargs, or leave "
            "where out."
        )
        problems.raise_any()
    shares = validation.shares
    if limit:
        return
    if themselves:
        logger.info(
            "Trials validate their checkpoints in their own processes, while training waits."
        )
    elif shares.alongside is not None:
        logger.info(
            "At most %d %s (%s each) at once, to leave room for validation (%s each). "
            "Set TuneConfig(max_concurrent_trials=...) to change that%s.",
            shares.alongside,
            "trials train" if shares.alongside != 1 else "trial trains",
            format_resources(per_trial),
            format_resources(per_validation),
            "" if cannot_grow() else ", if the cluster will grow",
        )
    elif shares.exclusive:
        logger.warning(
            "A trial (%s) and a validation (%s) do not fit alongside each other on this cluster "
            "(%s), so a trial that waits for a score pauses. Ask for less with ray_remote_kwargs "
            "or tune.with_resources.",
            format_resources(per_trial),
            format_resources(per_validation),
            format_resources({name: cluster.get(name, 0.0) for name in per_validation}),
        )
