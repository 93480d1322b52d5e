"""A driver that a signal ends does not wait for a Ray that the signal has ended, too."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from typing import Any

import pytest
import ray
from ray.exceptions import RaySystemError

from tunekit._ray import interruption
from tunekit._ray.interruption import RayWatch, answers, ended_by_sigterm

GCS, RAYLET = ("10.0.0.1", 6379), ("10.0.0.1", 7000)


def test_a_ray_that_cannot_be_looked_after_ends_no_sweep(caplog, monkeypatch):
    def gone() -> dict[str, Any]:
        raise RuntimeError("no such thing")

    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(interruption, "services", gone)
    with RayWatch().watching(lambda: ""):
        pass
    assert caplog.messages == []


def test_what_fails_with_the_raylet_is_not_to_be_recorded(monkeypatch):
    alive = {GCS, RAYLET}
    monkeypatch.setattr(interruption, "services", lambda: {"GCS": GCS, "raylet": RAYLET})
    monkeypatch.setattr(interruption, "answers", alive.__contains__)
    rays = RayWatch()
    with rays.watching(lambda: ""):
        rays.check()
        alive.discard(GCS)
        rays.check()  # that may come back
        alive.discard(RAYLET)
        with pytest.raises(RaySystemError, match=r"raylet at 10\.0\.0\.1:7000 does not answer"):
            rays.check()


def test_whether_somebody_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert answers(address)
    assert not answers(address)


class Stuck:
    """A driver whose main thread stands in a call to Ray when SIGTERM arrives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *dead: Any):
        self.alive, self.done = {GCS, RAYLET} - set(dead), threading.Event()
        self.closed, self.left = 0, []
        self.rays = RayWatch()
        found = {"GCS": GCS, "raylet": RAYLET}
        monkeypatch.setattr(interruption, "services", lambda: found)
        monkeypatch.setattr(interruption, "answers", self.alive.__contains__)
        monkeypatch.setattr(interruption, "_GRACE_S", 0.001)
        monkeypatch.setattr(interruption, "end_process", self.leave)

    def close(self) -> None:
        self.closed += 1

    def leave(self, code: int) -> None:
        self.left.append(code)
        self.done.set()

    def watched(self) -> Any:
        return self.rays.watching(lambda: "    tunekit resume /results/digits", self.close)


@pytest.fixture(autouse=True)
def in_ray(monkeypatch):
    """Let the main thread stand in a call to Ray."""
    monkeypatch.setattr("tunekit._ray.interruption.is_in_ray", lambda: True)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)


def terminate() -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


def test_a_driver_that_waits_for_a_ray_that_has_ended_with_it_leaves(caplog, monkeypatch):
    driver = Stuck(monkeypatch, GCS)
    with ended_by_sigterm(), driver.watched():
        driver.rays.check()  # without a signal, the GCS may come back
        terminate()
        assert driver.done.wait(60)
        with pytest.raises(RaySystemError, match="GCS"):
            driver.rays.check()  # what fails now is not to be recorded
    assert (driver.closed, driver.left) == (1, [128 + signal.SIGTERM])
    [said] = caplog.messages
    assert said.startswith("SIGTERM has ended Ray's GCS") and "tunekit resume" in said


def test_one_that_may_be_writing_leaves_without_another_line(monkeypatch):
    monkeypatch.setattr("tunekit._ray.interruption.is_in_ray", lambda: False)
    driver = Stuck(monkeypatch, GCS)
    with ended_by_sigterm(), driver.watched():
        terminate()
        assert driver.done.wait(60)
    assert (driver.closed, driver.left) == (0, [128 + signal.SIGTERM])


def test_one_that_waits_for_ray_on_its_way_out_leaves(caplog, monkeypatch):
    """Ray's hook for uncaught exceptions, and what Tune does at exit, ask the GCS."""
    driver = Stuck(monkeypatch, GCS)
    with pytest.raises(KeyboardInterrupt), ended_by_sigterm(), driver.watched():
        signal.raise_signal(signal.SIGTERM)
    assert driver.done.wait(60)
    assert (driver.closed, driver.left) == (0, [128 + signal.SIGTERM])
    assert "tunekit resume" in caplog.text


def test_a_driver_whose_ray_goes_on_ends_by_itself(monkeypatch):
    driver = Stuck(monkeypatch)
    with ended_by_sigterm(), driver.watched():
        terminate()
        driver.rays.check()
    assert (driver.closed, driver.left) == (0, [])
