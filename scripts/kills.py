"""Repeatedly kill the driver of a sweep with SIGKILL, restore the sweep, and compare the results.

Four sweeps run on a Ray cluster that outlives them: FIFO with ``on_pending="continue"``, and ASHA
with one trial at a time, synchronous PBT and HyperBand, all with ``"wait"``. Each must produce the
same scores, decisions and exploits as the same sweep without kills.

A driver is killed at a random moment, or at a write. For the latter, one session records the files
that it writes in place more than once, and later sessions die in one of these writes, with half of
its bytes written. Only kills of restored sessions count. This needs a C compiler.

    PYTHONPATH=. python scripts/kills.py --at random --kills 30
    PYTHONPATH=. python scripts/kills.py --at writes --kills 36 --sweeps pbt-wait
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler, PopulationBasedTraining

import tunekit
from scripts.bench.harness import arguments, start_ray
from tests.support.invariants import JournalSummary, check_journal
from tunekit.core.events import SnapshotTaken, TrialAdded
from tunekit.journal.journal import events_in

SWEEPS = ("fifo-continue", "asha-wait", "pbt-wait", "hyperband-wait")

# Loaded before the C library: it writes half of the KILLS_NTH write to a file that KILLS_FILE
# matches, and kills the process.
TORN = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

ssize_t write(int fd, const void *data, size_t size) {
    static ssize_t (*real)(int, const void *, size_t);
    static int writes;
    if (!real) real = dlsym(RTLD_NEXT, "write");
    const char *file = getenv("KILLS_FILE");
    if (file && size) {
        char link[64], path[4096];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, path, sizeof path - 1);
        if (length > 0) {
            path[length] = 0;
            if (!fnmatch(file, path, 0)
                && __sync_add_and_fetch(&writes, 1) == atoi(getenv("KILLS_NTH"))) {
                real(fd, data, size / 2);
                int hit = open(getenv("KILLS_HIT"), O_WRONLY | O_CREAT, 0644);
                dprintf(hit, "%s: %zu of %zu bytes", path, size / 2, size);
                kill(getpid(), SIGKILL);
                pause();
            }
        }
    }
    return real(fd, data, size);
}
"""


class Slow(tune.Trainable):
    """A trainable whose weights are a number that training moves towards 1."""

    def setup(self, config: dict[str, Any]) -> None:
        self.weights = 0.0

    def step(self) -> dict[str, Any]:
        time.sleep(0.03)
        self.weights += self.config["lr"] * (1 - self.weights)
        return {"weights": self.weights, "done": self.iteration + 1 >= 4}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "weights.json").write_text(json.dumps(self.weights))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.weights = json.loads(Path(checkpoint_dir, "weights.json").read_text())

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.weights = 0.0
        return True


def validate(checkpoint: tune.Checkpoint) -> dict[str, float]:
    time.sleep(0.03)
    with checkpoint.as_directory() as directory:
        return {"accuracy": json.loads(Path(directory, "weights.json").read_text())}


def lower(config: dict[str, Any]) -> dict[str, Any]:
    """Replace PBT's random mutations, so that sweeps are deterministic."""
    return {**config, "lr": config["line"]}


def tuner(name: str, folder: str) -> tunekit.Tuner:
    asha = ASHAScheduler(max_t=4, grace_period=1, reduction_factor=2)
    hyperband = HyperBandScheduler(max_t=4, reduction_factor=2)
    pbt = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=1,
        hyperparam_mutations={"lr": [0.1]},
        custom_explore_fn=lower,
        quantile_fraction=0.25,
        synch=True,
        log_config=False,
    )
    rates = tune.grid_search([0.1, 0.25, 0.15, 0.3])  # a quarter of four is one
    return tunekit.Tuner(
        Slow,
        param_space={"lr": rates, "line": tune.sample_from(lambda spec: spec.config.lr + 0.01)},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            scheduler={"pbt": pbt, "asha": asha, "hyperband": hyperband, "fifo": None}[
                name.split("-")[0]
            ],
            max_concurrent_trials=1 if name == "asha-wait" else None,
            reuse_actors=name in ("fifo-continue", "asha-wait"),
        ),
        run_config=tune.RunConfig(
            name=name,
            storage_path=folder,
            verbose=0,
            sync_config=tune.SyncConfig(sync_period=0),  # each time that Tune saves
        ),
        validation_config=tunekit.ValidationConfig(
            fn=validate, on_pending=name.split("-")[1], ray_remote_kwargs={"num_cpus": 1}
        ),
        checkpoint_policy=tunekit.EveryIterations(1),
    )


def live(name: str, folder: str, address: str, aim: tuple[str, int] | None) -> None:
    """Run a driver until it ends or, with ``aim``, dies in that write to a file of that kind."""
    os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = "0.3"
    with Path(folder, "driver.log").open("a") as log:
        sys.stdout = sys.stderr = log
        print(tunekit.__file__, flush=True)
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        path = str(Path(folder, name))
        if aim is not None:
            os.environ["KILLS_NTH"], os.environ["KILLS_HIT"] = str(aim[1]), f"{folder}/hit"
            os.environ["KILLS_FILE"] = f"{path}/{aim[0]}"
        if tunekit.Tuner.can_restore(path):
            sweep = tunekit.Tuner.restore(path, Slow)
        else:
            shutil.rmtree(path, ignore_errors=True)  # nothing had started
            sweep = tuner(name, folder)
        results = sweep.fit()
        Path(folder, "done").write_text(str(len(results)))


def kind_of(path: Path) -> str:
    """Return a pattern for a file's name in every sweep and session."""
    return "/".join(
        "Slow_*" if part.startswith("Slow_") else re.sub(r"\d[\d_-]*", "*", part)
        for part in path.parts
    )


class Sessions:
    """The sessions of consecutive sweeps, and how they died.

    Attributes:
        kills: The number of restored sessions that were killed, by cause.
        rewritten: The most times that a session has rewritten a file in place, by kind of file.
        lives: The number of sessions.
    """

    def __init__(self, name: str, address: str, draw: random.Random):
        self.name, self._address, self._draw = name, address, draw
        self.kills: Counter[str] = Counter()
        self.rewritten: Counter[str] = Counter()
        self.lives = 0
        self._missed: Counter[str] = Counter()
        self._length = 0.0  # of a sweep without kills
        self._context = multiprocessing.get_context("forkserver")

    def undisturbed(self, folder: Path) -> None:
        """Run a sweep to its end."""
        folder.mkdir(parents=True)
        began = time.monotonic()
        self._session(folder, 300, watch=True)
        self._length = time.monotonic() - began
        if not (folder / "done").exists():
            raise RuntimeError(f"{self.name} does not end: see {folder / 'driver.log'}")

    def disturbed(self, folder: Path, kills: int, at: str) -> None:
        """Run a sweep to its end, killing its sessions at most ``kills`` times."""
        folder.mkdir(parents=True)
        kills += self.kills.total()
        failed = 0
        while not (folder / "done").exists():
            restored = self._is_restored(folder)
            aim = None
            patience = 300.0
            if self.kills.total() < kills:
                if not restored:  # it must leave something to restore
                    patience = self._draw.uniform(0, self._length / 4)
                elif at == "random":
                    patience = self._draw.uniform(0.5, self._length)
                elif self.rewritten:
                    aim = self._aim()
            died = self._session(folder, patience, aim, watch=restored and aim is None)
            if died is not None and restored:
                self.kills[died] += 1
                print(f"    {self.name}: killed at {died}", flush=True)
            if aim is not None and died is None:
                self._missed[aim[0]] += 1
            failed = failed + 1 if died is None and not (folder / "done").exists() else 0
            if failed > 2:
                raise RuntimeError(f"{self.name} does not end: see {folder / 'driver.log'}")

    def _is_restored(self, folder: Path) -> bool:
        path = folder / self.name
        return path.is_dir() and any(isinstance(e, SnapshotTaken) for e in events_in(path))

    def _aim(self) -> tuple[str, int]:
        """Return the kind of file that was tried least often, and one of its writes."""
        tried = {kind: self.kills[kind] + self._missed[kind] for kind in self.rewritten}
        kind = self._draw.choice([k for k, n in tried.items() if n == min(tried.values())])
        return kind, 1 if self._missed[kind] else self._draw.randint(1, self.rewritten[kind])

    def _session(
        self,
        folder: Path,
        patience: float,
        aim: tuple[str, int] | None = None,
        *,
        watch: bool = False,
    ) -> str | None:
        """Run a session, and return the cause if it was killed; otherwise None."""
        (folder / "hit").unlink(missing_ok=True)
        self.lives += 1
        process = self._context.Process(
            target=live, args=(self.name, str(folder), self._address, aim)
        )
        process.start()
        seen: dict[Path, tuple[int, int, int]] = {}
        again: Counter[Path] = Counter()
        while patience < 300 and process.is_alive() and not self._is_restored(folder):
            process.join(0.2)
        until = time.monotonic() + patience
        while process.is_alive() and time.monotonic() < until:
            if not watch:
                process.join(until - time.monotonic())
                continue
            for path in (folder / self.name).rglob("*"):
                try:
                    found = path.stat()
                except FileNotFoundError:
                    continue
                state = found.st_ino, found.st_size, found.st_mtime_ns
                if path.is_file() and seen.get(path, state) != state:
                    again[path] += seen[path][0] == found.st_ino
                seen[path] = state
            process.join(0.01)
        for path, times in again.items():
            kind = kind_of(path.relative_to(folder / self.name))
            if times:
                self.rewritten[kind] = max(self.rewritten[kind], times)
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            return "random"
        if (folder / "hit").exists() and aim is not None:
            with (folder / "hits").open("a") as hits:
                hits.write((folder / "hit").read_text() + "\n")
            return aim[0]
        return None


def came_to(folder: Path, name: str) -> JournalSummary:
    """The results of a sweep, with its trials by number."""
    events = events_in(folder / name)
    lives = check_journal(events)
    trials = [event.trial_id for event in events if isinstance(event, TrialAdded)]
    number = {trial: str(trials.index(trial)) for trial in trials}

    def numbered(place: str) -> str:
        trial, _, rest = place.partition(":")
        return f"{number[trial]}:{rest}"

    lives.scores = {numbered(place): score for place, score in lives.scores.items()}
    lives.decisions = [(numbered(place), decision) for place, decision in lives.decisions]
    lives.exploits = sorted(
        (
            {
                "trial": number[exploit.trial_id],
                "donor": number[exploit.donor_id],
                **{
                    known: getattr(exploit, known)
                    for known in ("generation", "iteration", "config")
                },
            }
            for exploit in lives.exploits
        ),
        key=lambda exploit: (exploit["trial"], exploit["generation"]),
    )
    return lives


def best_of(lives: JournalSummary) -> set[str]:
    """Return the best trial, or several if clones are equally good."""
    best = max(score["accuracy"] for score in lives.scores.values())
    return {place.split(":")[0] for place, s in lives.scores.items() if s["accuracy"] == best}


def differs(name: str, lives: JournalSummary, expected: JournalSummary) -> list[str]:
    """Return the results in which a sweep differs."""
    pairs = {
        "scores": (lives.scores, expected.scores),
        "exploits": (lives.exploits, expected.exploits),
        "best trial": (best_of(lives), best_of(expected)),
    }
    if name == "asha-wait":
        pairs["decisions"] = (lives.decisions, expected.decisions)
    elif name == "fifo-continue":  # the trials train concurrently
        pairs["decisions"] = (sorted(lives.decisions), sorted(expected.decisions))
    else:  # whichever trial of a population is validated last lets the population continue
        pairs["decided"] = ({p for p, _ in lives.decisions}, {p for p, _ in expected.decisions})
    return [what for what, (one, other) in pairs.items() if one != other]


def main() -> int:
    options = arguments(__doc__, kills=36, at="random", seed=0, sweeps=list(SWEEPS))
    draw = random.Random(options.seed)
    scratch = Path(tempfile.mkdtemp(prefix="tunekit-kills-"))
    start_ray(6)
    address = ray.get_runtime_context().gcs_address
    multiprocessing.set_forkserver_preload(["kills", "tunekit"])
    if options.at == "writes":
        torn = scratch / "torn.so"
        compile_it = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(torn), "-ldl"]
        subprocess.run(compile_it, input=TORN.encode(), check=True)
        os.environ["LD_PRELOAD"] = str(torn)
    forkserver.ensure_running()
    os.environ.pop("LD_PRELOAD", None)
    wrong = 0
    try:
        for name in options.sweeps:
            sessions = Sessions(name, address, draw)
            sessions.undisturbed(scratch / f"{name}-undisturbed")
            expected = came_to(scratch / f"{name}-undisturbed", name)
            sweeps = running = 0
            began = time.monotonic()
            while sessions.kills.total() < options.kills:
                folder = scratch / f"{name}-{sweeps}"
                sessions.disturbed(folder, options.kills - sessions.kills.total(), options.at)
                lives = came_to(folder, name)
                running += lives.running
                print(f"    {name}: sweep {sweeps} ended and was checked", flush=True)
                sweeps += 1
                for what in differs(name, lives, expected):
                    wrong += 1
                    print(f"{name}: different {what} in {folder}")
            print(
                f"{name}: {sessions.kills.total()} kills of restored sessions, {sweeps} sweeps in "
                f"{sessions.lives} sessions, {len(expected.scores)} scores and "
                f"{len(expected.exploits)} exploits without kills; {running} validations were "
                f"running at a kill and ran again; {time.monotonic() - began:.0f} s"
            )
            print(f"    killed at: {dict(sessions.kills)}")
            print(f"    rewritten in place: {dict(sessions.rewritten)}", flush=True)
    finally:
        ray.shutdown()
    print("no differences" if not wrong else f"{wrong} differences")
    if not wrong:
        shutil.rmtree(scratch)
    return 1 if wrong else 0


if __name__ == "__main__":
    # Drivers and workers import this file by its name, and the same tunekit as this process.
    here = Path(__file__).resolve().parent
    known = [str(here), str(here.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, known))
    import kills

    sys.exit(kills.main())
