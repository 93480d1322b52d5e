"""Confirming a winner: whose turn it is, when a validation is stopped, and what is recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tunekit import Estimate
from tunekit.core import student
from tunekit.core.confidence import ConfidenceSequence, Interval
from tunekit.core.confirmation import (
    Confirmation,
    confirmed_by,
    exact,
    interval_over_rounds,
    one_more,
    pooled,
)
from tunekit.errors import ConfigError


def once(*names: str, mode: str = "max", resumes: bool = False, **options: Any) -> Confirmation:
    return Confirmation(names, metric="accuracy", mode=mode, resumes=resumes, **options)


def in_rounds(*names: str, rounds: int = 10, mode: str = "max", **options: Any) -> Confirmation:
    return Confirmation(names, metric="accuracy", mode=mode, max_rounds=rounds, **options)


def started(confirmation: Confirmation, slots: int) -> list[str]:
    """Start as many as there are slots; return who."""
    running: list[str] = []
    while len(running) < slots and (turn := confirmation.next(running)) is not None:
        confirmation.started(turn.candidate)
        running.append(turn.candidate)
    return running


# Each is evaluated once -------------------------------------------------------------------------


def test_candidates_begin_in_the_order_of_the_ranking():
    assert started(once("a", "b", "c"), 9) == ["a", "b", "c"]
    assert started(once("b", "a", "c"), 2) == ["b", "a"]


def test_who_is_eliminated_is_stopped_and_settled():
    race = once("a", "b", "c")
    running = started(race, 3)
    assert not race.evaluated("a", Interval(0.8, 0.9), running)
    assert not race.evaluated("b", Interval(0.7, 0.85), running)
    assert race.evaluated("c", Interval(0.1, 0.7), running)
    race.yielded("c", {"accuracy": Estimate(0.4, 9, bounds=(0, 1))}, {"accuracy": 0.4})
    assert race.settled(["a", "b"]) == [("c", {"accuracy": 0.4})]
    assert race.settled(["a", "b"]) == [], "once"
    assert race.next(["a", "b"]) is None


def test_all_are_stopped_once_the_winner_is_certain():
    race = once("a", "b")
    running = started(race, 2)
    assert not race.evaluated("a", Interval(0.8, 0.9), running)
    assert race.evaluated("b", Interval(0.1, 0.7), running)
    assert race.evaluated("a", Interval(0.8, 0.9), running), "the winner, too"
    verdict = race.verdict()
    assert verdict and (verdict.winner, verdict.certain) == ("a", True)


def test_who_was_evaluated_in_full_is_exact():
    race = once("a", "b")
    started(race, 2)
    known = {"accuracy": Estimate(0.8, 50, bounds=(0, 1))}
    metrics = {"accuracy": 0.8, "accuracy_low": 0.7, "accuracy_high": 0.9, "accuracy_n": 50}
    race.exhausted("a", metrics, known)
    [(name, score)] = race.settled(["b"])
    assert name == "a" and score["accuracy_low"] == score["accuracy_high"] == 0.8
    race.exhausted("b", {"accuracy": 0.81})
    assert race.settled() == [("b", {"accuracy": 0.81})]
    verdict = race.verdict()
    assert verdict and (verdict.winner, verdict.confidence) == ("b", 1.0)


def test_a_candidate_that_is_back_is_evaluated_on():
    race = once("a", "b", resumes=True)
    running = started(race, 2)
    known = {"accuracy": Estimate(0.4, 9, bounds=(0, 1))}
    race.evaluated("a", Interval(0.8, 0.9), running)
    assert race.evaluated("b", Interval(0.6, 0.7), running)
    race.yielded("b", known, {"accuracy": 0.4})
    assert [name for name, _ in race.settled(["a"])] == ["b"]
    race.exhausted("a", {"accuracy": 0.65})  # it was outside of its interval
    turn = race.next()
    assert turn is not None and (turn.candidate, turn.known) == ("b", known)
    race.started("b")
    race.exhausted("b", {"accuracy": 0.66})
    assert [name for name, _ in race.settled()] == ["a", "b"]


def test_who_cannot_be_evaluated_is_left_out():
    race = once("a", "b", "c")
    started(race, 3)
    race.failed("a")
    race.exhausted("b", {"accuracy": 0.7})
    race.exhausted("c", {"accuracy": 0.6})
    verdict = race.verdict()
    assert verdict and verdict.winner == "b" and verdict.certain
    assert [name for name, _ in race.settled()] == ["b", "c"]
    for name in "bc":
        race.failed(name)
    assert race.verdict() is None and race.next() is None


def test_the_last_one_left_is_evaluated_too():
    race = once("a", "b")
    race.failed("a")
    turn = race.next()
    assert turn is not None and turn.candidate == "b"
    assert race.evaluated("b", Interval(0.1, 0.9), ["b"]), "its first estimate is enough"


# Taking turns -----------------------------------------------------------------------------------


def test_with_one_slot_all_have_a_first_turn_and_then_the_two_that_decide_take_turns():
    race = once("a", "b", "c", resumes=True)
    ends = {"a": (0.70, 0.90), "b": (0.72, 0.86), "c": (0.60, 0.80)}
    turns = []
    for _ in range(6):
        [name] = started(race, 1)
        yields = 1
        while not race.evaluated(name, Interval(*ends[name]), [name]):
            yields += 1
            low, high = ends[name]
            ends[name] = (low + 0.004, high - 0.004)
        turns.append((name, yields))
    names = [name for name, _ in turns]
    assert names[:3] == ["a", "b", "c"]
    assert set(names[3:]) == {"a", "b"}, "c is neither the leader nor its closest challenger"
    of = {name: [count for one, count in turns if one == name] for name in "ab"}
    for counts in of.values():
        for before, now in zip(np.cumsum(counts), counts[1:], strict=False):
            assert now >= before, "a turn is as long as all before it together"


def test_without_resume_nobody_gives_way():
    race = once("a", "b", "c")
    assert started(race, 1) == ["a"]
    for _ in range(5):
        assert not race.evaluated("a", Interval(0.2, 0.9), ["a"])


def test_nobody_gives_way_for_whom_there_is_a_slot():
    race = once("a", "b", "c", resumes=True)
    race.started("a")
    for _ in range(5):
        assert not race.evaluated("a", Interval(0.2, 0.9), ["a"], crowded=False)
    assert race.evaluated("a", Interval(0.2, 0.9), ["a"], crowded=True)


def test_nobody_gives_way_while_there_are_slots_for_those_that_decide():
    race = once("a", "b", "c", resumes=True)
    running = started(race, 3)
    for _ in range(5):
        for name, ends in {"a": (0.7, 0.9), "b": (0.7, 0.8), "c": (0.5, 0.75)}.items():
            assert not race.evaluated(name, Interval(*ends), running)


def test_who_decides_keeps_its_slot():
    race = once("a", "b", "c", resumes=True)
    for name, ends in {"a": (0.7, 0.9), "b": (0.7, 0.89), "c": (0.5, 0.75)}.items():
        race.started(name)
        race.evaluated(name, Interval(*ends), [name])
        race.started(name)
    assert not race.evaluated("a", Interval(0.7, 0.9), ["a", "c"]), "b waits for the slot of c"
    assert race.evaluated("c", Interval(0.5, 0.75), ["a", "c"])


def test_a_turn_goes_on_from_what_is_known():
    race = once("a", "b", resumes=True)
    [name] = started(race, 1)
    known = {"accuracy": Estimate(0.8, 100, bounds=(0, 1))}
    assert race.evaluated(name, Interval(0.6, 0.9), [name])
    race.yielded(name, known, {})
    assert race.settled() == [], "it will have more turns"
    turn = race.next(["b"])
    assert turn is not None and turn.candidate == "a" and turn.known == known


def test_what_is_recalled_counts_as_if_it_had_been_yielded_now():
    race = once("a", "b", resumes=True)
    low, high = Estimate(0.3, 5_000, bounds=(0, 1)), Estimate(0.9, 5_000, bounds=(0, 1))
    race.recall("a", {"accuracy": low})
    race.recall("b", {"accuracy": high})
    assert race.next() is None
    verdict = race.verdict()
    assert verdict and verdict.winner == "b" and verdict.certain
    settled = dict(race.settled())
    interval = ConfidenceSequence(race.each).update(high)
    assert settled["b"] == {
        "accuracy": 0.9,
        "accuracy_low": interval.low,
        "accuracy_high": interval.high,
        "accuracy_n": 5_000,
    }


# In rounds --------------------------------------------------------------------------------------


def test_rounds_are_for_contenders_and_nobody_is_a_round_ahead():
    race = in_rounds("a", "b", "c", rounds=30)
    noise = np.random.default_rng(3).normal(0, 0.01, (30, 3))
    seeds: dict[str, list[int]] = {name: [] for name in "abc"}
    while (turn := race.next()) is not None:
        assert turn.seed is not None
        seeds[turn.candidate].append(turn.seed)
        n = "abc".index(turn.candidate)
        value = (0.90, 0.88, 0.5)[n] + noise[turn.seed, n]
        race.scored(turn.candidate, {"accuracy": value})
        counts = [len(of) for of in seeds.values() if of]
        assert max(counts) - min(len(seeds[one]) for one in "ab") <= 1
    for found in seeds.values():
        assert found == list(range(len(found)))
    assert len(seeds["c"]) < len(seeds["b"]) <= len(seeds["a"]) < 30
    verdict = race.verdict()
    assert verdict and (verdict.winner, verdict.certain) == ("a", True)


def test_rounds_end_and_then_it_is_not_certain():
    race = in_rounds("a", "b", rounds=3)
    for score in (0.8, 0.9, 0.7):
        for name in "ab":
            turn = race.next()
            assert turn is not None and turn.candidate == name
            race.scored(name, {"accuracy": score, "loss": -score, "kind": "new"})
    assert race.next() is None
    settled = dict(race.settled())
    assert settled.keys() == {"a", "b"}
    assert settled["a"]["accuracy"] == pytest.approx(0.8)
    assert settled["a"]["loss"] == pytest.approx(-0.8) and settled["a"]["accuracy_n"] == 3
    assert "kind" not in settled["a"]
    assert settled["a"]["accuracy_low"] < 0.8 < settled["a"]["accuracy_high"]
    verdict = race.verdict()
    assert verdict and not verdict.certain and verdict.contenders == ("a", "b")


def test_an_interval_over_rounds_shares_the_error_between_the_looks():
    values = [0.80, 0.82, 0.86, 0.84]
    known = None
    for value in values:
        known = one_more(known, value)
    assert known is not None
    assert known.mean == pytest.approx(np.mean(values))
    assert known.variance == pytest.approx(np.var(values))
    low, high = interval_over_rounds(known, 0.95, max_rounds=6)
    half = student.quantile(3, 1 - 0.05 / 5) * np.std(values, ddof=1) / math.sqrt(4)
    assert (low, high) == pytest.approx((known.mean - half, known.mean + half))


@pytest.mark.parametrize(("scores", "known"), [(2, False), (4, False), (5, True)])
def test_a_few_equal_scores_say_nothing_of_others(scores, known):
    estimate = None
    for _ in range(scores):
        estimate = one_more(estimate, 0.1)
    assert estimate is not None
    interval = interval_over_rounds(estimate, 0.95, max_rounds=10)
    assert (interval.width == 0) is known and math.isfinite(interval.low) is known


def test_estimates_of_rounds_are_pooled():
    race = in_rounds("a", "b", rounds=4)
    random = np.random.default_rng(0)
    hits: dict[str, list[int]] = {"a": [], "b": []}
    while (turn := race.next()) is not None:
        new = (random.random(500) < {"a": 0.9, "b": 0.8}[turn.candidate]).astype(int)
        hits[turn.candidate] += list(new)
        estimate = Estimate(new.mean(), 500, variance=new.var(), bounds=(0, 1))
        shown = {"accuracy": estimate.mean, "accuracy_low": 0.0, "accuracy_n": 500}
        race.scored(turn.candidate, shown, {"accuracy": estimate})
    for name, all_of in hits.items():
        known = race.known(name)["accuracy"]
        assert known.n == len(all_of) and known.mean == pytest.approx(np.mean(all_of))
        assert known.variance == pytest.approx(np.var(all_of))
    verdict = race.verdict()
    assert verdict and verdict.winner == "a" and verdict.certain
    assert dict(race.settled())["a"]["accuracy_n"] == len(hits["a"])


def test_estimates_and_numbers_are_not_mixed():
    race = in_rounds("a", "b")
    race.scored("a", {"accuracy": 0.8})
    estimate = Estimate(0.8, 100, bounds=(0, 1))
    with pytest.raises(ConfigError, match="with some seeds, and a number with others"):
        race.scored("a", {"accuracy": 0.8}, {"accuracy": estimate})


def test_rounds_are_recalled():
    race, again = in_rounds("a", "b"), in_rounds("a", "b")
    for score in (0.8, 0.9):
        race.scored("a", {"accuracy": score})
    race.scored("b", {"accuracy": 0.7})
    for name in "ab":
        again.recall(name, race.known(name), race.rounds(name))
    turn = again.next()
    assert turn is not None and (turn.candidate, turn.seed) == ("b", 1)
    for one in (race, again):
        one.scored("b", {"accuracy": 0.75})
    assert again.known("b") == race.known("b")
    assert again.next() == race.next()


# What is not taken ------------------------------------------------------------------------------


@pytest.mark.parametrize("metrics", [{"loss": 0.1}, {"accuracy": "high"}, {"accuracy": math.inf}])
def test_a_score_needs_the_metric(metrics):
    with pytest.raises(ConfigError, match="no finite number 'accuracy'"):
        once("a", "b").exhausted("a", metrics)
    with pytest.raises(ConfigError, match="no finite number 'accuracy'"):
        in_rounds("a", "b").scored("a", metrics)


def test_pooling_needs_bounds_or_variances():
    with pytest.raises(ConfigError, match="one of them is needed"):
        pooled(Estimate(0.8, 10, bounds=(0, 1)), Estimate(0.8, 10, variance=0.1))


def test_only_what_was_estimated_becomes_exact():
    nested = {"eval": {"f1": 0.5, "f1_low": 0.1}, "loss": 2.0}
    assert exact(nested, ["eval/f1"]) == {
        "eval": {"f1": 0.5, "f1_low": 0.5, "f1_high": 0.5},
        "loss": 2.0,
    }


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
    found = confirmed_by("confirmed", "f", ABOUT, [*rows, row("c:0:9:1", 0.5, n=None)])
    assert found is not None
    winner = found.winner
    assert (winner.trial_id, winner.generation, winner.iteration) == ("b", 1, 2)
    assert found.certain and found.sure == pytest.approx(1 - 0.05 * 2 / 3)
    assert found.candidates[2].low == found.candidates[2].high == 0.5
    close = confirmed_by("confirmed", "f", ABOUT, [*rows, row("c:0:9:1", 0.8, 0.7, 0.9)])
    assert close is not None and not close.certain and close.sure == 0
    assert [one.trial_id for one in close.contenders] == ["b", "c"]


def test_it_has_not_ended_while_a_candidate_has_not():
    rows = [row("a:0:3:1", 0.7), row("b:1:2:1", 0.8)]
    for status in ("running", "skipped", "waiting"):
        last = {"id": "c:0:9:1", "status": status, "metrics": {}}
        assert confirmed_by("confirmed", "f", ABOUT, [*rows, last]) is None
    failed = {"id": "c:0:9:1", "status": "failed", "metrics": {}}
    found = confirmed_by("confirmed", "f", ABOUT, [*rows, failed])
    assert found is not None and found.candidates[2].mean is None
    none = [{**failed, "id": key} for key in ABOUT["candidates"]]
    assert confirmed_by("confirmed", "f", ABOUT, none) is None


def test_one_score_of_many_seeds_is_not_exact():
    rows = [
        row(key, mean, n=1) for key, mean in zip(ABOUT["candidates"], (0.7, 0.8, 0.9), strict=True)
    ]
    found = confirmed_by("confirmed", "f", ABOUT, rows)
    assert found is not None and not found.certain and len(found.contenders) == 3


# How often it is right, and what it costs -------------------------------------------------------


def run(
    race: Confirmation, means: Callable[[str], Iterator[tuple[float, int]]], size: int, slots: int
) -> int:
    """Evaluate as ``ConfirmationRun`` does; return how many examples."""
    position = dict.fromkeys(race._states, 0)
    series = {name: list(means(name)) for name in position}
    sequences = {name: ConfidenceSequence(race.each) for name in position}
    running: list[str] = []
    while True:
        while len(running) < slots and (turn := race.next(running)) is not None:
            race.started(turn.candidate)
            running.append(turn.candidate)
        if not running:
            return sum(series[name][at - 1][1] for name, at in position.items() if at)
        for name in list(running):
            mean, n = series[name][position[name]]
            position[name] += 1
            estimate = {"accuracy": Estimate(mean, n, bounds=(0, 1))}
            if n == size:
                race.exhausted(name, {"accuracy": mean})
            elif not race.evaluated(name, sequences[name].update(estimate["accuracy"]), running):
                continue
            else:
                race.yielded(name, estimate, {"accuracy": mean})
            running.remove(name)


def study(
    random: Any, shares: Any, slots: int, resumes: bool, **options: Any
) -> tuple[bool, float]:
    """Return whether the winner has the best mean of all examples, and the share evaluated."""
    size, batch = 20_000, 500
    names = [str(name) for name in random.permutation(len(shares))]
    hits = {name: (random.random(size) < shares[int(name)]).cumsum() for name in names}

    def means(name: str) -> Iterator[tuple[float, int]]:
        return ((hits[name][n - 1] / n, n) for n in range(batch, size + 1, batch))

    race = once(*names, resumes=resumes, **options)
    used = run(race, means, size, slots)
    verdict = race.verdict()
    assert verdict is not None and verdict.certain
    assert {name for name, _ in race.settled()} == set(names)
    best = max(names, key=lambda name: (hits[name][-1], -names.index(name)))
    return verdict.winner == best, used / (size * len(shares))


FIVE = (0.900, 0.892, 0.88, 0.87, 0.85)


@pytest.mark.parametrize(
    ("slots", "resumes", "chosen_from", "most"),
    [(5, False, None, 0.70), (1, True, None, 0.55), (5, False, 200, 0.80)],
)
def test_of_a_hundred_winners_95_are_right_with_fewer_examples(slots, resumes, chosen_from, most):
    random = np.random.default_rng(11)
    found = [study(random, FIVE, slots, resumes, chosen_from=chosen_from) for _ in range(100)]
    right, used = zip(*found, strict=True)
    assert sum(right) >= 95
    assert np.mean(used) <= most


def test_intervals_hold_for_those_that_were_chosen_for_their_luck():
    """The best five of 500 equally good ones, seen again on the examples they were lucky with."""
    size, mean, sweeps, misses = 500, 0.8, 200, {}
    for chosen_from in (None, 500):
        random, misses[chosen_from] = np.random.default_rng(3), 0
        each = once(*"abcde", chosen_from=chosen_from).each
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
        race = in_rounds("b", "a", "c", "d", "e", rounds=20)
        better = dict(zip("abcde", (0.90, 0.88, 0.87, 0.85, 0.80), strict=True))
        while (turn := race.next()) is not None:
            race.scored(turn.candidate, {"accuracy": random.normal(better[turn.candidate], 0.01)})
            rounds += 1
        verdict = race.verdict()
        assert verdict is not None
        certain += verdict.certain
        right += not verdict.certain or verdict.winner == "a"
    assert right >= 95 and certain >= 60 and rounds <= 0.75 * 100 * 100
