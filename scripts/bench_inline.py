"""What validating alongside costs a whole program: the same one inline and with tunekit, in turn.

    python scripts/bench_inline.py                       # those whose packages are installed
    python scripts/bench_inline.py --names pytorch pytorch-fifo --repeats 5

The programs are those of docs/frameworks, and three more of the PyTorch one: without a scheduler,
under population based training, and where both need the one logical GPU that there is. Each run is
a process of its own, with a Ray of its own, from its start to its end: imports, Ray, training,
validation. With tunekit, all settings are the defaults. Printed are the medians of the seconds,
their ratio, and the ratios of each pair; the same of the CPU seconds, which other programs on the
machine disturb less; and the geometric mean of the ratios of the seconds. `start-up` is no sweep to
compare: it prints the time to the first report, against stock Tune.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import threading
from pathlib import Path

import examples
import harness

PYTORCH = examples.PAGES / "pytorch"
ASHA = "scheduler=ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)"
PBT = (
    "scheduler=tune.schedulers.PopulationBasedTraining("
    'time_attr="training_iteration", perturbation_interval=2, '
    'hyperparam_mutations={"lr": tune.loguniform(1e-4, 1e-1)})'
)
GPU = "import ray; ray.init(num_gpus=1)\n"
# Prints the seconds to the first report: from making the Tuner, and from the beginning.
START = """
import time
began = time.monotonic()
import ray
import torch
from ray import tune
import {module} as module

class First(tune.Callback):
    def on_trial_result(self, *_, **__):
        global came
        came = time.monotonic()

ray.init(num_cpus=2)
making = time.monotonic()
module.Tuner(
    lambda config: tune.report({{"accuracy": 1.0}}),
    tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
    run_config=tune.RunConfig(callbacks=[First()]),{validation}
).fit()
print(came - making, came - began)
"""
VALIDATION = "\n    validation_config=module.ValidationConfig(fn=lambda checkpoint: {}),"


def changed(program: Path, kind: str) -> str:
    """Return the PyTorch program with another scheduler, or with a GPU that it needs."""
    text = program.read_text()
    if kind == "fifo":
        return text.replace(f"        {ASHA},\n", "")
    if kind == "pbt":
        return text.replace(ASHA, PBT)
    text = text.replace("    train,\n", '    tune.with_resources(train, {"cpu": 1, "gpu": 1}),\n')
    return GPU + text.replace("fn=validate", 'fn=validate, ray_remote_kwargs={"num_gpus": 1}')


def programs(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Return each program by its name, inline and with tunekit, as far as they can run here."""
    found: dict[str, tuple[Path, Path]] = {}
    for example in examples.EXAMPLES:
        if lacking := example.lacks():
            print(f"{example.name} is left out: {', '.join(lacking)} is not installed")
        else:
            found[example.name] = example.programs
    for kind in ("fifo", "pbt", "gpu"):
        both = []
        for program in found.get("pytorch", ()):
            path = folder / kind / program.name
            path.parent.mkdir(exist_ok=True)
            path.write_text(changed(program, kind))
            both.append(path)
        if both:
            found[f"pytorch-{kind}"] = (both[0], both[1])
    started = (folder / "stock.py", folder / "ours.py")
    for path, module, validation in zip(
        started, ("ray.tune", "tunekit"), ("", VALIDATION), strict=True
    ):
        path.write_text(START.format(module=module, validation=validation))
    return {"start-up": started, **found}


class Cpu:
    """Counts the CPU seconds of this process's children and theirs, while they live (Linux)."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._used: dict[tuple[str, str], float] = {}
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Cpu:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        tick, mine = os.sysconf("SC_CLK_TCK"), str(os.getpid())
        while not self._ended.wait(0.25):
            known: dict[str, list[str]] = {}
            for stat in Path("/proc").glob("[0-9]*/stat"):
                with contextlib.suppress(OSError):  # it has ended
                    known[stat.parent.name] = stat.read_text().rpartition(")")[2].split()
            below = [mine]
            for parent in below:
                below += [process for process, fields in known.items() if fields[1] == parent]
            for process in below[1:]:
                fields = known[process]
                self._used[process, fields[19]] = (int(fields[11]) + int(fields[12])) / tick

    @property
    def seconds(self) -> float:
        """Return the seconds, without what a process used in its last quarter of a second."""
        return sum(self._used.values())


def measured(program: Path) -> tuple[float, float]:
    """Run a program; return its seconds, and its CPU seconds."""
    with Cpu() as cpu:
        _, seconds = examples.printed(program)
    return seconds, cpu.seconds


def started(program: Path) -> tuple[float, float]:
    """Run START; return the seconds to the first report, from the Tuner and from the beginning."""
    out, _ = examples.printed(program)
    tuner, whole = out.splitlines()[-1].split()
    return float(tuner), float(whole)


def compare(name: str, found: list[list[float]]) -> float:
    """Print the medians of a measure, inline and with tunekit; return their ratio."""
    inline, ours = map(harness.median, found)
    each = " ".join(f"{b / a:.2f}" for a, b in zip(*found, strict=True))
    print(f"{name:24} {inline:7.1f} {ours:8.1f} {ours / inline:6.2f}  {each}", flush=True)
    return ours / inline


def main() -> None:
    asked = harness.arguments(__doc__, names=[""], repeats=3)
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'program':24} {'inline':>7} {'tunekit':>8} {'ratio':>6}  of each pair")
        for name, both in programs(Path(folder)).items():
            if any(asked.names) and name not in asked.names:
                continue
            start = name == "start-up"
            found = harness.in_turn(both, started if start else measured, asked.repeats)
            first, second = ([[run[n] for run in found[one]] for one in both] for n in range(2))
            ratio = compare(f"{name}: from the Tuner" if start else name, first)
            compare(f"{name}: {'whole' if start else 'CPU'}", second)
            if not start:
                ratios.append(ratio)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{'geometric mean':24} {'':7} {'':8} {mean:6.2f}")


if __name__ == "__main__":
    main()
