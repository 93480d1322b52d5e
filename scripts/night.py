"""Run at night what takes too long for each push, and write one page about it.

    python scripts/night.py                  # all parts: some four hours on two cores
    python scripts/night.py suites kills     # some of them
    python scripts/night.py --share 10       # a tenth of the random runs

The day chooses what is drawn: seeds, mutants and the versions of Ray. A part that exceeds its limit
is ended, and its tail is on the page. Each part's whole output is next to the page, in a folder
named after the day. The exit status is 1 if a part fails.

Parts:

- ``suites``: the tests without Ray, with all sampled cases and eight times the random runs;
- ``ray``: those with a real Ray, with twice the random runs;
- ``kills``, ``writes``: real drivers, killed at random moments and at writes;
- ``fuzz``: public calls, commands and journals with odd values;
- ``mutants``: changes of the rules that a test must notice;
- ``clusters``: nodes that are lost and added;
- ``examples``: those of docs/frameworks whose packages are installed, inline and with tunekit;
- ``conformance``: Ray's own tests, with tunekit's Tuner;
- ``versions``: the next three cells of Python, Ray and the other packages;
- ``newest``, ``unreleased``: the newest Ray on the index, and Ray's own build of last night.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.versions import RAYS, cells  # noqa: E402

#: Ray's own build of last night.
UNRELEASED = (
    "ray[tune,train] @ https://s3-us-west-2.amazonaws.com/ray-wheels/latest/"
    "ray-3.0.0.dev0-cp311-cp311-manylinux2014_x86_64.whl"
)
DAYS = datetime.date.today().toordinal()
CELLS_A_NIGHT = 3


@dataclass(frozen=True)
class Part:
    """What runs.

    Attributes:
        command: Without the interpreter.
        minutes: Its limit.
        schedules: Times as many random runs as at a push.
    """

    command: str
    minutes: int
    schedules: int = 1


def parts(share: int) -> dict[str, Part]:
    """Return the parts of tonight, with a share of the random runs."""
    tests = "-m pytest -q --dist worksteal --numprocesses"
    names, first = [cell.name for cell in cells()], DAYS * CELLS_A_NIGHT
    tonight = " ".join(names[(first + n) % len(names)] for n in range(CELLS_A_NIGHT))
    newest = f"scripts/versions.py 3.11-{RAYS[-1]}-newest --ray"
    return {
        "suites": Part(f"{tests} auto --ignore tests/ray", 120, max(2, 8 // share)),
        "ray": Part(f"{tests} 2 tests/ray", 45, 2),
        "kills": Part(f"scripts/kills.py --at random --kills {36 // share} --seed {DAYS}", 60),
        "writes": Part(f"scripts/kills.py --at writes --kills {36 // share} --seed {DAYS}", 60),
        "fuzz": Part(f"scripts/fuzz.py --n {5_000 // share} --seed {DAYS}", 60),
        "mutants": Part(f"scripts/mutants.py --n {50 // share} --seed {DAYS}", 90),
        "clusters": Part("scripts/clusters.py", 45),
        "examples": Part("scripts/examples.py", 60),
        "conformance": Part("scripts/conformance.py", 240),
        "versions": Part(f"scripts/versions.py {tonight}", 60),
        "newest": Part(f"{newest} 'ray[tune,train]'", 30),
        "unreleased": Part(f"{newest} {shlex.quote(UNRELEASED)}", 30),
    }


def run(name: str, part: Part, folder: Path) -> tuple[str, float, str]:
    """Run a part; return its outcome, its minutes, and the end of its output."""
    kept, began = folder / f"{name}.txt", time.monotonic()
    own = {"TUNEKIT_SCHEDULES": str(part.schedules), "PYTHONPATH": str(ROOT)}
    command = ["timeout", "--kill-after=60", str(60 * part.minutes), sys.executable]
    with kept.open("w") as output:
        code = subprocess.run(
            [*command, *shlex.split(part.command)],
            cwd=ROOT,
            env=os.environ | own,
            stdout=output,
            stderr=subprocess.STDOUT,
        ).returncode
    outcome = {0: "passed", 124: f"not over after {part.minutes} min"}.get(code, f"failed: {code}")
    lines = kept.read_text(errors="replace").splitlines()
    return outcome, (time.monotonic() - began) / 60, "\n".join(lines[-5 if code == 0 else -60 :])


def page(ran: dict[str, tuple[str, float, str]], chosen: dict[str, Part]) -> str:
    """Return the page: a table, then the last lines of each part."""
    rows = [
        f"| {name} | {outcome} | {minutes:.0f} | `{chosen[name].command}` |"
        for name, (outcome, minutes, _) in ran.items()
    ]
    ends = [f"## {name}\n\n```text\n{end}\n```" for name, (_, _, end) in ran.items()]
    today = datetime.date.today()
    heads = ["| part | outcome | minutes | command |", "|---|---|---|---|"]
    return "\n\n".join([f"# The night of {today}", "\n".join([*heads, *rows]), *ends]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help="all by default")
    parser.add_argument("--share", type=int, default=1, help="one in so many random runs")
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "night", help="a folder")
    asked = parser.parse_args()
    found = parts(asked.share)
    if unknown := set(asked.parts) - set(found):
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(found)}")
    chosen = {name: found[name] for name in asked.parts or found}
    folder = asked.into / str(datetime.date.today())
    folder.mkdir(parents=True, exist_ok=True)
    ran = {}
    for name, part in chosen.items():
        ran[name] = run(name, part, folder)
        print(f"{name}: {ran[name][0]}, {ran[name][1]:.0f} min", flush=True)
        (folder / "page.md").write_text(page(ran, chosen))  # also if the next part never ends
    print(folder / "page.md")
    return int(any(outcome != "passed" for outcome, _, _ in ran.values()))


if __name__ == "__main__":
    sys.exit(main())
