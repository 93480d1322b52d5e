"""Call Tune's stopping criteria with validated results if they read validated metrics."""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Callable, Collection, Iterator, Mapping
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

from tunekit.core.history import GENERATION, ITERATION
from tunekit.core.stopping import Criterion, Reads
from tunekit.errors import StopperError

logger = logging.getLogger(__name__)

_READ_NOTHING = (MaximumIterationStopper, NoopStopper, TimeoutStopper)
_READ_ONE_METRIC = (ExperimentPlateauStopper, TrialPlateauStopper)
_WITHOUT_STATE = (types.FunctionType, types.BuiltinFunctionType)


def reads_metrics(stopper: Stopper) -> bool:
    """Return whether a stopper may read a metric; those that only count or measure time do not."""
    return any(_criterion(part).reads is not Reads.NOTHING for part in _parts(stopper))


class ValidatedStopper(CombinedStopper):
    """The user's stoppers; those that read validated metrics get validated results.

    Tune saves it with the experiment's state, including the stoppers' counts.

    Args:
        stopper: Tune's stopper for ``RunConfig(stop=...)``.
    """

    def __init__(self, stopper: Stopper):
        super().__init__(*_parts(stopper))
        self._criteria = [_criterion(part) for part in self._stoppers]
        # The newest generation and iteration of each trial with a validated result.
        self._newest: dict[str, tuple[int, int]] = {}
        self._told: set[str] = set()
        self._validated: Callable[[], Collection[str]] = tuple
        self._fail: Callable[[StopperError], None] | None = None

    def attach(
        self, validated: Callable[[], Collection[str]], fail: Callable[[StopperError], None]
    ) -> None:
        """Connect it with the sweep.

        Args:
            validated: Returns the metrics for which only validated values count.
            fail: Called with the error of a stopper that has raised, which is not called again.
        """
        self._validated, self._fail = validated, fail
        for each in self._criteria:
            if each.broken:
                logger.warning(
                    "%s of RunConfig(stop=...) raised an error before the sweep was interrupted, "
                    "so it is no longer called.",
                    _name_of(each.ask),
                )

    @property
    def by_metrics(self) -> bool:
        """Return whether any stopper may read a metric."""
        return any(each.reads is not Reads.NOTHING for each in self._criteria)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        names = self._validated()
        return any(each.reported(trial_id, result, names) for each in self._criteria)

    def reached(
        self,
        trial_id: str,
        result: Mapping[str, Any],
        produced: Collection[str],
        *,
        again: bool = False,
    ) -> bool:
        """Return whether a flat validated result ends its trial.

        Args:
            trial_id: The trial.
            result: The result; one that was already passed is ignored.
            produced: The metrics that validations have produced.
            again: Whether it was already evaluated before the sweep was interrupted.
        """
        place = (result.get(GENERATION, 0), result[ITERATION])
        if place <= self._newest.get(trial_id, (-1, 0)):
            return False
        self._newest[trial_id] = place
        return any(self._asked(each, trial_id, result, produced, again) for each in self._criteria)

    def _asked(
        self,
        each: Criterion,
        trial_id: str,
        result: Mapping[str, Any],
        produced: Collection[str],
        again: bool,
    ) -> bool:
        names = self._validated()
        lost = each.lost(names)
        if lost is not None and lost not in self._told:
            self._told.add(lost)
            logger.warning(
                "%s of RunConfig(stop=...) uses %r, which neither training nor validation has "
                "produced (seen: %s), so it cannot stop anything.",
                _name_of(each.ask),
                lost,
                _listed(produced),
            )
        try:
            return each.judged(trial_id, result, names, again=again)
        except Exception as error:  # an error of user code
            each.broken = True
            wrong = StopperError(
                f"{_name_of(each.ask)} of RunConfig(stop=...) raised {type(error).__name__}: "
                f"{error}, when it got the validated result of trial {trial_id} at iteration "
                f"{result[ITERATION]}. Validation has returned {_listed(produced)}; the result has "
                "these and what training reported. Fix the stopper for the next sweep. This one is "
                "saved, and continues without it: tunekit.Tuner.restore(...).fit()."
            )
            if again or self._fail is None:  # it has already ended the sweep
                logger.warning("%s", wrong)
            else:
                self._fail(wrong)
            return False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_validated": tuple, "_fail": None}


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing yet"


def _parts(stopper: Stopper) -> Iterator[Stopper]:
    if type(stopper) is CombinedStopper:
        for part in stopper._stoppers:
            yield from _parts(part)
    else:
        yield stopper


def _criterion(stopper: Stopper) -> Criterion:
    if type(stopper) in _READ_NOTHING:
        return Criterion(stopper, Reads.NOTHING)
    if type(stopper) in _READ_ONE_METRIC:
        return Criterion(stopper, Reads.METRIC, metric=stopper._metric)
    if type(stopper) is FunctionStopper:
        function = stopper._fn
        while isinstance(function, functools.partial):
            function = function.func
        return Criterion(stopper, stateful=not isinstance(function, _WITHOUT_STATE))
    named = (getattr(stopper, name, None) for name in ("metric", "_metric"))
    metric = next((name for name in named if isinstance(name, str)), None)
    return Criterion(stopper, metric=metric, stateful=True)


def _name_of(stopper: Any) -> str:
    function = stopper._fn if type(stopper) is FunctionStopper else None
    return str(getattr(function, "__name__", None) or type(function or stopper).__name__)
