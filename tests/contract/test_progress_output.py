"""Each of Tune's reporters shows the newest validation scores, and counts validations."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune import progress_reporter
from ray.tune.experiment import Trial
from ray.tune.experimental.output import AirVerbosity, TuneTerminalReporter
from ray.tune.progress_reporter import JupyterNotebookReporter, TuneReporterBase
from ray.tune.utils.log import Verbosity, set_verbosity

import tunekit
from tests.support.modes import Mode
from tests.support.sweeps import Plan, Ran
from tests.support.trainables import Counting, quality
from tunekit._ray import progress
from tunekit._ray.progress import reporting
from tunekit.core.metrics import VALIDATED_AT

SPACE = {"lr": tune.grid_search([0.1, 0.2])}


def until(ran: Ran, holds: Callable[[], bool]) -> None:
    """Run a sweep step by step until a condition holds."""
    while not holds():
        assert not ran.sweep.controller.is_finished()
        ran.sweep.step()


def until_scored(ran: Ran, iteration: int) -> None:
    """Run a sweep until the newest score of each of its two trials is that of an iteration."""
    until(ran, lambda: [t.last_result.get(VALIDATED_AT) for t in ran.trials] == [iteration] * 2)


def row_of(trial: Trial, printed: str) -> dict[str, str]:
    """Return by column what the last table in a text has of a trial."""
    lines = [re.split(r"\s*[│|]\s*|\s{2,}", line.strip("│| ")) for line in printed.splitlines()]
    *_, header = (line for line in lines if line[0] == "Trial name" and "# failures" not in line)
    *_, row = (line for line in lines if trial.trial_id in line[0])
    return dict(zip(header, row, strict=False))


def test_terminal_table_has_the_newest_scores_and_counts_running_validations(tmp_path, capsys):
    reporter = TuneTerminalReporter(
        AirVerbosity.DEFAULT, num_samples=2, metric="accuracy", mode="max", config=dict(SPACE)
    )
    # It knows when the sweep began, as ``Tuner.fit`` lets it know.
    reporter.setup = partial(reporter.setup, start_time=0.0, total_samples=2)
    reporter._heartbeat_freq = 0
    ran = (
        Plan(tmp_path, trials=1)
        .training(saves=tunekit.EveryIterations(2))
        .validating(seconds=2.5)
        .tuning(param_space=SPACE)
        .calling(reporter)
        .start()
    )

    def heartbeat() -> str:
        capsys.readouterr()
        reporter.print_heartbeat(ran.trials, "Resources", force=True)
        return capsys.readouterr().out

    until(ran, lambda: ran.validation.run is not None and ran.validation.summary()["running"] == 2)
    printed = heartbeat()
    rows = [row_of(trial, printed) for trial in ran.trials]
    assert [(row["status"], row["lr"]) for row in rows] == [("RUNNING", "0.1"), ("RUNNING", "0.2")]
    status, counts, *_ = printed.strip().splitlines()
    assert "2 RUNNING" in status and "2 running" in counts and "best trial" not in printed
    until_scored(ran, 4)
    printed = heartbeat()
    for index, trial in enumerate(ran.trials):
        row = row_of(trial, printed)
        assert (row[VALIDATED_AT], row["iter"]) == ("4", "5")
        assert float(row["accuracy"]) == pytest.approx(quality(index, 4), rel=1e-4)
        assert "loss" in row and "generation" not in row


@pytest.mark.parametrize("mode", [Mode.WAIT, Mode.WAIT_PAUSED])
def test_progress_counts_trials_that_all_wait_for_scores(tmp_path, mode):
    ran = Plan(tmp_path, mode=mode, trials=3).validating(seconds=30.0).start()

    def all_wait() -> bool:
        lines = ran.validation.run.progress() if ran.validation.run else []
        return any(re.search(r"\b3 trials .*\bwait\b", line) for line in lines)

    until(ran, all_wait)


# In a notebook, and with RAY_AIR_NEW_OUTPUT=0 ---------------------------------------------------


@pytest.fixture
def legacy(monkeypatch):
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    set_verbosity(Verbosity.V3_TRIAL_DETAILS)
    yield
    set_verbosity(0)


def slow(folder: Path) -> Plan:
    return Plan(folder, trials=1).validating(seconds=3.0).tuning(param_space=SPACE)


def with_reporter(plan: Plan, verbose: int) -> tuple[Ran, TuneReporterBase]:
    """A sweep, and the reporter that Tune is given for it."""
    run_config, ran = tune.RunConfig(verbose=verbose), plan.start()
    with reporting(run_config) as reporter:
        assert run_config.progress_reporter is reporter
        ran.validation.reporter = reporter
    assert run_config.progress_reporter is None
    reporter.setup(start_time=0.0, total_samples=2, metric="accuracy", mode="max")
    return ran, reporter


def report(ran: Ran, reporter: TuneReporterBase) -> None:
    """Let a reporter report, as Tune does."""
    summary = ran.sweep.controller.scheduler_alg.debug_string()
    reporter.report(ran.trials, ran.sweep.controller.is_finished(), summary, "")


class Reporting(Counting):
    """Also report the metric, much better than validation finds it."""

    def step(self) -> dict[str, Any]:
        return {**super().step(), "accuracy": 99.0}


@pytest.mark.usefixtures("legacy")
def test_legacy_table_has_validation_scores_and_no_training_values_of_their_name(tmp_path, capsys):
    plan = slow(tmp_path).training(Reporting, saves=tunekit.EveryIterations(2))
    ran, reporter = with_reporter(plan, 3)
    ran.sweep.step()
    report(ran, reporter)
    printed = capsys.readouterr().out
    assert "Validations" in printed and not re.search(r"\d validated", printed)
    assert "best trial" not in printed
    until_scored(ran, 4)
    report(ran, reporter)
    printed = capsys.readouterr().out
    row = row_of(ran.trials[0], printed)
    assert (row["accuracy"], row[VALIDATED_AT]) == (f"{quality(0, 4):.6g}", "4")
    assert "4 validated" in printed and "best trial" in printed and " 99 " not in printed


@pytest.mark.usefixtures("legacy")
def test_notebook_table_has_the_newest_scores_and_counts_validations(tmp_path, monkeypatch):
    shown: list[str] = []
    for module in (progress, progress_reporter):
        monkeypatch.setattr(module, "IS_NOTEBOOK", True)
    monkeypatch.setattr(JupyterNotebookReporter, "display", lambda self, html: shown.append(html))
    ran, reporter = with_reporter(slow(tmp_path), 1)
    ran.sweep.run()
    report(ran, reporter)
    assert "18 validated" in shown[-1] and f"{quality(0, 9):.6g}" in shown[-1]
    assert re.search(rf"<th[^>]*>\s*accuracy\s*</th>\s*<th[^>]*>\s*{VALIDATED_AT}\s*<", shown[-1])


@pytest.mark.parametrize("notebook", [False, True])
def test_progress_reporter_of_the_user_is_not_replaced(monkeypatch, notebook):
    monkeypatch.setattr(progress, "IS_NOTEBOOK", notebook)
    own = tune.CLIReporter()
    run_config = tune.RunConfig(progress_reporter=own)
    with reporting(run_config) as reporter:
        assert reporter is None and run_config.progress_reporter is own
