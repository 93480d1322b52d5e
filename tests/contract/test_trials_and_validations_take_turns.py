"""Any sweep on any machine ends or is refused at its start, and nothing in it waits needlessly."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import train, tune
from ray.train.torch import TorchTrainer
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tests.support.fakes import FakeExecutor
from tests.support.local_sweep import index_of
from tests.support.modes import MODES, Mode
from tests.support.schedulers import CASES, pbt, promotion
from tests.support.sweeps import Plan, Ran
from tests.support.trainables import LENGTH, Asking, Counting
from tunekit._ray import cluster
from tunekit._ray.capabilities import Capabilities
from tunekit._ray.queues import Queues
from tunekit._ray.tuner import settings_of, trial_bundles
from tunekit.core.shares import Shares, fits, total
from tunekit.driver.resources import share_cluster
from tunekit.errors import ConfigError

pytestmark = pytest.mark.sampled(2)

# Seconds of the sweep's clock after which it is taken for one that never ends.
NEVER = 2000.0

SCHEDULERS = {
    **{name: partial(CASES[name].make, None) for name in ("fifo", "asha", "hyperband")},
    "pbt": partial(pbt, time_attr="time_total_s", perturbation_interval=3, quantile_fraction=0.25),
}


class OnMachine(FakeExecutor):
    """Validations that wait until resources are free next to the trials."""

    def on(self, machine, trial, real, local):
        self.machine, self.trial, self.real = machine, trial, real
        self.in_trials = real.in_trials
        self.line, self.hosted = [], set()
        self.actors = actors = local.controller._actor_manager
        actors._slots = lambda: actors.num_live_actors + fits(self.free, (), self.trial)

    @property
    def need(self):
        return self.real.need

    @property
    def free(self):
        elsewhere = len(self._live.keys() - self.hosted) - len(self.line)
        taken = [self.trial] * self.actors.num_live_actors + [self.real.need] * elsewhere
        return {name: most - total(*taken).get(name, 0) for name, most in self.machine.items()}

    def fits_in(self, place):
        return self.real.fits_in(place)

    def capacity(self, promised):
        return fits(self.free, promised, self.real.need) - len(self.line)

    def unplaced(self):
        return len(self.line)

    def start(self, attempt, *, host=None):
        if host is not None:
            self.hosted.add(attempt.id)
            super().start(attempt)
        else:
            self._live[attempt.id] = attempt
            self.line.append(attempt)

    def poll(self):
        assert self._clock.monotonic() < NEVER, "the sweep does not end"
        yield from super().poll()
        self.line = [one for one in self.line if one.id in self._live]
        while self.line and fits(self.free, (), self.real.need):
            super().start(self.line.pop(0))

    def close(self):
        self.in_trials = False


def four(folder, base, mode) -> Plan:
    """A sweep of four trials."""
    plan = Plan(folder, SCHEDULERS[base](), mode, trials=4)
    return plan.tuning(param_space={"lr": 0.1}) if base == "pbt" else plan


def start_on(plan, machine, trial, real, shares) -> Ran:
    """Start a sweep on a machine.

    Args:
        plan: The sweep.
        machine, trial: The resources that there are, and that a trial takes.
        real: The real executor of its validations, which says what these need.
        shares: How they share the machine, if that is known.
    """
    ran = plan.validating(executor=OnMachine).start()
    ran.validation.shares = shares or ran.validation.shares
    ran.executor.on(machine, trial, real, ran.sweep)
    return ran


# Any machine -------------------------------------------------------------------------------------


def scaling(workers: int, gpus: int) -> train.ScalingConfig:
    each = {"CPU": 1.0, **({"GPU": gpus / workers} if gpus else {})}
    return train.ScalingConfig(num_workers=workers, use_gpu=bool(gpus), resources_per_worker=each)


def demands(kind: str, size: str, cpus: int, gpus: int) -> tuple[Any, dict[str, Any]]:
    """Return a trainable, and the settings of validations that need less, as much or more."""
    smaller = {"fn": lambda checkpoint: {}, "ray_remote_kwargs": {"num_cpus": 0.5}}
    if kind == "trainer":
        workers = min(cpus, 2)
        trainable = TorchTrainer(lambda config: None, scaling_config=scaling(workers, gpus))
        group = scaling(workers + (size == "larger"), gpus)
        by_workers = tunekit.distributed.TrainerValidation(lambda config: {}, group)
        same = {"fn": by_workers, "ray_remote_kwargs": {"num_cpus": 0}}
    else:
        trainable = tune.with_resources(
            Counting if kind == "class" else lambda config: None, {"CPU": 1, "GPU": gpus}
        )
        needs = {"num_cpus": 1 + (size == "larger"), "num_gpus": gpus}
        same = {**smaller, "ray_remote_kwargs": needs}
    return trainable, smaller if size == "smaller" else same


def test_sweep_ends_if_loop_waits_for_score_that_no_decision_needs(tmp_path, monkeypatch):
    """No decision needs the score, and only the trial itself can compute it."""
    case = (1, 0, "equal", "class", "asha", "auto", Asking)
    test_sweep_on_any_machine_ends_or_is_refused_at_its_start(tmp_path, monkeypatch, *case)


@pytest.mark.sampled(36)
@pytest.mark.parametrize("loop", [Counting, Asking])
@pytest.mark.parametrize("where", ["auto", "elsewhere"])
@pytest.mark.parametrize("base", SCHEDULERS)
@pytest.mark.parametrize("kind", ["function", "class", "trainer"])
@pytest.mark.parametrize("size", ["smaller", "equal", "larger"])
@pytest.mark.parametrize("gpus", [0, 1])
@pytest.mark.parametrize("cpus", [1, 2, 4])
def test_sweep_on_any_machine_ends_or_is_refused_at_its_start(
    tmp_path, monkeypatch, cpus, gpus, size, kind, base, where, loop
):
    machine = {"CPU": float(cpus), "GPU": float(gpus)}
    if kind == "function" and base in ("fifo", "asha"):  # it never asks for its checkpoint
        monkeypatch.setattr(Capabilities, "can_resume", lambda self, trial: False)
    trainable, needs = demands(kind, size, cpus, gpus)
    tuner = tunekit.Tuner(
        trainable,
        tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
        run_config=tune.RunConfig(name="refused", storage_path=str(tmp_path)),
        validation_config=tunekit.ValidationConfig(where=where, **needs),
    )
    settings, real = settings_of(tuner), tuner.validation.executor
    bundles = trial_bundles(settings.trainable, {})
    needed = (total(*bundles), real.need)
    fit = all(fits(machine, (), need) for need in needed)
    with monkeypatch.context() as on_machine:
        on_machine.setattr(ray, "is_initialized", lambda: True)
        on_machine.setattr(ray, "cluster_resources", lambda: machine)
        on_machine.setattr(cluster, "cannot_grow", lambda: True)
        with nullcontext() if fit else pytest.raises(ConfigError) as refused:
            share_cluster(settings, tuner.validation)
    if not fit:
        lacking = {name for need in needed for name in need if need[name] > machine.get(name, 0)}
        assert lacking and all(name in str(refused.value) for name in lacking)
        return
    asks = tune.with_resources(loop, tune.PlacementGroupFactory(bundles))
    plan = four(tmp_path, base, Mode.AUTO).training(asks)
    ran = start_on(plan, machine, total(*bundles), real, tuner.validation.shares)
    ran.sweep.run(most=50_000)
    assert all(trial.status == "TERMINATED" for trial in ran.trials)
    counts = ran.validation.summary()
    assert sum(counts.values()) == counts["validated"] + counts["skipped"] > 0


# One CPU that all need ---------------------------------------------------------------------------


def start_on_workstation(plan, told) -> Ran:
    """``told``: it is known that nothing fits alongside a trial."""
    cpu = {"CPU": 1.0}
    validator = SimpleNamespace(in_trials=False, need=cpu, fits_in=lambda place: False)
    shares = Shares(at_once=1, exclusive=True) if told else None
    return start_on(plan, cpu, cpu, validator, shares)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("base", ["fifo", "asha", "pbt"])
def test_sweep_on_one_shared_slot_ends_with_each_checkpoint_validated_or_skipped(
    tmp_path, base, mode, told
):
    ran = start_on_workstation(four(tmp_path, base, mode), told)
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
@pytest.mark.parametrize("mode", [Mode.CONTINUE, Mode.WAIT])
@pytest.mark.parametrize("others", ["stopped", "not suggested"])
def test_idle_process_kept_for_reuse_makes_room_for_validations(tmp_path, others, mode, told):
    plan = four(tmp_path, "fifo", mode).tuning(reuse_actors=True)
    stopped = others == "stopped"
    plan = plan.tuning(stop=StopAll()) if stopped else plan.tuning(max_concurrent=1)
    ran = start_on_workstation(plan, told)
    ran.sweep.run(most=60_000)
    assert ran.validation.validator.pool.idle
    assert len(ran.trials) == 4 or stopped


class Sized(Counting):
    """Takes as many CPUs as its configuration says."""

    @classmethod
    def default_resource_request(cls, config):
        return tune.PlacementGroupFactory([{"CPU": config["size"]}])


@pytest.mark.parametrize("mode", [Mode.CONTINUE_REUSED, Mode.WAIT_REUSED])
def test_idle_process_kept_for_reuse_makes_room_for_trials_of_another_size(tmp_path, mode):
    space = {"size": tune.grid_search([1, 2, 1, 2])}
    plan = Plan(tmp_path, promotion(), mode, trials=1).training(Sized, slots=1)
    ran = plan.tuning(param_space=space).run()
    assert all(trial.status == "TERMINATED" for trial in ran.trials)


def test_one_waiting_trial_releases_its_slot_if_one_trial_needs_a_slot(tmp_path, monkeypatch):
    """Validations have dedicated resources; two trials reach their next rung together."""
    released, release = [], Queues.release_slot

    def watched(queues, trial):
        if not queues._tune.sweep.queues[trial.trial_id].over:  # it has not ended
            released.append(trial.trial_id)
        release(queues, trial)

    monkeypatch.setattr(Queues, "release_slot", watched)
    base = ASHAScheduler(max_t=4, grace_period=1, reduction_factor=2)
    plan = Plan(tmp_path, base, Mode.AUTO_BESIDE, trials=3)
    plan = plan.training(seconds={"train": 1.0, "start": 5.0}, slots=2)
    ran = plan.validating(lambda attempt: {"accuracy": 0.5}, seconds=20.0).run()  # none is stopped
    assert all(trial.status == "TERMINATED" for trial in ran.trials)
    assert ran.lengths() == {0: 4, 1: 4, 2: 4}
    assert len(released) == 1


def test_trial_that_released_its_slot_continues_before_new_trials_start(tmp_path):
    """Their processes have been requested before its own; the searcher needs its scores first."""
    starts = []

    def training_s(trial, method):
        if method == "start":
            starts.append(index_of(trial))
        return {"train": 1.0, "start": 5.0}.get(method, 0.0)

    base = ASHAScheduler(max_t=4, grace_period=1, reduction_factor=2)
    plan = Plan(tmp_path, base, Mode.AUTO_BESIDE, trials=24)
    plan.training(seconds=training_s, slots=2).validating(seconds=20.0).run()
    again = [n for n, one in enumerate(starts) if one in starts[:n]]
    assert again and again[0] < starts.index(12), "the last new trials start after the first scores"
    assert [starts[n] for n in again][-1] != starts[-1]


def test_trial_that_takes_over_a_kept_process_has_a_folder(tmp_path):
    """Tune also hands one to a trial that it has not scheduled, and then fails for want of one."""
    ran = Plan(tmp_path, trials=2).tuning(reuse_actors=True).start()
    controller = ran.sweep.controller
    while not controller._pending_trials:
        controller._maybe_update_trial_queue()
    [trial, *_] = controller._pending_trials
    assert trial not in controller._staged_trials
    controller._maybe_reuse_cached_actor(trial)
    assert trial.storage.trial_dir_name, "it is handed over with this storage"
    ran.sweep.run()
    assert {one.status for one in ran.trials} == {"TERMINATED"}


def test_waiting_trial_releases_its_slot_if_validations_cannot_start_without_it(tmp_path):
    """All actors wait for scores, which need the actors' resources."""
    plan = Plan(tmp_path, mode=Mode.WAIT, trials=2).training(slots=2)
    ran = plan.validating(max_in_flight=1).start()
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
    assert set(ran.lengths().values()) == {9}
    assert ran.validation.summary()["validated"] == 2 * 9
