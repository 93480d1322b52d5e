"""Validate the best checkpoints of a sweep with another function, during or after the sweep."""

from __future__ import annotations

from tunekit.config import ValidationConfig
from tunekit.core.signatures import ValidationFunction, function_name
from tunekit.errors import ConfigError
from tunekit.following.best import best_requests
from tunekit.following.loop import Source, validate_all
from tunekit.following.record import Recorder, name_problem
from tunekit.messages.log import showing_messages
from tunekit.messages.problems import Problems
from tunekit.reading.later import LATER, began_of
from tunekit.reading.load import load
from tunekit.reading.sweep import Sweep

_NO_FOLDER = "the sweep was not read from a folder. Use tunekit.load(path)."


@showing_messages()
def validate(
    sweep: Sweep,
    validation: ValidationConfig | ValidationFunction,
    checkpoints: int = 10,
    *,
    name: str | None = None,
    replace: bool = False,
) -> Sweep:
    """Validate the best checkpoints of a sweep with another function; return it, read again.

    The new metrics are shown next to the sweep's own, in the row of their checkpoint:
    ``best("robust/accuracy", "max")`` ranks by one of them. The sweep's decisions do not
    change. The scores are recorded next to the sweep's journal, so the sweep may be running, or
    be restored later.

    Validations run on Ray, which is started if necessary. Ctrl-C or SIGTERM ends them; to
    continue, call this again. A checkpoint that has a score of the same function under the same
    name is not validated again. Functions are distinguished only by name.

    Args:
        sweep: The sweep, as :func:`tunekit.load` returns it; its ``metric`` ranks the checkpoints.
        validation: A validation function, called as ``fn(checkpoint)``, or a
            :class:`~tunekit.ValidationConfig` with its arguments, resources, time limit and
            number of retries. Settings that concern training have no effect.
        checkpoints: A number n: the best kept checkpoint of each of the n best trials is
            validated. Better ones that no longer exist are reported.
        name: The prefix of the metrics' names: ``"robust"`` makes ``accuracy``
            ``robust/accuracy``. By default, the name of the function.
        replace: Whether to hide the earlier scores under this name: of another function, or of
            one whose code or arguments have changed since. They stay in the folder.

    Raises:
        tunekit.errors.ConfigError: If an argument is wrong, if none of the checkpoints is
            there, or if the sweep or other scores already have metrics of that name.
        tunekit.errors.ValidationFailedError: If the first three validations have failed for
            the same reason (unless ``on_failure="ignore"``), or the first with ``"raise"``.
        tunekit.errors.JournalError: If a journal is damaged or of a different version.
        OSError: If the storage fails.

    Example:
        >>> validate(Sweep([]), lambda checkpoint: {"accuracy": 0.9}, name="robust")
        Traceback (most recent call last):
        tunekit.errors.ConfigError: tunekit.validate: the sweep was not read from...
    """
    problems = Problems("tunekit.validate")
    problems.instance("sweep", sweep, Sweep, "Pass tunekit.load(path).")
    problems.raise_any()
    if sweep.filesystem is None:
        raise ConfigError("tunekit.validate", [_NO_FOLDER])
    config = validation
    if not isinstance(config, ValidationConfig):
        config = ValidationConfig(config)
    newest = _reread(sweep)
    name = function_name(config.fn).rsplit(".", 1)[-1] if name is None else name
    if problems.instance("name", name, str, "Pass 'robust', for example."):
        wrong = name_problem(name, newest.timeline)
        if wrong is not None:
            problems.add(f"name={name!r} {wrong}")
    problems.instance("replace", replace, bool, "Pass True or False.")
    requests = best_requests(
        newest.timeline,
        sweep.metric,
        sweep.mode,
        checkpoints,
        filesystem=sweep.filesystem,
        path=sweep.path,
        problems=problems,
    )
    recorder = Recorder(
        sweep.filesystem,
        sweep.path,
        config,
        {"sweep": began_of(newest.sessions), "name": name},
        call="tunekit.validate",
        series=f"{LATER}/{name}",
        otherwise="Pass another name, or replace=True (--replace) to hide them.",
    )
    validate_all(Source(requests), recorder, config, replace=replace)
    return _reread(sweep)


def _reread(sweep: Sweep) -> Sweep:
    """Read the sweep again, ranked by the same metric."""
    where = (sweep.path, sweep.filesystem) if sweep.source is None else (sweep.source,)
    return load(*where, metric=sweep.metric, mode=sweep.mode)
