"""The command line: ``tunekit demo | status | best | report | tensorboard | resume``."""

from tunekit.cli.commands import main

__all__ = ["main"]
