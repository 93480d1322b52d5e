"""Validating a sweep's checkpoints with another function does not change the sweep."""

from __future__ import annotations

import json
import logging
import pickle
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.train import ValidationTaskConfig

import tunekit
from tests.support.fakes import FakeExecutor
from tests.support.journals import lines_of, read, write_lines
from tests.support.kills import Killed, killed_after
from tests.support.readers import tunekit_, validate_here
from tests.support.restores import contents
from tests.support.schedulers import asha
from tests.support.sweeps import Plan
from tests.support.trainables import Endless
from tunekit.board.page import render_report
from tunekit.cli import on_ray

CALLS: Counter[str] = Counter()


def steps_of(checkpoint: tune.Checkpoint) -> int:
    with checkpoint.as_directory() as folder:
        return int(pickle.loads(Path(folder, "_dict_checkpoint.pkl").read_bytes())["steps"])


def robust(checkpoint: tune.Checkpoint, *, noise: float = 0.0) -> dict[str, Any]:
    """The fewer steps, the better."""
    CALLS[checkpoint.path] += 1
    return {"accuracy": noise - steps_of(checkpoint), "by": {"kind": "robust"}}


def other(checkpoint: tune.Checkpoint) -> dict[str, Any]:
    return {"f1": 0.5}


def broken(checkpoint: tune.Checkpoint) -> dict[str, Any]:
    raise ValueError("no data")


@pytest.fixture(autouse=True)
def executors(monkeypatch) -> list[FakeExecutor]:
    """Validate in this process; return the executors that were made."""
    CALLS.clear()
    return validate_here(monkeypatch)


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    Plan(folder, asha(), trials=4).run()
    return folder / "sweep"


@pytest.fixture
def home(swept, tmp_path) -> Path:
    """The folder of a sweep that has ended, with all of its checkpoints."""
    return Path(shutil.copytree(swept, tmp_path / "sweep"))


def best_of(sweep: tunekit.Sweep) -> list[tuple[str, int]]:
    """The best checkpoint of each trial, the best trial first."""
    ranked = [one for one in sweep.ranking() if one.best is not None]
    return [(one.trial_id, one.best.iteration) for one in ranked if one.best]


def chosen(sweep: tunekit.Sweep) -> set[tuple[str, int]]:
    table = sweep.later_validations
    return set(zip(table["trial_id"], table["iteration"], strict=True))


# What is added ----------------------------------------------------------------------------------


def test_later_metrics_are_added_to_the_reports_and_the_sweep_is_unchanged(home):
    before, files = tunekit.load(home), contents(home)
    top = best_of(before)
    after = tunekit.validate(before, robust)
    now = {name: data for name, data in contents(home).items() if "validations/" not in name}
    assert now == files, "the sweep's own journal above all"
    for table in ("trials", "validations", "decisions"):
        assert getattr(after, table).equals(getattr(before, table)), table
    best = before.best()
    assert (after.best().trial_id, after.best().score) == (best.trial_id, best.score)
    assert after.best().metrics.items() > best.metrics.items()
    old = {k: v for k, v in before.summary().items() if k != "later"}
    assert {k: v for k, v in after.summary().items() if k != "later"} == old
    # each in the row that it belongs to
    assert len(after.reports) == len(before.reports)
    assert after.reports["accuracy"].equals(before.reports["accuracy"])
    rows = after.reports.dropna(subset="robust/accuracy")
    assert set(zip(rows["trial_id"], rows["training_iteration"], strict=True)) == set(top)
    assert (rows["robust/accuracy"] == -rows["training_iteration"]).all()
    assert set(rows["robust/by/kind"]) == {"robust"}
    # and ranked by
    new = after.best("robust/accuracy", "max")
    assert new.score == -new.iteration == -min(iteration for _, iteration in top)
    assert new.checkpoint is not None
    assert "accuracy" in new.metrics, "the old ones, too"


def test_report_page_shows_later_scores_and_failures(home):
    assert "robust/accuracy" not in render_report(tunekit.load(home))
    sweep = tunekit.validate(tunekit.load(home), robust, 2)
    page = render_report(sweep)
    assert "robust/accuracy" in page and "no data" not in page
    by_new = render_report(tunekit.load(home, metric="robust/accuracy", mode="max"))
    assert "best robust/<wbr>accuracy" in by_new
    failed = tunekit.validate(sweep, tunekit.ValidationConfig(broken, on_failure="ignore"), 1)
    assert "no data" in render_report(failed)


# Which checkpoints ------------------------------------------------------------------------------


def test_missing_checkpoints_are_logged_and_the_next_best_are_validated(home, caplog):
    sweep = tunekit.load(home)
    (first, at), (second, other_at) = best_of(sweep)[:2]
    shutil.rmtree(sweep.best().path)
    with caplog.at_level(logging.WARNING, logger="tunekit"):
        after = tunekit.validate(sweep, robust, 2)
    [message] = [record.message for record in caplog.records]
    assert f"{first}@{at}" in message
    assert (first, at) not in chosen(after) and (second, other_at) in chosen(after)
    assert {trial_id for trial_id, _ in chosen(after)} == {first, second}


def test_validate_without_any_checkpoint_left_is_refused_and_writes_nothing(home):
    sweep = tunekit.load(home)
    for path in home.glob("*/checkpoint_*"):
        shutil.rmtree(path)
    with pytest.raises(tunekit.errors.ConfigError):
        tunekit.validate(sweep, robust)
    assert not (home / "validations").exists()


def test_checkpoint_deleted_during_its_validation_is_skipped_and_logged(home, caplog):
    sweep = tunekit.load(home)
    path = sweep.best().path

    def deletes(checkpoint: tune.Checkpoint) -> dict[str, Any]:
        shutil.rmtree(checkpoint.path)
        raise FileNotFoundError("weights")

    config = tunekit.ValidationConfig(deletes, max_retries=0)
    after = tunekit.validate(sweep, config, 1)
    assert path in caplog.text and "Traceback" not in caplog.text
    [row] = after.later_validations.to_dict("records")
    assert row["status"] == "skipped" and path in row["reason"]


# What is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("name", name) for name in ("accuracy", "loss", "config", "pid", "trial_id")),
        *(("name", name) for name in ("", " ", "a//b", "/a", "a/", "a\n", "..", 7)),
        *(("checkpoints", number) for number in (0, "all")),
    ],
)
def test_invalid_arguments_of_validate_are_refused_by_value_and_nothing_starts(
    home, executors, option, value
):
    with pytest.raises(tunekit.errors.ConfigError) as caught:
        tunekit.validate(tunekit.load(home), robust, **{option: value})
    assert f"{option}={value!r}" in str(caught.value)
    assert not executors and not (home / "validations").exists()


def test_function_without_a_usable_name_or_with_a_missing_argument_is_not_run(home, executors):
    def needs(checkpoint: Any, data: str) -> dict[str, Any]:
        return {"accuracy": 0.5}

    sweep = tunekit.load(home)
    with pytest.raises(tunekit.errors.ConfigError, match="name='<lambda>'"):
        tunekit.validate(sweep, lambda checkpoint: {"accuracy": 0.5})
    with pytest.raises(tunekit.errors.ConfigError, match="'robust'"):
        tunekit.validate(sweep, "robust")  # type: ignore[arg-type]
    assert not executors
    with pytest.raises(tunekit.errors.ValidationFailedError, match="'data'"):
        tunekit.validate(sweep, needs)
    assert not executors[0].started


# Again, and again -------------------------------------------------------------------------------


def test_checkpoint_with_a_later_score_is_not_validated_again(home, executors):
    sweep = tunekit.validate(tunekit.load(home), robust, 2)
    assert sum(CALLS.values()) == 2
    sweep = tunekit.validate(sweep, robust, 3)
    assert sum(CALLS.values()) == 3 and max(CALLS.values()) == 1
    assert len(chosen(sweep)) == 3
    tunekit.validate(sweep, robust, 3)
    assert sum(CALLS.values()) == 3 and len(executors) == 2
    assert len(list(home.glob("validations/*/*.jsonl"))) == 2


def test_failed_later_validation_is_repeated_by_the_next_call(home):
    sweep = tunekit.load(home)
    bad = sweep.best().path

    def fails_once(checkpoint: tune.Checkpoint) -> dict[str, Any]:
        CALLS[checkpoint.path] += 1
        if checkpoint.path == bad and CALLS[bad] == 1:
            raise ValueError("no data")
        return {"accuracy": 0.5}

    config = tunekit.ValidationConfig(fails_once, max_retries=0)
    sweep = tunekit.validate(sweep, config, 2, name="new")
    assert sorted(sweep.later_validations["status"]) == ["failed", "validated"]
    sweep = tunekit.validate(sweep, config, 2, name="new")
    assert set(sweep.later_validations["status"]) == {"validated"}
    assert CALLS[bad] == 2 and sum(CALLS.values()) == 3


def test_scores_of_another_function_under_a_name_are_refused_without_replace(home):
    sweep = tunekit.validate(tunekit.load(home), robust, name="new")
    assert set(CALLS.values()) == {1}
    with pytest.raises(tunekit.errors.ConfigError, match="replace=True"):
        tunekit.validate(sweep, other, 2, name="new")
    replaced = tunekit.validate(sweep, other, 2, name="new", replace=True)
    assert len(chosen(replaced)) == 2, "those of the other one are not shown any more"
    assert set(replaced.reports["new/f1"].dropna()) == {0.5}
    assert "new/accuracy" not in replaced.reports
    # Arguments are not told apart.
    noisy = tunekit.ValidationConfig(robust, ValidationTaskConfig(fn_kwargs={"noise": 3.0}))
    changed = tunekit.validate(tunekit.validate(sweep, robust, 3), noisy, 2, replace=True)
    assert changed.later_validations.value_counts("name")["robust"] == 2
    assert changed.best("robust/accuracy", "max").score > -9 + 2.9


@pytest.mark.parametrize(("option", "failed"), [({}, 3), ({"on_failure": "raise"}, 1)], ids=str)
def test_function_that_never_returned_a_score_raises_and_does_not_keep_its_name(
    home, option, failed
):
    config = tunekit.ValidationConfig(broken, max_retries=0, max_in_flight=1, **option)
    with pytest.raises(tunekit.errors.ValidationFailedError):
        tunekit.validate(tunekit.load(home), config, name="new")
    statuses = Counter(tunekit.load(home).later_validations["status"])
    assert statuses["failed"] == failed and set(statuses) == {"failed", "queued"}
    sweep = tunekit.validate(tunekit.load(home), other, 2, name="new")
    assert sweep.best("new/f1", "max").score == 0.5
    assert list(sweep.later_validations["status"]) == ["validated"] * 2, "the other one's are gone"


@pytest.mark.parametrize("kept", [1, 4, 8, 9.5, 12])
def test_later_validation_killed_at_any_line_of_its_journal_continues(home, kept):
    tunekit.validate(tunekit.load(home), tunekit.ValidationConfig(robust, max_in_flight=1), 4)
    [journal] = home.glob("validations/*/000001.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    torn = lines[int(kept)][:20] if kept != int(kept) else b""
    journal.write_bytes(b"".join(lines[: int(kept)]) + torn)
    ended = sum(b'"validation_ended"' in line for line in lines[: int(kept)])
    CALLS.clear()
    after = tunekit.validate(tunekit.load(home), robust, 4)
    assert after.reports["robust/accuracy"].notna().sum() == 4
    assert sum(CALLS.values()) == 4 - ended


# A sweep that goes on ---------------------------------------------------------------------------


def short(folder: Path) -> Plan:
    plan = Plan(folder, trials=3).training(Endless).validating(seconds=2.5)
    return plan.tuning(stop={"training_iteration": 6})


def test_later_validation_of_a_killed_sweep_does_not_change_its_restore(tmp_path):
    with pytest.raises(Killed), killed_after(90):
        short(tmp_path / "one").run()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    killed = tunekit.load(tmp_path / "two" / "sweep")
    after = tunekit.validate(killed, tunekit.ValidationConfig(robust))
    assert len(chosen(after)) == 3 and after.summary()["state"] == killed.summary()["state"]
    lines = {}
    for name in ("one", "two"):
        short(tmp_path / name).restored().run()
        lines[name] = [
            {k: v for k, v in line.items() if k not in ("file", "search", "tune", "report")}
            for line in read(tmp_path / name / "sweep")
        ]
    assert lines["one"] == lines["two"]
    ended = tunekit.load(tmp_path / "two" / "sweep")
    assert ended.summary()["state"] == "finished"
    shown = ended.reports.dropna(subset="robust/accuracy")
    assert len(shown) == len(chosen(after)), "what was validated is still there"


def test_later_scores_do_not_apply_to_another_sweep_in_the_same_folder(home, swept):
    tunekit.validate(tunekit.load(home), robust, 2)
    for path in home.iterdir():
        if path.name != "validations":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    journal = swept / "journal" / "000001.jsonl"
    (home / "journal").mkdir()
    head, *lines = lines_of(journal)
    write_lines(home / "journal" / "000001.jsonl", [{**head, "time": 2e9}, *lines])
    assert len(tunekit.load(home).later_validations) == 0


# On the command line ----------------------------------------------------------------------------


@pytest.fixture
def in_folder(tmp_path, monkeypatch) -> Callable[..., Any]:
    """Run the command in a folder with a module of validation functions."""
    (tmp_path / "of_the_command.py").write_text(
        "from ray.train import ValidationTaskConfig\n"
        "from tunekit import ValidationConfig\n"
        "def accurate(checkpoint, part=1.0):\n    return {'accuracy': part}\n"
        "def bad(checkpoint):\n    raise ValueError('no data')\n"
        "thirds = ValidationConfig(accurate, ValidationTaskConfig(fn_kwargs={'part': 3}))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setattr(on_ray.ray, "shutdown", lambda: None)

    def run(*arguments: Any) -> Any:
        return tunekit_("validate", *arguments)

    yield run
    sys.modules.pop("of_the_command", None)


def test_validate_command_shows_the_new_scores_next_to_the_old(home, in_folder):
    asked = ["--fn", "of_the_command:thirds", "--checkpoints", 2, "--name", "accurate"]
    done = in_folder("sweep", *asked)
    assert done.exit_code == 0, done.output
    best = best_of(tunekit.load(home))
    lines = done.stdout.splitlines()
    assert "of_the_command:accurate" in lines[0] and " 2 " in lines[0]
    assert lines[2].split() == ["trial", "iteration", "accuracy", "accurate/accuracy"]
    assert [line.split()[0] for line in lines[3:5]] == [trial_id for trial_id, _ in best[:2]]
    assert {line.split()[-1] for line in lines[3:5]} == {"3.0000"}
    assert f"tunekit best {home} --metric accurate/accuracy --mode max" in done.stdout
    status = tunekit_("status", home).stdout
    assert re.search("accurate: 2 validated.* of_the_command:accurate", status)


def test_validate_command_with_json_prints_only_json(home, in_folder):
    found = in_folder("sweep", "--fn", "of_the_command.py:accurate", "--json")
    known = json.loads(found.stdout)
    assert known["scored"] == 4 and known["unscored"] == 0
    scores = [row["score"] for row in known["rows"]]
    assert scores == sorted(scores, reverse=True)
    assert known["rows"][0]["metrics"] == {"accurate/accuracy": 1.0}


def test_validate_command_has_exit_code_1_if_a_checkpoint_gets_no_score(home, in_folder):
    done = in_folder("sweep", "--fn", "of_the_command:bad", "--checkpoints", 1)
    assert done.exit_code == 1
    assert "ValueError: no data" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--fn", "of_the_command:nothing"], "'nothing'"),
        (["--fn", "nowhere:fn"], "'nowhere'"),
        (["--fn", "of_the_command:accurate", "--name", "loss"], "name='loss'"),
        (["--fn", "of_the_command:accurate", "--metric", "nothing"], "metric"),
    ],
)
def test_validate_command_names_invalid_arguments_and_starts_nothing(
    home, in_folder, executors, arguments, named
):
    done = in_folder("sweep", *arguments)
    assert done.exit_code == 2 and named in done.stderr, done.output
    assert not executors
