"""The command line: ``tunekit status``, ``best`` and others."""

from tunekit.cli.commands import main

__all__ = ["main"]
