"""Whole sweeps rank by validation scores, alike in results, files and terminal output."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
import ray
from ray import train, tune
from ray.tune.schedulers import ASHAScheduler
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tunekit
from tests.support.real_sweeps import counting, events, fit, validate

pytestmark = pytest.mark.usefixtures("leaves_nothing")

EACH = tunekit.EveryIterations(1)
SCALES = tune.grid_search([0.5, 1.0, 2.0])
BY_ACCURACY = {"metric": "accuracy", "mode": "max"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("on_pending", ["auto", "wait", "continue"])
def test_asha_ranks_by_validated_accuracy(tmp_path, on_pending, monkeypatch, capsys):
    new_output = on_pending != "auto"  # each of Tune's ways to show a sweep
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "1" if new_output else "0")
    results = fit(
        counting,
        tmp_path,
        verbose=1 if new_output else 3,
        param_space={"length": 9, "scale": SCALES, "metrics": {"accuracy": 77.0}},
        tune_config=tune.TuneConfig(
            **BY_ACCURACY, scheduler=ASHAScheduler(max_t=9, grace_period=3, reduction_factor=3)
        ),
        validation_config=tunekit.ValidationConfig(fn=validate, on_pending=on_pending),
        checkpoint_policy=tunekit.EveryIterations(3),
    )
    assert not results.errors
    best = results.get_best_result()
    assert best.config["scale"] == 2.0
    assert best.metrics["accuracy"] == 1.8
    assert best.metrics["tunekit/validated_at"] == 9
    assert best.metrics["tunekit/reported/accuracy"] == 77.0
    for result in results:
        scale, frame = result.config["scale"], result.metrics_dataframe
        validated = frame.set_index("training_iteration")["accuracy"].dropna().to_dict()
        assert validated == {i: round(scale * i / 10, 6) for i in validated}
        saved = {m["training_iteration"]: m.get("accuracy") for _, m in result.best_checkpoints}
        # What a trial has trained past the decision that stopped it is dropped.
        assert set(saved) == set(range(3, len(frame) + 1, 3))
        assert {step: score for step, score in saved.items() if pd.notna(score)} == validated
        assert result.metrics["accuracy"] == validated[max(validated)]
        rows = pd.read_csv(Path(result.path, "progress.csv")).set_index("training_iteration")
        assert rows["accuracy"].dropna().to_dict() == validated
        assert scalars(result.path, "ray/tune/accuracy") == validated
        assert len(scalars(result.path, "ray/tune/loss")) == len(frame)
    scores = [e for e in events(results, "validation_ended") if e["status"] == "validated"]
    end = capsys.readouterr().out.rsplit("Trial status:" if new_output else "== Status ==", 1)[1]
    assert re.search(rf"\nValidations: {len(scores)} validated[,\n]", end)
    header = next(line for line in end.splitlines() if "Trial name" in line)
    assert re.search(r"\baccuracy[\s|]+tunekit/validated_at\b", header)
    assert "generation" not in header


def scalars(path: str, name: str) -> dict[int, float]:
    found = {}
    for file in Path(path).glob("events.out.tfevents.*"):
        events = EventAccumulator(str(file))
        events.Reload()
        if name in events.Tags()["scalars"]:
            found.update({e.step: round(e.value, 5) for e in events.Scalars(name)})
    return dict(sorted(found.items()))


def test_callback_and_scheduler_work_in_a_plain_ray_tuner(tmp_path):
    validation = tunekit.ValidationCallback(
        tunekit.ValidationConfig(
            fn=validate, task_config=train.ValidationTaskConfig(fn_kwargs={"sleep_s": 0.2})
        )
    )
    results = tune.Tuner(
        tunekit.checkpointable(counting),
        param_space={"length": 6, "scale": SCALES},
        tune_config=tune.TuneConfig(
            **BY_ACCURACY,
            max_concurrent_trials=3,
            scheduler=tunekit.ValidatedScheduler(ASHAScheduler(max_t=6, grace_period=2)),
        ),
        run_config=tune.RunConfig(
            storage_path=str(tmp_path),
            callbacks=[tunekit.EveryIterations(2), validation],
            verbose=0,
        ),
    ).fit()
    assert results.get_best_result().metrics["accuracy"] == 1.2
    # What was saved says the same as what was returned.
    saved = tune.ExperimentAnalysis(
        results.experiment_path, default_metric="accuracy", default_mode="max"
    )
    assert saved.best_result["accuracy"] == 1.2
    assert saved.best_result["tunekit/validated_at"] == 6


#: What a validation does wrong, by step, its status, and what its reason names.
BAD = {
    2: ("raises", "failed", "ValueError: cannot"),
    3: ("returns no dict", "failed", "float"),
    4: ("returns a word", "failed", "'high' (a str) for 'accuracy'"),
    5: ("hangs", "timed_out", "1 s"),
    6: ("kills its process", "failed", "died"),
    7: ("raises what cannot be sent", "failed", "TwoArguments: no such class"),
}


class TwoArguments(Exception):
    """Cannot be unpickled: its ``args`` are not those that it is made from."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code, self.lock = code, threading.Lock()


def misbehave(checkpoint):
    with checkpoint.as_directory() as folder:
        steps = json.loads(Path(folder, "state.json").read_text())["steps"]
    how, *_ = BAD.get(steps, ("behaves",))
    if how == "raises":
        raise ValueError("cannot")
    if how == "returns no dict":
        return 0.5
    if how == "returns a word":
        return {"accuracy": "high"}
    if how == "hangs":
        time.sleep(600)
    if how == "kills its process":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raises what cannot be sent":
        raise TwoArguments(7, "no such class\nat all")
    # One value that cannot be sent costs no score.
    return {"accuracy": steps / 10, "lock": threading.Lock()}


def test_misbehaving_validation_fails_no_trial_and_is_recorded_with_its_reason(tmp_path):
    results = fit(
        counting,
        tmp_path,
        param_space={"length": 8, "limits": {5: 1}},
        tune_config=tune.TuneConfig(**BY_ACCURACY),
        validation_config=tunekit.ValidationConfig(
            fn=misbehave, where="elsewhere", max_retries=0, max_in_flight=4
        ),
        checkpoint_policy=EACH,
    )
    assert not results.errors
    frame = results[0].metrics_dataframe.set_index("training_iteration")
    assert frame["accuracy"].dropna().to_dict() == {1: 0.1, 8: 0.8}
    assert frame["lock"][8].startswith("<unlocked _thread.lock object")
    ended = {int(e["id"].split(":")[2]): e for e in events(results, "validation_ended")}
    for step, (_, status, reason) in BAD.items():
        assert ended[step]["status"] == status
        assert reason in ended[step]["reason"]
    for raised in (2, 7):
        assert "in misbehave" in ended[raised]["error"], "the traceback is kept"


def test_trials_and_evaluators_that_all_need_the_one_gpu_complete(tmp_path):
    results = fit(
        tune.with_resources(counting, {"gpu": 1}),
        tmp_path,
        param_space={"length": 2},
        tune_config=tune.TuneConfig(num_samples=2, **BY_ACCURACY),
        validation_config=tunekit.ValidationConfig(
            fn=validate, ray_remote_kwargs={"num_gpus": 1}, evaluators=1
        ),
        checkpoint_policy=tunekit.EveryIterations(2),
    )
    assert not results.errors
    assert [result.metrics["accuracy"] for result in results] == [0.2] * 2


class Resettable(tune.Trainable):
    """Takes a tenth of a second for an iteration; the larger ``talent``, the better."""

    def setup(self, config):
        self.n, self.talent = 0, config["talent"]

    def step(self):
        time.sleep(0.1)
        self.n += 1
        return {"pid": os.getpid(), "n": self.n}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "state").write_text(f"{self.n} {self.talent}")

    def load_checkpoint(self, checkpoint_dir):
        self.n = int(Path(checkpoint_dir, "state").read_text().split()[0])

    def reset_config(self, new_config):
        self.setup(new_config)
        return True


def validate_in_place(checkpoint):
    with checkpoint.as_directory() as folder:
        n, talent = map(float, Path(folder, "state").read_text().split())
    return {"accuracy": talent * n, "where": os.getpid()}


@pytest.mark.parametrize("reuses", [False, True])
def test_trials_that_take_all_cpus_are_validated_in_their_own_processes(tmp_path, reuses):
    """By default, with when="decisions": two trials take all CPUs, and none is left over."""
    half = ray.cluster_resources()["CPU"] / 2
    results = fit(
        tune.with_resources(Resettable, {"cpu": half}),
        tmp_path,
        param_space={"talent": tune.grid_search([4, 3, 2, 1])},
        tune_config=tune.TuneConfig(
            **BY_ACCURACY,
            scheduler=ASHAScheduler(
                max_t=4, grace_period=2, reduction_factor=2, time_attr="training_iteration"
            ),
            reuse_actors=reuses,
        ),
        validation_config=tunekit.ValidationConfig(fn=validate_in_place, when="decisions"),
        checkpoint_policy=tunekit.policies.AtDecisions(),
    )
    assert not results.errors
    sweep = tunekit.load(results.experiment_path)
    assert sweep.best().config["talent"] == 4
    # At the rung, most ran in a trial's process, and their trials stood still meanwhile.
    at_rung = sweep.validations.query("iteration == 2").set_index("trial_id")
    assert (at_rung.status == "validated").all() and len(at_rung) == 4
    in_place = at_rung["metrics/where"].isin(sweep.reports.pid)
    assert in_place.sum() >= 2
    # The last trials may train on: no other trial is left that could use their places.
    decided = sweep.decisions.query("iteration == 2").set_index("trial_id")
    first = sorted(decided.index)[:2]
    assert (decided.reached[first][in_place[first]] == 2).all()
    reports = sweep.reports
    processes = reports.groupby("trial_id").pid.nunique()
    assert (processes == 1).all(), "no trial was paused"
    assert (reports.pid.nunique() < 4) is reuses, "only then, a trial has another one's process"
