"""Further stages of validation: what they get, when they run, and that they decide nothing."""

from __future__ import annotations

import csv
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from ray.tune import CheckpointConfig
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tests.contract.test_kills import asha as asha_in_order
from tests.contract.test_kills import promotion as promotion_in_order
from tests.contract.test_kills import rows_of
from tests.contract.test_restore import kill, restored
from tests.invariants import check_journal
from tests.kills import run_killed
from tests.schedulers import CASES, every_case, seed_all
from tests.seeds import seeds
from tests.sweeps import Counting, Endless, quality, sweep
from tunekit import tuner
from tunekit.board.page.page import render
from tunekit.core.events import (
    AttemptStarted,
    CheckpointSaved,
    ScoreDelivered,
    TrialEnded,
    ValidationEnded,
    ValidationRequested,
)
from tunekit.core.room import Shares
from tunekit.core.validation import Attempt
from tunekit.journal import ledger
from tunekit.journal.journal import events_in
from tunekit.journal.storage import LocalFolder

pytestmark = pytest.mark.sampled(2)


def index_of(attempt: Attempt) -> int:
    return int(attempt.request.trial_id.rsplit("_", 1)[-1], 16)


def thorough(attempt: Attempt) -> dict[str, float]:
    return {"accuracy": quality(index_of(attempt), attempt.request.iteration) / 2}


def broken(attempt: Attempt) -> dict[str, float]:
    raise ValueError("no data")


def asha() -> ASHAScheduler:
    return ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)


def ran(folder: Path, *stages: tunekit.Stage, base: Any = None, **options: Any) -> Any:
    options.setdefault("on_pending", "wait")
    return sweep(folder, base or asha(), settings={"stages": list(stages)}, **options)


def requested(ran: Any, stage: str) -> set[tuple[str, int, int]]:
    keys = [e.key for e in events_in(ran.home) if isinstance(e, ValidationRequested)]
    return {(key.trial_id, *key.place) for key in keys if key.stage == stage}


def decided(ran: Any, *decisions: str) -> set[tuple[str, int, int]]:
    return {
        (event.trial_id, *event.place)
        for event in events_in(ran.home)
        if isinstance(event, ScoreDelivered) and event.decision in decisions
    }


@pytest.mark.parametrize("trainable", [Counting, Endless])
def test_the_winners_of_rungs_and_who_ran_its_course_are_promoted(tmp_path, trainable):
    """Whether a trial ends by itself, or the scheduler ends it at its most iterations."""
    over = ran(tmp_path, tunekit.Stage("full", thorough), trainable=trainable)
    rungs = (1, 3)
    winners = {place for place in decided(over, "CONTINUE") if place[2] in rungs}
    whole = {(t.trial_id, 0, 9) for t in over.trials if t.last_result["training_iteration"] == 9}
    assert winners and whole
    assert requested(over, "full") == winners | whole
    check_journal(events_in(over.home))
    assert over.validation.has_ended


def test_the_last_checkpoint_of_each_trial(tmp_path):
    over = ran(tmp_path, tunekit.Stage("record", thorough, every="last"))
    last = {(t.trial_id, 0, t.last_result["training_iteration"]) for t in over.trials}
    assert {place[2] for place in last} > {9}, "some were stopped"
    assert requested(over, "record") == last


def test_every_other_checkpoint(tmp_path):
    over = ran(tmp_path, tunekit.Stage("record", thorough, every=2))
    assert {step for _, _, step in requested(over, "record")} == {2, 4, 6, 8}


@every_case
def test_nothing_is_decided_by_a_further_stage(tmp_path, name, on_pending):
    case = CASES[name]
    if case.slow:
        pytest.skip("takes long, and is like the others")

    def run(folder: Path, *stages: tunekit.Stage) -> Any:
        seed_all(3)
        base = case.make(folder / "made")
        return ran(folder, *stages, base=base, on_pending=on_pending, slots=2, **case.options())

    plain = run(tmp_path / "plain")
    staged = run(
        tmp_path / "staged",
        tunekit.Stage("full", thorough),
        tunekit.Stage("record", broken, every=1, max_retries=0),
        tunekit.Stage("last", thorough, every="last"),
    )
    assert staged.heard.results == plain.heard.results
    assert staged.lengths() == plain.lengths()
    assert staged.scores() == plain.scores()
    check_journal(events_in(staged.home))
    assert requested(staged, "last")


def test_the_page_of_a_sweep_of_which_a_stage_has_no_score(tmp_path):
    over = ran(tmp_path, tunekit.Stage("record", broken, every=1, max_retries=0))
    assert "<b>0</b><span>validated in stage record</span>" in render(tunekit.load(over.home))


def test_its_metrics_are_shown_beside_the_others_wherever_they_are(tmp_path):
    over = ran(tmp_path, tunekit.Stage("full", thorough), loggers=True)
    loaded = tunekit.load(over.home)
    for trial in over.trials:
        places = sorted(p for p in requested(over, "full") if p[0] == trial.trial_id)
        rows = rows_of(trial)
        shown = {row["training_iteration"]: row["full"] for row in rows if "full" in row}
        number = int(trial.trial_id.rsplit("_", 1)[-1], 16)
        expected = {i: {"accuracy": quality(number, i) / 2} for _, _, i in places}
        assert shown == expected
        with Path(trial.local_path, "progress.csv").open() as file:
            table = {
                int(row["training_iteration"]): row.get("full/accuracy")
                for row in csv.DictReader(file)
            }
        assert {i: float(v) for i, v in table.items() if v} == {
            i: metrics["accuracy"] for i, metrics in expected.items()
        }
        if places:
            assert trial.last_result["full"] == expected[places[-1][2]]
            assert trial.last_result["accuracy"] == quality(number, len(rows)), "the first stage's"
            best = max(metrics["accuracy"] for metrics in expected.values())
            assert trial.metric_analysis["full/accuracy"]["max"] == best
    best = loaded.best(metric="full/accuracy", mode="max")
    assert best.score == max(
        quality(int(t.rsplit("_", 1)[-1], 16), i) / 2 for t, _, i in requested(over, "full")
    )
    validations = loaded.validations
    assert set(validations.stage) == {"", "full"}
    assert len(validations[validations.stage == "full"]) == len(requested(over, "full"))


def test_it_delays_no_decision_and_the_sweep_waits_for_it_at_its_end(tmp_path):
    plain = ran(tmp_path / "plain")
    slow = ran(tmp_path / "slow", tunekit.Stage("full", thorough), stage_s=lambda attempt: 1000.0)
    events = events_in(slow.home)
    ends = [e for e in events if isinstance(e, ValidationEnded) and e.key.stage]
    last_decision = max(e.n for e in events if isinstance(e, ScoreDelivered))
    assert ends and all(e.status == "validated" and e.n > last_decision for e in ends)
    assert slow.heard.results == plain.heard.results


def there(attempt: Attempt) -> dict[str, float]:
    assert Path(attempt.request.path).is_dir(), "it was deleted before it was validated"
    return thorough(attempt)


@pytest.mark.parametrize("every", ["promoted", "last", 2])
@pytest.mark.parametrize("on_pending", ["wait", "continue"])
def test_what_it_is_to_validate_is_kept_until_it_has(tmp_path, every, on_pending):
    over = ran(
        tmp_path,
        tunekit.Stage("full", there, every=every, max_retries=0, max_in_flight=1),
        on_pending=on_pending,
        validation_s=lambda attempt: 3.0,  # the trial has saved others by then
        stage_s=lambda attempt: 7.0,
        checkpoint_config=CheckpointConfig(num_to_keep=1),
    )
    table = tunekit.load(over.home).validations.query("stage == 'full'")
    assert len(table) and (table.status == "validated").all()
    left = [path for path in over.home.glob("*/checkpoint_*") if path.is_dir()]
    assert len(left) == len(over.trials), "and no longer"


def test_it_waits_for_resources_that_nobody_else_waits_for(tmp_path):
    """Where none are ever free, its validations run when only they are left, one at a time."""
    over = ran(tmp_path, tunekit.Stage("full", thorough), stage_slots=0)
    events = events_in(over.home)
    ends = [e.n for e in events if isinstance(e, ValidationEnded) and not e.key.stage]
    began = [e.n for e in events if isinstance(e, AttemptStarted) and e.key.stage]
    assert len(began) == len(requested(over, "full"))
    assert min(began) > max(ends)


def test_a_stage_whose_function_is_broken_is_given_up_and_the_sweep_goes_on(tmp_path, caplog):
    over = ran(tmp_path, tunekit.Stage("full", broken, every=1, max_retries=0, max_in_flight=1))
    states = tunekit.load(over.home).validations.query("stage == 'full'").status
    assert (states == "failed").sum() >= 3
    assert len(over.stage_executors["full"].started) == 3, "the others were not even tried"
    assert all(over.scores().values())
    assert "Stage 'full'" in caplog.text and "continues without this stage" in caplog.text
    assert "no data" in caplog.text


@pytest.mark.parametrize("name", ["asha", "hyperband", "pbt", "promotion"])
def test_killed_sweeps_lose_nothing_of_a_further_stage(tmp_path, name):
    case, killed = CASES[name], 0
    for seed in seeds(2, name):

        def made(folder: Path, seed: int = seed, **options: Any) -> Any:
            seed_all(seed)
            return ran(
                folder,
                tunekit.Stage("full", thorough),
                tunekit.Stage("record", thorough, every=2),
                tunekit.Stage("last", thorough, every="last"),
                base=case.make(folder / "policies"),
                trainable=Endless,
                seed=seed,
                listening=False,
                run=False,
                loggers=True,
                **({"trials": 5, "stop": {"training_iteration": 9}} | case.options()),
                **options,
            )

        draw = random.Random(seed)
        lives = iter([draw.randrange(5, 120) for _ in range(3)])
        over, kills = run_killed(tmp_path / str(seed), made, lives, torn=bool(seed % 2))
        killed += kills
        events = events_in(over.home)
        check_journal(events)
        full = {e.id: e for e in events if isinstance(e, ValidationEnded) and e.key.stage}
        assert full and all(e.status in ("validated", "skipped") for e in full.values())
        for trial in over.trials:
            rows = rows_of(trial)
            newest = {(r["generation"], r["training_iteration"]): r["iteration_runs"] for r in rows}
            shown = {
                (r["generation"], r["training_iteration"], stage)
                for r in rows
                for stage in ("full", "record", "last")
                if stage in r
            }
            keys = [e.key for e in full.values() if e.status == "validated"]
            assert shown == {
                (*key.place, key.stage)
                for key in keys
                if key.trial_id == trial.trial_id and newest.get(key.place) == key.run
            }
    assert killed


class Noting(LocalFolder):
    """A folder that notes what is written to it, write by write."""

    def __init__(self, root: Path, writes: list[bytes]):
        super().__init__(root)
        self._writes = writes

    def _write_lines(self, series: str, lines: bytes) -> None:
        self._writes.append(lines)
        super()._write_lines(series, lines)

    def put(self, name: str, data: bytes) -> None:
        self._writes.append(b"")
        super().put(name, data)


def outcome_of(over: Any) -> list[tuple[str, str]]:
    events = events_in(over.home)
    check_journal(events)
    ends = [event for event in events if isinstance(event, ValidationEnded) and event.key.stage]
    return sorted((event.id, event.status) for event in ends)


@pytest.mark.parametrize("make", [asha_in_order, promotion_in_order])
def test_killed_between_what_makes_a_stage_owe_a_validation_and_its_request(tmp_path, make):
    """Also where that is the last that happens, and where nothing else keeps the checkpoint."""

    def made(folder: Path, **options: Any) -> Any:
        stages = [
            tunekit.Stage("full", there, max_retries=0),
            tunekit.Stage("record", there, every=2, max_retries=0),
            tunekit.Stage("last", there, every="last", max_retries=0),
        ]
        few = {"checkpoint_config": CheckpointConfig(num_to_keep=1), "settings": {"stages": stages}}
        return make(folder, "wait", **few, **options)

    writes: list[bytes] = []
    with mock.patch.object(ledger, "folder_at", lambda _, path: Noting(Path(path), writes)):
        undisturbed, _ = run_killed(tmp_path / "undisturbed", made, iter([]))
    asks = re.compile(rb'"event": ?"requested".*"id": ?"[^"]*:(full|record|last)"')
    expected = outcome_of(undisturbed)
    assert expected and {status for _, status in expected} == {"validated"}
    moments = [at for at, lines in enumerate(writes) if asks.search(lines)]
    assert len(moments) == len(expected)
    for at in moments:
        over, kills = run_killed(tmp_path / str(at), made, iter([at]), torn=bool(at % 2))
        assert kills == 1
        assert outcome_of(over) == expected, at


def test_a_stage_that_is_added_in_a_restore_gets_what_was_saved_before(tmp_path):
    kill(tmp_path, 60)
    before = [e for e in events_in(tmp_path / "sweep") if isinstance(e, CheckpointSaved)]
    over = restored(tmp_path, settings={"stages": [tunekit.Stage("record", thorough, every=1)]})
    check_journal(events_in(over.home))
    got = requested(over, "record")
    assert before and {(e.trial_id, *e.place) for e in before} <= got
    assert len(got) == sum(over.lengths().values())


def test_a_restore_that_lacks_a_stage_is_refused():
    stages = [tunekit.Stage("full", thorough), tunekit.Stage("record", thorough, every=2)]
    old = tunekit.ValidationConfig(fn=thorough, stages=stages)
    validation = SimpleNamespace(config=old, renew=lambda config: None)
    other = [tunekit.Stage("record", thorough, every=3)]
    with pytest.raises(tunekit.errors.ConfigError) as error:
        tuner._renew(validation, tunekit.ValidationConfig(fn=thorough, stages=other))
    assert len(error.value.problems) == 2
    assert "lacks Stage('full', every='promoted')" in str(error.value)
    more = [*stages, tunekit.Stage("last", thorough, every="last")]
    tuner._renew(validation, tunekit.ValidationConfig(fn=thorough, stages=more))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "a:b"}, "name='a:b' must be letters"),
        ({"name": "7"}, "name='7' must be letters"),
        ({"name": "config"}, "a name reserved by Tune or tunekit"),
        ({"every": "decision"}, "every='decision'"),
        ({"every": 0}, "every=0"),
        ({"fn": 3}, "fn=3"),
        ({"max_retries": -1}, "max_retries=-1"),
    ],
)
def test_what_is_wrong_with_a_stage(given, said):
    with pytest.raises(tunekit.errors.ConfigError) as error:
        tunekit.Stage(**{"name": "full", "fn": thorough, **given})
    assert said in str(error.value) and "Stage" in str(error.value)


def test_what_is_wrong_with_the_stages_together():
    stage = tunekit.Stage("full", thorough)
    with pytest.raises(tunekit.errors.ConfigError) as error:
        tunekit.ValidationConfig(fn=thorough, stages=[stage, stage, 3], when=0)
    for said in ("'full' more than once", "which is not a tunekit.Stage", "when=0"):
        assert said in str(error.value)


def test_it_waits_for_trials_that_have_not_begun(tmp_path):
    """A CPU that is free between two trials is one that the next trial would have."""
    over = ran(tmp_path, tunekit.Stage("full", thorough), slots=2, trials=6, stage_slots=2)
    events = events_in(over.home)
    began = [e.n for e in events if isinstance(e, AttemptStarted) and e.key.stage]
    ended = [e.n for e in events if isinstance(e, TrialEnded)]
    assert len(over.trials) == 6 and began
    assert sum(n < min(began) for n in ended) >= 4, "the last two run"


def test_where_only_one_thing_runs_at_a_time_trials_and_a_stage_do_not_wait_for_each_other(
    tmp_path,
):
    over = ran(
        tmp_path, tunekit.Stage("full", thorough, every=1), slots=1, stage_slots=0, run=False
    )
    over.validation.shares = Shares(at_once=1, squeezed=True)
    over.sweep.run(most=50_000)
    check_journal(events_in(over.home))
    assert len(requested(over, "full")) == sum(over.lengths().values())
    assert over.validation.has_ended
