"""The settings inside a ``ray.tune.Tuner``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ray import tune
from ray.tune.search.sample import Categorical

__all__ = ["Settings", "settings_of", "trial_resources"]


@dataclass
class Settings:
    """What a Tuner will run with; both configs are its own objects and may be changed."""

    trainable: Any
    param_space: dict[str, Any]
    tune_config: tune.TuneConfig
    run_config: tune.RunConfig
    callbacks: list[Any]
    restored: bool = False


def settings_of(tuner: tune.Tuner) -> Settings | None:
    """The settings of a new or restored Tuner; None in Ray Client mode, where they are remote."""
    internal = getattr(tuner, "_local_tuner", None)
    if internal is None:
        return None
    return Settings(
        trainable=internal.trainable,
        param_space=internal.param_space or {},
        tune_config=internal._tune_config,
        run_config=internal._run_config,
        callbacks=list(internal._run_config.callbacks or []),
        restored=bool(internal._is_restored),
    )


def trial_resources(trainable: Any, param_space: dict[str, Any]) -> dict[str, float] | None:
    """What one trial takes, such as ``{"CPU": 1.0}``; None if it depends on its configuration.

    Of what is chosen from a list for the workers of a trainer, the largest counts.
    """
    cls = tune.registry.get_trainable_cls(trainable) if isinstance(trainable, str) else trainable
    space = dict(param_space)
    if isinstance(space.get("scaling_config"), dict):
        scaling = space["scaling_config"].items()
        space["scaling_config"] = {name: _largest(value) for name, value in scaling}
    try:
        request = cls.default_resource_request(space)
    except Exception:  # a user's function of a configuration that is not drawn yet
        return None
    if request is None:
        return {"CPU": 1.0}
    return dict(request.required_resources)


def _largest(value: Any) -> Any:
    """The largest number of those to choose from."""
    if isinstance(value, Categorical):
        value = value.categories
    elif isinstance(value, dict) and value.keys() == {"grid_search"}:
        value = value["grid_search"]
    else:
        return value
    return max(value) if all(isinstance(one, (int, float)) for one in value) else value[0]
