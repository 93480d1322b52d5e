"""Every scheduler that Tune or tunekit ships, set up for short sweeps."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import tune
from ray.tune.execution.placement_groups import PlacementGroupFactory
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
    TrialScheduler,
)
from ray.tune.schedulers import pb2 as pb2_module
from ray.tune.schedulers.pb2 import PB2
from ray.tune.search import Searcher

from tests.support.modes import MODES, Mode
from tests.support.sweeps import Plan
from tunekit.schedulers import MOASHA, PromotionASHA


class Pausable(Searcher):
    """Random search that is notified of pauses, as BOHB's searcher is."""

    def __init__(self) -> None:
        super().__init__(metric="accuracy", mode="max")
        self.paused: set[str] = set()
        self.budgets: list[tuple[str, int]] = []

    def set_search_properties(self, *args: Any, **spec: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {"lr": 0.1}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if "budget" in result["hyperband_info"]:
            self.budgets.append((trial_id, result["hyperband_info"]["budget"]))

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.paused.discard(trial_id)

    def on_pause(self, trial_id: str) -> None:
        self.paused.add(trial_id)

    def on_unpause(self, trial_id: str) -> None:
        self.paused.discard(trial_id)

    def save(self, checkpoint_path: str) -> None:
        Path(checkpoint_path).write_text(json.dumps([sorted(self.paused), self.budgets]))

    def restore(self, checkpoint_path: str) -> None:
        paused, budgets = json.loads(Path(checkpoint_path).read_text())
        self.paused, self.budgets = set(paused), [tuple(budget) for budget in budgets]


@dataclass
class Case:
    """A scheduler, and the settings of a sweep with it.

    Attributes:
        make: Makes one; gets a folder.
        modes: Those that it is right with.
        clones: Whether it overwrites trials.
        tuning: Further options of a plan, made anew for each.
        trials: How many it needs, if not any number.
    """

    make: Callable[[Path], TrialScheduler]
    modes: list[Mode] = field(default_factory=lambda: list(MODES))
    clones: bool = False
    tuning: Callable[[], dict[str, Any]] = dict
    trials: int | None = None


HALVING = {"max_t": 9, "grace_period": 1, "reduction_factor": 3}


def asha(**settings: Any) -> ASHAScheduler:
    """Rungs at 1, 3 and 9."""
    return ASHAScheduler(**{**HALVING, **settings})


def promotion(**settings: Any) -> PromotionASHA:
    """The same rungs."""
    return PromotionASHA(**{**HALVING, **settings})


def moasha(**options: Any) -> MOASHA:
    """Of validation's metric and one of training's."""
    metrics = {"accuracy": "max", "loss": "min"}
    return MOASHA(metrics, max_t=9, grace_period=1, reduction_factor=2, **options)


def pbt(**settings: Any) -> PopulationBasedTraining:
    return PopulationBasedTraining(
        **{
            "time_attr": "training_iteration",
            "perturbation_interval": 2,
            "hyperparam_mutations": {"lr": tune.uniform(0.0, 1.0)},
            "quantile_fraction": 0.4,
            "log_config": False,
            **settings,
        }
    )


def _any_point(x: Any, y: Any, current: Any, new: Any, bounds: Any, num_f: int) -> np.ndarray:
    """Return a random point of PB2's space.

    PB2 fits a model and searches it, which takes most of the time of these tests and decides
    nothing but the value that a clone continues with.
    """
    return np.random.uniform(*np.transpose(list(bounds.values()))).astype(np.float32)


#: What PB2 does itself.
PB2_SEARCH = pb2_module._select_config
pb2_module._select_config = _any_point


def pb2(folder: Path, **settings: Any) -> PB2:
    return PB2(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_bounds={"lr": [0.0, 1.0]},
        quantile_fraction=0.4,
        log_config=False,
        **settings,
    )


def replay(folder: Path) -> PopulationBasedTrainingReplay:
    """Changes the learning rate at iterations 3 and 6."""
    folder.mkdir(parents=True, exist_ok=True)
    policy = folder / "policy.txt"
    lines = [
        ["0", "0", 3, 3, {"lr": 0.1}, {"lr": 0.2}],
        ["0", "0", 6, 6, {"lr": 0.2}, {"lr": 0.3}],
    ]
    policy.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return PopulationBasedTrainingReplay(str(policy))


def more_and_less(controller: Any, trial: Any, result: dict[str, Any], scheduler: Any) -> Any:
    """Another number of CPUs every third iteration."""
    cpus = 1 + (result["training_iteration"] // 3) % 2
    return PlacementGroupFactory([{"CPU": cpus}])


def median(**settings: Any) -> MedianStoppingRule:
    known = {"time_attr": "training_iteration", "grace_period": 1, "min_samples_required": 2}
    return MedianStoppingRule(**{**known, **settings})


def space() -> dict[str, Any]:
    return {"param_space": {"lr": tune.uniform(0.0, 1.0)}}


CASES: dict[str, Case] = {
    "fifo": Case(lambda _: FIFOScheduler()),
    "asha": Case(lambda _: asha()),
    "asha-brackets": Case(lambda _: asha(brackets=2)),
    "promotion": Case(lambda _: promotion()),
    "promotion-brackets": Case(lambda _: promotion(reduction_factor=2, brackets=2)),
    "moasha": Case(lambda _: moasha()),
    "moasha-promotes": Case(lambda _: moasha(promotes=True, brackets=2)),
    "hyperband": Case(lambda _: HyperBandScheduler(max_t=9, reduction_factor=3)),
    "bohb": Case(
        lambda _: HyperBandForBOHB(max_t=9, reduction_factor=3),
        tuning=lambda: {"search_alg": Pausable(), **space()},
    ),
    "median": Case(lambda _: median()),
    "median-soft": Case(lambda _: median(hard_stop=False)),
    "pbt": Case(lambda _: pbt(), clones=True, tuning=space),
    "pbt-sync": Case(
        lambda _: pbt(synch=True),
        modes=[Mode.AUTO, Mode.WAIT_REUSED, Mode.WAIT, Mode.WAIT_PAUSED],
        clones=True,
        tuning=space,
    ),
    "pbt-replay": Case(replay, clones=True, trials=1),
    "pb2": Case(pb2, clones=True, tuning=space),
    "pb2-sync": Case(
        lambda folder: pb2(folder, synch=True),
        modes=[Mode.WAIT_REUSED, Mode.WAIT, Mode.WAIT_PAUSED],
        clones=True,
        tuning=space,
    ),
    "resources": Case(
        lambda _: ResourceChangingScheduler(asha(), more_and_less),
        modes=[mode for mode in MODES if mode is not Mode.WAIT_REUSED],
    ),
}


def planned(
    name: str, folder: Path, mode: Mode = Mode.CONTINUE, *, trials: int = 8, seed: int = 0
) -> Plan:
    """Return the plan of a sweep with one of :data:`CASES`."""
    case = CASES[name]
    base = case.make(folder)
    plan = Plan(folder, base, mode, trials=case.trials or trials, seed=seed)
    return plan.tuning(**case.tuning())


def every_case(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test with every scheduler, in all modes that it supports; at each push, in one."""
    cases = [(name, mode) for name, case in CASES.items() for mode in case.modes]
    return pytest.mark.one_mode(pytest.mark.parametrize(("name", "mode"), cases)(test))


def seed_all(seed: int) -> None:
    """Tune's schedulers draw from the global generators."""

    random.seed(seed)
    np.random.seed(seed)
