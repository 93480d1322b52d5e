"""Run the examples of docs/frameworks, or write their differences into docs/migrating.md.

    scripts/examples                      # all, inline and with tunekit, from the wheel
    scripts/examples xgboost lightgbm     # only these
    python scripts/examples.py xgboost    # with this Python; skipped if it lacks a package
    python scripts/examples.py --write    # write the changed lines of each example into the page

An example is a folder with two programs: ``inline.py``, which validates in its training loop under
stock Ray Tune, and ``with_tunekit.py``. Both print a table of their trials at the end, best first.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.pages import put  # noqa: E402

FOLDER = ROOT / "docs/frameworks"
PAGE = ROOT / "docs/migrating.md"
COMMAND = "python scripts/examples.py --write"
LIMIT_S = 300


@dataclass(frozen=True)
class Example:
    """Two programs for the same sweep, and their title on the page."""

    name: str
    title: str

    @property
    def programs(self) -> tuple[Path, Path]:
        """The program that validates inline, and the program that uses tunekit."""
        return FOLDER / self.name / "inline.py", FOLDER / self.name / "with_tunekit.py"

    def diff(self) -> list[str]:
        """Return the changed lines with their neighbours; ``...`` stands for the rest."""
        inline, with_tunekit = (path.read_text().splitlines() for path in self.programs)
        marked = list(difflib.unified_diff(inline, with_tunekit, n=1, lineterm=""))[2:]
        return ["..." if line.startswith("@@") else line.rstrip() for line in marked][1:]

    def lacks(self) -> list[str]:
        """Return the packages that the programs import and this Python lacks."""
        trees = [ast.parse(path.read_text()) for path in self.programs]
        nodes = [node for tree in trees for node in ast.walk(tree)]
        names = {
            alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
        }
        names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        packages = {name.split(".")[0] for name in names}
        return sorted(package for package in packages if find_spec(package) is None)

    def row(self) -> str:
        """Return the row of the page's table."""
        diff = self.diff()
        added, removed = (
            sum(line[0] == sign for line in diff if line[1:].strip()) for sign in "+-"
        )
        inline, with_tunekit = (f"frameworks/{self.name}/{path.name}" for path in self.programs)
        links = f"[before]({inline}), [after]({with_tunekit})"
        return f"| {self.title} | {links} | {added} | {removed} |"


# In the order of the page, which shows the changed lines of the first.
EXAMPLES = [
    Example("pytorch", "PyTorch"),
    Example("trainable_class", "a class"),
    Example("transformers", "Transformers"),
    Example("transformers_search", "`Trainer.hyperparameter_search`"),
    Example("lightning", "Lightning"),
    Example("xgboost", "XGBoost"),
    Example("lightgbm", "LightGBM"),
    Example("rllib", "RLlib"),
    Example("distributed_checkpoints", "sharded checkpoints"),
]


def shown() -> str:
    """Return the table of the examples, and the changed lines of the first."""
    table = ["| | programs | lines added | removed |", "|---|---|---|---|"]
    table += [example.row() for example in EXAMPLES]
    return "\n".join(["", *table, "", "```diff", *EXAMPLES[0].diff(), "```", ""])


def ranking(printed: str) -> str:
    """Return the table that a program prints last."""
    lines = printed.rstrip().splitlines()
    heads = [number for number, line in enumerate(lines) if line.lstrip().startswith("config/")]
    return "\n".join(lines[heads[-1] :]) if heads else ""


def printed(program: Path) -> tuple[str, float]:
    """Run a program with this Python and a new Ray; return its output and the seconds.

    Raises:
        RuntimeError: If it failed.
    """
    with tempfile.TemporaryDirectory(prefix="tk-", ignore_cleanup_errors=True) as folder:
        environ = dict(os.environ) | {"HOME": folder, "RAY_TMPDIR": folder, "RAY_ADDRESS": "local"}
        environ["RAY_TRAIN_V2_ENABLED"] = "1"
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or only tunekit would be compiled each time
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
    """Run a program as :func:`printed` does; return the table that it prints last, and the seconds.

    Raises:
        RuntimeError: If it failed or ended without a table.
    """
    out, seconds = printed(program)
    if not (table := ranking(out)):
        raise RuntimeError(f"{program.name} ended without a table\n{out}"[-5000:])
    return table, seconds


def run_all(examples: list[Example]) -> bool:
    """Run examples and print which passed; return whether none failed."""
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
    """Run examples in an empty environment, with the wheel and its extra `trainers`."""
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
    parser.add_argument("--wheel", action="store_true", help="run in an empty environment")
    parser.add_argument("--write", action="store_true", help="only write the page")
    asked = parser.parse_args()
    unknown = set(asked.names) - {example.name for example in EXAMPLES}
    if unknown:
        parser.error(f"no such example: {', '.join(sorted(unknown))}")
    if asked.write:
        put(PAGE, "examples", shown())
        return 0
    if asked.wheel:
        return in_wheel(asked.names)
    chosen = [e for e in EXAMPLES if not asked.names or e.name in asked.names]
    return 0 if run_all(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
