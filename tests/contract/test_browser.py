"""The report in a real browser, on a wide window and a narrow one, and printed."""

from __future__ import annotations

import html
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import tunekit
from tests.contract.test_analysis import asha, pbt
from tests.contract.test_seeds import run as seeds
from tests.contract.test_serve import session, trial
from tests.sweeps import Ran
from tunekit.page import write_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium)")

# What a reader would stumble over, gathered by the browser that has laid the page out.
LOOK = """
<script type="module">
await window.drawing;
const found = {drawn: document.documentElement.dataset.drawn, trouble: []};
const failed = document.documentElement.dataset.failed;
if (failed) found.trouble.push(`a chart failed: ${failed}`);
const page = document.documentElement;
if (page.scrollWidth > page.clientWidth) found.trouble.push(`the page is ${page.scrollWidth} wide`);
if (performance.getEntriesByType("resource").length) found.trouble.push("it loads something");
for (const section of document.querySelectorAll("section"))
  if (section.getBoundingClientRect().height < 60) found.trouble.push(`${section.id} is empty`);
const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
  && a.top < b.bottom - 2 && b.top < a.bottom - 2;
found.charts = {};
for (const chart of document.querySelectorAll(".chart")) {
  const svg = chart.querySelector("svg"), outside = svg.getBoundingClientRect();
  const marks = svg.querySelectorAll("[role=graphics-symbol]").length;
  found.charts[chart.id] = {marks, width: outside.width, room: chart.clientWidth};
  const inside = (box) => box.left >= outside.left - 1 && box.right <= outside.right + 1
    && box.top >= outside.top - 1 && box.bottom <= outside.bottom + 1;
  const texts = [...svg.querySelectorAll(
    ".role-axis-label text, .role-axis-title text, .role-legend-label text, .role-legend-title text"
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
document.title = JSON.stringify(found);
</script>
"""


def browse(page: Path, folder: Path, *more: str) -> str:
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        "--virtual-time-budget=10000",
        f"--user-data-dir={folder / 'profile'}",
        *more,
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


# What a reader does with the ranking, and what comes of it.
USE = """
<script type="module">
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
found.sticky = [box.scrollLeft > 0 || box.scrollWidth === box.clientWidth,
  cell.getBoundingClientRect().left - box.getBoundingClientRect().left];
document.title = JSON.stringify(found);
</script>
"""


def look(page: Path, folder: Path, width: int, script: str = LOOK) -> dict[str, Any]:
    """Lay the page out in a window, in a frame that is as wide: windows have a least width."""
    text = page.read_text().replace("<html ", f'<html style="width: {width}px" ', 1)
    looked = folder / f"looked{width}.html"
    before, after = text.rsplit("</body>", 1)
    looked.write_text(f"{before}{script}</body>{after}")
    title = re.search(
        r"<title>(.*?)</title>",
        browse(looked, folder, "--dump-dom", f"--window-size={width},1000"),
        re.S,
    )
    assert title is not None
    return json.loads(html.unescape(title.group(1)))


@pytest.fixture(scope="module", params=[asha, pbt, seeds], ids=["asha", "pbt", "seeds"])
def page(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    ran: Ran = request.param(folder)
    return write_page(tunekit.load(ran.home), folder / "report.html")


@pytest.mark.parametrize("width", [1280, 500])
def test_nothing_overlaps_or_is_cut_or_empty(page, width, tmp_path):
    seen = look(page, tmp_path, width)
    assert seen["trouble"] == []
    assert len(seen["charts"]) == int(seen["drawn"]) >= 4
    for name, chart in seen["charts"].items():
        assert chart["marks"] > 0, f"{name} has nothing in it"
        assert chart["width"] <= chart["room"] + 1
    axes = {title for chart in seen["charts"].values() for title in chart["titles"]}
    assert {"training iteration", "accuracy (validated)", "trial"} <= axes
    assert any("since the sweep began" in title for title in axes)


def test_the_ranking_is_sorted_filtered_and_exported(tmp_path):
    loaded = tunekit.load(asha(tmp_path / "sweep").home)
    seen = look(write_page(loaded, tmp_path / "report.html"), tmp_path, 500, USE)
    ranked = [one.trial_id for one in loaded.ranking()]
    rates = {one.trial_id: one.config["lr"] for one in loaded.ranking()}
    assert seen["first"] == seen["back"][0] == ranked and seen["back"][1] == "none"
    assert seen["ascending"] == [sorted(ranked, key=rates.__getitem__), "ascending"]
    assert seen["descending"] == [sorted(ranked, key=rates.__getitem__)[::-1], "descending"]
    ended = {one.trial_id for one in loaded.ranking() if not one.story.stopped}
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


def test_a_text_that_is_a_formula_is_exported_as_a_text(tmp_path):
    home = tmp_path / "sweep"
    journal = session(home)
    trial(journal, "a", 0.5, lr=-0.001, note=FORMULA, other='say "hi", then\nleave')
    trial(journal, "b", 0.25, lr=0.5, note="@x", other="-5")
    page = write_page(tunekit.load(home), tmp_path / "report.html")
    seen = look(page, tmp_path, 800, EXPORT)
    table = pd.read_csv(io.StringIO(seen["csv"]), dtype=str)
    assert list(table.note) == [f"'{FORMULA}", "'@x"]
    assert [float(one) for one in table.lr] == [-0.001, 0.5]
    assert table.other[0].split() == ["say", '"hi",', "then", "leave"] and table.other[1] == "-5"


EXPORT = """
<script type="module">
let blob;
URL.createObjectURL = (one) => { blob = one; return "blob:none"; };
HTMLAnchorElement.prototype.click = () => {};
document.querySelector("[data-export]").click();
document.title = JSON.stringify({csv: await blob.text()});
</script>
"""


def test_it_can_be_printed(page, tmp_path):
    printed = tmp_path / "report.pdf"
    browse(page, tmp_path, f"--print-to-pdf={printed}", "--no-pdf-header-footer")
    assert printed.read_bytes().startswith(b"%PDF")
