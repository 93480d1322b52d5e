"""Add validations to Tune's progress output in a terminal or notebook.

Tune has two kinds of output. In a terminal, its own callback prints tables
(``ray.tune.experimental.output``). In a notebook, and with ``RAY_AIR_NEW_OUTPUT=0``, a
``ProgressReporter`` does, which may come from ``RunConfig(progress_reporter=...)``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Protocol

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.experimental.output import (
    TuneTerminalReporter,
    _infer_user_metrics,
    _TrialTableData,
    get_air_verbosity,
)
from ray.tune.progress_reporter import (
    IS_NOTEBOOK,
    CLIReporter,
    JupyterNotebookReporter,
    ProgressReporter,
    TrialProgressCallback,
    TuneReporterBase,
)
from ray.tune.utils.log import Verbosity, has_verbosity

from tunekit._ray.controller import Controller
from tunekit.core.engine import Engine
from tunekit.core.history import GENERATION, VALIDATED_ITERATION
from tunekit.core.metrics import flatten


class ProgressSource(Protocol):
    """Supply the status of a sweep's validations."""

    engine: Engine  #: the state of the sweep

    def progress(self) -> list[str]:
        """Return the status of the validations, line by line."""

    @property
    def unreported(self) -> Collection[str]:
        """The metrics for which only validated values count."""


# The trial table ------------------------------------------------------------------------------


class _Shown:
    """A trial for the table, with a value in each fixed column.

    Args:
        trial: The trial.
        values: The values that replace those of its last result.
    """

    def __init__(self, trial: Any, values: dict[str, Any]):
        self.trial = trial
        self.last_result = {**trial.last_result, **values} if trial.last_result else values

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trial, name)

    def __str__(self) -> str:
        return str(self.trial)


def _own_columns(source: ProgressSource) -> list[str]:
    """Return the columns for validation, in order."""
    return [*sorted(source.engine.required), VALIDATED_ITERATION]


def _scored(source: ProgressSource, trials: Iterable[Any]) -> list[Any]:
    """Return the trials with only validated values in the columns for validation."""
    found = []
    for trial in trials:
        result = flatten(trial.last_result or {})
        hidden = () if VALIDATED_ITERATION in result else source.unreported
        own = {n: None if n in hidden else result.get(n) for n in _own_columns(source)}
        found.append(_Shown(trial, own | {GENERATION: None}))
    return found


# In a terminal --------------------------------------------------------------------------------


class _TerminalReporter(TuneTerminalReporter):
    """Tune's own reporter, which also shows validations."""

    source: ProgressSource

    @property
    def prints(self) -> bool:
        """Return whether it prints anything while trials run."""
        return bool(self.verbosity >= self._heartbeat_threshold)

    def say(self, text: str) -> None:
        """Print a separate line."""
        self._start_block("validations")
        print(text)

    def _get_heartbeat(
        self, trials: list[Trial], *sys_args: str, force_full_output: bool = False
    ) -> tuple[list[str], _TrialTableData]:
        trials, own = _scored(self.source, trials), _own_columns(self.source)
        others = [name for name in _infer_user_metrics(trials) if name not in own]
        self._inferred_metric = own + others
        (status, *rest), table = super()._get_heartbeat(
            trials, *sys_args, force_full_output=force_full_output
        )
        return [status, *self.source.progress(), *rest], table


# In a notebook, and with RAY_AIR_NEW_OUTPUT=0 ---------------------------------------------------


class _ShowsValidations:
    """Extend Tune's reporters with the data of :class:`ProgressSource`.

    The status of validations is in the scheduler's summary, which every reporter gets.
    """

    source: ProgressSource
    _metric_columns: dict[str, str]

    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        own = {name: name for name in _own_columns(self.source)}
        self._metric_columns = own | self._metric_columns
        super().report(_scored(self.source, trials), done, *sys_info)  # type: ignore[misc]


class _CLIReporter(_ShowsValidations, CLIReporter):
    """Tune's reporter with ``RAY_AIR_NEW_OUTPUT=0``."""


class _NotebookReporter(_ShowsValidations, JupyterNotebookReporter):
    """Tune's reporter in a notebook."""


def _reporter(source: ProgressSource, verbose: Any) -> ProgressReporter:
    """Return the reporter that Tune would create, with validations."""
    level = int(verbose)
    details = level >= Verbosity.V3_TRIAL_DETAILS.value
    if IS_NOTEBOOK:
        reporter = _NotebookReporter(
            overwrite=level < Verbosity.V2_TRIAL_NORM.value, print_intermediate_tables=details
        )
    else:
        reporter = _CLIReporter(print_intermediate_tables=details)
    reporter.source = source
    return reporter


@contextlib.contextmanager
def reported(run_config: tune.RunConfig, source: ProgressSource) -> Iterator[Display]:
    """Show a sweep's validations while it runs.

    A reporter that the user has passed is still used.

    Args:
        run_config: The sweep's configuration, which is changed meanwhile.
        source: Supplies the status of the sweep's validations.
    """
    given = run_config.progress_reporter
    legacy = IS_NOTEBOOK or get_air_verbosity(run_config.verbose) is None
    reporter = _reporter(source, run_config.verbose) if given is None and legacy else given
    run_config.progress_reporter = reporter
    try:
        yield Display(source, reporter if legacy else None)
    finally:
        run_config.progress_reporter = given


class Display:
    """The output of a sweep while it runs.

    Args:
        source: Supplies the status of the sweep's validations.
        reporter: Tune's reporter; None if Tune prints by its own callback.
    """

    def __init__(self, source: ProgressSource, reporter: ProgressReporter | None = None):
        self._source = source
        self._reporter: Any = reporter
        self._terminal: _TerminalReporter | None = None
        self._controller: Controller | None = None

    def attach(self, controller: Controller) -> None:
        """Connect the sweep, so that its validations are shown."""
        self._controller = controller
        for callback in controller.callbacks:
            if isinstance(callback, TuneTerminalReporter):
                callback.__class__ = _TerminalReporter  # Tune always creates its own reporter
                callback.source, self._terminal = self._source, callback
            if isinstance(callback, TrialProgressCallback):
                # It would print the metric with each report, which lacks it: "accuracy=-99.00".
                callback._metric = None

    @property
    def shows(self) -> bool:
        """Return whether anything is shown to the user."""
        if self._terminal is not None:
            return self._terminal.prints
        return self._reporter is not None and bool(has_verbosity(Verbosity.V1_EXPERIMENT))

    def refresh(self, news: str | None = None) -> bool:
        """Show the sweep's current state if the last output is old enough, as Tune does per step.

        Args:
            news: A line to show now.

        Returns:
            Whether anything is shown to the user, now or soon.
        """
        if self._controller is None or not self.shows:
            return False
        trials, tune = self._controller.trials, self._controller._tune
        if self._terminal is not None:
            if news is not None:
                self._terminal.say(news)
            self._terminal.print_heartbeat(trials, tune._used_resources_string())
        # Tune sets up a reporter of the user's class in its first step.
        elif (
            isinstance(self._reporter, TuneReporterBase) or tune._iteration
        ) and self._reporter.should_report(trials):
            summary = tune.scheduler_alg.debug_string()
            self._reporter.report(trials, False, summary, tune._used_resources_string())
        return True
