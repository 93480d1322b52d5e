"""When a stopping criterion is evaluated: at a report, or once that is validated.

A criterion that reads metrics of training is evaluated at each report. One that reads a metric of
validation is evaluated on validated results, as schedulers are. Which of the two applies shows when
it is evaluated: it gets the report in a form that records which metrics it reads.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tunekit.core.metrics import flatten, without

# The most combinations of comparisons for which a criterion is tried.
_MOST_WAYS = 64


class Awaited(BaseException):
    """A metric of validation is read; not an ``Exception``, which users catch."""


@dataclass
class Missed:
    """The names that were looked up in a report but not found.

    Attributes:
        names: The names.
        awaited: Whether one of them is a metric of validation.
    """

    names: set[str] = field(default_factory=set)
    awaited: bool = False


class ReportView(dict[str, Any]):
    """A report for a stopping criterion, without the metrics of validation.

    Args:
        report: The report; its nested dicts become views when they are read.
        validated: The metrics for which only validated values count.
        missed: Collects the names that were not found; a nested view shares its parent's.
        prefix: The name of that level.

    Raises:
        Awaited: When such a metric is read.

    Example:
        >>> view = ReportView({"loss": 0.1, "accuracy": 0.99}, {"accuracy"})
        >>> view["loss"], view.get("diverged", False), dict(view)
        (0.1, False, {'loss': 0.1})
        >>> view["accuracy"]
        Traceback (most recent call last):
        tunekit.core.stopping.Awaited: accuracy
        >>> sorted(view.missed.names), view.missed.awaited
        (['accuracy', 'diverged'], True)
    """

    def __init__(
        self,
        report: Mapping[str, Any],
        validated: Collection[str],
        missed: Missed | None = None,
        prefix: str = "",
    ):
        super().__init__(report if prefix else without(report, validated))
        self._validated, self._prefix = validated, prefix
        #: The names that were looked up but not found.
        self.missed = missed or Missed()

    def _look(self, key: Any) -> bool:
        """Return whether the report has a key."""
        if super().__contains__(key):
            return True
        name = f"{self._prefix}{key}"
        self.missed.names.add(name)
        if _has(self._validated, name):
            self.missed.awaited = True
            raise Awaited(name)
        return False

    def _level(self, key: Any, value: Any) -> Any:
        if isinstance(value, Mapping):
            return ReportView(value, self._validated, self.missed, f"{self._prefix}{key}/")
        return value

    def __contains__(self, key: object) -> bool:
        return self._look(key)

    def __getitem__(self, key: str) -> Any:
        self._look(key)
        return self._level(key, super().__getitem__(key))

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value, or the default if the report lacks it."""
        return self[key] if self._look(key) else default


class Reads(Enum):
    """The metrics of a result that a criterion reads."""

    NOTHING = "nothing"  #: it counts calls, or looks at the clock
    METRIC = "metric"  #: one metric, which it names
    ANYTHING = "anything"


class Criterion:
    """A stopping criterion, with what is known about the metrics that it reads.

    As soon as a stateful criterion is known to read a validated metric, it is evaluated on
    validated results only: it would count a report twice. A stateless one is tried with each
    report, too, so that ``accuracy > 0.9 or training_iteration >= 10`` stops at iteration 10: there
    it stops whatever the accuracy turns out to be.

    Args:
        ask: ``ask(trial_id, result)`` returns whether the trial is to stop.
        reads: What it reads.
        metric: The metric that it names, if any.
        stateful: Whether it may keep state between calls.

    Example:
        >>> criterion = Criterion(lambda trial_id, result: result["accuracy"] > 0.9)
        >>> criterion.reported("a", {"loss": 0.1}, {"accuracy"})
        False
        >>> criterion.judged("a", {"loss": 0.1, "accuracy": 0.95}, {"accuracy"})
        True
    """

    def __init__(
        self,
        ask: Callable[[str, Any], Any],
        reads: Reads = Reads.ANYTHING,
        *,
        metric: str | None = None,
        stateful: bool = False,
    ):
        self.ask, self.reads, self.metric = ask, reads, metric
        self._stateful, self._rehearsed = stateful, not stateful
        self._missed = set() if metric is None else {metric}
        self._put_off = self._found = False
        #: Whether it has raised an error, and is no longer evaluated.
        self.broken = False

    def reported(
        self, trial_id: str, report: Mapping[str, Any], validated: Collection[str]
    ) -> bool:
        """Evaluate it on a report, unless it has to wait until that is validated.

        Args:
            trial_id: The trial.
            report: What training reported.
            validated: The metrics for which only validated values count.
        """
        if self.broken:
            return False
        if self.reads is Reads.NOTHING:
            return bool(self.ask(trial_id, report))
        if self.reads is Reads.METRIC:
            return self._asked_by_metric(trial_id, report, validated)
        if not self._rehearsed:
            self._rehearsed = True
            self._rehearse(trial_id, report, validated)
        asks = not (self._stateful and self.waits(validated))
        if asks and self._try(self.ask, trial_id, report, validated):
            return True
        return self.waits(validated) and self._stops_anyway(trial_id, report, validated)

    def judged(
        self,
        trial_id: str,
        result: Mapping[str, Any],
        validated: Collection[str],
        *,
        again: bool = False,
    ) -> bool:
        """Evaluate it on a validated result, flat, if it reads validated metrics.

        Args:
            trial_id: The trial.
            result: The result.
            validated: As for :meth:`reported`.
            again: Whether the result was already evaluated before the sweep was interrupted. The
                criterion may not have seen its report since it was saved.
        """
        if self.broken or self.reads is Reads.NOTHING:
            return False
        if again and self.reads is Reads.ANYTHING and not self.waits(validated):
            self._rehearse(trial_id, nested(result), validated)
        if not self.waits(validated):
            return False
        if self.reads is Reads.METRIC and self.metric not in result:
            return False
        return bool(self.ask(trial_id, nested(result)))

    def waits(self, validated: Collection[str]) -> bool:
        """Return whether it is known to read a metric for which only validated values count."""
        return self._put_off or any(_has(validated, name) for name in self._missed)

    def lost(self, validated: Collection[str]) -> str | None:
        """Return the criterion's metric if nothing has produced that metric; otherwise None."""
        nobodys = self.metric not in validated and not self._found
        return self.metric if self.reads is Reads.METRIC and nobodys else None

    def _rehearse(
        self, trial_id: str, report: Mapping[str, Any], validated: Collection[str]
    ) -> None:
        """Find out what it reads, on a copy."""
        with suppress(Exception):  # it will raise again, or cannot be copied
            self._try(copy.deepcopy(self.ask), trial_id, report, validated)

    def _stops_anyway(
        self, trial_id: str, report: Mapping[str, Any], validated: Collection[str]
    ) -> bool:
        """Return whether it stops the trial whatever the validated metrics turn out to be.

        A copy is evaluated once for each combination of outcomes of its comparisons with them. A
        copy whose state changes by that counts results, and must not count a report.
        """
        known = {name: v for name, v in flatten(report).items() if name not in validated}
        ways: list[list[bool]] = [[]]
        for way in ways:
            unknown = _Unknown(way)
            try:
                ask = copy.deepcopy(self.ask)
                before = pickle.dumps(vars(ask)) if self._stateful else b""
                if not ask(trial_id, nested({**known, **dict.fromkeys(validated, unknown)})):
                    return False
                if self._stateful and pickle.dumps(vars(ask)) != before:
                    return False
            except Exception:  # it cannot be copied, or needs the number itself
                return False
            ways += [[*unknown.taken[:at], False] for at in range(len(way), len(unknown.taken))]
            if len(ways) > _MOST_WAYS:
                return False
        return True

    def _asked_by_metric(
        self, trial_id: str, report: Mapping[str, Any], validated: Collection[str]
    ) -> bool:
        if self.metric is None or self.metric in validated:
            return False
        values = flatten(report)
        if self.metric not in values:
            return False
        self._found = True
        return bool(self.ask(trial_id, {**report, self.metric: values[self.metric]}))

    def _try(
        self,
        ask: Callable[[str, Any], Any],
        trial_id: str,
        report: Mapping[str, Any],
        validated: Collection[str],
    ) -> bool:
        view, verdict, put_off = ReportView(report, validated), False, False
        try:
            verdict = bool(ask(trial_id, view))
        except Awaited:
            pass
        except KeyError as error:
            name = error.args[0] if error.args else None
            # It may be a metric of validation, or copied from the view.
            missed = view.missed.names | {one.rsplit("/", 1)[-1] for one in view.missed.names}
            put_off = name in missed or name in validated
            if not put_off:
                raise
        finally:
            self._missed |= view.missed.names
        self._put_off = self._put_off or put_off or view.missed.awaited
        return verdict and not view.missed.awaited


class _Unknown:
    """An unknown number: its comparisons have given outcomes, and after these True.

    Args:
        way: The outcomes of the first comparisons.
    """

    def __init__(self, way: Sequence[bool]):
        self._way = way
        #: The outcome of each comparison.
        self.taken: list[bool] = []

    def __bool__(self) -> bool:
        at = len(self.taken)
        self.taken.append(self._way[at] if at < len(self._way) else True)
        return self.taken[-1]

    def _compared(self, other: object) -> bool:
        return bool(self)

    def _computed(self, *others: object) -> _Unknown:
        return self

    __lt__ = __le__ = __gt__ = __ge__ = _compared
    __eq__ = __ne__ = _compared
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _computed
    __truediv__ = __rtruediv__ = __neg__ = __abs__ = _computed
    __hash__ = object.__hash__


def _has(validated: Collection[str], name: str) -> bool:
    """Return whether a name is a validated metric, or a level of one."""
    return name in validated or any(known.startswith(f"{name}/") for known in validated)


def nested(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flat result with its nested levels added, as Tune passes results to stoppers.

    Example:
        >>> nested({"loss": 1, "eval/accuracy": 0.5})
        {'loss': 1, 'eval/accuracy': 0.5, 'eval': {'accuracy': 0.5}}
    """
    both = dict(result)
    for name, value in result.items():
        *path, leaf = name.split("/")
        level = both
        for key in path:
            below = level.setdefault(key, {})
            if not isinstance(below, dict):
                break
            level = below
        else:
            level[leaf] = value
    return both
