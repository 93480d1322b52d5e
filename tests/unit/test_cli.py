"""Commands print results to stdout and errors in one line to stderr, and set their exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow.fs
import pytest
from pyarrow.fs import LocalFileSystem
from ray import cloudpickle, tune

import tunekit
from tests.support.kills import Killed, killed_after
from tests.support.readers import session, trial, tunekit_
from tests.support.schedulers import asha
from tests.support.sweeps import Plan, Ran
from tests.support.trainables import Counting, Endless, FailsOnce, quality
from tunekit.board import page
from tunekit.cli import commands, main, on_ray
from tunekit.cli.status import format_status, status_json
from tunekit.cli.trainables import trainable_at
from tunekit.core.events import SessionClosed
from tunekit.driver.program import Program
from tunekit.journal.experiments import sweeps_below
from tunekit.journal.journal import Journal
from tunekit.journal.lock import LOCK, DriverLock
from tunekit.journal.storage import LocalFolder

ROOT = Path(__file__).parents[2]
SPACE = {"lr": tune.uniform(0, 1)}


def halving(folder: Path) -> Plan:
    return Plan(folder, asha()).tuning(param_space=SPACE)


def killed(plan: Plan, writes: int = 60) -> Path:
    with pytest.raises(Killed), killed_after(writes):
        plan.run()
    return plan.folder / "sweep"


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*args: Any, **options: Any) -> Any:
        raise error

    return fail


def running(plan: Plan) -> Path:
    """A sweep whose driver, so its lock says, is this process."""
    path = killed(plan)
    (path / LOCK).unlink()
    DriverLock(LocalFileSystem(), str(path)).claim()
    return path


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> tuple[Path, Ran]:
    folder = tmp_path_factory.mktemp("ended")
    return folder / "sweep", halving(folder).run()


# status ----------------------------------------------------------------------------------------


def rows_of(text: str) -> list[list[str]]:
    """The rows of the table of trials in the text of a status."""
    return [line.split() for line in text.splitlines() if re.match(r" +\d+  ", line)]


def test_status_ranks_trials_by_best_score_and_counts_those_that_were_stopped(ended):
    path, ran = ended
    result = tunekit_("status", path)
    assert result.exit_code == 0 and result.stderr == ""
    head, *lines = result.stdout.splitlines()
    assert head.split()[:2] == ["sweep", "finished"] and lines[0] == str(path)
    assert "8 terminated" in result.stdout
    scores = ran.validated()
    top = {trial.trial_id: max(scores[n].values()) for n, trial in enumerate(ran.trials)}
    table = rows_of(result.stdout)
    assert [row[1] for row in table] == sorted(top, key=lambda t: -top[t])
    assert [row[4] for row in table] == [f"{top[row[1]]:.4f}" for row in table]
    stopped = sum(trial.stopped for trial in tunekit.load(path).timeline.trials.values())
    assert stopped and sum(row[2] == "stopped" for row in table) == stopped
    assert f"{stopped} stopped" in result.stdout
    assert all(len(line) <= 100 for line in lines if not line.startswith("/"))


def test_status_top_limits_the_rows_of_the_text_but_not_of_json(ended):
    path, ran = ended
    assert len(rows_of(tunekit_("status", path, "--top", 3).stdout)) == 3
    known = json.loads(tunekit_("status", path, "--json", "--top", 1).stdout)
    summary = tunekit.load(path).summary()
    assert {name: known[name] for name in summary} == json.loads(json.dumps(summary))
    assert known["ranking"][0]["trial_id"] == summary["best"]["trial_id"]
    assert len(known["ranking"]) == len(ran.trials) and known["waits_for"] == []


def test_status_ranks_by_the_metric_and_mode_options(ended):
    def best(*options: str) -> dict[str, Any]:
        return json.loads(tunekit_("status", ended[0], "--json", *options).stdout)["best"]

    assert best("--mode", "min")["score"] < best()["score"]
    assert best("--metric", "loss", "--mode", "min") is None, "it was never validated"
    text = tunekit_("status", ended[0], "--metric", "loss").stdout
    assert re.search(r"\bloss\b.* --mode\b", text)


def test_status_of_a_killed_sweep_has_its_pending_validations_and_how_to_continue(tmp_path):
    sweep = tunekit.load(killed(halving(tmp_path).validating(slots=1)))
    status = status_json(sweep, now=sweep.timeline.last + 90)
    assert status["state"] == "killed" and status["heard_s"] == 90
    [running], queued = (
        [row for row in status["waits_for"] if row["status"] == kind]
        for kind in ("running", "queued")
    )
    assert running["for_s"] < 90, "it ran until the driver was killed"
    behind = [row["unprocessed"] for row in status["ranking"] if row["unprocessed"]]
    assert status["unprocessed"] == sum(behind) > len(queued) > len(behind) > 1
    text = format_status(status)
    assert status["continue_with"].startswith("tunekit resume /")
    for fact in (status["continue_with"], "90 s", f" {status['driver']['pid']} "):
        assert fact in text
    counts = {line[:13].strip(): line[13:] for line in text.splitlines()}
    assert f"1 running, {len(queued)} queued" in counts["waits for"]
    assert f" {running['trial_id']} " in counts["waits for"]
    assert re.findall(r"\d+", counts["reports"]) == [f"{sum(behind)}", f"{len(behind)}"]
    row = rf"^ +{running['trial_id']}  .* {running['iteration']} running "
    assert re.search(row, text, re.M)


def test_status_groups_failures_by_reason_and_names_their_checkpoints(tmp_path):
    def validate(attempt: Any) -> dict[str, float]:
        if attempt.request.iteration == 2:
            raise RuntimeError("no such image")
        return {"accuracy": quality(0, attempt.request.iteration)}

    plan = Plan(tmp_path, trials=1).validating(validate, max_retries=0)
    plan.tuning(param_space={"fail_at": tune.grid_search([4, None])}).run()
    result = tunekit_("status", tmp_path / "sweep")
    failures = result.stdout.partition("failures\n")[2].splitlines()
    assert re.fullmatch(r"trial \w+@3: fails at 4", failures[0])
    assert failures[1].startswith("2 ") and failures[1].endswith("RuntimeError: no such image")
    assert re.fullmatch(r"  \w+@2, \w+@2", failures[2]) and len(failures) == 3
    known = json.loads(tunekit_("status", tmp_path / "sweep", "--json").stdout)
    assert [row["of"] for row in known["failures"]] == ["trial", "validation", "validation"]
    assert [cause["count"] for cause in known["causes"]] == [1, 2]
    assert re.search(r" fail_at\n", result.stdout)
    assert set(re.findall(r"^ +\d  .* (\w+)$", result.stdout, re.M)) == {"4", "None"}


def test_status_names_the_iteration_after_which_a_trial_failed_that_has_recovered(tmp_path):
    Plan(tmp_path, trials=1).training(FailsOnce).tuning(max_failures=1).run()
    known = json.loads(tunekit_("status", tmp_path / "sweep", "--json").stdout)
    assert [(row["of"], row["iteration"]) for row in known["failures"]] == [("trial", 5)]


def test_json_output_has_null_for_infinite_hyperparameters(tmp_path):
    Plan(tmp_path, trials=1).tuning(param_space={"limit": float("inf")}).run()
    result = tunekit_("status", tmp_path / "sweep", "--json")
    known = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(name))
    assert known["ranking"][0]["config"] == {"limit": None}


def test_status_watch_prints_a_line_per_refresh_until_the_sweep_ends(tmp_path, monkeypatch):
    path = running(halving(tmp_path))
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:  # it ends meanwhile
            halving(tmp_path / "other").run()
            path.rename(tmp_path / "former")
            (tmp_path / "other/sweep").rename(path)

    monkeypatch.setattr(commands, "time", SimpleNamespace(time=time.time, sleep=sleep))
    result = tunekit_("status", path, "--watch", 5, "--json")
    states = [json.loads(line)["state"] for line in result.stdout.splitlines()]
    assert states == ["running", "running", "finished"] and looks == [5, 5]


def test_ctrl_c_ends_status_watch_with_exit_code_0(tmp_path, monkeypatch):
    interrupted = SimpleNamespace(time=time.time, sleep=raising(KeyboardInterrupt()))
    monkeypatch.setattr(commands, "time", interrupted)
    result = tunekit_("status", running(halving(tmp_path)), "--watch", 5)
    assert result.exit_code == 0 and result.stdout.split()[:2] == ["sweep", "running"]


def test_status_watch_of_a_killed_sweep_ends_at_once_with_how_to_continue(tmp_path):
    result = tunekit_("status", killed(halving(tmp_path)), "--watch", 5)
    assert result.exit_code == 0 and result.stdout.split()[:2] == ["sweep", "killed"]
    assert "tunekit resume /" in result.stdout


# best ------------------------------------------------------------------------------------------


def test_best_shows_score_config_and_checkpoint_as_text_with_python_and_as_json(ended):
    path, _ = ended
    result = tunekit_("best", path, "--json")
    known, found = json.loads(result.stdout), tunekit.load(path).best()
    assert result.exit_code == 0
    assert (known["trial_id"], known["score"]) == (found.trial_id, found.score)
    assert known["config"] == dict(found.config) and known["checkpoint"] == found.path
    assert known["kept"] and (known["metric"], known["mode"]) == ("accuracy", "max")
    first, *_, line = tunekit_("best", path, "--mode", "min").stdout.splitlines()
    found = tunekit.load(path).best(mode="min")
    assert eval(line.strip()).path == found.path
    assert {"accuracy", f"{found.score:.4f}", "(min):", found.trial_id} <= set(first.split())


def test_best_reports_a_checkpoint_whose_folder_is_missing(tmp_path):
    trial(session(tmp_path), "a", 0.5)
    checkpoint = tmp_path / "train_a/checkpoint_000001"
    checkpoint.mkdir(parents=True)
    whole = tunekit_("best", tmp_path).stdout
    checkpoint.rmdir()
    assert tunekit_("best", tmp_path).stdout != whole
    assert not json.loads(tunekit_("best", tmp_path, "--json").stdout)["kept"]


@pytest.mark.parametrize("writes", [15, 60], ids=["before-validations", "during-validations"])
def test_best_without_a_score_prints_nothing_and_has_exit_code_3(tmp_path, writes):
    path = killed(halving(tmp_path).validating(seconds=1e6), writes)
    result = tunekit_("best", path, "--json")
    assert result.exit_code == 3 and result.stdout == ""
    assert "'accuracy'" in result.stderr


# report ----------------------------------------------------------------------------------------


def test_report_writes_the_page_in_order_of_its_mode_and_prints_its_path(
    ended, monkeypatch, tmp_path
):
    opened: list[str] = []
    monkeypatch.setattr(commands.webbrowser, "open", opened.append)
    path, _ = ended
    result = tunekit_("report", path)
    assert result.stdout == f"{path}/report.html\n" and opened == []
    monkeypatch.chdir(tmp_path)
    result = tunekit_("report", path, "--output", "r.html", "--open", "--mode", "min")
    assert result.stdout == "r.html\n" and opened == [(tmp_path / "r.html").as_uri()]
    for written, mode in ((path / "report.html", "max"), (Path("r.html"), "min")):
        first = re.search(r'data-trial="(\w+)"><td>1</td>', written.read_text())[1]
        assert first == tunekit.load(path, mode=mode).ranking()[0].trial_id


def test_report_of_a_remote_sweep_is_written_to_the_current_directory(monkeypatch, tmp_path):
    below = pyarrow.fs.SubTreeFileSystem("/", LocalFileSystem())
    remote = tunekit.Sweep([], path="bucket/digits", filesystem=below)
    monkeypatch.setattr(commands, "load", lambda path, **options: remote)
    monkeypatch.chdir(tmp_path)
    assert tunekit_("report", "s3://bucket/digits").stdout == "digits-report.html\n"
    assert (tmp_path / "digits-report.html").exists()


# resume ----------------------------------------------------------------------------------------


COUNTING = "tests.support.trainables:Counting"


@pytest.fixture
def restored(monkeypatch) -> mock.Mock:
    """A double of ``Tuner.restore``, with whose result nothing happens."""
    tuner = mock.Mock(validation=SimpleNamespace(program=Program()))
    tuner.fit.side_effect = lambda **options: print("Tune's own output")
    restore = mock.Mock(return_value=tuner)
    monkeypatch.setattr(on_ray, "Tuner", SimpleNamespace(restore=restore))
    monkeypatch.setattr(on_ray, "ray", SimpleNamespace(is_initialized=lambda: True))
    return restore


def written_down(home: Path, where: str | None) -> Path:
    """A sweep that has ended, and has written down its trainable."""
    Journal(LocalFolder(home), about={"trainable": where}).append(SessionClosed(finished=True))
    return home


def test_resume_restores_with_the_recorded_trainable_unless_another_is_given(tmp_path, restored):
    path = written_down(tmp_path, COUNTING)
    result = tunekit_("resume", path, "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["state"] == "finished"
    assert "Tune's own output" in result.stderr
    result = tunekit_(
        "resume", path, "--errored", "--trainable", "tests.support.trainables:Endless"
    )
    assert "finished" in result.stdout and "Tune's own output" in result.stdout
    tunekit_("resume", path, "--restart-errored")
    calls = [(one.args[1], *one.kwargs.values()) for one in restored.call_args_list]
    assert calls == [(Counting, False, False), (Endless, True, False), (Counting, False, True)]
    options = {"resume_errored": False, "restart_errored": False}
    assert restored.call_args_list[0] == mock.call(str(path), Counting, **options)


def test_resume_without_a_recorded_trainable_names_the_option_and_restores_nothing(
    tmp_path, restored
):
    result = tunekit_("resume", written_down(tmp_path, None))
    assert result.exit_code == 2 and "--trainable" in result.stderr
    assert not restored.called


def test_resume_has_exit_code_1_if_the_sweep_does_not_finish_or_all_trials_fail(tmp_path, restored):
    killed(halving(tmp_path / "killed"))
    for name, fails in (("all", [3, 3]), ("half", [3, None])):
        space = {"fail_at": tune.grid_search(fails)}
        Plan(tmp_path / name, trials=1).tuning(param_space=space).run()
    for name, code, said in (
        ("killed", 1, "sweep  killed"),
        ("all", 1, "2 error"),
        ("half", 0, "1 error"),
    ):
        result = tunekit_("resume", tmp_path / name / "sweep", "--trainable", COUNTING)
        assert result.exit_code == code and result.stdout.count(said) == 1


def test_resume_prints_errors_of_tunekit_in_one_line_and_raises_others(tmp_path, restored):
    path, fit = written_down(tmp_path, COUNTING), restored.return_value.fit
    fit.side_effect = tunekit.errors.AlreadyRunningError("has a driver.")
    result = tunekit_("resume", path)
    assert (result.exit_code, result.stderr) == (1, "Error: has a driver.\n")
    fit.side_effect = ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        tunekit_("resume", path)


# where a trainable is --------------------------------------------------------------------------


def test_trainable_in_a_file_imports_its_neighbours_and_is_pickled_by_value(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "cli_neighbour.py").write_text("LENGTH = 3\n")
    file = tmp_path / "cli_train.py"
    file.write_text(
        "from cli_neighbour import LENGTH\n"
        "class Net:\n    def train(config): return LENGTH\n"
        "if __name__ == '__main__': raise SystemExit\n"
    )
    train = trainable_at(f"{file}:Net.train")
    assert train({}) == 3
    pickled = cloudpickle.dumps(train)
    file.unlink()
    del sys.modules["cli_train"]  # as in another process, which does not have the file
    assert cloudpickle.loads(pickled)({}) == 3


def test_trainable_in_a_module_is_found_in_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    Path("cli_module.py").write_text("def train(config): return 7\n")
    assert trainable_at("cli_module:train")({}) == 7
    Path("cli_broken.py").write_text("import no_such_package\n")
    with pytest.raises(ModuleNotFoundError) as caught:
        trainable_at("cli_broken:train")
    assert caught.value.name == "no_such_package"


@pytest.mark.parametrize(
    ("where", "named"),
    [
        (":train", ":train"),
        ("no.such.module:train", "no.such.module"),
        ("a..b:train", "a..b"),
        ("no_such_file.py:train", "no_such_file.py"),
        ("math:train", "math:train"),
    ],
)
def test_trainable_that_does_not_exist_is_an_error_that_names_it(where, named, ended):
    result = tunekit_("resume", ended[0], "--trainable", where)
    assert result.exit_code == 2 and repr(named) in result.stderr


# all of them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "best", "report", "resume"])
def test_path_that_is_not_a_sweep_has_exit_code_2(command, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # where no sweep is that could be taken instead
    result = tunekit_(command, tmp_path)
    assert result.exit_code == 2 and result.stdout == ""
    assert str(tmp_path) in result.stderr and "'journal'" in result.stderr
    result = tunekit_(command)
    assert result.exit_code == 2 and "PATH" in result.stderr
    assert tunekit_(command, "--help").exit_code == 0


@pytest.mark.parametrize(("options", "code"), [((), 2), (("--mode", "max"), 3)], ids=str)
def test_mistyped_metric_is_an_error_that_suggests_the_validated_one(ended, options, code):
    result = tunekit_("best", ended[0], "--metric", "acuracy", *options)
    assert result.exit_code == code
    assert "'acuracy'" in result.stderr and "'accuracy'" in result.stderr
    assert result.stderr.count("\n") == 1, "that the mode is missing is not what is wrong"


@pytest.mark.parametrize("command", ["status", "best", "report", "resume"])
def test_path_inside_or_above_a_sweep_is_an_error_that_names_the_sweep(command, ended):
    checkpoint = next(ended[0].glob("*/checkpoint_*"))
    for near in (checkpoint, checkpoint.parent, ended[0].parent):
        result = tunekit_(command, near)
        assert result.exit_code == 2 and str(ended[0]) in result.stderr


@pytest.mark.parametrize("command", ["status", "best", "report", "stop"])
def test_storage_error_is_printed_in_one_line_with_exit_code_1(command, ended, monkeypatch):
    error = PermissionError(13, "Permission denied", str(ended[0]))
    monkeypatch.setattr(commands, "load", raising(error))
    result = tunekit_(command, ended[0], *["--trial", "a"] * (command == "stop"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {error}\n"


def test_ctrl_c_ends_a_command_in_one_line_with_exit_code_1(ended, monkeypatch):
    monkeypatch.setattr(commands, "load", raising(KeyboardInterrupt()))
    result = tunekit_("best", ended[0])
    assert result.exit_code == 1 and len(result.stderr.strip().splitlines()) == 1


def test_ctrl_c_while_the_commands_are_imported_exits_with_one_line(monkeypatch):
    interrupted = type("", (), {"run": property(raising(KeyboardInterrupt()))})()
    monkeypatch.setitem(sys.modules, "tunekit.cli.commands", interrupted)
    with pytest.raises(SystemExit, match=r"^\S+$"):
        main(["--version"])


def test_closed_pipe_and_latin_terminal_cause_no_traceback(tmp_path):
    trial(session(tmp_path / "snow"), "\N{SNOWMAN}", 0.5)
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "tunekit", "status", str(tmp_path / "snow")]
    options: dict[str, Any] = {"env": environment, "cwd": ROOT, "stderr": subprocess.PIPE}
    done = subprocess.run(command, stdout=subprocess.PIPE, **options)
    assert (done.returncode, done.stderr) == (0, b"") and b"\\u2603" in done.stdout
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, **options)
    os.close(writing)
    assert done.stderr == b""


def test_report_to_an_impossible_file_is_an_error_in_one_line_and_leaves_no_file(ended, tmp_path):
    for name, named in (("x" * 300, "x" * 300), ("none/r.html", "none"), ("a\0b", "a\\x00b")):
        result = tunekit_("report", ended[0], "--output", tmp_path / name)
        assert named in result.stderr and result.stderr.count("\n") == 1
        assert result.exit_code in (1, 2) and not list(tmp_path.iterdir())


def test_full_disk_is_an_error_in_one_line_that_names_the_report(ended, tmp_path, monkeypatch):
    full = OSError(28, "No space left on device", str(tmp_path / ".0.draft"))
    monkeypatch.setattr(page, "write_file", raising(full))
    result = tunekit_("report", ended[0], "--output", tmp_path / "r.html")
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert str(tmp_path / "r.html") in result.stderr and "draft" not in result.stderr


# list, and the sweep that commands take without a PATH ------------------------------------------


def aged(home: Path, hours: float) -> Path:
    """Set how long ago a sweep's journal was written."""
    for file in (home / "journal").glob("*.jsonl"):
        os.utime(file, (2e9 - 3600 * hours,) * 2)
    return home


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """Four sweeps: one has ended, one was killed, one runs, and one is damaged."""
    home = tmp_path_factory.mktemp("home") / "ray_results"
    aged(Plan(home / "old", trials=2).run().home, 30)

    def two(name: str) -> Plan:
        return Plan(home / "project" / name, trials=2).tuning(param_space=SPACE)

    aged(killed(two("killed")), 20)
    aged(running(two("running")), 10)
    damaged = aged(Plan(home / "damaged", trials=1).run().home, 40)
    [journal] = (damaged / "journal").glob("*.jsonl")
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([lines[0], "no JSON", *lines[1:]]) + "\n")
    aged(damaged, 40)
    (home / ".hidden").mkdir()
    (home / "old/sweep").rename(home / "old sweep")
    (home / "plain/trial").mkdir(parents=True)
    (home / "plain/tuner.pkl").touch()
    return home


def test_list_has_each_sweep_below_a_folder_newest_first_with_its_state(results):
    known = json.loads(tunekit_("list", results, "--json").stdout)
    rows = [(row["name"], row["state"]) for row in known["sweeps"]]
    assert rows == [
        ("project/running/sweep", "running"),
        ("project/killed/sweep", "killed"),
        ("old sweep", "finished"),
        ("damaged/sweep", "unreadable"),
    ]
    ended = known["sweeps"][2]
    assert ended["best"]["score"] == tunekit.load(results / "old sweep").best().score
    assert ended["trials"] == {"terminated": 2} and ended["metric"] == "accuracy"
    assert "line 2" in known["sweeps"][3]["reason"]


def test_list_top_limits_the_rows_and_counts_the_others(results):
    lines = tunekit_("list", results, "--top", 1).stdout.splitlines()
    assert len(lines) == 3 and "3" in lines[-1].split()


def test_list_accepts_a_uri_a_sweep_and_a_folder_without_sweeps(results, tmp_path):
    for where, found in ((f"file://{results}", 4), (results / "old sweep", 1), (tmp_path, 0)):
        known = json.loads(tunekit_("list", where, "--json").stdout)
        assert known["found"] == len(known["sweeps"]) == found
    result = tunekit_("list", tmp_path)
    assert result.exit_code == 0 and str(tmp_path) in result.stdout
    assert tunekit_("list", "nowhere://at/all").exit_code == 2


def test_journals_inside_sweeps_or_tune_experiments_are_not_listed_as_sweeps(results):
    for folder in ("old sweep", "plain/trial"):  # nor in experiments without validation
        inner = results / folder / "inner/journal"
        inner.mkdir(parents=True)
        (inner / "000001.jsonl").touch()
    found = sweeps_below(pyarrow.fs.LocalFileSystem(), str(results))
    assert f"{results}/old sweep" in [one.path for one in found]
    assert len(found) == 4


@pytest.mark.parametrize("command", ["status", "best"])
def test_command_without_path_takes_the_newest_sweep_below_ray_results(
    results, monkeypatch, command
):
    monkeypatch.setenv("HOME", str(results.parent))
    newest = results / "project/running/sweep"
    result = tunekit_(command, "--json")
    assert str(newest) in result.stderr and result.stderr.count("\n") == 1
    known = json.loads(result.stdout)
    of_sweep = known["path"] if command == "status" else known["checkpoint"]
    assert of_sweep.startswith(str(newest))
    assert json.loads(tunekit_("list", "--json").stdout)["found"] == 4


def test_stop_accepts_the_part_of_a_trial_id_that_differs(tmp_path, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(commands, "ask_to_stop", lambda *where: asked.append(where[-1]))
    journal = session(tmp_path)
    for name in ("4f1c_00000", "4f1c_00001"):
        trial(journal, name, 0.5)
    assert tunekit_("stop", tmp_path, "--trial", "00001").exit_code == 0
    result = tunekit_("stop", tmp_path, "--trial", "00002")
    assert result.exit_code == 2 and asked == ["4f1c_00001"]
    assert {"00002", "4f1c_00000,", "4f1c_00001."} <= set(result.stderr.split())
