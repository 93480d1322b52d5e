"""What asynchronous validation costs training, in one run, on work that sleeps.

    python scripts/bench_async.py

Every variant runs the same trials: so many iterations that each sleep, a checkpoint at each. The
variants alternate; times are from the first report to the last (training) or to the end of the
sweep (total), so that starting processes does not count. A validation sleeps, too, on CPUs of its
own.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time

import ray
from ray import train, tune

import tunekit


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


class Span(tune.Callback):
    """When the first and the last report came."""

    first = last = 0.0

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.last = time.perf_counter()
        self.first = self.first or self.last


def run(options, validation_s: float, slots: int, variant: str) -> tuple[float, float]:
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
            max_in_flight=slots,
        )
        tunekit.Tuner(Sleeper, **settings).fit()
    else:
        tune.Tuner(Sleeper, **settings).fit()
    # The first report comes after one iteration: take that in.
    return (
        span.last - span.first + options.train_s + inline_s,
        time.perf_counter() - span.first + options.train_s + inline_s,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--train-s", type=float, default=0.5)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    for name in ("ray.tune", "ray.train", "tunekit"):
        logging.getLogger(name).setLevel(logging.ERROR)
    ray.init(
        num_cpus=options.trials + 4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    run(options, 0.01, 4, "async")  # start the workers
    lines = []
    for validation_s, slots in ((0.4, 4), (1.0, 4)):
        seconds: dict[str, list[tuple[float, float]]] = {"none": [], "async": [], "inline": []}
        for _ in range(options.repeats):
            for variant, measured in seconds.items():
                measured.append(run(options, validation_s, slots, variant))
        training = {v: statistics.median(t for t, _ in m) for v, m in seconds.items()}
        total = {v: statistics.median(t for _, t in m) for v, m in seconds.items()}
        work = options.trials * options.iterations * validation_s / slots
        bound = max(training["none"], work)
        lines.append(
            f"{validation_s:10.1f}  {slots:5}  {training['none']:8.2f}  {training['async']:12.2f}  "
            f"{training['none'] / training['async']:18.3f}  {total['inline']:6.2f}  "
            f"{total['async']:5.2f}  {total['inline'] / total['async']:12.2f}  {bound:5.2f}  "
            f"{bound / total['async']:11.2f}"
        )
    print(
        f"\n{options.trials} trials of {options.iterations} iterations of {options.train_s} s; "
        "seconds, medians.\n"
        "validation  slots  training  training      training speed      whole sweep                "
        " bound\n"
        "         s         without   with async    async / none        inline  async  inline/async"
        "  s      bound/async\n"
        "                                          (goal: 0.98)"
    )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
