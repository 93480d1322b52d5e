"""The trials and the controller as a scheduler with validated results sees them.

Tune's schedulers act on trials immediately and read their current status, newest result and
checkpoint, and configuration. A validated result is older than these. So a scheduler gets proxies:
trials in the state in which it saw them last, and a controller with the usual methods. Changes to
a proxy are kept until the trial itself can follow.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ray.train._internal.session import _FutureTrainingResult, _TrainingResult
from ray.tune import Checkpoint
from ray.tune.execution.placement_groups import resource_dict_to_pg_factory
from ray.tune.execution.tune_controller import TrialRunnerWrapper
from ray.tune.experiment import Trial

from tunekit.core.reconcile import Actual, Desired

# The attributes of a proxy that are saved for a restore.
_SAVED = ("phase", "change", "version", "failed")


@dataclass(frozen=True)
class Version:
    """A scored checkpoint, which may be cloned.

    Attributes:
        trial_id: The trial that saved it.
        generation: How many times that trial had been overwritten.
        iteration: The iteration at which it was saved.
        checkpoint: The checkpoint.
        result: The report of that iteration with the score, flat, as schedulers get it.
        report: The same, nested as reported.
        config: The hyperparameters that it was trained with.
    """

    trial_id: str
    generation: int
    iteration: int
    checkpoint: Checkpoint
    result: Mapping[str, Any] = field(repr=False)
    report: Mapping[str, Any] = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)

    @property
    def place(self) -> tuple[str, int, int, str]:
        """Return its unique key."""
        return self.trial_id, self.generation, self.iteration, self.checkpoint.path

    def restorable(self, **instead: Any) -> _TrainingResult:
        """Return the result that Tune restores a trial from, with some metrics replaced."""
        return _TrainingResult(checkpoint=self.checkpoint, metrics={**self.report, **instead})


class _Saved(_FutureTrainingResult):
    """A save that Tune would wait for, already finished."""

    def __init__(self, result: _TrainingResult | None):
        self.result = result

    def resolve(self, block: bool = True) -> _TrainingResult | None:
        return self.result


@dataclass
class Change:
    """A scheduler's change to a trial, which the trial adopts once paused.

    Attributes:
        config: Its hyperparameters.
        tag: Its experiment tag, in which Tune shows them.
        restored_from: The checkpoint to continue from.
        resources: Its resources.
        planned: The value of ``restored_from`` that ``source`` describes.
        source: The version of that checkpoint; None if unknown.
    """

    config: dict[str, Any] | None = None
    tag: str | None = None
    restored_from: _TrainingResult | None = None
    resources: Any = None
    planned: _TrainingResult | None = None
    source: Version | None = None

    def __bool__(self) -> bool:  # evaluated for each active trial at each step
        return not (
            self.config is None
            and self.tag is None
            and self.restored_from is None
            and self.resources is None
        )


class Proxy:
    """A proxy of a trial, in its state at the newest delivered score.

    Other attributes are those of the trial.

    Args:
        proxies: The proxies of the sweep, which record changes.
        trial: The trial; None for a trial that a saved scheduler knows, until Tune adds it.
    """

    #: Tune waits for saves; a scheduler does not see them.
    is_saving = False

    def __init__(self, proxies: Proxies, trial: Trial | None = None):
        self._proxies = proxies
        self.real: Trial = trial
        self._phase = Desired.PENDING
        #: Whether the trial has reported and was told to wait.
        self.held = False
        #: Whether Tune has announced the trial's end; its status changes a little later.
        self.ending = False
        #: Whether the scheduler is processing a result of it.
        self.judging = False
        #: Whether the scheduler was notified that it failed.
        self.failed = False
        #: Whether Tune has passed its newest report to the scheduler, but not yet to the loggers.
        self.offered = False
        #: The entry in the scheduler's internal state that this report's score fills, if any.
        self.serves: float | None = None
        #: Its recorded status, while events are replayed.
        self.stands: Actual | None = None
        #: The change to adopt.
        self.change = Change()
        #: The version that the scheduler saw last.
        self.version: Version | None = None

    @property
    def phase(self) -> Desired:
        """Return the trial's status as the scheduler knows it."""
        return self._phase

    @phase.setter
    def phase(self, phase: Desired) -> None:
        self._phase = phase
        self._proxies.moved(self)

    @property
    def doing(self) -> Actual:
        """Return the trial's actual status."""
        if self.stands is not None:
            return self.stands
        status = self.real.status
        if self.ending or status in (Trial.TERMINATED, Trial.ERROR):
            return Actual.ENDED
        if self.real.is_saving:
            return Actual.SAVING
        if status == Trial.PAUSED:
            return Actual.PAUSED
        if status == Trial.PENDING:
            return Actual.STARTING
        return Actual.HELD if self.held else Actual.TRAINING

    def state(self) -> dict[str, Any]:
        """Return the state to save for a restore."""
        return {name: getattr(self, name) for name in _SAVED}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state` returned."""
        for name in _SAVED:
            setattr(self, name, state[name])

    # What a scheduler reads --------------------------------------------------------------------

    @property
    def status(self) -> str:
        # Schedulers read it often, for all trials.
        real, phase = self.real, self._phase
        if real is None:
            return Trial.ERROR  # it failed and was replaced
        if real.status == Trial.ERROR and self.stands is None:
            return Trial.ERROR
        if phase is Desired.PENDING:
            return Trial.RUNNING if real.status == Trial.RUNNING else Trial.PENDING
        if phase is Desired.RUNNING:
            return Trial.RUNNING
        return Trial.PAUSED if phase is Desired.PAUSED else Trial.TERMINATED

    def is_finished(self) -> bool:
        # An ended trial can be cloned while it has a visible checkpoint, but cannot be overwritten,
        # as PBT would when it gets its result.
        ended = self.phase is Desired.ENDED or self.status == Trial.ERROR
        return ended or (self.judging and self.doing is Actual.ENDED)

    @property
    def last_result(self) -> dict[str, Any]:
        return {} if self.version is None else dict(self.version.result)

    @property
    def checkpoint(self) -> Checkpoint | None:
        latest = self.latest_checkpoint_result
        return None if latest is None else latest.checkpoint

    @property
    def latest_checkpoint_result(self) -> _TrainingResult | None:
        if self.change.restored_from is not None:
            return self.change.restored_from
        if self.version is None or self.version.trial_id != self.real.trial_id:
            return None  # a clone is not cloned before it has its own score
        self._proxies.offered(self)
        return _TrainingResult(checkpoint=self.version.checkpoint, metrics=self.last_result)

    @property
    def config(self) -> dict[str, Any]:
        return self.real.config if self.change.config is None else self.change.config

    @property
    def experiment_tag(self) -> str:
        return str(self.real.experiment_tag if self.change.tag is None else self.change.tag)

    @property
    def temporary_state(self) -> Any:
        return _Instead(self.real.temporary_state, saving_to=None, restoring_from=None)

    @property
    def run_metadata(self) -> Any:
        return _Instead(
            self.real.run_metadata,
            last_result=self.last_result,
            checkpoint_manager=_JudgedCheckpoints(self),
        )

    # What a scheduler changes ------------------------------------------------------------------

    def pause(self) -> None:
        self.phase = Desired.PAUSED
        self._proxies.touched(self)

    def set_config(self, config: dict[str, Any]) -> None:
        self.change.config = config
        self._proxies.touched(self)

    def set_experiment_tag(self, tag: str) -> None:
        self.change.tag = tag
        self._proxies.touched(self)

    def restore_from(self, result: _TrainingResult) -> None:
        self.change.restored_from = result
        self._proxies.touched(self)

    @property
    def placement_group_factory(self) -> Any:
        own = self.real.placement_group_factory
        return own if self.change.resources is None else self.change.resources

    @placement_group_factory.setter
    def placement_group_factory(self, factory: Any) -> None:
        if factory is not None:  # a scheduler sets None before it sets another
            self.update_resources(factory)

    def update_resources(self, resources: Any) -> None:
        if isinstance(resources, dict):
            resources = resource_dict_to_pg_factory(resources)
        self.change.resources = resources
        self._proxies.touched(self)

    # All else is the trial's -------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "real":
            raise AttributeError(name)
        return getattr(self.real, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return Trial

    def __str__(self) -> str:
        return str(self.real)

    __repr__ = __str__


class _Instead:
    """Wrap an object and replace some of its attributes."""

    def __init__(self, real: Any, **instead: Any):
        self.__dict__.update(instead)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _JudgedCheckpoints(_Instead):
    """A trial's checkpoint manager; schedulers set the checkpoint to restore on it."""

    def __init__(self, proxy: Proxy):
        super().__init__(proxy.real.run_metadata.checkpoint_manager, _proxy=proxy)

    @property
    def latest_checkpoint_result(self) -> _TrainingResult | None:
        return self._proxy.latest_checkpoint_result

    @latest_checkpoint_result.setter
    def latest_checkpoint_result(self, result: _TrainingResult) -> None:
        self._proxy.restore_from(result)

    _latest_checkpoint_result = latest_checkpoint_result


class Proxies:
    """The proxies of a sweep's trials, with the changes that the user's scheduler makes to them.

    Example:
        >>> proxies = Proxies()
        >>> trial = Trial("train", stub=True)
        >>> proxy = proxies.add(trial)
        >>> proxies.first_in_turn() == [proxy]
        True
        >>> proxy.pause()
        >>> proxies.take_touched() == [proxy]
        True
    """

    def __init__(self) -> None:
        #: The checkpoints that the user's scheduler has looked at and may clone, by their trials.
        self.offers: dict[str, Version] = {}
        #: The proxies, by trial.
        self.by_id: dict[str, Proxy] = {}
        #: The trials that may need an action.
        self.open: dict[str, Proxy] = {}
        # The proxies that the scheduler has just changed, or whose checkpoint it has read.
        self._touched: dict[str, Proxy] = {}
        # The trials that it may start or resume, by their positions in Tune's list of trials.
        self._rows: dict[Desired, dict[int, Proxy]] = {Desired.PENDING: {}, Desired.PAUSED: {}}
        self._places: dict[Proxy, int] = {}
        self._next_place = itertools.count()

    def of(self, trial: Trial) -> Proxy:
        """Return the proxy of a trial."""
        proxy = self.by_id.get(trial.trial_id)
        if proxy is None:
            proxy = self.by_id[trial.trial_id] = Proxy(self, trial)
        return proxy

    def named(self, trial_id: str) -> Proxy:
        """Return the proxy of a trial, which Tune may not have added yet."""
        return self.by_id.setdefault(trial_id, Proxy(self))

    def forget_unadded(self) -> None:
        """Drop the proxies of trials that Tune has not added."""
        for trial_id in [i for i, proxy in self.by_id.items() if proxy.real is None]:
            del self.by_id[trial_id]

    def reopen(self, proxy: Proxy) -> None:
        """Record that a trial may need an action."""
        self.open[proxy.trial_id] = proxy

    # The next trial ----------------------------------------------------------------------------

    def add(self, trial: Trial) -> Proxy:
        """Return the proxy of a trial that is about to start, and put it last."""
        proxy = self.of(trial)
        proxy.real, proxy.ending = trial, False
        self.leave(proxy)
        self._places[proxy] = next(self._next_place)
        self.moved(proxy)
        self.reopen(proxy)
        return proxy

    def leave(self, proxy: Proxy) -> None:
        """Record that a trial is no longer to be chosen."""
        place = self._places.get(proxy, -1)
        for row in self._rows.values():
            row.pop(place, None)

    def first_in_turn(self) -> list[Proxy]:
        """Return the first trial to start or, if there is none, the first to resume."""
        for phase, status in (Desired.PENDING, Trial.PENDING), (Desired.PAUSED, Trial.PAUSED):
            row = self._rows[phase]
            for place in sorted(row):
                if row[place].status == status:  # otherwise it has started in this step
                    return [row[place]]
        return []

    # Changes to a trial ------------------------------------------------------------------------

    def moved(self, proxy: Proxy) -> None:
        """Record a change of a trial's phase."""
        self.leave(proxy)
        place = self._places.get(proxy)
        if place is not None and proxy.phase in self._rows:
            self._rows[proxy.phase][place] = proxy

    def touched(self, proxy: Proxy) -> None:
        """Record that the user's scheduler has paused or changed a trial."""
        self.open[proxy.trial_id] = self._touched[proxy.trial_id] = proxy

    def take_touched(self) -> list[Proxy]:
        """Return, once, the proxies that the user's scheduler has acted on."""
        touched, self._touched = self._touched, {}
        return list(touched.values())

    def offered(self, proxy: Proxy) -> None:
        """Record that the user's scheduler has read a trial's checkpoint, and may clone it."""
        if proxy.version is not None:
            self.offers[proxy.trial_id] = proxy.version
            self._touched[proxy.trial_id] = proxy


class ProxyController:
    """A proxy of Tune's controller, whose trials are proxies.

    Args:
        wrapped: The controller as Tune passes it to schedulers.
        proxy: Returns the proxy of a trial.
        stopped: Called with a trial that the scheduler stops other than by its decision on a
            result.
        idle: Returns whether no trial runs or is about to run, and no validation is pending.
    """

    def __init__(
        self,
        wrapped: TrialRunnerWrapper,
        proxy: Callable[[Trial], Proxy],
        *,
        stopped: Callable[[Proxy], None],
        idle: Callable[[], bool],
    ):
        self.wrapped, self._proxy_of = wrapped, proxy
        self._stopped, self.idle = stopped, idle
        self._trials: list[Proxy] = []
        self._as_of: tuple[int, Trial | None] = (0, None)

    def get_trials(self) -> list[Proxy]:
        # Schedulers call this several times a step. Trials are added at the end, or moved there.
        trials = self.wrapped.get_trials()
        as_of = (len(trials), trials[-1] if trials else None)
        if as_of != self._as_of:
            self._trials, self._as_of = [self._proxy_of(trial) for trial in trials], as_of
        return list(self._trials)

    def with_only(self, trials: Callable[[], list[Proxy]]) -> Any:
        """Return a controller that shows only some trials to a scheduler."""
        return _Instead(self, get_trials=trials)

    def get_live_trials(self) -> set[Proxy]:
        ended = (Trial.TERMINATED, Trial.ERROR)
        return {proxy for proxy in self.get_trials() if proxy.status not in ended}

    def stop_trial(self, trial: Proxy) -> None:
        self._stopped(trial)

    def pause_trial(self, trial: Proxy, should_checkpoint: bool = True) -> None:
        trial.pause()

    def _schedule_trial_save(
        self, trial: Proxy, result: dict[str, Any] | None = None
    ) -> _FutureTrainingResult | None:
        """Return the checkpoint of the trial's newest score instead of a new one."""
        return _Saved(trial.latest_checkpoint_result)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)
