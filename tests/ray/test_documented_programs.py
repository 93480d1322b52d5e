"""The programs of the README and the docs, and the notebooks, run as printed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable

import nbclient
import nbformat
import pytest
from click.testing import CliRunner

from tests.support.real_sweeps import ROOT, joining
from tests.support.seeds import SCHEDULES
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
def test_the_example_of_the_readme_prints_what_the_readme_shows(run):
    code, shown = blocks("README.md", "python")[0], blocks("README.md", "text")[0]
    assert shown.strip() in run(code)
    written = [line for line in code.splitlines() if line.strip() and not line.startswith("import")]
    assert len(written) <= 25


def test_the_quickstart_runs_and_its_commands_show_the_sweep(run):
    code = "\n\n".join(blocks("docs/quickstart.md", "python"))
    if SCHEDULES == 1:
        code = code.replace("num_samples=12", "num_samples=8").replace("27", "9")
    said = run(code)
    accuracy = float(re.search(r"accuracy (\d\.\d+) with", said).group(1))
    assert accuracy > (0.5 if SCHEDULES == 1 else 0.8)
    page = (ROOT / "docs/quickstart.md").read_text()
    commands_shown = re.findall(r"^\$ tunekit (.*)$", page, re.M)
    assert commands_shown == ["status", "best", "report --open"]
    for command in ("status", "best", "report"):
        done = CliRunner().invoke(commands.tunekit, command.split())
        assert done.exit_code == 0, done.output


def test_the_demonstration_names_its_best_checkpoint_and_commands_that_work(run):
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
def test_the_program_with_a_trainer_stops_trials_and_keeps_checkpoints(run):
    code = "\n\n".join(blocks("docs/torchtrainer.md", "python"))
    code += "\nprint('iterations', [r.metrics['training_iteration'] for r in tuner.get_results()])"
    said = run(code)
    assert "Checkpoint(" in said
    iterations = json.loads(re.search(r"iterations (\[.*?\])", said).group(1))
    assert max(iterations) == 9 > min(iterations)


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
