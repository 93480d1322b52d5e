"""Validations that get no resources must neither hang a sweep nor take those of trials."""

from __future__ import annotations

from tests.support.sweeps import Counting, sweep


def test_held_trials_give_way_when_they_keep_validations_from_starting(tmp_path, caplog):
    """All actors wait for scores, and the scores wait for the resources of the actors."""
    box = []

    def delay(attempt):
        # No CPU is free while two trials hold theirs: it will never begin.
        return float("inf") if box[0].sweep.running >= 2 else 0.0

    ran = sweep(
        tmp_path,
        on_pending="wait",
        trainable=Counting,
        trials=2,
        slots=2,
        settings={"max_in_flight": 1},
        run=False,
    )
    box.append(ran)
    ran.executor._delay = delay
    # Whenever a process of a trial has ended, what waits for resources gets them.
    begin_when_free(ran)
    ran.sweep.run(most=100_000)
    assert all(t.status == "TERMINATED" for t in ran.trials)
    assert set(ran.lengths().values()) == {9}
    assert "is paused to make room" in caplog.text
    assert ran.validation.summary()["validated"] == 2 * 9


def begin_when_free(ran) -> None:
    poll = ran.executor.poll

    def poll_with_resources():
        if ran.sweep.running < 2:
            ran.executor.hurry()
        return poll()

    ran.executor.poll = poll_with_resources


def statuses_and_words(ran):
    """Let a sweep run; return each status that a trial had, and each line that was said of it."""
    seen, said = set(), set()
    for _ in range(100_000):
        if ran.sweep.controller.is_finished():
            return seen, said
        ran.sweep.step()
        seen.update(trial.status for trial in ran.trials)
        said.update(ran.validation.progress())
    raise AssertionError("the sweep does not end")


def held(tmp_path, **options):
    """Two trials that hold their actors while they wait for scores; the machine has room."""
    ran = sweep(tmp_path, on_pending="wait", trials=2, run=False, **options)

    def soon():
        """Time passes in small steps, as on a real machine."""
        due, soon = ran.executor.next_due(), ran.clock.monotonic() + 0.25
        return soon if due is None else min(due, soon)

    ran.sweep.controller._actor_manager._next_due = soon
    return ran


def test_validations_whose_processes_take_long_to_start_pause_nobody(tmp_path, caplog):
    """A runtime environment, a container, torch on a busy machine: resources are free."""
    ran = held(tmp_path, settings={"max_in_flight": 1})
    ran.executor._starts = lambda attempt: 20.0 if attempt.request.iteration == 1 else 1.0
    seen, said = statuses_and_words(ran)
    assert "PAUSED" not in seen
    assert "is paused to make room" not in caplog.text
    assert not [line for line in said if "resources" in line]
    assert "Validations: 1 starting, 1 waiting" in said
    assert ran.validation.summary()["validated"] == 2 * 9


def test_a_momentary_shortage_pauses_nobody(tmp_path, caplog):
    ran = held(tmp_path)
    ran.executor._delay = lambda attempt: 1.5
    seen, said = statuses_and_words(ran)
    assert "PAUSED" not in seen and "is paused to make room" not in caplog.text
    assert "Validations: 2 starting (2 queued for resources)" in said


def test_one_that_has_its_resources_and_starts_is_no_shortage(tmp_path, caplog):
    """The other waits for what the first one has, which does not last."""
    ran = held(tmp_path)
    ran.executor._starts = lambda attempt: 20.0 if attempt.request.iteration == 1 else 0.0
    ran.executor._delay = lambda attempt: 15.0 if attempt.request.id == second else 0.0
    second = f"{0:05x}_{1:05d}:0:1:1"
    seen, said = statuses_and_words(ran)
    assert "Validations: 2 starting (1 queued for resources)" in said
    assert "PAUSED" not in seen and "is paused to make room" not in caplog.text
    assert ran.validation.summary()["validated"] == 2 * 9
