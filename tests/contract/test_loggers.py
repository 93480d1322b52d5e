"""Loggers that know nothing of validation show validated metrics."""

from __future__ import annotations

import itertools
import pickle
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.logger import CSVLoggerCallback, LoggerCallback, TBXLoggerCallback
from ray.tune.schedulers import FIFOScheduler

import tunekit
from tests.contract.test_tensorboard import Both, any_order, read, scalars
from tests.kills import run_killed
from tests.sweeps import Ran, index_of, sweep
from tunekit.loggers import validated


class Store(LoggerCallback):
    """As those of MLflow or Comet: a run per trial, closed at its end, from which nothing comes."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.open: set[str] = set()
        self.ends: dict[str, bool] = {}
        self.saves = self.steps = 0
        self.over = False

    def setup(self, **info: Any) -> None:
        assert "num_samples" in info or not info

    def log_trial_start(self, trial: Trial) -> None:
        self.open.add(trial.trial_id)

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        assert trial.trial_id in self.open and not self.over
        assert result["training_iteration"] and result["trial_id"] == trial.trial_id
        self.rows[trial.trial_id].append(result)

    def log_trial_save(self, trial: Trial) -> None:
        self.saves += 1

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        self.open.remove(trial.trial_id)
        assert trial.trial_id not in self.ends
        self.ends[trial.trial_id] = failed

    def on_step_end(self, **info: Any) -> None:
        self.steps += 1

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        self.over = True

    def get_state(self) -> dict[str, Any]:
        return {"saves": self.saves}

    def set_state(self, state: dict[str, Any]) -> None:
        self.saves = state["saves"]

    def points(self, trial: Trial, *names: str) -> list[Any]:
        """(step, value) of a metric, in the order in which they were logged."""
        found = []
        for row in self.rows[trial.trial_id]:
            value: Any = row
            for name in names:
                value = value.get(name, {}) if isinstance(value, dict) else {}
            if value != {}:
                found.append((row["training_iteration"], value))
        return found


def run(folder: Path, **options: Any) -> tuple[Ran, Store]:
    """A sweep with a store beside it, wrapped as ``Tuner`` does."""
    store = Store()
    ran = sweep(
        folder,
        options.pop("base", FIFOScheduler()),
        later_callbacks=(tunekit.loggers.ValidatedLoggerCallback(store),),
        **{"validation_s": any_order, **options},
    )
    return ran, store


def check(ran: Ran, store: Store) -> None:
    assert store.over and not store.open and store.saves and store.steps
    for trial in ran.trials:
        scores = ran.scores()[index_of(trial)]
        rows = [row for row in store.rows[trial.trial_id] if "accuracy" in row]
        found = [(row["generation"], row["training_iteration"], row["accuracy"]) for row in rows]
        assert found == [(*place, score) for place, score in sorted(scores.items())]
        assert store.ends[trial.trial_id] == (trial.status == Trial.ERROR)


@pytest.mark.parametrize("on_pending", ["continue", "wait", "wait-paused"])
def test_validated_rows_come_in_order_and_before_the_end(tmp_path, on_pending):
    ran, store = run(tmp_path, on_pending=on_pending, trials=4)
    check(ran, store)
    for trial in ran.trials:
        assert [step for step, _ in store.points(trial, "loss")] == list(range(1, 10))
        # A score is no row of training's, and a report none of validation's.
        assert not any("loss" in row and "accuracy" in row for row in store.rows[trial.trial_id])


def test_trainings_values_of_a_name_that_validation_takes_over(tmp_path):
    ran, store = run(tmp_path, trainable=Both, trials=2)
    check(ran, store)
    for trial in ran.trials:
        # Those of the first steps were held back until it was known whose name it is.
        own = store.points(trial, "reported", "accuracy")
        assert sorted(own) == [(i, -float(i)) for i in range(1, 10)]
    [first, *_] = [row for rows in store.rows.values() for row in rows if "reported" in row]
    assert first["training_iteration"] == 1


def test_a_metric_that_stays_trainings_is_logged(tmp_path):
    """The sweep is judged by what training reports; it was held back before the first score."""
    ran, store = run(
        tmp_path,
        trainable=Both,
        trials=2,
        metric="loss",
        mode="min",
        validate=lambda attempt: {"f1": 0.5},
    )
    for trial in ran.trials:
        assert sorted(i for i, _ in store.points(trial, "loss")) == list(range(1, 10))
        assert [i for i, _ in store.points(trial, "f1")] == list(range(1, 10))
        assert not store.points(trial, "reported")


def test_without_any_score_all_is_training_s(tmp_path):
    ran, store = run(
        tmp_path,
        trainable=Both,
        trials=2,
        validate=lambda attempt: RuntimeError("fails"),
        settings={"max_retries": 0},
    )
    for trial in ran.trials:
        assert store.points(trial, "accuracy") == [(i, -float(i)) for i in range(1, 10)]
        assert store.ends[trial.trial_id] is False


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
def test_after_a_restore_each_score_is_logged_once(tmp_path, seed):
    stores: list[Store] = []
    draw = random.Random(seed)

    def made(folder: Path, **options: Any) -> Ran:
        ran, store = run(
            folder,
            trials=4,
            run=False,
            listening=False,
            saved_every_s=draw.choice([0.0, float("inf")]),
            # Trials end long before their last validations.
            validation_s=lambda attempt: 30 + any_order(attempt),
            **options,
        )
        stores.append(store)
        return ran

    lives = (draw.randrange(100, 220) for _ in itertools.count())
    ran, kills = run_killed(tmp_path, made, itertools.islice(lives, 2))
    assert kills
    for trial in ran.trials:
        found = [point for store in stores for point in store.points(trial, "accuracy")]
        assert found == sorted(set(found))
        assert len(found) >= 9 - kills
        assert not stores[-1].open


def test_an_interrupted_sweep_closes_what_has_ended(tmp_path):
    ran, store = run(tmp_path, trials=2, run=False, validation_s=lambda attempt: 1000.0)
    while not any(trial.is_finished() for trial in ran.trials):
        ran.sweep.step()
    for callback in ran.sweep.controller._callbacks._callbacks:
        if isinstance(callback, tunekit.loggers.ValidatedLoggerCallback):
            assert not store.ends
            callback.on_experiment_end(trials=ran.trials)
    finished = {trial.trial_id for trial in ran.trials if trial.is_finished()}
    assert store.ends.keys() == finished and store.over


def test_a_users_own_tensorboard_logger_stays_one(tmp_path):
    class Own(TBXLoggerCallback):
        pass

    logger = tunekit.loggers.ValidatedLoggerCallback(Own())
    assert isinstance(logger, TBXLoggerCallback)  # Tune adds none
    again = pickle.loads(pickle.dumps(tunekit.loggers.ValidatedLoggerCallback(TBXLoggerCallback())))
    assert isinstance(again, TBXLoggerCallback) and type(again.logger) is TBXLoggerCallback
    ran = sweep(tmp_path, FIFOScheduler(), trials=1, later_callbacks=(logger,))
    [events] = read(ran.trials[0].local_path).values()
    assert [step for step, _ in scalars(events, "ray/tune/accuracy")] == list(range(1, 10))


def test_what_is_wrapped():
    class Hears(LoggerCallback):
        def on_trial_validated(self, trial: Any, report: Any, metrics: Any) -> None: ...

    class Plain(tune.Callback):
        pass

    for kept in (CSVLoggerCallback(), tunekit.loggers.JsonLogger(), Hears(), Plain()):
        assert validated(kept) is kept
    for twice in (
        tunekit.loggers.ValidatedLoggerCallback(Store()),
        tunekit.loggers.TensorBoardLogger(),
    ):
        assert validated(twice) is twice
    with pytest.raises(tunekit.errors.ConfigError, match="already shows validated metrics"):
        tunekit.loggers.ValidatedLoggerCallback(tunekit.loggers.JsonLogger())
    with pytest.raises(tunekit.errors.ConfigError, match="Pass a logger"):
        tunekit.loggers.ValidatedLoggerCallback("mlflow")


def test_it_is_the_logger_that_it_wraps(tmp_path):
    store = Store()
    logger = pickle.loads(pickle.dumps(tunekit.loggers.ValidatedLoggerCallback(store)))
    logger.set_state({"saves": 3})
    assert logger.saves == 3 and logger.get_state() == {"saves": 3}
    with pytest.raises(AttributeError):
        logger.no_such_name  # noqa: B018


class Sees(tune.Callback):
    def __init__(self) -> None:
        self.seen: dict[int, list[float]] = {}

    def on_trial_result(self, iteration: int, trials: Any, trial: Trial, result: Any, **_: Any):
        if "accuracy" in result:
            self.seen.setdefault(index_of(trial), []).append(result["accuracy"])


@pytest.mark.xfail(strict=True, reason="it gets reports only, before their validations have ended")
@pytest.mark.parametrize("on_pending", ["continue", "wait"])
def test_on_trial_result_of_a_callback_gets_each_score_once_in_order(tmp_path, on_pending):
    sees = Sees()
    ran = sweep(tmp_path, FIFOScheduler(), trials=3, on_pending=on_pending, more_callbacks=(sees,))
    assert sees.seen == {n: list(scores.values()) for n, scores in ran.validated().items()}
