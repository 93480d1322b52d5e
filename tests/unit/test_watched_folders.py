"""A folder with odd names, links, pipes and malformed states can be watched and recorded."""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.seeds import SCHEDULES
from tunekit.core.events import MOST
from tunekit.following.folder import REST_S, WatchedFolder
from tunekit.following.follow import Followed
from tunekit.journal.journal import Journal, events_in
from tunekit.journal.storage import LocalFolder

WORDS = "checkpoint step epoch iter best last model rank tmp e k of optimizer 0 7 10 0.5 1e-4 - _ ."
PARTS = [*WORDS.split(), "\u0663", "\u00e9", "=", ".pt", ".pkl", ".txt", ".index", "-v1", "9" * 20]
KINDS = ["file", "archive", "folder", "pipe", "to nothing", "to a pipe", "to its folder"]
KINDS += ["socket"] * (sys.platform == "linux")


def is_name(name: str) -> bool:
    return not {"/", "\0"} & set(name) and name.strip(".") != "" and len(os.fsencode(name)) < 256


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
raw = st.binary(max_size=60).map(os.fsdecode) if sys.platform == "linux" else texts
parts = st.lists(st.sampled_from(PARTS), min_size=1, max_size=8).map("".join)
names = st.one_of(parts, parts, texts, raw).filter(is_name)

numbers = st.integers(-2, 3) | st.integers() | st.sampled_from([MOST, 2**64, 10**400]) | st.floats()
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def lists(fields: dict[str, Any]) -> st.SearchStrategy[Any]:
    return st.lists(st.fixed_dictionaries({}, optional=fields) | values, max_size=3) | values


metrics = st.dictionaries(st.sampled_from(["step", "loss", "\ud800"]), values) | values
known = {
    "global_step": numbers | values,
    "max_steps": numbers | values,
    "log_history": lists({"step": numbers, "loss": values, "\ud800": values}),
    "checkpoint_results": lists(
        {"checkpoint_dir_name": st.just("checkpoint-7") | values, "metrics": metrics}
    ),
    "checkpoint_report_indices": st.lists(numbers, max_size=3) | values,
}
whole = (st.fixed_dictionaries({}, optional=known) | values).map(json.dumps)
states = whole | whole.map(lambda state: state[:-1]) | st.text(max_size=9) | st.just("[" * 10**5)


def make(path: str, kind: str, state: str) -> None:
    """Make an entry of a folder, unless its name is taken or the file system refuses it."""
    try:
        match kind:
            case "pipe":
                os.mkfifo(path)
            case "socket":
                os.mknod(path, stat.S_IFSOCK | 0o600)
            case "to nothing" | "to a pipe" | "to its folder":
                to = {"to nothing": "no such file", "to a pipe": "pipe", "to its folder": "."}
                os.symlink(to[kind], path)
            case "folder":
                os.mkdir(path)
                for name in ("model.safetensors", "trainer_state.json", ".metadata"):
                    make(os.path.join(path, name), "file", state)
            case _:
                text = state.encode("utf-8", "replace")
                with open(path, "xb") as file:
                    file.write(b"PK\5\6" + text.ljust(18, b"\0") if kind == "archive" else text)
    except OSError:
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes")
@settings(max_examples=100 * SCHEDULES)
@given(
    st.lists(st.tuples(names, st.sampled_from(KINDS), st.booleans(), states), max_size=6),
    st.sampled_from(["file", "pipe", "to a pipe", "to nothing", "to its folder"]),
    states,
)
def test_folder_with_any_entries_is_watched_and_its_journal_is_readable(entries, kind, snapshot):
    with tempfile.TemporaryDirectory() as home:
        root, folder = os.path.join(home, "root"), LocalFolder(Path(home))
        for inner in ("", "checkpoint-7", "run"):
            os.mkdir(os.path.join(root, inner))
            make(os.path.join(root, inner, "pipe"), "pipe", "")
        make(os.path.join(root, "checkpoint-7", "model.safetensors"), "file", "")
        make(os.path.join(root, "checkpoint-7", "trainer_state.json"), kind, snapshot)
        make(os.path.join(root, "checkpoint_manager_snapshot.json"), kind, snapshot)
        for name, own, in_run, state in entries:
            make(os.path.join(root, "run" if in_run else "", name), own, state)
        watched = WatchedFolder(pyarrow.fs.LocalFileSystem(), root)
        followed, journal = Followed(), Journal(folder)
        for now in (0.0, REST_S):
            for entry in watched.find():
                assert 0 <= entry.step <= MOST
                found = watched.check(entry, watched.files(entry), now)
                if not isinstance(found, str):
                    mark, report, files = found
                    events = followed.saw(entry.run, entry.step, entry.path, report, mark, files)
                    for event in events or ():
                        followed.apply(event)
                        journal.append(event)
        journal.close()
        events_in(home)
