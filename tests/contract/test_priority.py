"""Which validations go first, and what becomes of those of trials that the scheduler rejects."""

from __future__ import annotations

from ray.tune.schedulers import ASHAScheduler

import tunekit
from tests.doubles import FakeExecutor
from tests.sweeps import LENGTH, Endless, sweep
from tunekit.core.events import ScoreDelivered, ValidationRequested
from tunekit.journal.journal import events_in

REASON = "the scheduler has stopped its trial"


def asha() -> ASHAScheduler:
    return ASHAScheduler(
        max_t=LENGTH, grace_period=1, reduction_factor=3, time_attr="training_iteration"
    )


def run(folder, *, trials=6, **options):
    """Validations one at a time, each as long as two iterations: they queue up."""
    more = options.pop("settings", {})
    return sweep(
        folder,
        options.pop("base", None) or asha(),
        on_pending=options.pop("on_pending", "auto"),
        trainable=Endless,
        trials=trials,
        slots=3,
        validation_s=lambda attempt: 2.0,
        settings={"max_in_flight": 1, **more},
        **{"stop": {"training_iteration": LENGTH}, **options},
    )


def test_what_waits_of_a_rejected_trial_is_skipped_and_says_why(tmp_path):
    ran = run(tmp_path)
    table = tunekit.load(ran.home).validations
    skipped = table[table.status == "skipped"]
    assert len(skipped) and set(skipped.reason) == {REASON}
    assert set(table.status) == {"validated", "skipped"}
    stops = tunekit.load(ran.home).decisions.query("decision == 'STOP'")
    rejected = set(stops[stops.iteration < LENGTH].trial_id)
    assert set(skipped.trial_id) <= rejected
    assert not ran.executor.cancelled, "those that run end by themselves"


def test_a_trial_that_has_run_its_course_is_validated_to_the_end(tmp_path):
    ran = run(tmp_path, stop={"training_iteration": 3 * LENGTH})  # ASHA ends it
    ended = [e for e in events_in(ran.home) if isinstance(e, ScoreDelivered) and e.finished]
    assert ended and {event.iteration for event in ended} == {LENGTH}
    for event in ended:
        scores = [place[1] for place, _ in ran.validation.history.scores(event.trial_id)]
        assert scores == list(range(1, LENGTH + 1))


def test_a_rung_does_not_wait_for_what_only_draws_a_curve(tmp_path):
    ran = run(tmp_path)
    table = tunekit.load(ran.home).validations
    ended = table.set_index(["trial_id", "iteration"]).ended
    overtaken = 0
    for trial in ran.trials:
        mine = ended.get(trial.trial_id)
        if mine is not None and 3 in mine.index and 2 in mine.index:
            overtaken += mine[3] < mine[2]
    assert overtaken
    assert set(ran.heard.of(0)) <= set(range(1, LENGTH + 1))
    for index in range(6):
        assert ran.heard.of(index) == sorted(ran.heard.of(index)), "in order, some left out"
        assert {1, 3} & set(ran.heard.of(index))


class Seldom(FakeExecutor):
    """Is looked at after an hour again."""

    poll_interval_s = 3600.0


def test_a_validation_starts_in_the_step_in_which_its_checkpoint_is_there(tmp_path):
    """However recently validations were looked at: else it would start a step later."""
    ran = sweep(
        tmp_path,
        asha(),
        on_pending="continue",
        executor_class=Seldom,
        stop={"training_iteration": 2},
        run=False,
    )
    begun = []
    while not ran.sweep.controller.is_finished() and len(begun) < 6:
        ran.sweep.step()
        events = list(events_in(ran.home))
        requested = [event.id for event in events if isinstance(event, ValidationRequested)]
        begun = [attempt.request.id for attempt in ran.executor.started]
        assert begun == requested
    assert len(begun) == 6
