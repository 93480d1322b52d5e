"""How ``fit`` is interrupted, what is said then, and who may go on with the sweep."""

from __future__ import annotations

import logging
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import tune

import tunekit
from tests.support.restores import tuner
from tunekit._ray.interruption import ended_by_sigterm, without_advice
from tunekit._ray.tuner import settings_of
from tunekit.core.events import Home
from tunekit.driver.callback import ValidationCallback
from tunekit.journal.storage import LocalFolder


@pytest.fixture(autouse=True)
def _handlers_as_they_were():
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    former = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


# Signals ----------------------------------------------------------------------------------------


def test_the_first_sigterm_is_a_ctrl_c_and_the_second_what_it_was(monkeypatch):
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
    assert signal.getsignal(signal.SIGINT) is before, "Tune leaves its own behind"


@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, signal.SIG_IGN])
def test_a_sigterm_before_tune_listens_is_a_keyboard_interrupt(ctrl_c):
    """Also where Ctrl-C is ignored, as a shell has it for what it runs in the background."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, ctrl_c)
    with pytest.raises(KeyboardInterrupt), ended_by_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_the_users_stays():
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    with ended_by_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_of_what_tune_says_only_its_own_way_to_go_on_is_kept_back(caplog):
    log = logging.getLogger("ray.tune.tune")
    log.setLevel(logging.INFO)
    advice = "Experiment has been interrupted, but the most recent state was saved.\nResume ..."
    with without_advice():
        log.warning(advice)
        log.warning("Stop signal received")
    log.warning(advice)
    assert caplog.messages == ["Stop signal received", advice]


# What is said -----------------------------------------------------------------------------------


make = partial(tuner, name="my sweep")


@pytest.fixture
def fit(monkeypatch):
    """``fit`` without Tune: the sweep begins, and has come to an end or not; or it raises."""

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


def test_an_interrupted_sweep_says_how_to_go_on_with_it(tmp_path, fit, caplog):
    assert len(fit(make(tmp_path), ended=False)) == 0
    [said] = caplog.messages
    assert f"    tunekit resume '{tmp_path}/my sweep'\n" in said
    assert f'    tunekit.Tuner.restore("{tmp_path}/my sweep", train).fit()' in said


def test_a_trainable_that_cannot_be_imported_is_to_be_named(tmp_path, fit, caplog):
    fit(make(tmp_path, lambda config: None), ended=False)
    assert "my sweep' --trainable FILE.py:NAME\n" in caplog.text
    assert ", trainable).fit()" in caplog.text


@pytest.mark.parametrize(
    ("ended", "error"), [(True, None), (None, tunekit.errors.MetricNotFoundError("says why"))]
)
def test_a_sweep_that_has_ended_or_says_why_not_is_not_to_be_gone_on_with(
    tmp_path, fit, caplog, ended, error
):
    try:
        fit(make(tmp_path), ended=ended, error=error)
    except tunekit.errors.MetricNotFoundError:
        assert error is not None
    assert caplog.messages == []


def test_fit_is_called_once(tmp_path, fit):
    once = make(tmp_path)
    fit(once, ended=True)
    with pytest.raises(
        tunekit.errors.ConfigError, match=r"a Tuner runs its sweep once\."
    ) as caught:
        fit(once, ended=True)
    assert "tuner.get_results()" in str(caught.value) and "tunekit resume" in str(caught.value)


def test_a_fit_that_did_not_begin_can_be_tried_again(tmp_path, fit, monkeypatch):
    def too_small(*known: Any) -> None:
        raise tunekit.errors.ConfigError("Tuner.fit", ["the cluster is too small."])

    tuner = make(tmp_path)
    monkeypatch.setattr("tunekit.driver.tuner.share_cluster", too_small)
    with pytest.raises(tunekit.errors.ConfigError, match="too small"):
        tuner.fit()
    assert len(fit(tuner, ended=True)) == 0


# Who may go on ----------------------------------------------------------------------------------


def test_rays_own_restore_gets_a_sweep_that_refuses_to_be_run(tmp_path):
    trainable = settings_of(make(tmp_path)).trainable
    stock = tune.Tuner.restore(str(tmp_path / "my sweep"), trainable)
    [validation] = [
        c for c in settings_of(stock).callbacks if isinstance(c, tunekit.ValidationCallback)
    ]
    with pytest.raises(tunekit.errors.RestoreError, match="Nothing was changed") as caught:
        validation.setup()
    assert "tunekit.Tuner.restore(" in str(caught.value)


def test_a_callback_that_was_put_in_by_hand_is_run_by_any_tuner():
    validation = ValidationCallback(tunekit.ValidationConfig(fn=lambda checkpoint: {}))
    validation.setup()
