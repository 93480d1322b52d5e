"""The report of a sweep: one HTML file that needs nothing else."""

from tunekit.board.page.page import render, write_page
from tunekit.board.page.side_by_side import write_comparison

__all__ = ["render", "write_comparison", "write_page"]
