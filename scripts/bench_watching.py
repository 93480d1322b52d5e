"""What it costs a sweep to be watched in the browser, on the same machine.

    PYTHONPATH=. python scripts/bench_watching.py [--rounds 4] [--trials 200] [--validations 20000]

A large sweep grows by five scores a second, and another one runs as fast as it can: all its time is
the driver's, as its training and validation take none. That is measured: results per second alone,
with a server that has a reader of its stream, and with a server and the page in Chromium. The three
take turns, and begin with another one in each round. Printed are ratios to being alone, of each
round and their median; the ratio of the first half of the rounds alone to the second is the noise.
For the page, the latency is from a score's line in the journal until it stands in the page.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench_serve import TOKEN, Writer, cpu_s, listen, memory_mb, served
from ray.tune.schedulers import FIFOScheduler

from tests.chromium import CHROMIUM, Chromium
from tests.sweeps import sweep

# A score follows another after so many seconds; a page that is opened is left alone for so many.
_EACH_S, _WARM_S = 0.2, 15
_BARE, _SERVED, _SEEN = "alone", "with a server", "with server and page"

# Notes when each score is in the table of the page, in seconds since 1970.
_NOTES = """
window.seen = {};
const note = () => document.querySelectorAll("#trials td.last").forEach((cell) => {
  window.seen[cell.dataset.value] ??= Date.now() / 1000;
});
new MutationObserver(note).observe(document.querySelector("#main"),
  {subtree: true, childList: true, attributes: true, characterData: true});
note();
"""


def results_per_s(trials: int) -> float:
    """Run a sweep whose every report is validated, and return how fast that was."""
    command = [sys.executable, __file__, "--run", str(trials)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(ran.stdout.splitlines()[-1])


def run(trials: int) -> None:
    """Be the process of such a sweep."""
    with tempfile.TemporaryDirectory() as folder:
        made = sweep(Path(folder), FIFOScheduler(), trials=trials, listening=False, run=False)
        made.validation.config.every = 1
        began = time.perf_counter()
        made.sweep.run()
        took = time.perf_counter() - began
        print(sum(made.lengths().values()) / took)


class Growing:
    """A sweep that grows, and when each of its scores was written."""

    _scores = itertools.count(1)  # so that none is twice in a journal

    def __init__(self, writer: Writer):
        self._writer, self._over = writer, threading.Event()
        self.written: dict[str, float] = {}
        self._thread = threading.Thread(target=self._grow, daemon=True)
        self._thread.start()

    def _grow(self) -> None:
        trials = list(self._writer.reached)
        while not self._over.wait(_EACH_S):
            n = next(self._scores)
            value = 0.5 + n / 1e6
            self._writer.score(trials[n % len(trials)], value)
            self.written[repr(value)] = time.time()

    def close(self) -> None:
        self._over.set()
        self._thread.join()


@contextlib.contextmanager
def read(port: int, page: str) -> Iterator[None]:
    """Read the stream of a page, as a browser does, without being one."""
    over = threading.Event()
    where = f"{page}/events?since="
    reader = threading.Thread(target=listen, args=(port, where, {}, over), daemon=True)
    reader.start()
    time.sleep(_WARM_S)  # it is read, and all is drawn for the first time
    yield
    over.set()


def measured(
    how: str, home: Path, writer: Writer, trials: int, told: dict[str, list[float]]
) -> float:
    """Return how fast the sweep runs, and note what the server takes meanwhile."""
    with contextlib.ExitStack() as stack:
        pid = None
        if how != _BARE:
            pid, port, page = stack.enter_context(served(home))
        if how == _SERVED:
            stack.enter_context(read(port, page))
        if how == _SEEN:
            browser = stack.enter_context(Chromium())
            tab = browser.tab()
            tab.open(f"http://127.0.0.1:{port}{page}?token={TOKEN}")
            time.sleep(_WARM_S)
            tab.run(f"(() => {{{_NOTES}}})()")
        growing = Growing(writer)
        used, since = cpu_s(pid) if pid else 0.0, time.perf_counter()
        speed = results_per_s(trials)
        passed = time.perf_counter() - since
        if pid:
            told.setdefault(f"server, cores, {how}", []).append((cpu_s(pid) - used) / passed)
        growing.close()
        if how == _SEEN:
            time.sleep(5)
            seen = tab.run("window.seen")
            late = [seen[v] - at for v, at in growing.written.items() if v in seen]
            told.setdefault("latency, s", []).extend(late)
            told.setdefault("scores written", []).append(len(growing.written))
            told.setdefault("of which seen", []).append(len(late))
        if pid:
            told.setdefault("memory of the server, MB", []).append(memory_mb(pid))
        return speed


def main() -> None:
    """Take turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--trials", type=int, default=200, help="of the sweep that is watched")
    parser.add_argument("--validations", type=int, default=20_000, help="likewise")
    parser.add_argument("--measured", type=int, default=150, help="trials of the one that runs")
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run is not None:
        run(given.run)
        return
    kinds = [_BARE, _SERVED, *([_SEEN] if CHROMIUM else [])]
    speeds: dict[str, list[float]] = {kind: [] for kind in kinds}
    told: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "sweep")
        writer = Writer(home, given.trials)
        writer.fill(given.validations)
        for n in range(given.rounds):
            for kind in [*kinds[n % len(kinds) :], *kinds[: n % len(kinds)]]:
                speeds[kind].append(measured(kind, home, writer, given.measured, told))
                print(f"round {n + 1}, {kind}: {speeds[kind][-1]:.0f} results/s", flush=True)
        writer.close()
    for kind in kinds[1:]:
        ratios = [one / bare for one, bare in zip(speeds[kind], speeds[_BARE], strict=True)]
        rounds = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"{kind:32} {statistics.median(ratios):8.2f}  of: {rounds}")
    bare, half = speeds[_BARE], max(1, given.rounds // 2)
    noise = statistics.mean(bare[:half]) / statistics.mean(bare[-half:])
    print(f"{'noise: alone against alone':32} {noise:8.2f}")
    for name, values in told.items():
        values.sort()
        p95 = values[math.ceil(0.95 * len(values)) - 1]
        print(f"{name:44} {statistics.median(values):8.2f}, p95 {p95:.2f}, max {values[-1]:.2f}")


if __name__ == "__main__":
    main()
