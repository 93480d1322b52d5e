"""The search space of a sweep: the range or the choices of each hyperparameter.

They are those recorded when the sweep was started. Without a record, or if values lie outside of it
(population based training perturbs values beyond their initial range), they are inferred from the
trials' values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunekit.core.values import format_value

FLOAT, INT, CHOICE = "float", "int", "choice"

# Values within this ratio of largest to smallest are on a linear scale.
_WIDE = 8


@dataclass(frozen=True)
class Parameter:
    """A hyperparameter and its search space.

    Attributes:
        name: Its flat name; empty in a record, which has it elsewhere.
        kind: ``"float"``, ``"int"`` or ``"choice"``.
        low: The least value; None for choices.
        high: The largest value, inclusive; None for choices.
        log: Whether it is searched on a logarithmic scale.
        choices: Its values, if ``kind`` is ``"choice"``.

    Example:
        >>> Parameter("lr", FLOAT, 1e-4, 0.1, log=True).described
        {'kind': 'float', 'low': 0.0001, 'high': 0.1, 'log': True}
        >>> Parameter("batch", CHOICE, choices=(32, 64)).described
        {'kind': 'choice', 'choices': [32, 64]}
    """

    name: str = ""
    kind: str = FLOAT
    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def described(self) -> dict[str, Any]:
        """Return its attributes for the record."""
        if self.kind == CHOICE:
            return {"kind": CHOICE, "choices": list(map(choice, self.choices))}
        log = {"log": True} if self.log else {}
        return {"kind": self.kind, "low": self.low, "high": self.high, **log}

    @property
    def single(self) -> bool:
        """Return whether it has only one value."""
        return len(self.choices) == 1 if self.kind == CHOICE else self.low == self.high


def choice(value: Any) -> Any:
    """Return a value as a choice: unchanged if JSON can represent it, otherwise as a text.

    Example:
        >>> choice(32), choice("relu"), choice((8, 8)), choice(float("nan"))
        (32, 'relu', '[8, 8]', 'nan')
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return format_value(_listed(value))


def _listed(value: Any) -> Any:
    """Return a tuple as a list, as it is after a round trip through JSON."""
    return [_listed(one) for one in value] if isinstance(value, (list, tuple)) else value


def parameters_of(
    configs: Sequence[Mapping[str, Any]], space: Mapping[str, Mapping[str, Any]]
) -> dict[str, Parameter]:
    """Return the parameters that were searched, by flat name.

    These are the hyperparameters of the recorded space, and those that differ between trials.
    Without a recorded space, all hyperparameters of a single trial count.

    Args:
        configs: The hyperparameters of trials, by flat name; for overwritten trials, those of
            every generation.
        space: The recorded space: for each flat name, the attributes of its :class:`Parameter`.

    Example:
        >>> configs = [{"lr": 1e-4, "width": 8, "epochs": 9}, {"lr": 0.1, "width": 16, "epochs": 9}]
        >>> space = {"lr": {"kind": "float", "low": 1e-5, "high": 1, "log": True}}
        >>> found = parameters_of(configs, space)
        >>> {name: (one.low, one.high, one.log) for name, one in found.items()}
        {'lr': (1e-05, 1, True), 'width': (8, 16, False)}
        >>> list(parameters_of(configs, {})), list(parameters_of(configs[:1], {}))
        (['lr', 'width'], ['lr', 'width', 'epochs'])
    """
    names = dict.fromkeys([*space, *(name for config in configs for name in config)])
    found = {}
    for name in names:
        values = [config[name] for config in configs if name in config]
        if not values:
            continue
        own = _widened(_recorded(name, space.get(name, {})), values)
        inferred = own or _inferred(name, values)
        alone = not space and len(configs) == 1
        absent = len(values) < len(configs)
        if name in space or alone or absent or not inferred.single:
            found[name] = inferred
    return found


def _recorded(name: str, known: Mapping[str, Any]) -> Parameter | None:
    """Return a parameter as it was recorded; None if it was not."""
    own = {key: known[key] for key in ("kind", "low", "high", "log") if key in known}
    choices = tuple(map(choice, known.get("choices", ())))
    return Parameter(name, **own, choices=choices) if own else None


def _widened(known: Parameter | None, values: Sequence[Any]) -> Parameter | None:
    """Return a recorded parameter, widened to include all values; None if that is impossible."""
    if known is None:
        return None
    if known.kind == CHOICE:
        return Parameter(known.name, CHOICE, choices=_distinct([*known.choices, *values]))
    low, high = known.low, known.high
    if low is None or high is None or not all(map(_is_number, [low, high, *values])):
        return None
    if known.kind == INT and not all(isinstance(value, int) for value in values):
        return None
    low, high = min(low, *values), max(high, *values)
    return Parameter(known.name, known.kind, low, high, known.log and low > 0)


def _inferred(name: str, values: Sequence[Any]) -> Parameter:
    if not all(map(_is_number, values)):
        return Parameter(name, CHOICE, choices=_distinct(values))
    kind = INT if all(isinstance(value, int) for value in values) else FLOAT
    return Parameter(name, kind, min(values), max(values), _is_logarithmic(values))


def _is_logarithmic(values: Sequence[float]) -> bool:
    """Return whether values were more likely drawn log-uniformly than uniformly.

    This compares the two densities over the range of the values, 1 / (b - a) and 1 / (x log(b /
    a)), for the values inside the range; its ends carry no information.
    """
    low, *between, high = sorted(values) if len(values) > 2 else (1.0, 1.0)
    if low <= 0 or high < _WIDE * low or not between:
        return False
    mean = math.fsum(map(math.log, between)) / len(between)
    return mean < math.log(high - low) - math.log(math.log(high / low))


def _is_number(value: Any) -> bool:
    own = isinstance(value, (int, float)) and not isinstance(value, bool)
    return own and math.isfinite(value)


def _distinct(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the distinct choices among values; True and 1 differ."""
    return tuple({json.dumps(choice(value)): choice(value) for value in values}.values())
