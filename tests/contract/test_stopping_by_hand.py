"""Any trial can be stopped by hand at any time, and ends with its last score."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tests.support.invariants import check_journal
from tests.support.kills import killed_at_each
from tests.support.local_sweep import index_of
from tests.support.modes import MODES, Mode
from tests.support.readers import session, tunekit_
from tests.support.schedulers import every_case, planned, seed_all
from tests.support.seeds import SCHEDULES, seeds
from tests.support.sweeps import Plan
from tests.support.trainables import Endless
from tunekit.core.events import Reported, StopRequested, TrialEnded
from tunekit.journal.journal import events_in
from tunekit.journal.stop_requests import ask_to_stop, request_file

pytestmark = pytest.mark.sampled(2)


@pytest.fixture(autouse=True)
def checked(monkeypatch):
    monkeypatch.setattr("tunekit.driver.stopping._INTERVAL_S", 0.0)


def put(home: Path, trial_id: str) -> None:
    """Ask to stop a trial, as ``ask_to_stop`` does."""
    (home / "stop").mkdir(exist_ok=True)
    (home / request_file(trial_id)).touch()


class Asks(tune.Callback):
    """Request stops of trials, before the ValidationCallback.

    Args:
        home: The experiment's folder.
        which: Returns the trials to stop at the end of a step, given all trials by number.
    """

    def __init__(self, home: Path, which: Callable[[dict[int, Trial]], list[Trial]]):
        self.home, self.which = home, which

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        for trial in self.which({index_of(trial): trial for trial in trials}):
            put(self.home, trial.trial_id)


def second(trials: dict[int, Trial]) -> list[Trial]:
    """The second trial, once Tune has processed its third iteration."""
    trial = trials.get(1)
    reached = trial and (trial.last_result or {}).get("training_iteration", 0)
    return [trial] if trial and reached >= 3 else []


def of_length(plan: Plan, iterations: int = 6) -> Plan:
    """All trials train so long, unless something else stops them."""
    return plan.training(Endless).tuning(stop={"training_iteration": iterations})


def asking(plan: Plan, which: Callable[[dict[int, Trial]], list[Trial]] = second) -> Plan:
    return plan.calling(Asks(plan.folder / "sweep", which))


def asked(home: Path) -> list[str]:
    return [event.trial_id for event in events_in(home) if isinstance(event, StopRequested)]


@every_case
def test_trials_stopped_at_random_times_report_no_more_and_their_sweep_ends(tmp_path, name, mode):
    for seed in seeds(2, name, str(mode)):
        seed_all(seed)
        draw = random.Random(seed)
        plan = of_length(planned(name, tmp_path / str(seed), mode, trials=5, seed=seed), 9)
        ran = asking(
            plan.training(slots=3).validating(seconds=1.7),
            lambda trials, draw=draw: [one for one in trials.values() if draw.random() < 0.01],
        ).run()
        events = events_in(ran.home)
        check_journal(events)
        assert all(trial.status == "TERMINATED" for trial in ran.trials)
        stopped: list[str] = []
        for event in events:
            if isinstance(event, StopRequested):
                stopped.append(event.trial_id)
            assert not (isinstance(event, Reported) and event.trial_id in stopped)
        assert len(set(stopped)) == len(stopped)


@pytest.mark.parametrize("mode", MODES)
def test_trial_stopped_by_hand_ends_with_its_last_score(tmp_path, mode):
    plan = of_length(Plan(tmp_path, mode=mode, trials=3), 12)
    ran = asking(plan.validating(seconds=4.0)).run()
    assert asked(ran.home) == [ran.trials[1].trial_id]
    reached = ran.lengths()
    trial_id = ran.trials[1].trial_id
    reports = [one for one in events_in(ran.home) if isinstance(one, Reported)]
    last = [one.place[1] for one in reports if one.trial_id == trial_id][-1]
    assert reached == {0: 12, 1: last, 2: 12} and 3 <= last < 12
    assert ran.heard.of(1)[-1:] == [reached[1]]
    [end] = [score for index, score in ran.heard.ends if index == 1]
    # As in Tune, a trial that has no process is removed, without a result.
    removed = mode is Mode.WAIT_PAUSED and end is None
    assert removed or end == ran.validated()[1][reached[1]]
    shown = tunekit.load(ran.home).timeline.trials[ran.trials[1].trial_id]
    assert shown.shown_status == "stopped by hand" and shown.stopped


def test_trial_that_has_not_begun_is_stopped_by_hand_without_waiting_for_its_turn(tmp_path):
    plan = of_length(Plan(tmp_path, trials=3)).training(slots=1)
    ran = asking(plan, lambda trials: [trials[2]] if 2 in trials else []).run()
    waiting = ran.trials[2].trial_id
    events = [(type(event), getattr(event, "trial_id", "")) for event in events_in(ran.home)]
    assert events.index((TrialEnded, waiting)) < events.index((TrialEnded, ran.trials[0].trial_id))
    assert (Reported, waiting) not in events


def test_other_files_in_the_stop_folder_stop_no_trial_and_links_are_not_followed(tmp_path):
    home, secret = tmp_path / "sweep", tmp_path / "secret"
    secret.write_text("kept")

    class Writes(tune.Callback):
        def on_trial_result(self, iteration: int, **info: Any) -> None:
            put(home, "nobody")
            put(home, "../../secret")
            (home / "stop/of-somebody-else.txt").write_text("?")
            link = home / "stop/trial-link"
            if not link.is_symlink():
                link.symlink_to(secret)

    ran = of_length(Plan(tmp_path, trials=3)).calling(Writes()).run()
    assert ran.lengths() == {0: 6, 1: 6, 2: 6} and asked(home) == []
    assert secret.read_text() == "kept"
    assert [one.name for one in (home / "stop").iterdir()] == ["of-somebody-else.txt"]


@pytest.mark.parametrize("mode", [Mode.WAIT, Mode.WAIT_PAUSED])
def test_trial_is_stopped_by_hand_once_if_the_driver_is_killed_at_any_write(tmp_path, mode):
    def made(folder: Path) -> Plan:
        mark = folder / "asked"

        def once(trials: dict[int, Trial]) -> list[Trial]:
            """The request is made once, whatever becomes of the driver."""
            found = [] if mark.exists() else second(trials)
            mark.touch() if found else None
            return found

        base = ASHAScheduler(max_t=5, grace_period=4, reduction_factor=2)
        plan = of_length(Plan(folder, base, mode, trials=3)).training(slots=1)
        return asking(plan.tuning(max_concurrent=1), once)

    *killed, (undisturbed, expected) = killed_at_each(tmp_path, made, 9 if SCHEDULES == 1 else 1)
    assert asked(undisturbed.home) == [undisturbed.trials[1].trial_id]
    assert len(killed) > 4
    # What it reports just before it is stopped counts; a restored driver may stop it earlier.
    newest = f"{undisturbed.trials[1].trial_id}:0:4"
    expected.scores.pop(newest, None)
    expected.decisions[:] = [one for one in expected.decisions if one[0] != newest]
    for ran, lives in killed:
        assert asked(ran.home) == asked(undisturbed.home), ran.home
        lives.scores.pop(newest, None)
        lives.decisions[:] = [one for one in lives.decisions if one[0] != newest]
        assert lives == expected, ran.home
        reached, whole = ran.lengths(), undisturbed.lengths()
        assert reached.pop(1) in (3, whole.pop(1)) and reached == whole, ran.home


def test_stop_command_refuses_trials_that_ended_or_are_unknown_and_needs_a_driver(
    tmp_path, monkeypatch
):
    ran = of_length(Plan(tmp_path, trials=3)).start()
    monkeypatch.setattr("tunekit.journal.stop_requests.time", ran.clock)
    for _ in range(12):
        ran.sweep.step()
    monkeypatch.setitem(ask_to_stop.__kwdefaults__, "sleep", lambda seconds: ran.sweep.step())
    one = ("--trial", "00000_00001")
    result = tunekit_("stop", ran.home, *one)
    assert result.exit_code == 0 and "00000_00001" in result.output
    for refused in ("00000_00001", "nobody"):  # one has ended
        result = tunekit_("stop", ran.home, "--trial", refused)
        assert result.exit_code == 2 and refused in result.output
        assert "00000_00000, 00000_00002" in result.output
    where = (ran.sweep.controller._storage.storage_filesystem, str(ran.home))
    assert not ask_to_stop(*where, "00000_00002", sleep=lambda seconds: None), "not yet"
    for _ in range(3):
        ran.sweep.step()
    ran.validation.ledger.let_go()
    assert tunekit_("stop", ran.home, "--trial", "00000_00000").exit_code == 2
    assert not list((ran.home / "stop").iterdir()), "there is no driver, and no request"
    assert asked(ran.home) == ["00000_00001", "00000_00002"]
    ran.sweep.run(most=50_000)
    result = tunekit_("status", ran.home)
    assert "2 stopped by hand" in result.output and "stopped by the scheduler" not in result.output
    assert tunekit_("stop", tmp_path / "none", *one).exit_code == 2


def test_stop_command_refuses_a_second_request_for_a_trial(tmp_path):
    session(tmp_path).append(StopRequested(trial_id="a"))
    result = tunekit_("stop", tmp_path, "--trial", "a")
    assert result.exit_code == 2 and "trial a " in result.output
