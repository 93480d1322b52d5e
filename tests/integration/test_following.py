"""The programs of docs/following: a trainer and a follower, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import tunekit

pytestmark = pytest.mark.ray

FOLDER = Path(__file__).parents[2] / "docs/following"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
#: What it is about: how its training is started, what it needs, and its steps.
PROGRAMS = {
    "transformers": ([], ["transformers", "accelerate"], [80, 160, 240, 320, 400, 480]),
    "dcp": (TORCHRUN, ["torch"], [50, 100, 150, 200]),
    "ray_train": ([], ["torch"], [1, 2, 3, 4]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_followed_from_another_process(name, tmp_path):
    launcher, needs, steps = PROGRAMS[name]
    lacking = [package for package in needs if find_spec(package) is None]
    if lacking:
        pytest.skip(f"{', '.join(lacking)} is not installed")
    outputs = tmp_path / "outputs"
    where = f"{FOLDER / name}/evals.py:evaluate"
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    env |= {"HOME": str(tmp_path), "PYTHONPATH": str(FOLDER.parents[1])}
    command = [sys.executable, "-m", "tunekit", "validate", str(outputs), "--fn", where, "--follow"]
    options = ["--json", "--until", "done", "--keep", "--metric", "accuracy", "--mode", "max"]
    with (tmp_path / "log").open("w") as log:
        following = subprocess.Popen(
            [*command, *options], env=env, stdout=subprocess.PIPE, stderr=log, text=True
        )
        train = [sys.executable, *launcher, str(FOLDER / name / "train.py"), str(outputs)]
        trained = subprocess.run(train, env=env, stdout=log, stderr=log, timeout=300)
        (outputs / "done").touch()
        lines, _ = following.communicate(timeout=300)
    assert trained.returncode == following.returncode == 0, (tmp_path / "log").read_text()[-5000:]
    told = [json.loads(line) for line in lines.splitlines()]
    assert sorted(one["step"] for one in told) == steps
    assert {one["status"] for one in told} == {"validated"}, told
    assert tunekit.load(outputs).best().score == max(one["metrics"]["accuracy"] for one in told)
