"""Validation that is itself distributed: by the workers of a trainer."""

from __future__ import annotations

import inspect
import re
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray import train
from ray.train import TrainingFailedError

from tunekit._ray.compat import check_trainers
from tunekit._ray.raised import LoopError, raised_in
from tunekit.core.calls import ValidationFunction, is_generator, takes_resume
from tunekit.core.problems import Problems
from tunekit.core.values import admitted
from tunekit.extras import extra
from tunekit.validating.context import ValidationContext, telling, told_now
from tunekit.validating.process import (
    Began,
    Event,
    Failed,
    is_cancelled,
    looked_up,
    opened,
    plain,
    produced,
)
from tunekit.validating.undisturbed import undisturbed

if TYPE_CHECKING:
    from tunekit._ray.worker_group import ValidationWorkerGroup
    from tunekit.validating.cache import Lookup

__all__ = ["TrainerValidation", "in_workers"]

# Where the configuration of a worker has what get_validation_context() answers.
_TOLD = "tunekit_validation_context"
_FOLDER = "tunekit-validation-"


class TrainerValidation:
    """A validation function that runs a loop in the workers of a ``TorchTrainer``.

    Every worker runs ``loop(config)`` with ``config["checkpoint"]`` and the validation's keyword
    arguments; what rank 0 returns is the score, a dict of numbers. If the loop is a generator, what
    rank 0 yields are the estimates (:class:`tunekit.Estimate`), and what the others yield does not
    matter; but all ranks must yield equally often, because all leave the loop at the same yield
    once the estimates are enough. The workers' resources (:attr:`bundles`) come on top of the
    validation's own (``ray_remote_kwargs``), and trials leave room for them. Ray Train's run is
    named after the first validation that it did: trial and iteration.

    In a sweep, the workers of a trial that stands still run it, in the trial's process group, if
    there are as many of them, each has the resources, and no ``trainer_options`` are given.
    Elsewhere, workers live on from one validation to the next, in resources of their own
    (``ValidationConfig(evaluators=n)`` says how many groups of them there may be). Either way, a
    validation costs no start of processes. The loop must not leave anything behind in its process
    that the next validation would notice. Called by itself, it starts a trainer each time, and
    returns what rank 0 has returned, or yielded last.

    Args:
        loop: ``loop(config) -> dict``, as ``train_loop_per_worker``; it reports nothing. It may be
            a generator. With a second parameter, ``resume``, it gets what an earlier attempt has
            yielded, by the flat names of the metrics; an empty dict if there was none.
        scaling_config: The workers: a ``ray.train.ScalingConfig``.
        **trainer_options: More arguments of ``TorchTrainer``, such as ``datasets``.

    Raises:
        tunekit.errors.ConfigError: If an argument is wrong; the message lists all that are.

    Example:
        >>> from ray import train
        >>> def loop(config):
        ...     with config["checkpoint"].as_directory() as directory:
        ...         ...  # each worker its part; then torch.distributed.all_reduce
        ...     return {"accuracy": 0.9}
        >>> validate = TrainerValidation(loop, train.ScalingConfig(num_workers=2))
        >>> validate.bundles
        [{'CPU': 1.0}, {'CPU': 1.0}]
    """

    def __init__(
        self,
        loop: ValidationFunction,
        scaling_config: train.ScalingConfig,
        **trainer_options: Any,
    ):
        problems = Problems("TrainerValidation")
        problems.function("loop", loop, "Pass `def loop(config) -> dict`.")
        problems.instance(
            "scaling_config",
            scaling_config,
            train.ScalingConfig,
            "Pass ray.train.ScalingConfig(num_workers=2).",
        )
        for taken in {"train_loop_config", "run_config", "validation_config"} & set(
            trainer_options
        ):
            problems.add(
                f"{taken} is set for each validation. Leave it out; what the loop needs comes as "
                "ValidationTaskConfig(fn_kwargs={...})."
            )
        problems.raise_any()
        check_trainers()
        self._loop = _InWorker(loop)
        #: What tunekit takes for the signature of a call, and whether that yields.
        self.__signature__ = _signature(loop)
        self.is_generator = is_generator(loop)
        self._scaling_config, self._options = scaling_config, trainer_options
        self._first_bundle: int | None = None
        self._workers: ValidationWorkerGroup | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Return what each worker takes: ``[{"CPU": 1.0}, {"CPU": 1.0}]``."""
        return [dict(each) for each in self._scaling_config.as_placement_group_factory().bundles]

    @property
    def fits_trials(self) -> bool:
        """Return whether the workers of a trial could run it, if they have the resources."""
        return not self._options and not getattr(self._scaling_config, "label_selector", None)

    def in_worker(self, config: dict[str, Any]) -> Any:
        """Run the loop in this process, which is one of several workers."""
        return self._loop(config)

    def placed(self, first_bundle: int) -> None:
        """It lives on, and its workers have bundles of this process's placement group."""
        self._first_bundle = first_bundle

    def __call__(self, checkpoint: Any, **kwargs: Any) -> Any:
        """Validate a checkpoint.

        Raises:
            ray.train.TrainingFailedError: If the loop raises, or a worker dies.
            tunekit.errors.ConfigError: If the ranks yield unequally often.
            tunekit.errors.MissingExtraError: If torch is not installed.
        """
        config = {**kwargs, "checkpoint": checkpoint, _TOLD: told_now()}
        if self._first_bundle is not None:
            return self._in_workers_that_live_on(config, self._first_bundle)
        with _as_the_loop_raised(), tempfile.TemporaryDirectory(prefix=_FOLDER) as folder:
            return admitted(self._trainer(folder, config).fit().return_value, opened)

    def _in_workers_that_live_on(
        self, config: dict[str, Any], first_bundle: int
    ) -> Generator[Any, None, Any]:
        """Yield what rank 0 yields; closed early, all ranks leave the loop."""
        from tunekit._ray.worker_group import ValidationWorkerGroup

        with _as_the_loop_raised():
            if self._workers is None or not self._workers.alive:
                self._folder = tempfile.TemporaryDirectory(prefix=_FOLDER)
                trainer = self._trainer(self._folder.name, config)
                self._workers = ValidationWorkerGroup(trainer, first_bundle)
            with closing(self._workers.run(config, is_cancelled)) as steps:
                while True:
                    try:
                        known = next(steps)
                    except StopIteration as end:
                        return admitted(end.value, opened)
                    yield admitted(known, opened)

    def _trainer(self, folder: str, config: dict[str, Any]) -> Any:
        with extra("torch"):
            from ray.train.torch import TorchTrainer

        named = ray.get_runtime_context().get_task_name() if ray.is_initialized() else None
        return TorchTrainer(
            self._loop,
            train_loop_config=config,
            scaling_config=self._scaling_config,
            run_config=train.RunConfig(
                name=re.sub(r"[^\w.-]+", "-", named or "validate"), storage_path=folder
            ),
            **self._options,
        )


@contextmanager
def _as_the_loop_raised() -> Iterator[None]:
    """Let an error of Ray Train's say what the user's loop has raised, if that led to it."""
    try:
        yield
    except TrainingFailedError as error:
        raised = raised_in(error)
        if raised is not None:
            error.tunekit_raised = raised
        raise


def _signature(loop: Callable[..., Any]) -> inspect.Signature:
    """Return the signature by which a checkpoint is validated.

    Example:
        >>> print(_signature(lambda config, resume: {}), _signature(lambda config: {}))
        (checkpoint, *, resume={}, **kwargs) (checkpoint, **kwargs)
    """
    parameters = [inspect.Parameter("checkpoint", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    if takes_resume(loop):
        known = inspect.Parameter("resume", inspect.Parameter.KEYWORD_ONLY, default={})
        parameters.append(known)
    parameters.append(inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters)


class _InWorker:
    """Runs the user's loop in a worker.

    The loop is told whose checkpoint it has, and any process can read what it yields, returns or
    raises.
    """

    def __init__(self, loop: ValidationFunction):
        self._loop = loop
        self._takes_config = bool(inspect.signature(loop).parameters)
        self._resumes = takes_resume(loop)

    def __call__(self, config: dict[str, Any]) -> Any:
        own = dict(config)
        told: ValidationContext | None = own.pop(_TOLD)
        named = {"resume": own.pop("resume", {})} if self._resumes else {}
        try:
            with telling(told):
                found = self._loop(own, **named) if self._takes_config else self._loop()
                return _last_of(found) if isinstance(found, Generator) else plain(found)
        except Exception as error:  # all that a loop can raise
            raise LoopError.of(error) from None


def _last_of(estimates: Generator[Any, None, Any]) -> Any:
    """Run a generator as far as all ranks do; return what it returned, or yielded last."""
    from tunekit._ray.workers import goes_on

    is_first = train.get_context().get_world_rank() == 0
    newest: Any = None
    with closing(estimates):
        while True:
            try:
                yielded = next(estimates)
            except StopIteration as end:
                return newest if end.value is None else plain(end.value)
            if is_first:
                newest = plain(yielded)
            if not goes_on([newest] if is_first else []):
                return newest


# In the workers of a trial ---------------------------------------------------------------------


def in_workers(
    trial: Any,
    attempt_id: str,
    fn_ref: list[Any],
    checkpoint: Any,
    kwargs: dict[str, Any],
    told: ValidationContext,
    lookup: Lookup | None,
    *,
    alone: bool,
) -> Iterator[Event]:
    """Validate in the workers of a trial that stands still: a task of the trial's own process.

    Args:
        trial: The trial.
        attempt_id: The attempt; this and the others as of ``in_task``.
        alone: Whether it is a function that rank 0 calls.
    """
    from tunekit._ray.worker_group import WorkersLost

    yield Began(attempt_id)
    call = partial(_in_worker, fn_ref, {**kwargs, "checkpoint": checkpoint, _TOLD: told})

    def run() -> Iterator[Event]:
        steps = partial(trial.beside, call, alone=alone, is_cancelled=is_cancelled)
        return produced(attempt_id, steps)

    for event in looked_up(attempt_id, lookup, checkpoint, told, run):
        if isinstance(event, Failed) and not trial.has_workers:
            reason = event.reason.removeprefix(f"raised {WorkersLost.__name__}: ")
            event = replace(event, reason=reason, lost=True)
        yield event


def _in_worker(fn_ref: list[Any], config: dict[str, Any]) -> Any:
    """Validate in one of a trial's workers."""
    with undisturbed():
        fn = ray.get(fn_ref[0])
        run = fn.in_worker if isinstance(fn, TrainerValidation) else _InWorker(partial(_called, fn))
        try:
            return run(config)
        except LoopError as error:  # which refers to all that the function had in memory
            raised = LoopError(*error.args)
    raise raised


def _called(fn: Callable[..., Any], config: dict[str, Any]) -> Any:
    return fn(config.pop("checkpoint"), **config)
