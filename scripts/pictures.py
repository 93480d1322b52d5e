"""Take the screenshots docs/live.png, docs/live-dark.png and docs/report.png.

    PYTHONPATH=. python scripts/pictures.py

Runs and serves the demo. Takes its page in light and dark mode while trials are running, and its
report after they have ended. This needs Chromium, fonts and a few minutes.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.chromium import chromium

ROOT = Path(__file__).resolve().parents[1]
TUNEKIT = (sys.executable, "-m", "tunekit")
DEMO = (sys.executable, str(ROOT / "notebooks" / "digits.py"))
#: The number of ended trials at which the page is taken.
TRIALS, ENDED = 12, 5
WIDTH, HEIGHT = 1240, 1500
_LIMIT_S = 900
#: Whether the first chart is drawn and up to date: it follows the ranking by some seconds.
_DRAWN = """
    [...document.querySelectorAll("#chart-validated svg.marks text")].some(label =>
        label.textContent === `1. ${document.querySelector("#trials button.trial").textContent}`)
"""


def is_in_the_middle(sweep: Path) -> bool:
    """Return whether enough trials have ended and another one is running."""
    asked = [*TUNEKIT, "status", str(sweep), "--json"]
    told = subprocess.run(asked, capture_output=True, text=True)
    if told.returncode:
        return False  # it has not started
    trials = json.loads(told.stdout)["trials"]
    running = trials.get("running", 0)
    return running > 0 and sum(trials.values()) - running - trials.get("pending", 0) >= ENDED


def take(address: str, pictures: dict[str, str]) -> None:
    """Write files below docs/, each with the page in one color scheme."""
    with chromium() as browser:
        for name, scheme in pictures.items():
            size = {"width": WIDTH, "height": HEIGHT}
            tab = browser.new_page(viewport=size, color_scheme=scheme)
            tab.goto(address)
            # Charts are drawn when they come into view.
            tab.locator("#chart-validated").scroll_into_view_if_needed()
            until = time.monotonic() + 60
            while not tab.evaluate(_DRAWN):
                if time.monotonic() > until:
                    sys.exit("The first chart is not drawn.")
                time.sleep(0.5)
            tab.evaluate("scrollTo(0, 0)")
            time.sleep(2)  # until the window has been painted
            tab.screenshot(path=ROOT / "docs" / name)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sweep = Path(folder) / "digits"
        demo = subprocess.Popen(
            [*DEMO, "--trials", str(TRIALS), "--storage", folder],
            stdout=subprocess.DEVNULL,
        )
        try:
            until = time.monotonic() + _LIMIT_S
            while not is_in_the_middle(sweep):
                if demo.poll() is not None or time.monotonic() > until:
                    sys.exit("The demo did not get far enough.")
                time.sleep(2)
            server = subprocess.Popen(
                [*TUNEKIT, "serve", str(sweep)], stdout=subprocess.PIPE, text=True
            )
            try:
                assert server.stdout is not None
                address = server.stdout.readline().strip()
                take(address, {"live.png": "light", "live-dark.png": "dark"})
            finally:
                server.send_signal(signal.SIGINT)
                server.wait(30)
            if demo.wait(_LIMIT_S):
                sys.exit("The demo failed.")
            report = Path(folder) / "report.html"
            subprocess.run([*TUNEKIT, "report", str(sweep), "--output", str(report)], check=True)
            take(report.as_uri(), {"report.png": "light"})
        finally:
            if demo.poll() is None:
                demo.send_signal(signal.SIGINT)
                demo.wait(60)


if __name__ == "__main__":
    main()
