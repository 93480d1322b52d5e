"""Call everything public with random and odd arguments, and print each raw traceback.

    python scripts/fuzz.py                                   # each list of calls, 5,000 times
    python scripts/fuzz.py --n 500 --seed 7 --what journals

- ``calls``: the public calls that read sweeps, with wrong types, odd paths, URIs and names.
- ``settings``: the public calls that set up, follow and restore sweeps, likewise.
- ``commands``: every command, in this process.
- ``journals``: every reader, of journals with odd values and right checksums.

A raw traceback is any exception but tunekit's own, ``SystemExit``, and errors of a storage that
name a file. Two are the same if the same line of tunekit raised the same type. Each is printed with
the smallest input that was found. The exit status is 1 if there is any.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import logging
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import pyarrow.fs  # noqa: E402
from ray import train, tune  # noqa: E402
from ray.train.torch import TorchTrainer  # noqa: E402

import tunekit  # noqa: E402
from tests.support.fakes import FakeClock  # noqa: E402
from tests.support.journals import lines_of, odd_json, places_in, put, write_lines  # noqa: E402
from tests.support.kills import Killed, killed_after  # noqa: E402
from tests.support.object_store import Store  # noqa: E402
from tests.support.readers import score, session, trial, tunekit_, validate_here  # noqa: E402
from tests.support.schedulers import asha, moasha, pbt  # noqa: E402
from tests.support.sweeps import Plan  # noqa: E402
from tests.support.trainables import quality  # noqa: E402
from tunekit._ray.tuner import described_space  # noqa: E402
from tunekit.board import serve  # noqa: E402
from tunekit.board.live import LiveSweep  # noqa: E402
from tunekit.board.page import render_index, write_page  # noqa: E402
from tunekit.cli import commands as cli  # noqa: E402
from tunekit.cli import on_ray  # noqa: E402
from tunekit.core.values import format_value  # noqa: E402
from tunekit.distributed import TrainerFactory, TrainerValidation  # noqa: E402
from tunekit.errors import TunekitError  # noqa: E402
from tunekit.journal.journal import Journal, events_in  # noqa: E402
from tunekit.journal.lock import Driver  # noqa: E402
from tunekit.journal.storage import LocalFolder  # noqa: E402
from tunekit.policies import AtDecisions  # noqa: E402
from tunekit.reading.catalogue import Catalogue  # noqa: E402
from tunekit.reading.load import Follower  # noqa: E402
from tunekit.schedulers import MOASHA, PromotionASHA  # noqa: E402

LOCAL = pyarrow.fs.LocalFileSystem()
TABLES = ("trials", "reports", "validations", "later_validations", "decisions")

#: Draws a value.
Draw: TypeAlias = Callable[[random.Random], Any]


@dataclass(frozen=True)
class Call:
    """Something to call, and what its arguments may be.

    Attributes:
        name: Its name in the output.
        run: Called with the arguments that were drawn, by name.
        arguments: What draws each argument; any of them may be left out.
        required: The arguments that are never left out.
    """

    name: str
    run: Callable[..., Any]
    arguments: Mapping[str, Draw] = field(default_factory=dict)
    required: Collection[str] = ()


# Values ----------------------------------------------------------------------------------------

TEXTS = [
    *("", " ", "/", "..", "-", "--", "a/b", "nan", "None", "0", "%s", "{0}", "*", "[", "(?"),
    *("\x1b[2J", "größe \N{SNOWMAN}", "line\nline", "x" * 5_000, "/".join("x" * 2_000)),
    *("accuracy", "loss", "acuracy", "max", "min", "config/lr", "late/accuracy"),
]
PATHS = [
    *("~", "~/x", "~nobody/x", "/dev/null", "/proc/self/mem", "/root", ".", "./", "//", "C:\\x"),
    *("file:///", "file://host/x", "file:///%ff", "file:///a%00b", "gopher://x", "mock://x", ":/"),
    *("s3:", "s3:/x", "s3://", "a:/b", "hdfs://x/y", "abfs://x", "memory://x", "?", "/x?y=z#w"),
]
# What a command line cannot have, but an argument in Python can.
UNTYPABLE = ["\0", "~\0", "a\0b", "\ud800"]


class WrongPath:
    """Something that claims to be a path."""

    def __init__(self, path: Any):
        self._path = path

    def __fspath__(self) -> Any:
        return self._path

    def __repr__(self) -> str:
        return f"WrongPath({self._path!r})"


def one_of(*values: Any) -> Draw:
    return lambda draw: draw.choice(values)


def either(*draws: Draw) -> Draw:
    """Draw from one of several draws."""
    return lambda draw: draw.choice(draws)(draw)


def anything(draw: random.Random) -> Any:
    """Return a value of any type."""
    values = [None, 3, -1, 10**400, 0.5, float("nan"), True, 1j, b"x", (), [], ["a"], {}, {"a": 1}]
    values += [{"a", 1}, {1: {}}, object, object(), len, Path("x"), draw, LOCAL]
    values += [np.arange(3), np.float64("nan"), np.str_("x"), pd.DataFrame({"a": [1]}), pd.NaT]
    return draw.choice([*values, *TEXTS, *UNTYPABLE])


def texts(draw: random.Random) -> str:
    return draw.choice(TEXTS)


NAMES: Draw = either(texts, texts, anything)
MODES: Draw = either(one_of("min", "max"), NAMES)


# What there is to read ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A folder with sweeps of several kinds, and much else.

    Attributes:
        folder: The folder.
        sweeps: The sweeps in it, by name.
    """

    folder: Path
    sweeps: Mapping[str, Path]

    @functools.cached_property
    def loaded(self) -> list[tunekit.Sweep]:
        return [tunekit.Sweep([]), *map(tunekit.load, self.sweeps.values())]

    def path(self, draw: random.Random) -> str:
        """Return the path of a sweep, of something in or near one, or of nothing."""
        home = str(draw.choice([*self.sweeps.values()]))
        near = [home, f"{home}/", f"file://{home}", f"{home}/journal", f"{home}/none", f"{home}/.."]
        near += [str(self.folder), str(self.folder / "none"), str(self.folder / "odd/none")]
        near += [*PATHS, *TEXTS] if draw.random() < 0.5 else []
        if draw.random() < 0.002:  # this one takes seconds
            return "s3://a/b?endpoint_override=127.0.0.1:1&region=us-east-1&scheme=http"
        return str(draw.choice(near))

    def any_path(self, draw: random.Random) -> Any:
        """Return a path as in Python: of any type."""
        path = self.path(draw)
        odd = [Path(path), os.fsencode(path), WrongPath(path), WrongPath(os.fsencode(path))]
        odd += [WrongPath(3), *UNTYPABLE]
        return draw.choice([path, path, path, draw.choice(odd), anything(draw)])

    def output(self, draw: random.Random) -> str:
        """Return a path at which a report may be written."""
        names = ["report.html", "none/r.html", ".", "..", "", "x" * 300, "größe.html", "-r.html"]
        return str(self.folder / "out" / draw.choice(names))


def finished(folder: Path, base: Any, slots: int | None = None, **options: Any) -> Path:
    """Run a short sweep with a few failures; return its folder."""
    space = {"lr": tune.loguniform(1e-3, 0.1), "act": tune.choice(["relu", (8, 8)])}

    def validate(attempt: Any) -> Any:
        request = attempt.request
        if request.iteration == 2:
            raise RuntimeError("no such image")
        value = quality(int(request.trial_id[-1], 16), request.iteration)
        return {"accuracy": value, "by": {"class": [0.1, None]}, "when": {1}}

    plan = Plan(folder, base, trials=3).tuning(param_space=space, **options)
    constraints = [tunekit.Constraint("accuracy >= 0.2")]
    ran = plan.validating(validate, slots=slots, constraints=constraints).start()
    ran.validation.program.space = described_space(space)
    ran.sweep.run(most=50_000)
    return ran.home


def make_place(folder: Path) -> Place:
    """Write sweeps of several kinds into a folder."""
    random.seed(0)
    found = {
        "asha": finished(folder / "asha", asha()),
        "pbt": finished(folder / "pbt", pbt(hyperparam_mutations={"lr": [0.1, 0.2]})),
        "moasha": finished(folder / "moasha", moasha(), metric=None, mode=None),
    }
    with contextlib.suppress(Killed), killed_after(50):
        finished(folder / "killed", asha(), slots=1)
    found["killed"] = folder / "killed/sweep"
    found["later"] = folder / "later"
    made = session(found["later"])
    for name in "ab":
        trial(made, name, 0.5, lr=0.1, sizes=(1, 2))
    score(made, "b", 2, {"accuracy": 0.7, "text": "x", "nan": float("nan")})
    later = {"time": 1e9, "sweep": 1e9, "name": "late", "function": "evals:late"}
    series = "validations/late"
    again = Journal(LocalFolder(found["later"]), series=series, about=later)
    score(again, "a", 1, {"accuracy": 0.4}, checkpoint="./train_a/checkpoint_000001")
    score(again, "b", 1, None, reason="gone", checkpoint="./train_b/checkpoint_000001")
    (found["later"] / "train_a/checkpoint_000001").mkdir(parents=True)
    found["followed"] = folder / "followed"
    about = {"time": 1e9, "followed": "/runs", "function": "evals:fn", "required": ["accuracy"]}
    trial(Journal(LocalFolder(found["followed"]), about={**about, "mode": "max"}), "run", 0.5)
    driver = Driver("token", "elsewhere", 7, heard=time.time() + 1e6)
    (found["followed"] / "journal/driver.json").write_bytes(driver.encoded())
    (folder / "out").mkdir()
    (folder / "odd").mkdir()
    os.mkdir(os.path.join(os.fsencode(folder), b"odd", b"\xff"))
    return Place(folder, found)


# The lists of calls ------------------------------------------------------------------------------


def reading(place: Place) -> list[Call]:
    """Return the public calls that read sweeps."""
    below = pyarrow.fs.SubTreeFileSystem(str(place.folder), LOCAL)
    storages = one_of(None, LOCAL, below, Store().filesystem, Store(), "x", LOCAL.__class__)
    storage = either(storages, storages, anything)
    goal = {"metric": NAMES, "mode": MODES}
    urls = one_of("sqlite://", "sqlite:////none/x.db", "foo://x", "mysql://u:p@h/x", "redis://h")
    pairs = one_of({"accuracy": "max", "loss": "min"}, {"accuracy": "max"}, {3: "max", "a": []})

    def of_sweep(name: str) -> Callable[..., Any]:
        return lambda sweep, **given: attrgetter(name)(place.loaded[sweep])(**given)

    sweeps = {"sweep": lambda draw: draw.randrange(len(place.loaded))}
    own = functools.partial(Call, required=["sweep"])
    validated = {
        "validation": either(one_of(lambda checkpoint: {"accuracy": 1.0}), anything),
        "checkpoints": either(one_of(1, 10), anything),
        "name": either(one_of(None, "late", "new"), NAMES),
        "replace": either(one_of(True, False), anything),
    }

    def written(sweep: Any, **given: Any) -> Any:
        is_number = type(sweep) is int and 0 <= sweep < len(place.loaded)
        return write_page(place.loaded[sweep] if is_number else sweep, **given)

    def followed(at: str, **given: Any) -> None:
        Follower(LOCAL, str(place.sweeps[at]), **given).poll()

    outputs = either(place.output, place.any_path)
    load = {"path": place.any_path, "storage_filesystem": storage, **goal}
    return [
        Call("tunekit.load", tunekit.load, load, ["path"]),
        Call("events_in", events_in, {"source": place.any_path, "filesystem": storage}, ["source"]),
        own("Sweep.best", of_sweep("best"), {**sweeps, **goal}),
        *(
            Call(
                f"Sweep.lineage.{name}",
                of_sweep(f"lineage.{name}"),
                {**sweeps, "trial_id": NAMES, "generation": either(one_of(0, 1), anything)},
                ["sweep", "trial_id"],
            )
            for name in ("ancestors", "schedule")
        ),
        own("Sweep.pareto", of_sweep("pareto"), {**sweeps, "metrics": either(pairs, anything)}),
        own(
            "Sweep.to_optuna",
            of_sweep("to_optuna"),
            {**sweeps, "storage": either(urls, urls, anything), "study_name": NAMES},
        ),
        Call(
            "validate",
            tunekit.validate,
            {**sweeps, **validated},
            ["sweep", "validation"],
        ),
        own("write_page", written, {"sweep": either(sweeps["sweep"], anything), "path": outputs}),
        Call(
            "serve",
            functools.partial(serve.serve, port=0, ready=len),
            {"paths": lambda draw: [place.any_path(draw) for _ in range(draw.randrange(3))]}
            | {"host": either(one_of("127.0.0.1", "localhost", ""), texts), **goal},
            ["paths"],
        ),
        Call(
            "Follower",
            followed,
            {"at": one_of(*place.sweeps), **dict.fromkeys(goal, texts)},
            ["at"],
        ),
    ]


def settings(place: Place) -> list[Call]:
    """Return the public calls with which a sweep is set up, followed or restored."""

    def train_fn(config: Mapping[str, Any]) -> None: ...

    def validate(checkpoint: Any, *, batch_size: int = 1) -> Mapping[str, float]:
        return {"accuracy": 0.5}

    loop = TorchTrainer(train_fn, scaling_config=train.ScalingConfig(num_workers=1))
    count = either(one_of(1, 2, np.int64(3)), anything)
    fn = either(one_of(validate, validate, validate), anything)
    task = one_of(train.ValidationTaskConfig(), train.ValidationTaskConfig({"batch_size": 2}))
    choice = either(one_of("auto", "trial", "elsewhere", "wait", "continue", "decisions"), NAMES)
    config = {
        "fn": fn,
        "task_config": either(task, anything),
        "ray_remote_kwargs": either(one_of({"num_cpus": 1}, {"num_cpus": "x"}, {"x": 1}), anything),
        "when": either(count, choice),
        "constraints": either(one_of([tunekit.Constraint("a <= 1")], ["a <= 1"]), anything),
        "on_failure": either(one_of("record", "raise", "ignore"), NAMES),
        **dict.fromkeys(("evaluators", "max_in_flight", "max_retries"), count),
        **dict.fromkeys(("where", "on_pending"), choice),
    }
    known = one_of(None, tunekit.ValidationConfig(fn=validate), train.ValidationConfig(fn=validate))
    schedulers = one_of(None, asha(), pbt(), tunekit.ValidatedScheduler(asha()), "asha", "none")
    scheduler = either(schedulers, anything)
    policy = either(one_of(None, tunekit.EveryIterations(2), AtDecisions()), anything)
    trainables = one_of(train_fn, train_fn, tune.Trainable, "PPO", loop, lambda: None)
    trainable = either(trainables, anything)
    space = either(one_of(None, {}, {"lr": tune.uniform(0, 1)}, {"scaling_config": 3}), anything)

    def changed(kind: Any, **given: Any) -> Any:
        """Return settings of Ray's whose fields may be anything: Ray checks few of them."""
        made = kind()
        for name, value in given.items():
            setattr(made, name, value)
        return made

    def tuner(**given: Any) -> Any:
        of_tune = {name: given.pop(name) for name in tune_config if name in given}
        of_run = {name: given.pop(name) for name in run_config if name in given}
        given.setdefault("tune_config", changed(tune.TuneConfig, **of_tune))
        given.setdefault("run_config", changed(tune.RunConfig, storage_path="out", **of_run))
        return tunekit.Tuner(**given)

    tune_config = {"metric": NAMES, "mode": MODES, "scheduler": scheduler, "search_alg": NAMES}
    run_config = {
        "name": NAMES,
        "callbacks": either(one_of([tunekit.EveryIterations(1)], [3]), anything),
        "checkpoint_config": either(one_of(train.CheckpointConfig()), anything),
        "storage_filesystem": either(one_of(LOCAL, Store()), anything),
    }
    restored = {"path": place.any_path, "storage_filesystem": run_config["storage_filesystem"]}
    more = {"validation_config": either(known, anything), "param_space": space}
    periods = {"time_attr": NAMES, "reduction_factor": count, "grace_period": count}
    goals = either(one_of({"accuracy": "max", "loss": "min"}), anything)
    return [
        Call("ValidationConfig", tunekit.ValidationConfig, config, ["fn"]),
        Call(
            "ValidationCallback",
            tunekit.ValidationCallback,
            {"config": either(known, anything)},
            ["config"],
        ),
        Call(
            "ValidatedScheduler",
            tunekit.ValidatedScheduler,
            {"scheduler": scheduler},
            ["scheduler"],
        ),
        Call("Constraint", tunekit.Constraint, {"text": NAMES}, ["text"]),
        Call("EveryIterations", tunekit.EveryIterations, {"n": count}, ["n"]),
        Call("PromotionASHA", PromotionASHA, {**periods, "max_t": count, "mode": MODES}),
        Call("MOASHA", MOASHA, {**periods, "max_t": count, "metrics": goals}, ["metrics"]),
        Call("checkpointable", tunekit.checkpointable, {"trainable": trainable}, ["trainable"]),
        Call("checkpoint_with", tunekit.checkpoint_with, {"save": fn}, ["save"]),
        Call(
            "report",
            tunekit.report,
            {"metrics": anything, "validation": either(task, anything), "checkpoint": anything},
            ["metrics"],
        ),
        Call("state_of", tunekit.state_of, {"checkpoint": anything}, ["checkpoint"]),
        Call(
            "TrainerValidation",
            TrainerValidation,
            {"loop": fn, "scaling_config": either(one_of(train.ScalingConfig()), anything)},
            ["loop", "scaling_config"],
        ),
        Call("TrainerFactory", TrainerFactory, {"make": fn}, ["make"]),
        Call(
            "Tuner",
            tuner,
            {"trainable": trainable, "checkpoint_policy": policy, **more, **tune_config}
            | {**run_config, "tune_config": anything, "run_config": anything},
        ),
        Call("Tuner.can_restore", tunekit.Tuner.can_restore, restored, ["path"]),
        Call(
            "Tuner.restore",
            tunekit.Tuner.restore,
            {**restored, "trainable": trainable, **more}
            | {"resume_errored": either(one_of(True), anything), "restart_errored": anything},
            ["path", "trainable"],
        ),
        Call(
            "follow",
            tunekit.follow,
            {"folder": place.any_path, "fn": fn, "journal": place.any_path, "pattern": texts}
            | {"until": either(one_of(0), texts, anything), "keep": anything, "notify": fn}
            | {
                "metric": NAMES,
                "mode": MODES,
                "storage_filesystem": run_config["storage_filesystem"],
            },
            ["folder", "fn", "until"],
        ),
    ]


def commands(place: Place) -> list[Call]:
    """Return all commands, with their arguments and options; a name is what is typed before it."""
    flag: Draw = one_of("")
    path = {"PATH": place.path}
    goal = {"--metric=": texts, "--mode=": either(one_of("min", "max"), texts)}
    count = either(one_of("1", "20"), texts)
    where = one_of(
        *("x", ":", "math:", ":x", "math:sqrt", "math:no", "no.such:fn", ".:x", "a..b:x", ".x:y"),
        *("none.py:x", f"{'x' * 5_000}.py:x", f"{place.folder / 'out'}/.py:x", "größe:x", " :x"),
        *("tests.support.trainables:quality", "os.path:join", "math.py:x", "\x1b:x"),
    )

    def command(name: str, arguments: Mapping[str, Draw], required: Sequence[str] = ()) -> Call:
        def run(**given: str) -> None:
            typed = [f"{key}{value}" for key, value in given.items() if key.startswith("-")]
            typed += [value for key, value in given.items() if not key.startswith("-")]
            tunekit_(name, *typed)

        return Call(f"tunekit {name}", run, arguments, required)

    return [
        command("list", {"FOLDER": place.path, "--top=": count, "--json": flag}),
        command(
            "status",
            {
                **path,
                **goal,
                "--top=": count,
                "--json": flag,
                "--watch=": either(one_of("1"), texts),
            },
        ),
        command("best", {**path, **goal, "--json": flag}),
        command("report", {**path, **goal, "--output=": place.output, "--open": flag}),
        command(
            "serve",
            {**path, **goal, "OTHER": place.path, "--port=": either(one_of("0"), texts)}
            | {"--host=": either(one_of("127.0.0.1", "localhost"), texts)},
            ["PATH"],
        ),
        command(
            "stop",
            {**path, "--trial=": either(one_of("a", "b"), texts)},
            ["PATH", "--trial="],
        ),
        command(
            "resume",
            {**path, "--trainable=": where, "--errored": flag, "--restart-errored": flag}
            | {"--json": flag},
        ),
        command(
            "validate",
            {**path, **goal, "--fn=": where, "--checkpoints=": count, "--name=": texts}
            | {"--replace": flag, "--json": flag},
            ["PATH", "--fn="],
        ),
        command("", {"-V": flag, "-h": flag, "COMMAND": texts}),
    ]


@dataclass(frozen=True)
class Edit:
    """A change of one line of a journal: the value at a place, or None: it is removed."""

    file: str
    line: int
    place: tuple[Any, ...]
    value: tuple[Any] | None

    def apply(self, home: Path) -> None:
        lines = lines_of(home / self.file)
        with contextlib.suppress(LookupError, TypeError):  # another edit has removed the place

            def change(part: Any, key: Any) -> None:
                if self.value is None:
                    del part[key]
                else:
                    part[key] = self.value[0]

            put(lines[self.line], self.place, change)
        write_lines(home / self.file, lines)


def journals(place: Place) -> list[Call]:
    """Return what reads a sweep, each for a copy of each sweep, in which edits are made."""
    page = place.folder / "out/page.html"

    def tables(home: Path) -> None:
        loaded = tunekit.load(home)
        for name in TABLES:
            getattr(loaded, name).to_csv()
        repr((loaded.lineage.to_dataframe(), loaded.ranking(), loaded.summary(), loaded))
        for trial_id in loaded.timeline.trials:
            repr((loaded.lineage.ancestors(trial_id), loaded.lineage.schedule(trial_id)))
        for call in (
            loaded.best,
            functools.partial(loaded.pareto, {"accuracy": "max", "by": "min"}),
        ):
            with contextlib.suppress(TunekitError):
                call()

    def live(home: Path) -> None:
        clock, [entry] = FakeClock(), Catalogue([str(home)]).find().values()
        read = LiveSweep(entry, {"metric": None, "mode": None}, clock)
        for _ in range(4):
            clock.sleep(60)
            for work, _ in read._work.values():  # its errors are on the page otherwise
                work()
        for trial_id in read._follower.sweep.timeline.trials:
            read.panel(trial_id)
        render_index(Catalogue([str(home)]).outlines())

    def follows(home: Path) -> None:
        """Read the lines in two parts."""
        [file, *_] = sorted((home / "journal").glob("*.jsonl"))
        data, follower = file.read_bytes(), Follower(LOCAL, str(home))
        for part in (data[: len(data) // 2], data):
            file.write_bytes(part)
            follower.poll()
            follower.sweep.summary()

    def typed(*arguments: str) -> Callable[[Path], object]:
        return lambda home: tunekit_(arguments[0], home, *arguments[1:])

    readers: dict[str, Callable[[Path], object]] = {
        "load": tables,
        "events_in": events_in,
        "follow": follows,
        "live page": live,
        "to_optuna": lambda home: tunekit.load(home).to_optuna(),
        "write_page": lambda home: write_page(tunekit.load(home), page),
        "status": typed("status"),
        "status --json": typed("status", "--json"),
        "best": typed("best"),
        "best --json": typed("best", "--json"),
        "list": typed("list"),
        "list --json": typed("list", "--json"),
        "stop": typed("stop", "--trial=a"),
    }

    def call(reader: str, of: str) -> Call:
        source, copy = place.sweeps[of], place.folder / "copy/sweep"
        files = {
            str(file.relative_to(source)): lines_of(file)
            for part in ("journal", "validations")
            for file in sorted((source / part).rglob("*.jsonl"))
        }

        def edit(draw: random.Random) -> Edit:
            file = draw.choice(list(files))
            lines = files[file]
            line = draw.choice([0, draw.randrange(len(lines))])
            places = [one for one in places_in(lines[line]) if one[0] not in ("n", "crc")]
            at, value = draw.choice(places), (odd_json(draw),)
            if draw.random() < 0.2:
                at = (
                    *at[:-1],
                    draw.choice(["accuracy", "loss", "", "a/b", "\ud800", "generation"]),
                )
            return Edit(file, line, at, None if draw.random() < 0.15 else value)

        def run(**edits: Edit) -> None:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(source, copy)
            for one in edits.values():
                one.apply(copy)
            readers[reader](copy)

        return Call(f"{reader} of {of}", run, {f"edit {n}": edit for n in range(3)}, ["edit 0"])

    return [call(reader, of) for reader in readers for of in place.sweeps]


#: What may be fuzzed: each returns a list of calls.
WHAT: dict[str, Callable[[Place], list[Call]]] = {
    "calls": reading,
    "settings": settings,
    "commands": commands,
    "journals": journals,
}


# Fuzzing -----------------------------------------------------------------------------------------


@dataclass
class Raw:
    """A raw traceback, and the smallest input that raised it.

    Attributes:
        call: What was called.
        given: Its arguments.
        text: The traceback.
        count: How many inputs raised it.
    """

    call: Call
    given: Mapping[str, Any]
    text: str
    count: int = 1

    @property
    def shown(self) -> str:
        return ", ".join(f"{name}={format_value(value)}" for name, value in self.given.items())


def raised(call: Call, given: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return what identifies the raw traceback of a call, and its text; None if there is none."""
    quiet = io.StringIO()
    try:
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            call.run(**given)
    except (TunekitError, SystemExit):
        return None
    except OSError as error:
        if error.filename is not None or "'" in str(error):
            return None
        return _identified(error)
    except Exception as error:
        return _identified(error)
    return None


def _identified(error: Exception) -> tuple[str, str]:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(ROOT / "tunekit")]
    at = own[-1] if own else frames[-1]
    lines = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in own[-4:]]
    text = f"{type(error).__name__}: {str(error)[:300]}"
    return f"{type(error).__name__} {at.filename}:{at.lineno}", " > ".join([*lines, text])


def drawn(call: Call, draw: random.Random) -> dict[str, Any]:
    """Return arguments for a call."""
    named = [n for n in call.arguments if n in call.required or draw.random() < 0.5]
    return {name: call.arguments[name](draw) for name in named}


def smaller(call: Call, given: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the arguments without those that do not matter."""
    for name in list(given):
        fewer = {one: value for one, value in given.items() if one != name}
        if name not in call.required or (name.startswith("edit") and fewer):
            found = raised(call, fewer)
            given = fewer if found is not None and found[0] == key else given
    return given


def fuzz(calls: Sequence[Call], count: int, draw: random.Random) -> dict[str, Raw]:
    """Make random calls; return the raw tracebacks by what identifies them."""
    found: dict[str, Raw] = {}
    for _ in range(count):
        call = draw.choice(calls)
        given = drawn(call, draw)
        what = raised(call, given)
        if what is None:
            continue
        key, text = what
        known = found.get(key)
        given = smaller(call, given, key) if known is None or known.count < 5 else given
        new = Raw(call, given, text, 1 if known is None else known.count + 1)
        if known is not None and len(known.shown) <= len(new.shown):
            new = Raw(known.call, known.given, known.text, new.count)
        found[key] = new
    return found


@contextlib.contextmanager
def harmless(folder: Path) -> Iterator[None]:
    """Let no call start Ray, wait, listen for long or open a browser."""

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    restored = SimpleNamespace(validation=None, fit=lambda **known: None)
    (folder / "home").mkdir()
    with contextlib.ExitStack() as stack:

        def replace(thing: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(thing, name, value))

        validate_here(SimpleNamespace(setattr=replace))  # type: ignore[arg-type]
        replace(cli, "time", SimpleNamespace(time=time.time, sleep=interrupt))
        replace(on_ray, "Tuner", SimpleNamespace(restore=lambda *a, **k: restored))
        replace(cli.webbrowser, "open", lambda address: True)
        replace(serve.uvicorn.Server, "run", lambda self, sockets: None)
        replace(serve, "lower_priority", lambda: None)
        replace(tune, "report", lambda *known, **named: None)
        replace(sys.modules["tunekit.following.follow"], "validate_all", lambda *known: None)
        replace(serve, "vega_script", lambda: "")
        stack.enter_context(mock.patch.dict(os.environ, HOME=str(folder / "home")))
        stack.enter_context(warnings.catch_warnings())
        stack.callback(os.chdir, os.getcwd())
        warnings.simplefilter("ignore")
        os.chdir(folder / "out")
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=5_000, help="calls of each list")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--what", choices=list(WHAT), nargs="*", default=list(WHAT))
    options = parser.parse_args()
    status = 0
    logging.disable()
    for what in options.what:
        began, draw = time.monotonic(), random.Random(f"{what}/{options.seed}")
        with tempfile.TemporaryDirectory() as name:
            place = make_place(Path(name).resolve())
            with harmless(place.folder):
                found = fuzz(WHAT[what](place), options.n, draw)
        took = time.monotonic() - began
        print(f"{what}: {options.n} tried in {took:.0f} s, {len(found)} raw tracebacks", flush=True)
        for raw in sorted(found.values(), key=lambda one: -one.count):
            print(f"  {raw.count} of {raw.call.name}({raw.shown})\n    {raw.text}", flush=True)
        status |= bool(found)
    return status


if __name__ == "__main__":
    sys.exit(main())
