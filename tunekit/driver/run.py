"""What a running sweep consists of, and what it does at the end of each of Tune's steps."""

from __future__ import annotations

import logging
import sys
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TuneReporterBase
from ray.tune.schedulers import FIFOScheduler

from tunekit._ray.checkpoints import LeasingCheckpointManager
from tunekit._ray.cluster import check_readable
from tunekit._ray.progress import show
from tunekit._ray.scheduler_kinds import controller_in, exhausts, traits_of
from tunekit._ray.searchers import innermost_searcher
from tunekit._ray.tuner import type_and_settings
from tunekit._ray.validating_controller import ValidatingController
from tunekit.config import ValidationConfig
from tunekit.core.events import TrialEnded
from tunekit.core.metrics import VALIDATED_AT
from tunekit.core.shares import Shares
from tunekit.core.state import SweepState
from tunekit.core.sweep import Rules, Sweep
from tunekit.core.timing import Clock
from tunekit.core.validation import Status
from tunekit.core.waiting import Waiting, WaitingRules
from tunekit.driver.ledger import Ledger, about
from tunekit.driver.program import Program
from tunekit.driver.progress import Progress
from tunekit.driver.restore import Restore
from tunekit.driver.saved_scheduler import saved_scheduler
from tunekit.driver.shell import Shell
from tunekit.driver.stopping import StopsByHand
from tunekit.driver.sweep_outcome import SweepOutcome
from tunekit.journal.experiments import check_unused
from tunekit.messages.advice import resume_advice, reuse_advice
from tunekit.messages.formatting import format_counts, format_starved, format_waiting_trials
from tunekit.messages.problems import Problems
from tunekit.messages.progress import SweepProgress
from tunekit.policies import AtDecisions, DefaultPolicy
from tunekit.validating.validator import Validator

logger = logging.getLogger(__name__)

# The pause between steps, in seconds, while a sweep waits only for validations.
_PAUSE_S = 0.02


class Run:
    """A sweep that Tune has begun to run: its parts, which are complete from the start.

    Args:
        config: The settings of the validations.
        program: What the sweep runs.
        restore: What is to be restored.
        shares: How trials and validations share the cluster.
        clock: The sweep's clock.
        ledger: The sweep's records.
        validator: Runs the validations.
        progress: Shows the sweep while it runs, if anything does.
        callback: The sweep's own callback; those after it get validated results.
        tune_controller: The controller, as Tune passes it to a scheduler.
        scheduler: The sweep's :class:`~tunekit.ValidatedScheduler`.
    """

    def __init__(
        self,
        *,
        config: ValidationConfig,
        program: Program,
        restore: Restore,
        shares: Shares,
        clock: Clock,
        ledger: Ledger,
        validator: Validator,
        progress: Progress | None,
        callback: tune.Callback,
        tune_controller: Any,
        scheduler: Any,
    ):
        self.config, self.program, self.restore = config, program, restore
        self.clock, self.ledger, self.validator = clock, ledger, validator
        self.state, self.live = ledger.state, progress
        self.scheduler = scheduler
        #: The trials so far.
        self.trials: dict[str, Trial] = {}
        self.controller: ValidatingController = controller_in(tune_controller)
        controller = self.controller
        self.outcome = SweepOutcome(config, ledger)
        self.waiting = Waiting(
            WaitingRules(
                on_pending=config.on_pending,
                where=config.where,
                synchronous=traits_of(scheduler.scheduler).synchronous,
                decides=type(scheduler.scheduler) is not FIFOScheduler,
            ),
            validator.pool,
            shares,
        )
        task = config.task_config
        rules = Rules(
            when=config.when,
            on_failure=config.on_failure,
            kwargs=task.fn_kwargs or {},
            timeout_s=task.timeout_s,
        )
        self.sweep = Sweep(rules, self.state)
        self.shell = Shell(
            ledger=ledger,
            sweep=self.sweep,
            validator=validator,
            outcome=self.outcome,
            controller=controller,
            trials=self.trials,
        )
        self.stops = StopsByHand(ledger, controller, clock)
        # When the last pause ended, and whether Tune has saved the sweep since the last step.
        self._paused_at, self._has_saved = 0.0, False
        ValidatingController.install(
            controller,
            validation=callback,
            scheduler=scheduler.scheduler,
            sweep=self.sweep,
            waiting=self.waiting,
            do=self.shell.do,
            executor=validator.executor,
            shares=shares,
            clock=clock,
            constraints=config.constraints,
        )
        for listener in controller.callbacks:
            if isinstance(listener, (AtDecisions, DefaultPolicy)):
                listener.attach(controller.facts.saves, controller.capabilities.can_save)
        self._goals = {*controller.session.required_metrics(), *scheduler.objectives}
        self.state.required |= {*self._goals, *(one.metric for one in config.constraints)}

    # Its beginning ------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the experiment's folder: load what is to be restored, and begin a session.

        Raises:
            tunekit.errors.AlreadyRunningError: If another driver runs the sweep.
            tunekit.errors.ConfigError: If validations could not read the folder, or if an
                unfinished sweep is in it.
        """
        storage, problems = self.controller.session.storage, Problems("Tuner.fit")
        check_readable(
            storage.experiment_fs_path,
            storage.storage_filesystem,
            self.validator.executor.need,
            self.config.ray_remote_kwargs,
            problems,
        )
        problems.raise_any()
        folder = self.ledger.claim(storage)
        restored = self.restore.load(self.ledger)
        if not restored:
            check_unused(folder, resume_advice(self.where, self.program.trainable), problems)
            problems.raise_any()
        space = self.program.space
        header = {
            **about(self.clock.time(), self.config),
            "required": sorted(self._goals),
            "mode": self.scheduler.mode,
            "objectives": self.scheduler.objectives,
            "scheduler": type_and_settings(self.scheduler.scheduler),
            "search_alg": type_and_settings(innermost_searcher(self.controller.search_alg)),
            "trainable": self.program.trainable,
            **({} if space is None else {"space": space}),
        }
        self.ledger.begin(anew=not restored, after=self.restore.as_of, about=header)
        if self.live is not None:
            metric = next(iter(self._goals)) if len(self._goals) == 1 else None
            sweep = SweepProgress(
                metric, self.scheduler.mode, self.config.constraints, self.restore.past
            )
            self.live.begin(sweep)
            self.ledger.watchers.append(self.live.see)

    @property
    def where(self) -> str:
        """Return the location of the experiment."""
        return self.ledger.home.folder or str(self.controller.session.storage.experiment_fs_path)

    def show_in(self, reporter: TuneReporterBase | None) -> None:
        """Show the sweep in Tune's output, and in its reporter for notebooks if there is one."""
        columns = [*sorted(self.state.required), VALIDATED_AT]
        show(self.progress, columns, self.controller.callbacks, reporter)

    def adopt(self, trial: Trial) -> None:
        """Add a trial: a new one, or one of a restored experiment."""
        self.trials[trial.trial_id] = trial
        self.controller.session.use_current_folder(trial)
        # As Tune does when it schedules an actor: every record of the trial names the same folder.
        trial.init_local_path()
        self.checkpoints_of(trial)
        self.ledger.add(trial)

    def checkpoints_of(self, trial: Trial) -> LeasingCheckpointManager:
        """Return the manager of a trial's checkpoints, which keeps those that are needed."""
        return LeasingCheckpointManager.of(trial, self.state.leases)

    def begin(self) -> None:
        """Bring a restored sweep to where it was interrupted, before Tune takes a step."""
        controller = self.controller
        if controller.resumed:
            controller.session.begin()
        if self.restore.is_due:
            self.restore.replay(self.trials, self.shell, self.scheduler)
            self.stops.record()
        if controller.is_finished():
            self.outcome.conclude(list(self.trials.values()), self.sweep.failures)
            self.raise_error()
            self.outcome.ended_by_itself = True
        self._delete_surplus()

    # A step -------------------------------------------------------------------------------------

    def step(self) -> None:
        """Do what follows from the step that Tune has taken; the order matters."""
        # Before the state is kept, because Tune saves the trials that it cuts short as ended.
        self._note_cut_short()
        # Before anything else is recorded: what Tune has saved is as of the line before.
        self._keep()
        # Before validations start, which avoid trials whose nodes end.
        self._look_at_processes()
        # Before all that depends on scores; validations that may run then start.
        self._receive_scores()
        # After the scores, so that a trial that is stopped by hand has its last one.
        self._stop_by_hand()
        # After the last score of the step, which may name the metrics or clear the function.
        self._let_results_flow()
        # After all results, which decide whether trials continue.
        self._let_trials_continue()
        # After all results, because the last one may end the sweep or bring its first score.
        self._end_if_over()
        # After all leases of the step were taken.
        self._delete_surplus()
        # After all that this step records.
        self._show_progress()
        # Last, because whatever has changed may be awaited.
        self._wait_for_what_is_next()

    def _note_cut_short(self) -> None:
        if self.controller.session.cuts_short:
            self.outcome.record_cut_short(self.controller.get_trials())

    def _keep(self) -> None:
        saved, self._has_saved = self._has_saved, False
        self.ledger.keep(self.controller.session, saved=saved)

    def _look_at_processes(self) -> None:
        now = self.clock.monotonic()
        self.controller.ending.check(now)
        for trial in self.controller.processes.begun():
            self.waiting.starts.begins(trial.trial_id, now)

    def _receive_scores(self) -> None:
        validator, waiting, facts = self.validator, self.waiting, self.controller.facts
        if not validator.is_due(at_once=self.controller.waker.woken()):
            return
        self.shell.end(validator.poll())
        if validator.pool.queued:
            promised = self.controller.processes.promised
            asks = validator.pool.needs_capacity
            capacity = validator.executor.capacity(promised()) if asks else 0
            self.shell.do(waiting.start(facts.situation(), capacity, facts.waiting_trials()))
        validator.look()

    def _stop_by_hand(self) -> None:
        self.stops.record()
        self.stops.carry_out()

    def _let_results_flow(self) -> None:
        self.shell.do(self.sweep.flow())

    def _let_trials_continue(self) -> None:
        facts, processes = self.controller.facts, self.controller.processes
        if self.validator.pool.starved_s(facts.now):
            count = sum(processes.has_actor(trial) for trial in processes.running)
            trials = list(facts.waiting_trials())
            self.shell.do(self.waiting.relieve(facts.situation(), trials, count))
        self.controller.queues.continue_waiting()

    def _end_if_over(self) -> None:
        if finished := self.controller.is_finished():
            self.outcome.conclude(self.controller.get_trials(), self.sweep.failures)
        self.raise_error()
        self.outcome.ended_by_itself = finished

    def _delete_surplus(self) -> None:
        """Delete checkpoints that are no longer needed, of the trials that changed in this step."""
        for trial_id in self.state.leases.pop_touched():
            trial = self.trials.get(trial_id)  # None: a donor that a restored experiment lacks
            if trial is not None:
                self.checkpoints_of(trial).prune()
                self.controller.session.mark_changed(trial)

    def _show_progress(self) -> None:
        if self.live is not None:
            self.live.look(self._status)

    def _status(self, sweep: SweepProgress) -> str:
        processes, waiting = self.controller.processes, self._count_waiting()
        trials = {
            "running": max(0, len(processes.running) - waiting),
            "waiting": waiting,
            "starting": sum(1 for _ in processes.starting()),
        }
        total = len(self.trials) + self.controller.session.trials_to_come
        return sweep.status(self.clock.time(), trials, self.validator.counts(), total=total)

    def _wait_for_what_is_next(self) -> None:
        self.controller.waker.wake_on(self.validator.executor.awaited())
        self._spare()
        if self.controller.processes.awaits_nothing and not self.validator.pool.idle:
            # Tune would take its next step immediately, with nothing to do.
            left = self._paused_at + _PAUSE_S - self.clock.monotonic()
            if left > 0:
                self.clock.sleep(left)
            self._paused_at = self.clock.monotonic()

    def _spare(self) -> None:
        """End idle evaluators if trials need their resources."""
        if self.validator.pool.idle and any(True for _ in self.controller.processes.promised()):
            keep = self.waiting.evaluators_kept(self.controller.facts.situation())
            if keep is not None:
                self.validator.executor.spare(keep)

    def ended(self, trial: Trial) -> None:
        """Record that a trial has finished or was stopped."""
        # Otherwise, it was stopped on the result of another trial, unless the user gave it up, or
        # HyperBand had paused it at its last iteration.
        own = (
            trial in self.controller.processing
            or trial.trial_id in self.restore.given_up
            or exhausts(self.scheduler.scheduler, trial.last_result)
        )
        self.ledger.record(TrialEnded(trial_id=trial.trial_id, removed=not own))
        self.outcome.ended(trial)

    # Its end ------------------------------------------------------------------------------------

    def raise_error(self) -> None:
        """Raise the error that ends the sweep, if any; Tune saves the sweep first."""
        self.outcome.end(self.ledger.lost)
        if (error := self.outcome.error) is not None:
            if self.ledger.lost is None:
                self.controller.checkpoint(force=True, wait=True)
            raise error

    def end(self) -> bool:
        """End the session; return whether the sweep has ended, rather than being interrupted."""
        self._keep()
        ended = self.outcome.has_ended(self.controller.session.trials_to_come)
        if ended and not self.controller.processes.reuses_actors:
            starts = self.waiting.starts
            compiled = Path(cache_from_source(ray.__file__)).exists()
            compiles = sys.dont_write_bytecode and not compiled
            if advice := reuse_advice(starts.avoidable_s, starts.total_s, compiles=compiles):
                logger.info("%s", advice)
        return ended

    def saved_state(self) -> dict[str, Any]:
        """Return what Tune saves of the sweep; it is as of the journal's last line.

        Later lines are replayed (decision 3).
        """
        self._has_saved = True
        # Tune restores paused trials as pending ones.
        cut = self.controller.queues.cut_while_paused  # for the scheduler, they still pause
        paused = [name for name, t in self.trials.items() if t.status == Trial.PAUSED or t in cut]
        saved: dict[str, Any] = {"as_of": self.ledger.last, "paused": paused}
        home = self.ledger.home
        scheduler = saved_scheduler(self.scheduler.scheduler, home, self.trials)
        # Without it, a restored scheduler gets all results again.
        return saved if scheduler is None else {**saved, "scheduler": scheduler}

    # What is shown ------------------------------------------------------------------------------

    def _count_waiting(self) -> int:
        left = (trial for trial in self.trials.values() if not trial.is_finished())
        return sum(self.waiting.waits(trial.trial_id) for trial in left)

    def progress(self) -> list[str]:
        """Return the progress of the validations and of the trials that wait, as lines of text."""
        left = [trial for trial in self.trials.values() if not trial.is_finished()]
        waiting = self._count_waiting()
        lines = [
            format_counts(counts(self.state, self.validator)),
            format_waiting_trials(waiting, len(left)),
            format_starved(self.validator.pool.starved_s(self.clock.monotonic())),
        ]
        return [line for line in lines if line is not None]


def counts(state: SweepState, validator: Validator) -> dict[str, int]:
    """Return the numbers of validations by status: those that have ended, and the pending ones."""
    ended = {status.value: state.counts[status.value] for status in Status}
    return {**ended, **validator.counts()}
