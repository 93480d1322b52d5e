"""The trainable or function that a command is given, by where it is written."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ray import cloudpickle

from tunekit.core.problems import Problems

__all__ = ["importable_here", "lasting", "trainable_at"]

_FORMS = "Pass module:name, or file.py:name."


def trainable_at(where: str, option: str = "--trainable") -> Any:
    """Return what is at ``module:name`` or ``file.py:name``.

    A module is looked for in the current directory first. A file is run as a module of its name,
    with its folder importable, so what it does at its end belongs under
    ``if __name__ == "__main__":``. Ray's workers get it whole: they need not find the file.

    Args:
        where: The module or the file, a colon, and the name in it, which may have dots.
        option: What it was given with, for errors.

    Raises:
        tunekit.errors.ConfigError: If there is no such module, file or name. What the module
            itself raises comes through.

    Example:
        >>> trainable_at("math:sqrt")(9)
        3.0
        >>> trainable_at("math")
        Traceback (most recent call last):
        tunekit.errors.ConfigError: --trainable: 'math' has no colon with something on both sides...
    """
    problems = Problems(option)
    place, colon, name = where.rpartition(":")
    if not colon or not place or not name:
        problems.add(f"{where!r} has no colon with something on both sides. {_FORMS}")
        problems.raise_any()
    found: Any = _file(place, problems) if place.endswith(".py") else _module(place, problems)
    for part in name.split("."):
        if not hasattr(found, part):
            problems.add(f"{where!r}: {place} has no {name!r}. {_FORMS}")
            problems.raise_any()
        found = getattr(found, part)
    return found


def importable_here() -> None:
    """Let modules be imported from the current directory."""
    _importable(os.getcwd())


def lasting(where: str) -> str:
    """The same place, as it can be named in every directory: a file by its path from the root.

    Example:
        >>> lasting("module:train"), lasting("/code/../train.py:train")
        ('module:train', '/train.py:train')
    """
    place, _, name = where.rpartition(":")
    return f"{Path(place).resolve()}:{name}" if place.endswith(".py") else where


def _module(name: str, problems: Problems) -> ModuleType:
    _importable(os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports another one that is not
        problems.add(
            f"there is no module {name!r}, here in {os.getcwd()} or where Python looks. {_FORMS}"
        )
        problems.raise_any()
        raise


def _file(place: str, problems: Problems) -> ModuleType:
    path = Path(place).resolve()
    if not path.is_file():
        problems.add(f"there is no file {place!r}. {_FORMS}")
        problems.raise_any()
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
