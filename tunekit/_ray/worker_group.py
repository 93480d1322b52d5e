"""A worker group: the living workers of a distributed trial, and the trial's side of them.

Ray Train's controller runs in the trial's own actor, in a thread, and its workers in the bundles
of the trial's placement group. So Tune starts a trial only where all of it fits, and whatever ends
the trial's actor, or gives its placement group back, ends the workers and frees what they held.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ray
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.constants import HEALTH_CHECK_INTERVAL_S_ENV_VAR
from ray.train.v2._internal.execution.callback import ReportCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.context import TrainRunContext
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.failure_handling import create_failure_policy
from ray.train.v2._internal.execution.scaling_policy import create_scaling_policy
from ray.train.v2._internal.execution.training_report import _TrainingReport
from ray.train.v2._internal.execution.worker_group import WorkerGroup, WorkerGroupPollStatus
from ray.train.v2._internal.execution.worker_group.placement_group_handle import (
    DefaultPlacementGroupHandle,
)
from ray.train.v2._internal.util import ObjectRefWrapper
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util.placement_group import get_current_placement_group

from tunekit._ray.raised import LoopError
from tunekit._ray.workers import (
    TAG,
    Assignment,
    SideTask,
    TrialWorker,
    add,
    allow,
    assign,
    hold,
    leave,
    serve,
)
from tunekit.core.assignments import AssignmentLog, may_return
from tunekit.core.resuming import Resumption
from tunekit.core.yields import GroupYields
from tunekit.errors import ConfigError

__all__ = [
    "Apart",
    "Begun",
    "Done",
    "Ended",
    "Event",
    "Finished",
    "Report",
    "TrialWorkerGroup",
    "ValidationWorkerGroup",
    "WorkersLost",
    "Yielded",
    "lasts",
]

logger = logging.getLogger(__name__)

# Ray's own is 2 s. A poll is one call of each worker's idle actor, and the next one follows at
# once where there was a report.
_POLL_INTERVAL_S = 0.05

# How long to wait for workers to die that were killed.
_KILL_S = 30.0

# How often to ask whether more estimates are needed, while none comes.
_LOOK_S = 0.05

# Backends whose processes can run one training loop after another, and which set up each thread by
# itself. XGBoost's rendezvous, for one, is there for one loop only, and waits for all workers.
_LASTING = ("ray.train.torch.config.TorchConfig", "ray.train.backend.BackendConfig")

_DIED = "a worker of its trial died"

# How long to wait for the other workers once one has left a loop that is to be left.
_LEAVE_S = 30.0


@dataclass(frozen=True)
class Begun:
    """All workers have begun the assignment."""

    job: int


@dataclass(frozen=True)
class Report:
    """All workers have reported.

    Attributes:
        job: Of which assignment, counted by the worker group.
        number, report: Of which assignment, and which of its reports, counted by the workers.
        iteration: Which iteration of the trial it is.
        metrics: Those of rank 0.
        checkpoint: What the workers have uploaded; None without one.
        validation: What the report said about validating it.
        goes_on: Whether a loop that was resumed had asked for its checkpoint.
    """

    job: int
    number: int
    report: int
    iteration: int
    metrics: dict[str, Any]
    checkpoint: Any
    validation: Any
    goes_on: bool


@dataclass(frozen=True)
class Yielded:
    """The loop has yielded ``value`` in the worker of rank 0."""

    job: int
    value: Any


@dataclass(frozen=True)
class Apart:
    """The workers cannot leave the loop together any more."""

    job: int
    reason: str


@dataclass(frozen=True)
class Finished:
    """The loop has returned in all workers, and ``value`` in that of rank 0."""

    job: int
    value: Any = None


@dataclass(frozen=True)
class Done:
    """A side task has ended: with ``value``, in the worker of rank 0, or with an exception.

    Attributes:
        together: Whether all workers have ended it as they should, and so are still in step.
    """

    job: int
    value: Any
    together: bool


@dataclass(frozen=True)
class Ended:
    """The workers are gone for good."""

    error: Exception | None


Event = Begun | Report | Yielded | Apart | Finished | Done | Ended


class WorkersLost(Exception):
    """The workers have ended, or are out of step: others have to take their place."""


def lasts(backend_config: Any) -> bool:
    """Return whether workers with such a backend can run one loop after another."""
    cls = type(backend_config)
    return f"{cls.__module__}.{cls.__qualname__}" in _LASTING


class TrialWorkerGroup:
    """Starts the workers of a trainer, and gives them one assignment after another.

    Args:
        trainer: The trainer, with the settings of the first assignment.
        ahead: From how many reports workers may return before it is known what becomes of the
            trial.
        stands: Whether that goes only for reports without a checkpoint.
        validates: Whether a report may ask for a validation.
        first_bundle: Which bundle of this actor's placement group is that of rank 0; those of the
            others follow.
    """

    def __init__(
        self,
        trainer: DataParallelTrainer,
        *,
        ahead: int = 0,
        stands: bool = False,
        validates: bool = False,
        first_bundle: int = 0,
    ):
        self._trainer, self._first_bundle = trainer, first_bundle
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        #: What has happened while a side task ran, and is not about that.
        self._meanwhile: deque[Event] = deque()
        self._link = _Link(self._events, ahead, validates, stands)
        self._job = 0
        self._controller: _Controller | None = None
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="tunekit-workers", daemon=True)

    @property
    def alive(self) -> bool:
        """Return whether it may take another assignment."""
        return self._thread.is_alive() and not self._link.closed

    def assign(
        self, run_context: TrainRunContext, checkpoint: Any, iteration: int, token: str
    ) -> None:
        """Let the workers train.

        Args:
            run_context: The configuration, and where to store.
            checkpoint: Where to begin; None to begin from scratch.
            iteration: Which iteration of the trial that is.
            token: What the names of the checkpoints that they upload end with.
        """
        self._job += 1
        work = _Work(self._job, run_context, token)
        give = partial(self._give, work, checkpoint, iteration)
        if self._thread.ident is None:
            give()
            self._thread.start()
        else:
            self._loop.call_soon_threadsafe(give)

    def decided(self, report: Report) -> None:
        """It is known what becomes of the trial after that report: it goes on."""
        self._loop.call_soon_threadsafe(self._link.decided, report)

    def leave(self) -> None:
        """No more estimates are needed: the workers leave the loop, all at the same yield."""
        self._loop.call_soon_threadsafe(self._link.leave)

    def beside(
        self, call: Callable[[], Any], *, alone: bool, is_cancelled: Callable[[], bool] = bool
    ) -> Generator[Any, None, Any]:
        """Run a side task while the workers stand still; yields what it yields in rank 0, and
        returns likewise.

        Closed early, it lets all workers leave the task at their next yield, and waits for that.

        Args:
            call: What to do (:class:`~tunekit._ray.workers.SideTask`).
            alone: Whether rank 0 does it alone.
            is_cancelled: Returns whether no more is needed; asked while nothing is yielded.

        Raises:
            LoopError: If it raises. If not all workers are in step after that, none is alive.
            WorkersLost: If a worker has ended meanwhile, or they are out of step; none is alive.
        """
        self._loop.call_soon_threadsafe(self._link.add, call, alone)
        meanwhile: list[Event] = []
        try:
            end = yield from _yielded_by(self, Done, meanwhile.append, is_cancelled)
        finally:
            self._meanwhile.extend(meanwhile)
        if end is None:
            return None
        if not isinstance(end, Done):
            self.dismiss()
            raise WorkersLost(end.reason if isinstance(end, Apart) else _DIED)
        if not end.together:
            self.dismiss()
        if isinstance(end.value, LoopError):
            raise end.value
        return end.value

    def next_event(self, timeout_s: float | None = None) -> Event | None:
        """Wait for what happens next in the newest assignment; None if nothing does in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                known = self._meanwhile
                event = known.popleft() if known else self._events.get(timeout=left)
            except queue.Empty:
                return None
            if isinstance(event, Ended) or event.job == self._job:
                return event

    def dismiss(self) -> None:
        """End the workers, at once, and wait until they are gone."""
        self._link.closed = True
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._cancel)
            self._thread.join(_KILL_S)

    def _give(self, work: _Work, checkpoint: Any, iteration: int) -> None:
        if self._controller is not None:  # failures of former assignments do not count
            self._controller.forget_failures(work.run_context.run_config.failure_config)
        self._link.assign(work, checkpoint, iteration)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        error: Exception | None = None
        try:
            self._loop.run_until_complete(self._train())
            if self._controller is not None:
                error = self._controller.get_training_failed_error()
        except asyncio.CancelledError:
            pass
        except Exception as raised:
            error = raised
        finally:
            try:
                if self._controller is not None:
                    self._controller.end_workers()
            finally:
                self._events.put(Ended(error))

    async def _train(self) -> None:
        self._task = asyncio.current_task()
        trainer = self._trainer
        context = trainer.backend_config.train_func_context
        apart = context if lasts(trainer.backend_config) else contextlib.nullcontext
        serving = partial(serve, trainer.train_loop_per_worker, context, apart)
        callbacks = [
            callback
            for callback in trainer._create_default_callbacks()
            if not isinstance(callback, PlacementGroupCleanerCallback)  # the group is Tune's
        ]
        if sum(node["Alive"] for node in ray.nodes()) == 1:
            # There is nowhere to go, and the watcher would be one more process.
            os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
        self._controller = _Controller(
            first_bundle=self._first_bundle,
            train_fn_ref=ObjectRefWrapper(serving),
            train_run_context=trainer.train_run_context,
            scaling_policy=create_scaling_policy(trainer.scaling_config),
            failure_policy=create_failure_policy(trainer.run_config.failure_config),
            link=self._link,
            callbacks=[self._link, *callbacks],
        )
        await self._controller.run()


@dataclass(frozen=True)
class _Work:
    """What the trial wants done."""

    job: int
    run_context: TrainRunContext
    token: str


class ValidationWorkerGroup:
    """Workers that live on, each of whose assignments is a validation.

    Args:
        trainer: The trainer whose loop validates.
        first_bundle: As for :class:`TrialWorkerGroup`.
    """

    def __init__(self, trainer: DataParallelTrainer, first_bundle: int):
        self._trainer = trainer
        self._workers = TrialWorkerGroup(trainer, first_bundle=first_bundle)

    @property
    def alive(self) -> bool:
        """Return whether it may run another."""
        return self._workers.alive

    def run(
        self, config: dict[str, Any], is_cancelled: Callable[[], bool] = bool
    ) -> Generator[Any, None, Any]:
        """Run the loop with a configuration; yields what it yields in rank 0, and returns likewise.

        Closed early, it lets all workers leave the loop at their next yield, and waits for that.

        Args:
            config: The configuration.
            is_cancelled: Returns whether no more is needed; asked while nothing is yielded.

        Raises:
            ray.train.TrainingFailedError: If the loop raises, or a worker dies. No other can run.
            ConfigError: If workers yield unequally often; no other can run.
        """
        context = replace(self._trainer.train_run_context, train_loop_config=config)
        self._workers.assign(context, None, 0, "validation")
        end = yield from _yielded_by(self._workers, Finished, self._take, is_cancelled)
        if isinstance(end, Apart | Ended):
            self._workers.dismiss()
            raise _error_of(end)
        return None if end is None else end.value

    def _take(self, event: Event) -> None:
        if isinstance(event, Report):  # which is of no use to a validation
            self._workers.decided(event)


def _yielded_by(
    workers: TrialWorkerGroup,
    end: type[Done | Finished],
    take: Callable[[Event], None],
    is_cancelled: Callable[[], bool],
) -> Generator[Any, None, Any]:
    """Yield what rank 0 yields, and return the event that ends it; None if it was cancelled.

    Closed early, or cancelled, it lets all workers leave at their next yield, and waits for that.

    Args:
        workers: The workers.
        end: What ends it.
        take: Takes what else happens.
        is_cancelled: Returns whether no more is needed; asked while nothing is yielded.
    """
    ended = False

    def next_event(timeout_s: float | None) -> Event | None:
        nonlocal ended
        event = workers.next_event(timeout_s)
        ended = isinstance(event, (end, Apart, Ended))
        if not (ended or event is None or isinstance(event, Yielded)):
            take(event)
        return event

    try:
        while True:
            event = next_event(_LOOK_S)
            if isinstance(event, Yielded):
                yield event.value
            elif ended:
                return event
            elif event is None and is_cancelled():
                return None
    finally:
        if not ended:
            workers.leave()
        while not ended:
            if isinstance(next_event(None), Apart | Ended):
                workers.dismiss()


def _error_of(event: Apart | Ended) -> Exception:
    if isinstance(event, Apart):
        return ConfigError("TrainerValidation", [event.reason])
    return event.error or RuntimeError("The workers have ended.")


class _Link(ReportCallback, WorkerGroupCallback):
    """Between Ray Train's controller and the trial; all but ``closed`` lives in the thread there.

    What the workers do is numbered: each assignment of the trial, and each start of new workers
    for it after a failure, is an assignment for them.
    """

    def __init__(
        self,
        events: queue.SimpleQueue[Event],
        ahead: int,
        validates: bool,
        stands: bool = False,
    ):
        self._events, self._ahead, self._validates = events, ahead, validates
        self._stands = stands
        self.closed = False
        self._group: WorkerGroup | None = None
        self._work: _Work | None = None
        # The newest assignment, the newest assignment or side task, and how many workers do that.
        self._number = self._newest = self._doing = 0
        # What each worker that has ended the newest side task has to say of it.
        self._outcomes: dict[int, Any] = {}
        self._busy = False
        # Up to which report of the assignment it is decided what becomes of the trial, and the
        # newest report that has no checkpoint.
        self._decided = self._clear = 0
        # Where the workers begin when they start anew.
        self._checkpoint: Any = None
        self._iteration = 0
        # Where they have begun, and whether they know.
        self._base, self._resumption = 0, Resumption()
        self._begun = self._finished = 0
        # What the newest finished assignment has returned in rank 0.
        self._value: Any = None
        self._log_of_begun, self._log_of_finished = AssignmentLog(), AssignmentLog()
        # How far a loop has come that yields, and what was said about that.
        self._yields = GroupYields(0, 0)
        self._leaving = self._left = self._apart = False
        self._some_over_since = float("inf")

    # From the trial ----------------------------------------------------------------------------

    def assign(self, work: _Work, checkpoint: Any, iteration: int) -> None:
        self._work, self._checkpoint, self._iteration = work, checkpoint, iteration
        if self._group is not None:
            self._give(self._group)

    def decided(self, report: Report) -> None:
        if report.number == self._number:
            self._decided = report.report
            self._allow()

    def _allow(self) -> None:
        if self._group is not None:
            self._group.execute_async(allow, self._number, self._upto)

    @property
    def _upto(self) -> int:
        return may_return(self._decided, self._ahead, self._clear if self._stands else None)

    def leave(self) -> None:
        if self._group is not None:
            self._leaving = True
            self._group.execute_async(hold, self._newest)

    def add(self, call: Callable[[], Any], alone: bool) -> None:
        if self._work is None:
            return
        if self._group is None:
            self._events.put(Apart(self._work.job, _DIED))
            return
        workers = len(self._group.get_workers())
        self._expect(1 if alone else workers)
        task = SideTask(self._newest, call, alone)
        self._busy = True
        if alone:
            self._group.execute_single_async(0, add, task)
        else:
            self._group.execute_async(add, task)

    @property
    def busy(self) -> bool:
        """Return whether a side task is under way."""
        return self._busy

    # From the workers --------------------------------------------------------------------------

    def before_init_train_context(self, workers: list[Any]) -> dict[str, list[Any]]:
        return {"has_validation_fn": [self._validates] * len(workers)}

    def after_worker_group_training_start(self, worker_group: WorkerGroup) -> None:
        if self.closed:
            raise RuntimeError("The trial does not need its workers any more.")
        self._group = worker_group
        self._give(worker_group)

    def before_worker_group_shutdown(self, worker_group: WorkerGroup) -> None:
        self._group = None
        if self._busy and self._work is not None:
            self._busy = False
            self._events.put(Apart(self._work.job, _DIED))

    def after_report(self, training_report: _TrainingReport, metrics: list[dict[str, Any]]) -> None:
        tags = [own.pop(TAG) for own in metrics]
        number, report, _ = tags[0]
        if number != self._number or self._work is None:
            return  # the trial has been given something else to do
        self._say_begun()
        if any(asked for *_, asked in tags):
            self._resumption.asked()
        iteration = self._base + report
        if training_report.checkpoint is not None:
            self._checkpoint, self._iteration = training_report.checkpoint, iteration
        elif self._stands:
            self._clear = report
            self._allow()
        self._events.put(
            Report(
                job=self._work.job,
                number=number,
                report=report,
                iteration=iteration,
                metrics=dict(metrics[0]),
                checkpoint=training_report.checkpoint,
                validation=training_report.validation,
                goes_on=self._resumption.reported(),
            )
        )

    def after_worker_group_poll_status(self, worker_group_status: WorkerGroupPollStatus) -> None:
        statuses = list(worker_group_status.worker_statuses.values())
        begun = self._log_of_begun.heard(getattr(each, "begun", 0) for each in statuses)
        finished = self._log_of_finished.heard(getattr(each, "finished", 0) for each in statuses)
        if begun == self._number:
            self._say_begun()
        if self._busy:
            self._hear_of_outcomes(worker_group_status.worker_statuses)
        self._hear_of_yields(worker_group_status.worker_statuses)
        if getattr(statuses[0], "finished", 0) == self._number:
            self._value = statuses[0].value  # it may not answer the poll that the last one ends in
        if self._finished < self._number == finished and self._work is not None:
            self._finished = self._number
            self._events.put(Finished(self._work.job, self._value))

    def _hear_of_outcomes(self, statuses: Mapping[int, Any]) -> None:
        """Note how a side task has ended in workers."""
        for rank, own in statuses.items():
            number, value = getattr(own, "outcome", None) or (0, None)
            if number == self._newest:
                self._outcomes[rank] = value

    def _done(self) -> Done | None:
        """Return how a side task has ended, once that is known."""
        if not (self._busy and self._outcomes) or self._work is None:
            return None
        raised = [one for one in self._outcomes.values() if isinstance(one, LoopError)]
        if raised:
            # The others may wait for that one, or have exchanged more than it has.
            return Done(self._work.job, raised[0], together=self._doing == 1)
        if len(self._outcomes) < self._doing:
            return None
        return Done(self._work.job, self._outcomes[0], together=True)

    def _hear_of_yields(self, statuses: Mapping[int, Any]) -> None:
        """Pass on what rank 0 has yielded; say where all leave, or why they cannot."""
        if self._work is None or self._group is None:
            return
        said = {rank: own for rank, own in statuses.items() if hasattr(own, "progress")}
        self._yields.hears({rank: own.progress for rank, own in said.items()})
        for own in said.values():
            if own.progress.assignment == self._newest:
                for value in own.yielded:
                    self._events.put(Yielded(self._work.job, value))
        done = self._done()
        if done is not None:
            self._busy = False
            self._events.put(done)
            return
        last = self._yields.last_to_pass
        if last is not None and not self._left:
            self._left = True
            self._group.execute_async(leave, self._newest, last)
        reason = self._yields.uneven or self._stuck()
        if reason is not None and not self._apart:
            self._apart = True
            self._events.put(Apart(self._work.job, reason))

    def _stuck(self) -> str | None:
        """Say why workers that are to leave will never; None if they may."""
        if not (self._leaving and self._yields.some_over):
            return None
        self._some_over_since = min(self._some_over_since, time.monotonic())
        if time.monotonic() - self._some_over_since < _LEAVE_S:
            return None
        return f"the loop has ended in some workers and, {_LEAVE_S:g} s later, not in the others."

    def _say_begun(self) -> None:
        if self._begun < self._number and self._work is not None:
            self._begun = self._number
            self._events.put(Begun(self._work.job))

    def _give(self, group: WorkerGroup) -> None:
        assert self._work is not None
        self._expect(len(group.get_workers()))
        self._number = self._newest
        self._decided = self._clear = 0
        self._base, self._resumption = self._iteration, Resumption()
        if self._iteration:
            self._resumption.resumed()
        assignment = Assignment(
            self._number, self._work.run_context, self._checkpoint, self._work.token
        )
        group.execute_async(assign, assignment, self._upto)

    def _expect(self, workers: int) -> None:
        """Count what these workers are given next, and what they yield and end with from now on."""
        self._newest += 1
        self._doing, self._outcomes = workers, {}
        self._yields = GroupYields(self._newest, workers)
        self._leaving = self._left = self._apart = False
        self._some_over_since = float("inf")


class _InTrial(DefaultPlacementGroupHandle):
    """The trial's own placement group, which Tune makes and removes."""

    def shutdown(self) -> None:
        """It is not the workers' to remove."""


class _Group(WorkerGroup):
    """Workers in the bundles of the placement group that this actor is in."""

    _worker_cls = TrialWorker
    first_bundle = 0

    def _create_placement_group(self, *args: Any, **options: Any) -> _InTrial:
        return _InTrial(get_current_placement_group())

    def _create_workers(self, num_workers: int, *args: Any, **options: Any) -> list[Any]:
        bundles = range(self.first_bundle, self.first_bundle + num_workers)
        options["placement_group_bundle_indices"] = list(bundles)
        return super()._create_workers(num_workers, *args, **options)


class _Controller(TrainController):
    """Ray Train's, in the trial's own process."""

    def __init__(self, *, first_bundle: int, link: _Link, **options: Any):
        self._link = link
        self.worker_group_cls = type("_Group", (_Group,), {"first_bundle": first_bundle})
        super().__init__(**options)
        if HEALTH_CHECK_INTERVAL_S_ENV_VAR not in os.environ:
            self._health_check_interval_s = _POLL_INTERVAL_S
        # Tune tracks, keeps and deletes the checkpoints, and says where a trial begins.
        self._checkpoint_manager.after_report = _no_record

    async def _poll_workers(self) -> WorkerGroupPollStatus:
        status = await super()._poll_workers()
        reported = any(worker.training_report for worker in status.worker_statuses.values())
        if reported or self._link.busy:  # which waits for what is new, by itself
            self._latest_poll_time = float("-inf")
        return status

    def forget_failures(self, failure_config: Any) -> None:
        """Count failures anew, by these settings."""
        self._failure_policy = create_failure_policy(failure_config)

    def end_workers(self) -> None:
        """End what is left of the workers, and of what came with them."""
        group = self.get_worker_group()
        if group is None or not group.has_started():
            return
        actors = [worker.actor for worker in group.get_workers()]
        try:
            group.abort()
        finally:
            for actor in actors:
                ray.kill(actor)


def _no_record(training_report: _TrainingReport, metrics: list[dict[str, Any]]) -> None:
    """Stand in for what Ray Train's checkpoint manager does with a report."""
