"""Odd arguments of readers are errors that name the parameter."""

from __future__ import annotations

from functools import partial
from typing import Any

import fsspec
import numpy as np
import pytest
from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem

import tunekit
from tests.support.readers import session, trial
from tunekit.board.serve import serve
from tunekit.journal.journal import events_in

LOCAL = LocalFileSystem()
WRAPPED = PyFileSystem(FSSpecHandler(fsspec.filesystem("file")))
ODD_PATHS = ["\0", "x" * 5_000, "~\0", "/tmp/\ud800", 3, None, b"/tmp", ["a"], "file:///%ff"]
ODD_NAMES: list[Any] = [3, ["accuracy"], {"accuracy": "max"}, np.array([1, 2])]


@pytest.mark.parametrize("path", ODD_PATHS, ids=lambda path: repr(path)[:20])
def test_odd_path_is_a_short_error_that_names_the_parameter(path):
    with pytest.raises(tunekit.errors.ConfigError, match="path=") as caught:
        tunekit.load(path)
    assert len(str(caught.value)) < 1000
    with pytest.raises(tunekit.errors.ConfigError, match="source="):
        events_in(path)


@pytest.mark.parametrize(
    "storage",
    ["x", object(), LocalFileSystem, fsspec.filesystem("file")],
    ids=["text", "object", "class", "fsspec"],
)
def test_storage_filesystem_of_another_type_is_an_error_that_names_its_wrapper(tmp_path, storage):
    for call in (tunekit.load, events_in):
        with pytest.raises(tunekit.errors.ConfigError, match=r"storage_filesystem=.*FSSpecHandler"):
            call(str(tmp_path), storage)
    trial(session(tmp_path), "a", 0.5)
    assert tunekit.load(str(tmp_path), WRAPPED).best().score == 0.5


@pytest.mark.parametrize("odd", ODD_NAMES, ids=repr)
def test_odd_metric_or_mode_is_an_error_that_names_the_parameter(tmp_path, odd):
    trial(session(tmp_path), "a", 0.5)
    loaded = tunekit.load(tmp_path)
    for call in (partial(tunekit.load, tmp_path), loaded.best, partial(serve, [str(tmp_path)])):
        with pytest.raises(tunekit.errors.ConfigError, match="metric="):
            call(metric=odd)
        with pytest.raises(tunekit.errors.ConfigError, match="mode="):
            call(mode=odd)
    for metrics in (odd, {"accuracy": "max"}, {3: "max", "b": "min"}, {"a": odd, "b": "max"}):
        with pytest.raises(tunekit.errors.ConfigError, match="metrics"):
            loaded.pareto(metrics)


@pytest.mark.parametrize(
    "storage",
    ["", "x", "foo://x", "sqlite:////no/such/folder/x.db", "mysql://u:secret@h/x", 3, ["x"]],
)
def test_storage_that_optuna_cannot_use_is_an_error_without_its_password(tmp_path, storage):
    trial(session(tmp_path), "a", 0.5)
    with pytest.raises(tunekit.errors.ConfigError, match=r"\bstorage\b") as caught:
        tunekit.load(tmp_path).to_optuna(storage)
    assert "secret" not in str(caught.value)
