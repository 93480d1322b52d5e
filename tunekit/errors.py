"""Exceptions that tunekit raises on purpose.

::

    TunekitError
    ├── ConfigError (ValueError)          an argument is wrong; lists every mistake
    │   └── SweepNotFoundError (FileNotFoundError)
    │                                     there is no experiment to restore at that path
    ├── UnsupportedRayError (ImportError) this Ray lacks something tunekit needs
    ├── MissingExtraError (ModuleNotFoundError)
    │                                     a package is not installed; names the extra to install
    ├── WiringError (RuntimeError)        Tune got one part without another one that it needs
    ├── MetricNotFoundError (ValueError)  neither reports nor validations contain the metric
    ├── DistributedTrialError (RuntimeError)
    │                                     a distributed trial cannot continue
    ├── NotResumedError (RuntimeError)    a resumed function started over
    ├── JournalError (ValueError)         a journal is damaged or of a different version
    ├── RestoreError (RuntimeError)       an experiment cannot be restored; names what is missing
    ├── UnsafeFileError (OSError)         a name or link in an experiment's folder leads out of it
    ├── AlreadyRunningError (RuntimeError)
    │                                     another driver is running the sweep; names it
    └── ValidationFailedError (RuntimeError)
                                          a validation failed and ``on_failure="raise"``, or the
                                          first ones failed for the same reason
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tunekit.version import DISTRIBUTION

__all__ = [
    "AlreadyRunningError",
    "ConfigError",
    "DistributedTrialError",
    "JournalError",
    "MetricNotFoundError",
    "MissingExtraError",
    "NotResumedError",
    "RestoreError",
    "SweepNotFoundError",
    "TunekitError",
    "UnsafeFileError",
    "UnsupportedRayError",
    "ValidationFailedError",
    "WiringError",
]


class TunekitError(Exception):
    """Base class of all exceptions that tunekit raises."""


class ConfigError(TunekitError, ValueError):
    """Raised when arguments of a call are wrong, before anything is started or changed.

    Args:
        where: The call, for example ``"ValidationConfig"``.
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
    """Raised when a path has no experiment to restore; says what it has instead.

    It is also a ``FileNotFoundError``, which ``ray.tune.Tuner.restore`` raises: code that catches
    it and starts a new sweep also works with :class:`tunekit.Tuner`.
    """


class UnsupportedRayError(TunekitError, ImportError):
    """Raised when Ray lacks something that tunekit needs; names it and a version that has it."""


class MissingExtraError(TunekitError, ModuleNotFoundError):
    """Raised when an optional package is missing; names the extra that installs it."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import packages of an extra; if one is not installed, name the extra.

    Args:
        name: The extra, one of those in ``setup.cfg``.

    Raises:
        MissingExtraError: If a package is not installed. Other errors of an import
            are raised as they are.

    Example:
        >>> with extra("report"):
        ...     import no_such_package
        Traceback (most recent call last):
        tunekit.errors.MissingExtraError: no_such_package is not installed; the extra 'report'...
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ModuleNotFoundError as error:
        # Ray's own import errors have a message but no name.
        package = None if error.name is None else error.name.split(".")[0]
        text = str(error).partition(". ")[0].rstrip(".")
        lacks = text if package is None else f"{package} is not installed"
        raise MissingExtraError(
            f"{lacks}; the extra {name!r} installs it. Run: pip install '{DISTRIBUTION}[{name}]'",
            name=package,
        ) from None


class WiringError(TunekitError, RuntimeError):
    """Raised when a part of tunekit lacks another one that it needs; names what to add."""


class MetricNotFoundError(TunekitError, ValueError):
    """Raised when nothing produces a metric to decide on; lists the metrics that exist."""


class DistributedTrialError(TunekitError, RuntimeError):
    """Raised when a distributed trial cannot start or continue; Tune may restart it."""


class NotResumedError(TunekitError, RuntimeError):
    """Raised when a resumed training function reports without loading its checkpoint.

    It has started over, so its reports would mix two runs of the trial. The trial fails and is not
    retried. Fix the function, then continue with ``Tuner.restore(..., resume_errored=True)``.
    """


class JournalError(TunekitError, ValueError):
    """Raised when a journal is damaged, foreign or of a different version; says where and why."""


class RestoreError(TunekitError, RuntimeError):
    """Raised when an experiment cannot be restored; names what is missing. No file has changed."""


class UnsafeFileError(TunekitError, OSError):
    """Raised instead of opening a file that leads out of the experiment's folder or is not plain.

    A folder from an untrusted source may contain pipes, or links to other users' files.
    """


class AlreadyRunningError(TunekitError, RuntimeError):
    """Raised when another driver is running the sweep; names its process, and how to take over.

    :class:`~tunekit.Tuner` and :meth:`Tuner.restore <tunekit.Tuner.restore>` raise this while that
    driver is alive; ``Tuner.fit()`` raises it once another driver has taken over.
    """


class ValidationFailedError(TunekitError, RuntimeError):
    """Raised when validations fail, depending on ``ValidationConfig(on_failure=...)``.

    ``Tuner.fit()`` raises this after saving the sweep's state: with ``on_failure="raise"`` at the
    first failure, and with ``"record"`` when the first three have failed for the same reason.
    """
