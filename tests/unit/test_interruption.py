"""An interrupted ``fit`` ends cleanly and names the command that continues the sweep."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import tune
from ray.exceptions import RaySystemError

import tunekit
from tests.support.restores import train, tuner
from tunekit._ray import interruption
from tunekit._ray.interruption import RayWatch, answers, ended_by_sigterm, without_advice
from tunekit._ray.tuner import settings_of
from tunekit.core.events import Home
from tunekit.journal.storage import LocalFolder


@pytest.fixture(autouse=True)
def _restore_handlers():
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    former = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


# Signals ----------------------------------------------------------------------------------------


def test_first_sigterm_acts_as_ctrl_c_and_the_second_as_it_would_without_tunekit(monkeypatch):
    heard: list[str] = []

    def rays(number: int, frame: Any) -> None:
        heard.append("Ray's")

    rays.__module__ = "ray._private.node"
    signal.signal(signal.SIGTERM, rays)
    before = signal.getsignal(signal.SIGINT)
    with ended_by_sigterm():
        signal.signal(signal.SIGINT, lambda number, frame: heard.append("Tune's"))
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert heard == ["Tune's", "Ray's"]
    assert signal.getsignal(signal.SIGTERM) is rays
    assert signal.getsignal(signal.SIGINT) is before, "the handler of Tune is removed"


@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, signal.SIG_IGN])
def test_sigterm_before_tune_handles_ctrl_c_raises_keyboard_interrupt(ctrl_c):
    """Also if Ctrl-C is ignored, as in a shell's background jobs."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, ctrl_c)
    with pytest.raises(KeyboardInterrupt), ended_by_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_handler_of_the_user_is_kept():
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    with ended_by_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_only_the_advice_of_tune_to_resume_is_suppressed(caplog):
    log = logging.getLogger("ray.tune.tune")
    log.setLevel(logging.INFO)
    advice = "Experiment has been interrupted, but the most recent state was saved.\nResume ..."
    with without_advice():
        log.warning(advice)
        log.warning("Stop signal received")
    log.warning(advice)
    assert caplog.messages == ["Stop signal received", advice]


# The advice to resume -----------------------------------------------------------------------------


make = partial(tuner, name="my sweep")


@pytest.fixture
def fit(monkeypatch):
    """``fit`` without Tune: the sweep starts, and either ends, does not end, or raises."""

    def run(tuner: tunekit.Tuner, *, ended: bool | None, error: BaseException | None = None) -> Any:
        def of_tune(self: Any) -> tune.ResultGrid:
            validation, config = tuner.validation, settings_of(tuner).run_config
            home = f"{config.storage_path}/{config.name}"
            ledger = validation.ledger
            ledger.home, ledger.folder = Home(home), LocalFolder(Path(home))
            validation.has_ended = ended
            if error is not None:
                raise error
            return tune.ResultGrid(SimpleNamespace(trials=[]))

        monkeypatch.setattr(tune.Tuner, "fit", of_tune)
        monkeypatch.setattr("tunekit.driver.tuner.share_cluster", lambda *known: None)
        return tuner.fit()

    return run


@pytest.mark.parametrize(
    ("trainable", "command", "call"),
    [
        (train, "tunekit resume '{}'\n", 'tunekit.Tuner.restore("{}", train).fit()'),
        (lambda config: None, "'{}' --trainable FILE.py:NAME\n", '("{}", trainable).fit()'),
    ],
    ids=["imported", "cannot be imported"],
)
def test_interrupted_sweep_prints_the_command_and_the_call_that_resume_it(
    tmp_path, fit, caplog, trainable, command, call
):
    assert len(fit(make(tmp_path, trainable), ended=False)) == 0
    [said] = caplog.messages
    assert command.format(tmp_path / "my sweep") in said
    assert call.format(tmp_path / "my sweep") in said


@pytest.mark.parametrize(
    ("ended", "error"), [(True, None), (None, tunekit.errors.MetricNotFoundError("the reason"))]
)
def test_sweep_that_has_ended_or_failed_prints_no_advice_to_resume(
    tmp_path, fit, caplog, ended, error
):
    with pytest.raises(type(error)) if error else nullcontext():
        fit(make(tmp_path), ended=ended, error=error)
    assert caplog.messages == []


def test_second_fit_of_a_tuner_raises_and_names_how_to_read_and_to_resume(tmp_path, fit):
    once = make(tmp_path)
    fit(once, ended=True)
    with pytest.raises(tunekit.errors.ConfigError) as caught:
        fit(once, ended=True)
    assert "tuner.get_results()" in str(caught.value) and "tunekit resume" in str(caught.value)


def test_fit_that_raised_before_the_sweep_began_can_be_called_again(tmp_path, fit, monkeypatch):
    def too_small(*known: Any) -> None:
        raise tunekit.errors.ConfigError("Tuner.fit", ["the cluster is too small."])

    tuner = make(tmp_path)
    monkeypatch.setattr("tunekit.driver.tuner.share_cluster", too_small)
    with pytest.raises(tunekit.errors.ConfigError, match="too small"):
        tuner.fit()
    assert len(fit(tuner, ended=True)) == 0


# A Ray that the signal has ended, too -----------------------------------------------------------


GCS, RAYLET = ("10.0.0.1", 6379), ("10.0.0.1", 7000)


def test_sweep_continues_if_the_services_of_ray_cannot_be_found(caplog, monkeypatch):
    def gone() -> dict[str, Any]:
        raise RuntimeError("no such thing")

    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(interruption, "services", gone)
    with RayWatch().watching(lambda: ""):
        pass
    assert caplog.messages == []


def test_check_raises_once_the_raylet_does_not_answer_but_not_for_the_gcs_alone(monkeypatch):
    alive = {GCS, RAYLET}
    monkeypatch.setattr(interruption, "services", lambda: {"GCS": GCS, "raylet": RAYLET})
    monkeypatch.setattr(interruption, "answers", alive.__contains__)
    rays = RayWatch()
    with rays.watching(lambda: ""):
        rays.check()
        alive.discard(GCS)
        rays.check()  # that may come back
        alive.discard(RAYLET)
        with pytest.raises(RaySystemError, match=r"10\.0\.0\.1:7000"):
            rays.check()


def test_address_answers_while_a_server_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert answers(address)
    assert not answers(address)


class Stuck:
    """A driver whose main thread blocks in a call to Ray when SIGTERM arrives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *dead: Any, blocked: bool = True):
        self.done, self.rays = threading.Event(), RayWatch()
        self.closed, self.left = 0, []
        found = {"GCS": GCS, "raylet": RAYLET}
        monkeypatch.setattr(interruption, "services", lambda: found)
        monkeypatch.setattr(interruption, "answers", lambda address: address not in dead)
        monkeypatch.setattr(interruption, "_GRACE_S", 0.001)
        monkeypatch.setattr(interruption, "end_process", self.leave)
        monkeypatch.setattr(interruption, "is_in_ray", lambda: blocked)
        monkeypatch.setattr(ray, "is_initialized", lambda: True)

    def close(self) -> None:
        self.closed += 1

    def leave(self, code: int) -> None:
        self.left.append(code)
        self.done.set()

    def watched(self) -> Any:
        return self.rays.watching(lambda: "    tunekit resume /results/digits", self.close)


@pytest.mark.parametrize(
    ("blocked", "closed"), [(True, 1), (False, 0)], ids=["in Ray", "may be writing"]
)
def test_driver_leaves_after_sigterm_if_the_gcs_has_ended_and_records_its_end_only_in_ray(
    caplog, monkeypatch, blocked, closed
):
    driver = Stuck(monkeypatch, GCS, blocked=blocked)
    with ended_by_sigterm(), driver.watched():
        driver.rays.check()  # without a signal, the GCS may come back
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert driver.done.wait(60)
        with pytest.raises(RaySystemError, match="GCS"):
            driver.rays.check()  # what fails now is not to be recorded
    assert (driver.closed, driver.left) == (closed, [128 + signal.SIGTERM])
    [said] = caplog.messages
    assert "SIGTERM" in said and "GCS" in said and "tunekit resume /results/digits" in said


def test_driver_blocked_in_ray_while_it_exits_leaves_if_the_gcs_has_ended(caplog, monkeypatch):
    """Ray's hook for uncaught exceptions, and what Tune does at exit, ask the GCS."""
    driver = Stuck(monkeypatch, GCS)
    with pytest.raises(KeyboardInterrupt), ended_by_sigterm(), driver.watched():
        signal.raise_signal(signal.SIGTERM)
    assert driver.done.wait(60)
    assert (driver.closed, driver.left) == (0, [128 + signal.SIGTERM])
    assert "tunekit resume" in caplog.text


def test_driver_blocked_in_ray_stays_after_sigterm_while_ray_runs(monkeypatch):
    driver = Stuck(monkeypatch)
    with pytest.raises(KeyboardInterrupt), ended_by_sigterm(), driver.watched():
        signal.raise_signal(signal.SIGTERM)
    assert (driver.closed, driver.left) == (0, [])
