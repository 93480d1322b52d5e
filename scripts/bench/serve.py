"""Measure the delay of scores on the live page, and the server's load.

    python -m scripts.bench.serve [--trials 200] [--validations 20000] [--live 60]

The script first writes most of a journal. It then reads the page's stream while the remaining
validations are added, several per second. The latency is the time from the line in the journal to
the ranking in the stream. Server, writer and reader are three processes on this machine.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import math
import os
import random
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.bench.harness import arguments, trial, validated
from tunekit.journal.journal import Journal
from tunekit.journal.storage import LocalFolder

# The number of reports per second in the live part.
_EACH_S = 0.2


class Writer:
    """Writes the journal of a sweep that was never run."""

    def __init__(self, home: Path, trials: int):
        about = {"time": time.time(), "required": ["accuracy"], "mode": "max"}
        self._journal = Journal(LocalFolder(home), about=about)
        self._draw = random.Random(0)
        self.reached = {f"a1b2c_{n:05d}": 0 for n in range(trials)}
        for trial_id in self.reached:
            self._journal.append(trial(trial_id, self._draw, time.time()))

    def score(self, trial_id: str, value: float | None = None) -> None:
        """Record a trial's report and the validation of its checkpoint."""
        iteration = self.reached[trial_id] = self.reached[trial_id] + 1
        if value is None:
            value = 1 - math.exp(-iteration / 50) + self._draw.random() / 50
        for event in validated(trial_id, iteration, value, time.time()):
            self._journal.append(event)

    def fill(self, validations: int) -> None:
        """Write the first ``validations`` scores."""
        trials = list(self.reached)
        for n in range(validations):
            self.score(trials[n % len(trials)])

    def close(self) -> None:
        self._journal.close()


#: The token of the measured server.
TOKEN = secrets.token_urlsafe(32)


def cookie(port: int) -> dict[str, str]:
    """Return the cookie of a browser that has sent the token."""
    return {"Cookie": f"tunekit-{port}={TOKEN}"}


def listen(port: int, page: str, seen: dict[str, float], over: threading.Event) -> None:
    """Read the stream as a browser does; record when each score, as text, appears in it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers, version = {"Accept-Encoding": "gzip"} | cookie(port), ""

    def get(path: str) -> bytes:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        text = answer.read()
        return gzip.decompress(text) if answer.headers["content-encoding"] == "gzip" else text

    while not over.is_set():
        news = json.loads(get(f"{page}/news?since={version}"))
        now, version = time.perf_counter(), news["version"]
        for value in re.findall(
            r'data-value="([^"]*)" class="last"', "".join(news["parts"].values())
        ):
            seen.setdefault(value, now)
        for name in news["charts"]:
            get(f"{page}/chart?id={name}")
        time.sleep(0.0 if news["more"] else 0.5)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """Return the memory of a process, in MB (Linux)."""
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return resident * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextlib.contextmanager
def served(home: Path) -> Iterator[tuple[int, int, str]]:
    """Serve a sweep; yield the process, the port and the path of its page."""
    command = [sys.executable, "-m", "tunekit", "serve", str(home), "--port", "0"]
    environment = {**os.environ, "TUNEKIT_SERVE_TOKEN": TOKEN}
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    assert server.stdout is not None
    try:
        port = int(re.search(r":(\d+)/", server.stdout.readline())[1])  # type: ignore[index]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.request("GET", "/", headers=cookie(port))
        answer = connection.getresponse()
        answer.read()
        yield server.pid, port, str(answer.headers["location"])
    finally:
        server.terminate()
        server.wait()


def measure(home: Path, writer: Writer, live: int) -> dict[str, float]:
    """Serve the sweep, write further scores, and return the measurements."""
    with served(home) as (pid, port, page):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        began = time.perf_counter()
        connection.request("GET", page, headers=cookie(port))
        connection.getresponse().read()
        first_s = time.perf_counter() - began
        seen: dict[str, float] = {}
        over = threading.Event()
        reader = threading.Thread(target=listen, args=(port, page, seen, over), daemon=True)
        reader.start()
        time.sleep(10)  # the charts are drawn for the first time
        used, since = cpu_s(pid), time.perf_counter()
        written: dict[str, float] = {}
        trials = list(writer.reached)
        for n in range(live):
            value = 0.5 + (n + 1) / 1e6
            writer.score(trials[n % len(trials)], value)
            written[repr(value)] = time.perf_counter()
            time.sleep(_EACH_S)
        passed = time.perf_counter() - since
        busy = (cpu_s(pid) - used) / passed
        time.sleep(5)
        over.set()
        idle_from, since = cpu_s(pid), time.perf_counter()
        time.sleep(5)
        idle = (cpu_s(pid) - idle_from) / (time.perf_counter() - since)
        late = sorted(seen[value] - at for value, at in written.items() if value in seen)
        return {
            "first page, s": first_s,
            "scores": float(len(written)),
            "of which seen": float(len(late)),
            "latency p50, s": statistics.median(late),
            "latency p95, s": late[math.ceil(0.95 * len(late)) - 1],
            "latency max, s": late[-1],
            "CPU while scores come, cores": busy,
            "CPU while nothing comes, cores": idle,
            "memory, MB": memory_mb(pid),
        }


def main() -> None:
    asked = arguments(__doc__, trials=200, validations=20_000, live=150)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "sweep")
        writer = Writer(home, asked.trials)
        writer.fill(asked.validations - asked.live)
        for name, value in measure(home, writer, asked.live).items():
            print(f"{name:32} {value:8.2f}")
        writer.close()


if __name__ == "__main__":
    main()
