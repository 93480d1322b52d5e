"""What is to be done about a trial."""

import itertools

import pytest

from tunekit.core.reconcile import Action, Actual, Desired, next_action


@pytest.mark.parametrize("doing", [Actual.SAVING, Actual.ENDED])
@pytest.mark.parametrize("phase", Desired)
def test_a_trial_that_saves_or_has_ended_is_left_alone(phase, doing):
    for overwritten, changed, waits, gives_way in itertools.product([False, True], repeat=4):
        move = next_action(
            phase,
            doing,
            overwritten=overwritten,
            changed=changed,
            waits=waits,
            gives_way=gives_way,
        )
        assert move is Action.NOTHING


@pytest.mark.parametrize("doing", [d for d in Actual if d not in (Actual.SAVING, Actual.ENDED)])
def test_a_stop_goes_before_everything_else(doing):
    assert next_action(Desired.ENDED, doing, overwritten=True, waits=True) is Action.STOP


@pytest.mark.parametrize("doing", [Actual.TRAINING, Actual.HELD, Actual.PAUSED])
def test_other_weights_are_taken_up_whatever_it_does(doing):
    assert next_action(Desired.PAUSED, doing, overwritten=True, waits=True) is Action.CHANGE


def test_what_starts_is_left_to_start():
    assert next_action(Desired.PAUSED, Actual.STARTING, overwritten=True) is Action.NOTHING


@pytest.mark.parametrize(
    ("phase", "doing", "facts", "move"),
    [
        (Desired.RUNNING, Actual.HELD, {}, Action.TRAIN),
        (Desired.RUNNING, Actual.HELD, {"waits": True}, Action.NOTHING),
        (Desired.RUNNING, Actual.HELD, {"waits": True, "gives_way": True}, Action.GIVE_WAY),
        (Desired.PAUSED, Actual.HELD, {"waits": True}, Action.PAUSE),
        (Desired.PAUSED, Actual.TRAINING, {}, Action.NOTHING),
        (Desired.PAUSED, Actual.PAUSED, {}, Action.NOTHING),
        (Desired.PAUSED, Actual.PAUSED, {"changed": True}, Action.CHANGE),
        (Desired.PAUSED, Actual.TRAINING, {"changed": True}, Action.NOTHING),
        (Desired.RUNNING, Actual.PAUSED, {"waits": True}, Action.NOTHING),
        (Desired.RUNNING, Actual.PAUSED, {}, Action.RESUME),
        (Desired.PENDING, Actual.PAUSED, {}, Action.NOTHING),
        (Desired.RUNNING, Actual.TRAINING, {}, Action.NOTHING),
    ],
)
def test_waiting_pausing_and_going_on(phase, doing, facts, move):
    assert next_action(phase, doing, **facts) is move
