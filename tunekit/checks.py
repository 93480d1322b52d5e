"""Checks of the arguments that describe validations."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray import cloudpickle, train

from tunekit.core.constraints import Constraint
from tunekit.core.problems import Problems, shown
from tunekit.core.signatures import call_of, is_built, kind_of, never_takes, signature_of

#: The values of ``ValidationConfig(where=...)``.
WHERE = ("auto", "trial", "elsewhere")
#: The options of a task about its resources, rather than its process.
AMOUNTS = frozenset(
    {"num_cpus", "num_gpus", "memory", "resources", "max_retries", "scheduling_strategy"}
)

# Options of a task that a validation does not have, and why.
_NOT_TAKEN = {
    "retry_exceptions": "exceptions are recorded, not raised, and max_retries=n sets the retries",
    "num_returns": "a validation returns one dict",
}

_VALIDATE = "Pass a function like `def validate(checkpoint, **kwargs) -> dict`."


def check_validation(config: Any, problems: Problems) -> None:
    """Add the problems with a validation's function, its resources and its limits.

    Example:
        >>> from types import SimpleNamespace
        >>> problems = Problems("ValidationConfig")
        >>> unset = ["task_config", "ray_remote_kwargs", "evaluators", "max_in_flight"]
        >>> unset = dict.fromkeys(unset)
        >>> check_validation(SimpleNamespace(fn=3, max_retries=-1, **unset), problems)
        >>> problems.raise_any()
        Traceback (most recent call last):
        tunekit.errors.ConfigError: ...
    """
    fn, evaluators = config.fn, config.evaluators
    callable_ = problems.function("fn", fn, _VALIDATE)
    kwargs: Mapping[str, Any] | None = {}
    fix = "Pass ray.train.ValidationTaskConfig(fn_kwargs={...}, timeout_s=...)."
    kind = train.ValidationTaskConfig
    if problems.optional("task_config", config.task_config, kind, fix):
        kwargs = _check_task_config(config.task_config, problems)
    if callable_ and is_built(fn) and evaluators is None:
        problems.add(
            f"fn={fn!r} is a class, but evaluators is not set. Pass evaluators=1 to build it "
            "once, in a process that validates one checkpoint after another, or a function."
        )
    elif callable_ and kwargs is not None:
        _check_signature(fn, kwargs, problems)
    if callable_:
        _check_picklable("fn", fn, problems)
    for key, value in (kwargs or {}).items():
        _check_picklable(f"task_config.fn_kwargs[{key!r}]", value, problems)
    problems.integer("evaluators", evaluators, least=1, optional=True)
    fix, options = 'Pass a dict such as {"num_cpus": 1}.', config.ray_remote_kwargs
    if problems.optional("ray_remote_kwargs", options, Mapping, fix) is not None:
        _check_remote_kwargs(options, problems, actor=evaluators is not None)
    problems.integer("max_in_flight", config.max_in_flight, least=1, optional=True)
    problems.integer("max_retries", config.max_retries, least=0)


def check_constraints(constraints: Any, problems: Problems) -> None:
    """Add the problems with ``ValidationConfig(constraints=...)``."""
    fix = "Pass [tunekit.Constraint('latency_ms <= 20')], for example."
    if not problems.instance("constraints", constraints, (list, tuple), fix):
        return
    for place, one in enumerate(constraints):
        problems.instance(f"constraints[{place}]", one, Constraint, fix)


def check_where(config: Any, problems: Problems) -> None:
    """Add the problems with ``where``, including settings that contradict it.

    Example:
        >>> from types import SimpleNamespace
        >>> problems = Problems("ValidationConfig")
        >>> options = {"ray_remote_kwargs": {"runtime_env": {}}, "on_pending": "auto"}
        >>> check_where(SimpleNamespace(where="trial", evaluators=None, **options), problems)
        >>> problems.raise_any()
        Traceback (most recent call last):
        tunekit.errors.ConfigError: ValidationConfig: where='trial' validates in the trial's ...
    """
    problems.choice("where", config.where, list(WHERE))
    if config.where != "trial":
        return
    evaluators, options = config.evaluators, set(config.ray_remote_kwargs or ())
    asked = sorted(options - AMOUNTS - {"name"})
    contradictions = [
        (evaluators is not None, f"evaluators={evaluators!r}, which are separate processes"),
        (bool(asked), f"ray_remote_kwargs[{asked[0]!r}] (for a task's process)" if asked else ""),
        (config.on_pending == "continue", "on_pending='continue', with which no trial waits"),
    ]
    for is_so, what in contradictions:
        if is_so:
            problems.add(
                f"where='trial' validates in the trial's process while the trial waits, but you "
                f"pass {what}. Leave one of them out."
            )


def _check_task_config(
    config: train.ValidationTaskConfig, problems: Problems
) -> Mapping[str, Any] | None:
    if config.timeout_s is not None:
        problems.seconds("task_config.timeout_s", config.timeout_s)
    if not isinstance(config.fn_kwargs, Mapping):
        problems.add(f"task_config.fn_kwargs={shown(config.fn_kwargs)} is not a dict. Pass a dict.")
        return None
    return config.fn_kwargs


def _check_signature(fn: Callable[..., Any], kwargs: Mapping[str, Any], problems: Problems) -> None:
    """Add definite mistakes; arguments that reports may provide are checked later."""
    if is_built(fn):
        problems.attempt(
            lambda: inspect.signature(fn).bind(),
            lambda error: (
                f"fn={shown(fn)} is built without arguments, but requires some: {error}. Give "
                "them defaults, or pass functools.partial(fn, ...)."
            ),
        )
        if call_of(fn) is None:
            problems.add(
                f"fn={shown(fn)} is a class without __call__. Define __call__(self, checkpoint)."
            )
            return
    kind = kind_of(fn)
    if kind is not None:
        problems.add(
            f"fn={shown(fn)} is {kind}, so a call returns before anything is validated. Pass "
            "a plain function that returns a dict; inside it, use asyncio.run(...) to run a "
            "coroutine."
        )
        return
    signature = signature_of(fn)
    wrong = never_takes(signature, kwargs)
    if wrong is not None:
        given = ", ".join(["checkpoint", *(f"{key}={shown(kwargs[key])}" for key in kwargs)])
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
            f"{name}={shown(value)} cannot be sent to the processes that validate "
            f"({type(error).__name__}: {error}). ray.util.inspect_serializability shows which "
            "part; create it inside the function, or with evaluators=n in __init__ of a class."
        )


def _check_remote_kwargs(kwargs: Mapping[str, Any], problems: Problems, *, actor: bool) -> None:
    kwargs = dict(kwargs)
    if actor:  # for tasks, Ray checks it
        problems.integer("ray_remote_kwargs['max_calls']", kwargs.pop("max_calls", 0), least=0)
    for name, why in _NOT_TAKEN.items():
        if name in kwargs:
            given = f"{name}={shown(kwargs.pop(name))}"
            problems.add(f"ray_remote_kwargs has {given}, but {why}. Leave {name} out.")
    if kwargs:
        problems.attempt(
            lambda: ray.remote(**kwargs)(_NoValidation if actor else _no_validation),
            lambda error: (
                f"ray_remote_kwargs={kwargs!r} is refused by ray.remote: "
                f"{str(error).rstrip('.')}. See the options of ray.remote for "
                f"{'actors' if actor else 'tasks'}."
            ),
        )


def _no_validation() -> None:
    """Stand in for a validation while Ray checks its options."""


class _NoValidation:
    """Stand in for an evaluator while Ray checks its options."""
