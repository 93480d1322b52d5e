"""GPU memory that nothing uses is given back: seen with a double of torch.cuda, without a GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch  # noqa: F401  (its settings are kept and put back)

from tests.support.fakes import FakeClock
from tunekit._ray.process_state import release_gpu_memory
from tunekit.core.validation import Attempt, Request
from tunekit.validating import ray_executor
from tunekit.validating.process import Evaluator
from tunekit.validating.ray_executor import RayExecutor, _Actor, _Flight


class Cuda:
    """torch.cuda, as far as it is used here."""

    def __init__(self, used: bool):
        self.used, self.emptied = used, 0

    def is_initialized(self) -> bool:
        return self.used

    def empty_cache(self) -> None:
        assert self.used, "it would begin to use CUDA"
        self.emptied += 1

    def reset_peak_memory_stats(self) -> None:
        assert self.used


@pytest.fixture
def cuda(monkeypatch):
    def use(used: bool = True) -> Cuda:
        double = Cuda(used)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=double))
        return double

    return use


def test_a_process_that_has_not_used_a_gpu_does_not_begin_to(cuda, monkeypatch):
    double = cuda(used=False)
    release_gpu_memory()
    assert double.emptied == 0
    monkeypatch.delitem(sys.modules, "torch")
    release_gpu_memory()
    assert "torch" not in sys.modules


def test_what_nothing_refers_to_any_more_is_collected_before(cuda):
    double, freed = cuda(), []

    class Network:
        def __del__(self):
            freed.append(double.emptied)

    network = Network()
    network.optimizer = network  # a circle
    del network
    release_gpu_memory()
    assert freed == [0]


class Actor:
    """The handle of an evaluator's process; what is called on it is done at once."""

    def __init__(self):
        inside = Evaluator()
        self.release = SimpleNamespace(remote=inside.release)


@pytest.fixture
def evaluator(monkeypatch):
    """An executor whose only evaluator has just ended an attempt, and its clock."""
    clock = FakeClock()
    monkeypatch.setattr(ray_executor, "time", clock)
    executor = RayExecutor(lambda checkpoint: {}, {}, evaluators=1)
    one = _Actor(Actor(), None, up=True, calls=1)
    executor._actors.append(one)
    has_ended(executor, one)
    return executor, one, clock


def has_ended(executor, actor):
    actor.flight = _Flight(Attempt(Request("a", 1), 1), actor=actor)
    executor._end_flight(actor.flight)


def test_an_evaluator_gives_it_back_once_it_has_had_nothing_to_do_for_a_second(cuda, evaluator):
    double, (executor, one, clock) = cuda(), evaluator
    for second in (0.5, 0.4):
        clock.sleep(second)
        list(executor.poll())
    assert double.emptied == 0, "the next attempt may be about to start"
    for second in (0.2, 1.0, 5.0):
        clock.sleep(second)
        list(executor.poll())
    assert double.emptied == 1, "once, and it lives on"
    has_ended(executor, one)
    clock.sleep(1.1)
    list(executor.poll())
    assert double.emptied == 2
