"""Which trials wait for scores, and what may use their places meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ray.tune.experiment import Trial

from tunekit._ray.controller import Controller
from tunekit.core.engine import Engine
from tunekit.core.pending import Waits, stands_still, waits_for
from tunekit.driver.consumers import SchedulerConsumer
from tunekit.validating.validator import Validator

__all__ = ["Waiting"]


class Waiting:
    """Knows how trials and validations share resources in a sweep.

    Args:
        asked: ``ValidationConfig(on_pending=...)``.
        trials: The trials of the sweep; others may be added.
        state: The state of the sweep.
        validator: Returns what runs the validations.

    Example:
        >>> waiting = Waiting("wait", {}, Engine(), validator=lambda: None)
        >>> waiting.waits("a")  # it has not reported
        False
    """

    def __init__(
        self,
        asked: str,
        trials: Mapping[str, Trial],
        state: Engine,
        validator: Callable[[], Validator],
    ):
        self._asked, self._trials, self._state = asked, trials, state
        self._validator = validator
        self._controller: Controller | None = None
        self._scheduler: SchedulerConsumer | None = None
        #: Whether trials take resources that validations need; None: that is not known.
        self.shares_with_trials: bool | None = None
        #: Whether checkpoints are validated in the processes of trials that wait, as a rule: then
        #: nothing queues for resources that trials have.
        self.validate_themselves = False
        #: Whether a trial and a validation can only run one after the other, as far as is known.
        self.one_at_a_time: Callable[[], bool] = lambda: False

    def attach(self, controller: Controller, scheduler: SchedulerConsumer) -> None:
        """Take the sweep's controller and scheduler; nobody waits or lends before."""
        self._controller, self._scheduler = controller, scheduler

    def waits_for(self, trial_id: str) -> Waits:
        """Return for which of its pending scores a trial waits."""
        controller, scheduler, trial = self._controller, self._scheduler, self._trials.get(trial_id)
        if self._asked != "auto" or controller is None or scheduler is None:
            return waits_for(self._asked)
        return waits_for(
            self._asked,
            lends=trial is not None and self._validator().fits_in(controller.resources_of(trial)),
            swaps=controller.reuses_actors,
            short=self.validate_themselves and self._validator().are_short,
            synchronous=scheduler.compares_all,
        )

    def waits(self, trial_id: str) -> bool:
        """Return whether a trial that has reported waits for pending scores."""
        delivery = self._state.delivery
        if not delivery.waits(trial_id):
            return False
        waits = self.waits_for(trial_id)
        if waits is Waits.LATE and self.one_at_a_time():
            return False  # nothing is validated before it ends
        return stands_still(
            waits,
            scores=1,
            decisions=delivery.decisions(trial_id),
            past_last=lambda: self._past_last(trial_id),
        )

    def lenders(self) -> dict[str, Trial]:
        """Return the trials that wait and in whose place a validation fits."""
        return {} if self._scheduler is None else self._scheduler.lenders()

    def others_wait(self) -> bool:
        """Return whether a trial could go on in the place of one that waits."""
        return self._reuses_actors and bool(self._controller and self._controller.has_new_trials)

    def promised(self) -> Iterable[Mapping[str, float]]:
        """Return the resources of each trial that Tune has promised some."""
        return () if self._controller is None else self._controller.promised()

    def to_come(self) -> Mapping[str, float]:
        """Return what a trial takes, if any have not begun; nothing if none are left to begin."""
        controller, trial = self._controller, next(iter(self._trials.values()), None)
        if controller is None or trial is None:
            return {}
        comes = controller.has_new_trials or controller.to_come
        return controller.needs_of(trial) if comes else {}

    def at_the_end(self) -> bool:
        """Return whether trials validate themselves, and none waits to be started or resumed."""
        all_run = self._controller is not None and self._controller.all_run
        return self.validate_themselves and all_run and not self.to_come()

    def validations_first(self) -> bool:
        """Return whether trials must not start before pending validations have what they need.

        Where only one thing can run at a time, that goes for all validations. Elsewhere it goes for
        those that the scheduler will decide by, if trials take what they need. (Where actors are
        reused, making room would end them.)
        """
        makes_room = bool(self.shares_with_trials) and not self._reuses_actors
        return self.one_at_a_time() or (makes_room and self._validator().wants_room)

    def _past_last(self, trial_id: str) -> bool:
        return self._scheduler is not None and self._scheduler.past_last(trial_id)

    @property
    def _reuses_actors(self) -> bool:
        return self._controller is not None and self._controller.reuses_actors
