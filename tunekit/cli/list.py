"""``tunekit list``: the sweeps in a folder. Also the default PATH of other commands."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import click

from tunekit.cli.layout import format_table, terminal_width
from tunekit.errors import ConfigError
from tunekit.journal.experiments import sweeps_below
from tunekit.journal.paths import absolute, storage_at
from tunekit.messages.formatting import format_duration, format_score, printable
from tunekit.reading.catalogue import Catalogue
from tunekit.reading.load import Follower, outline

#: Where Tune keeps results without ``RunConfig(storage_path=...)``.
RESULTS = "~/ray_results"


def given_or_newest(ctx: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    """Return a command's PATH: a URI unchanged, a local path as absolute; by default the newest.

    The default is printed to stderr.

    Raises:
        tunekit.errors.ConfigError: If there is no sweep.
    """
    if path is not None or ctx.resilient_parsing:  # the latter for shell completion
        return path and absolute(path)
    found = sweeps_below(*storage_at(RESULTS, None))
    if not found:
        why = (
            f"PATH is missing, and there is no sweep below {RESULTS}. Pass the folder of a sweep, "
            "results.experiment_path, or its URI."
        )
        raise ConfigError(f"tunekit {ctx.info_name}", [why])
    click.echo(f"The newest sweep below {RESULTS}: {printable(found[0].path)}", err=True)
    return found[0].path


def listing_json(folder: str, top: int) -> dict[str, Any]:
    """Return the sweeps in a folder and below it, newest first, as JSON values.

    Args:
        folder: A local path, or a URI.
        top: How many sweeps to read.

    Returns:
        ``folder``; ``found``: how many there are; ``sweeps``: for each the ``name`` below the
        folder, the ``path``, and its summary (``state`` and so on). A sweep with a damaged journal
        has the state ``"unreadable"`` and a ``reason``.

    Raises:
        tunekit.errors.ConfigError: If there is no such folder, or it is in a sweep.
        OSError: If the storage fails.
    """
    found = list(Catalogue([folder], "tunekit list").find().values())
    rows = [
        {"name": one.name, "path": one.path, **outline(Follower(one.filesystem, one.path))}
        for one in found[:top]
    ]
    return {"folder": folder, "found": len(found), "sweeps": rows}


def format_listing(known: Mapping[str, Any]) -> str:
    """Return a listing, as returned by :func:`listing_json`, as text."""
    known = printable(known)
    if not known["sweeps"]:
        return f"There is no sweep with validation in or below {known['folder']}."
    rows = [("sweep", "state", "began (UTC)", "time", "trials", "best")]
    reasons = []
    for one in known["sweeps"]:
        began, took, trials, best = "", "", "", ""
        if one["state"] == "unreadable":
            reasons.append(f"{one['name']}: {one['reason']}")
        else:
            trials = str(sum(one["trials"].values()))
        if one.get("began") is not None:
            began = f"{datetime.fromtimestamp(one['began'], timezone.utc):%Y-%m-%d %H:%M}"
            took = format_duration(one["last"] - one["began"])
        if one.get("best") is not None:
            best = f"{one['metric']} {format_score(one['best']['score'])}"
        rows.append((one["name"], one["state"], began, took, trials, best))
    lines = format_table(rows, terminal_width(), left=(0, 1, 2, 5))
    lines[0] = click.style(lines[0], bold=True)
    more = known["found"] - len(known["sweeps"])
    if more:
        lines.append(f"and {more} older ones: --top")
    return "\n".join([*lines, *reasons])
