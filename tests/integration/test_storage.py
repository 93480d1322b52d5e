"""Sweeps on an object store: a real S3 server of the tests' own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ray import tune

import tunekit
from notebooks import digits
from tests.integration.runs import counting, validate
from tests.integration.s3 import S3Server
from tests.invariants import check_journal
from tests.journals import read
from tunekit.core.events import event_of
from tunekit.journal.journal import events_in

pytestmark = pytest.mark.ray

#: Set both to the demo's, 16 and 27, to run all of it.
TRIALS, EPOCHS = (
    int(os.environ.get(f"TUNEKIT_DIGITS_{name}", n)) for name, n in (("TRIALS", 4), ("EPOCHS", 9))
)


@pytest.fixture(scope="module")
def s3():
    with S3Server() as server:
        server.make_bucket("sweeps")
        yield server


def test_a_sweep_of_the_digits_is_killed_and_restored(ray_cluster, s3):
    filesystem, home = s3.filesystem(), "sweeps/killed/digits"
    driver = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.integration.driver",
            s3.uri("sweeps/killed"),
            str(TRIALS),
            str(EPOCHS),
        ],
        env={**os.environ, **s3.environment()},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        ends = time.monotonic() + 240
        while sum(event.get("judged", False) for event in read(home, filesystem)) < 4:
            assert driver.poll() is None and time.monotonic() < ends, "nothing was validated"
            time.sleep(0.1)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    before = read(home, filesystem)
    crashed = tunekit.load(home, filesystem)
    assert crashed.summary()["state"] == "killed" and len(crashed.decisions) >= 4
    assert tunekit.Tuner.can_restore(home, filesystem)
    restored = tunekit.Tuner.restore(home, digits.train_digits, storage_filesystem=filesystem)
    results = restored.fit()
    assert len(results) == TRIALS and not results.errors
    events = read(home, filesystem)
    assert events[: len(before)] == before
    lives = check_journal(map(event_of, events))
    in_results = {
        f"{result.metrics['trial_id']}:0:{int(iteration)}": accuracy
        for result in results
        for iteration, accuracy in zip(
            result.metrics_dataframe["training_iteration"],
            result.metrics_dataframe["accuracy"],
            strict=True,
        )
        if accuracy == accuracy
    }
    judged = {place for place, _ in lives.decisions}
    assert in_results == {place: lives.scores[place]["accuracy"] for place in judged}
    best = results.get_best_result()
    assert best.metrics["accuracy"] > 0.8
    assert digits.accuracy_of(best.checkpoint) > 0.7
    loaded = tunekit.load(home, filesystem)
    assert (loaded.summary()["state"], len(loaded.sessions)) == ("finished", 2)
    checkpoint = loaded.best().checkpoint
    assert digits.validate(checkpoint)["accuracy"] == loaded.best().score


class Outage(tune.Callback):
    """Two seconds without a server, beginning with the sixth report."""

    server: S3Server

    def __init__(self) -> None:
        self.reports = 0

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.reports += 1
        if self.reports == 6:
            self.server.stop()
            threading.Timer(2.0, self.server.start).start()


def test_a_store_that_is_away_for_a_while(ray_cluster, s3):
    """Nothing is lost but time: trials fail to save and are restarted, records wait."""
    Outage.server = s3

    results = tunekit.Tuner(
        counting,
        param_space={"length": 8, "sleep_s": 0.1},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", num_samples=2),
        run_config=tune.RunConfig(
            name="outage",
            storage_path="sweeps/outage",
            storage_filesystem=s3.filesystem(),
            failure_config=tune.FailureConfig(max_failures=10),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
            verbose=0,
            callbacks=[Outage()],
        ),
        validation_config=tunekit.ValidationConfig(fn=validate, max_retries=8),
        checkpoint_policy=tunekit.EveryIterations(1),
    ).fit()
    assert not results.errors
    check_journal(events_in("sweeps/outage/outage", s3.filesystem()))
    for result in results:
        assert list(result.metrics_dataframe["training_iteration"]) == list(range(1, 9))
        assert result.metrics["accuracy"] == 0.8
