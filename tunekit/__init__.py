"""Ray Tune sweeps ranked by validated accuracy, without stopping training to validate.

Start with :class:`tunekit.Tuner`. Its parts also work with a plain ``ray.tune.Tuner``.
"""

import warnings as _warnings

from tunekit import schedulers as schedulers
from tunekit._ray.compat import TESTED as RAY_TESTED
from tunekit.config import ValidationConfig
from tunekit.confirm import Confirm
from tunekit.core.estimates import Estimate
from tunekit.core.sequential import Sequential
from tunekit.distributed import TrainerFactory, WorkerReuseConfig
from tunekit.driver.callback import ValidationCallback
from tunekit.errors import (
    AlreadyRunningError,
    ConfigError,
    DistributedTrialError,
    JournalError,
    MetricNotFoundError,
    MissingExtraError,
    NotResumedError,
    RestoreError,
    StopperError,
    SweepNotFoundError,
    TunekitError,
    UnsafeFileError,
    UnsupportedRayError,
    ValidationFailedError,
    WiringError,
)
from tunekit.lab.comparison import SweepComparison, compare
from tunekit.lab.simulation import Simulation, simulate
from tunekit.loggers import JsonLogger, ValidatedLoggerCallback
from tunekit.policies import (
    AnyOf,
    AtDecisions,
    CheckpointPolicy,
    CheckpointWhen,
    EveryIterations,
    EverySeconds,
    OnImprovement,
)
from tunekit.reading.best import BestCheckpoint
from tunekit.reading.sweep import Sweep, load
from tunekit.report import VALIDATION_KEY, checkpoint_with, report
from tunekit.results.lineage import Lineage
from tunekit.results.tensorboard import TensorBoardLogger
from tunekit.scheduling.scheduler import ValidatedScheduler
from tunekit.scheduling.searcher import ValidatedSearcher
from tunekit.stage import Stage
from tunekit.states import load_state
from tunekit.tuner import Tuner, checkpointable
from tunekit.validating.context import ValidationContext, get_validation_context
from tunekit.validating.trainer import TrainerValidation
from tunekit.version import VERSION
from tunekit.version import of_another_project as _of_another_project

__all__ = [
    "RAY_TESTED",
    "VALIDATION_KEY",
    "AlreadyRunningError",
    "AnyOf",
    "AtDecisions",
    "BestCheckpoint",
    "CheckpointPolicy",
    "CheckpointWhen",
    "ConfigError",
    "Confirm",
    "DistributedTrialError",
    "Estimate",
    "EveryIterations",
    "EverySeconds",
    "JournalError",
    "JsonLogger",
    "Lineage",
    "MetricNotFoundError",
    "MissingExtraError",
    "NotResumedError",
    "OnImprovement",
    "RestoreError",
    "Sequential",
    "Simulation",
    "Stage",
    "StopperError",
    "Sweep",
    "SweepComparison",
    "SweepNotFoundError",
    "TensorBoardLogger",
    "TrainerFactory",
    "TrainerValidation",
    "TunekitError",
    "Tuner",
    "UnsafeFileError",
    "UnsupportedRayError",
    "ValidatedLoggerCallback",
    "ValidatedScheduler",
    "ValidatedSearcher",
    "ValidationCallback",
    "ValidationConfig",
    "ValidationContext",
    "ValidationFailedError",
    "WiringError",
    "WorkerReuseConfig",
    "checkpoint_with",
    "checkpointable",
    "compare",
    "get_validation_context",
    "load",
    "load_state",
    "report",
    "simulate",
]

__version__ = VERSION

if (_other := _of_another_project()) is not None:
    _warnings.warn(_other, RuntimeWarning, stacklevel=2)
