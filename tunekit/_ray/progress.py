"""Add validations to Tune's progress output in a terminal or notebook.

Tune has two kinds of output. In a terminal, its own callback prints tables
(``ray.tune.experimental.output``). In a notebook, and with ``RAY_AIR_NEW_OUTPUT=0``, a
``ProgressReporter`` does, which may come from ``RunConfig(progress_reporter=...)``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from typing import Any, Protocol

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.experimental.output import (
    DEFAULT_COLUMNS,
    TuneTerminalReporter,
    _get_trial_table_data,
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
from ray.tune.result import AUTO_RESULT_KEYS
from ray.tune.schedulers import TrialScheduler
from ray.tune.utils.log import Verbosity, has_verbosity

from tunekit._ray.controller import Controller
from tunekit.core.engine import Engine
from tunekit.core.history import VALIDATED_ITERATION
from tunekit.core.metrics import flatten
from tunekit.core.progress import other_metrics


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
    """Return the fixed columns, in order."""
    return [*sorted(source.engine.required), VALIDATED_ITERATION]


def _scored(source: ProgressSource, trials: Iterable[Any]) -> list[Any]:
    """Return the trials with only validated values in the fixed columns."""
    found = []
    for trial in trials:
        result = flatten(trial.last_result or {})
        hidden = () if VALIDATED_ITERATION in result else source.unreported
        own = {n: None if n in hidden else result.get(n) for n in _own_columns(source)}
        found.append(_Shown(trial, own))
    return found


def _tabled(source: ProgressSource, trials: Iterable[Any]) -> list[Any]:
    """Return the same for a table, from which Tune drops columns with nothing but None."""
    shown = _scored(source, trials)
    for name in _own_columns(source):
        if all(one.last_result[name] is None for one in shown):
            for one in shown:
                one.last_result[name] = ""
    return shown


def _metric_columns(source: ProgressSource, trials: Sequence[Any], most: int) -> dict[str, str]:
    """Return the metrics to show, in order, with the names of their columns."""
    own = _own_columns(source)
    common = {name: title for name, title in DEFAULT_COLUMNS.items() if name not in own}
    results = [trial.last_result for trial in trials if trial.last_result]
    shown = [*own, *common, *AUTO_RESULT_KEYS]
    others = other_metrics(results, source.engine.history.names.keys(), shown, most)
    return {**{name: name for name in own}, **common, **{name: name for name in others}}


# In a terminal --------------------------------------------------------------------------------


class _TerminalReporter(TuneTerminalReporter):
    """Tune's own reporter, which also shows validations."""

    source: ProgressSource
    #: The scheduler's name in the header; None for Tune's own.
    scheduler: str | None = None

    def experiment_started(self, *args: Any, **about: Any) -> None:
        """Print the experiment's configuration, with the user's scheduler, not its wrapper."""
        if self.scheduler is not None and "scheduler_str" in about:
            about["scheduler_str"] = self.scheduler
        super().experiment_started(*args, **about)

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
        lines, _ = super()._get_heartbeat(_scored(self.source, trials), *sys_args)
        status, *rest = lines
        table = _get_trial_table_data(
            _tabled(self.source, trials),
            param_keys=self._inferred_params,
            metric_keys=list(_metric_columns(self.source, trials, most=4)),
            all_rows=force_full_output,
            wrap_headers=self._wrap_headers,
        )
        return [status, *self.source.progress(), *rest], table


# In a notebook, and with RAY_AIR_NEW_OUTPUT=0 ---------------------------------------------------


class _ShowsValidations:
    """Extend Tune's reporters with the data of :class:`ProgressSource`.

    The status of validations is in the scheduler's summary, which every reporter gets.
    """

    source: ProgressSource

    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        self._metrics_override = True
        self._metric_columns = _metric_columns(self.source, trials, most=3)
        super().report(_tabled(self.source, trials), done, *sys_info)  # type: ignore[misc]

    def _current_best_trial(self, trials: list[Any]) -> Any:
        scored = _scored(self.source, [one.trial for one in trials])
        return super()._current_best_trial(scored)  # type: ignore[misc]


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
def reported(
    run_config: tune.RunConfig, source: ProgressSource, scheduler: TrialScheduler | None = None
) -> Iterator[Display]:
    """Show a sweep's validations while it runs.

    A reporter that the user has passed is still used.

    Args:
        run_config: The sweep's configuration, which is changed meanwhile.
        source: Supplies the status of the sweep's validations.
        scheduler: The user's scheduler, if known.
    """
    given = run_config.progress_reporter
    legacy = IS_NOTEBOOK or get_air_verbosity(run_config.verbose) is None
    reporter = _reporter(source, run_config.verbose) if given is None and legacy else given
    run_config.progress_reporter = reporter
    try:
        called = None if scheduler is None else f"{type(scheduler).__name__} (validated)"
        yield Display(source, reporter if legacy else None, run_config, called)
    finally:
        run_config.progress_reporter = given


class Display:
    """The output of a sweep while it runs.

    Args:
        source: Supplies the status of the sweep's validations.
        reporter: Tune's reporter; None if Tune prints by its own callback.
        run_config: The sweep's configuration, if known; Tune adds that callback to it.
        scheduler: The name of the user's scheduler, if known.
    """

    def __init__(
        self,
        source: ProgressSource,
        reporter: ProgressReporter | None = None,
        run_config: tune.RunConfig | None = None,
        scheduler: str | None = None,
    ):
        self._source = source
        self._run_config = run_config
        self._scheduler = scheduler
        self._reporter: Any = reporter
        self._terminal: _TerminalReporter | None = None
        self._controller: Controller | None = None

    def begin(self) -> None:
        """Show the user's scheduler in Tune's header; call this before Tune prints it."""
        own = self._run_config
        self._take_over([] if own is None else own.callbacks or [])

    def _take_over(self, callbacks: Iterable[Any]) -> None:
        for callback in callbacks:
            if isinstance(callback, TuneTerminalReporter):
                callback.__class__ = _TerminalReporter  # Tune always creates its own reporter
                callback.source, callback.scheduler = self._source, self._scheduler
                self._terminal = callback

    def attach(self, controller: Controller) -> None:
        """Connect the sweep, so that its validations are shown."""
        self._controller = controller
        self._take_over(controller.callbacks)
        for callback in controller.callbacks:
            if isinstance(callback, TrialProgressCallback):
                # It would print the metric with each report, which lacks it: "accuracy=-99.00".
                callback._metric = None
        reporter = self._reporter
        if isinstance(reporter, TuneReporterBase) and not isinstance(reporter, _ShowsValidations):
            _add_columns(reporter, _own_columns(self._source))

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


def _add_columns(reporter: TuneReporterBase, names: Iterable[str]) -> None:
    """Add metrics to those of a user's reporter, which still infers others."""
    infers_none = reporter._metrics_override
    reporter._metric_columns = copy(reporter._metric_columns)
    for name in names:
        if name not in reporter._metric_columns:
            reporter.add_metric_column(name)
    reporter._metrics_override = infers_none
