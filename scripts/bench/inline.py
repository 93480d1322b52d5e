"""Compare complete programs that validate inline with the same programs using tunekit.

    python -m scripts.bench.inline                       # all whose packages are installed
    python -m scripts.bench.inline --names pytorch pytorch-fifo --repeats 5
    python -m scripts.bench.inline --reuse               # also with reuse_actors=True in both

The programs are

- those of docs/frameworks;
- three variants of the PyTorch program: without a scheduler, under population based training, and
  with training and validation sharing a single logical GPU;
- RLlib's inline program with its evaluation parallel to training, in a process of its own;
- the README's example, on one and on four logical CPUs;
- the demonstration, compared with inline validation at each epoch and at the epochs where ASHA
  decides.

Each run is a separate process with its own Ray, measured from its start to its end: imports, Ray,
training, validation. With tunekit, all settings have their defaults. With ``--reuse``, a second
table has the programs whose trials can share processes, with ``reuse_actors=True`` in both.

The script prints the medians of the seconds, their ratio, and the ratio of each pair. It prints the
same for the CPU seconds, which other programs on the machine disturb less; for the iterations
trained, which differ because ASHA's decisions depend on which trial comes first; and for a
population's exploits. Last is the geometric mean of the ratios of the seconds. `start-up` does not
compare sweeps: it prints the time to the first result, compared with stock Tune.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import tempfile
import threading
from pathlib import Path

from scripts import examples
from scripts.bench import harness

PYTORCH = examples.FOLDER / "pytorch"
ASHA = "scheduler=ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)"
PBT = (
    "scheduler=tune.schedulers.PopulationBasedTraining("
    'time_attr="training_iteration", perturbation_interval=2, '
    'hyperparam_mutations={"lr": tune.loguniform(1e-4, 1e-1)})'
)
# Their trials cannot run in the process of another one, and stock Ray hangs with the inline program
# of distributed_checkpoints; start-up has only one trial.
NOT_RESET = (
    *("trainable_class", "rllib", "rllib-parallel"),
    *("distributed_checkpoints", "start-up"),
)
GPU = "import ray; ray.init(num_gpus=1)\n"
# Prints the seconds to the first result, from fit() and from the program's start.
START = """
import tempfile, time
began = time.monotonic()
import ray
import torch
from ray import tune
import {module} as module

def train(config):
    with tempfile.TemporaryDirectory() as folder:
        tune.report({{"accuracy": 1.0}}, checkpoint=tune.Checkpoint.from_directory(folder))

class First(tune.Callback):
    def on_trial_result(self, *_, **__):
        global came
        came = time.monotonic()

ray.init(num_cpus=2)
tuner = module.Tuner(
    train,
    tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
    run_config=tune.RunConfig(callbacks=[First()]),{validation}
)
fitting = time.monotonic()
tuner.fit()
print(came - fitting, came - began)
"""
VALIDATION = (
    '\n    validation_config=module.ValidationConfig(fn=lambda checkpoint: {"accuracy": 1.0}),'
)


README = examples.ROOT / "README.md"
# These replacements make the README's example validate in its training loop, at each iteration.
REPORT = '        tune.report({"loss": (1 - weights["w"]) ** 2})\n'
INLINE = [
    ("import tunekit\n", "import pathlib, tempfile\n"),
    (
        "    tunekit.checkpoint_with(\n"
        '        lambda directory: (directory / "w.json").write_text(json.dumps(weights))\n'
        "    )\n",
        "",
    ),
    (
        REPORT,
        "        with tempfile.TemporaryDirectory() as folder:\n"
        '            pathlib.Path(folder, "w.json").write_text(json.dumps(weights))\n'
        '            metrics = {"loss": (1 - weights["w"]) ** 2}\n'
        '            metrics["accuracy"] = 1 - abs(0.8 - weights["w"])\n'
        "            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))\n",
    ),
    ("tunekit.Tuner(", "tune.Tuner("),
    ("    validation_config=tunekit.ValidationConfig(fn=validate),\n", ""),
    ("fit(progress=True)", "fit()"),
]
DEMO = examples.ROOT / "notebooks" / "digits.py"
# Replaces the demonstration's main function, with validation in the training loop.
DEMO_INLINE = """
def train_inline(config):
    training, scores = Training(config), {{}}
    while training.epochs < EPOCHS:
        loss = training.epoch()
        with tempfile.TemporaryDirectory() as folder:
            training.save(Path(folder))
            checkpoint = tune.Checkpoint.from_directory(folder)
            if training.epochs in {at}:
                scores = validate(checkpoint)
            tune.report({{"loss": loss, **scores}}, checkpoint=checkpoint)


ray.init(num_cpus=max(4, os.cpu_count() or 1), log_to_driver=False, include_dashboard=False)
results = tune.Tuner(
    train_inline,
    param_space=SPACE,
    tune_config=tune_config(16),
    run_config=tune.RunConfig(name="digits", storage_path=tempfile.mkdtemp()),
).fit()
{table}
"""
DEMO_TABLE = (
    "print(results.get_dataframe()[['config/lr', 'training_iteration']].to_string(index=False))"
)
#: When it validates: after each epoch, or only after those at which ASHA decides.
DEMO_AT = {"epochs": "range(1, EPOCHS + 1)", "rungs": "(1, 3, 9, 27)"}


def changed(program: Path, kind: str) -> str:
    """Return the PyTorch program with another scheduler, or with a GPU to share."""
    text = program.read_text()
    if kind == "fifo":
        return text.replace(f"        {ASHA},\n", "")
    if kind == "pbt":
        return text.replace(ASHA, PBT)
    text = text.replace("    train,\n", '    tune.with_resources(train, {"cpu": 1, "gpu": 1}),\n')
    return GPU + text.replace("fn=validate", 'fn=validate, ray_remote_kwargs={"num_gpus": 1}')


def parallel(inline: Path) -> str:
    """Return RLlib's inline program, evaluating while it trains the next iteration."""
    blocking = "evaluation_duration=20"
    beside = f"{blocking}, evaluation_num_env_runners=1, evaluation_parallel_to_training=True"
    text = inline.read_text()
    assert blocking in text, f"{inline} has changed: it lacks {blocking!r}"
    return text.replace(blocking, beside)


def readme(cpus: int) -> tuple[str, str]:
    """Return the README's example on ``cpus`` logical CPUs, inline and unchanged."""
    (ours,) = re.findall(r"```python\n(import json\n.*?)```", README.read_text(), re.S)
    ours = f"import ray\n\nray.init(num_cpus={cpus})\n{ours}"
    inline = ours
    for old, new in INLINE:
        inline, was = inline.replace(old, new), inline
        assert inline != was, f"The README's example has changed: it lacks {old!r}"
    assert "tunekit" not in inline
    return inline, ours


def demo(at: str) -> tuple[str, str]:
    """Return the demonstration with inline validation ``at`` these epochs, and unchanged."""
    text = DEMO.read_text()
    inline = text.partition("def main()")[0] + DEMO_INLINE.format(at=at, table=DEMO_TABLE)
    return inline, text.replace(
        "    best = tunekit.load(", f"    {DEMO_TABLE}\n    best = tunekit.load("
    )


def programs(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Return all programs that can run here by their names, inline and with tunekit."""
    found: dict[str, tuple[Path, Path]] = {}
    for example in examples.EXAMPLES:
        if lacking := example.lacks():
            print(f"{example.name} is left out: {', '.join(lacking)} is not installed")
        else:
            found[example.name] = example.programs
    texts = {
        "start-up": tuple(
            START.format(module=module, validation=validation)
            for module, validation in (("ray.tune", ""), ("tunekit", VALIDATION))
        ),
        **{f"readme-{cpus}-cpus": readme(cpus) for cpus in (1, 4)},
        **{f"digits-{at}": demo(when) for at, when in DEMO_AT.items()},
    }
    if both := found.get("pytorch"):
        for kind in ("fifo", "pbt", "gpu"):
            texts[f"pytorch-{kind}"] = tuple(changed(program, kind) for program in both)
    if both := found.get("rllib"):
        texts["rllib-parallel"] = parallel(both[0]), both[1].read_text()
    for name, (inline, ours) in texts.items():
        found[name] = folder / f"{name}-inline.py", folder / f"{name}-tunekit.py"
        for path, text in zip(found[name], (inline, ours), strict=True):
            path.write_text(text)
    return found


def reusing(found: dict[str, tuple[Path, Path]], folder: Path) -> dict[str, tuple[Path, Path]]:
    """Return the programs whose trials can share processes, changed so that they do."""
    changed = {}
    for name, both in found.items():
        texts = [path.read_text() for path in both]
        if name in NOT_RESET or not all("tune.TuneConfig(" in text for text in texts):
            continue
        changed[f"{name}, reused"] = folder / f"{name}-inline-r.py", folder / f"{name}-tunekit-r.py"
        for path, text in zip(changed[f"{name}, reused"], texts, strict=True):
            path.write_text(text.replace("tune.TuneConfig(", "tune.TuneConfig(reuse_actors=True, "))
    return changed


class Cpu:
    """Counts the CPU seconds of all descendants of this process while they live (Linux)."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._used: dict[tuple[str, str], float] = {}
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Cpu:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        tick, mine = os.sysconf("SC_CLK_TCK"), str(os.getpid())
        while not self._ended.wait(0.25):
            known: dict[str, list[str]] = {}
            for stat in Path("/proc").glob("[0-9]*/stat"):
                with contextlib.suppress(OSError):  # it has ended
                    known[stat.parent.name] = stat.read_text().rpartition(")")[2].split()
            below = [mine]
            for parent in below:
                below += [process for process, fields in known.items() if fields[1] == parent]
            for process in below[1:]:
                fields = known[process]
                self._used[process, fields[19]] = (int(fields[11]) + int(fields[12])) / tick

    @property
    def seconds(self) -> float:
        """Return the CPU seconds, without the last quarter of a second of each process."""
        return sum(self._used.values())


def measured(program: Path) -> tuple[float, float, float, float]:
    """Run a program; return its seconds, its CPU seconds, its iterations and its exploits."""
    with Cpu() as cpu:
        out, seconds = examples.printed(program)
    exploits = re.search(r"^exploits: (\d+)$", out, re.M)
    return seconds, cpu.seconds, iterations(out), float(exploits[1] if exploits else 0)


def iterations(printed: str) -> float:
    """Return the number of iterations of all trials; 0 if the program ends without a table.

    Example:
        >>> iterations("  config/lr  training_iteration\\n        0.1                   9\\n")
        9.0
    """
    heads, *rows = [line.split() for line in examples.ranking(printed).splitlines()] or [[]]
    if "training_iteration" not in heads:
        return 0.0
    at = heads.index("training_iteration")  # workers may print below the table
    return float(sum(int(row[at]) for row in rows if len(row) == len(heads) and row[at].isdigit()))


def started(program: Path) -> tuple[float, float]:
    """Run START; return the seconds to the first result, from fit() and from its own start."""
    out, _ = examples.printed(program)
    tuner, whole = out.splitlines()[-1].split()
    return float(tuner), float(whole)


def compare(name: str, found: list[list[float]]) -> float:
    """Print the medians of a measure, inline and with tunekit; return their ratio."""
    inline, ours = map(harness.median, found)
    each = " ".join(f"{b / a:.2f}" for a, b in zip(*found, strict=True))
    print(f"{name:36} {inline:7.1f} {ours:8.1f} {ours / inline:6.2f}  {each}", flush=True)
    return ours / inline


def compare_all(chosen: dict[str, tuple[Path, Path]], repeats: int) -> None:
    """Run programs in turn and print a table of them."""
    ratios = []
    print(f"{'program':36} {'inline':>7} {'tunekit':>8} {'ratio':>6}  ratio of each pair")
    for name, both in chosen.items():
        start = name == "start-up"
        try:
            found = harness.in_turn(both, started if start else measured, repeats)
        except RuntimeError as error:
            print(f"{name} is left out, it {str(error).splitlines()[0]}: ...{str(error)[-200:]}")
            continue
        names = (
            ("from the Tuner", "whole") if start else ("seconds", "CPU", "iterations", "exploits")
        )
        each = [
            compare(f"{name}: {what}", values)
            for n, what in enumerate(names)
            if all(map(sum, values := [[run[n] for run in found[one]] for one in both]))
        ]
        if not start:
            ratios.append(each[0])
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{'geometric mean':36} {'':7} {'':8} {mean:6.2f}")


def main() -> None:
    asked = harness.arguments(__doc__, names=[""], repeats=3, reuse=False)
    with tempfile.TemporaryDirectory() as folder:
        found = programs(Path(folder))
        if any(asked.names):
            found = {name: both for name, both in found.items() if name in asked.names}
        compare_all(found, asked.repeats)
        if asked.reuse:
            compare_all(reusing(found, Path(folder)), asked.repeats)


if __name__ == "__main__":
    main()
