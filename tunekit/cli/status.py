"""The status of a sweep, as data for JSON and as text."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import click

from tunekit.cli.layout import WIDTH, format_table, truncate
from tunekit.core.failures import format_checkpoint
from tunekit.core.metrics import flatten
from tunekit.core.ranking import Ranked
from tunekit.core.summaries import shown_status
from tunekit.core.validation import PENDING
from tunekit.messages.formatting import (
    differing_names,
    format_duration,
    format_iteration,
    format_score,
    format_setting,
    printable,
)
from tunekit.reading.findings import causes_of, failures_of, how_to_continue
from tunekit.reading.sweep import Sweep

_LABEL = 13
# How many checkpoints to list whose validations failed for one reason.
_MOST_PLACES = 5
_FAILURE = ("of", "trial_id", "generation", "iteration", "status", "times", "reason")
_STATES = {
    "open": "cyan",
    "running": "cyan",
    "killed": "red",
    "finished": "green",
    "interrupted": "yellow",
}


def status_json(sweep: Sweep, now: float) -> dict[str, Any]:
    """Return the status as JSON values: everything that the text shows, and more.

    It has the items of :meth:`tunekit.Sweep.summary`, and:

    - ``heard_s``: seconds since the sweep's last sign of life;
    - ``waits_for``: the validations that have not ended: trial, generation, iteration, status, and
      ``for_s``, the seconds since each was requested or started to run;
    - ``failures``: of trials and validations, with reasons; ``causes``: the same, grouped by
      reason, with their number and the first one's reason, the most frequent first;
    - ``continue_with``: the command that continues the sweep;
    - ``ranking``: the trials, best first; trials without a score last, with ``rank`` None.

    Args:
        sweep: The sweep.
        now: Seconds since the epoch.

    Example:
        >>> from tunekit.core.events import TrialAdded
        >>> sweep = Sweep([TrialAdded(time=5.0, trial_id="a")])
        >>> status = status_json(sweep, now=7.0)
        >>> status["state"], status["heard_s"], status["ranking"][0]["trial_id"]
        ('open', 2.0, 'a')
    """
    summary = sweep.summary()
    last = summary["last"]
    until = now if summary["state"] in ("open", "running") else last
    failures = failures_of(sweep.timeline, sweep.trial_errors())
    failures = [row for row in failures if row["of"] != "later validation"]
    return {
        **summary,
        "continue_with": how_to_continue(
            sweep.newest_session, shlex.quote(sweep.source or sweep.path)
        ),
        "heard_s": None if last is None else max(0.0, now - last),
        "waits_for": [
            {
                **{name: row[name] for name in ("trial_id", "generation", "iteration", "status")},
                "for_s": max(0.0, until - (row["ran_from"] or row["requested"])),
            }
            for row in sweep.timeline.validations
            if row["status"] in PENDING
        ],
        "failures": [{name: row[name] for name in _FAILURE} for row in failures],
        "causes": [
            {
                "of": cause[0]["of"],
                "count": len(cause),
                "reason": cause[0]["reason"] or cause[0]["status"],
                "places": [
                    format_checkpoint(row["trial_id"], row["iteration"], row["generation"])
                    for row in cause
                ],
            }
            for cause in causes_of(failures)
        ],
        "ranking": [_ranked(one) for one in sweep.ranking()],
    }


def _ranked(one: Ranked) -> dict[str, Any]:
    names = ("trial_id", "status", "stopped", "by_hand", "generation", "iteration", "unprocessed")
    return {
        "rank": one.rank,
        **{name: getattr(one.trial, name) for name in names},
        "best": one.best_value,
        "best_generation": one.best and one.best.generation,
        "best_iteration": one.best and one.best.iteration,
        "violation": one.best and one.best.violation,
        "config": one.config,
    }


# As text ---------------------------------------------------------------------------------------


def format_status(status: Mapping[str, Any], top: int = 20, width: int | None = None) -> str:
    """Return a status as text; paths are not truncated.

    Args:
        status: As returned by :func:`status_json`.
        top: How many trials and how many causes of failures to list.
        width: The maximum width of a line. None, for a pipe or a file: 100, but reasons for
            failures are not truncated.
    """
    status, most = printable(status), width or WIDTH
    parts = [_head(status), _counts(status, most)]
    if status["ranking"]:
        parts.append(_table(status, top, most))
    if status["causes"]:
        parts.append(_failures(status["causes"], top, width))
    return "\n\n".join(parts)


def _head(status: Mapping[str, Any]) -> str:
    path, state, heard = status["path"], status["state"], status["heard_s"]
    name = path.rstrip("/").rsplit("/", 1)[-1]
    line = f"{click.style(name, bold=True)}  {click.style(state, fg=_STATES[state], bold=True)}"
    if heard is not None:
        when = datetime.fromtimestamp(status["last"], timezone.utc)
        line += f"  last heard of {format_duration(heard)} ago ({when:%Y-%m-%d %H:%M:%S} UTC)"
    way = status["continue_with"]
    hints = {
        "open": f"Its driver is running or was killed; if it was killed: {way}",
        "running": _driver(status["driver"]),
        "killed": f"{_driver(status['driver'])}. To continue it: {way}",
        "interrupted": f"To continue it: {way}",
    }
    hint = hints.get(state)
    return "\n".join([line, path, *([hint] if hint else [])])


def _driver(driver: Mapping[str, Any] | None) -> str:
    return "" if driver is None else f"Its driver: process {driver['pid']} on {driver['host']}"


def _counts(status: Mapping[str, Any], width: int) -> str:
    lines = []
    if status["best"] is not None:
        best = status["best"]
        at = format_iteration(best["generation"], best["iteration"])
        score = f"{status['metric']} {format_score(best['score'])} ({status['mode']})"
        lines.append(("best", f"{score}: trial {best['trial_id']} at {at}"))
        if best["violation"]:
            limits = ", ".join(status["constraints"])
            lines.append(("constraints", f"no validated checkpoint satisfies {limits} yet"))
    elif status["pareto"]:
        lines.append(("front", _front(status)))
    elif len(status["objectives"]) > 1:
        lines.append(("front", f"no validated {', '.join(status['objectives'])} yet"))
    elif status["metric"] is None:
        lines.append(("best", "not ranked: it has no single objective. Pass --metric."))
    elif status["mode"] is None:
        lines.append(("best", f"not ranked: {status['metric']} has no mode. Pass --mode."))
    else:
        lines.append(("best", f"no validated {status['metric']} yet"))
    trials = _kinds({_as_of(status, kind): count for kind, count in status["trials"].items()})
    ranking = status["ranking"]
    stopped = sum(bool(row["stopped"] and not row["by_hand"]) for row in ranking)
    by_hand, exploits = sum(row["by_hand"] for row in ranking), status["exploits"]
    trials += f"; {stopped} stopped by the scheduler" if stopped else ""
    trials += f"; {exploits} exploit{'s' * (exploits != 1)}" if exploits else ""
    trials += f"; {by_hand} stopped by hand" if by_hand else ""
    lines += [("trials", trials), ("validations", _kinds(status["validations"]))]
    for name, later in status["later"].items():
        by = f"{name}: {_kinds(later['validations'])}, by {later['function']}"
        lines.append(("later", by))
    lines.append(("time", _times(status)))
    if status["unprocessed"]:
        count, of = status["unprocessed"], sum(row["unprocessed"] > 0 for row in ranking)
        verb = "waits for a score" if count == 1 else "wait for scores"
        lines.append(("reports", f"{count} {verb}, of {of} trial{'s' * (of != 1)}"))
    if awaited := status["waits_for"]:
        longest = max(awaited, key=lambda row: (row["status"] == "running", row["for_s"]))
        at = format_iteration(longest["generation"], longest["iteration"])
        kinds = [row["status"] for row in awaited]
        counts = {kind: kinds.count(kind) for kind in reversed(PENDING) if kind in kinds}
        first = f"; the longest {longest['status']}: trial {longest['trial_id']} at {at}"
        lines.append(("waits for", f"{_kinds(counts)}{first}, {format_duration(longest['for_s'])}"))
    indent = " " * _LABEL
    return "\n".join(
        textwrap.fill(f"{label:<{_LABEL}}{text}", width, subsequent_indent=indent)
        for label, text in lines
    )


def _front(status: Mapping[str, Any]) -> str:
    front, closest = status["pareto"], ""
    if front[0]["violation"]:
        closest = f"; none satisfies {', '.join(status['constraints'])} yet"
    count = f"{len(front)} checkpoint{'s' * (len(front) != 1)}"
    return f"{count}{closest}. To list them: tunekit best PATH"


def _times(status: Mapping[str, Any]) -> str:
    sessions = status["sessions"]
    over = f" in {sessions} sessions" if sessions > 1 else ""
    if status["began"] is not None:
        over = f"{format_duration(status['last'] - status['began'])}{over}: "
    names = ("trained_s", "trials_waited_s", "validations_ran_s")
    trained, waited, ran = (format_duration(status[name]) for name in names)
    return f"{over}trials trained {trained} and waited {waited}; validations ran {ran}"


def _table(status: Mapping[str, Any], top: int, width: int) -> str:
    every = status["ranking"]
    shown = every[:top]
    generations = any(row["generation"] for row in every)
    # Of several pending validations, a trial waits for the oldest.
    awaited = {row["trial_id"]: row for row in reversed(status["waits_for"])}
    varied = _varied(every)
    rows = [["rank", "trial", "status", "iteration", "best", "at"]]
    violates = any(row["violation"] for row in every)
    waits = any(row["unprocessed"] for row in every)
    rows[0] += ["unprocessed"] * waits + ["waits for"] * bool(awaited)
    rows[0] += ["violation"] * violates + varied
    for row in shown:
        rank, config = row["rank"], flatten(row["config"])
        cells = ["" if rank is None else str(rank), row["trial_id"]]
        cells += [_as_of(status, shown_status(row)), _place_short(row, "", generations)]
        cells += [format_score(row["best"]), _place_short(row, "best_", generations)]
        if waits:
            cells.append(str(row["unprocessed"] or ""))
        if awaited:
            of = awaited.get(row["trial_id"])
            cells.append(f"{_place_short(of, '', generations)} {of['status']}" if of else "")
        if violates:
            cells.append(f"{row['violation']:.0%}" if row["violation"] else "")
        rows.append(cells + [format_setting(config[n]) if n in config else "" for n in varied])
    heading, *lines = format_table(rows, width, left=(1, 2), optional=len(varied))
    lines.insert(0, click.style(heading, bold=True))
    if len(every) > top:
        lines.append(f"and {len(every) - top} more: --top, or --json for all")
    if generations:
        lines.append("2:7 is iteration 7 of the trial's generation 2.")
    return "\n".join(lines)


def _failures(causes: Sequence[Mapping[str, Any]], top: int, width: int | None) -> str:
    lines = [click.style("failures", bold=True)]
    for cause in causes[:top]:
        places, count = cause["places"], cause["count"]
        if count == 1:
            own = [f"{cause['of']} {places[0]}: {cause['reason']}"]
        else:
            named = ", ".join(places[:_MOST_PLACES])
            others = count - len(places[:_MOST_PLACES])
            named += f" and {others} more" if others else ""
            own = [f"{count} {cause['of']}s: {cause['reason']}", f"  {named}"]
        lines += own if width is None else [truncate(line, width) for line in own]
    if len(causes) > top:
        lines.append(f"and {len(causes) - top} more causes: --top, or --json for all")
    return "\n".join(lines)


def _kinds(counts: Mapping[str, int]) -> str:
    text = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items())
    return f"{sum(counts.values())}: {text}" if len(counts) > 1 else text or "none yet"


def _as_of(status: Mapping[str, Any], kind: str) -> str:
    """Return a trial's status; nothing runs in a sweep that was killed or interrupted."""
    ended = status["state"] in ("killed", "interrupted")
    return str(status["state"]) if kind == "running" and ended else kind


def _place_short(row: Mapping[str, Any], prefix: str, generations: bool) -> str:
    generation, iteration = row[f"{prefix}generation"], row[f"{prefix}iteration"]
    if iteration is None:
        return ""
    return f"{generation}:{iteration}" if generations else str(iteration)


def _varied(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the hyperparameters that differ between trials; all, if there is one trial."""
    configs = [flatten(row["config"]) for row in rows]
    return list(configs[0]) if len(configs) == 1 else differing_names(configs)
