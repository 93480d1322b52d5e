"""Functions for reporting and saving in trainables, and for reading saved state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray import train, tune

from tunekit._ray.asking import CannotAsk, CannotWait, ask
from tunekit._ray.functions import NoSession, lacks_saver, register_saver, saved_dict
from tunekit._ray.overrides import ValidationOverride, check_override
from tunekit.core.inquiry import Inquiry
from tunekit.core.metrics import VALIDATION_KEY as VALIDATION_KEY
from tunekit.errors import ConfigError, WiringError
from tunekit.messages.problems import Problems
from tunekit.validating.context import current_context


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
    if wished and checkpoint is None and lacks_saver():
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


def get_all_reported_checkpoints(
    consistency_mode: train.CheckpointConsistencyMode = train.CheckpointConsistencyMode.COMMITTED,
    timeout_s: float | None = None,
) -> list[train.ReportedCheckpoint]:
    """Return the checkpoints of this process's trial with their metrics, scores and statuses.

    It returns what ``ray.train.get_all_reported_checkpoints`` does, for functions, classes and the
    loops of trainers: the checkpoints that led to the trial's weights and that still exist, oldest
    first. After an exploit of population based training, those of the donor come first.

    A loop that acts on scores gets them when they are there, so it is not deterministic. Decisions
    between trials remain the scheduler's.

    Args:
        consistency_mode: ``COMMITTED`` returns what is known now: pending scores are missing.
            ``VALIDATED`` waits until each requested validation of the trial has ended; meanwhile,
            validations may run in the trial's process, as in a report. A class cannot wait in the
            middle of a step, and is told what was known when the step began.
        timeout_s: The most seconds to wait; None for no limit. What is pending then is returned
            as such; also if no resources are left for it, and the trial cannot resume elsewhere.
            With a limit, only validations that usually fit in it run in the trial's process.

    Returns:
        ``ray.train.ReportedCheckpoint`` objects: ``checkpoint``, ``metrics`` (merged with the
        score) and ``status``, which is one of ``COMMITTED`` (no validation was requested),
        ``PENDING_VALIDATION``, ``VALIDATED``, ``VALIDATION_FAILED`` and ``VALIDATION_TIMEOUT``.
        The list is empty outside a Tune trial, so you can run a function on its own.

    Raises:
        tunekit.errors.ConfigError: If an argument is wrong.
        tunekit.errors.WiringError: If the trial's sweep does not validate, or if a class waits, or
            asks before its first step or where tunekit does not see it: outside of its module.

    Example:
        >>> import tunekit
        >>> def best_accuracy():
        ...     reported = tunekit.get_all_reported_checkpoints()
        ...     scores = [one.metrics["accuracy"] for one in reported if "accuracy" in one.metrics]
        ...     return max(scores, default=None)
        >>> print(best_accuracy())
        None
    """
    problems = Problems("tunekit.get_all_reported_checkpoints")
    problems.instance(
        "consistency_mode",
        consistency_mode,
        train.CheckpointConsistencyMode,
        "Pass ray.train.CheckpointConsistencyMode.VALIDATED or COMMITTED.",
    )
    if timeout_s is not None:
        fix = "Leave it out for no limit."
        problems.number("timeout_s", timeout_s, "a number of seconds", fix, above=0)
    problems.raise_any()
    if current_context() is not None:
        return []  # a validation is no part of the trial, although it may run in its process
    try:
        return ask(
            Inquiry(consistency_mode is train.CheckpointConsistencyMode.VALIDATED, timeout_s)
        )
    except CannotWait:
        raise WiringError(
            "tunekit.get_all_reported_checkpoints() cannot wait in a class, whose step runs to its "
            'end. Leave consistency_mode out, and pass ValidationConfig(on_pending="wait") if '
            "each step needs the scores of the steps before."
        ) from None
    except CannotAsk:
        raise WiringError(
            "tunekit.get_all_reported_checkpoints() was called in a trial that no driver of "
            "tunekit tells its scores. Run it with tunekit.Tuner(..., validation_config=...). In a "
            "class, call it in step, or in a function of the same module that step calls."
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
