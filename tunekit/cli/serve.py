"""The command that serves sweeps in the browser."""

from __future__ import annotations

import tempfile
import threading
import webbrowser
from html import escape
from pathlib import Path

import click

from tunekit._ray.storage import absolute

__all__ = ["serve"]

# What a browser is started with: others on this machine can read the command, and not this page.
_LEADS_TO = '<meta http-equiv="refresh" content="0; url={0}"><a href="{0}">Open the sweeps</a>'


@click.command(short_help="Show sweeps in the browser, as they run.")
@click.argument("paths", nargs=-1, required=True)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="By default 7007, or the next free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--metric", help="A validated metric to rank by; by default what a sweep is judged by."
)
@click.option("--mode", type=click.Choice(["min", "max"]), help="Which is better.")
@click.option("--seed-param", metavar="NAME", help="The hyperparameter that is the random seed.")
@click.option("--open", "show", is_flag=True, help="Show it in the browser.")
def serve(
    paths: tuple[str, ...],
    port: int | None,
    host: str,
    metric: str | None,
    mode: str | None,
    seed_param: str | None,
    show: bool,
) -> None:
    """Show sweeps in the browser, as they run, until Ctrl-C.

    A PATH is a sweep's folder, or one with sweeps below it, also a URI; sweeps that begin there
    later appear. The page is the report, kept up to date. It only reads: no Ray is started, and
    nothing is written. Open the address that is printed, with its token; TUNEKIT_SERVE_TOKEN sets
    one that stays the same. Other machines are let in with --host only.

    \b
    Examples:
      tunekit serve ~/ray_results --open
      tunekit serve s3://bucket/sweeps --port 8080
      ssh -L 7007:localhost:7007 gpu1 tunekit serve /results
    """
    from tunekit.board.serve import serve as serve_pages

    where = [absolute(path) for path in paths]
    options = {"metric": metric, "mode": mode, "seed_param": seed_param}
    with tempfile.TemporaryDirectory(prefix="tunekit-serve-") as own:

        def ready(address: str) -> None:
            click.echo(address)
            click.echo("Ctrl-C ends it.", err=True)
            if show:
                page = Path(own, "open.html")
                page.write_text(_LEADS_TO.format(escape(address)))
                open_page = threading.Thread(target=webbrowser.open, args=(page.as_uri(),))
                open_page.daemon = True
                open_page.start()

        serve_pages(where, host=host, port=port, **options, ready=ready)
