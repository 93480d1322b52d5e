"""Who may see the pages: requests of other sites, and without the token, are refused.

A browser sends requests to this server for any site that asks it to. A site whose name is made to
point to this machine (DNS rebinding) would even get the answers. So a request has to name the
server by a name of its own, must not come from another site, and has to bring a token: others who
are logged in to this machine, or can reach it, may not read the sweeps' files.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection
from urllib.parse import parse_qsl, urlencode

from tunekit.extras import extra

with extra("serve"):
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.requests import HTTPConnection
    from starlette.responses import PlainTextResponse, RedirectResponse, Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HEADERS", "LOCAL", "Guard"]

#: The names by which a browser on this machine calls it.
LOCAL = frozenset(["localhost", "127.0.0.1", "::1"])

#: What each answer says: it stays in its page, its site, and out of caches.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Lets requests through to an application that are meant for it.

    Args:
        app: The application.
        hosts: The names by which the server may be called; None: any.
        token: What a browser has to bring, once: it gets a cookie. None: nothing.
        cookie: The cookie's name.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str] | None = LOCAL,
        token: str | None = None,
        cookie: str = "tunekit",
    ):
        self._app, self._token, self._cookie = app, token, cookie
        self._hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it through."""
        if scope["type"] != "http":
            return  # there are no others: no WebSockets

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._refusal(scope) or self._entry(scope) or self._app
        await answer(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return what to say to a request that comes from somewhere else."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        host = hosts[0] if len(hosts) == 1 else ""
        if self._hosts is not None and _name_of(host) not in self._hosts:
            known = ", ".join(sorted(self._hosts))
            return PlainTextResponse(
                f"This server is not called {host!r}. Open it as one of {known}, or start it with "
                "--host.",
                status_code=421,
            )
        own = (f"http://{host}", f"https://{host}")  # the latter behind a proxy
        if any(origin not in own for origin in headers.getlist("origin")):
            return PlainTextResponse("Requests of other sites are refused.", status_code=403)
        # A link from another site may be followed; what a page of such a site loads is refused.
        site = headers.get("sec-fetch-site", "none")
        follows = headers.get("sec-fetch-dest") == "document"
        if site not in ("none", "same-origin") and not follows:
            return PlainTextResponse("Requests of other sites are refused.", status_code=403)
        return None

    def _entry(self, scope: Scope) -> Response | None:
        """Return what to say to a browser that has no cookie; None if it may come in."""
        if self._token is None or _same(
            HTTPConnection(scope).cookies.get(self._cookie, ""), self._token
        ):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in query if name == "token"), "")
        if not _same(given, self._token):
            text = "This server asks for a token: open the address that tunekit serve has printed."
            return PlainTextResponse(text, status_code=401)
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        # A path that begins with two slashes would lead to another site.
        path = "/" + scope["path"].lstrip("/\\")
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, status_code=303)
        answer.set_cookie(self._cookie, self._token, httponly=True, samesite="lax", path="/")
        return answer


def _same(given: str, wanted: str) -> bool:
    """Compare in a time that says nothing of where they differ."""
    return secrets.compare_digest(given.encode(errors="replace"), wanted.encode())


# A name or an address, and a port (RFC 3986, section 3.2, without user information).
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{1,5})?", re.ASCII)


def _name_of(host: str) -> str | None:
    """Return a host without its port; None if it is not a host, whatever it begins with.

    Example:
        >>> _name_of("localhost:7007"), _name_of("[::1]:7007"), _name_of("GPU1")
        ('localhost', '::1', 'gpu1')
        >>> _name_of("[::1].evil.example") is None
        True
    """
    found = _HOST.fullmatch(host.lower())
    return None if found is None else found[1] or found[2]
