"""The programs of the README and the docs, and the notebooks, run as printed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest
from click.testing import CliRunner

from tests.seeds import SCHEDULES
from tunekit.cli import commands

ROOT = Path(__file__).parents[2]
# The example of the README starts its processes as users' sweeps do; the others need not.
FORKED = f"""
import sys
sys.path.append({str(ROOT)!r})
from tests import forked_workers
forked_workers.use()
"""
#: Runs the program that is its first argument.
RUN = f"{FORKED}\nimport runpy\ndel sys.argv[0]\nrunpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.mark.ray
def test_the_example_of_the_readme_prints_what_the_readme_shows(tmp_path, monkeypatch):
    readme = (ROOT / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", readme, re.S).group(1)
    shown = re.search(r"```text\n(.*?)```", readme, re.S).group(1)
    program = tmp_path / "example.py"
    program.write_text(code)
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "HOME": str(tmp_path), "RAY_ADDRESS": "local"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert shown.strip() in done.stdout
    written = [line for line in code.splitlines() if line.strip() and not line.startswith("import")]
    assert len(written) <= 25


def code_of(page: str) -> str:
    """Return the blocks of Python of a page, as one program."""
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S))


def run_as_a_program(
    code: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str
) -> str:
    """Run a program as a user does, but for the start of Ray's workers; return what it prints."""
    monkeypatch.setenv("HOME", str(folder))
    program = folder / "program.py"
    program.write_text(code)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": "local"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(program), *options],
        capture_output=True,
        text=True,
        timeout=600,
        env=environ,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.ray
def test_the_quickstart_runs_and_its_commands_show_the_sweep(tmp_path, monkeypatch):
    code = code_of("docs/quickstart.md")
    if SCHEDULES == 1:
        code = code.replace("num_samples=12", "num_samples=8")
    printed = run_as_a_program(code, tmp_path, monkeypatch)
    accuracy = float(re.search(r"accuracy (\d\.\d+) with", printed).group(1))
    assert accuracy > 0.8
    page = (ROOT / "docs/quickstart.md").read_text()
    commands_shown = re.findall(r"^\$ tunekit (.*)$", page, re.M)
    assert commands_shown == ["status", "best", "report --open"]
    for command in ("status", "best", "report"):
        said = CliRunner().invoke(commands.tunekit, command.split())
        assert said.exit_code == 0, said.output


@pytest.mark.ray
def test_the_demonstration_names_its_best_checkpoint_and_commands_that_work(tmp_path, monkeypatch):
    code = (ROOT / "notebooks/digits.py").read_text()
    printed = run_as_a_program(code, tmp_path, monkeypatch, "--trials", "2")
    validated, tested = map(float, re.findall(r"(\d+\.\d+)% on the", printed))
    assert 10 < validated <= 100 and 10 < tested <= 100
    shown = re.findall(r"^  tunekit (.*)$", printed, re.M)
    assert [command.split()[0] for command in shown] == ["status", "best", "report"]
    for command in shown[:2]:
        said = CliRunner().invoke(commands.tunekit, command.split())
        assert said.exit_code == 0, said.output


@pytest.mark.ray
@pytest.mark.at_night
def test_the_program_with_a_trainer_stops_trials_and_keeps_checkpoints(tmp_path, monkeypatch):
    code = code_of("docs/torchtrainer.md")
    code += "\nprint('iterations', [r.metrics['training_iteration'] for r in tuner.get_results()])"
    printed = run_as_a_program(code, tmp_path, monkeypatch)
    assert "Checkpoint(" in printed
    iterations = json.loads(re.search(r"iterations (\[.*?\])", printed).group(1))
    assert max(iterations) == 9 > min(iterations)


@pytest.mark.ray
@pytest.mark.at_night
@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_notebooks_run(path, tmp_path, monkeypatch):
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
