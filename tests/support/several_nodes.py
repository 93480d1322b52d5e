"""Sweeps on a cluster of several nodes, in a process of its own.

python -m tests.support.several_nodes           runs the cases that it reads, a line each
python -m tests.support.several_nodes FOLDER    a sweep without an end, to be killed
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

import pytest
import ray
from pyarrow.fs import FSSpecHandler, PyFileSystem
from ray import train, tune
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

import tunekit
from tests.support import forked_workers, real_sweeps
from tests.support.worker_groups import fit, trainer, validate
from tunekit._ray.cluster import check_readable
from tunekit.core.events import Reported
from tunekit.journal.journal import record_of
from tunekit.journal.storage import folder_at
from tunekit.messages.problems import Problems


class Nodes:
    """A head with the drivers, and two nodes that may be taken away."""

    def __init__(self) -> None:
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"head": 9}}
        )
        self.spot = [self.add(), self.add()]
        ray.init(self.cluster.address, log_to_driver=False, logging_level=logging.ERROR)

    def add(self) -> Any:
        return self.cluster.add_node(num_cpus=4, resources={"spot": 4})

    def lose(self, node: Any) -> None:
        self.cluster.remove_node(node, allow_graceful=False)


def _starts(sweep: tunekit.Sweep) -> int:
    events = record_of(folder_at(sweep.filesystem, sweep.path)).events
    reports = (event.report for event in events if isinstance(event, Reported))
    return sum(report["iterations_since_restore"] == 1 for report in reports)


def spot(nodes: Nodes, home: Path, kind: str) -> dict[str, Any]:
    """A node with trials is taken away, 6 s after notice."""
    # Trials wait in the middle until a node is about to end: however late the scores are, it has
    # trials then.
    gate = home / "gate"
    length, trials, pace = 20, 2, {"sleep_s": 0.4, "gate": str(gate)}

    def take_away() -> None:
        groups = ray.util.placement_group_table().values()
        used = {
            n for g in groups if g["state"] == "CREATED" for n in g["bundles_to_node_id"].values()
        }
        node = next(node for node in nodes.spot if node.node_id in used)
        nodes.spot.remove(node)
        nodes.spot.append(nodes.add())
        deadline = int((time.time() + 6) * 1000)
        preempted = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        gcs = ray._raylet.GcsClient(address=nodes.cluster.address)
        assert gcs.drain_node(node.node_id, preempted, "spot", deadline)[0]
        gate.touch()
        end = threading.Timer(6, nodes.lose, [node])
        end.start()
        ends.append(end)

    ends: list[threading.Timer] = []
    if kind == "trainer":
        trainable = trainer(home, length=length, resources={"spot": 1.0}, **pace)
        validating, options = validate, {}
    else:
        trainable = tune.with_resources(real_sweeps.counting, {"cpu": 1, "spot": 1})
        space = {"length": length, "log": str(home / "ran"), **pace}
        validating = real_sweeps.validate
        options = {"param_space": space, "checkpoint_policy": tunekit.EveryIterations(4)}
    results = fit(
        trainable,
        home,
        tune_config=tune.TuneConfig(num_samples=trials, metric="accuracy", mode="max"),
        callbacks=[real_sweeps.After(2, take_away)],
        max_failures=2,
        validation_config=tunekit.ValidationConfig(
            validating, None, {"num_cpus": 1, "resources": {"head": 1}}, when=1, max_retries=3
        ),
        **options,
    )
    lines = (home / "ran").read_text().splitlines()
    ran = [line for line in lines if " 1 " not in line]  # once for the two ranks
    for end in ends:
        end.join()
    tables = [result.metrics_dataframe for result in results]
    known = tunekit.load(results.experiment_path)
    return {
        "errors": [str(error) for error in results.errors],
        "failures": int(known.trials["failures"].sum()),
        "redone": len(ran) - trials * length,
        "iterations": [table["training_iteration"].tolist() for table in tables],
        "summary": tunekit.load(results.experiment_path).summary()["validations"],
        "saved": len(known.validations),
        "moves": _starts(known) - trials,
    }


def blind(nodes: Nodes, folder: Path) -> dict[str, Any]:
    """A node cannot read the results, and validations could run, or run only, there."""
    storage = PyFileSystem(FSSpecHandler(real_sweeps.Mounted()))
    node = nodes.cluster.add_node(num_cpus=1, resources={"blind": 1}, env_vars={"BLIND": "1"})
    only_there = {"num_cpus": 1, "resources": {"blind": 1}}
    with pytest.raises(tunekit.errors.ConfigError) as refused:
        fit(
            real_sweeps.counting,
            folder,
            param_space={"length": 3, "log": str(folder / "ran")},
            storage_filesystem=storage,
            validation_config=tunekit.ValidationConfig(real_sweeps.validate, None, only_there),
        )
    problems = Problems("fit")
    check_readable(str(folder), storage, {"CPU": 1}, {}, problems)
    nodes.lose(node)
    return {"refused": str(refused.value), "also": bool(problems)}


def labels(nodes: Nodes, folder: Path) -> dict[str, Any]:
    """Validations run on the nodes with a label, in tasks and in the workers of a trainer."""
    node = nodes.cluster.add_node(num_cpus=3, labels={"for": "validation"})
    found: dict[str, list[str]] = {}
    workers = tunekit.distributed.TrainerValidation(where, train.ScalingConfig(num_workers=2))
    for kind, fn in (("task", where), ("workers", workers)):
        results = fit(
            real_sweeps.counting,
            folder / kind,
            param_space={"length": 2, "log": str(folder / f"{kind}.log")},
            tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
            checkpoint_policy=tunekit.EveryIterations(1),
            validation_config=tunekit.ValidationConfig(
                fn, None, {"num_cpus": 1, "label_selector": {"for": "validation"}}, when=1
            ),
        )
        rows = tunekit.load(results.experiment_path).validations
        found[kind] = [one == node.node_id for one in rows["metrics/node"]]
    nodes.lose(node)
    return found


def where(_: Any) -> dict[str, Any]:
    """Return the node that a validation runs on."""
    return {"accuracy": 0.5, "node": ray.get_runtime_context().get_node_id()}


def driver(nodes: Nodes, folder: Path) -> dict[str, Any]:
    """A driver is killed in the middle of a sweep: the cluster gets everything back."""
    other = subprocess.Popen(
        [sys.executable, "-m", "tests.support.several_nodes", str(folder)],
        env={**os.environ, "RAY_ADDRESS": nodes.cluster.address},
        stdout=subprocess.DEVNULL,
    )
    while not (folder / "ran").exists():
        assert other.poll() is None
        time.sleep(0.2)
    free, all_of_them = _free(), ray.cluster_resources()["CPU"]
    busy = all_of_them - free
    other.kill()
    began = time.monotonic()
    while free < all_of_them and time.monotonic() < began + 60:
        time.sleep(0.2)
        free = _free()
    groups = [g for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"]
    return {"busy": busy, "still_busy": all_of_them - free, "groups": len(groups)}


def _free() -> float:
    return ray.available_resources().get("CPU", 0.0)


def endless(folder: Path) -> None:
    """What :func:`driver` kills."""
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    fit(trainer(folder, length=900, sleep_s=0.1), folder)


def main() -> None:
    """Run each case that is asked for, and answer with what came of it, a line for each."""
    nodes = Nodes()
    for line in sys.stdin:
        name, folder, *given = json.loads(line)
        print(json.dumps(globals()[name](nodes, Path(folder), *given)), flush=True)
    ray.shutdown()
    nodes.cluster.shutdown()


if __name__ == "__main__":
    if sys.argv[1:]:
        endless(Path(sys.argv[1]))
    else:
        forked_workers.use()
        main()
