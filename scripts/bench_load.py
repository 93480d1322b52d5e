"""How long it takes to read a sweep: ``tunekit.load`` and its tables, beside the bare JSON.

Writes the journal of a sweep of many trials and iterations, each validated, and reads it. The floor
is ``json.loads`` of each line, and nothing else. Printed are seconds and ratios of this one run.

    python scripts/bench_load.py
    python scripts/bench_load.py --trials 100 --iterations 1000
"""

from __future__ import annotations

import gc
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import arguments

import tunekit
from tunekit.board.page import write_page
from tunekit.core.events import (
    AttemptBegan,
    AttemptStarted,
    CheckpointSaved,
    EndDelivered,
    Reported,
    ScoreDelivered,
    SessionClosed,
    TrialAdded,
    TrialEnded,
    ValidationEnded,
    ValidationRequested,
)
from tunekit.core.validation import Outcome, Request, Status
from tunekit.journal.lines import Journal
from tunekit.journal.storage import LocalFolder

TABLES = ("trials", "reports", "validations", "decisions")


def write(folder: Path, trials: int, iterations: int) -> None:
    """Write the journal of a sweep in which trials take turns."""
    about = {"judged": ["accuracy"], "mode": "max"}
    journal = Journal(LocalFolder(folder), about=about)
    now, names = 1.7e9, [f"s_{number:05d}" for number in range(trials)]
    for name in names:
        config = {"lr": 10 ** -random.uniform(1, 4), "width": random.choice([4, 8, 16])}
        record = ["x" * 3000, ""]
        journal.append(
            TrialAdded(time=now, trial_id=name, config=config, folder=f"train_{name}", tune=record)
        )
    for iteration in range(1, iterations + 1):
        for name in names:
            now += 0.01
            report = {
                "loss": random.random(),
                "training_iteration": iteration,
                "generation": 0,
                "time_this_iter_s": 0.5,
                "time_total_s": 0.5 * iteration,
                "timestamp": int(now),
                "hostname": "localhost",
            }
            request = Request(name, iteration, report=report)
            score = {"accuracy": random.random(), "loss": random.random()}
            outcome = Outcome(request, Status.VALIDATED, score, attempts=1, waited_s=0.1, ran_s=1.0)
            where = f"./train_{name}/checkpoint_{iteration:06d}"
            journal.append(Reported(time=now, trial_id=name, report=report, offered=True))
            journal.append(CheckpointSaved.of(request, now, checkpoint=where, used=True))
            journal.append(ValidationRequested.of(request, now, checkpoint=where))
            journal.append(AttemptStarted(time=now + 0.05, id=request.id, attempt=1))
            journal.append(AttemptBegan(time=now + 0.1, id=request.id, attempt=1))
            journal.append(ValidationEnded.of(outcome, now + 1.1))
            journal.append(ScoreDelivered.of(request, "CONTINUE", now + 1.1))
    for name in names:
        journal.append(TrialEnded(time=now + 2, trial_id=name))
        journal.append(EndDelivered(time=now + 2, trial_id=name))
    journal.append(SessionClosed(time=now + 2, finished=True))
    journal.close()


def bare(folder: Path) -> list[Any]:
    """The lines, and nothing made of them."""
    gc.disable()
    try:
        [file] = (folder / "journal").glob("*.jsonl")
        return [json.loads(line) for line in file.read_bytes().splitlines()]
    finally:
        gc.enable()


def timed(what: str, call: Callable[[], Any], floor: float | None = None) -> tuple[Any, float]:
    """Call, and print how long it took."""
    began = time.perf_counter()
    result = call()
    took = time.perf_counter() - began
    print(f"{what:28} {took:6.2f} s" + ("" if floor is None else f"   {took / floor:5.2f}"))
    return result, took


def main() -> None:
    """Write, read, and print."""
    options = arguments(__doc__, trials=1000, iterations=100)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, options.trials, options.iterations)
        size = sum(file.stat().st_size for file in (folder / "journal").iterdir()) / 1e6
        print(f"{options.trials} trials of {options.iterations} iterations: {size:.0f} MB")
        lines, floor = timed("bare JSON", lambda: bare(folder))
        print(f"{len(lines)} lines")
        del lines
        sweep, loaded = timed("tunekit.load", lambda: tunekit.load(folder), floor)
        each = [timed(f"  .{table}", lambda t=table: getattr(sweep, t))[1] for table in TABLES]
        print(f"{'all of it':28} {loaded + sum(each):6.2f} s   {(loaded + sum(each)) / floor:5.2f}")
        timed("best()", sweep.best)
        timed("the report", lambda: write_page(sweep, folder / "report.html"))
        print(f"{(folder / 'report.html').stat().st_size / 1e6:27.1f} MB")


if __name__ == "__main__":
    main()
