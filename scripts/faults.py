"""Kill or terminate each process of a sweep except its driver, and check how the sweep ends.

    python scripts/faults.py                    # all cases
    python scripts/faults.py trial evaluator    # cases whose names contain one of these words

Each case is a sweep of three trials with one fault, on its own Ray cluster. The table shows the
driver's exit code, and the seconds from the fault to its end; the number of scores, of nine; the
numbers of retried trials and validations; and what was left: child processes, actors and placement
groups after the end of the sweep while its driver still ran, and processes after the driver's end.
A sweep whose driver ends is restored. The exit status is 0 if each sweep ends with all scores, each
processed once, and leaves nothing behind.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

THIS = Path(__file__).resolve()
ROOT = THIS.parents[1]
sys.path[:0] = [str(ROOT), str(THIS.parent)]
os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

import ray  # noqa: E402
from ray import train, tune  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402
from ray.util.placement_group import placement_group_table  # noqa: E402

import tunekit  # noqa: E402
from tests.support import forked_workers  # noqa: E402
from tests.support.invariants import check_journal  # noqa: E402
from tunekit.core.events import AttemptBegan, TrialRetried, ValidationEnded  # noqa: E402
from tunekit.journal.journal import events_in  # noqa: E402

KILL, TERM = signal.SIGKILL, signal.SIGTERM
TRIALS, ITERATIONS, EVERY = 3, 6, 2
SCORES = TRIALS * ITERATIONS // EVERY
LIMIT_S, GRACE_S, WORK_S = 180, 15, 0.3
#: The environment variable with the folder of a case.
FOLDER = "TUNEKIT_FAULTS"


@dataclass(frozen=True)
class Case:
    """One sweep and its fault.

    Attributes:
        name: Its name in the table.
        victim: The role of the process that receives a signal; None: there is no signal.
        number: The signal.
        after: The role whose processes must note something first; by default, the victim's.
        at: The number of these notes.
        trials: The kind of trial: ``function``, ``class`` or ``trainer``.
        validation: Where validations run: ``task``, ``evaluators`` or ``trainer``.
        first: The fault in the first validation (``hang-...``, ``eat``) or trial (``eat-trial``).
        nodes: The number of nodes in the cluster.
        ends: Whether the driver ends with the fault, so that the sweep must be restored.
        children: The number of processes that are left, because tunekit cannot know of them.
    """

    name: str
    victim: str | None
    number: int = KILL
    after: str | None = None
    at: int = 3
    trials: str = "function"
    validation: str = "task"
    first: str = ""
    nodes: int = 1
    ends: bool = False
    children: int = 0


def cases() -> Iterator[Case]:
    for trials in ("function", "class", "trainer"):
        yield Case(f"nothing, {trials}", None, trials=trials)
    yield Case("nothing, evaluators of a trainer", None, validation="trainer")
    for sent in (KILL, TERM):
        did = "killed" if sent == KILL else "terminated"
        yield Case(f"trial of a function {did}", "trial", sent)
        yield Case(f"trial of a class {did}", "trial", sent, trials="class")
        yield Case(f"validation {did}", "validation", sent)
        yield Case(f"evaluator {did}", "validation", sent, validation="evaluators")
        yield Case(f"validation worker {did}", "validation", sent, validation="trainer")
        yield Case(f"trainer worker {did}", "worker", sent, at=7, trials="trainer")
        yield Case(f"trainer trial {did}", "actor", sent, after="worker", at=7, trials="trainer")
        yield Case(f"raylet {did}", "raylet", sent, after="validation", ends=True)
        yield Case(f"other raylet {did}", "other", sent, after="validation", nodes=2)
    for child in ("fork", "subprocess", "session", "spawn"):
        yield Case(
            f"validation with {child} killed",
            "validation",
            at=1,
            first=f"hang-{child}",
            children=child == "session",  # which leaves the process group that Ray terminates
        )
        yield Case(f"validation with {child} hangs", None, first=f"hang-{child}")
    evaluators = {"validation": "evaluators", "first": "hang-subprocess"}
    yield Case("evaluator with subprocess killed", "validation", at=1, **evaluators)  # type: ignore
    yield Case("evaluator with subprocess hangs", None, **evaluators)  # type: ignore
    yield Case("trial with subprocess killed", "trial", first="child-trial")
    yield Case("validation out of memory", None, first="eat")
    yield Case("evaluator out of memory", None, first="eat", validation="evaluators")
    yield Case("trial out of memory", None, first="eat-trial")
    yield Case("driver killed", "driver", after="validation", ends=True)


# Notes of processes ------------------------------------------------------------------------------


def begun(process: int) -> str | None:
    """Return when a process began, by the machine's clock; None if it is not running."""
    with contextlib.suppress(OSError):
        told = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return None if told[0] in "ZX" else told[19]
    return None


def note(role: str, process: int | None = None) -> None:
    """Note that a process, by default this one, has a role in the sweep."""
    process = process or os.getpid()
    with Path(os.environ[FOLDER], "notes").open("a") as file:
        file.write(f"{role} {process} {begun(process)}\n")


def noted(folder: Path, *roles: str, alive: bool = True) -> list[int]:
    """Return the processes with these roles, or with any; each is listed once for each note."""
    try:
        lines = [line.split() for line in (folder / "notes").read_text().splitlines()]
    except FileNotFoundError:
        return []
    return [
        int(process)
        for role, process, since in lines
        if (not roles or role in roles) and (not alive or begun(int(process)) == since)
    ]


def is_first(what: str) -> bool:
    """Return whether this is the first call with this name."""
    try:
        Path(os.environ[FOLDER], what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def misbehave(how: str) -> None:
    """Use more and more memory, or start a child process and possibly hang."""
    if how.startswith("eat"):
        eaten = []
        while True:
            eaten.append(bytearray(os.urandom(1 << 10) * (50 << 10)))
            time.sleep(0.02)
    kind = how.partition("-")[2]
    if kind == "fork":
        child = os.fork()
        if not child:
            time.sleep(600)
            os._exit(0)
    elif kind == "spawn":
        started = multiprocessing.get_context(kind).Process(target=time.sleep, args=(600,))
        started.start()
        child = int(started.pid or 0)
    else:
        child = subprocess.Popen(["sleep", "600"], start_new_session=kind == "session").pid
    note("child", child)
    if how.startswith("hang"):
        note("validation")
        time.sleep(600)


# The sweep ---------------------------------------------------------------------------------------


def trained(weights: float, config: dict[str, Any], role: str = "trial") -> float:
    """Return the weights after one more step."""
    if config["first"].endswith("-trial") and weights and is_first("misbehaved"):
        misbehave(config["first"])
    note(role)
    time.sleep(WORK_S)
    return weights + config["lr"] * (1 - weights)


def steps(weights: float, config: dict[str, Any]) -> int:
    """Return the number of steps that led to these weights."""
    known, count = 0.0, 0
    while known < weights:
        known, count = known + config["lr"] * (1 - known), count + 1
    return count


def weights_in(checkpoint: Any) -> float:
    if checkpoint is None:
        return 0.0
    with checkpoint.as_directory() as directory:
        return float(Path(directory, "weights").read_text())


@contextlib.contextmanager
def checkpoint_of(weights: float, *, due: bool) -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "weights").write_text(repr(weights))
        yield train.Checkpoint.from_directory(directory) if due else None


def function(config: dict[str, Any]) -> None:
    weights = weights_in(tune.get_checkpoint())
    tunekit.checkpoint_with(lambda folder: (folder / "weights").write_text(repr(weights)))
    for _ in range(steps(weights, config), ITERATIONS):
        weights = trained(weights, config)
        tune.report({"weights": weights})


class Class(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.weights = 0.0

    def step(self) -> dict[str, Any]:
        self.weights = trained(self.weights, self.config)
        return {"weights": self.weights, "done": self.iteration + 1 >= ITERATIONS}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "weights").write_text(repr(self.weights))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.weights = float(Path(checkpoint_dir, "weights").read_text())


def loop(config: dict[str, Any]) -> None:
    weights = weights_in(train.get_checkpoint())
    for iteration in range(steps(weights, config) + 1, ITERATIONS + 1):
        weights = trained(weights, config, "worker")
        with checkpoint_of(weights, due=iteration % EVERY == 0) as checkpoint:
            train.report({"weights": weights}, checkpoint=checkpoint)


def validate(checkpoint: Any, *, first: str) -> dict[str, float]:
    if first and not first.endswith("-trial") and is_first("misbehaved"):
        misbehave(first)
    note("validation")
    time.sleep(WORK_S)
    return {"accuracy": weights_in(checkpoint)}


class Evaluator:
    def __call__(self, checkpoint: Any, *, first: str) -> dict[str, float]:
        return validate(checkpoint, first=first)


def validation_loop(config: dict[str, Any]) -> dict[str, float]:
    return validate(config["checkpoint"], first=config["first"])


class Notes(tune.Callback):
    """Notes the processes of trials."""

    def on_trial_result(self, *_: Any, result: dict[str, Any], **__: Any) -> None:
        note("actor", result["pid"])


def trainable_of(case: Case) -> Any:
    if case.trials == "class":
        return Class
    if case.trials == "function":
        return function
    from ray.train.torch import TorchTrainer

    return TorchTrainer(loop, scaling_config=train.ScalingConfig(num_workers=2))


def tuner_of(case: Case, folder: Path) -> tunekit.Tuner:
    rates = {"lr": tune.grid_search([0.1, 0.2, 0.3]), "first": case.first}
    options: dict[str, Any] = {}
    fn, own = validate, {"num_cpus": 1}
    if case.validation == "evaluators":
        fn = Evaluator  # type: ignore
    elif case.validation == "trainer":
        own = {"num_cpus": 0}
        fn = tunekit.distributed.TrainerValidation(  # type: ignore
            validation_loop,
            train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        )
    task = train.ValidationTaskConfig(
        fn_kwargs={"first": case.first}, timeout_s=5 if case.first.startswith("hang") else None
    )
    options["validation_config"] = tunekit.ValidationConfig(
        fn,
        task,
        own,
        max_retries=1,
        evaluators=1 if case.validation == "evaluators" else None,
    )
    if case.trials != "trainer":
        options["checkpoint_policy"] = tunekit.EveryIterations(EVERY)
    return tunekit.Tuner(
        trainable_of(case),
        param_space={"train_loop_config": rates} if case.trials == "trainer" else rates,
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            max_concurrent_trials=1 if case.trials == "trainer" else 2,
        ),
        run_config=tune.RunConfig(
            name="sweep",
            storage_path=str(folder),
            failure_config=tune.FailureConfig(max_failures=1),
            callbacks=[Notes()],
            verbose=0,
        ),
        **options,
    )


def start_ray(case: Case) -> None:
    if case.first.startswith("eat"):
        lines = Path("/proc/meminfo").read_text().splitlines()
        size = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
        used = 1 - size["MemAvailable"] / size["MemTotal"]
        threshold = used + 4e6 / size["MemTotal"]
        os.environ |= {
            "RAY_memory_usage_threshold": f"{threshold:.3f}",
            "RAY_memory_monitor_refresh_ms": "50",
        }
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if case.nodes == 1:
        ray.init("local", num_cpus=3, include_dashboard=False, **quiet)
        node = ray._private.worker._global_node
    else:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
        node = cluster.head_node
        other = cluster.add_node(num_cpus=2)
        note("other", other.all_processes["raylet"][0].process.pid)
        ray.init(cluster.address, **quiet)
    note("raylet", node.all_processes["raylet"][0].process.pid)


def alive(folder: Path) -> list[list[str]]:
    """Return the current child processes, actors and placement groups."""
    actors = ray._private.state.actors(actor_state_name="ALIVE").values()
    groups = placement_group_table().values()
    return [
        list(map(str, noted(folder, "child"))),
        [actor["ActorClassName"] for actor in actors if not actor["IsDetached"]],
        [group["name"] for group in groups if group["state"] != "REMOVED"],
    ]


def drive(case: Case, folder: Path) -> None:
    """Run or continue the sweep of a case; note what is left when it has ended."""
    os.environ[FOLDER] = str(folder)
    forked_workers.use()
    start_ray(case)
    note("driver")
    if tunekit.Tuner.can_restore(str(folder / "sweep")):
        sweep = tunekit.Tuner.restore(str(folder / "sweep"), trainable_of(case))
    else:
        sweep = tuner_of(case, folder)
    results = sweep.fit()
    ends = time.monotonic() + GRACE_S
    while any(left := alive(folder)) and time.monotonic() < ends:
        time.sleep(0.2)
    told = {
        "errors": [str(error).strip().splitlines()[-1] for error in results.errors],
        "left": left,
        "iterations": [result.metrics["training_iteration"] for result in results],
    }
    (folder / "outcome.json").write_text(json.dumps(told))
    ray.shutdown()


# The fault ---------------------------------------------------------------------------------------


def strike(case: Case, folder: Path, driver: subprocess.Popen[bytes]) -> None:
    """Wait for the moment of the fault, and send the signal."""
    ends = time.monotonic() + LIMIT_S
    while len(noted(folder, case.after or str(case.victim), alive=False)) < case.at:
        if driver.poll() is not None or time.monotonic() > ends:
            return
        time.sleep(0.02)
    time.sleep(WORK_S / 3)
    if victims := noted(folder, str(case.victim)):
        os.kill(victims[-1], case.number)


def lives(case: Case, folder: Path, *, fault: bool = False) -> tuple[int, float]:
    """Run a driver; return its exit code, and the seconds from the fault to its end."""
    with (folder / "driver.log").open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, str(THIS), "--drive", str(folder), case.name],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{THIS.parent}"},
            cwd=folder,
        )
        try:
            if fault and case.victim:
                strike(case, folder, driver)
            began = time.monotonic()
            return driver.wait(LIMIT_S), time.monotonic() - began
        except subprocess.TimeoutExpired:
            return 124, LIMIT_S
        finally:
            driver.kill()
            driver.wait()


def left_over(folder: Path) -> int:
    """Return the number of processes that remain some time after the driver's end."""
    ends = time.monotonic() + GRACE_S
    while (left := set(noted(folder))) and time.monotonic() < ends:
        time.sleep(0.2)
    for process in left:
        os.kill(process, KILL)
    return len(left)


def ran(case: Case, folder: Path) -> tuple[list[Any], list[str]]:
    """Run a case; return its row of the table, and the deviations from the expected results."""
    wrong = []
    status, seconds = lives(case, folder, fault=True)
    after = left_over(folder)
    ended = f"{status} in {seconds:.0f} s"
    log = (folder / "driver.log").read_text(errors="replace")
    if case.ends:
        told = case.victim in ("driver", "raylet") or "tunekit resume" in log
        if not told:
            wrong.append("does not say how to go on")
        status, _ = lives(case, folder)
        ended += f", then {status}"
    if status:
        wrong.append(f"ended with {status}")
    outcome = {"errors": [], "left": [[], [], []], "iterations": []}
    with contextlib.suppress(OSError):
        outcome = json.loads((folder / "outcome.json").read_text())
    if outcome["errors"]:
        wrong.append(f"trials failed: {outcome['errors']}")
    if any(outcome["left"][1:]) or (len(outcome["left"][0]), after) != (case.children,) * 2:
        wrong.append(f"is left: {outcome['left']}, {after}")
    events = events_in(folder / "sweep")
    retried = sum(isinstance(event, TrialRetried) for event in events)
    again = sum(isinstance(event, AttemptBegan) and event.attempt > 1 for event in events)
    ends = [event for event in events if isinstance(event, ValidationEnded)]
    reasons = [event.reason for event in ends if event.status != "validated"]
    scores = len(ends) - len(reasons)
    try:
        check_journal(events)
    except AssertionError as error:
        wrong.append(str(error))
    if scores != SCORES or reasons:
        wrong.append(f"{scores} scores; {reasons}")
    row = [case.name, ended, scores, f"{retried}/{again}", *map(len, outcome["left"]), after]
    return row, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="words in the names of cases; all by default")
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--keep", type=Path, help="keep the sweeps and their logs in this folder")
    asked = parser.parse_args()
    if asked.drive:
        case = next(case for case in cases() if case.name == " ".join(asked.words))
        # Use the module by its name, because Ray's workers import it.
        importlib.import_module(THIS.stem).drive(case, asked.drive)
        return 0
    shape = "{:36} {:>20} {:>9} {:>8} {:>9} {:>7} {:>7} {:>10}"
    heads = "case", "driver ended with", "scores", "retried", "children", "actors", "groups"
    print(shape.format(*heads, "processes"))
    home = asked.keep or Path(tempfile.mkdtemp(prefix="tk-"))
    failed = 0
    for number, case in enumerate(cases()):
        if asked.words and not any(word in case.name for word in asked.words):
            continue
        folder = home / str(number)
        folder.mkdir(parents=True)
        row, wrong = ran(case, folder)
        failed += bool(wrong)
        print(shape.format(*map(str, row)), *wrong, sep="\n    ", flush=True)
    if asked.keep is None and not failed:
        shutil.rmtree(home)
    print("all as expected" if not failed else f"{failed} not as expected; see {home}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
