"""A live page in a real browser follows a sweep, and leaves alone what its reader has chosen."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.chromium import CHROMIUM
from tests.contract.test_serve import TOKEN, key_of, score, session, trial
from tunekit.board.serve import server
from tunekit.board.serve.app import Application
from tunekit.board.serve.catalogue import Catalogue
from tunekit.core.events import ValidationEnded, ValidationRequested
from tunekit.core.problems import Problems

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium)")

# A reader: chooses an order, a filter, a trial; then says what the page has become of it.
READER = """
const trouble = [];
addEventListener("securitypolicyviolation", (event) =>
  trouble.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sourceFile}`));
addEventListener("error", (event) => trouble.push(event.message));
addEventListener("unhandledrejection", (event) => trouble.push(String(event.reason)));
const tell = (what) => fetch("/told", {method: "POST", body: JSON.stringify({...what, trouble})});
const until = async (holds) => {
  for (;;) {
    const found = await holds();
    if (found) return found;
    await new Promise((done) => setTimeout(done, 20));
  }
};
const $ = (what) => document.querySelector(what);
const rows = () => [...$("#trials").tBodies[0].rows];
const shown = () => rows().filter((row) => !row.hidden).map((row) => row.dataset.trial);
const state = () => ({
  order: shown(),
  sorted: [...$("#trials").tHead.rows[0].cells].map((one) => one.getAttribute("aria-sort")),
  filter: $("#filter-trials").value,
  focused: document.activeElement.id,
  open: $("details[data-key]")?.open,
  drawn: document.querySelectorAll(".chart svg.marks").length,
  points: document.querySelectorAll("#chart-validated .mark-symbol.role-mark path").length,
  wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  events: document.querySelector("#connection").textContent,
  scroll: $("#trials").closest(".scroll").scrollLeft,
  best: $(".verdict b").textContent,
});
await until(() => {
  $("#chart-validated")?.scrollIntoView();
  return $("#chart-validated svg.marks");
});
[...$("#trials").tHead.rows[0].cells].find((one) => one.textContent === "lr")
  .querySelector("button").click();
$("#filter-trials").value = "lr<0.35";
$("#filter-trials").dispatchEvent(new Event("input", {bubbles: true}));
$("#filter-trials").focus();
$("details[data-key]").open = true;
$("#trials").closest(".scroll").scrollLeft = 40;
const kept = rows()[0];
await tell({what: "chosen", ...state()});
await until(() => $(".verdict b").textContent === "c");
await until(() => state().points >= 4);
await tell({what: "updated", ...state(), same: rows().includes(kept)});
await until(() => $(".verdict b").textContent === "a");
await tell({what: "back", ...state()});
"""


class Serving:
    """The server on a port of this machine, and what the reader tells it."""

    def __init__(self, path: Path):
        self.told: queue.Queue[dict[str, Any]] = queue.Queue()
        self._path, self.port = path, 0

    def start(self) -> None:
        problems = Problems("test")
        listener = server.listen("127.0.0.1", self.port, problems)
        assert listener is not None
        self.port = listener.getsockname()[1]
        self._app = Application(Catalogue([str(self._path)]), token=TOKEN)
        config = uvicorn.Config(
            self,
            interface="asgi3",
            lifespan="off",
            log_level="error",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.run, args=([listener],))
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer as the application does, with the reader in the page."""
        if scope["path"] == "/told":
            body, more = b"", True
            while more:
                message = await receive()
                body += message.get("body", b"")
                more = message.get("more_body", False)
            self.told.put(json.loads(body))
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        if not re.fullmatch(r"/sweeps/\w+", scope["path"]):
            await self._app(scope, receive, send)
            return
        if scope["query_string"]:  # with the token
            await self._app(scope, receive, send)
            return
        plain = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        start: dict[str, Any] = {}
        body: list[bytes] = []

        async def with_reader(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            body.append(message["body"])
            if message.get("more_body"):
                return
            text = b"".join(body).decode()
            nonce = re.search(r'<style nonce="(.*?)"', text)[1]  # type: ignore[index]
            reader = f'<script type="module" nonce="{nonce}">{READER}</script></body>'
            data = text.replace("</body>", reader).encode()
            headers = [(n, v) for n, v in start["headers"] if n != b"content-length"]
            await send({**start, "headers": headers})
            await send({**message, "body": data})

        await self._app({**scope, "headers": plain}, receive, with_reader)

    def next(self) -> dict[str, Any]:
        return self.told.get(timeout=90)


@pytest.fixture
def serving(tmp_path) -> Iterator[Serving]:
    serving = Serving(tmp_path / "sweeps")
    yield serving
    serving.stop()


def test_a_page_follows_its_sweep_and_both_may_restart(serving, tmp_path):
    home = tmp_path / "sweeps/digits"
    journal = session(home)
    for n, name in enumerate("abcd"):
        config = {f"hyperparameter {k}": 1.0 for k in range(9)}
        trial(journal, name, n / 10 if name in "ab" else None, lr=0.4 - n / 10, **config)
    journal.append(ValidationRequested(time=1e9, trial_id="d", id="d:0:1:1", iteration=1))
    journal.append(ValidationEnded(time=1e9 + 1, id="d:0:1:1", status="failed", reason="no data"))
    serving.start()
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--remote-debugging-port=0",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=800,900",
        f"http://127.0.0.1:{serving.port}/sweeps/{key_of(home.parent)}?token={TOKEN}",
    ]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        chosen = serving.next()
        assert chosen["order"] == ["d", "c", "b"] and "ascending" in chosen["sorted"]
        score(journal, "c", 1, 0.9)
        score(journal, "c", 2, 0.8)
        updated = serving.next()
        assert updated["same"], "a row that is still there is the very row"
        assert updated["best"] == "c"
        for name in ("order", "sorted", "filter", "focused", "open", "scroll"):
            assert updated[name] == chosen[name], name
        assert updated["focused"] == "filter-trials" and updated["scroll"] == 40
        # The driver is killed, and the sweep restored; meanwhile the server is restarted.
        serving.stop()
        score(session(home, begins=False), "a", 2, 0.95)
        serving.start()
        back = serving.next()
        assert back["order"] == chosen["order"] and back["wide"] == 0
        assert back["trouble"] == [], "nothing was refused by the page's policy"
    finally:
        browser.kill()
        browser.wait()
