"""Run Ray Train trainers as trials of Tune.

Each trial is one run of the trainer. Its workers report to the trial as they do to Ray Train, and
the checkpoints that they upload into the trial's directory become the trial's checkpoints without
a copy.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
import posixpath
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from ray import train, tune
from ray.train._internal.session import _TrainingResult
from ray.train.v2._internal.execution.context import TrainRunContext
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.tune.result import (
    DONE,
    RESULT_DUPLICATE,
    SHOULD_CHECKPOINT,
    TIME_THIS_ITER_S,
    TIME_TOTAL_S,
    TRAINING_ITERATION,
)

from tunekit._ray.asking import INQUIRY, pass_on_by
from tunekit._ray.checkpoints import delete_checkpoint
from tunekit._ray.functions import HAS_ASKED
from tunekit._ray.worker_group import (
    Asked,
    Begun,
    Ended,
    Finished,
    Report,
    TrialWorkerGroup,
    WorkersLost,
    lasts,
)
from tunekit.core.metrics import VALIDATION_KEY
from tunekit.core.retention import uploads_of
from tunekit.core.training_loops import format_not_resumed
from tunekit.errors import DistributedTrialError, NotResumedError
from tunekit.journal.paths import exists, paths_in

logger = logging.getLogger(__name__)

# How many seconds workers have to reach a report, where they switch trials; then they are ended.
_TAKEOVER_S = 60.0


def distributed_class(
    source: DataParallelTrainer | Callable[[dict[str, Any]], DataParallelTrainer],
) -> type[_DistributedTrial]:
    """Return a trainable whose trials are runs of a trainer.

    Args:
        source: The trainer, or a function that makes one from a configuration.
    """
    named = type(source) if isinstance(source, DataParallelTrainer) else source
    name = getattr(named, "__name__", "trainer")
    own = staticmethod(source) if callable(source) else source
    return type(name, (_DistributedTrial,), {"_name": name, "source": own})


def trainer_of(source: Any, config: Mapping[str, Any]) -> DataParallelTrainer:
    """Return the trainer of one trial.

    Raises:
        tunekit.errors.DistributedTrialError: If the function that makes trainers returned
            something else.
    """
    if not isinstance(source, DataParallelTrainer):
        made = source({key: config[key] for key in config if key != "resume_from_checkpoint"})
        if not isinstance(made, DataParallelTrainer):
            raise DistributedTrialError(
                f"{source!r} returned {made!r}, which is not a Ray Train trainer. Return "
                "ray.train.torch.TorchTrainer(...), for example."
            )
        return made
    trainer = copy.copy(source)
    loop_config = {**(source.train_loop_config or {}), **config.get("train_loop_config", {})}
    trainer.train_loop_config = loop_config
    trainer.scaling_config = _scaling_config(source.scaling_config, config.get("scaling_config"))
    trainer.datasets = {**source.datasets, **config.get("datasets", {})}
    return trainer


def _scaling_config(default: train.ScalingConfig, changed: Any) -> train.ScalingConfig:
    if isinstance(changed, Mapping):
        return dataclasses.replace(default, **changed)
    return default if changed is None else changed


def _resources(scaling_config: train.ScalingConfig) -> tune.PlacementGroupFactory:
    """Return one bundle for each worker; the trial's own process runs in the first.

    Raises:
        tunekit.errors.DistributedTrialError: If a trial cannot have such workers.
    """
    workers = scaling_config.num_workers
    if not isinstance(workers, int) or workers < 1:
        raise DistributedTrialError(
            f"num_workers={workers!r}: a trial's resources are reserved before it starts. Pass one "
            "number of at least 1."
        )
    factory = scaling_config.as_placement_group_factory()
    labels = scaling_config._label_selector_per_worker(workers)
    if labels is None:
        return factory
    return tune.PlacementGroupFactory(
        [{}, *factory.bundles], factory.strategy, bundle_label_selector=labels
    )


class _DistributedTrial(tune.Trainable):
    """A trial that is a run of a trainer."""

    source: Any
    #: The number of undecided reports that workers may return from.
    ahead = 1
    #: Whether the sweep validates checkpoints, whether workers do so while training waits, and
    #: whether all of them together.
    validates = validates_in_workers = validates_by_all = False
    # The workers, and the trainer that they were started for.
    _workers: TrialWorkerGroup | None = None
    _group_of: DataParallelTrainer | None = None
    _uploads: _Uploads | None = None
    # The undecided report, and its checkpoint until that is saved.
    _report: Report | None = None
    _unsaved: Any = None
    # The answer to what the workers have asked, and the seconds of this iteration before that.
    _told: list[Any] | None = None
    _asked_s = 0.0

    @classmethod
    def validate(cls, *, wait: bool) -> None:
        """Allow reports to request validations, and to wait for each score if trials do."""
        cls.validates, cls.ahead = True, 0 if wait else 1

    @classmethod
    def host_validations(cls, *, by_all: bool) -> None:
        """Make workers wait in each report with a checkpoint, in case they have to validate it.

        Args:
            by_all: Whether all workers validate together.
        """
        cls.validates_in_workers, cls.validates_by_all = True, by_all

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        return _resources(trainer_of(cls.source, config).scaling_config)

    # Called by Tune ----------------------------------------------------------------------------

    def setup(self, config: dict[str, Any]) -> None:
        pass_on_by(self._receive_answer)
        self._assigned = False
        self._begin_at, self._begin_after = self.config.get("resume_from_checkpoint"), 0
        self._report, self._unsaved = None, None
        self._last_metrics: dict[str, Any] = {}
        self._last_result: dict[str, Any] = {}
        # Iterations, checkpoints and metrics.
        self._reported: list[tuple[int, Any, dict[str, Any]]] = []

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True

    def restore(self, checkpoint_path: Any) -> None:
        saved = checkpoint_path
        if not isinstance(saved, _TrainingResult):
            saved = _TrainingResult(checkpoint=saved, metrics={})
        checkpoint = saved.checkpoint
        if not exists(checkpoint.filesystem, checkpoint.path):
            raise DistributedTrialError(
                f"The checkpoint {checkpoint.path} that trial {self.trial_id} is to resume from "
                "does not exist. Was it deleted, or was the experiment moved?"
            )
        self._begin_at = checkpoint
        self._begin_after = self._iteration = saved.metrics.get(TRAINING_ITERATION, 0)
        self._time_total = saved.metrics.get(TIME_TOTAL_S, 0)
        self._time_since_restore, self._iterations_since_restore = 0.0, 0
        self._restored = True

    def step(self) -> dict[str, Any]:
        if self._workers is None or not self._assigned:
            self._workers = self._assign()
        elif self._told is not None:
            self._workers.answer(self._told)
        elif self._report is not None:
            self._workers.decided(self._report)
        self._told, began = None, time.monotonic()
        event = self._workers.next_event()
        while not isinstance(event, (Report, Finished, Ended)):
            if isinstance(event, Asked) and self.validates:
                self._asked_s += time.monotonic() - began
                return {INQUIRY: event.inquiry, RESULT_DUPLICATE: True}
            if isinstance(event, Asked):
                self._workers.answer(self._committed())
            event = self._workers.next_event()
        if isinstance(event, Ended):
            self._workers = None
            raise event.error or DistributedTrialError("The workers of the trial have ended.")
        if isinstance(event, Finished):
            return {**self._last_metrics, DONE: True, RESULT_DUPLICATE: True}
        if not event.resumed:
            at, ask = event.iteration - event.report, "ray.train.get_checkpoint"
            raise NotResumedError(format_not_resumed(self.trial_name, at, get_checkpoint=ask))
        self._report = event
        self._unsaved = event.checkpoint
        if event.checkpoint is not None and not self.validates:
            self._reported.append((event.iteration, event.checkpoint, dict(event.metrics)))
        self._iteration = event.iteration - 1  # lower than before if workers had to restart
        result = dict(event.metrics)
        if self._asked_s:  # Tune would only count from the last inquiry on
            result.setdefault(TIME_THIS_ITER_S, self._asked_s + time.monotonic() - began)
            self._asked_s = 0.0
        if event.checkpoint is not None:
            result[SHOULD_CHECKPOINT] = True
        if event.validation:
            result[VALIDATION_KEY] = event.validation
        if self.validates and event.asked:
            result[HAS_ASKED] = True
        self._last_metrics = result
        return result

    def _committed(self) -> list[train.ReportedCheckpoint]:
        """Return what the trial's process has reported since it started and storage still has.

        Without validation, nothing else knows it.
        """
        committed = train.ReportedCheckpointStatus.COMMITTED
        return [
            train.ReportedCheckpoint(checkpoint, {**metrics, TRAINING_ITERATION: n}, committed)
            for n, checkpoint, metrics in self._reported
            if exists(checkpoint.filesystem, checkpoint.path)
        ]

    def _receive_answer(self, reported: list[Any]) -> None:
        """Handle the answer to what workers have asked; they get it with the next step."""
        self._told = reported

    def save(self, checkpoint_dir: str | None = None) -> _TrainingResult:
        checkpoint, self._unsaved = self._unsaved, None
        if checkpoint is not None and self._uploads is not None:
            self._uploads.keep(checkpoint.path)
            self._begin_at, self._begin_after = checkpoint, self._iteration
        return _TrainingResult(checkpoint=checkpoint, metrics=dict(self._last_result or {}))

    def cleanup(self) -> None:
        if self._workers is not None:
            self._workers.dismiss()
        if self._uploads is not None:
            self._uploads.delete_rest()

    # The workers -------------------------------------------------------------------------------

    @property
    def has_workers(self) -> bool:
        """Return whether the trial has workers that can validate alongside its training."""
        return self._workers is not None and self._workers.alive

    def beside(self, call: Callable[[], Any], *, alone: bool) -> dict[int, Any]:
        """Call a function in the workers while training waits: see :class:`TrialWorkerGroup`.

        If the workers end in the meantime, new ones replace them when the trial continues, and
        start from its newest checkpoint.
        """
        workers = self._workers
        if workers is None or not workers.alive:
            raise WorkersLost("its trial has no workers")
        try:
            return workers.beside(call, alone=alone)
        finally:
            self._begin_again_without_workers()

    def _begin_again_without_workers(self) -> None:
        """Replace workers that have ended, starting from the newest checkpoint that Tune has."""
        if not self.has_workers:
            self._workers, self._assigned = None, False
            self._report, self._unsaved = None, None
            self._iteration = self._begin_after

    def _assign(self) -> TrialWorkerGroup:
        """Assign the trial to the living workers, or start new ones."""
        self._assigned = True
        trainer, workers, former = self._trainer(), self._workers, self._uploads
        self._uploads = _Uploads(self._storage.storage_filesystem, self._storage.trial_fs_path)
        run = self._uploads.run
        assignment = (trainer.train_run_context, self._begin_at, self._iteration, run)
        lives = workers is not None and workers.alive and workers.in_step
        if workers is not None and lives and self._can_take_over(trainer):
            workers.assign(*assignment)
            if not isinstance(workers.next_event(_TAKEOVER_S), Begun):
                workers.dismiss()
                logger.warning(
                    "The workers cannot take over trial %s; starting new ones.", self.trial_id
                )
        elif workers is not None:
            workers.dismiss()
        if former is not None:
            former.delete_rest()
        if workers is None or not workers.alive:
            workers = TrialWorkerGroup(
                trainer,
                ahead=self.ahead,
                validates=self.validates,
                in_workers=self.validates_in_workers,
                by_all=self.validates_by_all,
            )
            self._group_of = trainer
            workers.assign(*assignment)
            workers.start()
        return workers

    def _trainer(self) -> DataParallelTrainer:
        """Return the trainer for the trial's configuration, with the trial's storage."""
        trainer = trainer_of(type(self).source, self.config)
        folder, name = os.path.split(self._storage.trial_fs_path)
        trainer.run_config = dataclasses.replace(
            trainer.run_config,
            name=name,
            storage_path=folder,
            storage_filesystem=self._storage.storage_filesystem,
            checkpoint_config=train.CheckpointConfig(),
        )
        trainer.train_run_context = TrainRunContext(
            run_config=trainer.run_config,
            train_loop_config=trainer.train_loop_config,
            scaling_config=trainer.scaling_config,
            backend_config=trainer.backend_config,
            dataset_config=trainer.data_config,
        )
        return trainer

    def _can_take_over(self, trainer: DataParallelTrainer) -> bool:
        """Return whether the living workers can run a trainer, which needs the same processes."""
        former = self._group_of
        return (
            former is not None
            and not (trainer.datasets or former.datasets)
            and not (trainer.run_config.callbacks or former.run_config.callbacks)
            and trainer.train_loop_per_worker == former.train_loop_per_worker
            and vars(trainer.scaling_config) == vars(former.scaling_config)
            and lasts(trainer.backend_config)
            and type(trainer.backend_config) is type(former.backend_config)
            and vars(trainer.backend_config) == vars(former.backend_config)
            and trainer.run_config.worker_runtime_env == former.run_config.worker_runtime_env
        )


class _Uploads:
    """The checkpoints that workers upload into a trial's directory during one assignment.

    Args:
        filesystem: The filesystem of the trial's storage.
        folder: The trial's directory there.
    """

    def __init__(self, filesystem: Any, folder: str):
        self._filesystem, self._folder = filesystem, folder
        self._kept: set[str] = set()
        #: The run of the training loop, which is part of the checkpoints' names.
        self.run = uuid.uuid4().hex[:8]

    def keep(self, path: str) -> None:
        """Keep this checkpoint, which Tune receives."""
        self._kept.add(posixpath.relpath(path, self._folder).split("/")[0])

    def delete_rest(self) -> None:
        """Delete the checkpoints that Tune has not received."""
        try:
            there = [path.rpartition("/")[2] for path in paths_in(self._filesystem, self._folder)]
            for name in set(uploads_of(self.run, there)) - self._kept:
                delete_checkpoint(self._filesystem, f"{self._folder}/{name}")
        except OSError as error:
            logger.warning("Surplus uploads in %s cannot be deleted: %s", self._folder, error)
