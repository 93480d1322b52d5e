"""Tune's controller, except that it processes a result only once it is validated.

Every part of Tune that gets results gets validated ones, each once and in the order of reports:
stoppers, the scheduler, the searcher, loggers, ``trial.last_result``, the checkpoint manager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ray.tune.callback import Callback
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import BasicVariantGenerator

from tunekit._ray.actor_reuse import ActorReuse, NotReset
from tunekit._ray.capabilities import Capabilities
from tunekit._ray.compat import become, check_controller, overriding
from tunekit._ray.ending_processes import EndingProcesses
from tunekit._ray.exploits import Exploits
from tunekit._ray.facts import Facts
from tunekit._ray.inquiries import Inquiries
from tunekit._ray.processes import Processes
from tunekit._ray.processing import Processing, Unscored
from tunekit._ray.queues import Queues
from tunekit._ray.session import Session
from tunekit._ray.split_callbacks import SplitCallbacks
from tunekit._ray.waker import Waker
from tunekit.core.commands import Command
from tunekit.core.constraints import Constraint
from tunekit.core.executor import Executor
from tunekit.core.shares import Shares
from tunekit.core.sweep import Sweep
from tunekit.core.timing import Clock
from tunekit.core.waiting import Waiting


class ValidatingController(TuneController):
    """Tune's controller, which gets each result of a trial once it is validated.

    A running controller becomes one: ``ValidatingController.install(controller, ...)``. Every other
    method replaces one of Tune's, and asks the object whose topic it is.
    """

    _callbacks: Any

    def install(
        self,
        *,
        validation: Callback,
        scheduler: TrialScheduler,
        sweep: Sweep,
        waiting: Waiting,
        do: Callable[[Sequence[Command]], None],
        executor: Executor,
        shares: Shares,
        clock: Clock,
        constraints: Sequence[Constraint],
    ) -> None:
        """Change a controller of Tune's that has not processed a result into a validating one.

        Args:
            validation: The callback before which callbacks get each report immediately, as training
                made it; the others get the validated result.
            scheduler: The user's scheduler.
            sweep: Says what follows from the facts that are found here about reports.
            waiting: Says what trials do that wait, and how many may have a process.
            do: Carries that out.
            executor: Runs the validations.
            shares: How trials and validations share the cluster.
            clock: The sweep's clock.
            constraints: The constraints on scores.
        """
        check_controller(self)
        # Tune creates its own controller and accepts no other. Only the controller can hold back a
        # result from all its recipients (decision 1).
        become(self, ValidatingController)
        saved = set(vars(self))
        self.sweep, self.waiting, self.do = sweep, waiting, do
        #: The callbacks, in the order in which they are called.
        self.callbacks: list[Any] = list(self._callbacks._callbacks)
        first = self.callbacks.index(validation)
        self._callbacks = SplitCallbacks(self.callbacks, first, sweep)
        self.session = Session(self)
        self.capabilities = Capabilities(self)
        self.waker = Waker(self)
        self.processes = Processes(self)
        self.ending = EndingProcesses(self, waiting.pool.ended_hosts)
        self.reuse = ActorReuse(self)
        self.facts = Facts(self, scheduler, executor, shares, clock)
        self.exploits = Exploits(self, scheduler)
        self.processing = Processing(self, constraints)
        self.queues = Queues(self)
        self.inquiries = Inquiries(self)
        self._unsaved = {"_unsaved", *vars(self).keys() - saved}

    # The sweep ---------------------------------------------------------------------------------

    # Tune saves every attribute that it does not exclude by name; ours are not saved.
    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name not in self._unsaved}

    # Tune looks at trials alone. In a restored sweep, validations of ended trials may be pending.
    def is_finished(self) -> bool:
        return bool(super().is_finished()) and self.waiting.pool.idle

    # Tune creates a trial for each that starts; here, several are created at once, because the
    # search algorithm is recorded each time (decision 3). The time matters only if it learns from
    # results.
    def _maybe_update_trial_queue(self) -> None:
        has_enough = len(self._pending_trials) > self._max_pending_trials * 3 // 4
        if not (has_enough and isinstance(self.search_alg, BasicVariantGenerator)):
            super()._maybe_update_trial_queue()

    # Synchronous PBT waits for live trials. Tune counts failed ones among them, but not those that
    # were continued after they had ended. Nor does it save one that another's result has changed.
    def _set_trial_status(self, trial: Trial, status: str) -> None:
        super()._set_trial_status(trial, status)
        if trial.is_finished():
            self._live_trials.discard(trial)
        else:
            self._live_trials.add(trial)
        self._mark_trial_to_checkpoint(trial)

    # When Tune stops all trials, it is not a decision on what they have trained: what waits stays
    # pending, because a restored sweep continues.
    def _stop_experiment_if_needed(self) -> None:
        if self.queues.drain:
            self.queues.end_iterations()
            return
        paused = set(self._paused_trials)
        self.queues.ends = True
        super()._stop_experiment_if_needed()
        self.queues.ends = False
        self.queues.cut_while_paused |= paused - self._paused_trials

    def _cleanup_trials(self) -> None:
        self.queues.closing = True
        super()._cleanup_trials()

    # Reports and failures arrive ---------------------------------------------------------------

    # Tune processes a report or a failure as it arrives; here, it joins the trial's queue.
    def _on_training_result(self, trial: Trial, result: Any) -> None:
        self.queues.receive(trial, result)

    def _trial_task_failure(self, trial: Trial, exception: Exception) -> None:
        self.queues.fail(trial, exception)

    # Tune only registers the checkpoint; here, the reports that the save has held back follow.
    def _on_saving_result(self, trial: Trial, checkpoint_value: Any) -> None:
        super()._on_saving_result(trial, checkpoint_value)
        self.queues.advance(trial)

    # Tune processes a result -------------------------------------------------------------------

    # Tune raises if a result lacks the sweep's metric, as one without a score does.
    def _validate_result_metrics(self, result: Any) -> None:
        if not isinstance(self._scheduler_alg, Unscored):
            super()._validate_result_metrics(result)

    # Tune carries out its decision; here, it is recorded first, or replaced by a recorded one.
    def _process_trial_result(self, trial: Trial, result: dict[str, Any]) -> Any:
        return self.processing.decided(trial, super()._process_trial_result(trial, result))

    # Tune saves a trial after its result; here, it was saved when the report arrived.
    def _checkpoint_trial_if_needed(self, trial: Trial, force: bool = False) -> None:
        if trial not in self.processing:
            super()._checkpoint_trial_if_needed(trial, force=force)
        elif self.processing.needs_save(trial, force=force) and not self.queues.moved_on(trial):
            super()._schedule_trial_save(trial)

    # Tune saves the newest weights; here, a pause or a clone gets those that were ranked.
    def _schedule_trial_save(self, trial: Trial, result: Any = None) -> Any:
        return self.processing.save(trial, result)

    # Tune gives the search algorithm the last result; here, it gets one only with a score.
    def stop_trial(self, trial: Trial) -> None:
        self.processing.show_newest(trial)
        with overriding(self, _search_alg=self.processing.searching(scored=False)):
            super().stop_trial(trial)

    # Trials train, pause and stop --------------------------------------------------------------

    # Tune starts the next iteration at once; here, the rest of the trial's reports come first, and
    # what is next for a trial whose result is being processed follows afterwards. A loop that has
    # asked for its scores is answered before it goes on.
    def _schedule_trial_train(self, trial: Trial) -> None:
        if trial in self.processing:
            return
        if trial in self.processing.idle:
            self.processing.idle.discard(trial)
            self.queues.advance(trial)
        elif trial not in self.processes.training:
            self.processes.training.add(trial)
            self.inquiries.answer(trial)
            super()._schedule_trial_train(trial)

    # Tune ignores the pause of a trial without an actor; here, it may have released its slot.
    def _schedule_trial_pause(self, trial: Trial, should_checkpoint: bool = True) -> None:
        if trial in self._trial_to_actor:
            with self.reuse.pausing(trial):
                super()._schedule_trial_pause(trial, should_checkpoint=should_checkpoint)
        elif trial.status == Trial.RUNNING:
            self.queues.drop(trial)
            self._set_trial_status(trial, Trial.PAUSED)

    # Tune knows nothing of reports that wait, which the decision has made void, and keeps an actor
    # for another trial even if its node ends or its iteration is long.
    def _schedule_trial_stop(self, trial: Trial, exception: Exception | None = None) -> None:
        if self.queues.ends and self.queues.drain:
            return
        self.queues.drop(trial)
        with self.reuse.stopping(trial):
            super()._schedule_trial_stop(trial, exception=exception)

    # Trials start in processes -----------------------------------------------------------------

    # Tune requests the resources of many trials in advance; here, those that validations leave.
    def _maybe_add_actors(self) -> None:
        self.processes.start()

    # Tune starts trials in the order of their requests; here, those that released slots come first.
    def _schedule_trial_actor(self, trial: Trial) -> None:
        super()._schedule_trial_actor(trial)
        self.processes.requested(trial)

    # Tune takes any cached actor; here, a trial leaves it to others if its own is about to start.
    def _maybe_reuse_cached_actor(self, trial: Trial) -> bool:
        return self.reuse.take(trial)

    # Tune caches actors for any trial; here, a trial with workers keeps its own while it pauses.
    def _maybe_cache_trial_actor(self, trial: Trial) -> bool:
        return self.reuse.keep(trial)

    # Tune also ends cached actors that pending trials would use in the next step.
    def _cleanup_cached_actors(self, force_all: bool = False) -> None:
        self.reuse.clean_up(force_all=force_all)

    # Tune ends a trial that cannot start in another's process; here, it starts in one of its own.
    def _on_trial_reset(self, trial: Trial, success: bool) -> None:
        if success:
            super()._on_trial_reset(trial, success)
        else:
            self._process_trial_failure(trial, NotReset(trial.trial_id))

    # Tune counts every failure; here, not those that another trial in the process may have caused.
    def _process_trial_failure(self, trial: Trial, exception: Any) -> None:
        self.reuse.fail(trial, exception)
