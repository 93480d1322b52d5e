"""Similar failures are reported once and counted; three before any success end the sweep."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunekit.core.failures import Failures, failure_kind, format_missing

KEY = "raised KeyError: 'model'"


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (KEY, f"{KEY} (after 2 attempts)", True),
        (KEY, "raised ValueError: 'model'", False),
        ("raised OSError: no /a/b_00001/c", "raised OSError: no s3://x/b_00002/d", True),
        ("raised E: of a3395_00002", "raised E: of 77f01_00014", True),
        ("raised E: <Net object at 0x7f12ab>", "raised E: <Net object at 0x55d0>", True),
        ("raised E: loss 1e-05", "raised E: loss 0.25", True),
        ("ran longer than its limit of 60 s", "ran longer than its limit of 600 s", True),
        ("raised E: added", "raised E: faced", False),
    ],
)
def test_failures_are_of_one_kind_if_only_numbers_ids_paths_and_attempts_differ(one, other, alike):
    assert (failure_kind(one) == failure_kind(other)) is alike


KINDS = [f"raised {name}: no" for name in ("KeyError", "OSError", "ValueError")]


@pytest.mark.parametrize(
    ("detects", "reasons", "at"),
    [
        pytest.param(True, [KEY] * 5, [3], id="one kind"),
        pytest.param(False, [KEY] * 5, [], id="not to be detected"),
        pytest.param(True, KINDS, [], id="three kinds"),
        pytest.param(True, [*KINDS, KINDS[1], KINDS[1]], [5], id="third of the second kind"),
        pytest.param(True, [format_missing(f"/a/{n}") for n in range(9)], [], id="no checkpoints"),
    ],
)
def test_sweep_is_hopeless_once_at_the_third_failure_of_one_kind(detects, reasons, at):
    failures = Failures(detects_hopeless=detects)
    found = [failures.failed(f"a@{n}", reason) for n, reason in enumerate(reasons)]
    assert [n for n, notice in enumerate(found, start=1) if notice.hopeless] == at


def count_in(text: str) -> int:
    return int(re.search(r"\d+", text)[0])


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.booleans()), max_size=200))
def test_each_failure_is_reported_or_counted_once_and_none_is_hopeless_after_a_success(happened):
    failures, first, counted = Failures(detects_hopeless=True), 0, 0
    has_succeeded = False
    for n, (kind, success) in enumerate(happened):
        if success:
            failures.succeeded()
            has_succeeded = True
            continue
        notice = failures.failed(f"a@{n}", f"raised {kind}")
        first += notice.first
        counted += count_in(notice.more) if notice.more else 0
        assert not (notice.hopeless and has_succeeded)
    counted += sum(map(count_in, failures.summaries()))
    assert failures.summaries() == []
    assert first + counted == sum(not success for _, success in happened)
