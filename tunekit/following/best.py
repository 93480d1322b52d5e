"""Find the best checkpoints of a sweep, to validate them with another function."""

from __future__ import annotations

import logging

import pyarrow.fs

from tunekit._ray.file_checkpoints import checkpoint_at
from tunekit.core.failures import format_checkpoint
from tunekit.core.metrics import closest_name, format_names
from tunekit.core.ranking import ranking_of
from tunekit.core.timeline import Timeline
from tunekit.core.validation import Request
from tunekit.journal.paths import exists
from tunekit.journal.safe_files import is_inside, link_out_of
from tunekit.messages.problems import Problems

logger = logging.getLogger(__name__)

_MOST_NAMED = 5


def best_requests(
    timeline: Timeline,
    metric: str | None,
    mode: str | None,
    checkpoints: int,
    *,
    filesystem: pyarrow.fs.FileSystem,
    path: str,
    problems: Problems,
) -> list[Request]:
    """Return the requests for the best checkpoints of a sweep that are still there.

    Args:
        timeline: The history of the sweep.
        metric: The metric that trials are ranked by.
        mode: ``"min"`` or ``"max"``.
        checkpoints: As for :func:`tunekit.validate`.
        filesystem: The storage that the sweep is in.
        path: The experiment's folder there.
        problems: The problems with the call, to which this adds its own.

    Raises:
        tunekit.errors.ConfigError: If there are problems.
    """
    problems.integer("checkpoints", checkpoints, least=1)
    ranked = [one for one in ranking_of(timeline, metric, mode) if one.best is not None]
    if not ranked:
        names, wanted = timeline.names, metric or ""
        near = closest_name(wanted, names)
        problems.add(
            f"no trial has a score of metric={metric!r}. "
            f"{f'Did you mean {near!r}? ' if near else ''}Pass one of "
            f"{format_names(names, [wanted])}, and its mode."
        )
    problems.raise_any()
    requests: list[Request] = []
    missing: list[str] = []
    for trial_id in (one.trial_id for one in ranked):
        if len(requests) == checkpoints:
            break
        for one in timeline.ranked(trial_id, metric, mode):
            inside = is_inside(filesystem, path, one.checkpoint)
            if not (inside and exists(filesystem, one.checkpoint)):
                missing.append(format_checkpoint(trial_id, one.iteration, one.generation))
                continue
            link = link_out_of(filesystem, path, one.checkpoint)
            if link is not None:
                problems.add(
                    f"{link!r} in a checkpoint is a link that leads out of the experiment's "
                    "folder, so it is not read. Replace it with a copy."
                )
            requests.append(
                Request(
                    trial_id=trial_id,
                    iteration=one.iteration,
                    run=one.run,
                    generation=one.generation,
                    checkpoint=checkpoint_at(one.checkpoint, filesystem),
                    path=one.checkpoint,
                    config=timeline.config_of(trial_id, one.generation),
                )
            )
            break
    named = ", ".join(missing[:_MOST_NAMED]) + ", ..." * (len(missing) > _MOST_NAMED)
    if missing and not requests:
        problems.add(
            f"none of the checkpoints is in the sweep's folder: {named}. "
            "CheckpointConfig(num_to_keep=...) sets how many a sweep keeps."
        )
    elif missing:
        logger.warning(
            "Skipped because they are no longer in the sweep's folder (num_to_keep): %s.", named
        )
    problems.raise_any()
    return requests
