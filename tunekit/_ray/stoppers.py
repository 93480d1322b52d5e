"""Ask Tune's stoppers about results that have no score."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import BuiltinFunctionType, CellType, FunctionType, ModuleType, NoneType
from typing import Any

from ray.tune.stopper import (
    CombinedStopper,
    ExperimentPlateauStopper,
    FunctionStopper,
    MaximumIterationStopper,
    NoopStopper,
    Stopper,
    TimeoutStopper,
    TrialPlateauStopper,
)

from tunekit.core.metrics import flatten, merge

_READ_NOTHING = (MaximumIterationStopper, NoopStopper, TimeoutStopper)
#: What a function may use and not count in.
_CONSTANT = (ModuleType, FunctionType, BuiltinFunctionType, type, NoneType)
_READ_ONE_METRIC = (ExperimentPlateauStopper, TrialPlateauStopper)


def parts(stopper: Stopper) -> Iterator[Stopper]:
    """Yield the stoppers that a stopper combines, or itself."""
    if type(stopper) is CombinedStopper:
        for part in stopper._stoppers:
            yield from parts(part)
    else:
        yield stopper


def reads_metrics(stopper: Stopper) -> bool:
    """Return whether a stopper may read a metric; those that only count or measure time do not."""
    return any(type(part) not in _READ_NOTHING for part in parts(stopper))


class WithoutScore(Stopper):
    """Ask a stopper about a result without a score.

    The trial stops if the stopper would stop it whatever the score: ``accuracy > 0.9 or
    training_iteration >= 10`` at iteration 10. A stopper or function that changes its state when
    it is asked is not asked, because it may count scores.

    Args:
        stopper: The stopper.
        names: The names of the metrics that validation produces, or that the sweep uses.

    Example:
        >>> class Patience(Stopper):
        ...     since = 0
        ...     def __call__(self, trial_id, result):
        ...         self.since += 1
        ...         return result["accuracy"] < 0.5 and self.since > 2
        ...     def stop_all(self):
        ...         return False
        >>> patience = Patience()
        >>> WithoutScore(patience, ["accuracy"])("a", {"training_iteration": 1}), patience.since
        (False, 0)
        >>> late = FunctionStopper(lambda _, r: r["accuracy"] > 0.9 or r["training_iteration"] > 9)
        >>> [WithoutScore(late, ["accuracy"])("a", {"training_iteration": n}) for n in (9, 10)]
        [False, True]
        >>> asked = []
        >>> counts = FunctionStopper(lambda _, r: asked.append(r["accuracy"]) or len(asked) > 1)
        >>> WithoutScore(counts, ["accuracy"])("a", {"training_iteration": 1}), asked
        (False, [])
        >>> def says(trial_id, result):
        ...     print("asked")
        ...     return result["training_iteration"] > 9
        >>> WithoutScore(FunctionStopper(says), ["accuracy"])("a", {"training_iteration": 10})
        asked
        True
    """

    def __init__(self, stopper: Stopper, names: Collection[str]):
        self._stopper, self._names = stopper, names

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        known = flatten(result)
        lacking = [name for name in self._names if name not in known]
        return any(self._ask(part, trial_id, result, lacking) for part in parts(self._stopper))

    def stop_all(self) -> bool:
        """Return whether the stopper ends the sweep."""
        return self._stopper.stop_all()

    def _ask(
        self, part: Stopper, trial_id: str, result: Mapping[str, Any], lacking: Iterable[str]
    ) -> bool:
        if type(part) in _READ_NOTHING:
            return bool(part(trial_id, result))
        if type(part) in _READ_ONE_METRIC:
            return part._metric in result and bool(part(trial_id, result))
        asked, row = _copied(part), _Row(result, lacking, math.nan)
        before = repr(_state_of(asked))
        stops = _asked(asked, trial_id, row)
        if not row.has_read:
            return stops if asked is part else bool(part(trial_id, result))
        counts = repr(_state_of(asked)) != before
        others = (_Row(result, lacking, score) for score in (-math.inf, math.inf, _Fits()))
        return stops and not counts and all(_asked(_copied(part), trial_id, r) for r in others)


def _asked(stopper: Stopper, trial_id: str, row: _Row) -> bool:
    try:
        return bool(stopper(trial_id, row))
    except Exception:
        if row.has_read:
            return False  # it needs the number itself
        raise


def _state_of(stopper: Stopper) -> Any:
    """Return what a stopper may change when it is asked; of a function, what it can refer to."""
    if type(stopper) is not FunctionStopper:
        return vars(stopper)
    function = getattr(stopper, "_fn", None)
    if not isinstance(function, FunctionType):  # a method, or an object that can be called
        return getattr(getattr(function, "__self__", function), "__dict__", None)
    return function.__defaults__, *map(dict, _names_of(function))


def _copied(stopper: Stopper) -> Stopper:
    """Return a copy of a stopper, whose state is its own; a function without any is returned.

    ``copy`` takes a function for a constant, but it may count in a variable of its own, in one that
    it closes over, or in one of its module.
    """
    function = getattr(stopper, "_fn", None)
    if type(stopper) is not FunctionStopper or not isinstance(function, FunctionType):
        return copy.deepcopy(stopper)
    closed_over, of_module = _names_of(function)
    own = (function.__defaults__, function.__kwdefaults__, *closed_over.values())
    if all(isinstance(one, _CONSTANT) for one in (*own, *of_module.values())):
        return stopper  # so it is called once for a result on which it decides without a score
    memo: dict[int, Any] = {}
    same = FunctionType(
        function.__code__,
        {**function.__globals__, **{name: _own(one, memo) for name, one in of_module.items()}},
        function.__name__,
        _own(function.__defaults__, memo),
        tuple(CellType(_own(one, memo)) for one in closed_over.values()),
    )
    same.__kwdefaults__ = _own(function.__kwdefaults__, memo)
    return FunctionStopper(same)


def _names_of(function: FunctionType) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the variables that a function closes over, and those of its module that it uses."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    known = function.__globals__
    used = {name: known[name] for name in function.__code__.co_names if name in known}
    return {name: _contents(cell) for name, cell in cells}, used


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing has been assigned to the variable
        return None


def _own(value: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of a value, or the value if it cannot be copied, like a module or a lock."""
    try:
        return copy.deepcopy(value, memo)
    except Exception:
        return value


class _Fits(float):
    """A score that is above, below or between any other values."""

    def __lt__(self, other: float) -> bool:
        return True

    __le__ = __gt__ = __ge__ = __lt__


class _Row(dict[str, Any]):
    """A result with a placeholder for each missing score, which records whether any was read.

    Args:
        result: The result.
        lacking: The names of the scores.
        score: The value. Comparisons with NaN are false; those with infinity are as for the worst
            or the best score; those with :class:`_Fits` are true.
    """

    def __init__(self, result: Mapping[str, Any], lacking: Iterable[str], score: float):
        scores: dict[str, Any] = {}
        for name in lacking:
            *above, last = name.split("/")
            level = scores
            for key in above:
                level = level.setdefault(key, {})
            level[last] = score
        super().__init__(merge(result, scores))
        #: Whether a score was read.
        self.has_read, self._scores = False, scores.keys()

    def __getitem__(self, key: str) -> Any:
        self.has_read |= key in self._scores
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or the default if there is none."""
        return self[key] if key in self else default  # noqa: SIM401 (it reads the key)
