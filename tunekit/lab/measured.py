"""The resources and durations of a recorded sweep, to simulate its machine."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from operator import itemgetter
from typing import Any

from ray.tune.result import PID, TIME_THIS_ITER_S, TRAINING_ITERATION

from tunekit.config import ValidationConfig
from tunekit.core.room import at_once
from tunekit.core.values import number
from tunekit.reading.sweep import Sweep
from tunekit.validating.ray_executor import executor_of

# A validation that has its resources but takes longer to begin has started a process.
_AT_ONCE_S = 0.3
_SINCE_RESTORE = "iterations_since_restore"
_OPTIONS = ("num_cpus", "num_gpus", "memory")


def not_called(checkpoint: Any) -> dict[str, Any]:
    """Stand in for the validation function of a simulated sweep."""
    raise NotImplementedError("a simulation takes scores from the record")


class Measured:
    """The measurements that a simulation of a recorded sweep uses.

    Args:
        sweep: The sweep.
    """

    def __init__(self, sweep: Sweep):
        self._timeline = timeline = sweep.timeline
        newest = sweep.newest_session
        #: The cluster's resources by name; empty if they are not known.
        self.cluster: Mapping[str, float] = (newest.get("cluster") or {}).get("resources") or {}
        #: The resources of a trial.
        self.trial: Mapping[str, float] = next(
            (one.resources for one in timeline.trials.values() if one.resources), {"CPU": 1.0}
        )
        #: The type of its scheduler.
        self.scheduler: str = (newest.get("scheduler") or {}).get("type") or "FIFOScheduler"
        self._settings: Mapping[str, Any] = newest.get("validation") or {}
        real = executor_of(self.config)
        #: Whether validations could run in the processes of trials.
        self.in_trials = real.in_trials and self.config.on_pending != "continue"
        # When each iteration was reported, how long it took, and whether it was the first one of
        # its process, or after a restore.
        self._rows = {trial_id: list(timeline.rows(trial_id)) for trial_id in timeline.trials}

    @property
    def config(self) -> ValidationConfig:
        """Return the validation settings, as far as they are recorded."""
        known, amounts = self._settings, dict(self._settings.get("resources") or {})
        options = {name: amounts.pop(name) for name in _OPTIONS if name in amounts}
        names = ("when", "where", "on_pending", "max_in_flight", "evaluators")
        settings = {name: known[name] for name in names if known.get(name) is not None}
        more = {"resources": amounts} if amounts else {}
        return ValidationConfig(fn=not_called, ray_remote_kwargs=options | more, **settings)

    @property
    def slots(self) -> int:
        """Return how many trials fit at once; all of them if the cluster is not known."""
        known = at_once(self.cluster, self.trial) if self.cluster else None
        return known or max(1, len(self._rows))

    # How long trials took ----------------------------------------------------------------------

    @cached_property
    def reuses(self) -> bool:
        """Return whether any trial reused another trial's process."""
        trials = defaultdict(set)
        for _, trial_id, row in self._starts():
            trials[row.get("hostname"), row.get(PID, trial_id)].add(trial_id)
        return any(len(each) > 1 for each in trials.values())

    def start_s(self, trial_id: str) -> float:
        """Return how long a trial's process takes to start; the median if that is not known."""
        known = self._started
        return known.get(trial_id, statistics.median(known.values()) if known else 0.0)

    @cached_property
    def _started(self) -> dict[str, float]:
        """Return how long each trial's first process took until it trained, if it had its own.

        It is measured from the time at which the trial was added and a slot was free.
        """
        leaves = defaultdict(list)
        for decision in self._timeline.decisions:
            if decision["decision"] == "PAUSE":
                leaves[decision["trial_id"]].append(decision["time"])
        for trial_id, trial in self._timeline.trials.items():
            if trial.ended is not None:
                leaves[trial_id].append(trial.ended)
        starts = [
            (began, trial_id, row, (row.get("hostname"), row.get(PID, n)))
            for n, (began, trial_id, row) in enumerate(sorted(self._starts(), key=itemgetter(0)))
        ]
        # The time at which each process left its slot.
        until: dict[Any, float] = {}
        # The cluster may have had room for more trials than were allowed at once.
        most = 1
        for began, trial_id, _, process in starts:
            until[process] = min((one for one in leaves[trial_id] if one > began), default=math.inf)
            most = max(most, sum(one > began for one in until.values()))
        until.clear()
        found: dict[str, float] = {}
        for began, trial_id, row, process in starts:
            since = self._timeline.trials[trial_id].added
            if process not in until:
                if len(until) >= min(most, self.slots):
                    since = max(since, until.pop(min(until, key=lambda one: until[one])))
                if row[TRAINING_ITERATION] == 1:
                    found[trial_id] = max(0.0, began - since)
            until[process] = min((one for one in leaves[trial_id] if one > began), default=math.inf)
        return found

    def _starts(self) -> Iterator[tuple[float, str, Mapping[str, Any]]]:
        """Yield the start of each iteration that was the first after a start or a restore."""
        for trial_id, rows in self._rows.items():
            for row in rows:
                if _is_first(row):
                    took = number(row.get(TIME_THIS_ITER_S)) or 0.0
                    yield row["reported_at"] - took, trial_id, row

    @cached_property
    def _trained(self) -> Mapping[str, Mapping[int, float]]:
        """Return how long each iteration took, by trial, including Tune's time between two."""
        last: dict[str, float] = {}
        ends: dict[tuple[str, int], float] = {}
        for span in sorted(self._timeline.spans(), key=lambda span: span.end):
            if span.kind == "training":
                before = last.get(span.trial_id, span.begin)
                ends[span.trial_id, span.iteration] = span.end - before
            if span.kind in ("training", "waiting"):
                last[span.trial_id] = span.end
        return {
            trial_id: {
                row[TRAINING_ITERATION]: number(row.get(TIME_THIS_ITER_S)) or 0.0
                if _is_first(row)
                else ends[trial_id, row[TRAINING_ITERATION]]
                for row in rows
            }
            for trial_id, rows in self._rows.items()
        }

    def train_s(self, trial_id: str, iteration: int) -> float:
        """Return how long an iteration of a trial takes.

        An iteration that was not recorded takes the trial's median, or that of all trials. The
        first iteration of a process is left out of the median, because it may include imports.
        """
        known = self._trained[trial_id].get(iteration)
        return self._usual[trial_id] if known is None else known

    @cached_property
    def _usual(self) -> Mapping[str, float]:
        """Return the duration of an unrecorded iteration, by trial."""
        later = {
            trial_id: [
                self._trained[trial_id][row[TRAINING_ITERATION]]
                for row in rows
                if not _is_first(row)
            ]
            for trial_id, rows in self._rows.items()
        }
        of_all = [seconds for each in later.values() for seconds in each]
        first = [seconds for each in self._trained.values() for seconds in each.values()]
        return {
            trial_id: statistics.median(each or of_all or first or [0.0])
            for trial_id, each in later.items()
        }

    # How long validations took -----------------------------------------------------------------

    @cached_property
    def _ran(self) -> tuple[dict[tuple[str, int], float], list[float], float]:
        """Return how long validations ran in used processes; process starts; import times."""
        warm: dict[tuple[str, int], float] = {}
        cold: dict[tuple[str, int], float] = {}
        starts = []
        for row in self._timeline.validations:
            if row["status"] == "validated" and not row["cached"] and row["ran_from"]:
                start_s = row["ran_from"] - row["started"]
                place = row["trial_id"], row["iteration"]
                if start_s > _AT_ONCE_S:
                    starts.append(start_s)
                (cold if start_s > _AT_ONCE_S else warm)[place] = row["ran_s"]
        import_s = 0.0
        if cold and warm:
            apart = statistics.median(cold.values()) - statistics.median(warm.values())
            import_s = max(0.0, apart)
        shorter = {place: max(0.0, ran_s - import_s) for place, ran_s in cold.items()}
        return warm | shorter, starts, import_s

    @property
    def elsewhere(self) -> bool:
        """Return whether validations started their own processes."""
        return bool(self._ran[1])

    @cached_property
    def validation_start_s(self) -> float:
        """Return how long a validation's own process takes to start: at most as long as a trial's.

        Longer times include waiting for resources. Without a recorded start, it is the trial's.
        """
        each = [list(starts) for starts in (self._ran[1], self._started.values()) if starts]
        return min((statistics.median(starts) for starts in each), default=0.0)

    @property
    def import_s(self) -> float:
        """Return how much longer the first validation of a process ran."""
        return self._ran[2]

    def validate_s(self, trial_id: str, iteration: int) -> float:
        """Return how long a validation runs; one that was not recorded takes the median."""
        known = self._ran[0].get((trial_id, iteration))
        return self._usually_ran if known is None else known

    @cached_property
    def _usually_ran(self) -> float:
        return statistics.median(self._ran[0].values() or [0.0])


def _is_first(row: Mapping[str, Any]) -> bool:
    return bool(row.get(_SINCE_RESTORE, row[TRAINING_ITERATION]) == 1)
