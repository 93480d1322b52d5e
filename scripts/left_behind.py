"""Fail if a test run has left processes or the address of a Ray cluster behind.

    python scripts/left_behind.py TEMPORARY [SECONDS]

TEMPORARY is the run's own RAY_TMPDIR; its processes are those that have it in their environment as
TUNEKIT_TESTS. Processes that are still ending have so many seconds; by default 30.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path


def processes(temporary: str) -> list[str]:
    """Return the run's processes, with their commands; none without /proc."""
    mark, found = f"TUNEKIT_TESTS={temporary}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            environ = (process / "environ").read_bytes().split(b"\0")
            command = (
                (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
            if mark in environ and int(process.name) != os.getpid():
                found.append(f"process {process.name}: {command[:150]}")
    return found


def left_behind(temporary: str, patience_s: float) -> list[str]:
    """Return what is left; wait for processes that are still ending."""
    ends = time.monotonic() + patience_s
    while (found := processes(temporary)) and time.monotonic() < ends:
        time.sleep(0.5)
    address = Path(temporary, "ray", "ray_current_cluster")
    return [*found, *([f"file {address}: {address.read_text()}"] if address.exists() else [])]


if __name__ == "__main__":
    left = left_behind(sys.argv[1], float(sys.argv[2] if len(sys.argv) > 2 else 30))
    for one in left:
        print(f"The tests have left behind: {one}", file=sys.stderr)
    sys.exit(bool(left))
