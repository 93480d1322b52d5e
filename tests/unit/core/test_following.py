"""Checkpoints of a followed folder are ordered by the steps in their names, not by when seen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tunekit.following.follow import Followed
from tunekit.following.names import A_COPY, NO_STEP, TOO_LARGE, read_name


def saw(followed: Followed, step: int, **report: Any) -> None:
    for event in followed.saw("run", step, f"/run/step-{step}", report, mark=1.0, files={}) or ():
        followed.apply(event)


def test_run_is_done_if_its_last_step_is_even_though_seen_before_earlier_ones():
    followed = Followed()
    saw(followed, 20, done=True)
    saw(followed, 10)
    assert followed.done == {"run"}
    saw(followed, 30)
    assert not followed.done


#: By the prefix of a name in checkpoint_names.txt, why it has no step.
REASONS = {"copy": A_COPY, "none": NO_STEP, "large": TOO_LARGE, "beside": ""}


def test_step_is_read_from_every_known_trainers_checkpoint_name_and_no_other():
    lines = Path(__file__).with_name("checkpoint_names.txt").read_text().splitlines()
    words = [word for line in lines if not line.startswith("#") for word in line.split()]
    assert len(words) > 250
    for word in words:
        prefix, _, name = word.rpartition(":")
        step, reason = None, REASONS.get(prefix, "")
        if found := re.search(r"\[(\d+)\]([kM]?)", word):
            step = int(found[1]) * {"": 1, "k": 1000, "M": 1000_000}[found[2]]
        assert read_name(re.sub(r"[\[\]]", "", name)) == (step, reason), word


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("model_" + "0" * 30 + "7.pt", (7, "")),
        ("model_" + "9" * 5000 + ".pt", (None, TOO_LARGE)),
        (f"step_{2**53}", (2**53, "")),
        (f"step_{2**53 + 1}", (None, TOO_LARGE)),
    ],
    ids=["leading zeros", "5000 digits", "2**53", "above 2**53"],
)
def test_step_in_name_is_read_up_to_2_to_the_53_and_reported_as_too_large_above(name, found):
    assert read_name(name) == found
