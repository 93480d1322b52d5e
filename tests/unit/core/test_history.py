from __future__ import annotations

from tunekit.core.history import History
from tunekit.core.validation import Outcome, Request, Status


def scored(history: History, iteration: int, accuracy: float, run: int = 1) -> bool:
    request = Request("a", iteration, run)
    return history.ended(Outcome(request, Status.VALIDATED, {"accuracy": accuracy}))


def reports(*iterations: int) -> list[dict]:
    return [{"training_iteration": i, "loss": 1 / n} for n, i in enumerate(iterations, 1)]


def rows(history: History, *iterations: int) -> list[tuple]:
    return [
        (r["training_iteration"], r.get("accuracy"), r["iteration_runs"])
        for r in history.rows("a", reports(*iterations))
    ]


def reported(*iterations: int) -> History:
    history = History()
    for iteration in iterations:
        history.reported("a", iteration)
    return history


def test_each_iteration_has_one_row_and_its_own_score():
    history = reported(1, 2, 3)
    scored(history, 3, 0.3)
    scored(history, 1, 0.1)
    assert rows(history, 1, 2, 3) == [(1, 0.1, 1), (2, None, 1), (3, 0.3, 1)]
    assert history.newest("a") == (3, {"accuracy": 0.3})


def test_the_newest_run_of_an_iteration_is_shown_and_runs_are_counted():
    history = reported(1, 2, 3, 2, 3)
    scored(history, 2, 0.9, run=2)
    assert rows(history, 1, 2, 3, 2, 3) == [(1, None, 1), (2, 0.9, 2), (3, None, 2)]


def test_a_score_of_an_older_run_is_not_paired_with_the_report_of_a_newer_one():
    history = reported(1, 2)
    scored(history, 2, 0.2)
    assert history.reported("a", 2) == 2
    assert history.newest("a") is None
    assert not scored(history, 2, 0.2, run=1)  # or arrives only now
    assert rows(history, 1, 2, 2) == [(1, None, 1), (2, None, 2)]
    assert scored(history, 2, 0.4, run=2)
    assert history.newest("a") == (2, {"accuracy": 0.4})


def test_what_did_not_validate_is_no_score():
    history = reported(1)
    assert not history.ended(Outcome(Request("a", 1), Status.FAILED))
    assert history.newest("a") is None and not history.names


def test_training_metrics_of_a_validated_name_are_kept_elsewhere():
    history = reported(1, 2)
    scored(history, 2, 0.2)
    first, second = history.rows("a", [{"training_iteration": i, "accuracy": 0.99} for i in (1, 2)])
    assert "accuracy" not in first and first["reported"] == {"accuracy": 0.99}
    assert second["accuracy"] == 0.2 and second["reported"] == {"accuracy": 0.99}


def test_nested_metrics():
    history = reported(1)
    history.ended(Outcome(Request("a", 1), Status.VALIDATED, {"eval": {"accuracy": 0.5}}))
    report = {"training_iteration": 1, "eval": {"loss": 2.0, "accuracy": 0.9}}
    [row] = history.rows("a", [report])
    assert row["eval"] == {"loss": 2.0, "accuracy": 0.5}
    assert row["reported"] == {"eval/accuracy": 0.9}
    assert report["eval"] == {"loss": 2.0, "accuracy": 0.9}, "the report was changed"
