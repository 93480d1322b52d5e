"""What follows from each fact about a sweep's reports: facts in, commands out.

It knows no Ray, no file and no clock, and calls nobody. Each method handles a fact, and returns
what is to be done, in order: what is recorded precedes what follows from it, so that a kill in
between loses nothing. Whoever carries a command out handles the facts that arise from it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from tunekit.core.commands import (
    Advance,
    Cancel,
    Command,
    Delete,
    Inspect,
    Notify,
    NotifyUnranked,
    Record,
    Save,
    Validate,
)
from tunekit.core.events import (
    CheckpointSaved,
    Processed,
    Reported,
    ValidationEnded,
    ValidationRequested,
)
from tunekit.core.failures import Failures, format_checkpoint
from tunekit.core.metrics import (
    CHECKPOINT,
    GENERATION,
    ITERATION,
    RUNS,
    flatten,
    merge,
    move_to_reported,
)
from tunekit.core.queue import Queue
from tunekit.core.report import Report, Stage, Wants
from tunekit.core.state import SweepState
from tunekit.core.validation import FAILED, LAST_ALSO, Request, ValidationKey, is_selected

# The maximum number of a trial's reports that wait for a sweep's first score if none is on its way.
_MOST_HELD = 100


@dataclass(frozen=True)
class Rules:
    """The settings of a sweep that decide about its reports.

    Attributes:
        when: As for :class:`tunekit.ValidationConfig`.
        on_failure: The same.
        kwargs: The keyword arguments of each validation.
        timeout_s: The time limit of each validation, in seconds; None: none.
    """

    when: str | int = "auto"
    on_failure: str = "record"
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None


@dataclass(frozen=True)
class About:
    """What is known about a report when it arrives.

    Attributes:
        point: The decision point that its score would fill; None if none.
        last: Whether the trial ends with it.
        saves: Whether the trial is saved at it.
        requests: Whether the report asks for a validation; None: it says nothing.
        kwargs: The keyword arguments that it gives the validation.
        timeout_s: As for :class:`~tunekit.core.report.Report`.
        wants_all: Whether ``when`` selects every checkpoint of the trial.
        may_be_last: Whether only the next call tells that it was the last, and the trial is then
            saved.
        config: The trial's hyperparameters.
    """

    point: float | None = None
    last: bool = False
    saves: bool = False
    requests: bool | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None
    wants_all: bool = False
    may_be_last: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)


class Sweep:
    """Decide which reports are validated, and what Tune gets once they are.

    Args:
        rules: The settings.
        state: The state of the sweep, which follows from what is recorded.

    Example:
        >>> sweep = Sweep(Rules(when=1), SweepState(required=frozenset({"accuracy"})))
        >>> commands = sweep.reported("a", {"training_iteration": 1}, About(saves=True))
        >>> [type(command).__name__ for command in commands]
        ['Inspect', 'Record', 'Save']
        >>> sweep.state.apply(commands[1].event)
        >>> report = commands[2].report
        >>> report.stage
        <Stage.SAVING: 'saving'>
        >>> [type(one).__name__ for one in sweep.saved("a", report, "c1", path="a/c1")]
        ['Record', 'Validate', 'Advance']
    """

    def __init__(self, rules: Rules, state: SweepState):
        self.rules, self.state = rules, state
        #: The reports of each trial that Tune has not processed; a trial without any has no queue.
        #: The trials are in the order in which the scores of their oldest reports arrived.
        self.queues: dict[str, Queue] = {}
        #: The failed validations.
        self.failures = Failures(detects_hopeless=rules.on_failure != "ignore")
        # The reports whose validations have not ended, by the validations' names.
        self._scoring: dict[str, Report] = {}
        #: The newest score of each trial that Tune has processed, and its iteration.
        self.newest: dict[str, tuple[int, Mapping[str, Any]]] = {}
        # Whether the sweep will end with an error.
        self._is_hopeless = False
        # Whether reports no longer wait for a first score, and whether a validation has ended in
        # the meantime, which may be why.
        self._flows, self._has_news = False, True

    @property
    def names(self) -> AbstractSet[str]:
        """Return the names of the metrics that validations return or the sweep uses."""
        return self.state.required | self.state.history.names.keys()

    def queue_of(self, trial_id: str) -> Queue:
        """Return the reports of a trial that Tune has not processed."""
        return self.queues.get(trial_id) or Queue()

    # From a report to a request ----------------------------------------------------------------

    def reported(self, trial_id: str, report: Mapping[str, Any], about: About) -> list[Command]:
        """Handle a report; its iteration is a whole number above those of the trial's queue."""
        commands: list[Command] = []
        if not self.state.has_saved:
            commands.append(Inspect(trial_id, report))
        queue, iteration = self.queues.setdefault(trial_id, Queue()), report[ITERATION]
        if about.last and not about.saves and queue.resumable:
            commands += self._ends(trial_id, queue)  # what it has already saved is its last
        queue.continues()
        generation, point = self.state.ancestry.generation(trial_id), about.point
        row = move_to_reported(report, self.state.history.names)
        event = Reported(trial_id=trial_id, report=row, generation=generation, decision_point=point)
        commands.append(Record(event))
        wants = Wants.SCORE_IF_LAST if about.may_be_last else Wants.NOTHING
        if about.saves:
            wants = self._wants(trial_id, iteration, about)
        new = Report(
            row,
            iteration=iteration,
            wants=wants,
            saves=about.saves,
            config=about.config,
            kwargs=about.kwargs,
            timeout_s=about.timeout_s,
            decision_point=about.point if wants is Wants.SCORE else None,
            last=about.last,
        )
        queue.append(new)
        return [*commands, Save(trial_id, new)] if about.saves else commands

    def _wants(self, trial_id: str, iteration: int, about: About) -> Wants:
        """Return whether the checkpoint of a report is to be validated."""
        chosen = about.requests if about.requests is not None else about.wants_all or None
        used = about.point is not None or about.last
        if self._selects(trial_id, iteration, chosen, used=used):
            return Wants.SCORE
        also = about.requests is None and self.rules.when in LAST_ALSO and not about.last
        return Wants.SCORE_IF_LAST if also else Wants.NOTHING

    def _selects(
        self, trial_id: str, iteration: int, requested: bool | None = None, *, used: bool = True
    ) -> bool:
        """Return whether to validate a trial's checkpoint: :func:`is_selected`."""
        since = iteration - self.state.selected_at.get(trial_id, 0)
        return is_selected(self.rules.when, since, requested, used=used)

    def returned(self, trial_id: str, report: Mapping[str, Any]) -> list[Command]:
        """Handle the return of a trial's function, which Tune also takes for a report."""
        queue = self.queues.setdefault(trial_id, Queue())
        commands = self._ends(trial_id, queue, saves=True)
        queue.append(Report(report, last=True))
        return commands

    def _ends(self, trial_id: str, queue: Queue, *, saves: bool = False) -> list[Command]:
        """Validate the report that a trial turns out to end with, saving it if that is possible."""
        last = queue.undecided
        if last is None:
            return []
        was_saving = last.stage is Stage.SAVING
        last.ended(validates=self._selects(trial_id, last.iteration), saves=saves)
        if last.stage is Stage.SCORING:
            return self._request(trial_id, last, self.key(trial_id, last))
        saves = last.stage is Stage.SAVING and not was_saving
        return [Save(trial_id, last)] if saves else []

    def saved(self, trial_id: str, report: Report, checkpoint: Any, *, path: str) -> list[Command]:
        """Handle the checkpoint of a report, in a path; None if it could not be saved."""
        if report.stage is not Stage.SAVING:  # the trial was stopped meanwhile
            return [] if checkpoint is None else [Delete(checkpoint)]
        if checkpoint is None:
            report.lost()
            return [Advance(trial_id)]
        report.saved(checkpoint, path)
        key, validates = self.key(trial_id, report), report.wants is Wants.SCORE
        more = {"kwargs": dict(report.kwargs), "timeout_s": report.timeout_s}
        saved = CheckpointSaved.of(key, path, validates=validates, **more)
        # The line is the request, too.
        request = self._request(trial_id, report, key, is_recorded=True) if validates else []
        return [Record(saved), *request, Advance(trial_id)]

    def key(self, trial_id: str, report: Report) -> ValidationKey:
        """Return the name of the validation of a report."""
        generation = self.state.ancestry.generation(trial_id)
        run = self.state.history.run_of(trial_id, report.iteration, generation)
        return ValidationKey(trial_id, generation, report.iteration, run)

    def _request(
        self, trial_id: str, report: Report, key: ValidationKey, *, is_recorded: bool = False
    ) -> list[Command]:
        limit = self.rules.timeout_s if report.timeout_s is None else report.timeout_s or None
        request = Request(
            trial_id,
            key.iteration,
            run=key.run,
            generation=key.generation,
            checkpoint=report.checkpoint,
            path=report.path,
            report=report.report,
            kwargs={**self.rules.kwargs, **report.kwargs},
            timeout_s=limit,
            config=report.config,
            used=report.decision_point is not None or report.last,
            decision_point=report.decision_point,
        )
        self._scoring[request.id] = report
        recorded = [] if is_recorded else [Record(ValidationRequested.of(key, report.path))]
        return [*recorded, Validate(request)]

    def failed(self, trial_id: str, error: Any, *, restarts: bool) -> list[Command]:
        """Handle the failure of a trial, which runs lost iterations again if it restarts."""
        queue = self.queues.setdefault(trial_id, Queue())
        commands = self._void(trial_id, queue.fail(error, restarts=restarts))
        return commands if restarts else [*commands, *self._ends(trial_id, queue)]

    # From a score to a result ------------------------------------------------------------------

    def ended(self, event: ValidationEnded) -> list[Command]:
        """Handle the end of a validation."""
        commands: list[Command] = [Record(event)]
        self._has_news = True
        if event.validated:
            self.failures.succeeded()
        elif event.status in FAILED:
            key = event.key
            place = format_checkpoint(key.trial_id, key.iteration, key.generation)
            notice = self.failures.failed(place, event.reason or "failed")
            self._is_hopeless |= notice.hopeless or self.rules.on_failure == "raise"
            self._flows &= not self.failures.doubts
            commands.append(Notify(event, notice))
        else:
            commands.append(Notify(event, None))
        report = self._scoring.pop(event.id, None)
        if report is None or report.stage is not Stage.SCORING:
            return commands  # it is void, or Tune has processed it
        merged = {**flatten(report.report), **flatten(event.metrics)}
        if not event.validated or self.state.lacks(merged):
            # The scheduler lacks a score for this point, so a later report fills it.
            report.decision_point = None
        report.scored(event.metrics if event.validated else None)
        queue = self.queue_of(event.trial_id)
        if report not in queue:
            return commands
        if report is queue[0]:
            self.queues[event.trial_id] = self.queues.pop(event.trial_id)  # see flow
        return [*commands, Advance(event.trial_id)]

    def next_report(self, trial_id: str, *, trains: bool) -> Report | None:
        """Remove and return the report that Tune gets now; None if none is complete.

        Args:
            trial_id: The trial.
            trains: Whether the trial has a process in which it trains on, unless a score ends it.
        """
        queue = self.queue_of(trial_id)
        # A decision would abort a save in progress and leave its folder behind.
        report = None if queue.saves or self._holds(queue, trains=trains) else queue.take()
        if not queue:
            self.queues.pop(trial_id, None)
        return report

    def _holds(self, queue: Queue, *, trains: bool) -> bool:
        """Return whether all reports wait, because validation's metrics are not known yet."""
        # A CSV logger takes its columns from a trial's first row, and a value from training must
        # not appear as a score, so rows wait until these names are known (decision 1). They also
        # wait while the function may be broken: a restored sweep then validates them again.
        if self._flows:
            return False
        if self._scoring or self._is_hopeless:
            return True
        return trains and not (queue.over or len(queue) >= _MOST_HELD)

    def flow(self) -> list[Command]:
        """Let reports pass that waited for the first score, in the order of their scores."""
        if self._flows or not self._has_news:
            return []
        self._has_news = False
        self._flows = self.state.knows_names and not self.failures.doubts
        return [Advance(trial_id) for trial_id in self.queues]

    def result(self, trial_id: str, report: Report) -> dict[str, Any]:
        """Return the result that Tune gets: a report, merged with its score if it has one."""
        # Until it is known which names are validation's, any that the sweep uses may be.
        names = self.state.history.names or self.state.required
        row, key = move_to_reported(report.report, names), self.key(trial_id, report)
        row |= {GENERATION: key.generation, RUNS: key.run}
        # It is a column for loggers.
        row[CHECKPOINT] = report.path.rstrip("/").rpartition("/")[2] or row.get(CHECKPOINT)
        return row if report.metrics is None else merge(row, report.metrics)

    def give(self, trial_id: str, report: Report, result: Mapping[str, Any]) -> list[Command]:
        """Handle that Tune is about to get the result of a report."""
        ranks = report.metrics is not None and not self.state.lacks(result)
        report.give(ranked=ranks)
        unranked = report.metrics is not None and not ranks
        return [NotifyUnranked(trial_id, report, result)] if unranked else []

    def decided(
        self, trial_id: str, report: Report, decision: str, *, finished: bool
    ) -> list[Command]:
        """Handle Tune's decision on the result of a report, before Tune carries it out."""
        if report.ranked:
            self.newest[trial_id] = report.iteration, report.metrics or {}
        processed = Processed.of(
            self.key(trial_id, report),
            report.path,
            cloneable=report.cloneable and bool(report.path),
            ranked=report.ranked,
            decision=decision,
            finished=finished,
        )
        return [Record(processed)]

    def dropped(self, trial_id: str) -> list[Command]:
        """Handle that a trial does not continue from its reports in the queue."""
        return self._void(trial_id, self.queues.pop(trial_id, Queue()))

    def _void(self, trial_id: str, reports: list[Report] | Queue) -> list[Command]:
        commands: list[Command] = [
            Delete(report.checkpoint) for report in reports if report.checkpoint is not None
        ]
        if any(report.stage is Stage.SCORING for report in reports):
            commands.append(Cancel(trial_id))
        for report in reports:
            report.drop()
        return commands

    # A restore ---------------------------------------------------------------------------------

    def recalled(self, trial_id: str, report: Report) -> None:
        """Handle a ranked result that Tune processed in an earlier session."""
        self.newest[trial_id] = report.iteration, report.metrics or {}

    def requested(
        self, trial_id: str, report: Report, key: ValidationKey, *, is_recorded: bool
    ) -> list[Command]:
        """Handle a validation that an earlier session left, or whose failure is suspect.

        Args:
            trial_id: The trial.
            report: The report; if Tune has processed it, it does not wait for the score.
            key: The name of the validation.
            is_recorded: Whether the request is in the journal, and has not ended there.
        """
        report.replayed = False
        report.requested()
        return self._request(trial_id, report, key, is_recorded=is_recorded)
