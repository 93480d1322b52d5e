"""Compare the time of a sweep with inline validation in stock Ray, Optuna and Syne Tune.

    python -m scripts.bench.peers                    # in virtual time: some 5 minutes
    python -m scripts.bench.peers --orders 30
    python -m scripts.bench.peers --start-s 4 --only inline extra   # some systems, slow processes
    python -m scripts.bench.peers --ratio 3 7 --longer good   # long, and longest for good models

Each sweep has 54 configurations under ASHA (max_t=27, reduction_factor=3) or the most similar
scheduler. An iteration takes 0.4 s, and a validation a multiple of that: the same for all models,
or up to 17 times as long for the worst or the best (``--longer bad`` or ``good``). The curves are
synthetic: noisy and crossing, with another table for each order. Each system's own decision code
runs in virtual time: Tune's controller and tunekit on ``virtual.py``, Optuna's pruners and Syne
Tune's scheduler (if it can be imported) by ask and tell. All have six slots, which training and
validation share, and start processes in no time, or in ``--start-s`` seconds.

Times are ratios of the mean time of the sweeps to that of the first system: stock Ray with
validation at ASHA's rungs on six slots. *found* is the share of sweeps whose best score is within
0.01 of the best of all curves.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import optuna
import pandas as pd
from ray.tune.schedulers import ASHAScheduler, TrialScheduler

import tunekit
from scripts.bench.harness import arguments, quiet
from scripts.bench.virtual import VirtualSweep
from tunekit.schedulers import PromotionASHA

CONFIGURATIONS, MAX_T, ETA = 54, 27, 3
RUNGS = (1, 3, 9, 27)
TRAIN_S, SLOTS = 0.4, 6
NEAR = 0.01


def table(seed: int) -> pd.DataFrame:
    """Return noisy curves that cross: configurations differ in their final score and speed."""
    rng = np.random.default_rng(seed)
    best = 0.35 + 0.6 * rng.beta(5, 2, CONFIGURATIONS)
    speed = np.exp(rng.normal(0.6, 0.7, CONFIGURATIONS))
    iterations = np.arange(1, MAX_T + 1)
    smooth = 0.1 + (best[:, None] - 0.1) * (1 - np.exp(-iterations / speed[:, None]))
    noise = np.zeros_like(smooth)
    last = rng.normal(size=CONFIGURATIONS)
    for i in range(MAX_T):
        last = 0.6 * last + 0.8 * rng.normal(size=CONFIGURATIONS)
        noise[:, i] = last
    rows = [
        (trial, i + 1, float(np.clip(smooth[trial, i] + 0.015 * noise[trial, i], 0, 1)))
        for trial in range(CONFIGURATIONS)
        for i in range(MAX_T)
    ]
    return pd.DataFrame(rows, columns=["trial", "training_iteration", "accuracy"])


@dataclass
class Ran:
    """The results of a sweep."""

    seconds: float
    regret: float
    iterations: int
    after_stop: int = 0


#: ``run(curves, start_s)``: the curves have the seconds of validations; a start takes as many.
System = Callable[[pd.DataFrame, float], Ran]
#: Which models take longer to validate, with a 17-fold spread; each length has the same mean.
LENGTHS = {"one": 0.0, "bad": -1.0, "good": 1.0}


def with_lengths(curves: pd.DataFrame, ratio: float, longer: str) -> pd.DataFrame:
    """Return curves with the seconds of a validation.

    Args:
        curves: The curves.
        ratio: Its mean, in iterations.
        longer: The models that take longer, of ``LENGTHS``.
    """
    rank = curves.groupby("trial").accuracy.transform("last").rank(method="dense", pct=True)
    length = 17.0 ** (LENGTHS[longer] * rank)
    return curves.assign(validate_s=TRAIN_S * ratio * length / length.mean())


# tunekit, and stock Ray ------------------------------------------------------------------------


def validating(when: int | str, on_pending: str) -> dict:
    config = tunekit.ValidationConfig(fn=lambda checkpoint: {}, when=when, on_pending=on_pending)
    policy = tunekit.policies.AtDecisions() if when == "decisions" else tunekit.EveryIterations(1)
    return {"config": config, "policy": policy}


def simulated(
    *,
    slots: int = SLOTS,
    validators: int = 0,
    slower: float = 1.0,
    late: float | None = None,
    reuse: bool = False,
    scheduler: type[TrialScheduler] = ASHAScheduler,
    **how,
) -> System:
    def run(curves: pd.DataFrame, start_s: float) -> Ran:
        seconds = curves.validate_s * slower if late is None else TRAIN_S * late
        ran = VirtualSweep(
            curves.assign(validate_s=seconds),
            scheduler(
                max_t=MAX_T, grace_period=1, reduction_factor=ETA, time_attr="training_iteration"
            ),
            reuse_actors=reuse,
            train_s=TRAIN_S,
            validate_s="validate_s",
            slots=slots,
            validation_slots=validators,
            start_s=start_s,
            **how,
        ).run()
        return Ran(ran.now, ran.regret, ran.iterations, ran.iterations_after_stop)

    return run


# Peers -----------------------------------------------------------------------------------------


#: What a trial is told: its iteration and score; returns whether it stops.
Reported = Callable[[int, float], bool]


@dataclass
class Turns:
    """What trials that were asked and told have done.

    Attributes:
        seconds: The time of the sweep.
        trained: The (trial, iteration) of each iteration, in order.
    """

    seconds: float
    trained: list[tuple[Any, int]]


def by_turns(
    curves: pd.DataFrame,
    trials: Iterator[Reported],
    *,
    step_s: Callable[[Any, int], float],
    start_s: float = 0.0,
    rungs: Sequence[int] = RUNGS,
) -> Turns:
    """Run trials in virtual time, one in each slot; at rungs, where it is validated, each may stop.

    Args:
        curves: The curves.
        trials: Yields what each trial is told at rungs, the last of which ends it.
        step_s: Returns the seconds that a trial needs for an iteration, with its validation.
        start_s: The seconds that a trial takes to start.
        rungs: The iterations that are validated.
    """
    scores = {trial: list(rows.accuracy) for trial, rows in curves.groupby("trial", sort=False)}
    order = iter(scores)
    events: list[tuple[float, int, Reported, Any, int]] = []
    turns, begun = Turns(0.0, []), count()

    def begin(at: float) -> None:
        trial = next(order, None)
        if trial is not None:
            first = at + start_s + step_s(trial, 1)
            heapq.heappush(events, (first, next(begun), next(trials), trial, 1))

    for _ in range(SLOTS):
        begin(0.0)
    while events:
        now, turn, reported, trial, iteration = heapq.heappop(events)
        turns.seconds = now
        turns.trained.append((trial, iteration))
        stops = iteration in rungs and reported(iteration, scores[trial][iteration - 1])
        if stops or iteration == rungs[-1]:
            begin(now)
        else:
            later = now + step_s(trial, iteration + 1)
            heapq.heappush(events, (later, turn, reported, trial, iteration + 1))
    return turns


def asked(trials: Callable[[], Iterator[Reported]]) -> System:
    """Return a system whose trials validate inline at rungs."""

    def run(curves: pd.DataFrame, start_s: float) -> Ran:
        rows = curves.set_index(["trial", "training_iteration"])
        scores, validate_s = rows.accuracy, rows.validate_s
        turns = by_turns(
            curves,
            trials(),
            step_s=lambda *place: TRAIN_S + (validate_s[place] if place[1] in RUNGS else 0.0),
            start_s=start_s,
        )
        found = max(scores[place] for place in turns.trained if place[1] in RUNGS)
        return Ran(turns.seconds, scores.max() - found, len(turns.trained))

    return run


def optuna_trials(
    pruner: Callable[[], optuna.pruners.BasePruner], max_t: int = MAX_T
) -> Iterator[Reported]:
    """Yield what Optuna's trials are told."""
    study = optuna.create_study(direction="maximize", pruner=pruner())
    while True:
        trial = study.ask()

        def reported(iteration: int, score: float, trial=trial) -> bool:
            trial.report(score, iteration)
            pruned = trial.should_prune()
            if pruned:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            elif iteration == max_t:
                study.tell(trial, score)
            return pruned

        yield reported


def syne_tune_trials(max_t: int = MAX_T, eta: int = ETA) -> Iterator[Reported]:
    """Yield what Syne Tune's trials are told."""
    from syne_tune.backend.trial_status import Trial
    from syne_tune.config_space import uniform
    from syne_tune.optimizer.baselines import ASHA

    scheduler = ASHA(
        {"x": uniform(0, 1)},
        metric="accuracy",
        do_minimize=False,
        max_t=max_t,
        grace_period=1,
        reduction_factor=eta,
        time_attr="epoch",
        random_seed=0,
    )
    for number in count():
        trial = Trial(number, scheduler.suggest().config, None)
        scheduler.on_trial_add(trial)

        def reported(iteration: int, score: float, trial=trial) -> bool:
            result = {"accuracy": score, "epoch": iteration}
            decision = scheduler.on_trial_result(trial, result)
            if decision != "CONTINUE":
                scheduler.on_trial_complete(trial, result)
            return decision != "CONTINUE"

        yield reported


def has_syne_tune() -> bool:
    try:
        import syne_tune.optimizer.baselines  # noqa: F401
    except ImportError:
        return False
    return True


def systems() -> dict[str, System]:
    """Return the systems by name; the first is the reference."""
    auto, every = validating("auto", "auto"), validating(1, "auto")
    decisions = validating("decisions", "auto")
    two = {"validators": 2, "reuse": True}
    slow = {"validators": SLOTS, "slower": 2.0, "reuse": True}
    free = {"validators": CONFIGURATIONS, "reuse": True}
    found: dict[str, System] = {
        "Ray inline, at rungs": simulated(inline="decisions"),
        "Ray inline, every iteration": simulated(inline="every"),
        "Optuna successive halving, at rungs": asked(
            lambda: optuna_trials(lambda: optuna.pruners.SuccessiveHalvingPruner(1, ETA))
        ),
        "Optuna Hyperband, at rungs": asked(
            lambda: optuna_trials(lambda: optuna.pruners.HyperbandPruner(1, MAX_T, ETA))
        ),
    }
    if has_syne_tune():
        found["Syne Tune ASHA, at rungs"] = asked(syne_tune_trials)
    return {
        **found,
        "tunekit, default": simulated(**auto),
        "  reuse_actors=True": simulated(**auto, reuse=True),
        "tunekit, when=1": simulated(**every, reuse=True),
        "tunekit, when='decisions'": simulated(**decisions, reuse=True),
        "  on_pending='continue'": simulated(**validating("decisions", "continue")),
        "  on_pending='wait'": simulated(**validating("decisions", "wait"), reuse=True),
        "Ray inline, at rungs, eight slots": simulated(inline="decisions", slots=8),
        "tunekit, default, 2 extra": simulated(**auto, validators=2),
        "  reuse_actors=True, 2 extra": simulated(**auto, **two),
        "tunekit, default, 6 extra": simulated(**auto, validators=6),
        "tunekit, 'decisions', 2 extra": simulated(**decisions, **two),
        "  on_pending='continue', 2 extra": simulated(
            **validating("decisions", "continue"), validators=2
        ),
        "tunekit, 'decisions', 6 of half speed": simulated(**decisions, **slow),
        "tunekit, PromotionASHA": simulated(**decisions, scheduler=PromotionASHA, reuse=True),
        "ASHA, scores at once and for nothing": simulated(**decisions, **free, late=0.0),
        "PromotionASHA, 3 iterations late": simulated(
            **decisions, **free, late=3.0, scheduler=PromotionASHA
        ),
    }


def virtual(ratios: list[float], orders: int, start_s: float, longer: str, only: list[str]) -> None:
    found = [table(seed) for seed in range(orders)]
    chosen = {name: run for name, run in systems().items() if any(word in name for word in only)}
    for ratio in ratios:
        tables = [with_lengths(curves, ratio, longer) for curves in found]
        print(f"\nA validation takes {ratio:g} iterations, a start {start_s:g} s ({orders} orders)")
        print(f"{'':38}{'time':>6}{'after STOP':>12}{'regret':>8}{'found':>7}")
        reference = None
        for name, run in chosen.items():
            ran = [run(curves, start_s) for curves in tables]
            seconds = statistics.mean(one.seconds for one in ran)
            reference = reference or seconds
            late = sum(one.after_stop for one in ran) / sum(one.iterations for one in ran)
            regret = statistics.mean(one.regret for one in ran)
            near = statistics.mean(one.regret <= NEAR for one in ran)
            print(
                f"{name:38}{seconds / reference:6.2f}{late:12.0%}{regret:8.3f}{near:7.0%}",
                flush=True,
            )


def main() -> None:
    options = arguments(
        __doc__, orders=8, ratio=[0.2, 0.5, 1.0, 2.0], start_s=0.0, longer="one", only=[""]
    )
    quiet()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    virtual(options.ratio, options.orders, options.start_s, options.longer, options.only)


if __name__ == "__main__":
    main()
