"""The next trial that the user's scheduler starts or resumes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from tunekit._ray.controller import Controller
from tunekit.core.engine import Hears, Input
from tunekit.core.events import Chosen
from tunekit.core.reconcile import Actual, Desired
from tunekit.scheduling.user_scheduler import UserScheduler

# The scheduler acts on the first reminder, and sees the result of that in the second.
_REMINDERS = 2


@dataclass(eq=False)
class NextTrial:
    """Ask the user's scheduler for the next trial, and remind it if it waits for ended trials.

    Args:
        user_scheduler: The user's scheduler.
        controller: The sweep's controller.
        emit: Records and applies each event.
    """

    user_scheduler: UserScheduler
    controller: Controller
    emit: Callable[[Input], None]
    # The newest score of each remaining trial at the last reminder, and the reminders since.
    _standing: dict[str, Any] = field(default_factory=dict, init=False)
    _given: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._proxies = self.user_scheduler.proxies
        # The view of a scheduler that takes the first trial.
        self._in_turn = self.user_scheduler.view.with_only(self._proxies.first_in_turn)

    def choose(self) -> Trial | None:
        """Return the trial to start or resume next, if any."""
        if self.controller.all_run and not self.user_scheduler.traits.pauses:
            return None  # the scheduler would look through all trials
        return self.advance()

    def advance(self) -> Trial | None:
        """Ask the user's scheduler until it returns a trial that can be started, or none.

        It may return trials whose end is not delivered yet; these count as running.
        """
        user_scheduler = self.user_scheduler
        for _ in range(len(self._proxies.by_id) + 1):
            proxy = user_scheduler.scheduler.choose_trial_to_run(self._sees())
            user_scheduler.take_up()
            if proxy is None:
                self._remind()
                return None
            if proxy.change and proxy.doing is not Actual.ENDED:
                return None  # the trial adopts the change first
            if proxy.doing in (Actual.STARTING, Actual.PAUSED):
                if proxy.phase is Desired.PAUSED:
                    self.emit(Chosen(trial_id=proxy.trial_id, runs=False))
                    proxy.phase = Desired.PENDING
                    self._proxies.reopen(proxy)
                return proxy.real
            # The trial is still running or has ended: do not start it.
            self.emit(Chosen(trial_id=proxy.trial_id, runs=True))
            proxy.phase = Desired.RUNNING
            self._proxies.reopen(proxy)
            self.emit(Hears(proxy.trial_id))
        return None

    def _sees(self) -> Any:
        """Return the view that the scheduler chooses from; one trial, if it takes the first."""
        user_scheduler = self.user_scheduler
        chooses = getattr(user_scheduler.scheduler.choose_trial_to_run, "__func__", None)
        in_turn = chooses is FIFOScheduler.choose_trial_to_run
        return self._in_turn if in_turn else user_scheduler.view

    def _remind(self) -> None:
        """Pass earlier results again to a scheduler that waits for an ended trial.

        Synchronous PBT and HyperBand continue when the last result of a round arrives, and Tune's
        would wait forever for a trial that has already ended or failed. The repeated results only
        make them count the trials. They are passed only when nothing else can happen, and not
        again until something has.
        """
        if not self.user_scheduler.traits.waits_for_all or not self.controller.still:
            return
        left = [
            proxy
            for proxy in self._proxies.by_id.values()
            if proxy.status not in (Trial.TERMINATED, Trial.ERROR)
        ]
        if any(proxy.phase is not Desired.PAUSED for proxy in left):
            return
        standing = {proxy.trial_id: proxy.version and proxy.version.place for proxy in left}
        if standing != self._standing:
            self._standing, self._given = standing, 0
        if self._given == _REMINDERS:
            return
        self._given += 1
        scored = [(proxy, proxy.version) for proxy in left if proxy.version is not None]
        # A clone has its donor's score until it has its own.
        own = [(one, version) for one, version in scored if version.trial_id == one.trial_id]
        for proxy, version in own or scored:
            if proxy.phase is Desired.PAUSED:
                self.user_scheduler.remind_of(proxy, version)
        self.user_scheduler.take_up()
        for proxy in left:
            if proxy.phase is Desired.RUNNING:
                self.emit(Hears(proxy.trial_id))
