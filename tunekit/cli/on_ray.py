"""What commands do that run on Ray: validate more checkpoints, and continue a sweep."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from typing import Any

import click
import ray

from tunekit.cli.failed import Failed
from tunekit.cli.trainables import absolute_reference, trainable_at
from tunekit.core.metrics import finite_json, flatten
from tunekit.core.values import finite_number
from tunekit.driver.tuner import Tuner
from tunekit.following.follow import follow
from tunekit.following.validate import validate
from tunekit.journal.paths import absolute
from tunekit.messages.formatting import format_score, printable
from tunekit.reading.findings import later_scores
from tunekit.reading.sweep import Sweep


def validate_sweep(
    sweep: Sweep, where: str, checkpoints: int, name: str | None, *, replace: bool, quiet: bool
) -> dict[str, Any]:
    """Validate the best checkpoints of a sweep; return their scores as JSON values.

    Args:
        sweep: The sweep.
        where: The validation function.
        checkpoints: As for :func:`tunekit.validate`.
        name: The same.
        replace: The same.
        quiet: Whether stdout is kept for the result.
    """
    fn = trainable_at(where, "--fn")
    name = name or where.rpartition(":")[2].rpartition(".")[2]
    with _on_ray(quiet):
        sweep = validate(sweep, fn, checkpoints, name=name, replace=replace)
    return later_scores(sweep.timeline, name, sweep.metric, sweep.mode)


def follow_folder(path: str, where: str, as_json: bool, **options: Any) -> None:
    """Validate the checkpoints that are saved into a folder, and print a line for each outcome.

    Args:
        path: The folder.
        where: The validation function.
        as_json: Whether the lines are JSON.
        **options: As for :func:`tunekit.follow`.
    """
    fn = trainable_at(where, "--fn")

    def show(known: Mapping[str, Any]) -> None:
        known = {**known, "metrics": flatten(known["metrics"])}
        if as_json:
            text = json.dumps(finite_json(known), allow_nan=False, default=str)
        else:
            values = (
                f"{one} {format_score(finite_number(value), '-')}"
                for one, value in known["metrics"].items()
            )
            why = known["reason"] or ", ".join(values)
            text = f"{known['run']}@{known['step']} {known['status']}: {why}"
        click.echo(printable(text), file=output)

    output = sys.stdout
    if str(options.get("until", "")).isdecimal():
        options["until"] = int(options["until"])
    if "journal" in options:
        options["journal"] = absolute(options["journal"])
    with _on_ray(as_json), suppress(KeyboardInterrupt):  # Ctrl-C stops it
        follow(path, fn, notify=show, **options)


def resume_sweep(path: str, where: str, *, quiet: bool, **options: Any) -> None:
    """Continue a sweep until it has ended.

    Args:
        path: Its folder.
        where: The trainable.
        quiet: Whether stdout is kept for the status.
        **options: Which failed trials continue, as for :meth:`tunekit.Tuner.restore`.
    """
    trainable = trainable_at(where)
    with _on_ray(quiet):
        tuner = Tuner.restore(path, trainable, **options)
        if tuner.validation is not None:
            tuner.validation.program.trainable = absolute_reference(where)
        tuner.fit(progress=tuner.validation is not None)


@contextmanager
def _on_ray(quiet: bool) -> Iterator[None]:
    """Print nothing to stdout if ``quiet``; shut Ray down at the end if it was not running."""
    started = not ray.is_initialized()
    # Ray prints the output of workers until it has been shut down.
    with redirect_stdout(sys.stderr) if quiet else nullcontext():
        try:
            yield
        except KeyboardInterrupt:
            text = "Interrupted. Run the same command to continue; validated scores are kept."
            raise Failed(text) from None
        finally:
            if started:
                ray.shutdown()
