"""Any Tune scheduler, judging by validated results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler

from tunekit._ray.controller import Controller
from tunekit._ray.decisions import innermost, is_synchronous, mode_of
from tunekit._ray.stand_ins import Version
from tunekit.combinations import wrong_together
from tunekit.core.confidence import Interval
from tunekit.core.delivery import Scored
from tunekit.core.events import Event
from tunekit.core.lineage import Exploit
from tunekit.core.problems import Problems
from tunekit.core.reconcile import Desired
from tunekit.core.validation import Request
from tunekit.driver.callback import ValidationCallback
from tunekit.errors import WiringError
from tunekit.journal.places import Places
from tunekit.scheduling.base import BaseScheduler, objectives_of
from tunekit.scheduling.certainty import Certainty
from tunekit.scheduling.next_trial import NextTrial
from tunekit.scheduling.restore import SchedulerRestore
from tunekit.scheduling.searcher import ValidatedSearcher
from tunekit.scheduling.state import SchedulerState
from tunekit.scheduling.trial_actions import TrialActions
from tunekit.validating.validator import Standing

__all__ = ["ValidatedScheduler", "base_of"]


def base_of(scheduler: Any) -> Any:
    """Return the scheduler inside a :class:`ValidatedScheduler`; any other is returned as is."""
    return scheduler.base if isinstance(scheduler, ValidatedScheduler) else scheduler


@dataclass(frozen=True)
class _Sweep:
    """What a scheduler has once Tune has added a trial to it."""

    controller: Controller
    validation: ValidationCallback
    base: BaseScheduler
    next_trial: NextTrial
    actions: TrialActions
    restore: SchedulerRestore
    certainty: Certainty


class ValidatedScheduler(TrialScheduler):
    """Lets an unmodified Tune scheduler see only validated results, in iteration order.

    Each report of a trial goes to the base scheduler once the checkpoint saved with it has been
    validated, merged with its score. Each is delivered once, older iterations of a trial before
    newer ones, and the trial's end after its last score. A report without a validated checkpoint
    never reaches the base scheduler. ``ValidationConfig(on_pending=...)`` says what the trial does
    meanwhile.

    For the base scheduler, each trial is where its newest score was earned: the scheduler pauses,
    stops and resumes it there, and clones it from there. So a population based scheduler clones
    exactly the checkpoint that it has ranked, with the hyperparameters that led to it, however far
    the donor has trained since.

    It needs a :class:`~tunekit.ValidationCallback` among the callbacks of the same sweep.
    ``TuneConfig(metric=...)`` and the scheduler's own metric may name what only validation
    produces. Stopping criteria of ``RunConfig(stop=...)`` that read such a metric are given
    validated results, too.

    Args:
        base: The scheduler; it is not changed.

    Raises:
        tunekit.errors.ConfigError: If ``base`` is not a scheduler, or is wrapped already.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler
        >>> scheduler = ValidatedScheduler(ASHAScheduler(max_t=27, grace_period=1))
    """

    def __init__(self, base: TrialScheduler):
        problems = Problems("ValidatedScheduler")
        if isinstance(base, ValidatedScheduler):
            problems.add("base is a ValidatedScheduler already. Pass the scheduler itself.")
        elif problems.instance(
            "base", base, TrialScheduler, "Pass a scheduler of ray.tune.schedulers."
        ) and isinstance(innermost(base), ValidatedScheduler):
            problems.add(
                "base has a ValidatedScheduler inside. Wrap the outer one only: "
                "ValidatedScheduler(ResourceChangingScheduler(scheduler))."
            )
        problems.raise_any()
        super().__init__()
        self.base = base
        self._mode: str | None = None
        self._state = SchedulerState(base)
        self._stand_ins = self._state.stand_ins
        self._joined: _Sweep | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the base scheduler as it was given; :meth:`get_state` has the rest."""
        return {"base": self.base, "_mode": self._mode}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the base scheduler; the rest begins anew."""
        ValidatedScheduler.__init__(self, state["base"])
        self._mode = state["_mode"]

    @property
    def _sweep(self) -> _Sweep:
        if self._joined is None:
            raise WiringError("Tune has not added a trial to the scheduler: it is in no sweep yet.")
        return self._joined

    def _join(self, tune_controller: Any) -> _Sweep:
        """Return the sweep, and become part of it at first."""
        if self._joined is None:
            controller = Controller(tune_controller)
            validation = self._validation_of(controller)
            self._state.clones.attach(validation.leases, validation.ancestry)
            base = BaseScheduler(self._state, controller, validation)
            self._joined = _Sweep(
                controller,
                validation,
                base,
                NextTrial(
                    base,
                    controller,
                    deliver=validation.deliveries.deliver,
                    emit=validation.emit,
                    time=validation.time,
                ),
                TrialActions(base, controller, validation),
                SchedulerRestore(
                    base,
                    controller,
                    validation.state.delivery,
                    waits=validation.waiting.waits,
                    ended=lambda trial: self.on_trial_complete(controller.wrapped(), trial, {}),
                ),
                Certainty(self._state, controller),
            )
            validation.attach(controller, self, ValidatedSearcher.within(controller))
        return self._joined

    def _validation_of(self, controller: Controller) -> ValidationCallback:
        """Return the sweep's validations, if everything in the sweep goes together."""
        callbacks = [c for c in controller.callbacks if isinstance(c, ValidationCallback)]
        if len(callbacks) != 1:
            raise WiringError(
                f"ValidatedScheduler found {len(callbacks)} ValidationCallbacks among the "
                "sweep's callbacks; it needs one. Put "
                "tunekit.ValidationCallback(tunekit.ValidationConfig(fn=validate)) into "
                "RunConfig(callbacks=[...]), or use tunekit.Tuner."
            )
        problems = Problems("ValidatedScheduler")
        wrong_together(
            self.base,
            on_pending=callbacks[0].config.on_pending,
            reuse_actors=controller.reuses_actors,
            search_alg=controller.search_alg,
            problems=problems,
        )
        problems.raise_any()
        return callbacks[0]

    # What Tune asks before and around the sweep ------------------------------------------------

    @property
    def metric(self) -> None:
        """Return None: Tune must not look for the metric in reports, which need not have it."""
        return None

    @property
    def objectives(self) -> set[str]:
        """Return the metric that the base scheduler judges by, if any."""
        return objectives_of(self.base)

    @property
    def compares_all(self) -> bool:
        """Return whether it compares all trials at the same time: synchronous PBT."""
        return is_synchronous(innermost(self.base))

    @property
    def mode(self) -> str | None:
        """Return which values of the metric are better, ``"min"`` or ``"max"``; None if unknown."""
        return self._mode or mode_of(self.base)

    @property
    def supports_buffered_results(self) -> bool:
        """Return False: a trial that waits for a score must not have run ahead."""
        return False

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Hand ``TuneConfig``'s metric and mode to the base scheduler."""
        self._mode = mode or self._mode
        return bool(self.base.set_search_properties(metric, mode, **spec))

    def debug_string(self) -> str:
        """Return the base scheduler's summary, and that of the validations."""
        text = self.base.debug_string()
        if self._joined is None:
            return text
        return "\n".join([text, *self._joined.validation.progress()])

    # What Tune tells while the sweep runs ------------------------------------------------------

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Take a trial that was added, or that is about to be restarted after a failure."""
        sweep, stand_ins = self._join(tune_controller), self._stand_ins
        again, known = trial.trial_id in stand_ins.by_id, trial.trial_id in stand_ins.known
        stand_in = stand_ins.add(trial)
        if again and not known:
            sweep.validation.retried(trial)
            sweep.base.restart(stand_in)
            if stand_in.phase is Desired.PAUSED:  # it goes on when the base scheduler says so
                sweep.controller.set_status(trial, Trial.PAUSED)
        elif not known:
            sweep.base.add(stand_in)
        sweep.validation.adopt(trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Record that a trial failed: it is restarted, or it has failed for good.

        Only of the latter does the base scheduler hear: :meth:`errored`.
        """
        sweep, stand_in = self._join(tune_controller), self._stand_ins.of(trial)
        sweep.validation.failed(trial)
        sweep.actions.stands_no_more(stand_in)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Answer a trial's report: only when it has saved is it known whether it is validated."""
        sweep = self._join(tune_controller)
        sweep.validation.requests.offered(trial.trial_id, result[TRAINING_ITERATION])
        return sweep.actions.answer(self._stand_ins.of(trial), result)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Take the end of a trial; the base scheduler hears of it after the trial's last score."""
        sweep, stand_in = self._join(tune_controller), self._stand_ins.of(trial)
        sweep.actions.begins(stand_in)
        sweep.actions.stands_no_more(stand_in)
        sweep.base.complete(stand_in)
        sweep.validation.deliveries.complete(trial.trial_id)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Take the end of a trial that was not running."""
        sweep = self._join(tune_controller)
        sweep.actions.stands_no_more(self._stand_ins.of(trial))
        sweep.base.conclude(trial)
        sweep.validation.deliveries.complete(trial.trial_id, removed=True)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Return the next trial to start: those that waited for a score first, then the base's."""
        sweep = self._join(tune_controller)
        ready = sweep.actions.first_ready()
        return sweep.next_trial.choose() if ready is None else ready

    def save(self, checkpoint_path: str) -> None:
        """Save the base scheduler, and where it last saw each trial, to a file.

        Raises:
            tunekit.errors.WiringError: If the base scheduler cannot be pickled.
        """
        state = self.get_state()
        if state is None:
            raise WiringError(f"{type(self.base).__name__} cannot be pickled.")
        Path(checkpoint_path).write_bytes(state)

    def restore(self, checkpoint_path: str) -> None:
        """Restore what :meth:`save` saved, before Tune adds the trials."""
        self.set_state(Path(checkpoint_path).read_bytes())

    # What the sweep's validations ask and tell: see tunekit.driver.consumers --------------------

    def started(self, trial: Trial) -> None:
        """Note that a trial's actor is up."""
        self._stand_ins.reopen(self._stand_ins.of(trial))

    def uses(self, trial: Trial, result: Mapping[str, Any]) -> bool:
        """Return whether the base scheduler will use a report's score, or it is the trial's last.

        Call this with each report, as often as you like.
        """
        return self._state.usage.uses(self._stand_ins.of(trial), result)

    def used(self, request: Request) -> bool:
        """Return whether it will use the score of a saved checkpoint."""
        return self._state.usage.used(request)

    def past_last(self, trial_id: str) -> bool:
        """Return whether a trial has reported after the last report that can be decided by."""
        stand_in = self._stand_ins.by_id.get(trial_id)
        return stand_in is not None and self._state.usage.past_last(stand_in)

    def decides_alike(self, request: Request, metric: str, interval: Interval) -> bool:
        """Return whether the base scheduler decides the same wherever in an interval a score is."""
        at, sweep = self._state.usage.serves(request), self._sweep
        stand_in = self._stand_ins.by_id.get(request.trial_id)
        if at is None or stand_in is None or metric not in self.objectives:
            return True
        return sweep.certainty.decides_alike(stand_in, at, request.report, metric, interval)

    def settled(self, request: Request) -> None:
        """Note that the score of a checkpoint was delivered, or never will be.

        From now on the scheduler's books show the score, or a later one takes its place.
        """
        sweep = self._sweep
        sweep.actions.settled(request.trial_id)
        if request.generation == sweep.validation.ancestry.generation(request.trial_id):
            self._state.usage.heard(request)

    def hears(self, trial_id: str) -> bool:
        """Return whether the base scheduler may get a result of the trial now, or its end."""
        return self._sweep.base.hears(trial_id)

    def judge(
        self, trial: Trial, result: dict[str, Any], scored: Scored, decided: str | None = None
    ) -> str:
        """Give the base scheduler a validated result of a trial; return what it decided."""
        return self._sweep.base.judge(trial, result, scored, decided)

    def has_run_its_course(self, trial_id: str) -> bool:
        """Return whether a trial that was stopped had run its course."""
        return self._sweep.base.has_run_its_course(trial_id)

    def finish(self, trial: Trial, result: Mapping[str, Any] | None) -> None:
        """Tell the base scheduler of a trial's end, when it has got all of the trial's results."""
        self._sweep.base.finish(trial, result)

    def errored(self, trial: Trial) -> None:
        """Tell the base scheduler that a trial has failed for good: it is no longer cloned."""
        self._sweep.base.fail(self._stand_ins.of(trial))

    def conclude(self, trial: Trial) -> None:
        """End a trial at the sweep's end, whatever the base scheduler was about to do with it."""
        self._sweep.base.conclude(trial)

    def advance(self) -> None:
        """Let the base scheduler choose from ended trials whose end it has not heard of."""
        self._sweep.next_trial.advance()

    def act(self) -> None:
        """Carry out what is known: let trials go on, wait in the way they should, or stop."""
        self._sweep.actions.act()

    def standing(self) -> dict[str, Standing]:
        """Return the trials that stand still: they wait for a score, or were stopped."""
        return self._sweep.actions.standing()

    def get_state(self, places: Places | None = None) -> bytes | None:
        """Return the base scheduler and what it knows of trials; None if it cannot be pickled."""
        return self._state.save(places or Places())

    def set_state(self, saved: bytes, places: Places | None = None) -> None:
        """Load what :meth:`get_state` returned, before Tune adds the trials."""
        joined = self._joined
        filesystem = None if joined is None else joined.controller.storage.storage_filesystem
        self._state.load(saved, places or Places(), filesystem=filesystem)

    def take_leases(self) -> None:
        """Take again the leases that the saved sweep had for cloning."""
        self._sweep.base.take_leases()

    def catch_up(self, event: Event, trial: Trial) -> None:
        """Repeat what was done before the sweep was interrupted."""
        self._sweep.restore.catch_up(event, trial)

    def judge_again(
        self, trial: Trial, result: dict[str, Any], scored: Scored, decided: str
    ) -> str:
        """Give the base scheduler a result again; what it ``decided`` before holds."""
        return self._sweep.restore.judge_again(trial, result, scored, decided)

    def exploit_again(
        self, trial: Trial, exploit: Exploit, version: Version | None, *, carried_out: bool
    ) -> None:
        """Overwrite a trial as before; ``carried_out``: Tune's trial is overwritten already."""
        self._sweep.restore.exploit_again(trial, exploit, version, carried_out=carried_out)

    def retried(self, trial: Trial) -> None:
        """Take a trial that failed, or had to stop, and is started again."""
        self._sweep.base.restart(self._stand_ins.of(trial))

    def resume(self) -> None:
        """Put each trial where it stood when the sweep was interrupted."""
        self._sweep.restore.resume()
