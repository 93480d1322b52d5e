"""Sweeps on clusters of their own, each in a process of its own.

python -m tests.integration.clusters nodes FOLDER
python -m tests.integration.clusters driver FOLDER
"""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

import ray
from ray import tune
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

import tunekit
from tests import forked_workers
from tests.integration import runs
from tests.integration.worker_groups import fit, trainer, validate
from tunekit.core.events import Reported
from tunekit.journal.journal import record_of
from tunekit.journal.storage import folder_at


class Once(tune.Callback):
    """Calls something after so many validations, once."""

    def __init__(self, validations: int, then: Any):
        self.left, self.then = validations, then

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune keeps a copy of its settings, and needs none of this

    def on_trial_result(self, result: Any, **info: Any) -> None:
        self.left -= result.get("accuracy", math.nan) >= 0
        if self.left == 0:
            self.left = -1
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


def spot(folder: Path, kind: str, notice: bool) -> None:
    """A node with trials is taken away, 6 s after notice or without any, which fails them."""
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 4, "resources": {"head": 9}}
    )
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    alive = [cluster.add_node(num_cpus=4, resources={"spot": 4}) for _ in range(2)]
    print(json.dumps(_on_spot(folder, cluster, alive, kind, notice)))
    ray.shutdown()
    cluster.shutdown()


def _starts(sweep: tunekit.Sweep) -> int:
    events = record_of(folder_at(sweep.filesystem, sweep.path)).events
    reports = (event.report for event in events if isinstance(event, Reported))
    return sum(report["iterations_since_restore"] == 1 for report in reports)


def _on_spot(folder: Path, cluster: Cluster, alive: list, kind: str, notice: bool) -> dict:
    home = folder / kind
    home.mkdir()
    # Trials wait in the middle until a node is about to end: however late the scores are, it has
    # trials then.
    log, gate = str(home / "log"), home / "gate"
    length, trials = 20, 2

    def take_away() -> None:
        groups = ray.util.placement_group_table().values()
        used = {
            n for g in groups if g["state"] == "CREATED" for n in g["bundles_to_node_id"].values()
        }
        node = next(node for node in alive if node.node_id in used)
        alive.remove(node)
        alive.append(cluster.add_node(num_cpus=4, resources={"spot": 4}))
        if not notice:
            cluster.remove_node(node, allow_graceful=False)
            gate.touch()
            return
        deadline = int((time.time() + 6) * 1000)
        preempted = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        gcs = ray._raylet.GcsClient(address=cluster.address)
        assert gcs.drain_node(node.node_id, preempted, "spot", deadline)[0]
        gate.touch()
        end = threading.Timer(6, cluster.remove_node, [node], {"allow_graceful": False})
        end.start()
        ends.append(end)

    ends: list[threading.Timer] = []
    config = {"length": length, "log": log, "sleep_s": 0.4, "gate": str(gate)}
    common: dict[str, Any] = {
        "tune_config": tune.TuneConfig(num_samples=trials, metric="accuracy", mode="max"),
        "callbacks": [Once(2, take_away)],
    }
    remote = {"num_cpus": 1, "resources": {"head": 1}}
    if kind == "trainer":
        options = {"sleep_s": 0.4, "gate": str(gate)}
        worker = trainer(home, length=length, resources={"spot": 1.0}, **options)
        results, validation = fit(
            worker,
            home,
            failure_config=tune.FailureConfig(max_failures=2),
            validation_config=tunekit.ValidationConfig(
                fn=validate, ray_remote_kwargs=remote, when=1, max_retries=3
            ),
            **common,
        )
        ran = [line.split()[2] for line in (home / "ran").read_text().splitlines() if " 0 " in line]
    else:
        tuner = tunekit.Tuner(
            tune.with_resources(runs.counting, {"cpu": 1, "spot": 1}),
            param_space=config,
            run_config=tune.RunConfig(
                name="sweep",
                storage_path=str(home),
                verbose=0,
                callbacks=common["callbacks"],
                failure_config=tune.FailureConfig(max_failures=2),
            ),
            tune_config=common["tune_config"],
            validation_config=tunekit.ValidationConfig(
                fn=runs.validate, ray_remote_kwargs=remote, max_retries=3
            ),
            checkpoint_policy=tunekit.EveryIterations(4),
        )
        results, validation = tuner.fit(), tuner.validation
        ran = Path(log).read_text().splitlines()
    for end in ends:
        end.join()
    tables = [result.metrics_dataframe for result in results]
    known = tunekit.load(results.experiment_path)
    return {
        "errors": [str(error) for error in results.errors],
        "failures": int(known.trials["failures"].sum()),
        "redone": len(ran) - trials * length,
        "iterations": [table["training_iteration"].tolist() for table in tables],
        "summary": validation.summary(),
        "saved": len(known.validations),
        "moves": _starts(known) - trials,
    }


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


if __name__ == "__main__":
    forked_workers.use()
    globals()[sys.argv[1]](Path(sys.argv[2]), *map(json.loads, sys.argv[3:]))
