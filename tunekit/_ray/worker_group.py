"""The workers of a distributed trial, and the trial's interface to them.

Ray Train's controller runs in a thread of the trial's actor, and its workers run in the bundles of
the trial's placement group. So Tune starts a trial only if all workers fit, and the workers end,
and free their resources, with the trial's actor or its placement group.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
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

from tunekit._ray.workers import (
    TAG,
    Assignment,
    TrialWorker,
    WorkerInquiry,
    allow,
    answer,
    assign,
    run_assignments,
    side_task,
)
from tunekit.core.inquiry import Inquiry
from tunekit.core.training_loops import Resumption, may_return
from tunekit.core.values import Raised

logger = logging.getLogger(__name__)

# Ray's default is 2 s. A poll is one call to each worker's idle actor.
_POLL_INTERVAL_S = 0.05

# How many seconds workers that have to ask together may be apart.
_TOGETHER_S = 10.0

# How long to wait for killed workers to end.
_KILL_S = 30.0

# Backends whose processes can run several training loops in turn, and that set up each thread
# separately. XGBoost's rendezvous, for example, works for only one loop and waits for all workers.
_LASTING = ("ray.train.torch.config.TorchConfig", "ray.train.backend.BackendConfig")


@dataclass(frozen=True)
class Begun:
    """All workers have begun the assignment."""


@dataclass(frozen=True)
class Report:
    """All workers have reported.

    Attributes:
        number: The number of the assignment.
        report: The number of the report in it, as counted by the workers.
        iteration: The trial's iteration.
        metrics: The metrics of rank 0.
        checkpoint: The uploaded checkpoint, or None.
        validation: The report's ``validation`` argument.
        resumed: Whether the loop asked for its checkpoint; True if there was none.
        asked: Whether it has ever asked, so that it can resume.
    """

    number: int
    report: int
    iteration: int
    metrics: dict[str, Any]
    checkpoint: Any
    validation: Any
    resumed: bool
    asked: bool


@dataclass(frozen=True)
class Asked:
    """A loop asks for the trial's checkpoints and their scores."""

    inquiry: Inquiry


@dataclass(frozen=True)
class Finished:
    """The loop has returned in all workers."""


@dataclass(frozen=True)
class Ended:
    """The workers have ended and will not restart.

    Attributes:
        error: The error that ended them, if any.
    """

    error: Exception | None


Event = Begun | Report | Asked | Finished | Ended


class WorkersLost(Exception):
    """The workers have ended and must be replaced."""


def lasts(backend_config: Any) -> bool:
    """Return whether workers with this backend can run several loops in turn."""
    cls = type(backend_config)
    return f"{cls.__module__}.{cls.__qualname__}" in _LASTING


class TrialWorkerGroup:
    """Start a trainer's workers, and run one assignment after another in them.

    Args:
        trainer: The trainer, with the settings of the first assignment.
        ahead: The number of undecided reports that workers may return from.
        in_workers: Whether workers validate, and so wait in each report with a checkpoint, however
            large ``ahead`` is.
        by_all: Whether they validate together.
        validates: Whether a report may request a validation.
        first_bundle: The index of rank 0's bundle in this actor's placement group; the bundles of
            the other ranks follow.
    """

    def __init__(
        self,
        trainer: DataParallelTrainer,
        *,
        ahead: int = 0,
        in_workers: bool = False,
        by_all: bool = False,
        validates: bool = False,
        first_bundle: int = 0,
    ):
        self._trainer, self._first_bundle = trainer, first_bundle
        # Events, each with its assignment.
        self._events: queue.SimpleQueue[tuple[Assignment | None, Event]] = queue.SimpleQueue()
        self._link = _Link(self._events, ahead, validates, in_workers, by_all)
        self._given: Assignment | None = None
        self._controller: _Controller | None = None
        self._error: Exception | None = None
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="tunekit-workers", daemon=True)

    @property
    def alive(self) -> bool:
        """Return whether the workers may get another assignment."""
        return self._thread.is_alive() and not self._link.closed

    @property
    def in_step(self) -> bool:
        """Return whether no worker is suspended, by what it asks, where others are not."""
        return self._link.in_step

    def start(self) -> None:
        """Start the workers."""
        self._thread.start()

    def assign(
        self, run_context: TrainRunContext, checkpoint: Any, iteration: int, run: str
    ) -> None:
        """Start training in the workers.

        Args:
            run_context: The configuration and the storage.
            checkpoint: The checkpoint to start from; None to start from scratch.
            iteration: The trial's iteration at that checkpoint.
            run: The run of the training loop, in the names of uploaded checkpoints.
        """
        self._given = Assignment(0, run_context, checkpoint, run)
        self._loop.call_soon_threadsafe(self._give, self._given, iteration)

    def decided(self, report: Report) -> None:
        """Record that the trial continues after a report."""
        self._loop.call_soon_threadsafe(self._link.decided, report)

    def answer(self, reported: list[Any]) -> None:
        """Answer what a loop has asked."""
        self._loop.call_soon_threadsafe(self._link.answer, reported)

    def beside(self, call: Callable[[], Any], *, alone: bool) -> dict[int, Any]:
        """Call a function in the workers while training waits; return its results by rank.

        If it returns a :class:`~tunekit.core.values.Raised` in one of several workers, all workers
        are ended, because the others may wait for that one, or may be ahead of it; also if it is
        fatal.

        Args:
            call: The function, as for :func:`~tunekit._ray.workers.side_task`.
            alone: Whether only rank 0 runs it.

        Raises:
            WorkersLost: If a worker ended in the meantime; all have then ended.
            ray.train.TrainingFailedError: If the workers could not be started.
        """
        self._link.started.wait()
        in_step, found = False, dict[int, Any]()
        try:
            with self._link.polling:
                if self._link.group is None:
                    raise self._error or WorkersLost("a worker died")
                workers = self._link.group.get_workers()[: 1 if alone else None]
                name = ray.get_runtime_context().get_task_name() or "validate"
                backend = self._trainer.backend_config
                # The context of a thread outside the training loop sets its device, for example.
                context = backend.train_func_context if lasts(backend) else contextlib.nullcontext
                ranks = {
                    worker.actor.__ray_call__.options(name=name).remote(
                        side_task, call, alone, context
                    ): rank
                    for rank, worker in enumerate(workers)
                }
                while ranks:
                    (done, *_), _ = ray.wait(list(ranks), num_returns=1)
                    rank = ranks.pop(done)
                    try:
                        result = found[rank] = ray.get(done)
                    except RayTaskError:
                        raise
                    except RayError as error:
                        raise WorkersLost("a worker died") from error
                    if isinstance(result, Raised) and (result.fatal or len(workers) > 1):
                        return found
                in_step = True
                return found
        finally:
            if not in_step:
                self.dismiss()

    def next_event(self, timeout_s: float | None = None) -> Event | None:
        """Return the next event of the newest assignment; None on timeout."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                given, event = self._events.get(timeout=left)
            except queue.Empty:
                return None
            if given is self._given or isinstance(event, Ended):
                return event

    def dismiss(self) -> None:
        """End the workers immediately, and wait until they are gone."""
        self._link.closed = True
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._cancel)
            self._thread.join(_KILL_S)

    def _give(self, given: Assignment, iteration: int) -> None:
        if self._controller is not None:  # failures of former assignments do not count
            self._controller.forget_failures(given.run_context.run_config.failure_config)
        self._link.assign(given, iteration)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._train())
            if self._controller is not None:
                self._error = self._controller.get_training_failed_error()
        except asyncio.CancelledError:
            pass
        except Exception as raised:
            self._error = raised
        finally:
            try:
                if self._controller is not None:
                    self._controller.end_workers()
            finally:
                self._link.group = None
                self._link.started.set()
                self._events.put((None, Ended(self._error)))

    async def _train(self) -> None:
        self._task = asyncio.current_task()
        trainer = self._trainer
        loop = partial(
            run_assignments,
            trainer.train_loop_per_worker,
            trainer.backend_config.train_func_context,
        )
        callbacks = [
            callback
            for callback in trainer._create_default_callbacks()
            if not isinstance(callback, PlacementGroupCleanerCallback)  # the group is Tune's
        ]
        if sum(node["Alive"] for node in ray.nodes()) == 1:
            # There is no other node to move to, and the watcher would be an additional process.
            os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
        self._controller = _Controller(
            first_bundle=self._first_bundle,
            train_fn_ref=ObjectRefWrapper(loop),
            train_run_context=trainer.train_run_context,
            scaling_policy=create_scaling_policy(trainer.scaling_config),
            failure_policy=create_failure_policy(trainer.run_config.failure_config),
            link=self._link,
            callbacks=[self._link, *callbacks],
        )
        await self._controller.run()


class _Link(ReportCallback, WorkerGroupCallback):
    """Connect the trial to Ray Train's controller, in whose thread this runs.

    Each assignment of the trial, and each restart of workers after a failure, has its own number.
    """

    def __init__(
        self,
        events: queue.SimpleQueue[tuple[Assignment | None, Event]],
        ahead: int,
        validates: bool,
        in_workers: bool = False,
        by_all: bool = False,
    ):
        self._events, self._ahead, self._validates = events, ahead, validates
        self._in_workers, self._by_all = in_workers, by_all
        self.closed = False
        #: The workers; None before they have started and after they have ended.
        self.group: WorkerGroup | None = None
        #: Set once the workers have started or ended.
        self.started = threading.Event()
        #: Held while the workers are polled, because they cannot answer while their actors are
        #: busy.
        self.polling = threading.Lock()
        # The trial's assignment, its number, and the progress of each worker.
        self._given: Assignment | None = None
        self._number = 0
        self._stages: dict[int, tuple[int, bool]] = {}
        self._begun = self._finished = False
        # The newest reports of the assignment that were decided and that lack a checkpoint.
        self._decided = self._clear = 0
        # The number of reports that were passed on, what each worker asks, what the trial was
        # asked, its answers, and since when others were waited for.
        self._reported = 0
        self._statuses: dict[int, Any] = {}
        self._asked: WorkerInquiry | None = None
        self._answers: dict[WorkerInquiry, list[Any]] = {}
        self._since: dict[WorkerInquiry, float] = {}
        # The checkpoint and iteration at which restarted workers begin.
        self._checkpoint: Any = None
        self._iteration = 0
        # The iteration at which the workers began, and whether the loop asked for its checkpoint.
        self._base, self._resumption = 0, Resumption()

    # From the trial ----------------------------------------------------------------------------

    def assign(self, given: Assignment, iteration: int) -> None:
        self._given, self._checkpoint, self._iteration = given, given.checkpoint, iteration
        self._give()

    def decided(self, report: Report) -> None:
        if report.number == self._number:
            self._decided = report.report
            self._allow()

    def answer(self, reported: list[Any]) -> None:
        if self._asked is not None:
            one, self._asked = self._asked, None
            self._answers[one] = reported
            self._send_answer(one)

    def _send_answer(self, one: WorkerInquiry) -> None:
        if self.group is not None:
            self.group.execute_async(answer, one, self._answers[one])

    @property
    def in_step(self) -> bool:
        """Return whether either all workers ask or none does."""
        return len({one is None for one in self._inquiries.values()}) < 2

    @property
    def _inquiries(self) -> dict[int, WorkerInquiry | None]:
        return {rank: getattr(one, "inquiry", None) for rank, one in self._statuses.items()}

    def _allow(self) -> None:
        if self.group is not None:
            self.group.execute_async(allow, self._number, self._upto)

    @property
    def _upto(self) -> int:
        return may_return(self._decided, self._ahead, self._clear if self._in_workers else None)

    def _give(self) -> None:
        """Send the trial's assignment to the workers, if there are any."""
        if self.group is None or self._given is None:
            return
        self._number += 1
        self._begun = self._finished = False
        self._decided = self._clear = self._reported = 0
        self._asked, self._answers, self._since = None, {}, {}
        self._base, self._resumption = self._iteration, Resumption()
        if self._iteration:
            self._resumption.resumed()
        given = replace(self._given, number=self._number, checkpoint=self._checkpoint)
        self.group.execute_async(assign, given, self._upto)

    # From the workers --------------------------------------------------------------------------

    def before_init_train_context(self, workers: list[Any]) -> dict[str, list[Any]]:
        return {"has_validation_fn": [self._validates] * len(workers)}

    def after_worker_group_training_start(self, worker_group: WorkerGroup) -> None:
        if self.closed:
            raise RuntimeError("The trial no longer needs its workers.")
        self.group, self._stages, self._statuses = worker_group, {}, {}
        self._give()
        self.started.set()

    def before_worker_group_shutdown(self, worker_group: WorkerGroup) -> None:
        self.started.clear()
        self.group = None

    def after_report(self, training_report: _TrainingReport, metrics: list[dict[str, Any]]) -> None:
        tags = [own.pop(TAG) for own in metrics]
        number, report, _ = tags[0]
        if number != self._number:
            return  # the workers have another assignment
        self._say_begun()
        if any(asked for *_, asked in tags):
            self._resumption.asked()
        iteration = self._base + report
        if training_report.checkpoint is not None:
            self._checkpoint, self._iteration = training_report.checkpoint, iteration
        elif self._in_workers:
            self._clear = report
            self._allow()
        self._reported = report
        # No worker is more than one report behind.
        self._answers = {
            one: told for one, told in self._answers.items() if one.reports >= report - 1
        }
        self._say(
            Report(
                number=number,
                report=report,
                iteration=iteration,
                metrics=dict(metrics[0]),
                checkpoint=training_report.checkpoint,
                validation=training_report.validation,
                resumed=self._resumption.reported(),
                asked=self._resumption.has_asked,
            )
        )

    def after_worker_group_poll_status(self, worker_group_status: WorkerGroupPollStatus) -> None:
        for rank, status in worker_group_status.worker_statuses.items():
            # A worker that is slow to answer has no status.
            known = self._stages.get(rank, (0, False))
            self._stages[rank] = max(known, getattr(status, "stage", known))
            self._statuses[rank] = status
        number, finished = min(self._stages.values())
        if number == self._number > 0:
            self._say_begun()
            if finished and not self._finished:
                self._finished = True
                self._say(Finished())
            self._pass_on_inquiries()

    def _pass_on_inquiries(self) -> None:
        """Ask the trial what loops ask, one inquiry after another, and answer ranks that follow."""
        asked = self._inquiries
        for one in asked.values():
            if one is None or one.number != self._number or one.reports > self._reported:
                continue  # its reports come first
            if one in self._answers:
                self._send_answer(one)
            elif self._asked is None and (inquiry := self._together(one, asked)) is not None:
                self._asked = one
                self._say(Asked(inquiry))

    def _together(
        self, one: WorkerInquiry, asked: dict[int, WorkerInquiry | None]
    ) -> Inquiry | None:
        """Return what workers ask the trial; None while others have still to ask the same.

        Where they validate, a score needs all of them, or rank 0, suspended. If one of these does
        not ask, because it has reported again or waits for others, the others get what is known.
        """
        needed = asked if self._by_all else [0] if self._in_workers else []
        others = [rank for rank in needed if asked.get(rank) != one]
        if not (one.inquiry.blocks and others):
            return one.inquiry
        now, limit_s = time.monotonic(), one.inquiry.timeout_s
        late_s = _TOGETHER_S if limit_s is None else min(_TOGETHER_S, limit_s)
        if now - self._since.setdefault(one, now) >= late_s:
            return Inquiry()
        gone = any(
            self._stages[rank][1] or getattr(self._statuses[rank], "begun", 0) > one.reports
            for rank in others
        )
        return Inquiry() if gone else None

    def _say_begun(self) -> None:
        if not self._begun:
            self._begun = True
            self._say(Begun())

    def _say(self, event: Event) -> None:
        self._events.put((self._given, event))


class _InTrial(DefaultPlacementGroupHandle):
    """The trial's own placement group, which Tune creates and removes."""

    def shutdown(self) -> None:
        """Leave it to Tune."""


class _Group(WorkerGroup):
    """Workers in the bundles of the placement group that this actor is in."""

    _worker_cls = TrialWorker
    first_bundle = 0

    # The workers use the bundles of the trial's own placement group (decision 4).
    def _create_placement_group(self, *args: Any, **options: Any) -> _InTrial:
        return _InTrial(get_current_placement_group())

    def _create_workers(self, num_workers: int, *args: Any, **options: Any) -> list[Any]:
        bundles = range(self.first_bundle, self.first_bundle + num_workers)
        options["placement_group_bundle_indices"] = list(bundles)
        return super()._create_workers(num_workers, *args, **options)


class _Controller(TrainController):
    """Ray Train's controller, running in a trial's process."""

    def __init__(self, *, first_bundle: int, link: _Link, **options: Any):
        self._link = link
        self.worker_group_cls = type("_Group", (_Group,), {"first_bundle": first_bundle})
        super().__init__(**options)
        if HEALTH_CHECK_INTERVAL_S_ENV_VAR not in os.environ:
            self._health_check_interval_s = _POLL_INTERVAL_S
        # When to poll next: immediately after a report, because another one may follow.
        self._poll_at = 0.0
        # Tune manages the checkpoints, and decides where a trial begins.
        self._checkpoint_manager.after_report = _no_record

    async def _poll_workers(self) -> WorkerGroupPollStatus:
        await asyncio.sleep(max(0.0, self._poll_at - time.monotonic()))
        self._poll_at = time.monotonic() + self._health_check_interval_s
        with self._link.polling:
            self._latest_poll_time = float("-inf")  # poll immediately
            status = await super()._poll_workers()
        if any(one.training_report for one in status.worker_statuses.values()):
            self._poll_at = 0.0
        return status

    def forget_failures(self, failure_config: Any) -> None:
        """Reset the count of failures, and apply these settings."""
        self._failure_policy = create_failure_policy(failure_config)

    def end_workers(self) -> None:
        """End the remaining workers, with Ray Train's cleanup."""
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
    """Replace the report handling of Ray Train's checkpoint manager."""
