"""Measure how a follower in another process scores a trainer's checkpoints, and its load.

    python -m scripts.bench.follow [--part kills table look s3] [--checkpoints 10000]

- kills: the follower is killed twenty times at random while a trainer saves; each checkpoint must
  get exactly one score. The delay from a complete checkpoint to its evaluation is also printed.
- table: trainers that are slow, are killed while saving, or delete old checkpoints while evaluation
  is behind.
- look, s3: the time, memory and requests of listing a folder with many checkpoints.
"""

from __future__ import annotations

import json
import math
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.fs
import ray

import tunekit
from scripts.bench.harness import arguments, start_ray
from tests.support.s3 import S3Server
from tunekit.core.events import ValidationEnded
from tunekit.following.folder import DOUBT_S, WatchedFolder
from tunekit.following.follow import _Watched
from tunekit.journal.journal import events_in

_EVALS = """
import time
import tunekit

class Evaluator:
    def __call__(self, checkpoint, seconds):
        began = time.time()
        time.sleep(seconds)
        with checkpoint.as_directory() as folder, open(f"{folder}/model.safetensors") as file:
            return {"accuracy": int(file.read()) % 7 / 10, "began": began}

def _config(seconds):
    from ray.train import ValidationTaskConfig
    task = ValidationTaskConfig(fn_kwargs={"seconds": seconds})
    return tunekit.ValidationConfig(Evaluator, task, {"num_cpus": 1}, evaluators=1)

quick, slow = _config(0.05), _config(3.0)
"""

# A trainer: steps, seconds between steps and between files, checkpoints to keep, when to die.
_TRAINER = """
import json, os, shutil, sys, time
root, steps, apart, slow, limit, dies = sys.argv[1], *map(float, sys.argv[2:])
for step in range(1, int(steps) + 1):
    time.sleep(apart)
    folder = f"{root}/checkpoint-{step}"
    os.makedirs(folder)
    for name, text in {
        "model.safetensors": str(step),
        "optimizer.pt": "o",
        "trainer_state.json": json.dumps({"global_step": step, "max_steps": int(steps)}),
    }.items():
        if step == dies and name == "optimizer.pt":
            os._exit(1)
        time.sleep(slow)
        with open(f"{folder}/{name}", "w") as file:
            file.write(text)
    if limit and step > limit:
        shutil.rmtree(f"{root}/checkpoint-{step - int(limit)}")
"""


def start(command: list[str], root: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), str(root.parent)])}
    env["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    with (root.parent / "log").open("a") as log:
        return subprocess.Popen([sys.executable, *command], env=env, stdout=log, stderr=log)


def follower(root: Path, fn: str, *options: str) -> subprocess.Popen[str]:
    where = f"{root.parent}/evals.py:{fn}"
    command = ["-m", "tunekit", "validate", str(root), "--fn", where, "--follow", "--json"]
    return start([*command, *options], root)


def trainer(
    root: Path, steps: int, apart: float, *, slow: float = 0, limit: int = 0, dies: int = 0
):
    given = [str(one) for one in (root, steps, apart, slow, limit, dies)]
    return start(["-c", _TRAINER, *given], root)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as own:
        Path(own, "evals.py").write_text(_EVALS)
        Path(own, "outputs").mkdir()
        try:
            yield Path(own, "outputs")
        except BaseException:
            print(Path(own, "log").read_text()[-3000:])
            raise


def ends(root: Path) -> Counter[tuple[int, str]]:
    found = (one for one in events_in(root) if type(one).__name__ == "ValidationEnded")
    return Counter((one.key.iteration, one.status) for one in found)


def kills(count: int = 20, steps: int = 60, apart: float = 2.0) -> None:
    draw = random.Random(1)
    with folder() as root:
        trained = trainer(root, steps, apart)
        killed = 0
        while True:
            following = follower(root, "quick")
            try:
                following.wait(draw.uniform(1.0, 9.0) if killed < count else 600)
                break
            except subprocess.TimeoutExpired:
                following.send_signal(signal.SIGKILL)
                following.wait()
                killed += 1
        trained.wait()
        found = ends(root)
        print(
            f"killed {killed} times: {len(found)} of {steps} scored, "
            f"{sum(found.values()) - len(found)} twice, {sorted(dict(found))[0][1]}"
        )
    with folder() as root:
        following = follower(root, "quick")
        trained = trainer(root, 40, 1.0)
        trained.wait(), following.wait()
        sweep = tunekit.load(root)
        at = sweep.reports.set_index("training_iteration")["timestamp"]
        rows = sweep.validations[sweep.validations["iteration"] > 10]  # Ray and its process run
        late = sorted(row["metrics/began"] - at[row["iteration"]] for _, row in rows.iterrows())
        p90 = late[math.ceil(0.9 * len(late)) - 1]
        print(
            f"from complete checkpoint to evaluation: median {late[len(late) // 2]:.2f} s, "
            f"p90 {p90:.2f} s, maximum {late[-1]:.2f} s, of {len(late)}"
        )


def table() -> None:
    print("trainer | follower | scored or skipped | never complete or never seen")
    for name, how, options in (
        ("slow: 0.5 s between files", {"slow": 0.5}, ()),
        ("killed half-way in step 12", {"dies": 12}, ("--until", "done")),
        ("save_total_limit=2", {"limit": 2}, ()),
        ("save_total_limit=2", {"limit": 2}, ("--keep",)),
    ):
        with folder() as root:
            following = follower(root, "slow", *options)
            trained = trainer(root, 12, 1.0, **how)
            trained.wait()
            if how.get("dies"):
                (root / "done").write_text("")
            following.wait()
            found = tunekit.load(root).validations
            reasons = Counter(
                "scored" if row["status"] == "validated" else "deleted"
                for _, row in found.iterrows()
            )
            print(
                name,
                "|",
                " ".join(options) or "-",
                "|",
                dict(reasons),
                "|",
                12 - len(set(found["iteration"])),
                flush=True,
            )


class Counting:
    """A proxy of an S3 server that counts requests."""

    def __init__(self, to: tuple[str, int]):
        self.requests, self._to = 0, to
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._server.accept()
            server = socket.create_connection(self._to)
            for one, other, counts in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pass, args=(one, other, counts), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, counts: bool) -> None:
        while data := one.recv(1 << 16):
            if counts and data[:4] in (b"GET ", b"HEAD", b"PUT ", b"POST"):
                self.requests += 1
            other.sendall(data)


def looks(filesystem: pyarrow.fs.FileSystem, path: str, count: int, proxy: Any = None) -> None:
    """Measure listing a folder of ``count`` checkpoints, new ones and known ones."""
    watched = WatchedFolder(filesystem, path)
    source = _Watched(watched)
    source.emit, source.has_room = source.recorded, lambda: True
    state = source._state
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    while len(state.pending) < count:
        source._pace._next = None
        source._list()
    known = time.perf_counter() - began
    for seen in list(state.pending.values()):
        source.recorded(ValidationEnded(id=seen.request.id, status="validated", metrics={"a": 1}))
    time.sleep(DOUBT_S)  # until the checkpoints' own times can be relied on
    asked, took = proxy and proxy.requests, []
    for _ in range(5):
        source._pace._next, began = None, time.perf_counter()
        source._list()
        took.append(1000 * (time.perf_counter() - began))
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"{filesystem.type_name} {count}: all known after {known:.1f} s; then a look takes "
        f"{sorted(took)[2]:.0f} ms, {memory:.0f} MB more"
        + (f", {(proxy.requests - asked) / 5:.0f} requests" if proxy else ""),
        flush=True,
    )


def make(filesystem: pyarrow.fs.FileSystem, path: str, numbers: range) -> None:
    def one(step: int) -> None:
        filesystem.create_dir(f"{path}/checkpoint-{step}") if not proxied else None
        with filesystem.open_output_stream(f"{path}/checkpoint-{step}/trainer_state.json") as file:
            file.write(json.dumps({"global_step": step, "max_steps": 0}).encode())

    proxied = filesystem.type_name == "s3"
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, numbers))


def main() -> None:
    asked = arguments(__doc__ or "", part=["kills", "table", "look", "s3"], checkpoints=10_000)
    if {"kills", "table"} & set(asked.part):
        start_ray(2)
        for part in (kills, table):
            if part.__name__ in asked.part:
                part()
        ray.shutdown()
    sizes = (asked.checkpoints // 100, asked.checkpoints)
    if "look" in asked.part:
        for size in sizes:
            home = tempfile.mkdtemp()
            make(pyarrow.fs.LocalFileSystem(), home, range(1, size + 1))
            looks(pyarrow.fs.LocalFileSystem(), home, size)
            shutil.rmtree(home)
    if "s3" in asked.part:
        with S3Server() as s3:
            s3.make_bucket("runs")
            proxy = Counting(("127.0.0.1", s3.port))
            filesystem = s3.filesystem(endpoint_override=f"127.0.0.1:{proxy.port}")
            for size in sizes:
                make(s3.filesystem(), f"runs/a{size}", range(1, size + 1))
                looks(filesystem, f"runs/a{size}", size, proxy)


if __name__ == "__main__":
    main()
