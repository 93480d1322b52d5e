"""Takes a score from the report to the decision: the conductor of a sweep's validations."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, assert_never

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.logger import CSVLoggerCallback
from ray.tune.result import TRAINING_ITERATION

from tunekit._ray.controller import Controller, fail_for_good
from tunekit._ray.progress import Display
from tunekit.clock import Clock, SystemClock
from tunekit.config import ValidationConfig, check_config
from tunekit.confirm import Confirm
from tunekit.core.commands import (
    Ask,
    Cancel,
    Command,
    Deliver,
    Fold,
    Keep,
    NoteFailure,
    Notify,
    Release,
    Settle,
    Validate,
)
from tunekit.core.engine import Engine, JudgedBy, PassedOver
from tunekit.core.events import (
    Event,
    Exploited,
    SessionClosed,
    TrialErrored,
    TrialFailed,
    TrialRetried,
    ValidationEnded,
)
from tunekit.core.history import History
from tunekit.core.lineage import Ancestry, Exploit
from tunekit.core.metrics import hide
from tunekit.core.order import Told
from tunekit.core.problems import Problems
from tunekit.core.progress import counted, starved, waiting_trials
from tunekit.core.reports import own_names, received
from tunekit.core.resume_command import how_to_resume
from tunekit.core.seeds import check_seed
from tunekit.core.validation import Outcome, Status
from tunekit.driver.deliveries import Deliveries
from tunekit.driver.end import SweepEnd
from tunekit.driver.failures import FailureReports
from tunekit.driver.forgotten import Forgotten
from tunekit.driver.requests import Requests
from tunekit.driver.restored import RestoredSweep
from tunekit.driver.stages import Stages
from tunekit.errors import (
    AlreadyRunningError,
    ConfigError,
    RestoreError,
    TunekitError,
    WiringError,
)
from tunekit.journal.ledger import Ledger
from tunekit.journal.places import Places
from tunekit.journal.session import about
from tunekit.loggers import JsonLogger, ValidatedLoggerCallback, validated
from tunekit.pickles import kept
from tunekit.policies import AtDecisions, CheckpointPolicy
from tunekit.results.leases import CheckpointLeases
from tunekit.results.lineage import Lineage
from tunekit.results.tensorboard import TensorBoardLogger
from tunekit.results.trial_files import TrialFiles
from tunekit.scheduling.scheduling import Scheduling
from tunekit.scheduling.searcher import ValidatedSearcher
from tunekit.scheduling.stopping import StoppingCriteria
from tunekit.scheduling.trial_actions import TrialActions
from tunekit.scheduling.waiting import Waiting
from tunekit.training import VALIDATION_KEY
from tunekit.validating.cache import ValidationCache
from tunekit.validating.executor import Executor, executor_of
from tunekit.validating.validator import Validator

__all__ = ["ValidationCallback"]

logger = logging.getLogger(__name__)

#: The environment variable with which the rules are checked after each event.
CHECK = "TUNEKIT_CHECK"

# How long to sleep when waiting only for validations.
_PAUSE_S = 0.02
# How long validations may get no resources before that counts as a shortage.
_GRACE_S = 2.0

_NOT_BY_RAY = (
    "ray.tune.Tuner.restore does not know what tunekit has recorded of this sweep: trials would "
    "fail, and pending validations be lost. Nothing was changed. Go on with it by:\n{}"
)


class ValidationCallback(tune.Callback):
    """Validates the checkpoints that trials save, alongside training, and folds in the scores.

    Put it, after any checkpoint policies, into ``RunConfig(callbacks=[...])``, together with its
    :meth:`loggers`. By itself it validates, records, and folds validated metrics into the results.
    To judge by them, wrap the scheduler in a :class:`~tunekit.ValidatedScheduler` and the searcher
    in a :class:`~tunekit.ValidatedSearcher`. :class:`tunekit.Tuner` puts all of them together.

    Without a ``ValidatedScheduler`` it has no access to Tune's controller. It then considers the
    sweep over whenever every trial so far has ended, and a score that arrives after its trial's end
    is in the returned results and files, but not in Tune's saved experiment state.

    Args:
        config: The settings.
        seed_param: The hyperparameter that is the random seed, for the record: see
            :class:`tunekit.Tuner`.
        executor: Where validations run; Ray tasks by default.
        stage_executors: Where those of further stages run, by name; Ray tasks by default.
        clock: What to read the time from; the system's clock by default.

    Raises:
        tunekit.errors.ConfigError: If ``config`` is not a ``ValidationConfig``.

    Example:
        >>> from ray import tune
        >>> import tunekit
        >>> validation = tunekit.ValidationCallback(
        ...     tunekit.ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.9})
        ... )
        >>> run_config = tune.RunConfig(
        ...     callbacks=[tunekit.EveryIterations(5), validation, *validation.loggers()]
        ... )
    """

    def __init__(
        self,
        config: ValidationConfig,
        *,
        seed_param: str | None = None,
        executor: Executor | None = None,
        stage_executors: Mapping[str, Executor] | None = None,
        clock: Clock | None = None,
    ):
        problems = Problems("ValidationCallback")
        check_config("config", config, problems)
        check_seed(seed_param, problems)
        problems.raise_any()
        self.config, self.seed_param = config, seed_param
        #: How the winner is confirmed in the end, if it is.
        self.confirm: Confirm | None = None
        self._given = (executor, clock)
        self._stage_executors = stage_executors
        #: The sweep's clock.
        self.clock = clock or SystemClock()
        self._trials: dict[str, Trial] = {}
        #: Which checkpoints are needed.
        self.leases = CheckpointLeases(self._changed)
        self._assemble(executor)

        self._controller: Controller | None = None
        self._scheduling: Scheduling | None = None
        self._actions: TrialActions | None = None
        self._loggers: list[tune.Callback] = []
        self._listeners: list[Any] = []

        #: Where the trainable can be imported from, for the record.
        self.trainable: str | None = None
        #: What the search space has, by flat name, for the record.
        self.searched: dict[str, Any] | None = None
        #: Whether a ``tunekit.Tuner`` made it; then only that Tuner may run it.
        self.owned = False
        self._run_by_owner = False
        #: Whether the sweep has ended, rather than been interrupted; None while it runs.
        self.has_ended: bool | None = None
        #: Where the sweep is recorded.
        self.ledger = Ledger(self.clock, on_lost=self._give_way)
        self._refused: TunekitError | None = None
        self._restored = RestoredSweep(self, self._trials)
        self._state_taken = False
        self._paused_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings alone: what has happened is in the journal, and in Tune's state."""
        names = (
            "config",
            "seed_param",
            "confirm",
            "trainable",
            "searched",
            "owned",
            "_loggers",
        )
        given = ("_given", "_stage_executors")
        return {name: vars(self)[name] for name in (*names, *given)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the settings; the rest begins anew."""
        executor, clock = state["_given"]
        ValidationCallback.__init__(
            self,
            state["config"],
            executor=executor,
            stage_executors=state["_stage_executors"],
            clock=clock,
        )
        for name in (
            "seed_param",
            "confirm",
            "trainable",
            "searched",
            "owned",
            "_loggers",
        ):
            setattr(self, name, state[name])

    @property
    def places(self) -> Places:
        """Return where the experiment is kept."""
        return self.ledger.places

    @property
    def history(self) -> History:
        """Return what was validated."""
        return self.state.history

    @property
    def ancestry(self) -> Ancestry:
        """Return which trials were overwritten with which checkpoints."""
        return self.state.ancestry

    def renew(self, config: ValidationConfig) -> None:
        """Validate by other settings from now on, in a restored sweep that is not running yet."""
        self.config = config
        self._assemble(None)

    def _assemble(self, executor: Executor | None) -> None:
        """Make the parts that depend on the settings; ``executor``: what a test has passed."""
        where = self.config.cache
        self._cache = cache = None if where is None else ValidationCache(where)
        #: What is known of the sweep so far.
        self.state = state = Engine(
            self.config.when,
            path=lambda recorded: self.places.path(recorded),
            config_of=lambda *generation: self._restored.config_of(*generation),
            stages={stage.name: stage.every for stage in self.config.stages},
        )
        #: What the scheduler and the searcher are given.
        self.deliveries = Deliveries(
            state, self._trials, emit=self.emit, time=self.time, fail=self.fail
        )
        self._stopping = StoppingCriteria(self.fail)
        #: Which trials wait, and what may use their places.
        self.waiting = waiting = Waiting(
            self.config,
            self._trials,
            state,
            self._stopping,
            draining=lambda: self._end.draining.waits,
            confirms=lambda: self.confirm is not None,
        )
        state.all_count = waiting.all_count
        #: Runs the validations.
        self.validator = waiting.validator = Validator(
            self.config,
            executor or executor_of(self.config, cache),
            self.clock,
            emit=self.emit,
            conclude=self._conclude,
            around=waiting,
            cache=cache,
        )
        #: Runs all of them, those of further stages, too.
        self.stages = Stages(
            self.validator,
            self.config.stages,
            self._stage_executors
            or {stage.name: executor_of(stage, cache) for stage in self.config.stages},
            self.clock,
            emit=self.emit,
            conclude=self._conclude,
            waiting=waiting,
            over=lambda: self._end.draining.waits and self.validator.idle,
            cache=cache,
        )
        #: Shows scores in Tune's trials, and writes their files.
        self.files = TrialFiles(
            state, changed=self._changed, finalized=partial(self._tell, "on_trial_settled")
        )
        #: What was reported and saved, and has to be validated.
        self.requests = Requests(
            self.config,
            state,
            self._trials,
            self.stages,
            self.leases,
            places=lambda: self.places,
            emit=self.emit,
            time=self.time,
        )
        self.requests.leaves_out = waiting.leaves_out
        self._failures, self._forgotten = FailureReports(self.config), Forgotten()
        self._end = SweepEnd(
            self.clock,
            state=state,
            stages=self.stages,
            deliveries=self.deliveries,
            files=self.files,
            failures=self._failures,
            forgotten=self._forgotten,
            emit=self.emit,
        )

    def loggers(self, *others: tune.Callback) -> list[tune.Callback]:
        """Return loggers that can handle late scores: for ``result.json``, TensorBoard, and yours.

        Args:
            *others: Loggers, such as Ray's for MLflow; each is wrapped in a
                :class:`~tunekit.loggers.ValidatedLoggerCallback` unless it hears of scores by
                itself.
        """
        if not self._loggers:
            self._loggers = [JsonLogger(), TensorBoardLogger(self._goal, self._searched_names)]
        self._loggers += [validated(other) for other in others]
        return list(self._loggers)

    def _validation_names(self) -> set[str]:
        """Return the metrics for which only validated values count."""
        return self.state.undecided() | self.history.names.keys()

    def _searched_names(self) -> Collection[str]:
        """Return the hyperparameters that are searched, by flat name, as far as that is known."""
        return self.searched or ()

    def _goal(self) -> tuple[frozenset[str], str | None]:
        """Return the metrics to judge by, and which values are better."""
        return self.state.required, None if self._scheduling is None else self._scheduling.mode

    def _validated(self) -> Collection[str]:
        """Return the metrics that validations have produced."""
        return self.history.names.keys()

    # Wiring ------------------------------------------------------------------------------------

    def attach(
        self,
        controller: Controller,
        scheduling: Scheduling,
        actions: TrialActions,
        searcher: ValidatedSearcher | None,
    ) -> None:
        """Connect the parts of a sweep; the scheduler calls this when Tune adds the first trial."""
        self._controller, self._scheduling, self._actions = controller, scheduling, actions
        self.deliveries.attach(scheduling, actions, searcher)
        self.requests.scheduling = scheduling
        self._listen_with(controller.callbacks)
        judged = frozenset(controller.take_over_metric_check() | scheduling.objectives)
        self.state.apply(JudgedBy(judged))
        self._stopping.attach(controller, lambda: self.state.required | self.history.names.keys())
        self.waiting.attach(controller, scheduling, searches=searcher is not None)
        self._end.attach(controller)
        controller.look_at_reports_first(self._receive)
        for policy in self.policies:
            if isinstance(policy, AtDecisions):
                policy.attach(self.waiting.saves)
        self._open_experiment(controller.storage)
        if searcher is not None:
            searcher.attach(self.validator.poll)
            self.state.apply(JudgedBy(judged | searcher.objectives))
        display = self._end.display = self._end.display or Display(self)
        display.attach(controller)
        controller.heed(pending=lambda: self._end.pending, first=self._validations_first)

    def _validations_first(self) -> bool:
        """Return whether no trial may start before validations have what they need."""
        waits = not self.validator.quiet and self._end.pending  # further stages wait for trials
        return waits and self.waiting.validations_first()

    def _listen_with(self, callbacks: Iterable[Any]) -> None:
        """Take the callbacks that are told of scores."""
        self._listeners = list(callbacks)
        for listener in self._listeners:
            if isinstance(listener, ValidatedLoggerCallback):
                listener.attach(lambda: self.state.undecided(), self._validated)

    def begin(self) -> None:
        """Note that the ``tunekit.Tuner`` that made it runs it.

        Raises:
            tunekit.errors.ConfigError: If it was run before.
        """
        if self.ledger.is_open:
            raise ConfigError(
                "Tuner.fit",
                [
                    "it was called before: a Tuner runs its sweep once. tuner.get_results() has "
                    "the results. To go on with the sweep:\n"
                    f"{how_to_resume(self._where(), self.trainable)}\n"
                    "For another sweep, make another Tuner, with another RunConfig(name=...)."
                ],
            )
        self._run_by_owner = True

    @property
    def _run_by_ray(self) -> bool:
        """Return whether Ray's own Tuner would run a sweep of ``tunekit.Tuner``."""
        return self.owned and not self._run_by_owner

    def _where(self) -> str:
        """Return where the experiment is kept, as far as it is known."""
        if self.places.home is not None or self._controller is None:
            return self.places.home or "PATH"
        return str(self._controller.storage.experiment_fs_path)

    def adopt(self, trial: Trial) -> None:
        """Take a trial: a new one, or one of a restored experiment."""
        self._trials[trial.trial_id] = trial
        if self._controller is not None:
            self._controller.bring_home(trial)
        self.watch(trial)
        self._stopping.restore(trial, self._restored.past)
        self.ledger.add(trial)
        self._stopping.take_over(trial, self.state.required)

    def _take_over_new_criteria(self) -> None:
        if self._scheduling is not None:
            self._stopping.take_over_new(self._trials.values(), self.history.names)

    def reached(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Return whether a validated result ends its trial by ``RunConfig(stop=...)``."""
        names = self.history.names
        return self._stopping.reached(trial_id, result, names, again=self._restored.replays)

    def heard_later(self, trial_id: str) -> bool:
        """Return whether, in a restore, the scheduler heard of a trial again later: it ran on."""
        return self._restored.heard_later(trial_id)

    # From the report to the request ------------------------------------------------------------

    def setup(self, **info: Any) -> None:
        """Called by Tune before the sweep begins."""
        if self._run_by_ray:
            raise RestoreError(_NOT_BY_RAY.format(how_to_resume(self._where(), self.trainable)))
        if self._controller is None:
            self._listen_with(self._loggers)
        self._end.begin()
        if self._end.display is not None:
            self._end.display.begin()
        if self._refused is not None:
            raise self._refused
        if self._restored.is_restored and not (self._controller and self._controller.resumed):
            raise RestoreError(
                "Tune could not restore the sweep, for the reason that it has logged above, and "
                "would begin a new one. Its files are as they were: fix that, and restore again."
            )
        if self._controller is not None and self._controller.resumed:
            self._controller.begin_anew()
        if self._controller is not None:
            self._controller.look_at_reports_first(self._receive)
        if self._restored.past and self._controller is not None and self._scheduling is not None:
            self._restored.resume(self._controller, self._scheduling)
        known = list(self._trials.values())
        if self._end.conclude_restored(known):
            self._raise_error()
            self._end.note(known)

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Called by Tune when a trial's actor is up, including after a pause or a failure."""
        fail_for_good(trial)
        self._open_experiment(trial.storage)
        self._resume_alone(trials)
        self._trials[trial.trial_id] = trial
        self.files.add(trial)
        self.watch(trial)
        if self._scheduling is not None:
            stand_ins = self._scheduling.state.stand_ins
            stand_ins.reopen(stand_ins.of(trial))
        elif self.config.when == "decisions":
            raise WiringError(
                "ValidationConfig(when='decisions') was given to a sweep without a "
                "ValidatedScheduler, which knows when the scheduler decides. Use tunekit.Tuner, "
                "or pass TuneConfig(scheduler=tunekit.ValidatedScheduler(...))."
            )

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Called by Tune with each report, after the scheduler and before the loggers."""
        self.requests.override(trial.trial_id, result)
        if self._controller is None:
            self._receive(trial, result)
        clean = own_names(result, self.history.names)
        if clean is not result:
            result.clear()
            result.update(clean)
        if not self.state.has_saved:
            required, policies = self.state.required, bool(self.policies)
            self._forgotten.reported(trial, result, required, policies=policies)
        self.requests.reported(trial, result)
        self.waiting.reported(trial, self.clock.monotonic())
        self.files.reported(trial)

    @staticmethod
    def _receive(trial: Trial, result: dict[str, Any]) -> None:
        """Put a report into a form that Tune, loggers and the journal can take."""
        iteration = (trial.last_result or {}).get(TRAINING_ITERATION, 0) + 1
        clean = received(result, iteration, kept, keep=("config", VALIDATION_KEY))
        if clean is not result:
            result.clear()
            result.update(clean)

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Called by Tune when a trial has saved: decide whether to validate the checkpoint."""
        self.waiting.saved(trial, self.clock.monotonic())
        self.requests.saved(trial)
        self.leases.prune(trial)

    # From the outcome to the fold and the delivery ---------------------------------------------

    def _conclude(self, outcome: Outcome) -> None:
        """Record how a validation ended."""
        self.emit(ValidationEnded.of(outcome, self.time()))

    def _tell(self, hook: str, *known: Any) -> None:
        """Call a hook of tunekit's on the callbacks that have it."""
        for listener in self._listeners:
            if hasattr(listener, hook):
                getattr(listener, hook)(*known)

    def fold_in(self, trial: Trial, outcome: Outcome) -> None:
        """Show the score of an outcome, if it has one, in Tune's trial."""
        if self.history.counts(outcome) and outcome.request.stage:
            self.files.staged(trial, outcome)
        elif self.history.counts(outcome):
            self._take_over_new_criteria()
            self.files.scored(trial, outcome)
        self._changed(trial)

    def _notify(self, outcome: Outcome) -> None:
        """Give a score to the loggers that can take it."""
        request, metrics = outcome.request, outcome.metrics
        report = hide(request.report, self._validation_names())
        shown = {request.stage: metrics} if request.stage else metrics
        self._tell("on_trial_validated", self._trials[request.trial_id], report, shown)

    def _note_failure(self, outcome: Outcome) -> None:
        request = outcome.request
        if request.stage:
            found = self.state.counts_of[request.stage][Status.VALIDATED]
            self.stages.note_failure(outcome, succeeded=bool(found))
            return
        if outcome.status is Status.SKIPPED:
            logger.info(
                "Validation of trial %s at iteration %d was skipped: %s",
                request.trial_id,
                request.iteration,
                outcome.reason,
            )
            return
        error = self._failures.note(outcome, succeeded=bool(self.history.names))
        if error is not None:
            self.fail(error)

    def emit(self, event: Event | PassedOver) -> None:
        """Record an event and apply it, before anything comes of it.

        While a sweep is being restored, the event is in the journal already, and has its turn
        there.
        """
        if not self._restored.replays:
            if not isinstance(event, PassedOver):
                self.ledger.append(event)
            commands = self.state.handle(event)
            self._check(event)
            for command in commands:
                self.perform(command)

    def take(self, event: Event, *, heard: bool) -> list[Outcome]:
        """Apply an event that is in the journal; of what follows, only what is kept is done.

        Args:
            event: The event.
            heard: Whether the scheduler knows of it already.

        Returns:
            What loggers were told on it.
        """
        commands = self.state.handle(event)
        self._check(event)
        for command in commands:
            if isinstance(command, Keep | Release) or (isinstance(command, Settle) and not heard):
                self.perform(command)
        return [command.outcome for command in commands if isinstance(command, Notify)]

    def _check(self, event: Event | PassedOver) -> None:
        """Raise if an event has broken a rule, where somebody wants to know."""
        broken = list(self.state.broken()) if os.environ.get(CHECK) else []
        if broken:
            raise AssertionError(
                f"{'; '.join(broken)}: so it is after {event!r}. That is a fault of tunekit's, not "
                "of yours. Please report it, with the journal."
            )

    def perform(self, command: Command) -> None:
        """Carry out what follows from an event."""
        match command:
            case Ask():
                self.requests.ask(command.request)
            case Validate():
                self.requests.validate(command.request, again=command.again)
            case Cancel():
                self.validator.reject(command.trial_id)
            case Keep():
                owner = self._trials.get(command.trial_id)
                if owner is not None:  # a donor that the restored experiment no longer has
                    self.leases.own(command.path, owner)
                self.leases.take(command.holder, command.path)
            case Release():
                self.leases.release(command.holder)
            case Fold():
                self.fold_in(self._trials[command.outcome.request.trial_id], command.outcome)
            case NoteFailure():
                self._note_failure(command.outcome)
            case Notify():
                self._notify(command.outcome)
            case Deliver():
                self.deliveries.deliver(command.trial_id)
            case Settle():
                self.deliveries.settled(command.request)
            case _:
                assert_never(command)

    def now(self) -> float:
        """Return the seconds on the sweep's clock."""
        return self.clock.monotonic()

    def time(self) -> float:
        """Return the seconds since the epoch."""
        return self.clock.time()

    @property
    def policies(self) -> list[CheckpointPolicy]:
        """Return the sweep's checkpoint policies."""
        return [one for one in self._listeners if isinstance(one, CheckpointPolicy)]

    def failed(self, trial: Trial) -> None:
        """Record that a trial has failed; Tune may start it again."""
        self.validator.check_ray()
        self.emit(TrialFailed(time=self.time(), trial_id=trial.trial_id))

    def retried(self, trial: Trial) -> None:
        """Record that a failed trial starts again: it will end again."""
        self.emit(TrialRetried(time=self.time(), trial_id=trial.trial_id))

    # Cloning -----------------------------------------------------------------------------------

    def exploited(self, trial: Trial, exploit: Exploit) -> None:
        """Record that a trial is about to be overwritten; its old scores will not be delivered."""
        where = self.places.record(exploit.checkpoint)
        self.emit(Exploited.of(exploit, checkpoint=where))

    # Steps and the end -------------------------------------------------------------------------

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Called by Tune after each event it has handled."""
        self._end.note_end_of_time(trials)
        self._keep()
        self._resume_alone(trials)
        self.stages.poll(at_once=self._controller is not None and self._controller.woken())
        self.files.show()
        if self._actions is not None:
            self._actions.act()
        self._end.step(trials)
        self._raise_error()
        self._end.note(trials)
        if self._controller is not None:
            self._controller.wake_on(self.stages.awaited())
        self._pause()

    def _pause(self) -> None:
        """Sleep a little if Tune would take its next step at once and find nothing new."""
        controller = self._controller
        if self.validator.quiet and self.waiting.one_at_a_time():
            self.validator.spare()  # or no trial could start
        if self.validator.idle or controller is None or not controller.awaits_nothing:
            return
        left = self._paused_at + _PAUSE_S - self.clock.monotonic()
        if left > 0:
            self.clock.sleep(left)
        self._paused_at = self.clock.monotonic()

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Called by Tune when a trial has ended by itself or was stopped, and before its actor."""
        self.waiting.ends(trial)
        if self._scheduling is None:
            self.deliveries.complete(trial.trial_id)
        if not self.state.has_saved:
            self._forgotten.ended(trial)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Called by Tune when a trial has failed for good: its validations are given up."""
        self.emit(TrialErrored(time=self.time(), trial_id=trial.trial_id))
        self.stages.drop(trial.trial_id, "its trial failed")
        if self._scheduling is not None:
            self._scheduling.base.fail(self._scheduling.state.stand_ins.of(trial))

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """Called by Tune last: what has not ended was interrupted, and is given up here."""
        self._keep()
        left = self._end.conclude_left(trials)
        self.has_ended = self._end.has_ended
        self.stages.close()
        self._close(finished=self.has_ended)
        if left:
            self._raise_error()

    def break_off(self) -> None:
        """Record the end of the session where the process ends without Tune."""
        self._close(finished=False)

    def _close(self, *, finished: bool) -> None:
        self.emit(SessionClosed(time=self.time(), finished=finished))
        self.ledger.close()
        if self._cache is not None:
            self._cache.close()

    def let_go(self) -> None:
        """Let another driver have the sweep: this one has ended, in whatever way."""
        self.ledger.let_go()

    def _give_way(self, error: AlreadyRunningError) -> None:
        """End the sweep here: another driver has taken it over."""
        self._refused = error
        self.fail(error)

    def fail(self, error: TunekitError) -> None:
        """End the sweep with an error, at the end of the current step."""
        self._end.fail(error)

    def _raise_error(self) -> None:
        self._end.raise_error(save=self._refused is None)

    # What is kept ------------------------------------------------------------------------------

    @property
    def lineage(self) -> Lineage:
        """Return which trials were overwritten with which checkpoints, as tables.

        Example:
            >>> config = ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.9})
            >>> ValidationCallback(config).lineage
            Lineage(0 exploits)
        """
        return Lineage(self.ancestry)

    def summary(self) -> dict[str, int]:
        """Return how many validations ended in each way, run, are starting, or wait to be started.

        ``starting`` counts those that were handed to Ray and have not begun; ``queued`` of them
        wait for resources because none are free.

        Example:
            >>> config = ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.9})
            >>> ValidationCallback(config).summary()
            {'validated': 0, 'failed': 0, 'timed_out': 0, 'skipped': 0, 'running': 0,
             'starting': 0, 'queued': 0, 'waiting': 0}
        """
        ended = {status.value: self.state.counts[status] for status in Status}
        return {**ended, **self.validator.counts()}

    def stage_summary(self, name: str) -> dict[str, int]:
        """Return of a further stage what :meth:`summary` does of the first.

        Args:
            name: The name of a :class:`tunekit.Stage` of the settings.

        Example:
            >>> from tunekit import Stage, ValidationConfig
            >>> quick, full = (lambda checkpoint: {"accuracy": 0.9},) * 2
            >>> config = ValidationConfig(fn=quick, stages=[Stage("full", full)])
            >>> ValidationCallback(config).stage_summary("full")["validated"]
            0
        """
        ended = {status.value: self.state.counts_of[name][status] for status in Status}
        return {**ended, **self.stages.counts()[name]}

    def show_on(self, display: Display) -> None:
        """Show the sweep on ``display``, not where Tune would; to be called before it begins."""
        self._end.display = display

    def progress(self) -> list[str]:
        """Return how the validations stand, and what waits for them, as lines for the user.

        Example:
            >>> config = ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.9})
            >>> ValidationCallback(config).progress()
            ['Validations: none yet']
        """
        left_over = [t for t in self._trials.values() if not t.is_finished()]
        left, waiting = len(left_over), sum(self.waiting.waits(t.trial_id) for t in left_over)
        lines = [
            counted(self.summary()),
            *(counted(self.stage_summary(name), f"Stage {name}") for name in self.stages.counts()),
            waiting_trials(waiting, left),
            starved(self.validator.starved_s()),
            self._end.draining.awaited(),
        ]
        return [line for line in lines if line is not None]

    @property
    def judged_by(self) -> list[str]:
        """Return the metrics that the sweep is judged by."""
        return sorted(self.state.required)

    @property
    def validated_names(self) -> Collection[str]:
        """Return the metrics that validation has produced."""
        return self.history.names.keys()

    @property
    def unreported(self) -> Collection[str]:
        """Return the metrics for which only validated values count."""
        return self._validation_names()

    def timing(self) -> dict[str, float]:
        """Return where time went, in seconds.

        - ``validations_ran_s``: how long validations ran, added up;
        - ``trials_waited_s``: how long trials waited for their scores, added up;
        - ``drained_s``: how long the sweep went on after its last trial had ended.

        Example:
            >>> config = ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.9})
            >>> ValidationCallback(config).timing()
            {'validations_ran_s': 0.0, 'trials_waited_s': 0.0, 'drained_s': 0.0}
        """
        return {
            "validations_ran_s": self.state.ran_s,
            "trials_waited_s": self.state.waited_s,
            "drained_s": self._end.draining.took_s,
        }

    def restore(self, searched: int) -> None:
        """Become part of a restored sweep; see :meth:`RestoredSweep.restore`."""
        self._restored.restore(searched)

    def _open_experiment(self, storage: Any) -> None:
        """Open the experiment's folder: load what was saved, and open the journal."""
        if self.ledger.is_open or self._run_by_ray:
            return
        try:
            self.ledger.claim(storage)
        except AlreadyRunningError as error:
            self._refused = error  # Tune replaces an error that is raised while it restores
            raise
        scheduler = None if self._scheduling is None else self._scheduling.state
        restored = self._restored.load(self.ledger, scheduler, storage.storage_filesystem)
        known = about(
            self.clock.time(),
            config=self.config,
            seed_param=self.seed_param,
            judged=self.state.required,
            mode=None if self._scheduling is None else self._scheduling.mode,
            scheduler=None if scheduler is None else scheduler.base,
            search_alg=None if self._controller is None else self._controller.search_alg,
            trainable=self.trainable,
            space=self.searched,
        )
        self.ledger.begin(anew=not restored, after=self._restored.as_of, about=known)

    def _keep(self) -> None:
        saved, self._state_taken = self._state_taken, False
        self.ledger.keep(self._controller, saved=saved)

    def get_state(self) -> dict[str, Any]:
        """Return what Tune saves with the experiment: what does not follow from the journal."""
        self._state_taken = True
        state: dict[str, Any] = {"as_of": self.ledger.last}
        scheduling = self._scheduling
        scheduler = None if scheduling is None else scheduling.state.save(self.places)
        # One that cannot be saved is told everything again.
        return state if scheduler is None else {**state, "scheduler": scheduler}

    def set_state(self, state: dict[str, Any]) -> None:
        """Keep what Tune saved with the experiment; it is loaded once the folder is known."""
        self._restored.save(state)

    def _resume_alone(self, trials: list[Trial]) -> None:
        if self._restored.past and self._scheduling is None:
            self._restored.resume_alone(trials)

    def caught_up(self, told: Mapping[str, list[Told]]) -> None:
        """Take that what happened in former sessions was told again: go on telling loggers."""
        self._take_over_new_criteria()
        for trial_id, before in told.items():
            self._tell("on_trial_restored", self._trials[trial_id], before)

    @property
    def writes_tables(self) -> bool:
        """Return whether Tune's ``progress.csv`` is written."""
        return any(isinstance(listener, CSVLoggerCallback) for listener in self._listeners)

    def watch(self, trial: Trial) -> None:
        """Keep the checkpoints of a trial that are needed."""
        self.leases.watch(trial, self._validation_names)

    def _changed(self, trial: Trial) -> None:
        if self._controller is not None:
            self._controller.changed(trial)
