"""A fake validation context, for trying out a validation function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tunekit.validating.context import ValidationContext, telling


@contextmanager
def validation_context(
    *,
    config: Mapping[str, Any] | None = None,
    trial_id: str = "trial",
    iteration: int = 1,
    generation: int = 0,
    attempt: int = 1,
) -> Iterator[ValidationContext]:
    """Make :func:`tunekit.get_validation_context` work in this process, as in a validation.

    Args:
        config: The trial's hyperparameters.
        trial_id: The trial's id.
        iteration: The training iteration of the checkpoint.
        generation: How many times the trial was overwritten.
        attempt: The number of the attempt, from 1.

    Example:
        >>> import tunekit
        >>> with validation_context(config={"width": 64}, iteration=3):
        ...     tunekit.get_validation_context()
        ValidationContext(trial_id='trial', config={'width': 64}, iteration=3, generation=0,
                          attempt=1)
    """
    told = ValidationContext(trial_id, dict(config or {}), iteration, generation, attempt)
    with telling(told):
        yield told
