"""Which validations go first, and what becomes of those of trials that the scheduler rejects."""

from __future__ import annotations

from ray.tune.schedulers import ASHAScheduler

import tunekit
from tests.support.fakes import FakeExecutor
from tests.support.journals import scores_of
from tests.support.sweeps import LENGTH, Endless, sweep
from tunekit.core.events import Processed, ValidationRequested
from tunekit.driver.door import VOID
from tunekit.journal.journal import events_in


def asha() -> ASHAScheduler:
    return ASHAScheduler(max_t=LENGTH, grace_period=1, reduction_factor=3)


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
    assert len(skipped) and set(skipped.reason) == {VOID}
    assert set(table.status) == {"validated", "skipped"}
    stops = tunekit.load(ran.home).decisions.query("decision == 'STOP'")
    rejected = set(stops[stops.iteration < LENGTH].trial_id)
    assert set(skipped.trial_id) <= rejected


def test_a_trial_that_has_run_its_course_is_validated_to_the_end(tmp_path):
    ran = run(tmp_path, stop={"training_iteration": 3 * LENGTH})  # ASHA ends it
    ended = [e for e in events_in(ran.home) if isinstance(e, Processed) and e.finished]
    assert ended and {event.iteration for event in ended} == {LENGTH}
    for event in ended:
        scores = [place[1] for place, _ in scores_of(ran.home)[event.trial_id].items()]
        assert scores == list(range(1, LENGTH + 1))


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
