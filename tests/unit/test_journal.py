from __future__ import annotations

import json

from tunekit.core.validation import Attempt, Outcome, Request, Status
from tunekit.journal import VERSION, Journal, read

REQUEST = Request("a", 3, path="/x/checkpoint_000001")


def test_a_line_is_in_the_file_before_the_call_returns(tmp_path):
    journal = Journal(tmp_path / "deep" / "validations.jsonl")
    journal.requested(REQUEST, at=1.0)
    assert len(journal.path.read_text().splitlines()) == 2  # and the journal is still open


def test_the_first_line_names_the_format(tmp_path):
    Journal(tmp_path / "j").close()
    Journal(tmp_path / "j").close()  # opened again: appended to, no second header
    assert [json.loads(line) for line in (tmp_path / "j").read_text().splitlines()] == [
        {"journal": "tunekit", "version": VERSION}
    ]


def test_a_life_can_be_read_back(tmp_path):
    journal = Journal(tmp_path / "j")
    journal.requested(REQUEST, at=1.0)
    journal.started(Attempt(REQUEST, 1), at=2.0)
    failed = Outcome(REQUEST, Status.FAILED, reason="raised X", error="trace\nback", attempts=1)
    journal.ended(failed, at=3.0)
    journal.delivered(REQUEST, "STOP", at=4.0)
    requested, started, ended, delivered = read(tmp_path / "j")
    assert (requested["checkpoint"], requested["iteration"]) == ("/x/checkpoint_000001", 3)
    assert (started["attempt"], started["time"]) == (1, 2.0)
    assert (ended["status"], ended["reason"], ended["error"]) == (
        "failed",
        "raised X",
        "trace\nback",
    )
    assert delivered["decision"] == "STOP"


def test_a_torn_last_line_is_left_out(tmp_path):
    journal = Journal(tmp_path / "j")
    journal.requested(REQUEST, at=1.0)
    journal.close()
    with (tmp_path / "j").open("a") as file:
        file.write('{"event": "ended", "ti')
    assert [event["event"] for event in read(tmp_path / "j")] == ["requested"]


def test_metrics_that_json_does_not_know_are_written_as_text(tmp_path):
    journal = Journal(tmp_path / "j")
    journal.ended(Outcome(REQUEST, Status.VALIDATED, {"when": {1, 2}, "accuracy": 0.5}), at=1.0)
    [event] = read(tmp_path / "j")
    assert event["metrics"] == {"when": "{1, 2}", "accuracy": 0.5}
