"""Ray's loggers of experiment trackers take what comes late, and what changes.

The trackers themselves need not be there.
"""

from __future__ import annotations

import queue
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ray.tune.logger import TBXLoggerCallback

import tunekit
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
