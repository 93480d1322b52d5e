"""Sweeps whose folders were kept, so that every later tunekit can be tried on them.

What is in ``v2/`` was written by tunekit 0.1.0 (version 2 of the journal) on a real Ray and is
never made again: it stands for the sweeps that users have. To freeze those of a newer version, run

    python -m tests.frozen.sweeps tests/frozen/v3

from a checkout of the code that is to be frozen, before it changes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining

import tunekit

#: The sweeps: ``killed`` ones wait for being restored, ``restored`` ones were, and ended.
NAMES = ("asha", "asha-killed", "asha-restored", "pbt", "pbt-killed", "pbt-restored")

LENGTH = 8


class Approaching(tune.Trainable):
    """Its weights are a number that comes the nearer to 1 the longer it is trained."""

    def setup(self, config: dict[str, Any]) -> None:
        self.weights = 0.0

    def step(self) -> dict[str, Any]:
        time.sleep(self.config.get("train_s", 0.0))
        self.weights += self.config["lr"] * (1 - self.weights)
        return {"loss": 1 - self.weights, "done": self.iteration + 1 >= LENGTH}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "weights.json").write_text(json.dumps(self.weights))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.weights = json.loads(Path(checkpoint_dir, "weights.json").read_text())


def validate(checkpoint: tune.Checkpoint) -> dict[str, Any]:
    """Return the weights as accuracy; those of the slowest learner cannot be validated at first."""
    with checkpoint.as_directory() as directory:
        weights = json.loads(Path(directory, "weights.json").read_text())
    if weights < 0.11:
        raise ValueError("too little was learned")
    return {"accuracy": weights, "by": {"half": weights / 2}}


def lower(config: dict[str, Any]) -> dict[str, Any]:
    """Perturb without chance."""
    return {**config, "lr": config["lr"] + 0.01}


def tuner(name: str, folder: str) -> tunekit.Tuner:
    """Return the tuner that makes a sweep."""
    kind = name.split("-")[0]
    pbt = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": [0.1]},
        custom_explore_fn=lower,
        quantile_fraction=0.25,
        synch=True,
        log_config=False,
    )
    asha = ASHAScheduler(max_t=LENGTH, grace_period=1, reduction_factor=2)
    return tunekit.Tuner(
        Approaching,
        param_space={"lr": tune.grid_search([0.3, 0.2, 0.15, 0.1]), "train_s": 0.05},
        tune_config=tune.TuneConfig(
            metric="accuracy", mode="max", scheduler=pbt if kind == "pbt" else asha
        ),
        run_config=tune.RunConfig(name=name, storage_path=folder, verbose=0),
        validation_config=tunekit.ValidationConfig(
            fn=validate, max_retries=0, on_pending="hold" if kind == "pbt" else "continue"
        ),
        checkpoint_policy=tunekit.EveryIterations(1),
    )


def live(name: str, folder: str) -> None:
    """Run one life of a sweep's driver."""
    import ray

    ray.init(num_cpus=5, include_dashboard=False, log_to_driver=False)
    path = str(Path(folder, name))
    restored = tunekit.Tuner.can_restore(path)
    sweep = tunekit.Tuner.restore(path, Approaching) if restored else tuner(name, folder)
    sweep.fit()
    ray.shutdown()


def make(name: str, target: Path) -> None:
    """Run a sweep, as its name says, and keep its folder."""
    context = multiprocessing.get_context("spawn")
    folder = Path(tempfile.gettempdir(), "tunekit-frozen")  # is in what Tune has pickled
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    driver = context.Process(target=live, args=(name, str(folder)))
    driver.start()
    if name.endswith(("-killed", "-restored")):
        while _scores(folder / name) < 8:
            time.sleep(0.01)
        os.kill(driver.pid or 0, signal.SIGKILL)
    driver.join()
    if name.endswith("-restored"):
        time.sleep(5)  # until the killed driver's Ray is gone
        again = context.Process(target=live, args=(name, str(folder)))
        again.start()
        again.join()
    target.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((folder / name).rglob("*")):
            if path.is_file() and "tfevents" not in path.name:
                archive.write(path, str(path.relative_to(folder)))
    expected = json.dumps(told(tunekit.load(folder / name)), indent=1)
    (target / f"{name}.json").write_text(expected + "\n")
    shutil.rmtree(folder)


def _milliseconds(moments: pd.Series) -> pd.Series:
    whole = [None if pd.isna(moment) else moment.value // 10**6 for moment in moments]
    return pd.Series(whole, moments.index, dtype=object)


def told(sweep: tunekit.Sweep) -> dict[str, Any]:
    """Return what the tables of a sweep say, as JSON."""

    def table(frame: Any) -> list[dict[str, Any]]:
        moments = frame.select_dtypes(["datetime", "datetimetz", "timedelta"])
        in_ms = {name: _milliseconds(moments[name]) for name in moments}
        plain = frame.assign(**in_ms)
        return json.loads(plain.to_json(orient="records", default_handler=str))

    tables = ("trials", "reports", "validations", "decisions")
    best = sweep.best()
    summary = {k: v for k, v in sweep.summary().items() if k not in ("path", "best")}
    return {
        "summary": summary,
        "best": {"trial": best.trial_id, "iteration": best.iteration, "score": best.score},
        **{name: table(getattr(sweep, name)) for name in tables},
        "exploits": table(sweep.lineage.to_dataframe()),
    }


def _scores(experiment: Path) -> int:
    lines = (path.read_text() for path in experiment.glob("journal/*.jsonl"))
    return sum(text.count('"event": "ended"') for text in lines)


if __name__ == "__main__":
    from tests.frozen import sweeps  # workers import it by that name

    for each in NAMES:
        sweeps.make(each, Path(sys.argv[1]))
        print(each, flush=True)
