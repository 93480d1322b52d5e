"""TensorBoard's files, read back as TensorBoard reads them."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.tune.schedulers import FIFOScheduler
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tunekit
from tests.contract.test_pbt import run as run_pbt
from tests.kills import run_killed
from tests.sweeps import Counting, Ran, index_of, sweep

ALL = {"scalars": 0, "tensors": 0, "histograms": 0, "images": 0}


def read(folder: Path | str) -> dict[str, EventAccumulator]:
    """By the run's name, what TensorBoard reads of it."""
    runs = {}
    for inner in sorted({path.parent for path in Path(folder).rglob("*tfevents*")}):
        runs[str(inner.relative_to(folder))] = EventAccumulator(str(inner), ALL).Reload()
    return runs


def scalars(events: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    if tag not in events.Tags()["scalars"]:
        return []
    return [(event.step, event.value) for event in events.Scalars(tag)]


def check(ran: Ran, *, stored: bool = False) -> None:
    """Each point is there once, in order, in the run of its generation.

    ``stored``: in the experiment's own folder, rather than in the driver's copy.
    """
    for trial in ran.trials:
        folder = trial.storage.trial_fs_path if stored else trial.local_path
        runs, scores = read(folder), ran.scores()[index_of(trial)]
        for name, events in runs.items():
            generation = 0 if name == "." else int(name.removeprefix("generation_"))
            own = {i: score for (of, i), score in scores.items() if of == generation}
            found = scalars(events, "validation/accuracy")
            assert found == [(i, pytest.approx(score)) for i, score in sorted(own.items())]
            for tag in events.Tags()["scalars"]:
                steps = [step for step, _ in scalars(events, tag)]
                assert steps == sorted(set(steps)), (name, tag)
        last = scalars(list(runs.values())[-1], "tune/iterations_since_restore")[-1][0]
        assert last == trial.last_result["training_iteration"]


def any_order(attempt: Any) -> float:
    return random.Random(attempt.id).uniform(0.1, 9.0)


class Both(Counting):
    """Training reports a quantity of the same name as validation's."""

    def step(self) -> dict[str, Any]:
        return {**super().step(), "accuracy": -float(self.steps), "timestamp": 1000 + self.steps}


def test_groups_and_names(tmp_path):
    ran = sweep(
        tmp_path,
        FIFOScheduler(),
        trainable=Both,
        validation_s=any_order,
        trials=3,
        loggers=True,
        validate=lambda attempt: {
            "accuracy": attempt.request.iteration / 10,
            "eval": {"n": 7, "weights": np.arange(9.0)},
        },
        param_space={"lr": 0.1},
    )
    check(ran)
    for trial in ran.trials:
        [events] = read(trial.local_path).values()
        tags = set(events.Tags()["scalars"])
        assert {tag.split("/")[0] for tag in tags} == {"training", "validation", "tune"}
        assert {tag for tag in tags if tag[0] == "v"} == {
            "validation/accuracy",
            "validation/eval/n",
        }
        assert {tag for tag in tags if tag.startswith("training/")} == {
            "training/loss",
            "training/accuracy",
        }
        # Training's own values are all there, from the first step on.
        assert scalars(events, "training/accuracy") == [(i, -float(i)) for i in range(1, 10)]
        assert scalars(events, "training/loss") == [(i, pytest.approx(1 / i)) for i in range(1, 10)]
        assert [event.step for event in events.Histograms("validation/eval/weights")] == list(
            range(1, 10)
        )


@pytest.mark.parametrize("on_pending", ["continue", "wait", "wait-paused"])
def test_steps_after_pauses_and_with_scores_in_any_order(tmp_path, on_pending):
    ran = sweep(
        tmp_path,
        FIFOScheduler(),
        on_pending=on_pending,
        validation_s=any_order,
        loggers=True,
        trials=4,
        slots=2,
    )
    check(ran)
    for trial in ran.trials:
        [events] = read(trial.local_path).values()
        assert [step for step, _ in scalars(events, "training/loss")] == list(range(1, 10))


def test_an_overwritten_trial_goes_on_in_a_run_of_its_own(tmp_path):
    ran, _ = run_pbt(tmp_path, loggers=True, trials=6)
    assert len(ran.validation.engine.ancestry) > 3
    check(ran)
    names = {trial.trial_id: Path(trial.local_path).name for trial in ran.trials}
    begun = {
        f"{names[exploit.trial_id]}/generation_{exploit.generation}"
        for exploit in ran.validation.engine.ancestry
    }
    runs = {str(p) for trial in ran.trials for p in _runs_below(Path(trial.local_path))}
    # A generation that was overwritten before its first report has no run.
    assert {run for run in runs if "/" in run} <= begun
    assert runs >= set(names.values())


def _runs_below(folder: Path) -> list[Path]:
    found = {path.parent for path in folder.rglob("*tfevents*")}
    return [path.relative_to(folder.parent) for path in found]


def test_what_a_trial_does_again_replaces_what_it_did(tmp_path):
    class FailsOnce(Both):
        def step(self) -> dict[str, Any]:
            mark = Path(self.logdir, "failed")
            if self.steps == 6 and not mark.exists():
                mark.touch()
                raise RuntimeError("fails once")
            return super().step()

    ran = sweep(
        tmp_path,
        FIFOScheduler(),
        trainable=FailsOnce,
        trials=2,
        loggers=True,
        max_failures=1,
        policy=tunekit.EveryIterations(4),
    )
    for trial in ran.trials:
        [events] = read(trial.local_path).values()
        assert [step for step, _ in scalars(events, "training/loss")] == list(range(1, 10))
        assert [step for step, _ in scalars(events, "validation/accuracy")] == [4, 8]
        # One file went on through all of it.
        assert len(list(Path(trial.local_path).glob("*tfevents*"))) == 1


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.at_night) for n in (1, 2)), 3]
)
def test_after_kills_each_point_is_there_once(tmp_path, seed):
    draw = random.Random(seed)

    def made(folder: Path, **options: Any) -> Ran:
        if seed % 2:
            return run_pbt(
                folder, seed=seed, trials=4, loggers=True, run=False, listening=False, **options
            )[0]
        return sweep(
            folder,
            FIFOScheduler(),
            validation_s=any_order,
            trials=4,
            run=False,
            loggers=True,
            trainable=Both,
            saved_every_s=draw.choice([0.0, float("inf")]),
            **options,
        )

    lives = (draw.randrange(30, 400 if seed % 2 else 120) for _ in itertools.count())
    ran, kills = run_killed(tmp_path, made, itertools.islice(lives, 3), elsewhere=seed < 2)
    assert kills
    check(ran)
    check(ran, stored=True)
    if seed % 2:
        return
    for trial in ran.trials:
        [events] = read(trial.local_path).values()
        assert scalars(events, "training/accuracy") == [(i, -float(i)) for i in range(1, 10)]
        # At the times at which they were reported.
        assert events.Scalars("training/loss")[0].wall_time == 1001
