"""The test command fails if it leaves processes or the address of a cluster behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def left_behind(folder: Path) -> list[str]:
    command = [sys.executable, str(ROOT / "scripts/left_behind.py"), str(folder), "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == bool(done.stderr)
    return done.stderr.splitlines()


def test_the_address_of_a_cluster_is_named(tmp_path):
    assert not left_behind(tmp_path)
    address = tmp_path / "ray" / "ray_current_cluster"
    address.parent.mkdir()
    address.write_text("10.0.0.1:6379")
    (line,) = left_behind(tmp_path)
    assert str(address) in line and "10.0.0.1:6379" in line


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_processes_of_this_run_are_named_and_no_others(tmp_path):
    runs = [tmp_path / "one", tmp_path / "other"]
    waits = [sys.executable, "-c", "input()"]
    children = [
        subprocess.Popen(waits, stdin=-1, env={**os.environ, "TUNEKIT_TESTS": str(run)})
        for run in runs
    ]
    try:
        (line,) = left_behind(runs[0])
        assert f"process {children[0].pid}:" in line
    finally:
        for child in children:
            child.kill()
            child.communicate()
    assert not left_behind(runs[0])
