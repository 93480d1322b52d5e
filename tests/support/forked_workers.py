"""Ray's worker processes, forked from one that has already imported everything.

A worker of Ray's imports ray twice, and then Tune, torch and tunekit: two to four seconds of CPU,
for each of the hundreds of processes that the tests start. Here the first worker of a run of the
tests starts a process that imports them once, and those of all its clusters are forked from that.
What they run is Ray's own start of a worker, each in a process of its own.

Workers are forked from the same process if they agree on every environment variable that Ray, Tune
or torch may have read when imported. A worker whose runtime environment asks for more than
environment variables is started in Ray's own way; so are all workers if ``TUNEKIT_REAL_STARTS=1``.

This file takes the place of Ray's ``setup_worker.py``, so that it imports little.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

_PRELOADED = (
    "ray.data",
    "ray.train.torch",
    "ray.tune",
    "ray._private.workers.default_worker",
    "sklearn.datasets",
    "torch._dynamo",  # which the first optimizer imports
    "torch.distributed",
    "tunekit",
)
_TELLING = ("RAY_", "TUNE_", "TRAIN_", "PYTHON", "OMP_", "TUNEKIT_", "CUDA_")
_READ_WHEN_NEEDED = {
    "PYTHONBREAKPOINT",
    "PYTHONPATH",
    "RAY_ADDRESS",
    "RAY_AUTH_TOKEN_PATH",
    "RAY_JOB_ID",
    "RAY_RAYLET_PID",
    "RAY_TMPDIR",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER",
}
_PATIENCE_S = 30
#: The environment variable with the process with which the forking one ends.
_RUN = "TUNEKIT_FORKING_FOR"


def use(*, here: bool = True) -> None:
    """Fork the workers of every Ray that this process, and those that it starts, starts.

    ``here``: whether this process starts any itself.
    """
    os.environ.setdefault(_RUN, str(os.getpid()))
    if here and sys.platform == "linux" and not os.environ.get("TUNEKIT_REAL_STARTS"):
        from ray._private import ray_constants

        ray_constants.SETUP_WORKER_FILENAME = os.path.abspath(__file__)


def _address() -> str:
    """Return the address of the forking process with this one's settings."""
    told = {name for name in os.environ if name.startswith(_TELLING)} - _READ_WHEN_NEEDED
    settings = json.dumps(
        [sys.executable, *(f"{name}={os.environ[name]}" for name in sorted(told))]
    )
    return "\0tunekit-workers-" + hashlib.sha256(settings.encode()).hexdigest()[:32]


def _serve() -> None:
    """Fork a worker for each that asks for one, until the run of the tests has ended."""
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(_address())
    except OSError:
        return  # another was faster
    listening.listen(256)
    # Ray reads these when it is imported: its workers belong to the job of their first task.
    os.environ |= {"RAY_JOB_ID": "f" * 8, "RAY_RAYLET_PID": os.environ[_RUN]}

    import gc
    import importlib
    from unittest import mock

    import ray.actor

    class Names(ray.actor.ActorClassID):
        """Names actor classes without Ray's own random numbers, which forks would share."""

        @classmethod
        def from_random(cls) -> Names:
            return cls(os.urandom(cls.size()))

    sys.path[0] = os.getcwd()
    with mock.patch.object(ray.actor, "ActorClassID", Names):  # a class is named when decorated
        for name in _PRELOADED:
            with suppress(ImportError):  # not every environment has torch
                importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a worker
    listening.settimeout(1)
    while os.path.exists(f"/proc/{os.environ[_RUN]}"):
        with suppress(TimeoutError):
            connection, _ = listening.accept()
            with connection, connection.makefile("rwb") as stream:
                asked = json.loads(stream.readline())
                worker = os.fork()
                if worker == 0:
                    break
                stream.write(b"%d\n" % worker)
    else:
        return
    connection.close()
    listening.close()
    _become_worker(**asked)


def _become_worker(argv: list[str], environment: dict[str, str], folder: str) -> None:
    import random
    import runpy
    import threading

    import numpy as np

    os.setpgrp()  # a raylet ends the process group of a worker
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(
        target=_end_with, args=(int(environment["RAY_RAYLET_PID"]),), daemon=True
    ).start()
    random.seed()
    np.random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()
    sys.argv = argv
    more = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [os.path.dirname(argv[0]), *more]
    runpy.run_path(argv[0], run_name="__main__")


def _end_with(raylet: int) -> None:
    """End this process when its node is lost; Ray's own check has another process's number."""
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(raylet)], [], [])
    os._exit(1)


def _fork(argv: list[str], variables: dict[str, str]) -> bool:
    """Fork a worker with some environment variables; return whether that succeeded."""
    os.environ.update(variables)
    asked = {"argv": argv, "environment": dict(os.environ), "folder": os.getcwd()}
    until, served = time.monotonic() + _PATIENCE_S, False
    while time.monotonic() < until:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(_address())
            served = True
            with connection.makefile("rwb") as stream:
                stream.write(json.dumps(asked).encode() + b"\n")
                stream.flush()
                return bool(stream.readline())
        if not served and os.fork() == 0:
            os.setsid()
            os.execv(sys.executable, [sys.executable, __file__, "serve"])
        served = True
        time.sleep(0.05)
    return False


def main() -> None:
    """Serve, or take the place of Ray's ``setup_worker.py``."""
    if sys.argv[1:] == ["serve"]:
        _serve()
        return
    arguments, context = [], {}
    for argument in sys.argv[1:]:
        name, _, value = argument.partition("=")
        if name == "--serialized-runtime-env-context":
            context = json.loads(value or "{}")
        elif name != "--language":
            arguments.append(argument)
    variables = context.pop("env_vars", {})
    more = [wanted for wanted in context.values() if wanted and wanted != sys.executable]
    forkable = not more and "$" not in "".join(variables.values())
    if not (forkable and "RAY_RAYLET_PID" in os.environ and _fork(arguments, variables)):
        from ray._private import workers

        theirs = os.path.join(os.path.dirname(workers.__file__), "setup_worker.py")
        os.execv(sys.executable, [sys.executable, theirs, *sys.argv[1:]])


if __name__ == "__main__":
    main()
