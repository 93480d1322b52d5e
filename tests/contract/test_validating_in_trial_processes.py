"""A validation runs in the process of its waiting trial, unless it is sooner elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from tests.support.fakes import FakeExecutor
from tests.support.invariants import check_journal
from tests.support.modes import Mode
from tests.support.schedulers import asha, pbt, seed_all
from tests.support.sweeps import Plan, Ran
from tests.support.trainables import Endless
from tunekit.core.executor import AttemptEvent, Failed, HostEnded
from tunekit.core.validation import Attempt
from tunekit.journal.journal import events_in

LENGTH = 9


class InTrials(FakeExecutor):
    """Validations run in waiting trials, or elsewhere.

    Attributes:
        trials: Returns the trials.
        places: How many validations run elsewhere when no trial runs.
        room: The same, while trials run.
        elsewhere_s: How long a process takes to start elsewhere, in seconds.
        ends: Attempts that end a trial's process.
        hosts: The ID of the trial that each attempt runs in; None elsewhere.
    """

    trials: Callable[[], list[Trial]]
    places: int
    room: int
    elsewhere_s: float
    ends: set[str]

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.in_trials = True
        self.hosts: dict[str, str | None] = {}

    def capacity(self, promised: Any) -> int:
        if any(trial.status == "RUNNING" for trial in self.trials()):
            return max(0, self.room - sum(self.hosts[name] is None for name in self._live))
        return self.places - len(self._live) - sum(number for _, number in promised)

    def start(self, attempt: Attempt, *, host: Any = None) -> None:
        self._starts = lambda _: self.elsewhere_s if host is None else 0.0
        super().start(attempt, host=host)
        self.hosts[attempt.id] = host and host.trial_id

    def poll(self) -> Iterator[AttemptEvent]:
        for one in [one for one in self._live.values() if one.id in self.ends]:
            self.ends.discard(one.id)
            self.cancel(one)
            self.in_trials = False
            yield HostEnded(str(self.hosts[one.id]))
            yield Failed(one.id, "its process died")
        yield from super().poll()


def six(
    folder: Path, seconds: float, base: TrialScheduler | None = None, *, start_s: float = 0.0
) -> Plan:
    """Six trials, by ASHA by default; a validation takes so many seconds, an iteration one."""
    plan = Plan(folder, base or asha(), Mode.AUTO, trials=6)
    plan = plan.training(Endless, seconds={"train": 1.0, "start": start_s})
    plan = plan.validating(seconds=seconds, executor=InTrials)
    return plan.tuning(stop={"training_iteration": LENGTH})


def swept(
    plan: Plan,
    *,
    slots: int = 2,
    room: int = 0,
    elsewhere_s: float = 2.0,
    ends: Collection[str] = (),
) -> Ran:
    """Run so many trials at a time."""
    seed_all(0)
    ran = plan.training(slots=slots).start()
    known = {"trials": lambda: ran.sweep.trials, "places": slots, "ends": {*ends}}
    vars(ran.executor).update(known, room=room, elsewhere_s=elsewhere_s)
    ran.sweep.run(most=50_000)
    lives = check_journal(events_in(ran.home))
    assert lives.running == 0 and all(t.status == "TERMINATED" for t in ran.trials)
    return ran


def in_own_trials(ran: Ran) -> list[bool]:
    """Return of each validation whether it ran in the process of its trial."""
    return [ran.executor.hosts[one.id] == one.request.trial_id for one in ran.executor.started]


def test_short_validations_run_in_their_trials_and_decide_as_inline(tmp_path):
    ran = swept(six(tmp_path / "short", 0.01), slots=1)
    stock = replace(six(tmp_path / "inline", 0.01), mode=Mode.WAIT)
    inline = swept(stock.validating(executor=FakeExecutor), slots=1)
    assert ran.heard.results == inline.heard.results
    assert all(in_own_trials(ran))
    assert {i: set(s) for i, s in ran.validated().items()} == {
        i: set(range(1, length + 1)) for i, length in ran.lengths().items()
    }


@pytest.mark.parametrize(("start_s", "elsewhere"), [(1.0, True), (9.0, False)])
def test_process_for_a_validation_is_started_elsewhere_only_if_it_starts_soon(
    tmp_path, start_s, elsewhere
):
    ran = swept(six(tmp_path, 0.5, start_s=start_s), room=4)
    assert (None in ran.executor.hosts.values()) == elsewhere


@pytest.mark.parametrize("base", [asha, FIFOScheduler], ids=["asha", "fifo"])
@pytest.mark.parametrize("room", [0, 1])
def test_validations_with_where_trial_all_run_in_the_processes_of_their_trials(
    tmp_path, room, base
):
    ran = swept(six(tmp_path, 1.0, base()).validating(where="trial"), room=room)
    assert all(in_own_trials(ran))
    assert {one.request.trial_id for one in ran.executor.started} == {
        trial.trial_id for trial in ran.trials
    }


def test_waiting_trial_hosts_its_validation_and_a_training_trial_does_not(tmp_path):
    """Elsewhere, a process would have to start, and nothing would use the trial's slot."""
    ran = swept(six(tmp_path, 1.0), room=1)
    begun = [t.trial_id for t in sorted(ran.trials, key=lambda trial: trial.trial_id)]
    started = ran.executor.started
    first = next(n for n, one in enumerate(started) if one.request.trial_id == begun[-1])
    others_wait = [one for one in started[:first] if one.request.iteration in (1, 3)]
    assert len(others_wait) > 4
    assert {ran.executor.hosts[one.id] for one in others_wait} == set(begun[:-1])
    # The last ones train on while they are validated elsewhere.
    assert None in {ran.executor.hosts[one.id] for one in started[first:]}


def swept_apart(plan: Plan) -> Ran:
    """Validations have resources of their own, and a process that runs already."""
    return swept(replace(plan, mode=Mode.AUTO_BESIDE), room=1, elsewhere_s=0.0)


def test_trial_trains_while_validated_elsewhere_if_other_trials_start_slowly(tmp_path):
    """None is stopped; to start another in its place would take longer than its score."""
    plan = six(tmp_path, 2.0, start_s=9.0)
    ran = swept_apart(plan.validating(lambda attempt: {"accuracy": 0.5}, when="decisions"))
    where = [ran.executor.hosts[one.id] for one in ran.executor.started]
    assert where.count(None) > 6, "the first one may be short, for all that is known"
    assert ran.clock.monotonic() < 3 * (9.0 + LENGTH + 3 * 2.0) - 6.0, "as inline, less what waited"


def test_validation_of_the_last_checkpoint_does_not_keep_the_slot_from_other_trials(tmp_path):
    ran = swept_apart(six(tmp_path, 2.0, FIFOScheduler()).validating(when=LENGTH))
    hosts = list(ran.executor.hosts.values())
    assert hosts.count(None) >= 3, hosts
    assert ran.clock.monotonic() <= 3 * LENGTH + 2.0 + 2.0 + 0.1


@pytest.mark.parametrize(("seconds", "trains_on"), [(0.01, False), (0.1, True)])
def test_validations_with_their_own_resources_do_not_slow_training(tmp_path, seconds, trains_on):
    """Both are short compared with the start of a process, and one with an iteration, too."""
    ran = swept_apart(six(tmp_path, seconds, FIFOScheduler(), start_s=2.0))
    elsewhere = [host for host in ran.executor.hosts.values() if host is None]
    assert (len(elsewhere) > 6 * LENGTH / 2) == trains_on
    assert ran.clock.monotonic() <= 3 * (2.0 + LENGTH) * 1.02


@pytest.mark.parametrize(("seconds", "room"), [(0.01, 0), (0.01, 1), (1.0, 0)])
def test_trial_validates_each_checkpoint_itself_if_no_score_decides(tmp_path, seconds, room):
    """As inline; short ones also where others could run elsewhere, in a new process."""
    ran = swept(six(tmp_path, seconds, FIFOScheduler()), room=room)
    assert all(in_own_trials(ran))
    assert [set(s) for s in ran.validated().values()] == [set(range(1, LENGTH + 1))] * 6
    inline_s = 6 * LENGTH * (1.0 + seconds) / 2
    assert ran.clock.monotonic() <= inline_s + 0.1, "nothing starts"


def test_trial_does_not_wait_for_validations_elsewhere_if_no_score_decides(tmp_path):
    ran = swept(six(tmp_path, 0.5, FIFOScheduler()), room=1)
    hosts = Counter(ran.executor.hosts[one.id] is None for one in ran.executor.started)
    assert hosts[True] > 5 and hosts[False] > 5, hosts
    assert ran.validation.timing()["trials_waited_s"] <= 0.5 * hosts[False] + 1e-6


@pytest.mark.parametrize("seconds", [0.01, 1.0])
def test_trial_whose_process_ends_in_a_validation_continues_from_its_checkpoint(tmp_path, seconds):
    expected = swept(six(tmp_path / "undisturbed", seconds))
    best = max(expected.trials, key=lambda t: t.last_result["accuracy"])
    victim = next(
        one
        for one in expected.executor.started
        if (one.request.trial_id, one.request.iteration) == (best.trial_id, 3)
    )
    starts: Counter[str] = Counter()

    class Starts(tune.Callback):
        def on_trial_start(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
            starts[trial.trial_id] += 1

    ran = swept(six(tmp_path / "hit", seconds).calling(Starts()), ends={victim.id})
    assert not ran.executor.ends, "its process has ended"
    hit = next(t for t in ran.trials if t.trial_id == ran.executor.hosts[victim.id])
    assert hit.num_failures == 0
    assert starts[hit.trial_id] == 2 and set(starts.values()) == {1, 2}
    assert all(ran.validated().values())


@pytest.mark.parametrize("base", ["asha", "pbt-sync"])
def test_trials_that_wait_for_scores_host_every_validation_but_the_last(tmp_path, base):
    if base == "asha":
        ran = swept(replace(six(tmp_path, 1.0), mode=Mode.WAIT))
    else:
        population = six(tmp_path, 0.01, pbt(perturbation_interval=3, synch=True))
        ran = swept(population.tuning(param_space={"lr": 0.1}), slots=6)
        assert check_journal(events_in(ran.home)).exploits
    for attempt in ran.executor.started:
        host, last = ran.executor.hosts[attempt.id], attempt.request.iteration == LENGTH
        assert host is not None or last
