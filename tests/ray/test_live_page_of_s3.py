"""Live pages of sweeps that are kept in an object store."""

from __future__ import annotations

from tests.support.fakes import FakeClock
from tests.support.readers import NOTHING, session, trial
from tunekit.board.live import Catalogue, LiveSweep
from tunekit.journal.journal import Journal
from tunekit.journal.storage import RemoteFolder


def test_a_sweep_in_an_object_store_is_found_and_followed(s3, tmp_path):
    s3.make_bucket("served")
    folder = RemoteFolder(s3.filesystem(), "served/digits")
    journal = Journal(folder, about={"time": 1e9, "required": ["accuracy"], "mode": "max"})
    trial(journal, "a", 0.5, lr=0.1)
    assert folder.settle(60)
    catalogue = Catalogue([s3.uri("served")])
    [entry] = catalogue.find().values()
    clock = FakeClock()
    live = LiveSweep(entry, NOTHING, clock)
    clock.sleep(10)
    live.step()
    assert "Best: trial <b>a</b>" in live.parts["summary"] and live.trouble == ""
    trial(journal, "b", 0.9, lr=0.2)
    assert folder.settle(60)
    clock.sleep(10)
    live.step()
    assert "Best: trial <b>b</b>" in live.parts["summary"]
    # The driver is killed, and the sweep goes on in another file.
    again = RemoteFolder(s3.filesystem(), "served/digits")
    trial(Journal(again, begins=False), "c", 0.95)
    assert again.settle(60)
    clock.sleep(10)
    live.step()
    assert "<code>c</code>" in str(live.panel("c")) and live.trouble == ""
    [row] = catalogue.outlines(metric="accuracy", mode="max")
    assert row["entry"].name == "digits" and row["best"]["score"] == 0.95
    for one in (folder, again):
        one.close()
    # What is on this machine is served beside it.
    trial(session(tmp_path / "local"), "a")
    both = Catalogue([s3.uri("served"), str(tmp_path)]).find()
    assert {one.name for one in both.values()} == {"digits", "local"}
