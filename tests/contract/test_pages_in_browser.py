"""In a real browser, reports can be read at any width, used, printed and followed."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
from tunekit.core.ranking import Ranked
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


@pytest.fixture(scope="module")
def ranked(tmp_path_factory) -> tuple[list[Ranked], Path]:
    """The ranking of a sweep, and its report."""
    folder = tmp_path_factory.mktemp("ranked")
    loaded = tunekit.load(asha(folder).home)
    return loaded.ranking(), write_page(loaded, folder / "report.html")


def test_ranking_table_sorts_filters_and_exports_its_trials(tab, ranked):
    ranking, page = ranked
    tab.resize(500)
    tab.open(page)
    seen = tab.run(script("use"))
    names = [one.trial_id for one in ranking]
    rates = {one.trial_id: one.config["lr"] for one in ranking}
    assert seen["first"] == seen["back"][0] == names and seen["back"][1] == "none"
    assert seen["ascending"] == [sorted(names, key=rates.__getitem__), "ascending"]
    assert seen["descending"] == [sorted(names, key=rates.__getitem__)[::-1], "descending"]
    wanted = [one for one in ranking if one.config["lr"] < 0.01 and not one.trial.stopped]
    assert 0 < len(wanted) < len(ranking) and seen["none"] == []
    table = pd.read_csv(io.StringIO(seen["csv"]), dtype={"trial": str})
    assert seen["filtered"] == list(table.trial) == [one.trial_id for one in wanted]
    assert list(table.lr) == [one.config["lr"] for one in wanted], "in full"
    assert list(table["best accuracy"]) == [one.best_value for one in wanted]
    assert seen["file"] == "sweep.csv"
    assert seen["panel"] == [True, f"#trial={names[0]}", ranking[0].name, 0]
    assert seen["closed"] == "" and seen["light"] != seen["dark"] and seen["reachable"]
    scrolled, left = seen["sticky"]
    assert scrolled and 0 <= left < 120, "the trial's name stays in view"


def test_exported_text_that_is_a_spreadsheet_formula_is_quoted(tab, tmp_path):
    journal, formula = session(tmp_path / "sweep"), "=HYPERLINK(1,2)"
    trial(journal, "a", 0.5, lr=-0.001, note=formula, other='say "hi", then\nleave')
    trial(journal, "b", 0.25, lr=0.5, note="@x", other="-5")
    tab.open(write_page(tunekit.load(tmp_path / "sweep"), tmp_path / "report.html"))
    table = pd.read_csv(io.StringIO(tab.run(script("export"))["csv"]), dtype=str)
    assert list(table.note) == [f"'{formula}", "'@x"]
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


def test_chart_and_ranking_highlight_the_same_trial_and_zoom_is_reset(tab, ranked):
    ranking, page = ranked
    tab.open(page)
    tab.box("#chart-validated")  # scrolls there: charts are drawn when they come into view
    tab.until("!!document.querySelector('#chart-validated svg.marks')")
    # The curve points at its row.
    end = tab.run(ENDS)[-1]
    tab.mouse("mouseMoved", end["x"] + 3, end["y"])
    [shown] = tab.until(f"{MARKED}.length && {MARKED}")
    [name] = [one.name for one in ranking if one.trial_id == shown]
    assert name in tab.run("document.querySelector('#vg-tooltip-element').textContent")
    assert tab.run(OUTLINES) > 0
    # A click keeps it so, until Escape.
    tab.drag((end["x"] + 3, end["y"]))
    tab.mouse("mouseMoved", 2, 2)
    assert tab.run(MARKED) == [shown]
    tab.press("Escape")
    assert tab.run(MARKED) == [] and tab.run(OUTLINES) == 0
    # The row points at its curve, by the keyboard.
    second = ranking[1].trial_id
    tab.run(f"document.querySelector('#trials tr[data-trial=\"{second}\"] button').focus()")
    assert tab.run(OUTLINES) > 0 and tab.run(MARKED) == [second]
    # Drag to zoom in; the button takes it back.
    before, reset = tab.run(TICKS), "document.querySelector('[data-reset=validated]')"
    box = tab.box("#chart-validated svg.marks")
    parts = [(0.5, 0.45), (0.7, 0.6), (0.9, 0.7)]
    tab.drag(*((box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in parts))
    tab.until(f"!{reset}.disabled && String({TICKS}) !== {json.dumps(','.join(before))}")
    tab.run(f"{reset}.focus()")
    tab.press("Enter")
    assert tab.run(f"window.zooming.then(() => {TICKS})") == before
    assert tab.run(f"{reset}.disabled")


def test_each_chart_of_the_report_is_saved_as_a_png_of_its_name(tab, page):
    tab.open(page)
    found = tab.run(script("save"))
    assert len(found) == tab.run("document.querySelectorAll('.chart').length")
    for name, (file, data) in found.items():
        picture = base64.b64decode(data)
        width, height = struct.unpack(">II", picture[16:24])
        assert picture.startswith(b"\x89PNG") and width > 400 and height > 50, name
        assert file.endswith(f"-{name}.png")


# Accessibility ---------------------------------------------------------------------------------


#: The package with the script of axe-core.
AXE = importlib.util.find_spec("axe_core_python")

SERIOUS = """({violations}) => violations
  .filter(({impact}) => ["serious", "critical"].includes(impact))
  .map(({id, nodes}) => `${id}: ${nodes[0].html}`)"""


@pytest.mark.skipif(AXE is None, reason="needs axe-core (axe-core-python)")
def test_axe_finds_no_serious_violation_in_light_and_dark_mode(tab, page):
    def violations(*rules: str) -> list[str]:
        only = json.dumps({"runOnly": rules} if rules else {})
        found: list[str] = tab.run(f"axe.run({only}).then({SERIOUS})")
        return found

    tab.prefer("light")
    tab.open(page)
    tab.run("window.drawAll()")
    tab.run(f"{Path(AXE.origin).with_name('axe.min.js').read_text()}; 0")
    assert violations() == []
    tab.run("document.querySelector('button.trial').click()")
    tab.until("document.querySelector('dialog').open")
    assert violations() == []
    tab.prefer("dark")
    assert violations("color-contrast") == [], "of the trial"
    tab.run("document.querySelector('dialog').close()")
    assert violations("color-contrast") == []


# The live page ----------------------------------------------------------------------------------


CHART = "document.querySelector('#chart-validated')"
DRAWN = f"({CHART}?.scrollIntoView(), !!{CHART}?.querySelector('svg.marks'))"
POINTS = "document.querySelectorAll('#chart-validated .mark-symbol.role-mark path').length"


@contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[int]:
    """Serve the sweeps below a folder on a port of this machine, by default on a free one."""
    listener = serve.listen("127.0.0.1", port, Problems("test"))
    app = Application(Catalogue([str(folder)]), token=TOKEN)
    known = {"interface": "asgi3", "lifespan": "off", "log_level": "error"}
    server = uvicorn.Server(uvicorn.Config(app, **known, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def best_is(name: str) -> str:
    return f"document.querySelector('.verdict b')?.textContent === '{name}'"


def test_open_live_page_follows_its_sweep_over_restarts_of_driver_and_server(tab, tmp_path):
    home = tmp_path / "sweeps/digits"
    journal = session(home)
    for n, name in enumerate("abcd"):
        config = {f"hyperparameter {k}": 1.0 for k in range(9)}
        trial(journal, name, n / 10 if name in "ab" else None, lr=0.4 - n / 10, **config)
    score(journal, "d", 1, None, reason="no data")
    [key] = Catalogue([str(home.parent)]).find()
    tab.resize(800)
    with serving(home.parent) as port:
        tab.send("Page.addScriptToEvaluateOnNewDocument", source=script("listen"))
        address = f"http://127.0.0.1:{port}/sweeps/{key}?token={TOKEN}"
        tab.send("Page.navigate", url=address)
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
        assert tab.run(script("state")) == chosen and chosen["same"], "each row is the very same"
    # The driver is killed, and the sweep restored; meanwhile the server is restarted.
    score(session(home, begins=False), "a", 2, 0.95)
    with serving(home.parent, port):
        tab.until(best_is("a"), 60)
        back = tab.run(script("state"))
        assert back["order"] == chosen["order"] and back["wide"] == 0
        assert tab.run("trouble") == [], "nothing was refused by the page's policy"
