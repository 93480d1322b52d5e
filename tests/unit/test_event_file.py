"""Files of TensorBoard's events, beside those that tensorboardX writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboardX import SummaryWriter

from tunekit.results.event_file import EventFile

KINDS = {"scalars": 0, "histograms": 0, "images": 0, "tensors": 0}
RANDOM = np.random.default_rng(0)
ADDED = {
    "add_scalar": [(0.5,), (-3,), (np.float32(2.5),)],
    "add_histogram": [([1, 2, 2, 40],), (RANDOM.normal(size=100),)],
    "add_image": [(RANDOM.random((3, 4, 5)),)],
    "add_images": [(RANDOM.random((2, 3, 4, 5)),)],
}


def fill(file: Any) -> None:
    for method, values in ADDED.items():
        for step, (value,) in enumerate(values):
            getattr(file, method)(f"own/{method}", value, global_step=step, walltime=100.5 + step)
    file.close()


def read(folder: Path) -> dict[str, Any]:
    events = EventAccumulator(str(folder), KINDS).Reload()
    found: dict[str, Any] = {}
    for kind, tags in events.Tags().items():
        if kind in KINDS:
            what = getattr(events, kind.capitalize())
            found |= {f"{kind} {tag}": list(what(tag)) for tag in tags}
    return found


def test_what_is_read_is_what_tensorboardx_would_have_written(tmp_path):
    fill(SummaryWriter(str(tmp_path / "theirs")))
    fill(EventFile(tmp_path / "ours"))
    ours = read(tmp_path / "ours")
    assert len(ours) >= len(ADDED)
    assert ours == read(tmp_path / "theirs")


def test_what_was_flushed_is_there_though_the_file_is_open(tmp_path):
    file = EventFile(tmp_path)
    file.add_scalar("accuracy", 0.9, global_step=1)
    file.flush()
    [event] = read(tmp_path)["scalars accuracy"]
    assert (event.step, event.value) == (1, pytest.approx(0.9))


def test_a_run_that_begins_again_discards_what_it_did(tmp_path):
    file = EventFile(tmp_path, suffix=".1")
    for step in (1, 2, 3):
        file.add_scalar("accuracy", step, global_step=step)
    file.begin_again(2)
    file.add_scalar("accuracy", 20, global_step=2)
    file.close()
    assert [(e.step, e.value) for e in read(tmp_path)["scalars accuracy"]] == [(1, 1), (2, 20)]


def test_a_new_file_purges_the_older_one(tmp_path):
    for suffix, value in ((".1", 1), (".2", 2)):
        file = EventFile(tmp_path, suffix=suffix, purge_step=0)
        file.add_scalar("accuracy", value, global_step=1)
        file.close()
    assert [event.value for event in read(tmp_path)["scalars accuracy"]] == [2]
