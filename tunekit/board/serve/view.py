"""What a live page shows, and what of it a browser does not have yet."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Update", "View"]


@dataclass(frozen=True)
class Update:
    """What has changed on a page.

    Attributes:
        version: The page's version, once a browser has taken this.
        order: The names of all parts, in order.
        parts: The parts that have changed, as HTML, by name.
        charts: The names of the charts that have changed.
    """

    version: str
    order: list[str]
    parts: dict[str, str]
    charts: list[str] = field(default_factory=list)

    def data(self) -> dict[str, Any]:
        """Return it in types that JSON has."""
        return dict(vars(self))


class View:
    """The parts of a page, each with the version at which it has changed last.

    One thread may change it while others read it. A version also names the view: a browser that has
    one of another server's, from before a restart, gets all parts.

    Args:
        name: What tells this view from others; by default, a random text.

    Example:
        >>> view = View("v")
        >>> view.show({"summary": "<p>running</p>", "ranking": "<p>none</p>"})
        True
        >>> view.version, view.since("w-7").parts == view.parts
        ('v-1', True)
        >>> view.show({"summary": "<p>running</p>", "ranking": "<p>a</p>"})
        True
        >>> view.since("v-1").parts
        {'ranking': '<p>a</p>'}
        >>> view.since("v-2") is None
        True
    """

    def __init__(self, name: str | None = None):
        self._name = name or secrets.token_hex(8)
        self._number = 0
        self._lock = threading.Lock()
        #: The parts as HTML, by name, in order.
        self.parts: dict[str, str] = {}
        #: The charts as JSON, by name.
        self.charts: dict[str, str] = {}
        self._changed: dict[tuple[str, str], int] = {}

    @property
    def version(self) -> str:
        """Return the version, as a browser gives it back."""
        return f"{self._name}-{self._number}"

    def show(self, parts: Mapping[str, str]) -> bool:
        """Show these parts, in this order, and no others; return whether anything has changed."""
        changed = [name for name, text in parts.items() if self.parts.get(name) != text]
        if not changed and list(parts) == list(self.parts):
            return False
        with self._lock:
            self.parts = dict(parts)
            self._note("part", changed)
        return True

    def draw(self, charts: Mapping[str, str]) -> bool:
        """Show charts, beside those that are there; return whether anything has changed."""
        changed = [name for name, text in charts.items() if self.charts.get(name) != text]
        if changed:
            with self._lock:
                self.charts = {**self.charts, **charts}
                self._note("chart", changed)
        return bool(changed)

    def since(self, version: str) -> Update | None:
        """Return what a browser lacks that has a version; None if that is nothing."""
        name, _, number = version.rpartition("-")
        known = int(number) if name == self._name and number.isdecimal() else -1
        with self._lock:
            if known >= self._number or not self.parts:  # nothing yet is not the same as nothing
                return None
            new = {named for named, changed in self._changed.items() if changed > known}
            parts = {name: text for name, text in self.parts.items() if ("part", name) in new}
            charts = [name for name in self.charts if ("chart", name) in new]
            return Update(self.version, list(self.parts), parts, charts)

    def _note(self, kind: str, names: list[str]) -> None:
        self._number += 1
        for name in names:
            self._changed[kind, name] = self._number
