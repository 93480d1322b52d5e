"""The report in a real browser, on a wide window and a narrow one, and printed."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tunekit
from tests.contract.test_analysis import asha, pbt
from tests.contract.test_seeds import run as seeds
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


def look(page: Path, folder: Path, width: int) -> dict[str, Any]:
    """Lay the page out in a window, in a frame that is as wide: windows have a least width."""
    text = page.read_text().replace("<html ", f'<html style="width: {width}px" ', 1)
    looked = folder / f"looked{width}.html"
    before, after = text.rsplit("</body>", 1)
    looked.write_text(f"{before}{LOOK}</body>{after}")
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


def test_it_can_be_printed(page, tmp_path):
    printed = tmp_path / "report.pdf"
    browse(page, tmp_path, f"--print-to-pdf={printed}", "--no-pdf-header-footer")
    assert printed.read_bytes().startswith(b"%PDF")
