"""What a report says about the validation of its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from ray import train

from tunekit.core.values import MOST_SECONDS
from tunekit.messages.problems import Problems

#: Whether, and how, to validate a checkpoint; None leaves it to the sweep.
ValidationOverride: TypeAlias = bool | train.ValidationTaskConfig | None


def check_override(name: str, value: object, problems: Problems) -> ValidationOverride:
    """Return a request to validate a checkpoint; None, with a problem, if it is not one.

    Args:
        name: The name of the value.
        value: The value.
        problems: Where to add problems.

    Example:
        >>> problems = Problems("report")
        >>> check_override("validation", True, problems)
        True
        >>> check_override("validation", "yes", problems)
        >>> str(problems.error())
        "report: validation='yes' is of type str. Pass True, False, None or a
         ray.train.ValidationTaskConfig."
    """
    fix = "Pass True, False, None or a ray.train.ValidationTaskConfig."
    found = problems.optional(name, value, (bool, train.ValidationTaskConfig), fix)
    if isinstance(found, train.ValidationTaskConfig):
        return found if check_task(name, found, problems) else None
    return None if found is None else bool(found)


def check_task(name: str, task: train.ValidationTaskConfig, problems: Problems) -> bool:
    """Return whether the settings of a validation are right; add the problems with them."""
    seconds, fix = task.timeout_s, "Pass 60 for a minute, None for no limit."
    timeout = f"{name}.timeout_s", seconds, "a number of seconds", fix
    in_time = seconds is None or problems.number(*timeout, above=0, most=MOST_SECONDS)
    return (
        problems.instance(f"{name}.fn_kwargs", task.fn_kwargs, Mapping, "Pass a dict.") and in_time
    )
