"""Stored journals of sweeps, and the tables that readers must make of them.

    python -m tests.support.golden    # writes them again; only with a new version of the format

A change that reads them differently would also misread the sweeps of users.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.kills import run_killed
from tests.support.modes import Mode
from tests.support.schedulers import asha, pbt, seed_all, space
from tests.support.sweeps import Plan
from tests.support.trainables import Counting

FOLDER = Path(__file__).resolve().parents[1] / "golden"
TABLES = ("trials", "reports", "validations", "decisions")


class Short(Counting):
    """Ends after four iterations."""

    def step(self) -> dict[str, Any]:
        return {**super().step(), "done": self.steps >= 4}


def fifo(folder: Path) -> Path:
    def validate(attempt: Any) -> Any:
        if attempt.request.iteration == 3:
            raise RuntimeError("fails")
        return {"accuracy": 0.1 * attempt.request.iteration, "odd": float("nan")}

    return Plan(folder, trials=2).training(Short).validating(validate).run().home


def halving(folder: Path) -> Path:
    return Plan(folder, asha(), Mode.WAIT, trials=5).run().home


def population(folder: Path) -> Path:
    """A population that is killed and restored."""

    def make(folder: Path) -> Plan:
        return Plan(folder, pbt(), trials=3, seed=2).training(Short).tuning(**space())

    return run_killed(folder, make, iter([30]))[0].home


def trainer(folder: Path) -> Path:
    """A trainer's sweep on a real Ray: two workers, validation in another process."""
    import ray
    from ray import train, tune
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    import tunekit

    def loop(config: dict[str, Any]) -> None:
        for epoch in range(2):
            with tempfile.TemporaryDirectory() as folder:
                own = train.Checkpoint.from_directory(folder)
                first = train.get_context().get_world_rank() == 0
                train.report({"loss": config["lr"] / (epoch + 1)}, own if first else None)

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    tunekit.Tuner(
        TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=2)),
        param_space={"train_loop_config": {"lr": tune.grid_search([0.5, 0.25])}},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
        run_config=tune.RunConfig(name="sweep", storage_path=str(folder)),
        validation_config=tunekit.ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.5}),
    ).fit()
    ray.shutdown()
    return folder / "sweep"


SWEEPS: dict[str, Callable[[Path], Path]] = {
    "fifo": fifo,
    "asha": halving,
    "pbt-restored": population,
    "trainer": trainer,
}


def tables_of(folder: Path) -> dict[str, Any]:
    """Return what users read of a sweep, as JSON can hold it: its tables and best checkpoint."""
    import tunekit

    found = tunekit.load(folder)
    tables = {name: getattr(found, name).to_dict("records") for name in TABLES}
    best = found.best("accuracy", "max")
    tables["best"] = [{"trial_id": best.trial_id, "iteration": best.iteration, **best.metrics}]
    own = json.dumps(tables, default=str).replace(f"{folder}/", "")
    read: dict[str, Any] = json.loads(own, parse_constant=str)  # NaN differs from itself
    return read


def main() -> None:
    os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
    for name, run in SWEEPS.items():
        seed_all(2)
        with tempfile.TemporaryDirectory() as folder:
            home = run(Path(folder))
            kept = FOLDER / name
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(home / "journal", kept / "journal")
        (kept / "tables.json").write_text(json.dumps(tables_of(kept), indent=1) + "\n")
        print(name, sum(one.stat().st_size for one in kept.rglob("*") if one.is_file()))


if __name__ == "__main__":
    sys.exit(main())
