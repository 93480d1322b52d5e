"""A live page in a real browser follows a sweep, and leaves alone what its reader has chosen."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from tests.contract.test_live_page import TOKEN, key_of
from tests.support.chromium import CHROMIUM, Chromium
from tests.support.readers import score, session, trial
from tunekit.board import serve
from tunekit.board.live import Catalogue
from tunekit.board.serve import Application
from tunekit.messages.problems import Problems

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium)")

# What goes wrong in the page, from the beginning.
LISTEN = """window.trouble = [];
addEventListener("securitypolicyviolation", (event) =>
  trouble.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sourceFile}`));
addEventListener("error", (event) => trouble.push(event.message));
addEventListener("unhandledrejection", (event) => trouble.push(String(event.reason)));
"""
# A reader chooses an order, a filter and a cause, and scrolls.
CHOOSE = """(() => {
const $ = (what) => document.querySelector(what);
const table = $("#trials");
[...table.tHead.rows[0].cells].find((one) => one.textContent === "lr")
  .querySelector("button").click();
$("#filter-trials").value = "lr<0.35";
$("#filter-trials").dispatchEvent(new Event("input", {bubbles: true}));
$("#filter-trials").focus();
$("details[data-key]").open = true;
table.closest(".scroll").scrollLeft = 40;
window.kept = table.tBodies[0].rows[0];
})()"""
# What the page has become of that.
STATE = """(() => {
const $ = (what) => document.querySelector(what);
const table = $("#trials"), rows = [...table.tBodies[0].rows];
return {
  order: rows.filter((row) => !row.hidden).map((row) => row.dataset.trial),
  sorted: [...table.tHead.rows[0].cells].map((one) => one.getAttribute("aria-sort")),
  filter: $("#filter-trials").value,
  focused: document.activeElement.id,
  open: $("details[data-key]").open,
  scroll: table.closest(".scroll").scrollLeft,
  same: rows.includes(window.kept),
  wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
};
})()"""
CHART = "document.querySelector('#chart-validated')"
DRAWN = f"({CHART}?.scrollIntoView(), !!{CHART}?.querySelector('svg.marks'))"
POINTS = "document.querySelectorAll('#chart-validated .mark-symbol.role-mark path').length"


class Serving:
    """The server, on the same port of this machine each time."""

    def __init__(self, path: Path):
        self._path, self.port = path, 0

    def start(self) -> None:
        listener = serve.listen("127.0.0.1", self.port, Problems("test"))
        assert listener is not None
        self.port = listener.getsockname()[1]
        app = Application(Catalogue([str(self._path)]), token=TOKEN)
        known = {"interface": "asgi3", "lifespan": "off", "log_level": "error"}
        self._server = uvicorn.Server(uvicorn.Config(app, **known, timeout_graceful_shutdown=1))
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.run, args=([listener],))
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()


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
    score(journal, "d", 1, None, reason="no data")
    serving.start()
    address = f"http://127.0.0.1:{serving.port}/sweeps/{key_of(home.parent)}"

    def best_is(name: str) -> str:
        return f"document.querySelector('.verdict b')?.textContent === '{name}'"

    with Chromium() as browser:
        tab = browser.tab(800)
        tab.send("Page.addScriptToEvaluateOnNewDocument", source=LISTEN)
        tab.send("Page.navigate", url=f"{address}?token={TOKEN}")
        tab.until(best_is("b"))
        tab.until(DRAWN, 60)
        tab.run(CHOOSE)
        chosen = tab.run(STATE)
        assert chosen["order"] == ["d", "c", "b"] and "ascending" in chosen["sorted"]
        assert chosen["focused"] == "filter-trials" and chosen["scroll"] == 40
        score(journal, "c", 1, 0.9)
        score(journal, "c", 2, 0.8)
        tab.until(best_is("c"), 60)
        tab.until(f"{POINTS} >= 4", 60)
        assert tab.run(STATE) == chosen and chosen["same"], "each row is the very same one"
        # The driver is killed, and the sweep restored; meanwhile the server is restarted.
        serving.stop()
        score(session(home, begins=False), "a", 2, 0.95)
        serving.start()
        tab.until(best_is("a"), 60)
        back = tab.run(STATE)
        assert back["order"] == chosen["order"] and back["wide"] == 0
        assert tab.run("trouble") == [], "nothing was refused by the page's policy"
