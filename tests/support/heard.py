"""What a scheduler is told, and what it decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tests.support.local_sweep import index_of
from tunekit.core.metrics import GENERATION


@dataclass
class Heard:
    """The calls that a scheduler received, and its decisions.

    ``results`` has (trial, iteration, score, decision), ``generations`` that of each result.
    """

    results: list[tuple[int, int, float, str]] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    ends: list[tuple[int, float | None]] = field(default_factory=list)
    added: list[int] = field(default_factory=list)
    errors: list[int] = field(default_factory=list)

    def of(self, index: int) -> list[int]:
        return [iteration for trial, iteration, _, _ in self.results if trial == index]

    def places(self, index: int) -> list[tuple[int, int]]:
        """(generation, iteration) of the results of a trial."""
        both = zip(self.generations, self.results, strict=True)
        return [(generation, result[1]) for generation, result in both if result[0] == index]


class _Listener:
    """A method of a scheduler that is listened to.

    Its attributes are saved with the scheduler: the restored one has its own listeners.
    """

    def __init__(self, name: str, call: Callable[..., Any]):
        self.name, self.call = name, call
        _NEWEST[name] = self

    def __call__(self, *args: Any) -> Any:
        return self.call(*args)

    def __reduce__(self) -> Any:
        return _newest, (self.name,)


_NEWEST: dict[str, _Listener] = {}


def _newest(name: str) -> _Listener:
    return _NEWEST[name]


def listen(base: TrialScheduler, metric: str = "accuracy") -> Heard:
    """Record the calls and decisions of a scheduler, which keeps its type."""
    heard = Heard()
    on_result, on_complete = base.on_trial_result, base.on_trial_complete
    on_remove, on_error = base.on_trial_remove, base.on_trial_error
    on_add = base.on_trial_add

    def add(controller: Any, trial: Trial) -> None:
        heard.added.append(index_of(trial))
        on_add(controller, trial)

    def result(controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        if trial.status == Trial.PAUSED:  # it is reminded of a result that it has heard
            return on_result(controller, trial, result)
        heard.statuses.append(trial.status)
        score, at = result.get(metric), len(heard.results)
        decision = on_result(controller, trial, result)
        told = (index_of(trial), result["training_iteration"], score, decision)
        heard.results.insert(at, told)
        heard.generations.insert(at, result.get(GENERATION, 0))
        return decision

    by_itself: list[int] = []  # HyperBand tells itself to remove a trial that it hears of

    def complete(controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        heard.ends.append((index_of(trial), result.get(metric)))
        by_itself.append(index_of(trial))
        on_complete(controller, trial, result)
        by_itself.pop()

    def remove(controller: Any, trial: Trial) -> None:
        if by_itself[-1:] != [index_of(trial)]:
            heard.ends.append((index_of(trial), None))
        on_remove(controller, trial)

    def error(controller: Any, trial: Trial) -> None:
        heard.errors.append(index_of(trial))
        by_itself.append(index_of(trial))
        on_error(controller, trial)
        by_itself.pop()

    for call in (add, result, complete, remove, error):
        name = f"on_trial_{call.__name__}"
        setattr(base, name, _Listener(name, call))
    return heard
