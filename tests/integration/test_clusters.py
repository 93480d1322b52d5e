"""Clusters of several nodes, nodes that are lost, drivers that are killed.

Each has a temporary folder of Ray of its own: programs that start later in the machine's usual one
would connect to a cluster whose address was left behind there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

import pytest

pytestmark = pytest.mark.ray


def run(what, folder, *given):
    command = [sys.executable, "-m", "tests.integration.clusters", what, str(folder)]
    with tempfile.TemporaryDirectory(prefix="tk-", ignore_cleanup_errors=True) as own:
        done = subprocess.run(
            [*command, *map(json.dumps, given)],
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, "RAY_TMPDIR": own},
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_validation_survives_the_loss_of_its_node(tmp_path):
    told = run("nodes", tmp_path)
    assert not told["errors"]
    assert told["iterations"] == [list(range(1, 13))] * 3
    assert told["validated"] == [12, 12, 12]
    assert len(told["nodes"]) == 2, "the first node's place was taken by another"


def test_a_cluster_gets_everything_back_from_a_driver_that_is_killed(tmp_path):
    told = run("driver", tmp_path)
    assert told["busy"] >= 4
    assert told["free"] == 6 and told["groups"] == 0


@pytest.mark.parametrize(
    "kind",
    ["function", pytest.param("trainer", marks=pytest.mark.at_night)],
)
def test_trials_move_from_a_node_that_is_about_to_end(tmp_path, kind):
    told = run("spot", tmp_path, kind, True)
    assert told["failures"] == 0 and told["moves"] > 0
    # The workers of a trainer are in the next iteration already.
    assert told["redone"] <= (2 if kind == "trainer" else 0)
    _nothing_is_lost(told)


@pytest.mark.at_night
def test_trials_on_a_node_that_ends_without_notice_go_on_from_their_checkpoints(tmp_path):
    told = run("spot", tmp_path, "function", False)
    assert told["failures"] > 0 and told["redone"] > 0 and told["moves"] > 0
    _nothing_is_lost(told)


def _nothing_is_lost(told):
    assert not told["errors"]
    assert told["iterations"] == [list(range(1, 21))] * 2
    assert told["summary"]["validated"] == told["saved"] and told["summary"]["failed"] == 0
