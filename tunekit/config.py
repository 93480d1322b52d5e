"""The user's settings for validating checkpoints."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray import cloudpickle, train

from tunekit._ray.overrides import check_task
from tunekit.core.constraints import Constraint
from tunekit.core.signatures import (
    ValidationFunction,
    call_of,
    call_problem,
    deferred_kind,
    needs_instance,
    signature_of,
)
from tunekit.messages.problems import Problems, format_argument

#: The options of a task that concern its resources, rather than its process.
AMOUNTS = frozenset(
    {"num_cpus", "num_gpus", "memory", "resources", "max_retries", "scheduling_strategy"}
)

# Options of a task that validations do not support, and why.
_NOT_TAKEN = {
    "retry_exceptions": "exceptions are recorded, not raised, and max_retries=n sets the retries",
    "num_returns": "a validation returns one dict",
}


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
            ``tunekit.report(..., validation=ValidationTaskConfig(...))`` overrides them: the
            arguments keyword by keyword, the limit also with None.
        ray_remote_kwargs: Options of the Ray task, such as ``{"num_cpus": 1, "num_gpus": 0.5}``.
            Ray's own ``max_retries`` is 0 unless it is set here; the ``max_retries`` below counts
            attempts of every kind.
        evaluators: The number of long-lived processes (Ray actors) to validate in. Each runs one
            validation after another. If ``fn`` is a class, each process builds it once, and loads
            its data and model once. The processes start on demand, are replaced when they die, and
            end after 30 s without work. A validation's time limit includes the time that it waits
            for the class to be built. ``ray_remote_kwargs`` are then options of the actor;
            ``max_calls`` is the number of validations after which a process is replaced. None: each
            validation runs in the process of its trial, or in a separate task. A
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
            validation takes less than a tenth of the time that trials take to start; otherwise, or
            if something in this config requires it, elsewhere.
        max_in_flight: The maximum number of validations in flight in the whole sweep. None: as many
            as free resources allow, and at least one.
        max_retries: How many more attempts a validation gets after it raises, times out or loses
            its process. An invalid return value is not retried.
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
            scores. When three have failed for the same reason (ignoring numbers, IDs and paths) and
            none has succeeded, the function is considered broken: the sweep ends with
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
        _check_function(self, problems)
        problems.integer("evaluators", evaluators, least=1, optional=True)
        fix = 'Pass a dict such as {"num_cpus": 1}.'
        options = dict(
            problems.optional("ray_remote_kwargs", ray_remote_kwargs, Mapping, fix) or {}
        )
        if options:
            _check_options(dict(options), problems, actor=evaluators is not None)
        problems.integer("max_in_flight", max_in_flight, least=1, optional=True)
        problems.integer("max_retries", max_retries, least=0)
        if isinstance(when, str):
            if when not in ("auto", "decisions", "requested"):
                problems.add(
                    f"when={when!r} is neither a number nor 'auto', 'decisions' or 'requested'. "
                    "Pass a whole number of at least 1, or one of these."
                )
        else:
            problems.integer("when", when, least=1)
        problems.choice("where", where, ["auto", "trial", "elsewhere"])
        problems.choice("on_pending", on_pending, ["auto", "wait", "continue"])
        if isinstance(where, str) and where == "trial":
            _check_in_trial(self, options, problems)
        problems.choice("on_failure", on_failure, ["record", "raise", "ignore"])
        fix = "Pass [tunekit.Constraint('latency_ms <= 20')], for example."
        if problems.instance("constraints", constraints, (list, tuple), fix):
            for place, one in enumerate(constraints):
                problems.instance(f"constraints[{place}]", one, Constraint, fix)
        problems.raise_any()
        self.ray_remote_kwargs = options
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
    """Require a :class:`ValidationConfig` or None; Ray Train's own means something else.

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


def _check_function(config: ValidationConfig, problems: Problems) -> None:
    """Add the problems with the validation function and its arguments."""
    fn, task = config.fn, config.task_config
    is_callable = problems.function(
        "fn", fn, "Pass a function like `def validate(checkpoint, **kwargs) -> dict`."
    )
    kwargs: Mapping[str, Any] | None = {}
    fix = "Pass ray.train.ValidationTaskConfig(fn_kwargs={...}, timeout_s=...)."
    if problems.optional("task_config", task, train.ValidationTaskConfig, fix):
        kwargs = task.fn_kwargs if check_task("task_config", task, problems) else None
    if is_callable:
        if needs_instance(fn) and config.evaluators is None:
            problems.add(
                f"fn={fn!r} is a class, but evaluators is not set. Pass evaluators=1 to build it "
                "once, in a process that validates one checkpoint after another, or a function."
            )
        elif kwargs is not None:
            _check_signature(fn, kwargs, problems)
        _check_picklable("fn", fn, problems)
    for key, value in (kwargs or {}).items():
        _check_picklable(f"task_config.fn_kwargs[{key!r}]", value, problems)


def _check_in_trial(
    config: ValidationConfig, options: Mapping[Any, Any], problems: Problems
) -> None:
    """Add the settings that contradict ``where="trial"``."""
    contradictions = [
        f"ray_remote_kwargs[{name!r}] (for a task's process)"
        for name in sorted(options.keys() - AMOUNTS - {"name"}, key=str)[:1]
    ]
    if config.evaluators is not None:
        contradictions.append(f"evaluators={config.evaluators!r}, which are separate processes")
    if isinstance(config.on_pending, str) and config.on_pending == "continue":
        contradictions.append("on_pending='continue', with which no trial waits")
    for what in contradictions:
        problems.add(
            f"where='trial' validates in the trial's process while the trial waits, but you "
            f"pass {what}. Leave one of them out."
        )


def _check_signature(fn: Callable[..., Any], kwargs: Mapping[str, Any], problems: Problems) -> None:
    """Add definite mistakes; arguments that reports may provide are checked later."""
    if needs_instance(fn):
        try:
            inspect.signature(fn).bind()
        except (TypeError, ValueError) as error:
            problems.add(
                f"fn={format_argument(fn)} is built without arguments, but requires some: {error}. "
                "Give them defaults, or pass functools.partial(fn, ...)."
            )
        if call_of(fn) is None:
            problems.add(
                f"fn={format_argument(fn)} is a class without __call__. Define __call__(self, "
                "checkpoint)."
            )
            return
    kind = deferred_kind(fn)
    if kind is not None:
        problems.add(
            f"fn={format_argument(fn)} is {kind}, so a call returns before anything is validated. "
            "Pass a plain function that returns a dict; inside it, use asyncio.run(...) to run a "
            "coroutine."
        )
        return
    signature = signature_of(fn)
    wrong = call_problem(signature, kwargs)
    if wrong is not None:
        given = ", ".join(
            ["checkpoint", *(f"{key}={format_argument(kwargs[key])}" for key in kwargs)]
        )
        problems.add(
            f"fn{signature} cannot be called as fn({given}): {wrong}. The checkpoint comes first, "
            "then task_config.fn_kwargs by name, and keyword arguments from a report."
        )


def _check_picklable(name: str, value: Any, problems: Problems) -> None:
    try:
        with open(os.devnull, "wb") as file:  # what it holds may be large
            cloudpickle.CloudPickler(file, 5, lambda buffer: None).dump(value)
    except Exception as error:  # its parts may raise anything
        problems.add(
            f"{name}={format_argument(value)} cannot be sent to the processes that validate "
            f"({type(error).__name__}: {error}). ray.util.inspect_serializability shows which "
            "part; create it inside the function, or with evaluators=n in __init__ of a class."
        )


def _check_options(options: dict[str, Any], problems: Problems, *, actor: bool) -> None:
    """Add the problems with the options of a validation's task, or of its actor."""
    if actor:  # for tasks, Ray checks it
        problems.integer("ray_remote_kwargs['max_calls']", options.pop("max_calls", 0), least=0)
    for name, why in _NOT_TAKEN.items():
        if name in options:
            given = f"{name}={format_argument(options.pop(name))}"
            problems.add(f"ray_remote_kwargs has {given}, but {why}. Leave {name} out.")
    if options:
        kind = "actors" if actor else "tasks"
        try:
            ray.remote(**options)(_Actor if actor else _task)
        except Exception as error:  # whatever Ray raises
            problems.add(
                f"ray_remote_kwargs={options!r} is refused by ray.remote: "
                f"{str(error).rstrip('.')}. See the options of ray.remote for {kind}."
            )


def _task() -> None:
    """Stand in for a validation while Ray checks its options."""


class _Actor:
    """Stand in for an evaluator while Ray checks its options."""
