"""Functions for reporting and saving in trainables, and for reading saved state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray import train, tune

from tunekit._ray.functions import NoSession, current_saver, is_trial, register_saver, saved_dict
from tunekit._ray.overrides import ValidationOverride, check_override
from tunekit.core.metrics import VALIDATION_KEY as VALIDATION_KEY
from tunekit.errors import ConfigError, WiringError
from tunekit.messages.problems import Problems


def report(
    metrics: Mapping[str, Any],
    *,
    checkpoint: tune.Checkpoint | None = None,
    validation: ValidationOverride = None,
) -> None:
    """Report metrics to Tune, as ``ray.tune.report`` does, and request a validation.

    Args:
        metrics: The metrics to report, by name; they may be nested.
        checkpoint: A checkpoint to save with them. Without one, whenever a policy requests a
            checkpoint, the trial calls the function that :func:`checkpoint_with` registered.
        validation: None leaves it to the sweep's ``ValidationConfig(when=...)``; False does not
            validate this checkpoint; True validates it; a ``ray.train.ValidationTaskConfig``
            validates it with its keyword arguments, which override the sweep's one by one, and
            with its ``timeout_s`` (seconds; None: no limit, as in Ray Train). With True or a config
            and no ``checkpoint``, one is saved.

    Raises:
        tunekit.errors.ConfigError: If an argument is wrong, or if a validation is requested but
            there is nothing to save.

    Example:
        >>> from ray import tune
        >>> import tunekit
        >>> def train(config):
        ...     tunekit.checkpoint_with(lambda directory: (directory / "lr").write_text("0.1"))
        ...     for epoch in range(3):
        ...         tunekit.report({"loss": 1 / (epoch + 1)}, validation=epoch == 2)
    """
    problems = Problems("tunekit.report")
    problems.instance("metrics", metrics, Mapping, "Pass a dict of metrics.")
    wished = check_override("validation", validation, problems)
    if wished and checkpoint is None and is_trial() and current_saver() is None:
        problems.add(
            f"validation={validation!r} needs a checkpoint. Pass checkpoint=, or register how to "
            "save with tunekit.checkpoint_with(save)."
        )
    problems.raise_any()
    result = dict(metrics)
    if validation is not None:
        result[VALIDATION_KEY] = validation
    if wished and checkpoint is None:
        result["should_checkpoint"] = True
    tune.report(result, checkpoint=checkpoint)


def checkpoint_with(save: Callable[[Path], object]) -> None:
    """Register how this function trainable saves whenever a checkpoint is requested.

    From then on, a callback's ``should_checkpoint``, a :class:`~tunekit.policies.CheckpointPolicy`,
    ``CheckpointConfig(checkpoint_frequency=n)``, ``checkpoint_at_end=True`` and a scheduler's pause
    work for the function as they do for a class trainable. ``save`` is called while the function is
    blocked in ``report``, or after it has returned, so it sees the state of the last report; what
    it closes over must stay valid until then. Registering again replaces the previous ``save``.

    When the trial resumes, ``ray.tune.get_checkpoint()`` returns the checkpoint. A resumed function
    that reports without having called it has started over, so the trial fails with a
    :class:`tunekit.errors.NotResumedError`. Call it even if the function needs nothing from the
    checkpoint.

    Outside a Tune trial, this does nothing, so you can run the function on its own.

    Args:
        save: ``save(directory)`` writes the state as files into an empty directory
            (a ``pathlib.Path``), which is then uploaded to the trial's storage.

    Raises:
        tunekit.errors.ConfigError: If ``save`` is not callable.
        tunekit.errors.WiringError: If the trial's trainable cannot save on demand.

    Example:
        >>> import tunekit
        >>> weights = {"w": 0.5}
        >>> tunekit.checkpoint_with(
        ...     lambda directory: (directory / "weights.txt").write_text(str(weights))
        ... )
    """
    problems = Problems("tunekit.checkpoint_with")
    problems.function("save", save, "Pass a function that writes files into a directory.")
    problems.raise_any()
    try:
        register_saver(save)
    except NoSession:
        raise WiringError(
            "tunekit.checkpoint_with was called in a trial whose trainable cannot save on demand. "
            "Run the function with tunekit.Tuner, or pass tunekit.checkpointable(function) to "
            "ray.tune.Tuner."
        ) from None


def state_of(checkpoint: tune.Checkpoint) -> dict[str, Any]:
    """Return the dict that a class trainable's ``save_checkpoint`` returned.

    Tune writes such a dict into the checkpoint's folder as a pickle; a validation function
    reads it with ``state_of``. Reading a pickle can run arbitrary code: read only checkpoints that
    you trust.

    Args:
        checkpoint: The checkpoint that a validation function gets, or
            ``tunekit.load(path).best().checkpoint``.

    Raises:
        tunekit.errors.ConfigError: If it is not a checkpoint, or if ``save_checkpoint`` wrote files
            instead; the message lists them.
        OSError: If the storage fails.

    Example:
        >>> import tunekit
        >>> def validate(checkpoint):
        ...     state = tunekit.state_of(checkpoint)  # what save_checkpoint returned
        ...     return {"accuracy": state["correct"] / state["seen"]}
    """
    problems = Problems("tunekit.state_of")
    fix = "Pass the checkpoint that a validation function gets."
    problems.instance("checkpoint", checkpoint, train.Checkpoint, fix)
    problems.raise_any()
    state = saved_dict(checkpoint)
    if state is None:
        from tunekit.journal.paths import infos_in  # trials' processes import little

        names = sorted(one.base_name for one in infos_in(checkpoint.filesystem, checkpoint.path))
        problem = (
            f"the checkpoint {checkpoint.path} has no dict that save_checkpoint returned. It holds "
            f"{', '.join(names) or 'nothing'}. Read files with checkpoint.as_directory()."
        )
        raise ConfigError("tunekit.state_of", [problem])
    return state
