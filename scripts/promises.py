"""Draw the table in tests/README.md: what each test module promises.

    python scripts/promises.py            # compares; exits with 1 if the table is old
    python scripts/promises.py --write    # puts the table into tests/README.md

A module promises the first line of its docstring, which has to be a whole sentence.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.pages import put  # noqa: E402

TESTS = ROOT / "tests"
PAGE = TESTS / "README.md"
MARK = "promises"
COMMAND = "python scripts/promises.py --write"
FOLDERS = ("unit", "unit/core", "contract", "kills", "ray")


def promise(module: Path) -> str:
    """Return the first line of a module's docstring; empty without one."""
    return (ast.get_docstring(ast.parse(module.read_text())) or "").partition("\n")[0]


def promises() -> dict[str, str]:
    """Return what each module promises, by its path below tests/, in the order of the table."""
    found = [file for folder in FOLDERS for file in sorted((TESTS / folder).glob("test_*.py"))]
    return {file.relative_to(TESTS).as_posix(): promise(file) for file in found}


def unstated() -> list[str]:
    """Return the modules whose first line is missing or not a whole sentence."""
    return [name for name, line in promises().items() if not line.endswith(".")]


def drawn() -> str:
    """Return the table."""
    rows = ["| promise | file |", "|---|---|"]
    for name, line in promises().items():
        text = line.replace("``", "`").replace("|", "\\|")
        rows.append(f"| {text} | [{name}]({name}) |")
    return "\n".join(["", *rows, ""])


def is_current() -> bool:
    return f"<!-- begin: {MARK} -->\n{drawn()}\n<!-- end: {MARK} -->" in PAGE.read_text()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    if parser.parse_args().write:
        put(PAGE, MARK, drawn())
    for name in unstated():
        print(f"tests/{name}: the docstring's first line is not a whole sentence.")
    if not is_current():
        print(f"The table in tests/{PAGE.name} is old. Run: {COMMAND}")
    return 1 if unstated() or not is_current() else 0


if __name__ == "__main__":
    sys.exit(main())
