"""A followed folder: which checkpoints are complete, and which to evaluate next.

A followed folder is recorded like a sweep: a run is a trial, and the step of a checkpoint is its
iteration. A checkpoint that is written again is another run of that iteration. So all code that
reads a sweep can read a followed folder, too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tunekit.core.events import (
    CheckpointSaved,
    Event,
    Reported,
    TrialEnded,
    ValidationEnded,
)
from tunekit.core.history import ITERATION
from tunekit.core.validation import Request
from tunekit.core.values import number

# When a checkpoint was completed, in its report: Tune's own key, in seconds since the epoch.
_COMPLETED = "timestamp"

# What the number in a checkpoint's name counts; a step counts more than an epoch.
_STEP = "step|iter|iteration|update|round|ba"
_EPOCH = "epoch|ep"
_CHECKPOINT = {"checkpoint", "ckpt", "snapshot"}
_WORDS = _CHECKPOINT | {"model", "weights", "params", "state", "states", "global", "best"}
_SUFFIXES = "ckpt|pt|pth|bin|safetensors|pkl|npz|msgpack|weights|keras|h5|hdf5|ubj|zip|tar"

_SUFFIX = re.compile(rf"(?:\.(?:{_SUFFIXES}))+$")
_OTHER_SUFFIX = re.compile(rf"\.(?!(?:{_STEP}|{_EPOCH})s?\d)[a-z][a-z0-9]*$")
_NUMBER = r"(?<!\d)(?<!\d\.)\d+(?!\.?\d)"  # no decimal: that is a score
_SCORE = re.compile(
    rf"(?<![a-z])(?:[a-z]+[-_])*(?!(?:{_STEP}|{_EPOCH})s?=)[a-z]+\d*=[-+]?[\d.]+(?:e[-+]?\d+)?"
)
_NAMED = [
    re.compile(one)
    for key in (_STEP, _EPOCH)
    for one in (
        rf"(?<![a-z])(?:{key})s?[-_=.]?({_NUMBER})",
        rf"({_NUMBER})[-_]?(?:{key})s?(?![a-z])",
    )
]
# What lies beside checkpoints, unfinished ones, and parts of one.
_BESIDE = re.compile(
    r"(?<![a-z])(?:optim|optimizer|rng|scheduler|replay|buffer|vecnormalize|tmp|of)(?![a-z])"
)
_KEY = re.compile(rf"(?:{_STEP}|{_EPOCH})s?")

# A checkpoint's files: for each relative name, its size in bytes and when it was written.
Files = Mapping[str, tuple[int, float]]


@lru_cache(maxsize=65536)  # a folder is listed again and again
def step_in(name: str, pattern: str | None = None) -> int | None:
    """Return the step in a checkpoint's name; None if it is not named like a checkpoint.

    The number next to "step", "iter" or the like is the step, otherwise the number next to "epoch";
    without such a word, the only number, or the second of an epoch and a step. Scores, which are
    decimals or follow a name and "=", do not count. A name may contain words other than those of
    checkpoints only if it says what its number counts, and is that of a file of weights or says
    that it is a checkpoint.

    Args:
        name: The name of a file or a folder.
        pattern: A regular expression for the whole name, whose first group is the step. None: the
            names that known frameworks use.

    Example:
        >>> names = ["checkpoint-500", "a_20_steps.zip", "epoch=3-step=400.ckpt", "7", "model.bin"]
        >>> [step_in(name) for name in names]
        [500, 20, 400, 7, None]
        >>> step_in("tmp-checkpoint-500"), step_in("run7-final", r"run(\\d+)-final")
        (None, 7)
    """
    if pattern is not None:
        found = re.fullmatch(pattern, name)
        return None if found is None else int(found[1])
    name = name.lower()
    stem = _SUFFIX.sub("", name)
    is_file = stem != name
    if stem[:1] in (".", "_") or _OTHER_SUFFIX.search(stem) or _BESIDE.search(stem):
        return None
    stem = _SCORE.sub("", stem)
    words = set(re.findall(r"[a-z]+", stem))
    others = {word for word in words - _WORDS if not _KEY.fullmatch(word)}
    for named in _NAMED:
        if (found := named.search(stem)) is not None:
            return int(found[1]) if not others or is_file or words & _CHECKPOINT else None
    numbers = [int(one) for one in re.findall(_NUMBER, stem)]
    one = len(numbers) == 1 or (len(numbers) == 2 and words and numbers[0] <= numbers[1])
    return numbers[-1] if one and not others else None


@dataclass(frozen=True)
class Kind:
    """Describe how a framework writes a checkpoint.

    Attributes:
        framework: The framework's name.
        last: The file that it writes last.
        has: A regular expression for the name of the checkpoint and of a file in it that only this
            kind has, joined with ``/``.
    """

    framework: str
    last: str
    has: str


#: The files that complete a folder, from the frameworks' own sources. The first kind that matches
#: counts. Folders of no known kind are complete once they have not changed for a while.
KINDS = (
    # transformers/trainer.py, Trainer._save_checkpoint: the model, optimizer, scheduler and random
    # state; then TrainerState.save_to_json(TRAINER_STATE_NAME), which writes in place.
    Kind("transformers", "trainer_state.json", r"checkpoint-\d+/.*"),
    # torch/distributed/checkpoint/filesystem.py, _FileSystemWriter.finish: renames .metadata.tmp to
    # .metadata after all ranks have written their .distcp.
    Kind("torch.distributed.checkpoint", ".metadata", r".*\.distcp"),
    # orbax/checkpoint/_src/path/atomicity.py: both AtomicRenameTemporaryPath.finalize, which then
    # renames N.orbax-checkpoint-tmp to N, and CommitFileTemporaryPath.finalize write it last.
    Kind("orbax", "commit_success.txt", r"[^/]*/(_CHECKPOINT_METADATA|commit_success\.txt)"),
)


def kind_of(name: str, files: Collection[str]) -> Kind | None:
    """Return the kind of a folder; None if it matches no known framework.

    Args:
        name: The folder's name.
        files: The names of the files in it.

    Example:
        >>> kind_of("checkpoint-5", ["model.safetensors"]).last
        'trainer_state.json'
        >>> kind_of("step-5", ["__0_0.distcp"]).last, kind_of("step_5", ["w.bin"])
        ('.metadata', None)
    """
    for kind in KINDS:
        if any(re.fullmatch(kind.has, f"{name}/{file}") for file in files):
            return kind
    return None


def trainer_metrics(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training metrics in ``trainer_state.json`` at the step of its checkpoint.

    The loss is the newest one, which may be from an earlier step. ``done``: the run has ended.

    Example:
        >>> log = [{"step": 5, "loss": 2.0, "epoch": 0.5}, {"step": 10, "eval_loss": 1.5}]
        >>> trainer_metrics({"global_step": 10, "max_steps": 10, "log_history": log})
        {'loss': 2.0, 'eval_loss': 1.5, 'done': True}
    """
    step, found = state.get("global_step"), {}
    for entry in state.get("log_history") or ():
        own = entry if entry.get("step") == step else {"loss": entry.get("loss")}
        found.update({name: v for name, v in own.items() if name != "step" and v is not None})
    return {**found, "done": True} if step and step == state.get("max_steps") else found


def wrong_pattern(pattern: str) -> str | None:
    """Return why a pattern for the names of checkpoints is wrong; None if it is not.

    Example:
        >>> wrong_pattern(r"step-(\\d+)"), wrong_pattern("step")
        (None, 'has no group for the step')
    """
    try:
        return None if re.compile(pattern).groups else "has no group for the step"
    except re.error as error:
        return f"is not a regular expression: {error}"


@dataclass(frozen=True)
class Seen:
    """A complete checkpoint that was seen.

    Attributes:
        request: The request to evaluate it.
        mark: When it was completed: it changes if the checkpoint is written again.
        at: When it was seen, in seconds since the epoch.
    """

    request: Request
    mark: float
    at: float


class Followed:
    """Track the state of a followed folder, from the events of its journal.

    Example:
        >>> followed = Followed()
        >>> for step in (5, 10):
        ...     for event in followed.saw("run", step, f"/run/checkpoint-{step}", {}, mark=step):
        ...         followed.apply(event)
        >>> followed.next(requested=()).id, followed.next(requested=["run:0:10:1"]).id
        ('run:0:10:1', 'run:0:5:1')
    """

    def __init__(self) -> None:
        #: When each checkpoint was found to be complete, in seconds since the epoch, by path.
        self.checked: dict[str, float] = {}
        #: Checkpoints whose evaluation has not ended, by the IDs of the validations.
        self.pending: dict[str, Seen] = {}
        #: The largest step of each run.
        self.last: dict[str, int] = {}
        #: The runs whose training has ended, and the runs for which that is recorded.
        self.done: set[str] = set()
        self.ended: set[str] = set()
        # The newest checkpoint by run and step, and when the one reported last was completed.
        self._seen: dict[tuple[str, int], Seen] = {}
        self._mark = 0.0

    def apply(self, event: Event) -> None:
        """Apply an event of the journal, starting with the events of earlier sessions."""
        match event:
            case Reported():
                self._reported(event.trial_id, event.report)
            case CheckpointSaved():
                request = request_of(event)
                seen = Seen(request, self._mark, event.time)
                self._seen[request.trial_id, request.iteration] = seen
                self.pending[request.id] = seen
                self.checked[request.path] = event.time
            case ValidationEnded():
                self.pending.pop(event.id, None)
            case TrialEnded():
                self.ended.add(event.trial_id)

    def _reported(self, run: str, report: Mapping[str, Any]) -> None:
        self.ended.discard(run)
        self._mark = number(report.get(_COMPLETED)) or 0.0
        if report[ITERATION] >= self.last.get(run, 0):  # steps may be seen out of order
            self.last[run] = report[ITERATION]
            (self.done.add if report.get("done") else self.done.discard)(run)

    def saw(
        self, run: str, step: int, path: str, report: Mapping[str, Any], mark: float
    ) -> tuple[Reported, CheckpointSaved] | None:
        """Return the events for a complete checkpoint; None if it is already known.

        Args:
            run: The run that it belongs to.
            step: Its step.
            path: Its path.
            report: Its training metrics.
            mark: When it was completed.
        """
        known = self._seen.get((run, step))
        if known is not None and mark <= max(known.mark, known.at):
            return None
        request = Request(run, step, 1 if known is None else known.request.run + 1, path=path)
        row = {**report, _COMPLETED: mark, ITERATION: step}
        return Reported(trial_id=run, report=row), CheckpointSaved.of(request)

    def next(self, requested: Collection[str]) -> Request | None:
        """Return the request for the newest checkpoint that waits; None if none does.

        Args:
            requested: The IDs of requests that the evaluators already have.
        """
        waiting = [seen for name, seen in self.pending.items() if name not in requested]
        if not waiting:
            return None
        return max(waiting, key=lambda one: (one.mark, one.request.iteration)).request


def request_of(event: CheckpointSaved) -> Request:
    """Return the request to evaluate a recorded checkpoint."""
    return Request(event.trial_id, event.iteration, event.run, path=event.checkpoint)
