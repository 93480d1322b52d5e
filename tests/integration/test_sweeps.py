"""Whole sweeps on a real Ray, and what is in their results and files."""

from __future__ import annotations

import json
import math
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
from ray.tune.logger import LoggerCallback
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search import ConcurrencyLimiter, Repeater
from ray.tune.search.optuna import OptunaSearch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tunekit
from tests.integration.runs import counting, fit, validate
from tunekit.journal.lines import read

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

EACH = tunekit.EveryIterations(1)
SCALES = tune.grid_search([0.5, 1.0, 1.5, 2.0])
BY_ACCURACY = {"metric": "accuracy", "mode": "max"}


def journal(results: tune.ResultGrid) -> list[dict]:
    return read(results.experiment_path)


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
    assert best.metrics["validated_iteration"] == 9
    assert best.metrics["reported"] == {"accuracy": 77.0}
    for result in results:
        scale, frame = result.config["scale"], result.metrics_dataframe
        validated = frame.set_index("training_iteration")["accuracy"].dropna().to_dict()
        assert validated == {i: round(scale * i / 10, 6) for i in validated}
        saved = {m["training_iteration"]: m.get("accuracy") for _, m in result.best_checkpoints}
        assert set(saved) == set(range(3, len(frame) + 1, 3))
        # What had not been validated when its trial was stopped is skipped.
        assert {step: score for step, score in saved.items() if score is not None} == validated
        assert result.metrics["accuracy"] == validated[max(validated)]
        rows = pd.read_csv(Path(result.path, "progress.csv")).set_index("training_iteration")
        assert rows["accuracy"].dropna().to_dict() == validated
        assert scalars(result.path, "validation/accuracy") == validated
        assert len(scalars(result.path, "training/loss")) == len(frame)
    scores = [e for e in journal(results) if e["event"] == "ended" and e["status"] == "validated"]
    end = capsys.readouterr().out.rsplit("Trial status:" if new_output else "== Status ==", 1)[1]
    assert re.search(rf"\nValidations: {len(scores)} validated[,\n]", end)
    header = next(line for line in end.splitlines() if "Trial name" in line)
    assert re.search(r"\baccuracy[\s|]+validated_iteration\b", header)
    assert "generation" not in header


def scalars(path: str, name: str) -> dict[int, float]:
    found = {}
    for file in Path(path).glob("events.out.tfevents.*"):
        events = EventAccumulator(str(file))
        events.Reload()
        if name in events.Tags()["scalars"]:
            found.update({e.step: round(e.value, 5) for e in events.Scalars(name)})
    return dict(sorted(found.items()))


class PausesAfterEveryReport(FIFOScheduler):
    def on_trial_result(self, tune_controller, trial, result):
        return self.PAUSE


@pytest.mark.parametrize("validated_scheduler", [True, False])
def test_pausing_after_every_report_loses_no_row(tmp_path, validated_scheduler):
    if validated_scheduler:
        results = fit(
            counting,
            tmp_path,
            param_space={"length": 9},
            tune_config=tune.TuneConfig(scheduler=PausesAfterEveryReport()),
            validation_config=tunekit.ValidationConfig(fn=validate, on_pending="wait"),
            checkpoint_policy=EACH,
        )
    else:  # the parts, with a plain Tuner and a scheduler that is not wrapped
        validation = tunekit.ValidationCallback(tunekit.ValidationConfig(fn=validate))
        results = tune.Tuner(
            tunekit.checkpointable(counting),
            param_space={"length": 9},
            tune_config=tune.TuneConfig(scheduler=PausesAfterEveryReport()),
            run_config=tune.RunConfig(
                storage_path=str(tmp_path),
                callbacks=[EACH, validation, *validation.loggers()],
                verbose=0,
            ),
        ).fit()
    frame = results[0].metrics_dataframe
    assert list(frame["training_iteration"]) == list(range(1, 10))
    assert list(frame["accuracy"]) == [i / 10 for i in range(1, 10)]
    assert scalars(results[0].path, "validation/accuracy") == {i: i / 10 for i in range(1, 10)}
    assert results[0].metrics["accuracy"] == 0.9


def test_the_parts_work_with_a_plain_tuner(tmp_path):
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
            callbacks=[tunekit.EveryIterations(2), validation, *validation.loggers()],
            verbose=0,
        ),
    ).fit()
    assert results.get_best_result().metrics["accuracy"] == 1.2
    # What was saved says the same as what was returned.
    saved = tune.ExperimentAnalysis(
        results.experiment_path, default_metric="accuracy", default_mode="max"
    )
    assert saved.best_result["accuracy"] == 1.2
    assert saved.best_result["validated_iteration"] == 6


class Lines(LoggerCallback):
    """Writes what it is told into a file, a line each; it knows nothing of validation."""

    def __init__(self, path: str):
        self.path = path

    def _write(self, trial, **what):
        with open(self.path, "a") as file:
            file.write(json.dumps({"trial": trial.trial_id, **what}) + "\n")

    def log_trial_result(self, iteration, trial, result):
        known = {name: result[name] for name in ("loss", "accuracy") if name in result}
        self._write(trial, step=result["training_iteration"], **known)

    def log_trial_end(self, trial, failed=False):
        self._write(trial, failed=failed)


class Hears(tune.Callback):
    def __init__(self, path: str):
        self.path = path

    def on_trial_validated(self, trial, report, metrics):
        with open(self.path, "a") as file:
            file.write(f"{trial.trial_id} {report['training_iteration']} {metrics['accuracy']}\n")


def test_a_users_loggers_and_callbacks_get_validated_metrics(tmp_path):
    lines, heard = tmp_path / "lines.jsonl", tmp_path / "heard.txt"
    results = fit(
        counting,
        tmp_path,
        param_space={"length": 5, "scale": SCALES},
        tune_config=tune.TuneConfig(**BY_ACCURACY),
        validation_config=tunekit.ValidationConfig(
            fn=validate, task_config=train.ValidationTaskConfig(fn_kwargs={"sleep_s": 0.2})
        ),
        checkpoint_policy=EACH,
        callbacks=[Lines(str(lines)), Hears(str(heard))],
    )
    told = [json.loads(line) for line in lines.read_text().splitlines()]
    listened = [line.split() for line in heard.read_text().splitlines()]
    for result in results:
        trial_id = result.metrics["trial_id"]
        own = [line for line in told if line["trial"] == trial_id]
        scores = [(i, round(i * result.config["scale"] / 10, 6)) for i in range(1, 6)]
        logged = [(line["step"], line["accuracy"]) for line in own if "accuracy" in line]
        assert logged == scores
        assert [line["step"] for line in own if "loss" in line] == [1, 2, 3, 4, 5]
        assert own[-1] == {"trial": trial_id, "failed": False}
        of_trial = [(int(i), float(score)) for of, i, score in listened if of == trial_id]
        assert of_trial == scores


def optuna_run(tmp_path, search, **config):
    results = fit(
        counting,
        tmp_path,
        param_space={"length": 3, "scale": tune.uniform(0.1, 2.0), "metrics": {"accuracy": 50.0}},
        tune_config=tune.TuneConfig(**BY_ACCURACY, search_alg=search, num_samples=6, **config),
        validation_config=tunekit.ValidationConfig(
            fn=validate, task_config=train.ValidationTaskConfig(fn_kwargs={"sleep_s": 0.1})
        ),
        checkpoint_policy=EACH,
    )
    assert len(results) == 6 and not results.errors
    return results


@pytest.mark.parametrize("limit", [None, "max_concurrent_trials", "limiter", "batch"])
def test_optuna_learns_the_validated_metrics(tmp_path, limit):
    optuna = OptunaSearch(seed=1)
    search = optuna
    if limit in ("limiter", "batch"):
        search = ConcurrencyLimiter(optuna, max_concurrent=2, batch=limit == "batch")
    config = {"max_concurrent_trials": 2} if limit == "max_concurrent_trials" else {}
    results = optuna_run(tmp_path, search, **config)
    trials = {optuna._ot_trials[r.metrics["trial_id"]].number: r for r in results}
    study = optuna._ot_study.trials
    assert len(study) == 6
    for told in study:
        result = trials[told.number]
        assert told.state.name == "COMPLETE"
        assert told.value == result.metrics["accuracy"]
        frame = result.metrics_dataframe.set_index("training_iteration")["accuracy"]
        assert told.intermediate_values == frame.to_dict()
    starts = sorted((r.metrics["timestamp"] - r.metrics["time_total_s"]) for r in results)
    assert len(starts) == 6


def seeded(checkpoint):
    """Return an accuracy that depends on the seed, the trial's index among its repetitions."""
    config = tunekit.get_validation_context().config
    return {"accuracy": config["scale"] + config["__trial_index__"] / 100}


def test_trials_of_a_repeater_are_seeds_of_one_configuration(tmp_path):
    optuna = OptunaSearch({"scale": tune.uniform(1, 2)}, seed=1, **BY_ACCURACY)
    results = fit(
        counting,
        tmp_path,
        param_space={"length": 2},
        tune_config=tune.TuneConfig(
            **BY_ACCURACY, search_alg=Repeater(optuna, repeat=3), num_samples=6
        ),
        validation_config=tunekit.ValidationConfig(fn=seeded),
        checkpoint_policy=EACH,
    )
    sweep = tunekit.load(results.experiment_path)
    table = sweep.configurations()
    assert sweep.seed_param == "__trial_index__"
    assert list(table.complete) == list(table.seeds) == [3, 3]
    scales = sorted({result.config["scale"] for result in results}, reverse=True)
    assert list(table["config/scale"]) == scales
    assert list(table["mean"]) == pytest.approx([scale + 0.01 for scale in scales])
    assert list(table["std"]) == pytest.approx([0.01, 0.01])
    # The searcher was given the same means, of its own two suggestions.
    told = [trial.value for trial in optuna._ot_study.trials]
    assert sorted(told, reverse=True) == pytest.approx(list(table["mean"]))
    assert sweep.best().config["__trial_index__"] == 2


BAD = {
    "raises": ("failed", "raised ValueError: cannot"),
    "returns no dict": ("failed", "returned a float, not a dict of metrics"),
    "returns NaN": ("failed", "returned NaN for 'accuracy'"),
    "returns a word": ("failed", "returned 'high' (a str) for 'accuracy', not a number"),
    "hangs": ("timed_out", "ran longer than its limit of 2 s"),
    "kills its process": ("failed", "its process died"),
    "raises what cannot be sent": ("failed", "raised TwoArguments: no such class"),
}


class TwoArguments(Exception):
    """Cannot be unpickled: its ``args`` are not those that it is made from."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code, self.lock = code, threading.Lock()


def misbehave(checkpoint):
    with checkpoint.as_directory() as folder:
        state = json.loads(Path(folder, "state.json").read_text())
    how = list(BAD)[int(state["scale"])] if state["steps"] == 2 else None
    if how == "raises":
        raise ValueError("cannot")
    if how == "returns no dict":
        return 0.5
    if how == "returns NaN":
        return {"accuracy": math.nan}
    if how == "returns a word":
        return {"accuracy": "high"}
    if how == "hangs":
        time.sleep(600)
    if how == "kills its process":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raises what cannot be sent":
        raise TwoArguments(7, "no such class\nat all")
    # One value that cannot be sent costs no score.
    return {"accuracy": state["steps"] / 10, "lock": threading.Lock()}


def test_a_misbehaving_validation_fails_no_trial_and_is_recorded(tmp_path):
    results = fit(
        counting,
        tmp_path,
        param_space={"length": 3, "scale": tune.grid_search([float(n) for n in range(len(BAD))])},
        tune_config=tune.TuneConfig(**BY_ACCURACY, max_concurrent_trials=3),
        validation_config=tunekit.ValidationConfig(
            fn=misbehave,
            task_config=train.ValidationTaskConfig(timeout_s=2),
            max_retries=0,
            max_in_flight=4,
        ),
        checkpoint_policy=EACH,
    )
    assert not results.errors
    ended = {e["id"]: e for e in journal(results) if e["event"] == "ended"}
    for result in results:
        status, reason = list(BAD.values())[int(result.config["scale"])]
        frame = result.metrics_dataframe.set_index("training_iteration")
        assert frame["accuracy"].dropna().to_dict() == {1: 0.1, 3: 0.3}
        assert frame["lock"][3].startswith("<unlocked _thread.lock object")
        record = ended[f"{result.metrics['trial_id']}:0:2:1"]
        assert record["status"] == status
        assert record["reason"].startswith(reason)
    raised = [e for e in ended.values() if (e["reason"] or "").startswith("raised ValueError")]
    raised += [e for e in ended.values() if "TwoArguments" in (e["reason"] or "")]
    assert len(raised) == 2
    assert all("in misbehave" in e["error"] for e in raised), "the traceback is kept"


def test_a_failed_validation_is_an_error_if_the_user_says_so(tmp_path):
    with pytest.raises(tunekit.errors.ValidationFailedError, match="raised ValueError: cannot"):
        fit(
            counting,
            tmp_path,
            param_space={"length": 50, "scale": 0.0, "sleep_s": 0.1},
            tune_config=tune.TuneConfig(**BY_ACCURACY),
            validation_config=tunekit.ValidationConfig(
                fn=misbehave, on_failure="raise", max_retries=0
            ),
            checkpoint_policy=EACH,
        )


def test_a_broken_validation_is_mended_and_the_sweep_restored(tmp_path):
    def broken(checkpoint):
        return {"accuracy": checkpoint.no_such_name}

    settings = {"length": 30, "sleep_s": 0.1, "scale": tune.grid_search([0.5, 1.0])}
    with pytest.raises(
        tunekit.errors.ValidationFailedError, match="raised AttributeError"
    ) as caught:
        fit(
            counting,
            tmp_path,
            param_space=settings,
            tune_config=tune.TuneConfig(**BY_ACCURACY),
            validation_config=tunekit.ValidationConfig(fn=broken, max_retries=0),
            checkpoint_policy=tunekit.EveryIterations(2),
        )
    assert "first 3 validations have failed alike" in str(caught.value)
    path = str(tmp_path / "sweep")
    wrong = tunekit.ValidationConfig(fn=validate, every=2, on_pending="wait")
    with pytest.raises(tunekit.errors.ConfigError, match="is not the sweep's") as refused:
        tunekit.Tuner.restore(path, counting, validation_config=wrong)
    assert len(refused.value.problems) == 2
    mended = tunekit.ValidationConfig(fn=validate)
    results = tunekit.Tuner.restore(path, counting, validation_config=mended).fit()
    assert results.get_best_result().metrics["accuracy"] == 3.0
    assert all(result.metrics["training_iteration"] == 30 for result in results)


def test_a_metric_that_nobody_produces_is_an_error_that_lists_what_there_is(tmp_path):
    with pytest.raises(tunekit.errors.MetricNotFoundError) as caught:
        fit(
            counting,
            tmp_path,
            param_space={"length": 50, "sleep_s": 0.1},
            tune_config=tune.TuneConfig(metric="acuracy", mode="max"),
            validation_config=tunekit.ValidationConfig(fn=validate),
            checkpoint_policy=EACH,
        )
    message = str(caught.value)
    assert "'acuracy'" in message and "Did you mean 'accuracy'?" in message
    assert "training reported 'loss'. Name" in message, "not what Tune fills in"


def test_a_gpu_that_this_machine_has_not_is_an_error_rather_than_an_endless_wait(tmp_path):
    with pytest.raises(
        tunekit.errors.ConfigError, match="needs 1 CPU, 1 GPU, and this machine has 0 GPU"
    ):
        fit(
            counting,
            tmp_path,
            param_space={"length": 3},
            validation_config=tunekit.ValidationConfig(
                fn=validate, ray_remote_kwargs={"num_gpus": 1}
            ),
            checkpoint_policy=EACH,
        )


def test_a_sweep_without_checkpoints_is_told_what_is_missing(tmp_path):
    def saves_nothing(config):
        tune.report({"loss": 1.0})

    with pytest.raises(
        tunekit.errors.MetricNotFoundError, match=r"tunekit.checkpoint_with\(save\)"
    ):
        fit(
            saves_nothing,
            tmp_path,
            tune_config=tune.TuneConfig(**BY_ACCURACY),
            validation_config=tunekit.ValidationConfig(fn=validate),
        )


def test_a_flaky_validation_is_tried_again(tmp_path):
    def flaky(checkpoint, *, folder):
        mark = Path(folder, "tried")
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"accuracy": 0.5}

    results = fit(
        counting,
        tmp_path,
        param_space={"length": 1},
        validation_config=tunekit.ValidationConfig(
            fn=flaky,
            task_config=train.ValidationTaskConfig(fn_kwargs={"folder": str(tmp_path)}),
            max_retries=1,
        ),
        checkpoint_policy=EACH,
    )
    assert results[0].metrics["accuracy"] == 0.5
    [ended] = [e for e in journal(results) if e["event"] == "ended"]
    assert ended["attempts"] == 2


def test_the_older_form_of_the_api(tmp_path):
    def validate_fn(checkpoint, config):
        return {"accuracy": config["value"]}

    results = fit(
        counting,
        tmp_path,
        param_space={"length": 2},
        validation_config=tunekit.ValidationConfig.from_validate_fn(validate_fn, {"value": 0.25}),
        checkpoint_policy=EACH,
    )
    assert results[0].metrics["accuracy"] == 0.25


def test_validations_run_beside_training_and_leave_nothing_behind(tmp_path, ray_cluster):
    results = fit(
        counting,
        tmp_path,
        param_space={"length": 8, "scale": SCALES, "sleep_s": 0.1},
        tune_config=tune.TuneConfig(**BY_ACCURACY),
        validation_config=tunekit.ValidationConfig(
            fn=validate, task_config=train.ValidationTaskConfig(fn_kwargs={"sleep_s": 0.1})
        ),
        checkpoint_policy=EACH,
    )
    assert not results.errors
    deadline = time.monotonic() + 30
    while ray_cluster.available_resources().get("CPU") != 6.0 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ray_cluster.available_resources()["CPU"] == 6.0
    first_score = min(e["time"] for e in journal(results) if e["event"] == "ended")
    last_checkpoint = max(e["time"] for e in journal(results) if e["event"] == "requested")
    assert first_score < last_checkpoint, "training did not wait"


def test_num_to_keep_keeps_the_best_by_validated_score(tmp_path):
    def hump(checkpoint):
        with checkpoint.as_directory() as folder:
            steps = json.loads(Path(folder, "state.json").read_text())["steps"]
        return {"accuracy": 1 - abs(steps - 4) / 10}

    results = fit(
        counting,
        tmp_path,
        param_space={"length": 8},
        checkpoint_config=tune.CheckpointConfig(
            num_to_keep=2, checkpoint_score_attribute="accuracy"
        ),
        validation_config=tunekit.ValidationConfig(fn=hump, max_in_flight=1),
        checkpoint_policy=EACH,
    )
    kept = {m["training_iteration"]: m["accuracy"] for _, m in results[0].best_checkpoints}
    assert 4 in kept and len(kept) == 2
    assert all(c.path and Path(c.path).exists() for c, _ in results[0].best_checkpoints)
    left = [p for p in Path(results[0].path).iterdir() if p.name.startswith("checkpoint_")]
    assert len(left) == 3, "the best two, and the latest, which a restart would need"
    assert results[0].metrics_dataframe["accuracy"].notna().all(), "none was deleted unvalidated"


def test_restoring_an_interrupted_sweep_keeps_its_scores(tmp_path):
    class Interrupts(tune.Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            if result["training_iteration"] == 6 and not Path(tmp_path, "mark").exists():
                Path(tmp_path, "mark").touch()
                os.kill(os.getpid(), signal.SIGUSR1)  # Tune takes it as Ctrl-C

    fit(
        counting,
        tmp_path,
        param_space={"length": 10, "sleep_s": 0.1},
        tune_config=tune.TuneConfig(**BY_ACCURACY),
        validation_config=tunekit.ValidationConfig(
            fn=validate,
            task_config=train.ValidationTaskConfig(fn_kwargs={"sleep_s": 0.5}),
            max_in_flight=1,
        ),
        checkpoint_policy=EACH,
        callbacks=[Interrupts()],
    )
    results = tunekit.Tuner.restore(str(tmp_path / "sweep"), counting).fit()
    frame = results[0].metrics_dataframe
    assert list(frame["training_iteration"]) == list(range(1, 11))
    assert list(frame["accuracy"]) == [i / 10 for i in range(1, 11)]


def test_restoring_a_sweep_whose_trials_have_ended_validates_what_was_pending(tmp_path):
    class Interrupts(tune.Callback):
        def on_trial_complete(self, iteration, trials, trial, **info):
            os.kill(os.getpid(), signal.SIGUSR1)  # Tune takes it as Ctrl-C

    interrupted = fit(
        counting,
        tmp_path,
        param_space={"length": 3},
        tune_config=tune.TuneConfig(**BY_ACCURACY),
        validation_config=tunekit.ValidationConfig(
            fn=validate,
            task_config=train.ValidationTaskConfig(fn_kwargs={"sleep_s": 1.5}),
            max_in_flight=1,
        ),
        checkpoint_policy=EACH,
        callbacks=[Interrupts()],
    )
    assert interrupted[0].metrics.get("accuracy") is None, "it ended before the first score"
    restored = tunekit.Tuner.restore(str(tmp_path / "sweep"), counting)
    results = restored.fit()
    assert results[0].metrics["accuracy"] == 0.3
    assert list(results[0].metrics_dataframe["accuracy"]) == [0.1, 0.2, 0.3]
    assert restored.validation.summary()["validated"] == 3
    requested = [e["id"] for e in journal(results) if e["event"] == "requested"]
    assert len(set(requested)) == 3


class Sleeping(tune.Trainable):
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


class Resettable(Sleeping):
    def reset_config(self, new_config):
        self.setup(new_config)
        return True


def validate_in_place(checkpoint):
    with checkpoint.as_directory() as folder:
        n, talent = map(float, Path(folder, "state").read_text().split())
    return {"accuracy": talent * n, "where": os.getpid()}


@pytest.mark.parametrize("trainable", [Sleeping, Resettable])
def test_trials_take_all_cpus_and_are_validated_in_their_place(tmp_path, trainable):
    """By default, with every="decision": two trials take all CPUs, and none is left over."""
    half = ray.cluster_resources()["CPU"] / 2
    tuner = tunekit.Tuner(
        tune.with_resources(trainable, {"cpu": half}),
        param_space={"talent": tune.grid_search([4, 3, 2, 1])},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            scheduler=ASHAScheduler(
                max_t=4, grace_period=2, reduction_factor=2, time_attr="training_iteration"
            ),
        ),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
        validation_config=tunekit.ValidationConfig(fn=validate_in_place, every="decision"),
        checkpoint_policy=tunekit.AtDecisions(),
    )
    results = tuner.fit()
    assert not results.errors
    sweep = tunekit.load(results.experiment_path)
    assert sweep.best().config["talent"] == 4
    assert (sweep.validations.status == "validated").all()
    # At the rung, most ran in a trial's process, and their trials stood still meanwhile.
    at_rung = sweep.validations.query("iteration == 2").set_index("trial_id")
    assert len(at_rung) == 4
    in_place = at_rung["metrics/where"].isin(sweep.reports.pid)
    assert in_place.sum() >= 2
    # The last trials may train on: no other trial is left that could use their places.
    decided = sweep.decisions.query("iteration == 2").set_index("trial_id")
    assert (decided.late_iterations[in_place] == 0).all()
    reports = sweep.reports
    processes = reports.groupby("trial_id").pid.nunique()
    assert (processes == 1).all(), "no trial was paused"
    if trainable is Resettable:
        assert reports.pid.nunique() < 4, "the next trial goes on in the same process"
