"""A sweep survives the loss of its driver, of nodes, and of its storage for a while."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter

import pytest
from click.testing import CliRunner
from ray import train, tune

import tunekit
from tests.support.driver import LENGTH
from tests.support.invariants import check_journal
from tests.support.journals import read
from tests.support.real_sweeps import After, counting, fit, joining, validate
from tunekit.cli.commands import tunekit as command
from tunekit.core.events import parse_event
from tunekit.journal.journal import events_in


def said(*arguments: str) -> str:
    result = CliRunner().invoke(command, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.sampled(2)
@pytest.mark.parametrize("store", ["folder", "s3"])
def test_scores_and_a_stop_by_hand_survive_a_sigkill_of_the_driver(
    ray_cluster, s3, tmp_path, store
):
    path = str(tmp_path) if store == "folder" else s3.make_bucket("killed")
    filesystem = None if store == "folder" else s3.filesystem()
    storage, home = (
        where if store == "folder" else s3.uri(where) for where in (path, f"{path}/sweep")
    )

    def count(kind: str) -> Counter[str]:
        is_there = tunekit.Tuner.can_restore(f"{path}/sweep", filesystem)
        return Counter(e["trial_id"] for e in (read(home, kind) if is_there else ()))

    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.support.driver", storage, str(tmp_path / "gate")],
        env=joining(ray_cluster),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        ends = time.monotonic() + 120
        while len(scores := count("processed")) < 3 or min(scores.values()) < 2:
            assert driver.poll() is None and time.monotonic() < ends, "it never came to that"
            time.sleep(0.1)
        first, second, third = sorted(scores)
        assert second in said("stop", home, "--trial", second)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    (tmp_path / "gate").touch()
    before, stopped_at = read(home), count("reported")[second]
    assert tunekit.load(home).summary()["state"] == "killed"
    results = tunekit.Tuner.restore(f"{path}/sweep", counting, storage_filesystem=filesystem).fit()
    assert len(results) == 3 and not results.errors
    events = read(home)
    assert events[: len(before)] == before
    lives = check_journal(map(parse_event, events))
    assert [event["trial_id"] for event in events if event["event"] == "stop_requested"] == [second]
    in_results = {
        f"{result.metrics['trial_id']}:0:{row.training_iteration}": row.accuracy
        for result in results
        for row in result.metrics_dataframe.dropna(subset="accuracy").itertuples()
    }
    judged = {place for place, _ in lives.decisions}
    assert in_results == {place: lives.scores[place]["accuracy"] for place in judged}
    known = json.loads(said("status", home, "--json"))
    assert known["state"] == "finished" and known["sessions"] == 2
    assert known["trials"] == {"terminated": 3}
    reached = {row["trial_id"]: row["iteration"] for row in known["ranking"]}
    # What had no score yet when the trial was stopped is dropped.
    assert reached[first] == reached[third] == LENGTH and reached[second] <= stopped_at < LENGTH
    assert [row["trial_id"] for row in known["ranking"] if row["by_hand"]] == [second]
    best = tunekit.load(home).best()
    assert validate(best.checkpoint)["accuracy"] == best.score == 3.6


def test_outage_of_the_object_store_loses_no_score(ray_cluster, s3):
    """Nothing is lost but time: trials fail to save and are restarted, records wait."""

    def two_seconds_without_a_server():
        s3.stop()
        threading.Timer(2.0, s3.start).start()

    storage, filesystem = s3.make_bucket("outage"), s3.filesystem()
    results = tunekit.Tuner(
        counting,
        param_space={"length": 8, "sleep_s": 0.1},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", num_samples=2),
        run_config=tune.RunConfig(
            name="sweep",
            storage_path=storage,
            storage_filesystem=filesystem,
            failure_config=tune.FailureConfig(max_failures=10),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
            verbose=0,
            callbacks=[After(6, two_seconds_without_a_server)],
        ),
        validation_config=tunekit.ValidationConfig(fn=validate, max_retries=8),
        checkpoint_policy=tunekit.EveryIterations(1),
    ).fit()
    assert not results.errors
    check_journal(events_in(f"{storage}/sweep", filesystem))
    for result in results:
        assert list(result.metrics_dataframe["training_iteration"]) == list(range(1, 9))
        assert result.metrics["accuracy"] == 0.8


# SIGTERM ----------------------------------------------------------------------------------------


def contents(folder):
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_interrupted_sweep_resumes_with_its_printed_command(ray_cluster, tmp_path, caplog):
    caplog.set_level(logging.INFO, "ray.tune")
    before, home = signal.getsignal(signal.SIGTERM), tmp_path / "sweep"
    fit(
        counting,
        tmp_path,
        param_space={"length": 5, "sleep_s": 0.4},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", num_samples=2),
        callbacks=[After(2, lambda: os.kill(os.getpid(), signal.SIGTERM))],
        validation_config=tunekit.ValidationConfig(
            fn=validate,
            task_config=train.ValidationTaskConfig(fn_kwargs={"sleep_s": 0.4}),
            max_in_flight=1,
        ),
        checkpoint_policy=tunekit.EveryIterations(1),
    )
    assert signal.getsignal(signal.SIGTERM) is before
    line = f"    tunekit resume {home}\n"
    assert line in caplog.text
    assert "Resume experiment with" not in caplog.text, "Ray's own advice"
    assert tunekit.load(home).summary()["state"] == "interrupted"

    found = contents(home)
    with pytest.raises(tunekit.errors.RestoreError, match=re.escape(line)):
        tune.Tuner.restore(str(home), tunekit.checkpointable(counting)).fit()
    assert contents(home) == found, "Ray has changed nothing"

    resumed = CliRunner().invoke(command, ["resume", str(home)])
    assert resumed.exit_code == 0, resumed.output
    events = read(home)
    assert [e["finished"] for e in events if e["event"] == "session_closed"] == [False, True]
    # each of five checkpoints of two trials, those that were pending included, once
    assert len(check_journal(map(parse_event, events)).scores) == 10


# Trials that failed -----------------------------------------------------------------------------


REPAIRED = """
from tests.support.real_sweeps import counting

def train(config):
    counting(config)
"""


def test_resume_errored_uses_the_given_trainable_and_records_it(ray_cluster, tmp_path, monkeypatch):
    def train(config):  # which no other process can import
        counting(config)

    fit(
        train,
        tmp_path,
        param_space={
            "scale": tune.grid_search([1.0, 2.0]),
            "length": 4,
            "fail_at": 3,
            "log": str(tmp_path / "log"),
        },
        tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
        validation_config=tunekit.ValidationConfig(fn=validate),
        checkpoint_policy=tunekit.EveryIterations(1),
    )
    path = str(tmp_path / "sweep")

    def run(code, *arguments):
        done = CliRunner().invoke(command, [*arguments, "--json"])
        assert done.exit_code == code, done.output
        return json.loads(done.stdout) if code == 0 else done.stderr

    known = run(0, "status", path)
    assert known["trials"] == {"error": 2}
    assert {row["reason"] for row in known["failures"]} == {"RuntimeError: fails once"}

    (tmp_path / "repaired.py").write_text(REPAIRED)
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    assert "--trainable" in run(2, "resume", "sweep", "--errored")
    known = run(0, "resume", "sweep", "--trainable", "repaired.py:train", "--errored")
    assert known["state"] == "finished" and known["trials"] == {"terminated": 2}
    assert known["best"]["score"] == 0.8 and known["best"]["config"]["scale"] == 2.0
    assert [row["iteration"] for row in known["ranking"]] == [4, 4]
    assert known["sessions"] == 2
    # what was done before is not done again
    assert set(tunekit.load(path).reports["tunekit/runs"]) == {1}

    monkeypatch.chdir("/")
    run(0, "resume", path)
    written = [session["trainable"] for session in tunekit.load(path).sessions]
    assert written == [None, *[f"{tmp_path}/repaired.py:train"] * 2]


# A cluster of several nodes; scripts/clusters.py takes nodes away without notice ------------------


@pytest.fixture(scope="module")
def on_nodes():
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


@pytest.mark.at_night
def test_sweep_is_refused_where_no_validation_node_can_read_the_results(on_nodes, tmp_path):
    told = on_nodes("blind", tmp_path)
    assert str(tmp_path) in told["refused"] and not (tmp_path / "ran").exists()
    assert not told["also"], "other nodes can"


@pytest.mark.at_night
def test_validations_run_on_the_nodes_that_a_label_selects(on_nodes, tmp_path):
    told = on_nodes("labels", tmp_path)
    assert told == {"task": [True, True], "workers": [True, True]}


@pytest.mark.at_night
def test_killed_driver_leaves_no_process_or_placement_group_in_the_cluster(on_nodes, tmp_path):
    told = on_nodes("driver", tmp_path)
    assert told["busy"] >= 2
    assert told["still_busy"] == 0 and told["groups"] == 0


@pytest.mark.at_night
@pytest.mark.parametrize("kind", ["function", "trainer"])
def test_trials_move_off_a_node_that_is_about_to_end(on_nodes, tmp_path, kind):
    told = on_nodes("spot", tmp_path, kind)
    assert told["failures"] == 0 and told["moves"] > 0
    # The workers of a trainer are in the next iteration already.
    assert told["redone"] <= (2 if kind == "trainer" else 0)
    assert not told["errors"]
    assert told["iterations"] == [list(range(1, 21))] * 2
    assert told["summary"]["validated"] == told["saved"] and told["summary"].get("failed", 0) == 0
