"""The next trial that the user's scheduler starts or resumes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from tunekit._ray.controller import Controller
from tunekit.core.engine import Hears, Input
from tunekit.core.events import Chosen
from tunekit.core.reconcile import Actual, Desired
from tunekit.scheduling.user_scheduler import UserScheduler

__all__ = ["NextTrial", "Reminders"]

# The first reminder lets it act, the second shows it the result.
_MOST = 2


class NextTrial:
    """Let the user's scheduler choose, and remind it if it waits for ended trials.

    Args:
        user_scheduler: The user's scheduler.
        controller: The sweep's controller.
        emit: Records and applies each event.
    """

    def __init__(
        self,
        user_scheduler: UserScheduler,
        controller: Controller,
        *,
        emit: Callable[[Input], None],
    ):
        self._user_scheduler, self._controller = user_scheduler, controller
        self._proxies = user_scheduler.proxies
        self._emit = emit
        # The view of a scheduler that takes the first trial.
        self._in_turn = user_scheduler.view.with_only(self._proxies.first_in_turn)
        self._reminders = Reminders()

    def choose(self) -> Trial | None:
        """Return the trial to start or resume next, if any."""
        if self._controller.all_run and not self._user_scheduler.traits.pauses:
            return None  # it would look through all trials
        return self.advance()

    def advance(self) -> Trial | None:
        """Ask the user's scheduler until it returns a trial that can be started, or none.

        It may return trials whose end it has not been notified of, and continues with these.
        """
        user_scheduler = self._user_scheduler
        for _ in range(len(self._proxies.by_id) + 1):
            proxy = user_scheduler.scheduler.choose_trial_to_run(self._sees())
            user_scheduler.take_up()
            if proxy is None:
                self._remind()
                return None
            if proxy.change and proxy.doing is not Actual.ENDED:
                return None  # it takes that up first
            paused_by_hand = self._proxies.paused_by_hand(proxy.trial_id)
            if proxy.doing in (Actual.STARTING, Actual.PAUSED) and not paused_by_hand:
                if proxy.phase is Desired.PAUSED:
                    self._emit(Chosen(trial_id=proxy.trial_id, runs=False))
                    proxy.phase = Desired.PENDING
                    self._proxies.reopen(proxy)
                return proxy.real
            # It is still running, has ended, or is paused by hand: no need to start it.
            self._emit(Chosen(trial_id=proxy.trial_id, runs=True))
            proxy.phase = Desired.RUNNING
            self._proxies.reopen(proxy)
            self._emit(Hears(proxy.trial_id))
        return None

    def _sees(self) -> Any:
        """Return what the user's scheduler chooses from: one trial, if it takes the first."""
        user_scheduler = self._user_scheduler
        chooses = getattr(user_scheduler.scheduler.choose_trial_to_run, "__func__", None)
        in_turn = chooses is FIFOScheduler.choose_trial_to_run
        return self._in_turn if in_turn else user_scheduler.view

    def _remind(self) -> None:
        """Remind a scheduler that waits for an ended trial."""
        if not self._user_scheduler.traits.waits_for_all or not self._controller.still:
            return
        left = [
            proxy
            for proxy in self._proxies.by_id.values()
            if proxy.status not in (Trial.TERMINATED, Trial.ERROR)
            and not self._proxies.paused_by_hand(proxy.trial_id)
        ]
        if any(proxy.phase is not Desired.PAUSED for proxy in left):
            return
        if not self._reminders.due({j.trial_id: j.version and j.version.place for j in left}):
            return
        scored = [(proxy, proxy.version) for proxy in left if proxy.version is not None]
        # A clone has its donor's score; one that has its own score is represented by that.
        own = [(one, version) for one, version in scored if version.trial_id == one.trial_id]
        for proxy, version in own or scored:
            if proxy.phase is Desired.PAUSED:
                self._user_scheduler.remind_of(proxy, version)
        self._user_scheduler.take_up()
        for proxy in left:
            if proxy.phase is Desired.RUNNING:
                self._emit(Hears(proxy.trial_id))


class Reminders:
    """Remind a scheduler that waits for all trials of a round, of which some have ended.

    Synchronous PBT and HyperBand continue when the last result of a round arrives, and Tune's would
    wait forever for a trial that has already ended or failed. They get earlier results again, which
    only makes them count the trials: but only when nothing else can happen, and not again until
    something has.

    Example:
        >>> reminders = Reminders()
        >>> [reminders.due({"a": 3, "b": 3}) for _ in range(3)]
        [True, True, False]
        >>> reminders.due({"a": 6, "b": 3})
        True
    """

    def __init__(self) -> None:
        self._standing: dict[str, Hashable] = {}
        self._given = 0

    def due(self, standing: Mapping[str, Hashable]) -> bool:
        """Return whether to remind the scheduler, given that nothing else can happen.

        Args:
            standing: The newest score of each remaining trial.
        """
        if standing != self._standing:
            self._standing, self._given = dict(standing), 0
        if self._given == _MOST:
            return False
        self._given += 1
        return True
