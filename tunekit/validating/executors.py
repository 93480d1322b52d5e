"""Chooses the executor that a sweep's validations run on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ray.tune.experiment import Trial

from tunekit.config import ValidationConfig
from tunekit.core.validation import Attempt, Request
from tunekit.stage import Stage
from tunekit.validating.cache import FunctionMark, Lookup, SweepCache
from tunekit.validating.evaluators import EvaluatorExecutor
from tunekit.validating.executor import Event, Executor, RayExecutor

__all__ = ["TasksAndEvaluators", "executor_of"]

# As many evaluators as there is room for.
_ANY_NUMBER = 1_000_000
# Options that only a task can have: calls per process, and Ray's own retries.
_OF_TASKS = {"max_calls", "max_retries", "retry_exceptions"}


def executor_of(config: ValidationConfig | Stage, cache: SweepCache | None = None) -> Executor:
    """Return where a stage's validations run, and look for their scores first if there is a cache.

    Without ``evaluators``, each validation is a task of its own, except that those in the place of
    trials run on evaluators, unless an option makes them tasks, too: see
    :class:`TasksAndEvaluators`.

    Validations with workers of their own always run on evaluators: only a placement group that the
    driver owns can keep the workers' resources for them, and give them back whatever happens.
    """
    fn, options = config.fn, config.ray_remote_kwargs
    lookup = _lookup(config, cache)
    if config.evaluators is not None or hasattr(fn, "bundles"):
        count = config.evaluators or _ANY_NUMBER
        return EvaluatorExecutor(fn, count, options, lookup=lookup)
    tasks = RayExecutor(fn, options, lookup=lookup)
    if _OF_TASKS & options.keys():
        return tasks
    evaluators = EvaluatorExecutor(fn, _ANY_NUMBER, options, lookup=lookup)
    return TasksAndEvaluators(tasks, evaluators)


def _lookup(
    config: ValidationConfig | Stage, cache: SweepCache | None
) -> Callable[[Request], Lookup | None]:
    """Return what says where the scores of requests are looked for."""
    if cache is None:
        return lambda request: None
    mark = FunctionMark(config.fn)
    return lambda request: cache.lookup(mark, request.kwargs)


class TasksAndEvaluators:
    """Runs attempts as tasks, and those in the place of trials on evaluators.

    Ray ends a task's process once it has had nothing to do for a second and actors hold all CPUs,
    as trials do. So nearly every validation would first have to start a process, and import what it
    needs. An evaluator in the place of trials takes no resources and can live on.

    Args:
        tasks: Where attempts with resources of their own run.
        evaluators: Where attempts in the place of a trial run.
    """

    def __init__(self, tasks: Executor, evaluators: Executor):
        self._tasks, self._evaluators = tasks, evaluators
        self.poll_interval_s = max(tasks.poll_interval_s, evaluators.poll_interval_s)

    @property
    def need(self) -> dict[str, float]:
        """See :class:`tunekit.validating.executor.Executor`."""
        return self._tasks.need

    def reserve(self, slots: int) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        self._tasks.reserve(slots)

    def fits_in(self, resources: Mapping[str, float]) -> bool:
        """See :class:`tunekit.validating.executor.Executor`."""
        return self._evaluators.fits_in(resources)

    def start(self, attempt: Attempt, *, lender: Trial | None = None) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        where = self._tasks if lender is None else self._evaluators
        where.start(attempt, lender=lender)

    def poll(self) -> list[Event]:
        """See :class:`tunekit.validating.executor.Executor`."""
        return [*self._tasks.poll(), *self._evaluators.poll()]

    def awaited(self) -> Collection[Any]:
        """See :class:`tunekit.validating.executor.Executor`."""
        return [*self._tasks.awaited(), *self._evaluators.awaited()]

    def cancel(self, attempt: Attempt) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        self._tasks.cancel(attempt)
        self._evaluators.cancel(attempt)

    def stop(self, attempt: Attempt) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        self._tasks.stop(attempt)
        self._evaluators.stop(attempt)

    def capacity(self, promised: Iterable[Mapping[str, float]]) -> int:
        """See :class:`tunekit.validating.executor.Executor`."""
        return self._tasks.capacity(promised)

    def queued(self) -> int:
        """See :class:`tunekit.validating.executor.Executor`."""
        return self._tasks.queued()

    def use_reserve(self) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        self._tasks.use_reserve()

    def spare(self) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        self._tasks.spare()
        self._evaluators.spare()

    def close(self) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        self._tasks.close()
        self._evaluators.close()
