"""Checkpoint policies: callbacks that ask for a checkpoint when one is due.

They set ``should_checkpoint`` in a report. That works for any class trainable, and for functions
that have called :func:`tunekit.checkpoint_with`. Policies combine with ``|``: a checkpoint is due
when any of them says so.

>>> policy = EveryIterations(10) | EverySeconds(60) | OnImprovement("loss", mode="min")
>>> policy
EveryIterations(10) | EverySeconds(60) | OnImprovement('loss', mode='min')
"""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.logger import LoggerCallback
from ray.tune.result import SHOULD_CHECKPOINT, TRAINING_ITERATION

from tunekit._ray.checkpoints import set_checkpoint_config
from tunekit._ray.controller import fail_for_good
from tunekit._ray.functions import waits_to_be_asked
from tunekit.core.problems import Problems
from tunekit.errors import WiringError

# EveryIterations and AtDecisions are public as tunekit.EveryIterations and tunekit.AtDecisions.
__all__ = ["CheckpointPolicy", "CheckpointWhen", "EverySeconds", "OnImprovement"]


class CheckpointPolicy(tune.Callback):
    """Asks for a checkpoint when one is due; the base of all policies.

    Give one to ``tunekit.Tuner(checkpoint_policy=...)``, or to ``RunConfig(callbacks=[...])``
    of a plain ``ray.tune.Tuner``. A policy of your own overrides :meth:`due`.

    Example:
        >>> class AtPowersOfTwo(CheckpointPolicy):
        ...     def due(self, trial, result):
        ...         return result["training_iteration"].bit_count() == 1
        >>> policy = AtPowersOfTwo()
        >>> [n for n in range(1, 20) if policy.due(None, {"training_iteration": n})]
        [1, 2, 4, 8, 16]
    """

    def due(self, trial: Trial, result: Mapping[str, Any]) -> bool:
        """Return whether a report makes a checkpoint due; each report is passed once, in order."""
        raise NotImplementedError

    def saved(self, trial: Trial) -> None:
        """React to a saved checkpoint of the trial, whoever asked for it."""

    def started(self, trial: Trial) -> None:
        """React to the start of the trial's actor, including after a pause or a failure."""

    def go_by(self, monotonic: Callable[[], float]) -> None:
        """Read the time, in seconds, from something other than the machine's clock."""

    def parts(self) -> Iterator[CheckpointPolicy]:
        """Yield the policies that it is made of."""
        yield self

    def __or__(self, other: CheckpointPolicy) -> CheckpointPolicy:
        return _AnyOf(self, other) if isinstance(other, CheckpointPolicy) else NotImplemented

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Called by Tune when a trial's actor is up."""
        fail_for_good(trial)
        self.started(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Called by Tune with each report."""
        if self.due(trial, result):
            result[SHOULD_CHECKPOINT] = True

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Called by Tune after each checkpoint."""
        self.saved(trial)


class EveryIterations(CheckpointPolicy):
    """A checkpoint at each multiple of ``n`` training iterations.

    Args:
        n: Iterations between two checkpoints.

    Raises:
        tunekit.errors.ConfigError: If ``n`` is not a whole number of at least 1.

    Example:
        >>> EveryIterations(10)
        EveryIterations(10)
        >>> EveryIterations(0)
        Traceback (most recent call last):
        tunekit.errors.ConfigError: EveryIterations: n=0 must be a whole number...
    """

    def __init__(self, n: int):
        problems = Problems("EveryIterations")
        problems.integer("n", n, least=1)
        problems.raise_any()
        self.n = n

    def due(self, trial: Trial, result: Mapping[str, Any]) -> bool:
        """Return whether the report's iteration is a multiple of ``n``."""
        return bool(result[TRAINING_ITERATION] % self.n == 0)

    def __repr__(self) -> str:
        return f"EveryIterations({self.n})"


class EverySeconds(CheckpointPolicy):
    """A checkpoint at the first report at least ``seconds`` after the trial's last checkpoint.

    Until the first checkpoint, time counts from the trial's first report.

    Args:
        seconds: Seconds between two checkpoints, on the driver's clock.

    Raises:
        tunekit.errors.ConfigError: If ``seconds`` is not a positive number.

    Example:
        >>> EverySeconds(60)
        EverySeconds(60)
    """

    _clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, seconds: float):
        problems = Problems("EverySeconds")
        problems.seconds("seconds", seconds)
        problems.raise_any()
        self.seconds = seconds
        self._since: dict[str, float] = {}

    def go_by(self, monotonic: Callable[[], float]) -> None:
        """Read the time, in seconds, from something other than the machine's clock."""
        self._clock = monotonic

    def due(self, trial: Trial, result: Mapping[str, Any]) -> bool:
        """Return whether the last checkpoint, or the first report, was so many seconds ago."""
        now = self._clock()
        return now - self._since.setdefault(trial.trial_id, now) >= self.seconds

    def saved(self, trial: Trial) -> None:
        """Count from here."""
        self._since[trial.trial_id] = self._clock()

    def __repr__(self) -> str:
        return f"EverySeconds({self.seconds:g})"


class OnImprovement(CheckpointPolicy):
    """A checkpoint whenever a reported (not validated) metric is the trial's best so far.

    Args:
        metric: The metric's flat name, such as ``"loss"`` or ``"eval/loss"``.
        mode: ``"min"`` or ``"max"``: which values are better.
        delta: How much better it must be, in units of the metric.

    Raises:
        tunekit.errors.ConfigError: If an argument is wrong.

    Example:
        >>> OnImprovement("loss", mode="min", delta=0.01)
        OnImprovement('loss', mode='min', delta=0.01)
    """

    def __init__(self, metric: str, mode: str, delta: float = 0.0):
        problems = Problems("OnImprovement")
        problems.instance("metric", metric, str, "Pass the name of a reported metric.")
        problems.choice("mode", mode, ["min", "max"])
        if problems.instance("delta", delta, (int, float), "Pass 0 or more.") and not delta >= 0:
            problems.add(f"delta={delta!r} must not be negative. Pass 0 or more.")
        problems.raise_any()
        self.metric, self.mode, self.delta = metric, mode, delta
        # By trial: the value at its last checkpoint that was due, and at a report that made one
        # due, of which it is not known yet whether it was saved; larger is better.
        self._best: dict[str, float] = {}
        self._seen: dict[str, float] = {}

    def due(self, trial: Trial, result: Mapping[str, Any]) -> bool:
        """Return whether the metric is the trial's best; not where it is no number."""
        value: Any = result
        for key in self.metric.split("/"):
            value = value.get(key) if isinstance(value, Mapping) else None
        if not isinstance(value, numbers.Real):
            return False
        score = float(value) if self.mode == "max" else -float(value)
        best = self._best.get(trial.trial_id)
        if math.isnan(score) or (best is not None and score <= best + self.delta):
            return False
        self._seen[trial.trial_id] = score
        return True

    def saved(self, trial: Trial) -> None:
        """Take the value at the report as the one to beat."""
        if trial.trial_id in self._seen:
            self._best[trial.trial_id] = self._seen.pop(trial.trial_id)

    def __repr__(self) -> str:
        delta = f", delta={self.delta:g}" if self.delta else ""
        return f"OnImprovement({self.metric!r}, mode={self.mode!r}{delta})"

    def get_state(self) -> dict[str, Any]:
        """Return what Tune saves with the experiment."""
        return {"best": dict(self._best)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Load what Tune restores with the experiment."""
        self._best = dict(state["best"])


class AtDecisions(CheckpointPolicy):
    """A checkpoint wherever the scheduler will use its score, and at the trial's end.

    That is at the rungs of ``ASHAScheduler`` and ``HyperBandScheduler``, at the perturbation
    interval of ``PopulationBasedTraining``, and so on; with a scheduler that tunekit does not know,
    at each report. With ``ValidationConfig(when="auto")``, also at other reports, if saving takes a
    fiftieth of an iteration at most. It needs a :class:`~tunekit.ValidatedScheduler`, which
    :class:`tunekit.Tuner` provides.

    Example:
        >>> import tunekit
        >>> AtDecisions() | tunekit.policies.EverySeconds(600)
        AtDecisions() | EverySeconds(600)
    """

    _uses: Callable[[Trial, Mapping[str, Any]], bool] | None = None

    def attach(self, uses: Callable[[Trial, Mapping[str, Any]], bool]) -> None:
        """Connect it with a function that says whether a trial is to save at a report."""
        self._uses = uses

    def started(self, trial: Trial) -> None:
        """Make Tune save at the trial's end."""
        set_checkpoint_config(trial, frequency=trial.checkpoint_freq, at_end=True)

    def due(self, trial: Trial, result: Mapping[str, Any]) -> bool:
        """Ask the scheduler."""
        if self._uses is None:
            raise WiringError(
                "AtDecisions was given to a sweep without a ValidatedScheduler, which knows when "
                "the scheduler decides. Use tunekit.Tuner with a validation_config, or pass "
                "TuneConfig(scheduler=tunekit.ValidatedScheduler(...)) and a ValidationCallback."
            )
        return self._uses(trial, result)

    def __repr__(self) -> str:
        return "AtDecisions()"


class CheckpointWhen(CheckpointPolicy):
    """A checkpoint whenever a function of yours says so: before a preemption, for example.

    Args:
        predicate: ``predicate(trial, result) -> bool``, called on the driver with each report of
            each trial; it should be quick.

    Raises:
        tunekit.errors.ConfigError: If ``predicate`` is not callable.

    Example:
        >>> from pathlib import Path
        >>> policy = CheckpointWhen(lambda trial, result: Path("/run/preempted").exists())
    """

    def __init__(self, predicate: Callable[[Trial, Mapping[str, Any]], bool]):
        problems = Problems("CheckpointWhen")
        problems.function("predicate", predicate, "Pass `def predicate(trial, result) -> bool`.")
        problems.raise_any()
        self.predicate = predicate

    def due(self, trial: Trial, result: Mapping[str, Any]) -> bool:
        """Ask the predicate."""
        return bool(self.predicate(trial, result))

    def __repr__(self) -> str:
        return f"CheckpointWhen({getattr(self.predicate, '__name__', self.predicate)})"


def by_default(
    trainable: Any, run_config: tune.RunConfig | None, when: int | str
) -> CheckpointPolicy | None:
    """Return when a trainable saves that nobody asks to; None if it saves by itself, or is asked.

    That is a class that can save, or a function that registers how to, and neither asks for a
    checkpoint in its reports. It is asked where ``when`` validates. Callbacks of the user's may
    ask, too.

    Args:
        trainable: What Tune runs.
        run_config: As in the ``Tuner``.
        when: Which checkpoints are validated.

    Example:
        >>> from tunekit._ray.functions import checkpointable_class
        >>> def train(config):
        ...     tunekit.checkpoint_with(lambda directory: None)
        ...     tune.report({"loss": 1.0})
        >>> [by_default(checkpointable_class(train), None, when) for when in ("auto", 5)]
        [AtDecisions(), EveryIterations(5)]
    """
    run_config = run_config or tune.RunConfig()
    checkpoints = run_config.checkpoint_config or tune.CheckpointConfig()
    others = any(
        type(one).on_trial_result is not tune.Callback.on_trial_result
        for one in run_config.callbacks or []
        if not isinstance(one, LoggerCallback)
    )
    asked = checkpoints.checkpoint_frequency or checkpoints.checkpoint_at_end or others
    if asked or when == "requested" or not waits_to_be_asked(trainable):
        return None
    return EveryIterations(when) if isinstance(when, int) else AtDecisions()


class _AnyOf(CheckpointPolicy):
    """A checkpoint when any of several policies asks for one. Each of them sees every report."""

    def __init__(self, *policies: CheckpointPolicy):
        self.policies: tuple[CheckpointPolicy, ...] = tuple(
            part
            for policy in policies
            for part in (policy.policies if isinstance(policy, _AnyOf) else (policy,))
        )

    def due(self, trial: Trial, result: Mapping[str, Any]) -> bool:
        """Ask all of them."""
        return any([policy.due(trial, result) for policy in self.policies])  # noqa: C419  all look

    def saved(self, trial: Trial) -> None:
        """Tell all of them."""
        for policy in self.policies:
            policy.saved(trial)

    def started(self, trial: Trial) -> None:
        """Tell all of them."""
        for policy in self.policies:
            policy.started(trial)

    def go_by(self, monotonic: Callable[[], float]) -> None:
        """Make all of them read the time from something other than the machine's clock."""
        for policy in self.policies:
            policy.go_by(monotonic)

    def parts(self) -> Iterator[CheckpointPolicy]:
        """Yield the policies."""
        yield from self.policies

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.policies))

    def get_state(self) -> dict[str, Any] | None:
        """Return what Tune saves with the experiment."""
        return {"policies": [policy.get_state() for policy in self.policies]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Load what Tune restores with the experiment."""
        for policy, saved in zip(self.policies, state["policies"], strict=True):
            if saved:
                policy.set_state(saved)


class FunctionCheckpoints(tune.Callback):
    """Gives function trainables their ``checkpoint_frequency`` and ``checkpoint_at_end``.

    Tune drops both for functions, because they cannot save on demand; tunekit's can. This puts the
    settings back into each trial's own, where Tune acts on them as it does for classes.
    """

    def __init__(self, frequency: int, at_end: bool):
        self.frequency = frequency
        self.at_end = at_end

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Called by Tune before the trial's first report."""
        fail_for_good(trial)
        set_checkpoint_config(trial, frequency=self.frequency, at_end=self.at_end)
