"""Sanitizing user values: metrics, hyperparameters, keys and exceptions of any kind.

Nothing here raises because of a value, whatever its methods do. There are two conversions:

- :func:`sanitize`: a value in a form that every part of a sweep can handle;
- :func:`describe_error`: an exception in words.

A value that cannot be converted becomes a text that shows it, or whatever replacement is passed to
:func:`sanitize`.
"""

from __future__ import annotations

import json
import math
import numbers
import operator
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: A key that no user value contains; readers of a journal unpickle its value.
PICKLED = "__pickled__"

#: The largest iteration, line's number and so on: the largest count that a float can represent.
MOST = 2**53

#: The most seconds that a journal has: about 272 years.
MOST_SECONDS = 2.0**33

#: The longest text that represents a value.
LONGEST = 200

# The longest texts that describe an exception, in characters: a journal's line has all of them.
_LONGEST_REASON, _LONGEST_MESSAGE, _LONGEST_TRACE = 1_000, 10_000, 2**16

#: The largest metric, in bytes: each metric is written to the journal, Tune's files and loggers,
#: and a process that reads the sweep holds all of them in memory.
LARGEST = 2**20

# The deepest nesting of dicts and lists: JSON readers recurse, and fail at some depth.
_DEEPEST = 50
#: The deepest nesting of a journal's line, including everything around a value.
NESTED = 2 * _DEEPEST


def safely(call: Callable[..., Any], *known: Any, otherwise: Any = None) -> Any:
    """Call a function that runs a value's own methods, which may raise anything.

    Args:
        call: The function.
        *known: Its arguments.
        otherwise: What to return if it raises.

    Example:
        >>> safely(int, "7"), safely(int, "seven", otherwise=0)
        (7, 0)
    """
    try:
        return call(*known)
    except KeyboardInterrupt:
        raise
    except BaseException:  # SystemExit, for example
        return otherwise


# Stands for the result of a call that raised an exception.
_FAILED = object()


# Texts and numbers ------------------------------------------------------------------------------


def format_value(value: Any) -> str:
    """Return any value as text, of at most :data:`LONGEST` characters.

    Example:
        >>> format_value({1, 2}), format_value("a\\ud800b"), format_value(10**5000)
        ('{1, 2}', "'a\\\\ud800b'", '<an int of 16610 bits>')
        >>> class Odd:
        ...     def __repr__(self):
        ...         raise ValueError
        >>> format_value(Odd())
        '<an Odd that cannot be shown>'
    """
    shown = safely(_represented, value)
    if shown is None:
        return _unshowable(value)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 3]}..."


def _represented(value: Any) -> str:
    return encodable(repr(value[: LONGEST + 1] if isinstance(value, (str, bytes)) else value))


def _unshowable(value: Any) -> str:
    kind = _kind(value)
    article = "an" if kind[:1].lower() in "aeiou" else "a"
    if type(value) is int:
        return f"<{article} int of {value.bit_length()} bits>"
    return f"<{article} {kind} that cannot be shown>"


def _kind(value: Any) -> str:
    found: str = safely(
        lambda: " ".join(encodable(type(value).__name__[:LONGEST]).split()), otherwise="object"
    )
    return found


def encodable(own: str) -> str:
    """Return a text without lone surrogates, which cannot be written to files.

    Example:
        >>> encodable("caf\\xe9"), encodable("\\ud800!")
        ('caf\\xe9', '\\\\ud800!')
    """
    own = str.__str__(own)
    return own if own.isascii() else own.encode("utf-8", "backslashreplace").decode("utf-8")


def key_name(key: Any) -> str:
    """Return the name, as in Tune, of a metric or hyperparameter with any key.

    Example:
        >>> key_name("loss"), key_name(7), key_name(None), key_name((1, "a"))
        ('loss', '7', 'None', "(1, 'a')")
    """
    if type(key) is str:
        return repr(key) if key == PICKLED else encodable(key)
    own = safely(lambda: encodable(key if isinstance(key, str) else str(key)[:LONGEST]))
    return _unshowable(key) if own is None else own


def finite_number(value: Any) -> float | None:
    """Return a value as a finite number; None for NaN, infinity and anything else.

    Example:
        >>> finite_number(3), finite_number(True), finite_number("3"), finite_number(10**400)
        (3.0, 1.0, None, None)
        >>> finite_number(float("nan")), finite_number(float("-inf"))
        (None, None)
    """
    if type(value) is float:
        return value if math.isfinite(value) else None
    found = safely(lambda: float(value) if isinstance(value, numbers.Real) else None)
    return found if found is not None and math.isfinite(found) else None


# Metrics and hyperparameters --------------------------------------------------------------------


def sanitize(value: Any, keep: Callable[[Any], Any] = format_value) -> Any:
    """Return a value in a form that every part of a sweep can handle.

    - Keys are strings.
    - Numbers are Python's own: those of numpy, ``Decimal``, and whole numbers of more than 64 bits
      become floats where they fit.
    - Other objects are replaced by what ``keep`` returns. Objects that cannot be shown, contain
      themselves or are nested too deeply are replaced by a text.

    A value that needs no change is returned itself.

    Args:
        value: Anything.
        keep: Returns the replacement of an object: itself, for example, or a text.

    Example:
        >>> sanitize({7: 0.5, "note": "a\\ud800", "seen": 10**30, "by": {1}})
        {'7': 0.5, 'note': 'a\\\\ud800', 'seen': 1e+30, 'by': '{1}'}
        >>> sanitize({"b\\ud800": 1})
        {'b\\\\ud800': 1}
        >>> cycle = {"loss": 1}
        >>> cycle["again"] = cycle
        >>> sanitize(cycle)
        {'loss': 1, 'again': "{'loss': 1, 'again': {...}}"}
    """
    return _admit(value, keep, [])


def _admit(value: Any, keep: Callable[[Any], Any], above: list[int]) -> Any:
    kind = type(value)
    if kind is float or kind is bool or value is None:
        return value
    if kind is int:
        if -(2**63) <= value < 2**64:
            return value
        return safely(
            float, value, otherwise=format_value(value)
        )  # plots and averages need a float
    if kind is str:
        own = encodable(value)
        return value if own == value else own
    if kind is dict or kind is list or kind is tuple:
        if id(value) in above or len(above) >= _DEEPEST:
            return format_value(value)
        above.append(id(value))
        try:
            if kind is dict:
                return _admit_dict(value, keep, above)
            parts = [_admit(part, keep, above) for part in value]
        finally:
            above.pop()
        if all(map(operator.is_, parts, value)):
            return value
        return tuple(parts) if kind is tuple else parts
    own = safely(_admit_other, value, keep, above, otherwise=_FAILED)
    return format_value(value) if own is _FAILED else own


def _admit_dict(
    value: dict[Any, Any], keep: Callable[[Any], Any], above: list[int]
) -> dict[str, Any]:
    own: dict[str, Any] = {}
    changed = False
    for key, part in value.items():
        if type(key) is not str or key == PICKLED or not (key.isascii() or key == key_name(key)):
            return {n: _admit(inner, keep, above) for n, inner in _with_names(value).items()}
        inner = own[key] = _admit(part, keep, above)
        changed = changed or inner is not part
    return own if changed else value


def _with_names(value: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a dict with a name for each key; two keys with one name, such as 1 and "1", differ."""
    taken = {key for key in value if type(key) is str and key == key_name(key)}
    own: dict[str, Any] = {}
    for key, part in value.items():
        name = key_name(key)
        while (type(key) is not str or key != name) and name in taken:
            name = f"{name} ({_kind(key)})"
        taken.add(name)
        own[name] = part
    return own


def _admit_other(value: Any, keep: Callable[[Any], Any], above: list[int]) -> Any:
    if isinstance(value, str):
        return value if type(value) is LeftOut else encodable(value)
    if isinstance(value, int):
        return _admit(int.__int__(value), keep, above)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return _admit(dict(value.items()), keep, above)
    if isinstance(value, (list, tuple)):
        return _admit(list(value), keep, above)
    if is_array(value):
        return keep(value)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        found = value.item()
        if type(found) in (bool, int, float, str):
            return _admit(found, keep, above)
    if isinstance(value, numbers.Number):
        real = isinstance(value, numbers.Real) or not isinstance(value, numbers.Complex)
        return float(value) if real else format_value(value)  # type: ignore[arg-type]
    str.__str__(repr(value))
    str.__str__(str(value))
    return keep(value)


def is_array(value: Any) -> bool:
    """Return whether a value is a numpy array of numbers or a torch tensor."""
    kind = type(value)
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        return value.ndim > 0 and not value.dtype.hasobject
    return kind.__module__ == "torch" and kind.__name__ == "Tensor" and value.ndim > 0


def as_array(value: Any) -> Any:
    """Return an array or tensor as a numpy array of numbers, texts or dates; None if it is neither.

    Example:
        >>> import numpy
        >>> as_array(numpy.arange(3)), as_array(numpy.array([{}, {}])) is None
        (array([0, 1, 2]), True)
    """
    numpy = sys.modules["numpy"]
    if type(value) is not numpy.ndarray:
        found = safely(lambda: value.numpy(force=True))
        # NumPy has no bfloat16.
        value = value.float().numpy(force=True) if found is None else found
    if type(value) is numpy.ndarray and value.dtype.kind in "biufcmMSU":
        return numpy.asarray(value, value.dtype.str)  # without the metadata of the type
    return None


def unwrap_single(value: Any) -> Any:
    """Return the number in a one-element array or tensor; return anything else unchanged."""
    item, size = getattr(value, "item", None), getattr(value, "size", 1)
    count = size() if callable(size) else size
    return item() if callable(item) and count in (1, (), (1,)) else value


class LeftOut(str):
    """A text in place of a metric that was too large to be kept."""


def limit_sizes(value: Any, largest: int = LARGEST) -> Any:
    """Replace each metric that is too large by a :class:`LeftOut`, at any level of a dict.

    Args:
        value: A value from :func:`sanitize`.
        largest: The maximum size of a metric in bytes, pickled or as text.

    Example:
        >>> limit_sizes({"loss": 0.5, "by_class": {"7": [0.1] * 1000}}, largest=1000)
        {'loss': 0.5, 'by_class': {'7': '<a value of about 8,000 bytes, left out>'}}
        >>> limit_sizes({"rows": [{"a": "x" * 1000}, {"b": "x" * 1000}]}, largest=1000)
        {'rows': '<a value of about 2,002 bytes, left out>'}
    """
    if type(value) is dict:
        return {key: limit_sizes(part, largest) for key, part in value.items()}
    size = _size(value)
    return value if size <= largest else LeftOut(f"<a value of about {size:,} bytes, left out>")


def _size(value: Any) -> int:
    """Return the approximate size of a value in bytes, without containers."""
    kind = type(value)
    if kind is str or kind is bytes:
        return len(value)
    if kind is dict:
        return sum(len(key) + _size(part) for key, part in value.items())
    if kind is list or kind is tuple:
        return sum(map(_size, value))
    return int(getattr(value, "nbytes", 8))


def is_too_deep(value: Any) -> bool:
    """Return whether dicts and lists are nested more deeply than a journal's line may be.

    Example:
        >>> is_too_deep({"a": [1, {"b": 2}]}), is_too_deep(json.loads("[" * 200 + "]" * 200))
        (False, True)
    """
    level = [value]
    for _ in range(NESTED + 1):
        inner = [part for part in level if isinstance(part, (Mapping, list, tuple))]
        if not inner:
            return False
        level = [
            part for one in inner for part in (one.values() if isinstance(one, Mapping) else one)
        ]
    return True


def as_json(value: Any, **options: Any) -> str:
    """Return a value as JSON, with texts for what JSON cannot represent.

    Example:
        >>> as_json({"lr": 0.1, (1, 2): {3}})
        '{"lr": 0.1, "(1, 2)": "{3}"}'
    """
    own = safely(lambda: json.dumps(value, default=_legible, **options))
    return str(json.dumps(_legible(value), **options) if own is None else own)


def _legible(value: Any) -> Any:
    return sanitize(value, lambda part: part.tolist() if is_array(part) else format_value(part))


# Exceptions -------------------------------------------------------------------------------------


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Raised:
    """An exception in words, which every process can unpickle.

    Attributes:
        kind: The name of its class; empty if not the user's code raised it.
        message: Its message.
        trace: Its traceback.
        fatal: Whether training cannot continue in the process.
    """

    kind: str
    message: str
    trace: str
    fatal: bool = False

    @property
    def reason(self) -> str:
        """Return one line: ``"raised ValueError: no such class"``."""
        lines = (line.strip() for line in self.message.splitlines())
        parts = f"raised {self.kind}" if self.kind else "", next(filter(None, lines), "")
        return ": ".join(filter(None, parts))[:_LONGEST_REASON]


def describe_error(error: BaseException) -> Raised:
    """Describe an exception in words, whatever its methods do and however long its texts are.

    Example:
        >>> describe_error(ValueError("no such class")).reason
        'raised ValueError: no such class'
        >>> describe_error(KeyError()).reason
        'raised KeyError'
    """
    known = getattr(error, "tunekit_raised", None)
    if type(known) is Raised:
        return known
    kind, message = _kind(error), message_of(error, _LONGEST_MESSAGE)
    lines = safely(traceback.format_exception, error)
    if lines is None:  # a cause raises, for example
        lines = ["Traceback (most recent call last):\n", *traceback.format_tb(error.__traceback__)]
        lines.append(f"{kind}: {message}")
    return Raised(kind, message, _shortened("".join(lines), _LONGEST_TRACE).rstrip("\n"))


def message_of(error: BaseException, longest: int = _LONGEST_TRACE) -> str:
    """Return an exception's message without colours; only its beginning and end if it is longer."""
    unknown = "its message cannot be shown"
    return str(safely(lambda: _COLOURS.sub("", _shortened(str(error), longest)), otherwise=unknown))


def _shortened(text: str, longest: int) -> str:
    text, half = str.__str__(text), longest // 2
    more = len(text) - longest
    if more > 0:
        text = f"{text[:half]}\n... {more:,} characters left out ...\n{text[-half:]}"
    return encodable(text)
