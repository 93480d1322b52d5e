"""Save and restore the global state of a process.

That includes the environment, the working directory, the states of random generators (Python's,
NumPy's and PyTorch's, also on GPUs), PyTorch's settings, and unused GPU memory.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any


def release_gpu_memory() -> None:
    """Return unused CUDA memory of this process to the device.

    PyTorch keeps the memory of freed tensors for new ones. With fractional GPUs, and with processes
    that outlive trials or validations, another process on the same GPU may lack that memory.

    Memory of objects that are still referenced, such as an evaluator's model, is kept. In a process
    that has not imported torch or used CUDA, this does nothing; it never initializes CUDA.

    Example:
        >>> release_gpu_memory()
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    gc.collect()  # a network and its optimizer often refer to each other
    cuda.empty_cache()


def end_without_gpu() -> None:
    """End this process if it can no longer use its GPU.

    After an error in a CUDA kernel, each later call of CUDA in the process fails. A trial that has
    validated in its process would then fail. If the process ends, the trial continues in another
    one, as after a crash of the validation.

    Example:
        >>> end_without_gpu()
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    try:
        cuda.synchronize()
    except RuntimeError:
        traceback.print_exc()  # the driver prints it
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Run a block, and then restore the process state, as far as this module covers it.

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

    with ExitStack() as stack:  # a failing step, as in a deleted folder, does not stop the others
        stack.callback(release_gpu_memory)
        stack.callback(back)
        stack.callback(random.setstate, random.getstate())
        if numpy is not None:
            stack.callback(numpy.set_state, numpy.get_state())
        for again in (*_environment(), *_torch()):
            stack.callback(again)
        yield


class ProcessState:
    """The state of a process before a trial runs in it, to restore for the next trial.

    As in a new process, PyTorch's random generators start in the same state for each trial, but
    those of Python and NumPy do not. The working directory stays as it is.

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
        """Restore the state as far as possible."""
        with ExitStack() as stack:
            stack.callback(release_gpu_memory)
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
    except OSError:  # it was deleted
        return None


def _torch() -> Iterator[Callable[[], Any]]:
    """Yield a function that restores each part of PyTorch's state, if it is imported."""
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
        except RuntimeError:  # skip a setting that was changed in another way
            continue
        yield partial(_put_back, read, write, was)
    states = cuda.get_rng_state_all() if cuda.is_initialized() else None

    def on_gpus() -> None:
        if states is not None:
            cuda.set_rng_state_all(states)
        elif cuda.is_initialized():  # first used since: restore the state of its first use
            cuda.manual_seed_all(torch.Generator().initial_seed())

    yield on_gpus


def _put_back(read: Callable[[], Any], write: Callable[[Any], Any], was: Any) -> None:
    if read() != was:  # setting some of them slows later code, even to the same value
        write(was)
