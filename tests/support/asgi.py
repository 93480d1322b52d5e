"""A fake browser for tests: sends requests to an ASGI application without a network."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    text: str


class Browser:
    """Send requests to an application, in a separate event loop."""

    def __init__(self, app: Any, host: str = "127.0.0.1:7007"):
        self._app, self._host = app, host
        self.loop = asyncio.new_event_loop()
        self.cookies: dict[str, str] = {}

    def close(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def get(
        self, target: str, method: str = "GET", body: bytes = b"", **headers: str | list[str]
    ) -> Answer:
        """Ask for something, and return the whole answer; a header may be there several times."""
        return self.loop.run_until_complete(self._whole(target, method, body, headers))

    async def _whole(
        self, target: str, method: str, body: bytes, headers: dict[str, Any]
    ) -> Answer:
        said: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            said.append(message)

        await self._ask(target, method, body, headers, send)
        text = b"".join(message.get("body", b"") for message in said[1:])
        known = {name.decode(): value.decode() for name, value in said[0]["headers"]}
        if "set-cookie" in known:
            name, _, value = known["set-cookie"].partition(";")[0].partition("=")
            self.cookies[name] = value
        return Answer(said[0]["status"], known, text.decode())

    async def _ask(
        self, target: str, method: str, body: bytes, headers: dict[str, Any], send: Any
    ) -> None:
        path, _, query = target.partition("?")
        known = {"host": self._host, **{n.replace("_", "-"): v for n, v in headers.items()}}
        if self.cookies:
            known["cookie"] = "; ".join(f"{n}={v}" for n, v in self.cookies.items())
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [
                (name.encode(), value.encode())
                for name, values in known.items()
                for value in ([values] if isinstance(values, str) else values)
                if value
            ],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 7007),
        }
        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if not asked:
                asked = True
                return {"type": "http.request", "body": body, "more_body": False}
            await asyncio.Event().wait()  # the browser stays
            raise AssertionError

        await self._app(scope, receive, send)
