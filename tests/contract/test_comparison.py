"""Sweeps side by side: every figure recomputed from their journals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

import tunekit
from tests.journals import write_lines
from tests.kills import Killed, bury, killed_after
from tests.sweeps import Ran, sweep
from tunekit.cli import commands


def asha(folder: Path, max_t: int = 9, **options: Any) -> Ran:
    base = ASHAScheduler(
        time_attr="training_iteration", max_t=max_t, grace_period=1, reduction_factor=3
    )
    space = {"lr": tune.loguniform(1e-3, 1e-1), "epochs": 9}
    return sweep(folder, base, trials=9, **{"param_space": space, **options})


def fifo(folder: Path, **options: Any) -> Ran:
    space = {"lr": tune.grid_search([0.1, 0.2]), "epochs": 27}
    return sweep(folder, FIFOScheduler(), trials=2, **{"param_space": space, **options})


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[list[Path], tunekit.lab.SweepComparison]:
    folder = tmp_path_factory.mktemp("two")
    homes = [asha(folder / "a").home, fifo(folder / "b", seed=3).home]
    return homes, tunekit.lab.compare(homes)


def lines(home: Path) -> list[dict[str, Any]]:
    found = []
    for journal in sorted((home / "journal").glob("*.jsonl")):
        found += [json.loads(line) for line in journal.read_text().splitlines()]
    return found


def scores(home: Path, metric: str = "accuracy") -> list[tuple[float, float]]:
    """When each score arrived, and what it was."""
    ended = [line for line in lines(home) if line.get("event") == "ended"]
    return [(e["time"], e["metrics"][metric]) for e in ended if e["status"] == "validated"]


def test_each_sweep_has_its_row(two):
    homes, found = two
    assert (found.metric, found.mode) == ("accuracy", "max")
    assert list(found.table["sweep"]) == ["a/sweep", "b/sweep"]
    for home, (_, row) in zip(homes, found.table.iterrows(), strict=True):
        events = [line for line in lines(home) if "event" in line]
        assert row["best"] == max(score for _, score in scores(home))
        assert row["validations"] == len(scores(home))
        assert row["iterations"] == sum(e["event"] == "reported" for e in events)
        assert row["trials"] == sum(e["event"] == "added" for e in events)
        assert row["driven_s"] == pytest.approx(events[-1]["time"] - events[0]["time"])
        assert row["state"] == "finished" and math.isnan(row["low"])


def test_scores_are_compared_at_points_that_all_have_reached(two):
    homes, found = two
    shortest = min(found.table["driven_s"])
    assert list(found.over_time["driven_s"]) == [shortest * n / 4 for n in (1, 2, 3, 4)]
    fewest = min(found.table["iterations"])
    assert list(found.over_iterations["iterations"]) == [
        math.ceil(fewest * n / 4) for n in (1, 2, 3, 4)
    ]
    for home, name in zip(homes, found.names, strict=True):
        events = [line for line in lines(home) if "event" in line]
        began = events[0]["time"]
        reports = [e["time"] for e in events if e["event"] == "reported"]
        for _, row in found.over_time.iterrows():
            there = [s for time, s in scores(home) if time - began <= row["driven_s"]]
            assert row[name] == pytest.approx(max(there, default=math.nan), nan_ok=True)
        for _, row in found.over_iterations.iterrows():
            there = [
                score
                for time, score in scores(home)
                if sum(at <= time for at in reports) <= row["iterations"]
            ]
            assert row[name] == pytest.approx(max(there, default=math.nan), nan_ok=True)
    assert found.over_time[found.names[0]].is_monotonic_increasing


def test_only_what_differs_is_told(two):
    _, found = two
    settings = found.settings.set_index("setting")
    assert list(settings.loc["scheduler"]) == ["AsyncHyperBandScheduler", "FIFOScheduler"]
    assert settings.loc["scheduler/max_t"].iloc[1] is None
    for name in ("ray", "validation/on_pending", "time"):
        assert name not in settings.index
    same = tunekit.lab.compare([two[0][0], two[0][0]], names=["one", "other"])
    assert len(same.settings) == 0


def test_where_each_has_searched(two):
    _, found = two
    searched = found.searched.set_index("hyperparameter")
    assert list(searched.loc["epochs"]) == ["9", "27"]
    rates = [one["lr"] for one in found.sweeps[0].hyperparameters()]
    assert searched.loc["lr"].iloc[0].startswith(f"{min(rates):.3g} to {max(rates):.3g}")
    assert searched.loc["lr"].iloc[1] == "0.1 to 0.2"


def test_an_interval_of_the_best_is_shown(two, tmp_path):
    def validate(attempt: Any) -> dict[str, float]:
        score = attempt.request.iteration / 10
        return {"accuracy": score, "accuracy_low": score - 0.1, "accuracy_high": score + 0.05}

    other = fifo(tmp_path / "i", validate=validate).home
    found = tunekit.lab.compare([two[0][0], other])
    row = found.table.iloc[1]
    assert (row["low"], row["best"], row["high"]) == pytest.approx((0.8, 0.9, 0.95))
    shown = " ".join(tunekit_("compare", two[0][0], other).split())
    assert "best low high" in shown and "0.9000 0.8000 0.9500" in shown


def test_breaks_between_sessions_do_not_count(tmp_path):
    with pytest.raises(Killed), killed_after(60):
        asha(tmp_path / "k")
    bury(tmp_path / "k/sweep")
    home = tmp_path / "k/sweep"
    first = [line for line in lines(home) if "event" in line]
    # An hour later another session goes on, and ends two seconds later.
    last, began = first[-1], first[0]["time"]
    follows = {"n": last["n"] + 1, "after": last["n"], "follows": last["crc"]}
    head = {**lines(home)[0], **follows, "begins": False, "time": last["time"] + 3600}
    del head["crc"]
    closed = {"n": last["n"] + 2, "event": "closed", "time": last["time"] + 3602}
    write_lines(home / "journal/000002.jsonl", [head, {**closed, "finished": True}])
    sweep = tunekit.load(home)
    assert sweep.timeline.breaks == [(last["time"], last["time"] + 3600)]
    row = tunekit.lab.compare([sweep, sweep], names=["a", "b"]).table.iloc[0]
    assert row["driven_s"] == pytest.approx(last["time"] - began + 2)


def losses(attempt: Any) -> dict[str, float]:
    return {"loss_v": 1 / attempt.request.iteration, "accuracy": 0.5}


def test_other_metrics_and_modes_are_told_with_what_to_pass(two, tmp_path):
    [home, _], _ = two
    loss = fifo(tmp_path / "l", validate=losses, metric="loss_v", mode="min").home
    down = fifo(tmp_path / "d", mode="min").home
    with pytest.raises(tunekit.errors.ConfigError) as raised:
        tunekit.lab.compare([home, loss])
    assert "by 'loss_v'. Pass metric= and mode=" in str(raised.value)
    assert "All of them have validated 'accuracy'." in str(raised.value)
    with pytest.raises(tunekit.errors.ConfigError, match=r"mode is missing: .* by 'accuracy'"):
        tunekit.lab.compare([home, down])
    with pytest.raises(
        tunekit.errors.ConfigError, match="'loss_v' has not been validated in 'a/sweep'"
    ):
        tunekit.lab.compare([home, loss], metric="loss_v", mode="min")
    with pytest.raises(tunekit.errors.ConfigError, match="Did you mean 'accuracy'"):
        tunekit.lab.compare([home, loss], metric="acuracy", mode="max")
    found = tunekit.lab.compare([home, loss], metric="accuracy")
    assert found.mode == "max" and found.table["best"].iloc[1] == 0.5
    found = tunekit.lab.compare([home, down], mode="min")
    assert found.table["best"].iloc[0] == min(score for _, score in scores(home))


def test_what_is_no_list_of_sweeps_is_told(two):
    with pytest.raises(tunekit.errors.ConfigError, match="there are 1 sweeps"):
        tunekit.lab.compare(str(two[0][0]))
    with pytest.raises(
        tunekit.errors.ConfigError, match="names=\\['a', 'a'\\] must have a different name"
    ):
        tunekit.lab.compare(two[0], names=["a", "a"])


def tunekit_(*arguments: Any) -> str:
    result = CliRunner().invoke(commands.tunekit, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_the_command_keeps_to_the_width(two, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    text = tunekit_("compare", *two[0])
    assert max(map(len, text.splitlines())) <= width
    for part in ("best after the same time", "settings that differ", "searched", "FIFOScheduler"):
        assert part in text


def test_as_json_it_has_all_tables(two):
    known = json.loads(tunekit_("compare", *two[0], "--json"))
    assert [row["sweep"] for row in known["sweeps"]] == ["a/sweep", "b/sweep"]
    assert known["sweeps"][0]["low"] is None
    assert len(known["over_time"]) == len(known["over_iterations"]) == 4
    assert known["settings"] and known["searched"]


def test_a_sweep_without_a_score_has_none(two, tmp_path):
    with pytest.raises(Killed), killed_after(3):
        asha(tmp_path)
    bury(tmp_path / "sweep")
    found = tunekit.lab.compare([two[0][0], tmp_path / "sweep"])
    assert math.isnan(found.table["best"].iloc[1])
    assert found.over_time.iloc[-1, 1] == found.table["best"].iloc[0]  # only one has any length
    assert found.over_time.iloc[:, 2].isna().all()
    tunekit_("compare", two[0][0], tmp_path / "sweep")
