"""What trials do while their scores are pending, and what may use their resources.

Like :mod:`tunekit.core.sweep`, it is told facts and returns commands. What is known about resources
and processes comes as a :class:`Situation`, gathered in one place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from tunekit.core.commands import (
    Command,
    NotifyStarved,
    Record,
    Release,
    Start,
    StartAgain,
    Stay,
    Stop,
    Train,
)
from tunekit.core.events import Waited
from tunekit.core.pool import Pool
from tunekit.core.queue import UNMEASURED, Circumstances, Next, Process, Queue, Wait, what_next
from tunekit.core.shares import Shares
from tunekit.core.timing import StartTimes

# A brief shortage does not end a trial's process.
_STARVED_S = 2.0


class Abilities(NamedTuple):
    """What a trial can do while it waits, as far as is known.

    Attributes:
        hosts: Whether a validation fits in its processes.
        resumes: Whether it resumes from a checkpoint in another process.
        hands_over: Whether another trial can run in its process, where processes are reused.
        competes: Whether it needs a kind of resource that validations need.
    """

    hosts: bool = False
    resumes: bool = False
    hands_over: bool = False
    competes: bool = False


class Situation(NamedTuple):
    """What is known about a sweep's resources and processes at a time.

    Attributes:
        now: The time, in seconds on a clock that is never set back.
        typical: What the first trial can do, and thus probably the others.
        in_trials: Whether validations can run in the processes of trials.
        reuses: Whether other trials run in the processes of trials that pause or end.
        others_wait: Whether a trial waits for a slot that no other one has released for it.
        runs: Whether any trial runs.
        leaving: The trials whose processes must end, because their nodes do.
        stopping: The trials that were stopped by hand, and train no more.
        out_of_time: Whether the time of the sweep is up, so that no trial trains on.
    """

    now: float = 0.0
    typical: Abilities = Abilities()
    in_trials: bool = False
    reuses: bool = False
    others_wait: bool = False
    runs: bool = False
    leaving: AbstractSet[str] = frozenset()
    stopping: AbstractSet[str] = frozenset()
    out_of_time: bool = False


class WaitingTrial(NamedTuple):
    """What is known about a trial that waits, or that may train on.

    Attributes:
        trial_id: Its ID.
        queue: Its reports that Tune has not processed.
        can: What it can do.
        decides_again: Whether the scheduler can use the score of a later report.
        is_saved: Whether the newest of its reports that Tune has processed is saved.
        has_process: Whether it has a process: it has not released its slot.
        asks_until: Until when its loop waits for all its scores, in the middle of an iteration, in
            seconds; None if it does not.
    """

    trial_id: str
    queue: Queue
    can: Abilities = Abilities()
    decides_again: bool = True
    is_saved: bool = False
    has_process: bool = True
    asks_until: float | None = None


@dataclass(frozen=True)
class WaitingRules:
    """The settings of a sweep that decide what waiting trials do.

    Attributes:
        on_pending: As for :class:`tunekit.ValidationConfig`.
        where: The same.
        synchronous: Whether the scheduler compares all trials at the same time.
        decides: Whether the scheduler decides by scores.
    """

    on_pending: str = "auto"
    where: str | None = None
    synchronous: bool = False
    decides: bool = True


class Waiting:
    """Decide what trials do while their scores are pending, and where validations run.

    Args:
        rules: The settings.
        pool: The sweep's validations.
        shares: How trials and validations share the cluster.

    Example:
        >>> waiting = Waiting(WaitingRules(), Pool(), Shares(at_once=2))
        >>> [type(one).__name__ for one in waiting.next(WaitingTrial("a", Queue()), Situation())]
        ['Train']
    """

    def __init__(self, rules: WaitingRules, pool: Pool, shares: Shares):
        self._rules, self._shares = rules, shares
        #: The sweep's validations.
        self.pool = pool
        #: How long trials take to start, and to train an iteration.
        self.starts = StartTimes()
        # When each waiting trial began to wait for a score.
        self._since: dict[str, float] = {}
        # Trials that release their slots to validations that could not start otherwise.
        self._relieved: set[str] = set()
        # How many decisions the scheduler has made, and how many of them let trials continue.
        self._decided = self._continued = 0

    # What a waiting trial does -----------------------------------------------------------------

    def decided(self, *, continues: bool) -> None:
        """Count a decision of the scheduler, and whether the trial continues."""
        self._decided, self._continued = self._decided + 1, self._continued + continues

    def circumstances(self, situation: Situation) -> Circumstances:
        """Return the circumstances that all waiting trials share until one of them moves on."""
        rules, apart = self._rules, self._shares.apart
        weighs = rules.on_pending == "auto" or (apart and not situation.reuses)
        return Circumstances(
            "wait" if self._validates_each(situation) else rules.on_pending,
            synchronous=rules.synchronous,
            others_wait=situation.others_wait,
            exclusive=self._excludes(situation),
            typical=self._typical_wait if weighs else UNMEASURED,
            reuses=situation.reuses,
            leaving=situation.leaving,
            stopping=situation.stopping,
            out_of_time=situation.out_of_time,
            relieved=frozenset(self._relieved),
            ended_hosts=frozenset(self.pool.ended_hosts),
        )

    def next(
        self, trial: WaitingTrial, situation: Situation, now: Circumstances | None = None
    ) -> list[Command]:
        """Return what a trial does next.

        Args:
            trial: The trial.
            situation: The situation of the sweep.
            now: The circumstances that follow from it, if they are known already.
        """
        now, trial_id, time = now or self.circumstances(situation), trial.trial_id, situation.now
        if trial_id in now.stopping and not trial.queue:
            return [*self._waited(trial_id, time), Stop(trial_id)]
        what, commands = self.what(trial, now, time), list[Command]()
        if what is Next.TRAIN:
            commands += self._waited(trial_id, time)
            if trial.asks_until is None:  # otherwise, it is in the middle of an iteration
                self.starts.trains(trial_id, time)
        else:
            self._since.setdefault(trial_id, time)
        if what is Next.RELEASE:
            self._relieved.discard(trial_id)
        if not trial.has_process:
            return commands if trial.queue else [*commands, StartAgain(trial_id)]
        if what is Next.WAIT:
            return [*commands, Stay(trial_id, now)]
        return [*commands, Train(trial_id) if what is Next.TRAIN else Release(trial_id)]

    def what(
        self, trial: WaitingTrial, now: Circumstances, time: float, *, elsewhere: bool = False
    ) -> Next:
        """Return what a trial does next: :func:`what_next`.

        Args:
            trial: The trial.
            now: The circumstances.
            time: The time, in seconds.
            elsewhere: Whether its validations will run elsewhere.
        """
        process, until = self._process(trial, now), trial.asks_until
        answers = until is not None and (until <= time or trial.queue.saves)
        if answers and process is Process.FREE and not trial.queue.over:
            return Next.WAIT if trial.queue.saves else Next.TRAIN
        # It decreases with time, so the trial has fewer and fewer reasons to do anything else. One
        # that is being saved, and so cannot release its slot yet, is asked again once it is saved.
        wait = now.typical._replace(wait_s=self.pool.wait_s(trial.trial_id, time))
        if self.pool.decides_elsewhere(trial.trial_id):
            wait, elsewhere = wait._replace(late_s=0.0), True
        return what_next(
            trial.queue,
            now,
            process,
            wait,
            decides_again=trial.decides_again,
            can_host=self._can_host(trial.can) and not elsewhere,
            can_release=self._can_release(trial.can, wait, reuses=now.reuses),
            asks=until is not None,
        )

    @property
    def _typical_wait(self) -> Wait:
        durations, starts = self.pool.durations, self.starts
        continues = (self._continued + 1) / (self._decided + 1)
        return Wait(
            durations.typical_s, durations.late_s, starts.typical_s, starts.iteration_s, continues
        )

    def _process(self, trial: WaitingTrial, now: Circumstances) -> Process:
        if self.pool.runs_in(trial.trial_id):
            return Process.VALIDATES
        if trial.trial_id in now.ended_hosts:
            return Process.ENDED
        leaves = trial.trial_id in now.leaving and self._can_leave(trial)
        ends = now.out_of_time or trial.trial_id in now.stopping
        return Process.LEAVES if leaves or ends or trial.trial_id in now.relieved else Process.FREE

    def _can_leave(self, trial: WaitingTrial) -> bool:
        """Return whether a trial would continue elsewhere from its newest report."""
        saved = trial.queue.resumable or trial.queue.saves if trial.queue else trial.is_saved
        return trial.can.resumes and saved

    def _validates_each(self, situation: Situation) -> bool:
        """Return whether validations are so short that a trial waits for each, as if inline."""
        if self._rules.on_pending == "continue" or not situation.in_trials:
            return False
        trains_on = self._shares.dedicated and self._needs_no_score
        iteration_s = (self.starts.iteration_s or 0.0) if trains_on else None
        short = self.pool.durations.are_short(self.starts.typical_s, iteration_s)
        return self._rules.where == "trial" or short

    @property
    def _needs_no_score(self) -> bool:
        """Return whether no decision depends on scores."""
        return self._rules.on_pending == "auto" and not self._rules.decides

    def stops_waiting(self, trial_id: str, now: float) -> list[Command]:
        """Handle that a trial has ended or paused, so that it waits for nothing."""
        self.starts.ends(trial_id)
        return self._waited(trial_id, now)

    def _waited(self, trial_id: str, now: float) -> list[Command]:
        """Return the record of how long a trial waited for its scores, if it did."""
        since = self._since.pop(trial_id, None)
        seconds = 0.0 if since is None else round(now - since, 4)
        return [Record(Waited(trial_id=trial_id, seconds=seconds))] if seconds else []

    def waits(self, trial_id: str) -> bool:
        """Return whether a trial waits for a score now."""
        return trial_id in self._since

    # Where validations run ---------------------------------------------------------------------

    def _can_host(self, can: Abilities) -> bool:
        """Return whether a validation can run in the processes of a trial while it waits."""
        return can.hosts and self._rules.on_pending != "continue"

    def _waits_as_long(self, trial: WaitingTrial, now: float) -> bool:
        """Return whether a trial waits as long as a validation in its process would take."""
        until, typical_s = trial.asks_until, self.pool.durations.typical_s
        if until is None or until == math.inf:
            return True
        return typical_s is not None and now + typical_s < until

    def _excludes(self, situation: Situation) -> bool:
        """Return whether validations can only run once a trial has released its resources."""
        return self._shares.exclusive and not self._can_host(situation.typical)

    def start(
        self, situation: Situation, capacity: int, in_place: Iterable[WaitingTrial]
    ) -> list[Command]:
        """Start the validations that may run now, in waiting trials and elsewhere.

        Args:
            situation: The situation of the sweep.
            capacity: How many more fit in free resources.
            in_place: The trials that wait in their processes, in order.
        """
        pool, hosts = self.pool, list[WaitingTrial]()
        if pool.queued and situation.in_trials:
            hosts = [
                trial
                for trial in in_place
                if not pool.runs_in(trial.trial_id)
                and trial.trial_id not in situation.leaving
                and self._can_host(trial.can)
                and self._waits_as_long(trial, situation.now)
            ]
        started = self._start_in_trials(hosts, situation, elsewhere=capacity > 0)
        # Where trials validate, other validations wait for resources; otherwise, one always starts.
        waits = self._can_host(situation.typical) and situation.runs
        apart = pool.start(capacity, situation.now, waits=waits)
        started += [Start(attempt, in_trial=False) for attempt in apart]
        if capacity > 0:  # nothing is free elsewhere now
            started += self._start_in_trials(hosts, situation, elsewhere=False)
        return started

    def _start_in_trials(
        self, hosts: Sequence[WaitingTrial], situation: Situation, *, elsewhere: bool
    ) -> list[Command]:
        """Start validations in the processes of waiting trials.

        If validations can also run elsewhere and are not short, they run only in trials that would
        otherwise be idle, because they end first there.
        """
        if not (hosts and self.pool.queued):
            return []
        now, time = self.circumstances(situation), situation.now
        if elsewhere and not self._validates_each(situation):
            hosts = [one for one in hosts if self.what(one, now, time, elsewhere=True) is Next.WAIT]
        attempts = self.pool.start_in_trials(
            [trial.trial_id for trial in hosts if not self.pool.runs_in(trial.trial_id)],
            each=now.on_pending == "wait" or self._needs_no_score,
            asking={trial.trial_id for trial in hosts if trial.asks_until is not None},
            others_wait=now.others_wait and self._typically_hand_over(situation),
        )
        return [Start(attempt, in_trial=True) for attempt in attempts]

    # Resources ---------------------------------------------------------------------------------

    def _can_release(self, can: Abilities, wait: Wait, *, reuses: bool) -> bool:
        """Return whether another trial runs with the resources of a waiting one."""
        if reuses:
            return can.hands_over
        return self._shares.apart and can.resumes and wait.pays_to_release

    def _typically_hand_over(self, situation: Situation) -> bool:
        """Return whether other trials run with the resources of those that wait."""
        can, reuses = situation.typical, situation.reuses
        return self._can_release(can, self._typical_wait, reuses=reuses)

    def slots(self, situation: Situation) -> int | None:
        """Return how many trials may have a process at once; None if only resources limit them.

        It is 0 while pending validations lack resources that trials would take: what is requested
        for trials, or cached, is then released. Only validations whose scores the scheduler will
        use count, unless none fits alongside a trial. (Trials that hand over their resources would
        lose these to the validations.)
        """
        wanted = not self.pool.idle if self._excludes(situation) else self.pool.needs_slot
        if wanted and situation.typical.competes and not self._typically_hand_over(situation):
            return 0  # no trial starts before them: running trials wait for these (decision 2)
        themselves = self._can_host(situation.typical)
        return self._shares.at_once if themselves else self._shares.alongside

    def lacks_resources(self, situation: Situation) -> bool:
        """Return whether a validation lacks resources that a cached process may hold."""
        waits = self.pool.queued > 0 or self.pool.unplaced > 0
        return waits and situation.typical.competes and not self._shares.apart

    def evaluators_kept(self, situation: Situation) -> int | None:
        """Return how many idle evaluators stay if trials need resources; None: all."""
        if not (self.pool.idle and situation.typical.competes):
            return None
        return 0 if self._can_host(situation.typical) else self._shares.validations

    def relieve(
        self, situation: Situation, in_place: Sequence[WaitingTrial], processes: int
    ) -> list[Command]:
        """Release the slot of the first waiting trial if waiting trials starve validations.

        Otherwise, all trials would wait for scores while the validations wait for the trials'
        resources. A trial that only waits because its loop asks trains on if it cannot resume.

        Args:
            situation: The situation of the sweep.
            in_place: The trials that wait in their processes.
            processes: How many trials have a process.
        """
        now, competes = situation.now, situation.typical.competes
        starves = self.pool.starved_s(now) >= _STARVED_S and competes
        if not (starves and in_place and len(in_place) >= processes):
            return []
        first = min(in_place, key=lambda trial: self._since.get(trial.trial_id, now))
        if not first.queue.resumable:
            asks = first.asks_until is not None and not first.queue.saves
            return [Train(first.trial_id)] if asks else []
        self._relieved.add(first.trial_id)
        self.pool.relieved(now)
        return [NotifyStarved(first.trial_id, processes)]
