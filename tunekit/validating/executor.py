"""Where validations run: one interface, and Ray tasks behind it."""

from __future__ import annotations

import inspect
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import ray
from ray.exceptions import (
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)
from ray.tune.experiment import Trial
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from tunekit._ray.cluster import generator_in, kill, node_of, waiting_for
from tunekit._ray.raised import ends_the_process, in_worker
from tunekit.core.calls import takes_resume
from tunekit.core.metrics import distinct
from tunekit.core.room import fits, fits_in
from tunekit.core.validation import Attempt, Request
from tunekit.core.values import (
    Raised,
    admitted,
    bounded,
    described,
    parcelled,
    singled,
    unparcelled,
)
from tunekit.pickles import pack, travels, unpack
from tunekit.validating.cache import Lookup
from tunekit.validating.context import Told, telling
from tunekit.validating.undisturbed import undisturbed

__all__ = [
    "Began",
    "Configs",
    "Estimated",
    "Event",
    "Executor",
    "Failed",
    "Lost",
    "RayExecutor",
    "Returned",
    "Scored",
    "Yielded",
    "arguments",
    "ended",
    "explain",
    "in_place_of",
    "is_cancelled",
    "looked_up",
    "outcome_of",
    "own_resources",
    "plain",
    "produced",
    "received",
    "unstarted",
]


logger = logging.getLogger(__name__)

# The options of a task that say what it needs, and nothing about its process.
_NEEDS = {"num_cpus", "num_gpus", "memory", "resources", "max_retries", "scheduling_strategy"}

# What is raised where the memory that training holds is missing; PyTorch's for GPUs.
_MEMORY = {"MemoryError", "OutOfMemoryError"}


@dataclass(frozen=True)
class Began:
    """An attempt has got its resources and runs."""

    attempt_id: str


@dataclass(frozen=True)
class Estimated:
    """An attempt's function has yielded what it knows so far."""

    attempt_id: str
    value: Any


@dataclass(frozen=True)
class Returned:
    """An attempt's function has returned a value.

    Attributes:
        key: The name that the score has in the cache; None without a cache.
        cached: Whether it was there, and the function was not called.
    """

    attempt_id: str
    value: Any
    key: str | None = field(default=None, repr=False)
    cached: bool = field(default=False, repr=False)


@dataclass(frozen=True)
class Failed:
    """An attempt's function has raised, or its process is gone."""

    attempt_id: str
    reason: str
    error: str | None = None


@dataclass(frozen=True)
class Lost:
    """The process of a trial has ended with an attempt that ran in it.

    Attributes:
        trial_id: The trial.
    """

    trial_id: str


Event = Began | Estimated | Returned | Failed | Lost


class Executor(Protocol):
    """Runs attempts alongside the sweep. No method waits for one to end.

    Attributes:
        poll_interval_s: Seconds to let pass between two polls: 100 times what one costs.
        in_trials: Whether attempts in the place of a trial run in its process.
    """

    poll_interval_s: float
    in_trials: bool

    @property
    def need(self) -> dict[str, float]:
        """Return the logical resources of one attempt: ``{"CPU": 1, ...}``."""
        ...

    def reserve(self, slots: int) -> None:
        """Keep resources for this many attempts from now on, whatever else wants them."""
        ...

    def fits_in(self, resources: Mapping[str, float]) -> bool:
        """Return whether an attempt could run in the place of a trial that waits.

        Args:
            resources: What the trial holds and does not use meanwhile.
        """
        ...

    def start(self, attempt: Attempt, *, lender: Trial | None = None) -> None:
        """Start an attempt; whatever goes wrong with it comes out of :meth:`poll`.

        Args:
            attempt: The attempt.
            lender: The trial in whose place it runs, taking no resources of its own.
        """
        ...

    def poll(self) -> list[Event]:
        """Return what has happened since the last call, in order."""
        ...

    def awaited(self) -> Collection[Any]:
        """Return references to Ray objects; once one is ready, a :meth:`poll` is worthwhile."""
        ...

    def cancel(self, attempt: Attempt) -> None:
        """End an attempt at once; :meth:`poll` says nothing more about it."""
        ...

    def stop(self, attempt: Attempt) -> None:
        """End an attempt that has yielded enough, at its next yield; its process lives on.

        :meth:`poll` says nothing more about it.
        """
        ...

    def capacity(self, promised: Iterable[Mapping[str, float]]) -> int:
        """Return how many more attempts the free resources can run now.

        Args:
            promised: The needs of others that wait for resources and go first; iterated over at
                most once.
        """
        ...

    def queued(self) -> int:
        """Return how many attempts were started and wait for resources because none are free.

        Attempts that have their resources and whose processes are starting are not among them.
        """
        ...

    def use_reserve(self) -> None:
        """Move what :meth:`queued` counts to what :meth:`reserve` keeps, as far as it has room."""
        ...

    def spare(self) -> None:
        """Give back what is kept only for later attempts: others need it now."""
        ...

    def close(self) -> None:
        """Give back what it holds: nothing more will run."""
        ...


def own_resources(options: Mapping[str, Any]) -> dict[str, float]:
    """Return what a task or actor with these options of ``ray.remote`` takes.

    Example:
        >>> own_resources({"num_gpus": 0.5, "resources": {"validation": 1}})
        {'CPU': 1, 'GPU': 0.5, 'validation': 1}
    """
    own = {
        "CPU": options.get("num_cpus", 1),
        "GPU": options.get("num_gpus"),
        "memory": options.get("memory"),
        **(options.get("resources") or {}),
    }
    return {name: amount for name, amount in own.items() if amount}


class RayExecutor:
    """Runs each attempt as a Ray task, started from the driver.

    The task is placed outside any placement group (unless ``ray_remote_kwargs`` says otherwise), so
    that neither the driver's nor a trial's can capture it. It is a streaming generator, whose first
    item says that it has begun to run.

    In the place of a trial, an attempt runs in the trial's own process, in which nothing has to be
    started or imported, and which is then as before (:func:`undisturbed`). What an option asks of
    its process makes it a task there, too; so is everything once a trial's process has ended with
    an attempt in it, or had too little memory for one.

    Args:
        fn: ``fn(checkpoint, **kwargs) -> dict``.
        ray_remote_kwargs: Options of the task.
        lookup: Returns where a request's score is looked for before the function is called; None:
            nowhere.
    """

    poll_interval_s = 0.02

    def __init__(
        self,
        fn: Callable[..., Any],
        ray_remote_kwargs: Mapping[str, Any],
        *,
        lookup: Callable[[Request], Lookup | None] = lambda request: None,
    ):
        self._fn, self._lookup = fn, lookup
        options = dict(ray_remote_kwargs)
        options.setdefault("max_retries", 0)
        self._placed = "placement_group" in options or "scheduling_strategy" in options
        if "placement_group" not in options:
            options.setdefault("scheduling_strategy", "DEFAULT")
        self._name = options.pop("name", None)
        self._options = options
        # Ray itself is to retry after an exception, so it has to see it.
        self._raises = bool(options.get("retry_exceptions"))
        self._own = own_resources(options)
        #: See :class:`Executor`.
        self.in_trials = options.keys() <= _NEEDS
        # The trials in whose processes attempts run, by attempt.
        self._in_process: dict[str, Trial] = {}
        self._slots = 0
        self._group: PlacementGroup | None = None
        self._in_group: set[str] = set()
        #: The attempts that run in the place of a trial.
        self._lent: set[str] = set()
        self._task: Any = None
        self._fn_ref: Any = None
        self._streams: dict[Any, Attempt] = {}
        self._by_id: dict[str, Any] = {}
        self._begun: set[str] = set()
        self._unstarted: list[Event] = []
        self._configs = Configs()

    @property
    def need(self) -> dict[str, float]:
        """See :class:`Executor`."""
        return dict(self._own)

    def reserve(self, slots: int) -> None:
        """See :class:`Executor`."""
        if self._own and not self._placed:
            self._slots = slots
            self._group = placement_group([dict(self._own)] * slots)

    def fits_in(self, resources: Mapping[str, float]) -> bool:
        """See :class:`Executor`."""
        return not self._placed and fits_in(self._own, resources, in_process=self.in_trials)

    def start(self, attempt: Attempt, *, lender: Trial | None = None) -> None:
        """See :class:`Executor`."""
        try:
            stream = self._started(attempt, lender)
        except Exception as error:  # it cannot be pickled, for example
            self._unstarted.append(unstarted(attempt, error))
            self._in_group.discard(attempt.id)
            self._lent.discard(attempt.id)
            self._in_process.pop(attempt.id, None)
            return
        self._streams[stream] = attempt
        self._by_id[attempt.id] = stream

    def _started(self, attempt: Attempt, lender: Trial | None) -> Any:
        """Start an attempt where it belongs; return the stream of what comes from it."""
        request = attempt.request
        if self._task is None:
            self._fn_ref = ray.put(self._fn)
            self._task = ray.remote(num_returns="streaming", **self._options)(_validate)
        name = self._name or f"validate {request.trial_id}@{request.iteration}"
        options: dict[str, Any] = {"name": name}
        # In a list, the function is only fetched after the task has said that it has begun.
        told = [self._fn_ref], request.checkpoint, arguments(self._fn, request)
        more = self._configs.told(attempt), self._raises, self._lookup(request)
        if lender is not None:
            self._lent.add(attempt.id)
            run = generator_in(lender, name) if self.in_trials else None
            if run is not None:
                self._in_process[attempt.id] = lender
                return run(_validate_in_trial, *told, *more)
            options.update(in_place_of(lender))
        elif len(self._in_group) < self._slots:
            self._in_group.add(attempt.id)
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._group, placement_group_capture_child_tasks=False
            )
        return self._task.options(**options).remote(*told, *more)

    def poll(self) -> list[Event]:
        """See :class:`Executor`."""
        events, self._unstarted = self._unstarted, []
        while self._streams:
            streams = list(self._streams)
            ready, _ = ray.wait(streams, num_returns=len(streams), timeout=0)
            if not ready:
                break
            for stream in ready:
                events.extend(self._advance(stream))
        return events

    def awaited(self) -> Collection[Any]:
        """See :class:`Executor`."""
        return self._streams.keys()

    def cancel(self, attempt: Attempt) -> None:
        """See :class:`Executor`."""
        stream, lender = self._by_id.get(attempt.id), self._in_process.get(attempt.id)
        if stream is None:
            return
        self._forget(stream)
        if lender is None:
            ray.cancel(stream, force=True)
        else:
            kill(lender)
            self._unstarted.append(self._leave(lender, attempt, "it had to be ended"))

    def stop(self, attempt: Attempt) -> None:
        """See :class:`Executor`."""
        stream = self._by_id.get(attempt.id)
        if stream is not None:
            self._forget(stream)
            ray.cancel(stream, force=False)

    def capacity(self, promised: Iterable[Mapping[str, float]]) -> int:
        """See :class:`Executor`."""
        if not self._own:  # it still runs on a core
            return int(ray.cluster_resources().get("CPU", 1)) - len(self._streams)
        elsewhere = self._in_group | self._lent | self._begun
        waiting_for_resources = len(self._by_id.keys() - elsewhere)
        room = fits(ray.available_resources(), promised, self._own)
        return self._slots - len(self._in_group) + max(0, room - waiting_for_resources)

    def queued(self) -> int:
        """See :class:`Executor`."""
        starting = len(self._by_id.keys() - self._begun - self._lent)
        return min(starting, waiting_for(self._own)) if starting else 0

    def use_reserve(self) -> None:
        """See :class:`Executor`.

        What the attempts wait for may be in the reserve itself: when its node is lost, it moves to
        another one, and takes what looked free there when they were started.
        """
        elsewhere = self._in_group | self._lent | self._begun
        waiting = [one for one in self._streams.values() if one.id not in elsewhere]
        for attempt in waiting[: self._slots - len(self._in_group)]:
            self.cancel(attempt)
            self.start(attempt)

    def spare(self) -> None:
        """See :class:`Executor`."""

    def close(self) -> None:
        """See :class:`Executor`."""
        self.in_trials = False
        if self._group is not None:
            remove_placement_group(self._group)
            self._group, self._slots = None, 0

    def _advance(self, stream: Any) -> Iterator[Event]:
        attempt_id = self._streams[stream].id
        try:
            value = ray.get(next(stream))
        except StopIteration:
            self._forget(stream)
            yield Failed(attempt_id, "ended without a result")
        except Exception as error:  # anything that a task can end with, including Ray's own errors
            attempt, lender = self._streams[stream], self._in_process.get(attempt_id)
            self._forget(stream)
            reason, trace = explain(error)
            if lender is not None and not isinstance(error, (RayTaskError, TaskCancelledError)):
                yield self._leave(lender, attempt, reason)
            yield Failed(attempt_id, reason, trace)
        else:
            if attempt_id not in self._begun:
                self._begun.add(attempt_id)
                yield Began(attempt_id)
            elif isinstance(value, Yielded):
                yield Estimated(attempt_id, value.metrics)
            else:
                lender, attempt = self._in_process.get(attempt_id), self._streams[stream]
                self._forget(stream)
                if lender is not None and isinstance(value, Raised) and value.kind in _MEMORY:
                    self._stay_out(attempt, f"{value.reason}, in the process of {lender.trial_id}")
                yield ended(attempt_id, value)

    def _forget(self, stream: Any) -> None:
        attempt_id = self._streams.pop(stream).id
        del self._by_id[attempt_id]
        self._begun.discard(attempt_id)
        self._in_group.discard(attempt_id)
        self._lent.discard(attempt_id)
        self._in_process.pop(attempt_id, None)

    def _leave(self, lender: Trial, attempt: Attempt, why: str) -> Lost:
        """Take that the process of a trial has ended with an attempt in it."""
        self._stay_out(
            attempt,
            f"ended the process of trial {lender.trial_id} ({why}), which goes on from its newest "
            "checkpoint",
        )
        return Lost(lender.trial_id)

    def _stay_out(self, attempt: Attempt, what: str) -> None:
        """Run nothing in the processes of trials any more; say so once."""
        if self.in_trials:
            self.in_trials = False
            logger.warning(
                "The validation of %s@%s %s. From now on, validations run in processes of their "
                "own.",
                attempt.request.trial_id,
                attempt.request.iteration,
                what,
            )


def in_place_of(lender: Trial) -> dict[str, Any]:
    """Return the options of a task or actor that runs in the place of a trial."""
    node = node_of(lender)
    place = "DEFAULT" if node is None else NodeAffinitySchedulingStrategy(node, soft=True)
    return {"num_cpus": 0, "scheduling_strategy": place}


def _validate(
    fn_ref: list[Any],
    checkpoint: Any,
    kwargs: dict[str, Any],
    told: Told,
    raises: bool,
    lookup: Lookup | None,
) -> Iterator[Any]:
    yield None  # has begun

    def run() -> Iterator[Any]:
        return produced(lambda: ray.get(fn_ref[0])(checkpoint, **kwargs), raises=raises)

    with telling(told):
        yield from looked_up(lookup, checkpoint, told, run)


def _validate_in_trial(trainable: Any, *told: Any) -> Iterator[Any]:
    """Validate in the process of a trial that stands still."""
    with undisturbed():
        yield from _validate(*told)


@dataclass(frozen=True)
class Yielded:
    """What a validation has yielded, on its way to the driver."""

    metrics: Any


@dataclass(frozen=True)
class Scored:
    """What a validation has returned, on its way to the driver, if there is a cache.

    Attributes:
        value: What it has returned.
        key: The name that the score has in the cache.
        found: Whether it was there.
    """

    value: Any
    key: str
    found: bool = False


def looked_up(
    lookup: Lookup | None, checkpoint: Any, told: Told, run: Callable[[], Iterator[Any]]
) -> Iterator[Any]:
    """Yield what a validation yields, unless its score is in the cache: then yield that.

    Args:
        lookup: Where to look; None: nowhere.
        checkpoint: The checkpoint.
        told: Whose it is.
        run: Runs the validation, as :func:`produced` does.
    """
    if lookup is None:
        yield from run()
        return
    key, known = lookup.find(checkpoint, lambda: told.context().config)
    if key is None:
        yield from run()
    elif known is not None:
        yield Scored(known, key, found=True)
    else:
        for step in run():
            yield Scored(step, key) if isinstance(step, Mapping) else step


def produced(call: Callable[[], Any], *, raises: bool = False) -> Iterator[Any]:
    """Yield what a validation yields, as :class:`Yielded`, and then what it returns or raises.

    A generator that returns nothing has returned what it yielded last.

    Args:
        call: Calls the validation function.
        raises: Whether to raise what it raises, rather than yield a description of that.

    Example:
        >>> def validate():
        ...     yield {"accuracy": 0.8}
        ...     yield {"accuracy": 0.9}
        >>> list(produced(validate))[1:]
        [Yielded(metrics={'accuracy': 0.9}), {'accuracy': 0.9}]
    """
    safely = (lambda step: step()) if raises else outcome_of
    returned = safely(call)
    if isinstance(returned, Raised):
        yield returned
        return
    if not inspect.isgenerator(returned):
        yield safely(lambda: plain(returned))
        return
    newest: Any = None
    while True:
        step = safely(lambda: _next(returned))
        if not isinstance(step, Yielded):
            yield newest if step is None else step
            return
        newest = step.metrics
        yield step
        if is_cancelled():
            returned.close()
            return


def _next(generator: Iterator[Any]) -> Any:
    """Return what a generator yields next, as :class:`Yielded`, or what it returns at its end."""
    try:
        return Yielded(plain(next(generator)))
    except StopIteration as end:
        return None if end.value is None else plain(end.value)


def is_cancelled() -> bool:
    """Return whether the driver wants this attempt to end."""
    return in_worker() and bool(ray.get_runtime_context().is_canceled())


def arguments(fn: Callable[..., Any], request: Request) -> dict[str, Any]:
    """Return the keyword arguments of a validation.

    A function that takes ``resume`` gets what an earlier attempt has yielded, by the flat names of
    the metrics; an empty dict if there was none.

    Example:
        >>> def validate(checkpoint, resume): ...
        >>> arguments(validate, Request("a", 1))
        {'resume': {}}
    """
    kwargs = dict(request.kwargs)
    if takes_resume(fn):
        kwargs.setdefault("resume", dict(request.known))
    return kwargs


class Configs:
    """Hands each trial's configuration to its validations, as one object in Ray's store.

    A configuration is put there once for each generation of a trial, however large it is and
    however many of the trial's checkpoints are validated. Only a function that asks for it fetches
    it. At most ``most`` of them are kept at a time.

    Args:
        most: How many to keep.
    """

    def __init__(self, most: int = 64):
        self._most = most
        self._refs: OrderedDict[tuple[str, int], Any] = OrderedDict()

    def told(self, attempt: Attempt) -> Told:
        """Return what an attempt's process is told."""
        request = attempt.request
        of = (request.trial_id, request.generation)
        ref = self._refs.pop(of, None)
        if ref is None:
            config = dict(request.config)
            try:
                ref = ray.put(config)
            except Exception:  # the store is full, for example: it travels with the validation
                ref = config
        self._refs[of] = ref
        while len(self._refs) > self._most:
            self._refs.popitem(last=False)
        return Told(*of, request.iteration, attempt.number, ref, stage=request.stage)


def outcome_of(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or a description of what it raised: no exception is pickled.

    Example:
        >>> outcome_of(lambda: 1 / 0).reason
        'raised ZeroDivisionError: division by zero'
    """
    try:
        return call()
    except TaskCancelledError:
        raise
    except RayTaskError as error:  # from a task that the function started
        return replace(described(error.cause or error), trace=described(error).message)
    except BaseException as error:  # anything that the user's function can raise
        if ends_the_process(error):
            raise
        return described(error)


def ended(attempt_id: str, value: Any) -> Event:
    """Return the event of an attempt's end, given what :func:`outcome_of` returned."""
    if isinstance(value, Raised):
        return Failed(attempt_id, value.reason, value.trace)
    if isinstance(value, Scored):
        return Returned(attempt_id, value.value, value.key, value.found)
    return Returned(attempt_id, value)


def unstarted(attempt: Attempt, error: Exception) -> Failed:
    """Return the failure of an attempt that could not be started."""
    reason = described(error).reason.removeprefix("raised ")
    return Failed(attempt.id, f"could not be started: {reason}")


def plain(value: Any) -> Any:
    """Return what a validation function returned, in a form that another process can read.

    Arrays and tensors of one element are replaced by the number in them, other objects by parcels,
    so the driver needs neither torch nor the user's classes, and what is too large by a text.

    Example:
        >>> import numpy
        >>> plain({"accuracy": numpy.float32(0.5), "by_class": {"7": numpy.array([1])}})
        {'accuracy': 0.5, 'by_class': {'7': 1}}
    """
    own = singled(admitted(value, travels))
    return bounded(parcelled(admitted(own, travels), pack))


def received(value: Any) -> Any:
    """Return what a validation returned, in a form that every part of a sweep can handle.

    Example:
        >>> received(plain({"accuracy": 0.5, "seen": {3}}))
        {'accuracy': 0.5, 'seen': {3}}
    """
    own = admitted(unparcelled(admitted(value, travels), unpack), travels)
    return distinct(own) if isinstance(own, dict) else own


def explain(error: Exception) -> tuple[str, str]:
    """Return one line that says what happened, and the traceback."""
    if isinstance(error, RayTaskError):
        cause = getattr(error, "cause", error)
        return described(cause).reason, described(error).message
    trace = described(error).message
    if isinstance(error, OutOfMemoryError):
        return "its process was killed for running out of memory", trace
    if isinstance(error, (WorkerCrashedError, RayActorError)):
        return "its process died", trace
    if isinstance(error, TaskCancelledError):
        return "it was cancelled from outside", trace
    return f"was lost: {type(error).__name__}", trace
