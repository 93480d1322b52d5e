"""Serve sweeps over HTTP until interrupted."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence

from tunekit.board.page.page import vega
from tunekit.board.serve.app import LOCAL, Application
from tunekit.board.serve.catalogue import Catalogue
from tunekit.core.problems import Problems
from tunekit.extras import extra

with extra("serve"):
    import uvicorn


#: The default port; if it is taken, any free one.
PORT = 7007

#: The environment variable with a token that stays the same after a restart.
TOKEN = "TUNEKIT_SERVE_TOKEN"

_LEAST_TOKEN = 16

# The priority of the server's work relative to a sweep on the same machine (nice(2)).
_NICE = 5


def serve(
    paths: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    metric: str | None = None,
    mode: str | None = None,
    ready: Callable[[str], None] = print,
) -> None:
    """Serve sweeps as live pages, until Ctrl-C.

    Args:
        paths: Local paths, or URIs: sweeps' folders, or folders with sweeps below them.
        host: The name or address to listen on; requests must use it, or a name of this machine, as
            their host, and must have the token.
        port: The port; by default :data:`PORT`, or any free one if it is taken.
        metric: As for :func:`tunekit.load`.
        mode: Likewise.
        ready: Called with the address of the page, including the token, once it can be opened.

    Raises:
        tunekit.errors.ConfigError: If a path cannot be reached or is part of a sweep, if the host
            or port cannot be listened on, or if the token in the environment is too short.
        OSError: If a storage fails.
    """
    catalogue = Catalogue(paths)
    problems = Problems("tunekit serve")
    # Required on this machine, too: its other users may not have access to the files.
    token = os.environ.get(TOKEN) or secrets.token_urlsafe(32)
    if len(token) < _LEAST_TOKEN:
        problems.add(
            f"{TOKEN} has {len(token)} characters; it needs {_LEAST_TOKEN}, so that it cannot be "
            'guessed. Generate one: python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    listener = listen(host, port, problems)
    problems.raise_any()
    assert listener is not None  # otherwise an error was raised
    address, number, *_ = listener.getsockname()
    anywhere = address in ("0.0.0.0", "::")
    shown = socket.gethostname() if anywhere else host
    shown = f"[{shown}]" if ":" in shown else shown
    app = Application(
        catalogue,
        {"metric": metric, "mode": mode},
        token=token,
        cookie=f"tunekit-{number}",  # cookies belong to a host, not to a port
        hosts=(*LOCAL, shown, *([socket.getfqdn()] if anywhere else [])),
        any_address=anywhere,
    )
    config = uvicorn.Config(
        app,
        interface="asgi3",
        log_level="warning",
        access_log=False,  # it would contain the token
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    lower_priority()
    # The script that draws charts takes seconds to build; do it before the first request.
    threading.Thread(target=vega, name="tunekit-vega", daemon=True).start()
    ready(f"http://{shown}:{number}/?token={token}")
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:  # the usual way to end
        pass
    finally:
        listener.close()


def lower_priority() -> None:
    """Lower the CPU priority, on Linux of this thread and the threads that it starts."""
    with contextlib.suppress(AttributeError, OSError):  # not supported or not permitted everywhere
        os.nice(_NICE)


def listen(host: str, port: int | None, problems: Problems) -> socket.socket | None:
    """Return a listening socket; None, with a problem, if there is none."""
    last: OSError | None = None
    for number in [port] if port is not None else [PORT, 0]:
        try:
            family = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, number), family=family, backlog=128)
        except OSError as error:
            last = error
    which = "any port" if port is None else f"port={port}"
    problems.add(
        f"host={host!r} and {which} cannot be listened on: {last}. Pass another --port, or an "
        "address of this machine."
    )
    return None
