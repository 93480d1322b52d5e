"""What asynchronous validation costs training, in one run, on work that sleeps.

    python scripts/bench_async.py

Every variant runs the same trials: so many iterations that each sleep, a checkpoint at each. The
variants alternate; times are from the first report to the last (training) or to the end of the
sweep (total), so that starting processes does not count. A validation sleeps, too, on CPUs of its
own.
"""

from __future__ import annotations

import tempfile
import time

from harness import Span, arguments, in_turn, median, start_ray, table
from ray import train, tune

import tunekit

SLOTS = 4


class Sleeper(tune.Trainable):
    """Sleeps for an iteration; with ``inline_s``, for its validation, too."""

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


def validate(checkpoint, *, seconds: float) -> dict[str, float]:
    time.sleep(seconds)
    return {"accuracy": 0.5}


def run(options, validation_s: float, variant: str) -> tuple[float, float]:
    """Seconds of training, and of the whole sweep."""
    span = Span()
    inline_s = validation_s if variant == "inline" else 0.0
    settings = {
        "param_space": {
            "train_s": options.train_s,
            "inline_s": inline_s,
            "iterations": options.iterations,
        },
        "tune_config": tune.TuneConfig(
            num_samples=options.trials, max_concurrent_trials=options.trials
        ),
        "run_config": tune.RunConfig(
            storage_path=tempfile.mkdtemp(),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
            callbacks=[span],
            verbose=0,
        ),
    }
    if variant == "async":
        settings["validation_config"] = tunekit.ValidationConfig(
            fn=validate,
            task_config=train.ValidationTaskConfig(fn_kwargs={"seconds": validation_s}),
            max_in_flight=SLOTS,
        )
    (tunekit if variant == "async" else tune).Tuner(Sleeper, **settings).fit()
    # The first report comes after one iteration: take that in.
    first_s = options.train_s + inline_s
    return span.seconds + first_s, time.perf_counter() - span.first + first_s


def main() -> None:
    options = arguments(__doc__, trials=4, iterations=20, train_s=0.5, repeats=3)
    start_ray(options.trials + SLOTS)
    run(options, 0.01, "async")  # start the workers
    rows = []
    for validation_s in (0.4, 1.0):
        found = in_turn(
            ("none", "async", "inline"),
            lambda variant, s=validation_s: run(options, s, variant),
            options.repeats,
        )
        training = {variant: median(one for one, _ in ran) for variant, ran in found.items()}
        total = {variant: median(one for _, one in ran) for variant, ran in found.items()}
        work = options.trials * options.iterations * validation_s / SLOTS
        rows.append(
            (
                validation_s,
                training["none"] / training["async"],
                total["inline"] / total["async"],
                max(training["none"], work) / total["async"],
            )
        )
    print(
        f"{options.trials} trials of {options.iterations} iterations of {options.train_s} s, "
        f"{SLOTS} slots for validations; ratios of medians. The goal for training is 0.98."
    )
    table(("validation s", "training", "inline / async sweep", "bound / async sweep"), rows)


if __name__ == "__main__":
    main()
