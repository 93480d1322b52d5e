"""Ctrl-C and SIGTERM end a sweep so that it goes on with the command that is printed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.integration.runs import joining
from tests.invariants import check_journal
from tests.journals import read
from tunekit.core.events import event_of

pytestmark = pytest.mark.ray


def test_an_interrupted_sweep_goes_on_with_the_command_that_it_prints(ray_cluster, tmp_path):
    program = [sys.executable, "-m", "tests.integration.interrupted", str(tmp_path)]
    environ = joining(ray_cluster)
    ran = subprocess.run(program, capture_output=True, text=True, env=environ, timeout=300)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    known = json.loads((tmp_path / "known.json").read_text())
    assert known.pop("handler"), "SIGTERM is handled as it was before"
    assert "Resume experiment with" not in said, "Ray's own advice"
    for name, found in known.items():
        assert found["state"] == "interrupted" and found["unchanged"], name
        line = f"    tunekit resume {tmp_path}/{name}\n"
        assert line in said and line in found["refused"], name
        events = read(tmp_path / name)
        assert [e["finished"] for e in events if e["event"] == "closed"] == [False, True]
        # each of five checkpoints of two trials, those that were pending included, once
        assert len(check_journal(map(event_of, events)).scores) == 10, name
