"""Distributed trials: a trainer for each, and validation in several workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ray import tune
from ray.tune.schedulers import ResourceChangingScheduler

from tunekit._ray.compat import check_trainers
from tunekit.config import ValidationConfig
from tunekit.messages.problems import Problems
from tunekit.validating.trainer import TrainerValidation

__all__ = ["TrainerFactory", "TrainerValidation"]


# The keys that a trainer's search space may have.
_SPACE = ("train_loop_config", "scaling_config", "datasets", "resume_from_checkpoint")


class TrainerFactory:
    """Create each trial's trainer, for arguments that depend on the trial.

    Args:
        make: ``make(config)`` returns a ``TorchTrainer``, or another data-parallel trainer from Ray
            Train, for a trial's configuration. It is called in the driver, for the trainer's
            resources, and in the trial.

    Raises:
        tunekit.errors.ConfigError: If ``make`` is not callable.

    Example:
        >>> from ray import train
        >>> from ray.train.torch import TorchTrainer
        >>> def loop(config): ...
        >>> factory = TrainerFactory(
        ...     lambda config: TorchTrainer(
        ...         loop,
        ...         train_loop_config={"lr": config["lr"]},
        ...         scaling_config=train.ScalingConfig(num_workers=config["workers"]),
        ...     )
        ... )
        >>> factory.make({"lr": 0.1, "workers": 2}).scaling_config.num_workers
        2
    """

    def __init__(self, make: Callable[[dict[str, Any]], Any]):
        problems = Problems("TrainerFactory")
        problems.function("make", make, "Pass `def make(config) -> TorchTrainer`.")
        problems.raise_any()
        self.make = make


def check_trainer(source: Any, space: Mapping[str, Any] | None, problems: Problems) -> None:
    """Add the problems with a trainer or its search space."""
    if isinstance(source, TrainerFactory):
        return
    _check_scaling("the trainer's scaling_config", source.scaling_config, problems)
    if source.backend_config.backend_cls.has_replica_groups:
        problems.add(
            f"{type(source.backend_config).__name__} replaces single workers, but a trial's "
            "workers start and end together. Use TorchConfig."
        )
    for key, value in (space or {}).items():
        if key not in _SPACE:
            problems.add(
                f"param_space has {key!r}, which is not an argument of the trainer. Arguments of "
                'the training loop go into {"train_loop_config": {...}}; the other keys are '
                f"{', '.join(map(repr, _SPACE[1:]))}."
            )
        elif key == "scaling_config":
            _check_scaling("param_space['scaling_config']", value, problems)


def _check_scaling(name: str, scaling: Any, problems: Problems) -> None:
    if isinstance(scaling, Mapping):
        workers = scaling.get("num_workers", 1)
    else:
        workers = getattr(scaling, "num_workers", 1)
    if workers == 0:
        problems.add(
            f"{name} has num_workers=0, which trains in the driver. Use 1 or more: a trial with "
            "one worker trains in a separate process."
        )
    if getattr(scaling, "topology", None):
        problems.add(
            f"{name} has topology={scaling.topology!r}, but a trial's placement group is not a TPU "
            "slice. Leave it out."
        )
    if isinstance(workers, tuple):
        problems.add(
            f"{name} has num_workers={workers!r}, but a trial's resources are reserved before it "
            "starts, so its number of workers cannot change. Pass one number."
        )


def check_scheduler(scheduler: Any, problems: Problems) -> None:
    """Add a problem for each feature of a scheduler that a trainer's trials do not support."""
    if isinstance(scheduler, ResourceChangingScheduler):
        problems.add(
            f"{type(scheduler).__name__} changes the resources of trials, but a trainer's "
            "resources are its workers'. Pass the scheduler inside, and search for the number of "
            "workers with param_space={'scaling_config': {'num_workers': tune.choice([1, 2])}}."
        )


def check_saving(policy: Any, run_config: Any, problems: Problems) -> None:
    """Add a problem for each setting that requests checkpoints; a trainer's workers do that."""
    checkpoints = getattr(run_config, "checkpoint_config", None)
    if not is_tunes(checkpoints, tune.CheckpointConfig):
        checkpoints = None  # it has none of these settings
    asked = []
    if policy is not None:
        asked.append(f"checkpoint_policy={policy!r}")
    for name in ("checkpoint_frequency", "checkpoint_at_end"):
        if getattr(checkpoints, name, None):
            asked.append(f"CheckpointConfig({name}={getattr(checkpoints, name)!r})")
    for one in asked:
        problems.add(
            f"{one} cannot make a trainer's workers save. Leave it out; call "
            "ray.train.report(metrics, checkpoint=...) in the training loop to save one."
        )


def is_tunes(value: Any, kind: type) -> bool:
    """Return whether a value is Tune's config of that kind, not Ray Train's namesake.

    Example:
        >>> from ray import train
        >>> is_tunes(tune.FailureConfig(), tune.FailureConfig)
        True
        >>> is_tunes(train.CheckpointConfig(), tune.CheckpointConfig)
        False
    """
    return isinstance(value, kind) or issubclass(kind, type(value))


def validation_config_of(source: Any) -> ValidationConfig | None:
    """Return the trainer's own ``validation_config``, which means the same as in Ray Train."""
    config = getattr(source, "validation_config", None)
    if config is None or isinstance(config, ValidationConfig):
        return config
    return ValidationConfig(
        config.fn, config.task_config, config.ray_remote_kwargs, when="requested"
    )


def run_config_of(source: Any) -> tune.RunConfig | None:
    """Return the settings of the trainer's own ``run_config`` that concern the sweep."""
    config = getattr(source, "run_config", None)
    if config is None:
        return None
    kept = config.checkpoint_config
    return tune.RunConfig(
        name=config.name,
        storage_path=config.storage_path,
        storage_filesystem=config.storage_filesystem,
        checkpoint_config=tune.CheckpointConfig(
            num_to_keep=kept.num_to_keep,
            checkpoint_score_attribute=kept.checkpoint_score_attribute,
            checkpoint_score_order=kept.checkpoint_score_order,
        ),
    )


def trials_of(source: Any, validation: ValidationConfig | None) -> Any:
    """Return the trainable whose trials are runs of a trainer."""
    check_trainers()
    from tunekit._ray.distributed_trials import (
        distributed_class,  # takes half a second, with Ray Train
    )

    trainable = distributed_class(source.make if isinstance(source, TrainerFactory) else source)
    if validation is not None:
        trainable.validate(wait=validation.on_pending == "wait")
    return trainable
