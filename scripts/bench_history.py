"""What a long history costs: memory per validation, and time per event as it grows.

A sweep of Tune's own controller in one process, with trials and validations that take no time, goes
through many validations. Printed are, per quarter of the sweep, the
time per validation (everything that the driver does for it: report, checkpoint, journal, delivery,
decision), and the memory that the driver has grown by. The last lines say what the journal takes.

    python scripts/bench_history.py
"""

from __future__ import annotations

import collections
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import arguments, memory, quiet
from ray import tune
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tunekit.core.events import AttemptStarted, ValidationEnded
from tunekit.core.validation import Attempt, Outcome, Request, Status
from tunekit.journal.lines import Journal, read
from tunekit.journal.storage import LocalFolder
from tunekit.testing import FakeClock, FakeExecutor, LocalSweep

QUARTERS = 4


class Endless(tune.Trainable):
    """Its checkpoint is empty."""

    def step(self) -> dict[str, Any]:
        return {"loss": 1.0 / (self.iteration + 1)}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        pass

    def load_checkpoint(self, checkpoint: Any) -> None:
        pass


class Meter(tune.Callback):
    """Notes the time and the memory at each quarter."""

    def __init__(self, validations: int):
        self._each = validations // QUARTERS
        self.marks: list[tuple[int, float, int]] = []
        self._count = 0

    def on_trial_result(self, **info: Any) -> None:
        if self._count % self._each == 0:
            self.marks.append((self._count, time.perf_counter(), memory()))
        self._count += 1

    def on_experiment_end(self, **info: Any) -> None:
        self.marks.append((self._count, time.perf_counter(), memory()))


def local(validations: int, trials: int, folder: Path, meter: Meter) -> Path:
    clock = FakeClock()
    executor = FakeExecutor(
        clock,
        lambda attempt: {"accuracy": attempt.request.iteration * 1.0},
        seconds=lambda attempt: 1.5,
    )
    executor.started = collections.deque(maxlen=0)  # it would note every attempt
    config = tunekit.ValidationConfig(fn=lambda checkpoint: {}, on_pending="continue")
    validation = tunekit.ValidationCallback(config, executor=executor, clock=clock)
    sweep = LocalSweep(
        Endless,
        folder,
        clock,
        num_samples=trials,
        scheduler=tunekit.ValidatedScheduler(ASHAScheduler(max_t=10**9, grace_period=10**8)),
        callbacks=[meter, tunekit.EveryIterations(1), validation],
        checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
        metric="accuracy",
        mode="max",
        stop={"training_iteration": validations // trials},
        seconds=lambda trial, method: 1.0 if method == "train" else 0.0,
        next_due=executor.next_due,
    )
    sweep.run()
    return folder / "sweep"


def append_time(folder: Path) -> float:
    """Seconds per line, flushed to the operating system."""
    journal, request = Journal(LocalFolder(folder)), Request("trial_a", 1)
    outcome = Outcome(request, Status.VALIDATED, {"accuracy": 0.5, "loss": 0.1}, attempts=1)
    began = time.perf_counter()
    for _ in range(10_000):
        journal.append(AttemptStarted.of(Attempt(request, 1), time.time()))
        journal.append(ValidationEnded.of(outcome, time.time()))
    return (time.perf_counter() - began) / 20_000


def main() -> None:
    options = arguments(__doc__, validations=10_000, trials=4)
    quiet()
    with tempfile.TemporaryDirectory() as scratch:
        meter = Meter(options.validations)
        home = local(options.validations, options.trials, Path(scratch), meter)
        print(f"{'validations':>12} {'ms each':>8} {'memory grew, bytes each':>24}")
        pace = []
        for before, after in zip(meter.marks, meter.marks[1:], strict=False):
            count = after[0] - before[0]
            if count:
                pace.append((after[1] - before[1]) / count)
                grew = (after[2] - before[2]) / count
                print(f"{after[0]:12} {pace[-1] * 1000:8.2f} {grew:24.0f}")
        events = read(home)
        validated = sum(event["event"] == "ended" for event in events)
        size = sum(file.stat().st_size for file in (home / "journal").iterdir())
        print(f"last quarter against the second: {pace[-1] / pace[1]:.2f} of the time each")
        print(f"journal: {size / validated:.0f} bytes and {len(events) / validated:.1f} lines per")
        print(f"validation, {append_time(Path(scratch, 'append')) * 1e6:.0f} us per line")
        print(f"{validated} validations, all delivered once")


if __name__ == "__main__":
    main()
