"""A whole Tune sweep in one process: Tune's real controller over trainables that are not actors.

Only the layer below the controller is replaced: actors are objects of this process, a clock decides
when their tasks run, and resources are a number of trials that may run at once. Tune's own code
schedules, searches, saves, pauses, fails and restores trials, at thousands of steps per second and
without a cluster.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import heapq
import math
import os
import random
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ray import tune
from ray.air.execution._internal.tracked_actor import TrackedActor
from ray.train._internal.session import _FutureTrainingResult
from ray.train._internal.storage import StorageContext
from ray.tune import ResumeConfig
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Experiment, Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import BasicVariantGenerator, SearchAlgorithm, Searcher, SearchGenerator

from tunekit._ray.asking import tell
from tunekit._ray.processes import start_in_order
from tunekit.core.timing import Clock


class NotOver(AssertionError):
    """A sweep has not ended in as many steps as it may take."""


class LocalSweep:
    """Run a sweep as ``ray.tune.Tuner.fit`` does, in this process and on a fake clock.

    Args:
        trainable: A class trainable.
        folder: The folder of the experiment's files.
        clock: A clock with simulated time, which only ``sleep`` advances.
        param_space: As for ``ray.tune.Tuner``.
        scheduler: As in ``TuneConfig``; FIFO by default.
        search_alg: As in ``TuneConfig``; random search by default.
        callbacks: As in ``RunConfig``. Tune's default loggers are not added.
        metric, mode, num_samples: As in ``TuneConfig``.
        reuse_actors: As in ``TuneConfig``.
        stop, max_failures, checkpoint_config: As in ``RunConfig`` and its parts.
        slots: How many trials may run at once, or a function that returns the current number.
        max_concurrent: As ``max_concurrent_trials`` in ``TuneConfig``; only without ``search_alg``.
        seconds: ``seconds(trial, method)`` returns the duration of a call of an actor's method, in
            seconds; for ``"start"``, that of the start of its process.
        next_due: Returns the time of the next other event, in seconds of the clock, so that the
            clock does not skip it; None if there is none.
        seed: The seed of Tune's random choices, also part of the trials' names.
        resume: How to continue the sweep in ``folder``; None for a new one.
        disordered: Whether the driver looks for results once a second, and gets them in any order.
        saved_every_s: The interval at which Tune saves the sweep, in seconds of the machine's
            clock; by default, only after its first step and at its end.

    Example:
        >>> import tempfile
        >>> import tunekit
        >>> from tests.support.fakes import FakeClock, FakeExecutor
        >>> class Net(tune.Trainable):
        ...     def step(self):
        ...         return {"loss": 1 / (self.training_iteration + 1)}
        ...     def save_checkpoint(self, folder): ...
        >>> clock = FakeClock()
        >>> executor = FakeExecutor(
        ...     clock, lambda attempt: {"accuracy": attempt.request.iteration / 10}
        ... )
        >>> validation = tunekit.ValidationCallback(
        ...     tunekit.ValidationConfig(fn=lambda checkpoint: {}), executor=executor, clock=clock
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sweep = LocalSweep(
        ...         Net,
        ...         Path(folder),
        ...         clock,
        ...         scheduler=tunekit.ValidatedScheduler(FIFOScheduler()),
        ...         callbacks=[tunekit.EveryIterations(2), validation],
        ...         metric="accuracy",
        ...         mode="max",
        ...         stop={"training_iteration": 4},
        ...         next_due=executor.next_due,
        ...     ).run()
        >>> seen = sweep.trials[0].metric_analysis["accuracy"]
        >>> seen["min"], seen["max"]
        (0.2, 0.4)
    """

    def __init__(
        self,
        trainable: type[tune.Trainable],
        folder: Path,
        clock: Clock,
        *,
        param_space: Mapping[str, Any] | None = None,
        scheduler: TrialScheduler | None = None,
        search_alg: SearchAlgorithm | Searcher | None = None,
        callbacks: Sequence[tune.Callback] = (),
        metric: str | None = None,
        mode: str | None = None,
        num_samples: int = 1,
        stop: Any = None,
        max_failures: int = 0,
        checkpoint_config: tune.CheckpointConfig | None = None,
        slots: int | Callable[[], int] = 1_000_000,
        max_concurrent: int = 0,
        reuse_actors: bool = False,
        seconds: Callable[[Trial, str], float] = lambda trial, method: 0.0,
        next_due: Callable[[], float | None] = lambda: None,
        seed: int = 0,
        resume: ResumeConfig | None = None,
        disordered: bool = False,
        saved_every_s: float = float("inf"),
    ):
        space = dict(param_space or {})
        with mock.patch.dict(os.environ, RAY_CHDIR_TO_TRIAL_DIR="0"):
            experiment = _LocalExperiment(
                "sweep",
                trainable,
                config=space,
                num_samples=num_samples,
                stop=stop,
                max_failures=max_failures,
                storage_path=str(folder),
                checkpoint_config=checkpoint_config or tune.CheckpointConfig(),
            )
        scheduler = scheduler or FIFOScheduler()
        if search_alg is None:
            search_alg = BasicVariantGenerator(max_concurrent=max_concurrent, random_state=seed)
            # Otherwise, trials' names come from the machine's clock.
            search_alg._uuid_prefix = f"{seed:05x}_"
        elif isinstance(search_alg, Searcher):
            search_alg = SearchGenerator(search_alg)
        spec = experiment.public_spec
        if space:
            search_alg.set_search_properties(metric, mode, space, **spec)
        scheduler.set_search_properties(metric, mode, **spec)
        self._actors = _LocalActors(
            self,
            clock,
            slots if callable(slots) else lambda: slots,
            seconds,
            next_due,
            random.Random(seed) if disordered else None,
        )
        with (
            mock.patch.dict(os.environ, TUNE_MAX_PENDING_TRIALS_PG="1000"),
            mock.patch(f"{TuneController.__module__}.RayActorManager", return_value=self._actors),
        ):
            self.controller = TuneController(
                search_alg=search_alg,
                scheduler=scheduler,
                stopper=experiment.stopper,
                callbacks=list(callbacks),
                metric=metric,
                trial_checkpoint_config=experiment.checkpoint_config,
                storage=experiment.storage,
                resource_manager_factory=lambda: None,
                checkpoint_period=saved_every_s,
                reuse_actors=reuse_actors,
                resume_config=resume,
            )
        # Trainable classes themselves, not actor classes.
        self.controller._class_cache = SimpleNamespace(get=lambda trainable_cls: trainable_cls)
        start_in_order(self.controller)
        if not self.controller.resumed:
            search_alg.add_configurations([experiment])
        self.controller.setup_experiments([experiment], search_alg.total_samples)

    @property
    def running(self) -> int:
        """Return how many trials have an actor now."""
        return int(self._actors.num_live_actors)

    @property
    def trials(self) -> list[Trial]:
        """Return the trials, in order of creation."""
        return sorted(self.controller.get_trials(), key=index_of)

    def step(self) -> None:
        """Run one step of the controller."""
        with _in_process():
            self.controller.step()

    def run(self, *, most: int = 1_000_000) -> LocalSweep:
        """Run to the end, in at most ``most`` steps."""
        handler = signal.getsignal(signal.SIGINT)
        with _in_process():
            for _ in range(most):
                # Tune restores the former handler on Ctrl-C.
                interrupted = signal.getsignal(signal.SIGINT) is not handler
                if self.controller.is_finished() or interrupted:
                    self.controller.checkpoint(force=True, wait=True)
                    self._actors.cleanup()
                    self.controller.end_experiment_callbacks()
                    return self
                self.controller.step()
        raise NotOver(f"The sweep is not over after {most} steps: {self.trials}")


@contextlib.contextmanager
def _in_process() -> Iterator[None]:
    """Keep actors in this process's directory, and carry out the saves that Tune waits for.

    The environment must not change at each step, because Tune's own threads read it.
    """
    update = TuneController._update_trial_queue
    with (
        mock.patch.dict(os.environ, RAY_CHDIR_TO_TRIAL_DIR="0", TUNE_PRINT_ALL_TRIAL_ERRORS=""),
        # When no trial runs, Tune waits for a pending suggestion in real time.
        mock.patch.object(
            TuneController,
            "_update_trial_queue",
            lambda self, blocking=False, timeout=600: update(self, blocking=False),
        ),
        mock.patch.object(
            _FutureTrainingResult, "resolve", lambda future, block=True: future.future.run_now()
        ),
    ):
        yield


def index_of(trial: Trial) -> int:
    """Return the trial's number in its sweep, with which its experiment tag begins."""
    number = trial.experiment_tag.split("_")[0]
    return int(number) if number.isdigit() else 0  # a replayed trial is the only one


class _LocalStorage(StorageContext):
    """Storage that stages the driver's files next to the experiment's, not in Ray's session."""

    def _get_session_path(self) -> str:
        return f"{self.storage_fs_path}-session"


class _LocalExperiment(Experiment):
    _storage_context_cls = _LocalStorage


class _Handle:
    """A fake of an actor's handle."""

    def __init__(self, instance: tune.Trainable):
        self.instance = instance

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function with the actor; what a trial is told, each remembers by itself."""
        if function is tell:
            self.instance.told = copy.copy(args[0])
            return None
        return function(self.instance, *args)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.instance, name)
        return mock.Mock(remote=lambda *args, **kwargs: method(*args, **kwargs))


class _Task:
    """A scheduled call of an actor's method."""

    def __init__(self, call: Callable[[], Any], on_result: Any, on_error: Any):
        self._call, self._on_result, self._on_error = call, on_result, on_error
        self.dropped = False

    @functools.cached_property
    def _outcome(self) -> tuple[Any, Exception | None]:
        try:
            return copy.deepcopy(self._call()), None
        except Exception as error:  # a failure of the trainable
            return None, error

    def run_now(self) -> Any:
        return self._outcome[0]

    def resolve(self, actor: TrackedActor) -> None:
        value, error = self._outcome
        if error is None and self._on_result:
            self._on_result(actor, value)
        elif error is not None and self._on_error:
            self._on_error(actor, error)


class _LocalActors:
    """A replacement of the controller's ``RayActorManager``, without actors."""

    def __init__(
        self,
        sweep: LocalSweep,
        clock: Clock,
        slots: Callable[[], int],
        seconds: Callable[[Trial, str], float],
        next_due: Callable[[], float | None],
        disorder: random.Random | None,
    ):
        self._disorder = disorder
        self._sweep, self._clock, self._slots = sweep, clock, slots
        self._seconds, self._next_due = seconds, next_due
        self._unstarted: list[TrackedActor] = []
        self._pending: dict[TrackedActor, tuple[type, dict[str, Any]]] = {}
        self._actor_task_events = None  # no object of Ray's is waited for
        self._resource_request_to_pending_actors: Any = defaultdict(list)
        self._live_actors_to_ray_actors_resources: dict[TrackedActor, tuple[_Handle, None]] = {}
        self._ready: set[TrackedActor] = set()
        self._tasks: dict[TrackedActor, list[_Task]] = {}
        self._busy_until: dict[TrackedActor, float] = {}
        self._events: list[tuple[float, float, Callable[[], None]]] = []
        self._order = 0
        self._ids = random.Random(0)

    num_live_actors = property(lambda self: len(self._live_actors_to_ray_actors_resources))
    num_pending_actors = property(lambda self: len(self._unstarted))
    num_total_actors = property(lambda self: self.num_live_actors + self.num_pending_actors)
    num_actor_tasks = property(lambda self: len(self._events))

    def next(self, timeout: float | None = None) -> bool:
        while self._unstarted and self.num_live_actors < self._slots():
            actor = self._unstarted.pop(0)
            if self._start(actor, *self._pending.pop(actor)):
                return True  # a separate step, so that the process is seen to start
        # While a sweep is cleaned up, nobody asks for the ends of validations.
        queues = getattr(self._sweep.controller, "queues", None)
        due = None if queues is not None and queues.closing else self._next_due()
        if not self._events or (due is not None and due < self._events[0][0]):
            wait = (timeout or 0.1) if due is None else due - self._clock.monotonic()
            if TuneController.is_finished(self._sweep.controller):  # without the validations
                wait = min(wait, timeout or 0.1)  # the sweep waits for its end step by step
            inquiries = getattr(self._sweep.controller, "inquiries", None)
            if inquiries is not None and inquiries._asking:  # one may time out
                wait = min(wait, timeout or 0.1)
            self._clock.sleep(max(wait, 1e-6))
            return False
        at, _, event = heapq.heappop(self._events)
        self._clock.sleep(max(0.0, at - self._clock.monotonic()))
        event()
        return True

    def add_actor(
        self,
        cls: type,
        resource_request: Any,
        kwargs: dict[str, Any],
        on_start: Any = None,
        on_stop: Any = None,
        on_error: Any = None,
    ) -> TrackedActor:
        actor = TrackedActor(
            self._ids.getrandbits(64), on_start=on_start, on_stop=on_stop, on_error=on_error
        )
        self._unstarted.append(actor)
        # All have the same resources.
        self._resource_request_to_pending_actors[resource_request] = self._unstarted
        self._pending[actor] = cls, kwargs
        return actor

    def _start(self, actor: TrackedActor, cls: type, kwargs: dict[str, Any]) -> bool:
        """Start an actor; return whether that takes time."""
        # An actor has its own copies; the controller has already made the deep ones.
        handle = _Handle(cls(**{**kwargs, "storage": copy.copy(kwargs["storage"])}))
        self._live_actors_to_ray_actors_resources[actor] = (handle, None)
        trial = self._sweep.controller._actor_to_trial.get(actor)
        start_s = self._seconds(trial, "start") if trial is not None else 0.0
        self._at(self._clock.monotonic() + start_s, lambda: self._started(actor))
        return start_s > 0

    def _started(self, actor: TrackedActor) -> None:
        if actor in self._live_actors_to_ray_actors_resources:
            self._ready.add(actor)
            actor._on_start(actor)

    def remove_actor(
        self, tracked_actor: TrackedActor, kill: bool = False, stop_future: Any = None
    ) -> bool:
        if tracked_actor not in self._live_actors_to_ray_actors_resources:
            if self._pending.pop(tracked_actor, None):
                self._unstarted.remove(tracked_actor)
            return False
        self.clear_actor_task_futures(tracked_actor)
        ends, now = self._busy_until.get(tracked_actor, 0.0), self._clock.monotonic()
        if ends > now and not kill:
            self._at(ends, lambda: self._end(tracked_actor))  # at the end of its iteration
        else:
            self._end(tracked_actor)
        return True

    def _end(self, actor: TrackedActor) -> None:
        handle, _ = self._live_actors_to_ray_actors_resources.pop(actor, (None, None))
        if handle is None:
            return
        handle.instance.stop()
        if actor in self._ready:  # otherwise, the real one calls no callback either
            self._at(self._clock.monotonic(), lambda: actor._on_stop and actor._on_stop(actor))

    def schedule_actor_task(
        self,
        tracked_actor: TrackedActor,
        method_name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        on_result: Any = None,
        on_error: Any = None,
        _return_future: bool = False,
    ) -> _Task | None:
        if tracked_actor not in self._live_actors_to_ray_actors_resources:
            return None  # requested but not started; only its removal can follow
        handle, _ = self._live_actors_to_ray_actors_resources[tracked_actor]
        instance = handle.instance
        method = handle.call if method_name == "__ray_call__" else getattr(instance, method_name)
        task = _Task(lambda: method(*args, **(kwargs or {})), on_result, on_error)
        if method_name == "stop":
            return task
        if method_name == "reset":
            kwargs = {**(kwargs or {}), "storage": copy.copy((kwargs or {})["storage"])}
        trial = self._sweep.controller._actor_to_trial[tracked_actor]
        now = self._clock.monotonic()
        begin = max(now, self._busy_until.get(tracked_actor, now))
        end = self._busy_until[tracked_actor] = begin + self._seconds(trial, method_name)
        self._tasks.setdefault(tracked_actor, []).append(task)

        def resolve() -> None:
            if not task.dropped:
                own = self._tasks[tracked_actor]
                for earlier in own[: own.index(task)]:
                    earlier.run_now()
                own.remove(task)
                task.resolve(tracked_actor)

        self._at(end, resolve)
        return task if _return_future else None

    def clear_actor_task_futures(self, tracked_actor: TrackedActor) -> None:
        for task in self._tasks.pop(tracked_actor, []):
            task.dropped = True

    def is_actor_started(self, tracked_actor: TrackedActor) -> bool:
        return tracked_actor in self._live_actors_to_ray_actors_resources

    def is_actor_failed(self, tracked_actor: TrackedActor) -> bool:
        return False

    def get_live_actors_resources(self) -> dict[str, float]:
        return {"CPU": float(self.num_live_actors)}

    def cleanup(self) -> None:
        self._events.clear()

    def _at(self, when: float, event: Callable[[], None]) -> None:
        self._order += 1
        order: float = self._order
        if self._disorder is not None:
            when, order = math.ceil(when), self._disorder.random()
        heapq.heappush(self._events, (when, order, event))
