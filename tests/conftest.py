"""Shared fixtures: quiet logs, and one Ray for the tests that need it."""

from __future__ import annotations

import functools
import logging
import os
import random
from collections import defaultdict

import pyarrow.fs
import pytest
from hypothesis import HealthCheck, settings

from tests.support import forked_workers
from tests.support.seeds import DAY, SCHEDULES, at_push, drawn_by, mode_at_push

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
# Tests run on all cores already; threads of each that wait for each other take twice the time.
for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

# How long an example takes depends on what else the machine does.
settings.register_profile(
    "any-machine",
    max_examples=40 * SCHEDULES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any-machine")


def pytest_configure(config):
    # A process that only hands tests to others need not import what they do.
    distributes = getattr(config.option, "numprocesses", None) and not hasattr(
        config, "workerinput"
    )
    forked_workers.use(here=not distributes)
    if not distributes:
        from tests.support.invariants import (
            check_sweeps,
        )  # imports Ray, which reads the variables above

        check_sweeps()


def pytest_report_header():
    return f"cases of TUNEKIT_DAY={DAY}"


def pytest_collection_modifyitems(config, items):
    """Defer some cases to the nightly run."""
    left = set(_left_to_the_night(items, config.args))
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def _left_to_the_night(items, asked):
    if SCHEDULES > 1:
        return
    modes, cases = defaultdict(dict), defaultdict(list)
    for item in items:
        test = item.nodeid.partition("[")[0]
        if item.nodeid in asked:
            continue
        if item.get_closest_marker("at_night"):
            yield item
        elif item.get_closest_marker("one_mode"):
            case = item.callspec.params
            modes[test, case["name"]][case["mode"]] = item
        elif item.get_closest_marker("sampled") and hasattr(item, "callspec"):
            cases[test].append(item)
    for (test, name), in_mode in modes.items():
        drawn = in_mode.pop(mode_at_push(f"{test}/{name}", list(in_mode)))
        yield from in_mode.values()
        if drawn.get_closest_marker("sampled"):
            cases[test].append(drawn)
    for test, of_test in cases.items():
        drawn = at_push(test, len(of_test), *of_test[0].get_closest_marker("sampled").args)
        yield from (item for n, item in enumerate(of_test) if n not in drawn)


@pytest.fixture(autouse=True)
def _repeatable(request):
    """Tune's schedulers draw from the global generators; a day draws the same again."""
    import numpy as np

    for begin in (random.seed, np.random.seed):
        begin(drawn_by(request.node.nodeid))


@pytest.fixture(autouse=True)
def _quiet_and_quick(monkeypatch):
    """Print into a pipe, do not wait for the disk, and copy checkpoints in the test's own thread.

    A function that ran as a trial in this process leaves nothing of it to the next test.

    Arrow's threads can wait for each other forever, for which Ray does the same on S3: see
    https://github.com/apache/arrow/issues/32372.
    """
    for name in ("ray.tune", "ray.train"):
        logging.getLogger(name).setLevel(logging.ERROR)
    monkeypatch.delenv("COLUMNS", raising=False)  # a test may set the width of its terminal
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # it would take half of the time
    for name in ("way", "told", "passes_on"):
        monkeypatch.setattr(f"tunekit._ray.asking._Process.{name}", None)
    in_its_own = functools.partial(pyarrow.fs.copy_files, use_threads=False)
    monkeypatch.setattr(pyarrow.fs, "copy_files", in_its_own)


@pytest.fixture(scope="session")
def ray_cluster():
    """One Ray of 6 CPUs and a GPU, in name only, for each process that runs tests."""
    import ray

    if not ray.is_initialized():
        ray.init(
            "local",
            num_cpus=6,
            num_gpus=1,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def s3_server():
    """One S3 server for each process that runs tests; each test makes buckets of its own."""
    from tests.support.s3 import S3Server

    with S3Server() as server:
        yield server


@pytest.fixture
def s3(s3_server, monkeypatch):
    """The server, whose URIs this process can use."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return s3_server
