"""Validate with functions that crash, hang or return nonsense, and compare who survives that.

    python scripts/hostile.py                    # all, about half an hour on two cores
    python scripts/hostile.py exits hangs        # those whose names contain one of these words
    python scripts/hostile.py --write            # also put the table into the documents

Each run has one validation that misbehaves, the first of the first training, among others that do
not. It is a separate process, with the defaults of

- Ray Train: a ``TorchTrainer`` whose reports request a validation, as in Ray's guide;
- Ray Tune: a function that validates in its training loop, two trials;
- Optuna: an objective that validates in its training loop, two trials, which catches exceptions;
- tunekit: the function of Ray Tune's run, with the validation in a ``validation_config``. It
  validates in the trial's process, or in others (``where="elsewhere"``).

What runs out of memory is killed by Ray, which is told to keep more free, or by the kernel.

A run survives if it ends by itself without an error, and all other validations have scores. The
table shows what has become of the score that was lost: whether a reader finds a reason, or only
that it is missing. The exit status is 1 if tunekit's run does not survive, or has no reason.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import ctypes
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "versions.md"
sys.path.insert(0, str(ROOT))

from scripts.pages import put  # noqa: E402

#: How many checkpoints each training has, and how many trainings there are with Tune and Optuna.
STEPS, TRIALS = 3, 2
#: The time limit of a validation, and that of a run, after which it counts as hanging; in seconds.
VALIDATION_S, RUN_S = 10.0, 150.0
#: What the table says.
RECORDED = "recorded as"
SCORED, REASON, NO_REASON = "scored", "failed, with its reason", "failed, reason in a log only"
OTHERS = "others are lost"
LOST, TRIAL_ENDS, ENDS, HANGS = "lost", "its trial ends", "**all ends**", "**hangs**"
#: The environment variable with the folder of a run.
MARK = "TUNEKIT_HOSTILE"
SYSTEMS = {
    "train": "Ray Train",
    "tune": "Ray Tune, inline",
    "optuna": "Optuna, inline",
    "trial": "tunekit, in the trial",
    "elsewhere": "tunekit, elsewhere",
}


# Validations that misbehave -----------------------------------------------------------------------


class Unpicklable(Exception):
    """An error that cannot be sent to another process."""

    def __init__(self) -> None:
        super().__init__("cannot be pickled")
        self.lock = threading.Lock()


class Unreadable(Exception):
    """An error that cannot be printed."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Unprintable:
    """A value that cannot be printed."""

    def __repr__(self) -> str:
        raise ValueError("no text")


class Fatal(BaseException):
    """An error that ``except Exception`` does not catch."""


def throw(error: BaseException) -> Any:
    raise error


def recurse() -> Any:
    return recurse()


def itself() -> dict[str, Any]:
    metrics: dict[str, Any] = {"accuracy": 0.5}
    metrics["again"] = metrics
    return metrics


def nested(depth: int) -> dict[str, Any]:
    metrics: dict[str, Any] = {"accuracy": 0.5}
    for _ in range(depth):
        metrics = {"accuracy": 0.5, "inner": metrics}
    return metrics


def later() -> Any:
    yield {"accuracy": 0.5}


async def awaited() -> Any:
    return {"accuracy": 0.5}


def shut_down() -> dict[str, float]:
    import ray

    ray.shutdown()
    return {"accuracy": 0.5}


def fill_memory() -> Any:
    """Need more memory than there is, and be the one that is killed for it."""
    Path("/proc/self/oom_score_adj").write_text("1000")
    held = []
    while True:
        held.append(b"x" * 100_000_000)
        time.sleep(0.02)


def tensor() -> dict[str, Any]:
    import torch

    return {"accuracy": torch.tensor([0.25, 0.75])}


#: What the first validation does. Those that return something return no score that is a number,
#: or something besides that cannot be passed on.
HOSTILE: dict[str, Callable[[], Any]] = {
    "raises an exception": lambda: throw(ValueError("on purpose")),
    "raises one that cannot be pickled": lambda: throw(Unpicklable()),
    "raises one that cannot be printed": lambda: throw(Unreadable()),
    "raises a `BaseException`": lambda: throw(Fatal("on purpose")),
    "raises `KeyboardInterrupt`": lambda: throw(KeyboardInterrupt()),
    "raises `StopIteration`": lambda: throw(StopIteration()),
    "raises `MemoryError`": lambda: throw(MemoryError("on purpose")),
    "recurses for ever": recurse,
    "calls `sys.exit(1)`": lambda: sys.exit(1),
    "calls `sys.exit(0)`": lambda: sys.exit(0),
    "calls `os._exit(1)`": lambda: os._exit(1),
    "calls `os.abort()`": os.abort,
    "segfaults": lambda: ctypes.string_at(0),
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "runs out of memory": fill_memory,
    "is terminated": lambda: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(2)),
    "hangs": lambda: time.sleep(600),
    "hangs in C, holding the GIL": lambda: ctypes.PyDLL(None).sleep(600),
    "shuts Ray down": shut_down,
    "deletes its working directory": lambda: (
        os.chdir(gone := tempfile.mkdtemp()),
        os.rmdir(gone),
        {"accuracy": 0.5},
    )[-1],
    "returns `None`": lambda: None,
    "returns a number": lambda: 0.5,
    "returns a list": lambda: [0.5],
    "returns a generator": later,
    "returns a coroutine": awaited,
    "returns `{}`": dict,
    "returns NaN": lambda: {"accuracy": float("nan")},
    "returns a text as score": lambda: {"accuracy": "high"},
    "returns a tensor of two as score": tensor,
    "returns itself in its dict": itself,
    "returns a dict of a thousand levels": lambda: nested(1000),
    "returns what cannot be pickled": lambda: {"accuracy": 0.5, "lock": threading.Lock()},
    "returns what cannot be printed": lambda: {"accuracy": 0.5, "odd": Unprintable()},
}


#: Those that disturb what runs at the same time.
ALONE = {"runs out of memory"}
#: How much more memory a run may use, before Ray kills processes, in KiB.
MORE_KIB = 5_000_000


def validate(checkpoint: Any, *, kind: str) -> Any:
    """Misbehave at the first checkpoint of the first training; otherwise, return a score."""
    with checkpoint.as_directory() as folder:
        trial, step = map(int, Path(folder, "step").read_text().split())
    if (trial, step) == (0, 1):
        return HOSTILE[kind]()
    return {"accuracy": 0.5 + step / 10}


# The runs ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def checkpoint_of(trial: int, step: int) -> Iterator[Any]:
    from ray import train

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "step").write_text(f"{trial} {step}")
        yield train.Checkpoint.from_directory(folder)


def start_ray() -> None:
    import ray

    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)


def limit_of(kind: str) -> float | None:
    """Return the time limit of a validation, in seconds; only those that hang need one."""
    return VALIDATION_S if kind.startswith("hangs") else None


def run_train(kind: str, folder: Path) -> list[str]:
    """Return what has become of each score, the first of which is the lost one."""
    start_ray()
    from ray import train
    from ray.train.torch import TorchTrainer

    def loop(config: dict[str, Any]) -> None:
        for step in range(1, STEPS + 1):
            with checkpoint_of(0, step) as checkpoint:
                train.report({"loss": 1.0}, checkpoint=checkpoint, validation=True)
        found = train.get_all_reported_checkpoints()
        told = [(one.status.value, one.metrics.get("accuracy")) for one in found]
        texts = [score(value) if status == "VALIDATED" else NO_REASON for status, value in told]
        Path(config["told"]).write_text(json.dumps(texts))

    told = folder / "told.json"
    limit = train.ValidationTaskConfig(fn_kwargs={"kind": kind}, timeout_s=limit_of(kind))
    TorchTrainer(
        loop,
        train_loop_config={"told": str(told)},
        scaling_config=train.ScalingConfig(num_workers=1),
        run_config=train.RunConfig(name="run", storage_path=str(folder)),
        validation_config=train.ValidationConfig(fn=validate, task_config=limit),
    ).fit()
    texts: list[str] = json.loads(told.read_text())
    return texts


def begin() -> int:
    """Return the step that a Tune trial begins with."""
    from ray import tune

    if (checkpoint := tune.get_checkpoint()) is None:
        return 1
    with checkpoint.as_directory() as folder:
        return int(Path(folder, "step").read_text().split()[1]) + 1


def train_and_validate(config: dict[str, Any]) -> None:
    from ray import tune

    for step in range(begin(), STEPS + 1):
        with checkpoint_of(config["trial"], step) as checkpoint:
            metrics = validate(checkpoint, kind=config["kind"])
            tune.report({"loss": 1.0, **metrics}, checkpoint=checkpoint)


def train_only(config: dict[str, Any]) -> None:
    from ray import tune

    for step in range(begin(), STEPS + 1):
        with checkpoint_of(config["trial"], step) as checkpoint:
            tune.report({"loss": 1.0}, checkpoint=checkpoint)


def score(value: Any) -> str:
    """Return a text for what is recorded as a score."""
    if type(value) is float and value >= 0.5:
        return SCORED
    return "no score, no reason" if value is None else f"{RECORDED} {str(value)[:20]}"


def scores_of(results: Any) -> list[str]:
    """Return what has become of each score of a sweep."""
    texts = []
    for result in results:
        table = result.metrics_dataframe
        found = [] if table is None else table.get("accuracy", [None] * len(table))
        texts += [score(value) for value in found]
        texts += [LOST] * (STEPS - len(found))
    return texts


def run_tune(kind: str, folder: Path) -> list[str]:
    start_ray()
    from ray import tune

    return scores_of(
        tune.Tuner(
            train_and_validate,
            param_space={"trial": tune.grid_search(list(range(TRIALS))), "kind": kind},
            tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
            run_config=tune.RunConfig(name="run", storage_path=str(folder), verbose=0),
        ).fit()
    )


def run_optuna(kind: str, folder: Path) -> list[str]:
    import optuna

    def objective(trial: Any) -> float:
        for step in range(1, STEPS + 1):
            with checkpoint_of(trial.number, step) as checkpoint:
                accuracy: float = validate(checkpoint, kind=kind)["accuracy"]
            trial.report(accuracy, step)
        return accuracy

    study = optuna.create_study(direction="maximize")
    study.optimize(objective, n_trials=TRIALS, catch=(Exception,))
    found = [one.intermediate_values for one in study.trials]
    return [
        score(values[step]) if step in values else LOST
        for values in found
        for step in range(1, STEPS + 1)
    ]


def run_tunekit(kind: str, folder: Path, **settings: Any) -> list[str]:
    start_ray()
    from ray import train, tune

    import tunekit

    limit = train.ValidationTaskConfig(fn_kwargs={"kind": kind}, timeout_s=limit_of(kind))
    texts = scores_of(
        tunekit.Tuner(
            train_only,
            param_space={"trial": tune.grid_search(list(range(TRIALS)))},
            tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
            run_config=tune.RunConfig(name="run", storage_path=str(folder), verbose=0),
            validation_config=tunekit.ValidationConfig(validate, limit, when=1, **settings),
        ).fit()
    )
    rows = tunekit.load(str(folder / "run")).validations
    own = rows[rows.trial_id.str.endswith("00000") & (rows.iteration == 1)]
    (status,), (reason,) = own.status, own.reason
    if status != "validated" and reason:
        print(f"{status}: {reason}")
        texts[0] = REASON
    return texts


RUNS: dict[str, Callable[[str, Path], list[str]]] = {
    "train": run_train,
    "tune": run_tune,
    "optuna": run_optuna,
    "trial": partial(run_tunekit, where="trial"),
    "elsewhere": partial(run_tunekit, where="elsewhere"),
}


def memory_threshold() -> str:
    """Return the share of the memory in use above which Ray kills processes."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kib = {name: int(number) for name, number, *_ in lines}
    return f"{min(0.95, 1 - (kib['MemAvailable:'] - MORE_KIB) / kib['MemTotal:']):.3f}"


def outcome(system: str, kind: str) -> str:
    """Make a run in a process of its own, and return what the table says."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    log, told = folder / "log", folder / "outcome.json"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, __file__, "--run", system, kind, str(folder)],
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={
                **os.environ,
                "RAY_TRAIN_V2_ENABLED": "1",
                MARK: str(folder),
                "RAY_TMPDIR": str(folder),
                **({"RAY_memory_usage_threshold": memory_threshold()} if kind in ALONE else {}),
            },
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(RUN_S)
    try:
        if process.poll() is None:
            return HANGS
        if process.returncode or not told.exists():
            return ENDS
        first, *others = json.loads(told.read_text())
        if [first, *others[: STEPS - 1]] == [LOST] * STEPS and set(others[STEPS - 1 :]) == {SCORED}:
            return TRIAL_ENDS
        missing = sum(one != SCORED for one in others)
        return f"{missing} {OTHERS}" if missing else str(first)
    finally:
        end_run(str(folder))
        print(f"{SYSTEMS[system]}, {kind}:", *log.read_text().splitlines()[-1:], flush=True)
        shutil.rmtree(folder, ignore_errors=True)


def end_run(folder: str) -> None:
    """Kill what is left of a run, all of whose processes have its folder in their environment."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={folder}".encode() in (path / "environ").read_bytes().split(b"\0"):
                os.kill(int(path.name), signal.SIGKILL)


def table(found: dict[tuple[str, str], str], kinds: list[str]) -> str:
    """Return the table, with how many runs of each survive in its last row."""
    lines = [
        "| the first validation | " + " | ".join(SYSTEMS.values()) + " |",
        "| :-- |" + " :-- |" * len(SYSTEMS),
    ]
    for kind in kinds:
        cells = (found[system, kind] for system in SYSTEMS)
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    survive = (
        sum(
            found[system, kind] not in (ENDS, HANGS, TRIAL_ENDS)
            and OTHERS not in found[system, kind]
            for kind in kinds
        )
        for system in SYSTEMS
    )
    lines.append(
        "| **all trainings end** | " + " | ".join(f"{n} of {len(kinds)}" for n in survive) + " |"
    )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="parts of names")
    parser.add_argument("--at-once", type=int, default=2, help="how many runs at a time (2)")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        system, kind, folder = options.run
        texts = RUNS[system](kind, Path(folder))
        Path(folder, "outcome.json").write_text(json.dumps(texts))
        return 0
    kinds = [kind for kind in HOSTILE if not options.words or any(w in kind for w in options.words)]
    runs = [(system, kind) for kind in kinds for system in SYSTEMS]
    found = {}
    for at_once, alone in ((options.at_once, False), (1, True)):
        these = [(system, kind) for system, kind in runs if (kind in ALONE) is alone]
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            ended = pool.map(outcome, *zip(*these, strict=True)) if these else ()
            found |= dict(zip(these, ended, strict=True))
    shown = table(found, kinds)
    print(f"\n{shown}")
    if options.write:
        put(PAGE, "hostile.py", shown)
    ours = [found[run] for run in runs if run[0] not in ("train", "tune", "optuna")]
    return int(any(one not in (SCORED, REASON, f"{RECORDED} nan") for one in ours))


if __name__ == "__main__":
    sys.exit(main())
