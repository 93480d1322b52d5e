"""Compare MOASHA, ASHA by accuracy, and random search by accuracy and size of networks.

    .venv/bin/python scripts/front_digits.py              # two seeds of a minute each: six minutes

Networks of one hidden layer with 1 to 256 units learn handwritten digits in real processes, for the
same time and with the same configurations in each of the three ways. An iteration is ten epochs of
about 20 ms each. The objectives are the accuracy on validation images and the number of weights (on
a logarithmic scale, fewer is better). The script prints the share of the box between the worst
(accuracy 0.1, the largest network) and the best values (accuracy 1, the smallest network) that the
front dominates, at the end and averaged over time, and the number of iterations.
"""

from __future__ import annotations

import itertools
import math
import statistics
import tempfile

import torch
from bench_objectives import over_time, shares
from harness import arguments, quiet, start_ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search import BasicVariantGenerator
from torch import nn

import tunekit
from tunekit.demo.digits import split
from tunekit.schedulers import MOASHA

ITERATIONS, EPOCHS, BATCH = 27, 10, 32
METRICS = {"accuracy": "max", "log2_weights": "min"}
SPACE = {"lr": tune.loguniform(1e-3, 1.0), "units": tune.lograndint(1, 257)}


def build(units: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, units), nn.ReLU(), nn.Linear(units, 10))


def weights_of(model: nn.Module) -> int:
    return sum(one.numel() for one in model.parameters())


#: The worst and the best accuracy and size.
WORST = (0.1, -math.log2(weights_of(build(256))))
BEST = (1.0, -math.log2(weights_of(build(1))))


def train(config):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, (images, labels) = build(config["units"]), split("train")
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    tunekit.checkpoint_with(lambda folder: torch.save(model.state_dict(), folder / "model.pt"))
    for _ in range(ITERATIONS):
        total = 0.0
        epochs = (torch.randperm(len(labels)).split(BATCH) for _ in range(EPOCHS))
        for batch in itertools.chain.from_iterable(epochs):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        tune.report({"loss": total / len(labels) / EPOCHS})


def validate(checkpoint):
    model, (images, labels) = (
        build(tunekit.get_validation_context().config["units"]),
        split("validation"),
    )
    with checkpoint.as_directory() as folder:
        model.load_state_dict(torch.load(f"{folder}/model.pt"))
    with torch.no_grad():
        right = model(images).argmax(1) == labels
    return {"accuracy": right.float().mean().item(), "log2_weights": math.log2(weights_of(model))}


def asha(kind, **more):
    halving = {"max_t": ITERATIONS, "grace_period": 1, "reduction_factor": 3}
    return kind(time_attr="training_iteration", **halving, **more)


WAYS = {
    "MOASHA": lambda: asha(MOASHA, metrics=METRICS),
    "ASHA by accuracy": lambda: asha(ASHAScheduler, metric="accuracy", mode="max"),
    "random search": FIFOScheduler,
}


def sweep(way: str, seed: int, seconds: float) -> tuple[float, float, int]:
    """Return the share at the end and over time, and the number of iterations."""
    results = tunekit.Tuner(
        train,
        param_space=SPACE,
        tune_config=tune.TuneConfig(
            scheduler=WAYS[way](),
            num_samples=-1,
            time_budget_s=seconds,
            search_alg=BasicVariantGenerator(random_state=seed, max_concurrent=2),
        ),
        run_config=tune.RunConfig(storage_path=tempfile.mkdtemp(), verbose=0),
        validation_config=tunekit.ValidationConfig(fn=validate),
    ).fit()
    loaded = tunekit.load(results.experiment_path)
    began = loaded.summary()["began"]
    scored = [
        (row["ended"] - began, (metrics["accuracy"], -metrics["log2_weights"]))
        for row in loaded.timeline.validations
        if row["status"] == "validated" and (metrics := row["metrics"])
    ]
    found = shares(scored, WORST, BEST)
    return found[-1][1], over_time(found, seconds), loaded.summary()["iterations"]


def main() -> None:
    options = arguments(__doc__, seeds=2, seconds=60.0)
    quiet()
    start_ray(2)
    found = {way: [] for way in WAYS}
    for seed in range(options.seeds):
        for way in WAYS:
            found[way].append(sweep(way, seed, options.seconds))
    print(f"{'':20}{'at the end':>12}{'over time':>12}{'iterations':>12}")
    for way, ran in found.items():
        end, over, trained = (statistics.mean(column) for column in zip(*ran, strict=True))
        print(
            f"{way:20}{end:12.3f}{over:12.3f}{trained:12.0f}  {[round(one[0], 3) for one in ran]}"
        )


if __name__ == "__main__":
    main()
