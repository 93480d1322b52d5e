"""The documentation as a site, which Sphinx builds without a warning of a link that is broken."""

from __future__ import annotations

import re
import runpy
from configparser import ConfigParser
from urllib.parse import urlsplit

from sphinx.cmd import build

from tests.unit.test_documents import ROOT, public


def test_the_site_has_no_broken_link_and_a_place_for_every_public_name(tmp_path, capsys):
    options = ("--fail-on-warning", "--keep-going", "--quiet", "-n", "-d", tmp_path / "trees")
    code = build.main([*map(str, (*options, ROOT / "docs", tmp_path / "html"))])
    assert code == 0, capsys.readouterr().err
    places = set(re.findall(r' id="([^"]+)"', (tmp_path / "html/reference.html").read_text()))
    assert {name for name, _ in public()} <= places


# The README on a package index ---------------------------------------------------------------


def test_links_of_the_long_description_are_those_of_the_readme_and_whole():
    described = runpy.run_path(str(ROOT / "setup.py"))["long_description"]()
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    readme, url = (ROOT / "README.md").read_text(), setup["metadata"]["url"]
    version = "v" + setup["metadata"]["version"]
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
