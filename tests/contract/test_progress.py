"""What a sweep prints and shows while it runs, by each of Tune's ways to do so."""

from __future__ import annotations

import logging
import re
import signal
import time

import pytest
from ray import tune
from ray.train import ValidationTaskConfig
from ray.tune.experimental.output import AirVerbosity, TuneTerminalReporter
from ray.tune.progress_reporter import (
    JupyterNotebookReporter,
    ProgressReporter,
    TrialProgressCallback,
)
from ray.tune.schedulers import FIFOScheduler
from ray.tune.utils.log import Verbosity, set_verbosity

import tunekit
from tests.sweeps import LENGTH, Counting, quality, sweep
from tunekit._ray import progress
from tunekit._ray.progress import reported

SPACE = {"lr": tune.grid_search([0.1, 0.2])}


class Reporting(Counting):
    """It reports the metric, too, and much better than it is."""

    def step(self):
        return {**super().step(), "accuracy": 99.0}


class Terminal(TuneTerminalReporter):
    """It knows when the sweep began, as ``Tuner.fit`` lets it know."""

    def setup(self, **info):
        super().setup(start_time=0.0, total_samples=2)


def terminal(verbosity=AirVerbosity.DEFAULT, metric="accuracy", mode="max"):
    reporter = Terminal(verbosity, num_samples=2, metric=metric, mode=mode, config=dict(SPACE))
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
    """Let a sweep go on, a step at a time."""
    for _ in range(most):
        if ran.sweep.controller.is_finished():
            return
        ran.sweep.step()
        yield


def two_trials(folder, **options):
    """A sweep of the two trials of ``SPACE``."""
    return sweep(folder, FIFOScheduler(), trials=1, param_space=SPACE, **options)


def until_reported(ran):
    for _ in steps(ran):
        if ran.trials and all("training_iteration" in t.last_result for t in ran.trials):
            return
    raise AssertionError("nothing was reported")


def until_scored(ran, names=("accuracy",)):
    for _ in steps(ran):
        if all(name in ran.validation.history.names for name in names):
            return
    raise AssertionError("nothing was validated")


# In a terminal --------------------------------------------------------------------------------


def test_validations_are_counted_before_there_is_a_score(tmp_path, capsys):
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
    capsys.readouterr()
    reporter.print_heartbeat(ran.trials, "Resources", force=True)
    printed = capsys.readouterr().out
    header, rows = table(printed)
    assert "iter" in header
    assert "generation" not in printed
    # Cells that are blank are not there: after the status comes what is tried.
    assert [row[1:3] for row in rows] == [["RUNNING", "0.1"], ["RUNNING", "0.2"]]
    status, counts, *_ = printed.strip().splitlines()
    assert status == "Trial status: 2 RUNNING"
    assert counts == "Validations: 2 running"
    assert "Current best trial" not in printed


def test_each_trial_is_shown_with_its_newest_score_and_of_when_it_is(tmp_path, capsys):
    reporter = terminal()
    ran = two_trials(
        tmp_path,
        validation_s=lambda attempt: 2.5,
        more_callbacks=(reporter,),
        run=False,
    )
    for _ in steps(ran):
        newest = [ran.validation.history.newest(trial.trial_id) for trial in ran.trials]
        if newest and all(newest) and newest[0][0] == 3:
            break
    capsys.readouterr()
    reporter.print_heartbeat(ran.trials, "Resources", force=True)
    header, rows = table(capsys.readouterr().out)
    names = [header.index(name) for name in ("accuracy", "validated_iteration", "iter")]
    for index, row in enumerate(rows):
        score, (at, iteration) = float(row[names[0]]), (int(row[name]) for name in names[1:])
        assert at == ran.validation.history.newest(ran.trials[index].trial_id)[0] < iteration
        assert score == pytest.approx(quality(index, at), rel=1e-4)
    assert "loss" in header
    assert "generation" not in header


def test_what_training_reports_under_the_metrics_name_is_not_shown_as_validated(tmp_path, capsys):
    reporter = terminal()
    ran = two_trials(
        tmp_path,
        trainable=Reporting,
        validation_s=lambda attempt: 3.0,
        more_callbacks=(reporter,),
        run=False,
    )
    capsys.readouterr()
    for _ in steps(ran):
        reporter.print_heartbeat(ran.trials, "Resources", force=True)
    heartbeats = capsys.readouterr().out.split("Trial status:")[1:]
    tables = [part.split("\n\n")[0] for part in heartbeats]
    assert any("Validations: none yet" in shown for shown in tables)
    assert any(re.search(r"with accuracy=\d\.\d", shown) for shown in tables)
    assert not any(re.search(r" 99 |=99", shown) for shown in tables)


def said(printed):
    """Seconds, and the whole, of each line of its own that says what is waited for."""
    lines = [line for line in printed.splitlines() if line.startswith("All trials have ended")]
    return [(int(re.search(r"waited (\d+) s", line).group(1)), line) for line in lines]


def drained(tmp_path, callbacks, **options):
    return two_trials(
        tmp_path,
        policy=tunekit.EveryIterations(LENGTH),
        validation_s=lambda attempt: 35.0,
        settings={"task_config": ValidationTaskConfig(timeout_s=60.0), "max_in_flight": 1},
        more_callbacks=callbacks,
        **options,
    )


def test_the_end_says_what_it_waits_for_soon_and_then_every_ten_seconds(tmp_path, capsys):
    reporter = terminal()
    reporter._heartbeat_freq, reporter._last_heartbeat_time = 1e9, time.time()
    ran = drained(tmp_path, (reporter,))
    lines = said(capsys.readouterr().out)
    assert [seconds for seconds, _ in lines] == [2, 12, 22, 32, 42, 52, 62]
    first, second = (trial.trial_id for trial in ran.trials)
    assert lines[1][1].endswith(
        f"12 s for 2 validations: validate {first}@9 (running 12 s, at most 60 s), "
        f"validate {second}@9 (waiting 12 s to be started)"
    )
    assert lines[-1][1].endswith(f"1 validation: validate {second}@9 (running 27 s, at most 60 s)")


def test_a_silent_sweep_prints_nothing_and_logs_no_more_than_every_ten_seconds(
    tmp_path, capsys, caplog
):
    with caplog.at_level(logging.INFO, logger="tunekit"):
        drained(tmp_path, (terminal(AirVerbosity.SILENT),))
    assert capsys.readouterr().out == ""
    logged = [record.getMessage() for record in caplog.records if "waited" in record.getMessage()]
    assert [seconds for seconds, _ in said("\n".join(logged))] == [10, 20, 30, 40, 50, 60]


def test_a_sweep_that_is_interrupted_at_its_end_waits_no_more(tmp_path):
    handler = signal.getsignal(signal.SIGINT)

    def interrupted(attempt):
        signal.signal(signal.SIGINT, lambda *_: None)  # as Tune does when it has seen Ctrl-C
        return {"accuracy": 0.5}

    try:
        ran = drained(tmp_path, (), validate=interrupted)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert len(ran.validation.validator.pending()) == 1
    assert not any("All trials have ended" in line for line in ran.validation.progress())


@pytest.mark.parametrize("on_pending", ["wait", "wait-paused"])
def test_trials_that_all_wait_for_scores_are_counted(tmp_path, on_pending):
    ran = sweep(
        tmp_path,
        FIFOScheduler(),
        trials=3,
        on_pending=on_pending,
        validation_s=lambda attempt: 30.0,
        run=False,
    )
    seen = set()
    for _ in steps(ran):
        if not all(trial.is_finished() for trial in ran.trials):
            seen.update(ran.validation.progress())
    assert "All 3 trials that have not ended wait for a score" in seen
    assert not any("All trials have ended" in line for line in seen)


# In a notebook, and with RAY_AIR_NEW_OUTPUT=0 ---------------------------------------------------


@pytest.fixture
def legacy(monkeypatch):
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    set_verbosity(Verbosity.V3_TRIAL_DETAILS)
    yield
    set_verbosity(0)


def with_reporter(tmp_path, run_config, **options):
    """A sweep, and the reporter that Tune would be given for it."""
    options = {"validation_s": lambda attempt: 3.0, **options}
    ran = sweep(tmp_path, FIFOScheduler(), trials=1, param_space=SPACE, run=False, **options)
    with reported(run_config, ran.validation) as display:
        ran.validation.show_on(display)
        reporter = run_config.progress_reporter
    return ran, reporter


def set_up(reporter):
    reporter.setup(start_time=0.0, total_samples=2, metric="accuracy", mode="max")
    return reporter


def report(ran, reporter, capsys):
    capsys.readouterr()
    summary = ran.sweep.controller.scheduler_alg.debug_string()
    reporter.report(ran.trials, False, summary, "Resources")
    return capsys.readouterr().out


def columns(printed):
    header = next(line for line in printed.splitlines() if "Trial name" in line)
    return [cell.strip() for cell in header.strip("|").split("|")]


@pytest.mark.usefixtures("legacy")
def test_the_old_table_has_validated_values_only(tmp_path, capsys):
    ran, reporter = with_reporter(tmp_path, tune.RunConfig(verbose=3), trainable=Reporting)
    set_up(reporter)
    until_reported(ran)
    printed = report(ran, reporter, capsys)
    assert "Validations: " in printed
    assert " 99 " not in printed
    assert "Current best trial" not in printed
    until_scored(ran)
    printed = report(ran, reporter, capsys)
    names = ["accuracy", "validated_iteration"]
    assert columns(printed)[4:6] == names
    at, score = ran.validation.history.newest(ran.trials[0].trial_id)
    row = next(line for line in printed.splitlines() if f"{ran.trials[0].trial_id} " in line)
    assert [cell.strip() for cell in row.split("|")][5:7] == [f"{score['accuracy']:.6g}", str(at)]
    assert "Current best trial" in printed


@pytest.mark.usefixtures("legacy")
def test_a_notebook_shows_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "IS_NOTEBOOK", True)
    shown = []
    monkeypatch.setattr(JupyterNotebookReporter, "display", lambda self, html: shown.append(html))
    with pytest.warns(UserWarning, match="JupyterNotebookReporter"):
        ran, reporter = with_reporter(
            tmp_path, tune.RunConfig(verbose=1), policy=tunekit.EveryIterations(LENGTH)
        )
    set_up(reporter)._max_report_freqency = 0
    ran.sweep.run()
    assert isinstance(reporter, JupyterNotebookReporter)
    assert "All trials have ended; the sweep has waited" in shown[-1]
    reporter.report(ran.trials, True, ran.sweep.controller.scheduler_alg.debug_string(), "")
    assert "Validations: 2 validated" in shown[-1]
    heads = re.findall(r"<th[^>]*>(.*?)</th>", shown[-1])
    names = [name.strip() for name in heads]
    assert names[names.index("accuracy") + 1] == "validated_iteration"
    assert f"{quality(0, 9):.6g}" in shown[-1]


class Own(ProgressReporter):
    """A reporter of a user's, from scratch."""

    def __init__(self):
        self.reports = []

    def should_report(self, trials, done=False):
        return True

    def report(self, trials, done, *sys_info):
        self.reports.append((done, sys_info))


@pytest.mark.usefixtures("legacy")
def test_a_reporter_from_scratch_hears_what_the_end_waits_for(tmp_path):
    own = Own()
    ran, _ = with_reporter(
        tmp_path,
        tune.RunConfig(verbose=1, progress_reporter=own),
        policy=tunekit.EveryIterations(LENGTH),
    )
    ran.sweep.run()
    assert len(own.reports) in (2, 3)  # one a second, of three
    assert all("All trials have ended" in sys_info[0] for _, sys_info in own.reports)


@pytest.mark.usefixtures("legacy")
def test_reports_do_not_name_a_metric_that_they_do_not_have(tmp_path, capsys):
    set_verbosity(Verbosity.V2_TRIAL_NORM)
    sweep(
        tmp_path,
        FIFOScheduler(),
        trials=1,
        more_callbacks=(TrialProgressCallback(metric="accuracy"),),
    )
    printed = capsys.readouterr().out
    assert "reported loss=" in printed
    assert "accuracy=-99" not in printed
