"""The reports of trials: which are validated, and what Tune then gets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from ray import train
from ray.tune.experiment import Trial
from ray.tune.result import DONE, SHOULD_CHECKPOINT, TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler
from ray.tune.stopper import NoopStopper

from tunekit._ray.checkpoints import delete_checkpoint
from tunekit._ray.functions import is_checkpointable_function
from tunekit._ray.pickles import portable
from tunekit._ray.scheduler_kinds import exhausts, objectives_of, rule_for, time_attr_of, traits_of
from tunekit._ray.stoppers import reads_metrics
from tunekit._ray.validating_controller import ValidatingController, is_saved_at
from tunekit.config import ValidationConfig
from tunekit.core.events import (
    CheckpointSaved,
    Event,
    Exploited,
    Processed,
    Reported,
    ValidationEnded,
    ValidationRequested,
)
from tunekit.core.metrics import (
    CHECKPOINT,
    GENERATION,
    RUNS,
    VALIDATED_AT,
    flatten,
    merge,
    metric_of,
    move_to_reported,
    sanitize_report,
)
from tunekit.core.queue import Entry, Queue, Stage
from tunekit.core.state import Report, State
from tunekit.core.validation import LAST_ALSO, Request, ValidationKey, is_selected
from tunekit.core.values import finite_number
from tunekit.driver.sweep_outcome import SweepOutcome
from tunekit.messages.problems import Problems
from tunekit.training import VALIDATION_KEY, check_override
from tunekit.validating.validator import Validator

logger = logging.getLogger(__name__)

# The maximum number of a trial's reports that wait for a sweep's first score if none is on its way.
_MOST_HELD = 100
#: Why a validation is skipped after a decision on an older report has made it obsolete.
VOID = "its trial does not continue from there"


@dataclass(eq=False)
class Reports:
    """Decide which reports are validated, and what Tune gets once they are.

    Args:
        config: The settings.
        engine: The state of the sweep.
        validator: Runs the validations.
        outcome: Reports failures, and decides how the sweep ends.
        controller: The sweep's controller.
        scheduler: The user's scheduler.
        emit: Records and applies each event.
    """

    config: ValidationConfig
    engine: State
    validator: Validator
    outcome: SweepOutcome
    controller: ValidatingController
    scheduler: TrialScheduler
    emit: Callable[[Event], None]
    # Whether the scheduler stops the trial whose result is being processed.
    _stops: bool = field(default=False, init=False)
    # Whether reports no longer wait for a first score, and whether a validation has ended in the
    # meantime, which may be why.
    _flows: bool = field(default=False, init=False)
    _has_news: bool = field(default=True, init=False)
    # The reports whose validations have not ended, by the validations' names.
    _scoring: dict[str, tuple[Trial, Entry]] = field(default_factory=dict, init=False)
    #: Each trial's hyperparameters, and what it would resume from, before the newest result was
    #: processed; empty unless the scheduler clones.
    before: dict[Trial, tuple[Mapping[str, Any], Any]] = field(default_factory=dict, init=False)
    # The newest score of each trial that Tune has processed, and its iteration.
    _newest: dict[str, tuple[int, Mapping[str, Any]]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._traits = traits_of(self.scheduler)

    @property
    def names(self) -> AbstractSet[str]:
        """See :class:`~tunekit._ray.validating_controller.ReportRules`."""
        return self.engine.required | self.engine.history.names.keys()

    @property
    def idle(self) -> bool:
        """See :class:`~tunekit._ray.validating_controller.ReportRules`."""
        return self.validator.pool.idle

    # From a report to a request ----------------------------------------------------------------

    def holds(self, queue: Queue, *, trains: bool) -> bool:
        """See :class:`~tunekit._ray.validating_controller.ReportRules`."""
        # A CSV logger takes its columns from a trial's first row, and a value from training must
        # not appear as a score, so rows wait until these names are known (decision 1). They also
        # wait while the function may be broken: a restored sweep then validates them again.
        if self._flows:
            return False
        if self._scoring or self.outcome.error is not None:
            return True
        # A stopper may end a trial based on training's reports alone.
        stops_early = not isinstance(self.controller.stopper, NoopStopper)
        return trains and not (queue.over or len(queue) >= _MOST_HELD or stops_early)

    def receive(self, trial: Trial, result: dict[str, Any], *, saved: bool) -> None:
        """Convert a report, or the report of a save, in place for Tune and the journal.

        If both are there, Ray may pass on a report before that of the preceding save.
        """
        reached = trial.run_metadata.last_result.get(TRAINING_ITERATION, 0)
        for entry in self.controller.queue_of(trial):
            reached = entry.iteration
            if saved and entry.stage is Stage.SAVING:
                break
        if saved:  # the rest is in the entry
            own = result.get(TRAINING_ITERATION)
            other: Mapping[str, Any] = {TRAINING_ITERATION: own if type(own) is int else reached}
        else:
            other = sanitize_report(result, reached + 1, portable, keep=("config", VALIDATION_KEY))
        if other is not result:  # Tune has a reference to it
            result.clear()
            result.update(other)

    def reported(self, trial: Trial, queue: Queue, report: dict[str, Any]) -> Entry:
        """See :class:`~tunekit._ray.validating_controller.ReportRules`."""
        trial_id, iteration = trial.trial_id, report[TRAINING_ITERATION]
        problems = Problems(f"Trial {trial_id}, iteration {iteration}")
        requested = check_override(VALIDATION_KEY, report.pop(VALIDATION_KEY, None), problems)
        if problems:
            logger.warning("%s The sweep's own setting is used.", problems.error())
        point, last = self._decision_point(trial, queue, report), self.is_last(trial, report)
        if requested or (trial_id in self.controller.leaving and self.controller.can_save(trial)):
            report[SHOULD_CHECKPOINT] = True
        self.outcome.reported(trial, report, self.controller.callbacks)
        saving = is_saved_at(trial, report, last=last)
        if last and not saving and queue.resumable:  # what it has already saved is its last
            self.returned(trial, queue)
        queue.settle()
        generation, names = self.engine.ancestry.generation(trial_id), self.engine.history.names
        row = move_to_reported(report, names)
        self.emit(
            Reported(trial_id=trial_id, report=row, generation=generation, decision_point=point)
        )
        entry = Entry(row, iteration=iteration, last=last)
        if saving:
            entry.stage = Stage.SAVING
            chosen = bool(requested) if requested is not None else self._wants_all(trial) or None
            used = point is not None or last
            entry.validated = self._selects(trial, iteration, chosen, used=used)
            entry.decision_point = point if entry.validated else None
            if (
                requested is None
                and self.config.when in LAST_ALSO
                and not (entry.validated or last)
            ):
                entry.validated = None
            entry.task = None if isinstance(requested, bool) else requested
        elif trial.checkpoint_at_end and not last:  # a function does not say which is its last
            asks = is_checkpointable_function(trial.get_trainable_cls())
            entry.validated = None if asks else False
        return entry

    def returned(self, trial: Trial, queue: Queue) -> Entry | None:
        """See :class:`~tunekit._ray.validating_controller.ReportRules`."""
        last = next((entry for entry in queue if entry.validated is None), None)
        if last is None:
            return None
        last.validated = self._selects(trial, last.iteration)
        if last.checkpoint is None:
            return last
        if last.validated:
            self._request(trial, last)
        return None

    def saved(self, trial: Trial, entry: Entry) -> None:
        """See :class:`~tunekit._ray.validating_controller.ReportRules`."""
        key, checkpoint = self._key(trial, entry), entry.checkpoint.checkpoint
        task = entry.task or train.ValidationTaskConfig()
        self.emit(
            CheckpointSaved.of(
                key,
                checkpoint.path,
                validates=bool(entry.validated),
                kwargs=dict(task.fn_kwargs or {}),
                timeout_s=task.timeout_s,
            )
        )
        if entry.validated:
            self._request(trial, entry, recorded=True)

    def _key(self, trial: Trial, entry: Entry) -> ValidationKey:
        generation = self.engine.ancestry.generation(trial.trial_id)
        run = self.engine.history.run_of(trial.trial_id, entry.iteration, generation)
        return ValidationKey(trial.trial_id, generation, entry.iteration, run)

    def _request(
        self,
        trial: Trial,
        entry: Entry,
        *,
        key: ValidationKey | None = None,
        recorded: bool = False,
    ) -> None:
        """Record that a checkpoint will be validated, and pass it to the validator.

        Args:
            trial: The trial.
            entry: The report; if Tune has already processed it, it does not wait for the score.
            key: The name of the validation, if it is not the trial's newest.
            recorded: Whether the request is in the journal.
        """
        key, checkpoint = key or self._key(trial, entry), entry.checkpoint.checkpoint
        task, general = entry.task or train.ValidationTaskConfig(), self.config.task_config
        request = Request(
            trial.trial_id,
            key.iteration,
            run=key.run,
            generation=key.generation,
            checkpoint=checkpoint,
            path=checkpoint.path,
            report=entry.report,
            kwargs={**(general.fn_kwargs or {}), **(task.fn_kwargs or {})},
            timeout_s=general.timeout_s if task.timeout_s is None else task.timeout_s,
            config=trial.config,
            used=entry.decision_point is not None or entry.last,
            decision_point=entry.decision_point,
        )
        entry.stage = Stage.SCORING
        self._scoring[request.id] = trial, entry
        if not recorded:
            self.emit(ValidationRequested.of(key, request.path))
        for ended in self.validator.submit(request):
            self.ended(ended)

    def _decision_point(
        self, trial: Trial, queue: Queue, report: Mapping[str, Any]
    ) -> float | None:
        """Return the scheduler's slot that a report's score would fill, such as a rung."""
        now = metric_of(report, time_attr_of(self.scheduler))
        pending = queue.pending_points(report[TRAINING_ITERATION])
        if now is None:
            return None
        return finite_number(rule_for(self.scheduler, trial).decision_point(now, pending))

    def saves(self, trial: Trial, report: Mapping[str, Any]) -> bool:
        """Return whether ``when`` allows a trial to save at a report."""
        used = self._decision_point(trial, self.controller.queue_of(trial), report) is not None
        return used or self._wants_all(trial) or self.is_last(trial, report)

    def _selects(
        self, trial: Trial, iteration: int, requested: bool | None = None, *, used: bool = True
    ) -> bool:
        """Return whether to validate a trial's checkpoint: :func:`is_selected`."""
        since = iteration - self.engine.selected_at.get(trial.trial_id, 0)
        return is_selected(self.config.when, since, requested, used=used)

    def _wants_all(self, trial: Trial) -> bool:
        """Return whether ``when`` selects every checkpoint of a trial.

        With ``"auto"``, it does if it is unknown which scores decide, or if a stopper reads scores.
        """
        if self.config.when != "auto":
            return False
        criteria = trial.stopping_criterion.keys()
        reads = reads_metrics(self.controller.stopper) or not criteria <= {TRAINING_ITERATION}
        return reads or not self._traits.at_times

    def is_last(self, trial: Trial, report: Mapping[str, Any]) -> bool:
        """Return whether a trial ends with a report, judging by training's own metrics."""
        if report.get(DONE):
            return True
        if not (criteria := trial.stopping_criterion):
            return False
        flat, names = flatten(report), self.names
        return any(n in flat and flat[n] >= m for n, m in criteria.items() if n not in names)

    # A restore ---------------------------------------------------------------------------------

    def restored(self, trial: Trial, entry: Entry, event: Processed) -> dict[str, Any]:
        """Record a result that Tune processed in an earlier session; return its row."""
        row = self.result(trial, entry)
        if event.ranked:
            self._newest[trial.trial_id] = entry.iteration, entry.metrics or {}
        return row

    def request_again(self, trial: Trial, entry: Entry, one: Report) -> None:
        """Request a validation that has not ended, or that failed and is suspect.

        Tune may have processed the report in the latter case.
        """
        suspect = str(one.key) in self.engine.suspect
        if one.saved is None or one.requested is None or (one.ended is not None and not suspect):
            return
        entry.task = train.ValidationTaskConfig(
            fn_kwargs=dict(one.saved.kwargs), timeout_s=one.saved.timeout_s
        )
        entry.validated, entry.replayed = True, False
        self._request(trial, entry, key=one.key, recorded=not suspect)

    # From a score to a result ------------------------------------------------------------------

    def ended(self, event: ValidationEnded) -> None:
        """Record the end of a validation, and release the results that waited for it."""
        self.emit(event)
        self._has_news = True
        if event.validated:
            self.outcome.succeeded()
        else:
            self.outcome.failed(event)
            self._flows &= not self.outcome.doubts
        trial, entry = self._scoring.pop(event.id, (None, None))
        if trial is not None and entry is not None:
            merged = {**flatten(entry.report), **flatten(event.metrics)}
            if not event.validated or self.engine.lacks(merged):
                # The scheduler lacks a score for this point, so a later report fills it.
                entry.decision_point = None
            self.controller.scored(trial, entry, event.metrics if event.validated else None)

    def release_held(self) -> None:
        """Release the reports that were held until the first score."""
        if self._has_news and not self._flows:
            self._has_news = False
            self._flows = self.engine.knows_names and not self.outcome.doubts
            self.controller.advance_all()

    def dropped(self, trial: Trial, entries: list[Entry]) -> None:
        """See :class:`~tunekit._ray.validating_controller.ReportRules`."""
        for entry in entries:
            if entry.checkpoint is None:
                continue
            checkpoint = entry.checkpoint.checkpoint
            try:
                delete_checkpoint(checkpoint.filesystem, checkpoint.path)
            except OSError as error:  # an outage of its storage does not end the sweep
                logger.warning(
                    "%s could not be deleted: %s. Nothing needs it: delete it yourself.",
                    checkpoint.path,
                    error,
                )
        if any(entry.stage is Stage.SCORING for entry in entries):
            for ended in self.validator.drop(trial.trial_id, VOID):
                self.ended(ended)

    def result(self, trial: Trial, entry: Entry) -> dict[str, Any]:
        """See :class:`~tunekit._ray.validating_controller.ReportRules`."""
        # Until it is known which names are validation's, any that the sweep uses may be.
        names, key = self.engine.history.names or self.engine.required, self._key(trial, entry)
        row = move_to_reported(entry.report, names)
        row |= {GENERATION: key.generation, RUNS: key.run}
        if entry.checkpoint is not None:
            row[CHECKPOINT] = entry.checkpoint.checkpoint.path.rstrip("/").rpartition("/")[2]
        row.setdefault(CHECKPOINT, None)  # a column for loggers
        return row if entry.metrics is None else merge(row, entry.metrics)

    def rank(self, trial: Trial, entry: Entry, result: Mapping[str, Any]) -> bool:
        """See :class:`~tunekit._ray.validating_controller.ReportRules`."""
        if entry.metrics is None:
            return False
        if self.is_rankable(result):
            entry.stage = Stage.RANKED
            return True
        new = not entry.replayed  # otherwise, it has already ended the sweep
        self.outcome.log_unranked(trial.trial_id, entry.iteration, result, ends=new)
        return False

    def is_rankable(self, result: Mapping[str, Any]) -> bool:
        """See :class:`~tunekit._ray.validating_controller.ReportRules`."""
        return not self.engine.lacks(result)

    def processing(self) -> None:
        """See :class:`~tunekit._ray.validating_controller.ReportRules`."""
        self._stops = False
        if self._traits.clones:
            self.before = {
                one: (one.config, one.latest_checkpoint_result)
                for one in self.controller.get_trials()
            }

    def decided(self, decision: str) -> None:
        """Record the scheduler's decision on the result being processed."""
        self._stops = decision == TrialScheduler.STOP

    def processed(self, trial: Trial, entry: Entry, decision: str) -> None:
        """See :class:`~tunekit._ray.validating_controller.ReportRules`."""
        key, ranked = self._key(trial, entry), entry.stage is Stage.RANKED
        result = trial.run_metadata.last_result
        finished = decision == TrialScheduler.STOP and (
            entry.last or not self._stops or exhausts(self.scheduler, result)
        )
        path = "" if entry.checkpoint is None else entry.checkpoint.checkpoint.path
        self.emit(
            Processed.of(
                key,
                path,
                cloneable=entry.cloneable and bool(path),
                ranked=ranked,
                decision=decision,
                finished=finished,
            )
        )
        if ranked:
            self._newest[trial.trial_id] = entry.iteration, entry.metrics or {}
        if newest := self._newest.get(trial.trial_id):
            iteration, metrics = newest
            shown = result if ranked else merge(result, metrics)
            trial.run_metadata.last_result = {**shown, VALIDATED_AT: iteration}
        # After the decision: a restore replays that with new random donors, and then finds the
        # recorded ones, which take precedence (decision 3).
        self.exploited()

    def exploited(self) -> None:
        """Record the exploits since :meth:`processing`."""
        for trial, (config, start) in self.before.items():
            now = trial.latest_checkpoint_result
            if now is not None and (trial.config is not config or now is not start):
                self.emit(self._exploit(trial, config, now))
                self.controller.mark_changed(trial)

    def _exploit(self, trial: Trial, config: Mapping[str, Any], now: Any) -> Exploited:
        metrics, trial_id = now.metrics, trial.trial_id
        donor_id = metrics.get("trial_id", trial_id)
        donor = next(
            (one for one in self.controller.get_trials() if one.trial_id == donor_id), trial
        )
        ancestry = self.engine.ancestry
        donor_generation = metrics.get(GENERATION, 0)
        donor_config = ancestry.configs.get(
            (donor_id, donor_generation), config if donor is trial else donor.config
        )
        metric = next(iter(objectives_of(self.scheduler, None)), "")
        iteration = metrics.get(TRAINING_ITERATION, 0)
        # With constraints, the scheduler has ranked by another value.
        scores = dict(self.engine.history.scores(donor_id))
        score = scores.get((donor_generation, iteration), {})
        return Exploited(
            trial_id=trial_id,
            generation=ancestry.generation(trial_id) + 1,
            reached=trial.last_result.get(TRAINING_ITERATION, 0),
            donor_id=donor_id,
            donor_generation=donor_generation,
            iteration=iteration,
            checkpoint=now.checkpoint.path,
            score={**flatten(metrics), **flatten(score)}.get(metric),
            old_config=dict(config),
            donor_config=dict(donor_config),
            config=dict(trial.config),
        )
