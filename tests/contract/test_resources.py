"""Validations that get no resources must neither hang a sweep nor take those of trials."""

from __future__ import annotations

from ray.tune.schedulers import FIFOScheduler

from tests.sweeps import Counting, sweep


def test_held_trials_give_way_when_they_keep_validations_from_starting(tmp_path, caplog):
    """All actors wait for scores, and the scores wait for the resources of the actors."""
    box = []

    def delay(attempt):
        trials = box[0].trials
        holding = [t for t in trials if t.status == "RUNNING"]
        # No CPU is free while two trials hold theirs: it will never begin.
        return float("inf") if len(holding) >= 2 else 0.0

    ran = sweep(
        tmp_path,
        FIFOScheduler(),
        on_pending="hold",
        trainable=Counting,
        trials=2,
        slots=2,
        settings={"max_in_flight": 1},
        run=False,
    )
    box.append(ran)
    ran.executor._delay = delay
    # Whenever a trial has paused, what waits for resources gets them.
    begin_when_free(ran)
    ran.sweep.run(most=100_000)
    assert all(t.status == "TERMINATED" for t in ran.trials)
    assert set(ran.lengths().values()) == {9}
    assert "is paused to make room" in caplog.text
    assert ran.validation.summary()["validated"] == 2 * 9


def begin_when_free(ran) -> None:
    poll = ran.executor.poll

    def poll_with_resources():
        running = [t for t in ran.trials if t.status == "RUNNING"]
        if len(running) < 2:
            ran.executor.hurry()
        return poll()

    ran.executor.poll = poll_with_resources
