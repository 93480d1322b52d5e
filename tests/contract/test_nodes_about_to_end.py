"""A trial whose node is about to end saves at its next report and continues elsewhere."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tunekit
from tests.support.contract import check_contract
from tests.support.modes import MODES, Mode
from tests.support.schedulers import planned
from tests.support.sweeps import Plan, SavesWhen
from tests.support.trainables import LENGTH
from tunekit._ray.capabilities import Capabilities
from tunekit._ray.ending_processes import EndingProcesses
from tunekit.core.events import CheckpointSaved, Reported
from tunekit.journal.journal import events_in

pytestmark = pytest.mark.sampled(2)


@contextmanager
def notice(monkeypatch: pytest.MonkeyPatch, *, at: float = 2.5) -> Iterator[set[str]]:
    """From then on, the node of all running trials is about to end; yield these trials."""
    told: set[str] = set()
    first: list[float] = []

    def look(self: EndingProcesses, now: float) -> None:
        first[:] = first or [now]
        if not told and now >= first[0] + at:
            told.update(trial.trial_id for trial in self._tune._running_trials)
            self.leaving.update(told)

    monkeypatch.setattr(EndingProcesses, "check", look)
    yield told


def starts_in(events: list[Any]) -> list[Reported]:
    """Return the first report of each process of a trial."""
    reports = [event for event in events if isinstance(event, Reported)]
    return [event for event in reports if event.report["iterations_since_restore"] == 1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["fifo", "asha", "hyperband", "pbt"])
def test_trials_on_an_ending_node_restart_elsewhere_and_repeat_no_iteration(
    name: str, mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = SavesWhen(lambda trial, result: result["training_iteration"] % 2 == 1)
    plan = planned(name, tmp_path, mode, trials=3).validating(slots=2)
    with notice(monkeypatch) as told:
        ran = plan.training(saves=odd if name == "fifo" else None).run()
    check_contract(ran)
    events = events_in(ran.home)
    starts = Count(event.trial_id for event in starts_in(events))
    assert told
    if name == "fifo":
        assert set(ran.lengths().values()) == {LENGTH}
        reports = [event for event in events if isinstance(event, Reported)]
        assert len(reports) == LENGTH * len(ran.trials), "no iteration is run again"
        assert all(starts[trial_id] >= 2 for trial_id in told)
        # Each saved where it left, whatever its policy says of that iteration.
        saved = {(e.trial_id, e.iteration) for e in events if isinstance(e, CheckpointSaved)}
        scores = {
            (row.trial_id, row.iteration) for row in tunekit.load(ran.home).validations.itertuples()
        }
        assert scores == saved


def test_trial_that_saves_by_itself_leaves_an_ending_node_after_its_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Capabilities, "can_save", lambda self, trial: False)
    twice = SavesWhen(lambda trial, result: result["training_iteration"] in (3, 7))
    with notice(monkeypatch, at=4.5):
        ran = Plan(tmp_path, trials=1).training(saves=twice).run()
    starts = starts_in(events_in(ran.home))
    assert [event.report["training_iteration"] for event in starts] == [1, 8]
