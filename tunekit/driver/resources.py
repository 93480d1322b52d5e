"""Divide the resources of a cluster between trials and validations."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import ray

from tunekit._ray.cluster import cannot_grow, check_fits
from tunekit._ray.tuner import (
    FOR_DATA,
    Settings,
    is_distributed,
    most_trials,
    reads_data,
    trial_bundles,
)
from tunekit.core.shares import divide, shares, total
from tunekit.driver.callback import ValidationCallback
from tunekit.messages.formatting import format_resources
from tunekit.messages.problems import Problems

logger = logging.getLogger(__name__)

_FOR_DATA = (
    "At most %s trials run at once: each leaves a CPU for Ray Data, which loads the trainer's "
    "datasets outside of the trial's resources."
)


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
    cluster, problems = _cluster(), Problems("Tuner.fit")
    bundles, data = _check_trial(settings, cluster, problems)
    per_validation = validation.executor.need
    advice = "Ask for less with ray_remote_kwargs."
    check_fits("validation", per_validation, cluster, advice, problems)
    problems.raise_any()
    have_workers = is_distributed(settings.trainable)
    if not have_workers:
        validation.executor.forbid_workers_in_trials()
    if bundles is None:
        return
    per_trial, search_alg = total(*bundles), settings.tune_config.search_alg
    limit = settings.tune_config.max_concurrent_trials or getattr(search_alg, "max_concurrent", 0)
    validation.shares = divide(
        cluster,
        bundles,
        per_validation,
        most=validation.config.most_in_flight or 1,
        limit=limit or None,
        # A restored sweep's settings may lack its search space.
        number=most_trials(settings) if validation.restore.searcher_line is None else None,
        alongside=data,
        have_workers=have_workers,
    )
    waits = validation.config.on_pending != "continue"
    themselves = waits and validation.executor.fits_in(validation.shares.processes(bundles))
    if themselves and have_workers:
        by_all = bool(getattr(validation.config.fn, "bundles", ()))
        settings.trainable.host_validations(by_all=by_all)
    if validation.config.where == "trial" and not themselves:
        problems.add(
            f"where='trial' needs a trial with the resources that a validation takes in one "
            f"process, but a trial has {format_resources(per_trial)} and a validation takes "
            f"{format_resources(per_validation)}. Ask for less with ray_remote_kwargs, or leave "
            "where out."
        )
        problems.raise_any()
    known = validation.shares
    if data:
        logger.info(_FOR_DATA, known.at_once)
    if limit:
        return
    if themselves:
        logger.info(
            "Trials validate their checkpoints in their own processes, while training waits."
        )
    elif known.alongside is not None:
        logger.info(
            "At most %d %s (%s each) at once, to leave room for validation (%s each). "
            "Set TuneConfig(max_concurrent_trials=...) to change that%s.",
            known.alongside,
            "trials train" if known.alongside != 1 else "trial trains",
            format_resources(per_trial),
            format_resources(per_validation),
            "" if cannot_grow() else ", if the cluster will grow",
        )
    elif known.exclusive:
        logger.warning(
            "A trial (%s) and a validation (%s) do not fit alongside each other on this cluster "
            "(%s), so a trial that waits for a score pauses. Ask for less with ray_remote_kwargs "
            "or tune.with_resources.",
            format_resources(per_trial),
            format_resources(per_validation),
            format_resources({name: cluster.get(name, 0.0) for name in per_validation}),
        )


def leave_room_for_data(settings: Settings) -> None:
    """Limit the trials of a sweep without validation, so that Ray Data can load their datasets.

    Args:
        settings: The sweep's settings; ``max_concurrent_trials`` is changed.

    Raises:
        tunekit.errors.ConfigError: As for :func:`share_cluster`.
    """
    if not reads_data(settings.trainable, settings.param_space):
        return
    cluster, problems = _cluster(), Problems("Tuner.fit")
    bundles, data = _check_trial(settings, cluster, problems)
    problems.raise_any()
    limit = settings.tune_config.max_concurrent_trials
    known = shares(cluster, total(*bundles or [], data), {}, most=0, limit=limit)
    settings.tune_config.max_concurrent_trials = known.at_once
    logger.info(_FOR_DATA, known.at_once)


def _cluster() -> dict[str, float]:
    """Return the resources of the cluster, starting Ray if necessary."""
    if not ray.is_initialized():
        ray.init()
    return dict(ray.cluster_resources())


def _check_trial(
    settings: Settings, cluster: Mapping[str, float], problems: Problems
) -> tuple[list[dict[str, float]] | None, Mapping[str, float]]:
    """Return a trial's bundles, if known, and what must be free in addition; check that it fits."""
    bundles = trial_bundles(settings.trainable, settings.param_space)
    data = FOR_DATA if reads_data(settings.trainable, settings.param_space) else {}
    if bundles is not None:
        what = "trial, with a CPU for Ray Data to load its datasets," if data else "trial"
        advice = "Ask for less with tune.with_resources, or with fewer workers in scaling_config."
        check_fits(what, total(*bundles, data), cluster, advice, problems)
    return bundles, data
