"""The script that checks a GPU, without one."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = str(Path(__file__).parents[2] / "scripts/gpu_check.py")


def test_a_check_without_a_gpu(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("GPU_CHECK_WITHOUT_CUDA", "1")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr("sys.path", list(sys.path))
    checks = {check.name: check for check in runpy.run_path(SCRIPT)["checks"]()}
    assert checks["place-trial"].run().startswith("3 scores, ")


@pytest.mark.at_night
def test_the_table_of_checks(tmp_path):
    command = [sys.executable, SCRIPT, "--cpu", "--only", "place-trial"]
    command += ["--out", str(tmp_path / "rows")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    row = json.loads((tmp_path / "rows").read_text())
    assert (row["check"], row["state"]) == ("place-trial", "PASS")
