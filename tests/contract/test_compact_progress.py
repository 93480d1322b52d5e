"""Progress shows each trial that ends, the current state and, at the end, the best trials."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tunekit
from tests.support.fakes import FakeClock
from tests.support.kills import run_killed
from tests.support.schedulers import asha
from tests.support.sweeps import Plan
from tunekit.core.ranking import Ranked
from tunekit.driver import progress as shown
from tunekit.driver.callback import ValidationCallback
from tunekit.driver.progress import File, Notebook, Progress, Terminal, above_the_status
from tunekit.messages.log import showing_messages
from tunekit.messages.progress import SweepProgress


class Lines:
    """A display that records its lines."""

    def __init__(self) -> None:
        self.added: list[str] = []
        self.states: list[str] = []
        self.closed = 0

    def add(self, lines: Any) -> None:
        self.added += lines

    def status(self, line: str) -> None:
        self.states.append(line)

    def close(self) -> None:
        self.closed += 1


def shows(lines: Lines) -> Progress:
    """Return a progress that looks after each step."""
    progress = Progress(lines)
    progress._pace = shown.Pace(1.0)
    return progress


def names(lines: list[str]) -> list[str]:
    return [match[1] for line in lines if (match := re.match(r"trial (\S+) ", line))]


def halving(folder: Path, trials: int = 6) -> Plan:
    return Plan(folder, asha(), trials=trials).training(slots=3)


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> tuple[str, list[Ranked], Lines]:
    """A sweep of six trials, its ranking, and what was shown of it."""
    ran = halving(tmp_path_factory.mktemp("sweep")).start()
    ran.validation.progress = shows(lines := Lines())
    ran.sweep.run()
    ran.validation.progress.close(str(ran.home))
    return str(ran.home), tunekit.load(ran.home).ranking(), lines


def test_progress_shows_state_iteration_and_best_score_of_each_ended_trial(ended):
    _, ranking, lines = ended
    assert sorted(names(lines.added)) == sorted(one.name for one in ranking)
    for one in ranking:
        [line] = (each for each in lines.added if each.startswith(f"trial {one.name} "))
        assert ("stopped" in line) == one.trial.stopped
        assert f"iteration {one.trial.iteration}," in line and f"{one.best_value:.4f}" in line


def test_progress_ends_with_the_best_five_trials_and_the_report_command(ended):
    home, ranking, lines = ended
    *best, command = lines.added[-6:]
    assert [line.split()[3] for line in best] == [one.name for one in ranking[:5]]
    assert command.endswith(f"tunekit report {home} --open") and lines.closed == 1


def test_progress_counts_ended_trials_and_names_the_best_checkpoint(ended):
    _, [first, *_], lines = ended
    counts = [int(re.match(r"(\d+) of 6 ", line)[1]) for line in lines.states]
    assert counts == sorted(counts) and counts[-1] == 6
    best = f"{first.best_value:.4f} ({first.name}@{first.best.iteration})"
    assert "@" not in lines.states[0] and best in lines.states[-1]


def test_progress_of_a_restored_sweep_lists_each_trial_once_over_all_sessions(
    tmp_path, monkeypatch
):
    lines = Lines()
    of_each_session = property(lambda self: shows(lines), lambda self, none: None)
    monkeypatch.setattr(ValidationCallback, "progress", of_each_session, raising=False)
    ran, kills = run_killed(tmp_path, halving, iter([60]))
    ran.validation.run.live.close("")
    everyone = [one.name for one in tunekit.load(ran.home).ranking()]
    assert kills == 1 and sorted(names(lines.added)) == sorted(everyone)
    assert lines.states[-1].startswith("6 of 6 ")


class Gone(Lines):
    def status(self, line: str) -> None:
        super().status(line)
        raise OSError(5, "Input/output error")


def test_sweep_finishes_without_progress_after_its_terminal_is_gone(tmp_path):
    ran = halving(tmp_path, trials=3).start()
    ran.validation.progress = Progress(gone := Gone())
    ran.sweep.run()
    assert all(trial.is_finished() for trial in ran.trials) and len(gone.states) == 1


def test_progress_ends_with_the_status_command_if_no_trial_has_a_score():
    [line] = SweepProgress("accuracy", "max").closing("/sweep")
    assert line.endswith("tunekit status /sweep")


# Where it is shown --------------------------------------------------------------------------------


def test_progress_in_a_file_has_each_ended_trial_and_the_state_once_a_minute(capsys):
    clock = FakeClock()
    display = File(clock.monotonic)
    for second in range(150):
        display.status(f"after {second}")
        clock.sleep(1.0)
    display.add(["a trial"])
    assert capsys.readouterr().err.splitlines() == ["after 60", "after 120", "a trial"]


def test_progress_in_a_terminal_keeps_lines_and_overwrites_the_state(capsys):
    display = Terminal()
    display.status("1 of 2")
    display.add(["a trial"])
    display.status("2 of 2")
    display.close()
    text = capsys.readouterr().err
    assert "a trial\n" in text
    for state in ("1 of 2", "2 of 2"):
        assert f"\r{state}" in text and f"{state}\n" not in text


def test_progress_in_a_notebook_escapes_lines_and_drops_the_state_at_the_end(monkeypatch):
    cell: list[str] = []
    handle = SimpleNamespace(update=cell.append)
    fake = SimpleNamespace(HTML=str, display=lambda part, display_id: handle)
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    display = Notebook()
    display.add(["<b>"])
    display.status("1 of 2")
    assert cell[-1] == "<pre>&lt;b&gt;<br>1 of 2</pre>"
    display.close()
    assert cell[-1] == "<pre>&lt;b&gt;</pre>"


def test_log_message_during_progress_is_printed_once(capsys, monkeypatch):
    for name in (None, "ray"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    with showing_messages(), above_the_status():
        logging.getLogger("tunekit.driver").warning("a validation failed")
    assert capsys.readouterr().err.count("a validation failed") == 1


@pytest.mark.parametrize(
    ("progress", "named"), [(1, "progress="), (None, "progress="), (True, "validation_config")]
)
def test_fit_refuses_progress_that_is_not_a_bool_or_lacks_a_validation_config(progress, named):
    with pytest.raises(tunekit.errors.ConfigError, match=named):
        tunekit.Tuner(lambda config: None).fit(progress=progress)
