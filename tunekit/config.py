"""The user's settings for validating checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ray import train

from tunekit.checks import check_constraints, check_validation, check_where
from tunekit.core.constraints import Constraint
from tunekit.core.problems import Problems
from tunekit.core.queue import ON_PENDING
from tunekit.core.signatures import (
    ValidationFunction,
)


class ValidationConfig(train.ValidationConfig):
    """Configure the validations of a sweep: a ``ray.train.ValidationConfig`` with more settings.

    As in Ray Train, the validation function takes the checkpoint first, then keyword arguments, and
    returns a dict of metrics. These overwrite training metrics of the same name. It runs in the
    process of a trial that waits for the score, or in a separate Ray task: see ``where``.

    Args:
        fn: ``fn(checkpoint, **fn_kwargs) -> dict``. Ray must be able to pickle it. With
            ``evaluators`` it may also be a class, or a ``functools.partial`` of one, whose
            instances are called in the same way. An argument that has no default and is not in
            ``task_config.fn_kwargs`` must come with each report; otherwise the validation of its
            checkpoint fails. Inside the function, :func:`tunekit.get_validation_context` returns
            the trial that saved the checkpoint and the hyperparameters that it was trained with.
        task_config: A ``ray.train.ValidationTaskConfig``: the default keyword arguments
            (``fn_kwargs``) and the time limit of one attempt (``timeout_s``: seconds from its
            start, None for no limit). A checkpoint's own
            ``tunekit.report(..., validation=ValidationTaskConfig(...))`` overrides them, keyword by
            keyword.
        ray_remote_kwargs: Options of the Ray task, such as ``{"num_cpus": 1, "num_gpus": 0.5}``.
            Ray's own ``max_retries`` is 0 unless it is set here; the ``max_retries`` below counts
            attempts of every kind.
        evaluators: The number of long-lived processes (Ray actors) to validate in. Each runs one
            validation after another. If ``fn`` is a class, each process builds it once, and loads
            its data and model once. The processes start on demand, are replaced when they die, and
            end after 30 s without work. A validation's time limit includes any building that it
            waits for. ``ray_remote_kwargs`` are then options of the actor; ``max_calls`` is the
            number of validations after which a process is replaced. None: each validation runs in
            the process of its trial, or in a separate task. A
            :class:`~tunekit.distributed.TrainerValidation` that runs elsewhere always uses
            long-lived processes, unless ``ray_remote_kwargs`` has ``max_calls``.
        when: Which checkpoints to validate, and when to save if nothing else requests checkpoints.
            ``"decisions"``: the checkpoints whose score the scheduler will use (at the rungs of
            ASHA and HyperBand, at PBT's perturbation interval) and each trial's last one; with a
            scheduler that tunekit does not know, every one. ``"auto"``: likewise, but every
            checkpoint if the scheduler decides nothing (such as the default), or if a
            stopper reads scores. A number n: checkpoints that are at least n iterations apart.
            ``"requested"``: as in Ray Train, the checkpoints whose report has ``validation=True``
            or a ``ValidationTaskConfig``.
        where: The process to validate in. ``"trial"``: the trial's own, while its training waits
            for each score, which costs as much as inline validation. ``"elsewhere"``: always
            another process, so that training continues where it need not wait. ``"auto"``: the
            trial's own if the trial waits for the score anyway and no resources are free, or if the
            validation takes less than a tenth of the time of starting a process; otherwise, or if
            something in this config requires it, elsewhere.
        max_in_flight: The most validations in flight at once across the whole sweep. None: as many
            as free resources allow, and at least one.
        max_retries: How many more attempts a validation gets after it raised, timed out or lost its
            process. An invalid return value is not retried.
        on_pending: What a trial does while a score that the scheduler needs is pending. ``"wait"``:
            it waits for each score, so every decision is the same as with inline validation for the
            same order of results. Meanwhile its own validation or the next trial
            (``reuse_actors``) runs in its process; it releases its resources if validations could
            not run otherwise. ``"continue"``: it continues up to its next decision point; what it
            has trained past a STOP is discarded. ``"auto"``: it waits at decision points if its
            resources can be used in one of these ways, and otherwise continues as with
            ``"continue"``, for example at the end of a sweep. With a scheduler that compares all
            trials at the same time, it always waits.
        on_failure: ``"record"`` records a failed validation and ranks the trial by its other
            scores. When three have failed alike (apart from numbers, ids and paths in their
            reasons) and none has succeeded, the function is considered broken: the sweep ends with
            :class:`~tunekit.errors.ValidationFailedError` instead of training in vain. Retried
            attempts and missing checkpoints do not count, and a restored sweep counts from zero.
            ``"raise"`` ends the sweep at the first failure. ``"ignore"`` records failures and never
            ends the sweep.
        constraints: Limits on scores, such as ``[tunekit.Constraint("latency_ms <= 20")]``.
            Schedulers and searchers rank a score that violates one below all feasible ones (the
            larger the violation, the lower), and the best checkpoint is feasible if any is.

    Raises:
        tunekit.errors.ConfigError: If an argument is wrong; the message lists every mistake.

    Example:
        >>> from ray.train import ValidationTaskConfig
        >>> def validate(checkpoint, *, batch_size=256):
        ...     return {"accuracy": 0.9}
        >>> config = ValidationConfig(
        ...     fn=validate,
        ...     task_config=ValidationTaskConfig(fn_kwargs={"batch_size": 512}, timeout_s=600),
        ...     ray_remote_kwargs={"num_cpus": 1},
        ...     on_pending="wait",
        ... )
        >>> config.when, config.max_retries, config.on_failure
        ('auto', 1, 'record')
    """

    def __init__(
        self,
        fn: ValidationFunction,
        task_config: train.ValidationTaskConfig | None = None,
        ray_remote_kwargs: Mapping[str, Any] | None = None,
        *,
        evaluators: int | None = None,
        when: int | str = "auto",
        where: str = "auto",
        max_in_flight: int | None = None,
        max_retries: int = 1,
        on_pending: str = "auto",
        on_failure: str = "record",
        constraints: Sequence[Constraint] = (),
    ):
        super().__init__(fn, task_config, ray_remote_kwargs)
        self.evaluators = evaluators
        self.when = when
        self.where = where
        self.max_in_flight = max_in_flight
        self.max_retries = max_retries
        self.on_pending = on_pending
        self.on_failure = on_failure
        problems = Problems("ValidationConfig")
        check_validation(self, problems)
        if isinstance(when, str):
            if when not in ("auto", "decisions", "requested"):
                problems.add(
                    f"when={when!r} is neither a number nor 'auto', 'decisions' or 'requested'. "
                    "Pass a whole number of at least 1, or one of these."
                )
        else:
            problems.integer("when", when, least=1)
        problems.choice("on_pending", on_pending, ON_PENDING)
        check_where(self, problems)
        problems.choice("on_failure", on_failure, ["record", "raise", "ignore"])
        check_constraints(constraints, problems)
        problems.raise_any()
        self.ray_remote_kwargs = dict(ray_remote_kwargs or {})
        self.constraints = tuple(constraints)

    @property
    def most_in_flight(self) -> int | None:
        """Return the maximum number of validations in flight; None: as the resources allow.

        Example:
            >>> config = ValidationConfig(lambda checkpoint: {}, evaluators=2, max_in_flight=5)
            >>> config.most_in_flight
            2
        """
        limits = [limit for limit in (self.max_in_flight, self.evaluators) if limit is not None]
        return min(limits, default=None)


def check_config(name: str, config: Any, problems: Problems) -> ValidationConfig | None:
    """Require a :class:`ValidationConfig` or None; a plain one means something else in Ray Train.

    Args:
        name: The argument's name.
        config: Its value.
        problems: Where to add problems.

    Returns:
        The config, if it is a :class:`ValidationConfig`; otherwise None.
    """
    if isinstance(config, train.ValidationConfig) and not isinstance(config, ValidationConfig):
        problems.add(
            f"{name} is a ray.train.ValidationConfig, with which Ray Train validates only the "
            "checkpoints whose reports request it. Pass tunekit.ValidationConfig(fn=...), which "
            "validates all, or tunekit.ValidationConfig(fn=..., when='requested')."
        )
        return None
    found: ValidationConfig | None = problems.optional(
        name, config, ValidationConfig, "Pass tunekit.ValidationConfig(fn=...)."
    )
    return found
