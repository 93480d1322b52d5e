"""Checkpoint policies: callbacks that request a checkpoint when one is due.

They set ``should_checkpoint`` in a report. This works for any class trainable, and for functions
that have called :func:`tunekit.checkpoint_with`. Policies can be combined: a sweep saves whenever
any of them requests it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.result import SHOULD_CHECKPOINT, TRAINING_ITERATION

from tunekit._ray.checkpoints import set_checkpoint_config
from tunekit._ray.worker_errors import fail_for_good
from tunekit.errors import WiringError
from tunekit.messages.problems import Problems
from tunekit.training import VALIDATION_KEY

#: Returns whether a trial saves at a report.
_AtReport = Callable[[Trial, Mapping[str, Any]], bool]

# EveryIterations is public as tunekit.EveryIterations.
__all__ = ["AtDecisions", "CheckpointPolicy"]


class CheckpointPolicy(tune.Callback):
    """Request a checkpoint when one is due: the base class of all policies.

    Pass one as ``tunekit.Tuner(checkpoint_policy=...)``; with a plain ``ray.tune.Tuner``, in
    ``RunConfig(callbacks=[...])``. Your own policy overrides :meth:`due`.

    Example:
        >>> class AtPowersOfTwo(CheckpointPolicy):
        ...     def due(self, trial, result):
        ...         return result["training_iteration"].bit_count() == 1
        >>> policy = AtPowersOfTwo()
        >>> [n for n in range(1, 20) if policy.due(None, {"training_iteration": n})]
        [1, 2, 4, 8, 16]
    """

    def due(self, trial: Trial, result: Mapping[str, Any]) -> bool:
        """Return whether to save at a report; called once for each report, in order."""
        raise NotImplementedError

    def applies(self, trial: Trial) -> bool:
        """Return whether the policy is used for a trial."""
        return True

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Prepare a trial whose actor has started; called by Tune."""
        fail_for_good(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Request a checkpoint in a report if one is due; called by Tune."""
        if self.due(trial, result):
            result[SHOULD_CHECKPOINT] = True


class EveryIterations(CheckpointPolicy):
    """Save a checkpoint at each multiple of ``n`` training iterations.

    Args:
        n: Iterations between two checkpoints, at least 1.

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


class AtDecisions(CheckpointPolicy):
    """Save a checkpoint wherever the scheduler will use its score, and at the trial's end.

    That is at the rungs of ``ASHAScheduler`` and ``HyperBandScheduler``, at the perturbation
    interval of ``PopulationBasedTraining``, and so on; with a scheduler that tunekit does not know,
    at each report. With ``ValidationConfig(when="auto")``, also at each report if the scheduler
    decides nothing, or if a stopper reads scores.

    Raises:
        tunekit.errors.WiringError: At the first report, if the sweep lacks a
            :class:`~tunekit.ValidatedScheduler`, which :class:`tunekit.Tuner` provides.

    Example:
        >>> AtDecisions()
        AtDecisions()
    """

    _uses: _AtReport | None = None

    def attach(self, uses: _AtReport, can_save: Callable[[Trial], bool]) -> None:
        """Set the function that returns whether a trial saves at a report."""
        self._uses = uses

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Request a checkpoint in a report if one is due, and at the trial's end."""
        set_checkpoint_config(trial, frequency=trial.checkpoint_freq, at_end=True)
        super().on_trial_result(iteration, trials, trial, result, **info)

    def due(self, trial: Trial, result: Mapping[str, Any]) -> bool:
        """Return whether the scheduler will use a score of this report."""
        if self._uses is None:
            raise WiringError(
                "AtDecisions needs a ValidatedScheduler, which knows when the scheduler decides, "
                "but the sweep has none. Use tunekit.Tuner with a validation_config, or pass "
                "TuneConfig(scheduler=tunekit.ValidatedScheduler(...)) and a ValidationCallback."
            )
        return self._uses(trial, result)

    def __repr__(self) -> str:
        return "AtDecisions()"


class DefaultPolicy(CheckpointPolicy):
    """Save at the iterations that ``when`` selects, in trials that save only when asked.

    These are classes that can save, and functions that have registered how to save, until one of
    the trial's reports requests a checkpoint or has one.

    Args:
        when: Which checkpoints are validated.
    """

    def __init__(self, when: int | str):
        self.policy = EveryIterations(when) if isinstance(when, int) else AtDecisions()
        self._can_save: Callable[[Trial], bool] | None = None
        self._asking: set[str] = set()

    def attach(self, uses: _AtReport, can_save: Callable[[Trial], bool]) -> None:
        """Set the functions that return whether a trial saves at a report, and whether it can."""
        self._can_save = can_save
        if isinstance(self.policy, AtDecisions):
            self.policy.attach(uses, can_save)

    def applies(self, trial: Trial) -> bool:
        can_save = self._can_save is not None and self._can_save(trial)
        return can_save and trial.trial_id not in self._asking

    def due(self, trial: Trial, result: Mapping[str, Any]) -> bool:
        """Return whether ``when`` selects a report."""
        return self.policy.due(trial, result)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Request a checkpoint in a report if one is due."""
        if SHOULD_CHECKPOINT in result or VALIDATION_KEY in result:
            self._asking.add(trial.trial_id)
        if self.applies(trial):
            self.policy.on_trial_result(iteration, trials, trial, result, **info)


def by_default(run_config: tune.RunConfig, when: int | str) -> CheckpointPolicy | None:
    """Return the default policy; None if the user's settings or policies request checkpoints.

    Args:
        run_config: As in the ``Tuner``.
        when: Which checkpoints are validated.

    Example:
        >>> by_default(tune.RunConfig(), 5).policy
        EveryIterations(5)
    """
    checkpoints = run_config.checkpoint_config
    policies = any(isinstance(one, CheckpointPolicy) for one in run_config.callbacks or [])
    asked = checkpoints.checkpoint_frequency or checkpoints.checkpoint_at_end or policies
    return None if asked or when == "requested" else DefaultPolicy(when)


class FunctionCheckpoints(tune.Callback):
    """Apply ``checkpoint_frequency`` and ``checkpoint_at_end`` to function trainables.

    Tune drops both for functions, because they cannot save on demand, but tunekit's can. This
    restores the settings in each trial, where Tune applies them as for classes.
    """

    def __init__(self, frequency: int, at_end: bool):
        self.frequency = frequency
        self.at_end = at_end

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Restore the settings before the trial's first report; called by Tune."""
        fail_for_good(trial)
        set_checkpoint_config(trial, frequency=self.frequency, at_end=self.at_end)
