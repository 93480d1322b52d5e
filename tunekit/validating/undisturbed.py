"""What a validation leaves as it was in a process in which a trial goes on afterwards."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from tunekit.gpu_memory import release_unused

__all__ = ["undisturbed"]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let what follows go on as if nothing had run in between.

    The states of random numbers (Python's, and those of NumPy and PyTorch, also on GPUs, if they
    are imported), PyTorch's gradient mode, default type and number of threads, the working
    directory and the environment are as before; GPU memory that is not used is given back.

    Example:
        >>> random.seed(1)
        >>> with undisturbed():
        ...     drawn = random.random()
        >>> drawn == random.random()
        True
    """
    with ExitStack() as stack:  # one that fails, as in a folder that is gone, keeps none from it
        for again in (release_unused, *_of_python(), *_of_numpy(), *_of_torch()):
            stack.callback(again)
        yield


def _of_python() -> Iterator[Callable[[], Any]]:
    folder, environ = _folder(), dict(os.environ)
    yield partial(random.setstate, random.getstate())

    def again() -> None:
        if folder is not None and _folder() != folder:
            os.chdir(folder)
        if os.environ != environ:
            os.environ.clear()
            os.environ.update(environ)

    yield again


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # somebody has deleted it
        return None


def _of_numpy() -> Iterator[Callable[[], Any]]:
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        yield partial(numpy.set_state, numpy.get_state())


def _of_torch() -> Iterator[Callable[[], Any]]:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for read, write in (
        (torch.get_rng_state, torch.set_rng_state),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_num_threads, torch.set_num_threads),
    ):
        yield partial(write, read())
    if torch.cuda.is_initialized():
        yield partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
