"""What validating alongside costs a whole program: the same one inline and with tunekit, in turn.

    python scripts/bench_inline.py                       # those whose packages are installed
    python scripts/bench_inline.py --names pytorch pytorch-fifo --repeats 5

The programs are those of docs/frameworks, and three more of the PyTorch one: without a scheduler,
under population based training, and where both need the one logical GPU that there is. Each run is
a process of its own, with a Ray of its own, from its start to its end: imports, Ray, training,
validation. With tunekit, all settings are the defaults. Printed are the medians of the seconds,
their ratio, and the ratios of each pair; and the geometric mean of the ratios.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import examples
import harness

PYTORCH = examples.PAGES / "pytorch"
ASHA = "scheduler=ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)"
PBT = (
    "scheduler=tune.schedulers.PopulationBasedTraining("
    'time_attr="training_iteration", perturbation_interval=2, '
    'hyperparam_mutations={"lr": tune.loguniform(1e-4, 1e-1)})'
)
GPU = "import ray; ray.init(num_gpus=1)\n"


def changed(program: Path, kind: str) -> str:
    """Return the PyTorch program with another scheduler, or with a GPU that it needs."""
    text = program.read_text()
    if kind == "fifo":
        return text.replace(f"        {ASHA},\n", "")
    if kind == "pbt":
        return text.replace(ASHA, PBT)
    text = text.replace("    train,\n", '    tune.with_resources(train, {"cpu": 1, "gpu": 1}),\n')
    return GPU + text.replace("fn=validate", 'fn=validate, ray_remote_kwargs={"num_gpus": 1}')


def programs(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Return each program by its name, inline and with tunekit, as far as they can run here."""
    found: dict[str, tuple[Path, Path]] = {}
    for example in examples.EXAMPLES:
        if lacking := example.lacks():
            print(f"{example.name} is left out: {', '.join(lacking)} is not installed")
        else:
            found[example.name] = example.programs
    for kind in ("fifo", "pbt", "gpu"):
        both = []
        for program in found.get("pytorch", ()):
            path = folder / kind / program.name
            path.parent.mkdir(exist_ok=True)
            path.write_text(changed(program, kind))
            both.append(path)
        if both:
            found[f"pytorch-{kind}"] = (both[0], both[1])
    return found


def main() -> None:
    asked = harness.arguments(__doc__, names=[""], repeats=3)
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'program':24} {'inline':>7} {'tunekit':>8} {'ratio':>6}  of each pair")
        for name, both in programs(Path(folder)).items():
            if any(asked.names) and name not in asked.names:
                continue
            seconds = harness.in_turn(both, lambda one: examples.run(one)[1], asked.repeats)
            inline, ours = (harness.median(seconds[one]) for one in both)
            ratios.append(ours / inline)
            pairs = zip(*(seconds[one] for one in both), strict=True)
            each = " ".join(f"{ours / inline:.2f}" for inline, ours in pairs)
            print(f"{name:24} {inline:7.1f} {ours:8.1f} {ratios[-1]:6.2f}  {each}", flush=True)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{'geometric mean':24} {'':7} {'':8} {mean:6.2f}")


if __name__ == "__main__":
    main()
