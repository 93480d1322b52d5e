"""Validation in processes that live on: what is costly to set up is set up once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tunekit.config import ValidationConfig, is_built
from tunekit.core.room import fits, total
from tunekit.core.validation import Attempt
from tunekit.executor import (
    Began,
    Event,
    Executor,
    Failed,
    RayExecutor,
    Returned,
    explain,
    plain,
)

__all__ = ["EvaluatorExecutor", "executor_of"]


def executor_of(config: ValidationConfig) -> Executor:
    """Where a sweep's validations run: on evaluators if it has some, else each in a task."""
    nested = config.nested_resources
    if config.evaluators is None:
        return RayExecutor(config.fn, config.ray_remote_kwargs, nested_resources=nested)
    return EvaluatorExecutor(
        config.fn, config.evaluators, config.ray_remote_kwargs, nested_resources=nested
    )


@dataclass
class _Evaluator:
    """One actor, and what it is doing."""

    actor: Any
    #: Where it and its workers are placed; None if it has none.
    group: PlacementGroup | None
    #: What it is waited for: that it is built, or that it returns; None if for nothing.
    awaited: Any
    built: bool = False
    attempt: Attempt | None = None
    idle_since: float = 0.0


class EvaluatorExecutor:
    """Runs attempts on actors, each of which has built the validation function once.

    Actors are started when there is something to do, up to ``count``; one that dies is replaced
    when it is needed; one that has had nothing to do for a while gives its resources back.

    Args:
        fn: A class (or a ``functools.partial`` of one) that is built in each actor and called as
            ``instance(checkpoint, **kwargs)``; or a function, called like that. If it has
            ``bundles``, an actor is placed together with these, and told so (``placed``).
        count: How many actors there may be.
        ray_remote_kwargs: Options of the actor. Each takes one CPU unless they say otherwise.
        nested_resources: What a call takes besides, in tasks and actors of its own.
        idle_s: After how many seconds without work an actor ends.
        monotonic: What the time is read from.
    """

    poll_interval_s = 0.01

    def __init__(
        self,
        fn: Callable[..., Any],
        count: int,
        ray_remote_kwargs: Mapping[str, Any],
        *,
        nested_resources: Mapping[str, float] | None = None,
        idle_s: float = 30.0,
        monotonic: Callable[[], float] = time.monotonic,
    ):
        options = dict(ray_remote_kwargs)
        self._name = options.pop("name", None)
        options.pop("max_retries", None)  # a task's
        options.setdefault("num_cpus", 1)
        if "placement_group" not in options:
            options.setdefault("scheduling_strategy", "DEFAULT")
        self._options = options
        self._fn, self._count, self._idle_s, self._monotonic = fn, count, idle_s, monotonic
        own = {"CPU": options["num_cpus"] or 0, "GPU": options.get("num_gpus") or 0}
        self._own = total({**own, **(options.get("resources") or {})})
        self._need = total(self._own, nested_resources or {})
        self._kept = 0
        self._class: Any = None
        self._fn_ref: Any = None
        self._evaluators: list[_Evaluator] = []
        self._unstarted: list[Event] = []

    @property
    def need(self) -> dict[str, float]:
        """See :class:`tunekit.executor.Executor`."""
        return dict(self._need)

    def reserve(self, slots: int) -> None:
        """See :class:`tunekit.executor.Executor`."""
        self._kept = min(slots, self._count)
        while len(self._evaluators) < self._kept:
            self._build()

    def start(self, attempt: Attempt) -> None:
        """See :class:`tunekit.executor.Executor`."""
        idle = [evaluator for evaluator in self._evaluators if evaluator.attempt is None]
        idle.sort(key=lambda evaluator: not evaluator.built)
        try:
            evaluator = idle[0] if idle else self._build()
        except Exception as error:  # cannot be pickled, for example
            reason = f"could not be started: {type(error).__name__}: {error}"
            self._unstarted.append(Failed(attempt.id, reason))
            return
        evaluator.attempt = attempt
        if evaluator.built:
            self._call(evaluator)
            self._unstarted.append(Began(attempt.id))

    def poll(self) -> list[Event]:
        """See :class:`tunekit.executor.Executor`."""
        events, self._unstarted = self._unstarted, []
        awaited = {e.awaited: e for e in self._evaluators if e.awaited is not None}
        if awaited:
            refs = list(awaited)
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
            for ref in ready:
                events.extend(self._take(awaited[ref]))
        self._end_idle()
        return events

    def cancel(self, attempt: Attempt) -> None:
        """See :class:`tunekit.executor.Executor`."""
        for evaluator in list(self._evaluators):
            if evaluator.attempt is attempt:
                self._end(evaluator)

    def capacity(self, promised: Sequence[Mapping[str, float]]) -> int:
        """See :class:`tunekit.executor.Executor`."""
        idle = sum(evaluator.attempt is None for evaluator in self._evaluators)
        more = self._count - len(self._evaluators)
        if self._need:
            building = sum(not evaluator.built for evaluator in self._evaluators)
            room = fits(ray.available_resources(), promised, self._need)
            more = min(more, room - building)
        return idle + max(0, more)

    def close(self) -> None:
        """See :class:`tunekit.executor.Executor`."""
        self._kept = 0
        for evaluator in list(self._evaluators):
            self._end(evaluator)

    def _build(self) -> _Evaluator:
        if self._class is None:
            self._class = ray.remote(**self._options)(_Actor)
            self._fn_ref = ray.put(self._fn)
        placed = self._class
        group, first = None, 0
        bundles = getattr(self._fn, "bundles", None)
        if bundles:
            first = 1 if self._own else 0
            group = placement_group([dict(self._own)] * first + [dict(each) for each in bundles])
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
            placed = placed.options(scheduling_strategy=strategy)
        actor = placed.remote([self._fn_ref], first if bundles else None)
        evaluator = _Evaluator(actor, group, actor.build.remote())
        self._evaluators.append(evaluator)
        return evaluator

    def _call(self, evaluator: _Evaluator) -> None:
        assert evaluator.attempt is not None
        request = evaluator.attempt.request
        name = self._name or f"validate {request.trial_id}@{request.iteration}"
        call = evaluator.actor.evaluate.options(name=name)
        evaluator.awaited = call.remote(request.checkpoint, dict(request.kwargs))

    def _take(self, evaluator: _Evaluator) -> Iterator[Event]:
        """What an actor has to say."""
        ref, evaluator.awaited = evaluator.awaited, None
        attempt = evaluator.attempt
        try:
            value = ray.get(ref)
        except Exception as error:  # all that a task can end with, Ray's own errors included
            reason, trace = explain(error)
            if isinstance(error, RayActorError) or not evaluator.built:
                self._end(evaluator)
            self._rest(evaluator)
            if attempt is not None:
                what = "" if evaluator.built else "its evaluator could not be built: it "
                yield Failed(attempt.id, what + reason, trace)
            return
        if evaluator.built:
            self._rest(evaluator)
            assert attempt is not None
            yield Returned(attempt.id, value)
            return
        evaluator.built = True
        if attempt is not None:
            self._call(evaluator)
            yield Began(attempt.id)

    def _rest(self, evaluator: _Evaluator) -> None:
        evaluator.attempt, evaluator.idle_since = None, self._monotonic()

    def _end_idle(self) -> None:
        now = self._monotonic()
        for evaluator in list(self._evaluators):
            idle = evaluator.attempt is None and evaluator.awaited is None
            if len(self._evaluators) <= self._kept:
                return
            if idle and now - evaluator.idle_since >= self._idle_s:
                self._end(evaluator)

    def _end(self, evaluator: _Evaluator) -> None:
        if evaluator in self._evaluators:
            self._evaluators.remove(evaluator)
            ray.kill(evaluator.actor)
            if evaluator.group is not None:
                remove_placement_group(evaluator.group)


class _Actor:
    """Builds the validation function, and calls it for one checkpoint after another."""

    def __init__(self, fn_ref: list[Any], first_bundle: int | None):
        self._fn_ref, self._first_bundle = fn_ref, first_bundle
        self._evaluate: Any = None

    def build(self) -> None:
        fn = ray.get(self._fn_ref[0])
        self._evaluate = fn() if is_built(fn) else fn
        if self._first_bundle is not None:
            self._evaluate.placed(self._first_bundle)

    def evaluate(self, checkpoint: Any, kwargs: dict[str, Any]) -> Any:
        return plain(self._evaluate(checkpoint, **kwargs))
