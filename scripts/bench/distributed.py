"""Compare the costs of distributed trials and their validations with stock Ray Train.

    python -m scripts.bench.distributed [--parts validations reports exploits sweep]

- validations: seconds from the request of a validation to its score, minus the time of the
  function itself, for tunekit and for stock Ray Train outside Tune (inside Tune, it hangs);
- reports: seconds from ``ray.train.report`` in the worker to the scheduler;
- exploits: seconds of a pause and resume, of an exploit, and from a trial's end to the first
  report of the next trial, with new and with reused workers;
- sweep: the time of a sweep of short trials, with new and with reused workers.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

import ray
from ray import train, tune
from ray.train.torch import TorchTrainer
from ray.tune.schedulers import FIFOScheduler, PopulationBasedTraining

import tunekit
from scripts.bench.harness import arguments, start_ray
from tunekit.core.events import CheckpointSaved, ValidationEnded
from tunekit.core.metrics import GENERATION
from tunekit.journal.journal import events_in

OWN_S = 0.2
PARTS = ["validations", "reports", "exploits", "sweep"]


def loop(config):
    """Report checkpoints; with ``wait``, wait for their validations, as Ray Train can."""
    steps = 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            steps = int(Path(folder, "steps").read_text())
    while steps < config["length"]:
        time.sleep(config.get("sleep_s", 0.0))
        steps += 1
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "steps").write_text(str(steps))
            began = time.time()
            train.report(
                {"steps": steps, "at": began},
                checkpoint=train.Checkpoint.from_directory(folder),
                **({"validation": True} if config.get("wait") else {}),
            )
        if config.get("wait"):
            train.get_all_reported_checkpoints()
            took = time.time() - began
            if train.get_context().get_world_rank() == 0:
                with open(config["wait"], "a") as file:
                    file.write(f"{took}\n")


def validate(checkpoint) -> dict[str, float]:
    """Validate in a task."""
    time.sleep(OWN_S)
    return {"accuracy": 0.5}


class Evaluator:
    """Validates in a long-lived process."""

    def __call__(self, checkpoint) -> dict[str, float]:
        return validate(checkpoint)


validate_by_workers = tunekit.distributed.TrainerValidation(
    lambda config: validate(config["checkpoint"]), train.ScalingConfig(num_workers=2)
)


def validate_by_mapping(checkpoint) -> dict[str, float]:
    """Validate in an actor of Ray Data."""

    class Predictor:
        def __call__(self, batch):
            time.sleep(OWN_S)
            return batch

    rows = ray.data.range(1).map_batches(Predictor, concurrency=1)
    return {"accuracy": float(rows.sum("id"))}


KINDS = {
    "task": {"fn": validate},
    "evaluator": {"fn": Evaluator, "evaluators": 1},
    "trainer": {"fn": validate_by_workers, "ray_remote_kwargs": {"num_cpus": 0}},
    "map_batches": {"fn": validate_by_mapping, "ray_remote_kwargs": {"num_cpus": 0}},
}


def trainer(workers=1, **config):
    settings = config.pop("settings", {})
    return TorchTrainer(
        loop,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=workers),
        **settings,
    )


def events(results, kind):
    return [event for event in events_in(results.experiment_path) if isinstance(event, kind)]


def fit(folder, trainable, *, callbacks=(), stop=None, **settings):
    return tunekit.Tuner(
        trainable,
        run_config=tune.RunConfig(
            name="bench", storage_path=folder, verbose=0, callbacks=list(callbacks), stop=stop
        ),
        **settings,
    ).fit()


def validations(count):
    """Print the median overhead in seconds for each kind, in stock Ray Train and in tunekit."""
    print(f"\nSeconds per validation beyond the function's own {OWN_S} s")
    print(f"{'':14}{'stock':>8}{'tunekit':>9}{'ratio':>8}")
    for name, how in KINDS.items():
        stock = None
        if "evaluators" not in how:
            with tempfile.TemporaryDirectory() as folder:
                took = Path(folder, "took")
                config = train.ValidationConfig(how["fn"], None, how.get("ray_remote_kwargs"))
                trainer(
                    length=count,
                    wait=str(took),
                    settings={
                        "validation_config": config,
                        "run_config": train.RunConfig(name="stock", storage_path=folder),
                    },
                ).fit()
                stock = statistics.median(map(float, took.read_text().split())) - OWN_S
        with tempfile.TemporaryDirectory() as folder:
            config = tunekit.ValidationConfig(**how, on_pending="wait")
            results = fit(folder, trainer(length=count), validation_config=config)
            asked = {event.id: event.time for event in events(results, CheckpointSaved)}
            waits = [e.time - asked[e.id] - OWN_S for e in events(results, ValidationEnded)]
            ours = statistics.median(waits)
        shown = f"{stock:8.2f}" if stock is not None else f"{'':8}"
        ratio = f"{stock / ours:8.1f}" if stock is not None else ""
        print(f"{name:14}{shown}{ours:9.2f}{ratio}", flush=True)


class Clock(tune.Callback):
    """Records when each trial's reports arrived, and their generation."""

    def __init__(self):
        self.reports, self.ends, self.latencies = [], [], []

    def on_trial_result(self, iteration, trials, trial, result, **info):
        now = time.time()
        self.latencies.append(now - result["at"])
        self.reports.append((now, trial.trial_id, result))

    def on_trial_complete(self, iteration, trials, trial, **info):
        self.ends.append((time.time(), trial.trial_id))


def reports(count):
    print("\nSeconds from ray.train.report in the worker to the scheduler (goal: 0.2)")
    for sleep_s in (0.0, 0.5):
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            fit(folder, trainer(2, length=count, sleep_s=sleep_s), callbacks=[clock])
        late = sorted(clock.latencies)
        print(
            f"  every {sleep_s} s: median {statistics.median(late):.3f}, "
            f"90th percentile {late[int(0.9 * len(late))]:.3f}",
            flush=True,
        )


class Pauses(FIFOScheduler):
    """A scheduler that pauses each trial at every third report."""

    def on_trial_result(self, tune_controller, trial, result):
        return self.PAUSE if result["training_iteration"] % 3 == 0 else self.CONTINUE

    def choose_trial_to_run(self, tune_controller):
        paused = [t for t in tune_controller.get_trials() if t.status == "PAUSED"]
        return super().choose_trial_to_run(tune_controller) or (paused[0] if paused else None)


def gaps(clock, where):
    """Return the seconds between two reports of a trial for which ``where(former, later)``."""
    last, found = {}, []
    for at, trial_id, result in clock.reports:
        if trial_id in last and where(last[trial_id][1], result):
            found.append(at - last[trial_id][0])
        last[trial_id] = (at, result)
    return statistics.median(found)


def exploits():
    print("\nSeconds to the next report (goal with reused workers: 2)")
    print(f"{'workers':22}{'new':>8}{'reused':>8}{'ratio':>8}")
    rows = {"pause and resume": [], "exploit": [], "next trial": []}
    for warm in (False, True):
        config = tunekit.ValidationConfig(
            fn=lambda checkpoint: {"score": random.random()},
            evaluators=1,
            on_pending="wait",
            ray_remote_kwargs={"num_cpus": 0.1},
        )
        with tempfile.TemporaryDirectory() as folder:
            clock = Clock()
            fit(
                folder,
                trainer(2, length=10),
                callbacks=[clock],
                validation_config=config,
                tune_config=tune.TuneConfig(scheduler=Pauses(), reuse_actors=warm),
            )
            rows["pause and resume"].append(
                gaps(clock, lambda a, b: a["training_iteration"] % 3 == 0)
            )
        with tempfile.TemporaryDirectory() as folder:
            clock = Clock()
            fit(
                folder,
                trainer(2, length=12),
                callbacks=[clock],
                validation_config=config,
                param_space={"train_loop_config": {"lr": tune.uniform(0, 1)}},
                tune_config=tune.TuneConfig(
                    metric="score",
                    mode="max",
                    num_samples=2,
                    scheduler=PopulationBasedTraining(
                        time_attr="training_iteration",
                        perturbation_interval=2,
                        quantile_fraction=0.5,
                        hyperparam_mutations={"train_loop_config": {"lr": tune.uniform(0.0, 1.0)}},
                    ),
                    reuse_actors=warm,
                ),
            )
            rows["exploit"].append(gaps(clock, lambda a, b: b[GENERATION] > a[GENERATION]))
        with tempfile.TemporaryDirectory() as folder:
            clock = Clock()
            fit(
                folder,
                trainer(2, length=2),
                callbacks=[clock],
                tune_config=tune.TuneConfig(
                    num_samples=4, max_concurrent_trials=1, reuse_actors=warm
                ),
            )
            firsts = {}
            for at, trial_id, _ in clock.reports:
                firsts.setdefault(trial_id, at)
            waits = [
                at - end
                for (end, _), at in zip(clock.ends, list(firsts.values())[1:], strict=False)
            ]
            rows["next trial"].append(statistics.median(waits))
    for name, (cold, warm) in rows.items():
        print(f"{name:22}{cold:8.2f}{warm:8.2f}{cold / warm:8.1f}", flush=True)


def sweep(trials):
    print(f"\nSeconds of a sweep of {trials} trials of two workers and two reports, one by one")
    took = []
    for warm in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            began = time.time()
            fit(
                folder,
                trainer(2, length=2),
                tune_config=tune.TuneConfig(
                    num_samples=trials, max_concurrent_trials=1, reuse_actors=warm
                ),
            )
            took.append(time.time() - began)
    cold, warm = took
    print(f"  new {cold:.1f}, reused {warm:.1f}, ratio {cold / warm:.1f} (goal: 3)", flush=True)


def main():
    options = arguments(__doc__, parts=PARTS, validations=7, reports=40, trials=20)
    parts = options.parts
    start_ray(8)
    if "validations" in parts:
        validations(options.validations)
    if "reports" in parts:
        reports(options.reports)
    if "exploits" in parts:
        exploits()
    if "sweep" in parts:
        sweep(options.trials)


if __name__ == "__main__":
    main()
