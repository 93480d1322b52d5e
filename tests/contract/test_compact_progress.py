"""The compact progress: a line for each trial that ends, the current state, the best at the end."""

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
from tests.support.sweeps import sweep
from tunekit.driver import progress as shown
from tunekit.driver.callback import ValidationCallback
from tunekit.driver.progress import File, Notebook, Progress, Terminal, above_the_status
from tunekit.messages.log import showing_messages
from tunekit.messages.progress import SweepProgress


class Lines:
    """A display that keeps what it shows."""

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


def run(folder: Path, **options: Any) -> tuple[Any, Lines]:
    """Run a sweep, or begin it; return it with what was shown of it."""
    lines = Lines()
    ran = sweep(folder, asha(), trials=6, slots=3, run=False, **options)
    ran.validation.progress = progress = Progress(lines)
    progress._pace = shown.Pace(1.0)  # look after each step
    ran.sweep.run()
    progress.close(str(ran.home))
    return ran, lines


def names(lines: list[str]) -> list[str]:
    return [match[1] for line in lines if (match := re.match(r"trial (\S+) ", line))]


def test_each_trial_that_ends_has_a_line_that_says_how(tmp_path):
    ran, lines = run(tmp_path)
    loaded = tunekit.load(ran.home)
    assert sorted(names(lines.added)) == sorted(one.name for one in loaded.ranking())
    for one in loaded.ranking():
        [line] = (each for each in lines.added if each.startswith(f"trial {one.name} "))
        assert ("stopped early" in line) == one.trial.stopped
        assert f"iteration {one.trial.iteration}," in line and f"{one.best_value:.4f}" in line


def test_the_best_trials_come_last_with_the_next_command(tmp_path):
    ran, lines = run(tmp_path)
    *best, command = lines.added[-6:]
    ranked = tunekit.load(ran.home).ranking()
    assert [line.split()[3] for line in best] == [one.name for one in ranked[:5]]
    assert command.endswith(f"tunekit report {ran.home} --open") and lines.closed == 1


def test_the_current_state_counts_trials_and_names_the_best(tmp_path):
    _, lines = run(tmp_path)
    ended = [int(line.split()[0]) for line in lines.states]
    assert ended == sorted(ended) and ended[-1] == 6
    assert {re.match(r"\d+ of (\d+) ", line)[1] for line in lines.states} == {"6"}  # type: ignore[index]
    assert "no score" in lines.states[0] and "best" in lines.states[-1]


def test_a_restored_sweep_shows_only_trials_that_end_from_then_on(tmp_path, monkeypatch):
    lives: list[Lines] = []
    made_by = ValidationCallback.__init__

    def watched(self: ValidationCallback, *known: Any, **named: Any) -> None:
        made_by(self, *known, **named)
        self.progress = Progress(lives[-1])
        self.progress._pace = shown.Pace(1.0)

    monkeypatch.setattr(ValidationCallback, "__init__", watched)

    def made(folder: Path, **options: Any) -> Any:
        lives.append(Lines())
        return sweep(folder, asha(), **{"trials": 6, "slots": 3, "run": False, **options})

    ran, kills = run_killed(tmp_path, made, iter([60]))
    ran.validation.progress.close("")
    first, second = (names(life.added) for life in lives)
    everyone = [one.name for one in tunekit.load(ran.home).ranking()]
    assert kills == 1 and first and second
    assert sorted(first + second) == sorted(everyone)
    assert all(" of 6 ended" in line for line in lives[1].states)


def test_sweep_goes_on_if_its_terminal_is_gone(tmp_path):
    class Gone(Lines):
        def status(self, line: str) -> None:
            super().status(line)
            raise OSError(5, "Input/output error")

    ran = sweep(tmp_path, asha(), trials=3, slots=3, run=False)
    ran.validation.progress = progress = Progress(gone := Gone())
    ran.sweep.run()
    assert all(trial.is_finished() for trial in ran.trials)
    assert len(gone.states) == 1 and progress._new == []


def test_failed_trials_and_sweeps_without_a_score_say_so():
    progress = SweepProgress("accuracy", "max")
    assert progress.closing("/sweep") == ["no trial has a score: tunekit status /sweep"]


# Where it is shown --------------------------------------------------------------------------------


def test_a_file_gets_the_state_once_a_minute(capsys):
    clock = FakeClock()
    display = File(clock.monotonic)
    for second in range(150):
        display.status(f"after {second}")
        clock.sleep(1.0)
    display.add(["a trial"])
    assert capsys.readouterr().err.splitlines() == ["after 60", "after 120", "a trial"]


def test_a_terminal_keeps_lines_and_changes_the_state_in_place(monkeypatch, capsys):
    display = Terminal()
    display.status("1 of 2")
    display.add(["a trial"])
    display.status("2 of 2")
    display.close()
    text = capsys.readouterr().err
    assert "a trial\n" in text and "1 of 2\n" not in text and "2 of 2\n" not in text


def test_a_notebook_shows_text_in_its_cell(monkeypatch):
    cell: list[str] = []
    handle = SimpleNamespace(update=lambda part: cell.append(part))
    fake = SimpleNamespace(HTML=str, display=lambda part, display_id: handle)
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    display = Notebook()
    display.add(["<b>"])
    display.status("1 of 2")
    assert cell[-1] == "<pre>&lt;b&gt;<br>1 of 2</pre>"
    display.close()
    assert cell[-1] == "<pre>&lt;b&gt;</pre>"


def test_messages_above_the_state_are_shown_once(capsys, monkeypatch):
    for name in (None, "ray"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    with showing_messages(), above_the_status():
        logging.getLogger("tunekit.driver").warning("a validation failed")
    assert capsys.readouterr().err.count("a validation failed") == 1


@pytest.mark.parametrize("progress", [1, None])
def test_fit_takes_only_a_bool(progress):
    tuner = tunekit.Tuner(lambda config: None)
    with pytest.raises(tunekit.errors.ConfigError, match="progress="):
        tuner.fit(progress=progress)


def test_fit_shows_progress_only_of_sweeps_with_validation():
    with pytest.raises(tunekit.errors.ConfigError, match="validation_config"):
        tunekit.Tuner(lambda config: None).fit(progress=True)
