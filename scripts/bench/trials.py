"""Measure the driver's CPU time per result with many trials, in tunekit and stock Tune.

    python -m scripts.bench.trials                     # 100 to 10,000 trials
    python -m scripts.bench.trials --sizes 100 400     # a minute

Only the controller runs, without Ray. ASHA stops trials with two hyperparameters, of which 64 run
at a time, each for at most three iterations with a checkpoint each. Stock Tune ranks by the trials'
reports, and tunekit by the validation of each checkpoint, which returns the same value. If trials
wait for their scores (``--on-pending wait``), both make the same decisions on the same results, so
the difference is the cost of tunekit. Both write Tune's default log files, unless ``--no-loggers``
is passed.

Each run is a separate process; runs of stock Tune and of tunekit alternate. The script prints the
least CPU time per result of several runs, because other processes only add to it, the ratio, and
the growth relative to 400 trials (with fewer, one-time work dominates). Memory is the growth of the
process from before the sweep to its end: per trial, and the additional memory of tunekit per
validation.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ray import tune
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback
from ray.tune.schedulers import ASHAScheduler

import tunekit
from scripts.bench.harness import Span, arguments, in_turn, median, memory, quiet, table
from tests.support.fakes import FakeClock, FakeExecutor
from tests.support.local_sweep import LocalSweep

SLOTS = 64
ITERATIONS = 3
# Growth is relative to the first size that is not below this one.
COMPARED_WITH = 400
# Larger sweeps run only once, because they take minutes.
LARGE = 2_000


class Reporter(tune.Trainable):
    """Reports a number that depends on its trial and iteration; its checkpoint is empty."""

    def step(self):
        return {"accuracy": accuracy(self.trial_id, self.iteration + 1)}

    def save_checkpoint(self, checkpoint_dir):
        pass

    def load_checkpoint(self, checkpoint):
        pass


def accuracy(trial_id: str, iteration: int) -> float:
    number = int(trial_id.rsplit("_", 1)[1]) * 7919 % 10_007  # trials in no order
    return iteration * number / 10_007


@dataclass
class Cost:
    """The cost of a sweep: CPU seconds, the growth of the process in bytes, and its size."""

    seconds: float
    grew: int
    results: int
    validations: int
    journal: int  # bytes
    lines: int

    @property
    def each(self) -> float:
        return self.seconds / self.results


def made(
    trials: int, folder: Path, *, with_tunekit: bool, on_pending: str, loggers: bool = True
) -> tuple[LocalSweep, Span, FakeExecutor]:
    clock, count = FakeClock(), Span()
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
            callbacks += [JsonLoggerCallback(), TBXLoggerCallback(), CSVLoggerCallback()]
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
    """Run a small sweep and then the measured one in this process."""
    quiet()
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
            spent = Cost(took, memory() - before, count.count, validations, *journal(folder))
    return spent


def journal(folder: str) -> tuple[int, int]:
    """Return the numbers of bytes and lines in the sweep's journal."""
    texts = [file.read_bytes() for file in Path(folder, "sweep/journal").glob("*.jsonl")]
    return sum(map(len, texts)), sum(text.count(b"\n") for text in texts)


def alone(*arguments: object) -> Cost:
    """Return the cost of a sweep in a separate process."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as process:
        return process.submit(cost, *arguments).result()


def main() -> None:
    options = arguments(
        __doc__,
        sizes=[100, 400, 1_600, 10_000],
        repeats=3,
        on_pending="continue",
        no_loggers=False,
    )
    first: tuple[float, float] | None = None
    rows = []
    for size in options.sizes:
        costs = in_turn(
            (False, True),
            lambda ours, n=size: alone(n, ours, options.on_pending, not options.no_loggers),
            1 if size > LARGE else options.repeats,
        )
        stock, ours = (min(one.each for one in ran) * 1000 for ran in costs.values())
        grew = [median(one.grew for one in ran) / 1024 for ran in costs.values()]
        if first is None and size >= COMPARED_WITH:
            first = (stock, ours)
        of_stock, of_ours = first or (stock, ours)
        more = (grew[1] - grew[0]) / max(1, costs[True][0].validations)
        memory_each = [one / size for one in grew]
        ratios = (ours / stock, stock / of_stock, ours / of_ours)
        ran = costs[True][0]
        written = (ran.journal / 1024 / ran.validations, ran.lines / ran.validations)
        rows.append((size, stock, ours, *ratios, *memory_each, more, *written))
    print("CPU ms per result, and their growth; KB of memory per trial;")
    print("for each validation: KB of memory, KB and lines of journal")
    heads = (
        "trials stock tunekit ratio stock-grown tunekit-grown stock-KB tunekit-KB memory journal"
    )
    table([*heads.split(), "lines"], rows)


if __name__ == "__main__":
    main()
