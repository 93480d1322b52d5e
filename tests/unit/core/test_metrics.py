"""A metric has one name, however it was nested or written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
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

WRITTEN = [
    {"val": {"acc": 0.99}, "loss": 1},
    {"val/acc": 0.99, "loss": 1},
    {"val": {"acc": 0.99, "n": 2}, "loss": 1},
    {"val/acc": 0.99, "val": {"n": 2}, "loss": 1},
]
DEEP = [{"a/b": {"c": 1}}, {"a": {"b/c": 1}}, {"a": {"b": {"c": 1}}}, {"a/b/c": 1}]


@pytest.mark.parametrize("row", WRITTEN)
@pytest.mark.parametrize("validated", [{"val": {"acc": 0.1}}, {"val/acc": 0.1}])
def test_a_validated_metric_takes_the_place_of_the_reported_one(row, validated):
    merged = list(flat_items(merge(row, validated)))
    assert dict(merged) == {**flatten(row), "val/acc": 0.1}
    assert len(merged) == len(dict(merged)), "each name once"


@pytest.mark.parametrize("row", WRITTEN)
def test_a_reported_metric_is_moved_however_it_is_written(row):
    hidden = move_to_reported(row, ["val/acc"])
    assert hidden["tunekit/reported/val/acc"] == 0.99
    assert flatten(without(row, ["val/acc"])) == flatten(
        {key: value for key, value in hidden.items() if not key.startswith("tunekit/")}
    )
    assert "val/acc" not in flatten(without(row, ["val/acc"]))


@pytest.mark.parametrize("row", DEEP)
@pytest.mark.parametrize("validated", DEEP)
def test_a_name_may_be_split_anywhere(row, validated):
    assert flatten(row) == {"a/b/c": 1}
    assert flatten(move_to_reported(row, ["a/b/c"])) == {"tunekit/reported/a/b/c": 1}
    assert list(flat_items(merge({**row, "d": 2}, validated))) in (
        [("d", 2), ("a/b/c", 1)],
        [("a/b/c", 1), ("d", 2)],
    )


def test_a_name_that_is_also_a_part_of_others_loses_none():
    assert flatten(merge({"val": 0.5}, {"val": {"acc": 0.1}})) == {"val": 0.5, "val/acc": 0.1}
    assert flatten(merge({"val": {"acc": 0.5}}, {"val": 0.1})) == {"val/acc": 0.5, "val": 0.1}
    assert flatten(merge({"val": {}}, {"val": {"acc": 0.1}})) == {"val/acc": 0.1}


def test_of_two_values_in_one_report_that_counts_which_counts_for_tune():
    from ray._private.dict import flatten_dict

    for report in (
        {"val": {"acc": 1, "n": 2}, "val/acc": 3},
        {"val/acc": 3, "val": {"acc": 1, "n": 2}},
        {"a/b": {"c": 1}, "a": {"b/c": 2}},
        {"a": {"b": {"c": 1}, "b/c": 2}, "a/b/c": 3},
    ):
        clean = deduplicate(report)
        assert flatten(clean) == flatten_dict(report)
        assert len(list(flat_items(clean))) == len(flatten(clean))
    plain = {"val": {"acc": 1}, "val/n": 2}
    assert deduplicate(plain) is plain


KEYS = st.sampled_from(["a", "b", "c", "a/b", "b/c", "a/b/c"])
TREES = st.recursive(
    st.integers(0, 9), lambda below: st.dictionaries(KEYS, below, max_size=3), max_leaves=6
)
REPORTS = st.dictionaries(KEYS, TREES, max_size=4).map(deduplicate)


@given(REPORTS, REPORTS)
def test_the_rules_are_those_of_flat_dicts(report, validated):
    flat, own = flatten(report), flatten(validated)
    merged = merge(report, validated)
    for name in own:  # an empty dict stands for nothing
        flat.pop(name, None)
    expected = {n: v for n, v in {**flat, **own}.items() if v != {}}
    assert {n: v for n, v in flatten(merged).items() if v != {}} == expected
    rest = {n: v for n, v in flatten(without(report, own)).items() if v != {}}
    assert rest == {n: v for n, v in flat.items() if v != {}}
    hidden = move_to_reported(report, own)
    moved = {n: v for n, v in flatten(report).items() if n in own}
    rest = without(report, own)
    assert hidden == {**rest, **{f"tunekit/reported/{n}": v for n, v in moved.items()}}


FILLED_IN = {
    *AUTO_RESULT_KEYS,
    *DEBUG_METRICS,
    "done",
    "tunekit/generation",
    "config/lr",
    "trial_id",
}


def test_none_of_what_tune_fills_in_was_chosen_by_the_user():
    others = set(DEFAULT_RESULT_KEYS) - {"mean_accuracy", "mean_loss"}
    assert user_metrics([*FILLED_IN, *others, "loss", "eval/loss"]) == ["eval/loss", "loss"]
    assert "mean_accuracy" in user_metrics(["mean_accuracy"]), "which a user reports"
