"""A sweep's journal as rows: trials, validations and decisions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunekit.core.constraints import Constraint, violation
from tunekit.core.events import (
    OF_OUTCOME,
    Asked,
    AttemptBegan,
    AttemptStarted,
    Decided,
    Event,
    Exploited,
    OfTrial,
    Reminded,
    Reported,
    ScoreDelivered,
    SessionClosed,
    TrialAdded,
    TrialEnded,
    TrialErrored,
    TrialFailed,
    TrialRetried,
    ValidationEnded,
    ValidationKey,
    ValidationRequested,
    Waited,
)
from tunekit.core.history import History, place_in
from tunekit.core.lineage import Ancestry
from tunekit.core.metrics import flatten, merge
from tunekit.core.validation import PENDING, Outcome, PendingStatus, Request, Status
from tunekit.core.values import number as _number

#: The row of a validation about which nothing is known.
VALIDATION: Mapping[str, Any] = {
    **dict.fromkeys(("id", "trial_id", "generation", "iteration", "run")),
    "status": PendingStatus.WAITING.value,
    **dict.fromkeys(("requested", "started", "ran_from", "ended")),
    "attempts": 0,
    **dict.fromkeys(("waited_s", "ran_s", "lag_s", "lag_iterations", "reason", "error")),
    "checkpoint": None,
    "metrics": {},
}

# How a validation has ended that is requested again.
_AGAIN = (Status.FAILED.value, Status.TIMED_OUT.value)

#: The key, in a report, of the duration of its iteration, in seconds.
TOOK = "time_this_iter_s"

Place = tuple[str, int, int]  # trial, generation, iteration


@dataclass(frozen=True)
class ScoredCheckpoint:
    """A validated checkpoint.

    Attributes:
        generation: Its trial's generation.
        iteration: The training iteration at which it was saved.
        metrics: Its validated metrics, nested as they were returned.
        checkpoint: Its path; it may be deleted.
        violation: Its violation of the sweep's constraints; 0 if it satisfies them.
    """

    generation: int
    iteration: int
    metrics: Mapping[str, Any]
    checkpoint: str
    violation: float = 0.0

    @property
    def place(self) -> tuple[int, int]:
        """Return ``(generation, iteration)``."""
        return (self.generation, self.iteration)

    def value(self, metric: str) -> float | None:
        """Return its validated value of a metric, by flat name; None if it has no such number."""
        return _number(flatten(self.metrics).get(metric))

    def standing(self, metric: str, mode: str) -> tuple[float, float] | None:
        """Return the sort key for ranking, the least first; None without the metric.

        A checkpoint that satisfies the constraints precedes one that does not.

        Args:
            metric: The metric, by flat name.
            mode: ``"min"`` or ``"max"``.

        Example:
            >>> checkpoints = [
            ...     ScoredCheckpoint(0, n, {"accuracy": n / 10}, f"c{n}", violation=n // 3)
            ...     for n in range(1, 5)
            ... ]
            >>> ranked = sorted(checkpoints, key=lambda one: one.standing("accuracy", "max"))
            >>> [one.iteration for one in ranked]
            [2, 1, 4, 3]
        """
        value = self.value(metric)
        return None if value is None else (self.violation, -value if mode == "max" else value)


@dataclass(frozen=True)
class Span:
    """A period of time in the life of a trial or a validation.

    Attributes:
        trial_id: The trial.
        kind: ``"training"``, ``"waiting"`` (the trial, for a score), ``"requested"`` (a validation,
            until it runs) or ``"validating"``.
        begin: The start, in seconds since the epoch.
        end: The end, in seconds since the epoch.
        generation: The trial's generation.
        iteration: The iteration that was trained, waited for or validated.
        note: How a validation ended.
    """

    trial_id: str
    kind: str
    begin: float
    end: float
    generation: int
    iteration: int
    note: str = ""


@dataclass
class TrialSummary:
    """A trial's summary.

    Attributes:
        trial_id: The trial.
        config: Its initial hyperparameters.
        folder: The name of its folder in the experiment's folder.
        status: ``"pending"``, ``"running"``, ``"terminated"`` or ``"error"``.
        generation: The number of times it was overwritten.
        iteration: The last training iteration that it has reported.
        stopped: Whether its scheduler ended it, or it was stopped by hand.
        by_hand: Whether it was stopped by hand.
        failures: The number of its failures.
        added: The time of its addition, in seconds since the epoch.
        ended: The time of its end, in seconds since the epoch; None if it has not ended.
        trained_s: The seconds that it trained.
        waited_s: The seconds that it waited for scores.
    """

    trial_id: str
    config: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ""
    status: str = "pending"
    generation: int = 0
    iteration: int = 0
    stopped: bool = False
    by_hand: bool = False
    failures: int = 0
    added: float = math.nan
    ended: float | None = None
    trained_s: float = 0.0
    waited_s: float = 0.0

    @property
    def shown_status(self) -> str:
        """Return its status for display, which shows who has stopped it."""
        if self.by_hand:
            return "stopped by hand"
        return "stopped" if self.stopped else self.status


class Timeline:
    """The history of a sweep, from its journal.

    Args:
        events: The journal's lines, in order.
        metric: The validated metric, by flat name, that the sweep ranks by, if there is only one.
        sessions: The first line of each session.
        constraints: The constraints on scores.
        later: The rows of later validations, as in :attr:`validations`, with their ``function``
            and the prefix of their metrics, ``name``. They are shown next to the sweep's own.

    Example:
        >>> timeline = Timeline([
        ...     Reported(time=1.0, trial_id="a", report={"training_iteration": 1}),
        ...     ValidationRequested(time=2.0, trial_id="a", id="a:0:1:1", iteration=1),
        ...     ValidationEnded(time=5.0, id="a:0:1:1", status="validated",
        ...                     metrics={"accuracy": 0.9}),
        ... ], "accuracy")
        >>> timeline.validations[0]["status"], timeline.validations[0]["lag_s"]
        ('validated', 4.0)
        >>> timeline.scores("a")[0].value("accuracy")
        0.9
    """

    def __init__(
        self,
        events: Iterable[Event],
        metric: str | None = None,
        sessions: Sequence[Mapping[str, Any]] = (),
        later: Sequence[Mapping[str, Any]] = (),
        constraints: Sequence[Constraint] = (),
    ):
        self._metric, self.constraints = metric, constraints
        self._history = History()
        #: The trials, in the order of addition.
        self.trials: dict[str, TrialSummary] = {}
        #: A row for each validation of the sweep, in the order of the requests.
        self.validations: list[dict[str, Any]] = []
        #: A row for each checkpoint and name of later validations.
        self.later = later
        #: The exploits.
        self.ancestry = Ancestry()
        #: A row for each decision of the scheduler, in order.
        self.decisions: list[dict[str, Any]] = []
        #: The time of the first line, and of the last; None if there is none.
        self.first: float | None = None
        self.last: float | None = None
        #: How the last session ended: ``"finished"`` or ``"interrupted"``; None if the driver is
        #: running or was killed.
        self.end: str | None = None
        # The time and the report of each place, by trial; the newest last.
        self._reports: dict[str, dict[tuple[int, int], tuple[float, Mapping[str, Any]]]] = {}
        # The newest iteration of each generation.
        self._reached: dict[tuple[str, int], int] = {}
        self._by_id: dict[str, dict[str, Any]] = {}
        self._paths: dict[Place, str] = {}
        # The trials that the scheduler has stopped but that have not ended yet.
        self._stopping: set[str] = set()
        # The place of the score behind the scheduler's last decision, by trial.
        self._heard: dict[str, tuple[int, int]] = {}
        self._values: dict[Place, float | None] = {}
        #: The number of trained iterations; a repeated one counts each time.
        self.iterations = 0
        # When trials trained and waited, by trial.
        self._spans: dict[str, list[Span]] = {}
        # By trial: the best and the newest score by a metric, cached.
        self._found: dict[str, dict[tuple[str, str | None], ScoredCheckpoint | None]] = {}
        restored = list(sessions[1:])
        for event in events:
            while restored and event.n > restored[0]["n"]:
                restored.pop(0)
                self._restored()
            self._take(event)
        for _ in restored:
            self._restored()
        for row in later:
            self._take_later(row)

    def extend(self, events: Iterable[Event]) -> None:
        """Apply the newest session's further events.

        Example:
            >>> reports = [
            ...     Reported(time=1.0 * n, trial_id="a", report={"training_iteration": n})
            ...     for n in (1, 2)
            ... ]
            >>> timeline = Timeline(reports[:1])
            >>> timeline.extend(reports[1:])
            >>> timeline.trials["a"].iteration, timeline.last
            (2, 2.0)
        """
        for event in events:
            self._take(event)

    # Reading -----------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Return the flat names of all metrics of validations, those of later ones last."""
        return [*self._history.names, *self._history.later_names]

    @property
    def own_names(self) -> list[str]:
        """Return the flat names of the metrics of the sweep's own validations."""
        return list(self._history.names)

    def run_of(self, trial_id: str, generation: int, iteration: int) -> int:
        """Return the number of runs of an iteration; 1 if it has not been reported."""
        return self._history.run_of(trial_id, iteration, generation)

    def rows(self, trial_id: str) -> Iterator[dict[str, Any]]:
        """Yield a trial's reports with their scores: one for each iteration of each generation."""
        known = self._reports.get(trial_id, {})
        for row in self._history.rows(trial_id, [report for _, report in known.values()]):
            yield {**row, "reported_at": known[place_in(row)][0]}

    def scores(self, trial_id: str) -> list[ScoredCheckpoint]:
        """Return a trial's validated checkpoints, by generation and iteration."""
        found = dict(self._history.scores(trial_id))
        for place, metrics in self._history.later_scores(trial_id):
            found[place] = merge(found.get(place, {}), metrics)
        return [
            ScoredCheckpoint(
                *at,
                found[at],
                self._paths[trial_id, at[0], at[1]],
                self._violation(trial_id, at, found[at]),
            )
            for at in sorted(found)
        ]

    def _violation(
        self, trial_id: str, place: tuple[int, int], metrics: Mapping[str, Any]
    ) -> float:
        """Return a score's violation of the constraints; some may be on training's metrics."""
        if not self.constraints:
            return 0.0
        _, report = self._reports.get(trial_id, {}).get(place, (0.0, {}))
        return violation(flatten(merge(report, metrics)), self.constraints)

    def reached(self, trial_id: str, time_attr: str) -> float | None:
        """Return a trial's newest value of the ``time_attr`` of its reports; None without any."""
        known = self._reports.get(trial_id)
        newest = list(known.values())[-1][1] if known else {}
        return _number(flatten(newest).get(time_attr))

    def score(self, trial_id: str, metric: str | None, mode: str | None) -> ScoredCheckpoint | None:
        """Return a trial's best checkpoint by a metric, the earliest if several are equally good.

        Args:
            trial_id: The trial.
            metric: The metric, by flat name.
            mode: ``"min"`` or ``"max"``; None: the newest checkpoint that has the metric.
        """
        if metric is None:
            return None
        found = self._found.setdefault(trial_id, {})
        if (metric, mode) not in found:
            standings = (
                (one.standing(metric, mode or "max"), one) for one in self.scores(trial_id)
            )
            known = [(own, one) for own, one in standings if own is not None]
            if mode:
                known.sort(key=lambda pair: pair[0])
            found[metric, mode] = known[0 if mode else -1][1] if known else None
        return found[metric, mode]

    def config_of(self, trial_id: str, generation: int | None = None) -> Mapping[str, Any]:
        """Return a trial's hyperparameters in one of its generations, by default the newest."""
        trial = self.trials[trial_id]
        generation = trial.generation if generation is None else generation
        return self.ancestry.configs.get((trial_id, generation), trial.config)

    def spans(self) -> list[Span]:
        """Return the spans of trials and validations, trial by trial.

        A validation counts as requested until its last attempt runs.
        """
        found = {trial_id: list(self._spans.get(trial_id, [])) for trial_id in self.trials}
        for row in self.validations:
            own = found.setdefault(row["trial_id"], [])
            place = (row["generation"], row["iteration"])
            end = row["ended"] or self.last or row["requested"]
            ran_from = row["ran_from"] or end
            own.append(Span(row["trial_id"], "requested", row["requested"], ran_from, *place))
            own.append(Span(row["trial_id"], "validating", ran_from, end, *place, row["status"]))
        spans = (span for own in found.values() for span in own)
        return [span for span in spans if span.end > span.begin or span.kind == "training"]

    # Applying events ---------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        now = event.time
        self.first = now if self.first is None else self.first
        self.last, self.end = now, None
        match event:
            case Reported():
                self._take_report(event)
            case ValidationRequested():
                self._take_request(event)
            case AttemptStarted():
                row = self._unended(event.id)
                row.update(status=PendingStatus.STARTING.value, attempts=event.attempt)
                row.update(started=now, ran_from=None)
            case AttemptBegan():
                row = self._unended(event.id)
                row.update(status=PendingStatus.RUNNING.value, ran_from=now)
            case ValidationEnded():
                self._take_outcome(event)
            case ScoreDelivered():
                self._heard[event.trial_id] = event.place
                self._decide(event, event.place, "own")
            case Reminded():
                self._decide(event, (event.generation, event.iteration), "again")
            case Decided():
                self._decide(event, self._heard.get(event.trial_id, (0, 0)), "other")
            case Waited():
                summary = self._trial(event)
                summary.waited_s += event.seconds
                place = (summary.generation, summary.iteration)
                span = Span(event.trial_id, "waiting", now - event.seconds, now, *place)
                self._spans.setdefault(event.trial_id, []).append(span)
            case TrialAdded():
                summary = self._trial(event)
                summary.config, summary.folder = event.config, event.folder
                summary.added = now
            case Exploited():
                self._trial(event).generation = event.generation
                self.ancestry.add(event)
            case TrialEnded():
                summary = self._trial(event)
                summary.status, summary.ended = "terminated", now
                summary.stopped = summary.by_hand or event.trial_id in self._stopping
            case TrialFailed():
                self._trial(event).failures += 1
            case TrialErrored():
                summary = self._trial(event)
                summary.status, summary.ended = "error", now
                summary.failures, summary.by_hand = max(summary.failures, 1), False
            case TrialRetried():
                summary = self._trial(event)
                summary.status, summary.ended, summary.stopped = "pending", None, False
                self._stopping.discard(event.trial_id)
            case Asked():
                self._trial(event).by_hand = True
            case SessionClosed():
                self.end = "finished" if event.finished else "interrupted"

    def _trial(self, event: OfTrial) -> TrialSummary:
        trial = self.trials.get(event.trial_id)
        if trial is None:
            trial = self.trials[event.trial_id] = TrialSummary(event.trial_id, added=event.time)
        return trial

    def _take_report(self, event: Reported) -> None:
        trial, report, now = self._trial(event), event.report, event.time
        trial_id, (generation, iteration) = event.trial_id, event.place
        trial.iteration, trial.status, trial.ended = iteration, "running", None
        trial.generation = generation
        self._history.reported(trial_id, iteration, generation)
        self._found.pop(trial_id, None)
        known = self._reports.setdefault(trial_id, {})
        known.pop((generation, iteration), None)
        known[generation, iteration] = (now, report)
        self._reached[trial_id, generation] = iteration
        # Tune counts what a function waited for as part of its next iteration.
        spans = self._spans.setdefault(trial_id, [])
        took = _number(report.get(TOOK)) or 0.0
        begin = min(now, max(now - took, spans[-1].end if spans else -math.inf))
        spans.append(Span(trial_id, "training", begin, now, generation, iteration))
        self.iterations += 1
        trial.trained_s += now - begin

    def _take_request(self, event: ValidationRequested) -> None:
        former = self._by_id.get(event.id)
        if former is not None and former["status"] not in _AGAIN:  # it was pending at a kill
            return
        names = ("id", "trial_id", "generation", "iteration", "run", "checkpoint")
        known = {name: getattr(event, name) for name in names}
        row: dict[str, Any] = {**VALIDATION, **known, "requested": event.time}
        if former is not None:  # it has failed, and runs again
            former.update(row)
            return
        self._by_id[event.id] = row
        self._paths[event.trial_id, event.generation, event.iteration] = event.checkpoint
        self.validations.append(row)

    def _unended(self, name: str) -> dict[str, Any]:
        """Return the row of a pending validation; a new dict if it is unknown or has ended."""
        row = self._by_id.get(name, {})
        return row if row.get("status") in PENDING else {}

    def _restored(self) -> None:
        """Start another session; the processes of the previous one no longer run."""
        self.end = None
        for row in self.validations:
            if row["status"] in PENDING:
                row.update(status=PendingStatus.WAITING.value, started=None, ran_from=None)

    def _take_outcome(self, event: ValidationEnded) -> None:
        row, now = self._unended(event.id), event.time
        if not row:
            return
        trial_id, generation, iteration = row["trial_id"], row["generation"], row["iteration"]
        reached = self._reached.get((trial_id, generation), iteration)
        if row["ran_from"] is None and row["started"] is not None and event.ran_s:
            # It ended before it was seen to run.
            row["ran_from"] = max(row["started"], now - event.ran_s)
        row.update(
            status=event.status,
            ended=now,
            lag_s=now - self._reported_at(trial_id, (generation, iteration), row["requested"]),
            lag_iterations=max(0, reached - iteration),
            **{name: getattr(event, name) for name in OF_OUTCOME},
        )
        outcome = event.outcome(Request(trial_id, iteration, row["run"], generation))
        self._found.pop(trial_id, None)
        if self._history.ended(outcome) and self._metric is not None:
            value = _number(flatten(event.metrics).get(self._metric))
            self._values[trial_id, generation, iteration] = value

    def _take_later(self, row: Mapping[str, Any]) -> None:
        """Show a score in its row, unless the trial has run that iteration again since."""
        key = ValidationKey.parse(row["id"])
        if row["status"] != "validated" or key.trial_id not in self.trials:
            return
        request = Request(key.trial_id, key.iteration, key.run, key.generation)
        if self._history.later(row["name"], Outcome(request, Status.VALIDATED, row["metrics"])):
            self._paths.setdefault((key.trial_id, *key.place), row["checkpoint"])

    def _reported_at(self, trial_id: str, place: tuple[int, int], unknown: float) -> float:
        found = self._reports.get(trial_id, {}).get(place)
        return unknown if found is None else found[0]

    def _decide(
        self, event: ScoreDelivered | Reminded | Decided, at: tuple[int, int], on: str
    ) -> None:
        now, trial_id, (generation, iteration) = event.time, event.trial_id, at
        reached = self._reached.get((trial_id, generation), iteration)
        if event.decision == "STOP" and self._trial(event).ended is None:
            self._stopping.add(trial_id)  # later, it no longer ends anything
        value = self._values.get((trial_id, *at))
        if value is None and at in self._reports.get(trial_id, {}):
            # The sweep may rank by a metric of training.
            _, report = self._reports[trial_id][at]
            value = _number(flatten(report).get(self._metric or ""))
        self.decisions.append(
            {
                "time": now,
                "trial_id": trial_id,
                "generation": generation,
                "iteration": iteration,
                "on": on,
                "decision": event.decision,
                "score": value,
                "reached": reached,
                "late_iterations": max(0, reached - iteration),
                "late_s": now - self._reported_at(trial_id, at, now),
            }
        )
