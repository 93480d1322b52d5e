"""Validations that yield estimates, in tasks and in evaluators of a real Ray."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tests.integration.runs import counting, fit
from tests.journals import read

pytestmark = pytest.mark.ray

MOST = 5_000


def accuracy_of(checkpoint) -> float:
    with checkpoint.as_directory() as folder:
        state = json.loads(Path(folder, "state.json").read_text())
    return state["steps"] * state["scale"] / 10


def validate(checkpoint, resume, *, marks):
    """Yield each 100 examples; its process dies once, and the second attempt goes on."""
    context = tunekit.get_validation_context()
    name = f"{context.trial_id}-{context.iteration}"
    begins = resume["accuracy"].n if resume else 0
    mark = Path(marks, f"{name}-{context.attempt}-{begins}-{os.getpid()}")
    for n in range(begins + 100, MOST + 100, 100):
        time.sleep(0.01)
        yield {"accuracy": tunekit.Estimate(accuracy_of(checkpoint), n, bounds=(0, 1))}
        mark.write_text(str(n))
        if context.attempt == 1 and context.iteration == 2 and n == 300:
            time.sleep(1.0)  # what is on its way to the driver dies with the process
            os.kill(os.getpid(), 9)


@pytest.mark.parametrize("evaluators", [None, 1])
def test_a_validation_ends_early_and_its_process_lives_on(ray_cluster, tmp_path, evaluators):
    marks = tmp_path / "marks"
    marks.mkdir()
    results = fit(
        counting,
        tmp_path,
        param_space={"length": 3, "scale": tune.grid_search([1.0, 2.5, 0.2, 0.1, 0.3])},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            max_concurrent_trials=1,
            scheduler=ASHAScheduler(max_t=3, grace_period=1, reduction_factor=2),
        ),
        validation_config=tunekit.ValidationConfig(
            fn=validate,
            task_config=tunekit_task(marks),
            evaluators=evaluators,
            on_pending="wait",
            sequential=tunekit.Sequential(min_examples=400),
        ),
        checkpoint_policy=tunekit.EveryIterations(1),
    )
    assert not results.errors
    table = results.get_dataframe().set_index("config/scale")
    best = results.get_best_result("accuracy", "max").metrics
    assert best["accuracy"] == 0.75 and best["accuracy_n"] == MOST
    assert best["accuracy_low"] < 0.75 < best["accuracy_high"]
    assert table.accuracy_n[0.1] < MOST, "it was clear that it is none of the best"
    events = read(results.experiment_path)
    ended = [event for event in events if event["event"] == "ended"]
    assert {event["status"] for event in ended} == {"validated"}
    # The second attempt of the one whose process died went on from where that was.
    began = [path.name.rsplit("-", 3)[1:3] for path in marks.iterdir() if "-2-2-" in path.name]
    assert began and all(int(at) >= 200 for _, at in began)
    # An attempt that was stopped yields nothing for long, and leaves its process to the next.
    reached = {path.name: int(path.read_text() or 0) for path in marks.iterdir()}
    assert min(reached.values()) < MOST
    if evaluators:
        processes = {name.rsplit("-", 1)[1] for name in reached}
        dead = sum("-2-1-" in name for name in reached)
        assert len(processes) == dead + 1


def tunekit_task(marks: Path):
    from ray.train import ValidationTaskConfig

    return ValidationTaskConfig(fn_kwargs={"marks": str(marks)})
