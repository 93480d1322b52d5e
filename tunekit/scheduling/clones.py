"""What a scheduler may clone, and is about to: how population based training exploits."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION

from tunekit._ray.stand_ins import Change, Version
from tunekit.core.lineage import Ancestry, Exploit
from tunekit.journal.recorded import resolve_opaque
from tunekit.results.leases import CheckpointLeases

__all__ = ["Clones"]


class Clones:
    """Keeps the checkpoints that may be cloned, and knows which trial is to go on from which.

    Example:
        >>> from ray.tune import Checkpoint
        >>> checkpoint = Checkpoint("/sweep/a/checkpoint_3")
        >>> version = Version("a", 0, 3, checkpoint, {"accuracy": 0.9}, {}, {"lr": 1})
        >>> leases = CheckpointLeases(changed=print)
        >>> clones = Clones()
        >>> clones.attach(leases, Ancestry())
        >>> clones.plan("b", version.restorable())
        >>> list(leases)
        ['/sweep/a/checkpoint_3']
        >>> clones.give_up("b")
        >>> list(leases)
        []
    """

    def __init__(self) -> None:
        self._leases, self._ancestry = CheckpointLeases(lambda trial: None), Ancestry()
        #: What the scheduler has got hold of, by the trial that saved it.
        self.offers: dict[str, Version] = {}
        #: What trials are to go on from, as the scheduler gave it, and which offer that is.
        self.planned: dict[str, tuple[Any, Version | None]] = {}

    def attach(self, leases: CheckpointLeases, ancestry: Ancestry) -> None:
        """Get to know the sweep.

        Args:
            leases: Which checkpoints are needed.
            ancestry: Which trials were overwritten by now.
        """
        self._leases, self._ancestry = leases, ancestry

    def scored(self, trial: Trial, path: str) -> None:
        """Keep the checkpoint that earned a trial's newest delivered score."""
        self._leases.own(path, trial)
        self._leases.take(("scored", trial.trial_id), path)

    def offer(self, trial: Trial, version: Version) -> None:
        """Keep a checkpoint that the scheduler may clone later, until it takes another."""
        self.offers[trial.trial_id] = version
        self._leases.own(version.checkpoint.path, trial)
        self._leases.take(("offered", trial.trial_id), version.checkpoint.path)

    def plan(self, trial_id: str, restored: Any) -> None:
        """Take that a trial is to go on from what the scheduler gave it."""
        path = restored.checkpoint.path
        source = next((v for v in self.offers.values() if v.checkpoint.path == path), None)
        self.planned[trial_id] = (restored, source)
        self._leases.take(self._clone(trial_id), path)

    def is_planned(self, trial_id: str, restored: Any) -> bool:
        """Return whether that is known."""
        known = self.planned.get(trial_id)
        return known is not None and known[0] is restored

    def give_up(self, trial_id: str) -> None:
        """Take that a trial remains what it is."""
        self.planned.pop(trial_id, None)
        self._leases.release(self._clone(trial_id))

    def take_source(self, trial_id: str) -> Version | None:
        """Return, once, what a trial is about to be overwritten with; None if it is unknown."""
        return self.planned.pop(trial_id, (None, None))[1]

    def overwritten(self, trial_id: str, source: Version) -> None:
        """Take that a trial goes on with a checkpoint, whose score is its own now."""
        self._leases.take(("scored", trial_id), source.checkpoint.path)

    def gone(self, trial_id: str) -> None:
        """Take that a trial has ended or failed for good: nothing of it is cloned any more."""
        self.offers.pop(trial_id, None)
        self.give_up(trial_id)
        for use in ("scored", "offered"):
            self._leases.release((use, trial_id))

    def exploit(
        self,
        trial: Trial,
        config: Mapping[str, Any] | None,
        restored: Any,
        source: Version | None,
        *,
        objectives: Collection[str],
    ) -> Exploit:
        """Return the exploit that overwrites a trial.

        Args:
            trial: The trial.
            config: The hyperparameters that it goes on with; None for those that it has.
            restored: What the scheduler gave it.
            source: Which checkpoint that is, if it is known.
            objectives: The metric that the scheduler judges by, if it does.
        """
        old = copy.deepcopy(trial.config)
        metrics = restored.metrics if source is None else source.result
        return Exploit(
            time=0.0,  # it gets that as it is recorded
            trial_id=trial.trial_id,
            generation=self._ancestry.generation(trial.trial_id) + 1,
            reached=trial.last_result.get(TRAINING_ITERATION, 0),
            donor_id=trial.trial_id if source is None else source.trial_id,
            donor_generation=0 if source is None else source.generation,
            iteration=metrics.get(TRAINING_ITERATION, 0),
            checkpoint=restored.checkpoint.path,
            score=next((metrics.get(name) for name in objectives), None),
            old_config=old,
            donor_config=old if source is None else source.config,
            config=copy.deepcopy(old if config is None else dict(config)),
        )

    def again(
        self, trial: Trial, planned: Change, exploit: Exploit, version: Version | None
    ) -> tuple[Change, Version | None]:
        """Return what a trial is given that was overwritten before the sweep was interrupted.

        Args:
            trial: The trial.
            planned: What the scheduler would give it now.
            exploit: What was done.
            version: The checkpoint that was cloned, if it is known from the journal.
        """
        source = self.take_source(trial.trial_id)
        place = (exploit.donor_id, exploit.donor_generation, exploit.iteration)
        if source is None or source.place[:3] != place:
            source = version
        known = [trial.config, planned.config, None if source is None else source.config]
        change = Change(tag=planned.tag, config=resolve_opaque(exploit.config, known))
        if source is not None:
            change.restored_from = source.restorable()
        return change, source

    def take_leases(self, scored: Iterable[tuple[str, Version]]) -> None:
        """Take the leases again that a saved sweep had.

        Args:
            scored: Trials, and the checkpoints that earned their newest delivered scores.
        """
        for trial_id, version in scored:
            self._leases.take(("scored", trial_id), version.checkpoint.path)
        for trial_id, version in self.offers.items():
            self._leases.take(("offered", trial_id), version.checkpoint.path)
        for trial_id, (restored, _) in self.planned.items():
            self._leases.take(self._clone(trial_id), restored.checkpoint.path)

    def _clone(self, trial_id: str) -> tuple[str, str, int]:
        """The holder of what a trial is overwritten with, until it has saved something itself."""
        return ("clone", trial_id, self._ancestry.generation(trial_id) + 1)
