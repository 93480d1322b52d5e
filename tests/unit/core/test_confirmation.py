"""Confirming a winner: who is eliminated, when a validation is stopped, and what is recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunekit import Estimate
from tunekit.core import t_distribution
from tunekit.core.confidence import ConfidenceSequence, Interval
from tunekit.core.confirmation import (
    Race,
    confirmed_by,
    interval_over_rounds,
    rows_per_checkpoint,
)
from tunekit.core.events import ValidationEnded, ValidationRequested
from tunekit.core.later_validations import LaterSession


def key(name: str) -> str:
    return f"{name}:0:1:1"


def race_of(*names: str, mode: str = "max", confidence: float = 0.95, **about: Any) -> Race:
    told = {"candidates": [key(name) for name in names], "confidence": confidence}
    return Race({"metric": "accuracy", "mode": mode, **told, **about})


def ended(race: Race, name: str, mean: float, *ends: float) -> None:
    """A candidate was evaluated, exactly or as far as to an interval."""
    metrics = {"accuracy": mean}
    if ends:
        metrics |= {"accuracy_low": ends[0], "accuracy_high": ends[1], "accuracy_n": 9}
    race.take(key(name), "validated", metrics)


def race(mode: str = "max", confidence: float = 0.95, **means: Any) -> Race:
    """Return a race in which each candidate has an interval, in the order of the ranking."""
    found = race_of(*means, mode=mode, confidence=confidence)
    for name, known in means.items():
        if isinstance(known, tuple):
            ended(found, name, sum(known) / 2, *known)
        elif known is not None:
            ended(found, name, known)
    return found


def left(race: Race) -> list[str]:
    return [name.split(":")[0] for name in race.contenders()]


def wanted(race: Race) -> list[tuple[str, str]]:
    return [(one.trial_id, one.stage) for one in race.wanted()]


def winner(race: Race) -> tuple[str, float]:
    return race.winner.trial_id, race.sure


# Who is in the race -----------------------------------------------------------------------------


def test_all_are_in_the_race_at_first():
    found = race_of("a", "b", "c")
    assert left(found) == ["a", "b", "c"] and winner(found) == ("a", 0.0)
    assert wanted(found) == [("a", ""), ("b", ""), ("c", "")]


def test_who_cannot_be_the_best_is_eliminated():
    found = race(a=(0.7, 0.8), b=(0.75, 0.9), c=(0.5, 0.74), d=None)
    assert left(found) == ["a", "b", "d"] and wanted(found) == [("d", "")]
    ended(found, "d", 0.83, 0.81, 0.85)
    assert left(found) == ["b", "d"] and wanted(found) == []


def test_small_values_may_be_better():
    found = race("min", a=(0.7, 0.8), b=(0.1, 0.3), c=(0.25, 0.6))
    assert left(found) == ["b", "c"] and winner(found) == ("b", 0.0)
    assert left(race("min", a=(0.7, 0.8), b=(0.1, 0.3), c=0.31)) == ["b"]


def test_a_winner_is_certain_when_it_is_alone():
    assert winner(race(a=(0.7, 0.8), b=(0.81, 0.9))) == ("b", 0.95)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_equal_means_go_by_the_ranking(mode):
    assert winner(race(mode, a=0.8, b=0.8, c=0.8)) == ("a", 1.0)
    assert winner(race(mode, b=0.8, a=0.8)) == ("b", 1.0)


def test_who_can_only_draw_is_eliminated_by_who_is_ranked_before():
    assert left(race(a=0.8, b=(0.7, 0.8))) == ["a"]
    assert left(race(b=(0.7, 0.8), a=0.8)) == ["b", "a"]


def test_who_is_exact_outside_its_interval_lets_the_eliminated_back():
    found = race(a=(0.8, 0.9), b=(0.6, 0.7))
    assert left(found) == ["a"]
    ended(found, "a", 0.65)
    assert left(found) == ["a", "b"] and wanted(found) == []
    assert winner(found)[1] == 0.0, "it is not certain any more"


@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_the_probability_of_an_error_is_shared(count):
    found = race_of(*map(str, range(count)), confidence=0.9)
    assert found.each == pytest.approx(1 - 0.1 / count)


def test_exact_means_cannot_be_wrong():
    found = race(a=(0.9, 1.0), b=0.8, c=(0.1, 0.2), d=0.7, confidence=0.9)
    assert winner(found) == ("a", pytest.approx(1 - 2 * 0.1 / 4))


def test_who_was_never_evaluated_does_not_lead():
    assert race(a=None, b=(0.2, 0.3), c=None).winner.trial_id == "b"


def test_who_cannot_be_evaluated_is_left_out():
    found = race(a=(0.8, 0.9), b=0.7, c=0.6)
    found.take(key("a"), "failed", {})
    assert winner(found) == ("b", 1.0) and found.candidates[key("a")].mean is None
    for name in "bc":
        found.take(key(name), "timed_out", {})
    assert not left(found) and not wanted(found)


def test_the_last_one_left_is_evaluated_too():
    found = race_of("a", "b")
    found.take(key("a"), "failed", {})
    assert wanted(found) == [("b", "")]
    assert found.enough(key("b"), Interval(0.1, 0.9)), "its first estimate is enough"


def test_what_was_interrupted_is_still_wanted():
    found = race_of("a", "b")
    found.take(key("a"), "skipped", {})
    assert wanted(found) == [("a", ""), ("b", "")]


@pytest.mark.parametrize("metrics", [{"loss": 0.1}, {"accuracy": "high"}, {"accuracy": math.inf}])
def test_a_score_without_the_metric_is_a_failure(metrics):
    found = race_of("a", "b")
    assert found.value(metrics) is None
    found.take(key("a"), "validated", metrics)
    assert left(found) == ["b"]


ends = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda two: tuple(sorted(two)))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.none(), ends, st.integers(0, 20)), min_size=1, max_size=6))
def test_the_best_is_among_the_contenders_whatever_it_is(given):
    """Tries every corner of what the means can be, ranked by mean and then by the ranking."""
    names = "abcdef"[: len(given)]
    for mode in ("max", "min"):
        found = race(mode, **dict(zip(names, given, strict=True)))
        best = max if mode == "max" else min
        for one in range(len(given)):  # at its best, with the others at their worst
            means = []
            for other, known in enumerate(given):
                low, high = (-1, 21) if known is None else (known, known)
                if isinstance(known, tuple):
                    low, high = known
                hopeful = (mode == "max") is (one == other)
                means.append(high if hopeful else low)
            assert (names[means.index(best(means))] == names[one]) == (names[one] in left(found))
        assert found.winner.trial_id in left(found)


# Each is evaluated once -------------------------------------------------------------------------


def test_who_is_eliminated_is_stopped():
    found = race_of("a", "b", "c")
    assert not found.enough(key("a"), Interval(0.8, 0.9))
    assert not found.enough(key("b"), Interval(0.7, 0.85))
    assert found.enough(key("c"), Interval(0.1, 0.7))


def test_all_are_stopped_once_the_winner_is_certain():
    found = race_of("a", "b")
    assert not found.enough(key("a"), Interval(0.8, 0.9))
    assert found.enough(key("b"), Interval(0.1, 0.7))
    assert found.enough(key("a"), Interval(0.8, 0.9)), "the winner, too"


# In rounds --------------------------------------------------------------------------------------


def test_rounds_are_for_contenders_and_nobody_is_a_round_ahead():
    found = race_of("a", "b", "c", max_rounds=30)
    noise = np.random.default_rng(3).normal(0, 0.01, (30, 3))
    seeds: dict[str, list[int]] = {name: [] for name in "abc"}
    while keys := found.wanted():
        for one in keys:
            seed, n = int(one.stage.removeprefix("seed")), "abc".index(one.trial_id)
            seeds[one.trial_id].append(seed)
            assert not found.enough(str(one), Interval(0.0, 0.1)), "each round counts in full"
            value = (0.90, 0.88, 0.5)[n] + noise[seed, n]
            found.take(str(one), "validated", {"accuracy": value})
        counts = [len(of) for of in seeds.values() if of]
        assert max(counts) - min(len(seeds[one]) for one in "ab") <= 1
    for of in seeds.values():
        assert of == list(range(len(of)))
    assert len(seeds["c"]) < len(seeds["b"]) <= len(seeds["a"]) < 30
    assert winner(found) == ("a", 0.95)


ROUNDS = {"candidates": ["a:0:1:1", "b:0:1:1"], "metric": "accuracy", "mode": "max"}
ROUNDS |= {"confidence": 0.95, "max_rounds": 3}


def rounds(*outcomes: tuple[str, str, dict[str, Any]]) -> LaterSession:
    """Return a session of rounds: the names of their validations, statuses and metrics."""
    events: list[Any] = []
    for name, status, metrics in outcomes:
        events.append(ValidationRequested(trial_id=name[0], id=name, iteration=1))
        events.append(ValidationEnded(id=name, status=status, metrics=metrics, attempts=1))
    return LaterSession("s", {"name": "confirmed", "time": 1.0, "confirm": ROUNDS}, events)


def test_a_row_has_the_means_over_the_rounds():
    session = rounds(
        *(
            (f"{name}:0:1:1:seed{seed}", "validated", {"accuracy": score, "kind": "new"})
            for seed, score in enumerate((0.8, 0.9, 0.7))
            for name in "ab"
        )
    )
    a, b = rows_per_checkpoint([session])
    assert (a["id"], b["id"], a["status"]) == ("a:0:1:1", "b:0:1:1", "validated")
    metrics = a["metrics"]
    assert metrics["accuracy"] == pytest.approx(0.8) and metrics["accuracy_n"] == 3
    assert metrics["accuracy_low"] < 0.8 < metrics["accuracy_high"] and "kind" not in metrics
    found = confirmed_by("f", ROUNDS, session.rows)
    assert found is not None and not found.certain and len(found.contenders) == 2


def test_a_candidate_one_of_whose_rounds_has_failed_has_no_mean():
    session = rounds(
        ("a:0:1:1:seed0", "validated", {"accuracy": 0.8}),
        ("a:0:1:1:seed1", "failed", {}),
        ("b:0:1:1:seed0", "validated", {"accuracy": 0.7}),
    )
    a, b = rows_per_checkpoint([session])
    assert (a["status"], a["metrics"], b["metrics"]["accuracy"]) == ("failed", {}, 0.7)
    found = confirmed_by("f", ROUNDS, session.rows)
    assert found is not None and found.winner.trial_id == "b" and found.certain


def test_an_interval_over_rounds_shares_the_error_between_the_looks():
    values = [0.80, 0.82, 0.86, 0.84]
    found = interval_over_rounds(values, 0.95, max_rounds=6)
    half = t_distribution.quantile(3, 1 - 0.05 / 5) * np.std(values, ddof=1) / math.sqrt(4)
    assert found == pytest.approx((np.mean(values) - half, np.mean(values) + half))


@pytest.mark.parametrize(("scores", "known"), [(2, None), (4, None), (5, (0.1, 0.1))])
def test_a_few_equal_scores_say_nothing_of_others(scores, known):
    assert interval_over_rounds([0.1] * scores, 0.95, max_rounds=10) == known


# What it has come to, from the records ----------------------------------------------------------

ABOUT = {
    "candidates": ["a:0:3:1", "b:1:2:1", "c:0:9:1"],
    "metric": "accuracy",
    "mode": "max",
    "confidence": 0.95,
}


def row(key: str, mean: float, low: float | None = None, high: float | None = None, n: Any = 9):
    ends = {} if low is None else {"accuracy_low": low, "accuracy_high": high}
    metrics = {"accuracy": mean, **ends, **({} if n is None else {"accuracy_n": n})}
    return {"id": key, "status": "validated", "metrics": metrics}


def test_the_verdict_follows_from_the_records():
    rows = [row("a:0:3:1", 0.7, 0.6, 0.75), row("b:1:2:1", 0.8, 0.76, 0.9)]
    found = confirmed_by("f", ABOUT, [*rows, row("c:0:9:1", 0.5, n=None)])
    assert found is not None
    winner = found.winner
    assert (winner.trial_id, winner.generation, winner.iteration) == ("b", 1, 2)
    assert found.certain and found.sure == pytest.approx(1 - 0.05 * 2 / 3)
    assert found.candidates[2].low == found.candidates[2].high == 0.5
    close = confirmed_by("f", ABOUT, [*rows, row("c:0:9:1", 0.8, 0.7, 0.9)])
    assert close is not None and not close.certain and close.sure == 0
    assert [one.trial_id for one in close.contenders] == ["b", "c"]


def test_it_has_not_ended_while_a_candidate_has_not():
    rows = [row("a:0:3:1", 0.7), row("b:1:2:1", 0.8)]
    for status in ("running", "skipped", "waiting"):
        last = {"id": "c:0:9:1", "status": status, "metrics": {}}
        assert confirmed_by("f", ABOUT, [*rows, last]) is None
    failed = {"id": "c:0:9:1", "status": "failed", "metrics": {}}
    found = confirmed_by("f", ABOUT, [*rows, failed])
    assert found is not None and found.candidates[2].mean is None
    none = [{**failed, "id": key} for key in ABOUT["candidates"]]
    assert confirmed_by("f", ABOUT, none) is None


def test_one_score_of_many_seeds_is_not_exact():
    rows = [
        row(key, mean, n=1) for key, mean in zip(ABOUT["candidates"], (0.7, 0.8, 0.9), strict=True)
    ]
    found = confirmed_by("f", ABOUT, rows)
    assert found is not None and not found.certain and len(found.contenders) == 3


# How often it is right, and what it costs -------------------------------------------------------


def run(
    found: Race, means: Callable[[str], Iterator[tuple[float, int]]], size: int, slots: int
) -> int:
    """Evaluate as a session does; return how many examples."""
    queue = list(found.candidates)
    series = {name: means(name) for name in queue}
    sequences = {name: ConfidenceSequence(found.each) for name in queue}
    running: list[str] = []
    used = 0
    while queue or running:
        while queue and len(running) < slots:
            running.append(queue.pop(0))
        for name in list(running):
            mean, n = next(series[name])
            interval = sequences[name].update(Estimate(mean, n, bounds=(0, 1)))
            if n < size and not found.enough(name, interval):
                continue
            metrics = {"accuracy": mean, "accuracy_n": n}
            low, high = (mean, mean) if n == size else interval
            metrics |= {"accuracy_low": low, "accuracy_high": high}
            found.take(name, "validated", metrics)
            running.remove(name)
            used += n
    return used


def study(random: Any, shares: Any, slots: int, **options: Any) -> tuple[bool, float]:
    """Return whether the winner has the best mean of all examples, and the share evaluated."""
    size, batch = 20_000, 500
    names = [str(name) for name in random.permutation(len(shares))]
    hits = {name: (random.random(size) < shares[int(name)]).cumsum() for name in names}

    def means(name: str) -> Iterator[tuple[float, int]]:
        own = hits[name.split(":")[0]]
        return ((own[n - 1] / n, n) for n in range(batch, size + 1, batch))

    found = race_of(*names, **options)
    used = run(found, means, size, slots)
    assert len(left(found)) == 1 and not found.wanted()
    best = max(names, key=lambda name: (hits[name][-1], -names.index(name)))
    return found.winner.trial_id == best, used / (size * len(shares))


FIVE = (0.900, 0.892, 0.88, 0.87, 0.85)


@pytest.mark.parametrize(
    ("slots", "chosen_from", "most"), [(5, None, 0.70), (1, None, 0.65), (5, 200, 0.80)]
)
def test_of_a_hundred_winners_95_are_right_with_fewer_examples(slots, chosen_from, most):
    random = np.random.default_rng(11)
    found = [study(random, FIVE, slots, chosen_from=chosen_from) for _ in range(100)]
    right, used = zip(*found, strict=True)
    assert sum(right) >= 95
    assert np.mean(used) <= most


def test_intervals_hold_for_those_that_were_chosen_for_their_luck():
    """The best five of 500 equally good ones, seen again on the examples they were lucky with."""
    size, mean, sweeps, misses = 500, 0.8, 200, {}
    for chosen_from in (None, 500):
        random, misses[chosen_from] = np.random.default_rng(3), 0
        each = race_of(*"abcde", chosen_from=chosen_from).each
        for _ in range(sweeps):
            lucky = np.sort(random.binomial(size, mean, 500))[-5:]
            estimates = [Estimate(hits / size, size, bounds=(0, 1)) for hits in lucky]
            intervals = [ConfidenceSequence(each).update(one) for one in estimates]
            misses[chosen_from] += any(not one.low <= mean <= one.high for one in intervals)
    assert misses[500] <= 0.05 * sweeps < misses[None]


def test_over_seeds_95_of_a_hundred_are_right():
    random = np.random.default_rng(7)
    right, certain, rounds = 0, 0, 0
    for _ in range(100):
        found = race_of("b", "a", "c", "d", "e", max_rounds=20)
        better = dict(zip("abcde", (0.90, 0.88, 0.87, 0.85, 0.80), strict=True))
        while keys := found.wanted():
            for one in keys:
                score = random.normal(better[one.trial_id], 0.01)
                found.take(str(one), "validated", {"accuracy": score})
                rounds += 1
        certain += found.sure > 0
        right += not found.sure or found.winner.trial_id == "a"
    assert right >= 95 and certain >= 60 and rounds <= 0.75 * 100 * 100
