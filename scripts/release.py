"""Check a release's version and print its changes; the release workflow runs this first.

    python scripts/release.py v0.1.0

Prints that version's section of CHANGELOG.md. Fails if the tag is not the version in
tunekit/version.py and setup.cfg, if the changelog lacks it or calls it unreleased, or if
changelog.d has fragments that are not in the changelog yet.
"""

from __future__ import annotations

import configparser
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def version_of(root: Path) -> str:
    """The version that the package and its metadata agree on."""
    setup = configparser.ConfigParser()
    setup.read(root / "setup.cfg")
    packaged = setup["metadata"]["version"]
    told = re.findall(r'^VERSION = "(.*)"$', (root / "tunekit/version.py").read_text(), re.M)
    if told != [packaged]:
        raise ValueError(f"tunekit/version.py has {told}, setup.cfg has {packaged}: make them one.")
    return packaged


def notes(changelog: str, version: str) -> str:
    """The part of the changelog below a version's heading.

    >>> notes("# Changelog\\n\\n## 0.2.0 (2027-01-05)\\n\\n- New.\\n", "0.2.0")
    '- New.'
    """
    found = re.search(
        rf"^## {re.escape(version)}(?![\w.])([^\n]*)\n(.*?)(?=^## |\Z)", changelog, re.M | re.S
    )
    if found is None:
        raise ValueError(f"CHANGELOG.md has no '## {version}': write what is new in it.")
    if not re.fullmatch(r" \(\d{4}-\d\d-\d\d\)", found[1]):
        raise ValueError(f"CHANGELOG.md says '{version}{found[1]}': put the day in brackets.")
    return found[2].strip()


def fragments(root: Path) -> list[str]:
    """What is new and not in the changelog yet, by the names of its files, right or wrong."""
    names = {path.name for path in (root / "changelog.d").iterdir()}
    return sorted(names - {"README.md", "template.md.jinja"})


def main(tag: str, root: Path = ROOT) -> str:
    version = version_of(root)
    if tag != f"v{version}":
        raise ValueError(f"The tag is {tag}, and the version {version}: tag v{version}.")
    if left := fragments(root):
        raise ValueError(
            f"changelog.d has {', '.join(left)}, which CHANGELOG.md lacks: "
            f"towncrier build --version {version}"
        )
    return notes((root / "CHANGELOG.md").read_text(), version)


if __name__ == "__main__":
    try:
        print(main(*sys.argv[1:]))
    except ValueError as error:
        sys.exit(str(error))
