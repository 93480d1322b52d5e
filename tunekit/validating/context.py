"""Provide a validation function with the context of its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tunekit.errors import WiringError


@dataclass(frozen=True)
class ValidationContext:
    """Describe the checkpoint that is being validated; see :func:`get_validation_context`.

    Attributes:
        trial_id: The trial that saved the checkpoint.
        config: The hyperparameters that the checkpoint was trained with. With population based
            training, those of the checkpoint's generation.
        iteration: The training iteration at which it was saved.
        generation: How many times the trial's weights had been replaced by another trial's; 0
            without population based training.
        attempt: The number of the attempt: 1, or more after a failure.

    Example:
        >>> context = ValidationContext("trial_1", {"width": 64}, iteration=3)
        >>> context.config["width"], context.iteration, context.generation, context.attempt
        (64, 3, 0, 1)
    """

    trial_id: str
    config: Mapping[str, Any]
    iteration: int
    generation: int = 0
    attempt: int = 1


def get_validation_context() -> ValidationContext:
    """Return the trial and hyperparameters of the checkpoint that this process validates.

    Call it in the validation function, in an evaluator's ``__call__``, or in the loop of a
    :class:`~tunekit.distributed.TrainerValidation`, on each rank.

    Raises:
        tunekit.errors.WiringError: If this process runs no validation: in the driver, while an
            evaluator is being built, or in tasks and actors that a validation starts (pass them
            what they need).

    Example:
        In a test of a validation function, replace it:

        >>> import tunekit
        >>> from unittest import mock
        >>> def validate(checkpoint):
        ...     width = tunekit.get_validation_context().config["width"]
        ...     return {"accuracy": 0.9, "width": width}
        >>> context = tunekit.ValidationContext("trial", {"width": 64}, iteration=1)
        >>> with mock.patch("tunekit.get_validation_context", return_value=context):
        ...     validate(None)
        {'accuracy': 0.9, 'width': 64}
    """
    if isinstance(_now, ValidationContext):
        return _now
    if _now is _BUILDING:
        raise WiringError(
            "tunekit.get_validation_context() was called while an evaluator was being built, which "
            "happens once for many checkpoints. Call it in __call__, which runs for each of them."
        )
    raise WiringError(
        "tunekit.get_validation_context() was called outside of a validation. Call it in the "
        "validation function itself, and pass what it returns to tasks, actors and datasets that "
        "the function starts. In a test, replace it with mock.patch("
        '"tunekit.get_validation_context", return_value=tunekit.ValidationContext(...)).'
    )


_BUILDING = "building"

# A process runs one validation at a time, which may call this from any of its threads.
_now: ValidationContext | str | None = None


def current_context() -> ValidationContext | None:
    """Return the context of the validation that this process runs; None if it runs none."""
    return _now if isinstance(_now, ValidationContext) else None


@contextmanager
def validating_in(context: ValidationContext | None, *, building: bool = False) -> Iterator[None]:
    """Set the value that :func:`get_validation_context` returns inside a ``with`` block.

    Args:
        context: The context, if there is one.
        building: Whether an evaluator is being built.
    """
    global _now
    before, _now = _now, _BUILDING if building else context
    try:
        yield
    finally:
        _now = before
