"""The programs of the README and the docs, and the notebooks, run as printed."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import nbclient
import nbformat
import pyarrow.fs
import pytest
from click.testing import CliRunner

import tunekit
from tests.support.real_sweeps import ROOT, joining
from tunekit.cli import commands

# Programs that start a Ray of their own need not start its processes as users' sweeps do.
FORKED = f"""
import sys
sys.path.append({str(ROOT)!r})
from tests.support import forked_workers
forked_workers.use()
"""
#: Runs the program that is its first argument.
RUN = f"{FORKED}\nimport runpy\ndel sys.argv[0]\nrunpy.run_path(sys.argv[0], run_name='__main__')"


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


@pytest.fixture
def run(ray_cluster, tmp_path, monkeypatch) -> Callable[..., str]:
    """Run a program as a user does, on the cluster of the tests; return what it prints."""
    environ = joining(ray_cluster, HOME=str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    program = tmp_path / "program.py"

    def printed(code: str, *options: str) -> str:
        program.write_text(code)
        done = subprocess.run(
            [sys.executable, "-c", RUN, str(program), *options],
            capture_output=True,
            text=True,
            timeout=600,
            env=environ,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return printed


@pytest.mark.at_night  # at each push, scripts/test-wheel runs it as a user does
def test_readme_example_prints_the_output_shown_in_the_readme(run):
    code, shown = blocks("README.md", "python")[0], blocks("README.md", "text")[0]
    assert shown.strip() in run(code)
    written = [line for line in code.splitlines() if line.strip() and not line.startswith("import")]
    assert len(written) <= 25


@pytest.mark.at_night
def test_quickstart_program_runs_and_its_commands_show_the_sweep(run):
    said = run("\n\n".join(blocks("docs/quickstart.md", "python")))
    assert float(re.search(r"accuracy (\d\.\d+) with", said).group(1)) > 0.8
    page = (ROOT / "docs/quickstart.md").read_text()
    commands_shown = re.findall(r"^\$ tunekit (.*)$", page, re.M)
    assert commands_shown == ["status", "best", "report --open"]
    for command in ("report", "best", "status"):
        done = CliRunner().invoke(commands.tunekit, command.split())
        assert done.exit_code == 0, done.output
    heading = re.search(r"^rank .*$", page, re.M).group()
    assert heading.split() in map(str.split, done.output.splitlines())


@pytest.mark.at_night
def test_demo_prints_its_accuracies_and_commands_that_work(run):
    code = (ROOT / "notebooks/digits.py").read_text()
    said = run(code, "--trials", "2")
    validated, tested = map(float, re.findall(r"(\d+\.\d+)% on the", said))
    assert 10 < validated <= 100 and 10 < tested <= 100
    shown = re.findall(r"^  tunekit (.*)$", said, re.M)
    assert [command.split()[0] for command in shown] == ["status", "best", "report"]
    for command in shown[:2]:
        done = CliRunner().invoke(commands.tunekit, command.split())
        assert done.exit_code == 0, done.output


@pytest.mark.at_night
def test_torchtrainer_program_stops_trials_early_and_keeps_a_checkpoint(run):
    code = "\n\n".join(blocks("docs/torchtrainer.md", "python"))
    code += "\nprint('iterations', [r.metrics['training_iteration'] for r in tuner.get_results()])"
    said = run(code)
    assert "Checkpoint(" in said
    iterations = json.loads(re.search(r"iterations (\[.*?\])", said).group(1))
    assert max(iterations) == 9 > min(iterations)


@pytest.mark.at_night
@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_notebook_runs_and_is_stored_with_its_output(path, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "local")
    notebook = nbformat.read(path, as_version=4)
    shutil.copy(ROOT / "notebooks" / "digits.py", tmp_path)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(FORKED))
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=str(tmp_path))
    printed = nbformat.read(path, as_version=4)
    assert all(
        cell.get("outputs") is not None for cell in printed.cells if cell.cell_type == "code"
    )
    assert any(cell.get("outputs") for cell in printed.cells), "notebooks are kept with output"


# docs/frameworks --------------------------------------------------------------------------------


EXAMPLE = ROOT / "docs/frameworks/xgboost/with_tunekit.py"  # scripts/examples runs all of them


def test_framework_example_ranks_its_trials_by_validation_score(
    ray_cluster, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("HOME", str(tmp_path))
    ran = runpy.run_path(str(EXAMPLE), run_name="__main__")
    results, table = ran["tuner"].get_results(), ran["table"]
    assert not results.errors
    metric = results._experiment_analysis.default_metric
    assert table[metric].notna().all()
    assert table[metric].iloc[0] == results.get_best_result().metrics[metric]
    assert ran["tuner"].validation.summary()["validated"] >= len(table)
    assert metric.rpartition("/")[2] in capsys.readouterr().out


# docs/following ---------------------------------------------------------------------------------


FOLLOWING = ROOT / "docs/following"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
#: What it is about: how its training is started, what it needs, and its steps.
PROGRAMS = {
    "dcp": (TORCHRUN, ["torch"], [50, 100, 150, 200]),
    "ray_train": ([], ["torch"], [1, 2, 3, 4]),
    "transformers": ([], ["transformers", "accelerate"], [80, 160, 240, 320, 400, 480]),
}


@pytest.mark.at_night
@pytest.mark.parametrize("name", PROGRAMS)
def test_follow_validates_every_checkpoint_of_a_program_in_another_process(
    ray_cluster, name, tmp_path
):
    launcher, needs, steps = PROGRAMS[name]
    for package in needs:
        pytest.importorskip(package)
    outputs = tmp_path / "outputs"
    where = f"{FOLLOWING / name}/evals.py:evaluate"
    env = joining(ray_cluster, HOME=str(tmp_path))
    command = [sys.executable, "-m", "tunekit", "validate", str(outputs), "--fn", where, "--follow"]
    options = ["--json", "--until", "done", "--keep", "--metric", "accuracy", "--mode", "max"]
    with (tmp_path / "log").open("w") as log:
        following = subprocess.Popen(
            [*command, *options], env=env, stdout=subprocess.PIPE, stderr=log, text=True
        )
        train = [sys.executable, *launcher, str(FOLLOWING / name / "train.py"), str(outputs)]
        trained = subprocess.run(train, env=env, stdout=log, stderr=log, timeout=300)
        (outputs / "done").touch()
        lines, _ = following.communicate(timeout=300)
    assert trained.returncode == following.returncode == 0, (tmp_path / "log").read_text()[-5000:]
    told = [json.loads(line) for line in lines.splitlines()]
    assert sorted(one["step"] for one in told) == steps
    assert {one["status"] for one in told} == {"validated"}, told
    assert tunekit.load(outputs).best().score == max(one["metrics"]["accuracy"] for one in told)


def test_followed_checkpoints_on_s3_are_validated_once_from_protected_copies(
    ray_cluster, s3, tmp_path
):
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


def test_follow_passes_a_single_checkpoint_file_on_s3_as_a_folder(ray_cluster, s3, monkeypatch):
    monkeypatch.setattr("tunekit.following.folder.REST_S", 1.0)
    filesystem, bucket = s3.filesystem(), s3.make_bucket("files")
    for name in ("step=7.ckpt", "done"):
        with filesystem.open_output_stream(f"{bucket}/{name}") as stream:
            stream.write(b"7")

    def evaluate(checkpoint):
        with checkpoint.as_directory() as folder:
            return {"accuracy": int(Path(folder, "step=7.ckpt").read_text())}

    tunekit.follow(bucket, evaluate, until="done", storage_filesystem=filesystem)
    assert list(tunekit.load(bucket, filesystem).validations["metrics/accuracy"]) == [7]


# scripts/gpu_check.py, without a GPU ------------------------------------------------------------


SCRIPT = str(ROOT / "scripts/gpu_check.py")


def test_gpu_check_of_the_trial_place_passes_without_a_gpu(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("GPU_CHECK_WITHOUT_CUDA", "1")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr("sys.path", list(sys.path))
    checks = {check.name: check for check in runpy.run_path(SCRIPT)["checks"]()}
    assert checks["place-trial"].run().startswith("3 scores, ")
