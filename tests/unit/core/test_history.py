from __future__ import annotations

from tunekit.core.history import History
from tunekit.core.validation import ValidationKey


def scored(history: History, iteration: int, accuracy: float, run: int = 1) -> None:
    history.validated(ValidationKey("a", 0, iteration, run), {"accuracy": accuracy})


def reported(*iterations: int) -> History:
    history = History()
    for iteration in iterations:
        history.reported("a", iteration)
    return history


def test_scores_are_in_the_order_of_iterations():
    history = reported(1, 2, 3)
    scored(history, 3, 0.3)
    scored(history, 1, 0.1)
    assert list(history.scores("a")) == [((0, 1), {"accuracy": 0.1}), ((0, 3), {"accuracy": 0.3})]


def test_a_score_of_an_older_run_does_not_count():
    history = reported(1, 2)
    scored(history, 2, 0.2)
    assert history.reported("a", 2) == 2 == history.run_of("a", 2)
    assert list(history.scores("a")) == []
    scored(history, 2, 0.2, run=1)  # or arrives only now
    assert list(history.scores("a")) == []
    scored(history, 2, 0.4, run=2)
    assert list(history.scores("a")) == [((0, 2), {"accuracy": 0.4})]
