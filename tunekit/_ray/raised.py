"""Exceptions of user code that leave a worker process."""

from __future__ import annotations

import ray

from tunekit._ray.compat import in_worker
from tunekit.core.values import Raised, described
from tunekit.pickles import travels


def ends_the_process(error: BaseException) -> bool:
    """Return whether an exception means that this process or task is being ended.

    A function may raise the same exceptions. In a worker, an interrupt comes from the driver only
    if the task was cancelled, and an exit comes from Ray only if it has Ray's message.

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
    """An exception of a user's loop as text, which any process can read.

    Args:
        raised: The exception.

    Example:
        >>> print(LoopError(Raised("ValueError", "no such class", "Traceback ...")))
        ValueError: no such class
    """

    def __init__(self, raised: Raised):
        super().__init__(raised)
        self.tunekit_raised = raised

    def __str__(self) -> str:
        return self.tunekit_raised.reason.removeprefix("raised ")


def legible_error(error: BaseException) -> BaseException:
    """Return the exception itself if another process can read it; otherwise, its text.

    Example:
        >>> legible_error(ValueError(3))
        ValueError(3)
        >>> class Odd(Exception):
        ...     def __init__(self, code, text):
        ...         super().__init__(text)
        >>> print(legible_error(Odd(7, "no such class")))
        Odd: no such class
    """
    return error if travels(error) else LoopError(described(error))
