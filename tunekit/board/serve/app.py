"""The server's addresses: pages, what changes on them, and what a page asks for."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, cast

from tunekit.board.page.page import shell, vega
from tunekit.board.serve.catalogue import Catalogue, Place
from tunekit.board.serve.guard import LOCAL, Guard
from tunekit.board.serve.index import Index
from tunekit.board.serve.live import LiveSweep
from tunekit.board.serve.watch import Update, Watch
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
        self._catalogue, self._options = catalogue, dict(options or {})
        self._interval_s = interval_s
        self._index = Watch(Index(catalogue, self._options), interval_s=interval_s)
        self._places: dict[str, Place] = {}
        self._followed: dict[str, Watch] = {}
        routes = [
            Route("/", self._home),
            Route("/all", self._all),
            Route("/events", self._all_events),
            Route("/sweeps/{key}", self._sweep),
            Route("/sweeps/{key}/events", self._events),
            Route("/sweeps/{key}/trial", self._trial),
            Route("/sweeps/{key}/chart", self._chart),
            Route(_VEGA, _vega),
        ]
        app = GZipMiddleware(Starlette(routes=routes), minimum_size=2000, compresslevel=5)
        self._guarded = Guard(app, hosts=hosts, token=token, cookie=cookie)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._guarded(scope, receive, send)

    def close(self) -> None:
        """End the streams of events, which would last as long as their readers."""
        for watch in [self._index, *self._followed.values()]:
            watch.close()

    async def _home(self, request: Request) -> Response:
        """The list of sweeps; if there is but one, that."""
        self._places = await asyncio.to_thread(self._catalogue.look)
        if len(self._places) == 1:
            return RedirectResponse(f"/sweeps/{next(iter(self._places))}", status_code=307)
        return await self._all(request)

    async def _all(self, request: Request) -> Response:
        await self._index.first()
        return _page("Sweeps", self._index, events="/events")

    async def _all_events(self, request: Request) -> Response:
        return _events(request, self._index)

    async def _sweep(self, request: Request) -> Response:
        watch = await self._watch(request)
        await watch.first()
        place = cast(LiveSweep, watch.watched).place
        own = f"/sweeps/{place.key}"
        more = {"trial": f"{own}/trial", "chart": f"{own}/chart", "vega": _VEGA}
        return _page(place.name, watch, events=f"{own}/events", home="/all", **more)

    async def _events(self, request: Request) -> Response:
        return _events(request, await self._watch(request))

    async def _trial(self, request: Request) -> Response:
        watch = await self._watch(request)
        await watch.first()
        live = cast(LiveSweep, watch.watched)
        text = await asyncio.to_thread(live.panel, request.query_params.get("id", ""))
        if text is None:
            raise HTTPException(404, "The sweep has no such trial.")
        return HTMLResponse(text)

    async def _chart(self, request: Request) -> Response:
        charts = (await self._watch(request)).watched.view.charts
        text = charts.get(request.query_params.get("id", ""))
        if text is None:
            raise HTTPException(404, "There is no such chart.")
        return Response(text, media_type="application/json")

    async def _watch(self, request: Request) -> Watch:
        """Return what follows the sweep that the path names."""
        key = request.path_params["key"]
        if key not in self._followed:
            if key not in self._places:  # it may have begun since
                self._places = await asyncio.to_thread(self._catalogue.look)
            if key not in self._places:
                raise HTTPException(404, "There is no such sweep here.")
            _drop_idle(self._followed)
            live = LiveSweep(self._places[key], self._options)
            watch = Watch(live, interval_s=self._interval_s)
            self._followed.setdefault(key, watch)  # it may have been asked twice
        return self._followed[key]


def _drop_idle(followed: dict[str, Watch]) -> None:
    """Drop what nobody has looked at for longest, so that there is room for another one."""
    idle = [key for key, watch in followed.items() if not watch.readers]
    for old in idle[: max(0, len(idle) - _KEPT + 1)]:
        del followed[old]


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
    return f"event: update\ndata: {json.dumps(vars(update))}\n\n"


async def _vega(request: Request) -> Response:
    text = await asyncio.to_thread(vega)
    headers = {"Cache-Control": "private, max-age=86400"}
    return PlainTextResponse(text, media_type="text/javascript", headers=headers)
