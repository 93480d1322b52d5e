"""A validation in a trial's process restores its state, or fails and ends the process."""

from __future__ import annotations

import gc
import importlib
import locale
import logging
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import ray

from tunekit._ray import process_state
from tunekit._ray.process_state import ProcessState, undisturbed
from tunekit.core.executor import Failed
from tunekit.validating.context import ValidationContext
from tunekit.validating.process import Call, outcome_beside, validate_in_trial

with suppress(ImportError):
    import resource

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has few of these")

# Processes -------------------------------------------------------------------------------------

_REPORT = 200  # a descriptor that nothing below closes


def _reported(path: str, what: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    report = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.dup2(report, _REPORT)
    os.close(report)
    said = os.open(f"{path}.said", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    text = "ended well"
    try:
        what(*arguments)
        sys.stdout.flush()
    except BaseException:
        text = traceback.format_exc()
    os.write(_REPORT, text.encode())
    os._exit(0)


def in_new_process(folder: Path, what: Callable[..., None], *arguments: Any) -> str:
    """Call a function in a process of its own, which it may damage; return what it has printed."""
    new = multiprocessing.get_context("forkserver")
    new.set_forkserver_preload([__name__])
    process = new.Process(target=_reported, args=(str(folder / "report"), what, arguments))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    report = Path(folder, "report").read_text()
    assert report == "ended well", report
    return Path(folder, "report.said").read_text()


# What is restored --------------------------------------------------------------------------------


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


def _limit() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def _lower_limit() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, _limit()[1]))


def _move_to_tokyo() -> None:
    os.environ["TZ"] = "JST-9"
    time.tzset()


def _replace_streams() -> None:
    sys.stdout = sys.stderr = None  # type: ignore[assignment]


def _replace_filters() -> None:
    warnings.filters = []


#: How a validation changes a process, and how that is read; also between two trials.
BETWEEN_TRIALS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "environment": (lambda: os.environ.update(ADDED="1"), lambda: dict(os.environ)),
    "time zone": (_move_to_tokyo, lambda: time.localtime(0)),
    "umask": (lambda: os.umask(0o777), _umask),
    "locale": (
        lambda: locale.setlocale(locale.LC_ALL, "C"),
        lambda: locale.setlocale(locale.LC_ALL),
    ),
    "alarm": (lambda: signal.alarm(1000), lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0),
    "handler": (
        lambda: signal.signal(signal.SIGTERM, print),
        lambda: signal.getsignal(signal.SIGTERM),
    ),
    "logging": (lambda: logging.disable(logging.ERROR), lambda: logging.root.manager.disable),
    "no gc": (gc.disable, gc.isenabled),
    "gc": (lambda: gc.set_threshold(9, 9, 9), gc.get_threshold),
    "frozen": (gc.freeze, lambda: gc.get_freeze_count() > 0),
    "socket": (lambda: socket.setdefaulttimeout(3.0), socket.getdefaulttimeout),
    "recursion": (lambda: sys.setrecursionlimit(2000), sys.getrecursionlimit),
    "open files": (_lower_limit, _limit),
}
CHANGES = BETWEEN_TRIALS | {
    "folder": (lambda: os.chdir("/"), os.getcwd),
    "random": (random.random, random.getstate),
    "path": (lambda: sys.path.insert(0, "/"), lambda: list(sys.path)),
    "warnings": (lambda: warnings.simplefilter("error"), lambda: list(warnings.filters)),
    "filters": (_replace_filters, lambda: list(warnings.filters)),
    "streams": (_replace_streams, lambda: (sys.stdout, sys.stderr)),
}


def _prepare() -> None:
    for name in ("en_US.UTF-8", "C.UTF-8"):  # as far as the system has them
        with suppress(locale.Error):
            locale.setlocale(locale.LC_ALL, name)
    gc.unfreeze()


def _change(name: str) -> None:
    _prepare()
    change, read = CHANGES[name]
    before = read()
    with undisturbed():
        change()
        assert read() != before
    assert read() == before
    if name in BETWEEN_TRIALS:
        state = ProcessState()
        for _ in range(2):  # trials
            change()
            assert read() != before
            state.restore()
            assert read() == before
    assert "torch" not in sys.modules


@pytest.mark.parametrize("name", CHANGES)
def test_process_state_is_restored_after_a_validation_and_between_two_trials(tmp_path, name):
    in_new_process(tmp_path, _change, name)


def _train_with_torch() -> None:
    state = ProcessState()
    torch = importlib.import_module("torch")
    new, drawn = torch.get_default_dtype(), []
    for _ in range(2):  # trials
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        state.restore()
        drawn.append(torch.rand(3).tolist())
        assert torch.is_grad_enabled() and torch.get_default_dtype() is new
    assert drawn[0] == drawn[1]


def test_state_of_torch_is_restored_if_a_trial_was_the_first_to_import_it(tmp_path):
    in_new_process(tmp_path, _train_with_torch)


def _close_all() -> None:
    os.closerange(0, 3)


def _redirect() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _close_with_few_files() -> None:
    _close_all()
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, _limit()[1]))


SILENCES = {
    "closed": lambda: sys.stdout.close(),
    "replaced": _replace_streams,
    "redirected": _redirect,
    "files closed": _close_all,
    "no more files": _close_with_few_files,
}


def _silence(how: str) -> None:
    with undisturbed():
        SILENCES[how]()
    print("a trial's output")
    os.write(1, b"and a library's\n")


@pytest.mark.parametrize("how", SILENCES)
def test_output_of_a_trial_is_restored_after_a_validation_that_silenced_it(tmp_path, how):
    said = in_new_process(tmp_path, _silence, how)
    assert sorted(said.splitlines()) == ["a trial's output", "and a library's"]


def _validate_in_thread() -> None:
    """As in a worker whose actor has several threads; the main one may change handlers."""
    mask, found, inside, set_ = _umask(), [], threading.Event(), threading.Event()

    def thread() -> None:
        with undisturbed():
            signal.alarm(1000)
            os.umask(0o777)
            inside.set()
            set_.wait()
        found.append((signal.getitimer(signal.ITIMER_REAL)[0], _umask()))

    one = threading.Thread(target=thread)
    one.start()
    inside.wait()
    signal.signal(signal.SIGTERM, print)
    set_.set()
    one.join()
    assert found == [(0.0, mask)] and signal.getsignal(signal.SIGTERM) is print


def test_process_state_is_restored_after_a_validation_in_another_thread(tmp_path):
    in_new_process(tmp_path, _validate_in_thread)


def _lack_unix() -> None:
    sys.modules["resource"] = None  # type: ignore[assignment]
    for name in [name for name in vars(signal) if "itimer" in name.lower()]:
        delattr(signal, name)
    del time.tzset
    state = importlib.reload(process_state)
    with state.undisturbed():
        os.environ["ADDED"] = "1"
    assert "ADDED" not in os.environ


def test_process_state_is_restored_on_a_system_without_unix_modules(tmp_path):
    in_new_process(tmp_path, _lack_unix)


# What cannot be restored -------------------------------------------------------------------------


def _connect() -> None:
    """Let another thread's connection, as of Ray, take the place of a closed stream."""
    os.close(1)
    SOCKETS.append(socket.socket())
    assert SOCKETS[0].fileno() == 1


def _remove_folder() -> None:
    folder = os.getcwd()
    os.chdir("/")
    os.rmdir(folder)


SOCKETS: list[socket.socket] = []
DAMAGES: dict[str, Callable[[], None]] = {
    "resource limits": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16)),
    "stdin": lambda: os.closerange(0, 100),
    "stdout": _connect,
    "working directory": _remove_folder,
}


def _damage(what: str, raises: bool) -> None:
    if os.getuid() == 0:  # who can raise any limit again
        os.setuid(65534)
    os.chdir(tempfile.mkdtemp())
    before = _umask()

    def validate(checkpoint: Any) -> dict[str, float]:
        os.umask(0o777)
        DAMAGES[what]()
        return {"accuracy": 1 / (not raises)}

    ray.get = lambda value: value  # type: ignore[assignment]
    call = Call("a", validate, None, {}, ValidationContext("a", {}, 1))
    _, event = validate_in_trial(None, call)
    assert isinstance(event, Failed) and event.host_ended
    assert ("ZeroDivisionError" if raises else f"its {what}") in event.reason, event.reason
    assert _umask() == before, "all others are restored"


@pytest.mark.parametrize(
    ("what", "raises"), [*((what, False) for what in DAMAGES), ("stdin", True)]
)
def test_validation_that_damages_its_process_fails_and_ends_it(tmp_path, what, raises):
    in_new_process(tmp_path, _damage, what, raises)


def test_validation_after_which_cuda_fails_is_a_fatal_failure(monkeypatch):
    def fail() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    def validate() -> dict[str, float]:
        torch = importlib.import_module("torch")
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", fail)
        return {"accuracy": 0.5}

    found = outcome_beside(validate, None)
    assert found.fatal and found.kind == "" and "device-side assert triggered" in found.reason
