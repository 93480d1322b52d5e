"""Equal failures are reported once, and end the sweep if there is nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunekit.core.failures import Failures, failure_kind, format_missing

KEY = "raised KeyError: 'model'"


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (KEY, f"{KEY} (after 2 attempts)", True),
        (KEY, "raised KeyError: 'weights'", False),
        (KEY, "raised ValueError: 'model'", False),
        ("raised OSError: no /a/b_00001/c", "raised OSError: no s3://x/b_00002/d", True),
        ("raised E: of a3395_00002", "raised E: of 77f01_00014", True),
        ("raised E: <Net object at 0x7f12ab>", "raised E: <Net object at 0x55d0>", True),
        ("raised E: loss 1e-05", "raised E: loss 0.25", True),
        ("ran longer than its limit of 60 s", "ran longer than its limit of 600 s", True),
        ("raised E: added", "raised E: faced", False),
    ],
)
def test_failures_that_differ_in_numbers_ids_and_paths_are_of_one_kind(one, other, alike):
    assert (failure_kind(one) == failure_kind(other)) is alike


def verdicts(failures, reasons):
    return [failures.failed(f"a@{n}", reason) for n, reason in enumerate(reasons, start=1)]


def test_the_first_three_failures_of_one_kind_leave_no_hope():
    told = [v.hopeless for v in verdicts(Failures(detects_hopeless=True), [KEY] * 5)]
    assert told == [False, False, True, False, False]
    assert not any(verdict.hopeless for verdict in verdicts(Failures(), [KEY] * 5))


def test_one_success_is_hope_enough():
    failures = Failures(detects_hopeless=True)
    failures.failed("a@1", KEY)
    failures.succeeded()
    assert not any(verdict.hopeless for verdict in verdicts(failures, [KEY] * 20))


def test_different_failures_are_not_one_cause():
    several = [f"raised {name}: no" for name in ("KeyError", "OSError", "ValueError")]
    assert not any(v.hopeless for v in verdicts(Failures(detects_hopeless=True), several))
    again = [*several, several[1], several[1]]
    assert [v.hopeless for v in verdicts(Failures(detects_hopeless=True), again)][-1]


def test_a_missing_checkpoint_is_no_failure_of_the_function():
    reasons = [format_missing(f"/a/checkpoint_{n}") for n in range(9)]
    assert not any(v.hopeless for v in verdicts(Failures(detects_hopeless=True), reasons))


def test_each_kind_of_failure_is_reported_once_and_then_counted():
    failures = Failures()
    told = verdicts(failures, [KEY] * 25)
    assert [n for n, verdict in enumerate(told, start=1) if verdict.first] == [1]
    [(count, text)] = [(n, v.more) for n, v in enumerate(told, start=1) if v.more]
    assert count == 10
    assert text == f"9 more like that of a@1 ({KEY}): a@2, a@3, a@4, a@5, a@6 and 4 others"
    [rest] = failures.summaries()
    assert rest.startswith("15 more like that of a@1")
    assert failures.summaries() == []


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.booleans()), max_size=200))
def test_each_failure_is_reported_or_counted_once(happened):
    failures, told, counted = Failures(detects_hopeless=True), 0, 0
    for n, (kind, success) in enumerate(happened):
        if success:
            failures.succeeded()
            continue
        verdict = failures.failed(f"a@{n}", f"raised {kind}")
        told += verdict.first
        counted += int(verdict.more.split()[0]) if verdict.more else 0
    counted += sum(int(text.split()[0]) for text in failures.summaries())
    assert told + counted == sum(not success for _, success in happened)
