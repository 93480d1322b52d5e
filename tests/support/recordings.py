"""Sweeps to read: by ASHA, by PBT, killed and restored, and journals that grow piece by piece."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ray import tune
from ray.tune.schedulers import ASHAScheduler

from tests.support import schedulers
from tests.support.kills import run_killed
from tests.support.modes import Mode
from tests.support.sweeps import Plan, Ran


def asha(folder: Path) -> Plan:
    """A sweep whose trials are stopped at three rungs."""
    base = ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)
    space = {"lr": tune.loguniform(1e-3, 1e-1), "width": 8}
    plan = Plan(folder, base, trials=12).tuning(param_space=space).logging()
    return plan.validating(seconds=lambda a: 0.5 + a.request.iteration % 3)


def pbt(folder: Path) -> Plan:
    """A population whose members are overwritten."""
    schedulers.seed_all(0)  # PBT draws donors and hyperparameters
    base = schedulers.pbt(hyperparam_mutations={"lr": [0.1, 0.2, 0.3]}, quantile_fraction=0.5)
    plan = Plan(folder, base, Mode.WAIT, trials=4).tuning(param_space={"lr": 0.1}).logging()
    return plan.validating(seconds=1.5)


def killed(folder: Path, seed: int = 1, look: Callable[[Path], object] = lambda home: None) -> Ran:
    """A sweep that is killed up to four times and restored; ``look`` gets its folder in between."""
    draw = random.Random(seed)

    def make(folder: Path) -> Plan:
        if (folder / "sweep/journal").is_dir():
            look(folder / "sweep")
        return replace(asha(folder), mode=Mode.WAIT)

    lives = iter([draw.randrange(30, 160) for _ in range(4)])
    ran, _ = run_killed(folder, make, lives, torn=bool(seed % 2))
    return ran


def grown(source: Path, target: Path, seed: int) -> Iterator[None]:
    """Let a journal grow by pieces that end anywhere, in a line or after a session's first one."""
    draw = random.Random(seed)
    (target / "journal").mkdir(parents=True)
    for file in sorted((source / "journal").glob("*.jsonl")):
        data = file.read_bytes()
        cuts = sorted([data.index(b"\n") + 1, *(draw.randrange(len(data)) for _ in range(4))])
        for begin, end in itertools.pairwise([0, *cuts, len(data)]):
            with open(target / "journal" / file.name, "ab") as copy:
                copy.write(data[begin:end])
            yield
