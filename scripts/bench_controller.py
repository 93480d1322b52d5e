"""Results per second through Tune's controller on Ray: tunekit against stock Tune, in one run.

    python scripts/bench_controller.py            # 1, 32 and 256 trials

Trials report as fast as the controller takes it. Nothing is saved or validated: the ratio is what
tunekit costs a sweep that pays for neither. Runs alternate, and the ratio is that of the medians;
256 trials run 32 at a time, in reused actors. (``bench_trials.py`` has the controller alone.)
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from harness import Span, arguments, in_turn, median, start_ray, table
from ray import tune

import tunekit


class Reporter(tune.Trainable):
    """Does nothing but report, once as many as shall report at once have started."""

    def setup(self, config):
        self.length, self.together = config["length"], config["together"]
        self.ready = Path(config["ready"])
        (self.ready / self.trial_id).touch()

    def step(self):
        while len(os.listdir(self.ready)) < self.together:
            time.sleep(0.02)
        self.together = 0
        return {"loss": 1.0 / (self.iteration + 1), "done": self.iteration + 1 >= self.length}

    def reset_config(self, new_config):
        return True

    def save_checkpoint(self, checkpoint_dir):
        return {}


def run(tuner: type[tune.Tuner], trials: int, length: int) -> float:
    """Return how many results came in a second."""
    span, together, more = Span(), min(trials, 32), {}
    if tuner is tunekit.Tuner:
        config = tunekit.ValidationConfig(fn=lambda checkpoint: {"loss": 0.0}, max_in_flight=1)
        more = {"validation_config": config}
    tuner(
        Reporter,
        param_space={"length": length, "together": together, "ready": tempfile.mkdtemp()},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=trials,
            max_concurrent_trials=together,
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
    return (span.count - 1) / span.seconds


def main() -> None:
    options = arguments(__doc__, repeats=5, results=2000, trials=[1, 32, 256])
    start_ray(34)
    rows = []
    for trials in options.trials:
        length = max(2, options.results // trials)
        found = in_turn(
            (tune.Tuner, tunekit.Tuner),
            lambda tuner, n=trials, each=length: run(tuner, n, each),
            options.repeats,
        )
        stock, ours = map(median, found.values())
        rows.append((trials, length, stock, ours, ours / stock))
    table(("trials", "reports", "stock [1/s]", "tunekit [1/s]", "ratio"), rows)


if __name__ == "__main__":
    main()
