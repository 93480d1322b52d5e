"""Deliver scores and the ends of trials to the scheduler and the searcher."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ray.tune.experiment import Trial
from ray.tune.result import DONE
from ray.tune.schedulers import TrialScheduler

from tunekit._ray.scheduler_kinds import exhausts
from tunekit.core.delivery import Completion, Scored
from tunekit.core.engine import Engine
from tunekit.core.events import EndDelivered, Event, ScoreDelivered, TrialEnded
from tunekit.core.metrics import flatten
from tunekit.scheduling.next_trial import NextTrial
from tunekit.scheduling.searcher import ValidatedSearcher
from tunekit.scheduling.stopping import StoppingCriteria
from tunekit.scheduling.user_scheduler import UserScheduler


@dataclass(eq=False)
class Deliveries:
    """Deliver each due score and end once, and record the scheduler's decisions.

    Args:
        engine: The state of the sweep.
        trials: Its trials; others may be added.
        user_scheduler: The scheduler that gets scores.
        next_trial: Asks the scheduler for the next trial.
        searcher: The searcher that gets scores, if any.
        criteria: The stopping criteria that read validated metrics.
        emit: Records and applies each event.
    """

    engine: Engine
    trials: Mapping[str, Trial]
    user_scheduler: UserScheduler
    next_trial: NextTrial
    searcher: ValidatedSearcher | None
    criteria: StoppingCriteria
    emit: Callable[[Event], None]

    def deliver(self, trial_id: str) -> None:
        """Deliver a trial's due scores, and its end."""
        trial = self.trials[trial_id]
        while self.user_scheduler.hears(trial_id):
            match self.engine.delivery.due(trial_id):
                case Scored() as scored:
                    self.emit(self._decide(trial, scored))
                case Completion() as end:
                    self._deliver_end(trial, end)
                case None:
                    break

    def deliver_again(self, event: ScoreDelivered | EndDelivered, *, search: bool) -> None:
        """Repeat a delivery of an interrupted session; earlier events determine its content.

        Args:
            event: The event.
            search: Whether the searcher has not seen it.
        """
        trial, delivery = self.trials[event.trial_id], self.engine.delivery
        if isinstance(event, EndDelivered):
            self._end(trial, delivery.end(event.trial_id), again=True, search=search)
            return
        scored = delivery.score_at(event.trial_id, event.place)
        if scored is not None:
            self._decide(trial, scored, decided=event.decision, search=search)

    def _decide(
        self, trial: Trial, scored: Scored, *, decided: str | None = None, search: bool = True
    ) -> ScoreDelivered:
        """Pass a score to the stopping criteria, the scheduler and the searcher.

        Args:
            trial: The trial.
            scored: The score.
            decided: The decision before the sweep was interrupted, if there was one.
            search: Whether the searcher has not seen it.
        """
        trial_id, names = trial.trial_id, self.engine.history.names
        result = {**flatten(scored.result), DONE: False}
        stops = self.criteria.reached(trial_id, result, names, again=decided is not None)
        decision = self.user_scheduler.judge(trial, result, scored, stops=stops, decided=decided)
        finished = False
        if decision == TrialScheduler.STOP:  # otherwise it was stopped early
            finished = stops or exhausts(self.user_scheduler.scheduler, result)
        elif search and self.searcher is not None:
            self.searcher.receive(trial_id, result)
        return ScoreDelivered.of(scored.request, decision=decision, finished=finished)

    def _deliver_end(self, trial: Trial, end: Completion) -> None:
        self.emit(EndDelivered(trial_id=trial.trial_id))
        self._end(trial, end)

    def _end(
        self, trial: Trial, end: Completion, *, again: bool = False, search: bool = True
    ) -> None:
        """Notify the scheduler of a trial's end, and the searcher if it has not seen it."""
        result = None if end.result is None else flatten(end.result)
        if result is not None and not self.user_scheduler.has_ended(trial):
            names = self.engine.history.names  # stoppers look across trials
            self.criteria.reached(trial.trial_id, result, names, again=again)
        self.user_scheduler.finish(trial, result)
        if search and self.searcher is not None:
            self.searcher.finish(trial.trial_id, result)

    def complete(self, trial_id: str, *, removed: bool = False) -> None:
        """Record the end of a trial, which is delivered after its last score.

        Args:
            trial_id: The trial.
            removed: Whether it was not running when it ended.
        """
        if not self.engine.delivery.completed(trial_id):
            self.emit(TrialEnded(trial_id=trial_id, removed=removed))

    def conclude(self, trials: Iterable[Trial]) -> None:
        """Deliver everything that is left at the end of the sweep.

        Args:
            trials: The trials that have ended and do not continue when the sweep is restored.
        """
        delivery = self.engine.delivery
        ended = [one for one in trials if one.trial_id in self.trials]
        for trial in ended:
            self.complete(trial.trial_id)  # if Tune has not notified the scheduler
            if not delivery.over(trial.trial_id):
                self.next_trial.advance()  # the scheduler may end trials that it has paused
        for trial in ended:
            if not delivery.over(trial.trial_id):
                self.user_scheduler.conclude(trial)
                self._deliver_end(trial, delivery.end(trial.trial_id))
