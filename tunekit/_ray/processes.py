"""The processes that trials run in: who has one, who starts one, and how many may."""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater

from tunekit._ray.compat import overriding
from tunekit._ray.worker_errors import fail_alone


class Processes:
    """Start the processes of trials, and know which trials have one.

    Args:
        tune: The sweep's controller.
    """

    def __init__(self, tune: TuneController):
        self._tune = tune
        #: The trials in an iteration.
        self.training: set[Trial] = set()
        #: How many more processes trials may have in this step; None if only resources limit them.
        self.left: int | None = None
        #: The trials that start before all others that wait for resources, in order.
        self.starts_first: dict[Trial, None] = {}
        # How many trials had a slot when one last released its own.
        self._slots = 0
        # The newest process when this was last checked.
        self._newest: Any = None
        start_in_order(tune)
        fail_alone(tune._actor_manager)

    # Which trials have one ---------------------------------------------------------------------

    @property
    def running(self) -> Collection[Trial]:
        """The trials that Tune has running, including those that have released their slots."""
        return list(self._tune._running_trials)

    @property
    def reuses_actors(self) -> bool:
        """Return whether other trials run in the actors of trials that pause or end."""
        return bool(self._tune._reuse_actors)

    @property
    def has_cached_actors(self) -> bool:
        """Return whether a trial can continue in the process of another one."""
        return bool(self._tune._actor_cache.num_cached_objects)

    @property
    def awaits_nothing(self) -> bool:
        """Return whether no trial is active, so that Tune's next step does not wait."""
        actors, stopping = self._tune._actor_manager, self._tune._stopping_actors
        busy = actors.num_actor_tasks or actors.num_pending_actors
        return not (busy or self._tune._staged_trials or stopping)

    def has_actor(self, trial: Trial) -> bool:
        """Return whether a trial has an actor or one is starting: it has not released its slot."""
        return trial in self._tune._trial_to_actor

    @property
    def _occupied(self) -> int:
        """Return how many trials have a slot."""
        pending = int(self._tune._actor_manager.num_pending_actors)
        return len(self._tune._trial_to_actor) - pending

    def promised(self) -> Iterator[tuple[Mapping[str, float], int]]:
        """Yield the resources of trials whose actors were requested and have not started.

        Each comes with the number of such trials.
        """
        requests = self._tune._actor_manager._resource_request_to_pending_actors
        for request, actors in requests.items():
            if actors:
                yield request.required_resources, len(actors)
        for trial in self.starting():
            yield trial.placement_group_factory.required_resources, 1

    def begun(self) -> Iterable[Trial]:
        """Return the trials that are starting if any may have begun since the last call."""
        newest = next(
            reversed(self._tune._actor_manager._live_actors_to_ray_actors_resources), None
        )
        if newest is self._newest and not self._tune._resetting_trials:
            return ()
        self._newest = newest
        return self.starting()

    def starting(self) -> Iterator[Trial]:
        """Yield each trial that has its resources but whose process is still starting."""
        tune = self._tune
        count = self._occupied - len(tune._running_trials & tune._trial_to_actor.keys())
        # Newest first: a look at all actors in each step would take time that grows with them.
        newest_first = reversed(tune._actor_manager._live_actors_to_ray_actors_resources)
        trials = (tune._actor_to_trial.get(actor) for actor in newest_first)
        starting = (one for one in trials if one is not None and one.status == Trial.PENDING)
        yield from itertools.islice(starting, max(0, count))

    # Which trials start one --------------------------------------------------------------------

    @property
    def has_new_trials(self) -> bool:
        """Return whether a trial waits for a slot that no other one has released for it."""
        pending = self._tune._pending_trials
        if self.reuses_actors:
            return bool(pending)
        released = max(0, self._slots - self._occupied)
        without = (one for one in pending if not has_starting_actor(self._tune, one))
        return next(itertools.islice(without, released, None), None) is not None

    def releases(self) -> None:
        """Record that a trial is about to release its slot for another one."""
        self._slots = self._occupied

    def start(self) -> None:
        """Request processes for trials, as many as may have one."""
        tune = self._tune
        if tune.session.out_of_time:
            return
        if not tune.waiting.pool.idle:  # Tune would warn that no trial runs
            tune._insufficient_resources_manager._no_running_trials_since = -1
        slots = tune.waiting.slots(tune.facts.situation())
        # Tune requests the resources of many trials in advance. Ray would grant these requests
        # first, and the validations that running trials wait for would not start (decision 2).
        if slots == 0:
            _clear_the_way(tune)
            return
        if tune.resumed and (limit := _limit_of(tune._search_alg)) is not None:
            slots = limit if slots is None else min(slots, limit)
        if slots is None:
            self.left = None
            TuneController._maybe_add_actors(tune)
            return
        # Cached processes count, because the next trials reuse them.
        processes = len(tune._trial_to_actor) + tune._actor_cache.num_cached_objects
        self.left = max(0, slots - processes)
        most = tune._actor_manager.num_pending_actors + self.left
        with overriding(tune, _max_pending_trials=min(tune._max_pending_trials, most)):
            TuneController._maybe_add_actors(tune)

    def requested(self, trial: Trial) -> None:
        """Move the request of a trial before all others if it starts first."""
        if trial in self.starts_first:
            del self.starts_first[trial]
            tune = self._tune
            requests = tune._actor_manager._resource_request_to_pending_actors
            pending = requests[trial.placement_group_factory]
            actor = tune._trial_to_actor.get(trial)
            if actor in pending:  # otherwise, the trial continues in a cached actor
                pending.remove(actor)
                pending.insert(0, actor)


def _limit_of(search_alg: Any) -> int | None:
    """Return how many trials a search algorithm may have at once; None if it has no limit.

    It does not create more, but a restored sweep also has the trials that Tune continues.
    """
    # A repeater has several trials for each one of its searcher's.
    while search_alg is not None and not isinstance(search_alg, Repeater):
        if isinstance(search_alg, (BasicVariantGenerator, ConcurrencyLimiter)):
            return int(search_alg.max_concurrent) or None
        search_alg = getattr(search_alg, "searcher", None)
    return None


def _clear_the_way(tune: TuneController) -> None:
    """Cancel the requests of trials that have not started, and end cached actors."""
    requested = {
        trial
        for trial in tune._staged_trials
        if trial.status == Trial.PENDING  # otherwise, a stopped trial, which Tune leaves in the set
        and trial in tune._trial_to_actor
        and not has_starting_actor(tune, trial)
    }
    for trial in requested:
        actor = tune._trial_to_actor.pop(trial)
        tune._actor_to_trial.pop(actor)
        tune._actor_manager.remove_actor(actor)
        tune._staged_trials.discard(trial)
        tune._actor_cache.decrease_max(trial.placement_group_factory)
    if requested:
        tune._pending_trials_list[:0] = [trial for trial in tune._trials if trial in requested]
    tune._cleanup_cached_actors(force_all=True)


class PendingTrials:
    """A set of trials that pops the first added one for which no actor is starting.

    Tune keeps a plain set, so that any trial may be the next to continue in a free actor, even
    one whose own actor is about to start.

    Args:
        starts: Returns whether a trial has an actor that is starting.
        trials: The waiting trials.

    Example:
        >>> pending = PendingTrials(lambda trial: False, "abc")
        >>> first = pending.pop()
        >>> pending.add(first)  # there was no free actor
        >>> pending.pop(), len(pending)
        ('a', 2)
    """

    def __init__(self, starts: Callable[[Trial], bool], trials: Iterable[Trial] = ()):
        self._trials: OrderedDict[Trial, None] = OrderedDict.fromkeys(trials)
        self._starts = starts
        self._popped: Trial | None = None

    def __len__(self) -> int:
        return len(self._trials)

    @property
    def first_without_actor(self) -> Trial | None:
        """Return the first trial for which no actor is starting, or None."""
        return next((trial for trial in self._trials if not self._starts(trial)), None)

    def pop(self) -> Trial:
        """Remove and return the first trial for which no actor is starting, or else the first."""
        self._popped = trial = self.first_without_actor or next(iter(self._trials))
        del self._trials[trial]
        return trial

    def add(self, trial: Trial) -> None:
        """Add a trial at the end, or at the front if it was the last one popped."""
        self._trials[trial] = None
        if trial is self._popped:
            self._trials.move_to_end(trial, last=False)

    def discard(self, trial: Trial) -> None:
        """Remove a trial that no longer waits."""
        self._trials.pop(trial, None)
        if trial is self._popped:
            self._popped = None


def has_starting_actor(tune: TuneController, trial: Trial) -> bool:
    """Return whether a waiting trial's actor has its resources and is starting."""
    actor = tune._trial_to_actor.get(trial)
    return actor is not None and bool(tune._actor_manager.is_actor_started(actor))


def start_in_order(tune: TuneController) -> None:
    """Start trials in cached actors in the order in which they began to wait."""
    pending = tune._resources_to_pending_trials
    if pending.default_factory is not set:
        return
    starts = functools.partial(has_starting_actor, tune)
    in_order = defaultdict[Any, PendingTrials](functools.partial(PendingTrials, starts))
    for trial in tune._trials:
        if trial in pending[trial.placement_group_factory]:
            in_order[trial.placement_group_factory].add(trial)
    tune._resources_to_pending_trials = in_order
