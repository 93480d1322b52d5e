"""While scores are pending, trials train, wait or release slots so that nothing starves."""

from __future__ import annotations

import pytest

from tunekit.core.commands import NotifyStarved, Record, Release, Start, StartAgain, Stay, Train
from tunekit.core.pool import Pool
from tunekit.core.queue import Queue
from tunekit.core.report import Report, Wants
from tunekit.core.shares import Shares
from tunekit.core.validation import Request
from tunekit.core.waiting import Abilities, Situation, Waiting, WaitingRules, WaitingTrial

SHARED = Abilities(competes=True)
HOSTS = Abilities(hosts=True, competes=True)
RESUMES = Abilities(resumes=True, hands_over=True, competes=True)


ALONGSIDE = Shares(at_once=4, alongside=3)


def machine(shares=ALONGSIDE, *, most=None, requests="", **rules) -> Waiting:
    """Return the machine of a sweep whose trials have requested validations that decide."""
    waiting = Waiting(WaitingRules(**rules), Pool(max_in_flight=most), shares)
    for trial_id in requests:
        waiting.pool.submit(Request(trial_id, iteration=1, used=True, decision_point=1.0), 0.0)
    return waiting


def pending(trial_id="a", *, saved=True, **known) -> WaitingTrial:
    """Return a trial that has reported once, whose score decides."""
    report = Report(iteration=1, decision_point=1.0, wants=Wants.SCORE, saves=True)
    if saved:
        report.saved("checkpoint")
    return WaitingTrial(trial_id, Queue([report]), **known)


def kinds(commands) -> list[type]:
    return [type(one) for one in commands]


# What a trial does --------------------------------------------------------------------------------


FOR_OTHERS, LEAVES = Situation(others_wait=True, reuses=True), Situation(leaving={"a"})
IDLE = WaitingTrial("a", Queue())

NEXT = {
    "trains without a pending report": (IDLE, Situation(), [Train]),
    "starts again without a pending report": (
        IDLE._replace(has_process=False),
        Situation(),
        [StartAgain],
    ),
    "trains if the scheduler decides again": (pending(), Situation(), [Train]),
    "waits for its last decision": (pending(decides_again=False), Situation(), [Stay]),
    "stays without a process": (
        pending(decides_again=False, has_process=False),
        Situation(),
        [],
    ),
    "releases to a new trial": (pending(can=RESUMES), FOR_OTHERS, [Release]),
    "waits until it is saved": (pending(can=RESUMES, saved=False), FOR_OTHERS, [Stay]),
    "leaves its node": (pending(can=RESUMES), LEAVES, [Release]),
    "waits until it is saved to leave": (pending(can=RESUMES, saved=False), LEAVES, [Stay]),
    "cannot leave its node": (pending(), LEAVES, [Train]),
    # Its loop waits in the middle of an iteration, which would be lost with its process.
    "loop waits": (pending(asks_until=9.0), Situation(), [Stay]),
    "loop waits no longer": (pending(asks_until=9.0), Situation(now=9.0), [Train]),
    "loop waits for its save": (pending(asks_until=0.0, saved=False), Situation(now=9.0), [Stay]),
    "loop does not release": (pending(asks_until=9.0, can=RESUMES), FOR_OTHERS, [Stay]),
    "loop leaves its node": (pending(asks_until=9.0, can=RESUMES), LEAVES, [Release]),
    "loop has nothing to wait for": (IDLE._replace(asks_until=9.0), Situation(), [Train]),
}


@pytest.mark.parametrize(("trial", "situation", "expected"), NEXT.values(), ids=NEXT)
def test_trial_trains_waits_or_releases_its_slot(trial, situation, expected):
    assert kinds(machine().next(trial, situation)) == expected


def test_trial_whose_process_a_validation_has_killed_releases_its_slot():
    waiting = machine()
    waiting.pool.ended_hosts.add("a")
    assert kinds(waiting.next(pending(), Situation())) == [Release]


def test_wait_of_a_trial_is_recorded_once_when_the_trial_trains_again_or_ends():
    waiting, trial = machine(on_pending="wait"), pending()
    assert kinds(waiting.next(trial, Situation(now=1.0))) == [Stay]
    assert kinds(waiting.next(trial, Situation(now=3.0))) == [Stay] and waiting.waits("a")
    commands = waiting.next(WaitingTrial("a", Queue()), Situation(now=4.5))
    assert kinds(commands) == [Record, Train] and commands[0].event.seconds == 3.5
    assert waiting.stops_waiting("a", 6.0) == [] and not waiting.waits("a")
    waiting.next(trial, Situation(now=7.0))
    [command] = waiting.stops_waiting("a", 9.0)
    assert command.event.seconds == 2.0


# Where validations run ----------------------------------------------------------------------------

IN_TRIALS = Situation(in_trials=True, typical=HOSTS, runs=True)


def started(waiting, situation, capacity=0, trials="") -> list[tuple[str, bool]]:
    in_place = [pending(one, can=HOSTS, decides_again=False) for one in trials]
    commands = waiting.start(situation, capacity, in_place)
    assert kinds(commands) == [Start] * len(commands)
    return [(one.attempt.request.trial_id, one.in_trial) for one in commands]


STARTS = {
    "in free resources": (Situation(), 2, "", [("a", False), ("b", False)]),
    "one waits for resources": (Situation(), 0, "", [("a", False)]),
    "in waiting trials": (IN_TRIALS, 0, "ab", [("a", True), ("b", True)]),
    "none if trials will wait soon": (IN_TRIALS, 0, "", []),
    "in a waiting trial and free resources": (IN_TRIALS, 1, "b", [("b", True), ("a", False)]),
    "not in a trial that leaves": (IN_TRIALS._replace(leaving={"a"}), 0, "ab", [("b", True)]),
}


@pytest.mark.parametrize(
    ("situation", "capacity", "trials", "expected"), STARTS.values(), ids=STARTS
)
def test_validations_start_in_waiting_trials_or_in_free_resources(
    situation, capacity, trials, expected
):
    assert started(machine(requests="ab"), situation, capacity, trials) == expected


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        (None, []),  # it trains on: the score decides nothing
        (float("inf"), [("a", True)]),
        (70.0, [("a", True)]),
        (50.0, []),  # the validation takes longer than the loop waits
        (0.0, []),
    ],
)
def test_trial_hosts_a_validation_that_decides_nothing_if_its_loop_waits_long_enough(
    until, expected
):
    waiting = machine()
    waiting.pool.durations.runs.append(60.0)
    waiting.pool.submit(Request("a", iteration=2, used=False), 0.0)
    report = Report(iteration=2, wants=Wants.SCORE, saves=True)
    report.saved("checkpoint")
    trial = WaitingTrial("a", Queue([report]), can=HOSTS, asks_until=until)
    commands = waiting.start(IN_TRIALS, 0, [trial])
    assert [(one.attempt.request.trial_id, one.in_trial) for one in commands] == expected


def test_trials_host_no_validation_with_on_pending_continue():
    waiting = machine(requests="a", on_pending="continue")
    assert started(waiting, IN_TRIALS, 1, "a") == [("a", False)]


# Resources ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "typical", "requests", "expected"),
    [
        (Shares(at_once=4, alongside=3), SHARED, "", 3),
        (Shares(at_once=4, alongside=3), HOSTS, "", 4),  # they validate themselves
        (Shares(), Abilities(), "", None),
        (Shares(at_once=4, alongside=3), SHARED, "a", 0),
        (Shares(at_once=4), Abilities(), "a", None),  # validations need other resources
        (Shares(exclusive=True), SHARED, "a", 0),
    ],
)
def test_number_of_trial_slots_leaves_resources_to_validations(shares, typical, requests, expected):
    assert machine(shares, requests=requests).slots(Situation(typical=typical)) == expected


def test_trials_keep_their_slots_during_validations_if_actors_are_reused():
    waiting, situation = machine(requests="a"), Situation(typical=RESUMES, reuses=True)
    assert waiting.slots(situation) == 3


def test_idle_evaluators_are_not_kept_if_trials_host_validations():
    shares = Shares(at_once=4, alongside=3, validations=1)
    asked = [machine(shares).evaluators_kept(Situation(typical=t)) for t in (SHARED, HOSTS)]
    assert asked == [1, 0]
    assert machine(shares).evaluators_kept(Situation()) is None
    assert machine(shares, requests="a").evaluators_kept(Situation(typical=SHARED)) is None


@pytest.mark.parametrize(("now", "processes", "relieved"), [(1.9, 2, 0), (2.0, 2, 1), (2.0, 3, 0)])
def test_longest_waiting_trial_releases_its_slot_if_all_trials_starve_validations(
    now, processes, relieved
):
    waiting, trials = machine(requests="ab", most=1), [pending("a"), pending("b")]
    for trial, since in zip(trials, (-1.0, 0.0), strict=True):
        waiting.next(trial._replace(decides_again=False), Situation(now=since))
    waiting.pool.start(0, 0.0)
    waiting.pool.set_unplaced(1, 0.0)
    situation = Situation(now=now, typical=SHARED)
    commands = waiting.relieve(situation, trials[::-1], processes)
    assert commands == [NotifyStarved("a", processes)] * relieved
    if relieved:
        assert kinds(waiting.next(trials[0], situation)) == [Release]
        assert waiting.relieve(situation, trials, processes) == []


def test_trial_that_cannot_resume_trains_on_if_its_waiting_loop_starves_validations():
    """Its slot cannot be released, because it cannot resume."""
    waiting = machine(requests="a", most=1)
    trial = pending("a", asks_until=float("inf"))
    trial.queue.append(Report(iteration=2))  # its newest, without a checkpoint
    waiting.pool.start(0, 0.0)
    waiting.pool.set_unplaced(1, 0.0)
    situation = Situation(now=2.0, typical=SHARED)
    assert waiting.relieve(situation, [trial], 1) == [Train("a")]
    assert waiting.relieve(situation, [trial._replace(asks_until=None)], 1) == []
