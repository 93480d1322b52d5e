"""What fits beside what, and what waits."""

from __future__ import annotations

import pytest

from tunekit.core.shares import queued, shares


@pytest.mark.parametrize(
    ("cluster", "trial", "validation", "exclusive"),
    [
        ({"CPU": 1}, {"CPU": 1}, {"CPU": 1}, True),
        ({"CPU": 2}, {"CPU": 1}, {"CPU": 1}, False),
        ({"CPU": 4, "GPU": 1}, {"GPU": 1}, {"CPU": 1, "GPU": 1}, True),
        ({"CPU": 4, "GPU": 1}, {"GPU": 1}, {"CPU": 1}, False),  # side by side
        ({"CPU": 4, "GPU": 1}, {"GPU": 0.3}, {"GPU": 0.7}, False),
        ({"CPU": 4, "GPU": 1}, {"GPU": 0.6}, {"GPU": 0.5}, True),
        ({"CPU": 8}, {"CPU": 4}, {"CPU": 5}, True),  # two trials fit, and have to wait both
        ({"CPU": 1}, {"CPU": 2}, {"CPU": 1}, False),  # none fits, or not yet
        ({"CPU": 1}, {"CPU": 1}, {"CPU": 1, "GPU": 1}, False),
        ({"CPU": 1}, {"CPU": 1}, {"CPU": 0}, False),
        ({"CPU": 4, "fast": 1}, {"CPU": 1, "fast": 1}, {"CPU": 1, "fast": 1}, True),
    ],
)
def test_what_can_only_run_one_after_the_other(cluster, trial, validation, exclusive):
    found = shares(cluster, trial, validation, most=1)
    assert found.exclusive is exclusive
    assert not (exclusive and found.alongside)


@pytest.mark.parametrize(
    ("cluster", "trial", "validation", "most", "left"),
    [
        ({"CPU": 8}, {"CPU": 1}, {"CPU": 2}, 1, (6, 1)),
        ({"CPU": 8}, {"CPU": 2}, {"CPU": 1}, 3, (2, 3)),
        ({"CPU": 2}, {"CPU": 1}, {"CPU": 1}, 4, (1, 1)),  # one has to do
        ({"CPU": 8, "GPU": 1}, {"GPU": 1}, {"CPU": 1}, 1, (None, 0)),  # nothing is shared
        ({"CPU": 1}, {"CPU": 1}, {"CPU": 1}, 1, (None, 0)),
    ],
)
def test_trials_leave_room_for_validations(cluster, trial, validation, most, left):
    found = shares(cluster, trial, validation, most=most)
    assert (found.alongside, found.validations) == left


@pytest.mark.parametrize(
    ("shape", "need", "wants"),
    [
        ({"CPU": 1.0}, {"CPU": 1}, True),
        ({"CPU": 1.0}, {"CPU": 2}, False),
        ({"CPU": 1.0, "GPU": 1.0}, {"CPU": 1}, False),
        ({"CPU": 1.0, "GPU": 0.3333}, {"CPU": 1, "GPU": 1 / 3}, True),
        ({"CPU": 1.0, "accelerator_type:H100": 0.001}, {"CPU": 1}, True),
        ({"CPU_group_0_ab": 1.0, "bundle_group_ab": 0.001}, {"CPU": 1}, True),
        ({"bundle_group_ab": 0.001}, {"CPU": 1}, False),
        ({"validation": 1.0}, {"validation": 1}, True),
        ({"CPU": 1.0}, {"CPU": 1, "validation": 1}, False),
    ],
)
def test_who_waits_for_what(shape, need, wants):
    assert queued([(shape, 3), ({"other": 1.0}, 5)], need) == (3 if wants else 0)
