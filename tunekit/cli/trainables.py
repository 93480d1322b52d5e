"""Import a trainable or function that a command names."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from ray import cloudpickle

from tunekit.errors import ConfigError


def trainable_at(where: str, option: str = "--trainable") -> Any:
    """Return the object at ``module:name`` or ``file.py:name``.

    A module is first searched for in the current directory. A file is run as a module of its name,
    with its folder importable, so code for scripts belongs under ``if __name__ == "__main__":``. It
    is sent to Ray's workers by value, so they need not find the file.

    Args:
        where: The module or the file, a colon, and the name in it, which may have dots.
        option: The option that it was passed to, for error messages.

    Raises:
        tunekit.errors.ConfigError: If there is no such module, file or name. Exceptions of the
            module itself are raised as they are.

    Example:
        >>> trainable_at("math:sqrt")(9)
        3.0
        >>> trainable_at("math")
        Traceback (most recent call last):
        tunekit.errors.ConfigError: --trainable: 'math' needs a colon with a name on both sides...
    """
    place, _, name = where.rpartition(":")
    if not place or not name:
        raise _wrong(option, f"{where!r} needs a colon with a name on both sides")
    found = _file(place, option) if place.endswith(".py") else _module(place, option)
    try:
        return attrgetter(name)(found)
    except AttributeError:
        raise _wrong(option, f"{where!r}: {place} has no {name!r}") from None


def absolute_reference(where: str) -> str:
    """Return ``module:name`` or ``file.py:name`` with an absolute path for the file.

    Example:
        >>> absolute_reference("module:train"), absolute_reference("/code/../train.py:train")
        ('module:train', '/train.py:train')
    """
    place, _, name = where.rpartition(":")
    return f"{Path(place).resolve()}:{name}" if place.endswith(".py") else where


def _wrong(option: str, problem: str) -> ConfigError:
    return ConfigError(option, [f"{problem}. Pass module:name, or file.py:name."])


def _module(name: str, option: str) -> ModuleType:
    _importable(os.getcwd())
    why = f"there is no module {name!r} in {os.getcwd()} or on Python's path"
    if not all(name.split(".")):
        raise _wrong(option, why)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, but another one that it imports does not
        raise _wrong(option, why) from None


def _file(place: str, option: str) -> ModuleType:
    path = Path(place).resolve()
    if not path.is_file():
        raise _wrong(option, f"there is no file {place!r}")
    _importable(os.getcwd())
    _importable(str(path.parent))
    name = path.stem
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) != str(path):
        name = f"tunekit_resumed_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)
    return module


def _importable(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)
