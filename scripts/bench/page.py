"""Measure how fast the report of a large sweep opens and responds in a browser.

    python -m scripts.bench.page [--trials 1000] [--iterations 100] [--against 100]

The script writes reports of a large and of a small sweep, and opens them alternately in one
Chromium. All times are measured in the browser (``performance.now``): from the start of the
navigation until the page has run its scripts, has drawn the visible part and responds; from a click
on a column's heading until the browser has drawn the new order; from moving the mouse over the
curves until the highlighted trial is drawn. It prints medians and maxima, and how much slower the
large report is. The mouse points at twenty trials, so both sweeps need at least that many.
"""

from __future__ import annotations

import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.bench.harness import arguments, trial, validated
from tests.chromium import Chromium, Tab
from tunekit.board.page import write_page
from tunekit.core.events import Event, TrialEnded
from tunekit.reading.sweep import Sweep

_BEGAN = 1.7e9

# When the page responds: it is drawn, and idle a frame later.
_OPENED = """(async () => {
  await window.drawing;
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  return performance.now();
})()"""

# From an action to the frame that shows its result.
_SHOWN = """
  const shown = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  const took = async (act) => {
    const began = performance.now();
    await act();
    await shown();
    return performance.now() - began;
  };
"""
_SORTED = f"""(async () => {{{_SHOWN}
  const heads = [...document.querySelectorAll("#trials thead button")], found = [];
  for (const head of heads) for (let n = 0; n < 3; n++) found.push(await took(() => head.click()));
  return found;
}})()"""
_FILTERED = f"""(async () => {{{_SHOWN}
  const filter = document.querySelector("#filter-trials"), found = [];
  for (const text of ["l", "lr<0.01", "status=stopped", ""]) found.push(await took(() => {{
    filter.value = text;
    filter.dispatchEvent(new Event("input", {{bubbles: true}}));
  }}));
  return found;
}})()"""
_HOVERED = f"""(async () => {{{_SHOWN}
  const chart = document.querySelector("#chart-validated"), found = [];
  chart.scrollIntoView({{block: "center"}});
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  while (!chart.querySelector("svg.marks")) await wait(20);
  await wait(1500);  // until what is near has been drawn, too
  const lines = [...chart.querySelectorAll(".mark-line path")];
  for (let n = 0; n < 20; n++) {{
    const line = lines.at(-1 - n), at = line.getPointAtLength(line.getTotalLength() * 0.7);
    const {{x: clientX, y: clientY}} = at.matrixTransform(line.getScreenCTM());
    found.push(await took(() => chart.querySelector("svg.marks").dispatchEvent(
      new PointerEvent("pointermove", {{bubbles: true, clientX, clientY}}))));
    if (!chart.querySelector(".outline path")) throw new Error("nothing is highlighted");
  }}
  return found;
}})()"""


def events(trials: int, iterations: int) -> Iterator[Event]:
    """Yield the events of a sweep in which every checkpoint was validated."""
    draw = random.Random(0)
    names = [f"a1b2c_{n:05d}" for n in range(trials)]
    for trial_id in names:
        yield trial(trial_id, draw, _BEGAN)
    for n, trial_id in enumerate(names):
        talent, start = draw.random(), _BEGAN + 40 * (n // 16)
        for iteration in range(1, iterations + 1):
            value = talent * (1 - math.exp(-iteration / 30)) + draw.random() / 50
            yield from validated(trial_id, iteration, value, start + 2.0 * iteration)
        yield TrialEnded(time=start + 2.0 * iterations + 1, trial_id=trial_id)


def written(trials: int, iterations: int, file: Path) -> Path:
    """Write the report of a sweep of this size."""
    began = time.perf_counter()
    sweep = Sweep(list(events(trials, iterations)), metric="accuracy", mode="max")
    read = time.perf_counter()
    write_page(sweep, file)
    print(
        f"{trials} trials x {iterations}: {file.stat().st_size / 1e6:.1f} MB, "
        f"written in {time.perf_counter() - read:.1f} s (events in {read - began:.1f} s)",
        flush=True,
    )
    return file


def measured(tab: Tab, page: Path) -> dict[str, list[float]]:
    """Return the times that a reader waits, in milliseconds."""
    tab.open(page)
    return {
        "open": [tab.run(_OPENED)],
        "sort": tab.run(_SORTED),
        "filter": tab.run(_FILTERED),
        "hover": tab.run(_HOVERED),
    }


def main() -> None:
    """Write both reports, open them alternately, and print the times."""
    given = arguments(__doc__, trials=1000, iterations=100, against=100, rounds=5)
    with tempfile.TemporaryDirectory() as folder, Chromium() as browser:
        pages = {
            trials: written(trials, given.iterations, Path(folder, f"{trials}.html"))
            for trials in (given.against, given.trials)
        }
        found: dict[int, dict[str, list[float]]] = {trials: {} for trials in pages}
        tab = browser.tab()
        for _ in range(given.rounds):
            for trials, page in pages.items():
                for what, times in measured(tab, page).items():
                    found[trials].setdefault(what, []).extend(times)
    small, large = found[given.against], found[given.trials]
    print(
        f"{'':8} {given.against:>6} trials: median, max"
        f"  {given.trials:>6} trials: median, max  ratio"
    )
    for what in small:
        one, other = small[what], large[what]
        ratio = statistics.median(other) / statistics.median(one)
        print(
            f"{what:8} {statistics.median(one):12.0f} ms {max(one):7.0f} ms "
            f"{statistics.median(other):16.0f} ms {max(other):7.0f} ms {ratio:6.1f}"
        )


if __name__ == "__main__":
    main()
