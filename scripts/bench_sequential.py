"""Count the examples that a sweep evaluates if validations stop once estimates suffice.

    python scripts/bench_sequential.py                 # about 10 minutes
    python scripts/bench_sequential.py --orders 20
    python scripts/bench_sequential.py --real          # with real processes that sleep

The script trains 54 small networks for 27 epochs each (40 s), and evaluates every epoch on 10,000
examples. The sweeps read a table of which answers were right. ASHA (max_t=27, reduction_factor=3)
runs in virtual time, on tunekit's own code. Each validation yields an estimate after 100 examples,
and whenever the number has grown by a fifth. At each decision, a second ASHA receives the
accuracies on all examples instead; *different* is the share of decisions that it would have made
differently. *fewer* is the ratio of the examples in full validations to those evaluated.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from harness import arguments, quiet, start_ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tunekit.core.validation import Attempt
from tunekit.testing import FakeClock, FakeExecutor, LocalSweep

CONFIGURATIONS, MAX_T, ETA, SLOTS = 54, 27, 3, 6
EXAMPLES, FIRST, GROWTH = 10_000, 100, 1.2


# The networks ----------------------------------------------------------------------------------


def table() -> np.ndarray:
    """Return whether the answer was right, for each network, epoch and example."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(11)
    classes, clusters, telling, noise = 12, 3, 16, 24
    centres = rng.normal(0, 1.3, (classes * clusters, telling))

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        cluster = rng.integers(0, len(centres), count)
        known = centres[cluster] + rng.normal(size=(count, telling))
        rows = np.concatenate([known, rng.normal(size=(count, noise))], axis=1)
        wrong = rng.random(count) < 0.08
        labels = np.where(wrong, rng.integers(0, classes, count), cluster // clusters)
        return torch.from_numpy(rows.astype(np.float32)), torch.from_numpy(labels)

    (rows, labels), (others, theirs) = draw(2_000), draw(EXAMPLES)
    right = np.zeros((CONFIGURATIONS, MAX_T, EXAMPLES), dtype=bool)
    for network in range(CONFIGURATIONS):
        torch.manual_seed(network)
        width = int(2 ** rng.uniform(3, 8))
        net = torch.nn.Sequential(
            torch.nn.Linear(telling + noise, width),
            torch.nn.ReLU(),
            torch.nn.Dropout(rng.uniform(0, 0.6)),
            torch.nn.Linear(width, classes),
        )
        optimizer = torch.optim.SGD(
            net.parameters(),
            lr=10 ** rng.uniform(-3.5, -0.3),
            momentum=float(rng.choice([0.0, 0.5, 0.9])),
            weight_decay=10 ** rng.uniform(-6, -1.5),
        )
        for epoch in range(MAX_T):
            net.train()
            for batch in torch.randperm(len(rows)).split(64):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(rows[batch]), labels[batch]).backward()
                optimizer.step()
            net.eval()
            with torch.no_grad():
                right[network, epoch] = (net(others).argmax(1) == theirs).numpy()
    return right


def sizes() -> list[int]:
    """Return the numbers of examples after which a validation yields."""
    found = [FIRST]
    while found[-1] < EXAMPLES:
        more = int(np.ceil(found[-1] * GROWTH / FIRST)) * FIRST
        found.append(min(max(more, found[-1] + FIRST), EXAMPLES))
    return found


class Curve(tune.Trainable):
    """Trains nothing, because the table has all results."""

    def step(self) -> dict[str, Any]:
        return {"loss": 1 / (self.training_iteration + 1)}

    def save_checkpoint(self, folder: str) -> dict[str, Any]:
        return {"network": self.config["network"]}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None: ...

    def reset_config(self, config: dict[str, Any]) -> bool:
        return True


# In virtual time -------------------------------------------------------------------------------


@dataclass
class Ran:
    """The results of a sweep."""

    seconds: float
    examples: int
    in_full: int
    decisions: int
    different: int
    regret: float


def asha() -> ASHAScheduler:
    return ASHAScheduler(
        max_t=MAX_T,
        grace_period=1,
        reduction_factor=ETA,
        time_attr="training_iteration",
        metric="accuracy",
        mode="max",
    )


def swept(
    right: np.ndarray, seed: int, when: int | str, sequential: tunekit.Sequential | None
) -> Ran:
    """Run one sweep; if ``sequential`` is None, evaluate every checkpoint in full."""
    rng = np.random.default_rng(seed)
    order, networks = rng.permutation(EXAMPLES), rng.permutation(CONFIGURATIONS)
    counted = {"examples": 0, "in_full": 0, "decisions": 0, "different": 0}
    clock = FakeClock()

    def results(attempt: Attempt) -> np.ndarray:
        epoch = attempt.request.iteration - 1
        return right[attempt.request.config["network"], epoch][order]

    def validate(attempt: Attempt) -> Iterator[dict[str, Any]]:
        found, seen = results(attempt).cumsum(), 0
        counted["in_full"] += EXAMPLES
        for n in sizes():
            counted["examples"] += n - seen
            seen = n
            yield {"accuracy": tunekit.Estimate(found[n - 1] / n, n, bounds=(0, 1))}

    def fully(attempt: Attempt) -> dict[str, float]:
        counted["examples"] += EXAMPLES
        counted["in_full"] += EXAMPLES
        return {"accuracy": float(results(attempt).mean())}

    base, second = asha(), asha()
    heard, added = base.on_trial_result, base.on_trial_add

    def on_trial_add(controller: Any, trial: Any) -> None:
        second.on_trial_add(controller, trial)
        added(controller, trial)

    def on_trial_result(controller: Any, trial: Any, result: dict[str, Any]) -> str:
        epoch = result["training_iteration"] - 1
        exact = float(right[trial.config["network"], epoch].mean())
        decision = heard(controller, trial, result)
        instead = second.on_trial_result(controller, trial, {**result, "accuracy": exact})
        if epoch + 1 in (1, 3, 9, 27):
            counted["decisions"] += 1
            counted["different"] += decision != instead
        return decision

    base.on_trial_add, base.on_trial_result = on_trial_add, on_trial_result
    executor = FakeExecutor(clock, validate if sequential else fully)
    config = tunekit.ValidationConfig(
        fn=lambda checkpoint: {}, when=when, sequential=sequential, on_pending="wait"
    )
    callback = tunekit.ValidationCallback(config, executor=executor, clock=clock)
    policy = tunekit.AtDecisions() if when == "decisions" else tunekit.EveryIterations(1)
    with tempfile.TemporaryDirectory() as folder:
        sweep = LocalSweep(
            Curve,
            Path(folder),
            clock,
            param_space={"network": tune.grid_search([int(one) for one in networks])},
            scheduler=tunekit.ValidatedScheduler(base),
            callbacks=[policy, callback],
            metric="accuracy",
            mode="max",
            slots=SLOTS,
            seconds=lambda trial, method: 1.0 + 0.01 * rng.random() if method == "train" else 0.0,
            next_due=executor.next_due,
            seed=seed,
        )
        sweep.run(most=10_000_000)
        best = max(
            (metrics["accuracy"], trial.config["network"], iteration)
            for trial in sweep.trials
            for (_, iteration), metrics in callback.history.scores(trial.trial_id)
        )
    exact = right.mean(axis=2)
    regret = float(exact.max() - exact[best[1], best[2] - 1])
    return Ran(clock.monotonic(), **counted, regret=regret)


def careful(least: int) -> tunekit.Sequential:
    """Return settings with which about 1 % of the decisions differ."""
    return tunekit.Sequential(confidence=0.7, min_examples=least, best_in_full=False)


def virtual(right: np.ndarray, orders: int) -> None:
    print(f"54 networks, {EXAMPLES} examples, {orders} orders")
    print(f"{'':44}{'fewer':>8}{'different':>11}{'regret':>9}")
    for when in (1, "decisions"):
        for name, sequential in (
            ("in full", None),
            ("the defaults", tunekit.Sequential()),
            ("best_in_full=False", tunekit.Sequential(best_in_full=False)),
            ("that, 1000 at least, confidence=0.7", careful(1_000)),
            ("that, 1500 at least, confidence=0.7", careful(1_500)),
        ):
            ran = [swept(right, seed, when, sequential) for seed in range(orders)]
            fewer = sum(one.in_full for one in ran) / sum(one.examples for one in ran)
            different = sum(one.different for one in ran) / sum(one.decisions for one in ran)
            regret = float(np.mean([one.regret for one in ran]))
            label = f"when={when!r}, {name}"
            print(f"{label:44}{fewer:7.1f}x{different:10.2%}{regret:9.4f}", flush=True)


# With real processes ---------------------------------------------------------------------------

_PER_EXAMPLE_S, _EPOCH_S = 0.0002, 0.4


class Sleeper(Curve):
    """Sleeps instead of training."""

    def step(self) -> dict[str, Any]:
        time.sleep(_EPOCH_S)
        return super().step()

    def save_checkpoint(self, folder: str) -> None:
        Path(folder, "epoch").write_text(str(self.training_iteration))

    def load_checkpoint(self, folder: str) -> None: ...


def _accuracies(checkpoint: Any, file: str) -> np.ndarray:
    context = tunekit.get_validation_context()
    packed = np.load(file, mmap_mode="r")
    return np.unpackbits(packed[context.config["network"], context.iteration - 1])[:EXAMPLES]


def in_full(checkpoint: Any, file: str) -> dict[str, float]:
    time.sleep(EXAMPLES * _PER_EXAMPLE_S)
    return {"accuracy": float(_accuracies(checkpoint, file).mean())}


def in_parts(checkpoint: Any, file: str) -> Iterator[dict[str, Any]]:
    found, seen = _accuracies(checkpoint, file).cumsum(), 0
    for n in sizes():
        time.sleep((n - seen) * _PER_EXAMPLE_S)
        seen = n
        yield {"accuracy": tunekit.Estimate(found[n - 1] / n, n, bounds=(0, 1))}


def real(right: np.ndarray, slots: int) -> None:
    whole = EXAMPLES * _PER_EXAMPLE_S
    print(f"Real processes, {slots} slots; an epoch takes {_EPOCH_S} s, a validation {whole:g} s")
    start_ray(slots)
    first = 0.0
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "table.npy"))
        np.save(file, np.packbits(right, axis=2))
        for name, validate, sequential in (
            ("in full", in_full, None),
            ("in parts", in_parts, None),
            ("in parts, best_in_full=False", in_parts, careful(1_500)),
        ):
            started = time.monotonic()
            grid = tunekit.Tuner(
                Sleeper,
                param_space={"network": tune.grid_search(list(range(CONFIGURATIONS)))},
                tune_config=tune.TuneConfig(scheduler=asha(), reuse_actors=True),
                run_config=tune.RunConfig(storage_path=folder, name=name, verbose=0),
                checkpoint_policy=tunekit.EveryIterations(1),
                validation_config=tunekit.ValidationConfig(
                    fn=validate,
                    sequential=sequential,
                    task_config=ray.train.ValidationTaskConfig(fn_kwargs={"file": file}),
                ),
            ).fit()
            took = time.monotonic() - started
            first = first or took
            assert not grid.errors
            print(f"{name:30}{took:7.1f} s{took / first:7.2f} of the time in full", flush=True)


def main() -> None:
    options = arguments(__doc__, orders=8, real=False, slots=4)
    quiet()
    right = table()
    if options.real:
        real(right, options.slots)
    else:
        virtual(right, options.orders)


if __name__ == "__main__":
    main()
