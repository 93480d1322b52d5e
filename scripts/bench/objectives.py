"""Compare sweeps with two objectives with Syne Tune's MOASHA, on the same curves.

    python -m scripts.bench.objectives               # 30 orders: some 4 minutes

The objectives of the 54 configurations are accuracy and latency: larger networks are better and
slower. The curves are synthetic, with another table for each order. There are six slots, iterations
and validations of 0.4 s each, and rungs at 1, 3 and 9 of 27 iterations. Everything runs in virtual
time, with each system's own decision code. *front* is the share of the box between the worst and
the best values that the current front dominates, averaged over the time of the slowest system; *at
the end* is its last value. Differences are relative to Syne Tune's MOASHA, paired by order, with a
95 % interval.

Syne Tune (0.16) uses positions in an order as ranks, so whether a trial continues depends on
another trial's number. *fixed* is its code with the ranks of that order. With objectives in units
of the front's extent, it makes the same decisions on the same arrivals as tunekit; their share is
printed last.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import numpy as np
import pandas as pd
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

from scripts.bench.harness import arguments, quiet
from scripts.bench.peers import CONFIGURATIONS, ETA, MAX_T, SLOTS, TRAIN_S, validating
from scripts.bench.peers import table as accuracies
from scripts.bench.virtual import VirtualSweep
from tunekit.core.halving import Halving, RungAction
from tunekit.schedulers import MOASHA

RUNGS = (1, 3, 9)
METRICS = {"accuracy": "max", "latency_ms": "min"}
#: When a score was known, and its values (larger is better).
Scored = tuple[float, tuple[float, float]]


def table(seed: int) -> pd.DataFrame:
    """Return the curves of ``peers``, with a latency that grows with the final accuracy."""
    rows = accuracies(seed)
    rng = np.random.default_rng(1000 + seed)
    best = rows.groupby("trial").accuracy.max().to_numpy()
    latency = np.exp(
        1.5 + 2.5 * (best - best.mean()) / best.std() / 3 + rng.normal(0, 0.6, len(best))
    )
    return rows.assign(latency_ms=latency[rows.trial.to_numpy()])


def points_of(rows: pd.DataFrame) -> dict[tuple[int, int], tuple[float, float]]:
    return {
        (trial, iteration): (accuracy, -latency)
        for trial, iteration, accuracy, latency in rows.itertuples(index=False)
    }


# Systems ---------------------------------------------------------------------------------------


def simulated(make: Callable, **how) -> Callable[[pd.DataFrame], list[Scored]]:
    def run(rows: pd.DataFrame) -> list[Scored]:
        ran = VirtualSweep(
            rows,
            make(),
            reuse_actors=True,
            train_s=TRAIN_S,
            validate_s=TRAIN_S,
            slots=SLOTS,
            **how,
        ).run()
        points = points_of(rows)
        return [(one.time_s, points[one.trial, one.iteration]) for one in ran.scores]

    return run


def asha(kind: type = ASHAScheduler, **more):
    halving = {"max_t": MAX_T, "grace_period": 1, "reduction_factor": ETA}
    return kind(time_attr="training_iteration", **halving, **more)


def of_syne_tune(ranks: bool) -> Callable[[pd.DataFrame], list[Scored]]:
    def run(rows: pd.DataFrame) -> list[Scored]:
        return list(by_turns(points_of(rows), bracket(ranks)))

    return run


def bracket(ranks: bool) -> Callable[[int, int, tuple[float, float]], bool]:
    """Return a function that decides with Syne Tune's code whether a trial stops at a rung."""
    from syne_tune.optimizer.schedulers.asha import Bracket
    from syne_tune.optimizer.schedulers.multiobjective import multiobjective_priority as priorities
    from syne_tune.optimizer.schedulers.multiobjective import non_dominated_priority as sorting

    class Ranks(priorities.MOPriority):
        def priority_unsafe(self, objectives):
            left, order = np.arange(len(objectives)), []
            while left.size:
                best = sorting.pareto_efficient(objectives[left])
                front = left[best]
                extent = np.ptp(objectives[front], axis=0)
                scaled = objectives[front] / np.where(extent > 0, extent, 1.0)
                order += front[np.argsort(sorting.compute_epsilon_net(scaled, dim=0))].tolist()
                left = left[~best]
            return np.argsort(order)

    kept = Bracket(1, MAX_T, ETA, 0, Ranks() if ranks else priorities.NonDominatedPriority())

    def stops(trial: int, iteration: int, point: tuple[float, float]) -> bool:
        values = {str(n): -value for n, value in enumerate(point)}
        return kept.on_result(trial, iteration, values) != "CONTINUE"

    return stops


def by_turns(points: dict, stops: Callable) -> Iterator[Scored]:
    """Run trials in virtual time, one in each slot; each validates inline at rungs."""
    events = [(_until(1), trial, 1) for trial in range(SLOTS)]
    new = iter(range(SLOTS, CONFIGURATIONS))
    heapq.heapify(events)
    while events:
        now, trial, iteration = heapq.heappop(events)
        ends = iteration == MAX_T
        if ends or iteration in RUNGS:
            yield now, points[trial, iteration]
        if ends or (iteration in RUNGS and stops(trial, iteration, points[trial, iteration])):
            trial, iteration = next(new, None), 0
        if trial is not None:
            later = now + _until(iteration + 1)
            heapq.heappush(events, (later, trial, iteration + 1))


def _until(iteration: int) -> float:
    return TRAIN_S * (2 if iteration in (*RUNGS, MAX_T) else 1)


SYNE = "Syne Tune MOASHA"


def systems() -> dict[str, Callable[[pd.DataFrame], list[Scored]]]:
    """Return the systems by name; the first is the reference."""
    inline, auto = {"inline": "decisions"}, validating("auto", "auto")
    return {
        SYNE: of_syne_tune(ranks=False),
        "  fixed": of_syne_tune(ranks=True),
        "MOASHA, inline": simulated(lambda: asha(MOASHA, metrics=METRICS), **inline),
        "MOASHA, tunekit's default": simulated(lambda: asha(MOASHA, metrics=METRICS), **auto),
        "MOASHA that promotes": simulated(
            lambda: asha(MOASHA, metrics=METRICS, promotes=True), **auto
        ),
        "ASHA by accuracy": simulated(asha, **auto),
        "random search": simulated(FIFOScheduler, **auto),
    }


# Results ---------------------------------------------------------------------------------------


def shares(scored: Iterable[Scored], worst: tuple, best: tuple) -> list[Scored]:
    """Return when the front grew, and the share of the box that it then dominated."""
    front, found = [], [(0.0, 0.0)]
    for now, point in sorted(scored):
        unit = tuple((v - a) / (b - a) for v, a, b in zip(point, worst, best, strict=True))
        if any(all(a >= b for a, b in zip(one, unit, strict=True)) for one in front):
            continue
        front = [
            unit,
            *(one for one in front if any(a > b for a, b in zip(one, unit, strict=True))),
        ]
        found.append((now, area(front)))
    return found


def area(front: Iterable[tuple[float, float]]) -> float:
    """Return the area between the origin and the points of a front."""
    total = below = 0.0
    for x, y in sorted(front, reverse=True):
        total += x * max(0.0, y - below)
        below = max(below, y)
    return total


def over_time(found: list[Scored], horizon: float) -> float:
    steps = [*found, (horizon, found[-1][1])]
    return sum(share * (b - a) for (a, share), (b, _) in pairwise(steps)) / horizon


def with_interval(values: list[float]) -> str:
    half = 1.96 * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{statistics.mean(values):+.3f} ± {half:.3f}"


def alike(orders: int) -> str:
    """Return on how many of the same arrivals both make the same decision, as text."""
    same = count = 0
    for seed in range(orders):
        points = points_of(table(seed))
        stops = bracket(ranks=True)
        books = Halving([RUNGS], MAX_T, ETA, stops=True)
        rng = np.random.default_rng(seed)
        for trial in range(CONFIGURATIONS):
            books.add(str(trial))
        running = dict.fromkeys(range(CONFIGURATIONS), 0)
        while running:
            trial = int(rng.choice(list(running)))
            rung = RUNGS[running[trial]]
            said = stops(trial, rung, points[trial, rung])
            ours = books.reported(str(trial), rung, points[trial, rung]) is RungAction.END
            same, count = same + (said == ours), count + 1
            running[trial] += 1
            if said or running[trial] == len(RUNGS):
                del running[trial]
    return f"{same} of {count}"


def main() -> None:
    options = arguments(__doc__, orders=30)
    quiet()
    front: dict[str, list[float]] = {name: [] for name in systems()}
    end: dict[str, list[float]] = {name: [] for name in systems()}
    for seed in range(options.orders):
        rows = table(seed)
        points = list(points_of(rows).values())
        worst, best = (tuple(pick(v) for v in zip(*points, strict=True)) for pick in (min, max))
        ran = {name: run(rows) for name, run in systems().items()}
        horizon = max(max(now for now, _ in scored) for scored in ran.values())
        for name, scored in ran.items():
            found = shares(scored, worst, best)
            front[name].append(over_time(found, horizon))
            end[name].append(found[-1][1])
    print(f"{'':28}{'front':>7}{'difference':>17}{'at the end':>12}{'difference':>17}")
    for name in front:
        line = f"{name:28}"
        for values in (front, end):
            apart = [a - b for a, b in zip(values[name], values[SYNE], strict=True)]
            line += f"{statistics.mean(values[name]):{7 if values is front else 12}.3f}"
            line += f"{with_interval(apart):>17}"
        print(line)
    print("\nthe same decisions on the same arrivals:", alike(options.orders))


if __name__ == "__main__":
    main()
