"""What a sweep runs, for the record and for those who continue it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Program:
    """The trainable and the search space of a sweep.

    Attributes:
        trainable: The trainable's import path; None if it cannot be imported.
        space: The parameters of the search space, by flat name; None if unknown.
        is_owned: Whether a ``tunekit.Tuner`` made the sweep, so that only that Tuner may run it.
    """

    trainable: str | None = None
    space: Mapping[str, Any] | None = None
    is_owned: bool = False
