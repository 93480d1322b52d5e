"""A sweep's journal, told again as rows: what became of trials, validations and decisions."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunekit.core.events import (
    AttemptBegan,
    AttemptStarted,
    BudgetExpired,
    CheckpointSaved,
    Decided,
    EndDelivered,
    Event,
    Exploited,
    OfTrial,
    Reminded,
    Reported,
    Resumed,
    ScoreDelivered,
    SessionClosed,
    SnapshotTaken,
    TrialAdded,
    TrialEnded,
    TrialErrored,
    TrialFailed,
    TrialRetried,
    ValidationEnded,
    ValidationEstimated,
    ValidationKey,
    ValidationRequested,
    Waited,
    never,
)
from tunekit.core.history import GENERATION, ITERATION, History
from tunekit.core.metrics import flatten, hide, merge, without
from tunekit.core.validation import Request
from tunekit.core.values import number as _number

__all__ = [
    "UNENDED",
    "VALIDATION",
    "LaterScore",
    "Scored",
    "Span",
    "Timeline",
    "TrialSummary",
    "better",
]

#: The statuses of validations that have not ended.
UNENDED = ("waiting", "starting", "running")

#: What is known of a validation before its checkpoint is.
VALIDATION: Mapping[str, Any] = {
    **dict.fromkeys(("id", "trial_id", "generation", "iteration", "run", "stage")),
    "status": "waiting",
    **dict.fromkeys(("requested", "started", "ran_from", "ended")),
    "attempts": 0,
    "cached": False,
    **dict.fromkeys(("waited_s", "ran_s", "lag_s", "lag_iterations", "reason", "error")),
    "checkpoint": None,
    "metrics": {},
}

#: The key, in a report, of how long its iteration took, in seconds.
TOOK = "time_this_iter_s"

Place = tuple[str, int, int]  # trial, generation, iteration


def better(mode: str, one: float, other: float) -> bool:
    """Return whether one score is better than another.

    Example:
        >>> better("max", 0.9, 0.8), better("min", 0.9, 0.8), better("max", 0.9, 0.9)
        (True, False, False)
    """
    return one > other if mode == "max" else one < other


@dataclass(frozen=True)
class Scored:
    """A validated checkpoint.

    Attributes:
        generation: The generation of its trial.
        iteration: The training iteration at which it was saved.
        metrics: Its validated metrics, nested as they were returned.
        checkpoint: Where it lies, or lay, as recorded.
    """

    generation: int
    iteration: int
    metrics: Mapping[str, Any]
    checkpoint: str

    def value(self, metric: str) -> float | None:
        """Its validated value of a metric, by flat name; None if it has no such number."""
        return _number(flatten(self.metrics).get(metric))


@dataclass(frozen=True)
class LaterScore:
    """What a later validation, outside of the sweep, has found of a checkpoint.

    Attributes:
        key: The checkpoint, as its own validation is named.
        metrics: The metrics, below the name of the later validation.
        checkpoint: Where the checkpoint lies, or lay, as recorded.
    """

    key: ValidationKey
    metrics: Mapping[str, Any]
    checkpoint: str


@dataclass(frozen=True)
class Span:
    """Something that took time.

    Attributes:
        trial_id: The trial.
        kind: ``"training"``, ``"waiting"`` (the trial, for a score), ``"queued"`` (a validation) or
            ``"validating"``.
        begin: In seconds since the epoch.
        end: Likewise.
        generation: Of the trial.
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
    """What became of a trial.

    Attributes:
        trial_id: The trial.
        config: The hyperparameters that it began with.
        folder: The name of its folder in the experiment's.
        resources: What it takes of the cluster.
        status: ``"pending"``, ``"running"``, ``"terminated"`` or ``"error"``.
        generation: How often it was overwritten.
        iteration: The training iteration that it has reported last.
        stopped: Whether the scheduler ended it.
        failures: How often it has failed.
        added: When it was added, in seconds since the epoch.
        ended: When it ended, likewise; None if it has not.
        trained_s: How long it trained.
        waited_s: How long it waited for scores.
    """

    trial_id: str
    config: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ""
    resources: Mapping[str, float] = field(default_factory=dict)
    status: str = "pending"
    generation: int = 0
    iteration: int = 0
    stopped: bool = False
    failures: int = 0
    added: float = math.nan
    ended: float | None = None
    trained_s: float = 0.0
    waited_s: float = 0.0


class Timeline:
    """What became of a sweep, told from its journal.

    Args:
        events: The journal's lines, in order.
        metric: The validated metric, by flat name, by which the sweep is judged, if one is.
        sessions: The first line of each session.
        later: What later validations have found. It is shown beside the sweep's own scores, in the
            row of its checkpoint, and under names that the sweep's own validations do not produce.

    Example:
        >>> chronicle = Timeline([
        ...     Reported(time=1.0, trial_id="a", report={"training_iteration": 1}),
        ...     ValidationRequested(time=2.0, trial_id="a", id="a:0:1:1", iteration=1),
        ...     ValidationEnded(time=5.0, id="a:0:1:1", status="validated",
        ...                     metrics={"accuracy": 0.9}),
        ... ], "accuracy")
        >>> chronicle.validations[0]["status"], chronicle.validations[0]["lag_s"]
        ('validated', 4.0)
        >>> chronicle.scores("a")[0].value("accuracy")
        0.9
    """

    def __init__(
        self,
        events: Iterable[Event],
        metric: str | None = None,
        sessions: Sequence[Mapping[str, Any]] = (),
        later: Iterable[LaterScore] = (),
    ):
        self._metric = metric
        self._history = History()
        #: The trials, in the order in which they were added.
        self.trials: dict[str, TrialSummary] = {}
        #: A row for each validation of the first stage, in the order of the requests.
        self.validations: list[dict[str, Any]] = []
        #: A row for each validation of every stage, likewise.
        self.of_all_stages: list[dict[str, Any]] = []
        #: A row for each decision of the scheduler, in order.
        self.decisions: list[dict[str, Any]] = []
        #: Where trials were paused by the scheduler, and resumed: (trial, generation, iteration).
        self.resumed: set[Place] = set()
        #: The time of the last line; None if there is none.
        self.last: float | None = None
        #: The time of the first.
        self.first: float | None = None
        #: From when until when nobody drove the sweep: between one session and the next.
        self.breaks: list[tuple[float, float]] = []
        #: What the last session's end was: ``"finished"``, ``"interrupted"``, or None if it has
        #: not been written down: the driver runs, or was killed.
        self.end: str | None = None
        self._reports: dict[str, list[Mapping[str, Any]]] = {}
        self._reported: dict[tuple[str, int, int], float] = {}
        self._reached: dict[tuple[str, int], int] = {}
        self._by_id: dict[str, dict[str, Any]] = {}
        self._paths: dict[tuple[str, int, int], str] = {}
        self._heard: dict[str, tuple[int, int]] = {}
        self._values: dict[Place, float | None] = {}
        # What has ended, by trial; since when each validation that has not is queued, or runs.
        self._spans: dict[str, list[Span]] = {}
        self._since: dict[str, float] = {}
        # When each iteration ended, in order of the reports.
        self._trained: list[float] = []
        # By trial: the best and the newest score by a metric, as far as that was asked for.
        self._found: dict[str, dict[tuple[str, str | None], Scored | None]] = {}
        # By trial, and by (generation, iteration) within one.
        self._later: dict[str, dict[tuple[int, int], LaterScore]] = {}
        self._later_names: dict[str, None] = {}
        self.extend(events, sessions[1:], later)

    def extend(
        self,
        events: Iterable[Event],
        sessions: Sequence[Mapping[str, Any]] = (),
        later: Iterable[LaterScore] = (),
    ) -> None:
        """Go on with what the journal has gained, as if it had been there from the beginning.

        Args:
            events: The new lines, in order.
            sessions: The first line of each session that has begun since.
            later: All that later validations have found, also before.

        Example:
            >>> timeline = Timeline([Reported(time=1.0, trial_id="a",
            ...                               report={"training_iteration": 1})])
            >>> timeline.iterations_by(9.0)
            1
            >>> timeline.extend([Reported(time=2.0, trial_id="a",
            ...                           report={"training_iteration": 2})])
            >>> timeline.trials["a"].iteration, timeline.last, timeline.iterations_by(9.0)
            (2, 2.0, 2)
        """
        restored = list(sessions)
        for event in events:
            while restored and event.n > restored[0]["n"]:
                self._restored(restored.pop(0))
            self._take(event)
        for session in restored:
            self._restored(session)
        # What the sweep's own validations have come to decides which of these are shown.
        if self._later:
            self._later, self._later_names, self._found = {}, {}, {}
        for score in later:
            self._take_later(score)

    def _take_later(self, score: LaterScore) -> None:
        """Show a score in its row, unless the trial has run that iteration again since."""
        trial_id, generation, iteration, run, _ = score.key
        if trial_id not in self.trials or run < self.run_of(trial_id, generation, iteration):
            return
        # What the sweep was decided by stays, whatever came under the same name later.
        self._found.pop(trial_id, None)
        metrics = without(score.metrics, self.own_names)
        own = self._later.setdefault(trial_id, {})
        known = own.get(score.key.place)
        if known is not None:
            metrics = merge(known.metrics, metrics)
        own[score.key.place] = LaterScore(score.key, metrics, score.checkpoint)
        self._later_names.update(dict.fromkeys(flatten(metrics)))

    # What there was ----------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The flat names of all metrics that validations have produced, later ones last."""
        return [*self.own_names, *self._later_names]

    @property
    def own_names(self) -> list[str]:
        """The flat names of the metrics that the sweep's own validations have produced.

        Those of further stages come last.
        """
        return [*self._history.names, *self._history.staged_names]

    def run_of(self, trial_id: str, generation: int, iteration: int) -> int:
        """Return how many times a trial has run an iteration; 1 if it has not been reported."""
        return self._history.run_of(trial_id, iteration, generation)

    @property
    def iterations(self) -> int:
        """Return how many iterations were trained; one that was run again counts again."""
        return len(self._trained)

    def iterations_by(self, time: float) -> int:
        """Return how many iterations had been trained by a time, in seconds since the epoch."""
        return bisect.bisect_right(sorted(self._trained), time)

    @property
    def iterations_after_stop(self) -> int:
        """Return how many iterations trials were trained past the one for which they were
        stopped."""
        stops = (row for row in self.decisions if row["decision"] == "STOP" and row["iteration"])
        return sum(row["late_iterations"] for row in stops)

    def rows(self, trial_id: str) -> Iterator[dict[str, Any]]:
        """A trial's reports with their scores: one for each iteration of each generation."""
        later = self._later.get(trial_id, {})
        for row in self._history.rows(trial_id, self._reports.get(trial_id, [])):
            place = _place(trial_id, row)
            if self._later_names:
                row = hide(row, self._later_names)
            if place[1:] in later:
                row = merge(row, later[place[1:]].metrics)
            yield {**row, "reported_at": self._reported[place]}

    def scores(self, trial_id: str) -> list[Scored]:
        """A trial's validated checkpoints, by generation and iteration."""
        found = {
            place: Scored(*place, metrics, self._paths[(trial_id, *place)])
            for place, metrics in self._history.scores(trial_id)
        }
        further = [
            (place, metrics, self._paths[(trial_id, *place)])
            for place, metrics in self._history.staged_scores(trial_id)
        ]
        for place, score in self._later.get(trial_id, {}).items():
            further.append((place, score.metrics, score.checkpoint))
        for place, metrics, path in further:
            own = found.get(place)
            metrics = metrics if own is None else merge(own.metrics, metrics)
            found[place] = Scored(*place, metrics, path)
        return [found[place] for place in sorted(found)]

    def reached(self, trial_id: str, time_attr: str) -> float | None:
        """Return a trial's newest value of what its reports count time by; None without any."""
        for report in reversed(self._reports.get(trial_id, [])):
            return _number(flatten(report).get(time_attr))
        return None

    def last_score(self, trial_id: str, metric: str) -> Scored | None:
        """The newest of a trial's checkpoints whose validation had the metric."""
        return self._pick(trial_id, metric, None)

    def best_score(self, trial_id: str, metric: str, mode: str) -> Scored | None:
        """The best of a trial's checkpoints; the first of those that are equally good."""
        return self._pick(trial_id, metric, mode)

    def _pick(self, trial_id: str, metric: str, mode: str | None) -> Scored | None:
        """Return the best score of a trial; the newest one if nothing says which is better."""
        found = self._found.setdefault(trial_id, {})
        if (metric, mode) not in found:
            picked: Scored | None = None
            value: float | None = None
            for scored in self.scores(trial_id):
                own = scored.value(metric)
                if own is not None and (value is None or not mode or better(mode, own, value)):
                    picked, value = scored, own
            found[metric, mode] = picked
        return found[metric, mode]

    def spans(self) -> list[Span]:
        """Return what trials and validations did when, trial by trial."""
        pending: dict[str, list[Span]] = {}
        for row in self.of_all_stages:
            if row["id"] in self._since:
                kind = "validating" if row["status"] == "running" else "queued"
                span = self._span_of(row, kind, self.last or 0.0)
                pending.setdefault(row["trial_id"], []).append(span)
        found = []
        for trial_id in self.trials:
            found += self._spans.get(trial_id, []) + pending.get(trial_id, [])
        return [span for span in found if span.end > span.begin or span.kind == "training"]

    def _span_of(self, row: Mapping[str, Any], kind: str, end: float, note: str = "") -> Span:
        place = (row["generation"], row["iteration"])
        note = note or (row["status"] if kind == "validating" else "")
        return Span(row["trial_id"], kind, self._since[row["id"]], end, *place, note)

    def _goes_on(self, row: Mapping[str, Any], kind: str, now: float, note: str = "") -> None:
        """Take that a validation was queued, or ran, up to now."""
        span = self._span_of(row, kind, now, note)
        self._spans.setdefault(row["trial_id"], []).append(span)
        self._since[row["id"]] = now

    # How it is told ----------------------------------------------------------------------------

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
                self._take_start(event)
            case AttemptBegan():
                self._take_beginning(event)
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
                self._take_wait(event)
            case TrialAdded():
                summary = self._trial(event)
                summary.config, summary.folder = event.config, event.folder
                summary.resources, summary.added = event.resources, now
            case Exploited():
                self._trial(event).generation = event.generation
            case TrialEnded():
                summary = self._trial(event)
                summary.status, summary.ended = "terminated", now
            case TrialFailed():
                self._trial(event).failures += 1
            case TrialErrored():
                summary = self._trial(event)
                summary.status, summary.ended = "error", now
                summary.failures = max(summary.failures, 1)
            case TrialRetried():
                summary = self._trial(event)
                summary.status, summary.ended, summary.stopped = "pending", None, False
            case SessionClosed():
                self.end = "finished" if event.finished else "interrupted"
            case Resumed():
                self.resumed.add((event.trial_id, *self._heard.get(event.trial_id, (0, 0))))
            case CheckpointSaved() | EndDelivered() | BudgetExpired() | ValidationEstimated():
                pass
            case SnapshotTaken():
                pass
            case _:
                never(event)

    def _trial(self, event: OfTrial) -> TrialSummary:
        story = self.trials.get(event.trial_id)
        if story is None:
            story = self.trials[event.trial_id] = TrialSummary(event.trial_id, added=event.time)
        return story

    def _take_report(self, event: Reported) -> None:
        story, report, now = self._trial(event), event.report, event.time
        place = trial_id, generation, iteration = _place(story.trial_id, report)
        story.iteration, story.status, story.ended = iteration, "running", None
        story.generation = generation
        self._history.reported(trial_id, iteration, generation)
        self._found.pop(trial_id, None)
        self._reports.setdefault(trial_id, []).append(report)
        self._reported[place] = now
        self._reached[trial_id, generation] = iteration
        self._train(story, place, now, report.get(TOOK))

    def _train(self, story: TrialSummary, place: Place, now: float, took: Any) -> None:
        """An iteration has ended; Tune counts what a function waited for as part of it."""
        spans = self._spans.setdefault(story.trial_id, [])
        own = (span.end for span in reversed(spans) if span.kind in ("training", "waiting"))
        begin = min(now, max(now - (_number(took) or 0.0), next(own, -math.inf)))
        spans.append(Span(place[0], "training", begin, now, place[1], place[2]))
        self._trained.append(now)
        story.trained_s += now - begin

    def _take_wait(self, event: Waited) -> None:
        story = self._trial(event)
        story.waited_s += event.seconds
        place = (story.generation, story.iteration)
        span = Span(story.trial_id, "waiting", event.time - event.seconds, event.time, *place)
        self._spans.setdefault(story.trial_id, []).append(span)

    def _take_request(self, event: ValidationRequested) -> None:
        if event.id in self._by_id:  # it was pending when the driver was killed
            return
        row: dict[str, Any] = {
            **VALIDATION,
            "id": event.id,
            "trial_id": event.trial_id,
            "generation": event.generation,
            "iteration": event.iteration,
            "run": event.run,
            "stage": event.stage,
            "requested": event.time,
            "checkpoint": event.checkpoint,
        }
        self._by_id[event.id], self._since[event.id] = row, event.time
        self._paths[event.trial_id, event.generation, event.iteration] = event.checkpoint
        self.of_all_stages.append(row)
        if not event.stage:
            self.validations.append(row)

    def _restored(self, session: Mapping[str, Any]) -> None:
        """Another session goes on: what ran in the one before runs no more."""
        self.end = None
        begins = _number(session.get("time"))
        if self.last is not None and begins is not None and begins > self.last:
            self.breaks.append((self.last, begins))
        for row in self.of_all_stages:
            if row["status"] in UNENDED:
                self._fails(row, self.last or row["requested"])
                row["status"], row["started"], row["ran_from"] = "waiting", None, None

    def _take_start(self, event: AttemptStarted) -> None:
        row = self._by_id.get(event.id)
        if row is not None and row["status"] in UNENDED:
            self._fails(row, event.time)
            row["started"], row["ran_from"] = event.time, None
            row["status"], row["attempts"] = "starting", event.attempt

    def _take_beginning(self, event: AttemptBegan) -> None:
        row = self._by_id.get(event.id)
        if row is not None and row["status"] in UNENDED:
            self._goes_on(row, "queued", event.time)
            row["status"], row["ran_from"] = "running", event.time

    def _fails(self, row: Mapping[str, Any], now: float) -> None:
        """The attempt that ran, if one did, runs no more."""
        if row["status"] == "running":
            self._goes_on(row, "validating", now, "failed")

    def _take_outcome(self, event: ValidationEnded) -> None:
        row, now = self._by_id.get(event.id), event.time
        if row is None or row["status"] not in UNENDED:
            return
        trial_id, generation, iteration = row["trial_id"], row["generation"], row["iteration"]
        place = (trial_id, generation, iteration)
        reached = self._reached.get((trial_id, generation), iteration)
        if row["ran_from"] is None and row["started"] is not None and event.ran_s:
            # It has ended before anybody saw it run.
            begin = row["ran_from"] = max(row["started"], now - event.ran_s)
            self._goes_on(row, "queued", begin)
        self._goes_on(row, "queued" if row["ran_from"] is None else "validating", now, event.status)
        del self._since[event.id]
        row.update(
            status=event.status,
            ended=now,
            lag_s=now - self._reported.get(place, row["requested"]),
            lag_iterations=max(0, reached - iteration),
            metrics=event.metrics,
            attempts=event.attempts,
            cached=event.cached,
            waited_s=event.waited_s,
            ran_s=event.ran_s,
            reason=event.reason,
            error=event.error,
        )
        outcome = event.outcome(
            Request(trial_id, iteration, row["run"], generation, stage=row["stage"])
        )
        self._found.pop(trial_id, None)
        if row["stage"]:
            self._history.staged(outcome)
        elif self._history.ended(outcome) and self._metric is not None:
            self._values[place] = _number(flatten(event.metrics).get(self._metric))

    # What was decided --------------------------------------------------------------------------

    def _decide(
        self, event: ScoreDelivered | Reminded | Decided, at: tuple[int, int], on: str
    ) -> None:
        now, trial_id, (generation, iteration) = event.time, event.trial_id, at
        place = (trial_id, generation, iteration)
        reached = self._reached.get((trial_id, generation), iteration)
        story = self._trial(event)
        if event.decision == "STOP" and story.ended is None:
            story.stopped = True  # later, it ends nothing any more
        value = self._values.get(place)
        if value is None and self._metric is not None:
            value = self._report_value(place)
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
                "late_s": now - self._reported.get(place, now),
            }
        )

    def _report_value(self, place: Place) -> float | None:
        """The metric in the report itself: the sweep is judged by what training reports."""
        trial_id, generation, iteration = place
        for report in reversed(self._reports.get(trial_id, [])):
            if _place(trial_id, report) == (trial_id, generation, iteration):
                return _number(flatten(report).get(self._metric or ""))
        return None


def _place(trial_id: str, report: Mapping[str, Any]) -> Place:
    return (trial_id, report.get(GENERATION, 0), report[ITERATION])
