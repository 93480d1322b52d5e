"""The server of live pages: its routes, the access rules for them, and how it is started."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from tunekit.board.live import LiveSweep
from tunekit.board.page import render_index, render_page, vega_script
from tunekit.errors import extra
from tunekit.messages.problems import Problems
from tunekit.reading.catalogue import Catalogue, Entry
from tunekit.version import VERSION

with extra("serve"):
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
    from starlette.routing import Route


#: The default port; if it is taken, any free one.
PORT = 7007

#: The environment variable with a token that stays the same after a restart.
TOKEN = "TUNEKIT_SERVE_TOKEN"

_LEAST_TOKEN = 16

# The priority of the server's work relative to a sweep on the same machine (nice(2)).
_NICE = 5

#: The host names by which a browser on this machine reaches the server.
LOCAL = ("localhost", "127.0.0.1", "[::1]")

#: The headers of each response, which keep it within its page and site and out of caches.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

# The number of sweeps to follow at once: the most recently requested ones.
_KEPT = 16
_PORT = re.compile(r":[0-9]*$")
_VEGA = f"/assets/vega-{VERSION}.js"


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
            or port cannot be listened on, or if the token in the environment is too short or odd.
        OSError: If a storage fails.
    """
    catalogue = Catalogue(paths)
    problems = Problems("tunekit serve")
    # Required on this machine too: its other users may not have access to the files.
    token = os.environ.get(TOKEN) or secrets.token_urlsafe(32)
    if len(token) < _LEAST_TOKEN or not (token.isascii() and token.isprintable()):
        problems.add(
            f"{TOKEN} has {len(token)} characters; it needs {_LEAST_TOKEN}, so that it cannot be "
            "guessed, all of them printable ASCII, so that it fits into a cookie. Generate one: "
            'python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    problems.goal(metric, mode)
    listener = None if problems else listen(host, port, problems)
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
    threading.Thread(target=vega_script, name="tunekit-vega", daemon=True).start()
    ready(f"http://{shown}:{number}/?{urlencode({'token': token})}")
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:  # the usual way to end
        pass
    finally:
        listener.close()


def lower_priority() -> None:
    """Lower the CPU priority (on Linux, of this thread and the threads that it starts)."""
    with contextlib.suppress(AttributeError, OSError):  # not supported or not permitted everywhere
        os.nice(_NICE)


def listen(host: str, port: int | None, problems: Problems) -> socket.socket | None:
    """Return a listening socket; None, with a problem, if there is none."""
    last: Exception | None = None
    for number in [port] if port is not None else [PORT, 0]:
        try:
            family = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, number), family=family, backlog=128)
        except (OSError, ValueError) as error:  # the latter for a name that no host can have
            last = error
    which = "any port" if port is None else f"port={port}"
    problems.add(
        f"host={host!r} and {which} cannot be listened on: {last}. Pass another --port, or an "
        "address of this machine."
    )
    return None


class Application(Starlette):
    """The server as an ASGI application.

    A request needs the token, as a cookie or, once, in its address, because other users of this
    machine, or of its network, may not have access to the sweeps' files. Two rules keep other sites
    out, regardless of the cookie: ``Host`` must be one of the server's own, against DNS rebinding;
    and pages of another origin may not load anything.

    Args:
        catalogue: The sweeps that are served.
        options: The metric and the mode, as for :func:`tunekit.load`.
        token: The token that a browser has to send.
        cookie: The name of the cookie that it gets in return.
        hosts: The host names and addresses that requests may use, without a port.
        any_address: Whether ``Host`` may also be any IP address, which DNS rebinding cannot forge.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        options: Mapping[str, Any] | None = None,
        *,
        token: str,
        cookie: str = "tunekit",
        hosts: Collection[str] = LOCAL,
        any_address: bool = False,
    ):
        self._catalogue, self._options = catalogue, dict(options or {})
        self._token, self._cookie = token, cookie
        self._hosts = list(dict.fromkeys(host.lower() for host in hosts))
        self._any_address = any_address
        self._entries: dict[str, Entry] = {}
        self._followed = lru_cache(_KEPT)(self._follow)
        routes = [
            Route("/", self._home),
            Route("/all", self._all),
            Route("/sweeps/{key}", self._sweep),
            Route("/sweeps/{key}/news", self._news),
            Route("/sweeps/{key}/trial", self._trial),
            Route("/sweeps/{key}/chart", self._chart),
            Route(_VEGA, _vega),
        ]
        guard = Middleware(BaseHTTPMiddleware, dispatch=self._guarded)
        packed = Middleware(GZipMiddleware, minimum_size=2000, compresslevel=5)
        handlers: Any = {OSError: _unreachable}
        super().__init__(routes=routes, middleware=[guard, packed], exception_handlers=handlers)

    async def _guarded(
        self, request: Request, answer: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Answer a request if access is allowed."""
        response = self._refusal(request) or await answer(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    def _refusal(self, request: Request) -> Response | None:
        """Return the response to a request that is refused or has the token; otherwise None."""
        host = ", ".join(request.headers.getlist("host"))
        if not self._is_own(_PORT.sub("", host.lower())):
            text = (
                f"Host {host!r} is not one of this server's: {', '.join(self._hosts)}. Open the "
                "address that tunekit serve has printed, or pass --host with the name you use."
            )
            return PlainTextResponse(text, status_code=421)
        # Links from other sites may be followed, but their pages may not load anything.
        reads = request.method in ("GET", "HEAD")
        follows = reads and request.headers.get("sec-fetch-dest") == "document"
        own = request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        origin = ", ".join(request.headers.getlist("origin"))
        foreign = origin not in (f"http://{host}", f"https://{host}")  # https: behind a proxy
        foreign = foreign and (bool(origin) or not reads)
        if foreign or (not own and not follows):
            text = (
                f"A page of {origin or 'another site'} may not load from this server, which "
                "answers its own pages only. Open the address that tunekit serve has printed."
            )
            return PlainTextResponse(text, status_code=403)
        if _same(request.cookies.get(self._cookie, ""), self._token):
            return None
        if not _same(request.query_params.get("token", ""), self._token):
            text = "This server requires a token. Open the address that tunekit serve has printed."
            return PlainTextResponse(text, status_code=401)
        rest = [(name, value) for name, value in request.query_params.items() if name != "token"]
        # A path that begins with two slashes would lead to another site.
        path = "/" + request.scope["path"].lstrip("/\\")
        entry = RedirectResponse(f"{path}?{urlencode(rest)}" if rest else path, status_code=303)
        entry.set_cookie(self._cookie, self._token, httponly=True, samesite="lax", path="/")
        return entry

    def _is_own(self, host: str) -> bool:
        if host in self._hosts:
            return True
        try:
            ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return False
        return self._any_address

    # Starlette calls the following methods in threads, unless they are coroutines.

    def _home(self, request: Request) -> Response:
        """Return the list of sweeps, or the sweep if there is only one."""
        self._entries = self._catalogue.find()
        if len(self._entries) == 1:
            return RedirectResponse(f"/sweeps/{next(iter(self._entries))}", status_code=307)
        return self._all(request)

    def _all(self, request: Request) -> Response:
        goal = {name: self._options.get(name) for name in ("metric", "mode")}
        rows = self._catalogue.outlines(**goal)
        return _page("Sweeps", {"sweeps": render_index(rows)})

    def _sweep(self, request: Request) -> Response:
        live = self._live(request)
        live.first()
        own = f"/sweeps/{live.entry.key}"
        known = {name: f"{own}/{name}" for name in ("news", "trial", "chart")}
        # Read the version first, so that changes in the meantime are sent again.
        known |= {"version": live.version, "home": "/all", "vega": _VEGA}
        return _page(live.entry.name, live.parts, **known)

    def _news(self, request: Request) -> Response:
        text = json.dumps(self._live(request).news(request.query_params.get("since", "")))
        return Response(text, media_type="application/json")

    def _trial(self, request: Request) -> Response:
        live = self._live(request)
        live.first()
        text = live.panel(request.query_params.get("id", ""))
        if text is None:
            raise HTTPException(404, "The sweep has no such trial.")
        return HTMLResponse(text)

    def _chart(self, request: Request) -> Response:
        text = self._live(request).charts.get(request.query_params.get("id", ""))
        if text is None:
            raise HTTPException(404, "There is no such chart.")
        return Response(text, media_type="application/json")

    def _live(self, request: Request) -> LiveSweep:
        """Return the live sweep that the path names."""
        key = request.path_params["key"]
        if key not in self._entries:  # the sweep may have started since
            self._entries = self._catalogue.find()
        if key not in self._entries:
            raise HTTPException(404, "There is no such sweep here.")
        return self._followed(key)

    def _follow(self, key: str) -> LiveSweep:
        return LiveSweep(self._entries[key], self._options)


def _same(given: str, token: str) -> bool:
    """Compare in constant time."""
    return secrets.compare_digest(given.encode(errors="replace"), token.encode())


def _page(name: str, parts: Mapping[str, str], **live: str) -> Response:
    nonce = secrets.token_urlsafe(16)
    names = ("home", "news", "version", "trial", "chart", "vega")
    text = render_page(name, parts, live={**dict.fromkeys(names), **live, "nonce": nonce})
    policy = (
        f"default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return HTMLResponse(text, headers={"Content-Security-Policy": policy})


def _unreachable(request: Request, error: OSError) -> Response:
    return PlainTextResponse(f"The sweeps cannot be read now: {error}", status_code=503)


def _vega(request: Request) -> Response:
    headers = {"Cache-Control": "private, max-age=86400"}
    return PlainTextResponse(vega_script(), media_type="text/javascript", headers=headers)
