"""The documentation as a site: built once, and looked at as files and in a browser."""

from __future__ import annotations

import fcntl
import os
import re
import runpy
import subprocess
import sys
from configparser import ConfigParser
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.unit.test_documents import ROOT, public

DOCS = ROOT / "docs"
SOURCES = sorted(
    path.relative_to(DOCS).with_suffix("").as_posix()
    for pattern in ("**/*.md", "**/*.rst")
    for path in DOCS.glob(pattern)
    if "_build" not in path.parts
)


@dataclass
class Page(HTMLParser):
    """What a page of the site has."""

    path: Path
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text())

    def handle_starttag(self, tag: str, given: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in given}
        if "id" in has:
            self.ids.add(has["id"])
        if tag == "a" and "href" in has:
            self.links.append(has["href"])


@dataclass
class Site:
    home: Path
    pages: dict[str, Page]


def build(folder: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"),
            *("-n", "-d", str(folder / "trees"), str(DOCS), str(folder / "html")),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    (folder / "said.txt").write_text(done.stderr if done.returncode else "")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The site, built once, by whichever of the processes that run tests comes first."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder /= "site"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "said.txt").exists():
            build(folder)
    said = (folder / "said.txt").read_text()
    assert not said, said
    home = folder / "html"
    found = {
        path.relative_to(home).with_suffix("").as_posix(): path for path in home.rglob("*.html")
    }
    return Site(home, {name: Page(path) for name, path in found.items()})


def test_every_document_is_a_page(site):
    assert site.pages.keys() >= set(SOURCES)


def test_the_reference_has_a_place_for_every_public_name(site):
    assert {name for name, _ in public()} <= site.pages["reference"].ids


def test_links_lead_to_places_that_are_there(site):
    by_path = {page.path: page for page in site.pages.values()}
    broken = []
    for name, page in site.pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or link == "#":
                continue
            path = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
            place = unquote(parts.fragment)
            known = by_path[path].ids if path in by_path else set()
            if not path.is_file() or (place and place not in known):
                broken.append((name, link))
    assert broken == []


# Installation ---------------------------------------------------------------------------------


def setup() -> ConfigParser:
    found = ConfigParser()
    found.read(ROOT / "setup.cfg")
    return found


def test_the_installation_page_has_every_extra():
    text = (DOCS / "installation.md").read_text()
    first = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = re.findall(r"`(\w+)`", " ".join(first))
    assert sorted(named) == sorted(setup()["options.extras_require"])


# The README on a package index ---------------------------------------------------------------


def test_links_of_the_long_description_are_those_of_the_readme_and_whole():
    described = runpy.run_path(str(ROOT / "setup.py"))["long_description"]()
    readme, url = (ROOT / "README.md").read_text(), setup()["metadata"]["url"]
    version = "v" + setup()["metadata"]["version"]
    there = re.findall(r"!?\[[^\]]*\]\(([^)]*)\)", described)
    here = re.findall(r"!?\[[^\]]*\]\(([^)]*)\)", readme)
    bases = (
        f"{url}/blob/{version}/",
        f"https://raw.githubusercontent.com/tunekit/tunekit/{version}/",
    )
    back = [re.sub("|".join(map(re.escape, bases)), "", link) for link in there]
    assert back == here and len(here) > 10
    assert [link for link in there if not urlsplit(link).scheme] == []
    [picture] = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", described)
    assert picture == f"{bases[1]}docs/live.png"
