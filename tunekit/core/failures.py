"""Failed validations: which to log in full, which to count, and when to give up."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

#: The number of similar failures, without a success, after which a sweep is hopeless.
HOPELESS = 3

# The maximum number of failures of a kind that a message names.
_MOST_PLACES = 5

_GONE = "was not run: its checkpoint"

# The longest kind, and the part of a reason that it is made from.
_LONGEST_KIND, _LONGEST_READ = 200, 1_000

# The parts in which two failures of the same kind may differ.
_AFTER = re.compile(r" \(after \d+ attempts\)$")
_WORD = re.compile(r"\S+")
_PARTICULARS = (
    re.compile(r"\b0x[0-9a-fA-F]+\b"),
    re.compile(r"\b(?=[0-9a-f_]*\d)[0-9a-f]{5,}(?:_\d+)*\b"),  # ids
    re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"),
)


def failure_kind(reason: str) -> str:
    """Return the kind of a failure: its reason without numbers, IDs and paths.

    Example:
        >>> failure_kind("raised FileNotFoundError: no /x/a3395_00002/w.json (after 2 attempts)")
        'raised FileNotFoundError: no *'
        >>> failure_kind("raised ValueError: 3 of 10") == failure_kind("raised ValueError: 4 of 10")
        True
        >>> failure_kind("raised KeyError: 'model'") == failure_kind("raised KeyError: 'weights'")
        False
    """
    text = _AFTER.sub("", reason)[:_LONGEST_READ]
    text = _WORD.sub(lambda word: "*" if "/" in word[0] else word[0], text)  # paths and URIs
    for pattern in _PARTICULARS:
        text = pattern.sub("*", text)
    return text[:_LONGEST_KIND]


def format_checkpoint(trial_id: str, iteration: int, generation: int = 0) -> str:
    """Return the name of a checkpoint in messages.

    Example:
        >>> format_checkpoint("a3395_00002", 25), format_checkpoint("a3395_00002", 25, 1)
        ('a3395_00002@25', 'a3395_00002@25 (generation 1)')
    """
    return f"{trial_id}@{iteration}" + (f" (generation {generation})" if generation else "")


def format_missing(path: str) -> str:
    """Return the failure reason of a validation whose checkpoint is missing.

    Example:
        >>> reasons = format_missing("/sweep/a/checkpoint_000003"), "raised ValueError: no"
        >>> tuple(map(is_missing_checkpoint, reasons))
        (True, False)
    """
    return f"{_GONE} {path} is no longer in the storage"


def is_missing_checkpoint(reason: str) -> bool:
    """Return whether a reason is one of :func:`format_missing`."""
    return reason.startswith(_GONE)


@dataclass(frozen=True)
class FailureNotice:
    """How to report a failure.

    Attributes:
        first: Whether it is the first of its kind, to be logged in full.
        more: A message about similar failures that were only counted; None if it is not due.
        hopeless: Whether all validations have failed so far, and enough of them for similar
            reasons.
    """

    first: bool
    more: str | None = None
    hopeless: bool = False


@dataclass
class _Kind:
    """Similar failures."""

    first: str
    reason: str
    count: int = 0
    unreported: int = 0
    places: list[str] = field(default_factory=list)

    def summarize(self) -> str:
        """Return a message about the failures that were only counted since the last one."""
        named = ", ".join(self.places)
        others = self.unreported - len(self.places)
        text = (
            f"{self.unreported} more like that of {self.first} ({self.reason}): {named}"
            f"{f' and {others} others' if others else ''}"
        )
        self.unreported, self.places = 0, []
        return text


class Failures:
    """Log the first of similar failures, count the others, and detect hopeless sweeps.

    Counts are logged at the 10th, 100th, 1000th failure of a kind, and at the end.

    Args:
        detects_hopeless: Whether a sweep is hopeless if its first :data:`HOPELESS` failures are
            similar.

    Example:
        >>> failures = Failures(detects_hopeless=True)
        >>> for iteration in (1, 2, 3):
        ...     failures.failed(f"a@{iteration}", "raised KeyError: 'model'")
        FailureNotice(first=True, more=None, hopeless=False)
        FailureNotice(first=False, more=None, hopeless=False)
        FailureNotice(first=False, more=None, hopeless=True)
        >>> failures.summaries()
        ["2 more like that of a@1 (raised KeyError: 'model'): a@2, a@3"]
    """

    def __init__(self, *, detects_hopeless: bool):
        self._detects_hopeless = detects_hopeless
        #: Whether the function may be broken: validations have failed, and none has succeeded.
        self.doubts = False
        self._kinds: dict[str, _Kind] = {}

    def succeeded(self) -> None:
        """Record that a validation succeeded, so that the sweep is not hopeless."""
        self._detects_hopeless = self.doubts = False

    def failed(self, place: str, reason: str) -> FailureNotice:
        """Record a failure.

        Args:
            place: The name of the validation in messages.
            reason: Why it failed, in a line.
        """
        kind = self._kinds.setdefault(failure_kind(reason), _Kind(place, reason))
        kind.count += 1
        counts = self._detects_hopeless and not is_missing_checkpoint(reason)
        hopeless = counts and kind.count >= HOPELESS
        self.doubts |= counts
        if hopeless:
            self._detects_hopeless = False
        if kind.count == 1:
            return FailureNotice(True, hopeless=hopeless)
        kind.unreported += 1
        if len(kind.places) < _MOST_PLACES:
            kind.places.append(place)
        is_reported = str(kind.count).strip("0") == "1"
        return FailureNotice(False, kind.summarize() if is_reported else None, hopeless)

    def summaries(self) -> list[str]:
        """Return the final messages about failures that were only counted."""
        return [kind.summarize() for kind in self._kinds.values() if kind.unreported]
