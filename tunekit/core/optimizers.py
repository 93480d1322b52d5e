"""Detect optimizers that keep a donor's hyperparameters after an exploit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tunekit.core.metrics import flatten
from tunekit.core.values import number

# Names of hyperparameters that PyTorch's optimizers name differently.
_ALIASES = {"learning_rate": "lr", "wd": "weight_decay"}


def left_by_donor(
    config: Mapping[str, Any],
    donor_config: Mapping[str, Any],
    groups: Iterable[Mapping[str, Any]],
) -> dict[str, tuple[float, float]]:
    """Return the hyperparameters for which an optimizer has the donor's values.

    A value counts if it equals the donor's exactly and differs from the trial's own: a schedule may
    have changed it for other reasons.

    Args:
        config: The trial's hyperparameters.
        donor_config: The hyperparameters that the checkpoint was trained with.
        groups: The numbers in the parameter groups of its optimizers; ``initial_lr``, from which a
            schedule starts, takes precedence over ``lr``.

    Returns:
        The trial's own value and the donor's, by flat name.

    Example:
        >>> left_by_donor({"lr": 0.1, "width": 8}, {"lr": 0.02, "width": 4}, [{"lr": 0.02}])
        {'lr': (0.1, 0.02)}
        >>> left_by_donor({"lr": 0.1}, {"lr": 0.02}, [{"lr": 0.001, "initial_lr": 0.1}])
        {}
    """
    own, before = flatten(config), flatten(donor_config)
    groups = list(groups)
    found = {}
    for name, value in own.items():
        mine, donors = number(value), number(before.get(name))
        if mine is None or donors is None or mine == donors:
            continue
        last = name.rsplit("/", 1)[-1]
        key = _ALIASES.get(last, last)
        used = {group.get(f"initial_{key}", group[key]) for group in groups if key in group}
        if used == {donors}:
            found[name] = (mine, donors)
    return found


def stale(trial_id: str, donor_id: str, left: Mapping[str, tuple[float, float]]) -> str:
    """Return a message about an optimizer that kept its donor's values, with the fix.

    Example:
        >>> print(stale("b", "a", {"lr": (0.1, 0.02)}))
        Trial b continues from a checkpoint of trial a, and its optimizer still has that trial's
        hyperparameters: lr is 0.02, but its config says 0.1. optimizer.load_state_dict restores
        them. Set them again afterwards:
            for group in optimizer.param_groups: group["lr"] = config["lr"]
    """
    values = ", ".join(
        f"{name} is {has:g}, but its config says {own:g}" for name, (own, has) in left.items()
    )
    return (
        f"Trial {trial_id} continues from a checkpoint of trial {donor_id}, and its optimizer "
        f"still has that trial's hyperparameters: {values}. optimizer.load_state_dict restores "
        "them. Set them again afterwards:\n"
        '    for group in optimizer.param_groups: group["lr"] = config["lr"]'
    )
