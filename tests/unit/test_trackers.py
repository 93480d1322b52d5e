"""Ray's loggers of experiment trackers take what comes late, and what changes.

The trackers themselves need not be there; where they are, sweeps go through the real ones.
"""

from __future__ import annotations

import json
import queue
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ray.tune.logger import TBXLoggerCallback
from ray.tune.schedulers import FIFOScheduler

import tunekit
from tests.contract.test_pbt import run as run_pbt
from tests.contract.test_tensorboard import Both, any_order
from tests.sweeps import Ran, index_of, sweep
from tunekit._ray.compat import TESTED
from tunekit._ray.loggers import adapt


class FakeWandb(ModuleType):
    """The ``wandb`` module, as far as Ray's logger uses it."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.rows: list[tuple[dict[str, Any], Any]] = []
        self.axes: dict[str, Any] = {}
        self.finished = False
        self.config = SimpleNamespace(update=lambda config, allow_val_change: None)

    def init(self, **known: Any) -> Any:
        def define_metric(name: str, step_metric: str | None = None) -> None:
            self.axes[name] = step_metric

        return SimpleNamespace(config=SimpleNamespace(), define_metric=define_metric)

    def log(self, row: dict[str, Any], step: int | None = None) -> None:
        self.rows.append((row, step))

    def finish(self) -> None:
        self.finished = True


def test_wandb_counts_the_rows_itself(tmp_path, monkeypatch):
    integration = pytest.importorskip("ray.air.integrations.wandb")
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.chdir(tmp_path)
    logger = object.__new__(integration.WandbLoggerCallback)
    adapt(logger)
    rows: queue.Queue[Any] = queue.Queue()
    for row in ({"training_iteration": 5, "loss": 0.1}, {"training_iteration": 2, "accuracy": 0.9}):
        rows.put((integration._QueueItem.RESULT, row))
    rows.put((integration._QueueItem.END, None))
    kind = logger._logger_actor_cls
    kind(logdir=str(tmp_path), queue=rows, exclude=[], to_config=[]).run()
    # The second would be dropped as a row of step 2.
    assert [step for _, step in wandb.rows] == [None, None]
    assert [row["training_iteration"] for row, _ in wandb.rows] == [5, 2]
    assert wandb.axes == {"training_iteration": None, "*": "training_iteration"}
    assert wandb.finished
    adapt(logger)
    assert logger._logger_actor_cls is kind


def test_a_users_own_way_of_logging_to_wandb_is_kept():
    integration = pytest.importorskip("ray.air.integrations.wandb")

    class Own(integration.WandbLoggerCallback):
        _logger_actor_cls = dict

        def __init__(self) -> None: ...

    logger = Own()
    adapt(logger)
    assert logger._logger_actor_cls is dict


def test_mlflow_gets_each_parameter_once():
    integration = pytest.importorskip("ray.air.integrations.mlflow")
    logged: list[tuple[Any, dict[str, Any]]] = []

    def log_params(params_to_log: dict[str, Any], run_id: Any = None) -> None:
        logged.append((run_id, params_to_log))

    logger = object.__new__(integration.MLflowLoggerCallback)
    logger.mlflow_util = SimpleNamespace(log_params=log_params)
    adapt(logger)
    for run_id, lr in (("a", 0.1), ("a", 0.2), ("b", 0.3)):
        params = {"lr": lr, "net": {"width": 3}} if lr == 0.1 else {"lr": lr, "new": 1}
        logger.mlflow_util.log_params(run_id=run_id, params_to_log=params)
    assert logged == [
        ("a", {"lr": 0.1, "net/width": 3}),
        ("a", {"new": 1}),
        ("b", {"lr": 0.3, "new": 1}),
    ]


def warning(caplog: pytest.LogCaptureFixture) -> str:
    [record] = caplog.records
    assert record.levelname == "WARNING" and f"tested with {TESTED}" in record.message
    return record.message


@pytest.mark.parametrize("gone", ["_WandbLoggingActor", "WandbLoggerCallback._logger_actor_cls"])
def test_a_wandb_logger_that_cannot_be_adapted_is_said_so(monkeypatch, caplog, gone):
    integration = pytest.importorskip("ray.air.integrations.wandb")
    monkeypatch.delattr(f"ray.air.integrations.wandb.{gone}")
    logger = object.__new__(integration.WandbLoggerCallback)
    adapt(logger)
    assert not vars(logger)
    assert f"lacks ray.air.integrations.wandb.{gone};" in warning(caplog)
    assert "drops a trial's validated metrics that come after its next report" in caplog.text


# The names of Ray's that tunekit's own logger needs -----------------------------------------------


@pytest.mark.parametrize("gone", ["_trial_writer", "_trial_result"])
def test_tensorboards_logger_says_what_ray_lacks(monkeypatch, gone):
    made = TBXLoggerCallback.__init__

    def otherwise(self: Any) -> None:
        made(self)
        delattr(self, gone)

    monkeypatch.setattr(TBXLoggerCallback, "__init__", otherwise)
    with pytest.raises(tunekit.errors.UnsupportedRayError) as caught:
        tunekit.loggers.TensorBoardLogger()
    assert f"lacks ray.tune.logger.TBXLoggerCallback().{gone};" in str(caught.value)
    assert f"tested with {TESTED}" in str(caught.value)


# The real ones ----------------------------------------------------------------------------------


def run(folder: Path, logger: Any, **options: Any) -> Ran:
    return sweep(
        folder / "sweep",
        FIFOScheduler(),
        trainable=Both,
        trials=2,
        validation_s=any_order,
        later_callbacks=(tunekit.loggers.ValidatedLoggerCallback(logger),),
        param_space={"lr": 0.1},
        **options,
    )


def expected(ran: Ran) -> list[list[tuple[int, float]]]:
    scores = [sorted(ran.scores()[index_of(trial)].items()) for trial in ran.trials]
    return sorted([(i, round(score, 6)) for (_, i), score in own] for own in scores)


@pytest.mark.parametrize("exploits", [False, True])
def test_mlflow(tmp_path, monkeypatch, exploits):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient
    from ray.air.integrations.mlflow import MLflowLoggerCallback

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    where = f"file:{tmp_path}/mlflow"
    logger = MLflowLoggerCallback(tracking_uri=where, experiment_name="digits")
    if exploits:
        more = {"later_callbacks": (tunekit.loggers.ValidatedLoggerCallback(logger),), "trials": 4}
        ran, _ = run_pbt(tmp_path / "sweep", **more)
        assert len(ran.validation.engine.ancestry)
    else:
        ran = run(tmp_path, logger)
    client = MlflowClient(where)
    runs = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert {one.info.status for one in runs} == {"FINISHED"}
    found = {}
    for one in runs:
        points = client.get_metric_history(one.info.run_id, "accuracy")
        found[one.data.tags["trial_name"]] = [(point.step, point.value) for point in points]
    for trial in ran.trials:
        scores = sorted(ran.scores()[index_of(trial)].items())
        assert found[str(trial)] == [(i, pytest.approx(score)) for (_, i), score in scores]


def test_comet(tmp_path):
    pytest.importorskip("comet_ml")
    from ray.air.integrations.comet import CometLoggerCallback

    logger = CometLoggerCallback(
        online=False, tags=["a"], offline_directory=str(tmp_path / "comet")
    )
    ran = run(tmp_path, logger)
    found = []
    for path in (tmp_path / "comet").glob("*.zip"):
        with zipfile.ZipFile(path) as archive:
            lines = archive.read("messages.json").splitlines()
        metrics = [
            line["payload"]["metric"]
            for line in map(json.loads, lines)
            if line["type"] == "metric_msg"
        ]
        own = [metric for metric in metrics if metric["metricName"] == "accuracy"]
        found.append([(metric["step"], round(float(metric["metricValue"]), 6)) for metric in own])
    assert sorted(found) == expected(ran)
