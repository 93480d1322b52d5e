"""Trials and validations that share resources never wait for each other forever or needlessly."""

from __future__ import annotations

import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

from tests.support.fakes import FakeExecutor
from tests.support.schedulers import MODES, asha, pbt, promotion
from tests.support.sweeps import LENGTH, Counting, sweep
from tunekit._ray.queues import Queues
from tunekit.core.shares import Shares

pytestmark = pytest.mark.sampled(2)

# One GPU, or one CPU, that all need --------------------------------------------------------------

# Seconds of the sweep's clock after which it is taken for one that never ends.
NEVER = 1000.0


class Shared(FakeExecutor):
    """Its attempts run when no trial holds the GPU; trials start when no attempt does.

    A trial that waits gets it first. One that ends holds it until Tune has worked on.
    """

    def take_turns_with(self, local):
        self.actors = local.controller._actor_manager
        self.actors._slots = lambda: 1
        self.line = []

    def capacity(self, promised):
        return 0

    def start(self, attempt, *, host=None):
        self.started.append(attempt)
        self._live[attempt.id] = attempt
        self.line.append(attempt)

    def unplaced(self):
        return sum(attempt.id in self._live for attempt in self.line)

    def poll(self):
        assert self._clock.monotonic() < NEVER, "the sweep does not end"
        yield from super().poll()
        self.line = [attempt for attempt in self.line if attempt.id in self._live]
        held = self.actors.num_live_actors or self.actors._events
        if self.line and not held and len(self._live) == len(self.line):
            attempt = self.line.pop(0)
            self.started.pop()
            super().start(attempt)
            yield from super().poll()
        room = int(len(self._live) == len(self.line))
        self.actors._slots = lambda: room


BASES = {
    "fifo": FIFOScheduler,
    "asha": asha,
    "pbt": lambda: pbt(time_attr="time_total_s", perturbation_interval=3, quantile_fraction=0.25),
}


def on_workstation(folder, base, *, told=True, reuse=False, **options):
    """A sweep of four trials; ``told``: it is known that nothing fits alongside a trial."""
    if base == "pbt":
        options["param_space"] = {"lr": 0.1}
    ran = sweep(folder, BASES[base](), trials=4, executor_class=Shared, run=False, **options)
    ran.executor.take_turns_with(ran.sweep)
    if told:
        ran.validation.shares = Shares(at_once=1, exclusive=True)
    ran.executor.in_trials = False
    ran.sweep.controller._reuse_actors = reuse or options.get("on_pending") == "wait-reused"
    return ran


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("on_pending", MODES)
@pytest.mark.parametrize("base", BASES)
def test_sweep_on_one_shared_slot_ends_with_each_checkpoint_validated_or_skipped(
    tmp_path, base, on_pending, told
):
    ran = on_workstation(tmp_path, base, on_pending=on_pending, told=told)
    ran.sweep.run(most=100_000)
    assert all(trial.status == "TERMINATED" for trial in ran.trials)
    counts = ran.validation.summary()
    saved = sum(counts.values())
    assert saved >= len(ran.trials)
    stopped = counts["skipped"] if base == "asha" else 0
    assert counts["validated"] == saved - stopped, "each, and once"
    if told:
        # What the trials and the validations take, one after the other, and hardly more.
        work = sum(ran.lengths().values()) if base != "pbt" else saved
        assert ran.clock.monotonic() < 1.2 * (work + saved)


class StopAll(tune.Stopper):
    """End the sweep with its third report, while other trials wait for the slot."""

    reports = 0

    def __call__(self, trial_id, result):
        self.reports += 1
        return result["training_iteration"] >= LENGTH

    def stop_all(self):
        return self.reports >= 3


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("on_pending", ["continue", "wait"])
@pytest.mark.parametrize("others", ["stopped", "not suggested"])
def test_idle_process_kept_for_reuse_makes_room_for_validations(tmp_path, others, on_pending, told):
    options = {"stop": StopAll()} if others == "stopped" else {"max_concurrent": 1}
    ran = on_workstation(tmp_path, "fifo", on_pending=on_pending, told=told, reuse=True, **options)
    ran.sweep.run(most=60_000)
    assert ran.validation.validator.pool.idle
    assert len(ran.trials) == 4 or others == "stopped"


class Sized(Counting):
    """Takes as many CPUs as its configuration says."""

    @classmethod
    def default_resource_request(cls, config):
        return tune.PlacementGroupFactory([{"CPU": config["size"]}])


@pytest.mark.parametrize("on_pending", ["continue-reused", "wait-reused"])
def test_idle_process_kept_for_reuse_makes_room_for_trials_of_another_size(tmp_path, on_pending):
    space = {"size": tune.grid_search([1, 2, 1, 2])}
    options = {"trainable": Sized, "trials": 1, "slots": 1, "param_space": space}
    ran = sweep(tmp_path, promotion(), on_pending=on_pending, **options)
    assert all(trial.status == "TERMINATED" for trial in ran.trials)


@pytest.fixture
def released(monkeypatch):
    """The IDs of the trials that have released their slots before their end, in order."""
    trial_ids, release = [], Queues.release_slot

    def watched(queues, trial):
        if not queues._tune.sweep.queues[trial.trial_id].over:
            trial_ids.append(trial.trial_id)
        release(queues, trial)

    monkeypatch.setattr(Queues, "release_slot", watched)
    return trial_ids


def test_one_waiting_trial_releases_its_slot_if_one_trial_needs_a_slot(tmp_path, released):
    """Validations have dedicated resources; two trials reach their next rung together."""
    ran = sweep(
        tmp_path,
        ASHAScheduler(max_t=4, grace_period=1, reduction_factor=2),
        on_pending="auto-beside",
        trials=3,
        slots=2,
        training_s=lambda trial, method: {"train": 1.0, "start": 5.0}.get(method, 0.0),
        validate=lambda attempt: {"accuracy": 0.5},  # none is stopped
        validation_s=lambda attempt: 20.0,
    )
    assert all(trial.status == "TERMINATED" for trial in ran.trials)
    assert ran.lengths() == {0: 4, 1: 4, 2: 4}
    assert len(released) == 1


def test_trial_that_takes_over_a_kept_process_has_a_folder(tmp_path):
    """Tune also hands one to a trial that it has not scheduled, and then fails for want of one."""
    ran = sweep(tmp_path, trials=2, reuse_actors=True, run=False)
    controller = ran.sweep.controller
    while not controller._pending_trials:
        controller._maybe_update_trial_queue()
    [trial, *_] = controller._pending_trials
    assert trial not in controller._staged_trials
    controller._maybe_reuse_cached_actor(trial)
    assert trial.storage.trial_dir_name, "it is handed over with this storage"
    ran.sweep.run()
    assert {one.status for one in ran.trials} == {"TERMINATED"}


def test_waiting_trial_releases_its_slot_if_validations_cannot_start_without_it(tmp_path, released):
    """All actors wait for scores, which need the actors' resources."""
    settings = {"max_in_flight": 1}
    ran = sweep(tmp_path, on_pending="wait", trials=2, slots=2, settings=settings, run=False)
    # No CPU is free while two trials hold theirs: a validation will never begin.
    ran.executor._delay = lambda attempt: float("inf") if ran.sweep.running >= 2 else 0.0
    poll = ran.executor.poll

    def poll_with_resources():
        """Whenever a process of a trial has ended, what waits for resources gets them."""
        if ran.sweep.running < 2:
            ran.executor.hurry()
        return poll()

    ran.executor.poll = poll_with_resources
    ran.sweep.run(most=100_000)
    assert all(t.status == "TERMINATED" for t in ran.trials)
    assert set(ran.lengths().values()) == {9} and released
    assert ran.validation.summary()["validated"] == 2 * 9
