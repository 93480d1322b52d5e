"""The callback that runs a sweep's validations, from a report to the scheduler's decision.

Tune calls the hooks of :class:`ValidationCallback`, which emit events. Each event is recorded and
then applied by the engine, which returns the commands that ``perform`` carries out.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import structs
from ray import tune
from ray.tune.experiment import Trial

from tunekit._ray.checkpoints import LeasingCheckpointManager
from tunekit._ray.controller import Controller, fail_for_good
from tunekit._ray.progress import Display
from tunekit.clock import Clock, SystemClock
from tunekit.config import ValidationConfig, check_config
from tunekit.core.advice import how_to_resume, slow_starts
from tunekit.core.commands import (
    Ask,
    Cancel,
    Command,
    Deliver,
    Fold,
    NoteFailure,
    Notify,
    PassOver,
    Stop,
    Validate,
)
from tunekit.core.engine import Engine, Input, JudgedBy
from tunekit.core.events import (
    Happened,
    SessionClosed,
    TrialErrored,
    ValidationRequested,
    never,
)
from tunekit.core.history import History
from tunekit.core.metrics import hide
from tunekit.core.problems import Problems
from tunekit.core.progress import counted, starved, waiting_trials
from tunekit.core.room import Shares, shares, total
from tunekit.core.validation import Outcome, Status
from tunekit.driver.deliveries import Deliveries
from tunekit.driver.end import Draining, SweepEnd
from tunekit.driver.failures import FailureReports
from tunekit.driver.requests import Requests, receive
from tunekit.driver.restore import Restore
from tunekit.driver.stop_requests import StopRequests
from tunekit.errors import AlreadyRunningError, ConfigError, RestoreError, TunekitError, WiringError
from tunekit.journal.home import Home
from tunekit.journal.ledger import Ledger
from tunekit.journal.session import about
from tunekit.loggers import JsonLogger, ValidatedLoggerCallback, validated
from tunekit.policies import AtDecisions, DefaultPolicy
from tunekit.results.lineage import Lineage
from tunekit.results.tensorboard import TensorBoardLogger
from tunekit.results.trial_files import TrialFiles
from tunekit.scheduling.next_trial import NextTrial
from tunekit.scheduling.searcher import ValidatedSearcher
from tunekit.scheduling.state import SchedulerState
from tunekit.scheduling.stopping import StoppingCriteria
from tunekit.scheduling.trial_actions import TrialActions
from tunekit.scheduling.user_scheduler import UserScheduler
from tunekit.scheduling.waiting import Waiting
from tunekit.validating.executor import Executor
from tunekit.validating.ray_executor import executor_of
from tunekit.validating.validator import Validator

logger = logging.getLogger(__name__)

# The pause between steps, in seconds, while a sweep waits only for validations.
_PAUSE_S = 0.02

# The saved attributes: constructor arguments, and settings made later.
_GIVEN = ("config", "_given")
_SET = ("trainable", "searched", "owned", "_loggers")

_NOT_BY_RAY = (
    "ray.tune.Tuner.restore ignores tunekit's records of this sweep: trials would fail, and "
    "pending validations would be lost. Nothing was changed. To continue the sweep:\n{}"
)


class ValidationCallback(tune.Callback):
    """Validate the checkpoints that trials save, alongside training, and merge in the scores.

    :class:`tunekit.Tuner` does all of this. With a plain ``ray.tune.Tuner``, put the callback into
    ``RunConfig(callbacks=[...])``, after any checkpoint policies and before its :meth:`loggers`.
    The scheduler must be a :class:`~tunekit.ValidatedScheduler` (around a ``FIFOScheduler()`` if
    you have none), and the searcher, if any, a :class:`~tunekit.ValidatedSearcher`.

    Args:
        config: The settings.
        executor: Runs validations; by default, in Ray tasks.
        clock: The source of the time; the system's clock by default.

    Raises:
        tunekit.errors.ConfigError: If ``config`` is not a ``ValidationConfig``.
        tunekit.errors.WiringError: When the first trial starts, if the sweep's scheduler is not a
            :class:`~tunekit.ValidatedScheduler`.

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
        executor: Executor | None = None,
        clock: Clock | None = None,
    ):
        problems = Problems("ValidationCallback")
        check_config("config", config, problems)
        problems.raise_any()
        self.config = config
        self._given = (executor, clock)
        #: The sweep's clock.
        self.clock = clock or SystemClock()
        #: The trials so far.
        self.trials: dict[str, Trial] = {}
        #: The sweep's callbacks, some of which have tunekit's hooks, too.
        self.listeners: list[Any] = []
        #: The sweep's controller, once Tune has added a trial.
        self.controller: Controller | None = None
        self._loggers: list[tune.Callback] = []
        self._display: Display | None = None

        #: The trainable's import path, for the record.
        self.trainable: str | None = None
        #: The parameters of the search space, by flat name, for the record.
        self.searched: dict[str, Any] | None = None
        #: Whether a ``tunekit.Tuner`` made it, so that only that Tuner may run it.
        self.owned = False
        self._run_by_owner = False
        #: Whether the sweep has ended; False if it was interrupted, None while it runs.
        self.has_ended: bool | None = None
        #: The sweep's records.
        self.ledger = Ledger(self.clock, on_lost=self._give_way)
        self._refused: TunekitError | None = None
        self._restore = Restore(self)
        self._state_taken = False
        self._paused_at = 0.0
        self._assemble(executor)

    def __getstate__(self) -> dict[str, Any]:
        """Return only the settings: the rest is in the journal and in Tune's state."""
        return {name: vars(self)[name] for name in (*_GIVEN, *_SET)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the settings; the rest is initialized again."""
        executor, clock = state["_given"]
        ValidationCallback.__init__(self, state["config"], executor=executor, clock=clock)
        for name in _SET:
            setattr(self, name, state[name])

    @property
    def home(self) -> Home:
        """Return the location of the experiment."""
        return self.ledger.home

    @property
    def history(self) -> History:
        """Return the validated metrics."""
        return self.engine.history

    def renew(self, config: ValidationConfig) -> None:
        """Change the settings of a restored sweep that is not running yet."""
        self.config = config
        self._assemble(None)

    def _assemble(self, executor: Executor | None) -> None:
        """Create the parts that depend on the settings; tests pass ``executor``."""
        config = self.config
        #: The state of the sweep.
        self.engine = Engine(config.when, config.constraints)
        self._draining = Draining(self.clock)
        self._stopping = StoppingCriteria(self.fail)
        #: Runs validations in processes.
        self.executor = executor or executor_of(config)
        #: How trials and validations share the cluster, as far as known.
        self.shares = Shares()
        #: Runs the validations.
        self.validator = Validator(config, self.executor, self.clock, emit=self.emit)
        self._failures = FailureReports(config, self.engine)

    def loggers(self, *others: tune.Callback) -> list[tune.Callback]:
        """Return loggers that can log late scores: ``result.json``, TensorBoard, and yours.

        Args:
            *others: Loggers, such as Ray's for MLflow; each is wrapped in a
                :class:`~tunekit.loggers.ValidatedLoggerCallback` unless it handles late scores
                itself.
        """
        if not self._loggers:
            self._loggers = [JsonLogger(), TensorBoardLogger()]
        self._loggers += [validated(other) for other in others]
        return list(self._loggers)

    def share(
        self,
        cluster: Mapping[str, float],
        bundles: Sequence[Mapping[str, float]],
        *,
        have_workers: bool = False,
    ) -> bool:
        """Divide a cluster between trials and validations.

        Args:
            cluster: The cluster's resources, by name.
            bundles: The resources of each bundle of a trial.
            have_workers: Whether trials are runs of a trainer, each of whose workers has a bundle.

        Returns:
            Whether checkpoints are validated in the processes of waiting trials.
        """
        most, need = self.config.most_in_flight or 1, self.executor.need
        known = shares(cluster, total(*bundles), need, most=most)
        self.shares = replace(known, have_workers=have_workers)
        stands = self.config.on_pending != "continue"
        return stands and self.executor.fits_in(self.shares.processes(bundles))

    # Wiring ------------------------------------------------------------------------------------

    def attach(self, controller: Controller, state: SchedulerState) -> None:
        """Connect to a sweep; called by the scheduler when Tune adds the first trial.

        Args:
            controller: The sweep's controller.
            state: The state of its scheduler.
        """
        self.controller, emit = controller, self.emit
        engine, trials, validator, clock = self.engine, self.trials, self.validator, self.clock
        #: The user's scheduler.
        self.user_scheduler = user_scheduler = UserScheduler(
            state, controller, engine, validator, emit
        )
        #: Asks the scheduler for the next trial.
        self.next_trial = NextTrial(user_scheduler, controller, emit)
        searcher = ValidatedSearcher.within(controller)
        #: Decides which trials wait, and what may use their resources.
        self.waiting = waiting = Waiting(
            self.config,
            trials,
            engine,
            self._stopping,
            validator,
            clock,
            controller,
            user_scheduler,
            self.shares,
            over=lambda: self._draining.waits,
        )
        validator.around = waiting
        #: Makes trials follow the scheduler.
        self.actions = TrialActions(
            user_scheduler, controller, engine, waiting, validator, clock, emit
        )
        self._stop_requests = StopRequests(self.ledger, engine, trials, clock, emit)
        #: Delivers scores to the scheduler and the searcher.
        self.deliveries = Deliveries(
            engine, trials, user_scheduler, self.next_trial, searcher, self._stopping, emit
        )
        #: Records reports and checkpoints, and requests validations.
        self.requests = Requests(self.config, engine, trials, validator, user_scheduler, waiting)
        #: Adds scores to Tune's trials, and writes the trials' files.
        self.files = TrialFiles(
            engine,
            changed=controller.changed,
            finalized=partial(self._tell, "on_trial_settled"),
        )
        self._display = display = self._display or Display(self)
        self._end = SweepEnd(
            controller,
            self._draining,
            display,
            engine,
            validator,
            self.deliveries,
            self.files,
            self._failures,
            emit,
        )
        self.listeners = controller.callbacks
        for listener in self.listeners:
            if isinstance(listener, ValidatedLoggerCallback):
                listener.attach(self.engine.undecided, self.history.names.keys)
            if isinstance(listener, DefaultPolicy):
                listener.can_save = controller.can_save
                listener = listener.policy
            if isinstance(listener, AtDecisions):
                listener.attach(waiting.saves)
        goals = {*controller.take_over_metric_check(), *user_scheduler.objectives}
        self._judge_by(*goals, *(one.metric for one in self.config.constraints))
        self._stopping.attach(controller, lambda: self.engine.required | self.history.names.keys())
        controller.look_at_reports_first(receive)
        self._open_experiment(controller, state, goals)
        if searcher is not None:
            searcher.attach(self.validator.poll, self.config.constraints)
            self._judge_by(*searcher.objectives)
        display.attach(controller)
        controller.heed(
            pending=lambda: self._end.pending,
            places=waiting.places,
            lacking=waiting.lacking,
        )

    def _judge_by(self, *more: str) -> None:
        """Record the metrics that the sweep uses, and whether it uses every score."""
        all_count = self.deliveries.searcher is not None or self._stopping.by_scores
        judged_by = JudgedBy(self.engine.required.union(more), all_count)
        if judged_by != self.engine.judged_by:
            self.emit(judged_by)

    def begin(self) -> None:
        """Record that the ``tunekit.Tuner`` that made the callback runs the sweep.

        Raises:
            tunekit.errors.ConfigError: If the sweep has already run.
        """
        if self.ledger.is_open:
            raise ConfigError(
                "Tuner.fit",
                [
                    "it was already called: a Tuner runs its sweep once. tuner.get_results() has "
                    "the results. To continue the sweep:\n"
                    f"{how_to_resume(self._where(), self.trainable)}\n"
                    "For another sweep, make a new Tuner with another RunConfig(name=...)."
                ],
            )
        self._run_by_owner = True

    @property
    def _run_by_ray(self) -> bool:
        """Return whether Ray's own Tuner would run a sweep of ``tunekit.Tuner``."""
        return self.owned and not self._run_by_owner

    def _where(self) -> str:
        """Return the location of the experiment, as far as known."""
        if self.home.folder is not None or self.controller is None:
            return self.home.folder or "PATH"
        return str(self.controller.storage.experiment_fs_path)

    def adopt(self, trial: Trial) -> None:
        """Add a trial: a new one, or one of a restored experiment."""
        self.trials[trial.trial_id] = trial
        if self.controller is not None:
            self.controller.bring_home(trial)
        self._watch(trial)
        self._stopping.restore(trial, self._restore.past)
        self.ledger.add(trial)
        self._stopping.take_over(trial, self.engine.required)
        self._judge_by()

    # From the report to the request ------------------------------------------------------------

    def setup(self, **info: Any) -> None:
        """Prepare the sweep; called by Tune before it begins."""
        controller, restore = self.controller, self._restore
        if self._run_by_ray:
            raise RestoreError(_NOT_BY_RAY.format(how_to_resume(self._where(), self.trainable)))
        if self._refused is not None:
            raise self._refused
        if restore.searched is not None and not (controller and controller.resumed):
            raise RestoreError(
                "Tune could not restore the sweep, for the reason logged above, and would start a "
                "new one. The sweep's files are unchanged: fix the cause and restore again."
            )
        if controller is None:
            return
        if controller.resumed:
            controller.begin_session()
        controller.look_at_reports_first(receive)
        if restore.past:
            told = restore.replay(controller)
            self._take_over_new_criteria()
            for trial_id, before in told.items():
                self._tell("on_trial_restored", self.trials[trial_id], before)
            restore.resume(controller)
            self._stop_requests.look()
        if self._end.conclude_restored(list(self.trials.values())):
            self._raise_error()
            self._end.note()
        self._delete_surplus(controller)

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Follow a trial whose actor has started, for the first time or again."""
        if self.controller is None:
            raise WiringError(
                "The sweep has a ValidationCallback, but its scheduler is not a "
                "ValidatedScheduler: it would decide on reports, not on validation scores. Pass "
                "TuneConfig(scheduler=tunekit.ValidatedScheduler(ASHAScheduler())), with your own "
                "scheduler or FIFOScheduler() inside, or use tunekit.Tuner."
            )
        fail_for_good(trial)
        self.files.add(trial)
        self._watch(trial)
        self.user_scheduler.proxies.reopen(self.user_scheduler.proxies.of(trial))

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Record a report; called by Tune after the scheduler and before the loggers."""
        reported = self.requests.reported(trial, result)
        self._failures.reported(trial, result, self.listeners)
        self.emit(reported)
        self.files.reported(trial)

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Decide whether to validate the checkpoint that a trial has saved."""
        saved = self.requests.saved(trial)
        if saved is not None:
            self.emit(saved)
        self.engine.leases.touch(trial.trial_id)

    # Steps and the end -------------------------------------------------------------------------

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Poll validations and act on trials; called by Tune after each event it has handled."""
        controller = self.controller
        if controller is None:
            return  # no trial has been added yet
        self._end.note_cut(trials)
        self._keep()
        at_once = controller.woken()
        self.validator.poll(at_once=at_once)
        self._stop_requests.look()
        self.files.show()
        self.actions.act()
        self._end.step(trials)
        self._raise_error()
        self._end.note()
        self._delete_surplus(controller)
        controller.wake_on(self.validator.awaited())
        self.waiting.spare()
        if controller.awaits_nothing and not self.validator.idle:
            self._pause()

    def _watch(self, trial: Trial) -> None:
        """Keep a trial's checkpoints as long as they are needed."""
        LeasingCheckpointManager.install(trial, self.engine.leases, lambda: self.unreported)

    def _delete_surplus(self, controller: Controller) -> None:
        """Delete checkpoints that are no longer needed, of the trials that changed in this step.

        This runs at the end of a step, when all leases on them have been taken.
        """
        for trial_id in self.engine.leases.take_touched():
            trial = self.trials.get(trial_id)  # None: a donor that the restored experiment lacks
            manager = None if trial is None else LeasingCheckpointManager.of(trial)
            if trial is not None and manager is not None:
                manager.prune()
                controller.changed(trial)

    def _pause(self) -> None:
        """Sleep briefly, because Tune would take its next step at once, with nothing to do."""
        left = self._paused_at + _PAUSE_S - self.clock.monotonic()
        if left > 0:
            self.clock.sleep(left)
        self._paused_at = self.clock.monotonic()

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Record that a trial has finished or was stopped; its actor still runs."""
        if self.waiting.validates_last(trial):
            self.validator.validate_last(trial)
        self._failures.ended(trial)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Record that a trial has failed for good, and cancel its validations."""
        self.emit(TrialErrored(trial_id=trial.trial_id))
        self.validator.drop(trial.trial_id, "its trial failed")
        self.user_scheduler.fail(self.user_scheduler.proxies.of(trial))

    def ended(self, trial: Trial, *, removed: bool = False) -> None:
        """Record that a trial has ended; the scheduler is notified after its last score.

        Args:
            trial: The trial.
            removed: Whether it was not running when it ended.
        """
        proxy = self.user_scheduler.proxies.of(trial)
        if not removed:
            self.actions.begins(proxy)
        self.actions.stands_no_more(proxy)
        if removed:
            self.user_scheduler.conclude(trial)
        else:
            self.user_scheduler.complete(proxy)
        self.deliveries.complete(trial.trial_id, removed=removed)

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """Close the session; called by Tune last. A sweep that has not ended was interrupted."""
        self._keep()
        self.has_ended = self.controller is not None and self._end.has_ended
        self._draining.broken_off()
        self.validator.close()
        if self.has_ended and self.controller and not self.controller.reuses_actors:
            starts = self.waiting.starts
            if advice := slow_starts(starts.avoidable_s, starts.total_s):
                logger.info("%s", advice)
        self._close(finished=self.has_ended)

    def break_off(self) -> None:
        """Record the end of a session whose process ends without Tune."""
        self._close(finished=False)

    def _close(self, *, finished: bool) -> None:
        self.emit(SessionClosed(finished=finished))
        self.ledger.close()

    def _give_way(self, error: AlreadyRunningError) -> None:
        """End the sweep here, because another driver has taken it over."""
        self._refused = error
        self.fail(error)

    def fail(self, error: TunekitError | None) -> None:
        """End the sweep with an error, if there is one, at the end of the current step."""
        self._end.error = self._end.error or error

    def _raise_error(self) -> None:
        """Raise the error that the sweep ends with, if any; Tune saves the sweep first."""
        if self._end.error is not None:
            if self._refused is None and self.controller is not None:
                self.controller.save()
            raise self._end.error

    # Events in, commands out -------------------------------------------------------------------

    def emit(self, event: Input) -> None:
        """Record an event, apply it, and carry out the commands, in this order.

        During a replay, events are already in the journal, so only :class:`JudgedBy` is applied.
        """
        if self._restore.replays:
            if isinstance(event, JudgedBy):
                self.apply(event)
            return
        if isinstance(event, Happened):
            event = event if event.time else structs.replace(event, time=self.clock.time())
            self.ledger.append(event)
        for command in self.apply(event):
            self.perform(command)

    def apply(self, event: Input) -> list[Command]:
        """Apply an event; return the resulting commands."""
        return self.engine.apply(event)

    def perform(self, command: Command) -> None:
        """Carry out a command."""
        match command:
            case Ask():
                self.emit(ValidationRequested.of(command.request))
            case Validate():
                self.requests.validate(command.request, again=command.again)
            case Cancel():
                self.validator.reject(command.trial_id)
            case Stop():
                self.actions.stop(command.trial_id)
            case Fold():
                self._take_over_new_criteria()
                self.files.scored(self.trials[command.outcome.request.trial_id], command.outcome)
            case NoteFailure():
                self.fail(self._failures.failed(command.outcome))
            case PassOver():
                self.fail(self._failures.passed_over(command.scored))
            case Notify():
                self._notify(command.outcome)
            case Deliver():
                self.deliveries.deliver(command.trial_id)
            case _:
                never(command)

    def _take_over_new_criteria(self) -> None:
        """Take over from Tune the criteria on newly validated metrics."""
        self._stopping.take_over_new(self.trials.values(), self.history.names)
        self._judge_by()

    def _notify(self, outcome: Outcome) -> None:
        """Pass a score to the loggers that can log it."""
        request = outcome.request
        report = hide(request.report, self.unreported)
        self._tell("on_trial_validated", self.trials[request.trial_id], report, outcome.metrics)

    def _tell(self, hook: str, *known: Any) -> None:
        """Call one of tunekit's hooks on the callbacks that have it."""
        for listener in self.listeners:
            if hasattr(listener, hook):
                getattr(listener, hook)(*known)

    # Results and saved state -------------------------------------------------------------------

    @property
    def lineage(self) -> Lineage:
        """Return the trials that were overwritten with checkpoints, as tables.

        Example:
            >>> config = ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.9})
            >>> ValidationCallback(config).lineage
            Lineage(0 exploits)
        """
        return Lineage(self.engine.ancestry)

    def summary(self) -> dict[str, int]:
        """Return the numbers of validations by status.

        ``starting`` counts validations that were passed to Ray and do not run yet; ``queued`` of
        these wait for free resources.

        Example:
            >>> config = ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.9})
            >>> ValidationCallback(config).summary()
            {'validated': 0, 'failed': 0, 'timed_out': 0, 'skipped': 0, 'running': 0,
             'starting': 0, 'queued': 0, 'waiting': 0}
        """
        ended = {status.value: self.engine.backlog.counts[status] for status in Status}
        return {**ended, **self.validator.counts()}

    def show_on(self, display: Display) -> None:
        """Show the sweep on ``display`` instead of Tune's; to be called before the sweep begins."""
        self._display = display

    def progress(self) -> list[str]:
        """Return the progress of the validations and of the trials that wait, as lines of text.

        Example:
            >>> config = ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.9})
            >>> ValidationCallback(config).progress()
            ['Validations: none yet']
        """
        left_over = [t for t in self.trials.values() if not t.is_finished()]
        left = len(left_over)
        waiting = sum(self.waiting.waits(t.trial_id) is not None for t in left_over)
        lines = [
            counted(self.summary()),
            waiting_trials(waiting, left),
            starved(self.validator.starved_s()),
            self._draining.awaited(self.validator.statuses()),
        ]
        return [line for line in lines if line is not None]

    @property
    def unreported(self) -> Collection[str]:
        """Return the metrics for which only validated values count."""
        return self.engine.undecided() | self.history.names.keys()

    def timing(self) -> dict[str, float]:
        """Return where time went, in seconds.

        - ``validations_ran_s``: how long validations ran, added up;
        - ``trials_waited_s``: how long trials waited for their scores, added up;
        - ``drained_s``: how long the sweep continued after its last trial had ended.

        Example:
            >>> config = ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.9})
            >>> ValidationCallback(config).timing()["trials_waited_s"]
            0.0
        """
        return {
            "validations_ran_s": self.engine.backlog.ran_s,
            "trials_waited_s": self.engine.waited_s,
            "drained_s": self._draining.took_s,
        }

    def restore(self, searched: int) -> None:
        """Restore the sweep from its files.

        Args:
            searched: The line of the journal as of which the searcher was saved; 0 if it was saved
                with the rest.
        """
        self._restore.searched = searched

    def _open_experiment(
        self, controller: Controller, state: SchedulerState, goals: Collection[str]
    ) -> None:
        """Open the experiment's folder: load the saved state, and open the journal."""
        if self._run_by_ray:
            return
        storage = controller.storage
        try:
            self.ledger.claim(storage)
        except AlreadyRunningError as error:
            self._refused = error  # Tune replaces errors that are raised while it restores
            raise
        restored = self._restore.load(self.ledger, state, storage.storage_filesystem)
        known = about(
            self.clock.time(),
            config=self.config,
            judged=goals,
            mode=self.user_scheduler.mode,
            objectives=self.user_scheduler.objectives,
            scheduler=state.scheduler,
            search_alg=controller.search_alg,
            trainable=self.trainable,
            space=self.searched,
        )
        self.ledger.begin(anew=not restored, after=self._restore.as_of, about=known)

    def _keep(self) -> None:
        saved, self._state_taken = self._state_taken, False
        self.ledger.keep(self.controller, saved=saved)

    def get_state(self) -> dict[str, Any]:
        """Return the state for Tune to save; everything else follows from the journal."""
        self._state_taken = True
        state: dict[str, Any] = {"as_of": self.ledger.last}
        scheduler = None if self.controller is None else self.user_scheduler.state.save(self.home)
        # Without it, a restored scheduler gets all results again.
        return state if scheduler is None else {**state, "scheduler": scheduler}

    def set_state(self, state: dict[str, Any]) -> None:
        """Keep the state that Tune saved until the experiment's folder is known."""
        self._restore.saved = state
