"""Loggers that can handle scores that arrive late."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.logger import (
    CSVLoggerCallback,
    JsonLoggerCallback,
    LoggerCallback,
    TBXLoggerCallback,
)
from ray.tune.result import TIMESTEPS_TOTAL, TRAINING_ITERATION, TRIAL_ID

from tunekit._ray.loggers import LocalFirst, adapt
from tunekit.core.history import GENERATION
from tunekit.core.metrics import flatten, hide, without
from tunekit.core.problems import Problems
from tunekit.results.tensorboard import TensorBoardLogger

__all__ = ["JsonLogger", "TensorBoardLogger", "ValidatedLoggerCallback"]

# The items of a report that accompany its validated metrics, if the report has them.
_PLACE = (TRAINING_ITERATION, TIMESTEPS_TOTAL, GENERATION)


class JsonLogger(LocalFirst):
    """Write ``result.json`` as Tune's own logger does, but keep its rows when a trial resumes.

    Whenever a trial starts, Tune's logger overwrites the local file with the last synced one, and
    loses the rows in between. This one copies the synced file only if there is no local one.

    Example:
        >>> from ray import tune
        >>> run_config = tune.RunConfig(callbacks=[JsonLogger()])
    """


def _passed_on(name: str) -> Callable[..., Any]:
    """Return a method that forwards one of Tune's hooks to the logger."""

    def passed(self: ValidatedLoggerCallback, *args: Any, **info: Any) -> Any:
        return getattr(self.logger, name)(*args, **info)

    passed.__doc__ = "Forward the call to the logger."
    return passed


class ValidatedLoggerCallback(LoggerCallback):
    """Show validated metrics in an unmodified logger: MLflow, Weights & Biases, Comet, Aim, ...

    :class:`tunekit.Tuner` wraps the loggers in ``RunConfig(callbacks=[...])`` itself; for a plain
    ``ray.tune.Tuner`` see :meth:`tunekit.ValidationCallback.loggers`.

    The logger gets each validated result as a separate row: the validated metrics, with the
    ``training_iteration`` (and ``timesteps_total``, if reported) of the report that saved the
    checkpoint, its ``generation``, and the ``trial_id``. A trial's rows come in iteration order,
    and its end after its last validation, because some loggers close the run then.

    If validation may produce a metric of the same name, training's values are held back until this
    is known. If it does, they are logged below ``reported/``.

    Args:
        logger: The logger to wrap; of Tune's own, only the one for TensorBoard.

    Raises:
        tunekit.errors.ConfigError: If ``logger`` is not a logger, or already shows validated
            metrics.

    Example:
        >>> from ray.tune.logger import LoggerCallback
        >>> class Prints(LoggerCallback):
        ...     def log_trial_result(self, iteration, trial, result):
        ...         print(trial, result)
        >>> logger = ValidatedLoggerCallback(Prints())
    """

    def __new__(cls, logger: LoggerCallback | None = None) -> ValidatedLoggerCallback:
        """Wrap a TensorBoard logger as one, because otherwise Tune adds its own."""
        kind = _ValidatedTensorBoard if isinstance(logger, TBXLoggerCallback) else cls
        made: ValidatedLoggerCallback = object.__new__(kind)
        return made

    def __init__(self, logger: LoggerCallback):
        problems = Problems("ValidatedLoggerCallback")
        fix = "Pass a logger, such as ray.air.integrations.mlflow.MLflowLoggerCallback(...)."
        if problems.instance("logger", logger, LoggerCallback, fix) and not _gains(logger):
            problems.add(
                f"logger={type(logger).__name__}(...) already shows validated metrics. Put it "
                "into RunConfig(callbacks=[...]) as it is."
            )
        problems.raise_any()
        #: The logger.
        self.logger = logger
        self._undecided: Callable[[], Collection[str]] = frozenset
        self._validated: Callable[[], Collection[str]] = frozenset
        # Rows with training's values of names that are still undecided.
        self._held: dict[Trial, list[tuple[int, dict[str, Any]]]] = {}
        self._open: set[Trial] = set()
        self._ends: dict[Trial, Callable[[], None]] = {}
        self._iteration = 0

    def attach(
        self, undecided: Callable[[], Collection[str]], validated: Callable[[], Collection[str]]
    ) -> None:
        """Set the functions that distinguish metrics' names; the sweep's validations call this.

        Args:
            undecided: Returns the names that training or validation may produce.
            validated: Returns the names that validation produces.
        """
        self._undecided, self._validated = undecided, validated

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the logger."""
        if name == "logger" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.logger, name)

    # Called by tunekit -------------------------------------------------------------------------

    def on_trial_validated(
        self, trial: Trial, report: Mapping[str, Any], metrics: Mapping[str, Any]
    ) -> None:
        """Log a checkpoint's validated metrics as a separate row.

        Args:
            trial: The trial.
            report: The report of the iteration at which the checkpoint was saved.
            metrics: Its validated metrics.
        """
        if trial not in self._open:  # it ended before the sweep was restored
            about = {"iteration": self._iteration, "trials": [trial], "trial": trial}
            self.on_trial_start(**about)
            if trial.is_finished():
                self.on_trial_complete(**about)
        for held in list(self._held):
            self._let_go(held)
        self._log(self._iteration, trial, {**_place_of(trial, report), **metrics})

    def on_trial_settled(self, trial: Trial) -> None:
        """Forward the end of a trial whose last validation has ended."""
        self._let_go(trial)
        end = self._ends.pop(trial, None)
        if end is not None:
            self._open.discard(trial)
            end()

    def _let_go(self, trial: Trial) -> None:
        """Log the rows of a trial that were held back."""
        for iteration, row in self._held.pop(trial, []):
            self._log(iteration, trial, hide(row, self._validated()))

    def _log(self, iteration: int, trial: Trial, row: dict[str, Any]) -> None:
        self.logger.log_trial_result(iteration, trial, row)

    # Called by Tune ----------------------------------------------------------------------------

    def on_trial_result(
        self, iteration: int, trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Log a report, without the values that are held back."""
        self._iteration = iteration
        own = flatten(result)
        held = {name: own[name] for name in self._undecided() if name in own}
        if held:
            row = {**_place_of(trial, result), **held}
            self._held.setdefault(trial, []).append((iteration, row))
            result = without(result, held)
        else:
            self._let_go(trial)
        self.logger.on_trial_result(iteration=iteration, trial=trial, result=result, **info)

    def on_trial_start(self, trial: Trial, **info: Any) -> None:
        """Forward the start; a trial that resumes has not ended."""
        self._open.add(trial)
        self._ends.pop(trial, None)
        self.logger.on_trial_start(trial=trial, **info)

    def on_trial_complete(self, trial: Trial, **info: Any) -> None:
        """Record the end, to forward it after the trial's last validation."""
        self._ends[trial] = partial(self.logger.on_trial_complete, trial=trial, **info)

    def on_trial_error(self, trial: Trial, **info: Any) -> None:
        """Record the failure, to forward it after the trial's last validation."""
        self._ends[trial] = partial(self.logger.on_trial_error, trial=trial, **info)

    def on_experiment_end(self, **info: Any) -> None:
        """Forward the ends of trials whose validations were interrupted, then this one."""
        for trial in {**self._ends, **self._held}:
            self.on_trial_settled(trial)
        self.logger.on_experiment_end(**info)

    def setup(self, *args: Any, **info: Any) -> None:
        """Prepare the logger, and set it up."""
        adapt(self.logger)
        self.logger.setup(*args, **info)

    on_step_begin = _passed_on("on_step_begin")
    on_step_end = _passed_on("on_step_end")
    on_trial_restore = _passed_on("on_trial_restore")
    on_trial_save = _passed_on("on_trial_save")
    on_trial_recover = _passed_on("on_trial_recover")
    on_checkpoint = _passed_on("on_checkpoint")
    get_state = _passed_on("get_state")
    set_state = _passed_on("set_state")


class _ValidatedTensorBoard(ValidatedLoggerCallback, TBXLoggerCallback):
    """Wrap a user's TensorBoard logger: with one, Tune does not add another."""


def validated(logger: tune.Callback) -> tune.Callback:
    """Return a logger that shows validated metrics, wrapping it if necessary.

    Example:
        >>> type(validated(LoggerCallback())).__name__, type(validated(JsonLogger())).__name__
        ('ValidatedLoggerCallback', 'JsonLogger')
    """
    wrap = isinstance(logger, LoggerCallback) and _gains(logger)
    return ValidatedLoggerCallback(logger) if wrap else logger


def _gains(logger: LoggerCallback) -> bool:
    """Return whether a logger gets validated metrics only if wrapped."""
    folded = isinstance(logger, (JsonLoggerCallback, CSVLoggerCallback))
    return not folded and not hasattr(logger, "on_trial_validated")


def _place_of(trial: Trial, report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the items that locate a row in its trial."""
    known = {name: report[name] for name in _PLACE if report.get(name) is not None}
    return {TRIAL_ID: trial.trial_id, **known}
