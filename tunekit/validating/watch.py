"""End a driver that would wait forever for a Ray that a signal has ended, too."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import ray
from ray.exceptions import RaySystemError

from tunekit._ray.interruption import Signals, end_process, stands_in_ray

logger = logging.getLogger(__name__)

# After a signal, in seconds: the interval between checks, how long Ray's services may still
# answer, and how long the main thread has to leave. Tune alone takes three seconds.
_SOON_S, _SETTLES_S, _GRACE_S = 0.1, 0.5, 2.0
# The seconds that recording the end may take if the main thread does not leave.
_CLOSING_S = 1.0


Address = tuple[str, int]

_TIMEOUT_S = 3.0


def services() -> dict[str, Address]:
    """Return the addresses of the services that the driver needs.

    These are the cluster's GCS and the raylet of the driver's own node; none without a cluster.
    """
    if not ray.is_initialized():
        return {}
    context = ray.get_runtime_context()
    host, _, port = context.gcs_address.rpartition(":")
    found = {"GCS": (host.strip("[]"), int(port))}
    for node in ray.nodes():
        if node["NodeID"] == context.get_node_id():
            found["raylet"] = (node["NodeManagerAddress"], int(node["NodeManagerPort"]))
    return found


def answers(address: Address) -> bool:
    """Return whether a service accepts connections at an address."""
    try:
        socket.create_connection(address, timeout=_TIMEOUT_S).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def watched(
    how_to_continue: Callable[[], str],
    *,
    close: Callable[[], None] = lambda: None,
) -> Iterator[Callable[[], None]]:
    """Wait in a thread for a signal that ends Ray's GCS or this node's raylet, too.

    ``timeout``, Slurm and most supervisors send SIGTERM to the whole process group, which includes
    the services that ``ray.init()`` has started. A call to Ray then blocks in C++ for a minute,
    where Python handles no signals. So once a signal has arrived and a service is gone, the main
    thread has two seconds to leave; then this thread ends the process. That loses nothing, because
    each line of the journal is written before it is acted on. A main thread that has left may still
    block in Ray: Ray and Tune query the GCS when Python exits, too.

    The context manager yields a function to call before a failure is recorded. It raises
    ``ray.exceptions.RaySystemError`` if the raylet is gone, or if Ray ends with the driver, because
    all trials and validations then fail. A GCS that was lost without a signal may come back.

    Args:
        how_to_continue: Returns instructions for continuing the sweep when Ray is up again.
        close: Records the end if this thread ends the process. Called in another thread.
    """
    try:
        where = services()
    except Exception as error:  # a sweep can run without being watched
        logger.debug("Ray's services are not watched: %s", error)
        where = {}
    if not where:
        yield lambda: None
        return
    over, signals = threading.Event(), Signals()

    def gone() -> str | None:
        """Return a service that does not answer, or no longer within half a second."""
        settled = time.monotonic() + _SETTLES_S
        while True:
            name = next((one for one, at in where.items() if not answers(at)), None)
            if name is not None or time.monotonic() >= settled:
                return name
            time.sleep(_SOON_S)

    def watch() -> None:
        while not over.is_set():
            if signals.wait() is not None:
                end_with_ray()
                return

    def end_with_ray() -> None:
        """End the process if Ray has ended and the main thread blocks in it."""
        while (name := gone()) is None:
            if over.is_set():
                return
        if over.wait(_GRACE_S):
            if not waits_outside():
                return
        elif stands_in_ray():  # otherwise, the main thread may be recording the end
            closing = threading.Thread(target=close, daemon=True)
            closing.start()
            closing.join(_CLOSING_S)
        number = signals.first or signal.SIGTERM
        logger.error("%s", _ended(name, number, how_to_continue()))
        end_process(128 + number)

    def waits_outside() -> bool:
        """Return whether the main thread blocks in Ray too long; False once Ray is down."""
        since = time.monotonic()
        while ray.is_initialized():
            if not stands_in_ray():
                since = time.monotonic()
            elif time.monotonic() >= since + _GRACE_S:
                return True
            time.sleep(_SOON_S)
        return False

    def check() -> None:
        name = gone() if signals.first is not None else None
        if name is None and "raylet" in where and not answers(where["raylet"]):
            name = "raylet"
        if name is not None:
            host, port = where[name]
            raise RaySystemError(f"Ray's {name} at {host}:{port} does not answer")

    thread = threading.Thread(target=watch, name="tunekit-watch", daemon=True)
    with signals.received():
        thread.start()
        try:
            yield check
        finally:
            over.set()
            signals.wake()


def _ended(name: str, number: int, how_to_continue: str) -> str:
    return (
        f"{signal.Signals(number).name} has ended Ray's {name}, too, because it was sent to the "
        "whole process group, and a call to Ray does not return. This process ends now. The "
        f"sweep's progress is recorded; to continue it:\n{how_to_continue}"
    )
