"""A damaged sweep raises an error that names the file, or yields the same history."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tests.support.invariants import JournalSummary, check_journal
from tests.support.journals import lines_of, odd_json, places_in, put, write_lines
from tests.support.kills import run_killed
from tests.support.modes import Mode
from tests.support.restores import prepare_restore
from tests.support.seeds import seeds
from tests.support.sweeps import Plan
from tunekit.journal.journal import Journal, events_in
from tunekit.journal.storage import LocalFolder


def one_after_the_other(folder: Path) -> Plan:
    """A sweep in which nothing depends on which of two trials is faster."""
    asha = ASHAScheduler(max_t=5, grace_period=1, reduction_factor=2)
    plan = Plan(folder, asha, Mode.WAIT, trials=4).tuning(max_concurrent=1, saved_every_s=0.0)
    return plan.validating(constraints=[tunekit.Constraint("loss <= 1")])  # which all meet


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> tuple[Path, JournalSummary]:
    """A sweep that was killed twice and can continue, and its outcome without kills."""
    folder = tmp_path_factory.mktemp("interrupted")
    one_after_the_other(folder / "undisturbed").run()
    expected = check_journal(events_in(folder / "undisturbed/sweep"))
    assert len(expected.scores) > 8
    with pytest.raises(AssertionError, match="2 kills"):
        run_killed(folder / "killed", one_after_the_other, iter([60, 60]), most=2)
    return folder / "killed/sweep", expected


@pytest.fixture
def recorded(interrupted) -> Path:
    return interrupted[0]


def told(home: Path) -> str:
    """Return all that a reader does with a sweep, as text."""
    found = tunekit.load(home)
    tables = [found.trials, found.reports, found.validations, found.decisions]
    summary = {**found.summary(), "driver": None}
    return json.dumps(summary, default=str) + "".join(one.to_csv() for one in tables)


def damage_text(draw: random.Random, path: Path) -> None:
    """Change bytes of a file, not whole lines."""
    data = bytearray(path.read_bytes())
    at, other = draw.randrange(len(data)), draw.randrange(len(data))
    length, new = draw.choice(
        [
            (1, bytes([data[at] ^ 1 << draw.randrange(8)])),
            (draw.randrange(1, 40), b""),
            (0, draw.randbytes(draw.randrange(1, 9))),
            (16, bytes(16)),
            (9, data[other : other + 9]),
        ]
    )
    data[at : at + length] = new
    path.write_bytes(data)


def damage_files(draw: random.Random, home: Path) -> None:
    """Change, remove, cut, double, swap or link files of the folder, but not what users save."""
    files = sorted(p for p in home.rglob("*") if p.is_file() and "checkpoint_" not in str(p))
    journal = sorted((home / "journal").glob("*.jsonl"))
    one, other = draw.sample(journal if draw.random() < 0.6 else files, 2)
    match draw.randrange(8):
        case 0:
            one.unlink()
        case 1:
            data = one.read_bytes()
            one.write_bytes(data[: draw.randrange(len(data) + 1)])
        case 2:
            shutil.copy(one, one.with_name(f"00000{draw.randrange(4, 9)}{one.suffix}"))
        case 3:
            content = one.read_bytes()
            shutil.copy(other, one)
            other.write_bytes(content)
        case 4:
            one.unlink()
            one.symlink_to(other)
        case _:
            damage_text(draw, draw.choice(journal))


def outcome(home: Path, whole: str) -> str:
    """Return the outcome of a damaged sweep; anything but these is a failure."""
    try:
        now = told(home)
    except (tunekit.errors.JournalError, tunekit.errors.ConfigError) as error:
        named = isinstance(error, tunekit.errors.JournalError) and "journal/" in str(error)
        assert named or str(home) in str(error)
        return "error"
    return "same" if now == whole else "less"


def forged(draw: random.Random, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Change values in lines, or their order, with the numbers that belong to it."""
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(lines)) if draw.random() < 0.6 else 0
        place = draw.choice([p for p in places_in(lines[at]) if p[0] not in ("n", "crc")])
        match draw.randrange(6):
            case 0:
                put(lines[at], place, lambda part, key: part.pop(key))
            case 1 | 2 | 3:
                odd = odd_json(draw)
                put(lines[at], place, lambda part, key: part.__setitem__(key, odd))  # noqa: B023
            case 4:
                lines.insert(draw.randrange(1, len(lines) + 1), dict(draw.choice(lines[1:])))
            case _:
                del lines[draw.randrange(1, len(lines))]
    for number, line in enumerate(lines, start=1):
        line["n"] = number
    return lines


@pytest.mark.parametrize("seed", seeds(15, "forged"))
def test_journal_with_forged_values_is_read_or_raises_an_error_naming_its_file(
    recorded, tmp_path, seed
):
    draw = random.Random(f"forged/{seed}")
    source = sorted((recorded / "journal").glob("*.jsonl"))[0]
    file = tmp_path / "journal/000001.jsonl"
    file.parent.mkdir()
    for _ in range(3):
        write_lines(file, forged(draw, lines_of(source)))
        try:
            events_in(tmp_path, unpickle=True)
            told(tmp_path)
        except tunekit.errors.JournalError as error:
            assert str(error).startswith("journal/000001.jsonl")


def test_session_with_an_unreadable_first_line_writes_no_journal(tmp_path):
    with pytest.raises(msgspec.ValidationError, match="mode"):
        Journal(LocalFolder(tmp_path), about={"mode": "largest"})
    assert not (tmp_path / "journal").exists()


def restored(home: Path) -> str:
    """Restore a damaged sweep and run it to its end; return the outcome."""
    try:
        ran = one_after_the_other(home.parent).restored().run()
    except (tunekit.errors.JournalError, tunekit.errors.RestoreError) as error:
        links = [re.escape(one.name) for one in home.rglob("*") if one.is_symlink()]
        # The last one is what tests/support raises where no state was recorded.
        assert re.search("|".join(["journal/", "state/", *links, "before its state"]), str(error))
        return "error"
    return "failed" if any(t.status == "ERROR" for t in ran.trials) else "ended"


def came_to(home: Path, expected: JournalSummary) -> None:
    found = check_journal(events_in(home))
    assert (found.scores, found.decisions) == (expected.scores, expected.decisions)


@pytest.mark.parametrize("seed", seeds(14, "folders"))
def test_restore_from_a_damaged_folder_raises_or_ends_with_the_same_scores(
    interrupted, tmp_path, seed
):
    """Also once it is restored."""
    draw = random.Random(f"folders/{seed}")
    recorded, expected = interrupted
    home = shutil.copytree(recorded, tmp_path / "killed/sweep")
    whole, newest = told(home), max((home / "journal").glob("*.jsonl"))
    content = newest.read_bytes()
    damage_files(draw, home)
    if outcome(home, whole) == "less":
        # The end of the newest file, behind the newest archive, was cut or torn, as by a kill.
        left = newest.read_bytes() if newest.exists() else b""
        assert content.startswith(left) or not left.endswith(b"\n")
    if restored(home) == "ended":
        came_to(home, expected)


def test_hard_linked_copy_and_its_original_both_restore_to_the_same_scores(interrupted, tmp_path):
    recorded, expected = interrupted
    home = shutil.copytree(recorded, tmp_path / "killed/sweep")
    backup = shutil.copytree(home, tmp_path / "backup/sweep", copy_function=os.link)
    for one in (home, backup):
        assert restored(one) == "ended"
        came_to(one, expected)


@pytest.mark.parametrize("name", [".validate_storage_marker", "Counting_*/result.json"])
def test_restore_refuses_a_link_in_place_of_a_file_that_it_rewrites(interrupted, tmp_path, name):
    home = shutil.copytree(interrupted[0], tmp_path / "killed/sweep")
    journal = home / "journal/000001.jsonl"
    content, link = journal.read_bytes(), sorted(home.glob(name))[0]
    link.unlink()
    link.symlink_to(journal)
    with pytest.raises(tunekit.errors.RestoreError, match=link.name):
        prepare_restore(home)
    assert journal.read_bytes() == content
