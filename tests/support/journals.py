"""Changes journals and seals them again, as an attacker who knows the format could."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.fs
from msgspec import structs

from tunekit.core.events import Reported, ValidationEnded
from tunekit.journal.journal import record_of, sealed
from tunekit.journal.paths import storage_at
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


# Odd values --------------------------------------------------------------------------------------

_NUMBERS = [-1, 0, 0.5, 5e-324, 2**53, 10**30, 1e300, -1e300, float("nan"), float("inf")]
_TEXTS = ["", "0.5", "\ud800", "a:0:1:1", "x" * 300, "../..", "\x1b[2J"]
_OTHERS = [None, True, [], {}, [[]], [0.5, 1], {"a": {}}, {"": 1}, {"training_iteration": -1}]


def odd_json(draw: random.Random) -> Any:
    """Return a JSON value that a field of a line may be changed into."""
    return draw.choice([*_NUMBERS, *_TEXTS, *_OTHERS, _deep()])


def _deep() -> Any:
    value: Any = 1
    for _ in range(400):
        value = {"in": value}
    return value


def places_in(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where in a line there are values."""
    found = [above] if above else []
    if not isinstance(value, (dict, list)):
        return found
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        found += places_in(part, (*above, key))
    return found


def put(line: Any, place: tuple[Any, ...], change: Callable[[Any, Any], None]) -> None:
    """Change the value at a place of a line: ``change`` gets what contains it, and its key."""
    for key in place[:-1]:
        line = line[key]
    change(line, place[-1])
