"""The settings inside a ``ray.tune.Tuner``."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any

import cloudpickle
import ray
from ray import tune
from ray.air._internal.uri_utils import URI
from ray.tune.search.sample import Categorical
from ray.tune.tune import _Config

__all__ = [
    "Settings",
    "begin",
    "callbacks_in",
    "had_space",
    "is_remote",
    "packed",
    "place_of",
    "settings_of",
    "space_of",
    "trial_bundles",
]

# A search space that is larger is not kept: it has data in it.
_MOST_BYTES = 1 << 20


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


def space_of(param_space: Any) -> Any:
    """Return a search space as the dict that Tune makes of it, such as of RLlib's configurations.

    Example:
        >>> space_of({"lr": 0.1}), space_of(None)
        ({'lr': 0.1}, None)
    """
    return param_space.to_dict() if isinstance(param_space, _Config) else param_space


def trial_bundles(trainable: Any, param_space: dict[str, Any]) -> list[dict[str, float]] | None:
    """Return what one trial takes, in each place, such as ``[{"CPU": 1.0}]``; None if it depends
    on its configuration.

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
        return [{"CPU": 1.0}]
    return [dict(bundle) for bundle in request.bundles]


def _largest(value: Any) -> Any:
    """The largest number of those to choose from."""
    if isinstance(value, Categorical):
        value = value.categories
    elif isinstance(value, dict) and value.keys() == {"grid_search"}:
        value = value["grid_search"]
    else:
        return value
    return max(value) if all(isinstance(one, (int, float)) for one in value) else value[0]


def is_remote() -> bool:
    """Return whether Tuners run elsewhere: Ray Client mode."""
    return bool(ray.util.client.ray.is_connected())


def place_of(settings: Settings, home: str) -> str:
    """Return where a sweep is kept, as the user would name it: a path, or a URI.

    Args:
        settings: The sweep's.
        home: The experiment's folder in its filesystem.
    """
    config = settings.run_config
    if config.storage_filesystem is None and ":/" in str(config.storage_path or ""):
        return str(URI(str(config.storage_path)) / str(config.name))
    return home


class _SpacePickler(cloudpickle.Pickler):
    """Refuses objects of a Ray cluster, which mean nothing to the next one, and pin them."""

    def persistent_id(self, part: Any) -> None:
        if isinstance(part, ray.ObjectRef):
            raise pickle.PicklingError


def packed(space: dict[str, Any] | None) -> bytes | None:
    """Return a search space as it can be kept; None if it cannot.

    Example:
        >>> pickle.loads(packed({"lr": 0.1}))
        {'lr': 0.1}
        >>> packed({"data": bytes(1 << 21)}) is None
        True
    """
    file = io.BytesIO()
    try:
        _SpacePickler(file).dump(space)
    except Exception:  # whatever its parts raise
        return None
    return file.getvalue() if file.tell() <= _MOST_BYTES else None


def had_space(tuner_file: bytes) -> bool:
    """Return whether a Tuner was made with a search space, which Tune does not save with it."""
    return bool(pickle.loads(tuner_file)["__flattened_param_space_keys"])


def callbacks_in(tuner_file: bytes) -> list[Any]:
    """Return the callbacks that a Tuner was made with; this runs the code that unpickles them.

    Args:
        tuner_file: What Tune has written down when it was made.
    """
    return list(pickle.loads(tuner_file)["_run_config"].callbacks or [])


def begin(tuner: tune.Tuner, space: dict[str, Any] | None) -> None:
    """Let a restored Tuner, of a sweep that has not begun, begin it.

    Tune's own ``restore`` would run one trial, without the search space.
    """
    internal = tuner._local_tuner
    internal.param_space = space
    internal._is_restored, internal._resume_config = False, None
