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
    """Send requests to an application, with the cookies that it has set."""

    def __init__(self, app: Any, host: str = "127.0.0.1:7007"):
        self._app, self._host = app, host
        self.cookies: dict[str, str] = {}

    def get(self, target: str, method: str = "GET", **headers: str | list[str]) -> Answer:
        """Send a request, and return the answer; a header's values in a list are sent one by one.

        The path reaches the application as it is, which no real browser would do.
        """
        path, _, query = target.partition("?")
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        scope = {
            "type": "http",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "query_string": query.encode(),
            "headers": [
                (name.replace("_", "-").encode(), value.encode())
                for name, values in {"host": self._host, "cookie": cookies, **headers}.items()
                for value in ([values] if isinstance(values, str) else values)
                if value
            ],
        }
        requests, sent = iter([{"type": "http.request"}]), list[dict[str, Any]]()

        async def receive() -> Any:
            return next(requests, None) or await asyncio.Event().wait()  # the browser stays

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        asyncio.run(self._app(scope, receive, send))
        start, *bodies = sent
        known = {name.decode(): value.decode() for name, value in start["headers"]}
        if "set-cookie" in known:
            name, _, value = known["set-cookie"].partition(";")[0].partition("=")
            self.cookies[name] = value
        text = b"".join(body.get("body", b"") for body in bodies).decode()
        return Answer(start["status"], known, text)
