"""Validation in long-lived processes: what is costly to set up is set up once."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import ray
from ray.exceptions import TaskCancelledError
from ray.tune.experiment import Trial
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tunekit._ray.cluster import has_died, waiting_for
from tunekit.config import is_built
from tunekit.core.room import fits, fits_in, total
from tunekit.core.validation import Attempt, Request
from tunekit.core.values import Raised
from tunekit.gpu_memory import release_unused
from tunekit.validating.cache import Lookup
from tunekit.validating.context import Told, telling
from tunekit.validating.executor import (
    Began,
    Configs,
    Estimated,
    Event,
    Failed,
    Yielded,
    arguments,
    ended,
    explain,
    in_place_of,
    looked_up,
    outcome_of,
    own_resources,
    produced,
    unstarted,
)

__all__ = ["EvaluatorExecutor"]

#: The seconds without work after which an evaluator gives back GPU memory that it does not use: not
#: between two attempts that follow each other, which would allocate it again at once.
_RELEASE_AFTER_S = 1.0


class _Phase(Enum):
    """How far an evaluator has come."""

    STARTING = "starting"  #: its process has not started yet
    BUILDING = "building"  #: the validation function is being built
    BUILT = "built"


@dataclass
class _Evaluator:
    """One actor, and what it is doing."""

    actor: Any
    #: Where it and its workers are placed; None: wherever there is room.
    group: PlacementGroup | None
    #: What is awaited: that it starts, is built, or returns; None if nothing is.
    awaited: Any
    phase: _Phase = _Phase.STARTING
    attempt: Attempt | None = None
    idle_since: float = 0.0
    #: Whether it has given back the GPU memory that it does not use since its newest attempt.
    released: bool = True
    #: Whether its attempt has yielded enough, and ends.
    stopping: bool = False
    #: How many attempts it has run.
    calls: int = 0
    #: The node on which it runs in the place of trials; None if it has resources of its own.
    place: str | None = None


class EvaluatorExecutor:
    """Runs attempts on actors, each of which builds the validation function once.

    Actors start when there is something to do, up to ``count`` of them. One that dies is replaced
    when it is needed, and so is one whose attempt has failed: whatever went wrong in its process,
    such as an error of CUDA, must not fail the next. One that has had nothing to do for a second
    returns the GPU memory that it does not use, and after a while it gives its resources back.

    Args:
        fn: A class (or a ``functools.partial`` of one) that is built in each actor and called as
            ``instance(checkpoint, **kwargs)``; or a function, called in the same way. If it has
            ``bundles``, which a call takes in addition, an actor is placed together with them, and
            told so (``placed``).
        count: How many actors there may be.
        ray_remote_kwargs: Options of the actor. Each takes one CPU unless they say otherwise.
            ``max_calls``, as for tasks: after how many attempts it is replaced; 0 for never.
        lookup: Returns where a request's score is looked for before the function is called; None:
            nowhere.
        idle_s: The seconds without work after which an actor ends.
        monotonic: Returns the time, in seconds.
    """

    poll_interval_s = 0.01
    in_trials = False

    def __init__(
        self,
        fn: Callable[..., Any],
        count: int,
        ray_remote_kwargs: Mapping[str, Any],
        *,
        lookup: Callable[[Request], Lookup | None] = lambda request: None,
        idle_s: float = 30.0,
        monotonic: Callable[[], float] = time.monotonic,
    ):
        options = dict(ray_remote_kwargs)
        self._name = options.pop("name", None)
        options.pop("max_retries", None)  # an option of tasks
        self._max_calls = options.pop("max_calls", 0)
        options.setdefault("num_cpus", 1)
        self._placed = "placement_group" in options or "scheduling_strategy" in options
        if "placement_group" not in options:
            options.setdefault("scheduling_strategy", "DEFAULT")
        self._options = options
        self._lookup = lookup
        self._fn, self._count, self._idle_s, self._monotonic = fn, count, idle_s, monotonic
        self._own = own_resources(options)
        self._need = total(self._own, *getattr(fn, "bundles", []))
        #: How many to keep, whether or not there is anything to do.
        self._kept = 0
        #: The placement groups of actors that have died, for those that replace them.
        self._spare: list[PlacementGroup] = []
        self._class: Any = None
        self._fn_ref: Any = None
        self._evaluators: list[_Evaluator] = []
        # Those that wait for an actor whose own attempt has yielded enough, and is about to end.
        self._following: list[Attempt] = []
        self._unstarted: list[Event] = []
        self._configs = Configs()

    @property
    def need(self) -> dict[str, float]:
        """See :class:`tunekit.validating.executor.Executor`."""
        return dict(self._need)

    def reserve(self, slots: int) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        self._kept = min(slots, self._count)
        while len(self._holding()) < self._kept:
            self._build()

    def fits_in(self, resources: Mapping[str, float]) -> bool:
        """See :class:`tunekit.validating.executor.Executor`."""
        simple = not self._placed and not hasattr(self._fn, "bundles")
        return simple and fits_in(self._own, resources)

    def start(self, attempt: Attempt, *, lender: Trial | None = None) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        self._forget_dead()
        place = None if lender is None else lender.node_ip
        idle = [e for e in self._evaluators if e.attempt is None and e.place == place]
        idle.sort(key=lambda evaluator: list(_Phase).index(evaluator.phase), reverse=True)
        if not idle and lender is None and self._one_is_about_to_rest():
            self._following.append(attempt)
            return
        try:
            evaluator = idle[0] if idle else self._build(lender)
        except Exception as error:  # it cannot be pickled, for example
            self._unstarted.append(unstarted(attempt, error))
            return
        evaluator.attempt = attempt
        if evaluator.phase is _Phase.BUILT:
            self._call(evaluator)
        if evaluator.phase is not _Phase.STARTING:
            self._unstarted.append(Began(attempt.id))

    def poll(self) -> list[Event]:
        """See :class:`tunekit.validating.executor.Executor`."""
        events, self._unstarted = self._unstarted, []
        awaited = {e.awaited: e for e in self._evaluators if e.awaited is not None}
        while awaited:
            refs = list(awaited)
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
            for ref in ready:
                events.extend(self._take(awaited[ref]))
                if awaited[ref].awaited is not ref:
                    del awaited[ref]
            if not ready:
                break
        self._follow()
        self._end_idle()
        return events

    def awaited(self) -> Collection[Any]:
        """See :class:`tunekit.validating.executor.Executor`."""
        return [e.awaited for e in self._evaluators if e.awaited is not None]

    def _one_is_about_to_rest(self) -> bool:
        """Return whether no more actors may be made, and one is ending its attempt."""
        own = self._holding()
        ending = sum(evaluator.stopping for evaluator in own)
        return len(own) >= self._count and ending > len(self._following)

    def _follow(self) -> None:
        """Start what has waited for an actor that is free now, or gone."""
        idle = sum(e.attempt is None for e in self._holding())
        more = idle + max(0, self._count - len(self._holding()))
        following, self._following = self._following[:more], self._following[more:]
        for attempt in following:
            self.start(attempt)

    def cancel(self, attempt: Attempt) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        self._following = [one for one in self._following if one is not attempt]
        for evaluator in list(self._evaluators):
            if evaluator.attempt is attempt:
                self._end(evaluator)

    def stop(self, attempt: Attempt) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        self._following = [one for one in self._following if one is not attempt]
        for evaluator in self._evaluators:
            if evaluator.attempt is attempt:
                evaluator.stopping = True
                ray.cancel(evaluator.awaited)

    def capacity(self, promised: Iterable[Mapping[str, float]]) -> int:
        """See :class:`tunekit.validating.executor.Executor`."""
        own = self._holding()
        idle = sum(evaluator.attempt is None for evaluator in own)
        more = self._count - len(own)
        if self._need:
            waiting = sum(evaluator.phase is _Phase.STARTING for evaluator in own)
            room = fits(ray.available_resources(), promised, self._need)
            more = min(more, len(self._spare) + max(0, room - waiting))
        return idle + max(0, more)

    def queued(self) -> int:
        """See :class:`tunekit.validating.executor.Executor`."""
        starting = [
            evaluator
            for evaluator in self._evaluators
            if evaluator.phase is _Phase.STARTING and evaluator.attempt is not None
            if evaluator.place is None
        ]
        placed = [evaluator.group for evaluator in starting if evaluator.group is not None]
        waiting = sum(not _is_ready(group) for group in placed)
        anywhere = len(starting) - len(placed)
        return waiting + (min(anywhere, waiting_for(self._own)) if anywhere else 0)

    def use_reserve(self) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""

    def spare(self) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        for evaluator in list(self._evaluators):
            holds = evaluator.place is None
            if holds and evaluator.attempt is None and self._can_go(evaluator):
                self._end(evaluator)

    def close(self) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        self._kept, self._following = 0, []
        for evaluator in list(self._evaluators):
            self._end(evaluator)
        while self._spare:
            remove_placement_group(self._spare.pop())

    def _build(self, lender: Trial | None = None) -> _Evaluator:
        """Start one more evaluator, with resources of its own or in the place of a trial."""
        if self._class is None:
            self._fn_ref = ray.put(self._fn)
            self._class = ray.remote(**self._options)(_Actor)
        bundles = [dict(bundle) for bundle in getattr(self._fn, "bundles", [])]
        own = [dict(self._own)] if self._own else []
        remote, group = self._class, None
        if lender is not None:
            remote = remote.options(**in_place_of(lender))
        elif not self._placed and (bundles or (own and self._kept)):
            group = self._spare.pop() if self._spare else placement_group([*own, *bundles])
            strategy = PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=0, placement_group_capture_child_tasks=False
            )
            remote = remote.options(scheduling_strategy=strategy)
        try:
            actor = remote.remote([self._fn_ref], len(own) if bundles else None)
        except Exception:
            if group is not None:
                remove_placement_group(group)
            raise
        place = None if lender is None else lender.node_ip
        evaluator = _Evaluator(actor, group, actor.__ray_ready__.remote(), place=place)
        self._evaluators.append(evaluator)
        return evaluator

    def _call(self, evaluator: _Evaluator) -> None:
        assert evaluator.attempt is not None
        evaluator.calls += 1
        request = evaluator.attempt.request
        name = self._name or f"validate {request.trial_id}@{request.iteration}"
        call = evaluator.actor.evaluate.options(name=name, num_returns="streaming")
        told, kwargs = self._configs.told(evaluator.attempt), arguments(self._fn, request)
        evaluator.awaited = call.remote(request.checkpoint, kwargs, told, self._lookup(request))

    def _take(self, evaluator: _Evaluator) -> Iterator[Event]:
        """Yield what an actor has to say."""
        if evaluator.phase is _Phase.BUILT:
            yield from self._advance(evaluator)
            return
        ref, evaluator.awaited = evaluator.awaited, None
        attempt = evaluator.attempt
        try:
            value = ray.get(ref)
        except Exception as error:  # anything that a task can end with, including Ray's own errors
            yield from self._failed(evaluator, *explain(error))
            return
        if isinstance(value, Raised):
            yield from self._failed(evaluator, value.reason, value.trace)
            return
        if evaluator.phase is _Phase.STARTING:
            evaluator.phase = _Phase.BUILDING
            evaluator.awaited = evaluator.actor.build.remote()
            if attempt is not None:
                yield Began(attempt.id)
        else:
            evaluator.phase = _Phase.BUILT
            if attempt is not None:
                self._call(evaluator)

    def _advance(self, evaluator: _Evaluator) -> Iterator[Event]:
        """Yield the next thing that an attempt has yielded, or its end."""
        attempt = evaluator.attempt
        assert attempt is not None
        try:
            value = ray.get(next(evaluator.awaited))
        except (StopIteration, TaskCancelledError) as error:
            if evaluator.stopping:
                self._rest(evaluator)
            else:
                yield from self._failed(evaluator, *_why_ended(error))
            return
        except Exception as error:  # anything that a task can end with, including Ray's own errors
            yield from self._failed(evaluator, *explain(error))
            return
        if isinstance(value, Yielded):
            if not evaluator.stopping:
                yield Estimated(attempt.id, value.metrics)
        elif isinstance(value, Raised):
            yield from self._failed(evaluator, value.reason, value.trace)
        else:
            stopping = evaluator.stopping
            self._rest(evaluator)
            if not stopping:
                yield ended(attempt.id, value)

    def _failed(self, evaluator: _Evaluator, reason: str, trace: str | None) -> Iterator[Event]:
        """Note that what an actor was doing has failed, or that it is gone."""
        attempt, built = evaluator.attempt, evaluator.phase is _Phase.BUILT
        stopping = evaluator.stopping
        self._end(evaluator)
        if attempt is not None and not stopping:
            what = "" if built else "its evaluator could not be built: it "
            yield Failed(attempt.id, what + reason, trace)

    def _holding(self) -> list[_Evaluator]:
        """Return the evaluators that hold resources of their own."""
        return [evaluator for evaluator in self._evaluators if evaluator.place is None]

    def _can_go(self, evaluator: _Evaluator) -> bool:
        """Return whether an evaluator is not one of those that are kept even without work."""
        return evaluator.place is not None or len(self._holding()) > self._kept

    def _forget_dead(self) -> None:
        """End the evaluators that died while idle, so that no attempt is lost with them."""
        for evaluator in list(self._evaluators):
            rests = evaluator.attempt is None and evaluator.phase is _Phase.BUILT
            if rests and has_died(evaluator.actor):
                self._end(evaluator)

    def _rest(self, evaluator: _Evaluator) -> None:
        """Note that an evaluator has nothing to do; one that has run its calls is replaced."""
        evaluator.attempt, evaluator.awaited, evaluator.stopping = None, None, False
        evaluator.idle_since, evaluator.released = self._monotonic(), False
        if evaluator.calls == self._max_calls:
            self._end(evaluator)

    def _end_idle(self) -> None:
        now = self._monotonic()
        for evaluator in list(self._evaluators):
            idle = evaluator.attempt is None and evaluator.awaited is None
            idle_s = now - evaluator.idle_since if idle else 0.0
            if idle and idle_s >= self._idle_s and self._can_go(evaluator):
                self._end(evaluator)
            elif idle_s >= _RELEASE_AFTER_S and not evaluator.released:
                evaluator.released = True
                evaluator.actor.release.remote()

    def _end(self, evaluator: _Evaluator) -> None:
        """End an actor; what is reserved is kept for the one that replaces it."""
        if evaluator not in self._evaluators:
            return
        self._evaluators.remove(evaluator)
        evaluator.awaited = None
        ray.kill(evaluator.actor)
        if evaluator.group is None:
            return
        if len(self._holding()) + len(self._spare) < self._kept:
            self._spare.append(evaluator.group)
        else:
            remove_placement_group(evaluator.group)


def _why_ended(error: BaseException) -> tuple[str, str | None]:
    """Return why a call has ended without a result, and the traceback, if there is one."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return explain(error)
    return "ended without a result", None


def _is_ready(group: PlacementGroup) -> bool:
    """Return whether a placement group has its resources."""
    return bool(placement_group_table(group).get("state") == "CREATED")


class _Actor:
    """Builds the validation function, and calls it for one checkpoint after another."""

    def __init__(self, fn_ref: list[Any], first_bundle: int | None):
        self._fn_ref, self._first_bundle = fn_ref, first_bundle
        self._evaluate: Any = None

    def build(self) -> Any:
        return outcome_of(self._build)

    def _build(self) -> None:
        fn = ray.get(self._fn_ref[0])
        with telling(None, building=True):
            self._evaluate = fn() if is_built(fn) else fn
        if self._first_bundle is not None:
            self._evaluate.placed(self._first_bundle)

    def release(self) -> None:
        release_unused()

    def evaluate(
        self, checkpoint: Any, kwargs: dict[str, Any], told: Told, lookup: Lookup | None
    ) -> Iterator[Any]:
        def run() -> Iterator[Any]:
            return produced(lambda: self._evaluate(checkpoint, **kwargs))

        with telling(told):
            yield from looked_up(lookup, checkpoint, told, run)
