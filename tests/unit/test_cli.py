"""The command line: what each command prints, on which stream, and its exit code."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow.fs
import pytest
from pyarrow.fs import LocalFileSystem
from ray import tune
from ray.tune.schedulers import FIFOScheduler

import tunekit
from tests.support.journals import read
from tests.support.kills import Killed, killed_after
from tests.support.readers import session, trial, tunekit_
from tests.support.schedulers import asha
from tests.support.sweeps import Ran, quality, sweep
from tunekit.board import page
from tunekit.board.page import write_page
from tunekit.cli import commands, main, on_ray
from tunekit.cli.status import format_status, status_json
from tunekit.cli.trainables import trainable_at
from tunekit.driver.program import Program
from tunekit.journal.experiments import sweeps_below
from tunekit.journal.lock import LOCK, DriverLock

ROOT = Path(__file__).parents[2]


def run(folder: Path, base: Any = None, **options: Any) -> Ran:
    return sweep(folder, base or asha(), param_space={"lr": tune.uniform(0, 1)}, **options)


def killed(folder: Path, writes: int = 60, base: Any = None, **options: Any) -> Path:
    with pytest.raises(Killed), killed_after(writes):
        run(folder, base, **options)
    return folder / "sweep"


def running(folder: Path) -> Path:
    """A sweep whose driver, so its lock says, is this process."""
    path = killed(folder)
    (path / LOCK).unlink()
    DriverLock(LocalFileSystem(), str(path)).claim()
    return path


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> tuple[Path, Ran]:
    folder = tmp_path_factory.mktemp("ended")
    return folder / "sweep", run(folder)


# status ----------------------------------------------------------------------------------------


def test_status_summarizes_a_sweep_and_ranks_its_trials(ended):
    path, ran = ended
    result = tunekit_("status", path)
    assert result.exit_code == 0 and result.stderr == ""
    head, *lines = result.stdout.splitlines()
    assert head.startswith("sweep  finished  last heard of")
    assert lines[0] == str(path)
    assert "trials       8: terminated" not in result.stdout and "8 terminated" in result.stdout
    scores = ran.validated()
    top = {trial.trial_id: max(scores[n].values()) for n, trial in enumerate(ran.trials)}
    table = [line.split() for line in lines if re.match(r" +\d+  ", line)]
    assert [row[1] for row in table] == sorted(top, key=lambda t: -top[t])
    assert [row[4] for row in table] == [f"{top[row[1]]:.4f}" for row in table]
    stopped = sum(trial.stopped for trial in tunekit.load(path).timeline.trials.values())
    assert stopped and sum(row[2] == "stopped" for row in table) == stopped
    assert f"{stopped} stopped by the scheduler" in result.stdout
    assert all(len(line) <= 100 for line in lines if not line.startswith("/"))


def test_status_as_json_has_the_summary_and_all_trials(ended):
    path, ran = ended
    result = tunekit_("status", path, "--json", "--top", 1)
    known = json.loads(result.stdout)
    summary = tunekit.load(path).summary()
    assert {name: known[name] for name in summary} == json.loads(json.dumps(summary))
    assert known["ranking"][0]["trial_id"] == summary["best"]["trial_id"]
    assert len(known["ranking"]) == len(ran.trials) and known["waits_for"] == []


def test_a_long_list_is_cut(ended):
    lines = tunekit_("status", ended[0], "--top", 3).stdout.splitlines()
    assert sum(bool(re.match(r" +\d+  ", line)) for line in lines) == 3


def test_another_metric_and_mode_rank_otherwise(ended):
    best = json.loads(tunekit_("status", ended[0], "--json").stdout)["best"]
    worst = json.loads(tunekit_("status", ended[0], "--json", "--mode", "min").stdout)["best"]
    assert worst["score"] < best["score"]
    text = tunekit_("status", ended[0], "--metric", "loss").stdout
    assert "not ranked: loss has no mode. Pass --mode." in text
    text = tunekit_("status", ended[0], "--metric", "loss", "--mode", "min").stdout
    assert "no validated loss yet" in text


def test_a_sweep_that_was_killed_waits_for_its_validations(tmp_path):
    path = killed(tmp_path, validation_slots=1)
    sweep = tunekit.load(path)
    status = status_json(sweep, now=sweep.timeline.last + 90)
    assert status["state"] == "killed" and status["heard_s"] == 90
    kinds = [row["status"] for row in status["waits_for"]]
    assert kinds.count("running") == 1 and "queued" in kinds
    running = next(row for row in status["waits_for"] if row["status"] == "running")
    assert running["for_s"] < 90, "it ran until the driver was killed"
    text = format_status(status)
    assert "Its driver: process" in text
    assert "last heard of 90 s ago" in text and "tunekit resume /" in text
    line = next(line for line in text.splitlines() if line.startswith("waits for"))
    assert f"1 running, {kinds.count('queued')} queued" in line
    assert f"the longest running: trial {running['trial_id']} at iteration" in line
    behind = [row["unprocessed"] for row in status["ranking"] if row["unprocessed"]]
    assert status["unprocessed"] == sum(behind) >= len(kinds) > len(behind) > 1
    told = f"{sum(behind)} wait for scores, of {len(behind)} trials"
    assert any(line.startswith("reports") and line.endswith(told) for line in text.splitlines())
    table = {row.split()[1]: row for row in text.splitlines() if re.match(r" +\d+  ", row)}
    for trial_id, row in table.items():
        own = [one for one in status["waits_for"] if one["trial_id"] == trial_id]
        oldest = f" {own[0]['iteration']} {own[0]['status']} " if own else "queued"
        assert (oldest in f"{row} ") == bool(own)


def test_failures_have_their_reasons(tmp_path):
    def validate(attempt: Any) -> dict[str, float]:
        if attempt.request.iteration == 2:
            raise RuntimeError("no such image")
        return {"accuracy": quality(0, attempt.request.iteration)}

    sweep(
        tmp_path,
        trials=1,
        validate=validate,
        settings={"max_retries": 0},
        param_space={"fail_at": tune.grid_search([4, None])},
    )
    result = tunekit_("status", tmp_path / "sweep")
    failures = result.stdout.partition("failures\n")[2].splitlines()
    assert re.fullmatch(r"trial \w+@3: fails at 4", failures[0])
    assert failures[1] == "2 validations: raised RuntimeError: no such image"
    assert re.fullmatch(r"  \w+@2, \w+@2", failures[2]) and len(failures) == 3
    known = json.loads(tunekit_("status", tmp_path / "sweep", "--json").stdout)
    assert [row["of"] for row in known["failures"]] == ["trial", "validation", "validation"]
    assert [cause["count"] for cause in known["causes"]] == [1, 2]
    assert re.search(r" fail_at\n", result.stdout)
    assert set(re.findall(r"^ +\d  .* (\w+)$", result.stdout, re.M)) == {"4", "None"}


def test_numbers_that_json_does_not_know_are_null(tmp_path):
    sweep(tmp_path, trials=1, param_space={"limit": float("inf")})
    result = tunekit_("status", tmp_path / "sweep", "--json")
    known = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(name))
    assert known["ranking"][0]["config"] == {"limit": None}


def test_watching_ends_with_the_sweep(tmp_path, monkeypatch):
    path = running(tmp_path)
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:  # it ends meanwhile
            run(tmp_path / "other")
            path.rename(tmp_path / "former")
            (tmp_path / "other/sweep").rename(path)

    monkeypatch.setattr(commands, "time", SimpleNamespace(time=time.time, sleep=sleep))
    result = tunekit_("status", path, "--watch", 5, "--json")
    states = [json.loads(line)["state"] for line in result.stdout.splitlines()]
    assert states == ["running", "running", "finished"] and looks == [5, 5]


def test_ctrl_c_is_how_one_stops_watching(tmp_path, monkeypatch):
    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "time", SimpleNamespace(time=time.time, sleep=sleep))
    result = tunekit_("status", running(tmp_path), "--watch", 5)
    assert result.exit_code == 0 and result.stdout.startswith("sweep  running")


def test_nobody_watches_a_sweep_that_was_killed(tmp_path):
    result = tunekit_("status", killed(tmp_path), "--watch", 5)
    assert result.exit_code == 0 and result.stdout.startswith("sweep  killed")
    assert "To continue it: tunekit resume /" in result.stdout


# best ------------------------------------------------------------------------------------------


def test_best_prints_one_object_and_nothing_else(ended):
    path, _ = ended
    result = tunekit_("best", path, "--json")
    known, found = json.loads(result.stdout), tunekit.load(path).best()
    assert result.exit_code == 0
    assert (known["trial_id"], known["score"]) == (found.trial_id, found.score)
    assert known["config"] == dict(found.config) and known["checkpoint"] == found.path
    assert known["kept"] and Path(known["checkpoint"]).is_dir()
    assert (known["metric"], known["mode"]) == ("accuracy", "max")


def test_the_line_of_python_that_best_prints_loads_the_checkpoint(ended):
    path, _ = ended
    result = tunekit_("best", path, "--mode", "min")
    line = result.stdout.splitlines()[-1].strip()
    found = tunekit.load(path).best(mode="min")
    assert eval(line).path == found.path
    assert result.stdout.startswith(f"accuracy {found.score:.4f} (min): trial {found.trial_id}")


def test_best_says_that_the_checkpoint_was_deleted(tmp_path):
    run(tmp_path, trials=1)
    path = Path(tunekit.load(tmp_path / "sweep").best().path)
    path.rename(path.with_name("elsewhere"))
    assert "It is missing" in tunekit_("best", tmp_path / "sweep").stdout
    assert not json.loads(tunekit_("best", tmp_path / "sweep", "--json").stdout)["kept"]


@pytest.mark.parametrize("writes", [15, 60])
def test_without_a_score_best_ends_with_3(tmp_path, writes):
    path = killed(tmp_path, writes, validation_s=lambda attempt: 1e6)
    result = tunekit_("best", path, "--json")
    assert result.exit_code == 3 and result.stdout == ""
    assert "No validation has ended with 'accuracy'" in result.stderr


# report ----------------------------------------------------------------------------------------


def test_report_prints_where_it_has_written_the_page(ended, monkeypatch, tmp_path):
    opened: list[str] = []
    monkeypatch.setattr(commands.webbrowser, "open", opened.append)
    path, _ = ended
    result = tunekit_("report", path)
    assert result.stdout == f"{path}/report.html\n" and opened == []
    assert "largest first" in (path / "report.html").read_text()
    monkeypatch.chdir(tmp_path)
    result = tunekit_("report", path, "--output", "r.html", "--open", "--mode", "min")
    assert result.stdout == "r.html\n" and opened == [(tmp_path / "r.html").as_uri()]
    assert "smallest first" in Path("r.html").read_text()


def test_a_report_that_goes_to_an_open_file_is_all_that_this_file_gets(ended, tmp_path):
    path, _ = ended
    with open(tmp_path / "page", "w+") as file:
        result = tunekit_("report", path, "--output", f"/dev/fd/{file.fileno()}")
        text = file.read().strip()
    assert text.startswith("<!") and text.endswith("</html>")
    assert result.stdout == "" and "/dev/fd/" in result.stderr


def test_the_report_of_a_remote_sweep_goes_into_the_current_directory(monkeypatch, tmp_path):
    import pyarrow.fs

    remote = tunekit.Sweep(
        [],
        path="bucket/digits",
        filesystem=pyarrow.fs.SubTreeFileSystem("/", pyarrow.fs.LocalFileSystem()),
    )
    monkeypatch.setattr(commands, "load", lambda path, **options: remote)
    monkeypatch.chdir(tmp_path)
    assert tunekit_("report", "s3://bucket/digits").stdout == "digits-report.html\n"
    assert (tmp_path / "digits-report.html").exists()


# resume ----------------------------------------------------------------------------------------


class Restored:
    """A fake Tuner that continues the sweep in this process."""

    calls: list[tuple[str, Any, dict[str, bool]]] = []
    then: Any = None

    @classmethod
    def restore(cls, path: str, trainable: Any, **options: bool) -> Restored:
        cls.calls.append((path, trainable, options))
        return cls()

    def __init__(self) -> None:
        self.validation = SimpleNamespace(program=Program())

    def fit(self, *, progress=False) -> None:
        print("Tune's own output")
        type(self).then()


@pytest.fixture
def restored(monkeypatch):
    Restored.calls, Restored.then = [], lambda: None
    monkeypatch.setattr(on_ray, "Tuner", Restored)
    monkeypatch.setattr(on_ray, "ray", SimpleNamespace(is_initialized=lambda: True))
    return Restored


def written_down(folder: Path, where: str | None, **options: Any) -> Path:
    """A sweep that has ended, and has written down its trainable."""
    ran = run(folder, run=False, trials=2, **options)
    ran.validation.program.trainable = where
    ran.sweep.run(most=50_000)
    return folder / "sweep"


def test_resume_continues_with_the_recorded_trainable(tmp_path, restored):
    path = written_down(tmp_path, "tests.support.sweeps:Counting")
    result = tunekit_("resume", path, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["state"] == "finished"
    assert "Tune's own output" in result.stderr
    (call,) = restored.calls
    assert call[0] == str(path) and call[1].__name__ == "Counting"
    assert call[2] == {"resume_errored": False, "restart_errored": False}
    result = tunekit_("resume", path, "--errored", "--trainable", "tests.support.sweeps:Endless")
    assert "sweep  finished" in result.stdout and "Tune's own output" in result.stdout
    assert restored.calls[1][1].__name__ == "Endless"
    assert restored.calls[1][2] == {"resume_errored": True, "restart_errored": False}
    tunekit_("resume", path, "--restart-errored")
    assert restored.calls[2][2] == {"resume_errored": False, "restart_errored": True}


def test_resume_says_what_to_pass_if_nothing_was_written_down(tmp_path, restored):
    result = tunekit_("resume", written_down(tmp_path, None))
    assert result.exit_code == 2 and "--trainable file.py:name" in result.stderr
    assert restored.calls == []


def test_resume_of_a_sweep_that_does_not_end_or_all_of_whose_trials_fail_ends_with_1(
    tmp_path, restored
):
    path = killed(tmp_path / "killed")
    result = tunekit_("resume", path, "--trainable", "tests.support.sweeps:Counting")
    assert result.exit_code == 1 and result.stdout.count("sweep  killed") == 1
    sweep(tmp_path / "bad", trials=2, param_space={"fail_at": 3})
    result = tunekit_(
        "resume", tmp_path / "bad/sweep", "--trainable", "tests.support.sweeps:Counting"
    )
    assert result.exit_code == 1 and "2 error" in result.stdout
    grid = tune.grid_search([3, None])
    sweep(tmp_path / "half", trials=1, param_space={"fail_at": grid})
    result = tunekit_(
        "resume", tmp_path / "half/sweep", "--trainable", "tests.support.sweeps:Counting"
    )
    assert result.exit_code == 0 and "1 error" in result.stdout


@pytest.mark.parametrize(
    "error",
    [
        tunekit.errors.RestoreError("tuner.pkl cannot be read."),
        tunekit.errors.AlreadyRunningError("has a driver."),
    ],
)
def test_errors_of_tunekit_are_messages_and_others_have_a_traceback(tmp_path, restored, error):
    path = written_down(tmp_path, "tests.support.sweeps:Counting")

    def fail() -> None:
        raise error

    restored.then = fail
    result = tunekit_("resume", path)
    assert result.exit_code == 1 and result.stderr.strip() == f"Error: {error}"
    restored.then = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        tunekit_("resume", path)


# where a trainable is --------------------------------------------------------------------------


def test_a_trainable_in_a_file_sees_its_neighbours_and_needs_no_file_to_travel(
    tmp_path, monkeypatch
):
    from ray import cloudpickle

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
    program = f"import pickle; print(pickle.loads({pickled!r}).__name__)"
    (tmp_path / "elsewhere").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path / "elsewhere",
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "train", done.stderr


def test_a_module_of_the_current_directory_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    Path("cli_module.py").write_text("def train(config): return 7\n")
    assert trainable_at("cli_module:train")({}) == 7
    Path("cli_broken.py").write_text("import no_such_package\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        trainable_at("cli_broken:train")


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("train", "'train' needs a colon"),
        (":train", "needs a colon with a name on both sides"),
        ("no.such.module:train", "there is no module 'no.such.module'"),
        (".module:train", "there is no module '.module'"),
        ("a..b:train", "there is no module 'a..b'"),
        ("no_such_file.py:train", "there is no file 'no_such_file.py'"),
        ("math:train", "math has no 'train'"),
    ],
)
def test_a_trainable_that_is_not_there(where, says, ended):
    result = tunekit_("resume", ended[0], "--trainable", where)
    assert result.exit_code == 2 and says in result.stderr


# all of them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "best", "report", "resume"])
def test_a_path_that_is_no_sweep_is_wrong_usage(command, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # where no sweep is that could be taken instead
    result = tunekit_(command, tmp_path)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("Error: ") and "Traceback" not in result.stderr
    assert "has no folder 'journal'" in result.stderr
    assert tunekit_(command).exit_code == 2


def test_a_mistyped_metric_is_an_error_with_a_suggestion(ended):
    result = tunekit_("best", ended[0], "--metric", "acuracy")
    assert result.exit_code == 2
    assert "metric='acuracy' is not among the validated metrics" in result.stderr
    assert "Did you mean 'accuracy'?" in result.stderr and "mode is missing" not in result.stderr
    result = tunekit_("best", ended[0], "--metric", "acuracy", "--mode", "max")
    assert result.exit_code == 3 and "Did you mean 'accuracy'?" in result.stderr


@pytest.mark.parametrize("command", ["status", "best", "report", "resume"])
def test_a_path_near_a_sweep_is_an_error_that_names_the_sweep(command, ended):
    checkpoint = next(ended[0].glob("*/checkpoint_*"))
    for near in (checkpoint, checkpoint.parent, ended[0].parent):
        result = tunekit_(command, near)
        assert result.exit_code == 2 and str(ended[0]) in result.stderr


@pytest.mark.parametrize("command", ["status", "best", "report", "stop"])
def test_a_storage_that_fails_is_a_line_that_names_it(command, ended, monkeypatch):
    def fail(path: str, **options: Any) -> Any:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(commands, "load", fail)
    result = tunekit_(command, ended[0], *["--trial", "a"] * (command == "stop"))
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr == f"Error: [Errno 13] Permission denied: {str(ended[0])!r}\n"


def test_ctrl_c_ends_any_command_in_a_line(ended, monkeypatch):
    def interrupt(path: str, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "load", interrupt)
    result = tunekit_("best", ended[0])
    assert result.exit_code == 1 and result.stderr.strip() == "Aborted!"


def test_ctrl_c_while_the_commands_are_imported_is_a_line(monkeypatch):
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "tunekit.cli.commands", Interrupted("commands"))
    with pytest.raises(SystemExit, match=r"Aborted!"):
        main(["--version"])


def test_a_reader_that_has_gone_and_a_latin_terminal_end_no_command_with_a_traceback(tmp_path):
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


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("x" * 300, "File name too long"),
        ("none/report.html", "does not exist"),
        ("a\0b", "cannot be the name of a file"),
        ("\ud800", "cannot be the name of a file"),
    ],
)
def test_a_report_that_cannot_be_written_is_a_line(ended, tmp_path, name, says):
    result = tunekit_("report", ended[0], "--output", tmp_path / name)
    assert says in result.stderr and result.stderr.count("\n") == 1 and result.exit_code in (1, 2)
    assert not list(tmp_path.iterdir()), "and nothing is left behind"


def test_a_full_disk_is_a_line_that_names_the_report(ended, tmp_path, monkeypatch):
    def fail(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device", str(path.with_name(".0123.draft")))

    monkeypatch.setattr(page, "write_file", fail)
    result = tunekit_("report", ended[0], "--output", tmp_path / "r.html")
    says = f"Error: [Errno 28] No space left on device: {str(tmp_path / 'r.html')!r}\n"
    assert (result.exit_code, result.stderr) == (1, says)


@pytest.mark.parametrize("path", [3, ["a"], Path])
def test_what_is_no_path_is_an_error_of_write_page(ended, path):
    with pytest.raises(tunekit.errors.ConfigError, match=r"path=.* is of type"):
        write_page(tunekit.load(ended[0]), path)
    with pytest.raises(tunekit.errors.ConfigError, match=r"sweep=.* is of type"):
        write_page(ended[0])


def test_the_package_can_be_run_and_has_a_version(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tunekit", "--version"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("tunekit", run_name="__main__")
    assert capsys.readouterr().out == f"tunekit, version {tunekit.__version__}\n"


def test_the_summary_counts_the_trained_iterations(tmp_path):
    ran = run(tmp_path, on_pending="continue", validation_s=lambda attempt: 2.5)
    reported = sum(event["event"] == "reported" for event in read(ran.home))
    assert tunekit.load(ran.home).summary()["iterations"] == reported > sum(ran.lengths().values())


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
    aged(sweep(home / "old", trials=2).home, 30)
    aged(killed(home / "project/killed", base=FIFOScheduler(), trials=2), 20)
    running = aged(killed(home / "project/running", base=FIFOScheduler(), trials=2), 10)
    (running / LOCK).unlink()
    DriverLock(LocalFileSystem(), str(running)).claim()
    damaged = aged(sweep(home / "damaged", trials=1).home, 40)
    [journal] = (damaged / "journal").glob("*.jsonl")
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([lines[0], "no JSON", *lines[1:]]) + "\n")
    aged(damaged, 40)
    (home / ".hidden").mkdir()
    (home / "old/sweep").rename(home / "old sweep")
    (home / "plain/trial").mkdir(parents=True)
    (home / "plain/tuner.pkl").touch()
    return home


def test_each_sweep_is_listed_with_its_state_the_newest_first(results):
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
    assert "line" in known["sweeps"][3]["reason"]


def test_what_is_left_out_is_counted(results):
    lines = tunekit_("list", results, "--top", 1).stdout.splitlines()
    assert len(lines) == 3 and lines[-1] == "and 3 older ones: --top"


def test_a_uri_and_a_sweep_itself_may_be_listed(results):
    known = json.loads(tunekit_("list", f"file://{results}", "--json").stdout)
    assert known["found"] == 4
    known = json.loads(tunekit_("list", results / "old sweep", "--json").stdout)
    assert [row["name"] for row in known["sweeps"]] == ["old sweep"]


def test_a_folder_without_sweeps_says_so(tmp_path):
    result = tunekit_("list", tmp_path)
    assert result.exit_code == 0 and "no sweep with validation" in result.stdout
    assert tunekit_("list", "nowhere://at/all").exit_code == 2


def test_sweeps_are_not_looked_for_in_sweeps(results):
    for folder in ("old sweep", "plain/trial"):  # nor in experiments without validation
        inner = results / folder / "inner/journal"
        inner.mkdir(parents=True)
        (inner / "000001.jsonl").touch()
    found = sweeps_below(pyarrow.fs.LocalFileSystem(), str(results))
    assert f"{results}/old sweep" in [one.path for one in found]
    assert len(found) == 4


@pytest.mark.parametrize("command", ["status", "best"])
def test_without_a_path_the_newest_below_ray_results_is_taken(results, monkeypatch, command):
    monkeypatch.setenv("HOME", str(results.parent))
    newest = results / "project/running/sweep"
    result = tunekit_(command, "--json")
    assert result.stderr == f"The newest sweep below ~/ray_results: {newest}\n"
    assert json.loads(result.stdout) and "trial_id" in result.stdout
    if command == "status":
        assert json.loads(result.stdout)["path"] == str(newest)
    assert json.loads(tunekit_("list", "--json").stdout)["found"] == 4


def test_without_a_path_and_without_a_sweep_it_is_wrong_usage(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    result = tunekit_("status")
    assert result.exit_code == 2 and "PATH is missing" in result.stderr
    assert tunekit_("status", "--help").exit_code == 0


def test_stop_knows_a_trial_by_the_part_of_its_id_that_others_lack(tmp_path):
    journal = session(tmp_path)
    for name in ("4f1c_00000", "4f1c_00001"):
        trial(journal, name, 0.5)
    result = tunekit_("stop", tmp_path, "--trial", "00001")
    assert result.exit_code == 2 and "no driver" in result.stderr
    result = tunekit_("stop", tmp_path, "--trial", "00002")
    assert result.exit_code == 2 and "is not in this sweep" in result.stderr
