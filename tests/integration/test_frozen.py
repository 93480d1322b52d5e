"""Sweeps that an older tunekit left when it was killed are carried on."""

from __future__ import annotations

import sys
import zipfile

import pytest

import tunekit
from tests.contract.test_frozen import FROZEN
from tests.frozen.sweeps import LENGTH, Approaching
from tunekit.journal import events_in, read
from tunekit.testing import check_journal

pytestmark = [
    pytest.mark.ray,
    # Tune pickles bytecode.
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="frozen by Python 3.11"),
]


@pytest.mark.parametrize("name", ["asha-killed", "pbt-killed"])
def test_a_killed_sweep_goes_on(ray_cluster, tmp_path, name):
    with zipfile.ZipFile(FROZEN / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    before = read(tmp_path / name)
    results = tunekit.Tuner.restore(str(tmp_path / name), Approaching).fit()
    assert not results.errors
    after = read(tmp_path / name)
    assert after[: len(before)] == before
    lives = check_journal(events_in(tmp_path / name))  # nothing is lost, nothing done twice
    assert len(lives.scores) > sum(event["event"] == "delivered" for event in before)
    best = results.get_best_result()
    assert best.metrics["validated_iteration"] == LENGTH
    assert best.metrics["accuracy"] == pytest.approx(1 - 0.7**LENGTH)
