"""The commands: each parses its arguments, makes one call and prints the result."""

from __future__ import annotations

import io
import json
import sys
import time
import webbrowser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from tunekit.cli.best import format_best, format_front, format_scores
from tunekit.cli.failed import Failed
from tunekit.cli.layout import terminal_width
from tunekit.cli.list import RESULTS, format_listing, given_or_newest, listing_json
from tunekit.cli.status import format_status, status_json
from tunekit.core.metrics import finite_json
from tunekit.core.ranking import short_names
from tunekit.errors import ConfigError, MetricNotFoundError, TunekitError
from tunekit.journal.paths import absolute
from tunekit.journal.stop_requests import ask_to_stop
from tunekit.journal.storage import is_stream
from tunekit.messages.formatting import printable
from tunekit.messages.log import showing_messages
from tunekit.reading.findings import best_json
from tunekit.reading.load import load
from tunekit.reading.sweep import Sweep
from tunekit.version import VERSION


class _Group(click.Group):
    """Commands that are listed in order of use, and whose errors have no traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with showing_messages():
                return super().invoke(ctx)
        except BrokenPipeError:
            raise  # such as that of `| head`: click ends quietly
        except (TunekitError, OSError) as error:
            raise Failed(str(error), 2 if isinstance(error, ConfigError) else 1) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


_paths = click.argument(
    "paths", nargs=-1, required=True, callback=lambda ctx, own, paths: list(map(absolute, paths))
)
_path = click.argument("path", required=False, callback=given_or_newest)
_option = partial(click.option, show_default=True)
_json = click.option("--json", "as_json", is_flag=True, help="Print only JSON.")


def _goal(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that set how trials are ranked."""
    metric = click.option(
        "--metric", help="The validated metric to rank by; by default the sweep's."
    )
    better = "Which values of it are better; by default the sweep's."
    return metric(click.option("--mode", type=click.Choice(["min", "max"]), help=better)(command))


@click.group(
    cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(VERSION, "-V", "--version", prog_name="tunekit")
def tunekit() -> None:
    """Ray Tune sweeps ranked by validation scores: inspect one, validate more, or continue it.

    PATH is a sweep's folder, storage_path/name of its RunConfig (by default ~/ray_results/NAME), as
    in results.experiment_path. It may be a URI, such as s3://bucket/digits. Without PATH, a command
    uses the newest sweep below ~/ray_results, and prints its path. Only resume and validate start
    Ray, and only resume and stop change the course of a sweep.

    \b
    Examples:
      tunekit status ~/sweeps/digits
      tunekit report ~/sweeps/digits --open

    \b
    Exit codes:
      0  success
      1  something failed while it ran: the storage, a damaged journal, a resumed sweep that did not
         finish or whose trials all failed, a checkpoint that validate could not score;
         or a required extra is not installed
      2  wrong usage, such as a PATH that is not a sweep with validation
      3  nothing to show yet: no validated score (best)
    """


@tunekit.command("list", short_help="List the sweeps in a folder, newest first.")
@click.argument("folder", default=RESULTS)
@_option("--top", type=click.IntRange(1), default=20, help="The number of sweeps to list.")
@_json
def list_sweeps(folder: str, top: int, as_json: bool) -> None:
    """List the sweeps in a folder and below it, newest first.

    FOLDER is local or a URI; by default ~/ray_results. For each sweep: its state (running, killed,
    interrupted or finished; open if it is unknown whether its driver is running), when it started,
    how long it took, its trials, and its best validated score. Without a PATH, other commands use
    the newest one below ~/ray_results.

    \b
    Examples:
      tunekit list
      tunekit list s3://bucket/sweeps --json
    """
    known = listing_json(absolute(folder), top)
    _show(known, as_json, format_listing(known))


@tunekit.command(short_help="Show the status of a sweep: running, ended or crashed.")
@_path
@_goal
@_json
@click.option(
    "--watch", type=click.FloatRange(0.1), metavar="SECONDS", help="Refresh until it has ended."
)
@_option("--top", type=click.IntRange(1), default=20, help="The maximum length of each list.")
def status(path: str, as_json: bool, watch: float | None, top: int, **goal: str | None) -> None:
    """Show the status of a sweep: running, ended or crashed.

    It shows trials and validations by status, where time went, what the sweep waits for, the
    ranking, and failures grouped by reason. It is as wide as the terminal; in a pipe, reasons are
    not truncated. With --watch it refreshes; --json then prints one line each time, otherwise one
    object.

    \b
    Examples:
      tunekit status ~/ray_results/digits --watch 5
      tunekit status s3://bucket/digits --json | jq .best.score
    """
    while True:
        sweep, now = load(path, **goal), time.time()
        known = status_json(sweep, now)
        if watch and sys.stdout.isatty() and not as_json:
            click.clear()
        text = format_status(known, top, terminal_width()) + "\n" * bool(watch)
        _show(known, as_json, text, indent=None if watch else 2)
        if watch is None or known["state"] not in ("open", "running"):
            return
        try:
            time.sleep(watch)
        except KeyboardInterrupt:  # Ctrl-C ends --watch
            return


@tunekit.command(short_help="Show the best validated checkpoint, its score and hyperparameters.")
@_path
@_goal
@_json
def best(path: str, as_json: bool, **goal: str | None) -> None:
    """Show the best validated checkpoint, its score and its hyperparameters.

    A sweep by several metrics (MOASHA) has a Pareto front instead, which is listed unless --metric
    names one.

    \b
    Examples:
      tunekit best ~/ray_results/digits
      tunekit best ~/ray_results/digits --metric validation_loss --mode min
      cp -r "$(tunekit best ~/ray_results/digits --json | jq -r .checkpoint)" best
    """
    sweep = load(path, **goal)
    if sweep.metric is None and len(sweep.objectives) > 1:
        _show_front(sweep, path, as_json)
        return
    try:
        found = sweep.best()
    except MetricNotFoundError as error:
        raise Failed(str(error), 3) from error
    known = {"metric": found.metric, "mode": sweep.mode, **best_json(found)}
    known["metrics"] = found.metrics
    _show(known, as_json, format_best(found, path, sweep))


def _show_front(sweep: Sweep, path: str, as_json: bool) -> None:
    summary = sweep.summary()
    known = {name: summary[name] for name in ("objectives", "constraints", "pareto")}
    if not known["pareto"]:
        names = ", ".join(sweep.objectives)
        raise Failed(f"No validation has ended with all of {names}. Wait for the first one.", 3)
    _show(known, as_json, format_front(known, path))


@tunekit.command(short_help="Validate checkpoints of a sweep with another function.")
@_path
@click.option(
    "--fn",
    "where",
    metavar="WHERE",
    required=True,
    help="The validation function, or a ValidationConfig with its resources, arguments and limits: "
    "module:name or file.py:name.",
)
@_option(
    "--checkpoints",
    metavar="N",
    type=int,
    default=10,
    help="The best checkpoint of each of the N best trials.",
)
@click.option("--name", help="Prefix of the new metrics' names; by default the function's name.")
@click.option("--replace", is_flag=True, help="Replace scores of another version under that name.")
@click.option(
    "--follow", "follows", is_flag=True, help="PATH is any folder into which checkpoints are saved."
)
@click.option(
    "--until",
    metavar="STEP|FILE",
    help="With --follow: when runs end: at a step, or when PATH has a file of this name.",
)
@click.option("--pattern", metavar="REGEX", help="With --follow: their names; group 1 is the step.")
@click.option(
    "--keep", is_flag=True, help="With --follow: protect checkpoints until they are evaluated."
)
@click.option("--journal", metavar="DIR", help="With --follow: the folder of the journal.")
@_goal
@_json
def validate(
    path: str,
    where: str,
    checkpoints: int,
    name: str | None,
    replace: bool,
    as_json: bool,
    follows: bool,
    metric: str | None,
    mode: str | None,
    **following: Any,
) -> None:
    """Validate the best checkpoints of a sweep with another function.

    The sweep may be finished, killed or still running. status, best and report show the new metrics
    as NAME/metric. After Ctrl-C, the same command continues and validates nothing twice
    (tunekit.validate). --metric and --mode set how the best trials are chosen. The current
    directory is importable. It starts Ray, or joins the cluster at RAY_ADDRESS.

    \b
    Examples:
      tunekit validate ~/ray_results/digits --fn evals.py:robust --checkpoints 5
      tunekit best ~/ray_results/digits --metric robust/accuracy --mode max
      tunekit validate outputs/ --fn evals.py:generate --follow --until done --json
    """
    given = {option: value for option, value in following.items() if value}
    if follows and (name or replace or checkpoints != 10):
        raise click.UsageError("--checkpoints, --name and --replace do not work with --follow.")
    if given and not follows:
        raise click.UsageError(f"--{next(iter(given)).replace('_', '-')} needs --follow.")
    from tunekit.cli import on_ray

    if follows:
        on_ray.follow_folder(path, where, as_json, metric=metric, mode=mode, **given)
        return
    sweep = load(path, metric=metric, mode=mode)
    known = on_ray.validate_sweep(sweep, where, checkpoints, name, replace=replace, quiet=as_json)
    _show(known, as_json, format_scores(known, path))
    if known["unscored"]:
        raise click.exceptions.Exit(1)


@tunekit.command(short_help="Write a sweep's report: one HTML file.")
@_path
@_goal
@click.option(
    "--output",
    type=Path,
    metavar="FILE",
    help="The file; by default PATH/report.html, or ./NAME-report.html if PATH is remote.",
)
@click.option("--open", "show", is_flag=True, help="Open it in the browser.")
def report(path: str, output: Path | None, show: bool, **goal: str | None) -> None:
    """Write a sweep's report, one self-contained HTML file, and print its path.

    \b
    Examples:
      tunekit report ~/ray_results/digits --open
      tunekit report s3://bucket/digits --output digits.html
    """
    from tunekit.board.page import write_page

    written = write_page(load(path, **goal), output)
    click.echo(printable(str(written)), err=is_stream(written))
    if show:
        webbrowser.open(Path(written).absolute().as_uri())


@tunekit.command(short_help="Show sweeps in the browser while they run.")
@_paths
@click.option(
    "--port", type=click.IntRange(0, 65535), help="The port; by default 7007, or any free one."
)
@_option("--host", default="127.0.0.1", help="The name or address to listen on.")
@_goal
def serve(paths: list[str], port: int | None, host: str, **goal: str | None) -> None:
    """Show sweeps in the browser while they run, until Ctrl-C.

    A PATH is a sweep's folder, a folder with sweeps below it, or a URI; sweeps that start there
    later also appear. The page is the report, kept up to date. The server does not start Ray, and
    writes nothing. Open the printed address, with its token; set TUNEKIT_SERVE_TOKEN for a token
    that stays the same. For access from other machines, pass --host with the name or address that
    they use.

    \b
    Examples:
      tunekit serve ~/ray_results
      tunekit serve s3://bucket/sweeps --port 8080
      ssh -L 7007:localhost:7007 gpu1 tunekit serve /results
    """
    from tunekit.board.serve import serve as serve_pages

    serve_pages(paths, host=host, port=port, ready=click.echo, **goal)


@tunekit.command(short_help="End a trial of a running sweep.")
@_path
@click.option(
    "--trial",
    metavar="ID",
    required=True,
    help="The trial: its ID, or the part of it that differs.",
)
def stop(path: str, trial: str) -> None:
    """End a trial of a running sweep, even in the middle of an iteration.

    Its pending validations still run: the scheduler and the searcher get its last scores, and then
    its end. The driver, or that of a restored sweep, acts within a second or after its current
    step.

    \b
    Examples:
      tunekit stop ~/ray_results/digits --trial 4f1c_00003
    """
    sweep = load(path)
    trials = sweep.timeline.trials
    named = [full for full, short in short_names(list(trials)).items() if short == trial]
    trial = trial if trial in trials or not named else named[0]
    left = [one.trial_id for one in trials.values() if one.ended is None and not one.by_hand]
    if trial not in left:
        why = "is not in this sweep"
        if trial in trials:
            why = "was already asked to stop" if trials[trial].ended is None else "has ended"
        others = ", ".join(left) or "none"
        what = [f"trial {trial} {why}. Trials that can be stopped: {others}."]
        raise ConfigError("tunekit stop", what)
    assert sweep.filesystem is not None  # it was read from a folder
    try:
        recorded = ask_to_stop(sweep.filesystem, sweep.path, trial)
    except ValueError as error:
        raise ConfigError("tunekit stop", [f"{error}. See its state: tunekit status."]) from error
    will = "is stopped" if recorded else "will be stopped at the end of the driver's current step"
    click.echo(printable(f"Trial {trial} {will}."))


@tunekit.command(short_help="Continue a sweep that was killed or interrupted.")
@_path
@click.option(
    "--trainable",
    "where",
    metavar="WHERE",
    help="The trainable: module:name or file.py:name; by default the one that the sweep recorded.",
)
@click.option("--errored", is_flag=True, help="Resume failed trials from their checkpoints.")
@click.option("--restart-errored", is_flag=True, help="Restart failed trials from scratch.")
@_json
def resume(
    path: str, where: str | None, errored: bool, restart_errored: bool, as_json: bool
) -> None:
    """Continue a sweep whose driver was killed or interrupted, until it has ended.

    Pending validations run, and trials continue from their newest checkpoint; nothing runs twice
    (tunekit.Tuner.restore). Then it prints the status; with --json, everything else goes to stderr.
    The current directory is importable. --trainable is recorded: the next resume does not need it.
    Only one driver may run a sweep: while another one is alive, the command does nothing, with exit
    code 1. It starts Ray, or joins the cluster at RAY_ADDRESS. It unpickles files in the folder and
    imports the modules that they name, so resume only folders that you trust.

    \b
    Examples:
      tunekit resume ~/ray_results/digits
      tunekit resume ~/ray_results/digits --trainable train.py:train --errored
    """
    where = where or _written_down(load(path))
    from tunekit.cli import on_ray

    options = {"resume_errored": errored, "restart_errored": restart_errored}
    on_ray.resume_sweep(path, where, quiet=as_json, **options)
    known = status_json(load(path), time.time())
    _show(known, as_json, format_status(known, width=terminal_width()))
    if known["state"] != "finished" or set(known["trials"]) == {"error"}:
        raise click.exceptions.Exit(1)


def _written_down(sweep: Sweep) -> str:
    """Return the import path of the sweep's trainable, as its last session recorded it."""
    where = sweep.newest_session.get("trainable")
    if "followed" in sweep.newest_session:
        what = "it is a followed folder. Run tunekit validate DIR --fn WHERE --follow again."
    elif where is None:
        what = (
            "the sweep's trainable was defined in the program itself or in a notebook, so it "
            "cannot be imported. Pass --trainable module:name, or --trainable file.py:name."
        )
    else:
        return str(where)
    raise ConfigError("tunekit resume", [what])


def _show(known: Any, as_json: bool, text: str, *, indent: int | None = 2) -> None:
    """Print data as JSON, or its text."""
    if as_json:
        text = json.dumps(finite_json(known), indent=indent, allow_nan=False, default=str)
    click.echo(text)


def run(arguments: list[str] | None) -> None:
    """Run a command and exit with its code.

    Args:
        arguments: The arguments after ``tunekit``; None: those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whatever a sweep's names contain
            stream.reconfigure(errors="backslashreplace")
    call: Callable[..., Any] = tunekit.main
    call(args=arguments, prog_name="tunekit")
