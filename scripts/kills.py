"""Kill the driver of a sweep with SIGKILL at random moments, restore it, and compare.

Three sweeps on a Ray cluster that outlives them: ASHA one trial after the other with
``on_pending="hold"``, synchronous PBT with ``"pause"``, and ASHA with ``"continue"``. The first two
must come to the same scores, decisions and exploits as the same sweep undisturbed; of the third no
score may be lost, delivered twice, or computed twice unless it was running when the driver died.

    python scripts/kills.py --kills 100
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining

import tunekit
from tunekit.core.events import TrialAdded
from tunekit.journal.lines import events_in
from tunekit.testing import JournalSummary, check_journal

SWEEPS = ("asha-hold", "pbt-pause", "asha-continue")


class Slow(tune.Trainable):
    """Its weights are a number that comes the nearer to 1 the longer it is trained."""

    def setup(self, config: dict[str, Any]) -> None:
        self.weights = 0.0

    def step(self) -> dict[str, Any]:
        time.sleep(0.03)
        self.weights += self.config["lr"] * (1 - self.weights)
        return {"weights": self.weights, "done": self.iteration + 1 >= 8}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "weights.json").write_text(json.dumps(self.weights))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.weights = json.loads(Path(checkpoint_dir, "weights.json").read_text())

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.weights = 0.0
        return True


def validate(checkpoint: tune.Checkpoint) -> dict[str, float]:
    time.sleep(0.03)
    with checkpoint.as_directory() as directory:
        return {"accuracy": json.loads(Path(directory, "weights.json").read_text())}


def lower(config: dict[str, Any]) -> dict[str, Any]:
    """Instead of what PBT draws: nothing is left to chance."""
    return {**config, "lr": config["line"]}


def tuner(name: str, folder: str) -> tunekit.Tuner:
    asha = ASHAScheduler(max_t=8, grace_period=1, reduction_factor=2)
    pbt = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": [0.1]},
        custom_explore_fn=lower,
        quantile_fraction=0.25,
        synch=True,
        log_config=False,
    )
    rates = tune.grid_search([0.1, 0.25, 0.15, 0.3])  # a quarter of four is one
    return tunekit.Tuner(
        Slow,
        param_space={"lr": rates, "line": tune.sample_from(lambda spec: spec.config.lr + 0.01)},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            scheduler=pbt if name.startswith("pbt") else asha,
            max_concurrent_trials=1 if name == "asha-hold" else None,
            reuse_actors=name != "pbt-pause",
        ),
        run_config=tune.RunConfig(name=name, storage_path=folder, verbose=0),
        validation_config=tunekit.ValidationConfig(
            fn=validate, on_pending=name.split("-")[1], ray_remote_kwargs={"num_cpus": 1}
        ),
        checkpoint_policy=tunekit.EveryIterations(1),
    )


def live(name: str, folder: str, address: str) -> None:
    """One life of a driver."""
    with Path(folder, "driver.log").open("a") as log:
        sys.stdout = sys.stderr = log
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        path = str(Path(folder, name))
        if tunekit.Tuner.can_restore(path):
            sweep = tunekit.Tuner.restore(path, Slow)
        else:
            shutil.rmtree(path, ignore_errors=True)  # nothing had begun
            sweep = tuner(name, folder)
        results = sweep.fit()
        Path(folder, "done").write_text(str(len(results)))


def run(name: str, folder: Path, address: str, draw: random.Random | None, kills: int) -> int:
    """Run a sweep to its end, killed up to so often; return how often it was."""
    folder.mkdir(parents=True)
    context = multiprocessing.get_context("forkserver")
    killed = lives = 0
    while not (folder / "done").exists():
        lives += 1
        if lives > kills + 10:
            raise RuntimeError(f"{name} does not end: see {folder / 'driver.log'}")
        driver = context.Process(target=live, args=(name, str(folder), address))
        driver.start()
        driver.join(draw.uniform(0.5, 9.0) if draw is not None and killed < kills else 300)
        if driver.is_alive() and driver.pid is not None:
            os.kill(driver.pid, signal.SIGKILL)
            driver.join()
            killed += 1
    return killed


def came_to(folder: Path, name: str) -> JournalSummary:
    """What a sweep came to, with its trials by number."""
    events = events_in(folder / name)
    lives = check_journal(events)
    trials = [event.trial_id for event in events if isinstance(event, TrialAdded)]
    number = {trial: str(trials.index(trial)) for trial in trials}

    def numbered(place: str) -> str:
        return place.replace(place.split(":")[0], number[place.split(":")[0]])

    lives.scores = {numbered(place): score for place, score in lives.scores.items()}
    lives.decisions = [(numbered(place), decision) for place, decision in lives.decisions]
    lives.exploits = sorted(
        (
            {
                "trial": number[exploit.trial_id],
                "donor": number[exploit.donor_id],
                **{
                    known: getattr(exploit, known)
                    for known in ("generation", "iteration", "config")
                },
            }
            for exploit in lives.exploits
        ),
        key=lambda exploit: (exploit["trial"], exploit["generation"]),
    )
    return lives


def best_of(lives: JournalSummary) -> set[str]:
    """The best trial; those, where clones are equally good."""
    best = max(score["accuracy"] for score in lives.scores.values())
    return {place.split(":")[0] for place, s in lives.scores.items() if s["accuracy"] == best}


def differs(name: str, lives: JournalSummary, expected: JournalSummary) -> list[str]:
    """In what a sweep has come to something else."""
    if name == "asha-continue":
        return []  # how far each trial trains on is up to its speed
    pairs = {
        "scores": (lives.scores, expected.scores),
        "exploits": (lives.exploits, expected.exploits),
        "best trial": (best_of(lives), best_of(expected)),
    }
    if name == "asha-hold":
        pairs["decisions"] = (lives.decisions, expected.decisions)
    else:  # the last of a population to be validated lets it go on, whichever that is
        pairs["decided"] = ({p for p, _ in lives.decisions}, {p for p, _ in expected.decisions})
    return [what for what, (one, other) in pairs.items() if one != other]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="how often, over all sweeps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sweeps", nargs="+", choices=SWEEPS, default=list(SWEEPS))
    options = parser.parse_args()
    draw = random.Random(options.seed)
    multiprocessing.set_forkserver_preload(["kills", "tunekit"])
    scratch = Path(tempfile.mkdtemp(prefix="tunekit-kills-"))
    context = ray.init(num_cpus=6, include_dashboard=False, logging_level=logging.ERROR)
    address = context.address_info["address"]
    wrong = 0
    try:
        each = -(-options.kills // len(options.sweeps))
        for name in options.sweeps:
            run(name, scratch / f"{name}-undisturbed", address, None, 0)
            expected = came_to(scratch / f"{name}-undisturbed", name)
            killed = sweeps = running = 0
            began = time.monotonic()
            while killed < each:
                folder = scratch / f"{name}-{sweeps}"
                killed += run(name, folder, address, draw, each - killed)
                lives = came_to(folder, name)
                running += lives.running
                sweeps += 1
                for what in differs(name, lives, expected):
                    wrong += 1
                    print(f"{name}: other {what} in {folder}")
            print(
                f"{name}: {killed} kills of {sweeps} sweeps, {len(expected.scores)} scores and "
                f"{len(expected.exploits)} exploits undisturbed; {running} validations ran at a "
                f"kill and were run again; {time.monotonic() - began:.0f} s",
                flush=True,
            )
    finally:
        ray.shutdown()
    print("nothing lost, nothing twice, nothing else" if not wrong else f"{wrong} differences")
    if not wrong:
        shutil.rmtree(scratch)
    return 1 if wrong else 0


if __name__ == "__main__":
    # Drivers and workers import this file by its name.
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    import kills

    sys.exit(kills.main())
