"""An evaluator is built once, is replaced when it dies or hangs, and reports the user's errors."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path
from statistics import mean

import pytest
from ray import train, tune

import tunekit
from tests.support.real_sweeps import counting, events, fit
from tunekit._ray.cluster import has_died
from tunekit.core.executor import Failed, Returned
from tunekit.core.validation import Attempt, Request, ValidationKey
from tunekit.validating.ray_executor import RayExecutor

pytestmark = pytest.mark.usefixtures("leaves_nothing")


class Evaluator:
    """Says which process it is in, and how many it has validated; ``harm`` harms its process."""

    def __init__(self, marks: str = "", fails: bool = False):
        if fails:
            raise RuntimeError("no data here")
        self.marks, self.count = marks, 0

    def __call__(self, checkpoint, *, sleep_s=0.0):
        self.count += 1
        with checkpoint.as_directory() as folder:
            steps = json.loads(Path(folder, "state.json").read_text())["steps"]
        mark = Path(self.marks, f"at-{steps}")
        if self.marks and steps in (3, 5) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9) if steps == 3 else time.sleep(60)
        time.sleep(sleep_s)
        return {"accuracy": steps / 10, "process": os.getpid(), "count": self.count}


def run(tmp_path, length=6, limits=None, **settings):
    return fit(
        counting,
        tmp_path,
        param_space={"length": length, "limits": limits or {}},
        validation_config=tunekit.ValidationConfig(**settings),
        checkpoint_policy=tunekit.EveryIterations(1),
    )


def test_idle_evaluator_that_dies_costs_no_attempt():
    executor = RayExecutor(lambda checkpoint: {"pid": os.getpid()}, {"num_cpus": 0.1}, evaluators=1)

    def validated(iteration):
        executor.start(Attempt(Request("a", iteration), 1))
        ended = []
        while not ended:
            ended = [event for event in executor.poll() if isinstance(event, Returned | Failed)]
            time.sleep(0.02)
        return ended[0].value["pid"]

    first = validated(1)
    assert validated(2) == first
    os.kill(first, 9)
    (actor,) = executor._actors
    while not has_died(actor.handle):
        time.sleep(0.02)
    assert validated(3) != first
    executor.close()


def test_evaluator_is_built_once_and_replaced_when_it_dies_or_hangs(tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    results = run(
        tmp_path,
        limits={5: 3.0},
        fn=partial(Evaluator, str(marks)),
        evaluators=1,
    )
    table = results[0].metrics_dataframe
    assert table["accuracy"].tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert table["process"].nunique() == 3
    counts = table.groupby("process")["count"].apply(sorted)
    assert all(of_one == [*range(1, len(of_one) + 1)] for of_one in counts), "built once"
    ended = events(results, "validation_ended")
    attempts = {ValidationKey.parse(event["id"]).iteration: event["attempts"] for event in ended}
    assert attempts == {1: 1, 2: 1, 3: 2, 4: 1, 5: 2, 6: 1}


def test_evaluator_that_cannot_be_built_fails_its_validations_with_the_exception(tmp_path):
    results = run(tmp_path, 2, fn=partial(Evaluator, fails=True), evaluators=1)
    assert not results.errors
    reasons = {event["reason"] for event in events(results, "validation_ended")}
    [reason] = reasons
    assert "RuntimeError: no data here" in reason


class NeverBuilt:
    def __init__(self):
        time.sleep(120)

    def __call__(self, checkpoint): ...


def test_evaluator_that_takes_too_long_to_build_times_out(tmp_path):
    results = run(
        tmp_path,
        1,
        fn=NeverBuilt,
        evaluators=1,
        max_retries=0,
        task_config=train.ValidationTaskConfig(timeout_s=0.5),
    )
    assert [event["status"] for event in events(results, "validation_ended")] == ["timed_out"]


class Mapped:
    """Adds what a checkpoint has learned to each row of a batch."""

    def __init__(self, checkpoint):
        with checkpoint.as_directory() as folder:
            self.steps = json.loads(Path(folder, "state.json").read_text())["steps"]

    def __call__(self, batch):
        return {"value": batch["id"] + self.steps}


def by_mapping(checkpoint):
    from ray import data

    rows = data.range(10).map_batches(
        Mapped, fn_constructor_args=(checkpoint,), batch_size=5, concurrency=1
    )
    return {"accuracy": mean(row["value"] for row in rows.take_all())}


@pytest.mark.at_night
def test_validation_may_map_a_ray_dataset(tmp_path):
    results = run(tmp_path, 2, fn=by_mapping, ray_remote_kwargs={"num_cpus": 0})
    assert results[0].metrics_dataframe["accuracy"].tolist() == [5.5, 6.5]


def told() -> dict:
    context = tunekit.get_validation_context()
    config = context.config.get("train_loop_config", context.config)
    return {"of": context.trial_id, "lr": config["lr"], "at": context.iteration}


def fails_once(checkpoint):
    score = told()
    if score["at"] == 1 and tunekit.get_validation_context().attempt == 1:
        raise RuntimeError("the first attempt")
    return {**score, "accuracy": score["lr"], "attempt": tunekit.get_validation_context().attempt}


class Asks:
    def __init__(self):
        try:
            tunekit.get_validation_context()
        except tunekit.errors.WiringError:
            self.refused = True

    def __call__(self, checkpoint):
        assert self.refused, "no checkpoint is validated while an evaluator is built"
        return fails_once(checkpoint)


def each_rank_asks(config):
    import torch

    assert set(config) == {"checkpoint"}
    mine = torch.tensor([told()["lr"]])
    torch.distributed.all_reduce(mine)
    return {**fails_once(config["checkpoint"]), "sum": mine.item()}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["task", "evaluator", "trainer"])
def test_validation_context_names_the_trial_config_and_iteration(tmp_path, kind):
    how = {
        "task": {"fn": fails_once},
        "evaluator": {"fn": Asks, "evaluators": 1},
        "trainer": {
            "fn": tunekit.distributed.TrainerValidation(
                each_rank_asks, train.ScalingConfig(num_workers=2)
            ),
            "evaluators": 1,
            "ray_remote_kwargs": {"num_cpus": 0},
        },
    }[kind]
    results = fit(
        counting,
        tmp_path,
        param_space={"length": 2, "lr": tune.grid_search([0.25, 0.5])},
        validation_config=tunekit.ValidationConfig(**how),
        checkpoint_policy=tunekit.EveryIterations(1),
    )
    assert not results.errors
    for result in results:
        table = result.metrics_dataframe
        assert table["of"].tolist() == [result.metrics["trial_id"]] * 2
        assert table["lr"].tolist() == [result.config["lr"]] * 2
        assert table["at"].tolist() == [1, 2]
        assert table["attempt"].tolist() == [2, 1]
        if kind == "trainer":
            assert table["sum"].tolist() == [2 * result.config["lr"]] * 2


class Refuses:
    """Raises what cannot be unpickled, at the first step."""

    def __call__(self, checkpoint):
        return refuse({"checkpoint": checkpoint})


class TwoArguments(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def refuse(config):
    with config["checkpoint"].as_directory() as folder:
        steps = json.loads(Path(folder, "state.json").read_text())["steps"]
    if steps == 1:
        raise TwoArguments(7, f"no such class as {steps}")
    return {"accuracy": steps / 10, "odd": (x for x in "abc")}


@pytest.mark.parametrize("kind", ["evaluator", "workers"])
def test_failed_validation_records_the_users_own_exception_and_traceback(tmp_path, kind):
    workers = tunekit.distributed.TrainerValidation(refuse, train.ScalingConfig(num_workers=1))
    how = {"fn": Refuses, "evaluators": 1} if kind == "evaluator" else {"fn": workers}
    results = run(tmp_path, length=2, max_retries=0, **how)
    first, second = sorted(events(results, "validation_ended"), key=lambda event: event["id"])
    assert first["status"] == "failed"
    assert first["reason"].endswith("TwoArguments: no such class as 1")
    assert "in refuse" in first["error"] and "Traceback" in first["error"]
    assert second["status"] == "validated" and second["metrics"]["accuracy"] == 0.2
    assert second["metrics"]["odd"].startswith("<generator object")
