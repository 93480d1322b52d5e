"""Further stages of validation: other functions for the same checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ray import train

from tunekit.checks import Limits, check_validation
from tunekit.core.problems import Problems, shown
from tunekit.core.signatures import ValidationFunction
from tunekit.core.stages import EVERY
from tunekit.core.validation import RESERVED

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_STAGE = "Pass tunekit.Stage('full', fn=validate_in_full)."


class Stage(Limits):
    """Validate some checkpoints again, with another function, other data or other hardware.

    Schedulers and search algorithms decide on ``ValidationConfig(fn=...)``, the first stage, which
    can then be quick. A further stage uses resources that the first one and the trials leave free,
    and delays no decision; the sweep waits for it at the end. Its metrics have its name as prefix,
    for example ``"full/accuracy"``, in results, tables, loggers and the report. When three of its
    validations have failed alike and none has succeeded, the sweep continues without the stage.

    Args:
        name: The prefix of its metrics: letters, digits, ``_``, ``.`` and ``-``, beginning with a
            letter or ``_``.
        fn: ``fn(checkpoint, **fn_kwargs) -> dict``, as in :class:`~tunekit.ValidationConfig`.
        every: Which checkpoints it validates. ``"promoted"``: those after which the scheduler
            continued the trial (winners of rungs, trials not overwritten by population based
            training), and the last one of each trial that was not stopped early. ``"last"``: the
            last one of each trial that did not fail. A number n: every n-th checkpoint of a trial,
            counted from its first.
        task_config: As in :class:`~tunekit.ValidationConfig`. A report's own settings apply to the
            first stage only.
        ray_remote_kwargs: Likewise: the resources of one validation of this stage.
        evaluators: Likewise.
        max_in_flight: The most validations of this stage in flight at once; None: as many as free
            resources allow.
        max_retries: How many more attempts a validation gets.

    Raises:
        tunekit.errors.ConfigError: If an argument is wrong; the message lists every mistake.

    Example:
        >>> import tunekit
        >>> def quick(checkpoint):
        ...     return {"accuracy": 0.9}
        >>> def thorough(checkpoint):
        ...     return {"accuracy": 0.88}
        >>> config = tunekit.ValidationConfig(
        ...     fn=quick, stages=[tunekit.Stage("full", thorough, every="promoted")]
        ... )
        >>> [stage.name for stage in config.stages]
        ['full']
    """

    def __init__(
        self,
        name: str,
        fn: ValidationFunction,
        *,
        every: int | str = "promoted",
        task_config: train.ValidationTaskConfig | None = None,
        ray_remote_kwargs: Mapping[str, Any] | None = None,
        evaluators: int | None = None,
        max_in_flight: int | None = None,
        max_retries: int = 1,
    ):
        problems = Problems("Stage")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problems.add(
                f"name={shown(name)} must be letters, digits, '_', '.' and '-', and begin with a "
                "letter or '_'. Pass a word such as 'full'."
            )
        elif name in RESERVED:
            problems.add(f"name={shown(name)} is a name reserved by Tune or tunekit. Pass another.")
        if isinstance(every, str):
            problems.choice("every", every, EVERY)
        else:
            problems.integer("every", every, least=1)
        self.name, self.fn, self.every = name, fn, every
        self.task_config = train.ValidationTaskConfig() if task_config is None else task_config
        self.ray_remote_kwargs = {} if ray_remote_kwargs is None else ray_remote_kwargs
        self.evaluators = evaluators
        self.max_in_flight, self.max_retries = max_in_flight, max_retries
        check_validation(self, problems)
        problems.raise_any()
        self.ray_remote_kwargs = dict(ray_remote_kwargs or {})

    def __repr__(self) -> str:
        return f"Stage({self.name!r}, fn={self.fn!r}, every={self.every!r})"


def check_stages(stages: Any, problems: Problems) -> None:
    """Add the problems with ``ValidationConfig(stages=...)``."""
    if isinstance(stages, str) or not isinstance(stages, (list, tuple)):
        problems.add(f"stages={shown(stages)} must be a list of stages. {_STAGE}")
        return
    odd = [one for one in stages if not isinstance(one, Stage)]
    for one in odd:
        problems.add(f"stages has {shown(one)}, which is not a tunekit.Stage. {_STAGE}")
    names = [one.name for one in stages if isinstance(one, Stage)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        problems.add(
            f"stages has {', '.join(map(repr, twice))} more than once, so their metrics would have "
            "the same names. Give each stage a different name."
        )
