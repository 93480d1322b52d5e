"""The report of a sweep: one self-contained HTML file."""

from tunekit.board.page.page import render, write_page

__all__ = ["render", "write_page"]
