"""The README's example, the quickstart's commands and the notebooks run as printed."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from click.testing import CliRunner

from tests.seeds import SCHEDULES
from tunekit.cli import commands

ROOT = Path(__file__).parents[2]
# The example of the README starts its processes as users' sweeps do; notebooks need not, too.
FORKED = f"""
import sys
sys.path.append({str(ROOT)!r})
from tests import forked_workers
forked_workers.use()
"""


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
        env={**os.environ, "HOME": str(tmp_path)},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert shown.strip() in done.stdout
    written = [line for line in code.splitlines() if line.strip() and not line.startswith("import")]
    assert len(written) <= 25
    # The quickstart looks at the sweep that is left.
    monkeypatch.setenv("HOME", str(tmp_path))
    steps = re.findall(
        r"```console\n\$ tunekit ([^\n]*)\n```\n\n```text\n(.*?)```",
        (ROOT / "docs/quickstart.md").read_text(),
        re.S,
    )
    assert [command for command, _ in steps] == ["status", "best"]
    for command, shown in steps:
        said = CliRunner().invoke(commands.tunekit, command.split())
        assert said.exit_code == 0, said.output
        assert alike(shown, said.stdout.replace(str(tmp_path), "/home/you")), said.stdout


def alike(shown: str, said: str) -> bool:
    """Whether a command says what a document shows, but for the times of the run and its names."""

    def plain(text: str) -> str:
        text = re.sub(r"\d{4}-\d\d-\d\d[_ ]\d\d[-:]\d\d[-:]\d\d", "WHEN", text)
        text = re.sub(r"(?<![0-9a-f])[0-9a-f]{5}_(\d{5})", r"ID_\1", text)
        return re.sub(r"last heard of .* ago", "last heard of a while ago", text)

    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(plain(shown), plain(said), flags)


#: Fewer and shorter trials tell as well whether the cells still run; at night they are as printed.
SMALLER = (
    ("num_samples=8", "num_samples=3"),
    ("num_samples=9", "num_samples=4"),
    ("trainer(workers=2, epochs=9)", "trainer(workers=2, epochs=3)"),
    ("trainer(workers=2, epochs=10)", "trainer(workers=2, epochs=4)"),
    ("num_samples=6,\n        scheduler=ASHA", "num_samples=3,\n        scheduler=ASHA"),
    ('{"training_iteration": 24}', '{"training_iteration": 9}'),
)


def smaller(notebook: nbformat.NotebookNode) -> None:
    """Have the sweeps of a notebook train and validate less."""
    for cell in notebook.cells:
        for printed, less in SMALLER:
            cell.source = cell.source.replace(printed, less)


#: What other tests run, too, is left to the night: sweeps of a population, of trainers, how what
#: they left is read, how an interrupted sweep goes on, and the demonstration in stages.
AT_NIGHT = ("02_pbt", "03_distributed", "04_reading", "05_recovering", "06_validating_less")


def notebooks() -> list[Any]:
    return [
        pytest.param(path, id=path.stem, marks=[pytest.mark.at_night] * (path.stem in AT_NIGHT))
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
    ]


@pytest.mark.ray
@pytest.mark.parametrize("path", notebooks())
def test_notebooks_run(path, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    if SCHEDULES == 1:
        smaller(notebook)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(FORKED))
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=str(tmp_path))
    printed = nbformat.read(path, as_version=4)
    assert all(
        cell.get("outputs") is not None for cell in printed.cells if cell.cell_type == "code"
    )
    assert any(cell.get("outputs") for cell in printed.cells), "notebooks are kept with output"


def test_the_sweeps_of_the_notebooks_are_those_that_are_made_smaller():
    """A notebook that is edited would be run in full without being noticed."""
    sources = [
        cell.source
        for path in (ROOT / "notebooks").glob("*.ipynb")
        for cell in nbformat.read(path, as_version=4).cells
    ]
    for printed, _ in SMALLER:
        assert any(printed in source for source in sources), printed
