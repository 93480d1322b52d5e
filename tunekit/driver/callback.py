"""Takes a score from the report to the decision: the one shell of a sweep's validations.

Tune calls the hooks of :class:`ValidationCallback`. They make events of what happened; each is
recorded, and then applied by the engine, which returns what follows from it. ``perform`` carries
that out.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, assert_never

from msgspec import structs
from ray import tune
from ray.tune.experiment import Trial

from tunekit._ray.checkpoints import LeasingCheckpointManager, latest_checkpoint, start_from
from tunekit._ray.controller import Controller, fail_for_good
from tunekit._ray.progress import Display
from tunekit.clock import Clock, SystemClock
from tunekit.config import ValidationConfig, check_config
from tunekit.confirm import Confirm
from tunekit.core.advice import how_to_resume
from tunekit.core.commands import (
    Ask,
    Cancel,
    CarryOut,
    Command,
    Deliver,
    Fold,
    NoteFailure,
    Notify,
    PassOver,
    Show,
    Validate,
)
from tunekit.core.engine import Engine, Input, JudgedBy
from tunekit.core.events import (
    Happened,
    OfTrial,
    SessionClosed,
    SlotReleased,
    SlotTaken,
    TrialErrored,
    ValidationRequested,
)
from tunekit.core.history import History
from tunekit.core.lineage import Ancestry
from tunekit.core.metrics import hide
from tunekit.core.problems import Problems
from tunekit.core.progress import counted, paused_by_hand, starved, waiting_trials
from tunekit.core.room import Shares, shares, total
from tunekit.core.seeds import check_seed
from tunekit.core.validation import Outcome, Status
from tunekit.core.warm_start import WarmStart
from tunekit.driver.by_hand import ByHand
from tunekit.driver.deliveries import Deliveries
from tunekit.driver.end import Draining, SweepEnd
from tunekit.driver.failures import FailureReports
from tunekit.driver.optimizers import Optimizers
from tunekit.driver.requests import Requests, receive
from tunekit.driver.restore import Restore
from tunekit.errors import (
    AlreadyRunningError,
    ConfigError,
    RestoreError,
    TunekitError,
    WiringError,
)
from tunekit.evaluation.stages import StageEvaluation
from tunekit.journal.home import Home
from tunekit.journal.ledger import Ledger
from tunekit.journal.session import about
from tunekit.loggers import JsonLogger, ValidatedLoggerCallback, validated
from tunekit.policies import AtDecisions
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
from tunekit.validating.cache import ValidationCache
from tunekit.validating.executor import Executor
from tunekit.validating.ray_executor import executor_of
from tunekit.validating.validator import Validator

__all__ = ["ValidationCallback"]

logger = logging.getLogger(__name__)

#: The environment variable with which the rules are checked after each event.
CHECK = "TUNEKIT_CHECK"

# How long to sleep when waiting only for validations.
_PAUSE_S = 0.02

# What is saved of it: what it was made with, and what was set since.
_GIVEN = ("config", "_given", "_stage_executors")
_SET = ("seed_param", "confirm", "trainable", "searched", "warm_start", "owned", "_loggers")

_NOT_BY_RAY = (
    "ray.tune.Tuner.restore does not know what tunekit has recorded of this sweep: trials would "
    "fail, and pending validations be lost. Nothing was changed. Go on with it by:\n{}"
)


class ValidationCallback(tune.Callback):
    """Validate the checkpoints that trials save, alongside training, and fold in the scores.

    :class:`tunekit.Tuner` does all of this. With a plain ``ray.tune.Tuner``, put the callback into
    ``RunConfig(callbacks=[...])``, after any checkpoint policies and before its :meth:`loggers`.
    The scheduler must be a :class:`~tunekit.ValidatedScheduler` (around a ``FIFOScheduler()`` if
    you have none), and the searcher, if any, a :class:`~tunekit.ValidatedSearcher`.

    Args:
        config: The settings.
        seed_param: The hyperparameter that is the random seed: see :class:`tunekit.Tuner`.
        executor: Where validations run; Ray tasks by default.
        stage_executors: Where those of further stages run, by name; Ray tasks by default.
        clock: What to read the time from; the system's clock by default.

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
        self._given, self._stage_executors = (executor, clock), stage_executors
        #: The sweep's clock.
        self.clock = clock or SystemClock()
        #: The trials so far.
        self.trials: dict[str, Trial] = {}
        #: The sweep's callbacks, which may have hooks of tunekit's, too.
        self.listeners: list[Any] = []
        #: The sweep's controller, once Tune has added a trial.
        self.controller: Controller | None = None
        self._loggers: list[tune.Callback] = []
        self._display: Display | None = None

        #: Where the trainable can be imported from, for the record.
        self.trainable: str | None = None
        #: What the search space has, by flat name, for the record.
        self.searched: dict[str, Any] | None = None
        #: What its trials begin with, if it begins from another sweep.
        self.warm_start: WarmStart | None = None
        #: Whether a ``tunekit.Tuner`` made it; then only that Tuner may run it.
        self.owned = False
        #: Whether a restored sweep has a process for each trial, whatever it was saved with.
        self.keeps_apart = False
        self._run_by_owner = False
        #: Whether the sweep has ended, rather than been interrupted; None while it runs.
        self.has_ended: bool | None = None
        #: Where the sweep is recorded.
        self.ledger = Ledger(self.clock, on_lost=self._give_way)
        self._refused: TunekitError | None = None
        self._restore = Restore(self)
        self._state_taken = False
        self._paused_at = 0.0
        # The trials that have their resources.
        self._slots: dict[str, Trial] = {}
        self._assemble(executor)

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings alone: what has happened is in the journal, and in Tune's state."""
        return {name: vars(self)[name] for name in (*_GIVEN, *_SET)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the settings; the rest begins anew."""
        executor, clock = state["_given"]
        stages = state["_stage_executors"]
        ValidationCallback.__init__(
            self, state["config"], executor=executor, stage_executors=stages, clock=clock
        )
        for name in _SET:
            setattr(self, name, state[name])

    @property
    def home(self) -> Home:
        """Return where the experiment is kept."""
        return self.ledger.home

    @property
    def history(self) -> History:
        """Return what was validated."""
        return self.engine.history

    @property
    def ancestry(self) -> Ancestry:
        """Return which trials were overwritten with which checkpoints."""
        return self.engine.ancestry

    def renew(self, config: ValidationConfig) -> None:
        """Validate by other settings from now on, in a restored sweep that is not running yet."""
        self.config = config
        self._assemble(None)

    def _assemble(self, executor: Executor | None) -> None:
        """Make the parts that depend on the settings; ``executor``: what a test has passed."""
        config, where = self.config, self.config.cache
        self._cache = cache = None if where is None else ValidationCache(where)
        #: What is known of the sweep so far.
        self.engine = Engine(config.when, config.constraints)
        self._draining = Draining(self.clock)
        self._stopping = StoppingCriteria(self.fail)
        #: Where validations run.
        self.executor = executor or executor_of(config, cache)
        #: How trials and validations share the cluster, as far as that is known.
        self.shares = Shares()
        #: Runs the validations.
        self.validator = Validator(config, self.executor, self.clock, emit=self.emit, cache=cache)
        #: The further stages, by name.
        self.stages: dict[str, StageEvaluation] = {}
        for stage in config.stages:
            self.stages[stage.name] = StageEvaluation(
                stage,
                (self._stage_executors or {}).get(stage.name) or executor_of(stage, cache),
                self.clock,
                engine=self.engine,
                trials=self.trials,
                earlier=self.validators,
                emit=self.emit,
                cache=cache,
            )
        self._failures = FailureReports(config, self.engine)
        self._optimizers = Optimizers(self.ancestry)

    @property
    def validators(self) -> list[Validator]:
        """Return what runs validations: those that schedulers judge by, and further stages."""
        return [self.validator, *self.stages.values()]

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

    def _searched_names(self) -> Collection[str]:
        """Return the hyperparameters that are searched, by flat name, as far as that is known."""
        return self.searched or ()

    def _goal(self) -> tuple[frozenset[str], str | None]:
        """Return the metrics to judge by, and which values are better."""
        return self.engine.required, None if self.controller is None else self.user_scheduler.mode

    def share(
        self,
        cluster: Mapping[str, float],
        bundles: Sequence[Mapping[str, float]],
        *,
        have_workers: bool = False,
    ) -> bool:
        """Let trials and validations share a cluster.

        Args:
            cluster: What it has, by name of the resource.
            bundles: What a trial takes, in each place.
            have_workers: Whether trials are runs of a trainer, whose workers have a bundle each.

        Returns:
            Whether checkpoints are validated in the processes of trials that wait.
        """
        most, need = self.config.most_in_flight or 1, self.executor.need
        known = shares(cluster, total(*bundles), need, most=most)
        self.shares = replace(known, have_workers=have_workers)
        stands = self.config.on_pending != "continue"
        return stands and self.executor.fits_in(self.shares.processes(bundles))

    @property
    def best_in_full(self) -> bool:
        """Return whether what may be the best score so far is evaluated in full.

        Unless ``sequential`` says, it is if the winner is not confirmed in the end.
        """
        said = None if self.config.sequential is None else self.config.sequential.best_in_full
        return self.confirm is None if said is None else said

    # Wiring ------------------------------------------------------------------------------------

    def attach(self, controller: Controller, state: SchedulerState) -> None:
        """Become part of a sweep; the scheduler calls this when Tune adds the first trial.

        Args:
            controller: The sweep's controller.
            state: Its scheduler, as it is saved.
        """
        self.controller, emit = controller, self.emit
        if self.keeps_apart:
            controller.keep_apart()
        #: The user's scheduler.
        self.user_scheduler = user_scheduler = UserScheduler(
            state, controller, self.engine, self.validator, emit
        )
        #: Lets it choose.
        self.next_trial = NextTrial(user_scheduler, controller, emit=emit)
        controller.added = self.engine.added
        searcher = ValidatedSearcher.within(controller)
        #: Which trials wait, and what may use their places.
        self.waiting = waiting = Waiting(
            self.config,
            self.trials,
            self.engine,
            self._stopping,
            self.validator,
            self.clock,
            controller,
            user_scheduler,
            shares=self.shares,
            best_in_full=self.best_in_full,
            draining=lambda: self._draining.waits,
        )
        self.validator.around = waiting
        for stage in self.stages.values():
            stage.follow(waiting)
        #: Brings trials to where the scheduler believes them to be.
        self.actions = TrialActions(
            user_scheduler, controller, self.engine, waiting, self.validator, self.clock, emit=emit
        )
        #: Takes up what is asked for by hand.
        self.by_hand = ByHand(
            self.ledger,
            self.engine,
            self.trials,
            controller,
            self.actions,
            self.clock,
            space=lambda: self.searched or {},
            emit=emit,
        )
        #: What the scheduler and the searcher are given.
        self.deliveries = Deliveries(
            self.engine,
            self.trials,
            user_scheduler,
            self.next_trial,
            searcher,
            self._stopping,
            emit=emit,
        )
        #: What was reported and saved, and has to be validated.
        self.requests = Requests(
            self.config, self.engine, self.trials, self.validator, user_scheduler, self.waiting
        )
        #: Shows scores in Tune's trials, and writes their files.
        self.files = TrialFiles(
            self.engine,
            [stage.state for stage in self.stages.values()],
            changed=controller.changed,
            finalized=partial(self._tell, "on_trial_settled"),
        )
        self._display = display = self._display or Display(self)
        self._end = SweepEnd(
            controller,
            self._draining,
            display,
            engine=self.engine,
            validators=self.validators,
            deliveries=self.deliveries,
            files=self.files,
            failures=self._failures,
            emit=emit,
        )
        self.listeners = controller.callbacks
        for listener in self.listeners:
            if isinstance(listener, ValidatedLoggerCallback):
                listener.attach(self.engine.undecided, self.history.names.keys)
            if isinstance(listener, AtDecisions):
                listener.attach(waiting.saves)
        goals = {*controller.take_over_metric_check(), *user_scheduler.objectives}
        self._judge_by(*goals, *(one.metric for one in self.config.constraints))
        self._stopping.attach(controller, lambda: self.engine.required | self.history.names.keys())
        controller.look_at_reports_first(receive)
        self._open_experiment(controller, state, goals)
        if searcher is not None:
            searcher.attach(self.validator.poll, self.config.constraints, self.engine.added)
            self._judge_by(*searcher.objectives)
        display.attach(controller)
        controller.heed(
            pending=lambda: self._end.pending, places=waiting.places, lacking=waiting.lacking
        )

    def _judge_by(self, *more: str) -> None:
        """Note by which metrics the sweep is judged, and whether every score is used."""
        scheduler, names = self.user_scheduler, self.engine.required.union(more)
        all_count = self.deliveries.searcher is not None or self._stopping.by_scores
        judged_by = JudgedBy(names, all_count, scheduler.objectives, scheduler.mode)
        if judged_by != self.engine.judged_by:
            self.emit(judged_by)

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
        if self.home.folder is not None or self.controller is None:
            return self.home.folder or "PATH"
        return str(self.controller.storage.experiment_fs_path)

    def adopt(self, trial: Trial) -> None:
        """Take a trial: a new one, or one of a restored experiment."""
        self.trials[trial.trial_id] = trial
        if self.controller is not None:
            self.controller.bring_home(trial)
        start = None if self.warm_start is None else self.warm_start.checkpoint_for(trial.config)
        if start is not None and latest_checkpoint(trial) is None and not trial.is_finished():
            start_from(trial, start)
        self._watch(trial)
        self._stopping.restore(trial, self._restore.past)
        self.ledger.add(trial)
        self._stopping.take_over(trial, self.engine.required)
        self._judge_by()

    # From the report to the request ------------------------------------------------------------

    def setup(self, **info: Any) -> None:
        """Called by Tune before the sweep begins."""
        controller, restore = self.controller, self._restore
        if self._run_by_ray:
            raise RestoreError(_NOT_BY_RAY.format(how_to_resume(self._where(), self.trainable)))
        if self._display is not None:
            self._display.begin()
        if self._refused is not None:
            raise self._refused
        if restore.searched is not None and not (controller and controller.resumed):
            raise RestoreError(
                "Tune could not restore the sweep, for the reason that it has logged above, and "
                "would begin a new one. Its files are as they were: fix that, and restore again."
            )
        if controller is None:
            return
        if controller.resumed:
            controller.begin_anew()
        controller.look_at_reports_first(receive)
        if restore.past:
            told = restore.replay(controller)
            self._take_over_new_criteria()
            for trial_id, before in told.items():
                self._tell("on_trial_restored", self.trials[trial_id], before)
            restore.resume(controller)
            self.by_hand.look()
        if self._end.conclude_restored(list(self.trials.values())):
            self._raise_error()
            self._end.note()
        self._delete_surplus(controller)

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Called by Tune when a trial's actor is up, including after a pause or a failure."""
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
        """Called by Tune with each report, after the scheduler and before the loggers."""
        reported = self.requests.reported(trial, result)
        self._failures.reported(trial, result, self.listeners)
        self._optimizers.reported(trial)
        self.emit(reported)
        self.validator.pool.durations.reported(trial.trial_id, self.clock.monotonic())
        self.files.reported(trial)

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Called by Tune when a trial has saved: decide whether to validate the checkpoint."""
        self.validator.pool.durations.saved(trial.trial_id, self.clock.monotonic())
        saved = self.requests.saved(trial)
        if saved is not None:
            self.emit(saved)
        self.engine.leases.touch(trial.trial_id)

    # Steps and the end -------------------------------------------------------------------------

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Called by Tune after each event it has handled."""
        controller = self.controller
        if controller is None:
            return  # no trial was added yet
        self._end.note_end_of_time(trials)
        self._keep()
        at_once = controller.woken()
        for validator in self.validators:
            validator.poll(at_once=at_once)
        self._optimizers.warn()
        self.by_hand.look()
        self.files.show()
        self.actions.act()
        self._end.step(trials)
        self._note_slots(controller)
        self._raise_error()
        self._end.note()
        if os.environ.get(CHECK):
            left = filter(self.user_scheduler.hears, self.engine.undelivered())
            self._refuse([f"what is due of trial {one} was not delivered" for one in left], "now")
            under_way = {one.id for one in self.validator.pool.pending()}
            lost = self.engine.backlog.unfinished.keys() - under_way
            self._refuse([f"{one} was requested, and is not validated" for one in lost], "now")
        self._delete_surplus(controller)
        controller.wake_on([one for v in self.validators for one in v.awaited()])
        self.waiting.spare()
        if controller.awaits_nothing and not self.validator.idle:
            self._pause()

    def _note_slots(self, controller: Controller) -> None:
        """Record which trials have got their resources, and which have given them back."""
        former, self._slots = self._slots, controller.slots()
        for trial_id in former:
            if trial_id not in self._slots:
                self.emit(SlotReleased(trial_id=trial_id))
        for trial_id, trial in self._slots.items():
            if trial_id not in former:
                self.emit(SlotTaken(trial_id=trial_id, resources=controller.needs_of(trial)))

    def _watch(self, trial: Trial) -> None:
        """Let a trial's checkpoints be kept as long as somebody needs them."""
        LeasingCheckpointManager.install(trial, self.engine.leases, lambda: self.unreported)

    def _delete_surplus(self, controller: Controller) -> None:
        """Delete the checkpoints that nobody needs and that are too many, of trials of this step.

        Once the step is over: whoever is to have a lease on one has it by then.
        """
        for trial_id in self.engine.leases.take_touched():
            trial = self.trials.get(trial_id)  # not a donor that a restored experiment has lost
            manager = None if trial is None else LeasingCheckpointManager.of(trial)
            if trial is not None and manager is not None:
                manager.prune()
                controller.changed(trial)

    def _pause(self) -> None:
        """Sleep a little: Tune would take its next step at once, and find nothing new."""
        left = self._paused_at + _PAUSE_S - self.clock.monotonic()
        if left > 0:
            self.clock.sleep(left)
        self._paused_at = self.clock.monotonic()

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Called by Tune when a trial has ended by itself or was stopped, and before its actor."""
        if self.waiting.validates_last(trial):
            self.validator.validate_last(trial)
        self._failures.ended(trial)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Called by Tune when a trial has failed for good: its validations are given up."""
        self.emit(TrialErrored(trial_id=trial.trial_id))
        for validator in self.validators:
            validator.drop(trial.trial_id, "its trial failed")
        self.user_scheduler.fail(self.user_scheduler.proxies.of(trial))

    def ended(self, trial: Trial, *, removed: bool = False) -> None:
        """Record that a trial has ended, which the scheduler is told after its last score.

        Args:
            trial: The trial.
            removed: Whether it ended while it was not running.
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
        """Called by Tune last: what has not ended was interrupted, and is given up here."""
        self._keep()
        self.has_ended = self.controller is not None and self._end.has_ended
        self._draining.broken_off()
        for validator in self.validators:
            validator.close()
        self._close(finished=self.has_ended)

    def break_off(self) -> None:
        """Record the end of the session where the process ends without Tune."""
        self._close(finished=False)

    def _close(self, *, finished: bool) -> None:
        self.emit(SessionClosed(finished=finished))
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

    def fail(self, error: TunekitError | None) -> None:
        """End the sweep with an error, if it is one, at the end of the current step."""
        self._end.error = self._end.error or error

    def _raise_error(self) -> None:
        """Raise the error that the sweep ends with, if any; Tune saves the sweep before."""
        if self._end.error is not None:
            if self._refused is None and self.controller is not None:
                self.controller.save()
            raise self._end.error

    # Events in, commands out -------------------------------------------------------------------

    def emit(self, event: Input) -> None:
        """Record an event and apply it, before anything comes of it.

        While a sweep is being restored, what happens is in the journal already, and has its turn
        there.
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
        if isinstance(event, OfTrial) and not isinstance(event, ValidationRequested):
            for stage in self.stages.values():
                stage.ask()

    def apply(self, event: Input) -> list[Command]:
        """Apply an event; return what follows from it.

        With ``TUNEKIT_CHECK=1``, it raises if a rule is broken.
        """
        commands = self.engine.handle(event)
        of_stages = [one for stage in self.stages.values() for one in stage.state.apply(event)]
        if os.environ.get(CHECK):
            stages = [one for stage in self.stages.values() for one in stage.state.backlog.broken()]
            self._refuse([*self.engine.broken(), *stages], f"after {event!r}")
        return of_stages + commands

    @staticmethod
    def _refuse(broken: list[str], when: str) -> None:
        if broken:
            raise AssertionError(
                f"{'; '.join(broken)}: so it is {when}. That is a fault of tunekit's, not of "
                "yours. Please report it, with the journal."
            )

    def perform(self, command: Command) -> None:
        """Carry out what follows from an event."""
        match command:
            case Ask():
                self.emit(ValidationRequested.of(command.request))
            case Validate():
                self.requests.validate(command.request, again=command.again)
            case Cancel():
                self.validator.reject(command.trial_id)
            case CarryOut():
                self.by_hand.carry_out(command.asked)
            case Fold():
                self._take_over_new_criteria()
                self.files.scored(self.trials[command.outcome.request.trial_id], command.outcome)
            case Show():
                self.files.staged(self.trials[command.outcome.request.trial_id], command.outcome)
            case NoteFailure():
                self.fail(self._failures.failed(command.outcome))
            case PassOver():
                self.fail(self._failures.passed_over(command.scored))
            case Notify():
                self._notify(command.outcome)
            case Deliver():
                self.deliveries.deliver(command.trial_id)
            case _:
                assert_never(command)

    def _take_over_new_criteria(self) -> None:
        """Keep criteria from Tune on metrics that validation has come to produce."""
        self._stopping.take_over_new(self.trials.values(), self.history.names)
        self._judge_by()

    def _notify(self, outcome: Outcome) -> None:
        """Give a score to the loggers that can take it."""
        request = outcome.request
        report = hide(request.report, self.unreported)
        self._tell("on_trial_validated", self.trials[request.trial_id], report, outcome.shown)

    def _tell(self, hook: str, *known: Any) -> None:
        """Call a hook of tunekit's on the callbacks that have it."""
        for listener in self.listeners:
            if hasattr(listener, hook):
                getattr(listener, hook)(*known)

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
        ended = {status.value: self.engine.backlog.counts[status] for status in Status}
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
        left_over = [t for t in self.trials.values() if not t.is_finished()]
        left = len(left_over)
        waiting = sum(self.waiting.waits(t.trial_id) is not None for t in left_over)
        lines = [
            counted(self.summary()),
            *(counted(one.summary(), f"Stage {name}") for name, one in self.stages.items()),
            waiting_trials(waiting, left),
            starved(self.validator.starved_s()),
            paused_by_hand(self.engine.paused_by_hand),
            self._draining.awaited([one for v in self.validators for one in v.statuses()]),
        ]
        return [line for line in lines if line is not None]

    @property
    def judged_by(self) -> list[str]:
        """Return the sweep's objectives."""
        return sorted(self.engine.required)

    @property
    def validated_names(self) -> Collection[str]:
        """Return the metrics that validation has produced."""
        return self.history.names.keys()

    @property
    def unreported(self) -> Collection[str]:
        """Return the metrics for which only validated values count."""
        return self.engine.undecided() | self.history.names.keys()

    def timing(self) -> dict[str, Any]:
        """Return where time went, in seconds, and what it cost.

        - ``validations_ran_s``: how long validations ran, added up;
        - ``trials_waited_s``: how long trials waited for their scores, added up;
        - ``drained_s``: how long the sweep went on after its last trial had ended;
        - ``cost``: hours of ``CPU`` and of ``GPU`` that trials and validations held, each by
          ``training``, ``validation`` and ``waiting``.

        Example:
            >>> config = ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.9})
            >>> timing = ValidationCallback(config).timing()
            >>> timing["trials_waited_s"], timing["cost"]["CPU"]
            (0.0, {'training': 0.0, 'validation': 0.0, 'waiting': 0.0})
        """
        return {
            "validations_ran_s": self.engine.backlog.ran_s
            + sum(stage.state.backlog.ran_s for stage in self.stages.values()),
            "trials_waited_s": self.engine.waited_s,
            "drained_s": self._draining.took_s,
            "cost": self.ledger.cost.hours(),
        }

    def restore(self, searched: int) -> None:
        """Restore the sweep from its files, which were put back.

        Args:
            searched: The line as of which the searcher was saved; 0: as the rest.
        """
        self._restore.searched = searched

    def _open_experiment(
        self, controller: Controller, state: SchedulerState, goals: Collection[str]
    ) -> None:
        """Open the experiment's folder: load what was saved, and open the journal."""
        if self._run_by_ray:
            return
        storage = controller.storage
        try:
            self.ledger.claim(storage)
        except AlreadyRunningError as error:
            self._refused = error  # Tune replaces an error that is raised while it restores
            raise
        restored = self._restore.load(self.ledger, state, storage.storage_filesystem)
        known = about(
            self.clock.time(),
            config=self.config,
            seed_param=self.seed_param,
            judged=goals,
            mode=self.user_scheduler.mode,
            objectives=self.user_scheduler.objectives,
            scheduler=state.scheduler,
            search_alg=controller.search_alg,
            trainable=self.trainable,
            space=self.searched,
            warm_start=None if self.warm_start is None else self.warm_start.source,
        )
        self.ledger.begin(anew=not restored, after=self._restore.as_of, about=known)

    def _keep(self) -> None:
        saved, self._state_taken = self._state_taken, False
        self.ledger.keep(self.controller, saved=saved)

    def get_state(self) -> dict[str, Any]:
        """Return what Tune saves with the experiment: what does not follow from the journal."""
        self._state_taken = True
        state: dict[str, Any] = {"as_of": self.ledger.last}
        scheduler = None if self.controller is None else self.user_scheduler.state.save(self.home)
        # One that cannot be saved is told everything again.
        return state if scheduler is None else {**state, "scheduler": scheduler}

    def set_state(self, state: dict[str, Any]) -> None:
        """Keep what Tune saved with the experiment; it is loaded once the folder is known."""
        self._restore.saved = state
