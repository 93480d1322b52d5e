"""Says so when Ray itself has died; otherwise the driver would wait silently until Ray ended it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

from tunekit._ray.health import Address, answers, lost, services
from tunekit.core.outage import Outages

__all__ = ["watched"]

logger = logging.getLogger(__name__)

_INTERVAL_S, _PATIENCE_S = 2.5, 5.0


@contextlib.contextmanager
def watched(
    how_to_go_on: Callable[[], str],
    *,
    find: Callable[[], dict[str, Address]] = services,
    look: Callable[[Address], bool] = answers,
    interval_s: float = _INTERVAL_S,
    patience_s: float = _PATIENCE_S,
) -> Iterator[Callable[[], None]]:
    """Watch Ray's GCS and this node's raylet, in a thread of its own.

    Ray's own code ends a driver that has lost one of them, without an exception, so anything that
    is to be said has to be said before that.

    The context manager yields a function to call before a failure is recorded. It raises
    ``ray.exceptions.RaySystemError`` if the raylet is gone: all trials and validations fail with
    the raylet, and the driver ends. A GCS may come back.

    Args:
        how_to_go_on: Returns what to do when Ray is up again.
        find: Returns where the services are.
        look: Returns whether a service answers.
        interval_s: How often to look, in seconds.
        patience_s: For how many seconds a service must fail to answer before that is said.
    """
    try:
        where = find()
    except Exception as error:  # a sweep can do without this
        logger.debug("Ray's services are not looked after: %s", error)
        where = {}
    if not where:
        yield lambda: None
        return
    over, outages = threading.Event(), Outages(patience_s)

    def watch() -> None:
        while not over.wait(interval_s):
            found = {name: look(address) for name, address in where.items()}
            gone, back = outages.looked(found, time.monotonic())
            for name, seconds in gone.items():
                if not over.is_set():
                    logger.error("%s", _lost(name, where[name], seconds, how_to_go_on()))
            for name in back:
                logger.warning("Ray's %s answers again; the sweep goes on, if Ray does.", name)

    def check() -> None:
        if "raylet" in where and not look(where["raylet"]):
            raise lost("raylet", where["raylet"])

    thread = threading.Thread(target=watch, name="tunekit-watch", daemon=True)
    thread.start()
    try:
        yield check
    finally:
        over.set()


def _lost(name: str, address: Address, seconds: float, how_to_go_on: str) -> str:
    host, port = address
    return (
        f"Ray's {name} at {host}:{port} has not answered for {seconds:.0f} s, and the sweep cannot "
        "go on without it. Unless it comes back, Ray will end this process, soon or within a "
        "minute, without another word. What the sweep has done is recorded. When Ray is up again, "
        f"go on with it:\n{how_to_go_on}"
    )
