"""Read and change the settings of a ``ray.tune.Tuner``."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ray import tune
from ray.air._internal.uri_utils import URI
from ray.tune.experiment import Trial
from ray.tune.search import BasicVariantGenerator
from ray.tune.search.sample import Categorical
from ray.tune.tune import _Config

from tunekit._ray.searchers import parameter_of
from tunekit.core.metrics import flatten


@dataclass
class Settings:
    """The settings of a Tuner; both configs are its own objects and may be changed."""

    trainable: Any
    param_space: dict[str, Any]
    tune_config: tune.TuneConfig
    run_config: tune.RunConfig
    callbacks: list[Any]


def settings_of(tuner: tune.Tuner) -> Settings:
    """Return a Tuner's settings."""
    internal: Any = tuner._local_tuner
    return Settings(
        trainable=internal.trainable,
        param_space=internal.param_space or {},
        tune_config=internal._tune_config,
        run_config=internal._run_config,
        callbacks=list(internal._run_config.callbacks or []),
    )


def is_trainer(trainable: Any) -> bool:
    """Return whether a trainable is a Ray Train trainer, so that each trial is one of its runs."""
    return isinstance(
        trainable, _loaded("ray.train.v2.api.data_parallel_trainer", "DataParallelTrainer")
    )


def is_distributed(trainable: Any) -> bool:
    """Return whether :func:`tunekit._ray.distributed_trials.distributed_class` made a trainable."""
    return isinstance(trainable, type) and issubclass(
        trainable, _loaded("tunekit._ray.distributed_trials", "_DistributedTrial")
    )


def has_workers(trial: Trial) -> bool:
    """Return whether a trial is a run of a trainer, with its own workers."""
    return is_distributed(trial.get_trainable_cls())


#: The resources that Ray Data needs to load the datasets of one trial or validation: its tasks run
#: outside of any placement group.
FOR_DATA: Mapping[str, float] = {"CPU": 1.0}


def reads_data(trainable: Any, param_space: Mapping[str, Any]) -> bool:
    """Return whether trials are runs of a trainer with ``datasets``, which Ray Data loads."""
    if not is_distributed(trainable):
        return False
    try:
        source = trainable.source
        trainer = source if is_trainer(source) else source(dict(param_space))
        return bool(trainer.datasets or param_space.get("datasets"))
    except Exception:  # a user's function, but no configuration is drawn yet
        return False


def goal_of(results: tune.ResultGrid) -> tuple[str | None, str | None]:
    """Return the metric and the mode of ``TuneConfig`` from a sweep's results."""
    analysis = results._experiment_analysis
    return analysis.default_metric, analysis.default_mode


def _loaded(module: str, name: str) -> Any:
    """Return a class if its module is imported; otherwise (), because it has no instances."""
    return getattr(sys.modules.get(module), name, ())


@contextmanager
def ended_soon() -> Iterator[None]:
    """Make Tune end a trial that is stopped during an iteration within seconds.

    By default it waits 10 minutes for the iteration to end. While Tune waits for an actor that it
    has asked twice to end, it blocks for up to 10 s, so the timeout must not be shorter.
    """
    name = "TUNE_FORCE_TRIAL_CLEANUP_S"
    given = os.environ.get(name)
    os.environ.setdefault(name, "10")
    try:
        yield
    finally:
        if given is None:
            del os.environ[name]


def space_of(param_space: Any) -> Any:
    """Return a search space as the dict into which Tune converts it, for example an RLlib config.

    Example:
        >>> space_of({"lr": 0.1}), space_of(None)
        ({'lr': 0.1}, None)
    """
    return param_space.to_dict() if isinstance(param_space, _Config) else param_space


def trial_bundles(trainable: Any, param_space: dict[str, Any]) -> list[dict[str, float]] | None:
    """Return one trial's resources by bundle, such as ``[{"CPU": 1.0}]``, if known.

    None if they depend on its configuration. If a setting of a trainer's workers is chosen from a
    list, the largest choice counts.
    """
    cls = tune.registry.get_trainable_cls(trainable) if isinstance(trainable, str) else trainable
    space = dict(param_space)
    if isinstance(space.get("scaling_config"), dict):
        scaling = space["scaling_config"].items()
        space["scaling_config"] = {name: _largest(value) for name, value in scaling}
    try:
        request = cls.default_resource_request(space)
    except Exception:  # a user's function, but no configuration is drawn yet
        return None
    if request is None:
        return [{"CPU": 1.0}]
    return [dict(bundle) for bundle in request.bundles]


def most_trials(settings: Settings) -> int | None:
    """Return how many trials a sweep has at most; None if there is no limit.

    Each grid search multiplies them, unless a searcher of the user's suggests configurations.

    Example:
        >>> space = {"lr": tune.grid_search([0.1, 0.2]), "net": {"width": tune.grid_search([8, 9])}}
        >>> tune_config = tune.TuneConfig(num_samples=3)
        >>> made = tune.Tuner(lambda config: None, param_space=space, tune_config=tune_config)
        >>> most_trials(settings_of(made))
        12
    """
    number, search_alg = settings.tune_config.num_samples, settings.tune_config.search_alg
    if number < 0:
        return None
    if search_alg is None or isinstance(search_alg, BasicVariantGenerator):
        number *= _grid(settings.param_space)
    return number


def _grid(value: Any) -> int:
    """Return how many combinations the grid searches in a search space have."""
    if isinstance(value, dict) and value.keys() == {"grid_search"}:
        return sum(map(_grid, value["grid_search"]))
    parts = value.values() if isinstance(value, dict) else value if type(value) is list else ()
    return math.prod(map(_grid, parts))


def _largest(value: Any) -> Any:
    """Return the largest choice, or the first one if the choices are not numbers."""
    if isinstance(value, Categorical):
        choices = value.categories
    elif isinstance(value, dict) and value.keys() == {"grid_search"}:
        choices = value["grid_search"]
    else:
        return value
    return max(choices) if all(isinstance(one, (int, float)) for one in choices) else choices[0]


def location_of(settings: Settings, home: str) -> str:
    """Return the path or URI of a sweep's storage.

    Args:
        settings: The sweep's settings.
        home: The experiment's folder in its filesystem.
    """
    config = settings.run_config
    if config.storage_filesystem is None and ":/" in str(config.storage_path or ""):
        return str(URI(str(config.storage_path)) / str(config.name))
    return home


_GRID = "/grid_search"  # the suffix of flat names of grid-searched values

# Settings whose texts are not secrets.
_TEXTS = frozenset({"metric", "mode", "time_attr", "_metric", "_mode", "_time_attr"})


def type_and_settings(thing: Any) -> dict[str, Any]:
    """Return the type of a scheduler or searcher, and the numeric settings of Ray's own classes.

    Texts are included only for the metric, the mode and the time; settings of a user's class are
    not, because they may be secrets. Counters of a running scheduler are included, because they
    cannot be distinguished from settings.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler
        >>> known = type_and_settings(ASHAScheduler(max_t=27))
        >>> known["type"], known["settings"]["max_t"]
        ('AsyncHyperBandScheduler', 27)
    """
    kind = type(thing)
    known = sorted(vars(thing).items()) if kind.__module__.split(".")[0] == "ray" else ()
    settings = {
        name.strip("_"): value
        for name, value in known
        if isinstance(value, (bool, int, float)) or (isinstance(value, str) and name in _TEXTS)
    }
    return {"type": kind.__name__, "settings": settings}


def described_space(space: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return the attributes of the ``Parameter`` of each searched hyperparameter, by flat name.

    Fixed hyperparameters, and those without a bounded range, such as ``tune.randn`` or
    ``tune.sample_from``, are left out.

    Example:
        >>> from ray import tune
        >>> described_space({"lr": tune.loguniform(1e-4, 0.1), "net": {"width": tune.choice([8])}})
        {'lr': {'kind': 'float', 'low': 0.0001, 'high': 0.1, 'log': True},
         'net/width': {'kind': 'choice', 'choices': [8]}}
        >>> described_space({"n": tune.randint(0, 10), "k": tune.grid_search([1, 2]), "epochs": 9})
        {'n': {'kind': 'int', 'low': 0, 'high': 9}, 'k': {'kind': 'choice', 'choices': [1, 2]}}
    """
    found = {}
    for name, value in flatten(space if isinstance(space, Mapping) else {}).items():
        if name.endswith(_GRID) and isinstance(value, (list, tuple)):
            own = parameter_of(name.removesuffix(_GRID), Categorical(value))
        else:
            own = parameter_of(name, value)
        if own is not None:
            found[own.name] = own.described
    return found
