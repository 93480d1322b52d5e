"""Put what scripts have measured into the documents."""

from __future__ import annotations

from pathlib import Path


def put(page: Path, mark: str, text: str) -> None:
    """Replace what stands between two marks, such as ``<!-- begin: mark -->``, in a page.

    Raises:
        ValueError: If it does not have them.
    """
    begin, end = f"<!-- begin: {mark} -->\n", f"<!-- end: {mark} -->"
    before, found, rest = page.read_text().partition(begin)
    _, ends, after = rest.partition(end)
    if not (found and ends):
        raise ValueError(f"{page} has no {begin.strip()} with {end}. Add both, each on its line.")
    page.write_text(f"{before}{begin}{text}\n{end}{after}")
