"""The state of a sweep, derived from the events in its journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunekit.core.events import (
    CheckpointEvent,
    CheckpointSaved,
    Event,
    Exploited,
    Processed,
    Reported,
    StopRequested,
    TrialEnded,
    TrialErrored,
    TrialRetried,
    ValidationEnded,
    ValidationRequested,
    Waited,
)
from tunekit.core.lineage import Ancestry
from tunekit.core.metrics import flat_items, flatten, metric_of
from tunekit.core.retention import Leases, clone_holder, scheduler_holder
from tunekit.core.validation import FAILED, ValidationKey
from tunekit.core.values import finite_number


class History:
    """The runs of a sweep's iterations, and the scores of the newest ones.

    When a trial returns to an older checkpoint and repeats an iteration, only the newest run
    counts. A trial that is overwritten with other weights starts a new generation, whose iterations
    are separate.

    Example:
        >>> history = History()
        >>> run = history.reported("a", 3)
        >>> history.validated(ValidationKey("a", 0, 3, run), {"accuracy": 0.9})
        >>> list(history.scores("a")), list(history.names)
        ([((0, 3), {'accuracy': 0.9})], ['accuracy'])
        >>> history.reported("a", 3), list(history.scores("a"))
        (2, [])
    """

    def __init__(self) -> None:
        # By trial, and by (generation, iteration) within one.
        self._runs: dict[str, dict[tuple[int, int], int]] = {}
        self._scores: dict[str, dict[tuple[int, int], Mapping[str, Any]]] = {}
        #: Flat names of all metrics of validations, in order of appearance.
        self.names: dict[str, None] = {}

    def reported(self, trial_id: str, iteration: int, generation: int = 0) -> int:
        """Count a run of an iteration; return the number of runs, including this one."""
        runs, place = self._runs.setdefault(trial_id, {}), (generation, iteration)
        runs[place] = runs.get(place, 0) + 1
        self._scores.get(trial_id, {}).pop(place, None)  # of an older run
        return runs[place]

    def run_of(self, trial_id: str, iteration: int, generation: int = 0) -> int:
        """Return the number of the newest run of an iteration, 1 if it has not been reported."""
        return self._runs.get(trial_id, {}).get((generation, iteration), 1)

    def validated(self, key: ValidationKey, metrics: Mapping[str, Any]) -> None:
        """Record a score, unless its iteration was run again."""
        if key.run >= self.run_of(key.trial_id, key.iteration, key.generation):
            self._scores.setdefault(key.trial_id, {})[key.place] = metrics
            self.names.update((name, None) for name, _ in flat_items(metrics))

    def scores(self, trial_id: str) -> Iterator[tuple[tuple[int, int], Mapping[str, Any]]]:
        """Yield ``((generation, iteration), metrics)`` of validated iterations, in order."""
        return iter(sorted(self._scores.get(trial_id, {}).items(), key=lambda one: one[0]))


@dataclass
class Engine:
    """Track the state of a sweep's trials and validations.

    Example:
        >>> engine = Engine()
        >>> engine.apply(Reported(trial_id="a", report={"training_iteration": 1}))
        >>> named = {"trial_id": "a", "id": "a:0:1:1", "iteration": 1, "checkpoint": "a/c1"}
        >>> engine.apply(CheckpointSaved(**named, validates=True))
        >>> [request.checkpoint for request in engine.unfinished.values()]
        ['a/c1']
        >>> metrics = {"score": 1}
        >>> engine.apply(ValidationEnded(id="a:0:1:1", status="validated", metrics=metrics))
        >>> list(engine.history.names)
        ['score']
    """

    #: The metrics that the scheduler, the searcher and the stoppers of the sweep use.
    required: frozenset[str] = frozenset()
    #: The validated metrics.
    history: History = field(default_factory=History)
    #: The exploits: trials that were overwritten with checkpoints.
    ancestry: Ancestry = field(default_factory=Ancestry)
    #: The checkpoints that are needed.
    leases: Leases = field(default_factory=Leases)
    #: The validations that have not ended, by name, in order.
    unfinished: dict[str, CheckpointEvent] = field(default_factory=dict)
    #: The status of each validation that has failed since the last success, by name. The function
    #: may be broken, so a restored sweep requests them again.
    suspect: dict[str, str] = field(default_factory=dict)
    #: The number of ended validations by status.
    counts: Counter[str] = field(default_factory=Counter)
    #: The total time that validations ran, in seconds.
    ran_s: float = 0.0
    #: The total time that trials waited for scores, in seconds.
    waited_s: float = 0.0
    #: Whether any checkpoint was saved.
    has_saved: bool = False
    #: The iteration of each trial's newest checkpoint that was selected for validation.
    selected_at: dict[str, int] = field(default_factory=dict)
    #: Whether the scheduler has decided on any score.
    has_decided: bool = False
    #: The trials that are to be stopped by hand and have not ended.
    stopping: set[str] = field(default_factory=set)
    #: The trials that have ended.
    ended: set[str] = field(default_factory=set)
    # The validations that were pending when the first score arrived, and still are.
    _may_name: set[str] = field(default_factory=set)
    # The metrics that any validation has returned as a number.
    _scored: set[str] = field(default_factory=set)

    def apply(self, event: Event) -> None:
        """Apply an event."""
        match event:
            case Reported():
                generation, iteration = event.place
                self.history.reported(event.trial_id, iteration, generation)
            case CheckpointSaved():
                self.has_saved = True
                if event.validates:
                    self.selected_at[event.trial_id] = event.iteration
                    self.unfinished[event.id] = event
            case ValidationRequested():
                self.unfinished[event.id] = event
                if failed := self.suspect.pop(event.id, None):
                    self.counts[failed] -= 1
            case ValidationEnded():
                self._end(event)
            case Processed():
                self.has_decided |= event.ranked
                if event.checkpoint:  # from now on the trial restarts from its own
                    self.leases.release(clone_holder(event.trial_id, event.generation))
                if event.cloneable:
                    holder = scheduler_holder(event.trial_id)
                    self.leases.acquire(holder, event.checkpoint, event.trial_id)
            case Exploited():
                trial_id, generation, path = event.trial_id, event.generation, event.checkpoint
                self.ancestry.add(event)
                self.leases.acquire(clone_holder(trial_id, generation), path, event.donor_id)
                self.leases.release(clone_holder(trial_id, generation - 1))
            case StopRequested():
                self.stopping.add(event.trial_id)
            case TrialEnded() | TrialErrored():
                self.stopping.discard(event.trial_id)
                self.ended.add(event.trial_id)
                generation = self.ancestry.generation(event.trial_id)
                self.leases.release(clone_holder(event.trial_id, generation))
                self.leases.release(scheduler_holder(event.trial_id))
            case TrialRetried():
                self.ended.discard(event.trial_id)
            case Waited():
                self.waited_s += event.seconds
            case _:
                pass  # it changes nothing here

    def _end(self, event: ValidationEnded) -> None:
        if self.unfinished.pop(event.id, None) is None:
            return  # it was not requested
        self.counts[event.status] += 1
        self.ran_s += event.ran_s
        if event.status in FAILED:
            self.suspect[event.id] = event.status
        if event.validated:
            self.suspect.clear()
            metrics = flatten(event.metrics)
            self._scored.update(
                name for name in metrics if finite_number(metrics[name]) is not None
            )
            is_named = bool(self.history.names)
            self.history.validated(event.key, event.metrics)
            if self.history.names and not is_named:
                self._may_name = set(self.unfinished)
        self._may_name.discard(event.id)

    # Queries -----------------------------------------------------------------------------------

    @property
    def knows_names(self) -> bool:
        """Return whether it is known which of the sweep's metrics are validation's.

        Each name that a validation has returned is validation's. A metric of the sweep belongs to
        training once all validations that were pending when the first score arrived have ended
        without it; a later validation that returns it takes it over.
        """
        names = self.history.names
        return bool(names) and (not self._may_name or self.required <= names.keys())

    @property
    def unscored(self) -> set[str]:
        """Return the metrics that the sweep uses and validations returned, but never as a number.

        Example:
            >>> Engine(required=frozenset({"accuracy"})).unscored
            set()
        """
        return {name for name in self.required if name in self.history.names} - self._scored

    def can_stop(self, trial_id: str) -> bool:
        """Return whether a trial can be stopped by hand: it has not ended and is not about to."""
        return trial_id not in self.ended and trial_id not in self.stopping

    def lacks(self, result: Mapping[str, Any]) -> list[str]:
        """Return the metrics that the sweep uses and that are not finite numbers in a result."""
        return sorted(n for n in self.required if finite_number(metric_of(result, n)) is None)

    def require(self, names: Iterable[str]) -> None:
        """Add metrics that the sweep uses."""
        self.required = self.required.union(names)
