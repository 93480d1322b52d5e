"""The programs of docs/following: a trainer and a follower, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pyarrow.fs
import pytest

import tunekit
from tests.support.real_sweeps import joining

FOLDER = Path(__file__).parents[2] / "docs/following"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
#: What it is about: how its training is started, what it needs, and its steps.
PROGRAMS = {
    "dcp": (TORCHRUN, ["torch"], [50, 100, 150, 200]),
    "ray_train": ([], ["torch"], [1, 2, 3, 4]),
    "transformers": ([], ["transformers", "accelerate"], [80, 160, 240, 320, 400, 480]),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_followed_from_another_process(ray_cluster, name, tmp_path):
    launcher, needs, steps = PROGRAMS[name]
    lacking = [package for package in needs if find_spec(package) is None]
    if lacking:
        pytest.skip(f"{', '.join(lacking)} is not installed")
    outputs = tmp_path / "outputs"
    where = f"{FOLDER / name}/evals.py:evaluate"
    env = joining(ray_cluster, HOME=str(tmp_path))
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


def test_checkpoints_on_s3_are_followed_and_protected(ray_cluster, s3, tmp_path):
    filesystem = s3.filesystem()
    bucket = s3.make_bucket("runs")
    for step in (1, 2, 3):
        state = json.dumps({"global_step": step, "max_steps": 3}).encode()
        for name, data in (("weights", b"%d" % step), ("trainer_state.json", state)):
            path = f"{bucket}/outputs/checkpoint-{step}/{name}"
            with filesystem.open_output_stream(path) as stream:
                stream.write(data)

    def evaluate(checkpoint):
        with checkpoint.as_directory() as folder:
            return {"accuracy": int(Path(folder, "weights").read_text()), "at": checkpoint.path}

    config = tunekit.ValidationConfig(evaluate, evaluators=1)
    follow = partial(
        tunekit.follow, f"{bucket}/outputs", config, storage_filesystem=filesystem, keep=True
    )
    for _ in range(2):
        follow()
    sweep = tunekit.load(f"{bucket}/outputs", filesystem)
    assert list(sweep.validations["status"]) == ["validated"] * 3 and len(sweep.sessions) == 2
    assert all("/kept/" in at for at in sweep.validations["metrics/at"])
    below = filesystem.get_file_info(pyarrow.fs.FileSelector(f"{bucket}/outputs", recursive=True))
    left = sorted(one.path for one in below if one.base_name == "weights")
    assert left == [f"{bucket}/outputs/checkpoint-{step}/weights" for step in (1, 2, 3)]
    follow(journal=f"{bucket}/other")
    assert len(tunekit.load(f"{bucket}/other", filesystem).validations) == 3


def test_a_file_on_s3_is_read_as_a_folder_that_has_it(ray_cluster, s3):
    filesystem, bucket = s3.filesystem(), s3.make_bucket("files")
    for name in ("step=7.ckpt", "done"):
        with filesystem.open_output_stream(f"{bucket}/{name}") as stream:
            stream.write(b"7")

    def evaluate(checkpoint):
        with checkpoint.as_directory() as folder:
            return {"accuracy": int(Path(folder, "step=7.ckpt").read_text())}

    tunekit.follow(bucket, evaluate, until="done", storage_filesystem=filesystem)
    assert list(tunekit.load(bucket, filesystem).validations["metrics/accuracy"]) == [7]
