"""Run training loops in the worker processes of a distributed trial.

The train function that Ray Train starts in each worker is :func:`run_assignments`. It runs the
user's training loop on one assignment after another, in the same processes and process group.
Assignments arrive through the worker's actor, which is free while the loop runs in a thread. While
that thread waits in a report, the actor can run something else, such as a validation
(:func:`side_task`).

Ray provides ``TrainFnUtils`` for such changes (``train_fn_utils.py`` in
``ray/train/v2/_internal/execution``): "this class can be patched if new user APIs behaviors is
wanted".
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ray import train
from ray.train.constants import RAY_CHDIR_TO_TRIAL_DIR
from ray.train.v2._internal.execution.context import (
    TrainContext,
    TrainRunContext,
    get_train_context,
)
from ray.train.v2._internal.execution.storage import StorageContext
from ray.train.v2._internal.execution.train_fn_utils import (
    DistributedTrainFnUtils,
    get_train_fn_utils,
    set_train_fn_utils,
)
from ray.train.v2._internal.execution.worker_group.poll import WorkerStatus
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker
from ray.train.v2._internal.util import construct_train_func

from tunekit._ray.asking import ask_by
from tunekit._ray.process_state import ProcessState, release_gpu_memory
from tunekit._ray.worker_errors import legible_error
from tunekit.core.inquiry import Inquiry
from tunekit.core.metrics import ITERATION
from tunekit.core.retention import unique_name
from tunekit.core.training_loops import WorkerAction, WorkerInbox

#: The key in a report's metrics of the number of its assignment, its own number in that, and
#: whether the loop has asked for its checkpoint.
TAG = "tunekit_assignment"

# How long a poll waits for the training loop to report, so that the trial gets the report
# immediately. It is shorter than the interval of polls, in which the trial waits for the answer.
_POLL_S = 0.04

# The environment variables that mark a worker as one of several; libraries also read them.
_OF_RANKS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "ACCELERATE_TORCH_DEVICE",
)


@dataclass(frozen=True)
class Assignment:
    """The task of a worker group.

    Attributes:
        number: The number of the assignment in its worker group, from 1.
        run_context: Ray Train's context, with the configuration and the checkpoints' storage.
        checkpoint: The first return value of ``ray.train.get_checkpoint()``.
        run: The run of the training loop, in the names of its uploaded checkpoints.
    """

    number: int
    run_context: TrainRunContext
    checkpoint: Any
    run: str


class WorkerInquiry(NamedTuple):
    """What a worker asks. Ranks that ask at the same place in their loops ask the same.

    Attributes:
        number: The number of the assignment.
        reports: The number of reports before it.
        asked: The number of inquiries in the assignment, including this one.
        inquiry: What it asks.
    """

    number: int
    reports: int
    asked: int
    inquiry: Inquiry


class _Leave(BaseException):
    """Leave the user's training loop for another assignment."""


class _Post:
    """This worker's inbox, on which the training loop's thread waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inbox = WorkerInbox()
        self._assignments: deque[Assignment] = deque()
        # The condition that the thread waits for; None while it runs.
        self._until: Callable[[], object] | None = None
        #: The newest assignment that has begun, and whether its loop has returned or was left.
        self.stage = (0, False)
        #: How many reports of it the loop has begun.
        self.reports = 0
        #: What the loop asks, until that is answered.
        self.inquiry: WorkerInquiry | None = None
        self._answer: list[Any] = []
        self._asked = 0

    def assign(self, assignment: Assignment, upto: int) -> None:
        with self._changed:
            self._assignments.append(assignment)
            self._inbox.assigned(assignment.number, upto)
            self._changed.notify_all()

    def allow(self, number: int, upto: int) -> None:
        with self._changed:
            self._inbox.allowed(number, upto)
            self._changed.notify_all()

    def _block(self, until: Callable[[], object]) -> None:
        """Wait for a condition; the lock must be held."""
        self._until = until
        self._changed.notify_all()
        self._changed.wait_for(until)
        self._until = None

    def next_assignment(self) -> Assignment:
        """Wait for the next assignment; all workers begin each, so that they stay in step."""
        with self._changed:
            self._block(lambda: self._assignments)
            assignment = self._assignments.popleft()
            self.stage = assignment.number, False
            self.reports, self._asked = 0, 0
            return assignment

    def reported(self, number: int, report: int) -> None:
        """Block until the worker may continue after a report.

        Raises:
            _Leave: If it must begin another assignment.
        """
        with self._changed:
            self._block(lambda: self._inbox.action(number, report) is not WorkerAction.WAIT)
            if self._inbox.action(number, report) is WorkerAction.LEAVE:
                raise _Leave

    def ask(self, number: int, reports: int, inquiry: Inquiry) -> list[Any]:
        """Block until the trial has answered.

        Raises:
            _Leave: If the worker must begin another assignment.
        """
        with self._changed:
            self._asked += 1
            self.inquiry = WorkerInquiry(number, reports, self._asked, inquiry)
            self._block(lambda: self.inquiry is None or self._inbox.leaves(number))
            answered, self.inquiry = self.inquiry is None, None
            if not answered:
                raise _Leave
            return self._answer

    def answer(self, inquiry: WorkerInquiry, reported: list[Any]) -> None:
        with self._changed:
            if inquiry == self.inquiry:
                self.inquiry, self._answer = None, reported
                self._changed.notify_all()

    def ended(self, number: int) -> None:
        """Record that the loop has returned, or was left."""
        self.stage = number, True

    def thread_ended(self) -> None:
        """Record that the thread has ended."""
        with self._changed:
            self._until = bool  # never true, so that it counts as waiting forever
            self._changed.notify_all()

    def wait_until_blocked(self, timeout_s: float | None = None) -> None:
        """Wait until the training loop blocks, up to a number of seconds.

        It stays blocked while this worker's actor is busy, because only a call to the actor
        releases it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._until is not None and not self._until(), timeout_s)


_post = _Post()


def assign(assignment: Assignment, upto: int) -> None:
    """Give this worker an assignment; called on the worker by the trial."""
    _post.assign(assignment, upto)


def allow(number: int, upto: int) -> None:
    """Allow this worker to return from its first ``upto`` reports; called on it by the trial."""
    _post.allow(number, upto)


def answer(inquiry: WorkerInquiry, reported: list[Any]) -> None:
    """Answer this worker, if this is what it asks; called on it by the trial."""
    _post.answer(inquiry, reported)


def side_task(worker: Any, call: Callable[[], Any], alone: bool, thread_context: Any) -> Any:
    """Call a function while this worker's training loop waits; return its result.

    It runs in the thread of the worker's actor. Settings of the training loop's thread, such as the
    gradient mode, a precision or a library's communicator, do not apply there.

    Args:
        worker: This worker.
        call: The function, which leaves its process unchanged.
        alone: Whether only this worker runs it, and must not find a process group.
        thread_context: The context in which Ray's backend sets up a thread.
    """
    _post.wait_until_blocked()
    utils = get_train_fn_utils()
    set_train_fn_utils(_SideUtils())
    try:
        with thread_context(), _as_if_alone() if alone else contextlib.nullcontext():
            return call()
    finally:
        set_train_fn_utils(utils)


@contextlib.contextmanager
def _as_if_alone() -> Iterator[None]:
    """Hide the process group from libraries, which would wait in it for the other ranks.

    If the groups of this process have changed in the meantime, they are out of step with those of
    the other ranks, and the process ends.
    """
    environment = {name: os.environ.pop(name, None) for name in _OF_RANKS}
    dist = getattr(sys.modules.get("torch"), "distributed", None)
    # Torch may be built without it.
    member: Any = getattr(dist, "GroupMember", None)
    group = getattr(member, "WORLD", None)
    before = _groups_of(dist)
    if group is not None:
        member.WORLD = None
    try:
        yield
    finally:
        if group is not None:
            member.WORLD = group
            if _groups_of(dist) != before:
                os._exit(1)
        os.environ.update({name: one for name, one in environment.items() if one is not None})


def _groups_of(dist: Any) -> tuple[int, int]:
    """Return how many process groups torch has in this process, and how many it has created."""
    world = getattr(getattr(dist, "distributed_c10d", None), "_world", None)
    return len(getattr(world, "pg_names", ())), getattr(world, "group_count", 0)


class TrialWorker(RayTrainWorker):
    """A Ray Train worker that also reports the progress of its assignments."""

    def poll_status(self) -> WorkerStatus:
        """Return Ray's status with a ``stage``: the newest assignment, and whether it is done.

        It is done once its loop has ended and all of its reports have been collected. ``begun`` is
        the number of reports that the loop has begun, and ``inquiry`` what it asks, if it does.
        """
        _post.wait_until_blocked(_POLL_S)  # a report is noticed immediately
        number, ended = _post.stage  # read before the queue, so that its reports come first
        begun, inquiry = _post.reports, _post.inquiry
        status = super().poll_status()
        empty = get_train_context().execution_context.result_queue.empty()
        status.stage = number, ended and empty and status.training_report is None
        status.begun, status.inquiry = begun, inquiry
        return status


class _Utils(DistributedTrainFnUtils):
    """Functions of a training loop whose reports return once the worker may continue."""

    def __init__(self, assignment: Assignment):
        self._number, self._run = assignment.number, assignment.run
        self._reports, self._asked = 0, False

    def get_checkpoint(self) -> Any:
        self._asked = True
        return super().get_checkpoint()

    def report(
        self,
        metrics: dict[str, Any],
        checkpoint: Any = None,
        checkpoint_dir_name: str | None = None,
        *args: Any,
        **options: Any,
    ) -> None:
        self._reports += 1
        _post.reports = self._reports
        # Of the names, rank 0's is used.
        name = checkpoint_dir_name or StorageContext.make_default_checkpoint_dir_name()
        name = unique_name(name, self._run, self._reports)
        tagged = {**metrics, TAG: (self._number, self._reports, self._asked)}
        super().report(tagged, checkpoint, name, *args, **options)
        _post.reported(self._number, self._reports)

    def get_all_reported_checkpoints(
        self,
        consistency_mode: Any = train.CheckpointConsistencyMode.VALIDATED,
        timeout_s: float | None = None,
    ) -> list[Any]:
        blocks = consistency_mode is train.CheckpointConsistencyMode.VALIDATED
        found = self.ask(Inquiry(blocks, timeout_s))
        for reported in found:
            del reported.metrics[ITERATION]  # Ray Train counts none
        return found

    def ask(self, inquiry: Inquiry) -> list[Any]:
        """Ask the trial, and so the driver."""
        # Uploads are reported first.
        get_train_context().checkpoint_upload_threadpool.submit(int).result()
        return _post.ask(self._number, self._reports, inquiry)


class _SideUtils(DistributedTrainFnUtils):
    """Functions of a side task, isolated from the training loop: its reports are dropped."""

    def report(self, *args: Any, **options: Any) -> None:
        pass

    def get_checkpoint(self) -> Any:
        return None

    def get_all_reported_checkpoints(self, *args: Any, **options: Any) -> list[Any]:
        return []


def run_assignments(train_loop: Callable[..., Any], loop_context: Any) -> None:
    """Run the user's training loop on one assignment after another; never returns.

    Args:
        train_loop: ``train_loop_per_worker``.
        loop_context: Returns the context manager in which Ray's backend runs it.
    """
    fresh = ProcessState()
    try:
        while True:
            release_gpu_memory()  # the next assignment may take long to arrive
            assignment = _post.next_assignment()
            if assignment.number > 1:
                gc.collect()
                fresh.restore()
            _train(train_loop, loop_context, assignment)
            _post.ended(assignment.number)
    finally:
        _post.thread_ended()


def _train(train_loop: Callable[..., Any], loop_context: Any, assignment: Assignment) -> None:
    """Run the user's training loop on an assignment, until it returns or is left."""
    context = get_train_context()
    _begin(context, assignment)
    utils = _Utils(assignment)
    set_train_fn_utils(utils)
    ask_by(utils.ask)
    loop = construct_train_func(
        train_loop, config=assignment.run_context.train_loop_config, train_func_context=loop_context
    )
    try:
        with contextlib.suppress(_Leave):
            loop()
    except Exception as error:  # an error of user code
        raise legible_error(error)  # noqa: B904
    # Wait until the checkpoints that are being uploaded are reported.
    context.checkpoint_upload_threadpool.submit(int).result()


def _begin(context: TrainContext, assignment: Assignment) -> None:
    """Set up Ray Train's context of this worker for an assignment."""
    storage = assignment.run_context.run_config.storage_context
    context.train_run_context = assignment.run_context
    context.storage_context = storage
    with context.report_order_condition:
        context.checkpoint = assignment.checkpoint
    if os.environ.get(RAY_CHDIR_TO_TRIAL_DIR, "1") == "1":
        os.makedirs(storage.local_working_directory, exist_ok=True)
        os.chdir(storage.local_working_directory)
