"""The best validated checkpoints, and the scores of later validations, as text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import click

from tunekit.cli.layout import WIDTH, format_table, terminal_width, truncate
from tunekit.core.metrics import flatten
from tunekit.core.values import finite_number
from tunekit.messages.formatting import format_iteration, format_score, format_setting, printable
from tunekit.reading.findings import BestCheckpoint
from tunekit.reading.sweep import Sweep


def format_best(found: BestCheckpoint, path: str, sweep: Sweep) -> str:
    """Return the best checkpoint as text, with the line of Python that loads it."""
    at = format_iteration(found.generation, found.iteration)
    others = {n: v for n, v in flatten(found.metrics).items() if n != found.metric}
    lines = [
        click.style(printable(f"{found.metric} {format_score(found.score)}"), bold=True)
        + printable(f" ({sweep.mode}): trial {found.trial_id} at {at}")
    ]
    if found.violation:
        limits = ", ".join(one.text for one in sweep.constraints)
        lines.append(printable(f"No validated checkpoint satisfies {limits}; this one is closest."))
    for heading, values in (("also", others), ("hyperparameters", flatten(found.config))):
        if values:
            shown = {printable(name): printable(format_setting(v)) for name, v in values.items()}
            width = max(map(len, shown))
            lines += ["", click.style(heading, bold=True)]
            lines += [f"  {name:<{width}}  {value}" for name, value in shown.items()]
    lines += ["", click.style("checkpoint", bold=True), f"  {printable(found.path)}"]
    if found.filesystem is None:
        lines.append("  It is missing: deleted since (num_to_keep), or not uploaded yet.")
    else:
        goal = f"metric={found.metric!r}, mode={sweep.mode!r}"
        lines += ["", click.style("in Python", bold=True)]
        lines.append(f"  tunekit.load({path!r}).best({goal}).checkpoint")
    return "\n".join(lines)


def format_front(summary: Mapping[str, Any], path: str) -> str:
    """Return the Pareto front as text: its checkpoints and their objectives.

    Args:
        summary: As returned by :meth:`tunekit.Sweep.summary`.
        path: The sweep, as the user named it.

    Example:
        >>> checkpoint = {"trial_id": "a", "generation": 0, "iteration": 9, "violation": 0.0}
        >>> values = [{"accuracy": 0.9, "size": 40}, {"accuracy": 0.85, "size": 9}]
        >>> front = [{**checkpoint, "objectives": each} for each in values]
        >>> goal = {"accuracy": "max", "size": "min"}
        >>> summary = {"objectives": goal, "constraints": [], "pareto": front}
        >>> print(format_front(summary, "digits").splitlines()[2])
        accuracy  size  trial  checkpoint
    """
    front, goals = summary["pareto"], summary["objectives"]
    goal = ", ".join(f"{name} ({mode})" for name, mode in goals.items())
    count = f"{len(front)} checkpoint{'s' * (len(front) != 1)}"
    lines = [click.style(printable(f"Pareto front of {goal}: {count}"), bold=True)]
    if front[0]["violation"]:
        lines.append(
            printable(f"None satisfies {', '.join(summary['constraints'])}; these are closest.")
        )
    rows = [
        [
            *(format_score(one["objectives"][name]) for name in goals),
            one["trial_id"],
            format_iteration(one["generation"], one["iteration"]),
        ]
        for one in front
    ]
    heads = [*goals, "trial", "checkpoint"]
    lines += ["", *format_table([heads, *rows], terminal_width(), left=range(len(heads)))]
    lines += ["", click.style("in Python", bold=True)]
    lines.append(f"  tunekit.load({path!r}).pareto()[0].checkpoint")
    return "\n".join(lines)


def format_scores(known: Mapping[str, Any], path: str) -> str:
    """Return scores as a table, with the command to rank by them.

    Args:
        known: As returned by :func:`tunekit.reading.findings.later_scores`.
        path: The sweep, as the user named it.

    Example:
        >>> row = {"trial_id": "a", "generation": 0, "iteration": 3, "status": "validated"}
        >>> row |= {"score": 0.9, "metrics": {"robust/accuracy": 0.7}}
        >>> known = {"name": "robust", "function": "evals:robust", "metric": "accuracy"}
        >>> known |= {"names": ["robust/accuracy"], "scored": 1, "unscored": 0, "rows": [row]}
        >>> print(format_scores(known, "/digits"))
        robust: evals:robust has validated 1 checkpoint
        <BLANKLINE>
        trial  iteration  accuracy  robust/accuracy
        a              3    0.9000           0.7000
        <BLANKLINE>
        tunekit best /digits --metric robust/accuracy --mode max    # or min
    """
    known = printable(known)
    rows, names, count = known["rows"], known["names"], known["scored"]
    head = f"{known['name']}: {known['function']} has validated {count} checkpoint"
    head += "s" * (count != 1)
    head += f", and not {known['unscored']}" if known["unscored"] else ""
    cells = [("trial", "iteration", known["metric"] or "score", *names)]
    for row in rows:
        at = f"{row['generation']}:" * bool(row["generation"]) + str(row["iteration"])
        new = (format_score(finite_number(row["metrics"].get(name)), "-") for name in names)
        cells.append((row["trial_id"], at, format_score(row["score"], "-"), *new))
    lines = [head, "", *format_table(cells, WIDTH, optional=len(names))]
    for row in rows:
        if row["status"] != "validated":
            why = f"{row['status'].replace('_', ' ')}: {row['reason'] or 'it has not ended'}"
            where = f"{row['trial_id']} at {format_iteration(row['generation'], row['iteration'])}"
            lines.append(truncate(f"{where}: {why}", WIDTH))
    if names:
        way = f"tunekit best {shlex.quote(path)}"
        lines += ["", f"{way} --metric {shlex.quote(names[0])} --mode max    # or min"]
    return "\n".join(lines)
