"""Shared helpers of the scripts: arguments, a local Ray, alternation, memory, tables, a sweep."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray import tune

from tunekit.core.events import (
    AttemptBegan,
    CheckpointSaved,
    Event,
    Processed,
    Reported,
    TrialAdded,
    ValidationEnded,
)
from tunekit.core.metrics import GENERATION

Way, Measured = TypeVar("Way"), TypeVar("Measured")


def arguments(doc: str, **defaults: Any) -> argparse.Namespace:
    """Parse an option for each default, with its type; for a list, any number of values."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    for name, default in defaults.items():
        how: dict[str, Any] = {"type": type(default)}
        if isinstance(default, bool):
            how = {"action": "store_true"}
        elif isinstance(default, list):
            how = {"type": type(default[0]), "nargs": "*"}
        parser.add_argument(
            "--" + name.replace("_", "-"), default=default, help=f"({default})", **how
        )
    return parser.parse_args()


def quiet() -> None:
    """Log errors only."""
    for name in ("ray", "ray.tune", "ray.train", "tunekit"):
        logging.getLogger(name).setLevel(logging.ERROR)


def start_ray(num_cpus: int, **more: Any) -> None:
    """Start Ray with ``num_cpus`` logical CPUs, and with little output."""
    quiet()
    ray.init(
        num_cpus=num_cpus,
        **more,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )


def in_turn(
    ways: Iterable[Way], measure: Callable[[Way], Measured], repeats: int
) -> dict[Way, list[Measured]]:
    """Measure all ways in each round, and begin each round with another one."""
    order = list(ways)
    found: dict[Way, list[Measured]] = {way: [] for way in order}
    for n in range(repeats):
        start = n % len(order)
        for way in [*order[start:], *order[:start]]:
            found[way].append(measure(way))
    return found


def median(measured: Iterable[float]) -> float:
    """Return the median."""
    return float(statistics.median(measured))


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows below their headings: numbers with three significant digits, text unchanged."""
    widths = [max(9, len(head)) + 2 for head in heads]
    print("".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)))
    for row in rows:
        cells = [f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row]
        line = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        print(line, flush=True)


def memory() -> int:
    """Return the current memory of this process, in bytes (Linux)."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def trial(trial_id: str, draw: random.Random, time: float) -> TrialAdded:
    """Return the event that begins a trial, for a sweep that is written without being run."""
    config = {
        "lr": 10 ** draw.uniform(-4, -1),
        "width": draw.choice([8, 16, 32]),
        "activation": draw.choice(["relu", "gelu"]),
    }
    return TrialAdded(time=time, trial_id=trial_id, config=config, folder=f"train_{trial_id}")


def validated(trial_id: str, iteration: int, accuracy: float, time: float) -> list[Event]:
    """Return the events of a report whose checkpoint is validated immediately."""
    own, checkpoint = f"{trial_id}:0:{iteration}:1", f"train_{trial_id}/checkpoint_{iteration:06d}"
    report = {"training_iteration": iteration, GENERATION: 0, "loss": 1 / iteration}
    report["time_this_iter_s"] = 1.0
    outcome = {"status": "validated", "metrics": {"accuracy": accuracy}, "ran_s": 0.4}
    place = {"id": own, "trial_id": trial_id, "iteration": iteration}
    return [
        Reported(time=time, trial_id=trial_id, report=report),
        CheckpointSaved(time=time, checkpoint=f"./{checkpoint}", validates=True, **place),
        AttemptBegan(time=time + 0.1, id=own, attempt=1, after_s=0.1),
        ValidationEnded(time=time + 0.5, id=own, attempts=1, **outcome),
        Processed(time=time + 0.6, ranked=True, checkpoint=f"./{checkpoint}", **place),
    ]


class Span(tune.Callback):
    """Records the times of the first and the last report, and the number of reports."""

    first = last = 0.0
    count = 0

    def on_trial_result(self, *_: Any, **__: Any) -> None:
        self.last = time.perf_counter()
        self.first = self.first or self.last
        self.count += 1

    @property
    def seconds(self) -> float:
        """Return the seconds from the first report to the last."""
        return self.last - self.first
