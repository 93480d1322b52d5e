"""The report in a real browser, on a wide window and a narrow one, and printed."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ray import tune

import tunekit
from tests.contract.test_reading_matches_files import asha, pbt
from tests.support.chromium import CHROMIUM, Chromium, Tab
from tests.support.readers import session, trial
from tunekit.board.page import write_page

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium)"),
    pytest.mark.sampled(2),
]

# What a reader would stumble over, gathered by the browser that has laid the page out.
LOOK = """(async () => {
await window.drawAll();
const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
const fits = () => [...document.querySelectorAll(".chart")].every((chart) =>
  Math.abs(chart.querySelector("svg.marks").getBoundingClientRect().width - chart.clientWidth) < 2);
for (let n = 0; n < 100 && !fits(); n++) await frame();
await frame();
const found = {trouble: []};
const failed = document.documentElement.dataset.failed;
if (failed) found.trouble.push(`a chart failed: ${failed}`);
const page = document.documentElement;
if (page.scrollWidth > page.clientWidth) found.trouble.push(`the page is ${page.scrollWidth} wide`);
if (performance.getEntriesByType("resource").length) found.trouble.push("it loads something");
for (const section of document.querySelectorAll("section"))
  if (section.getBoundingClientRect().height < 60) found.trouble.push(`${section.id} is empty`);
for (const one of document.querySelectorAll(".tile, button, .acts, h1, h2, h3"))
  if (one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== "inline")
    found.trouble.push(`${one.className || one.nodeName} is cut: ${one.textContent.trim()}`);
const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
  && a.top < b.bottom - 2 && b.top < a.bottom - 2;
found.charts = {};
for (const chart of document.querySelectorAll(".chart")) {
  const svg = chart.querySelector("svg.marks"), outside = svg.getBoundingClientRect();
  const marks = svg.querySelectorAll(".role-mark :is(path, line, rect, text)").length;
  found.charts[chart.id] = {marks, width: outside.width, room: chart.clientWidth};
  const inside = (box) => box.left >= outside.left - 1 && box.right <= outside.right + 1
    && box.top >= outside.top - 1 && box.bottom <= outside.bottom + 1;
  const texts = [...svg.querySelectorAll(
    ":is(.role-axis-label, .role-axis-title, .role-legend-label, .role-legend-title) text"
  )].filter((text) => text.textContent && getComputedStyle(text).opacity !== "0"
    && text.getAttribute("opacity") !== "0");
  const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
  boxes.forEach(([text, box], n) => {
    if (!inside(box)) found.trouble.push(`${chart.id}: ${text} is cut`);
    if (box.height < 7) found.trouble.push(`${chart.id}: ${text} is ${box.height} high`);
    for (const [other, its] of boxes.slice(n + 1))
      if (meet(box, its)) found.trouble.push(`${chart.id}: ${text} and ${other} overlap`);
  });
  const titles = [...svg.querySelectorAll(".role-axis-title text")].map((t) => t.textContent);
  found.charts[chart.id].titles = titles;
}
return found;
})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as browser:
        yield browser


@pytest.fixture
def tab(browser) -> Iterator[Tab]:
    tab = browser.tab()
    yield tab
    tab.close()


# What a reader does with the ranking, and what comes of it.
USE = """(async () => {
await window.drawing;
const found = {}, wait = (ms) => new Promise((done) => setTimeout(done, ms));
const until = async (holds) => { for (let n = 0; n < 200 && !holds(); n++) await wait(20); };
const table = document.querySelector("#trials"), filter = document.querySelector("#filter-trials");
const rows = () => [...table.tBodies[0].rows];
const shown = () => rows().filter((row) => !row.hidden).map((row) => row.dataset.trial);
const head = (name) => [...table.tHead.rows[0].cells].find((one) => one.textContent === name);
const type = (text) => {
  filter.value = text;
  filter.dispatchEvent(new Event("input", {bubbles: true}));
};
found.first = shown();
head("lr").querySelector("button").click();
found.ascending = [shown(), head("lr").ariaSort ?? head("lr").getAttribute("aria-sort")];
head("lr").querySelector("button").click();
found.descending = [shown(), head("lr").getAttribute("aria-sort")];
head("lr").querySelector("button").click();
found.back = [shown(), head("lr").getAttribute("aria-sort")];
type("lr<0.01 status=terminated");
found.filtered = shown();
let blob;
URL.createObjectURL = (one) => { blob = one; return "blob:none"; };
HTMLAnchorElement.prototype.click = function () { found.file = this.download; };
document.querySelector("[data-export]").click();
found.csv = await blob.text();
type("no such trial");
found.none = shown();
type("");
table.querySelector("button.trial").click();
const panel = document.querySelector("dialog");
await until(() => panel.open && panel.querySelector("h2"));
const beyond = panel.scrollWidth - panel.clientWidth;
found.panel = [panel.open, location.hash, panel.querySelector("h2").textContent, beyond];
panel.close();
await until(() => location.hash === "");
found.closed = location.hash;
const colour = () => getComputedStyle(document.body).backgroundColor;
document.querySelector("#theme").click();
found.light = colour();
document.querySelector("#theme").click();
found.dark = colour();
const sortable = [...document.querySelectorAll("th[aria-sort]")];
found.reachable = sortable.length > 0 && sortable.every((one) => one.querySelector("button"));
const box = table.closest(".scroll"), cell = table.tBodies[0].rows[0].cells[1];
box.scrollLeft = 10000;
await until(() => box.classList.contains("scrolled"));
found.sticky = [box.scrollLeft > 0 || box.scrollWidth === box.clientWidth,
  cell.getBoundingClientRect().left - box.getBoundingClientRect().left];
return found;
})()"""


def look(tab: Tab, page: Path, width: int, script: str = LOOK) -> dict[str, Any]:
    """Return what a script finds on the page, in a window of that width."""
    tab.resize(width)
    tab.open(page)
    found: dict[str, Any] = tab.run(script)
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


WIDTHS = (1280, 800, 500)


def looked_at(tab: Tab, page: Path) -> dict[str, Any]:
    """What is found on a page in any width; it is loaded once."""
    tab.open(page)
    found: dict[str, Any] = {}
    trouble: list[str] = []
    for width in WIDTHS:
        tab.resize(width)
        found = tab.run(LOOK)
        trouble += [f"{width}: {one}" for one in found["trouble"]]
        for name, chart in found["charts"].items():
            assert chart["marks"] > 0, f"{name} has nothing in it"
            assert chart["width"] <= chart["room"] + 1
    assert trouble == []
    return found


def test_nothing_overlaps_or_is_cut_or_empty(tab, page):
    seen = looked_at(tab, page)
    assert {"chart-validated", "chart-training0", "chart-timeline"} <= set(seen["charts"])
    axes = {title for chart in seen["charts"].values() for title in chart["titles"]}
    assert {"training iteration", "accuracy (validated)", "trial"} <= axes
    assert any("since the sweep began" in title for title in axes)


def test_the_ranking_is_sorted_filtered_and_exported(tab, tmp_path):
    loaded = tunekit.load(asha(tmp_path / "sweep").home)
    seen = look(tab, write_page(loaded, tmp_path / "report.html"), 500, USE)
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


def test_a_text_that_is_a_formula_is_exported_as_a_text(tab, tmp_path):
    home = tmp_path / "sweep"
    journal = session(home)
    trial(journal, "a", 0.5, lr=-0.001, note=FORMULA, other='say "hi", then\nleave')
    trial(journal, "b", 0.25, lr=0.5, note="@x", other="-5")
    page = write_page(tunekit.load(home), tmp_path / "report.html")
    seen = look(tab, page, 800, EXPORT)
    table = pd.read_csv(io.StringIO(seen["csv"]), dtype=str)
    assert list(table.note) == [f"'{FORMULA}", "'@x"]
    assert [float(one) for one in table.lr] == [-0.001, 0.5]
    assert table.other[0].split() == ["say", '"hi",', "then", "leave"] and table.other[1] == "-5"


EXPORT = """(async () => {
let blob;
URL.createObjectURL = (one) => { blob = one; return "blob:none"; };
HTMLAnchorElement.prototype.click = () => {};
document.querySelector("[data-export]").click();
return {csv: await blob.text()};
})()"""


def test_it_can_be_printed_with_all_charts(tab, page):
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


def test_curves_are_zoomed_and_a_trial_is_highlighted(tab, tmp_path):
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


def test_each_chart_is_saved_as_a_picture(tab, page):
    tab.open(page)
    names = tab.run("[...document.querySelectorAll('[data-png]')].map((one) => one.dataset.png)")
    charts = tab.run("document.querySelectorAll('.chart').length")
    assert len(names) == charts
    found = tab.run(SAVE)
    for name, (file, data) in found.items():
        picture = base64.b64decode(data)
        width, height = struct.unpack(">II", picture[16:24])
        assert picture.startswith(b"\x89PNG") and width > 400 and height > 50, name
        assert file.endswith(f"-{name}.png")
    assert list(found) == names


SAVE = """(async () => {
const found = {};
let blob, done;
URL.createObjectURL = (one) => { blob = one; return "blob:none"; };
HTMLAnchorElement.prototype.click = function () { done(this.download); };
for (const button of document.querySelectorAll("[data-png]")) {
  const file = await new Promise((resolve) => { done = resolve; button.click(); });
  const bytes = new Uint8Array(await blob.arrayBuffer());
  found[button.dataset.png] = [file, btoa([...bytes].map((b) => String.fromCharCode(b)).join(""))];
}
return found;
})()"""


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
def test_axe_finds_nothing_serious(tab, page):
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
