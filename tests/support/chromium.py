"""Chromium for tests and measurements: one process, driven over a pipe by the DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_TIMEOUT_S = 30.0
#: The codes of keys, and what they type.
_KEYS = {"Enter": (13, "\r"), "Escape": (27, "")}


def script(name: str) -> str:
    """Return a script for :meth:`Tab.run`, of the folder ``browser_scripts``."""
    return Path(__file__).with_name("browser_scripts").joinpath(f"{name}.js").read_text()


class Chromium:
    """A browser, which reads commands from its file descriptor 3 and answers on 4."""

    def __init__(self) -> None:
        self._profile = tempfile.mkdtemp(prefix="tunekit-chromium-")
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()

        # A shell gives the pipes the numbers that Chromium looks for.
        script = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        command = ["bash", "-c", script, "chromium", str(CHROMIUM), *_FLAGS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={self._profile}", "about:blank"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._unread, self._number = b"", 0

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._profile, ignore_errors=True)

    def tab(self, width: int = 1280, height: int = 900) -> Tab:
        """Open a tab."""
        return Tab(self, width, height)

    def send(self, method: str, session: str | None = None, **params: Any) -> Any:
        """Send a command of the DevTools protocol, to a tab or the browser; return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        until = time.monotonic() + _TIMEOUT_S
        while (answer := self._next(until)).get("id") != self._number:
            pass  # an event
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            piece = os.read(self._from, 1 << 20) if ready else b""
            if not piece:
                raise TimeoutError("Chromium does not answer.")
            self._unread += piece
        text, _, self._unread = self._unread.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found


class Tab:
    """A page in the browser."""

    def __init__(self, browser: Chromium, width: int, height: int):
        self._browser = browser
        self._target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.send("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = attached["sessionId"]
        self.send("Page.enable")
        self.resize(width, height)

    def close(self) -> None:
        """Close the tab."""
        self._browser.send("Target.closeTarget", targetId=self._target)

    def send(self, method: str, **params: Any) -> Any:
        """Send a command of the DevTools protocol."""
        return self._browser.send(method, self._session, **params)

    def resize(self, width: int, height: int = 900) -> None:
        """Change the window."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, scheme: str) -> None:
        """Prefer ``light`` or ``dark``."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def open(self, page: Path) -> None:
        """Open a page, and wait until its scripts have run."""
        address = page.absolute().as_uri()
        self.send("Page.navigate", url=address)
        here = f"location.href.startsWith({json.dumps(address)})"
        self.until(f"{here} && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of an expression; a promise is awaited."""
        given = {"expression": script, "awaitPromise": True, "returnByValue": True}
        answer = self.send("Runtime.evaluate", **given, userGesture=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def until(self, condition: str, timeout_s: float = 20.0) -> Any:
        """Wait until an expression holds, and return its value."""
        end = time.monotonic() + timeout_s
        while not (found := self.run(condition)):
            if time.monotonic() > end:
                raise TimeoutError(condition)
            time.sleep(0.02)
        return found

    def box(self, selector: str) -> dict[str, float]:
        """Scroll an element into view, and return its position in the window."""
        found: dict[str, float] = self.run(
            f"(() => {{const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'});"
            "return e.getBoundingClientRect().toJSON();})()"
        )
        return found

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Send a mouse event: ``mouseMoved``, ``mousePressed`` or ``mouseReleased``."""
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, *points: tuple[float, float]) -> None:
        """Press the mouse at the first point, move it over the others, and release it there."""
        self.mouse("mouseMoved", *points[0])
        self.mouse("mousePressed", *points[0], button="left", clickCount=1)
        for point in points[1:]:
            self.mouse("mouseMoved", *point, button="left", buttons=1)
        self.mouse("mouseReleased", *points[-1], button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Press and release a key."""
        code, text = _KEYS[key]
        for kind in ("keyDown", "keyUp"):
            known = {"key": key, "windowsVirtualKeyCode": code, "text": text}
            self.send("Input.dispatchKeyEvent", type=kind, **known)

    def picture(self, path: Path) -> None:
        """Save a picture of the window."""
        answer = self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        """Return the page as it is printed."""
        return base64.b64decode(self.send("Page.printToPDF")["data"])
