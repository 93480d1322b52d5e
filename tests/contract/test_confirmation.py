"""The winner of a sweep is confirmed, and everything that names the best goes by that."""

from __future__ import annotations

import json
import logging
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

import tunekit
from tests.sweeps import sweep
from tunekit import Confirm, Estimate
from tunekit.board.page.page import render
from tunekit.cli import commands
from tunekit.cli.status import status_of, text_of
from tunekit.clock import SystemClock
from tunekit.core.events import ValidationEstimated
from tunekit.core.validation import Attempt
from tunekit.evaluation import later
from tunekit.evaluation import session as sessions
from tunekit.journal.journal import events_in, later_sessions
from tunekit.journal.storage import LocalFolder
from tunekit.testing import FakeExecutor
from tunekit.validating import validator
from tunekit.validating.executor import AttemptEvent
from tunekit.validating.ray_executor import arguments

SIZE, BATCH = 20_000, 500
CALLS: Counter[str] = Counter()
EXAMPLES: Counter[str] = Counter()
SEEDS: dict[str, list[int]] = {}


def trial_of(checkpoint: tune.Checkpoint) -> str:
    """The trial's id, which its folder is named by."""
    return "_".join(Path(checkpoint.path).parent.name.split("_")[1:3])


def share_of(checkpoint: tune.Checkpoint) -> float:
    """The accuracy: another one for each trial. That of the second one is the best."""
    return (0.85, 0.900, 0.892, 0.87, 0.86, 0.84)[int(trial_of(checkpoint).split("_")[1], 16)]


def in_batches(checkpoint: tune.Checkpoint, resume: Any = ()) -> Iterator[dict[str, Any]]:
    """Yield after each batch, from where it was; the order of the examples is always the same."""
    name = trial_of(checkpoint)
    CALLS[name] += 1
    chance = random.Random(name)
    share = share_of(checkpoint)
    hits = [chance.random() < share for _ in range(SIZE)]
    begins = resume["accuracy"].n if resume else 0
    for n in range(begins + BATCH, SIZE + 1, BATCH):
        EXAMPLES[name] += BATCH
        yield {"accuracy": Estimate(sum(hits[:n]) / n, n, bounds=(0, 1)), "kind": "new"}


def anew(checkpoint: tune.Checkpoint) -> Iterator[dict[str, Any]]:
    """The same, without going on."""
    yield from in_batches(checkpoint)


def noisy(checkpoint: tune.Checkpoint, seed: int) -> dict[str, Any]:
    name = trial_of(checkpoint)
    SEEDS.setdefault(name, []).append(seed)
    draw = random.Random(f"{name}/{seed}")
    return {"accuracy": share_of(checkpoint) + draw.gauss(0, 0.0005), "loss": 1.0}


def plain(checkpoint: tune.Checkpoint) -> dict[str, Any]:
    CALLS[trial_of(checkpoint)] += 1
    return {"accuracy": share_of(checkpoint)}


class Interrupted(FakeExecutor):
    """Gets Ctrl-C once it was asked so often what has happened."""

    polls = 0
    after = 20

    def poll(self) -> list[AttemptEvent]:
        self.polls += 1
        if self.polls > self.after:
            raise KeyboardInterrupt
        return super().poll()


#: What validations run on, and how many run at once.
RUNS_ON: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def executors(monkeypatch) -> list[FakeExecutor]:
    """Validate in this process; return the executors that were made."""
    made: list[FakeExecutor] = []
    RUNS_ON.update({"class": FakeExecutor, "slots": 1_000_000})

    def executor_of(config: tunekit.ValidationConfig, cache: None) -> FakeExecutor:
        def validate(attempt: Attempt) -> Any:
            request = attempt.request
            return config.fn(request.checkpoint, **arguments(config.fn, request))

        made.append(RUNS_ON["class"](SystemClock(), validate, slots=RUNS_ON["slots"]))
        return made[-1]

    for counts in (CALLS, EXAMPLES, SEEDS):
        counts.clear()
    monkeypatch.setattr(sessions, "executor_of", executor_of)
    monkeypatch.setattr(sessions, "_start_ray", lambda *asked: None)
    monkeypatch.setattr(sessions, "_WAIT_S", 0.0)
    return made


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    sweep(folder, ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3), trials=4)
    return folder / "sweep"


@pytest.fixture
def home(swept, tmp_path) -> Path:
    return Path(shutil.copytree(swept, tmp_path / "sweep"))


def best_share(sweep: tunekit.Sweep) -> str:
    """The trial whose share is largest."""
    return str(sweep.trials["trial_id"][1])


def decided(sweep: tunekit.Sweep) -> tuple[str, bool, float]:
    found = sweep.confirmation
    assert found is not None
    return found.winner.trial_id, found.certain, found.sure


# What comes of it -------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [in_batches, anew, noisy, plain])
def test_the_best_is_the_confirmed_one_and_the_sweeps_own_scores_stay(home, fn):
    before = tunekit.load(home)
    after = before.confirm(fn, top=4)
    winner, certain, sure = decided(after)
    assert winner == best_share(after) and certain and sure >= 0.95
    assert before.best().trial_id != winner, "so it changes something"
    best = after.best()
    assert best.trial_id == winner and best.checkpoint is not None
    assert best.confirmation == after.confirmation
    assert best.score == max(
        one.best_value or 0.0 for one in after.ranking() if one.trial_id == winner
    ), "as the sweep has it"
    assert best.metrics["confirmed"]["accuracy"] == pytest.approx(0.9, abs=0.02)
    # what was there before
    for table in ("trials", "validations", "decisions"):
        assert getattr(after, table).equals(getattr(before, table)), table
    assert after.reports["accuracy"].equals(before.reports["accuracy"])
    assert after.reports["confirmed/accuracy"].notna().sum() == 4
    assert after.best(scope="last").trial_id == before.best(scope="last").trial_id
    assert after.best(scope="last").confirmation is None
    # read anew, it is the same
    assert tunekit.load(home).best().trial_id == winner
    summary = json.loads(json.dumps(tunekit.load(home).summary()))
    assert summary["best"]["trial_id"] == winner
    assert summary["confirmation"]["winner"]["trial_id"] == winner


def test_whoever_is_eliminated_is_evaluated_no_further(home, executors):
    after = tunekit.load(home).confirm(anew, top=4)
    [executor] = executors
    assert len(executor.enough) >= 2 and not executor.cancelled
    assert all(count == 1 for count in CALLS.values())
    used = {name: EXAMPLES[name] for name in CALLS}
    assert sum(used.values()) < 0.7 * 4 * SIZE
    rows = after.later_validations.set_index("trial_id")
    assert set(rows["status"]) == {"validated"}
    for trial_id, row in rows.iterrows():
        n = row["metrics/accuracy_n"]
        assert n <= used[trial_id] and row["metrics/kind"] == "new"
        assert (
            row["metrics/accuracy_low"] <= row["metrics/accuracy"] <= row["metrics/accuracy_high"]
        )


def test_with_one_slot_the_best_ranked_is_first_and_the_others_are_compared_with_it(
    home, executors
):
    RUNS_ON["slots"] = 1
    before = tunekit.load(home)
    after = before.confirm(in_batches, top=4)
    assert decided(after)[0] == best_share(after)
    [executor] = executors
    ranked = [one.trial_id for one in before.ranking()]
    assert [attempt.request.trial_id for attempt in executor.started] == ranked
    rows = after.later_validations.set_index("trial_id")
    for trial_id, row in rows.iterrows():
        assert row["metrics/accuracy_n"] == EXAMPLES[trial_id]
    assert sum(EXAMPLES.values()) < 0.8 * 4 * SIZE


def test_a_function_of_a_seed_is_called_in_rounds_for_the_contenders(home):
    after = tunekit.load(home).confirm(noisy, top=4, max_rounds=12)
    assert decided(after)[0] == best_share(after)
    for seeds in SEEDS.values():
        assert seeds == list(range(len(seeds)))
    assert min(map(len, SEEDS.values())) < max(map(len, SEEDS.values())) <= 12
    rows = after.later_validations
    assert sorted(rows["metrics/accuracy_n"]) == sorted(map(len, SEEDS.values()))
    assert set(rows["metrics/loss"]) == {1.0}


def test_a_seed_that_is_given_is_the_only_one(home):
    from ray.train import ValidationTaskConfig

    config = tunekit.ValidationConfig(noisy, ValidationTaskConfig(fn_kwargs={"seed": 7}))
    after = tunekit.load(home).confirm(config, top=4)
    assert set(map(tuple, SEEDS.values())) == {(7,)}
    assert decided(after)[1:] == (True, 1.0)


def test_those_that_cannot_be_told_apart_are_named(home):
    def luck(checkpoint: tune.Checkpoint, seed: int) -> dict[str, Any]:
        return {"accuracy": random.Random(f"{trial_of(checkpoint)}/{seed}").random()}

    after = tunekit.load(home).confirm(luck, top=2, max_rounds=3)
    found = after.confirmation
    assert found is not None and not found.certain and found.sure == 0
    assert len(found.contenders) == 2
    assert after.best().trial_id == found.winner.trial_id
    means = {one.trial_id: one.mean for one in found.candidates}
    assert max(means, key=lambda one: means[one] or 0.0) == found.winner.trial_id


def test_of_the_sweeps_own_function_intervals_hold_for_all_that_could_be_chosen(home, monkeypatch):
    own = tunekit.ValidationConfig(anew)
    monkeypatch.setattr(later, "_own", lambda swept: own)
    sweep = tunekit.load(home)
    sweep.confirm(None, top=4)
    sweep.confirm(in_batches, top=4)
    heads = {s.function: s.head["confirm"] for s in later_sessions(LocalFolder(home))}
    own, other = sorted(heads, key=lambda name: name.endswith("in_batches"))
    validated = (sweep.validations["status"] == "validated").sum()
    assert heads[own]["chosen_from"] == validated > 4
    assert heads[other]["chosen_from"] is None


def test_with_seeds_candidates_are_of_the_best_configurations(tmp_path):
    folder = tmp_path / "made"
    space = {"lr": tune.grid_search([0.1, 0.2, 0.3]), "seed": tune.grid_search([0, 1])}
    sweep(folder, FIFOScheduler(), trials=1, seed_param="seed", param_space=space)
    before = tunekit.load(folder / "sweep")
    after = before.confirm(plain, top=2)
    found = after.confirmation
    assert found is not None and found.by == "configuration"
    two = [one.best.trial_id for one in before.ranked_configurations()[:2] if one.best]
    assert [one.trial_id for one in found.candidates] == two
    best = after.best()
    assert best.trial_id == found.winner.trial_id and best.configuration is not None
    assert best.trial_id in [one.trial_id for one in best.configuration.repeats]
    assert after.best(by="trial").confirmation is None


# Failures ---------------------------------------------------------------------------------------


def test_a_candidate_that_cannot_be_evaluated_is_left_out(home, caplog):
    sweep = tunekit.load(home)
    bad = sweep.best().trial_id

    def fails(checkpoint: tune.Checkpoint) -> dict[str, Any]:
        if trial_of(checkpoint) == bad:
            raise ValueError("no data")
        return plain(checkpoint)

    with caplog.at_level(logging.WARNING, logger="tunekit"):
        after = sweep.confirm(fails, top=3)
    assert "no data" in caplog.text
    found = after.confirmation
    assert found is not None and found.certain
    assert {one.trial_id: one.mean for one in found.candidates}[bad] is None
    assert found.winner.trial_id != bad


def test_a_score_without_the_metric_is_no_score(home):
    def other(checkpoint: tune.Checkpoint) -> dict[str, Any]:
        return {"f1": 0.5}

    with pytest.raises(tunekit.errors.ValidationFailedError, match="no finite number 'accuracy'"):
        tunekit.load(home).confirm(other, top=4)
    sweep = tunekit.load(home)
    assert sweep.confirmation is None and sweep.best().confirmation is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 0}, "top=0 must be"),
        ({"confidence": 2}, "confidence=2 must be"),
        ({"max_rounds": 0}, "max_rounds=0 must be"),
        ({"fn": 7}, "fn=7 is not callable"),
        ({"fn": None}, "stands for the sweep's own validation function, but there is no tuner.pkl"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(home, executors, options, message):
    with pytest.raises(tunekit.errors.ConfigError, match=message):
        tunekit.load(home).confirm(**{"fn": plain, **options})
    assert not executors and not (home / "validations").exists()


def test_all_mistakes_are_told_at_once():
    with pytest.raises(tunekit.errors.ConfigError) as caught:
        Confirm(0, fn=3, confidence=0, max_rounds=None)  # type: ignore[arg-type]
    assert len(caught.value.problems) == 4


def test_the_name_of_confirmations_is_theirs(home):
    with pytest.raises(tunekit.errors.ConfigError, match=r"is used by Sweep\.confirm"):
        tunekit.load(home).validate(plain, 2, name="confirmed")


# Again, and after a kill ------------------------------------------------------------------------


def test_what_was_confirmed_is_not_confirmed_again(home, executors, caplog):
    first = tunekit.load(home).confirm(plain, top=4)
    with caplog.at_level(logging.INFO, logger="tunekit"):
        again = first.confirm(plain, top=4)
    assert "already confirmed" in caplog.text
    assert len(executors) == 1 and set(CALLS.values()) == {1}
    assert again.confirmation == first.confirmation
    # with other arguments, it is another one, and the first one comes back without evaluating
    other = first.confirm(plain, top=2)
    assert other.confirmation is not None and len(other.confirmation.candidates) == 2
    back = other.confirm(plain, top=4)
    assert first.confirmation is not None and back.confirmation is not None
    assert replace(back.confirmation, began=first.confirmation.began) == first.confirmation
    assert len(executors) == 2


@pytest.mark.parametrize("slots", [1, 1_000_000])
@pytest.mark.parametrize("fn", [in_batches, anew, noisy, plain])
def test_an_interrupted_confirmation_goes_on(home, monkeypatch, fn, slots):
    uninterrupted = tunekit.load(Path(shutil.copytree(home, home.parent / "whole")))
    whole = uninterrupted.confirm(fn, top=4).confirmation
    EXAMPLES.clear(), SEEDS.clear(), CALLS.clear()
    RUNS_ON.update({"class": Interrupted, "slots": slots})
    monkeypatch.setattr(Interrupted, "after", {plain: 3 if slots == 1 else 1, noisy: 4}.get(fn, 20))
    with pytest.raises(KeyboardInterrupt):
        tunekit.load(home).confirm(fn, top=4)
    before = tunekit.load(home)
    assert before.confirmation is None and before.best().confirmation is None
    done = sum(EXAMPLES.values())
    RUNS_ON["class"] = FakeExecutor
    after = before.confirm(fn, top=4)
    found = after.confirmation
    assert found is not None and whole is not None
    assert (found.winner.trial_id, found.certain) == (whole.winner.trial_id, whole.certain)
    if fn is noisy:
        for seeds in SEEDS.values():
            assert sorted(set(seeds)) == list(range(max(seeds) + 1))
            assert len(seeds) <= len(set(seeds)) + 1, "the round that was cut off at most"
    if fn is plain:
        assert sum(CALLS.values()) <= 5
    if fn is in_batches and slots == 1:
        assert done > 0 and max(EXAMPLES.values()) <= SIZE + 20 * BATCH


def test_what_a_killed_confirmation_has_yielded_is_not_evaluated_again(home, monkeypatch):
    """The journal is cut after a line of estimates: as after a kill at that moment."""
    monkeypatch.setattr(validator, "_NOTE_INTERVAL_S", 0.0)
    RUNS_ON["slots"] = 1
    whole = tunekit.load(home).confirm(in_batches, top=4).confirmation
    [journal] = home.glob("validations/*/*.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    at = [n for n, line in enumerate(lines) if b'"estimated"' in line]
    assert len(at) > 6
    evaluated = sum(EXAMPLES.values())
    for cut in (at[1], at[4], at[-1]):
        journal.write_bytes(b"".join(lines[: cut + 1]))
        for other in home.glob("validations/*/*.jsonl"):
            if other != journal:
                shutil.rmtree(other.parent)
        known: dict[str, int] = {}
        for event in later_sessions(LocalFolder(home))[0].events:
            if isinstance(event, ValidationEstimated):
                known[event.id] = event.estimates["accuracy"].n
        EXAMPLES.clear()
        assert tunekit.load(home).confirmation is None
        found = tunekit.load(home).confirm(in_batches, top=4).confirmation
        assert found is not None and whole is not None
        assert found.winner.trial_id == whole.winner.trial_id and found.certain
        assert sum(EXAMPLES.values()) + sum(known.values()) <= 1.2 * evaluated


def test_the_sweeps_own_journal_is_left_alone(home):
    journals = {path: path.read_bytes() for path in home.glob("journal/*")}
    tunekit.load(home).confirm(plain, top=2)
    assert {path: path.read_bytes() for path in home.glob("journal/*")} == journals


# Who says so ------------------------------------------------------------------------------------


def test_the_report_says_how_sure_it_is(home):
    before = render(tunekit.load(home))
    assert "confirmed" not in before
    after = tunekit.load(home).confirm(plain, top=4)
    page = render(after)
    assert "was confirmed to be <b>0.9000</b>" in page
    assert "is the best of 4, each evaluated in full" in page
    assert "The next one" not in page, "by the sweep's own scores"
    assert after.summary()["confirmation"]["in_words"] in text_of(status_of(after, 0.0))


CODE = """
def validate(checkpoint, seed):
    from tests.contract.test_confirmation import noisy

    return noisy(checkpoint, seed)


def broken(checkpoint):
    raise ValueError("no data")
"""


def test_the_command_confirms_and_best_names_the_winner(home, tmp_path):
    code = tmp_path / "evals.py"
    code.write_text(CODE)
    run = CliRunner().invoke
    asked = ["confirm", str(home), "--fn", f"{code}:validate", "--top", "4", "--max-rounds", "12"]
    said = run(commands.tunekit, asked)
    assert said.exit_code == 0, said.output
    winner = best_share(tunekit.load(home))
    assert (
        f"trial {winner} at iteration" in said.output and "is the best of 4 at 95 %" in said.output
    )
    rounds = sum(map(len, SEEDS.values()))
    again = run(commands.tunekit, [*asked, "--json"])
    assert again.exit_code == 0 and sum(map(len, SEEDS.values())) == rounds
    known = json.loads(again.stdout)
    assert known["confirmation"]["winner"]["trial_id"] == winner
    assert known["checkpoint"] == tunekit.load(home).best().path
    assert len(known["rows"]) == 4
    best = run(commands.tunekit, ["best", str(home)])
    assert f"trial {winner} at" in best.output and "confirmed: " in best.output
    data = json.loads(run(commands.tunekit, ["best", str(home), "--json"]).stdout)
    assert data["trial_id"] == winner and data["confirmation"]["certain"] is True


def test_the_command_says_what_it_could_not_do(home, tmp_path):
    code = tmp_path / "evals.py"
    code.write_text(CODE)
    run = CliRunner().invoke
    failed = run(commands.tunekit, ["confirm", str(home), "--fn", f"{code}:broken", "--top", "2"])
    assert failed.exit_code == 1 and "has validated 0 checkpoints, and not 2" in failed.output
    assert "no data" in failed.output
    none = run(commands.tunekit, ["confirm", str(home)])
    assert none.exit_code == 2 and "Pass the function" in none.output


# A sweep that goes on ---------------------------------------------------------------------------


def test_a_confirmation_is_outdated_by_what_would_have_been_a_candidate(home, monkeypatch):
    """The newest validations ended after the confirmation, as those of a running sweep would."""
    after = tunekit.load(home).confirm(plain, top=2)
    found = after.confirmation
    assert found is not None
    rows = [row for row in after.timeline.validations if row["status"] == "validated"]
    places = {(one.trial_id, *one.place) for one in found.candidates}
    others = [r for r in rows if (r["trial_id"], r["generation"], r["iteration"]) not in places]
    worst = min(row["metrics"]["accuracy"] for row in rows if row not in others)
    late = min(others, key=lambda row: row["metrics"]["accuracy"])
    late["ended"] = found.began + 1
    assert after.best().confirmation == found, "what is worse changes nothing"
    late["metrics"] = {"accuracy": worst + 0.1}
    assert after.best().confirmation is None and after.confirmation is None
    late["ended"] = found.began - 1
    assert after.best().confirmation == found, "it was known, and its checkpoint gone"


def test_it_goes_on_from_where_the_sweep_itself_has_stopped(tmp_path, monkeypatch):
    begins: dict[str, int] = {}

    def validate(attempt: Attempt) -> Iterator[dict[str, Any]]:
        for n in range(500, 4_001, 500):
            yield {"accuracy": Estimate(0.9, n, bounds=(0, 1))}

    def own(checkpoint: tune.Checkpoint, resume: Any) -> Iterator[dict[str, Any]]:
        begins[trial_of(checkpoint)] = resume["accuracy"].n if resume else 0
        yield from in_batches(checkpoint, resume)

    ran = sweep(
        tmp_path, FIFOScheduler(), trials=3, validate=validate, validation_s=lambda attempt: 1.0
    )
    known = {
        event.id: event.estimates["accuracy"].n
        for event in events_in(ran.home)
        if isinstance(event, ValidationEstimated)
    }
    config = tunekit.ValidationConfig(own)
    monkeypatch.setattr(later, "_own", lambda swept: config)
    after = tunekit.load(ran.home).confirm(None, top=3)
    [session] = later_sessions(LocalFolder(ran.home))
    candidates = session.head["confirm"]["candidates"]
    assert begins and min(begins.values()) > 0
    for key in candidates:
        assert begins[key.split(":")[0]] == known[key]
    # Another function begins with other examples.
    begins.clear()
    tunekit.load(ran.home).confirm(own, top=3)
    assert set(begins.values()) == {0}
    assert after.confirmation is not None
