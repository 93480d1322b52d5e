"""What many trials cost the driver: CPU time per result, tunekit against stock Tune, in one run.

    python scripts/bench_trials.py                       # 100, 400, 1,600 and 10,000 trials
    python scripts/bench_trials.py --sizes 100 400       # a minute

The controller alone, without Ray: ASHA over so many trials with two hyperparameters, of which 64
run at a time, each for at most three iterations, with a checkpoint at each. Stock Tune judges by
what trials report; tunekit by what the validation of each checkpoint returns, the same number. With
trials that are held until it does (``--on-pending wait``), both make the same decisions about the
same results, and the difference is what tunekit does. Both write Tune's default log files, unless
they are left out (``--no-loggers``).

Each run has a process of its own; those of stock Tune and of tunekit alternate. Printed are the
medians of the CPU time per result, their ratio, and to how many times that of 400 trials they have
grown (with fewer, what is done once weighs much). Memory is by how much the process
has grown from before the sweep to its end: per trial, and what tunekit takes more per validation.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import gc
import logging
import multiprocessing
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ray import tune
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tunekit.testing import FakeClock, FakeExecutor, LocalSweep

SLOTS = 64
ITERATIONS = 3
# How much the cost has grown is told from the first size that is not below this one.
COMPARED_WITH = 400
# Larger sweeps are run once: they take minutes.
LARGE = 2_000


class Reporter(tune.Trainable):
    """Reports a number that its trial's name and the iteration say; its checkpoint is empty."""

    def step(self):
        return {"accuracy": accuracy(self.trial_id, self.iteration + 1)}

    def save_checkpoint(self, checkpoint_dir):
        pass

    def load_checkpoint(self, checkpoint):
        pass


def accuracy(trial_id: str, iteration: int) -> float:
    number = int(trial_id.rsplit("_", 1)[1]) * 7919 % 10_007  # trials in no order
    return iteration * number / 10_007


class Count(tune.Callback):
    """How many results there were."""

    results = 0

    def on_trial_result(self, **info):
        self.results += 1


@dataclass
class Cost:
    """What a sweep took: CPU seconds, the bytes that the process grew by, and for what."""

    seconds: float
    grew: int
    results: int
    validations: int

    @property
    def each(self) -> float:
        return self.seconds / self.results


def memory() -> int:
    """Bytes of memory that this process has now."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def made(
    trials: int, folder: Path, *, with_tunekit: bool, on_pending: str, loggers: bool = True
) -> tuple[LocalSweep, Count, FakeExecutor]:
    clock, count = FakeClock(), Count()
    executor = FakeExecutor(
        clock,
        lambda attempt: {"accuracy": accuracy(attempt.request.trial_id, attempt.request.iteration)},
        seconds=lambda attempt: 0.5,
    )
    callbacks: list[tune.Callback] = [count]
    scheduler = ASHAScheduler(max_t=ITERATIONS, grace_period=1, reduction_factor=3)
    if with_tunekit:
        config = tunekit.ValidationConfig(fn=lambda checkpoint: {}, on_pending=on_pending)
        callback = tunekit.ValidationCallback(config, executor=executor, clock=clock)
        callbacks += [callback]
        if loggers:
            callbacks += [*callback.loggers(), CSVLoggerCallback()]
        scheduler = tunekit.ValidatedScheduler(scheduler)
    elif loggers:
        callbacks += [JsonLoggerCallback(), TBXLoggerCallback(), CSVLoggerCallback()]
    sweep = LocalSweep(
        Reporter,
        folder,
        clock,
        param_space={"rate": tune.uniform(0, 1), "width": tune.randint(1, 100)},
        num_samples=trials,
        scheduler=scheduler,
        callbacks=callbacks,
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        metric="accuracy",
        mode="max",
        slots=SLOTS,
        seconds=lambda trial, method: 1.0 if method == "train" else 0.0,
        next_due=executor.next_due,
    )
    return sweep, count, executor


def cost(trials: int, with_tunekit: bool, on_pending: str, loggers: bool) -> Cost:
    """Run a sweep in this process, and a small one before."""
    for name in ("ray.tune", "ray.train", "tunekit"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for size in (10, trials):
        with tempfile.TemporaryDirectory() as folder:
            before, began = memory(), time.process_time()
            sweep, count, executor = made(
                size,
                Path(folder),
                with_tunekit=with_tunekit,
                on_pending=on_pending,
                loggers=loggers,
            )
            sweep.run()
            took = time.process_time() - began
            validations = len(executor.started)
            executor.started.clear()
            spent = Cost(took, memory() - before, count.results, validations)
    return spent


def alone(*arguments: object) -> Cost:
    """The cost of a sweep in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as process:
        return process.submit(cost, *arguments).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 400, 1_600, 10_000])
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (3; of large ones 1)")
    parser.add_argument("--on-pending", default="continue", choices=["auto", "wait", "continue"])
    parser.add_argument("--no-loggers", action="store_true", help="without log files")
    options = parser.parse_args()
    print("ms of CPU per result, and grown to so many times; KB of memory per trial")
    print(
        f"{'trials':>6} {'results':>14} {'stock':>6} {'tunekit':>7} {'ratio':>6}   "
        f"{'grown':>5} {'tunekit':>7}   {'stock':>6} {'tunekit':>7} {'per validation':>14}"
    )
    first: tuple[float, float] | None = None
    for size in options.sizes:
        costs: dict[bool, list[Cost]] = {False: [], True: []}
        for repeat in range(1 if size > LARGE else options.repeats):
            for with_tunekit in (repeat % 2 == 1, repeat % 2 == 0):
                settings = (with_tunekit, options.on_pending, not options.no_loggers)
                costs[with_tunekit].append(alone(size, *settings))
        stock, ours = (
            statistics.median(one.each for one in costs[which]) * 1000 for which in (False, True)
        )
        grew = [statistics.median(one.grew for one in costs[w]) / 1024 for w in (False, True)]
        if first is None and size >= COMPARED_WITH:
            first = (stock, ours)
        of_stock, of_ours = first or (stock, ours)
        counts = [costs[which][0].results for which in (False, True)]
        more = (grew[1] - grew[0]) / max(1, costs[True][0].validations)
        print(
            f"{size:6} {counts[0]:6} {counts[1]:7} {stock:6.2f} {ours:7.2f} {ours / stock:6.2f}   "
            f"{stock / of_stock:5.2f} {ours / of_ours:7.2f}   "
            f"{grew[0] / size:6.1f} {grew[1] / size:7.1f} {more:14.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
