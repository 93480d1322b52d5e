from __future__ import annotations

import json
import math
import os
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
from tunekit.core.events import (
    AttemptStarted,
    CheckpointSaved,
    Event,
    Exploited,
    Reported,
    TrialEnded,
    ValidationEnded,
    ValidationRequested,
    Waited,
)
from tunekit.core.validation import Request
from tunekit.errors import JournalError
from tunekit.journal.encoding import Opaque, resolve_opaque
from tunekit.journal.journal import VERSION, Journal, JournalReader, events_in, record_of, sealed
from tunekit.journal.storage import LocalFolder

WHERE = "./a/checkpoint_000001"
REQUEST = Request("a", 3, path="/x/a/checkpoint_000001", report={"loss": 1.0})


def journal_in(path: Path, **options) -> Journal:
    return Journal(LocalFolder(path), **options)


def lines(path: Path, file: str = "000001") -> list[dict]:
    return [json.loads(line) for line in (path / f"journal/{file}.jsonl").read_text().splitlines()]


def test_a_line_is_in_the_file_before_the_call_returns(tmp_path):
    journal = journal_in(tmp_path / "deep", about={"ray": "2.60.0"})
    journal.append(ValidationRequested.of(REQUEST.key, WHERE, time=1.0))
    head, _ = lines(tmp_path / "deep")  # and the journal is still open
    assert len(head.pop("crc")) == 8 and head == {**OWN, "ray": "2.60.0"}


def test_a_torn_last_line_is_left_out_and_the_next_session_continues(tmp_path):
    journal_in(tmp_path).append(ValidationRequested.of(REQUEST.key, WHERE, time=1.0))
    with (tmp_path / "journal/000001.jsonl").open("a") as file:
        file.write('{"n": 2, "event": "validation_ended", "ti')
    assert [event["event"] for event in read(tmp_path)] == ["validation_requested"]
    journal_in(tmp_path, begins=False).append(AttemptStarted(time=2.0, id=REQUEST.id, attempt=1))
    assert [(e["n"], e["event"]) for e in read(tmp_path)] == [
        (2, "validation_requested"),
        (4, "attempt_started"),
    ]


def test_a_new_sweep_in_the_same_folder_starts_over(tmp_path):
    journal_in(tmp_path).append(ValidationRequested.of(REQUEST.key, WHERE, time=1.0))
    second = journal_in(tmp_path)
    second.append(AttemptStarted(time=2.0, id=REQUEST.id, attempt=1))
    assert [event["event"] for event in read(tmp_path)] == ["attempt_started"]
    assert second.last == 4


def test_a_session_may_have_several_files(tmp_path):
    folder = LocalFolder(tmp_path)
    journal = Journal(folder)
    journal.append(ValidationRequested.of(REQUEST.key, WHERE, time=1.0))
    folder.close()  # as when it cannot go on with one
    journal.append(AttemptStarted(time=2.0, id=REQUEST.id, attempt=1))
    assert folder.names("journal") == ["000001.jsonl", "000002.jsonl"]
    assert [(e["n"], e["event"]) for e in read(tmp_path)] == [
        (2, "validation_requested"),
        (3, "attempt_started"),
    ]


def test_line_numbers_continue_after_lost_lines(tmp_path):
    journal_in(tmp_path).append(ValidationRequested.of(REQUEST.key, WHERE, time=1.0))
    journal = journal_in(tmp_path, begins=False, after=40)  # as of which a saved state was
    journal.append(AttemptStarted(time=2.0, id=REQUEST.id, attempt=1))
    assert [event["n"] for event in read(tmp_path)] == [2, 42]


def test_values_come_back_as_they_were(tmp_path):
    report = {
        "training_iteration": 1,
        "float32": np.float32(0.1),
        "int64": np.int64(7),
        "nan": float("nan"),
        "nested": {"deep": 1e-300},
        "config": {"lr": 0.1},  # is the trial's
    }
    journal = journal_in(tmp_path)
    journal.append(Reported(time=1.0, trial_id="a", report=report))
    [event] = read(tmp_path)
    assert event["report"]["float32"] == float(np.float32(0.1))
    assert (event["report"]["int64"], event["report"]["nested"]) == (7, {"deep": 1e-300})
    assert math.isnan(event["report"]["nan"]) and "config" not in event["report"]


def test_what_json_does_not_know_is_shown_and_opened_on_request_only(tmp_path):
    metrics = {"when": {1, 2}, "accuracy": 0.5}
    journal_in(tmp_path).append(ValidationEnded(id=REQUEST.id, status="validated", metrics=metrics))
    [event] = read(tmp_path)
    assert event["metrics"] == {"when": "{1, 2}", "accuracy": 0.5}
    [event] = read(tmp_path, unpickle=True)
    assert event["metrics"] == {"when": {1, 2}, "accuracy": 0.5}


def line(**known: Any) -> str:
    return sealed(json.dumps(known)).decode()


OWN = {"n": 1, "journal": "tunekit", "version": VERSION, "begins": True, "after": 0, "follows": ""}
GOOD = line(**OWN)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not json\n", "000001.jsonl, line 1, is not as it was written"),
        (GOOD.replace("true", "false"), "000001.jsonl, line 1, is not as it was written"),
        (line(n=1, event="validation_ended"), "is not a tunekit journal"),
        (line(**{**OWN, "journal": "other"}), "is not a tunekit journal"),
        (
            line(**{**OWN, "version": VERSION + 1}),
            f"version {VERSION + 1} of the format; this tunekit reads version {VERSION}",
        ),
        (
            line(n=1, journal="tunekit", version=VERSION),
            "line 1, is not as it was written: .*begins",
        ),
        (
            GOOD + '{"n": 2, "event": "end\n' + line(n=2, event="validation_ended"),
            "line 2, is not as",
        ),
        (GOOD + '{"n": 2, "event": \x00}\n', "line 2, is not as it was written"),
    ],
)
def test_a_damaged_journal_is_an_error_and_stays_as_it_is(tmp_path, text, says):
    path = tmp_path / "journal/000001.jsonl"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(JournalError, match=says):
        read(tmp_path)
    assert path.read_text() == text


def test_an_empty_file_is_a_session_that_was_killed_at_once(tmp_path):
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal/000001.jsonl").write_text("")
    assert read(tmp_path) == []
    journal_in(tmp_path).append(ValidationRequested.of(REQUEST.key, WHERE, time=1.0))
    assert len(read(tmp_path)) == 1


class Layer:
    """A hyperparameter of a kind that JSON does not know."""


def exploited(tmp_path, config, **configs):
    event = Exploited(
        time=9.5,
        trial_id="a",
        generation=1,
        reached=5,
        donor_id="b",
        donor_generation=0,
        iteration=4,
        checkpoint="./b/checkpoint_000002",
        score=0.9,
        config=config,
        **configs,
    )
    journal_in(tmp_path).append(event)


def test_a_configuration_is_legible_and_comes_back_with_the_very_values(tmp_path):
    config = {"lr": np.float64(0.1), "sizes": (64, 32), "in": {"layers": [Layer, 3]}, (1, 2): 3}
    exploited(tmp_path, config)
    [event] = read(tmp_path)
    assert event["config"]["sizes"] == [64, 32]
    assert event["config"]["in"] == {"layers": [repr(Layer), 3]}
    [event] = read(tmp_path, unpickle=True)
    assert event["config"] == config and type(event["config"]["sizes"]) is tuple


def test_what_is_not_written_down_is_what_has_the_same_text_or_what_there_is(tmp_path):
    data, large = (n for n in "ab"), b"x" * 100_000
    exploited(tmp_path, {"data": data, "in": {"large": large}, "lr": 0.1})
    [event] = read(tmp_path, unpickle=True)
    assert type(event["config"]["data"]) is Opaque
    other = {"data": (n for n in "cd"), "in": {"large": b"y"}}
    found = resolve_opaque(event["config"], [other, {"data": data, "in": {"large": large}}])
    assert found["data"] is data and found["in"]["large"] is large and found["lr"] == 0.1
    assert resolve_opaque(event["config"], [other])["data"] is other["data"]


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ({"n": 2, "event": "vanished", "time": 1.0}, "'vanished'.*Install the newer tunekit"),
        ({"n": 2, "event": "waited", "time": 1.0, "trial_id": "a"}, "seconds"),
        ({"n": 2, "event": "waited", "trial_id": 7, "seconds": math.nan}, "trial_id"),
        ({"n": 2, "event": "waited", "trial_id": "a", "seconds": math.nan}, "seconds"),
        ({"n": 2, "event": "waited", "trial_id": "a", "seconds": 1, "time": 1e16}, "time"),
        ({"n": 2, "event": "reported", "trial_id": "a", "report": {}}, "training_iteration"),
        ({"n": 2, "event": "attempt_started", "id": "a:b:c:d", "attempt": 1}, "invalid literal"),
    ],
)
def test_an_event_that_is_not_known_is_an_error_and_not_left_out(tmp_path, known, says):
    path = tmp_path / "journal/000001.jsonl"
    path.parent.mkdir()
    path.write_text(GOOD + line(**known))
    with pytest.raises(JournalError, match=f"line 2, is not a known event.*{says}"):
        events_in(tmp_path)


def test_an_unknown_field_is_ignored_and_a_missing_one_has_its_default(tmp_path):
    path = tmp_path / "journal/000001.jsonl"
    path.parent.mkdir()
    path.write_text(GOOD + line(n=2, event="trial_ended", time=2.0, trial_id="a", novel=[1]))
    assert events_in(tmp_path) == [TrialEnded(n=2, time=2.0, trial_id="a", removed=False)]


#: Values of fields that must be of a kind, or that others depend on.
KNOWN = {
    "n": 7,
    "id": "a trial_id:3:3:3",
    "status": "validated",
    "report": {"training_iteration": 1, "nan": math.inf, "deep": {"x": [1, None, "\ud800"]}},
    "score": 0.5,
    "kwargs": {"sizes": (64, 32), "table": {1: "one", (1, 2): "pair"}, "x": {"__shown__": 1}},
}
BY_TYPE = {
    "Sequence": ["{}", "{}"],
    "Mapping": {"CPU": 1.0},
    "bool": True,
    "float": 2.5,
    "int": 3,
}


def example(kind: type, field: str) -> Any:
    """A value for a field of an event."""
    hint = str(typing.get_type_hints(kind)[field])
    found = (value for name, value in BY_TYPE.items() if name in hint)
    return KNOWN[field] if field in KNOWN else next(found, f"a {field}")


@pytest.mark.parametrize("kind", typing.get_args(Event), ids=lambda kind: kind.__name__)
def test_every_event_comes_back_as_it_was_written(tmp_path, kind):
    event = kind(**{name: example(kind, name) for name in kind.__struct_fields__})
    journal = Journal(LocalFolder(tmp_path), after=5)
    journal.append(event)
    journal.close()
    assert events_in(tmp_path, unpickle=True) == [event]


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
    hint = str(typing.get_type_hints(kind)[field])
    deep = st.builds(nested, ANY_VALUE, st.sampled_from([0, 45, 60, 150]))
    free = st.dictionaries(ANY_TEXT, deep, max_size=3)
    if field == "report":
        counts = st.integers(0, 2**53)
        return st.builds(lambda own, n: {**own, "training_iteration": n}, free, counts)
    if field in ("n", "id", "status"):  # the writer's own
        return st.just({**KNOWN, "n": 0}[field])
    kinds = {"Sequence": st.lists(ANY_TEXT, max_size=3), "Mapping": free, "bool": st.booleans()}
    kinds |= {"float": ANY_NUMBER | (st.none() if "None" in hint else st.nothing())}
    kinds |= {"int": ANY_NUMBER, "str": ANY_TEXT, "Any": deep}
    return next(values for name, values in kinds.items() if name in hint)


@pytest.mark.parametrize("kind", typing.get_args(Event), ids=lambda kind: kind.__name__)
@settings(deadline=None, max_examples=12 * SCHEDULES, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_an_event_is_given_can_be_read(kind, data):
    fields = {name: data.draw(any_value(kind, name), name) for name in kind.__struct_fields__}
    with TemporaryDirectory() as folder:
        journal = Journal(
            LocalFolder(Path(folder)), about={"scheduler": {"type": "ASHA", "settings": fields}}
        )
        journal.append(kind(**fields))
        journal.append(Waited(trial_id="a", seconds=1.0))
        journal.close()
        for unpickle in (False, True):
            read, _ = events_in(folder, unpickle=unpickle)
            assert type(read) is kind
    for name, value in fields.items():
        fits = type(value) is bool or (type(value) is int and 0 <= value <= 2**33)
        if (fits or (type(value) is str and value.isascii())) and name not in ("n", "score"):
            assert getattr(read, name) == value


@pytest.mark.parametrize("depth", [0, 30, 39, 40, 41, 50, 90, 100, 300])
def test_keyword_arguments_come_back_however_deep_they_are(tmp_path, depth):
    kwargs = nested((1, {2: "two"}), depth)
    saved = CheckpointSaved(trial_id="a", id="a:0:1:1", kwargs={"table": kwargs})
    journal = Journal(LocalFolder(tmp_path))
    journal.append(saved)
    journal.close()
    assert events_in(tmp_path, unpickle=True)[0].kwargs == saved.kwargs
    assert events_in(tmp_path)[0].kwargs.keys() == {"table"}


@pytest.mark.parametrize("value", [np.zeros(2**21), "x" * 2**21, [0.5] * 2**19])
def test_a_large_value_of_a_report_is_left_out_and_named(tmp_path, caplog, value):
    name = f"by class {type(value).__name__}"
    report = {"training_iteration": 1, "loss": 0.5, "val": {name: value}}
    Journal(LocalFolder(tmp_path)).append(Reported(trial_id="a", report=report))
    [read] = events_in(tmp_path)
    assert read.report["loss"] == 0.5 and len(read.report["val"][name]) < 100
    assert sum(path.stat().st_size for path in (tmp_path / "journal").iterdir()) < 2000
    assert f"val/{name}" in caplog.text


# What is missing, doubled or in another order -----------------------------------------------------


def three_sessions(home: Path, series: str = "journal") -> list[Event]:
    """Write a journal of three files of three lines each: 1 to 3, 4 to 6, 7 to 9."""
    for begins in (True, False, False):
        journal = Journal(LocalFolder(home), begins=begins, series=series)
        for number in (journal.last + 1, journal.last + 2):
            journal.append(Waited(time=float(number), trial_id="a", seconds=1.0))
        journal.close()
    return record_of(LocalFolder(home), series=series).events


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        ([1], "000002.jsonl follows line 3, and lines 1 to 3 are missing"),
        ([1, 2], "000003.jsonl follows line 6, and lines 1 to 6 are missing"),
    ],
)
def test_a_missing_file_is_an_error_until_a_marker_file_allows_it(tmp_path, gone, says):
    events = three_sessions(tmp_path)
    for number in gone:
        (tmp_path / f"journal/00000{number}.jsonl").unlink()
    with pytest.raises(JournalError, match=says) as caught:
        events_in(tmp_path)
    [allowed] = re.findall(r"journal/\d+-\d+\.missing", str(caught.value))
    (tmp_path / allowed).touch()
    left = [event for event in events if (event.n + 2) // 3 not in gone]
    assert events_in(tmp_path) == left
    journal_in(tmp_path, begins=False).append(Waited(trial_id="a", seconds=1.0))
    assert [event.n for event in events_in(tmp_path)] == [*(event.n for event in left), 11]


def test_a_missing_end_is_an_error_if_a_newer_archive_exists(tmp_path):
    three_sessions(tmp_path)
    (tmp_path / "state").mkdir()
    (tmp_path / "state/000000009-snapshot.zip").touch()
    last = tmp_path / "journal/000003.jsonl"
    whole = last.read_bytes()
    last.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])
    assert events_in(tmp_path)[-1].n == 8, "the archive came after line 8, and its own is line 9"
    last.write_bytes(whole[: whole.index(b"\n") + 1])
    with pytest.raises(JournalError, match=r"000003.jsonl ends, .* line 8 is missing.*8-8.missing"):
        events_in(tmp_path)
    last.unlink()
    with pytest.raises(JournalError, match=r"000002.jsonl ends, .* lines 7 to 8 are missing"):
        events_in(tmp_path)
    (tmp_path / "journal/7-8.missing").touch()
    assert events_in(tmp_path)[-1].n == 6
    journal_in(tmp_path, begins=False).append(Waited(trial_id="a", seconds=1.0))
    assert [event.n for event in events_in(tmp_path)][-2:] == [6, 10]


def swap(home: Path, one: int, other: int) -> None:
    first, second = (home / f"journal/00000{number}.jsonl" for number in (one, other))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def edit(home: Path, change: Callable[[list[bytes]], Any]) -> None:
    path = home / "journal/000002.jsonl"
    content = path.read_bytes().splitlines(keepends=True)
    change(content)
    path.write_bytes(b"".join(content))


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (lambda home: shutil.copy(home / "journal/000001.jsonl", home / "journal/000004.jsonl"), 4),
        (lambda home: shutil.copy(home / "journal/000002.jsonl", home / "journal/000004.jsonl"), 4),
        (lambda home: os.link(home / "journal/000003.jsonl", home / "journal/000004.jsonl"), 4),
        (lambda home: swap(home, 1, 2), 1),
        (lambda home: swap(home, 2, 3), 2),
        (lambda home: edit(home, lambda lines: lines.insert(2, lines[1])), 2),
        (lambda home: edit(home, lambda lines: lines.reverse()), 2),
        (lambda home: edit(home, lambda lines: lines.pop(0)), 2),
        (lambda home: edit(home, lambda lines: lines.pop(1)), 2),
        (lambda home: edit(home, lambda lines: lines.pop(2)), 3),
        (lambda home: (home / "journal/000002.jsonl").write_bytes(b""), 3),
        (lambda home: three_sessions(home / "other"), 0),
    ],
)
def test_what_was_doubled_swapped_or_cut_is_an_error_that_names_the_file(tmp_path, damage, file):
    events = three_sessions(tmp_path)
    damage(tmp_path)
    if not file:
        assert events_in(tmp_path) == events
        return
    with pytest.raises(JournalError, match=f"^journal/00000{file}.jsonl"):
        events_in(tmp_path)


def test_a_file_of_another_journal_is_noticed(tmp_path):
    three_sessions(tmp_path)
    journal = journal_in(tmp_path / "other", about={"time": 3.0})
    for number in (2, 3):
        journal.append(Waited(time=7.0 + number, trial_id="b", seconds=1.0))
    journal_in(tmp_path / "other", begins=False).append(Waited(trial_id="b", seconds=1.0))
    shutil.copy(tmp_path / "other/journal/000002.jsonl", tmp_path / "journal/000002.jsonl")
    with pytest.raises(JournalError, match=r"000002\.jsonl belongs to another journal"):
        events_in(tmp_path)


def test_what_a_driver_wrote_after_it_was_taken_over_from_is_left_out(tmp_path, caplog):
    former = journal_in(tmp_path)
    former.append(Waited(time=1.0, trial_id="a", seconds=1.0))
    reader = JournalReader(LocalFolder(tmp_path))
    reader.read()
    newer = journal_in(tmp_path, begins=False)
    former.append(Waited(time=2.0, trial_id="late", seconds=1.0))
    assert [event.n for event in reader.read().events] == [2], "of the whole, read anew"
    newer.append(Waited(time=3.0, trial_id="a", seconds=1.0))
    assert [(e.n, e.trial_id) for e in events_in(tmp_path)] == [(2, "a"), (4, "a")]
    assert "Lines 3 to 3 before journal/000002.jsonl are left out" in caplog.text
