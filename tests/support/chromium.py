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
from collections.abc import Mapping
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
_KEYS = {"Enter": 13, "Tab": 9, "Escape": 27, " ": 32, "ArrowDown": 40, "ArrowUp": 38}


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
        self.close()

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._profile, ignore_errors=True)

    def tab(self, width: int = 1280, height: int = 900) -> Tab:
        """Open a tab."""
        target = self.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        given = {"targetId": target, "flatten": True}
        return Tab(
            self, target, self.send("Target.attachToTarget", given)["sessionId"], width, height
        )

    def send(
        self, method: str, params: Mapping[str, Any] | None = None, session: str | None = None
    ) -> Any:
        """Send a command, and return its result."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": dict(params or {})}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        until = time.monotonic() + _TIMEOUT_S
        while True:
            answer = self._next(until)
            if answer.get("id") == number:
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

    def __init__(self, browser: Chromium, target: str, session: str, width: int, height: int):
        self._browser, self._target, self._session = browser, target, session
        self.send("Page.enable")
        self.resize(width, height)

    def send(self, method: str, **params: Any) -> Any:
        """Send a command of the DevTools protocol."""
        return self._browser.send(method, params, self._session)

    def resize(self, width: int, height: int = 900) -> None:
        """Change the window."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, scheme: str) -> None:
        """Prefer ``light`` or ``dark``."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def open(self, page: str | Path) -> None:
        """Open a page, and wait until its scripts have run."""
        address = page.absolute().as_uri() if isinstance(page, Path) else page
        self.send("Page.navigate", url=address)
        self.until(
            f"location.href.startsWith({json.dumps(address)}) && document.readyState === 'complete'"
        )

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
        while not (
            found := self.run(f"(() => {condition})()" if "return " in condition else condition)
        ):
            if time.monotonic() > end:
                raise TimeoutError(condition)
            time.sleep(0.02)
        return found

    def box(self, selector: str) -> dict[str, float]:
        """Scroll an element into view, and return its position in the window."""
        what = json.dumps(selector)
        found: dict[str, float] = self.run(
            f"(() => {{const e = document.querySelector({what});"
            "e.scrollIntoView({block: 'center'});"
            "const b = e.getBoundingClientRect();"
            "return {x: b.x, y: b.y, width: b.width, height: b.height};})()"
        )
        return found

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Send a mouse event: ``mouseMoved``, ``mousePressed`` or ``mouseReleased``."""
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector: str) -> None:
        """Click in the middle of an element."""
        box = self.box(selector)
        at = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        self.mouse("mouseMoved", *at)
        self.mouse("mousePressed", *at, button="left", clickCount=1)
        self.mouse("mouseReleased", *at, button="left", clickCount=1)

    def drag(self, begin: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag from a point of the window to another one."""
        self.mouse("mouseMoved", *begin)
        self.mouse("mousePressed", *begin, button="left", buttons=1, clickCount=1)
        for part in (0.3, 0.7, 1.0):
            at = [a + (b - a) * part for a, b in zip(begin, end, strict=True)]
            self.mouse("mouseMoved", *at, button="left", buttons=1)
        self.mouse("mouseReleased", *end, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Press and release a key."""
        known = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        text = {"Enter": "\r", " ": " "}.get(key)
        more = {"text": text} if text else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **known, **more)
        self.send("Input.dispatchKeyEvent", type="keyUp", **known)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Save a picture of the window, or of the whole page."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        """Return the page as it is printed."""
        return base64.b64decode(self.send("Page.printToPDF")["data"])

    def close(self) -> None:
        """Close the tab."""
        self._browser.send("Target.closeTarget", {"targetId": self._target})
