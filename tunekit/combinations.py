"""Which schedulers, searchers and settings can be combined."""

from __future__ import annotations

from typing import Any

from ray import tune
from ray.tune.schedulers import (
    HyperBandForBOHB,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)

from tunekit._ray.scheduler_kinds import innermost, traits_of
from tunekit.core.problems import Problems

# They fit a model to scores, including the numbers that stand for infeasible ones.
_FIT_VALUES = ("AxSearch", "BayesOptSearch", "HEBOSearch", "PB2")


def wrong_together(
    scheduler: Any,
    *,
    on_pending: str,
    reuse_actors: bool,
    search_alg: Any,
    problems: Problems,
    constrained: bool = False,
) -> None:
    """Add a problem for each setting of a sweep that cannot be combined with its scheduler.

    Args:
        scheduler: The scheduler, not wrapped; other objects are ignored.
        on_pending: ``ValidationConfig(on_pending=...)``.
        reuse_actors: ``TuneConfig(reuse_actors=...)``.
        search_alg: ``TuneConfig(search_alg=...)``, as it was passed.
        problems: Where to add it.
        constrained: Whether there are ``ValidationConfig(constraints=...)``.
    """
    decides = innermost(scheduler)
    name = type(decides).__name__
    for kind in (name, type(_within(search_alg)).__name__) if constrained else ():
        if kind in _FIT_VALUES:
            problems.add(
                f"constraints need a scheduler and a searcher that rank scores, but {kind} fits a "
                "model to their values. Use PopulationBasedTraining or OptunaSearch, or leave "
                "constraints out."
            )
    if isinstance(decides, PopulationBasedTraining):
        if traits_of(decides).synchronous and on_pending == "continue":
            problems.add(
                f"{name}(synch=True) compares all trials at the same iteration, but "
                "on_pending='continue' lets them continue. Use on_pending='wait', or synch=False."
            )
        if search_alg is not None and not isinstance(search_alg, tune.search.BasicVariantGenerator):
            problems.add(
                f"{name} chooses hyperparameters itself, and search_alg={search_alg!r} would, too. "
                "Leave search_alg out."
            )
    if isinstance(decides, HyperBandForBOHB) and not hasattr(_within(search_alg), "on_pause"):
        problems.add(
            f"{name} notifies its searcher when a trial pauses, but search_alg={search_alg!r} does "
            "not support that. Pass TuneConfig(search_alg=ray.tune.search.bohb.TuneBOHB()), or use "
            "HyperBandScheduler."
        )
    if isinstance(scheduler, ResourceChangingScheduler) and reuse_actors:
        problems.add(
            "ResourceChangingScheduler restarts trials to change their resources, but "
            "reuse_actors=True keeps their actors. Set TuneConfig(reuse_actors=False)."
        )


def _within(search_alg: Any) -> Any:
    while search_alg is not None and hasattr(search_alg, "searcher"):
        search_alg = search_alg.searcher
    return search_alg
