"""Sweeps on clusters of their own, each in a process of its own.

python -m tests.integration.clusters nodes FOLDER
python -m tests.integration.clusters driver FOLDER
python -m tests.integration.clusters workstation FOLDER
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

import ray
from ray import tune
from ray.cluster_utils import Cluster

import tunekit
from tests import forked_workers
from tests.integration import runs
from tests.integration.worker_groups import fit, trainer, validate


class Once(tune.Callback):
    """Calls something after so many validations, once."""

    def __init__(self, validations: int, then: Any):
        self.left, self.then = validations, then

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune keeps a copy of its settings, and needs none of this

    def on_trial_validated(self, trial: Any, report: Any, metrics: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.then()


def nodes(folder: Path) -> None:
    """Validation has a node of its own, which is lost in the middle of the sweep, and replaced."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4})
    cluster.add_node(num_cpus=2)
    node = cluster.add_node(num_cpus=1, resources={"validation": 1})
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)

    def lose() -> None:
        cluster.remove_node(node, allow_graceful=False)
        cluster.add_node(num_cpus=1, resources={"validation": 1})

    results, validation = fit(
        trainer(folder, length=12, sleep_s=0.2),
        folder,
        tune_config=tune.TuneConfig(num_samples=3),
        callbacks=[Once(6, lose)],
        validation_config=tunekit.ValidationConfig(
            fn=_validate_where,
            ray_remote_kwargs={"num_cpus": 1, "resources": {"validation": 1}},
            max_retries=3,
        ),
    )
    tables = [result.metrics_dataframe for result in results]
    print(
        json.dumps(
            {
                "errors": [str(error) for error in results.errors],
                "iterations": [table["training_iteration"].tolist() for table in tables],
                "validated": [int(table["accuracy"].notna().sum()) for table in tables],
                "nodes": sorted({int(v) for table in tables for v in table["node"]}),
                "summary": validation.summary(),
            }
        )
    )
    ray.shutdown()
    cluster.shutdown()


def _validate_where(checkpoint: tune.Checkpoint) -> dict[str, float]:
    """The score, and a number for the node that it was found on."""
    node = int(ray.get_runtime_context().get_node_id()[:8], 16)
    return {**validate(checkpoint), "node": node}


def driver(folder: Path) -> None:
    """A driver is killed in the middle of a sweep: the cluster gets everything back."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 6})
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    other = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.clusters", "endless", str(folder)],
        env={**os.environ, "RAY_ADDRESS": cluster.address},
        stdout=subprocess.DEVNULL,
    )
    while not (folder / "ran").exists():
        assert other.poll() is None
        time.sleep(0.2)
    busy = ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0)
    other.kill()
    began, free = time.monotonic(), 0.0
    while free < ray.cluster_resources()["CPU"] and time.monotonic() < began + 60:
        time.sleep(0.2)
        free = ray.available_resources().get("CPU", 0)
    groups = [g for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"]
    print(
        json.dumps(
            {"busy": busy, "free": free, "groups": len(groups), "s": time.monotonic() - began}
        )
    )
    ray.shutdown()
    cluster.shutdown()


def endless(folder: Path) -> None:
    """What :func:`driver` kills."""
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    fit(
        trainer(folder, length=900, sleep_s=0.1),
        folder,
        tune_config=tune.TuneConfig(num_samples=2),
    )


def workstation(folder: Path) -> None:
    """One GPU that every trial and every validation needs, in tasks and then on an evaluator."""
    ray.init(
        address="local",  # whatever another run may have left behind
        num_cpus=4,
        num_gpus=1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    told = {}
    for name, trials, evaluators in (("tasks", 1, None), ("evaluator", 2, 1)):
        results = runs.fit(
            tune.with_resources(runs.counting, {"gpu": 1}),
            folder,
            name=name,
            param_space={"length": 2},
            tune_config=tune.TuneConfig(num_samples=trials, metric="accuracy", mode="max"),
            validation_config=tunekit.ValidationConfig(
                fn=runs.validate, ray_remote_kwargs={"num_gpus": 1}, evaluators=evaluators
            ),
            checkpoint_policy=tunekit.EveryIterations(2),
        )
        told[name] = results.num_errors, [result.metrics["accuracy"] for result in results]
    print(json.dumps(told))
    ray.shutdown()


if __name__ == "__main__":
    forked_workers.use()
    globals()[sys.argv[1]](Path(sys.argv[2]))
