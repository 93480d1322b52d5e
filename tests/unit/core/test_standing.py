"""What is to be done about a trial."""

import itertools

import pytest

from tunekit.core.standing import Doing, Move, Phase, next_move


@pytest.mark.parametrize("doing", [Doing.SAVING, Doing.ENDED])
@pytest.mark.parametrize("phase", Phase)
def test_a_trial_that_saves_or_has_ended_is_left_alone(phase, doing):
    for overwritten, changed, waits, gives_way in itertools.product([False, True], repeat=4):
        move = next_move(
            phase,
            doing,
            overwritten=overwritten,
            changed=changed,
            waits=waits,
            gives_way=gives_way,
        )
        assert move is Move.NOTHING


@pytest.mark.parametrize("doing", [d for d in Doing if d not in (Doing.SAVING, Doing.ENDED)])
def test_a_stop_goes_before_everything_else(doing):
    assert next_move(Phase.ENDED, doing, overwritten=True, waits=True) is Move.STOP


@pytest.mark.parametrize("doing", [Doing.TRAINING, Doing.HELD, Doing.PAUSED])
def test_other_weights_are_taken_up_whatever_it_does(doing):
    assert next_move(Phase.PAUSED, doing, overwritten=True, waits=True) is Move.CHANGE


def test_what_starts_is_left_to_start():
    assert next_move(Phase.PAUSED, Doing.STARTING, overwritten=True) is Move.NOTHING


@pytest.mark.parametrize(
    ("phase", "doing", "facts", "move"),
    [
        (Phase.RUNNING, Doing.HELD, {}, Move.TRAIN),
        (Phase.RUNNING, Doing.HELD, {"waits": True}, Move.NOTHING),
        (Phase.RUNNING, Doing.HELD, {"waits": True, "gives_way": True}, Move.GIVE_WAY),
        (Phase.PAUSED, Doing.HELD, {"waits": True}, Move.PAUSE),
        (Phase.PAUSED, Doing.TRAINING, {}, Move.NOTHING),
        (Phase.PAUSED, Doing.PAUSED, {}, Move.NOTHING),
        (Phase.PAUSED, Doing.PAUSED, {"changed": True}, Move.CHANGE),
        (Phase.PAUSED, Doing.TRAINING, {"changed": True}, Move.NOTHING),
        (Phase.RUNNING, Doing.PAUSED, {"waits": True}, Move.NOTHING),
        (Phase.RUNNING, Doing.PAUSED, {}, Move.RESUME),
        (Phase.PENDING, Doing.PAUSED, {}, Move.NOTHING),
        (Phase.RUNNING, Doing.TRAINING, {}, Move.NOTHING),
    ],
)
def test_waiting_pausing_and_going_on(phase, doing, facts, move):
    assert next_move(phase, doing, **facts) is move
