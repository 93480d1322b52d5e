"""What tunekit knows about schedulers: a table of Tune's, and the base class of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ray.tune.execution.tune_controller import TrialRunnerWrapper
from ray.tune.experiment import Trial
from ray.tune.result import DEFAULT_METRIC, TRAINING_ITERATION
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
    TrialScheduler,
)

from tunekit._ray.compat import private
from tunekit.core.decision_points import Always, DecisionRule, Interval, Never, Rungs
from tunekit.core.metrics import flatten, metric_of
from tunekit.core.values import finite_number


@dataclass(frozen=True)
class Traits:
    """The properties of a scheduler; the defaults are correct for any, if not the most efficient.

    Attributes:
        at_times: It uses only some scores, given by its ``rule``.
        clones: It may overwrite a trial with the checkpoint of another trial.
        pauses: It may pause trials, or start them in a different order from their creation.
        waits_for_all: It resumes the trials of a round when it gets the last result, and must be
            reminded if a trial has ended without one.
        synchronous: It compares all trials at the same time.
        replays: It refuses a restarted trial, because it accepts a single trial.

    Example:
        >>> Traits(clones=False).pauses
        True
    """

    at_times: bool = False
    clones: bool = True
    pauses: bool = True
    waits_for_all: bool = False
    synchronous: bool = False
    replays: bool = False


class SchedulerBase(FIFOScheduler):
    """Rank trials by a metric, and state which scores will be used.

    A subclass defines :meth:`rule` and ``on_trial_result``. Trials run in the order of their
    creation, unless it defines more.

    Tune, ``ResourceChangingScheduler`` and loggers read its metric and mode as they read those of
    Tune's schedulers.

    Args:
        time_attr: The name of its time in results.
        metric: The metric to rank trials by; None takes that of ``TuneConfig``.
        mode: ``"min"`` or ``"max"``; None takes that of ``TuneConfig``.
        max_t: The time at which every trial is stopped.

    Example:
        >>> from tunekit.core.decision_points import Rungs
        >>> class StopAt(SchedulerBase):
        ...     traits = Traits(at_times=True, clones=False, pauses=False)
        ...
        ...     def rule(self, trial):
        ...         return Rungs((self.max_t,))
        ...
        ...     def on_trial_result(self, tune_controller, trial, result):
        ...         return self.STOP if result[self.time_attr] >= self.max_t else self.CONTINUE
        >>> scheduler = StopAt("epoch", "accuracy", "max", max_t=4)
        >>> [scheduler.rule(None).decision_point(now, pending=()) for now in (3, 5)]
        [None, 4]
    """

    #: Its properties; a subclass that decides otherwise is assumed to have the defaults.
    traits = Traits(at_times=True)

    # A trial must not run ahead of a pause.
    _supports_buffered_results = False

    def __init__(self, time_attr: str, metric: str | None, mode: str | None, max_t: float):
        super().__init__()
        self.time_attr, self.max_t = time_attr, max_t
        self._metric, self._mode = metric, mode

    @property
    def mode(self) -> str | None:
        """Return the mode of the metric, ``"min"`` or ``"max"``."""
        return self._mode

    @property
    def objectives(self) -> dict[str, str | None]:
        """Return the known metrics to rank trials by, each with its mode."""
        metric = self._metric
        return {} if metric is None or metric == DEFAULT_METRIC else {metric: self._mode}

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Set the metric and the mode of ``TuneConfig``; return False if it has its own."""
        if (self._metric and metric) or (self._mode and mode):
            return False
        self._metric, self._mode = self._metric or metric, self._mode or mode
        if self._metric is None and self._mode:
            self._metric = DEFAULT_METRIC
        return True

    @property
    def knows_its_rule(self) -> bool:
        """Return whether the class that makes the decisions also defines their :meth:`rule`."""
        decides = next(kind for kind in type(self).__mro__ if "on_trial_result" in vars(kind))
        return "rule" in vars(decides)

    def rule(self, trial: Trial) -> DecisionRule:
        """Return which scores of a trial it will use, given its current state."""
        raise NotImplementedError

    def debug_string(self) -> str:
        """Return a line for Tune's status."""
        return f"Using {type(self).__name__}."


def controller_in(tune_controller: Any) -> Any:
    """Return the controller that Tune passes to schedulers, mostly in a wrapper."""
    if isinstance(tune_controller, TrialRunnerWrapper):
        return tune_controller._tune_controller
    return tune_controller


def start_one_by_one(tune_controller: Any) -> None:
    """Make Tune request the resources of one new trial at a time.

    By default, it requests those of up to 200 trials, which would all start before a trial that is
    resumed later. A number in ``TUNE_MAX_PENDING_TRIALS_PG`` is left as it is.

    Args:
        tune_controller: The controller that Tune passed to the scheduler.
    """
    if os.environ.get("TUNE_MAX_PENDING_TRIALS_PG", "auto") == "auto":
        controller_in(tune_controller).update_max_pending_trials(1)


def _always(scheduler: Any, trial: Trial) -> DecisionRule:
    """Return that it may use every score."""
    return Always()


def _never(scheduler: Any, trial: Trial) -> DecisionRule:
    """Return that it uses no score."""
    return Never()


def _own(scheduler: SchedulerBase, trial: Trial) -> DecisionRule:
    """Return the rule that one of tunekit's own schedulers defines."""
    return scheduler.rule(trial)


@dataclass(frozen=True)
class Kind:
    """A kind of scheduler; the defaults are correct for any unknown one.

    Attributes:
        traits: Its properties.
        rule: Returns which scores of a trial it uses.
        time_attr: The scheduler's attribute with the name of its time in reports.
        max_t: The scheduler's attribute with the time at which it stops every trial.
    """

    traits: Traits = field(default_factory=Traits)
    rule: Callable[[Any, Trial], DecisionRule] = _always
    time_attr: str | None = None
    max_t: str | None = None


# The reports at which Tune's schedulers decide, by their state ------------------------------------


def _asha(scheduler: Any, trial: Trial) -> DecisionRule:
    """Return the rungs of the trial's bracket."""
    bracket = private(scheduler, "_trial_info").get(trial.trial_id)
    if bracket is None:
        return Never()
    rungs = private(bracket, "_rungs")
    times = {milestone for milestone, _ in rungs}
    used = frozenset(milestone for milestone, scores in rungs if trial.trial_id in scores)
    # With stop_last_trials, it also uses lower rungs once the highest has a score of the trial.
    each = bool(private(scheduler, "_stop_last_trials"))
    if each:
        times.add(private(scheduler, "_max_t"))
    return Rungs(tuple(sorted(times)), used, each)


def _hyperband(scheduler: Any, trial: Trial) -> DecisionRule:
    """Return the times at which the trial's bracket is halved."""
    bracket, _band = private(scheduler, "_trial_info").get(trial, (None, None))
    if bracket is None or trial not in private(bracket, "_live_trials"):
        return Never()
    # The times of all halvings, past and future, as the bracket computes them. It stores how many
    # are left, not how many there were.
    now, left = private(bracket, "_r"), private(bracket, "_halves")
    eta, most = private(bracket, "_eta"), private(bracket, "_max_t_attr")
    times = [private(bracket, "_r0")]
    while times[-1] < now:
        grown = int(min(times[-1] * eta, most))
        if grown <= times[-1]:
            break
        times.append(grown)
    for _ in range(left):
        times.append(int(min(times[-1] * eta, most)))
    if not private(bracket, "stop_last_trials"):
        times.pop()  # after the last halving, trials continue
    # Past halvings of the bracket are also past for a trial that joined late, after a failure.
    passed, newest = private(bracket, "_cumul_r"), bracket._live_trials[trial]
    reached = 0 if newest is None else newest[private(scheduler, "_time_attr")]
    used = frozenset(time for time in times if time < passed or time <= reached)
    return Rungs(tuple(sorted(set(times))), used)


def _pbt(scheduler: Any, trial: Trial) -> DecisionRule:
    """Return the perturbation interval, counted from the last perturbation."""
    state = private(scheduler, "_trial_state").get(trial)
    if state is None:
        return Never()
    last = private(state, "last_perturbation_time")
    if private(scheduler, "_synch"):
        # Its score was used, and it waits for the others; the perturbation sets the time of all.
        trained = private(state, "last_train_time")
        if trained >= private(scheduler, "_next_perturbation_sync"):
            last = max(last, trained)
    return Interval(
        private(scheduler, "_perturbation_interval"), private(scheduler, "_burn_in_period"), last
    )


def set_pbt_times(scheduler: TrialScheduler, trial: Trial, donor: Trial | None) -> None:
    """Make PBT count a trial's next interval as after an exploit, or as if there had been none.

    Args:
        scheduler: The scheduler; any other than PBT is ignored.
        trial: The trial.
        donor: The trial that it has exploited; None if there is none.
    """
    decides = innermost(scheduler)
    states = (
        private(decides, "_trial_state") if isinstance(decides, PopulationBasedTraining) else {}
    )
    own = states.get(trial)
    if own is not None and donor in states:
        own.last_perturbation_time = private(states[donor], "last_perturbation_time")
        own.last_train_time = private(states[donor], "last_train_time")
    elif own is not None and donor is None and own.last_result:
        own.last_train_time = flatten(own.last_result)[private(decides, "_time_attr")]
        if not private(decides, "_synch"):
            own.last_perturbation_time = own.last_train_time


def _replay(scheduler: Any, trial: Trial) -> DecisionRule:
    """Return the times at which the policy changes something."""
    if trial != private(scheduler, "_trial"):
        return Never()
    times: list[int] = []
    for change_at, _config in private(scheduler, "_policy"):
        # One change per report, in the order of the policy.
        times.append(max(change_at, times[-1] + 1) if times else change_at)
    changes = private(scheduler, "_num_perturbations")
    return Rungs(tuple(times), frozenset(times[:changes]), each=True)


_HYPERBAND = Kind(
    Traits(at_times=True, clones=False, waits_for_all=True),
    rule=_hyperband,
    time_attr="_time_attr",
    max_t="_max_t_attr",
)
_KINDS: dict[type, Kind] = {
    FIFOScheduler: Kind(Traits(clones=False, pauses=False), rule=_never),
    AsyncHyperBandScheduler: Kind(
        Traits(at_times=True, clones=False, pauses=False),
        rule=_asha,
        time_attr="_time_attr",
        max_t="_max_t",
    ),
    MedianStoppingRule: Kind(Traits(clones=False), time_attr="_time_attr"),
    HyperBandScheduler: _HYPERBAND,
    HyperBandForBOHB: replace(_HYPERBAND, traits=Traits(at_times=True, clones=False)),
    PopulationBasedTraining: Kind(Traits(at_times=True), rule=_pbt, time_attr="_time_attr"),
    PopulationBasedTrainingReplay: Kind(Traits(at_times=True, replays=True), rule=_replay),
}


# tunekit's own know these themselves; a subclass that decides otherwise may use other scores.
_OWN_SUBCLASS = Kind(time_attr="time_attr", max_t="max_t")
_OWN = replace(_OWN_SUBCLASS, rule=_own)
_UNKNOWN = Kind()


def kind_of(scheduler: TrialScheduler) -> Kind:
    """Return the kind of a scheduler; a subclass of one of Tune's is of the unknown kind."""
    if isinstance(scheduler, SchedulerBase):
        return _OWN if scheduler.knows_its_rule else _OWN_SUBCLASS
    kind = type(scheduler)
    # PB2 is a kind of PBT. Its module is slow to import, and already imported if there is such a
    # scheduler.
    pb2 = getattr(sys.modules.get("ray.tune.schedulers.pb2"), "PB2", None)
    return _KINDS.get(PopulationBasedTraining if kind is pb2 else kind, _UNKNOWN)


def traits_of(scheduler: TrialScheduler) -> Traits:
    """Return the traits of the scheduler that decides.

    A subclass of one of Tune's may use any score, and may clone and pause.

    Example:
        >>> traits_of(AsyncHyperBandScheduler()).pauses, traits_of(HyperBandScheduler()).pauses
        (False, True)
    """
    decides = innermost(scheduler)
    if isinstance(decides, SchedulerBase):
        return decides.traits if decides.knows_its_rule else Traits()
    known = next((_KINDS[kind] for kind in type(decides).__mro__ if kind in _KINDS), _UNKNOWN)
    traits = known.traits
    if isinstance(decides, PopulationBasedTraining) and private(decides, "_synch"):
        traits = replace(traits, synchronous=True, waits_for_all=True)
    if kind_of(decides) is known:
        return traits if decides is scheduler else replace(traits, pauses=True)
    return replace(traits, at_times=False, clones=True, pauses=True)


def rule_for(scheduler: TrialScheduler, trial: Trial) -> DecisionRule:
    """Return which of a trial's scores the scheduler uses, given its current state.

    Call it for each report, because the rule contains the scores used so far, and a trial may move
    to another bracket. A scheduler that is neither one of tunekit's own nor exactly one of Tune's
    may use every score. A known scheduler uses no score of a trial that it does not have, because
    the trial has ended or was not added.

    Args:
        scheduler: The scheduler.
        trial: The trial.

    Raises:
        tunekit.errors.UnsupportedRayError: If the scheduler of this Ray lacks a private name.

    Example:
        >>> from ray.tune.schedulers import FIFOScheduler, MedianStoppingRule
        >>> rule_for(FIFOScheduler(), None), rule_for(MedianStoppingRule(), None)
        (Never(), Always())
    """
    decides = innermost(scheduler)
    return kind_of(decides).rule(decides, trial)


def time_attr_of(scheduler: TrialScheduler) -> str:
    """Return the name of the scheduler's time in reports.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
        >>> time_attr_of(ASHAScheduler(time_attr="epoch")), time_attr_of(FIFOScheduler())
        ('epoch', 'training_iteration')
    """
    decides = innermost(scheduler)
    name = kind_of(decides).time_attr
    return TRAINING_ITERATION if name is None else str(private(decides, name))


def exhausts(scheduler: TrialScheduler, result: Mapping[str, Any]) -> bool:
    """Return whether a result has reached the time at which the scheduler stops every trial.

    A trial that is stopped there has finished; one that is stopped earlier was stopped early.

    Args:
        scheduler: The scheduler.
        result: The result.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler
        >>> asha = ASHAScheduler(max_t=9, time_attr="training_iteration")
        >>> exhausts(asha, {"training_iteration": 3}), exhausts(asha, {"training_iteration": 9})
        (False, True)
    """
    decides = innermost(scheduler)
    reached, name = finite_number(metric_of(result, time_attr_of(decides))), kind_of(decides).max_t
    return name is not None and reached is not None and reached >= private(decides, name)


def mode_of(scheduler: TrialScheduler) -> str | None:
    """Return the mode of the scheduler's metric; None if it is not set.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
        >>> mode_of(ASHAScheduler(metric="loss", mode="min")), mode_of(FIFOScheduler())
        ('min', None)
    """
    mode = getattr(innermost(scheduler), "_mode", None)
    return mode if mode in ("min", "max") else None


def objectives_of(scheduler: TrialScheduler, mode: str | None) -> dict[str, str | None]:
    """Return the metrics that the scheduler ranks trials by, each with its mode.

    Args:
        scheduler: The scheduler.
        mode: The mode, if the scheduler ranks by one metric.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
        >>> objectives_of(ASHAScheduler(metric="loss"), "min"), objectives_of(FIFOScheduler(), None)
        ({'loss': 'min'}, {})
    """
    decides = innermost(scheduler)
    if isinstance(decides, SchedulerBase) and len(decides.objectives) > 1:
        return decides.objectives
    metric = scheduler.metric
    return {metric: mode} if isinstance(metric, str) and metric != DEFAULT_METRIC else {}


def innermost(scheduler: TrialScheduler) -> TrialScheduler:
    """Return the scheduler that decides, without a wrapper that changes resources."""
    while isinstance(scheduler, ResourceChangingScheduler):
        scheduler = private(scheduler, "_base_scheduler")
    return scheduler
