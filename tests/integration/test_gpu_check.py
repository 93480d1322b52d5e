"""The script that checks a GPU, without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.ray
def test_a_check_without_a_gpu(tmp_path):
    command = [sys.executable, str(ROOT / "scripts/gpu_check.py"), "--cpu"]
    command += ["--only", "place-trial", "--out", str(tmp_path / "rows")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    row = json.loads((tmp_path / "rows").read_text())
    assert (row["check"], row["state"]) == ("place-trial", "PASS")
