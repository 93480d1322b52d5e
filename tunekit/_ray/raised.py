"""Exceptions of the user's on their way out of a worker process."""

from __future__ import annotations

import ray

from tunekit.core.values import Raised, described
from tunekit.pickles import travels

__all__ = ["LoopError", "ends_the_process", "in_worker", "legible_error"]


def in_worker() -> bool:
    """Return whether this is one of Ray's workers, rather than a driver."""
    return bool(ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE)


def ends_the_process(error: BaseException) -> bool:
    """Return whether an exception means that this process or task is being ended.

    A function may raise the same by itself: in a worker, where nobody presses Ctrl-C, an interrupt
    is the driver's only if it has cancelled the task, and an exit is Ray's only if it says so.

    Example:
        >>> ends_the_process(KeyboardInterrupt()), ends_the_process(ValueError())
        (True, False)
    """
    if not isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
        return False
    if not in_worker():
        return True
    if isinstance(error, SystemExit):
        return hasattr(error, "ray_terminate_msg")
    return isinstance(error, KeyboardInterrupt) and bool(ray.get_runtime_context().is_canceled())


class LoopError(Exception):
    """An exception of a user's loop, in words: any process can read it.

    Args:
        kind: The name of its class.
        message: What it says.
        trace: Its traceback.

    Example:
        >>> print(LoopError("ValueError", "no such class", "Traceback ..."))
        ValueError: no such class
    """

    def __init__(self, kind: str, message: str, trace: str):
        super().__init__(kind, message, trace)
        self.tunekit_raised = Raised(kind, message, trace)

    @classmethod
    def of(cls, error: BaseException) -> LoopError:
        """Put an exception into words."""
        raised = described(error)
        return cls(raised.kind, raised.message, raised.trace)

    def __str__(self) -> str:
        return self.tunekit_raised.reason.removeprefix("raised ")


def legible_error(error: BaseException) -> BaseException:
    """The exception itself, if another process can read it; else in words.

    Example:
        >>> legible_error(ValueError(3))
        ValueError(3)
        >>> class Odd(Exception):
        ...     def __init__(self, code, text):
        ...         super().__init__(text)
        >>> print(legible_error(Odd(7, "no such class")))
        Odd: no such class
    """
    return error if travels(error) else LoopError.of(error)
