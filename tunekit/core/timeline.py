"""The history of a sweep as rows: what has led to its state."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tunekit.core.constraints import Constraint, violation
from tunekit.core.events import (
    AttemptBegan,
    AttemptEvent,
    CheckpointEvent,
    CheckpointSaved,
    Event,
    Exploited,
    Processed,
    Reported,
    SessionClosed,
    StopRequested,
    TrialAdded,
    TrialEnded,
    TrialErrored,
    TrialEvent,
    TrialFailed,
    TrialRetried,
    ValidationEnded,
    ValidationRequested,
    Waited,
)
from tunekit.core.metrics import (
    CHECKPOINT,
    GENERATION,
    REPORT_TIME,
    RUNS,
    flatten,
    merge,
    move_to_reported,
    without,
)
from tunekit.core.state import RecordedReport, SweepState
from tunekit.core.summaries import VALIDATION, ScoredCheckpoint, Span, TrialSummary
from tunekit.core.validation import FAILED, PENDING, PendingStatus, Status
from tunekit.core.values import finite_number

# What the end of a validation adds to its row.
_OF_ENDED = ("metrics", "reason", "error", "attempts", "waited_s", "ran_s")


#: The key, in a report, of the duration of its iteration, in seconds.
TOOK = "time_this_iter_s"


class Timeline:
    """The history of a sweep, from its journal.

    A report is a result once Tune has processed it, with its score if its checkpoint is validated.
    Until then it waits; what was trained past a decision never becomes one.

    Args:
        events: The journal's lines, in order.
        metric: The validated metric, by flat name, that the sweep ranks by, if there is only one.
        sessions: The first line of each session. In a followed folder, each report is a result.
        constraints: The constraints on scores.
        later: The rows of later validations, as in :attr:`validations`, with their ``function``
            and the prefix of their metrics, ``name``. They are shown next to the sweep's own.

    Example:
        >>> timeline = Timeline([
        ...     Reported(time=1.0, trial_id="a", report={"training_iteration": 1}),
        ...     CheckpointSaved(time=2.0, trial_id="a", id="a:0:1:1", iteration=1,
        ...                     checkpoint="a/c1", validates=True),
        ...     ValidationEnded(time=5.0, id="a:0:1:1", status="validated",
        ...                     metrics={"accuracy": 0.9}),
        ... ], "accuracy")
        >>> timeline.validations[0]["status"], timeline.validations[0]["lag_s"]
        ('validated', 4.0)
        >>> timeline.trials["a"].unprocessed, timeline.scores("a")
        (1, [])
        >>> timeline.extend([Processed(time=5.0, trial_id="a", id="a:0:1:1", iteration=1)])
        >>> timeline.trials["a"].unprocessed, timeline.scores("a")[0].value("accuracy")
        (0, 0.9)
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
        session = sessions[-1] if sessions else {}
        self._followed = "followed" in session
        # Until it is known which names are validation's, any that the sweep uses may be.
        self._required: Collection[str] = session.get("required", ())
        #: The trials, in the order in which they were added.
        self.trials: dict[str, TrialSummary] = {}
        #: A row for each validation of the sweep, in the order of the requests.
        self.validations: list[dict[str, Any]] = []
        #: A row for each checkpoint and name of later validations.
        self.later = later
        #: The state of the sweep.
        self.state = SweepState()
        #: A row for each decision of the scheduler, in order.
        self.decisions: list[dict[str, Any]] = []
        #: The time of the first line, and of the last; None if there is none.
        self.first: float | None = None
        self.last: float | None = None
        #: How the last session ended: ``"finished"`` or ``"interrupted"``; None if the driver is
        #: running or was killed.
        self.end: str | None = None
        # The reports that Tune has processed, by trial and place.
        self._results: dict[str, dict[tuple[int, int], RecordedReport]] = {}
        # The newest reported iteration, by trial and generation.
        self._reached: dict[tuple[str, int], int] = {}
        self._by_id: dict[str, dict[str, Any]] = {}
        # The metrics of later validations, below their names, by the sweep's validation.
        self._later: dict[str, Mapping[str, Any]] = {}
        self._later_names: dict[str, None] = {}
        # The trials that the scheduler has stopped but that have not ended yet.
        self._stopping: set[str] = set()
        #: The number of trained iterations; a repeated one counts each time.
        self.iterations = 0
        # When trials trained and waited, by trial.
        self._spans: dict[str, list[Span]] = {}
        # The scores of each trial, cached.
        self._scored: dict[str, list[ScoredCheckpoint]] = {}
        restored = list(sessions[1:])
        for event in events:
            while restored and event.n > restored[0]["n"]:
                restored.pop(0)
                self._restored()
            self._apply(event)
        for _ in restored:
            self._restored()
        for row in later:
            self._add_later(row)

    def extend(self, events: Iterable[Event]) -> None:
        """Apply the newest session's further events.

        Example:
            >>> reports = [
            ...     Reported(time=1.0 * n, trial_id="a", report={"training_iteration": n})
            ...     for n in (1, 2)
            ... ]
            >>> timeline = Timeline(reports[:1])
            >>> timeline.extend(reports[1:])
            >>> timeline.trials["a"].unprocessed, timeline.last
            (2, 2.0)
        """
        for event in events:
            self._apply(event)

    # Reading -----------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Return the flat names of all metrics of validations, those of later ones last."""
        return [*self.state.history.names, *self._later_names]

    def rows(self, trial_id: str) -> Iterator[dict[str, Any]]:
        """Yield a trial's results, one for each iteration of each generation, in that order.

        Each is the report of the newest run, with the metrics of the checkpoint saved there.
        """
        for place, one in self._ordered(trial_id):
            names = self.state.history.names or self._required
            row = move_to_reported(one.reported.report, names)
            row = merge(row, self._metrics(one))
            if self._later_names:
                later = self._later.get(str(one.key), {})
                row = merge(
                    move_to_reported(without(row, flatten(later)), self._later_names), later
                )
            row |= {GENERATION: place[0], RUNS: one.key.run}
            if one.saved is not None:
                row[CHECKPOINT] = one.saved.checkpoint.rstrip("/").rpartition("/")[2]
            yield {**row, REPORT_TIME: one.reported.time}

    def _ordered(self, trial_id: str) -> list[tuple[tuple[int, int], RecordedReport]]:
        return sorted(self._results.get(trial_id, {}).items(), key=lambda one: one[0])

    def _metrics(self, one: RecordedReport) -> Mapping[str, Any]:
        """Return the validated metrics of a report; empty without a score."""
        metrics: Mapping[str, Any] = self._by_id.get(str(one.key), VALIDATION)["metrics"]
        return metrics

    def scores(self, trial_id: str) -> Sequence[ScoredCheckpoint]:
        """Return a trial's validated checkpoints, by generation and iteration."""
        if trial_id not in self._scored:
            self._scored[trial_id] = list(self._find_scores(trial_id))
        return self._scored[trial_id]

    def _find_scores(self, trial_id: str) -> Iterator[ScoredCheckpoint]:
        for place, one in self._ordered(trial_id):
            metrics = self._metrics(one)
            if later := self._later.get(str(one.key)):
                metrics = merge(metrics, later)
            if metrics and one.saved is not None:
                excess = 0.0
                if self.constraints:  # some may be on training's metrics
                    values = flatten(merge(one.reported.report, metrics))
                    excess = violation(values, self.constraints)
                path, run = one.saved.checkpoint, one.key.run
                yield ScoredCheckpoint(*place, metrics, path, excess, run)

    def ranked(
        self, trial_id: str, metric: str | None, mode: str | None
    ) -> Sequence[ScoredCheckpoint]:
        """Return a trial's checkpoints with a score of a metric, best first.

        Args:
            trial_id: The trial.
            metric: The metric, by flat name.
            mode: ``"min"`` or ``"max"``, where the earliest of equally good ones comes first; None:
                the newest first.
        """
        if metric is None:
            return ()
        known = [one for one in self.scores(trial_id) if one.value(metric) is not None]
        return sorted(known, key=lambda one: one.sort_key(metric, mode)) if mode else known[::-1]

    def score(self, trial_id: str, metric: str | None, mode: str | None) -> ScoredCheckpoint | None:
        """Return the first of a trial's :meth:`ranked` checkpoints."""
        return next(iter(self.ranked(trial_id, metric, mode)), None)

    def config_of(self, trial_id: str, generation: int | None = None) -> Mapping[str, Any]:
        """Return a trial's hyperparameters in one of its generations, by default the newest."""
        trial = self.trials[trial_id]
        generation = trial.generation if generation is None else generation
        return self.state.ancestry.configs.get((trial_id, generation), trial.config)

    def spans(self) -> list[Span]:
        """Return the spans of trials and validations, trial by trial.

        A validation counts as requested until its last attempt is running.
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

    def _apply(self, event: Event) -> None:
        now = event.time
        self.first = now if self.first is None else self.first
        self.last, self.end = now, None
        match event:
            case Reported():
                self._add_report(event)
            case ValidationRequested() | CheckpointSaved(validates=True):
                self._add_request(event)
            case AttemptEvent():
                self._add_attempt(event)
            case ValidationEnded():
                self._add_outcome(event)
            case Processed():
                self._add_result(event)
            case Waited():
                summary = self._trial(event)
                summary.waited_s += event.seconds
                at = (summary.generation, summary.iteration)
                span = Span(event.trial_id, "waiting", now - event.seconds, now, *at)
                self._spans.setdefault(event.trial_id, []).append(span)
            case TrialAdded():
                summary = self._trial(event)
                summary.config, summary.folder = event.config, event.folder
                summary.added = now
            case Exploited():
                self._trial(event).generation = event.generation
            case TrialEnded():
                summary = self._trial(event)
                summary.status, summary.ended = "terminated", now
                summary.stopped = (
                    event.removed or summary.by_hand or event.trial_id in self._stopping
                )
            case TrialFailed():
                summary = self._trial(event)
                summary.failures += 1
                summary.failed_at = summary.generation, summary.iteration
            case TrialErrored():
                summary = self._trial(event)
                summary.failed_at = summary.generation, summary.iteration
                summary.status, summary.ended = "error", now
                summary.failures, summary.by_hand = max(summary.failures, 1), False
            case TrialRetried():
                summary = self._trial(event)
                summary.status, summary.ended, summary.stopped = "pending", None, False
                self._stopping.discard(event.trial_id)
            case StopRequested():
                self._trial(event).by_hand = True
            case SessionClosed():
                self.end = "finished" if event.finished else "interrupted"
        self.state.apply(event)
        if isinstance(event, TrialEvent):
            self._count_unprocessed(event.trial_id)
        if self._followed and isinstance(event, CheckpointSaved):  # nothing decides on it
            trial_id, (generation, iteration) = event.trial_id, event.place
            self._apply(
                Processed(time=now, trial_id=trial_id, generation=generation, iteration=iteration)
            )

    def _trial(self, event: TrialEvent) -> TrialSummary:
        trial = self.trials.get(event.trial_id)
        if trial is None:
            trial = self.trials[event.trial_id] = TrialSummary(event.trial_id, added=event.time)
        return trial

    def _count_unprocessed(self, trial_id: str) -> None:
        if (trial := self.trials.get(trial_id)) is not None:
            trial.unprocessed = 0 if trial.ended is not None else self.state.open.count(trial_id)

    def _add_report(self, event: Reported) -> None:
        trial, now = self._trial(event), event.time
        generation, iteration = event.place
        trial.status, trial.ended = "running", None
        self._reached[trial.trial_id, generation] = iteration
        # Tune counts what a function waited for as part of its next iteration.
        spans = self._spans.setdefault(trial.trial_id, [])
        took = finite_number(event.report.get(TOOK)) or 0.0
        begin = min(now, max(now - took, spans[-1].end if spans else -math.inf))
        spans.append(Span(trial.trial_id, "training", begin, now, generation, iteration))
        self.iterations += 1
        trial.trained_s += now - begin

    def _add_result(self, event: Processed) -> None:
        trial, trial_id, (generation, iteration) = self._trial(event), event.trial_id, event.place
        one = self.state.open.at(event)
        if one is not None:
            trial.generation, trial.iteration = event.place
            self._results.setdefault(trial_id, {})[event.place] = one
            self._scored.pop(trial_id, None)
        if event.decision == "STOP" and not event.finished and trial.ended is None:
            self._stopping.add(trial_id)
        if one is None or not event.ranked:
            return
        values = flatten(merge(one.reported.report, self._metrics(one)))
        self.decisions.append(
            {
                "time": event.time,
                "trial_id": trial_id,
                "generation": generation,
                "iteration": iteration,
                "decision": event.decision,
                "score": finite_number(values.get(self._metric or "")),
                "reached": self._reached.get((trial_id, generation), iteration),
            }
        )

    def _add_request(self, event: CheckpointEvent) -> None:
        row = self._by_id.get(event.id)
        if row is None:
            row = self._by_id[event.id] = {}
            self.validations.append(row)
        elif row["status"] not in FAILED:  # it was pending at a kill
            return
        names = ("id", "trial_id", "generation", "iteration", "run", "checkpoint")
        known = {name: getattr(event, name) for name in names}
        row.update({**VALIDATION, **known, "requested": event.time})

    def _add_attempt(self, event: AttemptEvent) -> None:
        runs, row = isinstance(event, AttemptBegan), self._unended(event.id)
        row["status"] = (PendingStatus.RUNNING if runs else PendingStatus.STARTING).value
        row.update(attempts=event.attempt, started=event.time - event.after_s)
        row["ran_from"] = event.time if runs else None

    def _unended(self, name: str) -> dict[str, Any]:
        """Return the row of a pending validation; a new dict if it is unknown or has ended."""
        row = self._by_id.get(name, {})
        return row if row.get("status") in PENDING else {}

    def _restored(self) -> None:
        """Start another session; the processes of the previous one no longer run."""
        self.end = None
        self.state.open.restored()
        for trial_id, trial in self.trials.items():
            self._count_unprocessed(trial_id)
            if trial.status == "running" and not self._followed:
                trial.status = "pending"  # until it reports again
        for row in self.validations:
            if row["status"] in PENDING:
                row.update(status=PendingStatus.QUEUED.value, started=None, ran_from=None)

    def _add_outcome(self, event: ValidationEnded) -> None:
        row, now, key = self._unended(event.id), event.time, event.key
        if not row:
            return
        one = self.state.open.at(key) or self._results.get(key.trial_id, {}).get(key.place)
        reached = self._reached.get((key.trial_id, key.generation), key.iteration)
        row.update(
            status=event.status,
            ended=now,
            lag_s=now - (row["requested"] if one is None else one.reported.time),
            lag_iterations=max(0, reached - key.iteration),
            **{name: getattr(event, name) for name in _OF_ENDED},
        )
        self._scored.pop(key.trial_id, None)

    def _add_later(self, row: Mapping[str, Any]) -> None:
        """Add the metrics of a later validation, below its name."""
        if row["id"].rsplit(":", 3)[0] in self.trials and row["status"] == Status.VALIDATED.value:
            # Metrics that the sweep decides by keep their names.
            metrics = without({row["name"]: row["metrics"]}, self.state.history.names)
            self._later[row["id"]] = merge(self._later.get(row["id"], {}), metrics)
            self._later_names.update(dict.fromkeys(flatten(metrics)))
