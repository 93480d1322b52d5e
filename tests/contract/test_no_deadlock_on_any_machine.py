"""Any sweep on any machine ends, or is refused at its start."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import ray
from ray import train, tune
from ray.train.torch import TorchTrainer

import tunekit
from tests.support.fakes import FakeExecutor
from tests.support.schedulers import CASES, pbt
from tests.support.sweeps import Asking, Counting, sweep
from tunekit._ray import cluster
from tunekit._ray.capabilities import Capabilities
from tunekit._ray.tuner import settings_of, trial_bundles
from tunekit.core.shares import fits, total
from tunekit.driver.resources import share_cluster
from tunekit.errors import ConfigError

SCHEDULERS = {
    **{name: partial(CASES[name].make, None) for name in ("fifo", "asha", "hyperband")},
    "pbt": partial(pbt, time_attr="time_total_s", perturbation_interval=3, quantile_fraction=0.25),
}
# Seconds of the sweep's clock after which it is taken for one that never ends.
NEVER = 2000.0


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
        taken = [self.trial] * self.actors.num_live_actors + [self.need] * elsewhere
        return {name: most - total(*taken).get(name, 0) for name, most in self.machine.items()}

    def fits_in(self, place):
        return self.real.fits_in(place)

    def capacity(self, promised):
        return fits(self.free, promised, self.need) - len(self.line)

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
        while self.line and fits(self.free, (), self.need):
            super().start(self.line.pop(0))

    def close(self):
        self.in_trials = False


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
    ran = sweep(
        tmp_path,
        SCHEDULERS[base](),
        on_pending="auto",
        trainable=tune.with_resources(loop, tune.PlacementGroupFactory(bundles)),
        trials=4,
        executor_class=OnMachine,
        run=False,
        **({"param_space": {"lr": 0.1}} if base == "pbt" else {}),
    )
    ran.validation.shares = tuner.validation.shares
    ran.executor.on(machine, total(*bundles), real, ran.sweep)
    ran.sweep.run(most=50_000)
    assert all(trial.status == "TERMINATED" for trial in ran.trials)
    counts = ran.validation.summary()
    assert sum(counts.values()) == counts["validated"] + counts["skipped"] > 0
