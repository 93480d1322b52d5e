"""Unexpected values that a user's code may return, for property tests."""

from __future__ import annotations

import collections
import decimal
import enum
import sys
from typing import Any

import numpy as np
from hypothesis import strategies as st


def _raises(*args: Any, **known: Any) -> Any:
    raise RuntimeError("not this one")


class Level(enum.IntEnum):
    LOW = 1


class Word(str):
    def __str__(self):
        return _raises()

    __repr__ = __hash__ = None  # type: ignore[assignment]


Pair = collections.namedtuple("Pair", "a b")


def hostile(*methods: str, base: type = object) -> type:
    """A class whose methods raise."""
    return type("Hostile", (base,), dict.fromkeys(methods, _raises))


class OpensBadly:
    def __reduce__(self):
        return _raises, ()


def _cycle() -> dict[str, Any]:
    own: dict[str, Any] = {"loss": 0.5}
    own["again"] = own
    return own


def _deep(levels: int = 3000) -> dict[str, Any]:
    own: dict[str, Any] = {"end": 1}
    for _ in range(levels):
        own = {"in": own}
    return own


def tensors() -> list[Any]:
    import torch

    return [torch.tensor(0.5), torch.ones(2, 2), torch.tensor([1.0], requires_grad=True)]


#: Makers of single values.
ODD = [
    lambda: 10**400,
    lambda: 2**64,
    lambda: float("nan"),
    lambda: 1e308,
    lambda: "\ud800",
    lambda: "line\nline\x00",
    lambda: "x" * 100_000,
    lambda: b"\xff\x00",
    lambda: {1, "a"},
    lambda: 1 + 2j,
    lambda: decimal.Decimal("sNaN"),
    lambda: Level.LOW,
    lambda: Word("word"),
    lambda: Pair(1, 2),
    lambda: collections.defaultdict(list, {"a": [1]}),
    lambda: object(),
    lambda: (x for x in "abc"),
    lambda: lambda: 1,
    lambda: np.float64("nan"),
    lambda: np.longdouble("1e4000"),
    lambda: np.str_("\ud800"),
    lambda: np.array(0.5, dtype=object),
    lambda: np.arange(3),
    lambda: np.array([object(), None], dtype=object),
    lambda: np.zeros(2, dtype=[("a", "f4")]),
    lambda: np.ma.masked,
    lambda: {"__shown__": 1},
    lambda: {"__pickled__": "gASVAAAAAAAAAC4=", "__shown__": "x"},
    lambda: {1: "int", "1": "str", False: "bool", None: 0, 1.5: 0, (1, 2): 3, "\ud800": 4},
    lambda: {b"key": 1, frozenset(): 2, Level.LOW: 3},
    lambda: {"a/b": {"c": 1}, "a": {"b/c": 2}},
    _cycle,
    _deep,
    lambda: hostile("__str__", "__repr__")(),
    lambda: hostile("__eq__", "__bool__", "__hash__", "__len__")(),
    lambda: hostile("__reduce__", "__reduce_ex__")(),
    lambda: hostile("__getattribute__")(),
    lambda: hostile("__float__", "__int__", "__index__", base=float)(0.5),
    lambda: hostile("__iter__", "items", "keys", "__getitem__", "__len__", base=dict)(a=1),
    lambda: hostile("__iter__", "__len__", base=list)([1]),
    lambda: {hostile("__str__", "__repr__")(): 1},
    lambda: type("RaisesOnClass", (), {"__class__": property(_raises)})(),
    lambda: type("Exits", (), {"__repr__": lambda self: sys.exit(1)})(),
    lambda: type("RaisesOnItem", (), {"ndim": 0, "shape": (), "size": 1, "item": _raises})(),
    lambda: type("Endless", (dict,), {"items": lambda self: [("again", self)]})(),
    OpensBadly,
    lambda: type("ShowsNoText", (), {"__repr__": lambda self: 3})(),
]

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(ODD),
)
KEYS = st.one_of(
    st.text(max_size=5),
    st.sampled_from(["__shown__", "__pickled__", "tunekit", "val/acc", "tunekit/generation", "/"]),
    st.integers(-1, 3),
    st.none(),
    st.booleans(),
    st.just((1, 2)),
)
#: Anything, with the makers of odd values in their place: they break hypothesis, too.
VALUES = st.recursive(
    SCALARS,
    lambda below: st.one_of(
        st.lists(below, max_size=3),
        st.dictionaries(KEYS, below, max_size=3),
        st.tuples(below, below),
    ),
    max_leaves=6,
)


def made(tree: Any) -> Any:
    """Return a draw from ``VALUES``, with odd values in place of their makers."""
    if any(tree is make for make in ODD):
        return tree()
    if type(tree) in (list, tuple):
        return type(tree)(made(part) for part in tree)
    if type(tree) is dict:
        return {key: made(part) for key, part in tree.items()}
    return tree


class TwoArguments(Exception):
    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = code


#: Makers of exceptions.
EXCEPTIONS = [
    lambda: ValueError("plain"),
    lambda: ValueError(),
    lambda: ValueError("\n\n  second line"),
    lambda: ValueError("\ud800"),
    lambda: ValueError(10**5000),
    lambda: KeyError((1, 2)),
    lambda: TwoArguments(7, "two"),
    lambda: hostile("__str__", "__repr__", base=Exception)("x"),
    lambda: hostile("__reduce__", base=ValueError)("x"),
    lambda: type("Odd\nName", (Exception,), {})("x"),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd"),
]
