"""What the demonstration says while it runs, and at its end."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from tunekit.core.parameters import parameters_of
from tunekit.core.progress import counted
from tunekit.core.words import duration, setting
from tunekit.reading.best import BestCheckpoint
from tunekit.reading.sweep import Sweep

__all__ = ["bought_and_cost", "next_commands", "progress_line", "ranking", "winner"]


def progress_line(
    seconds: float, statuses: Sequence[str], validations: Mapping[str, int], best: float | None
) -> str:
    """Say in one line how far the sweep is.

    Args:
        seconds: Since it began.
        statuses: Tune's status of each trial that has been created.
        validations: How many there are of each status.
        best: The best validated accuracy so far; None without any.

    Example:
        >>> progress_line(12, ["TERMINATED", "RUNNING"], {"validated": 3, "running": 1}, 0.9417)
        '12 s: 1 trial has ended, 1 runs. Validations: 3 validated, 1 running. Best so far: 94.2%'
        >>> progress_line(2, [], {}, None)
        '2 s: 0 trials have ended, 0 run. Validations: none yet'
    """
    ended = sum(status in ("TERMINATED", "ERROR") for status in statuses)
    runs = sum(status == "RUNNING" for status in statuses)
    has = "trial has" if ended == 1 else "trials have"
    line = f"{duration(seconds)}: {ended} {has} ended, {runs} {'runs' if runs == 1 else 'run'}. "
    line += counted(validations)
    return line if best is None else f"{line}. Best so far: {best:.1%}"


def ranking(sweep: Sweep) -> list[str]:
    """Return the trials as the lines of a table, ranked by the best checkpoint of each."""
    ranked = sweep.ranking()
    parameters = parameters_of([one.hyperparameters for one in ranked], {})
    names = [name for name, one in parameters.items() if len(ranked) == 1 or not one.single]
    rows = [["rank", "trial", "accuracy", "at epoch", "of", *names]]
    for one in ranked:
        known = one.hyperparameters
        rows.append(
            [
                "" if one.rank is None else str(one.rank),
                one.name,
                "" if one.best_value is None else f"{one.best_value:.2%}",
                "" if one.best is None else str(one.best.iteration),
                str(one.story.iteration),
                *(setting(known[name]) if name in known else "" for name in names),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def winner(best: BestCheckpoint, tested: float | None) -> str:
    """Say which checkpoint is the best; ``tested``: its accuracy on the test images."""
    told = (
        f"The best checkpoint is that of trial {best.trial_id} at epoch {best.iteration}: right on "
        f"{best.score:.2%} of the validation images"
    )
    return told + ("." if tested is None else f", and on {tested:.2%} of the test images.")


def bought_and_cost(sweep: Sweep, beside_s: float, inline_s: float) -> list[str]:
    """Say what validating beside training has bought, and what it has cost.

    Args:
        sweep: The sweep.
        beside_s: How long it takes in virtual time, in seconds.
        inline_s: How long it takes there with validation inline, after each epoch.
    """
    summary = sweep.summary()
    lag = summary["lag_s"]
    saved = inline_s - beside_s
    less = f"{abs(saved) / inline_s:.0%} {'less' if saved >= 0 else 'more'}" if inline_s else ""
    lines = [
        "What validating beside training has bought and cost:",
        f"  bought  {duration(beside_s)} instead of {duration(inline_s)} with validation after "
        f"each epoch, inline: {less}",
        "          (in virtual time, in which processes start at once)",
    ]
    if lag is not None:
        late, trained = summary["iterations_after_stop"], summary["iterations"]
        lines += [
            f"  cost    scores came {lag['median']:.1f} s after their epoch (median); {late} of "
            f"{trained} epochs were trained past a stop",
            f"          trials waited {duration(summary['trials_waited_s'])} for scores; "
            f"validations ran {duration(summary['validations_ran_s'])}",
        ]
    return lines


def next_commands(path: str) -> list[str]:
    """Return what to type next.

    Example:
        >>> next_commands("/my results/digits")[1:]
        ["  tunekit status '/my results/digits'",
         "  tunekit best '/my results/digits'",
         "  tunekit report '/my results/digits' --open"]
    """
    where = shlex.quote(path)
    commands = (f"status {where}", f"best {where}", f"report {where} --open")
    return ["Next:", *(f"  tunekit {command}" for command in commands)]
