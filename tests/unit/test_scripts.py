"""The cluster files of docs/clusters start a sweep, and left-over processes of tests are detected.

There is no Slurm and no Kubernetes here: doubles of their commands record their arguments.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray
import yaml

from scripts.left_behind import left_behind

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/clusters"
SWEEP = (FOLDER / "sweep.py").read_text()
CLUSTERS = {
    "kuberay.yaml": lambda document: document["spec"]["rayClusterSpec"],
    "raycluster.yaml": lambda document: document["spec"],
}


def validation_needs() -> dict[str, float]:
    """What the sweep's validations take, as the program says."""
    for node in ast.walk(ast.parse(SWEEP)):
        if isinstance(node, ast.keyword) and node.arg == "ray_remote_kwargs":
            options = ast.literal_eval(node.value)
            return {"CPU": options["num_cpus"], **options["resources"]}
    raise AssertionError("The program passes no ray_remote_kwargs.")


# Kubernetes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLUSTERS)
def test_kubernetes_cluster_has_nodes_for_the_trials_and_validations_of_its_sweep(name):
    cluster = CLUSTERS[name](yaml.safe_load((FOLDER / name).read_text()))
    assert cluster["rayVersion"] == ray.__version__
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    groups = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    assert groups.keys() == {"training", "validation"}
    for group in groups.values():
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    needs = validation_needs()
    # KubeRay hands this to `ray start --resources=...` through a shell.
    told = groups["validation"]["rayStartParams"]["resources"]
    resources = json.loads(json.loads(told.strip("'")))
    [container] = groups["validation"]["template"]["spec"]["containers"]
    assert resources["validation"] >= needs["validation"]
    assert int(container["resources"]["limits"]["cpu"]) >= resources["validation"]
    assert int(groups["validation"]["rayStartParams"]["num-cpus"]) == needs["CPU"] == 0, (
        "a trial that sits where validations have to run, and waits for their scores, stays"
    )
    assert "resources" not in groups["training"]["rayStartParams"]


# Slurm ---------------------------------------------------------------------------------------

DOUBLES = {
    "scontrol": """
        if [ "$1" = show ]; then printf 'n1\\nn2\\nn3\\n'; else echo "scontrol $*" >> "$TOLD"; fi
    """,
    # Of its options, only the node matters; what is left runs here.
    "srun": """
        while [ "${1#--}" != "$1" ]; do
            case "$1" in --nodelist=*) export NODE=${1#--nodelist=} ;; esac
            shift
        done
        exec "$@"
    """,
    "hostname": 'echo "10.0.0.1 fe80::1"',
    "ray": """
        if [ "$1" = get-auth-token ]; then printf secret; exit; fi
        echo "$NODE: ray $*" >> "$TOLD"
        if [ "$RAY_AUTH_MODE" != token ] || [ "$RAY_AUTH_TOKEN" != secret ]; then exit 1; fi
        if [ "$1" = health-check ] && [ "$(grep -c health-check "$TOLD")" -lt "$ANSWERS_AT" ]; then
            exit 1
        fi
    """,
    "python": """
        echo "$NODE: python $* at $RAY_ADDRESS" >> "$TOLD"
        echo "token: $RAY_AUTH_MODE $RAY_AUTH_TOKEN" >> "$TOLD"
        trap 'echo "$NODE: interrupted" >> "$TOLD"; exit 75' TERM
        eval "$DRIVER"
    """,
    "sleep": "",
}


@pytest.fixture
def submit(tmp_path):
    """Return a function that runs the script as a job of three nodes.

    It returns the job's exit status, what was told to whom, and stderr.
    """
    for name, does in DOUBLES.items():
        path = tmp_path / "commands" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{does}\n")
        path.chmod(0o755)
    shutil.copy(FOLDER / "slurm.sbatch", tmp_path)
    told = tmp_path / "told"
    told.touch()

    def submit(answers_at, driver="exit 0", signal_at=None):
        slurm = {"JOB_ID": "4711", "JOB_NODELIST": "n[1-3]", "CPUS_PER_TASK": "8"}
        environment = {
            "PATH": f"{tmp_path / 'commands'}:{os.environ['PATH']}",
            "TOLD": str(told),
            "DRIVER": driver,
            "ANSWERS_AT": str(answers_at),
            **{f"SLURM_{name}": value for name, value in slurm.items()},
        }
        command = ["bash", str(tmp_path / "slurm.sbatch")]
        batch = subprocess.Popen(
            command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        if signal_at is not None:
            while signal_at not in told.read_text():
                time.sleep(0.01)
            batch.terminate()  # Slurm signals the batch script, and nothing else
        _, stderr = batch.communicate(timeout=60)
        return batch.returncode, told.read_text().splitlines(), stderr

    return submit


def test_slurm_job_starts_its_nodes_and_is_requeued_when_interrupted(submit, tmp_path):
    patient = 'echo waits >> "$TOLD"; for _ in {1..600}; do /bin/sleep 0.05; done'
    status, told, _ = submit(driver=patient, answers_at=3, signal_at="waits")
    address = f"10.0.0.1:{20000 + 4711}"
    head = next(line for line in told if "--head" in line)
    assert head.startswith("n1: ray start --head --node-ip-address=10.0.0.1 --port=24711 ")
    assert sum("health-check" in line for line in told) == 3, "it waits for the head"
    workers = [line for line in told if f"ray start --address={address}" in line]
    assert sorted(line[:3] for line in workers) == ["n2:", "n3:"]
    [resources] = [line for line in workers if "validation" in line]
    assert resources.startswith("n3:") and '--num-cpus=0 --resources={"validation": 8}' in resources
    assert f"n1: python sweep.py {tmp_path}/results at {address}" in told
    assert "n1: interrupted" in told
    assert told[-1] == "scontrol requeue 4711" and status == 75


@pytest.mark.parametrize(("answers_at", "status"), [(1, 0), (1000, 1)])
def test_slurm_job_ends_with_its_driver_or_if_the_head_does_not_start(submit, answers_at, status):
    ended, told, stderr = submit(answers_at=answers_at)
    assert ended == status and not any("requeue" in line for line in told)
    assert any("python" in line for line in told) == (status == 0)
    assert ("10.0.0.1:24711" in stderr) == (status == 1)


# What tests leave behind: the test command fails if it is a process or a cluster's address ------


def test_left_over_cluster_address_is_listed(tmp_path):
    assert not left_behind(str(tmp_path), 0)
    address = tmp_path / "ray" / "ray_current_cluster"
    address.parent.mkdir()
    address.write_text("10.0.0.1:6379")
    (line,) = left_behind(str(tmp_path), 0)
    assert str(address) in line and "10.0.0.1:6379" in line


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_left_over_processes_of_this_run_are_listed_and_no_others():
    waits = [sys.executable, "-c", "input()"]
    children = [
        subprocess.Popen(waits, stdin=-1, env={**os.environ, "TUNEKIT_TESTS": run})
        for run in ("/tmp/one", "/tmp/other")
    ]
    try:
        (line,) = left_behind("/tmp/one", 0)
        assert f"process {children[0].pid}:" in line
    finally:
        for child in children:
            child.kill()
            child.communicate()
