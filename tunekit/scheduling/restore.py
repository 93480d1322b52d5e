"""How the scheduler of an interrupted sweep is brought back to where it was."""

from __future__ import annotations

from collections.abc import Callable

from ray.tune.experiment import Trial

from tunekit._ray.controller import Controller
from tunekit._ray.stand_ins import StandIn, Version
from tunekit.core.delivery import Delivery
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
from tunekit.core.lineage import Exploit
from tunekit.core.reconcile import Actual, Desired
from tunekit.scheduling.base import BaseScheduler

__all__ = ["SchedulerRestore"]


class SchedulerRestore:
    """Repeats to the base scheduler what has happened since it was saved, and then goes on.

    ``tunekit.driver.restore`` says what to repeat, in the order of the journal.

    Args:
        base: The base scheduler.
        controller: The sweep's controller.
        delivery: What was delivered.
        waits: Returns whether a trial waits for scores.
        ended: Called with a trial that has ended, as Tune would tell.
    """

    def __init__(
        self,
        base: BaseScheduler,
        controller: Controller,
        delivery: Delivery,
        *,
        waits: Callable[[str], bool],
        ended: Callable[[Trial], None],
    ):
        self._base, self._stand_ins, self._controller = base, base.stand_ins, controller
        self._delivery, self._waits, self._ended = delivery, waits, ended
        # Trials that the base scheduler stopped by a decision that is being replayed.
        self._stopped_before: list[StandIn] = []

    def catch_up(self, event: Event, trial: Trial) -> None:
        """Repeat what was done before the sweep was interrupted."""
        base, stand_in = self._base, self._stand_ins.of(trial)
        match event:
            case Reported():
                self.trains(stand_in)
            case Decided():
                self._stopped_before.append(stand_in)
            case Resumed():
                base.scheduler.choose_trial_to_run(base.view)
                stand_in.phase = Desired.RUNNING if event.runs else Desired.PENDING
            case Reminded():
                if stand_in.version is not None:
                    base.remind_of(stand_in, stand_in.version, event.decision)
                    base.take_up()
            case TrialEnded():
                stand_in.stands = Actual.ENDED
                if event.removed and stand_in.phase is not Desired.ENDED:
                    base.end(stand_in)
                elif not event.removed:
                    if stand_in.phase is Desired.PENDING:
                        stand_in.phase = Desired.RUNNING
                    base.complete(stand_in)
            case TrialFailed():
                stand_in.stands = Actual.STARTING
            case TrialRetried():
                base.restart(stand_in)
            case TrialErrored():
                base.fail(stand_in)

    def stop_as_before(self) -> None:
        """End the trials that the base scheduler stopped by a result that it has got again.

        By chance, it may not have stopped them now.
        """
        stopped, self._stopped_before = self._stopped_before, []
        for other in stopped:
            self._base.stopped(other)

    def exploit_again(
        self, trial: Trial, exploit: Exploit, version: Version | None, *, carried_out: bool
    ) -> None:
        """Overwrite a trial as before; ``carried_out``: Tune's trial is overwritten already."""
        change = self._base.exploit_again(trial, exploit, version)
        if not carried_out:
            self._controller.change(trial, change)

    @staticmethod
    def trains(stand_in: StandIn) -> None:
        """Take that a trial trains."""
        stand_in.stands = Actual.TRAINING
        if stand_in.phase is Desired.PENDING:
            stand_in.phase = Desired.RUNNING

    def resume(self) -> None:
        """Put each trial where it stood when the sweep was interrupted."""
        controller, delivery = self._controller, self._delivery
        self._stand_ins.forget_unadded()
        for trial_id, stand_in in self._stand_ins.by_id.items():
            stand_in.stands = None
            if stand_in.phase is Desired.ENDED and not (
                delivery.closed(trial_id) or delivery.completed(trial_id)
            ):
                self._base.record_stop(stand_in)  # by chance, it was stopped this time
            if stand_in.real.status == Trial.TERMINATED and not delivery.completed(trial_id):
                # It had made its last report, or must not go on.
                controller.tell_search_of_end(stand_in.real, failed=False)
                self._ended(stand_in.real)
            if stand_in.real.is_finished():
                continue
            self._stand_ins.reopen(stand_in)
            self._stand_ins.moved(stand_in)
            waits = self._waits(trial_id)
            if stand_in.phase is Desired.PAUSED or (stand_in.phase is Desired.RUNNING and waits):
                controller.set_status(stand_in.real, Trial.PAUSED)
            elif stand_in.phase is Desired.RUNNING:
                stand_in.phase = Desired.PENDING  # it starts again
