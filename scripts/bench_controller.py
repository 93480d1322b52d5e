"""Results per second through Tune's controller: tunekit against stock Tune, in one run.

    python scripts/bench_controller.py            # on a real Ray, 1, 32 and 256 trials
    python scripts/bench_controller.py --local    # the controller alone, in this process

Trials report as fast as the controller takes it. Nothing is saved or validated: the ratio is what
tunekit costs a sweep that pays for neither. Runs alternate, and the ratio is that of the medians;
256 trials run 32 at a time on a real Ray (in reused actors), all at once in this process.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from pathlib import Path

import ray
from ray import tune
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback
from ray.tune.schedulers import FIFOScheduler

import tunekit
from tunekit.testing import FakeClock, FakeExecutor, LocalSweep


class Reporter(tune.Trainable):
    """Does nothing but report, once as many as shall report at once have started."""

    def setup(self, config):
        self.length, self.together = config["length"], config.get("together", 0)
        if self.together:
            self.ready = Path(config["ready"])
            (self.ready / self.trial_id).touch()

    def step(self):
        while self.together and len(os.listdir(self.ready)) < self.together:
            time.sleep(0.02)
        self.together = 0
        return {"loss": 1.0 / (self.iteration + 1), "done": self.iteration + 1 >= self.length}

    def reset_config(self, new_config):
        return True

    def save_checkpoint(self, checkpoint_dir):
        return {}


class Span(tune.Callback):
    """When the first and the last result came."""

    first = last = 0.0
    count = 0

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.last = time.perf_counter()
        self.first = self.first or self.last
        self.count += 1

    def per_second(self) -> float:
        return (self.count - 1) / (self.last - self.first)


def validation() -> tunekit.ValidationConfig:
    return tunekit.ValidationConfig(fn=lambda checkpoint: {"loss": 0.0}, max_in_flight=1)


def on_ray(trials: int, length: int, *, with_tunekit: bool) -> float:
    span = Span()
    tuner = tunekit.Tuner if with_tunekit else tune.Tuner
    more = {"validation_config": validation()} if with_tunekit else {}
    tuner(
        Reporter,
        param_space={"length": length, "together": min(trials, 32), "ready": tempfile.mkdtemp()},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=trials,
            max_concurrent_trials=min(trials, 32),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            storage_path=tempfile.mkdtemp(),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            callbacks=[span],
            verbose=0,
        ),
        **more,
    ).fit()
    return span.per_second()


def locally(trials: int, length: int, *, with_tunekit: bool) -> float:
    span, clock = Span(), FakeClock()
    callbacks: list[tune.Callback] = [span]
    scheduler = FIFOScheduler()
    if with_tunekit:
        executor = FakeExecutor(clock, lambda attempt: {"loss": 0.0})
        callback = tunekit.ValidationCallback(validation(), executor=executor, clock=clock)
        callbacks += [callback, *callback.loggers(), CSVLoggerCallback()]
        scheduler = tunekit.ValidatedScheduler(scheduler)
    else:
        callbacks += [JsonLoggerCallback(), TBXLoggerCallback(), CSVLoggerCallback()]
    LocalSweep(
        Reporter,
        Path(tempfile.mkdtemp()),
        clock,
        param_space={"length": length},
        num_samples=trials,
        metric="loss",
        mode="min",
        scheduler=scheduler,
        callbacks=callbacks,
        checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        seconds=lambda trial, method: 1.0,
    ).run()
    return span.per_second()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--local", action="store_true", help="without Ray, in this process")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--results", type=int, default=2000, help="results a run, at least (2000)")
    parser.add_argument("--trials", type=int, nargs="*", default=[1, 32, 256])
    options = parser.parse_args()
    for name in ("ray.tune", "ray.train", "tunekit"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if not options.local:
        ray.init(
            num_cpus=34, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
        )
    measure = locally if options.local else on_ray
    print("trials  reports  stock [per s]  tunekit [1/s]  ratio   (goal: at least 0.95)")
    for trials in options.trials:
        length = max(2, options.results // trials)
        measured: dict[bool, list[float]] = {False: [], True: []}
        for repeat in range(options.repeats):
            for with_tunekit in (repeat % 2 == 0, repeat % 2 == 1):
                measured[with_tunekit].append(measure(trials, length, with_tunekit=with_tunekit))
        stock, ours = (statistics.median(measured[which]) for which in (False, True))
        row = f"{trials:6}  {length:7}  {stock:13.0f}  {ours:13.0f}  {ours / stock:5.3f}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
