"""Run Ray's own tests with ``tunekit.Tuner`` (a pytest plugin of ``conformance.py``).

``CONFORMANCE_TUNER`` selects the Tuner for the tests: ``stock`` or ``tunekit``. In both cases,
``tune.run`` passes its settings to that Tuner, so tests written for ``tune.run`` test the Tuner,
too. With ``tunekit``, ``fit`` of a Ray Train trainer runs a sweep whose only trial is the trainer,
or continues the one that has its name. ``CONFORMANCE_LOG`` names a file, which receives a line of
JSON when a test begins and ends, so it is complete even if the process is killed.

A script that a test runs in a separate process imports this module, with the same effect there.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import signal
from collections.abc import Callable
from dataclasses import fields
from types import ModuleType
from typing import Any

import ray
import ray.tune
import ray.tune.tune
from ray import tune
from ray._common import test_utils
from ray.train import Result as TrainResult
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.tune.experiment import Experiment

STOCK_TUNER, STOCK_RUN = ray.tune.Tuner, ray.tune.run
#: For one test, in seconds.
LIMIT_S = 120
#: The settings of a Tuner; other arguments of ``tune.run`` are passed on to it unchanged.
TUNE_CONFIG = {field.name for field in fields(tune.TuneConfig)}
RUN_CONFIG = {field.name for field in fields(tune.RunConfig)}
DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(STOCK_RUN).parameters.items()
    if parameter.default is not inspect.Parameter.empty
}


def through(tuner: type[tune.Tuner]) -> Callable[..., Any]:
    """Return a function like ``ray.tune.run`` that uses a Tuner."""

    @functools.wraps(STOCK_RUN)
    def run(run_or_experiment: Any, **given: Any) -> Any:
        several = isinstance(run_or_experiment, (Experiment, list, tuple))
        if several or given.get("_remote") or not given.keys() <= DEFAULTS.keys():
            return STOCK_RUN(run_or_experiment, **given)
        failure = tune.FailureConfig(
            max_failures=given.pop("max_failures", 0), fail_fast=given.pop("fail_fast", False)
        )
        checkpoints = given.pop("checkpoint_config", None) or tune.CheckpointConfig()
        if checkpoints.checkpoint_at_end is None:
            checkpoints.checkpoint_at_end = False  # a Tuner's default depends on the trainable
        tune_config = {name: given.pop(name) for name in TUNE_CONFIG & given.keys()}
        run_config = {name: given.pop(name) for name in RUN_CONFIG & given.keys()}
        space = given.pop("config", None)
        made = tuner(
            run_or_experiment,
            param_space=space,
            tune_config=tune.TuneConfig(**tune_config),
            run_config=tune.RunConfig(
                **run_config, failure_config=failure, checkpoint_config=checkpoints
            ),
            _tuner_kwargs={"raise_on_failed_trial": True, **given},
        )
        return made.fit()._experiment_analysis

    return run


def chosen() -> type[tune.Tuner]:
    if os.environ["CONFORMANCE_TUNER"] == "stock":
        return STOCK_TUNER
    import tunekit

    return tunekit.Tuner


TUNER = chosen()
RUN = through(TUNER)
tune.Tuner, tune.run = TUNER, RUN


def fit_in_sweep(trainer: Any) -> Any:
    """Return the result of a sweep with one trial, in the form that Ray Train gives it."""
    import tunekit
    from tunekit.core.metrics import user_metrics

    run_config = trainer.run_config
    path = os.path.join(
        run_config.storage_path or os.path.expanduser("~/ray_results"), run_config.name
    )
    if tunekit.Tuner.can_restore(path):
        validation = tunekit.distributed.validation_config_of(trainer)
        tuner = tunekit.Tuner.restore(
            path, trainer, resume_errored=True, validation_config=validation
        )
    else:
        tuner = tunekit.Tuner(trainer)
    results = tuner.fit()
    if results.errors:
        raise getattr(results.errors[0], "cause", results.errors[0])

    def own(metrics: dict[str, Any]) -> dict[str, Any]:
        return {name: metrics[name] for name in user_metrics(metrics)}

    result = results[0]
    best = [(checkpoint, own(metrics)) for checkpoint, metrics in result.best_checkpoints]
    newest = next(
        (metrics for checkpoint, metrics in best if checkpoint == result.checkpoint), None
    )
    return TrainResult(
        metrics=newest,
        checkpoint=result.checkpoint,
        error=None,
        path=result.path,
        best_checkpoints=best,
        _storage_filesystem=result.filesystem,
    )


if os.environ["CONFORMANCE_TUNER"] == "tunekit":
    DataParallelTrainer.fit = fit_in_sweep


def without_dashboard(start: Callable[..., Any]) -> Callable[..., Any]:
    """Call ``ray.init`` without the dashboard, which takes half of the time to start Ray."""

    @functools.wraps(start)
    def init(*given: Any, **settings: Any) -> Any:
        return start(*given, **{"include_dashboard": False, **settings})

    return init


ray.init = without_dashboard(ray.init)


def with_tuner(run_script: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs a script in a separate process, with the same Tuner."""

    @functools.wraps(run_script)
    def run(script: str, *given: Any, **settings: Any) -> Any:
        return run_script(f"import {__name__}\n{script}", *given, **settings)

    return run


REPLACED = {
    STOCK_TUNER: TUNER,
    STOCK_RUN: RUN,
    test_utils.run_string_as_driver: with_tuner(test_utils.run_string_as_driver),
}


def put_into(module: ModuleType) -> None:
    """Replace objects that a test module has imported by name."""
    for name, value in list(vars(module).items()):
        if inspect.isroutine(value) or inspect.isclass(value):
            setattr(module, name, REPLACED.get(value, value))


def note(test: str, outcome: str) -> None:
    with open(os.environ["CONFORMANCE_LOG"], "a") as log:
        print(json.dumps({"test": test, "outcome": outcome}), file=log)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for module in {item.module for item in items if getattr(item, "module", None)}:
        put_into(module)


class Hung(Exception):
    """A test has not ended within ``LIMIT_S``."""


def end_test(*signalled: object) -> None:
    raise Hung(f"The test has not ended within {LIMIT_S} s.")


def pytest_runtest_logstart(nodeid: str) -> None:
    note(nodeid, "hung")  # until it ends
    signal.signal(signal.SIGALRM, end_test)
    signal.alarm(LIMIT_S)


def pytest_runtest_logfinish(nodeid: str) -> None:
    signal.alarm(0)


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        note(report.nodeid, "error")


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        outcome = (
            report.outcome
            if report.when == "call"
            else {"failed": "error"}.get(report.outcome, report.outcome)
        )
        if report.when == "call" and f"{Hung.__name__}: " in report.longreprtext:
            outcome = "hung"
        note(report.nodeid, "skipped" if hasattr(report, "wasxfail") else outcome)
