"""Run validations as Ray tasks and actors, and in the processes of trials."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.exceptions import (
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)
from ray.tune.experiment import Trial
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tunekit._ray.cluster import actor_of, generator_in, has_died, unplaced_like
from tunekit._ray.tuner import has_workers
from tunekit.config import AMOUNTS, ValidationConfig
from tunekit.core.executor import AttemptEvent, Began, Executor, Failed, HostEnded, Returned
from tunekit.core.shares import fits, fits_in, total
from tunekit.core.validation import Attempt
from tunekit.core.values import describe_error, message_of
from tunekit.validating.context import ValidationContext
from tunekit.validating.process import Call, Evaluator, validate_in_task, validate_in_trial
from tunekit.validating.trainer import validate_in_workers

logger = logging.getLogger(__name__)

# Options of tasks that actors do not have.
_OF_TASKS = ("max_retries", "max_calls")
# Errors that the memory held by training may have caused; the second is PyTorch's, for GPUs.
_MEMORY = {"MemoryError", "OutOfMemoryError"}
# The reasons for failures in which the function did not raise an exception.
_ENDED: dict[Any, str] = {
    OutOfMemoryError: "its process was killed for running out of memory",
    (WorkerCrashedError, RayActorError): "its process died",
    TaskCancelledError: "it was cancelled from outside",
}
# The number of evaluators is limited only by the room in the cluster.
_ANY_NUMBER = 1_000_000
# The idle seconds after which an evaluator ends, and after which it frees its unused GPU memory,
# which must not happen between two consecutive attempts.
_IDLE_S, _RELEASE_AFTER_S = 30.0, 1.0


@dataclass(eq=False)
class _Actor:
    """An evaluator, and its current attempt."""

    handle: Any
    #: The placement group that holds it and its workers; None: Ray places it.
    group: PlacementGroup | None
    #: Whether its process has started.
    up: bool = False
    flight: _Flight | None = None
    calls: int = 0
    idle_since: float = 0.0
    #: Whether it has freed its unused GPU memory since its newest attempt.
    released: bool = True


@dataclass(eq=False)
class _Flight:
    """A started attempt, and its process."""

    attempt: Attempt
    #: The trial in whose process it runs, and that process's actor.
    host: Trial | None = None
    process: Any = None
    actor: _Actor | None = None
    stream: Any = None
    begun: bool = False


class RayExecutor(Executor):
    """Run attempts as Ray's streaming generators, whose first item shows that they have begun.

    Without ``evaluators``, each attempt is a task of the driver. It is placed outside any placement
    group (unless ``ray_remote_kwargs`` sets one), so that the group of the driver or of a trial
    cannot capture it. While its trial waits, it can run in the trial's own process instead, where
    nothing has to be started or imported; ``undisturbed`` then restores the state of the process.
    Attempts do not run there if options concern the process, or after an attempt has ended a
    trial's process or run out of memory there. In a trial with several workers, a plain function
    runs on rank 0; one with ``bundles`` runs on all workers if their number matches
    (``validate_in_workers``).

    Elsewhere, a function with ``bundles`` runs on evaluators, because only a placement group that
    the driver owns can reserve the workers' resources and release them in every case.

    With ``evaluators``, attempts run on actors, each of which builds the function once. Actors
    start on demand. One that has died, or whose attempt has failed, is replaced: an error in its
    process, such as a CUDA error, must not fail the next attempt. One that has been idle for a
    second frees its unused GPU memory, and later releases its resources.

    Args:
        fn: ``fn(checkpoint, **kwargs) -> dict``; with ``evaluators``, also a class (or a
            ``functools.partial`` of one) whose instances are called like that. If each call also
            needs ``bundles``, the actor is placed together with them, and ``placed`` is called.
        ray_remote_kwargs: Options of the task or actor; by default, each takes one CPU.
            ``max_calls`` is also the number of attempts after which an actor is replaced; 0 for
            never.
        evaluators: The maximum number of actors; None for tasks.
        elsewhere: Whether to keep attempts out of the processes of trials.
    """

    poll_interval_s = 0.02

    def __init__(
        self,
        fn: Callable[..., Any],
        ray_remote_kwargs: Mapping[str, Any],
        *,
        evaluators: int | None = None,
        elsewhere: bool = False,
    ):
        self._fn = fn
        options = {"max_retries": 0, **ray_remote_kwargs}
        self._placed = "placement_group" in options or "scheduling_strategy" in options
        if "placement_group" not in options:
            # Otherwise, a placement group that this process is in would capture it (decision 2).
            options.setdefault("scheduling_strategy", "DEFAULT")
        self._name = options.pop("name", None)
        self._bundles = [dict(bundle) for bundle in getattr(fn, "bundles", [])]
        #: See :class:`Executor`.
        self.in_trials = (
            not elsewhere
            and evaluators is None
            and options.keys() <= AMOUNTS
            and getattr(fn, "fits_trials", True)
        )
        if evaluators is None and self._bundles:
            evaluators = _ANY_NUMBER
        self._most = evaluators
        self._max_calls = 0 if evaluators is None else options.get("max_calls", 0)
        if evaluators is not None:
            options = {name: one for name, one in options.items() if name not in _OF_TASKS}
            options.setdefault("num_cpus", 1)
        # A placement group chooses the nodes for all its processes.
        self._labels = options.pop("label_selector", None) if self._bundles else None
        self._options = options
        amounts = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus") or 0}
        amounts["memory"] = options.get("memory") or 0
        self._own = total({**amounts, **(options.get("resources") or {})})
        # The core of a waiting trial is free, whatever the trial has requested.
        self._asked = {
            name: amount
            for name, amount in self._own.items()
            if name != "CPU" or "num_cpus" in ray_remote_kwargs
        }
        self._need = total(self._own, *self._bundles, getattr(fn, "alongside", {}))
        self._remote: Any = None
        self._fn_ref: Any = None
        self._flights: dict[str, _Flight] = {}
        self._actors: list[_Actor] = []
        # The failures of attempts that could not be started.
        self._unstarted: dict[str, Failed] = {}
        #: Whether an attempt has returned a score in the process of a trial.
        self._proven = False

    @property
    def need(self) -> dict[str, float]:
        """See :class:`Executor`."""
        return dict(self._need)

    def fits_in(self, processes: Sequence[Mapping[str, float]]) -> bool:
        """See :class:`Executor`."""
        return self.in_trials and fits_in(self._bundles or self._asked, processes)

    def forbid_workers_in_trials(self) -> None:
        """See :class:`Executor`."""
        if self._bundles:
            self.in_trials = False

    # Attempts ----------------------------------------------------------------------------------

    def start(self, attempt: Attempt, *, host: Trial | None = None) -> None:
        """See :class:`Executor`."""
        flight = _Flight(attempt)
        try:
            flight.stream = self._begin(flight, host)
        except Exception as error:  # such as an argument that cannot be pickled
            reason = describe_error(error).reason.removeprefix("raised ")
            self._unstarted[attempt.id] = Failed(attempt.id, f"could not be started: {reason}")
            self._end_flight(flight)
            return
        self._flights[attempt.id] = flight

    def _begin(self, flight: _Flight, host: Trial | None) -> Any:
        """Start an attempt in the process chosen for it; return its stream."""
        attempt, request = flight.attempt, flight.attempt.request
        if self._remote is None:
            self._fn_ref = ray.put(self._fn)
            if self._most is None:
                self._remote = ray.remote(num_returns="streaming", **self._options)(
                    validate_in_task
                )
            else:
                self._remote = ray.remote(**self._options)(Evaluator)
        context = ValidationContext(
            request.trial_id,
            dict(request.config),
            request.iteration,
            request.generation,
            attempt.number,
        )
        kwargs = dict(request.kwargs)
        call = Call(attempt.id, self._fn_ref, request.checkpoint, kwargs, context)
        name = self._name or f"validate {request.trial_id}@{request.iteration}"
        process = None if host is None else actor_of(host)
        if host is not None and process is not None:
            flight.host, flight.process = host, process
            with_workers = partial(validate_in_workers, alone=not self._bundles)
            run = with_workers if has_workers(host) else validate_in_trial
            return generator_in(process, name)(run, call)
        if self._most is not None:
            actor = flight.actor = self._idle_actor() or self._build()
            actor.flight, actor.calls = flight, actor.calls + 1
            evaluate = actor.handle.evaluate.options(name=name, num_returns="streaming")
            return evaluate.remote(call)
        return self._remote.options(name=name).remote(call)

    def poll(self) -> Iterator[AttemptEvent]:
        """See :class:`Executor`."""
        while self._unstarted:
            yield self._unstarted.popitem()[1]
        while self._flights:
            streams = {flight.stream: flight for flight in self._flights.values()}
            ready, _ = ray.wait(list(streams), num_returns=len(streams), timeout=0)
            if not ready:
                break
            for stream in ready:
                if streams[stream].attempt.id in self._flights:  # it was not cancelled meanwhile
                    yield from self._advance(streams[stream])
        self._end_idle()

    def _advance(self, flight: _Flight) -> Iterator[AttemptEvent]:
        """Yield an attempt's next event."""
        event: AttemptEvent
        host = flight.host
        try:
            event = ray.get(next(flight.stream))
            if isinstance(event, Failed) and event.host_ended and host and not has_workers(host):
                ray.kill(flight.process)
                yield self._host_ended(flight, event.reason)
        except Exception as error:  # tasks can end with any exception, including Ray's own
            event = Failed(flight.attempt.id, *explain(error))
            lives_on = isinstance(error, (StopIteration, RayTaskError, TaskCancelledError))
            if host is not None and not lives_on:
                yield self._host_ended(flight, event.reason)
        if isinstance(event, Began):
            flight.begun = True
            if flight.actor is not None:
                flight.actor.up = True
        else:
            self._end_flight(flight, failed=isinstance(event, Failed))
            if host is not None:
                self._learn(flight, host, event)
        yield event

    def _learn(self, flight: _Flight, host: Trial, event: AttemptEvent) -> None:
        """Decide from an attempt's end in a trial's process whether others may run in trials."""
        if isinstance(event, Returned):
            self._proven = True
        elif not isinstance(event, Failed):
            return
        elif event.host_ended:
            what = f"ended the workers of trial {host.trial_id} ({event.reason}), which continues "
            self._stay_out(flight, what + "from its newest checkpoint")
        elif event.kind in _MEMORY:
            self._stay_out(flight, f"{event.reason}, in the process of {host.trial_id}")
        elif not (self._proven or self._bundles) and has_workers(host):
            # A library that training uses may still treat the process as one of several.
            what = f"{event.reason}, in a worker of trial {host.trial_id}, where none had succeeded"
            self._stay_out(flight, what)

    def awaited(self) -> Collection[Any]:
        """See :class:`Executor`."""
        return [flight.stream for flight in self._flights.values()]

    def cancel(self, attempt: Attempt, *, too_long: bool = True) -> str | None:
        """See :class:`Executor`."""
        flight = self._flights.get(attempt.id)
        self._unstarted.pop(attempt.id, None)
        if flight is None:
            return None
        self._end_flight(flight, failed=True)
        if flight.host is not None:
            ray.kill(flight.process)
            if too_long:
                self._host_ended(flight, "it had to be ended")
            return str(flight.host.trial_id)
        if flight.actor is None:
            ray.cancel(flight.stream, force=True)
        return None

    def _end_flight(self, flight: _Flight, *, failed: bool = False) -> None:
        """Record that an attempt has ended; release its evaluator for the next one, or end it."""
        self._flights.pop(flight.attempt.id, None)
        actor = flight.actor
        if actor is None:
            return
        actor.flight, actor.idle_since, actor.released = None, time.monotonic(), False
        if failed or actor.calls == self._max_calls:
            self._end(actor)

    def _host_ended(self, flight: _Flight, why: str) -> HostEnded:
        """Record that an attempt has ended the process of its trial."""
        assert flight.host is not None
        process = f"ended the process of trial {flight.host.trial_id} ({why}), which continues from"
        self._stay_out(flight, f"{process} its newest checkpoint if it has not ended")
        return HostEnded(flight.host.trial_id)

    def _stay_out(self, flight: _Flight, what: str) -> None:
        """Stop running attempts in the processes of trials; warn once."""
        if self.in_trials:
            self.in_trials = False
            logger.warning(
                "The validation of %s@%s %s. From now on, validations run in separate processes.",
                flight.attempt.request.trial_id,
                flight.attempt.request.iteration,
                what,
            )

    # Capacity ----------------------------------------------------------------------------------

    def _new(self) -> list[_Flight]:
        """Return the attempts whose processes have not started and may wait for resources."""
        flights = self._flights.values()
        return [
            one for one in flights if not (one.begun or one.host or (one.actor and one.actor.up))
        ]

    def capacity(self, promised: Iterable[tuple[Mapping[str, float], int]]) -> int:
        """See :class:`Executor`."""
        if self._need:
            room = fits(ray.available_resources(), promised, self._need) - len(self._new())
        else:  # it needs a core nevertheless
            room = int(ray.cluster_resources().get("CPU", 1)) - len(self._flights)
        if self._most is None:
            return room
        idle = sum(actor.flight is None for actor in self._actors)
        return idle + max(0, min(room, self._most - len(self._actors)))

    def unplaced(self) -> int:
        """See :class:`Executor`."""
        groups = [one.actor.group if one.actor else None for one in self._new()]
        unplaced = sum(group is not None and not _is_ready(group) for group in groups)
        anywhere = groups.count(None)
        return unplaced + (min(anywhere, unplaced_like(self._own)) if anywhere else 0)

    def spare(self, keep: int) -> None:
        """See :class:`Executor`."""
        idle = [actor for actor in self._actors if actor.flight is None]
        for actor in idle[: max(0, len(self._actors) - keep)]:
            self._end(actor)

    def close(self) -> None:
        """See :class:`Executor`."""
        self.in_trials = False
        for actor in list(self._actors):
            self._end(actor)

    # Evaluators --------------------------------------------------------------------------------

    def _idle_actor(self) -> _Actor | None:
        """Return an idle evaluator; None if one must be started."""
        for actor in list(self._actors):  # one that has died must not get an attempt
            if actor.flight is None and has_died(actor.handle):
                self._end(actor)
        known = sorted(self._actors, key=lambda actor: actor.up, reverse=True)
        return next((actor for actor in known if actor.flight is None), None)

    def _build(self) -> _Actor:
        """Start another evaluator."""
        remote, group = self._remote, None
        if not self._placed and self._bundles:
            bundles = [one for one in (dict(self._own), *self._bundles) if one]
            labels = [self._labels] * len(bundles) if self._labels else None
            group = placement_group(bundles, bundle_label_selector=labels)
            strategy = PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=0, placement_group_capture_child_tasks=False
            )
            remote = remote.options(scheduling_strategy=strategy)
        try:
            handle = remote.remote(int(bool(self._own)) if self._bundles else None)
        except Exception:
            if group is not None:
                remove_placement_group(group)
            raise
        actor = _Actor(handle, group)
        self._actors.append(actor)
        return actor

    def _end(self, actor: _Actor) -> None:
        """End an evaluator."""
        if actor in self._actors:
            self._actors.remove(actor)
            ray.kill(actor.handle)
            if actor.group is not None:
                remove_placement_group(actor.group)

    def _end_idle(self) -> None:
        now = time.monotonic()
        for actor in list(self._actors):
            idle_s = 0.0 if actor.flight else now - actor.idle_since
            if idle_s >= _IDLE_S:
                self._end(actor)
            elif idle_s >= _RELEASE_AFTER_S and not actor.released:
                actor.released = True
                actor.handle.release.remote()


def _is_ready(group: PlacementGroup) -> bool:
    """Return whether a placement group has its resources."""
    return bool(placement_group_table(group).get("state") == "CREATED")


def explain(error: Exception) -> tuple[str, str | None]:
    """Return the reason for a failure in one line, and the traceback, if there is one."""
    if isinstance(error, StopIteration):
        return "ended without a result", None
    trace = message_of(error)
    if isinstance(error, RayTaskError):
        return describe_error(getattr(error, "cause", error)).reason, trace
    reasons = (why for kinds, why in _ENDED.items() if isinstance(error, kinds))
    return next(reasons, f"was lost: {type(error).__name__}"), trace


def executor_of(config: ValidationConfig) -> Executor:
    """Return the executor for validations."""
    return RayExecutor(
        config.fn,
        config.ray_remote_kwargs,
        evaluators=config.evaluators,
        elsewhere=config.where == "elsewhere",
    )
