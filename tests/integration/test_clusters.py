"""Clusters of several nodes, nodes that are lost, drivers that are killed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.ray


def run(what, folder):
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.clusters", what, str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_validation_survives_the_loss_of_its_node(tmp_path):
    told = run("nodes", tmp_path)
    assert not told["errors"]
    assert told["iterations"] == [list(range(1, 13))] * 3
    assert told["validated"] == [12, 12, 12]
    assert len(told["nodes"]) == 2, "the first node's place was taken by another"


def test_one_gpu_is_enough_for_trials_and_validations_that_all_need_it(tmp_path):
    told = run("workstation", tmp_path)
    assert told == {"tasks": [0, [0.2]], "evaluator": [0, [0.2, 0.2]]}


def test_a_cluster_gets_everything_back_from_a_driver_that_is_killed(tmp_path):
    told = run("driver", tmp_path)
    assert told["busy"] >= 4
    assert told["free"] == 6 and told["groups"] == 0


def test_trials_move_from_a_node_that_is_about_to_end(tmp_path):
    told = run("spot", tmp_path)
    for kind, one in told.items():
        assert not one["errors"], kind
        assert one["iterations"] == [list(range(1, 31))] * 2, kind
        assert one["moves"] > 0, kind
        assert one["summary"]["validated"] == one["saved"], kind
        assert one["summary"]["failed"] == 0, kind
    noticed = [one for kind, one in told.items() if kind.endswith("notice")]
    assert [one["failures"] for one in noticed] == [0, 0]
    # The workers of a trainer are in the next iteration already.
    assert noticed[0]["redone"] == 0 and noticed[1]["redone"] <= 2
    # Without notice, the trials there fail, and go on from their checkpoints.
    assert told["function, none"]["failures"] > 0
    assert told["function, none"]["redone"] > 0
