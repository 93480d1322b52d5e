"""Test the wheel in an empty environment, with the README's example.

    scripts/test-wheel

Builds the sdist and the wheel from the files that are in Git or about to be added, and compares
them. Then installs the wheel without constraints, that is, with the newest Ray that it allows. In
another folder, it runs the example, the commands on its sweep, and commands that need an extra,
which must report that. It needs only Python, and cleans up.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Files that are only useful in a checkout.
CHECKOUT_ONLY = re.compile(r"\.(gitignore|pre-commit-config\.yaml|ci/.*|github/.*)")
#: Folders that tools create in a checkout.
MADE = re.compile(
    r"/(\.git|\.venv|\.\w+_cache|\.hypothesis|__pycache__|build|dist|_build|[^/]+\.egg-info)/"
)
#: A plain installation takes 0.6 GB, mostly Ray and pyarrow.
MOST_MB = 1000
Command = tuple[str | Path, ...]


def say(text: str) -> None:
    print(text, flush=True)


def run(
    *command: str | Path, expected: int = 0, cwd: Path, environ: dict[str, str], limit_s: int = 300
) -> str:
    """Run a command; return its output, then its stderr, where Ray may write at any time.

    Any other than the expected exit code ends the test.
    """
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environ,
        timeout=limit_s,
        text=True,
        capture_output=True,
    )
    told = done.stdout + done.stderr
    if done.returncode != expected:
        # Do not print where this machine gets its packages from.
        shown = re.sub(r"\w+://\S+", "(a URL)", told)
        name = " ".join(str(part) for part in command)
        sys.exit(f"{shown}\n{name}\nended with {done.returncode} instead of {expected}.")
    return told


def check(right: bool, text: str) -> None:
    if not right:
        sys.exit(f"test-wheel: {text}")


def files_of(root: Path) -> set[str]:
    """Return the files that are or would be tracked; without Git, those that no tool generated."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    if listed.returncode == 0:
        return {name for name in listed.stdout.split("\0") if name and (root / name).is_file()}
    names = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    return {name for name in names if not MADE.search(f"/{name}")}


def copied(names: Iterable[str], source: Path, target: Path) -> None:
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, target / name)


def megabytes(folder: Path) -> int:
    """Return the disk space that a folder takes, in MB."""
    taken = sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))
    return round(taken / 1e6)


def example(readme: str) -> tuple[str, str]:
    """Return the README's first example, and the output that the README shows for it."""
    found = re.search(r"^```python\n(.*?)^```.*?^```text\n(.*?)^```", readme, re.M | re.S)
    check(found is not None, "the README has no example followed by its output.")
    assert found is not None
    return found[1], found[2]


def built(scratch: Path, environ: dict[str, str]) -> Path:
    """Build the sdist and a wheel from it, check that both are complete, and return the wheel.

    The environment that builds them is ``scratch/build``.
    """
    files = files_of(ROOT)
    tree = scratch / "tree"
    copied(files, ROOT, tree)
    subprocess.run([sys.executable, "-m", "venv", scratch / "build"], check=True)
    python = scratch / "build/bin/python"
    where = {"cwd": scratch, "environ": environ}
    run(python, "-m", "pip", "install", "--no-compile", "build", "setuptools", "wheel", **where)
    build = (python, "-m", "build", "--no-isolation", tree, "--outdir")
    run(*build, scratch / "dist", **where)
    run(*build, scratch / "from_tree", "--wheel", **where)
    (sdist,) = (scratch / "dist").glob("*.tar.gz")
    (wheel,) = (scratch / "dist").glob("*.whl")
    (other,) = (scratch / "from_tree").glob("*.whl")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    lacking = sorted(name for name in files - packed if not CHECKOUT_ONLY.fullmatch(name))
    check(not lacking, f"the sdist lacks {lacking}")
    contents = [
        {name: archive.read(name) for name in archive.namelist()}
        for archive in (zipfile.ZipFile(wheel), zipfile.ZipFile(other))
    ]
    differ = {n for n in contents[0].keys() | contents[1].keys() if _differs(n, *contents)}
    check(not differ, f"the wheels of the sdist and of the tree differ in {sorted(differ)}")
    package = {name for name in files if name.startswith("tunekit/")}
    has = {name for name in contents[0] if ".dist-info/" not in name}
    check(has == package, f"the wheel has other files than tunekit/: {sorted(has ^ package)}")
    say(f"built: {sdist.name} and {wheel.name} ({wheel.stat().st_size / 1e3:.0f} kB)")
    return wheel


def _differs(name: str, one: dict[str, bytes], other: dict[str, bytes]) -> bool:
    return one.get(name) != other.get(name)


def used(install: Command, tunekit: Path, scratch: Path, environ: dict[str, str]) -> None:
    """Run the README's example, and the commands on its sweep."""
    home, elsewhere = scratch / "home", scratch / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    # Sweeps are saved below the home folder; Ray's own files go elsewhere. Its processes, which
    # compile what they import, may start slowly.
    apart = environ | {"HOME": str(home), "RAY_TMPDIR": str(scratch)}
    apart["RAY_raylet_start_wait_time_s"] = "240"
    where = {"cwd": elsewhere, "environ": apart}
    code, printed = example((ROOT / "README.md").read_text())
    (elsewhere / "example.py").write_text(code)
    output = run(tunekit.parent / "python", "example.py", **where)
    check(printed in output, f"the example printed\n{output}\nand not\n{printed}")
    (folder,) = (home / "ray_results").iterdir()
    say("the README's example prints what the README says")

    check("resume" in run(tunekit, "--help", **where), "tunekit --help does not help")
    status = json.loads(run(tunekit, "status", folder, "--json", **where))
    check(status["state"] == "finished", f"tunekit status says {status['state']}")
    best = json.loads(run(tunekit, "best", folder, "--json", **where))
    check(best["config"] == {"lr": 0.25}, f"tunekit best says {best['config']}")
    say("tunekit --help, status and best work")

    told = run(tunekit, "report", folder, expected=1, **where)
    advice = "ray-tunekit[report]"
    wanted = f"pip install '{advice}'"
    check(wanted in told and "Traceback" not in told, f"tunekit report says\n{told}")
    say("tunekit report says which extra it needs")

    run(*install, advice, cwd=elsewhere, environ=environ)
    run(tunekit, "report", folder, "--output", "report.html", **where)
    check("lr" in (elsewhere / "report.html").read_text(), "the report has no lr")
    say("after following the advice, tunekit report writes a report")


def main() -> None:
    began = time.monotonic()
    unwanted = {"PYTHONPATH", "PIP_CONSTRAINT", "RAY_ADDRESS", "VIRTUAL_ENV"}
    unwanted.add("PYTHONDONTWRITEBYTECODE")  # or each of Ray's processes compiles what it imports
    with tempfile.TemporaryDirectory(prefix="tk-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder).resolve()
        environ = {name: value for name, value in os.environ.items() if name not in unwanted}
        wheel, plain = built(scratch, environ), scratch / "plain"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", plain], check=True)
        python = plain / "bin/python"
        # Python compiles what is imported; pip would compile all of it.
        pip = (scratch / "build/bin/python", "-m", "pip")
        install = (*pip, "--python", python, "install", "--no-compile")
        run(*install, wheel, cwd=scratch, environ=environ)
        taken = megabytes(plain)
        ray = run(
            *(python, "-c", "import ray, tunekit; print(ray.__version__)"),
            cwd=scratch,
            environ=environ,
        ).split()[-1]
        say(f"a plain install takes {taken} MB, with Ray {ray}")
        check(taken < MOST_MB, f"a plain install takes more than {MOST_MB} MB")
        used(install, plain / "bin/tunekit", scratch, environ)
        say(f"with the report's extra it takes {megabytes(plain)} MB")
    say(f"test-wheel: passed in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
