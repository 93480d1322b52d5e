"""Any Tune scheduler, judging by validated results."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.result import DEFAULT_METRIC, DONE, TRAINING_ITERATION
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTrainingReplay,
    TrialScheduler,
)

from tunekit._ray.checkpoints import latest_checkpoint
from tunekit._ray.controller import Controller
from tunekit._ray.decisions import exhausts, innermost, is_synchronous, mode_of
from tunekit._ray.stand_ins import Change, StandIn, StandInController, Version
from tunekit.callback import ValidationCallback
from tunekit.clones import Clones
from tunekit.combinations import wrong_together
from tunekit.core.delivery import Scored
from tunekit.core.events import (
    Decided,
    Event,
    Reminded,
    Reported,
    Resumed,
    TrialEnded,
    TrialErrored,
    TrialFailed,
    TrialRetried,
    Waited,
)
from tunekit.core.history import GENERATION
from tunekit.core.lineage import Exploit
from tunekit.core.pending import gives_way, stands_still, trains_on
from tunekit.core.problems import Problems
from tunekit.core.reconcile import Action, Actual, Desired, next_action
from tunekit.core.reminders import Reminders
from tunekit.core.turns import Turns
from tunekit.core.validation import Request
from tunekit.errors import WiringError
from tunekit.places import Places
from tunekit.scheduler_state import dump, load
from tunekit.schedulers import PromotionASHA
from tunekit.score_usage import ScoreUsage
from tunekit.searcher import ValidatedSearcher

__all__ = ["ValidatedScheduler", "base_of"]

logger = logging.getLogger(__name__)

# A momentary shortage pauses nobody.
_STARVED_S = 2.0

# Schedulers that clone no checkpoints.
_CLONE_NOTHING = (
    FIFOScheduler,
    AsyncHyperBandScheduler,
    HyperBandScheduler,
    HyperBandForBOHB,
    MedianStoppingRule,
    PromotionASHA,
)


def base_of(scheduler: Any) -> Any:
    """Return the scheduler inside a :class:`ValidatedScheduler`; any other is returned as is."""
    return scheduler.base if isinstance(scheduler, ValidatedScheduler) else scheduler


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
        tunekit.ConfigError: If ``base`` is not a scheduler, or is wrapped already.

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
        decides = innermost(base)
        # It takes a restarted trial for a second one, and refuses it.
        self._replays = isinstance(decides, PopulationBasedTrainingReplay)
        self._never_pauses = type(decides) in (FIFOScheduler, AsyncHyperBandScheduler)
        self._may_clone = type(decides) not in _CLONE_NOTHING
        self._waits_for_all = is_synchronous(decides) or (
            isinstance(decides, HyperBandScheduler) and not isinstance(decides, HyperBandForBOHB)
        )
        # The sweep that it is part of, once Tune has added a trial.
        self._sweep: tuple[Controller, ValidationCallback] | None = None
        self._view: StandInController | None = None
        self._stand_ins: dict[str, StandIn] = {}
        # The trials that the base scheduler may start or resume, and the view that has only these.
        self._turns: Turns[StandIn] = Turns()
        self._in_turn: Any = None
        # The trials that something may have to be done about.
        self._open: dict[str, StandIn] = {}
        # The trials that the base scheduler has just done something to.
        self._touched: dict[str, StandIn] = {}
        # What it may clone, and is about to clone.
        self._clones = Clones()
        # Which scores it will use.
        self._usage = ScoreUsage(base)
        # When a trial began to wait for a score.
        self._since: dict[str, float] = {}
        # Trials that gave way and whose scores have arrived.
        self._ready: dict[str, Trial] = {}
        self._told_of_no_state = False
        self._reminders = Reminders()
        # Trials that the base scheduler stopped by a decision that is being replayed.
        self._stopped_before: list[StandIn] = []
        # Trials that were stopped and had run their course.
        self._finished: set[str] = set()
        # Trials of a restored sweep that the base scheduler knows and Tune has not added yet.
        self._known: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Return the base scheduler as it was given; :meth:`get_state` has the rest."""
        return {"base": self.base, "_mode": self._mode}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the base scheduler; an older version pickled everything it had."""
        ValidatedScheduler.__init__(self, state["base"])
        self._mode = state["_mode"]

    @property
    def _controller(self) -> Controller:
        return self._connected[0]

    @property
    def _validation(self) -> ValidationCallback:
        return self._connected[1]

    @property
    def _connected(self) -> tuple[Controller, ValidationCallback]:
        if self._sweep is None:
            raise WiringError("Tune has not added a trial to the scheduler: it is in no sweep yet.")
        return self._sweep

    # What Tune asks before and around the sweep ------------------------------------------------

    @property
    def metric(self) -> None:
        """Return None: Tune must not look for the metric in reports, which need not have it."""
        return None

    @property
    def objectives(self) -> set[str]:
        """Return the metric that the base scheduler judges by, if any."""
        metric = self.base.metric
        return {metric} if isinstance(metric, str) and metric != DEFAULT_METRIC else set()

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
        if self._sweep is None:
            return text
        return "\n".join([text, *self._validation.progress()])

    # What Tune tells while the sweep runs ------------------------------------------------------

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Take a trial that was added, or that is about to be restarted after a failure."""
        validation, again = self._wire(tune_controller), trial.trial_id in self._stand_ins
        stand_in = self._stand_in_of(trial)
        stand_in.real, stand_in.ending = trial, False
        self._turns.add(stand_in, _waits(stand_in))  # Tune has moved it to the end of its trials
        self._open[trial.trial_id] = stand_in
        if trial.trial_id in self._known:
            self._known.discard(trial.trial_id)
        elif again:
            validation.retried(trial)
            self._add_again(stand_in)
        else:
            self.base.on_trial_add(self._view, stand_in)
            self._take_up()
        validation.adopt(trial)

    def _add_again(self, stand_in: StandIn) -> None:
        """Tell the base scheduler of a trial that has failed and starts again."""
        stand_in.ending = False
        if stand_in.phase is not Desired.ENDED and not self._replays:
            self.base.on_trial_add(self._view, stand_in)
            self._take_up()

    def started(self, trial: Trial) -> None:
        """Note that a trial's actor is up."""
        self._open[trial.trial_id] = self._stand_in_of(trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Record that a trial failed; it may be restarted."""
        self._wire(tune_controller).failed(trial)
        self._fail(self._stand_in_of(trial))

    def _fail(self, stand_in: StandIn) -> None:
        self._stands_no_more(stand_in)
        if stand_in.phase is not Desired.ENDED:
            stand_in.phase = Desired.PENDING
            self.base.on_trial_error(self._view, stand_in)
            self._take_up()

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Answer a trial's report: only when it has saved is it known whether it is validated."""
        validation, stand_in = self._wire(tune_controller), self._stand_in_of(trial)
        validation.requests.offered(trial.trial_id, result[TRAINING_ITERATION])
        self._starts(stand_in)
        self._open[trial.trial_id] = stand_in
        if not self._may_stand_still(stand_in, result) and not stand_in.change.restored_from:
            if stand_in.phase is Desired.ENDED:
                return TrialScheduler.STOP
            if stand_in.phase is Desired.PAUSED:
                return TrialScheduler.PAUSE
            return TrialScheduler.CONTINUE
        stand_in.held = True
        return TrialScheduler.NOOP

    def _may_stand_still(self, stand_in: StandIn, result: Mapping[str, Any]) -> bool:
        """Return whether a trial that reports may have to wait for scores.

        If so, it is told to wait. Whether it does depends on whether its report is saved and
        validated.
        """
        on_pending = self._validation.on_pending(stand_in.trial_id)
        if on_pending in ("hold", "pause"):
            return True
        pending = self._validation.state.delivery.decisions(stand_in.trial_id)
        without, with_this = (
            stands_still(on_pending, scores=1, decisions=pending + more) for more in (0, 1)
        )
        return without or (with_this and self._usage.uses(stand_in, result))

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Take the end of a trial; the base scheduler hears of it after the trial's last score."""
        self._starts(self._stand_in_of(trial))
        self._complete(self._stand_in_of(trial))
        self._wire(tune_controller).deliveries.complete(trial.trial_id)

    def _complete(self, stand_in: StandIn) -> None:
        self._stands_no_more(stand_in)
        stand_in.ending = True
        if stand_in.change.restored_from is not None:
            self._void(stand_in)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Take the end of a trial that was not running."""
        stand_in = self._stand_in_of(trial)
        self._stands_no_more(stand_in)
        if stand_in.phase is not Desired.ENDED:
            self._end(stand_in)
        self._wire(tune_controller).deliveries.complete(trial.trial_id, removed=True)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Return the next trial to start: those that waited for a score first, then the base's."""
        self._wire(tune_controller)
        for trial_id, trial in list(self._ready.items()):
            if trial.status == Trial.PAUSED:
                return trial
            del self._ready[trial_id]
        if self._never_pauses and self._controller.all_run:
            return None  # it would look through all trials
        return self._chosen()

    # What it will use --------------------------------------------------------------------------

    def uses(self, trial: Trial, result: Mapping[str, Any]) -> bool:
        """Return whether the base scheduler will use a report's score, or it is the trial's last.

        Call this with each report, as often as you like.
        """
        return self._usage.uses(self._stand_in_of(trial), result)

    def used(self, request: Request) -> bool:
        """Return whether it will use the score of a saved checkpoint."""
        return self._usage.used(request)

    def settled(self, request: Request) -> None:
        """Note that the score of a checkpoint was delivered, or never will be.

        From now on the scheduler's books show the score, or a later one takes its place.
        """
        if not self._validation.waits(request.trial_id):
            # If it waits now, it is because the scheduler has paused it.
            self._waited(request.trial_id)
        if request.generation == self._validation.ancestry.generation(request.trial_id):
            self._usage.heard(request)

    # What the validations tell -----------------------------------------------------------------

    def hears(self, trial_id: str) -> bool:
        """Return whether the base scheduler may get a result of the trial now, or its end.

        Not while it has paused the trial: Tune's schedulers get results of running trials only.
        """
        return self._stand_ins[trial_id].phase in (Desired.RUNNING, Desired.ENDED)

    def judge(
        self, trial: Trial, result: dict[str, Any], scored: Scored, decided: str | None = None
    ) -> str:
        """Give the base scheduler a validated result of a trial; return what it decided.

        The decision is carried out by :meth:`act`, or at the trial's next report. The base
        scheduler may add to the result. In a restored sweep it may have ``decided`` before; that
        decision holds, because it may have been carried out.
        """
        stand_in, request = self._stand_in_of(trial), scored.request
        checkpoint = request.checkpoint or tune.Checkpoint(
            request.path, trial.storage.storage_filesystem
        )
        stand_in.version = Version(
            trial_id=trial.trial_id,
            generation=request.generation,
            iteration=request.iteration,
            checkpoint=checkpoint,
            result=dict(result),
            report=scored.result,
            config=copy.deepcopy(stand_in.config) if self._may_clone else {},
        )
        if self._may_clone:
            self._clones.scored(trial, request.path)
        if self._validation.reached(trial.trial_id, result):
            decision = TrialScheduler.STOP
            self._finished.add(trial.trial_id)
        else:
            stand_in.judging = True
            decision = self.base.on_trial_result(self._view, stand_in, result)
            stand_in.judging = False
            if decision == TrialScheduler.STOP and exhausts(self.base, result):
                self._finished.add(trial.trial_id)
        if decided is not None and decision != decided:
            logger.info(
                "Trial %s, iteration %d: %s, as was decided before the sweep was interrupted.",
                trial.trial_id,
                scored.iteration,
                decided,
            )
            decision = decided
        if decision == TrialScheduler.STOP:
            self._end(stand_in)
        elif decision == TrialScheduler.PAUSE:
            stand_in.pause()
        self._take_up()
        if decided == TrialScheduler.CONTINUE and stand_in.change.restored_from is not None:
            self._void(stand_in)  # it went on as it was
        return decision

    def has_run_its_course(self, trial_id: str) -> bool:
        """Return whether a trial that was stopped had run its course.

        It had if it reached the scheduler's ``max_t``, or a stopping criterion; otherwise it was
        rejected.
        """
        return trial_id in self._finished

    def finish(self, trial: Trial, result: Mapping[str, Any] | None) -> None:
        """Tell the base scheduler of a trial's end, when it has got all of the trial's results.

        It gets the trial's newest validated result, unless it has stopped the trial.
        """
        stand_in = self._stand_in_of(trial)
        if stand_in.phase is not Desired.ENDED:
            if result is None:
                self.base.on_trial_remove(self._view, stand_in)
            else:
                self._validation.reached(trial.trial_id, result)  # stoppers look across trials
                self.base.on_trial_complete(self._view, stand_in, {**result, DONE: True})
            stand_in.phase = Desired.ENDED
            self._take_up()
        self.gone(trial)

    def act(self) -> None:
        """Carry out what is known: let trials go on, wait in the way they should, or stop."""
        held = []
        for trial_id, stand_in in list(self._open.items()):
            if stand_in.phase is Desired.PENDING:
                self._starts(stand_in)
            doing = stand_in.doing
            if doing is Actual.SAVING:
                continue  # all running trials may be saving, step after step
            move = self._next_action(stand_in, doing)
            if move is not Action.NOTHING:
                self._make(move, stand_in)
            elif doing is Actual.HELD:
                held.append(stand_in)
            elif not self._undecided(stand_in, doing):
                self._open.pop(trial_id, None)
        if held:
            self._relieve_starvation(held)

    @staticmethod
    def _undecided(stand_in: StandIn, doing: Actual) -> bool:
        """Return whether a trial will need something done even if nothing more is heard of it."""
        if doing is Actual.ENDED:
            return False
        return (
            bool(stand_in.change)
            or stand_in.phase is Desired.ENDED
            or doing in (Actual.SAVING, Actual.HELD)
            or (doing is Actual.PAUSED and stand_in.phase is Desired.RUNNING)
        )

    def advance(self) -> None:
        """Let the base scheduler choose from ended trials whose end it has not heard of."""
        self._chosen()

    def conclude(self, trial: Trial) -> None:
        """End a trial at the sweep's end, whatever the base scheduler was about to do with it."""
        stand_in = self._stand_in_of(trial)
        if stand_in.phase is not Desired.ENDED:
            self._end(stand_in)

    # What the base scheduler does --------------------------------------------------------------

    def moved(self, stand_in: StandIn) -> None:
        """Note what a trial waits for, after its phase has changed."""
        self._turns.put(stand_in, _waits(stand_in))

    def touched(self, stand_in: StandIn) -> None:
        """Note that the base scheduler has paused a trial, or given it something to take up."""
        self._open[stand_in.trial_id] = self._touched[stand_in.trial_id] = stand_in

    def offered(self, stand_in: StandIn) -> None:
        """Keep a trial's checkpoint, which the base scheduler may clone, until it takes another."""
        if stand_in.version is not None:
            self._clones.offer(stand_in.real, stand_in.version)

    def stopped(self, stand_in: StandIn) -> None:
        """End a trial that the base scheduler has stopped, as Tune's ``stop_trial`` does.

        In a restored sweep, a trial that ran on before runs on.
        """
        if stand_in.phase is Desired.ENDED or self._validation.heard_later(stand_in.trial_id):
            return
        self._end(stand_in)
        self._record_stop(stand_in)

    def idle(self) -> bool:
        """Return whether no trial is running or about to run, and no validation is pending.

        Never during a replay: more may have happened than is known.
        """
        return (
            self._controller.still
            and self._validation.validator.idle
            and all(stand_in.stands is None for stand_in in self._stand_ins.values())
        )

    def _record_stop(self, stand_in: StandIn) -> None:
        """Record that the base scheduler has stopped a trial other than by its own result."""
        stop, time = TrialScheduler.STOP, self._validation.time()
        self._validation.emit(Decided(time=time, trial_id=stand_in.trial_id, decision=stop))

    def _end(self, stand_in: StandIn) -> None:
        """End a trial by the base scheduler's word; it hears of the end at once, as in Tune."""
        if stand_in.phase is Desired.RUNNING and stand_in.version is not None:
            result = {**stand_in.version.result, DONE: True}
            self.base.on_trial_complete(self._view, stand_in, result)
        else:
            self.base.on_trial_remove(self._view, stand_in)
        self._give_up_change(stand_in)
        stand_in.phase = Desired.ENDED
        self._open[stand_in.trial_id] = stand_in

    def _take_up(self) -> None:
        """Process what the base scheduler has given to trials."""
        touched, self._touched = self._touched, {}
        for stand_in in touched.values():
            restored = stand_in.change.restored_from
            if restored is not None:
                if not self._clones.is_planned(stand_in.trial_id, restored):
                    self._plan_exploit(stand_in, restored)
            elif stand_in.change.config is not None and stand_in.doing is Actual.STARTING:
                self._controller.change(stand_in.real, stand_in.change)
                stand_in.change = Change()

    def _plan_exploit(self, stand_in: StandIn, restored: Any) -> None:
        if stand_in.doing is Actual.ENDED:
            self._void(stand_in)
            return
        self._clones.plan(stand_in.trial_id, restored)
        stand_in.phase = Desired.PAUSED

    def _void(self, stand_in: StandIn) -> None:
        """Leave a trial as it was: it ended before it was overwritten."""
        self._give_up_change(stand_in)
        stand_in.phase = Desired.RUNNING

    def _give_up_change(self, stand_in: StandIn) -> None:
        """Drop what was given to a trial: it will not take it up."""
        stand_in.change = Change()
        self._clones.give_up(stand_in.trial_id)

    def _chosen(self) -> Trial | None:
        """Ask the base scheduler until it names a trial that can be started, or none."""
        for _ in range(len(self._stand_ins) + 1):
            stand_in = self.base.choose_trial_to_run(self._sees())
            self._take_up()
            if stand_in is None:
                self._remind()
                return None
            if stand_in.change and stand_in.doing is not Actual.ENDED:
                return None  # it takes that up first
            if stand_in.doing in (Actual.STARTING, Actual.PAUSED):
                if stand_in.phase is Desired.PAUSED:
                    self._chose(stand_in, runs=False)
                    stand_in.phase = Desired.PENDING
                    self._open[stand_in.trial_id] = stand_in
                return stand_in.real
            # It is still running, or has ended: no need to start it.
            self._chose(stand_in, runs=True)
            stand_in.phase = Desired.RUNNING
            self._open[stand_in.trial_id] = stand_in
            self._validation.deliveries.deliver(stand_in.trial_id)
        return None

    def _chose(self, stand_in: StandIn, *, runs: bool) -> None:
        """Record that a trial that it had paused goes on; ``runs``: the trial has an actor."""
        time = self._validation.time()
        self._validation.emit(Resumed(time=time, trial_id=stand_in.trial_id, runs=runs))

    def _sees(self) -> Any:
        """Return what the base scheduler chooses from: one trial, if it only wants the first."""
        chooses = getattr(self.base.choose_trial_to_run, "__func__", None)
        return self._in_turn if chooses is FIFOScheduler.choose_trial_to_run else self._view

    def _next_in_turn(self) -> list[StandIn]:
        """Return the first trial to start or, if there is none, the first to resume."""
        for status in (Trial.PENDING, Trial.PAUSED):
            for stand_in in self._turns.of(status):
                if stand_in.status == status:  # else it has begun to run in this step
                    return [stand_in]
        return []

    def _remind(self) -> None:
        """Make a scheduler that waits for an ended trial look again."""
        if not self._waits_for_all or not self._controller.still:
            return
        left = [
            j for j in self._stand_ins.values() if j.status not in (Trial.TERMINATED, Trial.ERROR)
        ]
        if any(j.phase is not Desired.PAUSED for j in left):
            return
        if not self._reminders.due({j.trial_id: j.version and j.version.place for j in left}):
            return
        scored = [(stand_in, stand_in.version) for stand_in in left if stand_in.version is not None]
        # A clone stands at its donor's score; one that has its own speaks for itself.
        own = [
            (stand_in, version)
            for stand_in, version in scored
            if version.trial_id == stand_in.trial_id
        ]
        for stand_in, version in own or scored:
            if stand_in.phase is Desired.PAUSED:
                self._remind_of(stand_in, version)
        self._take_up()
        for stand_in in left:
            if stand_in.phase is Desired.RUNNING:
                self._validation.deliveries.deliver(stand_in.trial_id)

    def _remind_of(self, stand_in: StandIn, version: Version, decided: str | None = None) -> None:
        stand_in.phase = Desired.RUNNING
        decision = self.base.on_trial_result(self._view, stand_in, dict(version.result))
        decision = decided or decision
        self._validation.emit(
            Reminded(
                time=self._validation.time(),
                trial_id=stand_in.trial_id,
                generation=version.generation,
                iteration=version.iteration,
                decision=decision,
            )
        )
        if decision == TrialScheduler.STOP:
            self._end(stand_in)
        elif decision == TrialScheduler.PAUSE:
            stand_in.phase = Desired.PAUSED
        self._open[stand_in.trial_id] = stand_in

    # What is done about a trial ----------------------------------------------------------------

    def _next_action(self, stand_in: StandIn, doing: Actual) -> Action:
        validation, held = self._validation, doing is Actual.HELD
        waits = validation.waits(stand_in.trial_id)
        return next_action(
            stand_in.phase,
            doing,
            overwritten=stand_in.change.restored_from is not None,
            changed=bool(stand_in.change),
            waits=waits and not (held and self._trains_on(stand_in)),
            lends=validation.validator.lends(stand_in.trial_id),
            # Those that had to give way, to let validations run, get their turn.
            gives_way=held and self._gives_way(stand_in),
        )

    def _trains_on(self, stand_in: StandIn) -> bool:
        """Return whether a trial trains on while its score is pending: its place would be idle."""
        validation = self._validation
        return trains_on(
            validation.config.on_pending,
            decisions=validation.state.delivery.decisions(stand_in.trial_id),
            idle=not (
                self._ready
                or self._controller.has_new_trials
                or validation.one_at_a_time()
                or validation.validator.will_borrow(self._place_of(stand_in))
            ),
            decides_again=lambda: self._usage.decides_again(stand_in),
            synchronous=self.compares_all,
        )

    def _gives_way(self, stand_in: StandIn) -> bool:
        """Return whether a trial that waits gives its place to others meanwhile."""
        validation = self._validation
        return gives_way(
            validation.on_pending(stand_in.trial_id),
            will_lend=validation.validator.will_borrow(self._place_of(stand_in)),
            ready=bool(self._ready),
            alone=validation.one_at_a_time(),
            others_wait=validation.others_wait(),
        )

    def _make(self, move: Action, stand_in: StandIn) -> None:
        trial, trial_id, controller = stand_in.real, stand_in.trial_id, self._controller
        if move is Action.GIVE_WAY:
            # To validations, or to a trial that is ready.
            self._give_way(stand_in, for_validations=self._validation.one_at_a_time())
            return
        self._waited(trial_id)
        stand_in.held = False
        if move is Action.TRAIN:
            self._open.pop(trial_id, None)
            controller.train(trial)
        elif move is Action.PAUSE:
            saved, step = latest_checkpoint(trial), trial.last_result.get(TRAINING_ITERATION)
            unsaved = saved is None or saved[1].get(TRAINING_ITERATION) != step
            controller.pause(trial, save=unsaved)
        elif move is Action.RESUME:
            self._open.pop(trial_id, None)
            self._ready[trial_id] = trial
        elif move is Action.STOP:
            self._open.pop(trial_id, None)
            controller.stop(trial)
        elif move is Action.CHANGE:
            self._change(stand_in)

    def _change(self, stand_in: StandIn) -> None:
        """Let a trial take up what the base scheduler has given it."""
        trial, change = stand_in.real, stand_in.change
        self._ready.pop(stand_in.trial_id, None)
        restored = change.restored_from
        if restored is not None:
            source = self._clones.take_source(stand_in.trial_id)
            exploit = self._clones.exploit(
                trial,
                change.config,
                restored,
                source,
                objectives=self.objectives,
                time=self._validation.time(),
            )
            self._overwrite(stand_in, exploit, source)
        stand_in.change = Change()
        self._controller.change(trial, change)

    def _overwrite(self, stand_in: StandIn, exploit: Exploit, source: Version | None) -> None:
        change = stand_in.change
        self._validation.exploited(stand_in.real, exploit)
        self._usage.overwritten(stand_in.trial_id)
        if source is not None:
            stand_in.version = source
            self._clones.overwritten(stand_in.trial_id, source)
            instead = {"trial_id": stand_in.trial_id, GENERATION: exploit.generation}
            change.restored_from = source.restorable(config=change.config, **instead)

    def _starts(self, stand_in: StandIn) -> None:
        """Note that a trial that was to run is running, or has run."""
        if stand_in.phase is Desired.PENDING and stand_in.real.status not in (
            Trial.PENDING,
            Trial.PAUSED,
        ):
            stand_in.phase = Desired.RUNNING
            self._validation.deliveries.deliver(stand_in.trial_id)

    def _give_way(self, stand_in: StandIn, *, for_validations: bool = False) -> None:
        stand_in.held = False
        self._since.setdefault(stand_in.trial_id, self._validation.now())
        # It will resume from the checkpoint that is being validated.
        self._controller.pause(stand_in.real, save=False, for_validations=for_validations)

    def _waited(self, trial_id: str) -> None:
        """Record for how long a trial waited for its scores, if it did."""
        validation, since = self._validation, self._since.pop(trial_id, None)
        if since is not None:
            seconds = round(validation.now() - since, 4)
            validation.emit(Waited(time=validation.time(), trial_id=trial_id, seconds=seconds))

    def lenders(self) -> dict[str, Trial]:
        """Return the trials that wait and in whose place a validation fits.

        Trials that give their resources back are not among them.
        """
        validator = self._validation.validator
        if self._validation.config.on_pending == "pause":
            return {}
        return {
            trial_id: stand_in.real
            for trial_id, stand_in in self._open.items()
            if stand_in.doing is Actual.HELD
            and self._validation.waits(trial_id)
            and not validator.lends(trial_id)
            and validator.fits_in(self._place_of(stand_in))
        }

    def _place_of(self, stand_in: StandIn) -> Mapping[str, float]:
        """Return a trial's place: the resources of its actor in one bundle."""
        return self._controller.resources_of(stand_in.real)

    def _relieve_starvation(self, held: list[StandIn]) -> None:
        """Let a held trial give way if held trials keep every validation from starting.

        Holding and pausing lead to the same decisions. If all actors waited for scores that wait
        for the actors' resources, there would be none.
        """
        controller, validation = self._connected
        now = validation.now()
        for stand_in in held:
            self._since.setdefault(stand_in.trial_id, now)
        if validation.validator.starved_s() < _STARVED_S:
            return  # their processes may take long to start
        waiting = [j for j in held if j.doing is Actual.HELD and validation.waits(j.trial_id)]
        if not waiting or len(waiting) < len(controller.running):
            return
        if validation.on_pending(waiting[0].trial_id) == "continue":
            self._make(Action.TRAIN, waiting[0])  # it might not be able to resume
        else:
            logger.warning(
                "Validations get no resources because all trials hold theirs while they wait for "
                "scores; trial %s is paused to make room. Set max_concurrent_trials so that "
                "something is left for validation, or use on_pending='pause'.",
                waiting[0].trial_id,
            )
            self._give_way(waiting[0], for_validations=True)
            validation.validator.relieved()

    # How it is kept ----------------------------------------------------------------------------

    def _wire(self, tune_controller: Any) -> ValidationCallback:
        if self._sweep is None:
            controller = Controller(tune_controller)
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
            self._sweep = (controller, callbacks[0])
            self._clones.attach(self._validation.leases, self._validation.ancestry)
            self._view = StandInController(controller.wrapped(), self._stand_in_of, self)
            self._in_turn = self._view.with_only(self._next_in_turn)
            self._validation.attach(controller, self, ValidatedSearcher.within(controller))
        return self._validation

    def _stand_in_of(self, trial: Trial) -> StandIn:
        stand_in = self._stand_ins.get(trial.trial_id)
        if stand_in is None:
            stand_in = self._stand_ins[trial.trial_id] = StandIn(self, trial)
        return stand_in

    def get_state(self, places: Places | None = None) -> bytes | None:
        """Return the base scheduler and what it knows of trials; None if it cannot be pickled."""
        state = {
            "base": self.base.__dict__,
            "judged": {
                trial_id: stand_in.state() for trial_id, stand_in in self._stand_ins.items()
            },
            "offers": self._clones.offers,
            "exploits": self._clones.planned,
            "decisions": self._usage.state(),
        }
        try:
            return dump(state, places or Places())
        except Exception as error:  # whatever its parts raise
            if not self._told_of_no_state:
                self._told_of_no_state = True
                logger.warning(
                    "%s cannot be saved with the experiment (%s): a restored sweep starts with a "
                    "new one, and shows it all results again.",
                    type(self.base).__name__,
                    error,
                )
            return None

    def set_state(self, saved: bytes, places: Places | None = None) -> None:
        """Load what :meth:`get_state` returned, before Tune adds the trials."""
        filesystem = None if self._sweep is None else self._controller.storage.storage_filesystem
        state = load(
            saved,
            places or Places(),
            stand_in=lambda name: self._stand_ins.setdefault(name, StandIn(self)),
            filesystem=filesystem,
        )
        self.base.__dict__.update(state["base"])
        self._clones.offers, self._clones.planned = state["offers"], state["exploits"]
        self._usage.load(state["decisions"])
        for trial_id, kept in state["judged"].items():
            self._stand_ins.setdefault(trial_id, StandIn(self)).load(kept)
        self._known = set(state["judged"])

    # How an interrupted sweep goes on ----------------------------------------------------------

    def catch_up(self, event: Event, trial: Trial) -> None:
        """Repeat what was done before the sweep was interrupted."""
        stand_in = self._stand_in_of(trial)
        match event:
            case Reported():
                self._trains(stand_in)
            case Decided():
                self._stopped_before.append(stand_in)
            case Resumed():
                self.base.choose_trial_to_run(self._view)
                stand_in.phase = Desired.RUNNING if event.runs else Desired.PENDING
            case Reminded():
                if stand_in.version is not None:
                    self._remind_of(stand_in, stand_in.version, event.decision)
                    self._take_up()
            case TrialEnded():
                stand_in.stands = Actual.ENDED
                if event.removed and stand_in.phase is not Desired.ENDED:
                    self._end(stand_in)
                elif not event.removed:
                    if stand_in.phase is Desired.PENDING:
                        stand_in.phase = Desired.RUNNING
                    self._complete(stand_in)
            case TrialFailed():
                stand_in.stands = Actual.STARTING
                self._fail(stand_in)
            case TrialRetried():
                self._add_again(stand_in)
            case TrialErrored():
                self.gone(trial)

    def judge_again(
        self, trial: Trial, result: dict[str, Any], scored: Scored, decided: str
    ) -> str:
        """Give the base scheduler a result again; what it ``decided`` before holds."""
        self._trains(self._stand_in_of(trial))
        decision = self.judge(trial, result, scored, decided)
        # The base scheduler stopped others by that result; if by chance it has not now, stop them.
        stopped, self._stopped_before = self._stopped_before, []
        for other in stopped:
            self.stopped(other)
        return decision

    def exploit_again(
        self, trial: Trial, exploit: Exploit, version: Version | None, *, carried_out: bool
    ) -> None:
        """Overwrite a trial as before; ``carried_out``: Tune's trial is overwritten already."""
        stand_in = self._stand_in_of(trial)
        stand_in.change, source = self._clones.again(trial, stand_in.change, exploit, version)
        self._overwrite(stand_in, exploit, source)
        change, stand_in.change = stand_in.change, Change()
        stand_in.phase = Desired.PAUSED
        if not carried_out:
            self._controller.change(trial, change)

    def retried(self, trial: Trial) -> None:
        """Take a trial that failed, or had to stop, and is started again."""
        self._add_again(self._stand_in_of(trial))

    @staticmethod
    def _trains(stand_in: StandIn) -> None:
        stand_in.stands = Actual.TRAINING
        if stand_in.phase is Desired.PENDING:
            stand_in.phase = Desired.RUNNING

    def resume(self) -> None:
        """Put each trial where it stood when the sweep was interrupted."""
        controller, validation = self._connected
        self._stand_ins = {
            i: stand_in for i, stand_in in self._stand_ins.items() if stand_in.real is not None
        }
        delivery = validation.state.delivery
        for trial_id, stand_in in self._stand_ins.items():
            stand_in.stands = None
            if stand_in.phase is Desired.ENDED and not (
                delivery.closed(trial_id) or delivery.completed(trial_id)
            ):
                self._record_stop(stand_in)  # by chance, the scheduler has stopped it this time
            if stand_in.real.status == Trial.TERMINATED and not validation.state.delivery.completed(
                trial_id
            ):
                # It had made its last report, or must not go on.
                controller.tell_search_of_end(stand_in.real, failed=False)
                self.on_trial_complete(controller.wrapped(), stand_in.real, {})
            if stand_in.real.is_finished():
                continue
            self._open[trial_id] = stand_in
            self.moved(stand_in)
            waits = validation.waits(trial_id)
            if stand_in.phase is Desired.PAUSED or (stand_in.phase is Desired.RUNNING and waits):
                controller.set_status(stand_in.real, Trial.PAUSED)
            elif stand_in.phase is Desired.RUNNING:
                stand_in.phase = Desired.PENDING  # it starts again

    def take_leases(self) -> None:
        """Take again the leases that the saved sweep had for cloning."""
        self._clones.take_leases(
            (trial_id, stand_in.version)
            for trial_id, stand_in in self._stand_ins.items()
            if stand_in.version is not None
            and self._may_clone
            and stand_in.phase is not Desired.ENDED
        )

    def save(self, checkpoint_path: str) -> None:
        """Save the base scheduler, and where it last saw each trial, to a file.

        Raises:
            tunekit.WiringError: If the base scheduler cannot be pickled.
        """
        state = self.get_state()
        if state is None:
            raise WiringError(f"{type(self.base).__name__} cannot be pickled.")
        Path(checkpoint_path).write_bytes(state)

    def restore(self, checkpoint_path: str) -> None:
        """Restore what :meth:`save` saved, before Tune adds the trials."""
        self.set_state(Path(checkpoint_path).read_bytes())

    def _stands_no_more(self, stand_in: StandIn) -> None:
        """Note that a trial no longer waits for anything."""
        stand_in.held = False
        self._ready.pop(stand_in.trial_id, None)
        self._waited(stand_in.trial_id)

    def gone(self, trial: Trial) -> None:
        """Note that a trial has ended or failed for good: it is no longer cloned."""
        stand_in = self._stand_in_of(trial)
        self._turns.put(stand_in, None)
        stand_in.change = Change()
        self._clones.gone(trial.trial_id)


def _waits(stand_in: StandIn) -> str | None:
    """Return the status in which a scheduler may choose a trial; None if it may not choose it."""
    if stand_in.phase is Desired.PENDING:
        return str(Trial.PENDING)
    return str(Trial.PAUSED) if stand_in.phase is Desired.PAUSED else None
