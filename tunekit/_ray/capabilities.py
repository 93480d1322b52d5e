"""Which trials can save and resume, as known from their classes and reports."""

from __future__ import annotations

from typing import Any

from ray.train._internal.session import _TrainingResult
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial

from tunekit._ray.asking import INQUIRY
from tunekit._ray.functions import CAN_SAVE, HAS_ASKED, can_be_resumed, can_be_saved


class Capabilities:
    """Read what trials can do, from each report before Tune receives it.

    Args:
        tune: The sweep's controller.
    """

    def __init__(self, tune: TuneController):
        self._tune = tune
        # Whether each class can resume and save.
        self._of_class: dict[str, tuple[bool, bool]] = {}
        # The trials whose functions have asked for a checkpoint, or have registered how to save.
        self._asked: set[str] = set()
        self._savers: set[str] = set()
        self._schedule = tune._actor_manager.schedule_actor_task
        tune._actor_manager.schedule_actor_task = self._scheduled

    def _scheduled(self, *args: Any, on_result: Any = None, **known: Any) -> Any:
        """Schedule a task of an actor, as Tune does."""
        own, method = on_result, known.get("method_name")
        if on_result is not None and method in ("train", "save"):

            def own(actor: Any, result: Any) -> None:
                for one in result if isinstance(result, list) else [result]:
                    report = one.metrics if isinstance(one, _TrainingResult) else one
                    if isinstance(report, dict) and actor in self._tune._actor_to_trial:
                        self._read(
                            self._tune._actor_to_trial[actor], report, saved=method == "save"
                        )
                on_result(actor, result)

        return self._schedule(*args, on_result=own, **known)

    def _read(self, trial: Trial, report: dict[str, Any], *, saved: bool) -> None:
        if INQUIRY in report:
            return
        if report.pop(HAS_ASKED, False):
            self._asked.add(trial.trial_id)
        if report.pop(CAN_SAVE, False):
            self._savers.add(trial.trial_id)
        # Tune prints and flattens reports before it passes them on, and fails if that raises or
        # never ends.
        self._tune.queues.convert(trial, report, saved=saved)

    def can_resume(self, trial: Trial) -> bool:
        """Return whether a trial is known to resume from its checkpoint in another process.

        A class does if it can load checkpoints; a function, if it has asked for its checkpoint.
        """
        return self._of(trial)[0] or trial.trial_id in self._asked

    def can_save(self, trial: Trial) -> bool:
        """Return whether a trial is known to save whenever Tune asks."""
        return self._of(trial)[1] or trial.trial_id in self._savers

    def _of(self, trial: Trial) -> tuple[bool, bool]:
        name = trial.trainable_name
        if name not in self._of_class:
            cls = trial.get_trainable_cls()
            self._of_class[name] = can_be_resumed(cls), can_be_saved(cls)
        return self._of_class[name]
