"""A sweep that is killed at any line, and restored, comes to what it would have come to."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining
from ray.tune.search import BasicVariantGenerator

from tests.kills import run_killed
from tests.sweeps import Endless, Ran, sweep
from tunekit.journal import read

BOTH = pytest.mark.parametrize("on_pending", ["hold", "pause"])


def place(request_id: str) -> str:
    """Trial, generation and iteration; how often that was run is another matter."""
    return request_id.rsplit(":", 1)[0]


def happened(folder: Path) -> dict[str, Any]:
    """What a sweep came to, by its journal."""
    events = read(folder / "sweep")
    return {
        "scores": {place(e["id"]): e["metrics"] for e in events if e["event"] == "ended"},
        "decisions": [(place(e["id"]), e["decision"]) for e in events if e["event"] == "delivered"],
        "exploits": [
            {k: e[k] for k in ("trial_id", "generation", "donor_id", "iteration", "config")}
            for e in events
            if e["event"] == "exploited"
        ],
    }


# Where the order is given, all is the same -------------------------------------------------------


def asha(folder: Path, on_pending: str, seed: int = 0, **options: Any) -> Ran:
    """One trial at a time: nothing depends on which of two is faster."""
    generator = BasicVariantGenerator(random_state=seed, max_concurrent=1)
    generator._uuid_prefix = f"{seed:05x}_"
    return sweep(
        folder,
        ASHAScheduler(max_t=5, grace_period=1, reduction_factor=2),
        on_pending=on_pending,
        trials=4,
        seed=seed,
        search_alg=generator,
        listening=False,
        run=False,
        **options,
    )


def pbt(folder: Path, on_pending: str, seed: int = 0, **options: Any) -> Ran:
    """All wait for all, the worst clones the best: nothing is left to chance."""
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": [0.1]},
        custom_explore_fn=lambda config: {**config, "lr": config["line"]},
        quantile_fraction=0.25,
        synch=True,
        log_config=False,
    )
    return sweep(
        folder,
        scheduler,
        on_pending=on_pending,
        trainable=Endless,
        trials=1,  # of each point of the grid
        seed=seed,
        stop={"training_iteration": 7},
        param_space={"lr": 0.1, "line": tune.grid_search([0.4, 0.3, 0.2, 0.1])},
        listening=False,
        run=False,
        **options,
    )


@BOTH
@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("make", [asha, pbt])
def test_killed_once_at_any_write(tmp_path, on_pending, torn, make):
    def made(folder: Path, **options: Any) -> Ran:
        return make(folder, on_pending, **options)

    undisturbed, _ = run_killed(tmp_path / "undisturbed", made, iter([]))
    expected = happened(tmp_path / "undisturbed")
    assert expected["exploits"] or make is asha
    for at in itertools.count():
        folder = tmp_path / f"killed-{at}"
        ran, kills = run_killed(folder, made, iter([at]), torn=torn)
        assert same(happened(folder), expected, make), at
        assert ran.scores() == undisturbed.scores()
        assert ran.lengths() == undisturbed.lengths()
        if not kills:
            break
    assert at > 100


def same(one: dict[str, Any], other: dict[str, Any], make: Any) -> bool:
    if make is asha:
        return one == other

    # The order of trials that run at the same time may be another one.
    def by_trial(decisions: list[tuple[str, str]]) -> list[tuple[str, str]]:
        return sorted(decisions)

    def sort(exploits: list[dict[str, Any]]) -> list[str]:
        return sorted(json.dumps(exploit, sort_keys=True) for exploit in exploits)

    return (
        one["scores"] == other["scores"]
        and sort(one["exploits"]) == sort(other["exploits"])
        and {p for p, _ in one["decisions"]} == {p for p, _ in other["decisions"]}
    )


@BOTH
@pytest.mark.parametrize("make", [asha, pbt])
def test_killed_again_and_again(tmp_path, on_pending, make):
    draw, killed = random.Random(1), 0

    def made(folder: Path, **options: Any) -> Ran:
        often = {"saved_every_s": draw.choice([0.0, 0.0, float("inf")])}
        return make(folder, on_pending, **often, **options)

    undisturbed, _ = run_killed(tmp_path / "undisturbed", made, iter([]))
    expected = happened(tmp_path / "undisturbed")
    for run in range(15):
        folder = tmp_path / f"killed-{run}"
        lives = (draw.randrange(5, 80) for _ in itertools.count())
        ran, kills = run_killed(folder, made, lives, torn=bool(run % 2))
        assert same(happened(folder), expected, make), run
        assert ran.scores() == undisturbed.scores()
        assert ran.lengths() == undisturbed.lengths()
        killed += kills
    assert killed > 50
