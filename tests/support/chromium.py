"""Chromium for tests and pictures: the one of the machine, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser, and end it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, chromium_sandbox=False)
        yield browser
        browser.close()


def script(name: str) -> str:
    """Return a script for ``Page.evaluate``, of the folder ``browser_scripts``."""
    return Path(__file__).with_name("browser_scripts").joinpath(f"{name}.js").read_text()
