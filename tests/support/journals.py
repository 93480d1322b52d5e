"""Changes journals and seals them again, as an attacker who knows the format could."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.fs
from msgspec import structs

from tunekit._ray.storage import storage_at
from tunekit.core.events import Reported, ValidationEnded
from tunekit.journal.journal import record_of, sealed
from tunekit.journal.storage import Folder, folder_at


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file, parsed, without their checksums."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line.pop("crc", None)
    return lines


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Write lines with their checksums."""
    path.write_bytes(b"".join(sealed(json.dumps(line)) for line in lines))


def read(
    source: Folder | str | Path,
    only: str | None = None,
    *,
    filesystem: pyarrow.fs.FileSystem | None = None,
    unpickle: bool = False,
) -> list[dict[str, Any]]:
    """Return the events of a journal, or those of one kind, by the names of their fields."""
    if isinstance(source, (str, Path)):
        source = folder_at(*storage_at(str(source), filesystem))
    events = record_of(source, unpickle=unpickle).events
    found = [{"event": event.__struct_config__.tag, **structs.asdict(event)} for event in events]
    return [event for event in found if only in (None, event["event"])]


def scores_of(source: str | Path) -> dict[str, dict[tuple[int, int], Mapping[str, Any]]]:
    """Return the validated metrics of the newest runs, by trial and (generation, iteration)."""
    found: dict[str, dict[tuple[int, int], Mapping[str, Any]]] = defaultdict(dict)
    runs: Counter[tuple[str, int, int]] = Counter()
    for event in record_of(folder_at(*storage_at(str(source), None))).events:
        match event:
            case Reported():
                runs[(event.trial_id, *event.place)] += 1
                found[event.trial_id].pop(event.place, None)
            case ValidationEnded(status="validated"):
                key = event.key
                if key.run >= runs[(key.trial_id, *key.place)]:
                    found[key.trial_id][key.place] = event.metrics
    return defaultdict(dict, {trial: dict(sorted(own.items())) for trial, own in found.items()})
