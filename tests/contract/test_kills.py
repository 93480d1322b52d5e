"""A sweep that is killed at any line, and restored, comes to what it would have come to."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import BasicVariantGenerator

from tests.kills import run_killed
from tests.sweeps import Ran, sweep
from tunekit.journal import read


def one_by_one(seed: int) -> BasicVariantGenerator:
    generator = BasicVariantGenerator(random_state=seed, max_concurrent=1)
    generator._uuid_prefix = f"{seed:05x}_"
    return generator


def asha(folder: Path, on_pending: str, seed: int = 0, **options: Any) -> Ran:
    """One trial at a time: nothing depends on which of two is faster."""
    return sweep(
        folder,
        ASHAScheduler(max_t=5, grace_period=1, reduction_factor=2),
        on_pending=on_pending,
        trials=4,
        seed=seed,
        search_alg=one_by_one(seed),
        listening=False,
        run=False,
        **options,
    )


def place(request_id: str) -> str:
    """Trial, generation and iteration; how often that was run is another matter."""
    return request_id.rsplit(":", 1)[0]


def happened(folder: Path) -> dict[str, Any]:
    """What a sweep came to, by its journal."""
    events = read(folder / "sweep")
    return {
        "scores": {place(e["id"]): e["metrics"] for e in events if e["event"] == "ended"},
        "decisions": [(place(e["id"]), e["decision"]) for e in events if e["event"] == "delivered"],
    }


@pytest.mark.parametrize("on_pending", ["hold", "pause"])
@pytest.mark.parametrize("torn", [False, True])
def test_killed_once_at_any_write(tmp_path, on_pending, torn):
    def make(folder: Path, **options: Any) -> Ran:
        return asha(folder, on_pending, **options)

    undisturbed, _ = run_killed(tmp_path / "undisturbed", make, iter([]))
    expected = happened(tmp_path / "undisturbed")
    for at in itertools.count():
        folder = tmp_path / f"killed-{at}"
        ran, kills = run_killed(folder, make, iter([at]), torn=torn)
        assert happened(folder) == expected, at
        assert ran.scores() == undisturbed.scores()
        assert ran.lengths() == undisturbed.lengths()
        if not kills:
            break
    assert at > 100
