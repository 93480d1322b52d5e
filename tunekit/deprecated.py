"""Former names, which go on working and warn: the only place that knows them.

A name is looked up here when a module does not have it: in a user's program, or in a pickle that a
former version has written.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["former_method", "former_names", "former_value", "moved", "warn"]

# By module, what its former names are called now.
_FORMER = {
    "tunekit": {
        "Best": "BestCheckpoint",
        "TrialError": "DistributedTrialError",
        "VALIDATION": "VALIDATION_KEY",
        "ValidatedLogger": "ValidatedLoggerCallback",
        "When": "CheckpointWhen",
        "WorkerConfig": "WorkerReuseConfig",
    },
    "tunekit.distributed": {"WorkerConfig": "WorkerReuseConfig"},
    "tunekit.errors": {"TrialError": "DistributedTrialError"},
    "tunekit.loggers": {"ValidatedLogger": "ValidatedLoggerCallback"},
    "tunekit.policies": {"When": "CheckpointWhen"},
    "tunekit.report": {"VALIDATION": "VALIDATION_KEY"},
    "tunekit.sweep": {"Best": "BestCheckpoint"},
    "tunekit.testing": {"Lives": "JournalSummary"},
}

# Where classes are now that the pickle of a scheduler's state may have under another name.
_MOVED = {
    ("tunekit._ray.judged", "Change"): ("tunekit._ray.stand_ins", "Change"),
    ("tunekit._ray.judged", "Version"): ("tunekit._ray.stand_ins", "Version"),
    ("tunekit.core.standing", "Phase"): ("tunekit.core.reconcile", "Desired"),
}

# By setting, what its former values are called now.
_VALUES = {"every": {"asked": "requested"}}


def former_names(module: str) -> Callable[[str], Any]:
    """Make a module's ``__getattr__``, which finds what its former names are called now.

    Example:
        >>> import tunekit
        >>> with warnings.catch_warnings(record=True) as warned:
        ...     warnings.simplefilter("always")
        ...     tunekit.When is tunekit.CheckpointWhen
        True
        >>> print(warned[0].message)
        tunekit.When is deprecated: it is tunekit.CheckpointWhen now.
    """
    former = _FORMER[module]

    def find(name: str) -> Any:
        if name not in former:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn(f"{module}.{name}", f"{module}.{former[name]}")
        return getattr(importlib.import_module(module), former[name])

    return find


def former_value(setting: str, value: Any) -> Any:
    """Return what a setting's value is called now.

    Example:
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     former_value("every", "asked")
        'requested'
        >>> former_value("every", 5)
        5
    """
    now = _VALUES[setting].get(value) if isinstance(value, str) else None
    if now is None:
        return value
    warn(f"{setting}={value!r}", f"{setting}={now!r}")
    return now


def former_method(*given: Any, **known: Any) -> None:
    """Stand for a method that is gone, and that a pickle of a former version names.

    Raises:
        RuntimeError: If it is called after all.

    Example:
        >>> former_method()
        Traceback (most recent call last):
        RuntimeError: This method of a former version is gone.
    """
    raise RuntimeError("This method of a former version is gone.")


def moved(module: str, name: str) -> tuple[str, str]:
    """Return the module and the name that a class in a pickle has now.

    Example:
        >>> moved("tunekit.core.standing", "Phase")
        ('tunekit.core.reconcile', 'Desired')
        >>> moved("builtins", "dict")
        ('builtins', 'dict')
    """
    return _MOVED.get((module, name), (module, name))


def warn(former: str, now: str) -> None:
    """Warn that something is called otherwise now."""
    warnings.warn(f"{former} is deprecated: it is {now} now.", DeprecationWarning, stacklevel=3)
