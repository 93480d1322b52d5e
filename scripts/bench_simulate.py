"""Compare real sweeps on a small machine with simulations of the same sweeps.

    python scripts/bench_simulate.py                     # about 15 minutes
    python scripts/bench_simulate.py --names pytorch long

These are two programs of docs/frameworks, and one whose iterations (0.5 s) and validations (1 s)
import torch and then sleep, with several settings; under ASHA unless the name says otherwise. Each
runs in a separate process, with its own Ray of one or two CPUs. ``tunekit.lab.simulate`` receives
its record and its scheduler. The script prints both times, from the beginning of the sweep to its
end, and their ratio. Other work on the machine is part of the record, but it scatters the ratios.
"""

from __future__ import annotations

import copy
import json
import os
import random
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import examples
import harness
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler

import tunekit

TRAIN_S, VALIDATE_S, MAX_T, TRIALS = 0.5, 1.0, 9, 6
MARK = "seconds, real and simulated: "
SETTINGS: dict[str, dict[str, Any]] = {
    "long": {},
    "long-auto": {"when": "auto"},
    "long-evaluator": {"evaluators": 1},
    "long-continue": {"on_pending": "continue"},
    "long-fifo": {},
    "long-hyperband": {},
}
SCHEDULERS = {"fifo": None, "hyperband": HyperBandScheduler(max_t=MAX_T)}


class Compared(tunekit.Tuner):
    """A Tuner that simulates its sweep after running it."""

    def __init__(self, *args: Any, tune_config: tune.TuneConfig, **more: Any):
        self._asked = copy.deepcopy(tune_config)
        super().__init__(*args, tune_config=tune_config, **more)

    def fit(self) -> tune.ResultGrid:
        results = super().fit()
        sweep = tunekit.load(results.experiment_path)
        real_s = sweep.timeline.last - sweep.sessions[0]["time"]
        ran = tunekit.lab.simulate(sweep, tune_config=self._asked)
        print(f"\n{MARK}{real_s} {ran.makespan_s}")
        return results


def train(config):
    import torch  # noqa: F401

    epoch = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            epoch = json.loads(Path(folder, "state").read_text())[1]
    while epoch < MAX_T:
        time.sleep(TRAIN_S * (1 + config["n"] / 10))
        epoch += 1
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state").write_text(json.dumps([config["n"], epoch]))
            tune.report({"loss": 1 / epoch}, checkpoint=tune.Checkpoint.from_directory(folder))


def validate(checkpoint):
    import torch  # noqa: F401

    with checkpoint.as_directory() as folder:
        trial, epoch = json.loads(Path(folder, "state").read_text())
    time.sleep(VALIDATE_S)
    return {"accuracy": random.Random(trial).random() * (1 - 0.6**epoch)}


def run(name: str, cpus: int) -> None:
    """Run a program on a Ray with ``cpus`` CPUs, and simulate it."""
    ray.init(num_cpus=cpus, include_dashboard=False)
    if name not in SETTINGS:
        tunekit.Tuner = Compared
        program = next(one for one in examples.EXAMPLES if one.name == name).programs[1]
        runpy.run_path(str(program), run_name="__main__")
        return
    asha = ASHAScheduler(max_t=MAX_T, grace_period=1, reduction_factor=3)
    scheduler = SCHEDULERS.get(name.removeprefix("long-"), asha)
    Compared(
        train,
        param_space={"n": tune.grid_search([*range(TRIALS)])},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", scheduler=scheduler),
        validation_config=tunekit.ValidationConfig(fn=validate, **SETTINGS[name]),
    ).fit()


def compared(name: str, cpus: int) -> tuple[float, float]:
    """Return the seconds of a sweep and of its simulation."""
    command = [sys.executable, __file__, "--run", name, "--cpus", str(cpus)]
    with tempfile.TemporaryDirectory(prefix="tk-", ignore_cleanup_errors=True) as folder:
        environ = dict(os.environ) | {"HOME": folder, "RAY_TMPDIR": folder, "RAY_ADDRESS": "local"}
        environ["RAY_TRAIN_V2_ENABLED"] = "1"
        environ["PYTHONPATH"] = os.pathsep.join([str(examples.ROOT), *sys.path])
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    told = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not told:
        raise RuntimeError(f"{name}: {done.stdout}\n{done.stderr}"[-5000:])
    real_s, simulated_s = map(float, told[0].removeprefix(MARK).split())
    return real_s, simulated_s


def main() -> None:
    asked = harness.arguments(__doc__, names=[""], cpus=0, run="")
    if asked.run:
        run(asked.run, asked.cpus)
        return
    names = [name for name in asked.names if name] or ["pytorch", "trainable_class", *SETTINGS]
    rows = (
        (name, cpus, *seconds, seconds[1] / seconds[0])
        for name in names
        for cpus in ((asked.cpus,) if asked.cpus else (1, 2))
        for seconds in [compared(name, cpus)]
    )
    harness.table(("program".rjust(15), "CPUs", "real s", "simulated s", "simulated / real"), rows)


if __name__ == "__main__":
    main()
