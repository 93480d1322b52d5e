"""The server's addresses: pages, what changes on them, and what a page asks for."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Collection, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlencode

from tunekit.board.page.page import shell, vega
from tunekit.board.serve.catalogue import Catalogue, Place
from tunekit.board.serve.guard import LOCAL, Guard
from tunekit.board.serve.index import Index
from tunekit.board.serve.live import LiveComparison, LiveSweep
from tunekit.board.serve.view import Update, View
from tunekit.board.serve.watch import Watch
from tunekit.extras import extra
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
        hosts: As for :class:`~tunekit.board.serve.guard.Guard`.
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
            Route("/compare/events", pages.compare_events),
            Route("/compare/chart", pages.compare_chart),
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
        self._comparisons: dict[tuple[str, ...], tuple[LiveComparison, Watch]] = {}

    def close(self) -> None:
        followed = [*self._sweeps.values(), *self._comparisons.values()]
        for watch in [self._index, *(watch for _, watch in followed)]:
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
        """Several sweeps side by side."""
        compared, watch = await self._comparison(request)
        await watch.first()
        if compared.trouble and not compared.view.parts:
            return PlainTextResponse(compared.trouble, status_code=400 if compared.refused else 503)
        asked = urlencode([("sweep", key) for key in _asked(request)])
        more = {"chart": f"/compare/chart?{asked}", "vega": _VEGA, "home": "/all"}
        return _page(compared.title, watch, events=f"/compare/events?{asked}", **more)

    async def compare_events(self, request: Request) -> Response:
        _, watch = await self._comparison(request)
        return _events(request, watch)

    async def compare_chart(self, request: Request) -> Response:
        compared, _ = await self._comparison(request)
        return _chart(request, compared.view, "The comparison has no such chart.")

    async def _comparison(self, request: Request) -> tuple[LiveComparison, Watch]:
        keys = _asked(request)
        if keys not in self._comparisons:
            self._places = await asyncio.to_thread(self._catalogue.look)
            if not all(key in self._places for key in keys):
                raise HTTPException(404, "There is no such sweep here.")
            _drop_idle(self._comparisons)
            compared = LiveComparison([self._places[key] for key in keys], self._options)
            watch = Watch(compared, interval_s=self._interval_s)
            self._comparisons.setdefault(keys, (compared, watch))  # it may have been asked twice
        return self._comparisons[keys]

    async def sweep(self, request: Request) -> Response:
        live, watch = await self._sweep(request)
        await watch.first()
        own = f"/sweeps/{live.place.key}"
        more = {"trial": f"{own}/trial", "chart": f"{own}/chart", "vega": _VEGA}
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
        return _chart(request, live.view, "The sweep has no such chart.")

    async def _sweep(self, request: Request) -> tuple[LiveSweep, Watch]:
        key = request.path_params["key"]
        if key not in self._sweeps:
            if key not in self._places:  # it may have begun since
                self._places = await asyncio.to_thread(self._catalogue.look)
            if key not in self._places:
                raise HTTPException(404, "There is no such sweep here.")
            _drop_idle(self._sweeps)
            live = LiveSweep(self._places[key], self._options)
            self._sweeps[key] = (live, Watch(live, interval_s=self._interval_s))
        return self._sweeps[key]


def _asked(request: Request) -> tuple[str, ...]:
    """Return the keys of the sweeps that are to be compared, each once."""
    return tuple(dict.fromkeys(request.query_params.getlist("sweep")))


def _drop_idle(followed: MutableMapping[Any, tuple[Any, Watch]]) -> None:
    """Drop what nobody has looked at for longest, so that there is room for another one."""
    idle = [key for key, (_, watch) in followed.items() if not watch.readers]
    for old in idle[: max(0, len(idle) - _KEPT + 1)]:
        del followed[old]


def _chart(request: Request, view: View, lacking: str) -> Response:
    text = view.charts.get(request.query_params.get("id", ""))
    if text is None:
        raise HTTPException(404, lacking)
    return Response(text, media_type="application/json")


def _page(name: str, watch: Watch, **live: Any) -> Response:
    nonce = secrets.token_urlsafe(16)
    view = watch.watched.view
    known = {"home": None, "trial": None, "chart": None, "vega": None, **live, "nonce": nonce}
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
