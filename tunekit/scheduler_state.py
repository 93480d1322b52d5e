"""What is saved of a scheduler with the experiment: its own state, and what it knows of trials."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
from ray import tune

from tunekit._ray.stand_ins import StandIn
from tunekit.deprecated import moved
from tunekit.places import Places

__all__ = ["dump", "load"]


def dump(state: Mapping[str, Any], places: Places) -> bytes:
    """Pickle a state that has stand-ins of trials, and checkpoints, anywhere inside.

    Stand-ins are named, the trials being Tune's, and of checkpoints it is written where they lie
    in the experiment, which may be moved.

    Args:
        state: The state.
        places: Where the experiment lies.

    Raises:
        Exception: Whatever a part of the state raises that cannot be pickled.

    Example:
        >>> dumped = dump({"at": tune.Checkpoint("/sweep/a/checkpoint_1")}, Places("/sweep"))
        >>> load(dumped, Places("/moved"), stand_in=None, filesystem=None)["at"].path
        '/moved/a/checkpoint_1'
    """
    file = io.BytesIO()
    _Pickler(file, places).dump(state)
    return file.getvalue()


def load(
    dumped: bytes, places: Places, *, stand_in: Callable[[str], StandIn] | None, filesystem: Any
) -> dict[str, Any]:
    """Return the state that :func:`dump` has pickled, also if a former version did.

    Args:
        dumped: The pickle.
        places: Where the experiment lies now.
        stand_in: Returns the stand-in of a trial, by its name.
        filesystem: The filesystem of its checkpoints; None for the local one.
    """
    state: dict[str, Any] = _Unpickler(io.BytesIO(dumped), places, stand_in, filesystem).load()
    return state


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, places: Places):
        super().__init__(file)
        self._places = places

    def persistent_id(self, part: Any) -> tuple[str, str] | None:
        if type(part) is StandIn:
            return ("trial", part.trial_id)
        if isinstance(part, tune.Checkpoint):
            return ("checkpoint", self._places.record(part.path))
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, places: Places, stand_in: Any, filesystem: Any):
        super().__init__(file)
        self._places, self._stand_in, self._filesystem = places, stand_in, filesystem

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(*moved(module, name))

    def persistent_load(self, known: tuple[str, str]) -> Any:
        kind, name = known
        if kind == "trial":
            return self._stand_in(name)
        return tune.Checkpoint(self._places.path(name), self._filesystem)
