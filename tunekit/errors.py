"""Every exception that tunekit raises on purpose.

::

    TunekitError
    ├── ConfigError (ValueError)          what the user passed in is wrong; lists every mistake
    │   └── SweepNotFoundError (FileNotFoundError)
    │                                     there is no experiment to restore at that path
    ├── UnsupportedRayError (ImportError) this Ray lacks something tunekit needs
    ├── MissingExtraError (ModuleNotFoundError)
    │                                     a package is not installed; names the extra that brings it
    ├── WiringError (RuntimeError)        parts that need each other were not all given to Tune
    ├── MetricNotFoundError (ValueError)  neither reports nor validations contain the metric
    ├── DistributedTrialError (RuntimeError)         a distributed trial cannot go on
    ├── NotResumedError (RuntimeError)    a function was resumed and started over
    ├── StopperError (RuntimeError)       a stopping criterion raised on a validated result
    ├── JournalError (ValueError)         an experiment's journal is damaged or of another version
    ├── RestoreError (RuntimeError)       an experiment cannot be restored; says what is missing
    ├── UnsafeFileError (OSError)         a name or link in an experiment's folder leads out of it
    ├── AlreadyRunningError (RuntimeError) another driver is running the sweep; says which
    └── ValidationFailedError (RuntimeError)
                                          a validation failed and ``on_failure="raise"``, or the
                                          first ones all failed alike
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AlreadyRunningError",
    "ConfigError",
    "DistributedTrialError",
    "JournalError",
    "MetricNotFoundError",
    "MissingExtraError",
    "NotResumedError",
    "RestoreError",
    "StopperError",
    "SweepNotFoundError",
    "TunekitError",
    "UnsafeFileError",
    "UnsupportedRayError",
    "ValidationFailedError",
    "WiringError",
]


class TunekitError(Exception):
    """Base class of every exception in this module."""


class ConfigError(TunekitError, ValueError):
    """One or more arguments of a call are wrong; nothing was started or changed.

    Args:
        where: The call that was given the arguments, ``"ValidationConfig"`` for example.
        problems: One sentence each: the value, the rule it breaks, and the fix.

    Example:
        >>> print(ConfigError("ValidationConfig", ["when=0 must be at least 1."]))
        ValidationConfig: when=0 must be at least 1.
        >>> print(ConfigError("Tuner", ["a is wrong.", "b is wrong."]))
        Tuner: 2 problems:
          - a is wrong.
          - b is wrong.
    """

    def __init__(self, where: str, problems: Sequence[str]):
        self.where = where
        self.problems = tuple(problems)
        if len(self.problems) == 1:
            text = f"{where}: {self.problems[0]}"
        else:
            lines = "\n".join(f"  - {problem}" for problem in self.problems)
            text = f"{where}: {len(self.problems)} problems:\n{lines}"
        super().__init__(text)

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, tuple[str, ...]]]:
        return type(self), (self.where, self.problems)


class SweepNotFoundError(ConfigError, FileNotFoundError):
    """There is no experiment at the path that is to be restored; says what is there instead.

    It is a ``FileNotFoundError``, as ``ray.tune.Tuner.restore`` raises, so that a program which
    catches that one and begins a new sweep does so with :class:`tunekit.Tuner`, too.
    """


class UnsupportedRayError(TunekitError, ImportError):
    """The installed Ray lacks something that tunekit needs; says what, and which version has it."""


class MissingExtraError(TunekitError, ModuleNotFoundError):
    """A package that a plain install does not bring is missing; says which extra brings it."""


class WiringError(TunekitError, RuntimeError):
    """A part of tunekit was given to Tune without the part it needs; says which one to add."""


class MetricNotFoundError(TunekitError, ValueError):
    """Nothing produces the metric that a scheduler or searcher goes by; lists those that exist."""


class DistributedTrialError(TunekitError, RuntimeError):
    """A distributed trial cannot start or go on; the trial fails, and Tune may restart it."""


class NotResumedError(TunekitError, RuntimeError):
    """A training function was resumed and has reported without asking for its checkpoint.

    It has started over, and its reports would mix two runs of the trial. The trial fails and is not
    retried. Once the function is fixed, ``Tuner.restore(..., resume_errored=True)`` continues the
    trial.
    """


class StopperError(TunekitError, RuntimeError):
    """A stopping criterion of ``RunConfig(stop=...)`` raised when it got a validated result.

    ``Tuner.fit()`` raises this after saving the sweep's state. A restored sweep goes on without
    that criterion.
    """


class JournalError(TunekitError, ValueError):
    """An experiment's journal is damaged, foreign or of another version; says where, and why."""


class RestoreError(TunekitError, RuntimeError):
    """An experiment cannot be restored; says what is missing. Its files are as they were."""


class UnsafeFileError(TunekitError, OSError):
    """A file in an experiment's folder was not opened: it leads out of it, or is not a plain file.

    Whoever has made the folder may have put links to other people's files into it, or pipes.
    """


class AlreadyRunningError(TunekitError, RuntimeError):
    """Another driver is running the sweep; says which process, where, and how to take it over.

    :class:`~tunekit.Tuner` and :meth:`Tuner.restore <tunekit.Tuner.restore>` raise this while that
    driver is alive; ``Tuner.fit()`` raises it when another driver has taken the sweep over.
    """


class ValidationFailedError(TunekitError, RuntimeError):
    """A validation failed for good and ``on_failure`` says to raise, or the first ones all failed.

    ``Tuner.fit()`` raises this after saving the experiment's state: with
    ``ValidationConfig(on_failure="raise")`` at the first failure, and with ``"record"`` when the
    first three validations have failed alike.
    """
