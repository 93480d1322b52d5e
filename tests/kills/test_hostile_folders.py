"""Reading a folder that an attacker made neither shows nor changes anything outside of it."""

from __future__ import annotations

import io
import os
import pickle
import re
import shutil
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest

import tunekit
from tests.support.fakes import FakeClock
from tests.support.journals import lines_of, read, write_lines
from tests.support.readers import NOTHING, score, session, trial, tunekit_, validate_here
from tests.support.restores import STATE, begin, prepare_restore, train, tuner
from tunekit.board.live import LiveSweep
from tunekit.board.page import render_index
from tunekit.core.events import Exploited, SnapshotTaken, TrialAdded, TrialErrored
from tunekit.errors import UnsafeFileError
from tunekit.journal import lock, safe_files
from tunekit.journal.journal import Journal
from tunekit.journal.lock import Driver, DriverLock
from tunekit.journal.storage import LocalFolder
from tunekit.reading.catalogue import Catalogue

LOCAL = pyarrow.fs.LocalFileSystem()
SECRET = "SECRET"
SESSION = "validations/20261124-080000-0123abcd"


def made(
    home: Path, word: str, folder: str = "trial_a", checkpoint: str = "", bomb: Any = None
) -> Path:
    """A sweep whose every file has a word: its lock, error.txt and checkpoint, too."""
    record = session(home)
    record.append(TrialAdded(time=1e9, trial_id="a", config={"note": bomb or word}, folder=folder))
    record.append(TrialErrored(time=1e9 + 1, trial_id="a"))
    checkpoint = checkpoint or f"./{folder}/checkpoint_000001"
    score(record, "a", 1, {"accuracy": 0.5, "by": bomb}, checkpoint=checkpoint)
    trial(record, "b", 0.25, lr=0.1)
    known = {"trial_id": "b", "generation": 1, "donor_id": "a", "donor_generation": 0}
    record.append(Exploited(**known, reached=1, iteration=1, checkpoint="./a", config={"lr": 0.2}))
    record.close()
    afterwards = Journal(
        LocalFolder(home),
        series=SESSION,
        about={"time": 1e9, "sweep": 1e9, "name": word.lower(), "function": word},
    )
    score(afterwards, "a", 1, {"robust": 0.5, "by": bomb}, checkpoint=checkpoint)
    afterwards.close()
    holder = Driver("t", word, 7, heard=1e9)
    (home / "journal/driver.json").write_bytes(holder.encoded())
    inner = home / "trial_a/checkpoint_000001"
    inner.mkdir(parents=True)
    (inner / "weights").write_text(word)
    (home / "trial_a/error.txt").write_text(f"ValueError: {word}")
    return home


def shown(home: Path, scratch: Path) -> str:
    """Return everything that the commands print and the pages show about a sweep."""
    output = scratch / "report.html"
    commands: list[tuple[Any, ...]] = [("list", home.parent), ("report", home, "--output", output)]
    for name in ("status", "best"):
        commands += [(name, home), (name, home, "--json")]
    told = [tunekit_(*command).output for command in commands]
    if output.exists():
        told.append(output.read_text())
    catalogue, clock = Catalogue([str(home.parent)]), FakeClock()
    told.append(render_index(catalogue.outlines()))
    for place in catalogue.find().values():
        live = LiveSweep(place, NOTHING, clock)
        while live.step():
            pass
        told += [*live.parts.values(), live.trouble, live.panel("a") or ""]
    return "\n".join(told)


def linked(home: Path, name: str, outside: Path) -> None:
    """Put a link to what another sweep has there in place of what this one has."""
    path = home / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(outside / name)


PLACES = ["journal", "journal/000001.jsonl", "journal/driver.json", "trial_a", "trial_a/error.txt"]
PLACES += ["validations", SESSION, f"{SESSION}/000001.jsonl"]


@pytest.fixture
def outside(tmp_path) -> Path:
    """What the reader keeps elsewhere."""
    return made(tmp_path / "mine/private", SECRET)


@pytest.fixture
def hostile(tmp_path) -> Path:
    """Where a sweep is made that is somebody else's."""
    return tmp_path / "theirs/sweep"


def test_commands_and_pages_show_the_files_inside_the_folder(outside, tmp_path):
    """The control of what follows: the error, the lock, the later validation, the journal."""
    text = shown(outside, tmp_path)
    text = text.replace("&#34;", '"')
    for piece in (f"ValueError: {SECRET}", rf"\b7 on {SECRET}", r"\bsecret\b", f'"{SECRET}"'):
        assert re.search(piece, text), piece


@pytest.mark.parametrize("name", PLACES)
def test_link_inside_a_sweep_shows_no_file_from_outside_the_folder(
    name, hostile, outside, tmp_path
):
    linked(made(hostile, "harmless"), name, outside)
    assert SECRET not in shown(hostile, tmp_path)
    if "trial_a" not in name:
        with pytest.raises(UnsafeFileError, match=re.escape(str(outside / name))):
            tunekit.load(hostile)


@pytest.mark.parametrize("kind", ["up", "root", "drive"])
def test_trial_folder_outside_the_sweep_is_not_opened(kind, hostile, outside, tmp_path):
    folder = {"up": "../../mine/private/trial_a", "root": f"{outside}/trial_a", "drive": "a\0b"}
    made(hostile, "harmless", folder=folder[kind])
    text = shown(hostile, tmp_path)
    assert SECRET not in text and repr(folder[kind])[1:-1] in text


def test_trial_error_is_read_from_a_link_or_a_huge_file_but_not_from_a_pipe(hostile, tmp_path):
    made(hostile, "harmless")
    error = hostile / "trial_a/error.txt"
    error.unlink()
    os.mkfifo(error)
    assert "trial_a/error.txt" in tunekit.load(hostile).trial_errors()["a"]
    with pytest.raises(UnsafeFileError, match=r"trial_a/error\.txt"):
        LocalFolder(hostile).read("trial_a/error.txt")
    error.unlink()
    with open(error, "wb") as file:
        file.truncate(10**10)  # of which the disk has nothing
        file.seek(0, os.SEEK_END)
        file.write(b"\nValueError: the last one")
    known = tunekit.load(hostile).trial_errors()["a"]
    assert known.endswith("ValueError: the last one") and len(known) < 10**5
    error.rename(hostile / "kept")
    error.symlink_to(hostile / "kept")
    assert tunekit.load(hostile).trial_errors()["a"] == known


def test_sweep_folder_that_is_itself_a_link_loads(hostile, tmp_path):
    made(hostile, "harmless")
    (tmp_path / "link").symlink_to(hostile)
    loaded = tunekit.load(tmp_path / "link")
    assert loaded.trial_errors() == {"a": "ValueError: harmless"}
    assert loaded.best().checkpoint is not None


def test_catalogue_lists_no_sweep_behind_a_link(hostile, outside, tmp_path):
    made(hostile, "harmless")
    (hostile.parent / "link").symlink_to(outside)
    (hostile.parent / "loop").symlink_to(hostile.parent)
    assert SECRET not in shown(hostile, tmp_path)
    assert [place.name for place in Catalogue([str(hostile.parent)]).find().values()] == ["sweep"]


@pytest.mark.skipif(sys.platform != "linux", reason="names are UTF-8")
def test_folder_names_that_are_not_utf8_are_skipped_by_every_reader(hostile, tmp_path):
    name = os.fsdecode(b"\xff")
    made(hostile, "harmless")
    for folder in (hostile.parent, hostile, hostile / "trial_a/checkpoint_000001"):
        (folder / name).mkdir()
    assert "sweep" in tunekit_("list", hostile.parent).output
    assert "harmless" in shown(hostile, tmp_path)
    checkpoint = tunekit.load(hostile).best().checkpoint
    with pytest.raises(tunekit.errors.ConfigError, match="weights"):
        tunekit.state_of(checkpoint)


@pytest.mark.parametrize("kind", ["up", "root", "link"])
def test_checkpoint_outside_the_sweep_is_neither_returned_nor_validated(
    kind, hostile, outside, tmp_path
):
    path = outside / "trial_a/checkpoint_000001"
    named = {"up": "./../../mine/private/trial_a/checkpoint_000001", "root": str(path), "link": ""}
    made(hostile, "harmless", checkpoint=named[kind])
    if kind == "link":
        linked(hostile, "trial_a/checkpoint_000001", outside)
    loaded = tunekit.load(hostile)
    assert loaded.best().checkpoint is None
    seen: list[str] = []
    with pytest.raises(tunekit.errors.ConfigError):
        tunekit.validate(
            loaded, lambda checkpoint: seen.append(checkpoint.path) or {"x": 1.0}, name="x"
        )
    assert not seen


ODD = "x\x1b[2J\r\nFORGED\u202e\x9b1mx"


def test_control_characters_in_a_sweep_reach_the_terminal_escaped(hostile, tmp_path):
    record = session(hostile, metric=ODD)
    record.append(TrialAdded(time=1e9, trial_id=ODD, config={ODD: ODD}, folder="a"))
    record.append(TrialAdded(time=1e9, trial_id="b", config={ODD: "other"}, folder="b"))
    score(record, ODD, 1, None, reason=ODD)
    score(record, ODD, 1, {ODD: 0.5}, checkpoint=f"./a/{ODD}", run=2)
    record.close()
    for command in (("status", hostile), ("best", hostile), ("list", hostile.parent)):
        result = tunekit_(*command)
        assert result.exit_code == 0 and "FORGED" in result.output, (command, result.output)
        plainly = re.sub(r"\x1b\[\d*m", "", result.output)  # the command's own colours
        assert all(char == "\n" or char.isprintable() for char in plainly), command
        assert not any(line.lstrip().startswith("FORGED") for line in plainly.splitlines())


def test_validation_refuses_a_checkpoint_with_a_link_that_leads_out(hostile, outside):
    made(hostile, "harmless")
    linked(hostile, "trial_a/checkpoint_000001/weights", outside)
    with pytest.raises(tunekit.errors.ConfigError, match="weights"):
        tunekit.validate(tunekit.load(hostile), lambda checkpoint: {"accuracy": 1.0}, name="x")


class Bomb:
    """Something whose pickle leaves a file behind when it is opened."""

    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self) -> Any:
        return Path.touch, (self.canary,)


def test_reading_or_validating_a_sweep_opens_no_pickle(hostile, tmp_path, monkeypatch):
    canary = tmp_path / "canary"
    made(hostile, "harmless", bomb=Bomb(canary))
    files = ["tuner.pkl", "callback-states-1.pkl", "trial_a/params.pkl", "state/tuner.zip"]
    for name in files:
        (hostile / name).parent.mkdir(exist_ok=True)
        (hostile / name).write_bytes(pickle.dumps(Bomb(canary)))
    canary.unlink(missing_ok=True)

    validate_here(monkeypatch)
    shown(hostile, tmp_path)
    sweep = tunekit.validate(tunekit.load(hostile), lambda checkpoint: {"accuracy": 1.0}, name="x")
    assert "x/accuracy" in sweep.reports
    assert not canary.exists()
    # The controls: each of them goes off.
    read(hostile, unpickle=True)
    canary.unlink()
    for name in files:
        pickle.loads((hostile / name).read_bytes())
        canary.unlink()


def test_report_page_replaces_a_link_unless_the_user_names_it(hostile, tmp_path):
    """The experiment's folder, where it goes by default, may be somebody else's."""
    page, mine = made(hostile, "harmless") / "report.html", tmp_path / "mine"
    mine.write_text("precious")
    page.symlink_to(mine)
    tunekit_("report", hostile)
    assert mine.read_text() == "precious" and not page.is_symlink()
    page.unlink()
    page.symlink_to(mine)
    tunekit_("report", hostile, "--output", page)
    assert "</html>" in mine.read_text() and page.is_symlink()


# Links that are created during a call -----------------------------------------------------------


class Swap:
    """Replaces a part of a path by a link to another sweep's, before a given step of a call.

    The steps are the calls of functions that find a file by its path, or by a part of it.
    """

    def __init__(self, patch: pytest.MonkeyPatch, home: Path, name: str, outside: Path, at: int):
        self.part, self.to, self.at, self.steps = home / name, outside / name, at, 0
        found = [(os, each) for each in ("open", "mkdir", "listdir", "replace", "unlink")]
        for module, each in ((os.path, "realpath"), *found):
            patch.setattr(module, each, partial(self._step, getattr(module, each)))

    def _step(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self.steps == self.at:
            self.part.rename(self.part.with_name("moved away"))
            self.part.symlink_to(self.to)
        self.steps += 1
        return function(*args, **options)


USES: dict[str, Callable[[Path], object]] = {
    "read": lambda home: LocalFolder(home).read("a/b/c/file"),
    "read behind a link": lambda home: LocalFolder(home).read("link/c/file"),
    "names": lambda home: LocalFolder(home).names("a/b/c"),
    "put": lambda home: LocalFolder(home).put("a/b/c/file", b"new"),
    "remove": lambda home: LocalFolder(home).remove("a/b/c/file"),
    "put into a new folder": lambda home: LocalFolder(home).put("a/b/c/new/file", b"new"),
    "append": lambda home: LocalFolder(home)._write_line("a/b/c", b"line"),
    "reads the lock": lambda home: DriverLock(LOCAL, str(home)).read(),
    "locks": lambda home: DriverLock(LOCAL, str(home)).swap(b"harmless", b"lock"),
    "unlocks": lambda home: DriverLock(LOCAL, str(home)).swap(b"harmless", None),
}


@pytest.mark.parametrize("part", ["a", "a/b", "a/b/c", "a/b/c/file"])
@pytest.mark.parametrize("use", USES)
def test_link_created_during_a_storage_call_reads_and_changes_nothing_outside(
    use, part, tmp_path, monkeypatch
):
    at = 0
    monkeypatch.setattr(lock, "LOCK", "a/b/c/file")
    while True:
        home, outside = tmp_path / f"{at}/sweep", tmp_path / f"{at}/mine"
        for folder, word in ((home, "harmless"), (outside, SECRET)):
            (folder / "a/b/c").mkdir(parents=True)
            (folder / "a/b/c/file").write_text(word)
            (folder / f"a/b/c/{word}").touch()
            (folder / "link").symlink_to("a/b")  # which is inside
        before, found = sorted(outside.rglob("*")), None
        with monkeypatch.context() as patch:
            swap = Swap(patch, home, part, outside, at)
            with suppress(UnsafeFileError):
                found = USES[use](home)
        assert sorted(outside.rglob("*")) == before and SECRET not in repr(found), at
        assert (outside / "a/b/c/file").read_text() == SECRET, at
        if swap.steps <= at:  # none was left
            break
        at += 1
    assert at > 4


def test_folder_and_lock_work_by_path_where_folders_cannot_be_opened(
    hostile, tmp_path, monkeypatch
):
    """As on Windows."""
    monkeypatch.setattr(safe_files, "_BY_PART", False)
    monkeypatch.setattr(os, "supports_dir_fd", set())
    made(hostile, "harmless")
    folder = LocalFolder(hostile / "new/sweep")
    folder.put("state/a", b"state")
    folder.append("journal", b"line")
    assert (folder.names(""), folder.names("state")) == (["journal", "state"], ["a"])
    assert (folder.read("state/a"), folder.read("journal/000001.jsonl")) == (b"state", b"line")
    folder.remove("state/a")
    assert folder.names("state") == folder.names("gone") == []
    held = DriverLock(LOCAL, str(hostile / "new/sweep"))
    held.claim()
    assert held.read() is not None
    held.release()
    assert held.read() is None


# Lines that an attacker has forged ---------------------------------------------------------------


#: Changes of a line that once ended a reader with a traceback: the file and the event of the line,
#: and the values that it gets.
FORGED: list[tuple[str, str, dict[str, Any]]] = [
    ("journal", "reported", {"report": {"training_iteration": 1, "generation": [[]]}}),
    ("journal", "reported", {"report": {"training_iteration": 1, "generation": ""}}),
    ("journal", "reported", {"report": {"training_iteration": "a:0:1:1"}}),
    ("journal", "reported", {"report": {"training_iteration": 1, "\ud800": ""}}),
    ("journal", "exploited", {"donor_config": {"lr": "\ud800"}}),
    ("journal", "exploited", {"config": {"\ud800": 1}}),
    ("journal", "exploited", {"donor_id": "b", "donor_generation": 1}),
    ("journal", "exploited", {"donor_id": "c", "donor_generation": 7}),
    (SESSION, "validation_requested", {"id": ""}),
    (SESSION, "validation_requested", {"trial_id": ""}),
    (SESSION, "validation_ended", {"metrics": {"robust": ""}}),
]


@pytest.mark.parametrize(("series", "kind", "forged"), FORGED, ids=repr)
def test_forged_line_is_read_by_every_reader_or_raises_an_error_naming_it(
    hostile, tmp_path, series, kind, forged
):
    made(hostile, "harmless")
    file = hostile / f"{series}/000001.jsonl"
    lines = lines_of(file)
    next(line for line in lines if line.get("event") == kind).update(forged)
    write_lines(file, lines)
    shown(hostile, tmp_path)
    try:
        loaded = tunekit.load(hostile)
    except tunekit.errors.JournalError as error:
        assert str(error).startswith(f"{series}/000001.jsonl, line ")
        return
    for table in ("trials", "reports", "validations", "decisions", "later_validations"):
        getattr(loaded, table).to_csv()
    loaded.summary()
    loaded.to_optuna()
    for trial_id in "ab":
        assert len(loaded.lineage.ancestors(trial_id)) <= len(loaded.lineage)
        repr((loaded.lineage, loaded.lineage.schedule(trial_id)))


# Names that mean something to somebody: of experiments, and of files in an archive --------------


@pytest.mark.parametrize("name", ["c[2]*", "c[2]", "what?", "*"])
def test_experiment_name_with_glob_characters_is_refused_by_tuner_and_restore(tmp_path, name):
    with pytest.raises(tunekit.errors.ConfigError, match=re.escape(repr(name))):
        tuner(tmp_path, name=name)
    assert list(tmp_path.iterdir()) == []
    tuner(tmp_path, name="plain")
    (tmp_path / "plain").rename(tmp_path / name)
    with pytest.raises(tunekit.errors.ConfigError, match=re.escape(name)):
        tunekit.Tuner.restore(str(tmp_path / name), train)


ODD_NAMES = ["a b", "100%", "%2e%2e", "#1", "lr=0.1&x;y", "größe \N{SNOWMAN}", "~", "$HOME"]
ODD_NAMES += ["{a}", "c]2"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_sweep_with_an_odd_name_can_be_restored(tmp_path, name):
    tuner(tmp_path, name=name)
    begin(tmp_path / name)
    assert tunekit.Tuner.can_restore(str(tmp_path / name))
    tunekit.Tuner.restore(str(tmp_path / name), train)


ARCHIVE = "state/000000001-snapshot.zip"


def archived(tmp_path: Path, files: dict[str, Any], compression: int = zipfile.ZIP_STORED) -> Path:
    """Make a sweep whose archive has these files."""
    folder, file = LocalFolder(tmp_path / "a/b/sweep"), io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.comment = ARCHIVE.encode()
        for name, data in files.items():
            archive.writestr(name, data)
    journal = Journal(folder)
    folder.put(ARCHIVE, file.getvalue())
    journal.append(SnapshotTaken(file=ARCHIVE))
    return folder.root


def check_refused(home: Path, outside: Path, named: str) -> None:
    """Restore a sweep in vain; nothing may be changed."""
    before = sorted(outside.rglob("*"))
    with pytest.raises(tunekit.errors.RestoreError, match=named) as caught:
        prepare_restore(home)
    assert ARCHIVE in str(caught.value)
    assert sorted(outside.rglob("*")) == before


FOREIGN = ["../../x", "/etc/x", "..\\..\\x", "state/x", "experiment_state-/../../../x"]


@pytest.mark.parametrize("name", [*FOREIGN, "tuner.pkl", ".bashrc"])
def test_restore_refuses_an_archive_with_a_foreign_file_and_writes_nothing(tmp_path, name):
    check_refused(archived(tmp_path, {**STATE, name: "evil"}), tmp_path, re.escape(repr(name)))


def test_restore_refuses_an_archive_that_unpacks_to_far_more_than_its_size(tmp_path):
    large = {next(iter(STATE)): bytes(10**8)}
    home = archived(tmp_path, large, zipfile.ZIP_DEFLATED)
    assert (home / ARCHIVE).stat().st_size < 10**6
    tracemalloc.start()
    try:
        check_refused(home, tmp_path, r"\d+ bytes")
        _, taken = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 10**7


def test_restore_ignores_a_draft_of_tune_that_a_killed_driver_left(tmp_path):
    draft = ".abf040c7-tmp-basic-variant-state-2026-11-21_21-58-41.json"
    home = archived(tmp_path, {**STATE, draft: b"half of"})
    prepare_restore(home)
    assert list(home.glob("experiment_state-*")) and not list(home.rglob("*tmp*"))
