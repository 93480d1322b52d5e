"""Validations that end as soon as the scheduler would decide the same."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from ray.tune.result import DONE
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler

from tests.contract.test_kills import killed_often
from tests.invariants import check_journal
from tests.kills import run_killed
from tests.schedulers import CASES, seed_all
from tests.seeds import seeds
from tests.sweeps import Endless, quality, sweep
from tunekit import Estimate, Sequential, load
from tunekit._ray.proxies import Proxies, Proxy, ProxyController
from tunekit.board.page import write_page
from tunekit.board.page.figures import curves
from tunekit.core.confidence import Interval
from tunekit.core.events import ValidationEstimated
from tunekit.core.metrics import flatten
from tunekit.core.validation import Attempt
from tunekit.journal.home import Home
from tunekit.journal.journal import events_in
from tunekit.scheduling.state import dump
from tunekit.scheduling.state import load as load_state
from tunekit.scheduling.user_scheduler import UserScheduler

pytestmark = pytest.mark.sampled(2)

MOST = 12.0  # no score is greater
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)


def index_of(attempt: Attempt) -> int:
    return int(attempt.request.trial_id.rsplit("_", 1)[-1], 16)


def exact(attempt: Attempt) -> Iterator[dict[str, Any]]:
    """Yield estimates that hit the mean, of more and more examples."""
    mean = quality(index_of(attempt), attempt.request.iteration)
    for n in SIZES:
        yield {"accuracy": Estimate(mean, n, bounds=(0, MOST))}


def in_full(attempt: Attempt) -> dict[str, float]:
    return {"accuracy": quality(index_of(attempt), attempt.request.iteration)}


def ran(tmp_path, name: str, validate: Any, on_pending: str = "wait", **options: Any) -> Any:
    case = CASES[name]
    seed_all(1)
    return sweep(
        tmp_path,
        case.make(tmp_path / "made"),
        on_pending=on_pending,
        validate=validate,
        validation_s=lambda attempt: 0.0,
        **{**case.options(), **options},
    )


def examples(ran: Any) -> list[int]:
    history = ran.validation.history
    return [m["accuracy_n"] for t in ran.trials for _, m in history.scores(t.trial_id)]


def seen(ran: Any) -> list[tuple[int, int, str]]:
    return [(trial, step, decision) for trial, step, _, decision in ran.heard.results]


# BOHB resumes trials in an order that depends on when they paused. PB2 takes long: once will do.
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("bohb", "pb2-sync")])
def test_with_exact_estimates_every_scheduler_decides_as_with_full_validations(tmp_path, name):
    """One trial runs at a time: how long validations take changes nothing about the order."""
    full = ran(tmp_path / "full", name, in_full, slots=1)
    few = ran(tmp_path / "few", name, exact, slots=1)
    assert seen(few) == seen(full)
    assert few.lengths() == full.lengths()
    assert not few.executor.cancelled


@pytest.mark.parametrize("name", ["asha", "hyperband", "pbt", "promotion", "median"])
def test_fewer_examples_are_evaluated(tmp_path, name):
    few = ran(tmp_path, name, exact)
    used = examples(few)
    assert len(few.executor.enough) > 0
    assert sum(used) < 0.8 * len(used) * SIZES[-1]
    assert min(used) >= Sequential().min_examples


def decided_by_a_copy(scheduling: UserScheduler, trial_id: str, result: dict[str, Any]) -> Any:
    """Return what a copy of a sweep's scheduler does with a result."""
    known, copies = scheduling.proxies.by_id, Proxies()

    def copied(name: str) -> Proxy:
        if name not in copies.by_id:
            change = copy.copy(known[name].change)
            copies.of(known[name].real).load({**known[name].state(), "change": change})
        return copies.by_id[name]

    saved = dump({"base": scheduling.scheduler}, Home())
    base = load_state(saved, Home(), proxy=copied, filesystem=None)["base"]
    stopped: list[str] = []
    view = ProxyController(
        scheduling._controller.wrapped(),
        lambda trial: copied(trial.trial_id),
        stopped=lambda proxy: stopped.append(proxy.trial_id),
        idle=lambda: False,
    )
    chance = random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(0)
    decision = base.on_trial_result(view, copied(trial_id), {**flatten(result), DONE: False})
    random.setstate(chance[0])
    np.random.set_state(chance[1])
    changed = {
        name: (proxy.phase, proxy.change.restored_from is not None)
        for name, proxy in copies.by_id.items()
    }
    return decision, sorted(stopped), changed


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("pb2")])
def test_copies_of_the_scheduler_decide_alike_wherever_its_rule_says_so(
    tmp_path, monkeypatch, name
):
    rule, said = UserScheduler.decides_alike, []

    def checked(scheduling: Any, request: Any, metric: str, interval: Interval) -> bool:
        alike = rule(scheduling, request, metric, interval)
        draws = [random.Random(len(said)).uniform(*interval) for _ in range(2)]
        scores = (*interval, (interval.low + interval.high) / 2, *draws)
        if request.serves is not None:
            first, *others = (
                decided_by_a_copy(scheduling, request.trial_id, {**request.report, metric: score})
                for score in scores
            )
            said.append(alike)
            assert not alike or all(one == first for one in others), (request.id, interval)
        return alike

    monkeypatch.setattr(UserScheduler, "decides_alike", checked)
    ran(tmp_path, name, exact)
    if name not in ("fifo", "pbt-replay", "moasha", "moasha-promotes"):
        assert any(said)


class Picky(ASHAScheduler):
    """A scheduler that nobody knows: it stops what is below 2 at its third iteration."""

    def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
        low = result["training_iteration"] == 3 and result["accuracy"] < 2
        return TrialScheduler.STOP if low else TrialScheduler.CONTINUE


def test_a_scheduler_that_is_not_known_gets_full_validations(tmp_path):
    few = sweep(
        tmp_path,
        Picky(max_t=9, grace_period=1),
        on_pending="wait",
        validate=exact,
        validation_s=lambda attempt: 0.0,
    )
    assert "STOP" in {decision for *_, decision in seen(few)}
    assert set(examples(few)) == {SIZES[-1]}


def test_without_a_decision_to_make_what_may_be_the_best_is_evaluated_in_full(tmp_path):
    few = sweep(tmp_path, FIFOScheduler(), validate=exact, on_pending="wait")
    scores = [
        (m["accuracy"], m["accuracy_n"])
        for t in few.trials
        for _, m in few.validation.history.scores(t.trial_id)
    ]
    assert max(scores)[1] == SIZES[-1]
    assert min(n for _, n in scores) < SIZES[-1]


def test_what_may_be_the_best_is_not_evaluated_in_full_if_that_is_not_wanted(tmp_path):
    settings = {"sequential": Sequential(best_in_full=False)}
    few = sweep(tmp_path, FIFOScheduler(), validate=exact, on_pending="wait", settings=settings)
    least = next(n for n in SIZES if n >= Sequential().min_examples)
    assert set(examples(few)) == {least}


def test_an_attempt_that_yields_nonsense_fails_once_and_is_not_tried_again(tmp_path):
    def validate(attempt):
        yield {"accuracy": Estimate(0.5, 100, bounds=(0, 1))}
        yield {"accuracy": Estimate(0.5, 50, bounds=(0, 1))}

    made = sweep(
        tmp_path,
        FIFOScheduler(),
        validate=validate,
        trials=1,
        trainable=Endless,
        stop={"training_iteration": 2},
        on_pending="wait",
    )
    assert made.validation.summary()["failed"] == 2
    assert len(made.executor.started) == 2
    assert len(made.executor.enough) == 2, "its process is told to end it"


def test_another_attempt_goes_on_from_what_was_yielded(tmp_path):
    given = []

    def validate(attempt):
        given.append({name: one.n for name, one in attempt.request.known.items()})
        if attempt.number == 1:
            yield {"accuracy": Estimate(0.5, 100, bounds=(0, 1))}
            raise RuntimeError("lost")
        yield {"accuracy": Estimate(0.5, 1_000_000, bounds=(0, 1))}

    made = sweep(
        tmp_path,
        FIFOScheduler(),
        validate=validate,
        trials=1,
        stop={"training_iteration": 1},
        on_pending="wait",
        settings={"sequential": Sequential(min_examples=1_000)},
    )
    assert given == [{}, {"accuracy": 100}]
    assert made.validation.summary()["validated"] == 1


def test_a_stopping_criterion_is_decided_by_more_examples(tmp_path):
    made = sweep(
        tmp_path, FIFOScheduler(), validate=exact, on_pending="wait", stop={"accuracy": 5.0}
    )
    for trial in made.trials:
        scores = dict(made.validation.history.scores(trial.trial_id))
        for metrics in scores.values():
            assert not metrics["accuracy_low"] < 5.0 < metrics["accuracy_high"] or (
                metrics["accuracy_n"] == SIZES[-1]
            )


# Killed and restored ----------------------------------------------------------------------------


def resumed(attempt: Attempt) -> Iterator[dict[str, Any]]:
    """Go on from what an earlier attempt has yielded."""
    known = attempt.request.known.get("accuracy")
    mean = quality(index_of(attempt), attempt.request.iteration)
    for n in SIZES:
        if known is None or n > known.n:
            yield {"accuracy": Estimate(mean, n, bounds=(0, MOST))}


@pytest.mark.parametrize("name", ["asha", "hyperband", "pbt", "promotion"])
@pytest.mark.parametrize("on_pending", ["wait", "wait-reused"])
def test_killed_sweeps_with_estimates_lose_nothing(tmp_path, name, on_pending):
    case = CASES[name]

    def make(folder, **options):
        seed_all(seed)
        return sweep(
            folder,
            case.make(folder / "made"),
            on_pending=on_pending,
            trainable=Endless,
            validate=resumed,
            validation_s=lambda attempt: draw.choice([0.2, 0.7, 1.5]),
            settings={"fn": lambda checkpoint, resume: {}},
            saved_every_s=draw.choice([0.0, float("inf")]),
            seed=seed,
            listening=False,
            run=False,
            loggers=True,
            **({"trials": 5, "stop": {"training_iteration": 9}} | case.options()),
            **options,
        )

    for seed in seeds(1, name, on_pending):
        folder, draw = tmp_path / str(seed), random.Random(seed)
        made, _ = run_killed(folder, make, killed_often(seed), torn=bool(seed % 2))
        lives = check_journal(events_in(folder / "sweep"))
        assert all(trial.status == "TERMINATED" for trial in made.trials)
        assert made.validation.summary()["failed"] == 0
        for trial in made.trials:
            history = made.validation.history
            for (generation, iteration), metrics in history.scores(trial.trial_id):
                recorded = lives.scores[f"{trial.trial_id}:{generation}:{iteration}"]
                assert recorded == metrics
                assert metrics["accuracy_low"] <= metrics["accuracy"] <= metrics["accuracy_high"]


def test_a_killed_validation_goes_on_from_what_was_written_down(tmp_path):
    given: list[int] = []

    def validate(attempt):
        known = attempt.request.known.get("accuracy")
        given.append(0 if known is None else known.n)
        for n in range(given[-1] + 100, 10_100, 100):
            yield {"accuracy": Estimate(0.5, n, bounds=(0, 1))}

    def make(folder, **options):
        return sweep(
            folder,
            FIFOScheduler(),
            on_pending="wait",
            trials=1,
            stop={"training_iteration": 1},
            validate=validate,
            settings={"fn": lambda checkpoint, resume: {}},
            validation_s=lambda attempt: 0.3,
            listening=False,
            run=False,
            **options,
        )

    made, kills = run_killed(tmp_path, make, iter([14, 14]))
    assert kills == 2 and len(given) == 3
    [last] = [m for t in made.trials for _, m in made.validation.history.scores(t.trial_id)]
    assert last["accuracy_n"] == 10_000
    written = [
        event.estimates["accuracy"].n
        for event in events_in(tmp_path / "sweep")
        if isinstance(event, ValidationEstimated)
    ]
    assert given[0] == 0 < given[1] < given[2]
    assert set(given[1:]) <= set(written)
    # Four estimates come in 1.2 s, and one in so much time is written down.
    assert all(later - earlier <= 500 for earlier, later in pairwise([0, *written, 10_000]))


def test_the_report_has_the_interval_of_each_score(tmp_path):
    made = sweep(tmp_path, FIFOScheduler(), validate=exact, on_pending="wait", trials=2)
    loaded = load(made.home)
    points = curves(loaded, [trial.trial_id for trial in made.trials], "accuracy")
    assert points and all(point["low"] < point["value"] < point["high"] for point in points)
    assert "accuracy_n" in loaded.reports
    assert write_page(loaded).exists()


def test_a_validation_that_had_seen_everything_before_a_kill_has_its_score(tmp_path):
    def validate(attempt):
        if not attempt.request.known:
            yield {"accuracy": Estimate(0.5, 1_000, bounds=(0, 1))}
            raise RuntimeError("lost before its end was heard of")

    made = sweep(
        tmp_path,
        FIFOScheduler(),
        on_pending="wait",
        trials=1,
        stop={"training_iteration": 1},
        validate=validate,
        settings={"fn": lambda checkpoint, resume: {}},
    )
    assert made.validation.summary()["validated"] == 1
    [metrics] = [m for t in made.trials for _, m in made.validation.history.scores(t.trial_id)]
    assert metrics["accuracy"] == 0.5 and metrics["accuracy_n"] == 1_000
