"""Sweeps whose checkpoints are files, run in this process, to be validated later."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ray import tune
from ray.tune.schedulers import ASHAScheduler

from tests.support.kills import Killed, bury, killed_after
from tests.support.schedulers import pbt
from tests.support.sweeps import sweep
from tests.support.versioned import Versioned, version_at

LENGTH = 8


def trained(folder: Path, name: str) -> Path:
    """Run a sweep, ``"asha"``, or ``"pbt-killed"``, which is; return its folder."""
    killed = name == "pbt-killed"
    asha = ASHAScheduler(max_t=LENGTH, grace_period=1, reduction_factor=2)
    with suppress(Killed), killed_after(150 if killed else 10**6):
        sweep(
            folder,
            pbt(synch=True, quantile_fraction=0.25) if killed else asha,
            on_pending="wait" if killed else "continue",
            trainable=Versioned,
            trials=4,
            param_space={"length": LENGTH, "lr": tune.uniform(0.0, 1.0)},
            validate=lambda attempt: {"accuracy": float(version_at(attempt.request.path))},
        )
    bury(folder / "sweep")
    return folder / "sweep"
