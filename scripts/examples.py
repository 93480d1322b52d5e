"""The examples of docs/frameworks: runs them, and writes into each page what tunekit changes.

    scripts/examples                      # each, inline and with tunekit, from the wheel
    scripts/examples xgboost lightgbm     # these
    python scripts/examples.py xgboost    # with this Python; left out if it lacks a package
    python scripts/examples.py --write    # the pages: each program, with the lines that change

An example is a folder with two programs: ``inline.py``, which validates in its training loop under
stock Ray Tune, and ``with_tunekit.py``. Both end with a table of their trials, the best one first.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs/frameworks"
INDEX = PAGES / "README.md"
COMMAND = "python scripts/examples.py --write"
#: What is between these two lines of a page is written by this program.
BEGIN, END = "<!-- written by scripts/examples.py -->", "<!-- until here -->"
LIMIT_S = 300


@dataclass(frozen=True)
class Change:
    """How many lines one program has that the other one lacks; empty lines do not count."""

    added: int
    removed: int
    kept: int

    def __str__(self) -> str:
        return f"{self.added} lines are added, {self.removed} are removed, and {self.kept} stay."


@dataclass(frozen=True)
class Example:
    """Two programs for the same sweep."""

    name: str

    @property
    def programs(self) -> tuple[Path, Path]:
        """The one that validates inline, and the one that uses tunekit."""
        return PAGES / self.name / "inline.py", PAGES / self.name / "with_tunekit.py"

    @property
    def page(self) -> Path:
        return PAGES / f"{self.name}.md"

    def diff(self) -> str:
        """Return the whole program, with the lines that change marked."""
        inline, with_tunekit = (path.read_text().splitlines() for path in self.programs)
        marked = difflib.unified_diff(inline, with_tunekit, n=len(inline), lineterm="")
        return "\n".join(line.rstrip() for line in list(marked)[3:])

    def change(self) -> Change:
        lines = [line for line in self.diff().splitlines() if line[1:].strip()]
        added, removed = (sum(line[0] == sign for line in lines) for sign in "+-")
        return Change(added, removed, len(lines) - added - removed)

    def lacks(self) -> list[str]:
        """Return the packages that the programs import and this Python has not."""
        trees = [ast.parse(path.read_text()) for path in self.programs]
        nodes = [node for tree in trees for node in ast.walk(tree)]
        names = {
            alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
        }
        names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        packages = {name.split(".")[0] for name in names}
        return sorted(package for package in packages if find_spec(package) is None)

    def text(self) -> str:
        """Return what the page shows of the programs."""
        return f"{self.change()}\n\n```diff\n{self.diff()}\n```"


# In the order of the index.
EXAMPLES = [
    Example("pytorch"),
    Example("trainable_class"),
    Example("transformers"),
    Example("lightning"),
    Example("xgboost"),
    Example("lightgbm"),
    Example("rllib"),
    Example("distributed_checkpoints"),
]


def index() -> str:
    """Return the table of the index: what changes, by example."""
    rows = ["| | lines added | removed | unchanged |", "|---|---|---|---|"]
    for example in EXAMPLES:
        title = example.page.read_text().splitlines()[0].removeprefix("# ")
        change = example.change()
        cells = f"[{title}]({example.page.name})", change.added, change.removed, change.kept
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def written(page: str, text: str) -> str:
    """Return a page with a text in its place."""
    pattern = re.compile(f"(?<={re.escape(BEGIN)}\n).*?(?={re.escape(END)})", re.S)
    found, count = pattern.subn(lambda _: f"\n{text}\n\n", page)
    if count != 1:
        raise ValueError(f"A page has {count} places to write to; it needs one: {BEGIN} ... {END}")
    return found


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each page, and what it should be."""
    for example in EXAMPLES:
        yield example.page, written(example.page.read_text(), example.text())
    yield INDEX, written(INDEX.read_text(), index())


def ranking(printed: str) -> str:
    """Return the table that a program ends with."""
    lines = printed.rstrip().splitlines()
    heads = [number for number, line in enumerate(lines) if line.lstrip().startswith("config/")]
    return "\n".join(lines[heads[-1] :]) if heads else ""


def printed(program: Path) -> tuple[str, float]:
    """Run a program on a Ray of its own, with this Python; return what it prints, and the seconds.

    Raises:
        RuntimeError: It failed.
    """
    with tempfile.TemporaryDirectory(prefix="tk-", ignore_cleanup_errors=True) as folder:
        environ = dict(os.environ) | {"HOME": folder, "RAY_TMPDIR": folder, "RAY_ADDRESS": "local"}
        environ["RAY_TRAIN_V2_ENABLED"] = "1"
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or tunekit alone would be compiled each time
        if find_spec("tunekit") is None:
            environ["PYTHONPATH"] = str(ROOT)
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, str(program)],
            cwd=folder,
            env=environ,
            timeout=LIMIT_S,
            capture_output=True,
            text=True,
        )
        seconds = time.monotonic() - began
    if done.returncode:
        raise RuntimeError(f"ended with {done.returncode}\n{done.stdout}\n{done.stderr}"[-5000:])
    return done.stdout, seconds


def run(program: Path) -> tuple[str, float]:
    """Run a program as :func:`printed` does; return the table that it ends with, and the seconds.

    Raises:
        RuntimeError: It failed, or has ended without a table.
    """
    out, seconds = printed(program)
    if not (table := ranking(out)):
        raise RuntimeError(f"{program.name} has ended without a table\n{out}"[-5000:])
    return table, seconds


def run_all(examples: list[Example]) -> bool:
    """Run examples, print which passed; returns whether none failed."""
    told = []
    for example in examples:
        lacking = example.lacks()
        for program in example.programs:
            name = f"{example.name}/{program.name}"
            if lacking:
                told.append(f"skipped  {name}: {', '.join(lacking)} is not installed")
                continue
            try:
                table, seconds = run(program)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"\n{name}: {error}", flush=True)
                told.append(f"FAILED   {name}")
            else:
                print(f"\n{name}\n{table}", flush=True)
                told.append(f"passed   {name} in {seconds:.0f} s")
    print("\n" + "\n".join(told))
    return not any(line.startswith("FAILED") for line in told)


def in_wheel(names: list[str]) -> int:
    """Run examples in an empty environment: the wheel, with the extra `trainers`."""
    from test_wheel import built

    with tempfile.TemporaryDirectory(prefix="tk-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder).resolve()
        unwanted = {"PYTHONPATH", "RAY_ADDRESS", "VIRTUAL_ENV"}
        environ = {name: value for name, value in os.environ.items() if name not in unwanted}
        wheel = built(scratch, environ)
        subprocess.run([sys.executable, "-m", "venv", scratch / "plain"], check=True)
        python = scratch / "plain/bin/python"
        subprocess.run(
            [
                *(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
                *("--constraint", ROOT / "constraints.txt", f"{wheel}[trainers]"),
            ],
            cwd=scratch,
            env=environ,
            check=True,
        )
        return subprocess.run([python, Path(__file__), *names], cwd=scratch, env=environ).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="the examples; by default, all")
    parser.add_argument("--wheel", action="store_true", help="in an empty environment")
    parser.add_argument("--write", action="store_true", help="write the pages, and run nothing")
    asked = parser.parse_args()
    unknown = set(asked.names) - {example.name for example in EXAMPLES}
    if unknown:
        parser.error(f"no such example: {', '.join(sorted(unknown))}")
    if asked.write:
        for page, text in pages():
            page.write_text(text)
        return 0
    if asked.wheel:
        return in_wheel(asked.names)
    chosen = [e for e in EXAMPLES if not asked.names or e.name in asked.names]
    return 0 if run_all(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
