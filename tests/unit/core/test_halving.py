"""Trials are promoted exactly as the ASHA paper's algorithm promotes them."""

from __future__ import annotations

import math
import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tunekit.core.decision_points import Never, Rungs
from tunekit.core.halving import Halving, RungAction

scores = st.lists(st.integers(0, 9), min_size=1, max_size=30)
etas = st.sampled_from([1.5, 2, 3, 4])


class Paper:
    """Algorithm 2: ``get_job`` without the new configurations at the bottom."""

    def __init__(self, times: tuple[float, ...], eta: float):
        self.rungs: list[list[tuple[float, str]]] = [[] for _ in times]
        self.promoted: list[set[str]] = [set() for _ in times]
        self.eta = eta

    def jobs(self) -> list[str]:
        """Return all possible promotions, from the highest rung down, the best first."""
        found = []
        for rung, promoted in reversed(list(zip(self.rungs, self.promoted, strict=True))):
            best_first = sorted(rung, key=lambda entry: -entry[0])  # stable: the first of equals
            candidates = best_first[: int(len(rung) / self.eta)]
            found += [name for _, name in candidates if name not in promoted]
        return found


def play(eta, draw, values, prefers_promotions=0.5):
    """Trials that start and are promoted in any order; yields after everything that happens."""
    times = (1, 2, 4)
    books, paper = Halving([times], max_t=8, reduction_factor=eta), Paper(times, eta)
    new = [str(n) for n in range(len(values))]
    ready: list[tuple[str, int]] = []
    while True:
        jobs = list(books.promotable())
        yield books, paper, jobs
        if jobs and draw.random() < prefers_promotions:
            rung = max(n for n in range(3) if any(jobs[0] == name for _, name in paper.rungs[n]))
            books.promote(jobs[0])
            assert jobs[0] not in paper.promoted[rung], "no trial is promoted twice from a rung"
            paper.promoted[rung].add(jobs[0])
            ready.append((jobs[0], rung + 1))
        elif new and draw.random() < 0.7:
            name = new.pop()
            books.add(name)
            ready.append((name, 0))
        elif ready:
            name, rung = ready.pop(draw.randrange(len(ready)))
            if rung == 3:
                assert books.reported(name, 8, (0.0,)) is RungAction.END
                books.ended(name, 8)
                continue
            score = float(values[int(name)] + draw.randrange(3))
            assert books.reported(name, times[rung], (score,)) is RungAction.HOLD
            paper.rungs[rung].append((score, name))
        elif not (jobs or new):
            return


@example([0, 0, 3, 0, 4, 0, 1, 0, 1, 0, 1, *8 * [0], 2, 0, 0, 0], 2, 136)
@settings(max_examples=200, deadline=None)
@given(scores, etas, st.integers(0, 2**31))
def test_halving_promotes_the_trials_that_the_papers_algorithm_promotes(values, eta, seed):
    for books, paper, jobs in play(eta, random.Random(seed), values):
        assert jobs == paper.jobs()
        for (_, count, held), rung in zip(books.counts(), paper.rungs, strict=False):
            assert held <= count == len(rung)


def rung_of_three() -> Halving:
    books = Halving([(1, 3)], max_t=9, reduction_factor=3)
    for name, score in [("a", 0.1), ("b", 0.7), ("c", 0.4)]:
        books.add(name)
        assert books.reported(name, 1, (score,)) is RungAction.HOLD
    return books


def test_ended_trial_is_not_promoted_but_its_score_stays_in_the_rung():
    books = rung_of_three()
    books.ended("b")
    assert list(books.promotable()) == [] and books.rule("b") == Never()
    assert books.counts() == [(1, 3, 2), (3, 0, 0)]


def test_trial_that_fails_while_held_must_reach_its_rung_again():
    books = rung_of_three()
    books.failed("b")
    assert books.counts()[0] == (1, 2, 2) and not books.has_begun("b")
    assert books.rule("b") == Rungs((1, 3, 9), frozenset())
    books.add("b")
    assert books.reported("b", 2, (0.8,)) is RungAction.HOLD
    assert list(books.promotable()) == ["b"]


def test_trial_that_fails_after_promotion_keeps_its_place_in_the_rung():
    books = rung_of_three()
    books.promote("b")
    books.failed("b")
    books.add("b")
    assert books.reported("b", 1, (0.7,)) is RungAction.CONTINUE  # it went back
    assert books.reported("b", 3, (0.9,)) is RungAction.HOLD


def test_result_past_several_rungs_counts_only_in_the_last_one_passed():
    books = Halving([(1, 3, 9)], max_t=27, reduction_factor=3)
    books.add("a")
    assert books.reported("a", 5, (0.5,)) is RungAction.HOLD
    assert books.reported("a", 6, (0.5,)) is RungAction.CONTINUE
    assert books.counts() == [(1, 0, 0), (3, 1, 0), (9, 0, 0)]


def test_held_trial_that_reports_again_continues_and_is_no_longer_promotable():
    books = rung_of_three()
    assert books.reported("b", 2, (0.7,)) is RungAction.CONTINUE
    assert list(books.promotable()) == []


def test_nan_score_ranks_last_and_equal_scores_rank_in_order_of_arrival():
    books = Halving([(1,)], max_t=9, reduction_factor=1.5)
    for name, score in [("nan", math.nan), ("one", 0.5), ("other", 0.5)]:
        books.add(name)
        books.reported(name, 1, (score,))
    assert list(books.promotable()) == ["one", "other"]
    assert list(books.held()) == ["one", "other", "nan"]


def test_trial_unknown_to_halving_continues_and_may_fail_or_end():
    books = Halving([(1,)], max_t=9, reduction_factor=2)
    assert books.reported("x", 1, (0.5,)) is RungAction.CONTINUE
    books.failed("x")
    books.ended("x")
    assert not books.holds("x") and not books.has_begun("x")
