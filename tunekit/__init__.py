"""Ray Tune sweeps ranked by validated accuracy, without stopping training to validate.

The front door is :class:`tunekit.Tuner`; the parts it is made of work with a plain
``ray.tune.Tuner``, too.
"""

import logging as _logging

from tunekit._ray.compat import TESTED as RAY_TESTED
from tunekit.callback import ValidationCallback
from tunekit.config import ValidationConfig
from tunekit.distributed import TrainerFactory, WorkerConfig
from tunekit.errors import (
    AlreadyRunningError,
    ConfigError,
    JournalError,
    MetricNotFoundError,
    RestoreError,
    TrialError,
    TunekitError,
    UnsupportedRayError,
    ValidationFailedError,
    WiringError,
)
from tunekit.lineage import Lineage
from tunekit.loggers import JsonLogger, ValidatedLogger
from tunekit.policies import (
    AnyOf,
    AtDecisions,
    CheckpointPolicy,
    EveryIterations,
    EverySeconds,
    OnImprovement,
    When,
)
from tunekit.report import VALIDATION, checkpoint_with, report
from tunekit.scheduler import ValidatedScheduler
from tunekit.searcher import ValidatedSearcher
from tunekit.sweep import Best, Sweep, load
from tunekit.tensorboard import TensorBoardLogger
from tunekit.trainer_validation import TrainerValidation
from tunekit.tuner import Tuner, checkpointable
from tunekit.version import VERSION

__all__ = [
    "RAY_TESTED",
    "VALIDATION",
    "AlreadyRunningError",
    "AnyOf",
    "AtDecisions",
    "Best",
    "CheckpointPolicy",
    "ConfigError",
    "EveryIterations",
    "EverySeconds",
    "JournalError",
    "JsonLogger",
    "Lineage",
    "MetricNotFoundError",
    "OnImprovement",
    "RestoreError",
    "Sweep",
    "TensorBoardLogger",
    "TrainerFactory",
    "TrainerValidation",
    "TrialError",
    "TunekitError",
    "Tuner",
    "UnsupportedRayError",
    "ValidatedLogger",
    "ValidatedScheduler",
    "ValidatedSearcher",
    "ValidationCallback",
    "ValidationConfig",
    "ValidationFailedError",
    "When",
    "WiringError",
    "WorkerConfig",
    "checkpoint_with",
    "checkpointable",
    "load",
    "report",
]

__version__ = VERSION


def _show_log() -> None:
    """Show tunekit's own messages, unless the application has set up logging for itself."""
    log = _logging.getLogger(__name__)
    if not log.handlers and not _logging.getLogger().handlers:
        handler = _logging.StreamHandler()
        handler.setFormatter(_logging.Formatter("%(asctime)s tunekit %(levelname)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(_logging.INFO)
        log.propagate = False


_show_log()
