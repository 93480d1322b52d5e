"""What Tune prints, or shows in a notebook, while a sweep runs, with its validations.

Tune has two ways to do that. In a terminal a callback of Tune's own prints tables
(``ray.tune.experimental.output``); in a notebook, and with ``RAY_AIR_NEW_OUTPUT=0``, a
``ProgressReporter`` does, which ``RunConfig(progress_reporter=...)`` may name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from typing import Any, Protocol

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.experimental.output import (
    AIR_TABULATE_TABLEFMT,
    DEFAULT_COLUMNS,
    TuneTerminalReporter,
    _get_trial_table_data,
    _TrialTableData,
    get_air_verbosity,
    tabulate,
)
from ray.tune.progress_reporter import (
    IS_NOTEBOOK,
    CLIReporter,
    JupyterNotebookReporter,
    ProgressReporter,
    TrialProgressCallback,
    TuneReporterBase,
)
from ray.tune.result import AUTO_RESULT_KEYS, TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler
from ray.tune.utils.log import Verbosity, has_verbosity

from tunekit._ray.controller import Controller
from tunekit.core.history import VALIDATED_ITERATION
from tunekit.core.metrics import flatten
from tunekit.core.progress import giving_way, other_metrics, wrapped
from tunekit.terminal import terminal_width

__all__ = ["Display", "Source", "reported"]


class Source(Protocol):
    """What there is to show of a sweep's validations."""

    def progress(self) -> list[str]:
        """Return how the validations stand, in lines."""
        ...

    @property
    def judged_by(self) -> list[str]:
        """The metrics that the sweep is judged by."""
        ...

    @property
    def validated_names(self) -> Collection[str]:
        """The metrics that validation produces, as far as that is known."""
        ...

    @property
    def unreported(self) -> Collection[str]:
        """The metrics of which only validated values count."""
        ...


# The trial table ------------------------------------------------------------------------------


class _Shown:
    """A trial as the table shows it: with a value in each column that is always there.

    Args:
        trial: The trial.
        values: What its last result is to say.
    """

    def __init__(self, trial: Any, values: dict[str, Any]):
        self.trial = trial
        self.last_result = {**trial.last_result, **values} if trial.last_result else values

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trial, name)

    def __str__(self) -> str:
        return str(self.trial)


def _own_columns(source: Source) -> list[str]:
    """The columns that are always there, in order."""
    return [*source.judged_by, VALIDATED_ITERATION]


def _values(source: Source, trial: Any) -> dict[str, Any]:
    """Return what a trial has in those columns; None where it has no score."""
    result = flatten(trial.last_result or {})
    validated = VALIDATED_ITERATION in result
    return {
        name: None if name in source.unreported and not validated else result.get(name)
        for name in _own_columns(source)
    }


def _scored(source: Source, trials: Iterable[Any]) -> list[Any]:
    """The trials, with validated values only in the columns that are always there."""
    return [_Shown(trial, _values(source, trial)) for trial in trials]


def _tabled(source: Source, trials: Iterable[Any]) -> list[Any]:
    """The same for a table, from which Tune drops columns in which every trial has None."""
    shown = _scored(source, trials)
    for name in _own_columns(source):
        if all(one.last_result[name] is None for one in shown):
            for one in shown:
                one.last_result[name] = ""
    return shown


def _metric_columns(source: Source, trials: Sequence[Any], most: int) -> dict[str, str]:
    """The metrics to show, in order, and what their columns are called."""
    own = _own_columns(source)
    common = {name: title for name, title in DEFAULT_COLUMNS.items() if name not in own}
    results = [trial.last_result for trial in trials if trial.last_result]
    shown = [*own, *common, *AUTO_RESULT_KEYS]
    others = other_metrics(results, source.validated_names, shown, most)
    return {**{name: name for name in own}, **common, **{name: name for name in others}}


# What is shown of long headings where there is little room.
_NARROW = {VALIDATED_ITERATION: "at"}


# In a terminal --------------------------------------------------------------------------------


class _TerminalReporter(TuneTerminalReporter):
    """Tune's own, which tells of validations, too."""

    source: Source
    #: What the header calls the scheduler; None for what Tune would.
    scheduler: str | None = None

    @classmethod
    def take_over(
        cls, reporter: TuneTerminalReporter, source: Source, scheduler: str | None = None
    ) -> _TerminalReporter:
        """Let a reporter be one of these: Tune makes it itself, and takes no other."""
        reporter.__class__ = cls
        reporter.source = source
        reporter.scheduler = scheduler
        return reporter

    def experiment_started(self, *args: Any, **about: Any) -> None:
        """Print what the sweep is made of, with the user's scheduler, not the one around it."""
        if self.scheduler is not None and "scheduler_str" in about:
            about["scheduler_str"] = self.scheduler
        super().experiment_started(*args, **about)

    @property
    def prints(self) -> bool:
        """Return whether it prints anything while trials run."""
        return bool(self.verbosity >= self._heartbeat_threshold)

    def say(self, text: str) -> None:
        """Print a line of its own."""
        self._start_block("validations")
        print(text)

    def _get_heartbeat(
        self, trials: list[Trial], *sys_args: str, force_full_output: bool = False
    ) -> tuple[list[str], _TrialTableData]:
        lines, _ = super()._get_heartbeat(_scored(self.source, trials), *sys_args)
        status, *rest = lines
        lines = [status, *self.source.progress(), *rest]
        shown, width = _tabled(self.source, trials), terminal_width()
        metrics = list(_metric_columns(self.source, trials, most=4))

        def table_without(left_out: Collection[str]) -> _TrialTableData:
            found = self._table(shown, metrics, left_out, all_rows=force_full_output)
            return _narrower(found)

        table = self._table(shown, metrics, (), all_rows=force_full_output)
        if width is None or _width_of(table) <= width:
            return lines if width is None else _within(lines, width), table
        most = [f"metric {name}" for name in _least_first(self.source, metrics)]
        own_space = [f"config {name}" for name in reversed(self._inferred_params)]
        last = [f"metric {name}" for name in (TRAINING_ITERATION, VALIDATED_ITERATION)]
        order = [*most, *own_space, *(name for name in last if name[7:] in metrics)]
        left_out = giving_way(order, lambda without: _width_of(table_without(without)) <= width)
        table = table_without(left_out)
        _shorten_names(table, _width_of(table) - width)
        known = {name for trial in shown for name in flatten(trial.last_result)}
        names = [
            DEFAULT_COLUMNS.get(name, name)
            for kind, _, name in (column.partition(" ") for column in left_out)
            if kind == "config" or name in known
        ]
        if names:
            lines.append(f"No room for: {', '.join(names)}")
        return _within(lines, width), table

    def _table(
        self,
        trials: Sequence[Any],
        metrics: Sequence[str],
        left_out: Collection[str],
        *,
        all_rows: bool,
    ) -> _TrialTableData:
        """Return the table, with the validated columns first, without those that are left out."""
        params = [name for name in self._inferred_params if f"config {name}" not in left_out]
        columns = [name for name in metrics if f"metric {name}" not in left_out]
        table = _get_trial_table_data(
            trials,
            param_keys=params,
            metric_keys=columns,
            all_rows=all_rows,
            wrap_headers=self._wrap_headers,
        )
        own = sum(name in columns for name in _own_columns(self.source))
        move = _mover(2, len(params), own if trials else 0)
        table.header = move(table.header)
        for part in table.data:
            part.trial_infos = [move(row) for row in part.trial_infos]
        return table


def _least_first(source: Source, metrics: Sequence[str]) -> list[str]:
    """Return the metrics that give way for lack of room before hyperparameters do.

    First those that were found in reports, then those that Tune shows of any sweep. Not among them
    are those that are judged by, and how far trials and their scores are.
    """
    stay = {*_own_columns(source), TRAINING_ITERATION}
    may_go = [name for name in reversed(metrics) if name not in stay]
    return sorted(may_go, key=lambda name: name in DEFAULT_COLUMNS)


def _narrower(table: _TrialTableData) -> _TrialTableData:
    """Let the column whose heading is far wider than its numbers have a shorter one."""
    table.header = [_NARROW.get(title, title) for title in table.header]
    return table


def _width_of(table: _TrialTableData) -> int:
    """Return how wide a table is as Tune prints it."""
    rows = [row for part in table.data for row in part.trial_infos]
    printed = tabulate(rows, headers=table.header, tablefmt=AIR_TABULATE_TABLEFMT, showindex=False)
    return max(map(len, printed.splitlines()), default=0)


def _shorten_names(table: _TrialTableData, by: int) -> None:
    """Cut the beginnings of trials' names, which are alike, so that the longest is shorter by so
    much."""
    rows = [row for part in table.data for row in part.trial_infos]
    most = max((len(row[0]) for row in rows), default=0) - by
    if by > 0 and most > 1:
        for row in rows:
            row[0] = row[0] if len(row[0]) <= most else f"…{row[0][1 - most :]}"


def _within(lines: Iterable[str], width: int) -> list[str]:
    return [part for line in lines for part in wrapped(line, width)]


def _mover(at: int, before: int, moved: int) -> Callable[[list[Any]], list[Any]]:
    """Return what moves a row's cells to the position ``at``, from behind the ``before`` next
    ones."""

    def move(row: list[Any]) -> list[Any]:
        start = at + before
        return [*row[:at], *row[start : start + moved], *row[at:start], *row[start + moved :]]

    return move


# In a notebook, and with RAY_AIR_NEW_OUTPUT=0 ---------------------------------------------------


class _ShowsValidations:
    """What tunekit's reporters have that Tune's have not; :class:`Source` tells what to show.

    How the validations stand is in the scheduler's summary, which every reporter gets.
    """

    source: Source

    def _with_columns(self, trials: list[Trial]) -> list[Any]:
        self._metrics_override = True
        self._metric_columns = _metric_columns(self.source, trials, most=3)
        return _tabled(self.source, trials)

    def _current_best_trial(self, trials: list[Any]) -> Any:
        scored = _scored(self.source, [getattr(one, "trial", one) for one in trials])
        return super()._current_best_trial(scored)  # type: ignore[misc]

    def _progress_str(self, trials: list[Trial], done: bool, *sys_info: str, **form: Any) -> str:
        shown = self._with_columns(trials)
        return str(super()._progress_str(shown, done, *sys_info, **form))  # type: ignore[misc]

    def _progress_html(self, trials: list[Trial], done: bool, *sys_info: str) -> str:
        shown = self._with_columns(trials)
        return str(super()._progress_html(shown, done, *sys_info))  # type: ignore[misc]


class _CLIReporter(_ShowsValidations, CLIReporter):
    pass


class _NotebookReporter(_ShowsValidations, JupyterNotebookReporter):
    pass


def _reporter(source: Source, verbose: Any) -> ProgressReporter:
    """The reporter that Tune would make, with validations."""
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
    run_config: tune.RunConfig, source: Source, scheduler: TrialScheduler | None = None
) -> Iterator[Display]:
    """Let a sweep be reported with its validations, as long as it runs.

    A reporter that the user has passed remains the one that reports.

    Args:
        run_config: The sweep's; changed meanwhile.
        source: What to show.
        scheduler: The user's scheduler, if it is known.
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
    """What shows a sweep while it runs.

    Args:
        source: What to show of its validations.
        reporter: The reporter that Tune was given; None where it prints by its own callback.
        run_config: The sweep's, if it is known: Tune puts that callback into it.
        scheduler: What the user's scheduler is called, if it is known.
    """

    def __init__(
        self,
        source: Source,
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
        """Let Tune's header name the user's scheduler; to be called before Tune prints it."""
        own = self._run_config
        self._take_over([] if own is None else own.callbacks or [])

    def _take_over(self, callbacks: Iterable[Any]) -> None:
        for callback in callbacks:
            if isinstance(callback, TuneTerminalReporter):
                own = (self._source, self._scheduler)
                self._terminal = _TerminalReporter.take_over(callback, *own)

    def attach(self, controller: Controller) -> None:
        """Get to know the sweep: from now on its validations are shown, too."""
        self._controller = controller
        self._take_over(controller.callbacks)
        for callback in controller.callbacks:
            if isinstance(callback, TrialProgressCallback):
                # It prints the metric with each report, which has none: "accuracy=-99.00".
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
        """Show the sweep as it is, if the last time is long enough ago; Tune does, in each step.

        Args:
            news: A line to show now.

        Returns:
            Whether anything is shown to the user, now or soon.
        """
        controller = self._controller
        if controller is None or not self.shows:
            return False
        trials = controller.trials
        if self._terminal is not None:
            if news is not None:
                self._terminal.say(news)
            self._terminal.print_heartbeat(trials, controller.used_resources)
        elif self._reports(controller, trials):
            self._reporter.report(trials, False, controller.summary, controller.used_resources)
        return True

    def _reports(self, controller: Controller, trials: list[Trial]) -> bool:
        """Return whether the reporter is to report now; one of the user's class, not before a
        step."""
        set_up = isinstance(self._reporter, TuneReporterBase) or controller.begun
        return set_up and bool(self._reporter.should_report(trials))


def _add_columns(reporter: TuneReporterBase, names: Iterable[str]) -> None:
    """Add metrics to what a user's reporter shows; whatever it infers by itself stays."""
    infers_none = reporter._metrics_override
    reporter._metric_columns = copy(reporter._metric_columns)
    for name in names:
        if name not in reporter._metric_columns:
            reporter.add_metric_column(name)
    reporter._metrics_override = infers_none
