"""The server's addresses: pages, what changes on them, and what a page asks for."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

from tunekit.errors import TunekitError
from tunekit.extras import extra
from tunekit.page.page import shell, vega
from tunekit.serve.catalogue import Catalogue, Place
from tunekit.serve.compared import compared
from tunekit.serve.guard import LOCAL, Guard
from tunekit.serve.index import Index
from tunekit.serve.live import LiveSweep
from tunekit.serve.view import Update
from tunekit.serve.watch import Watch
from tunekit.version import VERSION

with extra("serve"):
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.requests import Request
    from starlette.responses import (
        HTMLResponse,
        PlainTextResponse,
        RedirectResponse,
        Response,
        StreamingResponse,
    )
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send

__all__ = ["Application"]

# So many sweeps are kept that nobody looks at.
_KEPT = 8
_VEGA = f"/assets/vega-{VERSION}.js"


class Application:
    """The server as an ASGI application.

    Args:
        catalogue: The sweeps that are served.
        options: The metric, mode and seed, as for :func:`tunekit.load`.
        hosts: As for :class:`~tunekit.serve.guard.Guard`.
        token: Likewise.
        cookie: Likewise.
        interval_s: How often a page that somebody looks at is brought up to date, in seconds.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        options: Mapping[str, Any] | None = None,
        *,
        hosts: Collection[str] | None = LOCAL,
        token: str | None = None,
        cookie: str = "tunekit",
        interval_s: float = 0.5,
    ):
        self._pages = pages = _Pages(catalogue, dict(options or {}), interval_s)
        routes = [
            Route("/", pages.home),
            Route("/all", pages.all),
            Route("/events", pages.all_events),
            Route("/compare", pages.compare),
            Route("/sweeps/{key}", pages.sweep),
            Route("/sweeps/{key}/events", pages.events),
            Route("/sweeps/{key}/trial", pages.trial),
            Route("/sweeps/{key}/chart", pages.chart),
            Route(_VEGA, _vega),
        ]
        app = GZipMiddleware(Starlette(routes=routes), minimum_size=2000, compresslevel=5)
        self._guarded = Guard(app, hosts=hosts, token=token, cookie=cookie)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._guarded(scope, receive, send)

    def close(self) -> None:
        """End the streams of events, which would last as long as their readers."""
        self._pages.close()


class _Pages:
    def __init__(self, catalogue: Catalogue, options: dict[str, Any], interval_s: float):
        self._catalogue, self._options, self._interval_s = catalogue, options, interval_s
        self._index = Watch(Index(catalogue, options), interval_s=interval_s)
        self._places: dict[str, Place] = {}
        self._sweeps: dict[str, tuple[LiveSweep, Watch]] = {}

    def close(self) -> None:
        for watch in [self._index, *(watch for _, watch in self._sweeps.values())]:
            watch.close()

    async def home(self, request: Request) -> Response:
        """The list of sweeps; if there is but one, that."""
        self._places = await asyncio.to_thread(self._catalogue.look)
        if len(self._places) == 1:
            return RedirectResponse(f"/sweeps/{next(iter(self._places))}", status_code=307)
        return await self.all(request)

    async def all(self, request: Request) -> Response:
        await self._index.first()
        return _page("Sweeps", self._index, events="/events")

    async def all_events(self, request: Request) -> Response:
        return _events(request, self._index)

    async def compare(self, request: Request) -> Response:
        """Several sweeps side by side, as they are now."""
        keys = list(dict.fromkeys(request.query_params.getlist("sweep")))
        self._places = await asyncio.to_thread(self._catalogue.look)
        places = [self._places[key] for key in keys if key in self._places]
        if len(places) < len(keys):
            raise HTTPException(404, "There is no such sweep here.")
        nonce = secrets.token_urlsafe(16)
        live = {"home": "/all", "trial": None, "vega": _VEGA, "events": None, "nonce": nonce}
        try:
            text = await asyncio.to_thread(compared, places, self._options, live)
        except TunekitError as error:
            return PlainTextResponse(str(error), status_code=400)
        return HTMLResponse(text, headers=_policy(nonce))

    async def sweep(self, request: Request) -> Response:
        live, watch = await self._sweep(request)
        await watch.first()
        own = f"/sweeps/{live.place.key}"
        more = {"trial": f"{own}/trial", "vega": _VEGA}
        return _page(live.place.name, watch, events=f"{own}/events", home="/all", **more)

    async def events(self, request: Request) -> Response:
        _, watch = await self._sweep(request)
        return _events(request, watch)

    async def trial(self, request: Request) -> Response:
        live, watch = await self._sweep(request)
        await watch.first()
        text = await asyncio.to_thread(live.panel, request.query_params.get("id", ""))
        if text is None:
            raise HTTPException(404, "The sweep has no such trial.")
        return HTMLResponse(text)

    async def chart(self, request: Request) -> Response:
        live, _ = await self._sweep(request)
        text = live.view.charts.get(request.query_params.get("id", ""))
        if text is None:
            raise HTTPException(404, "The sweep has no such chart.")
        return Response(text, media_type="application/json")

    async def _sweep(self, request: Request) -> tuple[LiveSweep, Watch]:
        key = request.path_params["key"]
        if key not in self._sweeps:
            if key not in self._places:  # it may have begun since
                self._places = await asyncio.to_thread(self._catalogue.look)
            if key not in self._places:
                raise HTTPException(404, "There is no such sweep here.")
            idle = [k for k, (_, watch) in self._sweeps.items() if not watch.readers]
            for old in idle[: max(0, len(idle) - _KEPT + 1)]:
                del self._sweeps[old]
            live = LiveSweep(self._places[key], self._options)
            self._sweeps[key] = (live, Watch(live, interval_s=self._interval_s))
        return self._sweeps[key]


def _page(name: str, watch: Watch, **live: Any) -> Response:
    nonce = secrets.token_urlsafe(16)
    view = watch.watched.view
    known = {"home": None, "trial": None, "vega": None, **live, "nonce": nonce}
    # The version first: what changes meanwhile is sent again.
    known["version"] = view.version
    text = shell(name, view.parts, live=known)
    return HTMLResponse(text, headers=_policy(nonce))


def _policy(nonce: str) -> dict[str, str]:
    policy = (
        f"default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return {"Content-Security-Policy": policy}


def _events(request: Request, watch: Watch) -> Response:
    async def stream() -> AsyncIterator[str]:
        async for update in watch.updates(request.query_params.get("since", "")):
            yield _event(update)

    return StreamingResponse(stream(), media_type="text/event-stream")


def _event(update: Update | str | None) -> str:
    """Return what is sent of server-sent events (https://html.spec.whatwg.org, section 9.2)."""
    if update is None:
        return ": nothing new\n\n"
    if isinstance(update, str):
        return f"event: trouble\ndata: {json.dumps(update or 'live')}\n\n"
    return f"event: update\ndata: {json.dumps(update.data())}\n\n"


async def _vega(request: Request) -> Response:
    text = await asyncio.to_thread(vega)
    headers = {"Cache-Control": "private, max-age=86400"}
    return PlainTextResponse(text, media_type="text/javascript", headers=headers)
