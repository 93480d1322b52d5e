"""Makes the long description; everything else is declared in setup.cfg."""

import configparser
import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent


def for_an_index(readme: str, url: str, version: str) -> str:
    """Return the README as a package index can show it, which has none of the files around it.

    Links lead to those files in the repository, as of this version, and pictures come from there.
    """
    raw = url.replace("://github.com/", "://raw.githubusercontent.com/")
    bases = {"!": f"{raw}/v{version}/", "": f"{url}/blob/v{version}/"}
    relative = r"(!?)(\[[^\]]*\])\((?!\w+:|#)([^)\s]+)\)"
    return re.sub(relative, lambda m: f"{m[1]}{m[2]}({bases[m[1]]}{m[3]})", readme)


def long_description() -> str:
    """Return what setup.cfg cannot say."""
    declared = configparser.ConfigParser()
    declared.read(ROOT / "setup.cfg", encoding="utf-8")
    about = declared["metadata"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return for_an_index(readme, about["url"], about["version"])


if __name__ == "__main__":
    setup(long_description=long_description())
