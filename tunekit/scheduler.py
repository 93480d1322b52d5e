"""Any Tune scheduler, judging by validated results."""

from __future__ import annotations

import copy
import io
import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle
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
from tunekit._ray.decisions import innermost, is_synchronous, mode_of, rule_for, time_attr_of
from tunekit._ray.judged import Change, JudgedController, JudgedTrial, Version
from tunekit.callback import ValidationCallback
from tunekit.combinations import wrong_together
from tunekit.core.decisions import Decisions
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
)
from tunekit.core.history import GENERATION
from tunekit.core.lineage import Exploit
from tunekit.core.metrics import flatten
from tunekit.core.problems import Problems
from tunekit.core.reminders import Reminders
from tunekit.core.standing import Doing, Move, Phase, next_move
from tunekit.core.turns import Turns
from tunekit.core.validation import Request
from tunekit.errors import WiringError
from tunekit.places import Places
from tunekit.recorded import as_known
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
)


def base_of(scheduler: Any) -> Any:
    """The scheduler inside of a :class:`ValidatedScheduler`; any other is returned as it is."""
    return scheduler.base if isinstance(scheduler, ValidatedScheduler) else scheduler


class ValidatedScheduler(TrialScheduler):
    """Lets an unmodified Tune scheduler see validated results only, in iteration order.

    Each report of a trial goes to the base scheduler when the checkpoint saved at it has been
    validated, merged with its score; each once, older iterations of a trial before newer ones, the
    trial's end after its last score. A report without a validated checkpoint does not reach the
    base scheduler at all. What the trial does meanwhile is ``ValidationConfig(on_pending=...)``.

    For the base scheduler each trial is where its newest score was earned: there it pauses, stops
    and resumes it, and from there it is cloned. So a population based scheduler clones exactly the
    checkpoint that it has ranked, with the hyperparameters that led to it, however far the donor
    has trained since.

    It needs a :class:`~tunekit.ValidationCallback` among the callbacks of the same sweep.
    ``TuneConfig(metric=...)`` and the scheduler's own metric may name what only validation
    produces. Stopping criteria of ``RunConfig(stop=...)`` that read such a metric are asked with
    validated results, too.

    Args:
        base: The scheduler; not changed.

    Raises:
        tunekit.ConfigError: If ``base`` is no scheduler, or is wrapped already.

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
        # It takes a trial that restarts for a second one, and refuses that.
        self._replays = isinstance(decides, PopulationBasedTrainingReplay)
        self._never_pauses = type(decides) in (FIFOScheduler, AsyncHyperBandScheduler)
        self._clones = type(decides) not in _CLONE_NOTHING
        self._waits_for_all = is_synchronous(decides) or (
            isinstance(decides, HyperBandScheduler) and not isinstance(decides, HyperBandForBOHB)
        )
        self._controller: Controller | None = None
        self._validation: ValidationCallback | None = None
        self._view: JudgedController | None = None
        self._judged: dict[str, JudgedTrial] = {}
        # Those that the base scheduler may start or resume, and the view that has no others.
        self._turns: Turns[JudgedTrial] = Turns()
        self._in_turn: Any = None
        # Those about which something may have to be done.
        self._open: dict[str, JudgedTrial] = {}
        # Those that the base scheduler has just done something to.
        self._touched: dict[str, JudgedTrial] = {}
        # Which reports it will use the scores of, and the last one that was asked about.
        self._decisions = Decisions()
        self._asked: dict[str, tuple[Mapping[str, Any], bool]] = {}
        self._unsaved: dict[str, int] = {}
        # When a trial began to wait for a score.
        self._since: dict[str, float] = {}
        # Trials that gave way, whose scores are there.
        self._ready: dict[str, Trial] = {}
        # What may be cloned, by the trial that saved it, and what is to be.
        self._offers: dict[str, Version] = {}
        self._exploits: dict[str, tuple[Any, Version | None]] = {}
        self._told_of_no_state = False
        self._reminders = Reminders()
        # Trials that the base scheduler stopped by a decision that is being replayed.
        self._stopped_before: list[JudgedTrial] = []
        # Trials of a restored sweep that the base scheduler knows and Tune has not added yet.
        self._known: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Return the base scheduler as it was given; :meth:`get_state` has the rest."""
        return {"base": self.base, "_mode": self._mode}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a base scheduler; an older version has pickled all that it had."""
        ValidatedScheduler.__init__(self, state["base"])
        self._mode = state["_mode"]

    # What Tune asks before and around the sweep ------------------------------------------------

    @property
    def metric(self) -> None:
        """None: Tune is not to look for the metric in reports, which need not have it."""
        return None

    @property
    def judged(self) -> set[str]:
        """The metric that the base scheduler judges by, if it does."""
        metric = self.base.metric
        return {metric} if isinstance(metric, str) and metric != DEFAULT_METRIC else set()

    @property
    def mode(self) -> str | None:
        """Which values of the metric are better, ``"min"`` or ``"max"``; None if nobody said."""
        return self._mode or mode_of(self.base)

    @property
    def supports_buffered_results(self) -> bool:
        """False: a trial that waits for a score must not have run ahead."""
        return False

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Hand ``TuneConfig``'s metric and mode to the base scheduler."""
        self._mode = mode or self._mode
        return bool(self.base.set_search_properties(metric, mode, **spec))

    def debug_string(self) -> str:
        """The base scheduler's summary, and that of the validations."""
        text = self.base.debug_string()
        if self._validation is None:
            return text
        return "\n".join([text, *self._validation.progress()])

    # What Tune tells while the sweep runs ------------------------------------------------------

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """A trial was added, or is about to be restarted after a failure."""
        validation, again = self._wire(tune_controller), trial.trial_id in self._judged
        judged = self._judged_of(trial)
        judged.real, judged.ending = trial, False
        self._turns.add(judged, _waits(judged))  # Tune has put it to the end of its trials
        self._open[trial.trial_id] = judged
        if trial.trial_id in self._known:
            self._known.discard(trial.trial_id)
        elif again:
            validation.retried(trial)
            self._add_again(judged)
        else:
            self.base.on_trial_add(self._view, judged)
            self._take_up()
        validation.adopt(trial)

    def _add_again(self, judged: JudgedTrial) -> None:
        """Tell the base scheduler of a trial that has failed and starts again."""
        judged.ending = False
        if judged.phase is not Phase.ENDED and not self._replays:
            self.base.on_trial_add(self._view, judged)
            self._take_up()

    def started(self, trial: Trial) -> None:
        """A trial's actor is up."""
        self._open[trial.trial_id] = self._judged_of(trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """A trial failed; it may be restarted."""
        self._wire(tune_controller).failed(trial)
        self._fail(self._judged_of(trial))

    def _fail(self, judged: JudgedTrial) -> None:
        self._stands_no_more(judged)
        if judged.phase is not Phase.ENDED:
            judged.phase = Phase.PENDING
            self.base.on_trial_error(self._view, judged)
            self._take_up()

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """A trial reported: whether it is validated is not known before it has saved."""
        validation, judged = self._wire(tune_controller), self._judged_of(trial)
        validation.offered(trial.trial_id, result[TRAINING_ITERATION])
        self._starts(judged)
        self._open[trial.trial_id] = judged
        if validation.config.on_pending == "continue" and judged.change.restored_from is None:
            if judged.phase is Phase.ENDED:
                return TrialScheduler.STOP
            if judged.phase is Phase.PAUSED:
                return TrialScheduler.PAUSE
            return TrialScheduler.CONTINUE
        judged.held = True
        return TrialScheduler.NOOP

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """A trial ended; the base scheduler hears of it after the trial's last score."""
        self._starts(self._judged_of(trial))
        self._complete(self._judged_of(trial))
        self._wire(tune_controller).complete(trial.trial_id)

    def _complete(self, judged: JudgedTrial) -> None:
        self._stands_no_more(judged)
        judged.ending = True
        if judged.change.restored_from is not None:
            self._void(judged)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """A trial that was not running ended."""
        judged = self._judged_of(trial)
        self._stands_no_more(judged)
        if judged.phase is not Phase.ENDED:
            self._end(judged)
        self._wire(tune_controller).complete(trial.trial_id, removed=True)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """The next trial to start: those that have waited for a score first, then the base's."""
        self._wire(tune_controller)
        for trial_id, trial in list(self._ready.items()):
            if trial.status == Trial.PAUSED:
                return trial
            del self._ready[trial_id]
        if self._never_pauses and self._controller is not None and self._controller.all_run:
            return None  # it would look through all trials
        return self._chosen()

    # What it will use --------------------------------------------------------------------------

    def uses(self, trial: Trial, result: Mapping[str, Any]) -> bool:
        """Whether the base scheduler will use the score of a report, or that is the trial's last.

        To be asked with each report, as often as one likes.
        """
        trial_id, asked = trial.trial_id, self._asked.get(trial.trial_id)
        if asked is not None and asked[0] is result:
            return asked[1]
        unsaved = self._unsaved.pop(trial_id, None)
        if unsaved is not None:
            self._decisions.missed(trial_id, unsaved)
        iteration = result[TRAINING_ITERATION]
        due = self._decisions.asked(
            trial_id,
            iteration,
            flatten(result).get(time_attr_of(self.base)),
            rule_for(self.base, self._judged_of(trial)),
            done=bool(result.get(DONE)),
        )
        if due:
            self._unsaved[trial_id] = iteration
        self._asked[trial_id] = (result, due)
        return due

    def used(self, request: Request) -> bool:
        """Whether it will use the score of a checkpoint that was saved."""
        if self._unsaved.get(request.trial_id) == request.iteration:
            del self._unsaved[request.trial_id]
        return self._decisions.due(request.trial_id, request.iteration)

    def settled(self, request: Request) -> None:
        """The score of a checkpoint was delivered, or never will be: its books tell, or a later
        one takes its place."""
        if self._validation is not None:
            if not self._validation.waits(request.trial_id):
                # If it stands still now, it is because the scheduler has paused it.
                self._waited(request.trial_id, self._validation)
            generation = self._validation.ancestry.generation(request.trial_id)
            if request.generation == generation:
                self._decisions.heard(request.trial_id, request.iteration)

    # What the validations tell -----------------------------------------------------------------

    def hears(self, trial_id: str) -> bool:
        """Whether the base scheduler may get a result of the trial now, or its end.

        Not while it has paused the trial: Tune's schedulers get results of running trials only.
        """
        return self._judged[trial_id].phase in (Phase.RUNNING, Phase.ENDED)

    def judge(
        self, trial: Trial, result: dict[str, Any], scored: Scored, decided: str | None = None
    ) -> str:
        """Give the base scheduler a validated result of a trial; return what it decided.

        The decision is carried out by :meth:`act`, or at the trial's next report. The base
        scheduler may add to the result. In a sweep that is restored it may have ``decided``
        before, which holds: it may have been carried out.
        """
        judged, request = self._judged_of(trial), scored.request
        checkpoint = request.checkpoint or tune.Checkpoint(
            request.path, trial.storage.storage_filesystem
        )
        judged.version = Version(
            trial_id=trial.trial_id,
            generation=request.generation,
            iteration=request.iteration,
            checkpoint=checkpoint,
            result=dict(result),
            report=scored.result,
            config=copy.deepcopy(judged.config) if self._clones else {},
        )
        if self._clones and self._validation is not None:
            self._validation.leases.own(request.path, trial)
            self._validation.leases.take(("scored", trial.trial_id), request.path)
        if self._validation is not None and self._validation.reached(trial.trial_id, result):
            decision = TrialScheduler.STOP
        else:
            judged.judging = True
            decision = self.base.on_trial_result(self._view, judged, result)
            judged.judging = False
        if decided is not None and decision != decided:
            logger.info(
                "Trial %s, iteration %d: %s, as was decided before the sweep was interrupted.",
                trial.trial_id,
                scored.iteration,
                decided,
            )
            decision = decided
        if decision == TrialScheduler.STOP:
            self._end(judged)
        elif decision == TrialScheduler.PAUSE:
            judged.pause()
        self._take_up()
        if decided == TrialScheduler.CONTINUE and judged.change.restored_from is not None:
            self._void(judged)  # it went on as it was
        return decision

    def finish(self, trial: Trial, result: Mapping[str, Any] | None) -> None:
        """A trial has ended, and the base scheduler has got all of its results.

        It is told with the trial's newest validated result, unless it has stopped the trial.
        """
        judged = self._judged_of(trial)
        if judged.phase is not Phase.ENDED:
            if result is None:
                self.base.on_trial_remove(self._view, judged)
            else:
                if self._validation is not None:  # stoppers look across trials
                    self._validation.reached(trial.trial_id, result)
                self.base.on_trial_complete(self._view, judged, {**result, DONE: True})
            judged.phase = Phase.ENDED
            self._take_up()
        self.gone(trial)

    def act(self) -> None:
        """Carry out what is known: let trials go on, wait in the way they should, or stop."""
        if self._controller is None or self._validation is None:
            return
        held = []
        for trial_id, judged in list(self._open.items()):
            if judged.phase is Phase.PENDING:
                self._starts(judged)
            doing = judged.doing
            if doing is Doing.SAVING:
                continue  # as may be all that run, step after step
            move = self._next_move(judged, doing, self._validation)
            if move is not Move.NOTHING:
                self._make(move, judged, self._controller, self._validation)
            elif doing is Doing.HELD:
                held.append(judged)
            elif not self._undecided(judged, doing):
                self._open.pop(trial_id, None)
        if held:
            self._relieve_starvation(held, self._controller, self._validation)

    @staticmethod
    def _undecided(judged: JudgedTrial, doing: Doing) -> bool:
        """Whether something will have to be done about a trial without its saying so."""
        if doing is Doing.ENDED:
            return False
        return (
            bool(judged.change)
            or judged.phase is Phase.ENDED
            or doing in (Doing.SAVING, Doing.HELD)
            or (doing is Doing.PAUSED and judged.phase is Phase.RUNNING)
        )

    def advance(self) -> None:
        """Let the base scheduler choose from trials that have ended, of which it has not heard.

        Tune asks for trials to run as long as there are any; afterwards the base scheduler may
        still have to hear of some that it had paused.
        """
        if self._controller is not None:
            self._chosen()

    def conclude(self, trial: Trial) -> None:
        """The sweep is over: whatever the base scheduler was about to do with the trial."""
        judged = self._judged_of(trial)
        if judged.phase is not Phase.ENDED:
            self._end(judged)

    # What the base scheduler does --------------------------------------------------------------

    def moved(self, judged: JudgedTrial) -> None:
        """Its phase is another one: it is to be started, or is not any more."""
        self._turns.put(judged, _waits(judged))

    def touched(self, judged: JudgedTrial) -> None:
        """It has paused a trial, or given it something to take up."""
        self._open[judged.trial_id] = self._touched[judged.trial_id] = judged

    def offered(self, judged: JudgedTrial) -> None:
        """It may clone a trial's checkpoint later: that one is kept until it takes another."""
        version = judged.version
        if version is not None and self._validation is not None:
            self._offers[judged.trial_id] = version
            holder = ("offered", judged.trial_id)
            self._validation.leases.own(version.checkpoint.path, judged.real)
            self._validation.leases.take(holder, version.checkpoint.path)

    def stopped(self, judged: JudgedTrial) -> None:
        """It has stopped a trial, as Tune's ``stop_trial`` does."""
        if judged.phase is not Phase.ENDED:
            self._end(judged)
            if self._validation is not None:
                self._validation.decided(judged.real, TrialScheduler.STOP)

    def _end(self, judged: JudgedTrial) -> None:
        """End a trial by the base scheduler's word: it hears of it at once, as in Tune."""
        if judged.phase is Phase.RUNNING and judged.version is not None:
            result = {**judged.version.result, DONE: True}
            self.base.on_trial_complete(self._view, judged, result)
        else:
            self.base.on_trial_remove(self._view, judged)
        self._give_up_change(judged)
        judged.phase = Phase.ENDED
        self._open[judged.trial_id] = judged
        if self._validation is not None:
            self._validation.close(judged.trial_id)

    def _take_up(self) -> None:
        """Look what the base scheduler has given to trials."""
        touched, self._touched = self._touched, {}
        for judged in touched.values():
            restored = judged.change.restored_from
            if restored is not None:
                noted = self._exploits.get(judged.trial_id)
                if noted is None or noted[0] is not restored:
                    self._note_exploit(judged, restored)
            elif judged.change.config is not None and judged.doing is Doing.STARTING:
                if self._controller is not None:
                    self._controller.change(judged.real, judged.change)
                judged.change = Change()

    def _note_exploit(self, judged: JudgedTrial, restored: Any) -> None:
        if judged.doing is Doing.ENDED:
            self._void(judged)
            return
        path = restored.checkpoint.path
        source = next((v for v in self._offers.values() if v.checkpoint.path == path), None)
        self._exploits[judged.trial_id] = (restored, source)
        judged.phase = Phase.PAUSED
        if self._validation is not None:
            self._validation.keep_for_clone(judged.trial_id, path)

    def _void(self, judged: JudgedTrial) -> None:
        """A trial has ended before it was overwritten: it remains what it was."""
        self._give_up_change(judged)
        judged.phase = Phase.RUNNING

    def _give_up_change(self, judged: JudgedTrial) -> None:
        """The trial will not take up what was given to it."""
        judged.change = Change()
        self._exploits.pop(judged.trial_id, None)
        if self._validation is not None:
            self._validation.keep_for_clone(judged.trial_id, None)

    def _chosen(self) -> Trial | None:
        """Ask the base scheduler until it names a trial that can be started, or none."""
        for _ in range(len(self._judged) + 1):
            judged = self.base.choose_trial_to_run(self._sees())
            self._take_up()
            if judged is None:
                self._remind()
                return None
            if judged.change and judged.doing is not Doing.ENDED:
                return None  # it takes that up first
            if judged.doing in (Doing.STARTING, Doing.PAUSED):
                if judged.phase is Phase.PAUSED:
                    if self._validation is not None:
                        self._validation.chosen(judged.real, runs=False)
                    judged.phase = Phase.PENDING
                    self._open[judged.trial_id] = judged
                return judged.real
            # It is still running, or has ended: no need to start it.
            if self._validation is not None:
                self._validation.chosen(judged.real, runs=True)
            judged.phase = Phase.RUNNING
            self._open[judged.trial_id] = judged
            if self._validation is not None:
                self._validation.deliver(judged.trial_id)
        return None

    def _sees(self) -> Any:
        """What the base scheduler chooses from: not all trials, if it looks for the first only."""
        chooses = getattr(self.base.choose_trial_to_run, "__func__", None)
        return self._in_turn if chooses is FIFOScheduler.choose_trial_to_run else self._view

    def _next_in_turn(self) -> list[JudgedTrial]:
        """The first trial to be started, or if there is none, the first to be resumed."""
        for status in (Trial.PENDING, Trial.PAUSED):
            for judged in self._turns.of(status):
                if judged.status == status:  # else it has begun to run in this step
                    return [judged]
        return []

    def _remind(self) -> None:
        """Let a scheduler look again that waits for a trial that has ended."""
        if not self._waits_for_all or self._controller is None or not self._controller.still:
            return
        left = [j for j in self._judged.values() if j.status not in (Trial.TERMINATED, Trial.ERROR)]
        if any(j.phase is not Phase.PAUSED for j in left):
            return
        if not self._reminders.due({j.trial_id: j.version and j.version.place for j in left}):
            return
        scored = [(judged, judged.version) for judged in left if judged.version is not None]
        # A clone stands at its donor's score; one that has its own speaks for itself.
        own = [
            (judged, version) for judged, version in scored if version.trial_id == judged.trial_id
        ]
        for judged, version in own or scored:
            if judged.phase is Phase.PAUSED:
                self._remind_of(judged, version)
        self._take_up()
        for judged in left:
            if judged.phase is Phase.RUNNING and self._validation is not None:
                self._validation.deliver(judged.trial_id)

    def _remind_of(self, judged: JudgedTrial, version: Version, decided: str | None = None) -> None:
        judged.phase = Phase.RUNNING
        decision = self.base.on_trial_result(self._view, judged, dict(version.result))
        decision = decided or decision
        if self._validation is not None:
            self._validation.reminded(judged.real, version.generation, version.iteration, decision)
        if decision == TrialScheduler.STOP:
            self._end(judged)
        elif decision == TrialScheduler.PAUSE:
            judged.phase = Phase.PAUSED
        self._open[judged.trial_id] = judged

    # What is done about a trial ----------------------------------------------------------------

    def _next_move(self, judged: JudgedTrial, doing: Doing, validation: ValidationCallback) -> Move:
        stands_still = validation.config.on_pending != "continue"
        return next_move(
            judged.phase,
            doing,
            overwritten=judged.change.restored_from is not None,
            changed=bool(judged.change),
            waits=stands_still and validation.waits(judged.trial_id),
            # Those that had to give way, to let validations run, get their turn.
            gives_way=doing is Doing.HELD
            and (
                validation.config.on_pending == "pause"
                or bool(self._ready)
                or validation.one_at_a_time()
            ),
        )

    def _make(
        self,
        move: Move,
        judged: JudgedTrial,
        controller: Controller,
        validation: ValidationCallback,
    ) -> None:
        trial, trial_id = judged.real, judged.trial_id
        if move is Move.GIVE_WAY:
            # To validations, or to a trial that is ready.
            self._give_way(judged, controller, for_validations=validation.one_at_a_time())
            return
        self._waited(trial_id, validation)
        judged.held = False
        if move is Move.TRAIN:
            self._open.pop(trial_id, None)
            controller.train(trial)
        elif move is Move.PAUSE:
            saved, step = latest_checkpoint(trial), trial.last_result.get(TRAINING_ITERATION)
            unsaved = saved is None or saved[1].get(TRAINING_ITERATION) != step
            controller.pause(trial, save=unsaved)
        elif move is Move.RESUME:
            self._open.pop(trial_id, None)
            self._ready[trial_id] = trial
        elif move is Move.STOP:
            self._open.pop(trial_id, None)
            controller.stop(trial)
        elif move is Move.CHANGE:
            self._change(judged, controller, validation)

    def _change(
        self, judged: JudgedTrial, controller: Controller, validation: ValidationCallback
    ) -> None:
        """Let a trial take up what the base scheduler has given to it."""
        trial, change = judged.real, judged.change
        self._ready.pop(judged.trial_id, None)
        restored = change.restored_from
        if restored is not None:
            _, source = self._exploits.pop(judged.trial_id)
            exploit = self._exploit(trial, change.config, restored, source, validation)
            self._overwrite(judged, exploit, source, validation)
        judged.change = Change()
        controller.change(trial, change)

    def _overwrite(
        self,
        judged: JudgedTrial,
        exploit: Exploit,
        source: Version | None,
        validation: ValidationCallback,
    ) -> None:
        change = judged.change
        validation.exploited(judged.real, exploit)
        self._decisions.moved(judged.trial_id)
        if source is not None:
            judged.version = source
            validation.leases.take(("scored", judged.trial_id), source.checkpoint.path)
            instead = {"trial_id": judged.trial_id, GENERATION: exploit.generation}
            change.restored_from = source.restorable(config=change.config, **instead)

    def _exploit(
        self,
        trial: Trial,
        config: dict[str, Any] | None,
        restored: Any,
        source: Version | None,
        validation: ValidationCallback,
    ) -> Exploit:
        old = copy.deepcopy(trial.config)
        metrics = restored.metrics if source is None else source.result
        score = next((metrics.get(name) for name in self.judged), None)
        return Exploit(
            time=validation.time(),
            trial_id=trial.trial_id,
            generation=validation.ancestry.generation(trial.trial_id) + 1,
            reached=trial.last_result.get(TRAINING_ITERATION, 0),
            donor_id=trial.trial_id if source is None else source.trial_id,
            donor_generation=0 if source is None else source.generation,
            iteration=metrics.get(TRAINING_ITERATION, 0),
            checkpoint=restored.checkpoint.path,
            score=score,
            old_config=old,
            donor_config=old if source is None else source.config,
            config=copy.deepcopy(old if config is None else config),
        )

    def _starts(self, judged: JudgedTrial) -> None:
        """A trial that was to run does, or has done."""
        if judged.phase is Phase.PENDING and judged.real.status not in (
            Trial.PENDING,
            Trial.PAUSED,
        ):
            judged.phase = Phase.RUNNING
            if self._validation is not None:
                self._validation.deliver(judged.trial_id)

    def _give_way(
        self, judged: JudgedTrial, controller: Controller, *, for_validations: bool = False
    ) -> None:
        judged.held = False
        if self._validation is not None:
            self._since.setdefault(judged.trial_id, self._validation.now())
        # It resumes what is being validated.
        controller.pause(judged.real, save=False, for_validations=for_validations)

    def _waited(self, trial_id: str, validation: ValidationCallback) -> None:
        since = self._since.pop(trial_id, None)
        if since is not None:
            validation.waited(trial_id, validation.now() - since)

    def _relieve_starvation(
        self, held: list[JudgedTrial], controller: Controller, validation: ValidationCallback
    ) -> None:
        """Let a held trial give way if held trials keep every validation from starting.

        Holding and pausing lead to the same decisions; all actors waiting for scores that wait
        for the actors' resources would lead to none.
        """
        now = validation.now()
        for judged in held:
            self._since.setdefault(judged.trial_id, now)
        if validation.validator.starved_s() < _STARVED_S:
            return  # their processes may take long to start
        waiting = [j for j in held if j.doing is Doing.HELD and validation.waits(j.trial_id)]
        if waiting and len(waiting) == len(controller.running):
            logger.warning(
                "Validations get no resources because all trials hold theirs while they wait for "
                "scores; trial %s is paused to make room. Set max_concurrent_trials so that "
                "something is left for validation, or use on_pending='pause'.",
                waiting[0].trial_id,
            )
            self._give_way(waiting[0], controller, for_validations=True)
            validation.validator.relieved()

    # How it is kept ----------------------------------------------------------------------------

    def _wire(self, tune_controller: Any) -> ValidationCallback:
        if self._validation is None:
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
            self._controller, self._validation = controller, callbacks[0]
            self._view = JudgedController(controller.wrapped(), self._judged_of, self)
            self._in_turn = self._view.with_only(self._next_in_turn)
            self._validation.attach(controller, self, ValidatedSearcher.within(controller))
        return self._validation

    def _judged_of(self, trial: Trial) -> JudgedTrial:
        judged = self._judged.get(trial.trial_id)
        if judged is None:
            judged = self._judged[trial.trial_id] = JudgedTrial(self, trial)
        return judged

    def get_state(self, places: Places | None = None) -> bytes | None:
        """The base scheduler with what it knows of each trial; None if it cannot be pickled."""
        state = {
            "base": self.base.__dict__,
            "judged": {trial_id: judged.state() for trial_id, judged in self._judged.items()},
            "offers": self._offers,
            "exploits": self._exploits,
            "decisions": self._decisions.state(),
        }
        file = io.BytesIO()
        try:
            _Pickler(file, places or Places()).dump(state)
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
        return file.getvalue()

    def set_state(self, saved: bytes, places: Places | None = None) -> None:
        """Take up what :meth:`get_state` returned, before Tune adds the trials."""
        storage = None if self._controller is None else self._controller.storage
        filesystem = None if storage is None else storage.storage_filesystem
        file = io.BytesIO(saved)
        state = _Unpickler(file, self._judged, self, places or Places(), filesystem).load()
        self.base.__dict__.update(state["base"])
        self._offers, self._exploits = state["offers"], state["exploits"]
        self._decisions.load(state["decisions"])
        for trial_id, kept in state["judged"].items():
            self._judged.setdefault(trial_id, JudgedTrial(self)).load(kept)
        self._known = set(state["judged"])

    # How a sweep goes on that was interrupted --------------------------------------------------

    def catch_up(self, event: Event, trial: Trial) -> None:
        """Do again what was done before the sweep was interrupted."""
        judged = self._judged_of(trial)
        match event:
            case Reported():
                self._trains(judged)
            case Decided():
                self._stopped_before.append(judged)
            case Resumed():
                self.base.choose_trial_to_run(self._view)
                judged.phase = Phase.RUNNING if event.runs else Phase.PENDING
            case Reminded():
                if judged.version is not None:
                    self._remind_of(judged, judged.version, event.decision)
                    self._take_up()
            case TrialEnded():
                judged.stands = Doing.ENDED
                if event.removed and judged.phase is not Phase.ENDED:
                    self._end(judged)
                elif not event.removed:
                    if judged.phase is Phase.PENDING:
                        judged.phase = Phase.RUNNING
                    self._complete(judged)
            case TrialFailed():
                judged.stands = Doing.STARTING
                self._fail(judged)
            case TrialRetried():
                self._add_again(judged)
            case TrialErrored():
                self.gone(trial)

    def judge_again(
        self, trial: Trial, result: dict[str, Any], scored: Scored, decided: str
    ) -> str:
        """Give the base scheduler a result again; what it ``decided`` before holds."""
        self._trains(self._judged_of(trial))
        decision = self.judge(trial, result, scored, decided)
        # The base scheduler has stopped others by that; if by chance it has not now, it shall.
        stopped, self._stopped_before = self._stopped_before, []
        for other in stopped:
            self.stopped(other)
        return decision

    def exploit_again(
        self, trial: Trial, exploit: Exploit, version: Version | None, *, carried_out: bool
    ) -> None:
        """Overwrite a trial as it was; ``carried_out``: Tune's trial is what it became."""
        if self._validation is not None:
            judged = self._judged_of(trial)
            self._overwrite_again(judged, self._validation, exploit, version, carried_out)

    def retried(self, trial: Trial) -> None:
        """A trial that has failed, or had to stop, is started again."""
        self._add_again(self._judged_of(trial))

    @staticmethod
    def _trains(judged: JudgedTrial) -> None:
        judged.stands = Doing.TRAINING
        if judged.phase is Phase.PENDING:
            judged.phase = Phase.RUNNING

    def _overwrite_again(
        self,
        judged: JudgedTrial,
        validation: ValidationCallback,
        exploit: Exploit,
        version: Version | None,
        carried_out: bool,
    ) -> None:
        """Overwrite a trial as it was, whatever the base scheduler would do now."""
        _, source = self._exploits.pop(judged.trial_id, (None, None))
        place = (exploit.donor_id, exploit.donor_generation, exploit.iteration)
        if source is None or source.place[:3] != place:
            source = version
        change, judged.change = judged.change, Change()
        known = [judged.real.config, change.config, None if source is None else source.config]
        judged.change.tag, judged.change.config = change.tag, as_known(exploit.config, known)
        if source is not None:
            judged.change.restored_from = source.restorable()
        self._overwrite(judged, exploit, source, validation)
        change, judged.change = judged.change, Change()
        judged.phase = Phase.PAUSED
        if self._controller is not None and not carried_out:
            self._controller.change(judged.real, change)

    def resume(self) -> None:
        """Let each trial stand where it stood when the sweep was interrupted."""
        controller, validation = self._controller, self._validation
        if controller is None or validation is None:
            return
        self._judged = {i: judged for i, judged in self._judged.items() if judged.real is not None}
        for trial_id, judged in self._judged.items():
            judged.stands = None
            if judged.real.status == Trial.TERMINATED and not validation.has_completed(trial_id):
                # It had made its last report, or is not to go on.
                controller.tell_search_of_end(judged.real, failed=False)
                self.on_trial_complete(controller.wrapped(), judged.real, {})
            if judged.real.is_finished():
                continue
            self._open[trial_id] = judged
            self.moved(judged)
            stands_still = validation.config.on_pending != "continue"
            waits = stands_still and validation.waits(trial_id)
            if judged.phase is Phase.PAUSED or (judged.phase is Phase.RUNNING and waits):
                controller.set_status(judged.real, Trial.PAUSED)
            elif judged.phase is Phase.RUNNING:
                judged.phase = Phase.PENDING  # it starts again

    def take_leases(self) -> None:
        """Take the leases again that the saved sweep had for cloning."""
        validation = self._validation
        if validation is None:
            return
        for trial_id, judged in self._judged.items():
            if judged.version is not None and self._clones and judged.phase is not Phase.ENDED:
                validation.leases.take(("scored", trial_id), judged.version.checkpoint.path)
        for trial_id, version in self._offers.items():
            validation.leases.take(("offered", trial_id), version.checkpoint.path)
        for trial_id, (restored, _) in self._exploits.items():
            validation.keep_for_clone(trial_id, restored.checkpoint.path)

    def save(self, checkpoint_path: str) -> None:
        """Save the base scheduler, and where it has seen each trial last, to a file.

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

    def _stands_no_more(self, judged: JudgedTrial) -> None:
        """The trial is not waiting for anything any more."""
        judged.held = False
        self._ready.pop(judged.trial_id, None)
        if self._validation is not None:
            self._waited(judged.trial_id, self._validation)

    def gone(self, trial: Trial) -> None:
        """A trial has ended or failed for good: nothing of it is cloned any more."""
        judged = self._judged_of(trial)
        self._turns.put(judged, None)
        self._offers.pop(trial.trial_id, None)
        self._give_up_change(judged)
        if self._validation is not None:
            for use in ("scored", "offered"):
                self._validation.leases.release((use, trial.trial_id))


def _waits(judged: JudgedTrial) -> str | None:
    """The status that a trial has in which a scheduler may choose it; None if it cannot be."""
    if judged.phase is Phase.PENDING:
        return str(Trial.PENDING)
    return str(Trial.PAUSED) if judged.phase is Phase.PAUSED else None


class _Pickler(cloudpickle.Pickler):
    """Saves stand-ins of trials by their names, the trials being Tune's, and checkpoints by where
    they lie in the experiment, which may be moved."""

    def __init__(self, file: io.BytesIO, places: Places):
        super().__init__(file)
        self._places = places

    def persistent_id(self, part: Any) -> tuple[str, str] | None:
        if type(part) is JudgedTrial:
            return ("trial", part.trial_id)
        if isinstance(part, tune.Checkpoint):
            return ("checkpoint", self._places.record(part.path))
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        file: io.BytesIO,
        judged: dict[str, JudgedTrial],
        scheduling: Any,
        places: Places,
        filesystem: Any,
    ):
        super().__init__(file)
        self._judged, self._scheduling = judged, scheduling
        self._places, self._filesystem = places, filesystem

    def persistent_load(self, known: tuple[str, str]) -> Any:
        kind, name = known
        if kind == "trial":
            return self._judged.setdefault(name, JudgedTrial(self._scheduling))
        return tune.Checkpoint(self._places.path(name), self._filesystem)
