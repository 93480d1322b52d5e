"""Takes a score from the report to the decision: the conductor of a sweep's validations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ray import train, tune
from ray.tune.experiment import Trial
from ray.tune.logger import CSVLoggerCallback
from ray.tune.result import TRAINING_ITERATION

from tunekit._ray.checkpoints import (
    forget_missing,
    skip_existing,
)
from tunekit._ray.controller import Controller
from tunekit._ray.failures import fail_for_good
from tunekit._ray.progress import Display
from tunekit.checkpoint_leases import CheckpointLeases
from tunekit.clock import Clock, SystemClock
from tunekit.config import PAUSE_NEEDS_OWN_ACTORS, YIELD_NEEDS_REUSE, ValidationConfig
from tunekit.consumers import SchedulerConsumer, SearcherConsumer
from tunekit.core.events import (
    BudgetExpired,
    CheckpointSaved,
    Event,
    Exploited,
    SessionClosed,
    TrialErrored,
    TrialFailed,
    TrialRetried,
    ValidationRequested,
)
from tunekit.core.history import History
from tunekit.core.lineage import Ancestry, Exploit
from tunekit.core.metrics import flatten, hide
from tunekit.core.pending import chosen, stands_still
from tunekit.core.problems import Problems
from tunekit.core.progress import counted, starved, waiting_trials
from tunekit.core.reports import own_names, received
from tunekit.core.resume_command import how_to_resume
from tunekit.core.state import SweepState
from tunekit.core.validation import Outcome, Status
from tunekit.deliveries import Deliveries
from tunekit.deprecated import former_method
from tunekit.draining import Draining, Interruption
from tunekit.errors import (
    AlreadyRunningError,
    ConfigError,
    RestoreError,
    TunekitError,
    WiringError,
)
from tunekit.executor import Executor
from tunekit.executors import executor_of
from tunekit.failures import FailureReports
from tunekit.forgotten import Forgotten
from tunekit.ledger import Ledger
from tunekit.leftovers import remove_left_over
from tunekit.lineage import Lineage
from tunekit.loggers import JsonLogger, ValidatedLoggerCallback, validated
from tunekit.pickles import travels
from tunekit.places import Places
from tunekit.policies import AtDecisions, CheckpointPolicy
from tunekit.report import VALIDATION_KEY
from tunekit.restore import Offsets, Restoration, told_before
from tunekit.session import about
from tunekit.snapshots import RestorePoint
from tunekit.stopping_criteria import StoppingCriteria
from tunekit.tensorboard import TensorBoardLogger
from tunekit.trial_files import TrialFiles
from tunekit.validation_requests import Requests
from tunekit.validator import Validator

__all__ = ["ValidationCallback"]

logger = logging.getLogger(__name__)

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
        config: The settings; a plain ``ray.train.ValidationConfig`` gets tunekit's defaults.
        executor: Where validations run; Ray tasks by default.
        clock: What to read the time from; the system's clock by default.

    Raises:
        tunekit.ConfigError: If ``config`` is not a ``ValidationConfig``.

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
        config: train.ValidationConfig,
        *,
        executor: Executor | None = None,
        clock: Clock | None = None,
    ):
        problems = Problems("ValidationCallback")
        problems.instance(
            "config",
            config,
            train.ValidationConfig,
            "Pass tunekit.ValidationConfig(fn=validate).",
        )
        problems.raise_any()
        self.config = ValidationConfig.of(config)
        self._given = (executor, clock)
        self._clock = clock or SystemClock()
        self._trials: dict[str, Trial] = {}
        #: Which checkpoints are needed.
        self.leases = CheckpointLeases(self._changed)
        self._assemble(executor or executor_of(self.config))

        self._controller: Controller | None = None
        self._scheduler: SchedulerConsumer | None = None
        self._loggers: list[tune.Callback] = []
        self._listeners: list[Any] = []

        #: Where the trainable can be imported from, for the record.
        self.trainable: str | None = None
        #: The search space, pickled, for a sweep that is restored before it has begun.
        self.space: bytes | None = None
        #: Whether a ``tunekit.Tuner`` made it; then only that Tuner may run it.
        self.owned = False
        self._run_by_owner = False
        #: Whether the sweep has ended, rather than been interrupted; None while it runs.
        self.has_ended: bool | None = None
        #: Where the sweep is recorded.
        self.ledger = Ledger(self._clock, on_lost=self._give_way)
        self._refused: TunekitError | None = None
        self._saved: dict[str, Any] | None = None
        self._mended: RestorePoint | None = None
        self._state_taken = False
        self._past: list[Event] = []
        # The lines of the journal as of which Tune's state and the scheduler's were saved.
        self._as_of = self._scheduler_as_of = 0
        self._restoration: Restoration | None = None

        # The trials that the time budget has stopped; None while there is time left.
        self._cut: set[str] | None = None
        self._stopping = StoppingCriteria(self.fail)
        self._forgotten = Forgotten()
        self._interruption = Interruption()
        self._error: TunekitError | None = None
        self._display: Display | None = None
        # Whether the sweep was over at the end of the last step: Tune then takes no further one.
        self._ended_by_itself = False
        self._draining = Draining(self._clock, lambda: self.validator.stages())
        self._left_to_the_end = False
        self._paused_at = 0.0
        #: Whether trials take resources that validations need.
        self.shares_with_trials = False
        #: Whether a trial and a validation can only run one after the other, as far as is known.
        self.one_at_a_time: Callable[[], bool] = lambda: False

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings alone: what has happened is in the journal, and in Tune's state."""
        names = ("config", "trainable", "space", "owned", "_given", "_loggers")
        return {name: vars(self)[name] for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the settings; an older version pickled everything it had."""
        executor, clock = state.get("_given", (None, None))
        ValidationCallback.__init__(self, state["config"], executor=executor, clock=clock)
        for name in ("trainable", "space", "owned", "_loggers"):
            if name in state:
                setattr(self, name, state[name])

    def _config_of(self, trial_id: str, generation: int) -> Mapping[str, Any]:
        """Return the hyperparameters of one of a trial's generations."""
        if self._restoration is not None:
            return self._restoration.config_of(trial_id, generation)
        trial = self._trials.get(trial_id)
        return {} if trial is None else trial.config

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

    # Pickles of former versions name these methods; what was pickled with them is not used.
    _has_all = _judged = _merged = _undecided = former_method

    def renew(self, config: ValidationConfig) -> None:
        """Validate by other settings from now on, in a restored sweep that is not running yet."""
        self.config = config
        self._assemble(executor_of(config))

    def _assemble(self, executor: Executor) -> None:
        """Make the parts that depend on the settings."""
        #: Runs the validations.
        self.validator = Validator(
            self.config,
            executor,
            self._clock,
            emit=self.emit,
            conclude=self._conclude,
            judged=lambda: self.state.required,
            promised=self._promised,
            lenders=self._lenders,
            others_wait=self.others_wait,
            rejected=self._rejected,
            all_count=lambda: self._all_count(),
        )
        self._failures = FailureReports(self.config)
        #: What is known of the sweep so far.
        self.state = state = SweepState(
            self.config.every,
            path=lambda recorded: self.places.path(recorded),
            config_of=self._config_of,
        )
        state.all_count = self._all_count
        self._files = TrialFiles(
            state, changed=self._changed, finalized=partial(self._tell, "on_trial_settled")
        )
        #: What was reported and saved, and has to be validated.
        self.requests = Requests(
            self.config,
            state,
            self._trials,
            self.validator,
            self.leases,
            places=lambda: self.places,
            emit=self.emit,
            time=self.time,
        )
        #: What the scheduler and the searcher are given.
        self.deliveries = Deliveries(
            state, self._trials, self.leases, emit=self.emit, time=self.time, fail=self.fail
        )

    def loggers(self, *others: tune.Callback) -> list[tune.Callback]:
        """Return loggers that can handle late scores: for ``result.json``, TensorBoard, and yours.

        Args:
            *others: Loggers, such as Ray's for MLflow; each is wrapped in a
                :class:`~tunekit.ValidatedLoggerCallback` unless it hears of scores by itself.
        """
        if not self._loggers:
            self._loggers = [JsonLogger(), TensorBoardLogger(self._goal)]
        self._loggers += [validated(other) for other in others]
        return list(self._loggers)

    def _promised(self) -> Iterable[Mapping[str, float]]:
        return () if self._controller is None else self._controller.promised()

    def _lenders(self) -> dict[str, Trial]:
        """Return the trials that wait and in whose place a validation fits."""
        return {} if self._scheduler is None else self._scheduler.lenders()

    def others_wait(self) -> bool:
        """Return whether a trial could go on in the place of one that waits."""
        controller = self._controller
        return controller is not None and self._reuses_actors and controller.has_new_trials

    def _rejected(self) -> list[str]:
        """Return the trials that the scheduler has rejected, each once."""
        rejected, self.state.rejected = self.state.rejected, []
        return rejected

    def _all_count(self) -> bool:
        """Return whether anything hears of scores that the scheduler will not use."""
        return (
            self._scheduler is None
            or self.deliveries.searcher is not None
            or self._stopping.by_scores
        )

    def _validation_names(self) -> set[str]:
        """Return the metrics for which only validated values count."""
        return self.state.undecided() | self.history.names.keys()

    def _goal(self) -> tuple[set[str], str | None]:
        """Return the metrics to judge by, and which values are better."""
        return self.state.required, None if self._scheduler is None else self._scheduler.mode

    def _validated(self) -> Collection[str]:
        """Return the metrics that validations have produced."""
        return self.history.names.keys()

    # Wiring ------------------------------------------------------------------------------------

    def attach(
        self,
        controller: Controller,
        scheduler: SchedulerConsumer,
        searcher: SearcherConsumer | None,
    ) -> None:
        """Connect the parts of a sweep; the scheduler calls this when Tune adds the first trial."""
        if self.config.on_pending == "pause" and controller.reuses_actors:
            raise ConfigError("ValidationConfig", [PAUSE_NEEDS_OWN_ACTORS])
        if self.config.on_pending == "yield" and not controller.reuses_actors:
            raise ConfigError("ValidationConfig", [YIELD_NEEDS_REUSE])
        self._controller, self._scheduler = controller, scheduler
        self.deliveries.scheduler, self.deliveries.searcher = scheduler, searcher
        self.requests.scheduler = scheduler
        self._listen_with(controller.callbacks)
        self.state.required = controller.take_over_metric_check() | scheduler.objectives
        self._stopping.attach(controller, lambda: self.state.required | self.history.names.keys())
        controller.look_at_reports_first(self._receive)
        for callback in self._listeners:
            for policy in callback.parts() if isinstance(callback, CheckpointPolicy) else ():
                if isinstance(policy, AtDecisions):
                    policy.attach(scheduler.uses)
        self._open_experiment(controller.storage)
        if searcher is not None:
            searcher.attach(self.validator.poll)
            self.state.required |= searcher.objectives
        self._display = self._display or Display(self)
        self._display.attach(controller)
        controller.heed(pending=self._pending_still, first=self._validations_first)

    def _pending_still(self) -> bool:
        """Return whether the sweep has validations to wait for."""
        return not self.validator.idle and self._error is None

    def _validations_first(self) -> bool:
        """Return whether no trial may start before validations have ended or got their resources.

        Where only one thing can run at a time, that goes for all validations. Elsewhere it goes for
        those that the scheduler will decide by, if trials take what they need. (Where actors are
        reused, making room would end them.)
        """
        if not self._pending_still():
            return False
        makes_room = self.shares_with_trials and not self._reuses_actors
        return self.one_at_a_time() or (makes_room and self.validator.wants_room)

    @property
    def _reuses_actors(self) -> bool:
        return self._controller is not None and self._controller.reuses_actors

    def _listen_with(self, callbacks: Iterable[Any]) -> None:
        """Take the callbacks that are told of scores."""
        self._listeners = list(callbacks)
        for listener in self._listeners:
            if isinstance(listener, ValidatedLoggerCallback):
                listener.attach(lambda: self.state.undecided(), self._validated)

    def begin(self) -> None:
        """Note that the ``tunekit.Tuner`` that made it runs it.

        Raises:
            tunekit.ConfigError: If it was run before.
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
        self.leases.watch(trial, self._validation_names)
        self._stopping.restore(trial, self._past)
        self.ledger.add(trial)
        self._stopping.take_over(trial, self.state.required)

    def _take_over_new_criteria(self) -> None:
        if self._scheduler is not None:
            self._stopping.take_over_new(self._trials.values(), self.history.names)

    def reached(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Return whether a validated result ends its trial by ``RunConfig(stop=...)``."""
        names = self.history.names
        return self._stopping.reached(trial_id, result, names, again=self._replaying)

    def heard_later(self, trial_id: str) -> bool:
        """Return whether, in a restore, the scheduler heard of a trial again later: it ran on."""
        return self._restoration is not None and self._restoration.heard_later(trial_id)

    @property
    def _replaying(self) -> bool:
        return self._restoration is not None

    # From the report to the request ------------------------------------------------------------

    def setup(self, **info: Any) -> None:
        """Called by Tune before the sweep begins."""
        if self._run_by_ray:
            raise RestoreError(_NOT_BY_RAY.format(how_to_resume(self._where(), self.trainable)))
        if self._controller is None:
            self._listen_with(self._loggers)
        self._interruption.begin()
        if self._refused is not None:
            raise self._refused
        if self._mended is not None and not (self._controller and self._controller.resumed):
            raise RestoreError(
                "Tune could not restore the sweep, for the reason that it has logged above, and "
                "would begin a new one. Its files are as they were: mend that, and restore again."
            )
        if self._controller is not None and self._controller.resumed:
            self._controller.begin_anew()
        if self._controller is not None:
            self._controller.look_at_reports_first(self._receive)
        if self._past and self._controller is not None:
            self._resume()
        if self._controller is not None and self._controller.finished and self.validator.idle:
            # A restored sweep whose trials have ended: Tune will take no step.
            self._conclude_sweep(list(self._trials.values()))
            self._raise_error()
            self._note_end(list(self._trials.values()))

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Called by Tune when a trial's actor is up, including after a pause or a failure."""
        fail_for_good(trial)
        self._open_experiment(trial.storage)
        if self._past and self._scheduler is None:
            self._resume_alone(trials)
        self._trials[trial.trial_id] = trial
        self._files.add(trial)
        self.leases.watch(trial, self._validation_names)
        if self._scheduler is not None:
            self._scheduler.started(trial)
        elif self.config.every == "decision":
            raise WiringError(
                "ValidationConfig(every='decision') was given to a sweep without a "
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
        self._files.reported(trial)

    @staticmethod
    def _receive(trial: Trial, result: dict[str, Any]) -> None:
        """Put a report into a form that Tune, loggers and the journal can take."""
        iteration = (trial.last_result or {}).get(TRAINING_ITERATION, 0) + 1
        clean = received(result, iteration, travels, keep=("config", VALIDATION_KEY))
        if clean is not result:
            result.clear()
            result.update(clean)

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Called by Tune when a trial has saved: decide whether to validate the checkpoint."""
        self.requests.saved(trial)
        self.leases.prune(trial)

    # From the outcome to the fold and the delivery ---------------------------------------------

    def _conclude(self, outcome: Outcome) -> None:
        """Act on an outcome that is in the journal."""
        trial = self._trials[outcome.request.trial_id]
        self.fold_in(trial, outcome)
        if not self.history.counts(outcome) and not outcome.validated:
            self._note_failure(outcome)
        self.deliveries.postpone(outcome.request.trial_id)
        if self.state.hesitates():
            return
        untold, self.state.untold = self.state.untold, []
        for due in untold:
            if self.history.counts(due):
                request = due.request
                report = hide(request.report, self._validation_names())
                known = self._trials[request.trial_id]
                self._tell("on_trial_validated", known, report, due.metrics)
        self.deliveries.deliver_postponed()

    def _tell(self, hook: str, *known: Any) -> None:
        """Call a hook of tunekit's on the callbacks that have it."""
        for listener in self._listeners:
            if hasattr(listener, hook):
                getattr(listener, hook)(*known)

    def fold_in(self, trial: Trial, outcome: Outcome) -> None:
        """Show the score of an outcome, if it has one, in Tune's trial."""
        if self.history.counts(outcome):
            self._take_over_new_criteria()
            self._files.scored(trial, outcome)
        self._changed(trial)

    def _note_failure(self, outcome: Outcome) -> None:
        request = outcome.request
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

    def emit(self, event: Event) -> None:
        """Record an event and apply it, before anything comes of it.

        While a sweep is being restored, the event is in the journal already, and has its turn
        there.
        """
        if not self._replaying:
            self.ledger.append(event)
            self.take(event)

    def take(self, event: Event) -> None:
        """Apply an event without recording it."""
        self.state.apply(event)
        match event:
            case CheckpointSaved():
                path = self.places.path(event.checkpoint)
                self.leases.own(path, self._trials[event.trial_id])
                # From now on the trial restarts from its own checkpoints.
                self.leases.release(("clone", event.trial_id, event.generation))
            case ValidationRequested():
                request = self.state.unfinished.get(event.id)
                if request is not None:
                    self.leases.take(("validation", event.id), request.path)
            case Exploited():
                path = self.places.path(event.checkpoint)
                self.leases.take(("clone", event.trial_id, event.generation), path)
                self.leases.release(("clone", event.trial_id, event.generation - 1))

    def waits(self, trial_id: str) -> bool:
        """Return whether a trial that has reported waits for pending scores."""
        delivery = self.state.delivery
        if not delivery.waits(trial_id):
            return False
        on_pending = self.on_pending(trial_id)
        if on_pending == "continue" and self.one_at_a_time():
            return False  # nothing is validated before it ends
        decisions = delivery.decisions(trial_id)
        return stands_still(on_pending, scores=1, decisions=decisions)

    def on_pending(self, trial_id: str) -> str:
        """Return what a trial does while scores are pending, with ``"auto"`` resolved for it."""
        asked, controller = self.config.on_pending, self._controller
        if asked != "auto" or controller is None or self._scheduler is None:
            return asked
        trial = self._trials.get(trial_id)
        return chosen(
            asked,
            lends=trial is not None and self.validator.fits_in(controller.resources_of(trial)),
            swaps=controller.reuses_actors,
            synchronous=self._scheduler.compares_all,
        )

    def now(self) -> float:
        """Return the seconds on the sweep's clock."""
        return self._clock.monotonic()

    def time(self) -> float:
        """Return the seconds since the epoch."""
        return self._clock.time()

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
        self.deliveries.give_back(trial.trial_id)

    # Steps and the end -------------------------------------------------------------------------

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Called by Tune after each event it has handled."""
        self._note_end_of_time(trials)
        self._keep()
        if self._past and self._scheduler is None:
            self._resume_alone(trials)
        self.validator.poll(at_once=self._controller is not None and self._controller.woken())
        self._files.show()
        if self._scheduler is not None:
            self._scheduler.act()
        if not self._files.all_final:
            self._files.finalize()
            if self._over(trials):
                self._drain(trials)
        self._raise_error()
        self._note_end(trials)
        if self._controller is not None:
            self._controller.wake_on(self.validator.awaited())
        self._pause()

    def _note_end(self, trials: list[Trial]) -> None:
        """Note whether all is done, before Tune ends all trials and it would always seem so."""
        over = self._files.all_final and self.validator.idle and self._over(trials)
        self._ended_by_itself = over

    def _pause(self) -> None:
        """Sleep a little if Tune would take its next step at once and find nothing new."""
        controller, idle = self._controller, self.validator.idle
        if idle and self.one_at_a_time():
            self.validator.spare()  # or no trial could start
        if idle or controller is None or not controller.awaits_nothing:
            return
        left = self._paused_at + _PAUSE_S - self._clock.monotonic()
        if left > 0:
            self._clock.sleep(left)
        self._paused_at = self._clock.monotonic()

    def _note_end_of_time(self, trials: list[Trial]) -> None:
        """Record which trials a used-up time budget has stopped, before Tune's state has them."""
        controller = self._controller
        if self._cut is not None or controller is None or not controller.out_of_time:
            return
        stopped = [trial.trial_id for trial in trials if trial.status == Trial.TERMINATED]
        self._cut = {t for t in stopped if not self.state.delivery.completed(t)}
        self.emit(BudgetExpired(time=self.time(), trial_ids=sorted(self._cut)))

    def _cut_short(self, trial: Trial) -> bool:
        """Return whether the time budget has stopped a trial, which goes on after a restore."""
        return self._cut is not None and trial.trial_id in self._cut

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Called by Tune when a trial has ended by itself or was stopped."""
        if self._scheduler is None:
            self.deliveries.complete(trial.trial_id)
        if not self.state.has_saved:
            self._forgotten.ended(trial)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Called by Tune when a trial has failed for good: its validations are given up."""
        self.emit(TrialErrored(time=self.time(), trial_id=trial.trial_id))
        self.validator.drop(trial.trial_id, "its trial failed")
        self.errored(trial)

    def errored(self, trial: Trial) -> None:
        """Let go of a trial that has failed for good."""
        self.deliveries.give_back(trial.trial_id)
        if self._scheduler is not None:
            self._scheduler.gone(trial)

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """Called by Tune last: what has not ended was interrupted, and is given up here."""
        self._keep()
        left = self._left_to_the_end
        if left and self._wait_here(to_the_end=True):
            self._conclude_sweep(trials)
            self._note_end(trials)
        self._draining.broken_off()
        finished = self._ended_by_itself and self._files.all_final and self._error is None
        if self._cut is not None and self._controller is not None:
            finished = finished and not self._cut and not self._controller.to_come
        self.has_ended = finished
        self.validator.close()
        self.emit(SessionClosed(time=self.time(), finished=finished))
        self.ledger.close()
        if left:
            self._raise_error()

    def let_go(self) -> None:
        """Let another driver have the sweep: this one has ended, in whatever way."""
        self.ledger.let_go()

    def _give_way(self, error: AlreadyRunningError) -> None:
        """End the sweep here: another driver has taken it over."""
        self._refused = error
        self.fail(error)

    def _require_a_checkpoint(self, trials: list[Trial]) -> None:
        """Fail a sweep that has saved nothing but has to be judged by what validation produces."""
        reported = {name for trial in trials for name in flatten(trial.last_result)}
        missing = sorted(self.state.required - reported)
        self._failures.conclude(missing, succeeded=bool(self.history.names))
        if not self.state.has_saved:
            ended = [t for t in trials if t.status == Trial.TERMINATED and not self._cut_short(t)]
            failed = sum(trial.status == Trial.ERROR for trial in trials)
            error = self._forgotten.error([t.last_result for t in ended], missing, failed=failed)
            if error is not None:
                self.fail(error)

    def _over(self, trials: list[Trial]) -> bool:
        if self._controller is not None:
            return self._controller.finished
        return all(trial.is_finished() for trial in trials)

    def _drain(self, trials: list[Trial]) -> None:
        """Wait for the last validations: the sweep is not over before they are.

        Tune keeps working meanwhile, so the last trials' resources become free and Ctrl-C is seen.
        Where its controller is not known, this can only wait here, as long as validations get
        resources; it waits for the others when Tune has given back all it had.
        """
        if self._pending_still():
            self._draining.goes_on(self._display)
            if self._controller is not None or not self._wait_here():
                return
        self._conclude_sweep(trials)

    def _wait_here(self, *, to_the_end: bool = False) -> bool:
        """Wait for validations without Tune; return whether all have ended.

        Args:
            to_the_end: Whether to wait also for those that get no resources.
        """
        while self._pending_still():
            self._left_to_the_end = self.validator.starved_s() > _GRACE_S and not to_the_end
            if self._left_to_the_end:
                return False
            if self._interruption.seen:
                logger.warning("Interrupted with validations pending.")
                self._draining.broken_off()
                return False
            self._clock.sleep(_PAUSE_S)
            self.validator.poll(at_once=True)
            self._files.finalize()
            self._draining.goes_on(self._display)
        return True

    def _conclude_sweep(self, trials: list[Trial]) -> None:
        """Tell and write all that is left, after the last validation has ended."""
        self._draining.over()
        self._left_to_the_end = False
        self.deliveries.conclude(trial for trial in trials if not self._cut_short(trial))
        self._files.finalize(at_end=True)
        self._require_a_checkpoint(trials)

    def fail(self, error: TunekitError) -> None:
        """End the sweep with an error, at the end of the current step."""
        self._error = self._error or error

    def _raise_error(self) -> None:
        if self._error is not None:
            if self._controller is not None and self._refused is None:
                self._controller.save()
            raise self._error

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

    def show_on(self, display: Display) -> None:
        """Show the sweep on ``display``, not where Tune would; to be called before it begins."""
        self._display = display

    def progress(self) -> list[str]:
        """Return how the validations stand, and what waits for them, as lines for the user.

        Example:
            >>> config = ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.9})
            >>> ValidationCallback(config).progress()
            ['Validations: none yet']
        """
        left_over = [t for t in self._trials.values() if not t.is_finished()]
        left, waiting = len(left_over), sum(self.waits(t.trial_id) for t in left_over)
        lines = [
            counted(self.summary()),
            waiting_trials(waiting, left),
            starved(self.validator.starved_s()),
            self._draining.awaited(),
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
            "drained_s": self._draining.took_s,
        }

    def recover(self, mended: RestorePoint) -> None:
        """Become part of a restored sweep, whose files were repaired."""
        self._mended = mended

    def _open_experiment(self, storage: Any) -> None:
        """Open the experiment's folder: load what was saved, and open the journal."""
        if self.ledger.is_open or self._run_by_ray:
            return
        try:
            self.ledger.claim(storage)
        except AlreadyRunningError as error:
            self._refused = error  # Tune replaces an error that is raised while it restores
            raise
        saved, self._saved = self._saved, None
        restored = saved is not None or self._mended is not None
        if restored:
            self._past = self.ledger.past()
            self._take_up(saved or {})
        known = about(
            self._clock.time(),
            config=self.config,
            judged=self.state.required,
            mode=None if self._scheduler is None else self._scheduler.mode,
            scheduler=None if self._scheduler is None else self._scheduler.base,
            search_alg=None if self._controller is None else self._controller.search_alg,
            trainable=self.trainable,
        )
        self.ledger.begin(anew=not restored, after=self._as_of, about=known)

    def _keep(self) -> None:
        saved, self._state_taken = self._state_taken, False
        self.ledger.keep(self._controller, saved=saved)

    def get_state(self) -> dict[str, Any]:
        """Return what Tune saves with the experiment: what does not follow from the journal."""
        self._state_taken = True
        state: dict[str, Any] = {"as_of": self.ledger.last}
        scheduler = None if self._scheduler is None else self._scheduler.get_state(self.places)
        # One that cannot be saved is told everything again.
        return state if scheduler is None else {**state, "scheduler": scheduler}

    def set_state(self, state: dict[str, Any]) -> None:
        """Keep what Tune saved with the experiment; it is loaded once the folder is known."""
        self._saved = state

    def _take_up(self, saved: Mapping[str, Any]) -> None:
        """Load what was saved."""
        self._as_of = saved.get("as_of", 0)
        if self._scheduler is not None and saved.get("scheduler") is not None:
            self._scheduler_as_of = self._as_of
            self._scheduler.set_state(saved["scheduler"], self.places)
        self._stopping.load(saved.get("criteria", {}))  # from a former version

    def _replay(self, trials: Mapping[str, Trial], offsets: Offsets) -> None:
        """Replay what happened in former sessions."""
        self._restoration = Restoration(
            self, trials, self._past, offsets, self._controller, self._scheduler
        )
        self.leases.deletes_nothing = True
        self._restoration.run()
        self._restoration, self.leases.deletes_nothing = None, False
        self.state.untold = []
        self._take_over_new_criteria()
        for trial_id, before in told_before(self._past, trials, self.ancestry).items():
            self._tell("on_trial_restored", trials[trial_id], before)

    def _resume(self) -> None:
        """Replay what happened since the state was saved, and go on from there."""
        controller, scheduler = self._controller, self._scheduler
        if controller is None or scheduler is None:
            return
        searched = None if self._mended is None else self._mended.search
        offsets = Offsets(
            trials=self._as_of,
            searcher=self._as_of if searched is None else searched,
            scheduler=self._scheduler_as_of,
        )
        self._replay(self._trials, offsets)
        for trial_id, trial in self._trials.items():
            self._files.add(trial)
            if trial.is_finished():
                continue
            if self.state.record(trial_id).failed or self.state.delivery.completed(trial_id):
                self.retried(trial)
                scheduler.retried(trial)
            for path in forget_missing(trial):
                logger.warning("Trial %s goes on without %s, which is gone.", trial_id, path)
            skip_existing(trial)
            self.leases.prune(trial)
        # Only now that the trials skip the names of what is removed.
        remove_left_over(self._trials.values(), self._past, self.places)
        table = any(isinstance(listener, CSVLoggerCallback) for listener in self._listeners)
        self._files.restore(self._trials, self._past, table=table)
        past, self._past = self._past, []
        self.requests.reconcile(restored=True)
        if past[-1].n < self._as_of:
            self._record_lost(past)
        scheduler.resume()
        for trial_id in list(self._trials):
            self.deliveries.deliver(trial_id)

    def _record_lost(self, past: Sequence[Event]) -> None:
        """Record what Tune's trials have saved and the journal lacks because its end was lost."""
        known = {self.places.path(e.checkpoint) for e in past if isinstance(e, CheckpointSaved)}
        for trial in self._trials.values():
            self.requests.saved_unrecorded(trial, known)

    def _resume_alone(self, trials: list[Trial]) -> None:
        """Resume without a scheduler of tunekit's: only pending validations are left to run."""
        known = {trial.trial_id: trial for trial in trials}
        for trial_id, trial in known.items():
            self._trials.setdefault(trial_id, trial)
        newest = self._past[-1].n
        self._replay(known, Offsets(newest, newest, newest))
        self._past = []
        for request in self.state.unfinished.values():
            trial = known[request.trial_id]
            self._files.add(trial)
            self.leases.watch(trial, self._validation_names)
        self.requests.reconcile(restored=True)

    def _changed(self, trial: Trial) -> None:
        if self._controller is not None:
            self._controller.changed(trial)
