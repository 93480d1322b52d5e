"""Logs that Ray itself has died, and ends a driver that would wait for it in vain."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import ray
from ray.exceptions import RaySystemError

from tunekit._ray.interruption import Signals, end_process, stands_in_ray

__all__ = ["Address", "Outages", "answers", "lost", "services", "watched"]

logger = logging.getLogger(__name__)

_INTERVAL_S, _PATIENCE_S = 2.5, 5.0
# After a signal: how often to look, how long Ray may still seem to be there, and how long the main
# thread may try to leave by itself. Three seconds is what stock Tune takes.
_SOON_S, _SETTLES_S, _GRACE_S = 0.1, 0.5, 2.0
# For how long the end may be recorded when the main thread does not leave.
_CLOSING_S = 1.0


Address = tuple[str, int]

_TIMEOUT_S = 3.0


def services() -> dict[str, Address]:
    """Return where the services listen without which the driver cannot go on.

    These are the cluster's GCS, and the raylet of the driver's own node; none without a cluster.
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
    """Return whether somebody listens there."""
    try:
        socket.create_connection(address, timeout=_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def lost(name: str, address: Address) -> RaySystemError:
    """Return the error that says that a service is gone."""
    host, port = address
    return RaySystemError(f"Ray's {name} at {host}:{port} does not answer")


class Outages:
    """Knows since when services do not answer, and says so once for each outage.

    Args:
        patience_s: For how many seconds a service must not answer, before that is told. It takes
            two looks at least.

    Example:
        >>> outages = Outages(patience_s=5.0)
        >>> [outages.looked({"GCS": answers}, now) for answers, now in [(True, 0), (False, 3)]]
        [({}, []), ({}, [])]
        >>> outages.looked({"GCS": False}, 9), outages.looked({"GCS": False}, 12)
        (({'GCS': 6}, []), ({}, []))
        >>> outages.looked({"GCS": True}, 15)
        ({}, ['GCS'])
    """

    def __init__(self, patience_s: float):
        self._patience_s = patience_s
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def looked(self, answers: Mapping[str, bool], now: float) -> tuple[dict[str, float], list[str]]:
        """Take whether services answer; return those to tell of, and those that are back.

        Args:
            answers: Whether each service answers.
            now: The time, in seconds.

        Returns:
            For how many seconds services have not answered of which it is to be told now; and
            those of which that was told and that answer again.
        """
        gone: dict[str, float] = {}
        back: list[str] = []
        for name, answered in answers.items():
            if answered:
                self._since.pop(name, None)
                if name in self._told:
                    self._told.discard(name)
                    back.append(name)
                continue
            silent = now - self._since.setdefault(name, now)
            if silent >= self._patience_s and name not in self._told:
                self._told.add(name)
                gone[name] = silent
        return gone, back


@contextlib.contextmanager
def watched(
    how_to_go_on: Callable[[], str],
    *,
    close: Callable[[], None] = lambda: None,
    find: Callable[[], dict[str, Address]] = services,
    look: Callable[[Address], bool] = answers,
    interval_s: float = _INTERVAL_S,
    patience_s: float = _PATIENCE_S,
    grace_s: float = _GRACE_S,
    leave: Callable[[int], None] = end_process,
) -> Iterator[Callable[[], None]]:
    """Watch Ray's GCS and this node's raylet, in a thread of its own.

    Ray's own code ends a driver that has lost one of them, without an exception, so anything that
    is to be said has to be said before that.

    ``timeout``, Slurm and most supervisors send SIGTERM to the whole process group, in which
    ``ray.init()`` has started these services. Then a call to Ray waits in C++ for a minute, where
    Python handles no signal. So once a signal has arrived and a service is gone, the main thread
    has ``grace_s`` to leave, and then the process is ended here. Each line of the journal was
    written before it was acted on, so nothing is lost by that. A main thread that has left may
    still come to stand in a call to Ray: what Ray and Tune do when Python exits asks the GCS, too.

    The context manager yields a function to call before a failure is recorded. It raises
    ``ray.exceptions.RaySystemError`` if the raylet is gone, or if Ray ends with the driver: all
    trials and validations fail with them. A GCS that was lost without a signal may come back.

    Args:
        how_to_go_on: Returns what to do when Ray is up again.
        close: Records the end, if the process ends here. Called in a thread of its own.
        find: Returns where the services are.
        look: Returns whether a service answers.
        interval_s: How often to look, in seconds.
        patience_s: For how many seconds a service must fail to answer before that is said.
        grace_s: For how many seconds the main thread may try to leave by itself.
        leave: Ends the process with an exit code.
    """
    try:
        where = find()
    except Exception as error:  # a sweep can do without this
        logger.debug("Ray's services are not looked after: %s", error)
        where = {}
    if not where:
        yield lambda: None
        return
    over, outages, signals = threading.Event(), Outages(patience_s), Signals()

    def gone() -> str | None:
        return next((name for name, address in where.items() if not look(address)), None)

    def watch() -> None:
        while True:
            if signals.wait(interval_s) is not None:
                end_with_ray()
                return
            if over.is_set():
                return
            found = {name: look(address) for name, address in where.items()}
            silent, back = outages.looked(found, time.monotonic())
            for name, seconds in silent.items():
                if not over.is_set():
                    logger.error("%s", _lost(name, where[name], seconds, how_to_go_on()))
            for name in back:
                logger.warning("Ray's %s answers again; the sweep goes on, if Ray does.", name)

    def end_with_ray() -> None:
        """End the process if Ray ends, too, and the main thread waits for it."""
        settled = time.monotonic() + _SETTLES_S
        while (name := gone()) is None:
            if over.is_set() and time.monotonic() >= settled:
                return
            time.sleep(_SOON_S)
        if over.wait(grace_s):
            if not waits_outside():
                return
        elif stands_in_ray():  # else it may be writing itself
            closing = threading.Thread(target=close, daemon=True)
            closing.start()
            closing.join(_CLOSING_S)
        number = signals.first or signal.SIGTERM
        logger.error("%s", _ended(name, number, how_to_go_on()))
        leave(128 + number)

    def waits_outside() -> bool:
        """Return whether the program comes to wait for Ray; False once it has left that."""
        since = time.monotonic()
        while ray.is_initialized():
            if not stands_in_ray():
                since = time.monotonic()
            elif time.monotonic() >= since + grace_s:
                return True
            time.sleep(_SOON_S)
        return False

    def check() -> None:
        settled = time.monotonic() + _SETTLES_S
        while signals.first is not None and (name := gone()) is None:
            if time.monotonic() >= settled:
                break
            time.sleep(_SOON_S)
        name = gone() if signals.first is not None else None
        if name is None and "raylet" in where and not look(where["raylet"]):
            name = "raylet"
        if name is not None:
            raise lost(name, where[name])

    thread = threading.Thread(target=watch, name="tunekit-watch", daemon=True)
    with signals.received():
        thread.start()
        try:
            yield check
        finally:
            over.set()
            signals.wake()


def _ended(name: str, number: int, how_to_go_on: str) -> str:
    return (
        f"{signal.Signals(number).name} has ended Ray's {name}, too, as it does where it is sent "
        "to the whole process group, and a call to Ray does not return. This process ends here. "
        f"What the sweep has done is recorded. Go on with it:\n{how_to_go_on}"
    )


def _lost(name: str, address: Address, seconds: float, how_to_go_on: str) -> str:
    host, port = address
    return (
        f"Ray's {name} at {host}:{port} has not answered for {seconds:.0f} s, and the sweep cannot "
        "go on without it. Unless it comes back, Ray will end this process, soon or within a "
        "minute, without another word. What the sweep has done is recorded. When Ray is up again, "
        f"go on with it:\n{how_to_go_on}"
    )
