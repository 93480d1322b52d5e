"""Each of Tune's reporters shows the newest validation scores, and counts validations."""

from __future__ import annotations

import re
from functools import partial

import pytest
from ray import tune
from ray.tune import progress_reporter
from ray.tune.experimental.output import AirVerbosity, TuneTerminalReporter
from ray.tune.progress_reporter import JupyterNotebookReporter
from ray.tune.utils.log import Verbosity, set_verbosity

import tunekit
from tests.support.sweeps import Counting, quality, sweep
from tunekit._ray import progress
from tunekit._ray.progress import reporting
from tunekit.core.metrics import VALIDATED_AT

SPACE = {"lr": tune.grid_search([0.1, 0.2])}


class Reporting(Counting):
    """Also report the metric, much better than validation finds it."""

    def step(self):
        return {**super().step(), "accuracy": 99.0}


def terminal():
    known = {"metric": "accuracy", "mode": "max", "config": dict(SPACE)}
    reporter = TuneTerminalReporter(AirVerbosity.DEFAULT, num_samples=2, **known)
    # It knows when the sweep began, as ``Tuner.fit`` lets it know.
    reporter.setup = partial(reporter.setup, start_time=0.0, total_samples=2)
    reporter._heartbeat_freq = 0
    return reporter


def cells(line):
    return [cell.strip() for cell in re.split(r"\s{2,}", line.strip("│| \n"))]


def table(printed):
    """Header and rows of the last table of trials that was printed in a terminal."""
    lines = printed.splitlines()
    top = max(
        i for i, line in enumerate(lines) if "Trial name" in line and "# failures" not in line
    )
    rows = []
    for line in lines[top + 2 :]:
        if line[:1] not in "│|":
            break
        rows.append(line)
    return cells(lines[top]), [cells(row) for row in rows]


def steps(ran, most=50_000):
    """Continue a sweep, one step at a time."""
    for _ in range(most):
        if ran.sweep.controller.is_finished():
            return
        ran.sweep.step()
        yield


def two_trials(folder, **options):
    """A sweep of the two trials of ``SPACE``."""
    return sweep(folder, trials=1, param_space=SPACE, **options)


def heartbeat(reporter, ran, capsys):
    """Return what a reporter prints now."""
    capsys.readouterr()
    reporter.print_heartbeat(ran.trials, "Resources", force=True)
    return capsys.readouterr().out


def until_scored(ran, iteration):
    for _ in steps(ran):
        if ran.trials and all(
            trial.last_result.get(VALIDATED_AT) == iteration for trial in ran.trials
        ):
            return
    raise AssertionError("nothing was validated")


# In a terminal --------------------------------------------------------------------------------


def test_terminal_counts_running_validations_before_the_first_score(tmp_path, capsys):
    reporter = terminal()
    ran = two_trials(
        tmp_path,
        validation_s=lambda attempt: 100.0,
        more_callbacks=(reporter,),
        run=False,
    )
    for _ in steps(ran):
        if ran.validation.summary()["running"] == 2:
            break
    printed = heartbeat(reporter, ran, capsys)
    _, rows = table(printed)
    # Cells that are blank are not there: after the status comes what is tried.
    assert [row[1:3] for row in rows] == [["RUNNING", "0.1"], ["RUNNING", "0.2"]]
    status, counts, *_ = printed.strip().splitlines()
    assert "2 RUNNING" in status and "2 running" in counts
    assert "best trial" not in printed


def test_terminal_table_has_the_newest_score_of_each_trial_and_its_iteration(tmp_path, capsys):
    reporter = terminal()
    ran = two_trials(
        tmp_path,
        policy=tunekit.EveryIterations(2),
        validation_s=lambda attempt: 2.5,
        more_callbacks=(reporter,),
        run=False,
    )
    until_scored(ran, 4)
    header, rows = table(heartbeat(reporter, ran, capsys))
    names = [header.index(name) for name in ("accuracy", VALIDATED_AT, "iter")]
    for index, row in enumerate(rows):
        score, (at, iteration) = float(row[names[0]]), (int(row[name]) for name in names[1:])
        assert (at, iteration) == (4, 5)
        assert score == pytest.approx(quality(index, at), rel=1e-4)
    assert "loss" in header and "generation" not in header


@pytest.mark.parametrize("on_pending", ["wait", "wait-paused"])
def test_progress_counts_trials_that_all_wait_for_scores(tmp_path, on_pending):
    ran = sweep(
        tmp_path,
        trials=3,
        on_pending=on_pending,
        validation_s=lambda attempt: 30.0,
        run=False,
    )
    seen = set()
    for _ in steps(ran):
        if not all(trial.is_finished() for trial in ran.trials):
            seen.update(ran.validation.run.progress())
    assert any(re.search(r"\b3 trials .*\bwait\b", line) for line in seen)


# In a notebook, and with RAY_AIR_NEW_OUTPUT=0 ---------------------------------------------------


@pytest.fixture
def legacy(monkeypatch):
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    set_verbosity(Verbosity.V3_TRIAL_DETAILS)
    yield
    set_verbosity(0)


def with_reporter(tmp_path, run_config, **options):
    """A sweep, and the reporter that Tune is given for it."""
    options = {"validation_s": lambda attempt: 3.0, **options}
    ran = sweep(tmp_path, trials=1, param_space=SPACE, run=False, **options)
    with reporting(run_config) as reporter:
        assert run_config.progress_reporter is reporter
        ran.validation.reporter = reporter
    assert run_config.progress_reporter is None
    reporter.setup(start_time=0.0, total_samples=2, metric="accuracy", mode="max")
    return ran, reporter


def report(ran, reporter, *, done=False):
    """Let a reporter report, as Tune does."""
    reporter.report(ran.trials, done, ran.sweep.controller.scheduler_alg.debug_string(), "")


@pytest.mark.usefixtures("legacy")
def test_legacy_table_has_validation_scores_and_no_training_values_of_their_name(tmp_path, capsys):
    policy = tunekit.EveryIterations(2)
    run_config = tune.RunConfig(verbose=3)
    ran, reporter = with_reporter(tmp_path, run_config, trainable=Reporting, policy=policy)
    ran.sweep.step()
    report(ran, reporter)
    printed = capsys.readouterr().out
    assert "Validations" in printed and not re.search(r"\d validated", printed)
    assert "best trial" not in printed
    until_scored(ran, 4)
    report(ran, reporter)
    printed = capsys.readouterr().out
    lines = [[cell.strip() for cell in line.split("|")] for line in printed.splitlines()]
    [header] = [line for line in lines if "Trial name" in line]
    at = header.index("accuracy")
    assert header[at + 1] == VALIDATED_AT and " 99 " not in printed
    row = next(line for line in lines if len(line) > 1 and ran.trials[0].trial_id in line[1])
    assert row[at : at + 2] == [f"{quality(0, 4):.6g}", "4"]
    assert "4 validated" in printed and "best trial" in printed


@pytest.mark.usefixtures("legacy")
def test_notebook_table_has_the_newest_scores_and_counts_validations(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "IS_NOTEBOOK", True)
    monkeypatch.setattr(progress_reporter, "IS_NOTEBOOK", True)
    shown = []
    monkeypatch.setattr(JupyterNotebookReporter, "display", lambda self, html: shown.append(html))
    ran, reporter = with_reporter(tmp_path, tune.RunConfig(verbose=1))
    ran.sweep.run()
    report(ran, reporter, done=True)
    assert "18 validated" in shown[-1]
    heads = re.findall(r"<th[^>]*>(.*?)</th>", shown[-1])
    names = [name.strip() for name in heads]
    assert names[names.index("accuracy") + 1] == VALIDATED_AT
    assert f"{quality(0, 9):.6g}" in shown[-1]


@pytest.mark.parametrize("notebook", [False, True])
def test_progress_reporter_of_the_user_is_not_replaced(monkeypatch, notebook):
    monkeypatch.setattr(progress, "IS_NOTEBOOK", notebook)
    own = tune.CLIReporter()
    run_config = tune.RunConfig(progress_reporter=own)
    with reporting(run_config) as reporter:
        assert reporter is None and run_config.progress_reporter is own
