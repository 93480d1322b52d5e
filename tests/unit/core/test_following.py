"""What is known of a followed folder, whatever order it is seen in."""

from __future__ import annotations

from typing import Any

import pytest

from tunekit.core.events import ValidationEnded
from tunekit.core.following import Followed, step_in


def saw(followed: Followed, step: int, *, mark: float = 1.0, **report: Any) -> None:
    for event in followed.saw("run", step, f"/run/step-{step}", report, mark=mark):
        followed.apply(event)


def scored(followed: Followed, step: int, value: float) -> None:
    metrics = {"accuracy": value}
    followed.apply(ValidationEnded(id=f"run:0:{step}:1", status="validated", metrics=metrics))


def test_a_run_has_ended_by_its_last_step_though_that_is_seen_first():
    followed = Followed()
    saw(followed, 20, done=True)
    saw(followed, 10)
    assert followed.done == {"run"}
    saw(followed, 30)
    assert not followed.done


def test_what_is_not_evaluated_is_not_deleted():
    followed = Followed()
    for step in (1, 2, 3, 4):
        saw(followed, step, mark=step)
    for step, value in ((1, 0.1), (3, 0.9)):
        scored(followed, step, value)
    there = [f"step-{step}" for step in (1, 2, 3, 4, 5)]
    assert followed.to_delete("run", there, 1, "accuracy", "max") == ["step-1"]
    assert followed.to_delete("run", there, 1, "accuracy", "min") == ["step-3"]
    assert followed.to_delete("run", there, 1, "loss", "min") == []


def test_the_newest_are_kept_by_step_and_by_time():
    followed = Followed()
    for mark, (step, value) in enumerate(((10, 0.9), (20, 0.1), (15, 0.2), (16, 0.3))):
        saw(followed, step, mark=mark)
        scored(followed, step, value)
    there = [f"step-{step}" for step in (10, 15, 16, 20)]
    assert followed.to_delete("run", there, 1, "accuracy", "max") == ["step-15"]


def test_steps_are_apart_in_whatever_order_they_are_seen():
    for order in ((10, 20, 30, 40, 50), (50, 40, 30, 20, 10)):
        followed = Followed("every=20")
        for step in order:
            saw(followed, step)
        assert sorted(seen.step for seen in followed.pending.values()) == [10, 30, 50]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("checkpoint_000003", 3),
        ("global_step40", 40),
        ("iter_0000100", 100),
        ("epoch=3-step=400.ckpt", 400),
        ("epoch=3-step=400-v1.ckpt", 400),
        ("net-epoch=02-val_loss=0.32.ckpt", 2),
        ("step_20.pt", 20),
        ("7", 7),
        # what lies beside checkpoints
        ("Nov25_12-33-44_gpu1", None),
        ("events.out.tfevents.1700000000.gpu1", None),
        ("model-00001-of-00002.safetensors", None),
        ("1000.orbax-checkpoint-tmp-1010101", None),
        ("tmp-checkpoint-500", None),
        ("rng_state_0.pth", None),
        ("version_0", None),
        ("last.ckpt", None),
        ("checkpoint_2026-01-01_00-00-00.1", None),
    ],
)
def test_steps_in_names(name, step):
    assert step_in(name) == step
