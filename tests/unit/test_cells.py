"""A notebook cell shows the best trials of a sweep, what differs between them, and their curves."""

from __future__ import annotations

import re
from pathlib import Path

import tunekit
from tests.support.readers import score, session, trial


def begun(home: Path) -> tunekit.Sweep:
    journal = session(home)
    for n in range(10):
        trial(journal, f"x_{n}", n / 10, lr=0.1 * n, kind="same")
        score(journal, f"x_{n}", 2, n / 10 + 0.01)
    trial(journal, "x_<b>", lr=1.0, kind="same")
    return tunekit.load(home)


def test_notebook_cell_ranks_trials_and_shows_the_parameters_that_differ(tmp_path):
    html = begun(tmp_path / "digits")._repr_html_()
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]
    assert cells[0] == ["", "trial", "status", "iteration", "accuracy", "at", "lr"]
    assert cells[1] == ["1", "9", "running", "2", "0.9100", "2", "0.9"]
    assert [row[1] for row in cells[1:9]] == [str(n) for n in range(9, 1, -1)]
    assert re.findall(r"\d+", cells[9][1]) == ["3"] and len(cells) == 10, "3 more trials"
    assert "digits" in html


def test_notebook_cell_has_curves_and_escapes_trial_ids_and_has_no_script(tmp_path):
    html = begun(tmp_path)._repr_html_()
    assert "<svg" in html and "<script" not in html and "<b>x" not in html


def test_notebook_cell_of_a_sweep_without_scores_has_no_curves(tmp_path):
    trial(session(tmp_path), "a")
    assert "<svg" not in tunekit.load(tmp_path)._repr_html_()
