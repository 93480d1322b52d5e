"""What code changes in its process besides its own variables, and how to put that back.

That is the environment, the working directory, the states of random numbers (Python's, NumPy's and
PyTorch's, also on GPUs), PyTorch's switches, and GPU memory that is kept though nothing is in it.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from tunekit.gpu_memory import release_unused

__all__ = ["ProcessState", "undisturbed"]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let what follows go on as if nothing had run in between, as far as the module says.

    Example:
        >>> random.seed(1)
        >>> with undisturbed():
        ...     drawn = random.random()
        >>> drawn == random.random()
        True
    """
    folder, numpy = _folder(), sys.modules.get("numpy.random")

    def back() -> None:
        if folder is not None and _folder() != folder:
            os.chdir(folder)

    with ExitStack() as stack:  # one that fails, as in a folder that is gone, keeps none from it
        stack.callback(release_unused)
        stack.callback(back)
        stack.callback(random.setstate, random.getstate())
        if numpy is not None:
            stack.callback(numpy.set_state, numpy.get_state())
        for again in (*_environment(), *_torch()):
            stack.callback(again)
        yield


class ProcessState:
    """How a process is before a trial runs in it, so that the next one finds it alike.

    As in a process of its own, PyTorch's random numbers begin in the same state for each, and those
    of Python and NumPy do not. The working directory is the trial's own.

    Example:
        >>> before = ProcessState()
        >>> os.environ["LEFT_BEHIND"] = "1"
        >>> before.restore()
        >>> "LEFT_BEHIND" in os.environ
        False
    """

    def __init__(self) -> None:
        self._again = [*_environment(), *_torch()]
        self._knows_torch = "torch" in sys.modules

    def restore(self) -> None:
        """Put back what can be."""
        with ExitStack() as stack:
            stack.callback(release_unused)
            for again in self._again:
                stack.callback(again)
            stack.callback(random.seed)
            if "numpy.random" in sys.modules:
                stack.callback(sys.modules["numpy.random"].seed)
            torch = sys.modules.get("torch")
            if torch is not None and torch.cuda.is_initialized():
                stack.callback(torch.cuda.reset_peak_memory_stats)
            if torch is not None and not self._knows_torch:
                stack.callback(torch.manual_seed, torch.Generator().initial_seed())
                stack.callback(torch.set_grad_enabled, True)
                stack.callback(torch.set_default_dtype, torch.float32)
                stack.callback(torch.set_float32_matmul_precision, "highest")
                stack.callback(torch.set_deterministic_debug_mode, "default")
                stack.callback(setattr, torch.backends.cudnn, "benchmark", False)


def _environment() -> Iterator[Callable[[], Any]]:
    environ = dict(os.environ)

    def again() -> None:
        for name in os.environ.keys() - environ.keys():
            del os.environ[name]
        for name, value in environ.items():
            if os.environ.get(name) != value:
                os.environ[name] = value

    yield again


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # somebody has deleted it
        return None


def _torch() -> Iterator[Callable[[], Any]]:
    """Yield how to put back each part of PyTorch's state, if it is imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    cuda, cudnn = torch.cuda, torch.backends.cudnn
    yield partial(torch.set_rng_state, torch.get_rng_state())
    yield partial(torch.set_num_threads, torch.get_num_threads())  # another thread may have set it
    for read, write in (
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_default_device, torch.set_default_device),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        (partial(getattr, cudnn, "benchmark"), partial(setattr, cudnn, "benchmark")),
        (partial(getattr, cudnn, "deterministic"), partial(setattr, cudnn, "deterministic")),
    ):
        try:
            was = read()
        except RuntimeError:  # one that was set in another way is left alone
            continue
        yield partial(_put_back, read, write, was)
    states = cuda.get_rng_state_all() if cuda.is_initialized() else None

    def on_gpus() -> None:
        if states is not None:
            cuda.set_rng_state_all(states)
        elif cuda.is_initialized():  # first used since: as it was at its first use
            cuda.manual_seed_all(torch.Generator().initial_seed())

    yield on_gpus


def _put_back(read: Callable[[], Any], write: Callable[[Any], Any], was: Any) -> None:
    if read() != was:  # to set some of them costs time later, even to what they are
        write(was)
