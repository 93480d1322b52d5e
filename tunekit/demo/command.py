"""The demonstration on the command line."""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import suppress
from typing import Any

import click

from tunekit.core.pending import ON_PENDING


@click.command(
    short_help="Run a small sweep over handwritten digits.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--trials", type=click.IntRange(1), default=16, show_default=True, help="The number of trials."
)
@click.option(
    "--on-pending",
    type=click.Choice(ON_PENDING),
    default="auto",
    show_default=True,
    help="What a trial does while one of its scores is pending.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="The seed of the search.")
@click.option(
    "--verbose", type=click.IntRange(0, 2), default=1, show_default=True, help="Tune's verbosity."
)
@click.option("--storage", help="Where the results go; by default a new temporary folder.")
@click.option("--report", is_flag=True, help="Write the sweep's report at the end, an HTML file.")
@click.option("--inline", is_flag=True, help="Run it again, validating inline, and compare.")
def demo(storage: str | None, **options: Any) -> None:
    """Tune a small network for handwritten digits with ASHA, and print the results.

    It needs no data and no GPU, and takes about a minute. At the end it prints commands to try
    next.

    \b
    Examples:
      tunekit demo --trials 6
      tunekit demo --inline
      tunekit demo --on-pending wait --storage ~/sweeps --report
    """
    with suppress(ModuleNotFoundError):  # the import below reports it
        if importlib.util.find_spec("torch") is not None:
            click.echo("Starting Ray. Training begins in about ten seconds.")
            sys.stdout.flush()
    from tunekit.demo.sweep import run

    if storage is not None and "://" not in storage:
        storage = os.path.abspath(os.path.expanduser(storage))
    run(storage=storage, **options)
