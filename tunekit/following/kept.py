"""Validate the best checkpoints of a sweep with another function."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow.fs

from tunekit._ray.storage import checkpoint_at, exists
from tunekit.config import ValidationConfig
from tunekit.core.events import ValidationEnded
from tunekit.core.failures import place_of
from tunekit.core.problems import Problems
from tunekit.core.signatures import name_of
from tunekit.core.timeline import ScoredCheckpoint, Timeline
from tunekit.core.validation import Request
from tunekit.following.loop import Source, validate_all
from tunekit.following.record import LATER, Recorder, name_problem
from tunekit.journal.confined import is_inside, link_out_of

logger = logging.getLogger(__name__)

_MOST_NAMED = 5


@dataclass(frozen=True)
class Swept:
    """A sweep as a source of checkpoints.

    Attributes:
        filesystem: The storage that it is in.
        path: The experiment's folder there.
        began: When it began, in seconds since the epoch.
        ranked: The scored checkpoints of each trial, best first, by trial, best first.
        names: The flat names of all its reported and validated metrics.
        timeline: Its history.
    """

    filesystem: pyarrow.fs.FileSystem
    path: str
    began: float | None
    ranked: Mapping[str, Sequence[ScoredCheckpoint]]
    names: Collection[str]
    timeline: Timeline


def validate_kept(
    swept: Swept,
    config: ValidationConfig,
    checkpoints: int,
    *,
    name: str | None = None,
    replace: bool = False,
) -> None:
    """Validate the best checkpoints of a sweep; see :meth:`tunekit.Sweep.validate`."""
    call = "Sweep.validate"
    problems = Problems(call)
    name = name_of(config.fn).rsplit(".", 1)[-1] if name is None else name
    if problems.instance("name", name, str, "Pass 'robust', for example."):
        wrong = name_problem(name, swept.names)
        if wrong is not None:
            problems.add(f"name={name!r} {wrong}")
    problems.integer("checkpoints", checkpoints, least=1)
    if not any(swept.ranked.values()):
        problems.add(
            "no trial has a score of the metric to rank by. Name a metric that trials have, and "
            "its mode."
        )
    requests = [] if problems else _requests(swept, config, checkpoints, problems)
    problems.raise_any()
    recorder = Recorder(
        swept.filesystem,
        swept.path,
        config,
        {"sweep": swept.began, "name": name},
        series=f"{LATER}/{name}",
        otherwise="Pass another name, or replace=True (--replace) to hide them.",
    )
    with recorder.held():
        before = recorder.continued(call, replace=replace)
        ended = {event.id for event in before if isinstance(event, ValidationEnded)}
        left = [request for request in requests if request.id not in ended]
        if left:
            validate_all(Source(left), recorder, config, before, call=call)


def _requests(
    swept: Swept, config: ValidationConfig, most: int, problems: Problems
) -> list[Request]:
    """Return the requests for the best checkpoint of each of the best trials; add any problems."""
    task = config.task_config
    found: list[Request] = []
    gone: list[str] = []
    for trial_id, scored in swept.ranked.items():
        for one in scored if len(found) < most else ():
            path, (generation, iteration) = one.checkpoint, one.place
            inside = is_inside(swept.filesystem, swept.path, path)
            if not (inside and exists(swept.filesystem, path)):
                gone.append(place_of(trial_id, iteration, generation))
                continue
            link = link_out_of(swept.filesystem, swept.path, path)
            if link is not None:
                problems.add(
                    f"{link!r} in a checkpoint is a link that leads out of the experiment's "
                    "folder, so it is not read. Replace it with a copy."
                )
            found.append(
                Request(
                    trial_id=trial_id,
                    iteration=iteration,
                    run=one.run,
                    generation=generation,
                    checkpoint=checkpoint_at(path, swept.filesystem),
                    path=path,
                    kwargs=task.fn_kwargs or {},
                    timeout_s=task.timeout_s,
                    config=swept.timeline.config_of(trial_id, generation),
                )
            )
            break
    named = ", ".join(gone[:_MOST_NAMED]) + ", ..." * (len(gone) > _MOST_NAMED)
    if gone and not found:
        problems.add(
            f"none of the checkpoints is in the sweep's folder: {named}. "
            "CheckpointConfig(num_to_keep=...) sets how many a sweep keeps."
        )
    elif gone:
        logger.warning(
            "Skipped because they are no longer in the sweep's folder (num_to_keep): %s.", named
        )
    return found
