"""Check a release's version and print its changes; the release workflow runs this first.

    python scripts/release.py v0.1.0

Prints that version's section of CHANGELOG.md. Fails if the tag is not the version in
tunekit/version.py and setup.cfg, if the changelog lacks the version or marks it as unreleased, or
if changelog.d still has fragments.
"""

from __future__ import annotations

import configparser
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def version_of(root: Path) -> str:
    """Return the version, which must be the same in the package and its metadata."""
    setup = configparser.ConfigParser()
    setup.read(root / "setup.cfg")
    packaged = setup["metadata"]["version"]
    told = re.findall(r'^VERSION = "(.*)"$', (root / "tunekit/version.py").read_text(), re.M)
    if told != [packaged]:
        raise ValueError(f"tunekit/version.py has {told}, setup.cfg {packaged}: make them equal.")
    return packaged


def notes(changelog: str, version: str) -> str:
    """Return the part of the changelog below a version's heading.

    >>> notes("# Changelog\\n\\n## 0.2.0 (2027-01-05)\\n\\n- New.\\n", "0.2.0")
    '- New.'
    """
    found = re.search(
        rf"^## {re.escape(version)}(?![\w.])([^\n]*)\n(.*?)(?=^## |\Z)", changelog, re.M | re.S
    )
    if found is None:
        raise ValueError(f"CHANGELOG.md has no section '## {version}': add it.")
    if not re.fullmatch(r" \(\d{4}-\d\d-\d\d\)", found[1]):
        raise ValueError(f"CHANGELOG.md says '{version}{found[1]}': add the date in brackets.")
    return found[2].strip()


def fragments(root: Path) -> list[str]:
    """Return the names of all files in changelog.d that are not in the changelog yet."""
    names = {path.name for path in (root / "changelog.d").iterdir()}
    return sorted(names - {"README.md", "template.md.jinja"})


def main(tag: str, root: Path = ROOT) -> str:
    version = version_of(root)
    if tag != f"v{version}":
        raise ValueError(f"The tag is {tag} but the version is {version}: tag v{version}.")
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
