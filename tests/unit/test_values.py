"""Any value of a user's code can be recorded, sent and shown, without raising or running it."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Mapping
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray.tune.result import AUTO_RESULT_KEYS, DEBUG_METRICS

from tests.support.journals import read
from tests.support.odd_values import EXCEPTIONS, ODD, tensors
from tunekit.core.events import CheckpointSaved, Reported, TrialAdded
from tunekit.core.executor import Returned
from tunekit.core.metrics import sanitize_report
from tunekit.core.validation import score_problem
from tunekit.core.values import (
    Raised,
    as_json,
    describe_error,
    finite_number,
    format_value,
    key_name,
    sanitize,
)
from tunekit.journal.encoding import exact, legible, read_opened, read_shown
from tunekit.journal.journal import Journal
from tunekit.journal.pickles import portable
from tunekit.journal.storage import LocalFolder
from tunekit.validating.process import outcome_of, pack_result


def sent(value):
    """Return what the driver gets of what a validation returns."""
    return pickle.loads(cloudpickle.dumps(pack_result(value)))


MANY = settings(suppress_health_check=list(HealthCheck))


def handled(value, depth=0) -> None:
    """Treat a metric as every part of a sweep does."""
    assert depth < 60
    kind = type(value)
    if kind is dict:
        for key, below in value.items():
            assert type(key) is str
            key.encode()
            handled(below, depth + 1)
    elif kind in (list, tuple):
        for below in value:
            handled(below, depth + 1)
    elif kind is str:
        value.encode()
    elif kind is int:
        float(np.isnan(value))
    elif kind is not float and kind is not bool and value is not None:
        assert not isinstance(value, (Mapping, str, int, float))
        assert str(value) is not None and repr(value) is not None
        cloudpickle.loads(cloudpickle.dumps(value))


@pytest.mark.parametrize("make", ODD)
def test_odd_value_is_sanitized_written_sent_and_shown_without_an_error(make):
    handled(own := sanitize(make(), portable))
    assert sanitize(own, portable) is own
    for value in (make(), {"it": make()}, [make()], {make: make()}):
        for write in (legible, exact):
            document = json.dumps(write(value))
            json.loads(document, object_hook=read_shown)
            json.loads(document, object_hook=read_opened)
        json.loads(as_json(value))
    handled(own := sent({"accuracy": 0.5, "it": make()}))
    assert score_problem(own, {"accuracy"}) is None
    problem = score_problem(sent({"accuracy": make()}), {"accuracy"})
    assert problem is None or "'accuracy'" in problem
    handled(sent(make()))
    for show in (format_value, key_name):
        shown = show(make())
        assert type(shown) is str
        shown.encode()
    assert len(format_value(make())) <= 200
    assert finite_number(make()) is None or isinstance(finite_number(make()), float)


def test_number_of_any_type_becomes_a_plain_one_or_a_text_if_too_large():
    longdouble = sanitize(np.longdouble("0.5"))
    assert (longdouble, type(longdouble)) == (0.5, float)
    assert sanitize(np.float32(0.5)) == 0.5 and type(sanitize(np.int8(3))) is int
    assert sanitize(10**30) == 1e30 and sanitize(2**63) == 2**63
    assert sanitize(10**400).startswith("1000") and sanitize(10**400).endswith("...")
    assert sanitize(True) is True and math.isnan(sanitize(float("nan")))
    assert sanitize(1j) == "1j"


def test_value_that_needs_no_sanitizing_is_returned_itself():
    report = {"loss": 0.5, "seen": {1, 2}, "table": np.arange(3), "eval": {"n": [1, (2, "x")]}}
    assert sanitize(report, portable) is report


def test_two_keys_with_the_same_text_both_keep_their_values():
    own = sanitize({1: "int", "1": "str", (1, 2): "tuple", None: "none"})
    assert own == {"1 (int)": "int", "1": "str", "(1, 2)": "tuple", "None": "none"}
    assert sanitize({"1": "str", 1: "int"}) == {"1": "str", "1 (int)": "int"}


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda below: (
        st.lists(below)
        | st.tuples(below, below)
        | st.dictionaries(
            st.integers() | st.text(max_size=3) | st.sampled_from(["__shown__", "__pickled__"]),
            below,
        )
    ),
    max_leaves=12,
)


@MANY
@given(PLAIN)
def test_exactly_encoded_value_is_equal_when_read_with_any_keys(value):
    assert json.loads(json.dumps(exact(value)), object_hook=read_opened) == value


def test_users_value_that_looks_like_a_pickle_is_never_unpickled(tmp_path):
    class Touches:
        def __reduce__(self):
            return Path.touch, (tmp_path / "was-here",)

    odd = {"__pickled__": legible({"it": Touches()})["it"]["__pickled__"], "__shown__": "x"}
    journal = Journal(LocalFolder(tmp_path))
    journal.append(TrialAdded(time=1.0, trial_id="a", config={"it": odd}))
    report = {"training_iteration": 1, "it": odd, "in": [odd], "__pickled__": 3}
    journal.append(Reported(time=2.0, trial_id="a", report=report))
    journal.append(CheckpointSaved(trial_id="a", kwargs={"it": odd}))
    journal.close()
    added, reported, saved = read(tmp_path, unpickle=True)
    assert not (tmp_path / "was-here").exists()
    renamed = {"'__pickled__'": odd["__pickled__"], "__shown__": "x"}
    assert added["config"] == {"it": renamed} and saved["kwargs"] == {"it": odd}
    assert reported["report"] == {
        "training_iteration": 1,
        "it": renamed,
        "in": [renamed],
        "'__pickled__'": 3,
    }


def fatal(*known: object, **more: object) -> None:
    raise AssertionError("the user's code was called")


def of_users(base: type, *known: object) -> object:
    """Return an instance of a class whose unpickling calls the user's code."""
    return type("Own", (base,), {"__reduce_ex__": lambda self, protocol: (fatal, ())})(*known)


def own_array() -> object:
    return np.arange(3).view(type(of_users(np.ndarray, 0)))


def with_metadata() -> object:
    return np.ones(3, np.dtype("f8", metadata={"it": of_users(list)}))


#: Values of users' types, and what a process without these types reads instead.
OF_USERS = {
    "str": (lambda: of_users(str, "a"), "a"),
    "int": (lambda: of_users(int, 3), 3),
    "float": (lambda: of_users(float, 0.5), 0.5),
    "numpy's float": (lambda: of_users(np.float64, 0.5), 0.5),
    "list": (lambda: of_users(list, [1, (2,)]), [1, (2,)]),
    "tuple": (lambda: of_users(tuple, [1]), [1]),
    "dict": (lambda: of_users(dict, {"a": 1}), {"a": 1}),
    "key": (lambda: {of_users(str, "a"): 1}, {"a": 1}),
    "set": (lambda: of_users(set), "Own()"),
    "array": (own_array, "Own([0, 1, 2])"),
    "objects": (lambda: np.array([of_users(set), 1]), "array([Own(), 1], dtype=object)"),
    "metadata": (with_metadata, [1.0, 1.0, 1.0]),
    "rows": (lambda: np.ones(2, [("a", "f4")]), "array([(1.,), (1.,)], dtype=[('a', '<f4')])"),
    "exception": (lambda: of_users(ValueError, "x"), "Own('x')"),
}


@pytest.mark.parametrize("name", OF_USERS)
def test_score_is_unpickled_without_calling_the_users_code(name):
    make, plain = OF_USERS[name]
    for value in (make(), [make()], {"it": make()}):
        pickle.loads(cloudpickle.dumps(Returned("", pack_result(value))))
    found = sent({"it": make()})["it"]
    assert (found.tolist() if type(found) is np.ndarray else found) == plain
    own = pack_result({"it": make()})
    assert repr(pack_result(own)) == repr(own), "a worker's score may be packed again"


def test_tensors_in_a_score_become_numbers_and_numpy_arrays():
    scalar, table, one = tensors()
    half, own = table.bfloat16(), torch.nn.Parameter(table.double())
    found = sent({"scalar": scalar, "one": one, "table": table, "half": half, "own": own})
    assert (found["scalar"], found["one"]) == (0.5, 1.0)
    for name in ("table", "half", "own"):
        assert type(found[name]) is np.ndarray
        assert found[name].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert found["own"].dtype == np.float64
    assert type(sent({"it": table.to_sparse()})["it"]) is str, "numpy has no sparse arrays"


LONG = "beginning " + "\x1b[0" * 10**6 + " end"


@pytest.mark.parametrize(
    "text", [LONG, "\ud800" * 10**6, "\n" * 10**6, of_users(str, LONG)], ids=range(4)
)
def test_description_of_an_exception_is_short_however_long_its_text_is(text):
    named = type("x" * 10**6, (Exception,), {"__str__": lambda self: text})
    for error in (ValueError(text), named()):
        found = describe_error(error)
        for part, longest in (
            (found.reason, 1000),
            (found.message, 70_000),
            (found.trace, 500_000),
            (found.kind, 200),
        ):
            assert type(part) is str and part.encode() and len(part) <= longest
        assert "\n" not in found.reason
    if text.startswith("beginning"):
        message = describe_error(ValueError(text)).message
        assert message.startswith("beginning") and message.endswith(" end")


def test_long_traceback_keeps_its_beginning_and_its_end():
    error = ValueError("first")
    for _ in range(200):
        later = ValueError("y" * 1000)
        error, later.__cause__ = later, error
    error.args = ("last",)
    trace = describe_error(error).trace
    assert trace.startswith("ValueError: first") and trace.endswith("last")
    assert len(trace) < 70_000


@pytest.mark.parametrize("make", EXCEPTIONS)
def test_any_exception_is_described_by_its_kind_and_traceback(make):
    found = outcome_of(lambda: (_ for _ in ()).throw(make()))
    assert type(found) is Raised and found == pickle.loads(pickle.dumps(found))
    kind = type(make()).__name__
    assert kind.split("\n")[0] in found.reason and "\n" not in found.reason
    f"{found.reason}{found.trace}{found.message}".encode()
    assert "Traceback" in found.trace


def test_odd_report_is_flattened_and_one_that_needs_no_change_is_returned_itself():
    odd = {"training_iteration": 3, "config": {(1, 2): 3}}
    odd |= {(1, 2): {"x": 1}, "val": {"acc": 1}, "val/acc": 2}
    assert sanitize_report(odd, 4, portable) == {
        "training_iteration": 3,
        "config": {(1, 2): 3},
        "(1, 2)/x": 1,
        "val/acc": 1,
    }
    fine = {"training_iteration": 1, "config": {}, "loss": 0.5, "done": False, "generation": 2}
    assert sanitize_report(fine, 1, portable) is fine


NOT_COUNTS = ["x", True, 3.0, -1, 2**53 + 1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("training_iteration", iteration) for iteration in NOT_COUNTS),
        ("time_this_iter_s", "soon"),
        ("timesteps_total", "many"),
        ("done", (1, 2)),
        ("tunekit", 0.5),
        ("tunekit/generation", None),
        ("tunekit/reported/a", 1),
    ],
)
def test_value_under_a_name_of_tune_or_tunekit_moves_below_tunekit_reported(name, value):
    own, moved = {"training_iteration": 4, "loss": 1}, {f"tunekit/reported/{name}": value}
    assert sanitize_report({**own, name: value}, 4, portable) == {**own, **moved}


RESERVED = ["tunekit/reported/acc", "config/lr", "tunekit", *AUTO_RESULT_KEYS, *DEBUG_METRICS]
RESERVED += ["done", "should_checkpoint", "__duplicate__", "timesteps_this_iter"]


@pytest.mark.parametrize("name", RESERVED)
def test_score_with_a_name_reserved_by_tune_or_tunekit_is_refused_and_named(name):
    assert repr(name) in score_problem({name: 1.0}, {})
