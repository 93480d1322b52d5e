"""A metric has one flat name, and one value, however its report nests it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ray._private.dict import flatten_dict
from ray.tune.result import AUTO_RESULT_KEYS, DEBUG_METRICS, DEFAULT_RESULT_KEYS

from tunekit.core.metrics import (
    deduplicate,
    flat_items,
    flatten,
    merge,
    move_to_reported,
    user_metrics,
    without,
)

KEYS = st.sampled_from(["a", "b", "c", "a/b", "b/c", "a/b/c"])
TREES = st.recursive(
    st.integers(0, 9), lambda below: st.dictionaries(KEYS, below, max_size=3), max_leaves=6
)
REPORTS = st.dictionaries(KEYS, TREES, max_size=4)
NESTED = {"a": {"b": {"c": 1}, "c": 2}, "b": 3}
SPLIT = {"a/b": {"c": 4}, "a/c": 5}
FLAT = {"a/b/c": 6, "a": {"c": 7}}


def values(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics by flat name, each of which occurs once; an empty dict is not one."""
    found = [(name, value) for name, value in flat_items(metrics) if value != {}]
    assert len(found) == len(dict(found))
    return dict(found)


@pytest.mark.parametrize(
    "report",
    [
        {"a": {"b": 1, "c": 2}, "a/b": 3},
        {"a/b": 3, "a": {"b": 1, "c": 2}},
        {"a/b": {"c": 1}, "a": {"b/c": 2}},
        {"a": {"b": {"c": 1}, "b/c": 2}, "a/b/c": 3},
    ],
)
def test_metric_reported_under_two_spellings_keeps_the_value_that_counts_for_tune(report):
    assert values(deduplicate(report)) == flatten_dict(report)


@given(REPORTS)
def test_deduplicated_report_has_each_name_of_the_report_once(report):
    clean = deduplicate(report)
    named = [(name, value) for name, value in flat_items(report) if value != {}]
    assert all(one in named for one in values(clean).items())
    assert flatten(clean).keys() == flatten(report).keys()


@example(NESTED, SPLIT)
@example(SPLIT, NESTED)
@example(NESTED, FLAT)
@example(FLAT, NESTED)
@example(FLAT, SPLIT)
@given(REPORTS.map(deduplicate), REPORTS.map(deduplicate))
def test_validated_metric_replaces_the_reported_one_however_both_are_nested(report, validated):
    own, reported = flatten(validated), flatten(report)
    others = {name: value for name, value in reported.items() if name not in own and value != {}}
    assert values(merge(report, validated)) == {**others, **values(validated)}
    rest = without(report, own)
    assert values(rest) == others
    moved = {f"tunekit/reported/{name}": reported[name] for name in reported if name in own}
    assert move_to_reported(report, own) == {**rest, **moved}


def test_metric_whose_name_is_a_prefix_of_other_names_replaces_none_of_them():
    assert flatten(merge({"val": 0.5}, {"val": {"acc": 0.1}})) == {"val": 0.5, "val/acc": 0.1}
    assert flatten(merge({"val": {"acc": 0.5}}, {"val": 0.1})) == {"val/acc": 0.5, "val": 0.1}
    assert flatten(merge({"val": {}}, {"val": {"acc": 0.1}})) == {"val/acc": 0.1}


def test_user_metrics_exclude_all_names_that_tune_and_tunekit_fill_in():
    of_users = {"mean_accuracy", "mean_loss"}
    filled_in = {*AUTO_RESULT_KEYS, *DEBUG_METRICS, *DEFAULT_RESULT_KEYS} - of_users
    filled_in |= {"done", "tunekit/generation", "config/lr", "trial_id"}
    assert user_metrics([*filled_in, *of_users, "eval/loss"]) == ["eval/loss", *sorted(of_users)]
