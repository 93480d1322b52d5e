"""The errors of commands."""

from __future__ import annotations

import click

from tunekit.messages.formatting import printable


class Failed(click.ClickException):
    """An error that is shown by its message, without a traceback.

    The exit code is 1 for failures at run time, 2 for wrong usage, and 3 for nothing to show.
    """

    def __init__(self, message: str, exit_code: int = 1):
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click sets it likewise

    def format_message(self) -> str:
        """Return the message, with values from a sweep made safe for a terminal."""
        return "\n".join(printable(self.message.split("\n")))
