"""A journal returns every event that was written to it, in order, or fails naming the file."""

from __future__ import annotations

import json
import math
import re
import shutil
import typing
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.journals import read
from tests.support.seeds import SCHEDULES
from tunekit.core.events import CheckpointSaved, Event, Exploited, Reported, TrialEnded, Waited
from tunekit.errors import JournalError
from tunekit.journal.encoding import Opaque, resolve_opaque
from tunekit.journal.journal import VERSION, Journal, JournalReader, events_in, sealed
from tunekit.journal.storage import LocalFolder


def journal_in(path: Path, **options) -> Journal:
    return Journal(LocalFolder(path), **options)


WAITED = Waited(time=1.0, trial_id="a", seconds=1.0)


def line(**known: Any) -> str:
    return sealed(json.dumps(known)).decode()


OWN = {"n": 1, "journal": "tunekit", "version": VERSION, "begins": True, "after": 0, "follows": ""}
GOOD = line(**OWN)


def journal_file(home: Path, text: str) -> Path:
    """Write the first file of a journal."""
    path = home / "journal/000001.jsonl"
    path.parent.mkdir()
    path.write_text(text)
    return path


def test_journal_line_is_in_its_file_with_a_checksum_when_append_returns(tmp_path):
    journal = journal_in(tmp_path / "deep", about={"ray": "2.60.0"})
    journal.append(WAITED)
    text = (tmp_path / "deep/journal/000001.jsonl").read_text()  # and the journal is still open
    head, _ = map(json.loads, text.splitlines())
    assert len(head.pop("crc")) == 8 and head == {**OWN, "ray": "2.60.0"}


@pytest.mark.parametrize(
    "torn",
    ["", GOOD[:20], GOOD + '{"n": 2, "event": "validation_en'],
    ids=["empty", "torn first line", "torn second line"],
)
def test_journal_without_a_whole_event_is_empty_and_the_next_session_continues(tmp_path, torn):
    journal_file(tmp_path, torn)
    assert events_in(tmp_path) == []
    journal_in(tmp_path, begins=False).append(WAITED)
    assert len(events_in(tmp_path)) == 1


def test_journal_of_one_session_may_continue_in_a_second_file(tmp_path):
    folder = LocalFolder(tmp_path)
    journal = Journal(folder)
    journal.append(WAITED)
    folder.close()  # as when it cannot go on with one
    journal.append(WAITED)
    assert folder.names("journal") == ["000001.jsonl", "000002.jsonl"]
    assert [event.n for event in events_in(tmp_path)] == [2, 3]


def test_journal_line_numbers_continue_after_the_line_of_a_saved_state(tmp_path):
    journal_in(tmp_path).append(WAITED)
    journal_in(tmp_path, begins=False, after=40).append(WAITED)
    assert [event.n for event in events_in(tmp_path)] == [2, 42]


def test_values_of_a_report_are_read_as_written_or_as_texts_without_the_trials_config(tmp_path):
    plain = {"training_iteration": 1, "nested": {"deep": 1e-300}, "int64": 7}
    report = {**plain, "int64": np.int64(7), "seen": {1, 2}, "config": {"lr": 0.1}}
    journal_in(tmp_path).append(Reported(trial_id="a", report=report))
    for unpickle, seen in ((False, "{1, 2}"), (True, {1, 2})):
        [event] = read(tmp_path, unpickle=unpickle)
        assert event["report"] == {**plain, "seen": seen}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (GOOD.replace("true", "false"), "line 1,"),
        (line(n=1, event="validation_ended"), "000001.jsonl"),
        (line(**{**OWN, "journal": "other"}), "000001.jsonl"),
        (line(n=1, journal="tunekit", version=VERSION), "line 1,.*begins"),
        (GOOD + '{"n": 2, "event": "end\n' + line(n=2, event="validation_ended"), "line 2,"),
        (GOOD + '{"n": 2, "event": \x00}\n', "line 2,"),
    ],
    ids=["checksum", "no-head", "other", "no-field", "torn", "null"],
)
def test_damaged_journal_is_an_error_that_names_file_and_line_and_stays_unchanged(
    tmp_path, text, named
):
    path = journal_file(tmp_path, text)
    with pytest.raises(JournalError, match=named) as caught:
        read(tmp_path)
    assert path.name in str(caught.value) and path.read_text() == text


def exploited(home: Path, config: dict[Any, Any]) -> None:
    donor = {"donor_id": "b", "donor_generation": 0, "iteration": 4, "checkpoint": "./b/c_2"}
    event = Exploited(trial_id="a", generation=1, reached=5, config=config, **donor)
    journal_in(home).append(event)


def test_config_is_readable_json_and_unpickles_to_equal_values(tmp_path):
    config = {"lr": np.float64(0.1), "sizes": (64, 32), "in": {"layers": [dict, 3]}, (1, 2): 3}
    exploited(tmp_path, config)
    [event] = read(tmp_path)
    assert event["config"]["sizes"] == [64, 32]
    assert event["config"]["in"] == {"layers": ["<class 'dict'>", 3]}
    [event] = read(tmp_path, unpickle=True)
    assert event["config"] == config and type(event["config"]["sizes"]) is tuple


def test_config_values_too_large_or_unpicklable_are_taken_from_given_configs(tmp_path):
    config = {"data": (n for n in "ab"), "in": {"large": b"x" * 100_000}, "lr": 0.1}
    exploited(tmp_path, config)
    [event] = read(tmp_path, unpickle=True)
    assert type(event["config"]["data"]) is Opaque
    other = {"data": (n for n in "cd"), "in": {"large": b"y"}}
    assert resolve_opaque(event["config"], [other, config]) == config
    assert resolve_opaque(event["config"], [other])["data"] is other["data"]


@pytest.mark.parametrize(
    ("event", "known", "named"),
    [
        ("vanished", {"time": 1.0}, "'vanished'"),
        ("waited", {"time": 1.0, "trial_id": "a"}, "seconds"),
        ("waited", {"trial_id": 7, "seconds": 1.0}, "trial_id"),
        ("waited", {"trial_id": "a", "seconds": math.nan}, "seconds"),
        ("reported", {"trial_id": "a", "report": {}}, "training_iteration"),
        ("attempt_started", {"id": "a:b:c:d", "attempt": 1}, "'b'"),
    ],
)
def test_unknown_event_or_wrong_field_is_an_error_that_names_it(tmp_path, event, known, named):
    journal_file(tmp_path, GOOD + line(n=2, event=event, **known))
    with pytest.raises(JournalError, match=f"line 2,.*{named}"):
        events_in(tmp_path)


def test_unknown_field_of_an_event_is_ignored_and_a_missing_one_has_its_default(tmp_path):
    known = {"n": 2, "event": "trial_ended", "time": 2.0, "trial_id": "a", "novel": [1]}
    journal_file(tmp_path, GOOD + line(**known))
    assert events_in(tmp_path) == [TrialEnded(n=2, time=2.0, trial_id="a", removed=False)]


#: Numbers, texts and objects that a library or a user may pass as a number or a text.
ANY_NUMBER = (
    st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from([np.int64(4), np.float32(0.5), np.float64("nan"), True, 10**400])
)
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=9)
ANY_VALUE = st.recursive(
    ANY_NUMBER | ANY_TEXT | st.none() | st.sampled_from([np.ones(3), {1, 2}, object(), b"x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
)


def nested(value: Any, levels: int) -> Any:
    return value if levels == 0 else {"a": nested(value, levels - 1)}


def any_value(kind: type, field: str) -> st.SearchStrategy[Any]:
    """Values that a field of an event may be given: not only those that it may have."""
    writers_own = {"n": 0, "id": "a trial_id:3:3:3", "status": "validated"}
    if field in writers_own:
        return st.just(writers_own[field])
    hint = str(typing.get_type_hints(kind)[field])
    deep = st.builds(nested, ANY_VALUE, st.sampled_from([0, 45, 60, 150]))
    free = st.dictionaries(ANY_TEXT, deep, max_size=3)
    if field == "report":
        counts = st.integers(0, 2**53)
        return st.builds(lambda own, n: {**own, "training_iteration": n}, free, counts)
    kinds = {"Sequence": st.lists(ANY_TEXT, max_size=3), "Mapping": free, "bool": st.booleans()}
    kinds |= {"float": ANY_NUMBER | (st.none() if "None" in hint else st.nothing())}
    kinds |= {"int": ANY_NUMBER, "str": ANY_TEXT, "Any": deep}
    return next(values for name, values in kinds.items() if name in hint)


@pytest.mark.parametrize("kind", typing.get_args(Event), ids=lambda kind: kind.__name__)
@settings(deadline=None, max_examples=12 * SCHEDULES, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_kind_of_event_can_be_read_with_any_values_in_its_fields(kind, data):
    fields = {name: data.draw(any_value(kind, name), name) for name in kind.__struct_fields__}
    with TemporaryDirectory() as folder:
        about = {"scheduler": {"type": "ASHA", "settings": fields}}
        journal = journal_in(Path(folder), about=about)
        journal.append(kind(**fields))
        journal.append(WAITED)
        journal.close()
        for unpickle in (False, True):
            read, _ = events_in(folder, unpickle=unpickle)
            assert type(read) is kind
    for name, value in fields.items():
        fits = type(value) is bool or (type(value) is int and 0 <= value <= 2**33)
        if (fits or (type(value) is str and value.isascii())) and name not in ("n", "score"):
            assert getattr(read, name) == value


@pytest.mark.parametrize("depth", [0, 40, 41, 300])
def test_nested_keyword_arguments_unpickle_to_equal_values(tmp_path, depth):
    kwargs = nested((1, {2: "two"}), depth)
    saved = CheckpointSaved(trial_id="a", id="a:0:1:1", kwargs={"table": kwargs})
    journal_in(tmp_path).append(saved)
    assert events_in(tmp_path, unpickle=True)[0].kwargs == saved.kwargs
    assert events_in(tmp_path)[0].kwargs.keys() == {"table"}


def test_large_value_of_a_report_is_left_out_of_the_journal_and_named_in_the_log(tmp_path, caplog):
    report = {"training_iteration": 1, "loss": 0.5, "val": {"by class": np.zeros(2**21)}}
    journal_in(tmp_path).append(Reported(trial_id="a", report=report))
    [read] = events_in(tmp_path)
    assert read.report["loss"] == 0.5 and len(read.report["val"]["by class"]) < 100
    assert (tmp_path / "journal/000001.jsonl").stat().st_size < 2000
    assert "val/by class" in caplog.text


# What is missing, doubled or in another order -----------------------------------------------------


def three_sessions(home: Path, trial_id: str = "a") -> list[Event]:
    """Write a journal of three files of three lines each: 1 to 3, 4 to 6, 7 to 9."""
    for begins in (True, False, False):
        journal = journal_in(home, begins=begins)
        for time in (1.0, 2.0):
            journal.append(Waited(time=time, trial_id=trial_id, seconds=1.0))
        journal.close()
    return events_in(home)


@pytest.mark.parametrize(("gone", "lines"), [([1], "1-3"), ([1, 2], "1-6")], ids=str)
def test_missing_journal_files_are_an_error_until_a_marker_file_allows_it(tmp_path, gone, lines):
    events = three_sessions(tmp_path)
    for number in gone:
        of(tmp_path, number).unlink()
    marker = f"journal/{lines}.missing"
    with pytest.raises(JournalError, match=f"00000{gone[-1] + 1}.jsonl.*{marker}"):
        events_in(tmp_path)
    (tmp_path / marker).touch()
    left = events[2 * len(gone) :]
    assert events_in(tmp_path) == left
    journal_in(tmp_path, begins=False).append(WAITED)
    assert [event.n for event in events_in(tmp_path)] == [*(event.n for event in left), 11]


def test_missing_end_of_a_journal_is_an_error_if_a_newer_archive_exists(tmp_path):
    three_sessions(tmp_path)
    LocalFolder(tmp_path).put("state/000000009-snapshot.zip", b"")
    last = of(tmp_path, 3)
    whole = last.read_bytes().splitlines(keepends=True)
    last.write_bytes(b"".join(whole[:2]))
    assert events_in(tmp_path)[-1].n == 8, "the archive came after line 8, and its own is line 9"
    last.write_bytes(whole[0])
    with pytest.raises(JournalError, match=r"000003\.jsonl.*journal/8-8\.missing"):
        events_in(tmp_path)
    last.unlink()
    with pytest.raises(JournalError, match=r"000002\.jsonl.*journal/7-8\.missing"):
        events_in(tmp_path)
    (tmp_path / "journal/7-8.missing").touch()
    assert events_in(tmp_path)[-1].n == 6
    journal_in(tmp_path, begins=False).append(WAITED)
    assert [event.n for event in events_in(tmp_path)][-2:] == [6, 10]


def of(home: Path, number: int) -> Path:
    return home / f"journal/00000{number}.jsonl"


def swap(one: Path, other: Path) -> None:
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def edit(home: Path, change: Callable[[list[bytes]], Any]) -> None:
    content = of(home, 2).read_bytes().splitlines(keepends=True)
    change(content)
    of(home, 2).write_bytes(b"".join(content))


def put_other(home: Path) -> None:
    """Replace the second file by that of another journal, with the same line numbers."""
    three_sessions(home / "other", "b")
    shutil.copy(of(home / "other", 2), of(home, 2))


DAMAGES: dict[str, tuple[Callable[[Path], Any], int]] = {
    "first-file-copied": (lambda home: shutil.copy(of(home, 1), of(home, 4)), 4),
    "second-file-copied": (lambda home: shutil.copy(of(home, 2), of(home, 4)), 4),
    "files-swapped": (lambda home: swap(of(home, 2), of(home, 3)), 2),
    "line-doubled": (lambda home: edit(home, lambda lines: lines.insert(2, lines[1])), 2),
    "first-line-gone": (lambda home: edit(home, lambda lines: lines.pop(0)), 2),
    "second-line-gone": (lambda home: edit(home, lambda lines: lines.pop(1)), 2),
    "last-line-gone": (lambda home: edit(home, lambda lines: lines.pop(2)), 3),
    "file-emptied": (lambda home: of(home, 2).write_bytes(b""), 3),
    "file-of-another-journal": (put_other, 2),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_doubled_swapped_or_cut_journal_is_an_error_that_names_the_file(tmp_path, damage):
    three_sessions(tmp_path)
    change, file = DAMAGES[damage]
    change(tmp_path)
    with pytest.raises(JournalError, match=f"^journal/00000{file}.jsonl"):
        events_in(tmp_path)


def test_lines_of_a_driver_that_was_taken_over_from_are_left_out_and_logged(tmp_path, caplog):
    former = journal_in(tmp_path)
    former.append(WAITED)
    reader = JournalReader(LocalFolder(tmp_path))
    reader.read()
    newer = journal_in(tmp_path, begins=False)
    former.append(Waited(trial_id="late", seconds=1.0))
    assert [event.n for event in reader.read().events] == [2], "of the whole, read anew"
    newer.append(WAITED)
    assert [(e.n, e.trial_id) for e in events_in(tmp_path)] == [(2, "a"), (4, "a")]
    assert re.search(r"\b3 to 3\b.* journal/000002\.jsonl", caplog.text)
