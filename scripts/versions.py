"""Test tunekit with many versions of Python, Ray and the other dependencies.

    python scripts/versions.py                           # all cells: hours
    python scripts/versions.py 3.10-2.56.0-oldest        # one or several cells
    python scripts/versions.py --list                    # their names
    python scripts/versions.py --keep /tmp/cells CELL    # keep its environment for the next run

Each cell is a separate environment: tunekit's requirements with the cell's Ray, and the newest
versions of everything else or the lower bounds in setup.cfg. It runs the tests in ``SELECTED``:
tests of the rules without Ray, a file for each part that uses Ray's internals, and sweeps on a real
Ray, one of them distributed. ``--write`` puts the outcomes with the date into docs/versions.md,
where cells that were not run keep their outcomes.

This needs interpreters named python3.10 and so on, and pip with an index.
"""

from __future__ import annotations

import argparse
import configparser
import datetime
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/versions.md"
SETUP = configparser.ConfigParser(inline_comment_prefixes=("#",))
SETUP.read(ROOT / "setup.cfg")

PYTHONS = re.findall(r"Python :: (3\.\d+)", SETUP["metadata"]["classifiers"])
#: The last patch of each release; of the oldest release that tunekit supports, the first.
RAYS = ("2.56.0", "2.57.1", "2.58.1", "2.59.0", "2.60.0")
#: Extras whose packages the selected tests import.
EXTRAS = ("optuna", "tensorboard", "pb2", "torch")
TOOLS = ("pytest", "hypothesis")
#: Upper bounds that packages as old as the lower bounds need, but do not declare.
OLDEST_ALSO = ("numpy<2",)
SELECTED = (
    "tests/unit/core",
    "tests/unit/test_compat.py",
    "tests/unit/test_config.py",
    "tests/unit/test_controller.py",
    "tests/unit/test_journal.py",
    "tests/unit/test_ray_decision_points.py",
    "tests/unit/test_restore_errors.py",
    "tests/unit/test_tuner.py",
    "tests/unit/test_validation_workers.py",
    "tests/contract/test_pbt_clones_what_it_ranked.py",
    "tests/contract/test_every_scheduler.py::test_scheduler_gets_each_score_once_in_order_however_late_it_arrives[asha-auto]",
    "tests/contract/test_every_scheduler.py::test_scheduler_gets_each_score_once_in_order_however_late_it_arrives[hyperband-auto]",
    "tests/contract/test_every_scheduler.py::test_scheduler_gets_each_score_once_in_order_however_late_it_arrives[pbt-auto]",
    "tests/kills/test_restored_sweeps.py",
    "tests/ray/test_whole_sweeps.py::test_asha_ranks_by_validated_accuracy",
    "tests/ray/test_sweeps_outlive_their_driver.py::test_interrupted_sweep_resumes_with_its_printed_command",
    "tests/ray/test_distributed_trials.py::test_asha_over_trainers_ranks_by_validated_accuracy",
)
#: The selected files that need an extra, which ``--without`` can leave out.
NEEDS = {"tests/ray/test_distributed_trials.py": "torch"}


@dataclass(frozen=True)
class Cell:
    """An environment: versions of Python and Ray, and the newest or oldest of all else."""

    python: str
    ray: str
    others: str

    @property
    def name(self) -> str:
        return f"{self.python}-{self.ray}-{self.others}"


def cells() -> list[Cell]:
    """Return all cells; only the oldest Python has packages as old as the lower bounds."""
    oldest = [Cell(PYTHONS[0], ray, "oldest") for ray in RAYS]
    return oldest + [Cell(python, ray, "newest") for python in PYTHONS for ray in RAYS]


def lines_of(section: str, key: str) -> list[str]:
    return [line for line in map(str.strip, SETUP[section][key].splitlines()) if line]


def requirements(cell: Cell, ray: str = "", without: Collection[str] = ()) -> list[str]:
    """Return the requirements for pip, with another requirement for Ray if there is one."""
    wanted = lines_of("options", "install_requires")
    for extra in EXTRAS:
        if extra not in without:
            wanted += lines_of("options.extras_require", extra)
    wanted = [line for line in wanted if not line.startswith("ray[")]
    if cell.others == "oldest":
        wanted = [re.sub(r">=([\w.]+)", r"==\1", line) for line in wanted] + [*OLDEST_ALSO]
    return [ray or f"ray[tune,train]=={cell.ray}", *wanted, *TOOLS]


def tested(
    cell: Cell, scratch: Path, env: Path, limit_s: float, ray: str, without: Collection[str]
) -> tuple[str, str]:
    """Create the environment and run the tests; return the outcome and the output.

    Args:
        cell: The versions.
        scratch: The folder for Ray's files; a short path, because Ray creates sockets below it.
        env: The environment, which may already exist.
        limit_s: The time limit of each step in seconds.
        ray: A requirement that replaces the cell's Ray; or empty.
        without: Extras to leave out, with the tests that need them.
    """
    selected = [name for name in SELECTED if NEEDS.get(name.partition("::")[0]) not in without]
    interpreter = shutil.which(f"python{cell.python}")
    if interpreter is None:
        return "not run", f"There is no python{cell.python} on PATH."
    apart = {"RAY_TMPDIR": str(scratch), "RAY_ADDRESS": "local", "PYTHONPATH": str(ROOT)}
    environ = {**os.environ, **apart, "PYTHONDONTWRITEBYTECODE": "1"}
    python = env / "bin/python"
    for step, command in (
        ("environment", [interpreter, "-m", "venv", env]),
        ("installation", [python, "-m", "pip", "install", "-q", *requirements(cell, ray, without)]),
        ("tests", [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *selected]),
    ):
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environ,
                timeout=limit_s,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except subprocess.TimeoutExpired:
            return f"failed ({step}: took too long)", ""
        if done.returncode != 0:
            return f"failed ({step})", done.stdout
    return " ".join(["passed", *(f"without {extra}" for extra in without)]), done.stdout


def heading() -> list[str]:
    return [
        "| Python | other dependencies | " + " | ".join(f"Ray {ray}" for ray in RAYS) + " |",
        "| :-- | :-- |" + " :-- |" * len(RAYS),
    ]


def read(page: str) -> dict[str, str]:
    """Return the outcome of each cell in a page's table."""
    found = {}
    for python, others, row in re.findall(r"^\| (3\.\d+) \| (\w+) \| (.*) \|$", page, re.M):
        for ray, outcome in zip(RAYS, row.split(" | "), strict=True):
            found[Cell(python, ray, others).name] = outcome
    return found


def table(outcomes: dict[str, str]) -> str:
    rows = dict.fromkeys((cell.python, cell.others) for cell in cells())
    lines = heading()
    for python, others in rows:
        row = [outcomes.get(Cell(python, ray, others).name, "not run") for ray in RAYS]
        lines.append(f"| {python} | {others} | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def written(page: str, outcomes: dict[str, str]) -> str:
    """Return the page with these outcomes in its table instead of the earlier ones."""
    rows = re.compile(r"(^\| Python \|.*?\n)(?=\n|\Z)", re.M | re.S)
    return rows.sub(lambda _: table(read(page) | outcomes), page, count=1)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = {cell.name: cell for cell in cells()}
    parser.add_argument("names", nargs="*", metavar="CELL", help="such as 3.10-2.56.0-oldest")
    parser.add_argument("--list", action="store_true", help="print the cells' names and exit")
    parser.add_argument("--write", action="store_true", help=f"write the outcomes into {PAGE.name}")
    parser.add_argument("--ray", default="", help="the Ray that pip installs instead of the cell's")
    parser.add_argument("--keep", type=Path, help="keep the environments in this folder")
    parser.add_argument("--without", nargs="+", default=[], choices=sorted(set(NEEDS.values())))
    parser.add_argument("--limit-s", type=float, default=1800, help="seconds for each cell's step")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        parser.error(f"no such cell: {', '.join(unknown)}; --list prints all names")
    if arguments.list:
        print("\n".join(known))
        return 0
    outcomes = {}
    for name in arguments.names or known:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tv-", ignore_cleanup_errors=True) as folder:
            scratch = Path(folder).resolve()
            outcome, output = tested(
                known[name],
                scratch,
                (arguments.keep.resolve() if arguments.keep else scratch) / f"env-{name}",
                arguments.limit_s,
                arguments.ray,
                arguments.without,
            )
        if not outcome.startswith("passed"):
            print(output)
        print(f"{name}: {outcome}, {time.monotonic() - began:.0f} s", flush=True)
        day = datetime.date.today().isoformat()
        outcomes[name] = outcome if outcome == "not run" else f"{outcome}, {day}"
        if arguments.write and not arguments.ray:
            PAGE.write_text(written(PAGE.read_text(), outcomes))
    return 0 if all("failed" not in outcome for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
