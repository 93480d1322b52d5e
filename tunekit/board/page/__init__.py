"""The report of a sweep: one HTML file that needs nothing else."""

from tunekit.board.page.page import render, write_page

__all__ = ["render", "write_page"]
