"""The command line: ``tunekit status``, ``best`` and others."""

from __future__ import annotations


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit with its code.

    Args:
        arguments: The arguments after ``tunekit``; by default those of the process.
    """
    try:
        from tunekit.cli.commands import run  # takes seconds, in which Ctrl-C may be pressed

        run(arguments)
    except KeyboardInterrupt:
        raise SystemExit("Aborted!") from None
