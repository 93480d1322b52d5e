"""Run Ray Tune sweeps ranked by validation scores, computed outside the training loop.

Start with :class:`tunekit.Tuner`. Its parts also work with a plain ``ray.tune.Tuner``. The rest is
in submodules: :mod:`tunekit.policies`, :mod:`tunekit.schedulers`,
:mod:`tunekit.distributed`, :mod:`tunekit.errors`.
"""

# Each trial and each validation imports tunekit in its own process, so modules load on first use.

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tunekit.version import VERSION

if TYPE_CHECKING:
    from tunekit import distributed as distributed
    from tunekit import errors as errors
    from tunekit import policies as policies
    from tunekit import schedulers as schedulers
    from tunekit.config import ValidationConfig
    from tunekit.core.constraints import Constraint
    from tunekit.driver.callback import ValidationCallback
    from tunekit.driver.scheduler import ValidatedScheduler
    from tunekit.driver.tuner import Tuner, checkpointable
    from tunekit.following.follow import follow
    from tunekit.following.validate import validate
    from tunekit.policies import EveryIterations
    from tunekit.reading.load import load
    from tunekit.reading.sweep import Sweep
    from tunekit.training import (
        checkpoint_with,
        get_all_reported_checkpoints,
        report,
        state_of,
    )
    from tunekit.validating.context import ValidationContext, get_validation_context

__all__ = [
    "Constraint",
    "EveryIterations",
    "Sweep",
    "Tuner",
    "ValidatedScheduler",
    "ValidationCallback",
    "ValidationConfig",
    "ValidationContext",
    "checkpoint_with",
    "checkpointable",
    "follow",
    "get_all_reported_checkpoints",
    "get_validation_context",
    "load",
    "report",
    "state_of",
    "validate",
]

__version__ = VERSION

_SUBMODULES = {"distributed", "errors", "policies", "schedulers"}
_HOMES = {
    "tunekit.config": ("ValidationConfig",),
    "tunekit.core.constraints": ("Constraint",),
    "tunekit.driver.callback": ("ValidationCallback",),
    "tunekit.following.follow": ("follow",),
    "tunekit.policies": ("EveryIterations",),
    "tunekit.following.validate": ("validate",),
    "tunekit.reading.load": ("load",),
    "tunekit.reading.sweep": ("Sweep",),
    "tunekit.driver.scheduler": ("ValidatedScheduler",),
    "tunekit.training": ("checkpoint_with", "get_all_reported_checkpoints", "report", "state_of"),
    "tunekit.driver.tuner": ("Tuner", "checkpointable"),
    "tunekit.validating.context": ("ValidationContext", "get_validation_context"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _SUBMODULES:
        return import_module(f"tunekit.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'tunekit' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
