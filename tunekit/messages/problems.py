"""Collect all problems with a call, to report them together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tunekit.core.values import finite_number, format_value
from tunekit.errors import ConfigError

_MODES = ("min", "max")


def format_argument(value: object) -> str:
    """Return a value as it is shown in errors: in one line, and shortened.

    Example:
        >>> format_argument(3), format_argument(["a", None])
        ('3', "['a', None]")
    """
    return " ".join(format_value(value).split())


class Problems:
    """The problems with the arguments of one call.

    Args:
        where: The call, as the user knows it: ``"ValidationConfig"``.

    Example:
        >>> problems = Problems("ValidationConfig")
        >>> problems.choice("on_failure", "drop", ["record", "raise"])
        >>> problems.integer("every", 0, least=1)
        >>> problems.raise_any()
        Traceback (most recent call last):
        tunekit.errors.ConfigError: ValidationConfig: 2 problems:
          - on_failure='drop' is not one of 'record', 'raise'. Use one of these.
          - every=0 must be a whole number of at least 1. Pass 1 or more.
    """

    def __init__(self, where: str):
        self._where = where
        self._found: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, problem: str) -> None:
        """Record one problem, once: a sentence with the value, the rule and the fix."""
        if problem not in self._found:
            self._found.append(problem)

    def choice(self, name: str, value: Any, allowed: Sequence[str]) -> None:
        """Require ``value`` to be one of ``allowed``."""
        if not (isinstance(value, str) and value in allowed):
            options = ", ".join(repr(option) for option in allowed)
            self.add(f"{name}={format_argument(value)} is not one of {options}. Use one of these.")

    def goal(self, metric: Any, mode: Any) -> None:
        """Require a metric's name (or None), and ``"min"`` or ``"max"`` (or None)."""
        self.optional("metric", metric, str, "Pass the name of a metric.")
        if mode is not None:
            self.choice("mode", mode, _MODES)

    def goals(self, metrics: Any) -> None:
        """Require two metrics or more, each with ``"min"`` or ``"max"``."""
        fix = "Pass {'accuracy': 'max', 'latency_ms': 'min'}, for example."
        if not self.instance("metrics", metrics, Mapping, fix):
            return
        if len(metrics) < 2:
            self.add(f"metrics={format_argument(dict(metrics))} names fewer than two. {fix}")
        for name, mode in metrics.items():
            self.instance("A key of metrics,", name, str, "Pass names of metrics.")
            self.choice(f"metrics[{format_argument(name)}]", mode, _MODES)

    def integer(self, name: str, value: Any, *, least: int, optional: bool = False) -> None:
        """Require ``value`` to be a whole number of at least ``least`` (or None if optional)."""
        if optional and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            none = " or None" if optional else ""
            self.add(
                f"{name}={format_argument(value)} must be a whole number of at least "
                f"{least}{none}. Pass {least} or more."
            )

    def number(
        self, name: str, value: Any, kind: str, fix: str, *, above: float, most: float = math.inf
    ) -> bool:
        """Require ``value`` to be a number above a limit; return whether it is.

        Args:
            name: The argument's name.
            value: Its value.
            kind: What must be above the limit: ``"a number of seconds"``.
            fix: What to pass.
            above: The limit.
            most: The largest number that is allowed.
        """
        number = None if isinstance(value, bool) else finite_number(value)
        if number is not None and above < number <= most:
            return True
        limit = f" and at most {most:.0f}" if most < math.inf else ""
        self.add(f"{name}={format_argument(value)} must be {kind} above {above}{limit}. {fix}")
        return False

    def function(self, name: str, value: Any, fix: str) -> bool:
        """Require ``value`` to be callable; return whether it is. ``fix`` says what to pass."""
        if callable(value):
            return True
        self.add(f"{name}={format_argument(value)} is not callable. {fix}")
        return False

    def instance(self, name: str, value: Any, kind: type | tuple[type, ...], fix: str) -> bool:
        """Require ``value`` to be a ``kind``; return whether it is. ``fix`` says what to pass."""
        if isinstance(value, kind):
            return True
        self.add(f"{name}={format_argument(value)} is of type {type(value).__name__}. {fix}")
        return False

    def optional(self, name: str, value: Any, kind: type | tuple[type, ...], fix: str) -> Any:
        """Require ``value`` to be None, or an instance of ``kind``; return it, or None."""
        return value if value is not None and self.instance(name, value, kind, fix) else None

    def error(self, kind: type[ConfigError] = ConfigError) -> ConfigError:
        """Return the error with all problems."""
        return kind(self._where, self._found)

    def raise_any(self) -> None:
        """Raise one :class:`~tunekit.errors.ConfigError` with all problems, if there are any."""
        if self._found:
            raise self.error()
