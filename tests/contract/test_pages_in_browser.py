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
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect
from ray import tune

import tunekit
from tests.support.chromium import CHROMIUM, chromium, script
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
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def tab(browser) -> Iterator[Page]:
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.set_default_timeout(60_000)
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
SWEEPS = {
    "asha": lambda folder: replace(asha(folder), trials=16).tuning(param_space=SPACE),
    "pbt": pbt,
}


@pytest.fixture(scope="module", params=SWEEPS)
def page(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    loaded = tunekit.load(SWEEPS[request.param](folder).run().home)
    return write_page(loaded, folder / "report.html")


def test_report_has_no_overlapping_cut_or_empty_part_at_any_width(tab, page):
    tab.goto(page.as_uri())
    for width in (1280, 800, 500):
        tab.set_viewport_size({"width": width, "height": 900})
        seen = tab.evaluate(script("look"))
        assert seen["trouble"] == [], width
        for name, chart in seen["charts"].items():
            assert chart["marks"] > 0 and chart["titles"], f"{name} has nothing in it"
            assert chart["width"] <= chart["room"] + 1
        assert {"chart-validated", "chart-training0", "chart-timeline"} <= set(seen["charts"])


@pytest.fixture(scope="module")
def ranked(tmp_path_factory) -> tuple[list[Ranked], Path]:
    """The ranking of a sweep, and its report."""
    folder = tmp_path_factory.mktemp("ranked")
    loaded = tunekit.load(asha(folder).run().home)
    return loaded.ranking(), write_page(loaded, folder / "report.html")


def test_ranking_table_sorts_filters_and_exports_its_trials(tab, ranked):
    ranking, page = ranked
    tab.set_viewport_size({"width": 500, "height": 900})
    tab.goto(page.as_uri())
    seen = tab.evaluate(script("use"))
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
    page = write_page(tunekit.load(tmp_path / "sweep"), tmp_path / "report.html")
    tab.goto(page.as_uri())
    table = pd.read_csv(io.StringIO(tab.evaluate(script("export"))["csv"]), dtype=str)
    assert list(table.note) == [f"'{formula}", "'@x"]
    assert [float(one) for one in table.lr] == [-0.001, 0.5]
    assert table.other[0].split() == ["say", '"hi",', "then", "leave"] and table.other[1] == "-5"


def test_printing_the_report_draws_the_charts_that_are_out_of_view(tab, page):
    tab.set_viewport_size({"width": 1000, "height": 300})
    tab.goto(page.as_uri())
    charts = "document.querySelectorAll('.chart').length"
    drawn = "document.querySelectorAll('.chart svg.marks').length"
    assert tab.evaluate(drawn) < tab.evaluate(charts), "what is out of view waits"
    assert tab.pdf().startswith(b"%PDF")
    assert tab.evaluate(drawn) == tab.evaluate(charts)


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
    tab.goto(page.as_uri())
    # Charts are drawn when they come into view.
    tab.locator("#chart-validated").scroll_into_view_if_needed()
    chart = tab.locator("#chart-validated svg.marks")
    chart.wait_for()
    # The curve points at its row.
    end = tab.evaluate(ENDS)[-1]
    tab.mouse.move(end["x"] + 3, end["y"])
    marked = tab.locator("#trials tr[data-marked]")
    marked.wait_for()
    shown = marked.get_attribute("data-trial")
    [name] = [one.name for one in ranking if one.trial_id == shown]
    assert name in tab.text_content("#vg-tooltip-element")
    assert tab.evaluate(OUTLINES) > 0
    # A click keeps it so, until Escape.
    tab.mouse.click(end["x"] + 3, end["y"])
    tab.mouse.move(2, 2)
    assert tab.evaluate(MARKED) == [shown]
    tab.keyboard.press("Escape")
    assert tab.evaluate(MARKED) == [] and tab.evaluate(OUTLINES) == 0
    # The row points at its curve, by the keyboard.
    second = ranking[1].trial_id
    tab.focus(f'#trials tr[data-trial="{second}"] button')
    assert tab.evaluate(OUTLINES) > 0 and tab.evaluate(MARKED) == [second]
    # Drag to zoom in; the button takes it back.
    before, reset = tab.evaluate(TICKS), tab.locator("[data-reset=validated]")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    begin, *others = [
        (box["x"] + box["width"] * x, box["y"] + box["height"] * y)
        for x, y in [(0.5, 0.45), (0.7, 0.6), (0.9, 0.7)]
    ]
    tab.mouse.move(*begin)
    tab.mouse.down()
    for point in others:
        tab.mouse.move(*point)
    tab.mouse.up()
    expect(reset).to_be_enabled()
    assert tab.evaluate(f"window.zooming.then(() => {TICKS})") != before
    reset.press("Enter")
    assert tab.evaluate(f"window.zooming.then(() => {TICKS})") == before
    assert reset.is_disabled()


def test_each_chart_of_the_report_is_saved_as_a_png_of_its_name(tab, page):
    tab.goto(page.as_uri())
    found = tab.evaluate(script("save"))
    assert len(found) == tab.evaluate("document.querySelectorAll('.chart').length")
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
        found: list[str] = tab.evaluate(f"axe.run({only}).then({SERIOUS})")
        return found

    tab.emulate_media(color_scheme="light")
    tab.goto(page.as_uri())
    tab.evaluate("window.drawAll()")
    tab.add_script_tag(path=Path(AXE.origin).with_name("axe.min.js"))
    assert violations() == []
    tab.locator("button.trial").first.click()
    tab.locator("dialog").wait_for()
    assert violations() == []
    tab.emulate_media(color_scheme="dark")
    assert violations("color-contrast") == [], "of the trial"
    tab.evaluate("document.querySelector('dialog').close()")
    assert violations("color-contrast") == []


# The live page ----------------------------------------------------------------------------------


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


def wait_for_best(tab: Page, name: str) -> None:
    tab.locator(".verdict b").get_by_text(name, exact=True).wait_for()


def test_open_live_page_follows_its_sweep_over_restarts_of_driver_and_server(tab, tmp_path):
    home = tmp_path / "sweeps/digits"
    journal = session(home)
    for n, name in enumerate("abcd"):
        config = {f"hyperparameter {k}": 1.0 for k in range(9)}
        trial(journal, name, n / 10 if name in "ab" else None, lr=0.4 - n / 10, **config)
    score(journal, "d", 1, None, reason="no data")
    [key] = Catalogue([str(home.parent)]).find()
    tab.set_viewport_size({"width": 800, "height": 900})
    with serving(home.parent) as port:
        tab.add_init_script(script("listen"))
        tab.goto(f"http://127.0.0.1:{port}/sweeps/{key}?token={TOKEN}")
        wait_for_best(tab, "b")
        tab.locator("#chart-validated").scroll_into_view_if_needed()
        tab.locator("#chart-validated svg.marks").wait_for()
        tab.evaluate(script("choose"))
        chosen = tab.evaluate(script("state"))
        assert chosen["order"] == ["d", "c", "b"] and "ascending" in chosen["sorted"]
        assert chosen["focused"] == "filter-trials" and chosen["scroll"] == 40
        score(journal, "c", 1, 0.9)
        score(journal, "c", 2, 0.8)
        wait_for_best(tab, "c")
        points = tab.locator("#chart-validated .mark-symbol.role-mark path")
        points.nth(3).wait_for(state="attached")
        assert tab.evaluate(script("state")) == chosen and chosen["same"], (
            "each row is the very same"
        )
    # The driver is killed, and the sweep restored; meanwhile the server is restarted.
    score(session(home, begins=False), "a", 2, 0.95)
    with serving(home.parent, port):
        wait_for_best(tab, "a")
        back = tab.evaluate(script("state"))
        assert back["order"] == chosen["order"] and back["wide"] == 0
        assert tab.evaluate("trouble") == [], "nothing was refused by the page's policy"
