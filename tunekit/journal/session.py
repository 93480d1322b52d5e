"""Describe how a sweep runs, for the first line of each session in the journal."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import ray

from tunekit.config import ValidationConfig
from tunekit.core.signatures import function_name
from tunekit.core.values import finite_number
from tunekit.version import VERSION

_PACKAGES = ("torch", "optuna", "numpy")


def import_path(thing: Any) -> str | None:
    """Return the import path of a function or class; None if it cannot be imported.

    Example:
        >>> import_path(import_path)
        'tunekit.journal.session:import_path'
        >>> import_path(lambda config: None) is None
        True
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return None
    return f"{module}:{name}"


def about(now: float, config: ValidationConfig) -> dict[str, Any]:
    """Describe a session in JSON values, without anything that may be secret.

    Args:
        now: Seconds since the epoch.
        config: How checkpoints are validated.
    """
    return {
        "time": now,
        "tunekit": VERSION,
        "ray": ray.__version__,
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version_of(name))},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "cluster": _cluster(),
        "validation": _settings_of(config),
    }


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cluster() -> dict[str, Any] | None:
    if not ray.is_initialized():
        return None
    amounts = {
        name: amount
        for name, amount in ray.cluster_resources().items()
        if not name.startswith("node:")
    }
    return {"nodes": sum(bool(node["Alive"]) for node in ray.nodes()), "resources": amounts}


def _settings_of(config: ValidationConfig) -> dict[str, Any]:
    return {
        "fn": function_name(config.fn),
        "when": config.when,
        "where": config.where,
        "on_pending": config.on_pending,
        "on_failure": config.on_failure,
        "max_in_flight": config.max_in_flight,
        "max_retries": config.max_retries,
        "constraints": [one.text for one in config.constraints],
        "evaluators": config.evaluators,
        "timeout_s": config.task_config.timeout_s,
        "resources": _amounts_of(config.ray_remote_kwargs),
    }


def _amounts_of(options: Mapping[str, Any]) -> dict[str, float]:
    """Return the resources in the options of a Ray task; other options may hold secrets."""
    amounts = {**options, **(options.get("resources") or {})}
    return {
        name: amount
        for name, amount in amounts.items()
        if not isinstance(amount, bool)
        and finite_number(amount) is not None
        and not name.startswith("max_")
    }
