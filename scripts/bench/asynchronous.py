"""Measure what asynchronous validation costs training, with work that sleeps.

    python -m scripts.bench.asynchronous
    python -m scripts.bench.asynchronous --kinds function trainer --variants none async
    python -m scripts.bench.asynchronous --asha function class resettable --train-s 2

Every variant runs the same trials, whose iterations only sleep and save a checkpoint each. The
variants alternate. Training is measured from each trial's first report to its last, and the sweep
from the first report to its end, so starting trials does not count. A validation sleeps, too, on
separate CPUs.
Trials are a ``function``, a ``class``, or a ``trainer`` with one worker.

With ``--asha``, trials are stopped early by their scores, with inline validation at the rungs of
ASHA or with tunekit's defaults. A trial takes a CPU and a GPU, and a validation a CPU; there are
two more CPUs than GPUs. The time of the whole sweep counts, including processes and their imports.
Trials are a ``function``, a ``class``, or a ``resettable`` class, whose process the next trial
reuses in both variants. All variants make the same decisions in whatever order the scores arrive,
so all train equally long.
"""

from __future__ import annotations

import collections
import itertools
import math
import pickle
import statistics
import tempfile
import time
from pathlib import Path

from ray import train, tune
from ray.train.torch import TorchTrainer
from ray.tune.schedulers import ASHAScheduler

import tunekit
from scripts.bench.harness import arguments, in_turn, median, start_ray, table

SLOTS = 4


class Sleeper(tune.Trainable):
    """A trainable that sleeps in each iteration and, with ``inline_s``, in its validation."""

    def setup(self, config):
        self.settings = config

    def step(self):
        time.sleep(self.settings["train_s"] + self.settings["inline_s"])
        length = self.settings["iterations"]
        return {"loss": 1.0 / (self.iteration + 1), "done": self.iteration + 1 >= length}

    def save_checkpoint(self, checkpoint_dir):
        return {}

    def load_checkpoint(self, checkpoint):
        pass


def sleeping(config, report=tune.report):
    """Do the same as a function."""
    for iteration in range(config["iterations"]):
        time.sleep(config["train_s"] + config["inline_s"])
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "checkpoint.pkl").write_bytes(b"")
            kept = tune.Checkpoint.from_directory(folder)
            report({"loss": 1.0 / (iteration + 1)}, checkpoint=kept)


def in_worker(config):
    """Do the same in a worker of a trainer."""
    sleeping(config, train.report)


class Arrivals(tunekit.policies.CheckpointPolicy):
    """The times of each trial's reports when they arrive, not when their scores are there."""

    def __init__(self):
        self.times = collections.defaultdict(list)

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.times[trial.trial_id].append(time.perf_counter())

    def training_s(self) -> float:
        """Return the mean of the trials' seconds from the first report to the last."""
        return statistics.mean(times[-1] - times[0] for times in self.times.values())

    def total_s(self) -> float:
        """Return the seconds since the first report of all."""
        return time.perf_counter() - min(times[0] for times in self.times.values())


def validate(checkpoint, *, seconds: float) -> dict[str, float]:
    time.sleep(seconds)
    return {"accuracy": 0.5}


def run(options, kind: str, validation_s: float, variant: str) -> tuple[float, float]:
    """Return the seconds of training, and of the whole sweep."""
    arrivals = Arrivals()
    inline_s = validation_s if variant == "inline" else 0.0
    space = {
        "train_s": options.train_s,
        "inline_s": inline_s,
        "iterations": options.iterations,
    }
    trainable, tuner = {"class": Sleeper, "function": sleeping}.get(kind), tune.Tuner
    if kind == "trainer":
        workers = train.ScalingConfig(num_workers=1)
        trainable = TorchTrainer(in_worker, scaling_config=workers)
        space, tuner = {"train_loop_config": space}, tunekit.Tuner
    settings = {
        "param_space": space,
        "tune_config": tune.TuneConfig(
            num_samples=options.trials, max_concurrent_trials=options.trials
        ),
        "run_config": tune.RunConfig(
            storage_path=tempfile.mkdtemp(),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=int(kind == "class")),
            callbacks=[arrivals],
            verbose=0,
        ),
    }
    if variant == "async":
        tuner = tunekit.Tuner
        settings["validation_config"] = tunekit.ValidationConfig(
            fn=validate,
            task_config=train.ValidationTaskConfig(fn_kwargs={"seconds": validation_s}),
            max_in_flight=SLOTS,
        )
    tuner(trainable, **settings).fit()
    # The first report comes after one iteration, which counts as training, too.
    first_s = options.train_s + inline_s
    return arrivals.training_s() + first_s, arrivals.total_s() + first_s


RUNGS, EXTRA = (1, 3, 9), 2


def score(limit: float, iteration: int) -> float:
    """Return the score of a trial that finally reaches ``limit``."""
    return limit * (1 - 0.5**iteration)


class Curve(Sleeper):
    """Follows a synthetic curve; if it validates inline, reports the score at rungs."""

    score = 0.0

    def step(self):
        time.sleep(self.settings["train_s"])
        if self.settings["inline_s"] and self.iteration + 1 in RUNGS:
            time.sleep(self.settings["inline_s"])
            self.score = score(self.settings["limit"], self.iteration + 1)
        return {"done": self.iteration + 1 == RUNGS[-1], "accuracy": self.score}

    def save_checkpoint(self, checkpoint_dir):
        return {"limit": self.settings["limit"], "iteration": self.iteration}


class Resettable(Curve):
    """The same class, in a process that the next trial reuses."""

    def reset_config(self, new_config):
        self.settings, self.score = new_config, 0.0
        return True


def curve(config):
    """Train in the same way as a function."""
    began, checkpoint, value = 0, tune.get_checkpoint(), 0.0
    if checkpoint is not None:
        began = saved_in(checkpoint)["iteration"]
    for iteration in range(began + 1, RUNGS[-1] + 1):
        time.sleep(config["train_s"])
        if config["inline_s"] and iteration in RUNGS:
            time.sleep(config["inline_s"])
            value = score(config["limit"], iteration)
        with tempfile.TemporaryDirectory() as folder:
            saved = {"limit": config["limit"], "iteration": iteration}
            (Path(folder) / "checkpoint.pkl").write_bytes(pickle.dumps(saved))
            kept = tune.Checkpoint.from_directory(folder)
            tune.report({"accuracy": value}, checkpoint=kept)


def saved_in(checkpoint) -> dict[str, float]:
    with checkpoint.as_directory() as folder:
        return pickle.loads(next(Path(folder).glob("*checkpoint*.pkl")).read_bytes())


def scored(checkpoint, *, seconds: float) -> dict[str, float]:
    time.sleep(seconds)
    saved = saved_in(checkpoint)
    return {"accuracy": score(saved["limit"], saved["iteration"])}


KINDS = {"function": curve, "resettable": Resettable, "class": Curve}


def under_asha(options, kind: str, validation_s: float, ours: bool) -> float:
    """Return the seconds of a sweep under ASHA."""
    # In any order of arrival, each trial that reaches 0.5 is stopped at its first rung.
    limits = [*[1.0] * SLOTS, *[0.5, 0.5, 0.5, 1.0] * 3, 0.5, 0.5]
    settings = {
        "param_space": {
            "train_s": options.train_s,
            "inline_s": 0.0 if ours else validation_s,
            "limit": tune.grid_search(limits),
        },
        "tune_config": tune.TuneConfig(
            metric="accuracy",
            mode="max",
            scheduler=ASHAScheduler(max_t=RUNGS[-1], grace_period=1, reduction_factor=3),
            reuse_actors=kind == "resettable",
        ),
        "run_config": tune.RunConfig(storage_path=tempfile.mkdtemp(), verbose=0),
    }
    if ours:
        settings["validation_config"] = tunekit.ValidationConfig(
            fn=scored,
            task_config=train.ValidationTaskConfig(fn_kwargs={"seconds": validation_s}),
        )
    trainable = tune.with_resources(KINDS[kind], {"CPU": 1, "GPU": 1})
    began = time.perf_counter()
    results = (tunekit if ours else tune).Tuner(trainable, **settings).fit()
    seconds = time.perf_counter() - began
    trained = sum(one.metrics["training_iteration"] for one in results)
    print(
        f"{kind}, {'tunekit' if ours else 'inline'}: {seconds:.1f} s, {trained} iterations,",
        end=" ",
    )
    print(
        f"best {results.get_best_result().metrics['accuracy']:.3f}",
        results.experiment_path,
        flush=True,
    )
    return seconds


def asha(options) -> None:
    start_ray(SLOTS + EXTRA, num_gpus=SLOTS)
    rows = []
    for kind in options.asha:
        for ratio in (1, 2):
            seconds = ratio * options.train_s
            found = in_turn(
                (False, True),
                lambda ours, k=kind, s=seconds: under_asha(options, k, s, ours),
                options.repeats,
            )
            pairs = [ours / inline for inline, ours in zip(found[False], found[True], strict=True)]
            rows.append((kind, ratio, *map(median, found.values()), median(pairs), max(pairs)))
    print(f"18 trials of a CPU and a GPU under ASHA, on {SLOTS} GPUs and {SLOTS + EXTRA} CPUs.")
    heads = ("trainable", "validation / iteration", "inline s", "tunekit s", "ratio", "largest")
    table(heads, rows)


def main() -> None:
    options = arguments(
        __doc__,
        trials=4,
        iterations=20,
        train_s=0.5,
        validation_s=[0.4, 1.0],
        repeats=3,
        kinds=["function", "class", "trainer"],
        variants=["none", "async", "inline"],
        asha=[""],
    )
    if any(options.asha):
        asha(options)
        return
    start_ray(options.trials + SLOTS)
    rows = []
    for kind, validation_s in itertools.product(options.kinds, options.validation_s):
        run(options, kind, 0.01, "async")  # start the workers
        found = in_turn(
            options.variants,
            lambda variant, k=kind, s=validation_s: run(options, k, s, variant),
            options.repeats,
        )
        training = {variant: median(one for one, _ in ran) for variant, ran in found.items()}
        total = {variant: median(one for _, one in ran) for variant, ran in found.items()}
        speed = training["none"] / training["async"]
        inline = total["inline"] / total["async"] if "inline" in total else math.nan
        rows.append((kind, validation_s, speed, inline))
    print(
        f"{options.trials} trials of {options.iterations} iterations of {options.train_s} s, "
        f"{SLOTS} slots for validations; ratios of medians. The goal for training is 0.98."
    )
    table(("trainable", "validation s", "training", "inline / async sweep"), rows)


if __name__ == "__main__":
    main()
