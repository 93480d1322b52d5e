"""Begin a sweep from the configurations, scores and checkpoints of a former one."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray import tune
from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.search import BasicVariantGenerator

from tunekit._ray.compat import its
from tunekit._ray.scheduler_kinds import innermost, mode_of, objectives_of
from tunekit._ray.searchers import cannot_run_first, domains_of, fitting, run_first
from tunekit._ray.storage import exists
from tunekit._ray.tuner import innermost_searcher
from tunekit.config import ValidationConfig
from tunekit.core.constraints import Constraint
from tunekit.core.history import GENERATION, ITERATION
from tunekit.core.metric_names import listed
from tunekit.core.metrics import flatten
from tunekit.core.problems import Problems
from tunekit.core.timeline import ScoredCheckpoint, Timeline
from tunekit.core.warm_start import (
    Point,
    WarmStart,
    distinct,
    how_many,
    ranked,
    unsearched,
    value_at,
)
from tunekit.errors import TunekitError
from tunekit.reading.sweep import Sweep, load
from tunekit.scheduling.searcher import ValidatedSearcher


def warm_start_from(
    given: Any,
    *,
    space: Mapping[str, Any],
    tune_config: tune.TuneConfig,
    scheduler: Any,
    config: ValidationConfig | None,
    seed_param: str | None,
    problems: Problems,
) -> WarmStart | None:
    """Return the warm start of a sweep; add a problem for each misfit.

    Args:
        given: ``Tuner(warm_start=...)``.
        space: The search space.
        tune_config: The settings, with the search algorithm itself rather than its name.
        scheduler: The scheduler, not wrapped.
        config: How checkpoints are validated.
        seed_param: The hyperparameter that is the random seed, if there is one.
        problems: The list to add problems to.
    """
    searcher = innermost_searcher(tune_config.search_alg)
    decides = None if isinstance(scheduler, str) else innermost(scheduler)
    objectives = _objectives(searcher, decides, tune_config)
    if config is None or not objectives:
        lacking = "validation_config" if config is None else "TuneConfig(metric=..., mode=...)"
        problems.add(
            f"warm_start ranks the trials of the former sweep by validation scores. Pass {lacking}."
        )
    if why := cannot_run_first(searcher):
        problems.add(why)
    sweep = _sweep_of(given, problems)
    if sweep is None or config is None or problems:
        return None
    domains, grid = domains_of(space)
    seeds = {one for one in (sweep.seed_param, seed_param) if one is not None}
    clones = isinstance(decides, PopulationBasedTraining)
    # Population based training changes these beyond their search space.
    changed = set(flatten(its(decides, "_hyperparam_mutations"))) if clones else set[str]()
    own = seeds if isinstance(searcher, BasicVariantGenerator) else ()  # drawn for each trial
    names = {*(domains.keys() - own), *(one for one in changed if value_at(space, one))}
    timeline = sweep.timeline.under(config.constraints)
    taken = {name: domains.get(name) for name in sorted(names)}
    former = _Former(timeline, taken, changed, objectives)
    if not names:
        problems.add(
            "param_space= draws no hyperparameter, so there is nothing to begin with: all values "
            "of a grid search are tried anyway. Use tune.choice, or leave warm_start out."
        )
    new = {*domains, *grid, *changed, *seeds}
    for one in unsearched(sweep.all_hyperparameters(), sweep.space, new):
        problems.add(
            f"the former sweep searched {one.name!r} ({one}) and param_space= does not, so scores "
            "are not comparable. Search it, too, or leave warm_start out."
        )
    seed = sweep.seed_param if sweep.has_seeds else None
    kept = trials = ranked(timeline, sweep.newest_session, objectives, seed)
    if not trials:
        problems.add(
            f"no trial of the former sweep has a validated {' and '.join(map(repr, objectives))}, "
            f"but {listed(sweep.timeline.names)}. Rank by one of these, or leave warm_start out."
        )
    elif clones:
        at = sweep.filesystem
        kept = [one for one in trials if at is not None and exists(at, one[1].checkpoint)]
        if not kept:
            problems.add(
                "the best checkpoints of the former sweep, from which a population starts, no "
                "longer exist. Use another scheduler, or leave warm_start out."
            )
    many, repeat = tune_config.num_samples, _repeat(tune_config.search_alg)
    most = how_many(many, len(sweep.timeline.trials), repeat)
    if clones:
        most = many if many > 0 else len(kept)
    places = distinct((former.values(*one) for one in kept), seeds)[:most]
    first = [former.point(*kept[place]) for place in places]
    # BOHB receives a trial's results while the trial runs.
    plays = not (own is seeds or hasattr(searcher, "on_pause"))
    ids = [trial_id for trial_id, _ in trials] if plays else []
    told = list(former.results(ids, config.constraints))
    former.explain(problems)
    checkpoints = [tune.Checkpoint(kept[one][1].checkpoint, sweep.filesystem) for one in places]
    return WarmStart(sweep.path, first, told, checkpoints if clones else ())


def begin_from(
    warm_start: WarmStart,
    search_alg: Any,
    space: Mapping[str, Any],
    constraints: Sequence[Constraint],
) -> None:
    """Pass the warm start to a search algorithm, wrapped as the sweep will use it."""
    points = [*(point for point, _ in warm_start.told), *warm_start.first]
    run_first(innermost_searcher(search_alg), points, domains_of(space)[0])
    while warm_start.told and not isinstance(search_alg, ValidatedSearcher):
        search_alg = search_alg.searcher
    if warm_start.told:
        search_alg.begin_from(warm_start.told, constraints)


def _sweep_of(given: Any, problems: Problems) -> Sweep | None:
    sweep, fix = given, "Pass the former experiment's folder, its URI, or a tunekit.Sweep."
    if isinstance(given, (str, os.PathLike)):
        try:
            sweep = load(os.fspath(given))
        except (TunekitError, OSError) as error:
            problems.add(f"warm_start={os.fspath(given)!r} cannot be read. {error}")
            return None
    if not problems.instance("warm_start", sweep, Sweep, fix):
        return None
    if sweep.driver is not None and sweep.driver.alive:
        problems.add(
            f"warm_start={sweep.path!r} is being run on {sweep.driver.host}: its best trial may "
            "change, and its checkpoints may be deleted. Wait until it has ended, or stop it."
        )
    return sweep


def _objectives(searcher: Any, scheduler: Any, given: tune.TuneConfig) -> dict[str, str]:
    """Return the metrics that the new sweep ranks by, each with its mode."""
    metric: Any = getattr(searcher, "metric", None)
    mode: Any = getattr(searcher, "mode", None)
    if isinstance(metric, list):
        return dict(zip(metric, mode, strict=True))
    metric, mode = metric or given.metric, mode or given.mode or (scheduler and mode_of(scheduler))
    known = {metric: mode} if metric or not scheduler else objectives_of(scheduler, mode)
    return {name: better for name, better in known.items() if name and better}


def _repeat(search_alg: Any) -> int:
    """Return how many trials run each suggestion: several with a ``Repeater``."""
    while not hasattr(search_alg, "repeat") and hasattr(search_alg, "searcher"):
        search_alg = search_alg.searcher
    return getattr(search_alg, "repeat", 1)


@dataclass
class _Former:
    """A former sweep, as the source of a warm start.

    Attributes:
        timeline: Its history, under the new constraints.
        domains: The new domains of the hyperparameters that are taken; None for a constant.
        free: The hyperparameters for which any value is accepted.
        objectives: The metrics that the new sweep ranks by.
        misfits: The former values that do not fit, by name.
    """

    timeline: Timeline
    domains: Mapping[str, Any]
    free: Collection[str]
    objectives: Mapping[str, str]
    misfits: dict[str, list[Any]] = field(default_factory=dict)

    def values(self, trial_id: str, scored: ScoredCheckpoint) -> dict[str, list[Any]]:
        """Return the hyperparameters that a checkpoint was trained with, as recorded."""
        config = self.timeline.config_of(trial_id, scored.generation)
        return {name: value_at(config, name) for name in self.domains}

    def point(self, trial_id: str, scored: ScoredCheckpoint) -> Point:
        """Return the hyperparameters that a checkpoint was trained with, as in the search space."""
        point = {}
        for name, values in self.values(trial_id, scored).items():
            any_will_do = name in self.free or not values
            own = values if any_will_do else fitting(self.domains[name], values[0])
            if own:
                point[name] = own[0]
            else:
                self.misfits.setdefault(name, []).extend(values)
        return point

    def results(
        self, trial_ids: Iterable[str], constraints: Iterable[Constraint]
    ) -> Iterator[tuple[Point, dict[str, Any]]]:
        """Yield the results that a searcher would have received: the newest of each trial."""
        wanted = [*self.objectives, *(one.metric for one in constraints), ITERATION]
        for trial_id in dict.fromkeys(trial_ids):
            scored = self.timeline.score(trial_id, wanted[0], None)
            rows = {(r.get(GENERATION, 0), r[ITERATION]): r for r in self.timeline.rows(trial_id)}
            if scored is not None and scored.place in rows:
                row = flatten(rows[scored.place])
                result = {name: row[name] for name in wanted if name in row}
                if self.objectives.keys() <= result.keys():
                    yield self.point(trial_id, scored), result

    def explain(self, problems: Problems) -> None:
        """Add a problem for each misfit."""
        for name, values in self.misfits.items():
            was = ", ".join(dict.fromkeys(map(repr, values[:3]))) + ", ..." * (len(values) > 3)
            if values:
                problems.add(
                    f"{name!r} was {was} in the former sweep, outside of param_space=: "
                    f"{self.domains[name].domain_str}. Widen it, or leave warm_start out."
                )
            else:
                problems.add(
                    f"param_space= searches {name!r}, which the former sweep does not have. Give "
                    "it one value, or leave warm_start out."
                )
