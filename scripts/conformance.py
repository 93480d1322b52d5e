"""Run Ray's own tests with ``tunekit.Tuner``: those of its Tuner, and of Train's validation.

    python scripts/conformance.py                        # tests of the installed Ray's Git tag
    python scripts/conformance.py --source ~/src/ray     # tests of an existing tree
    python scripts/conformance.py --only test_tuner.py   # some files (for more, see --help)

Without a ``validation_config``, tunekit's Tuner should behave exactly like Ray's; and a trainer
that validates, like its own ``fit``, as the only trial of a sweep. Ray's wheel contains no tests,
so they are placed next to links to the installed package, and run there twice: with Ray's Tuner and
with tunekit's (``conformance_plugin.py``). Tests that end differently are run again in both ways,
because some depend on time. The exit status is 1 if a difference remains that is not in ``KNOWN``;
``--write`` puts the sums and the differences into docs/versions.md.

This needs the packages that Ray's tests need: pytest, boto3, moto[server] and ray[rllib].
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.pages import put  # noqa: E402

PAGE = ROOT / "docs/versions.md"
REPOSITORY = "https://github.com/ray-project/ray"
TESTS = ("tune/tests", "air/tests", "train/tests", "train/v2/tests", "tests")
BOTH = ("stock", "tunekit")
#: Stands for a test's name if a file could not be imported or pytest did not start.
ALL = "(all)"
#: Ray's test files, below python/ray, that start a Tuner or call ``tune.run``, possibly in a
#: separate process. (Tests of callbacks and of the checkpoint API work below the level of a Tuner.)
FILES = (
    "tune/tests/test_tuner.py",
    "tune/tests/test_tuner_restore.py",
    "tune/tests/test_result_grid.py",
    "tune/tests/test_api.py",
    "tune/tests/test_function_api.py",
    "tune/tests/test_tune_restore.py",
    "tune/tests/test_actor_reuse.py",
    "tune/tests/test_trial_scheduler_pbt.py",
    "tune/tests/test_trial_scheduler.py",
    "tune/tests/test_train_v2_integration.py",
    "tune/tests/test_tune_restore_warm_start.py",
    "tune/tests/test_tune_save_restore.py",
    "tune/tests/test_searchers.py",
    "tune/tests/test_sample.py",
    "tune/tests/test_remote.py",
    "tune/tests/test_warnings.py",
    "tune/tests/test_progress_reporter.py",
    "tune/tests/test_experiment_analysis.py",
    "tune/tests/test_convergence.py",
    "tune/tests/test_api_checkpoint_integration.py",
    "tune/tests/test_api_migrations.py",
    "tune/tests/test_callbacks.py",
    "tune/tests/test_commands.py",
    "tune/tests/test_env_callbacks.py",
    "tune/tests/test_multi_tenancy.py",
    "tune/tests/test_telemetry.py",
    "air/tests/test_errors.py",
    "air/tests/test_tracebacks.py",
    "air/tests/test_experiment_restore.py",
    "train/tests/test_new_persistence.py",
    "train/tests/test_tune.py",
    "train/v2/tests/test_async_checkpointing_validation.py",
    "train/v2/tests/test_lightning_integration.py",
)
SAVES = (
    "With tunekit, `checkpoint_frequency` and `checkpoint_at_end` also work for functions "
    "(`tunekit.checkpoint_with`)."
)
#: The reasons for intended differences, by test.
KNOWN: dict[str, str] = {
    "test_tuner_can_restore": "`can_restore` is False until a trial has begun; nothing is lost.",
    "test_tuner_fn_trainable_invalid_checkpoint_config": SAVES,
    "FunctionApiTest::testCheckpointError": SAVES,
    "test_report_mixed_checkpoint_upload_modes": (
        "A checkpoint's name gets a suffix, because clones and restarted loops repeat names."
    ),
    "test_report_validation_fn_keeps_correct_checkpoints": (
        "An empty dict is no score, and a metric that a validation has returned is validation's."
    ),
    "test_report_validation_fn_resumption_checkpoint_status": (
        "A metric that a validation has returned is validation's; and a restarted loop must ask "
        "for its checkpoint before it reports."
    ),
    "test_report_validation_fn_success_after_retry": (
        "`retry_exceptions` is refused: any failure is retried (`max_retries`)."
    ),
    "test_trainer_with_native_dataloader_for_distributed_and_local_mode": (
        "`num_workers=0`, which trains in the driver, is refused."
    ),
}


@dataclass
class Compared:
    """The outcomes of the tests in a file, by test, for ``stock`` and ``tunekit``."""

    file: str
    ended: dict[str, dict[str, str]] = field(default_factory=dict)

    def count(self, kind: str, outcome: str) -> int:
        return sum(found == outcome for found in self.ended[kind].values())

    def differ(self) -> list[str]:
        stock, ours = (self.ended[kind] for kind in BOTH)
        return sorted(t for t in stock.keys() | ours.keys() if stock.get(t) != ours.get(t))


def fetched(version: str, scratch: Path) -> Path:
    """Clone Ray's tests at the tag of a version, and little else; return the folder."""
    tree = scratch / "ray"
    clone = ["git", "clone", "--quiet", "--depth", "1", "--filter=blob:none", "--sparse"]
    subprocess.run([*clone, "--branch", f"ray-{version}", REPOSITORY, tree], check=True)
    wanted = [f"python/ray/{name}" for name in ("tune", "air", "train", "tests")]
    subprocess.run(["git", "-C", tree, "sparse-checkout", "set", *wanted], check=True)
    return tree


def revision(tree: Path) -> str:
    """Return the tree's commit with its date; empty if the tree is not a clone."""
    command = ["git", "-C", tree, "log", "-1", "--format=%H of %as"]
    if not (tree / ".git").exists():
        return ""
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def overlaid(package: Path, tree: Path, overlay: Path) -> Path:
    """Return a folder for PYTHONPATH: links to the installed Ray, and copies of its tests."""
    ray = overlay / "ray"
    copied = [ray, ray / "tune", ray / "air", ray / "train", ray / "train" / "v2"]
    for folder in copied:
        folder.mkdir(parents=True)
        for found in (package / folder.relative_to(ray)).iterdir():
            if folder / found.name not in copied:
                (folder / found.name).symlink_to(found)
    for name in TESTS:
        if (tree / "python/ray" / name).is_dir():
            shutil.copytree(tree / "python/ray" / name, ray / name)
    shutil.copy2(Path(__file__).with_name("conformance_plugin.py"), overlay)
    for script in ray.rglob("_test_*_run.py"):  # a test starts it
        script.write_text(f"import conformance_plugin\n{script.read_text()}")
    return overlay


def environment_of(file: str, tree: Path) -> dict[str, str]:
    """Return the environment that Ray's build sets for a test, such as the version of Ray Train."""
    build = tree / "python/ray" / Path(file).parents[1] / "BUILD.bazel"
    if not build.exists():
        return {}
    rule = re.search(rf'name = "{Path(file).stem}",(.*?)\n\)', build.read_text(), re.S)
    found = re.search(r"env = \{(.*?)\}", rule[1], re.S) if rule else None
    return dict(re.findall(r'"(\w+)": "(.*?)"', found[1])) if found else {}


@dataclass
class Runner:
    """Runs a test file in a separate process, isolated from other Ray instances."""

    python: str
    overlay: Path
    tree: Path
    scratch: Path
    limit_s: float

    def run(self, file: str, kind: str, tests: Iterable[str] = ()) -> dict[str, str]:
        """Return the outcomes of its tests, or of the named ones.

        A test that had not ended at its time limit, or at the file's, is ``hung``.
        """
        home = Path(tempfile.mkdtemp(prefix="h", dir=self.scratch))
        log = home / "outcomes"
        path = os.pathsep.join(map(str, (self.overlay, ROOT)))
        own = {"PYTHONPATH": path, "HOME": str(home), "RAY_TMPDIR": str(self.scratch)}
        own |= {"RAY_TRAIN_V2_ENABLED": "1"}  # tunekit needs it, whatever the test's build sets
        own |= {"CONFORMANCE_TUNER": kind, "CONFORMANCE_LOG": str(log), "RAY_ADDRESS": "local"}
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        names = [str(self.overlay / "ray" / file)]
        names = [f"{names[0]}::{test}" for test in tests] or names
        with (home / "output").open("wb") as output:
            pytest = subprocess.Popen(
                [
                    *(self.python, "-m", "pytest", "-p", "conformance_plugin", "-q"),
                    *("-p", "no:cacheprovider", "-o", "addopts=", "--rootdir", self.overlay),
                    *names,
                ],
                cwd=self.overlay,
                env=os.environ | quiet | environment_of(file, self.tree) | own,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                with suppress(subprocess.TimeoutExpired):
                    pytest.wait(self.limit_s)
            finally:
                if pytest.poll() is None:
                    ended(pytest)
        lines = log.read_text().splitlines() if log.exists() else []
        noted = {line["test"]: line["outcome"] for line in map(json.loads, lines)}
        told = (home / "output").read_text(errors="replace")
        kept = self.scratch / "output" / f"{Path(file).stem}-{kind}.txt"
        kept.parent.mkdir(exist_ok=True)
        with kept.open("a") as file_of_all:
            file_of_all.write(told)
        shutil.rmtree(home, ignore_errors=True)
        found = {name.partition("::")[2] or ALL: outcome for name, outcome in noted.items()}
        return found or {ALL: "error"}  # pytest did not start


def ended(process: subprocess.Popen[bytes], patience_s: float = 30) -> None:
    """Terminate a process, so that its Ray ends, too; kill it if it does not end."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def compared(file: str, runner: Runner) -> Compared:
    result = Compared(file, {kind: runner.run(file, kind) for kind in BOTH})
    again = [test for test in result.differ() if test != ALL]
    if again:
        for kind in BOTH:
            result.ended[kind].update(runner.run(file, kind, again))
    return result


def table(results: list[Compared]) -> list[str]:
    lines = [
        "| Ray's tests | passed with Ray's Tuner | with tunekit's | neither | skipped | differ |",
        "| :-- | --: | --: | --: | --: | --: |",
    ]
    total = [0] * 5
    for one in results:
        stock, ours = (one.count(kind, "passed") for kind in BOTH)
        neither = sum(
            one.ended["tunekit"].get(test) == outcome
            for test, outcome in one.ended["stock"].items()
            if outcome not in {"passed", "skipped"}
        )
        row = [stock, ours, neither, one.count("stock", "skipped"), len(one.differ())]
        total = [sum(pair) for pair in zip(total, row, strict=True)]
        lines.append(f"| `{one.file}` | " + " | ".join(map(str, row)) + " |")
    return [*lines, "| all | " + " | ".join(map(str, total)) + " |"]


def differences(results: list[Compared]) -> tuple[list[str], int]:
    """Return a line for each difference, and the number of differences without a reason."""
    lines, unknown = [], 0
    for one in results:
        for test in one.differ():
            stock, ours = (one.ended[kind].get(test, "not run") for kind in BOTH)
            why = KNOWN.get(test.partition("[")[0])
            unknown += why is None
            lines.append(f"- `{test}`: {stock} with Ray's, {ours} with tunekit's. {why or '?'}")
    return lines, unknown


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, help="a tree of Ray's repository")
    parser.add_argument("--python", default=sys.executable, help="the interpreter, with Ray")
    parser.add_argument("--only", nargs="+", default=[], help="files, by their last name")
    parser.add_argument("--limit-s", type=float, default=900, help="for one run of a file")
    parser.add_argument(
        "--keep",
        type=Path,
        help="a folder for outcomes and output; files with an outcome there are not run again",
    )
    parser.add_argument("--write", action="store_true", help=f"write the sums into {PAGE.name}")
    arguments = parser.parse_args()
    asked = "import ray; print(ray.__version__, ray.__path__[0])"
    version, package = subprocess.run(
        [arguments.python, "-c", asked], check=True, text=True, stdout=subprocess.PIPE
    ).stdout.split(maxsplit=1)
    with tempfile.TemporaryDirectory(prefix="tc-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder).resolve()
        tree = arguments.source or fetched(version, scratch)
        overlay = overlaid(Path(package.strip()), tree, scratch / "overlay")
        runner = Runner(arguments.python, overlay, tree, scratch, arguments.limit_s)
        results = []
        files = [f for f in FILES if not arguments.only or Path(f).name in arguments.only]
        for file in files:
            began = time.monotonic()
            kept = arguments.keep / f"{Path(file).stem}.json" if arguments.keep else None
            if kept is not None and kept.exists():
                results.append(Compared(file, json.loads(kept.read_text())))
                continue
            results.append(compared(file, runner))
            print(table(results[-1:])[2], f"{time.monotonic() - began:.0f} s", flush=True)
            if kept is not None:
                shutil.copytree(scratch / "output", kept.parent, dirs_exist_ok=True)
                kept.write_text(json.dumps(results[-1].ended, indent=1))
        lines, unknown = differences(results)
        at = f", Ray's tests at {revision(tree)}" if revision(tree) else ""
        left = [f"`{file}`" for file in FILES if file not in files]
        rows = table(results)
        about, lines = [f"Ray {version}{at}:", ""], ["", *(lines or ["No differences."])]
        lines += ["", f"Not run: {', '.join(left)}."] if left else []
    print("\n".join([*about, *rows, *lines]))
    if arguments.write:
        sums = [*rows[:2], rows[-1]]
        put(PAGE, "conformance.py", "\n".join([*about, *sums, *lines]))
    if not all(one.count("tunekit", "passed") for one in results):
        print("In some files no test passed, which is inconclusive: see their output (--keep).")
    return 1 if unknown or not any(one.count("tunekit", "passed") for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
