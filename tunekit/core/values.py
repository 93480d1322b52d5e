"""The door for values of the user's: metrics, hyperparameters, keys and exceptions of any kind.

Nothing here raises because of a value, whatever its methods do. Three conversions:

- :func:`admitted`: a metric as every part of a sweep can handle it;
- :func:`written` and :func:`reader`: a value as JSON, and back;
- :func:`described`: an exception in words.

What cannot be converted becomes a text that shows it.
"""

from __future__ import annotations

import json
import math
import numbers
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "ITEMS",
    "NESTED",
    "PICKLED",
    "SHOWN",
    "LeftOut",
    "Opaque",
    "Parcel",
    "Raised",
    "admitted",
    "as_json",
    "bounded",
    "described",
    "is_too_deep",
    "left_out",
    "named",
    "number",
    "one_line",
    "parcelled",
    "reader",
    "safely",
    "same",
    "singled",
    "text",
    "unparcelled",
    "writable",
    "written",
]

#: The keys of the objects that stand in JSON for what it does not know.
PICKLED, SHOWN, ITEMS = "__pickled__", "shown", "__items__"

_MARKERS = frozenset({PICKLED, SHOWN, ITEMS})

#: The longest text that stands for a value.
LONGEST = 200

# The largest metric, in bytes: each is written to the journal, to Tune's files and to the loggers,
# and all of them are in the memory of whoever reads the sweep.
_LARGEST = 2**20

# How deep dicts and lists may be nested: readers of JSON recurse, and give up somewhere.
_DEEPEST = 50
#: How deep a line of a journal may be nested, with all that is around a value.
NESTED = 2 * _DEEPEST
# So many bits have about 4,000 digits; Python does not read longer numbers.
_MOST_BITS = 13_000


def safely(call: Callable[..., Any], *known: Any, otherwise: Any = None) -> Any:
    """Call what runs a value's own methods, which may raise anything.

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


class Opaque(str):
    """A text that stands for a value that could not be kept."""


# What a call has come to that raised, where it may return anything.
_FAILED = object()


class LeftOut(str):
    """A text that stands for a metric that was too large to be kept."""


# Texts and numbers ------------------------------------------------------------------------------


def text(value: Any, longest: int = LONGEST) -> str:
    """Show any value.

    Example:
        >>> text({1, 2}), text("a\\ud800b"), text(10**5000)
        ('{1, 2}', "'a\\\\ud800b'", '<an int of 16610 bits>')
        >>> class Odd:
        ...     def __repr__(self):
        ...         raise ValueError
        >>> text(Odd())
        '<an Odd that cannot be shown>'
    """
    shown = safely(_represented, value, longest)
    if shown is None:
        return _unshowable(value)
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."


def _represented(value: Any, longest: int) -> str:
    return writable(repr(value[: longest + 1] if isinstance(value, (str, bytes)) else value))


def _unshowable(value: Any) -> str:
    kind = _kind(value)
    article = "an" if kind[:1].lower() in "aeiou" else "a"
    if type(value) is int:
        return f"<{article} int of {value.bit_length()} bits>"
    return f"<{article} {kind} that cannot be shown>"


def _kind(value: Any) -> str:
    found: str = safely(
        lambda: " ".join(writable(type(value).__name__).split()), otherwise="object"
    )
    return found


def writable(own: str) -> str:
    """The same text without lone surrogates, which no file can take.

    Example:
        >>> writable("caf\\xe9"), writable("\\ud800!")
        ('caf\\xe9', '\\\\ud800!')
    """
    own = str.__str__(own)
    return own if own.isascii() else own.encode("utf-8", "backslashreplace").decode("utf-8")


def named(key: Any) -> str:
    """The name of a metric or hyperparameter whose key may be anything, as Tune names it.

    Example:
        >>> named("loss"), named(7), named(None), named((1, "a"))
        ('loss', '7', 'None', "(1, 'a')")
    """
    if type(key) is str:
        return writable(key)
    own = safely(lambda: writable(key if isinstance(key, str) else str(key)[:LONGEST]))
    return _unshowable(key) if own is None else own


def number(value: Any) -> float | None:
    """A value as a number that can be compared; None for NaN, and for what is no number.

    Example:
        >>> number(3), number(True), number(float("nan")), number("3"), number(10**400)
        (3.0, 1.0, None, None, None)
    """
    if type(value) is float:
        return None if math.isnan(value) else value
    found = safely(lambda: float(value) if isinstance(value, numbers.Real) else None)
    return None if found is None or math.isnan(found) else found


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal; False if they cannot be compared.

    Example:
        >>> same({"a": 1}, {"a": 1.0}), same(1, 2)
        (True, False)
    """
    return bool(safely(lambda: bool(one == other)))


# Metrics ----------------------------------------------------------------------------------------


def _always(value: Any) -> bool:
    return True


def admitted(value: Any, travels: Callable[[Any], bool] = _always) -> Any:
    """Return a metric, or a dict of them, as every part of a sweep can handle it.

    - Keys are strings.
    - Numbers are Python's own: those of numpy, ``Decimal``, and whole numbers of more than 64 bits
      become floats where they fit.
    - Other objects stay as they are if they can be shown and ``travels`` says that they can be
      pickled; else a text stands for them: also for what contains itself, or is nested too deep.

    What is fine already is returned itself.

    Args:
        value: Anything.
        travels: Whether an object can be pickled and unpickled.

    Example:
        >>> admitted({7: 0.5, "note": "a\\ud800", "seen": 10**30})
        {'7': 0.5, 'note': 'a\\\\ud800', 'seen': 1e+30}
        >>> cycle = {"loss": 1}
        >>> cycle["again"] = cycle
        >>> admitted(cycle)
        {'loss': 1, 'again': "{'loss': 1, 'again': {...}}"}
    """
    return _admit(value, travels, [])


def _admit(value: Any, travels: Callable[[Any], bool], above: list[int]) -> Any:
    kind = type(value)
    if kind is float or kind is bool or value is None:
        return value
    if kind is int:
        return value if -(2**63) <= value < 2**64 else _large(value)
    if kind is str:
        return value if value.isascii() else _unless_equal(value, writable(value))
    if kind is dict or kind is list or kind is tuple:
        if id(value) in above or len(above) >= _DEEPEST:
            return text(value)
        above.append(id(value))
        try:
            if kind is dict:
                return _admit_dict(value, travels, above)
            parts = [_admit(part, travels, above) for part in value]
        finally:
            above.pop()
        unchanged = all(map(_is, parts, value))
        return value if unchanged else (tuple(parts) if kind is tuple else parts)
    own = safely(_admit_other, value, travels, above, otherwise=_FAILED)
    return text(value) if own is _FAILED else own


def _is(one: Any, other: Any) -> bool:
    return one is other


def _unless_equal(own: str, other: str) -> str:
    return own if own == other else other


def _admit_dict(
    value: dict[Any, Any], travels: Callable[[Any], bool], above: list[int]
) -> dict[str, Any]:
    own: dict[str, Any] = {}
    changed = False
    for key, part in value.items():
        if type(key) is not str or not (key.isascii() or key == writable(key)):
            return {n: _admit(inner, travels, above) for n, inner in _with_names(value).items()}
        inner = own[key] = _admit(part, travels, above)
        changed = changed or inner is not part
    return own if changed else value


def _with_names(value: Mapping[Any, Any]) -> dict[str, Any]:
    """The same with a name for each key; two keys with one name, such as 1 and "1", get two."""
    taken = {key for key in value if type(key) is str and key == writable(key)}
    own: dict[str, Any] = {}
    for key, part in value.items():
        name = named(key)
        while (type(key) is not str or key != name) and name in taken:
            name = f"{name} ({_kind(key)})"
        taken.add(name)
        own[name] = part
    return own


def _large(value: int) -> Any:
    """A whole number that has no room in 64 bits: nothing that draws or averages takes it."""
    try:
        return float(value)
    except OverflowError:
        return text(value)


def _admit_other(value: Any, travels: Callable[[Any], bool], above: list[int]) -> Any:
    if isinstance(value, str):
        return writable(value)
    if isinstance(value, int):
        return _admit(int.__int__(value), travels, above)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return _admit(dict(value.items()), travels, above)
    if isinstance(value, (list, tuple)):
        return _admit(list(value), travels, above)
    if type(value) is Parcel or _is_array(value):
        return value
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        found = value.item()
        if type(found) in (bool, int, float, str):
            return _admit(found, travels, above)
    if isinstance(value, numbers.Number):
        real = isinstance(value, numbers.Real) or not isinstance(value, numbers.Complex)
        return float(value) if real else text(value)  # type: ignore[arg-type]
    str.__str__(repr(value))
    str.__str__(str(value))
    return value if travels(value) else text(value)


def singled(value: Any) -> Any:
    """Replace arrays and tensors of one element, at any level of a dict, by the number in them."""
    if type(value) is dict:
        return {key: singled(part) for key, part in value.items()}
    return safely(_single, value, otherwise=value)


def _single(value: Any) -> Any:
    item, size = getattr(value, "item", None), getattr(value, "size", 1)
    count = size() if callable(size) else size
    return item() if callable(item) and count in (1, (), (1,)) else value


def _is_array(value: Any) -> bool:
    """Return whether it is an array of numbers, of numpy's, or a tensor, of torch's."""
    kind = type(value)
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        return value.ndim > 0 and not value.dtype.hasobject
    return kind.__module__ == "torch" and kind.__name__ == "Tensor" and value.ndim > 0


@dataclass(frozen=True)
class Parcel:
    """An object on its way to another process, which may not have its class.

    Attributes:
        shown: A text that shows it.
        data: It, pickled.
    """

    shown: str
    data: bytes


def parcelled(value: Any, pack: Callable[[Any], bytes | None]) -> Any:
    """Put each object in a value that was admitted into a :class:`Parcel`.

    Args:
        value: The value.
        pack: Pickles; returns None for what cannot be pickled.

    Example:
        >>> parcelled({"loss": 0.5, "seen": {1}}, lambda part: b"...")
        {'loss': 0.5, 'seen': Parcel(shown='{1}', data=b'...')}
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is dict:
        return {key: parcelled(part, pack) for key, part in value.items()}
    if kind is list or kind is tuple:
        return kind(parcelled(part, pack) for part in value)
    if kind is Parcel or (kind.__module__ == "numpy" and _is_array(value)):
        return value
    data = pack(value)
    return text(value) if data is None else Parcel(text(value), data)


def unparcelled(value: Any, unpack: Callable[[bytes], Any]) -> Any:
    """Open the parcels in a value; the text is left of one that cannot be opened."""
    kind = type(value)
    if kind is dict:
        return {key: unparcelled(part, unpack) for key, part in value.items()}
    if kind is list or kind is tuple:
        return kind(unparcelled(part, unpack) for part in value)
    # A module may be missing here.
    return safely(unpack, value.data, otherwise=value.shown) if kind is Parcel else value


def bounded(value: Any, largest: int = _LARGEST) -> Any:
    """Put a :class:`LeftOut` for each metric that is too large, at any level of a dict.

    Args:
        value: What :func:`parcelled` returned.
        largest: The most bytes that a metric may have, pickled or as text.

    Example:
        >>> bounded({"loss": 0.5, "by_class": {"7": [0.1] * 1000}}, largest=1000)
        {'loss': 0.5, 'by_class': {'7': '<a list of about 8,000 bytes, left out>'}}
    """
    if type(value) is not dict:
        return value
    return {key: _bounded(part, largest) for key, part in value.items()}


def _bounded(value: Any, largest: int) -> Any:
    if type(value) is dict:
        return bounded(value, largest)
    size = _size(value)
    if size <= largest:
        return value
    kind = "value" if type(value) is Parcel else _kind(value)
    return LeftOut(f"<a {kind} of about {size:,} bytes, left out>")


def _size(value: Any) -> int:
    """Return about how many bytes a value has, without those of what holds it."""
    kind = type(value)
    if kind is str:
        return len(value)
    if kind is Parcel:
        return len(value.data)
    if kind is dict:
        return sum(len(key) + _size(part) for key, part in value.items())
    if kind is list or kind is tuple:
        return sum(map(_size, value))
    return int(value.nbytes) if _is_array(value) else 8


def left_out(value: Any, name: str = "", deepest: int = _DEEPEST) -> list[str]:
    """Return the names of the metrics that :func:`bounded` left out.

    Args:
        value: A metric, or a dict of them, nested in any way.
        name: The metric's name.
        deepest: How many levels of dicts to look at.

    Example:
        >>> left_out({"loss": 0.5, "per": {"pixel": LeftOut("...")}})
        ['per/pixel']
    """
    if type(value) is LeftOut:
        return [name]
    if type(value) is not dict or not deepest:
        return []
    inner = ((f"{name}/{named(key)}" if name else named(key), part) for key, part in value.items())
    return [found for at, part in inner for found in left_out(part, at, deepest - 1)]


# JSON -------------------------------------------------------------------------------------------


def written(
    value: Any,
    pack: Callable[[Any], str | None] | None = None,
    *,
    exact: bool = False,
    keys: bool = True,
) -> Any:
    """Return a value as what JSON knows; :func:`reader` reads it back.

    An object becomes ``{"__pickled__": ..., "shown": ...}``, or ``{"shown": ...}`` if it cannot be
    pickled; a dict whose keys are no strings, or those of such markers, becomes
    ``{"__items__": [[key, value], ...]}``.

    Args:
        value: Anything.
        pack: Pickles, as text, or returns None; without it, nothing is pickled.
        exact: Whether to pickle also what JSON would change, such as tuples.
        keys: Whether keys that are no strings are kept; otherwise they become their names, and
            texts such that any file can take them.

    Example:
        >>> written({"lr": 0.1, "sizes": (64, 32), "seen": {1}})
        {'lr': 0.1, 'sizes': [64, 32], 'seen': {'shown': '{1}'}}
        >>> written({"shown": 1, 2: 3})
        {'__items__': [['shown', 1], [2, 3]]}
    """
    return _Writer(pack, exact, keys).write(value, [])


class _Writer:
    def __init__(self, pack: Callable[[Any], str | None] | None, exact: bool, keys: bool):
        self._pack, self._exact, self._keys = pack, exact, keys

    def write(self, value: Any, above: list[int]) -> Any:
        kind = type(value)
        if kind in (bool, float) or value is None:
            return value
        if kind is str:
            return value if self._keys else writable(value)
        if kind is int:
            return value if value.bit_length() < _MOST_BITS else self._object(value)
        own = safely(self._other, value, kind, above, otherwise=_FAILED)
        return self._object(value) if own is _FAILED else own

    def _other(self, value: Any, kind: type, above: list[int]) -> Any:
        if self._exact:
            into = kind in (dict, list)
        else:
            into = isinstance(value, (Mapping, list, tuple))
            plain = self._number(value)
            if plain is not None:
                return plain
        if not into:
            return self._object(value)
        if id(value) in above or len(above) >= _DEEPEST:
            return {SHOWN: text(value)}
        above.append(id(value))
        try:
            if isinstance(value, Mapping):
                return self._dict(dict(value.items()), above)
            return [self.write(part, above) for part in value]
        finally:
            above.pop()

    def _dict(self, value: dict[Any, Any], above: list[int]) -> Any:
        if not self._keys:
            value = _with_names(value)
        strings = all(type(key) is str for key in value)
        if strings and _MARKERS.isdisjoint(value):
            return {key: self.write(part, above) for key, part in value.items()}
        pairs = value.items()
        return {ITEMS: [[self._key(key), self.write(part, above)] for key, part in pairs]}

    def _key(self, key: Any) -> Any:
        known = key is None or type(key) in (bool, float, str)
        return key if known else self.write(key, []) if type(key) is int else self._object(key)

    @staticmethod
    def _number(value: Any) -> Any:
        """A number, or text, of a class of its own: numpy's, for example."""
        if isinstance(value, str):
            return writable(value)
        if isinstance(value, int):
            own = int.__int__(value)
            return own if own.bit_length() < _MOST_BITS else None
        if isinstance(value, float):
            return float.__float__(value)
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            found = value.item()
            if type(found) in (bool, int, float, str):
                return found
            if isinstance(value, numbers.Real):
                return float(value)
        return None

    def _object(self, value: Any) -> dict[str, str]:
        shown = text(value)
        packed = None if self._pack is None else self._pack(value)
        return {SHOWN: shown} if packed is None else {PICKLED: packed, SHOWN: shown}


def reader(unpack: Callable[[str, str], Any] | None = None) -> Callable[[dict[str, Any]], Any]:
    """Return what reads each object of a JSON document that :func:`written` has made.

    Args:
        unpack: ``unpack(pickled, shown)`` opens a pickle; without it, the texts are left.

    Example:
        >>> import json
        >>> document = json.dumps(written({"shown": 1, 2: {3}}))
        >>> json.loads(document, object_hook=reader())
        {'shown': 1, 2: '{3}'}
    """

    def read(value: dict[str, Any]) -> Any:
        if ITEMS in value and len(value) == 1:
            return _from_items(value)
        shown = value.get(SHOWN)
        if not isinstance(shown, str) or not value.keys() <= {PICKLED, SHOWN}:
            return value  # somebody's own, of a time when they were not told apart
        if unpack is None:
            return shown
        return unpack(value[PICKLED], shown) if PICKLED in value else Opaque(shown)

    return read


def is_too_deep(value: Any) -> bool:
    """Return whether dicts and lists are nested deeper than a line of a journal may be.

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
    """Write a value for readers that expect nothing but JSON: with texts for what that lacks.

    Example:
        >>> as_json({"lr": 0.1, (1, 2): {3}})
        '{"lr": 0.1, "(1, 2)": "{3}"}'
    """
    own = safely(lambda: json.dumps(value, default=_shown_as, **options))
    if own is None:
        own = json.dumps(admitted(value, lambda part: False), default=_shown_as, **options)
    return str(own)


def _shown_as(value: Any) -> Any:
    return value.tolist() if _is_array(value) else admitted(value, lambda part: False)


def _from_items(value: dict[str, Any]) -> dict[Any, Any]:
    items = value[ITEMS]
    pairs = isinstance(items, list) and all(isinstance(i, list) and len(i) == 2 for i in items)
    if not pairs:
        return value
    found: dict[Any, Any] = {}
    for key, part in items:
        hashable = safely(hash, key) is not None  # as it was read
        found[key if hashable else named(key)] = part
    return found


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


# Exceptions -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Raised:
    """An exception in words, which every process can read.

    Attributes:
        kind: The name of its class.
        message: What it says.
        trace: Its traceback.
    """

    kind: str
    message: str
    trace: str

    @property
    def reason(self) -> str:
        """One line: ``"raised ValueError: no such class"``."""
        line = one_line(self.message)
        return f"raised {self.kind}: {line}" if line else f"raised {self.kind}"


def one_line(message: str) -> str:
    """The first line of a message that says anything.

    Example:
        >>> one_line("\\n  CUDA error \\nat line 3"), one_line("")
        ('CUDA error', '')
    """
    return next((line.strip() for line in message.splitlines() if line.strip()), "")


def described(error: BaseException) -> Raised:
    """Put an exception into words, whatever its methods do.

    Example:
        >>> described(ValueError("no such class")).reason
        'raised ValueError: no such class'
        >>> described(KeyError()).reason
        'raised KeyError'
    """
    known = getattr(error, "tunekit_raised", None)
    if type(known) is Raised:
        return known
    kind = _kind(error)
    unknown = "its message cannot be shown"
    message = safely(lambda: _COLOURS.sub("", writable(str(error))), otherwise=unknown)
    lines = safely(traceback.format_exception, type(error), error, error.__traceback__)
    if lines is not None:
        trace = writable("".join(lines))
    else:  # a cause raises, for example
        lines = traceback.format_tb(error.__traceback__)
        trace = writable("".join(["Traceback (most recent call last):\n", *lines]))
        trace += f"{kind}: {message}\n"
    return Raised(kind, message, trace.rstrip("\n"))
