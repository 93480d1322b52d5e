"""In a real browser, reports can be read at any width, used, printed and followed."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import uvicorn
from ray import tune

import tunekit
from tests.support.chromium import CHROMIUM, Chromium, Tab, script
from tests.support.readers import score, session, trial
from tests.support.recordings import asha, pbt
from tunekit.board import serve
from tunekit.board.page import write_page
from tunekit.board.serve import Application
from tunekit.messages.problems import Problems
from tunekit.reading.catalogue import Catalogue

TOKEN = "t0ken-" * 5
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium)"),
    pytest.mark.sampled(2),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as browser:
        yield browser


@pytest.fixture
def tab(browser) -> Iterator[Tab]:
    tab = browser.tab()
    yield tab
    tab.close()


def look(tab: Tab, page: Path, width: int, name: str) -> dict[str, Any]:
    """Return what a script finds on the page, in a window of that width."""
    tab.resize(width)
    tab.open(page)
    found: dict[str, Any] = tab.run(script(name))
    return found


#: As users have them: logarithmic, linear, integers, choices, nested ones, and long names.
SPACE = {
    "optimizer": {
        "name": tune.choice(["adamw", "lion", "sgd"]),
        "learning_rate": tune.loguniform(1e-5, 1e-1),
        "weight_decay": tune.loguniform(1e-6, 1e-1),
        "warmup_steps": tune.randint(0, 2001),
    },
    "model": {"hidden_dim": tune.choice([128, 256, 512]), "dropout": tune.uniform(0.0, 0.5)},
    "augmentation_policy": tune.choice(
        ["none", "crop-and-flip", "randaugment-magnitude-9", "mixup-alpha-0.2-and-cutmix"]
    ),
    "label_smoothing": tune.quniform(0.0, 0.2, 0.05),
}
SWEEPS = {"asha": lambda folder: asha(folder, trials=16, param_space=SPACE), "pbt": pbt}


@pytest.fixture(scope="module", params=SWEEPS)
def page(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    loaded = tunekit.load(SWEEPS[request.param](folder).home)
    return write_page(loaded, folder / "report.html")


def test_report_has_no_overlapping_cut_or_empty_part_at_any_width(tab, page):
    tab.open(page)
    for width in (1280, 800, 500):
        tab.resize(width)
        seen = tab.run(script("look"))
        assert seen["trouble"] == [], width
        for name, chart in seen["charts"].items():
            assert chart["marks"] > 0 and chart["titles"], f"{name} has nothing in it"
            assert chart["width"] <= chart["room"] + 1
        assert {"chart-validated", "chart-training0", "chart-timeline"} <= set(seen["charts"])


def test_ranking_table_sorts_filters_and_exports_its_trials(tab, tmp_path):
    loaded = tunekit.load(asha(tmp_path / "sweep").home)
    seen = look(tab, write_page(loaded, tmp_path / "report.html"), 500, "use")
    ranked = [one.trial_id for one in loaded.ranking()]
    rates = {one.trial_id: one.config["lr"] for one in loaded.ranking()}
    assert seen["first"] == seen["back"][0] == ranked and seen["back"][1] == "none"
    assert seen["ascending"] == [sorted(ranked, key=rates.__getitem__), "ascending"]
    assert seen["descending"] == [sorted(ranked, key=rates.__getitem__)[::-1], "descending"]
    ended = {one.trial_id for one in loaded.ranking() if not one.trial.stopped}
    wanted = [one for one in ranked if rates[one] < 0.01 and one in ended]
    assert seen["filtered"] == wanted and seen["none"] == []
    assert 0 < len(wanted) < len(ranked)
    table = pd.read_csv(io.StringIO(seen["csv"]), dtype={"trial": str})
    assert list(table.trial) == wanted and seen["file"] == "sweep.csv"
    assert list(table.lr) == [rates[one] for one in wanted], "in full"
    best = {one.trial_id: one.best_value for one in loaded.ranking()}
    assert list(table["best accuracy"]) == [best[one] for one in wanted]
    opened, fragment, name, beyond = seen["panel"]
    assert (opened, fragment, beyond) == (True, f"#trial={ranked[0]}", 0)
    assert name == loaded.ranking()[0].name and seen["closed"] == ""
    assert seen["light"] != seen["dark"]
    assert seen["reachable"]
    scrolled, left = seen["sticky"]
    assert scrolled and 0 <= left < 120, "the trial's name stays in view"


FORMULA = "=HYPERLINK(1,2)"


def test_exported_text_that_is_a_spreadsheet_formula_is_quoted(tab, tmp_path):
    home = tmp_path / "sweep"
    journal = session(home)
    trial(journal, "a", 0.5, lr=-0.001, note=FORMULA, other='say "hi", then\nleave')
    trial(journal, "b", 0.25, lr=0.5, note="@x", other="-5")
    page = write_page(tunekit.load(home), tmp_path / "report.html")
    seen = look(tab, page, 800, "export")
    table = pd.read_csv(io.StringIO(seen["csv"]), dtype=str)
    assert list(table.note) == [f"'{FORMULA}", "'@x"]
    assert [float(one) for one in table.lr] == [-0.001, 0.5]
    assert table.other[0].split() == ["say", '"hi",', "then", "leave"] and table.other[1] == "-5"


def test_printing_the_report_draws_the_charts_that_are_out_of_view(tab, page):
    tab.resize(1000, 300)
    tab.open(page)
    charts = "document.querySelectorAll('.chart').length"
    drawn = "document.querySelectorAll('.chart svg.marks').length"
    assert tab.run(drawn) < tab.run(charts), "what is out of view waits"
    assert tab.pdf().startswith(b"%PDF")
    assert tab.run(drawn) == tab.run(charts)


# Charts ----------------------------------------------------------------------------------------

ENDS = """[...document.querySelectorAll("#chart-validated .mark-line path")].map((line) => {
  const end = line.getPointAtLength(line.getTotalLength() * 0.999);
  const {x, y} = end.matrixTransform(line.getScreenCTM());
  return {x, y};
})"""
TICKS = """[...document.querySelectorAll("#chart-validated .role-axis-label text")]
  .map((text) => text.textContent).filter(Boolean).sort()"""
MARKED = "[...document.querySelectorAll('#trials tr[data-marked]')].map((row) => row.dataset.trial)"
OUTLINES = "document.querySelectorAll('.outline[data-shown] .line:not([d=\"\"])').length"


def test_chart_and_ranking_highlight_the_same_trial_and_zoom_is_reset(tab, tmp_path):
    loaded = tunekit.load(asha(tmp_path / "sweep").home)
    ranked = [one.trial_id for one in loaded.ranking()]
    tab.open(write_page(loaded, tmp_path / "report.html"))
    tab.run("document.querySelector('#chart-validated').scrollIntoView({block: 'center'})")
    tab.until("!!document.querySelector('#chart-validated svg.marks')")
    # The curve points at its row.
    last = tab.run(ENDS)[-1]
    tab.mouse("mouseMoved", last["x"] + 3, last["y"])
    [shown] = tab.until(f"{MARKED}.length && {MARKED}")
    assert shown in ranked and tab.run(OUTLINES) > 0
    assert loaded.ranking()[ranked.index(shown)].name in tab.run(
        "document.querySelector('#vg-tooltip-element').textContent"
    )
    # A click keeps it so, another one does not.
    tab.mouse("mousePressed", last["x"] + 3, last["y"], button="left", clickCount=1)
    tab.mouse("mouseReleased", last["x"] + 3, last["y"], button="left", clickCount=1)
    tab.mouse("mouseMoved", 2, 2)
    assert tab.run(MARKED) == [shown]
    tab.press("Escape")
    assert tab.run(MARKED) == [] and tab.run(OUTLINES) == 0
    # The row points at its curve, by the keyboard.
    tab.run(f"document.querySelector('#trials tr[data-trial=\"{ranked[1]}\"] button').focus()")
    assert tab.run(OUTLINES) > 0 and tab.run(MARKED) == ranked[1:2]
    # Drag to zoom in; the button takes it back.
    before = tab.run(TICKS)
    box = tab.box("#chart-validated svg.marks")
    tab.drag(
        (box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.45),
        (box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.7),
    )
    tab.until(
        f"JSON.stringify({TICKS}) !== {json.dumps(json.dumps(before, separators=(',', ':')))}"
    )
    assert not tab.run("document.querySelector('[data-reset=validated]').disabled")
    tab.run("document.querySelector('[data-reset=validated]').focus()")
    tab.press("Enter")
    assert tab.run(f"window.zooming.then(() => {TICKS})") == before
    assert tab.run("document.querySelector('[data-reset=validated]').disabled")


def test_each_chart_of_the_report_is_saved_as_a_png_of_its_name(tab, page):
    tab.open(page)
    names = tab.run("[...document.querySelectorAll('[data-png]')].map((one) => one.dataset.png)")
    charts = tab.run("document.querySelectorAll('.chart').length")
    assert len(names) == charts
    found = tab.run(script("save"))
    for name, (file, data) in found.items():
        picture = base64.b64decode(data)
        width, height = struct.unpack(">II", picture[16:24])
        assert picture.startswith(b"\x89PNG") and width > 400 and height > 50, name
        assert file.endswith(f"-{name}.png")
    assert list(found) == names


# Accessibility ---------------------------------------------------------------------------------


def _axe() -> Path | None:
    if named := os.environ.get("TUNEKIT_AXE"):
        return Path(named)
    found = importlib.util.find_spec("axe_core_python")
    return None if found is None else Path(str(found.origin)).with_name("axe.min.js")


#: The script of axe-core: of the package, or the file that the environment names.
AXE = _axe()
needs_axe = pytest.mark.skipif(AXE is None, reason="needs axe-core (axe-core-python)")


def wrong(tab: Tab, rules: list[str] | None = None) -> list[str]:
    """What axe-core finds on the page as it is now, of all rules or of some."""
    tab.run("window.drawAll()")
    if not tab.run("'axe' in window"):
        assert AXE is not None
        tab.run(f"{AXE.read_text()}; 0")
    only = "{}" if rules is None else json.dumps({"runOnly": rules})
    found: list[str] = tab.run(f"axe.run({only}).then({SERIOUS})")
    return found


SERIOUS = """({violations}) => violations
  .filter(({impact}) => ["serious", "critical"].includes(impact))
  .map(({id, nodes}) => `${id}: ${nodes[0].html}`)"""


@needs_axe
def test_axe_finds_no_serious_violation_in_light_and_dark_mode(tab, page):
    tab.prefer("light")
    tab.open(page)
    assert wrong(tab) == []
    tab.click("button.trial")
    tab.until("document.querySelector('dialog').open")
    assert wrong(tab) == []
    tab.prefer("dark")
    assert wrong(tab, ["color-contrast"]) == [], "of the trial"
    tab.run("document.querySelector('dialog').close()")
    assert wrong(tab, ["color-contrast"]) == []


# The live page ----------------------------------------------------------------------------------


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


def test_open_live_page_follows_its_sweep_over_restarts_of_driver_and_server(serving, tmp_path):
    home = tmp_path / "sweeps/digits"
    journal = session(home)
    for n, name in enumerate("abcd"):
        config = {f"hyperparameter {k}": 1.0 for k in range(9)}
        trial(journal, name, n / 10 if name in "ab" else None, lr=0.4 - n / 10, **config)
    score(journal, "d", 1, None, reason="no data")
    serving.start()
    [key] = Catalogue([str(home.parent)]).find()
    address = f"http://127.0.0.1:{serving.port}/sweeps/{key}"

    def best_is(name: str) -> str:
        return f"document.querySelector('.verdict b')?.textContent === '{name}'"

    with Chromium() as browser:
        tab = browser.tab(800)
        tab.send("Page.addScriptToEvaluateOnNewDocument", source=script("listen"))
        tab.send("Page.navigate", url=f"{address}?token={TOKEN}")
        tab.until(best_is("b"))
        tab.until(DRAWN, 60)
        tab.run(script("choose"))
        chosen = tab.run(script("state"))
        assert chosen["order"] == ["d", "c", "b"] and "ascending" in chosen["sorted"]
        assert chosen["focused"] == "filter-trials" and chosen["scroll"] == 40
        score(journal, "c", 1, 0.9)
        score(journal, "c", 2, 0.8)
        tab.until(best_is("c"), 60)
        tab.until(f"{POINTS} >= 4", 60)
        assert tab.run(script("state")) == chosen and chosen["same"], (
            "each row is the very same one"
        )
        # The driver is killed, and the sweep restored; meanwhile the server is restarted.
        serving.stop()
        score(session(home, begins=False), "a", 2, 0.95)
        serving.start()
        tab.until(best_is("a"), 60)
        back = tab.run(script("state"))
        assert back["order"] == chosen["order"] and back["wide"] == 0
        assert tab.run("trouble") == [], "nothing was refused by the page's policy"
