"""What runs in the worker processes of a distributed trial.

The train function that Ray Train starts in each worker is :func:`serve`: it runs the user's
training loop on one assignment after another, in the same processes and the same process group.
It gets them through the worker's own actor, which is free while the loop runs in a thread. While
that thread waits in a report, it can be given a :class:`SideTask`, such as a validation.

Ray's seam for that is ``TrainFnUtils`` (``ray/train/v2/_internal/execution/train_fn_utils.py``):
"this class can be patched if new user APIs behaviors is wanted".
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

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

from tunekit._ray.raised import LoopError, legible_error
from tunekit.core.assignments import Verdict, WorkerInbox
from tunekit.core.yields import YieldGate
from tunekit.gpu_memory import release_unused

__all__ = [
    "TAG",
    "Assignment",
    "SideTask",
    "TrialWorker",
    "add",
    "allow",
    "assign",
    "goes_on",
    "hold",
    "leave",
    "serve",
]

#: The key of a report's metrics under which it says which assignment it belongs to, the how-many-th
#: of that it is, and whether the loop has asked for its checkpoint.
TAG = "tunekit_assignment"

# How long a question after a side task waits for its end: not long enough to be missed.
_LOOK_S = 0.04

# What says in a worker's environment that it is one of several; libraries go by that, too.
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
    """What a worker group is to train.

    Attributes:
        number: Counts the assignments of one worker group, from 1.
        run_context: Ray Train's, with the configuration and where checkpoints are stored.
        checkpoint: What ``ray.train.get_checkpoint()`` returns at first.
        token: What the names of checkpoints end with that are uploaded for it.
    """

    number: int
    run_context: TrainRunContext
    checkpoint: Any
    token: str


@dataclass(frozen=True)
class SideTask:
    """What workers do while they stand still, in a report or between two assignments.

    Attributes:
        number: Counts the side tasks and assignments of one worker group.
        call: What to do. It returns something that can be pickled, raises :class:`LoopError`, and
            leaves its process as it was.
        alone: Whether rank 0 does it alone, and is not to find a process group.
    """

    number: int
    call: Callable[[], Any]
    alone: bool


class _Leave(BaseException):
    """Leaves the user's training loop: there is another assignment."""


class _Post:
    """This worker's inbox, and the thread of the training loop that waits at it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inbox = WorkerInbox()
        self._assignments: deque[Assignment] = deque()
        #: The newest assignment whose loop has returned, or was left, and what it returned.
        self.finished = 0
        self.value: Any = None
        #: The newest assignment that was begun.
        self.begun = 0
        #: That of the newest assignment, and what its loop has yielded that nobody knows of yet.
        self._gate = YieldGate(0)
        self._yielded: list[Any] = []
        #: What is to be done before the thread goes on, and what came of the newest of that.
        self._tasks: deque[SideTask] = deque()
        self._doing = False
        self._outcome: tuple[int, Any] | None = None
        #: What sets up the thread of a side task.
        self.thread_context: Callable[[], Any] = contextlib.nullcontext

    def assign(self, assignment: Assignment, upto: int) -> None:
        with self._changed:
            self._assignments.append(assignment)
            self._inbox.assigned(assignment.number, upto)
            self._gate, self._yielded = YieldGate(assignment.number), []
            self._changed.notify_all()

    def allow(self, number: int, upto: int) -> None:
        with self._changed:
            self._inbox.allowed(number, upto)
            self._changed.notify_all()

    def hold(self, number: int) -> None:
        with self._changed:
            if self._gate.progress.assignment == number:
                self._gate.hold()

    def leave(self, number: int, after: int) -> None:
        with self._changed:
            if self._gate.progress.assignment == number:
                self._gate.leave(after)
                self._changed.notify_all()

    def add(self, task: SideTask) -> None:
        with self._changed:
            self._tasks.append(task)
            self._gate, self._yielded = YieldGate(task.number), []
            self._changed.notify_all()

    def _stand(self, until: Callable[[], object]) -> None:
        """Wait, with the lock; do side tasks meanwhile, without it."""
        while True:
            self._changed.wait_for(lambda: self._tasks or until())
            if not self._tasks:
                return
            task = self._tasks.popleft()
            self._doing = True
            self._changed.release()
            try:
                outcome = _outcome_of(task, self.thread_context)
            finally:
                self._changed.acquire()
            self._doing, self._outcome = False, (task.number, outcome)
            if self._gate.progress.assignment == task.number:
                self._gate.ends()
            self._changed.notify_all()

    def take(self) -> Assignment:
        """Wait for the next assignment: all workers begin each, and so stay together."""
        with self._changed:
            self._stand(lambda: self._assignments)
            assignment = self._assignments.popleft()
            self.begun = assignment.number
            return assignment

    def reported(self, number: int, report: int) -> None:
        """Return only when the worker may go on after a report.

        Raises:
            _Leave: If it is to begin another assignment.
        """
        with self._changed:
            self._stand(lambda: self._inbox.verdict(number, report) is not Verdict.WAIT)
            if self._inbox.verdict(number, report) is Verdict.LEAVE:
                raise _Leave

    def yielded(self, known: Sequence[Any]) -> bool:
        """Return whether the loop goes on after a yield, once that is known.

        Args:
            known: What this worker has to say of the estimates: one of them, or none.
        """
        with self._changed:
            if not self.begun:  # a trainer of Ray's own runs the loop
                return True
            gate = self._gate
            gate.yields()
            self._yielded.extend(known)
            self._changed.notify_all()
            self._changed.wait_for(lambda: gate.verdict() is not Verdict.WAIT)
            return gate.verdict() is Verdict.GO_ON

    def ended(self, number: int, value: Any) -> None:
        """Note that the loop has returned a value, or was left."""
        with self._changed:
            self.value, self.finished = value, number
            if self._gate.progress.assignment == number:
                self._gate.ends()

    def look(self) -> None:
        """Wait for a moment for what comes of a side task, if there is one."""
        with self._changed:
            if self._tasks or self._doing:
                self._changed.wait_for(
                    lambda: self._yielded or not (self._tasks or self._doing), _LOOK_S
                )

    def say_into(self, status: WorkerStatus, finished: int) -> None:
        """Put into a status of this worker what is known here.

        Args:
            status: Ray's.
            finished: The assignment whose loop has ended, and all of whose reports were taken.
        """
        with self._changed:
            status.finished, status.begun = finished, self.begun
            status.value = self.value if finished else None
            status.progress, status.yielded = self._gate.progress, self._yielded
            status.outcome = self._outcome
            self._yielded = []


def _outcome_of(task: SideTask, thread_context: Callable[[], Any]) -> Any:
    """Return what a side task returns, or the :class:`LoopError` that it raises.

    It has a thread of its own. What the training loop has set for its own thread only, such as the
    gradient mode, a precision or a library's communicator, does not hold there.
    """
    found: list[Any] = []

    def run() -> None:
        try:
            with thread_context(), _as_if_alone() if task.alone else contextlib.nullcontext():
                found.append(task.call())
        except LoopError as error:  # without what it refers to, which may hold memory
            found.append(LoopError(*error.args))
        except BaseException as error:  # nothing else would say so
            found.append(LoopError.of(error))

    utils = get_train_fn_utils()
    set_train_fn_utils(_SideUtils())
    try:
        thread = threading.Thread(target=run, name="tunekit-side-task", daemon=True)
        thread.start()
        thread.join()
    finally:
        set_train_fn_utils(utils)
    return found[0]


@contextlib.contextmanager
def _as_if_alone() -> Iterator[None]:
    """Let rank 0 look like a process of its own.

    Libraries that find a process group wait in it for the other ranks, which have nothing to do.
    One that has changed the groups of this process has put them out of step with the other ranks,
    and ends it.
    """
    environment = {name: os.environ.pop(name, None) for name in _OF_RANKS}
    dist = getattr(sys.modules.get("torch"), "distributed", None)
    # There is none where torch was built without.
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
    """Return how many process groups torch has in this process, and has made."""
    world = getattr(getattr(dist, "distributed_c10d", None), "_world", None)
    return len(getattr(world, "pg_names", ())), getattr(world, "group_count", 0)


_post = _Post()


def assign(assignment: Assignment, upto: int) -> None:
    """Give this worker an assignment; called on the worker by the trial."""
    _post.assign(assignment, upto)


def add(task: SideTask) -> None:
    """Give this worker a side task; called on the worker by the trial."""
    _post.add(task)


def allow(number: int, upto: int) -> None:
    """Let this worker return from its reports up to that one; called on it by the trial."""
    _post.allow(number, upto)


def hold(number: int) -> None:
    """Let this worker go past no more yields than it has; called on it by the evaluator."""
    _post.hold(number)


def leave(number: int, after: int) -> None:
    """Let this worker leave its loop after that yield; called on it by the evaluator."""
    _post.leave(number, after)


def goes_on(known: Sequence[Any]) -> bool:
    """Return whether the loop in this worker goes on after a yield; may wait until that is known.

    Args:
        known: What to tell of the estimates: one of them, or none.
    """
    return _post.yielded(known)


class TrialWorker(RayTrainWorker):
    """A Ray Train worker that also says when its loop has returned, and what."""

    def poll_status(self) -> WorkerStatus:
        """Return what Ray's says, and ``finished``: the assignment whose loop has returned
        ``value``; what was ``yielded`` since the last call, and the ``progress`` of that; the
        ``outcome`` of the newest side task that has ended, with its number."""
        _post.look()
        finished = _post.finished  # before the queue is looked at: its reports come first
        status = super().poll_status()
        empty = get_train_context().execution_context.result_queue.empty()
        if status.training_report is not None or not empty:
            finished = 0
        _post.say_into(status, finished)
        return status


class _Utils(DistributedTrainFnUtils):
    """Lets a report return when the worker may go on."""

    def __init__(self, assignment: Assignment):
        self._number, self._token = assignment.number, assignment.token
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
        if checkpoint_dir_name is None:  # rank 0's is taken
            checkpoint_dir_name = (
                f"{StorageContext.make_default_checkpoint_dir_name()}-{self._token}"
            )
        tagged = {**metrics, TAG: (self._number, self._reports, self._asked)}
        super().report(tagged, checkpoint, checkpoint_dir_name, *args, **options)
        _post.reported(self._number, self._reports)

    def get_all_reported_checkpoints(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError(
            "ray.train.get_all_reported_checkpoints() is not available in a Tune trial: the "
            "trial's checkpoints and their validated scores are kept by Tune, outside of the "
            "workers. Read them from the Result that tuner.fit() returns."
        )


class _SideUtils(DistributedTrainFnUtils):
    """Keeps a side task apart from the training loop: its reports are nobody's."""

    def report(self, *args: Any, **options: Any) -> None:
        pass

    def get_checkpoint(self) -> Any:
        return None


def serve(train_loop: Callable[..., Any], loop_context: Any, thread_context: Any) -> None:
    """Run the user's training loop on one assignment after another; never returns.

    Args:
        train_loop: ``train_loop_per_worker``.
        loop_context: What Ray's backend wraps it in: a function that returns a context manager.
        thread_context: Likewise, for the threads of side tasks.
    """
    fresh = _Surroundings()
    _post.thread_context = thread_context
    while True:
        release_unused()  # the next assignment may be long in coming
        assignment = _post.take()
        if assignment.number > 1:
            gc.collect()
            fresh.restore()
        context = get_train_context()
        _begin(context, assignment)
        set_train_fn_utils(_Utils(assignment))
        loop = construct_train_func(
            train_loop,
            config=assignment.run_context.train_loop_config,
            train_func_context=loop_context,
        )
        value = None
        try:
            with contextlib.suppress(_Leave):
                value = loop()
        except Exception as error:  # of the user's
            raise legible_error(error)  # noqa: B904
        del loop
        _flush(context)
        _post.ended(assignment.number, value)


def _flush(context: TrainContext) -> None:
    """Wait until the checkpoints that are being uploaded are reported."""
    context.checkpoint_upload_threadpool.submit(int).result()


def _begin(context: TrainContext, assignment: Assignment) -> None:
    storage = assignment.run_context.run_config.storage_context
    context.train_run_context = assignment.run_context
    context.storage_context = storage
    with context.report_order_condition:
        context.checkpoint = assignment.checkpoint
    if os.environ.get(RAY_CHDIR_TO_TRIAL_DIR, "1") == "1":
        os.makedirs(storage.local_working_directory, exist_ok=True)
        os.chdir(storage.local_working_directory)


class _Surroundings:
    """What a training loop can change in its process, as it was before the first one.

    Restored are the environment, random generators, torch's switches, and CUDA memory that is not
    in use. As in a fresh process, torch's generators begin in the same state each time, and those
    of Python and numpy do not.
    """

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._torch = list(_torch_state())

    def restore(self) -> None:
        """Put back what can be."""
        os.environ.clear()
        os.environ.update(self._environment)
        random.seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()
        for restore in self._torch:
            restore()


def _torch_state() -> Iterator[Callable[[], object]]:
    """Yield how to put back each part of torch's state, if it is loaded."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    backends, cuda = torch.backends, torch.cuda
    for setting, put_back in (
        (torch.get_rng_state(), torch.set_rng_state),
        (torch.get_default_dtype(), torch.set_default_dtype),
        (torch.get_default_device(), torch.set_default_device),
        (torch.get_num_threads(), torch.set_num_threads),
        (torch.is_grad_enabled(), torch.set_grad_enabled),
        (torch.get_float32_matmul_precision(), torch.set_float32_matmul_precision),
        (torch.get_deterministic_debug_mode(), torch.set_deterministic_debug_mode),
        (backends.cudnn.benchmark, partial(setattr, backends.cudnn, "benchmark")),
        (backends.cudnn.deterministic, partial(setattr, backends.cudnn, "deterministic")),
    ):
        yield partial(put_back, setting)
    if cuda.is_available():
        yield partial(cuda.set_rng_state_all, cuda.get_rng_state_all())
        yield cuda.empty_cache
        yield cuda.reset_peak_memory_stats
