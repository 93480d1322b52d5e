"""Chooses the executor that a sweep's validations run on."""

from __future__ import annotations

from collections.abc import Callable

from tunekit.config import ValidationConfig
from tunekit.core.validation import Request
from tunekit.stage import Stage
from tunekit.validating.cache import FunctionMark, Lookup, SweepCache
from tunekit.validating.evaluators import EvaluatorExecutor
from tunekit.validating.executor import Executor, RayExecutor

__all__ = ["executor_of"]

# As many evaluators as there is room for.
_ANY_NUMBER = 1_000_000


def executor_of(config: ValidationConfig | Stage, cache: SweepCache | None = None) -> Executor:
    """Return where a stage's validations run, and look for their scores first if there is a cache.

    Without ``evaluators``, each validation is a task of its own, or runs in the process of a trial
    that waits for it: see :class:`~tunekit.validating.executor.RayExecutor`.

    Validations with workers of their own always run on evaluators: only a placement group that the
    driver owns can keep the workers' resources for them, and give them back whatever happens.
    """
    fn, options = config.fn, config.ray_remote_kwargs
    lookup = _lookup(config, cache)
    if config.evaluators is not None or hasattr(fn, "bundles"):
        count = config.evaluators or _ANY_NUMBER
        return EvaluatorExecutor(fn, count, options, lookup=lookup)
    return RayExecutor(fn, options, lookup=lookup)


def _lookup(
    config: ValidationConfig | Stage, cache: SweepCache | None
) -> Callable[[Request], Lookup | None]:
    """Return what says where the scores of requests are looked for."""
    if cache is None:
        return lambda request: None
    mark = FunctionMark(config.fn)
    return lambda request: cache.lookup(mark, request.kwargs)
