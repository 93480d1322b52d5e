"""Save and restore the global state of a process.

A validation in a trial's process must not change training (:func:`undisturbed`), and a trial must
not change the next one in its process (:class:`ProcessState`).
"""

from __future__ import annotations

import gc
import locale
import logging
import os
import random
import re
import signal
import socket
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from tunekit.core.values import describe_error, safely

_LIMITS: list[int] = []
with suppress(ImportError):  # Windows has none
    import resource

    _LIMITS += [n for name, n in vars(resource).items() if re.match("RLIMIT_(?!CORE)", name)]
_TIMERS = [getattr(signal, name) for name in dir(signal) if name.startswith("ITIMER_")]

# The value of a part that cannot be read, such as a working directory that was deleted.
_UNREADABLE = object()


class ProcessDamaged(Exception):
    """The state of this process cannot be restored, so a trial must not continue in it."""


class _Part(NamedTuple):
    """A part of the state of a process: how to read it, and how to write what was read.

    It is written if it has changed (to write some parts slows later code), or ``always``.
    PyTorch's parts also have the value that is ``new`` when it is imported.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    always: bool = False
    new: Any = None


def _saved(parts: Iterable[_Part]) -> list[tuple[_Part, Any]]:
    return [(part, safely(part.read, otherwise=_UNREADABLE)) for part in parts]


def _restore(saved: Iterable[tuple[_Part, Any]]) -> None:
    """Restore parts in order, even if some cannot be restored.

    Raises:
        ProcessDamaged: If any could not be restored.
    """
    failed: list[tuple[str, Exception]] = []
    for part, was in saved:
        try:
            changed = part.always or safely(part.read, otherwise=_UNREADABLE) != was
            if changed and was is not _UNREADABLE:
                part.write(was)
        except Exception as error:
            failed.append((part.name, error))
    if failed:
        name, cause = failed[0]
        why = describe_error(cause).reason.removeprefix("raised ")
        raise ProcessDamaged(f"damaged its process: cannot restore {name} ({why})") from cause


def release_gpu_memory() -> None:
    """Return unused CUDA memory of this process to the device.

    PyTorch keeps the memory of freed tensors for new ones. With fractional GPUs, and with processes
    that outlive trials or validations, another process on the same GPU may lack that memory.

    Memory of objects that are still referenced, such as an evaluator's model, is kept. In a process
    that has not imported torch or used CUDA, this does nothing; it never initializes CUDA.

    Example:
        >>> release_gpu_memory()
    """
    if cuda := _cuda():
        gc.collect()  # a network and its optimizer often refer to each other
        cuda.empty_cache()


def _cuda() -> Any:
    """Return ``torch.cuda`` if this process has used it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda and cuda.is_initialized() else None


def _check_gpu(_: Any = None) -> None:
    """Raise an error if each call of CUDA does, as after an error in a kernel."""
    if cuda := _cuda():
        cuda.synchronize()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Run a block, and then restore the process state, as far as this module covers it.

    Raises:
        ProcessDamaged: If a part of it could not be restored; the others are restored.

    Example:
        >>> random.seed(1)
        >>> with undisturbed():
        ...     drawn = random.random()
        >>> drawn == random.random()
        True
    """
    saved = _saved([*_settings(), *_surroundings(), *_torch()])
    try:
        yield
    finally:
        _restore(saved)


class ProcessState:
    """The state of a process before a trial runs in it, to restore for the next trial.

    As in a new process, PyTorch's random generators start in the same state for each trial, but
    those of Python and NumPy do not. What imported modules set up, such as import paths, stays, and
    so does what Tune sets: the working directory and the standard streams.

    Example:
        >>> before = ProcessState()
        >>> os.environ["LEFT_BEHIND"] = "1"
        >>> before.restore()
        >>> "LEFT_BEHIND" in os.environ
        False
    """

    def __init__(self) -> None:
        self._saved = _saved([*_settings(), *_torch()])
        self._knows_torch = "torch" in sys.modules

    def restore(self) -> None:
        """Restore the state.

        Raises:
            ProcessDamaged: If a part of it could not be restored; the others are restored.
        """
        random.seed()
        if numpy := sys.modules.get("numpy.random"):
            numpy.seed()
        imported = () if self._knows_torch else _torch()
        _restore([*self._saved, *((part, part.new) for part in imported)])
        if cuda := _cuda():
            cuda.reset_peak_memory_stats()


# The parts ---------------------------------------------------------------------------------------


def _settings() -> Iterator[_Part]:
    """Yield what neither a validation nor a trial may change for what follows it."""
    for timer in _TIMERS:
        yield _Part("its timers", partial(signal.getitimer, timer), partial(_set_timer, timer))
    if threading.current_thread() is threading.main_thread():  # only this one can set them
        for number in signal.Signals:
            handler = partial(signal.getsignal, number), partial(signal.signal, number)
            yield _Part("its signal handlers", *handler)
    for limit in _LIMITS:
        amounts = partial(resource.getrlimit, limit), partial(_set_limit, limit)
        yield _Part("its resource limits", *amounts)
    yield _Part("its GPU", _check_gpu, _check_gpu, always=True)
    yield _Part("its GPU's memory", lambda: None, lambda _: release_gpu_memory(), always=True)
    yield _Part("its environment", lambda: dict(os.environ), _set_environment)
    yield _Part("its time zone", lambda: (time.tzname, time.timezone), lambda _: time.tzset())
    name = partial(locale.setlocale, locale.LC_ALL)
    yield _Part("its locale", name, name)
    yield _Part("its umask", lambda: (now := os.umask(0o077), os.umask(now))[0], os.umask)
    yield _Part("gc", gc.isenabled, lambda on: gc.enable() if on else gc.disable())
    yield _Part("gc", gc.get_threshold, lambda was: gc.set_threshold(*was))
    if not gc.get_freeze_count():
        yield _Part("gc", gc.get_freeze_count, lambda _: gc.unfreeze())
    yield _Part("its recursion limit", sys.getrecursionlimit, sys.setrecursionlimit)
    yield _Part("its socket timeout", socket.getdefaulttimeout, socket.setdefaulttimeout)
    yield _Part("its log level", lambda: logging.root.manager.disable, logging.disable)


def _surroundings() -> Iterator[_Part]:
    """Yield what a validation may not change either."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = partial(_stream, number, name), partial(_set_stream, number, name)
        yield _Part(f"its {name}", *stream, always=True)
    yield _Part("its working directory", os.getcwd, os.chdir)
    yield _Part("its import path", lambda: [*sys.path], partial(setattr, sys, "path"))
    filters = partial(setattr, warnings, "filters")
    yield _Part("its warning filters", lambda: [*warnings.filters], filters)
    yield _Part("its random state", random.getstate, random.setstate)
    if numpy := sys.modules.get("numpy.random"):
        yield _Part("NumPy's random state", numpy.get_state, numpy.set_state, always=True)


def _set_timer(timer: Any, was: tuple[float, float]) -> None:
    signal.setitimer(timer, *was)


def _set_limit(limit: int, was: tuple[int, int]) -> None:
    resource.setrlimit(limit, (was[0], resource.getrlimit(limit)[1]))  # only root raises both


def _set_environment(was: dict[str, str]) -> None:
    for name in os.environ.keys() - was.keys():
        del os.environ[name]
    for name, value in was.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _stream(number: int, name: str) -> tuple[int, Any]:
    """Return a copy of a stream's descriptor, and the stream."""
    return os.dup(number), getattr(sys, name)


def _set_stream(number: int, name: str, was: tuple[int, Any]) -> None:
    copy, stream = was
    with suppress(OSError):  # it is closed
        if stat.S_ISSOCK(os.fstat(number).st_mode) and not stat.S_ISSOCK(os.fstat(copy).st_mode):
            raise ValueError("it was closed, and a connection has taken its place")
    os.dup2(copy, number)
    os.close(copy)
    if getattr(stream, "closed", False):
        mode = "w" if number else "r"
        stream = os.fdopen(number, mode, 1, "utf-8", "replace", closefd=False)
    setattr(sys, name, stream)


def _torch() -> Iterator[_Part]:
    """Yield the parts of PyTorch's state, if it is imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    cudnn, seeded = torch.backends.cudnn, torch.Generator()
    state = torch.get_rng_state, torch.set_rng_state
    yield _Part("PyTorch's random state", *state, always=True, new=seeded.get_state())
    # Another thread may have set the number of threads, which this one then does not see.
    threads = torch.get_num_threads, torch.set_num_threads
    yield _Part("its threads", *threads, always=True, new=torch.get_num_threads())
    for read, write, new in (
        (torch.is_grad_enabled, torch.set_grad_enabled, True),
        (torch.get_default_dtype, torch.set_default_dtype, torch.float32),
        (torch.get_default_device, torch.set_default_device, None),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 0),
        (partial(getattr, cudnn, "benchmark"), partial(setattr, cudnn, "benchmark"), False),
        (partial(getattr, cudnn, "deterministic"), partial(setattr, cudnn, "deterministic"), False),
    ):
        yield _Part("PyTorch's settings", read, write, new=new)

    def on_gpus(states: Any) -> None:
        if states is not None:
            torch.cuda.set_rng_state_all(states)
        elif _cuda():  # first used since: restore the state of its first use
            torch.cuda.manual_seed_all(seeded.initial_seed())

    name = "its GPUs' random states"
    yield _Part(name, lambda: (cuda := _cuda()) and cuda.get_rng_state_all(), on_gpus, always=True)
