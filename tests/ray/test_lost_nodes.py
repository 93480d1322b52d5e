"""A cluster of several nodes, nodes that are lost, drivers that are killed.

It has a temporary folder of Ray of its own: programs that start later in the machine's usual one
would connect to a cluster whose address was left behind there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading

import pytest


@pytest.fixture(scope="module")
def run():
    with tempfile.TemporaryDirectory(prefix="tk-", ignore_cleanup_errors=True) as own:
        cluster = subprocess.Popen(
            [sys.executable, "-m", "tests.support.several_nodes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "RAY_TMPDIR": own},
        )

        def asked(case, folder, *given):
            print(json.dumps([case, str(folder), *given]), file=cluster.stdin, flush=True)
            limit = threading.Timer(240, cluster.kill)
            limit.start()
            while not (line := cluster.stdout.readline()).startswith("{"):
                assert line, "it has ended"
            limit.cancel()
            return json.loads(line)

        yield asked
        cluster.communicate(timeout=60)


def test_validation_survives_the_loss_of_its_node(run, tmp_path):
    told = run("node", tmp_path)
    assert not told["errors"]
    assert told["iterations"] == list(range(1, 9))
    assert told["validated"] == 8
    assert told["nodes"] == 2, "the first node's place was taken by another"


def test_validations_are_refused_where_no_node_can_read_the_results(run, tmp_path):
    told = run("blind", tmp_path)
    assert str(tmp_path) in told["refused"] and not told["trained"]
    assert not told["also"], "other nodes can"


def test_a_cluster_gets_everything_back_from_a_driver_that_is_killed(run, tmp_path):
    told = run("driver", tmp_path)
    assert told["busy"] >= 2
    assert told["still_busy"] == 0 and told["groups"] == 0


@pytest.mark.parametrize(
    "kind",
    ["function", pytest.param("trainer", marks=pytest.mark.at_night)],
)
def test_trials_move_from_a_node_that_is_about_to_end(run, tmp_path, kind):
    told = run("spot", tmp_path, kind, True)
    assert told["failures"] == 0 and told["moves"] > 0
    # The workers of a trainer are in the next iteration already.
    assert told["redone"] <= (2 if kind == "trainer" else 0)
    _nothing_is_lost(told)


@pytest.mark.at_night
def test_trials_on_a_lost_node_continue_from_their_checkpoints(run, tmp_path):
    told = run("spot", tmp_path, "function", False)
    assert told["failures"] > 0 and told["redone"] > 0 and told["moves"] > 0
    _nothing_is_lost(told)


def _nothing_is_lost(told):
    assert not told["errors"]
    assert told["iterations"] == [list(range(1, 21))] * 2
    assert told["summary"]["validated"] == told["saved"] and told["summary"].get("failed", 0) == 0
