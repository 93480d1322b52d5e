"""Run validations in the workers of a trainer: those of a waiting trial, or separate ones."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import ray
from ray import train

from tunekit._ray.compat import check_trainers
from tunekit._ray.tuner import FOR_DATA
from tunekit._ray.worker_errors import LoopError
from tunekit.core.executor import AttemptEvent, Began, Failed
from tunekit.core.signatures import ValidationFunction, deferred_kind
from tunekit.core.values import Raised
from tunekit.errors import extra
from tunekit.messages.problems import Problems, format_argument
from tunekit.validating.context import current_context
from tunekit.validating.process import Call, as_event, outcome_beside

if TYPE_CHECKING:
    from tunekit._ray.worker_group import TrialWorkerGroup

_FOLDER = "tunekit-validation-"


class TrainerValidation:
    """Run a validation loop in the workers of a ``TorchTrainer``, as a validation function.

    Every worker runs ``loop(config)`` with ``config["checkpoint"]`` and the validation's keyword
    arguments; the score is the dict of numbers that rank 0 returns. The workers' resources
    (:attr:`bundles`) are in addition to the validation's own (``ray_remote_kwargs``), and trials
    leave room for them.

    In a sweep, the workers of a waiting trial run the loop in the trial's process group, if their
    number matches, each has the resources, and there are no ``trainer_options``. Otherwise,
    long-lived workers run it, in at most ``ValidationConfig(evaluators=n)`` groups. Either way, a
    validation starts no processes. Outside of a sweep, each call starts a trainer.

    Args:
        loop: ``loop(config) -> dict``, like ``train_loop_per_worker``, but without reports.
        scaling_config: The workers: a ``ray.train.ScalingConfig``.
        **trainer_options: More arguments of ``TorchTrainer``, such as ``datasets``.

    Raises:
        tunekit.errors.ConfigError: If an argument is wrong; the message lists every mistake.

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
        fix = "Pass `def loop(config) -> dict`."
        if problems.function("loop", loop, fix) and (kind := deferred_kind(loop)) is not None:
            problems.add(
                f"loop={format_argument(loop)} is {kind}, so a call returns before anything is "
                f"validated. {fix}"
            )
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
                f"{taken} is set for each validation. Remove it, and pass the loop's arguments as "
                "ValidationTaskConfig(fn_kwargs={...})."
            )
        problems.raise_any()
        check_trainers()
        self.loop = loop
        self._scaling_config, self._options = scaling_config, trainer_options
        self._first_bundle: int | None = None
        self._loop_ref: Any = None
        self._workers: TrialWorkerGroup | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Return the resources of each worker: ``[{"CPU": 1.0}, {"CPU": 1.0}]``."""
        return [dict(each) for each in self._scaling_config.as_placement_group_factory().bundles]

    @property
    def alongside(self) -> Mapping[str, float]:
        """Return what must be free in addition: Ray Data loads the trainer's datasets."""
        return FOR_DATA if self._options.get("datasets") else {}

    @property
    def fits_trials(self) -> bool:
        """Return whether workers of a trial with enough resources can run the loop."""
        return not self._options and not getattr(self._scaling_config, "label_selector", None)

    def placed(self, first_bundle: int) -> None:
        """Keep the workers between calls, in this process's placement group from this bundle on."""
        self._first_bundle = first_bundle

    def __call__(self, checkpoint: Any, **kwargs: Any) -> Any:
        """Validate a checkpoint.

        Raises:
            ray.train.TrainingFailedError: If the workers cannot be started.
            tunekit.errors.MissingExtraError: If torch is not installed.
        """
        config = {**kwargs, "checkpoint": checkpoint}
        if self._first_bundle is None:
            with tempfile.TemporaryDirectory(prefix=_FOLDER) as folder:
                trainer = self._trainer(folder, train_loop_config=config)
                return trainer.fit().return_value
        if self._workers is None or not self._workers.alive:
            from tunekit._ray.worker_group import TrialWorkerGroup

            self._folder = tempfile.TemporaryDirectory(prefix=_FOLDER)
            trainer = self._trainer(self._folder.name)
            self._workers = TrialWorkerGroup(trainer, first_bundle=self._first_bundle)
            self._workers.start()
        if self._loop_ref is None:
            self._loop_ref = ray.put(self.loop)
        run = partial(_run_kept_loop, self._loop_ref, config)
        call = partial(outcome_beside, run, current_context())
        found = _of_all(self._workers.beside(call, alone=False))
        if isinstance(found, Raised):
            raise LoopError(found)
        return found

    def _trainer(self, folder: str, **settings: Any) -> Any:
        with extra("torch"):
            from ray.train.torch import TorchTrainer

        named = ray.get_runtime_context().get_task_name() if ray.is_initialized() else None
        return TorchTrainer(
            self.loop,
            scaling_config=self._scaling_config,
            run_config=train.RunConfig(
                name=re.sub(r"[^\w.-]+", "-", named or "validate"), storage_path=folder
            ),
            **settings,
            **self._options,
        )


def validate_in_workers(trial: Any, call: Call, *, alone: bool) -> Iterator[AttemptEvent]:
    """Validate in the workers of a waiting trial, from a task in the trial's own process.

    Args:
        trial: The trial.
        call: The validation.
        alone: Whether rank 0 alone validates.
    """
    from tunekit._ray.worker_group import WorkersLost

    config = {**call.kwargs, "checkpoint": call.checkpoint}
    run = call.run if alone else partial(_run_loop, call.fn_ref, config)
    yield Began(call.attempt_id)
    try:
        found = trial.beside(partial(outcome_beside, run, call.context), alone=alone)
        event = as_event(call.attempt_id, _of_all(found))
        if isinstance(event, Failed) and not trial.has_workers:
            event = replace(event, host_ended=True)
        yield event
    except WorkersLost as error:
        yield Failed(call.attempt_id, str(error), host_ended=True)


def _of_all(by_rank: Mapping[int, Any]) -> Any:
    """Return rank 0's result, or the error of any rank that raised one."""
    raised = (one for one in by_rank.values() if isinstance(one, Raised))
    return next(raised, by_rank.get(0))


# In a worker -----------------------------------------------------------------------------------


def _run_loop(fn_ref: Any, config: dict[str, Any]) -> Any:
    return ray.get(fn_ref).loop(config)


def _run_kept_loop(loop_ref: Any, config: dict[str, Any]) -> Any:
    return _kept_loop(loop_ref)(config)


@lru_cache(maxsize=1)
def _kept_loop(loop_ref: Any) -> Any:
    """Return a loop cached in this process, with its own state."""
    return ray.get(loop_ref)
