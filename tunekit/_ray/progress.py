"""Add validations to Tune's progress output in a terminal or notebook.

Tune has two kinds of output. In a terminal, its own callback prints tables
(``ray.tune.experimental.output``). In a notebook, or with ``RAY_AIR_NEW_OUTPUT=0``, a
``ProgressReporter`` does this, and also prints the scheduler's summary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.experimental import output
from ray.tune.experimental.output import (
    TuneTerminalReporter,
    _infer_user_metrics,
    _TrialTableData,
    get_air_verbosity,
)
from ray.tune.progress_reporter import (
    IS_NOTEBOOK,
    ProgressReporter,
    TuneReporterBase,
    _detect_reporter,
)
from ray.tune.utils.log import set_verbosity

from tunekit._ray.compat import become, overriding
from tunekit.core.metrics import is_reserved

# The metrics among which Tune looks for four to show; it counts those that are not shown, too.
_MOST_INFERRED = 100


def show(
    progress: Callable[[], list[str]],
    columns: Sequence[str],
    callbacks: Iterable[Any],
    reporter: TuneReporterBase | None,
) -> None:
    """Show the status of validations, and the columns of validated metrics.

    Args:
        progress: Returns the status of the validations, line by line.
        columns: The columns for validation, in order.
        callbacks: The sweep's callbacks.
        reporter: Tune's own reporter in a notebook.
    """
    for callback in callbacks:
        if isinstance(callback, TuneTerminalReporter):
            become(callback, _TerminalReporter)  # Tune always creates its own reporter
            callback.progress, callback.columns = progress, columns
    if reporter is not None:
        for name in columns:
            reporter.add_metric_column(name)


def is_notebook() -> bool:
    """Return whether this process runs a notebook."""
    return bool(IS_NOTEBOOK)


@contextlib.contextmanager
def silenced(run_config: tune.RunConfig) -> Iterator[None]:
    """Let Tune print nothing about a sweep; whether it prints to a terminal or a notebook.

    Args:
        run_config: The sweep's configuration, whose verbosity is 0 meanwhile.
    """
    own = {"_detect_reporter": lambda verbosity, **known: _SilentReporter(verbosity)}
    reporter = _NoReporter() if IS_NOTEBOOK else run_config.progress_reporter
    with (
        overriding(run_config, verbose=0, progress_reporter=reporter),
        overriding(output, **own),
    ):
        yield


class _NoReporter(ProgressReporter):
    """Tune's reporter in a notebook, which shows nothing."""

    def should_report(self, *known: Any, **named: Any) -> bool:
        """Return False."""
        return False


class _SilentReporter(TuneTerminalReporter):
    """Tune's own reporter, which prints nothing."""

    def experiment_started(self, *known: Any, **named: Any) -> None:
        """Print nothing."""

    def print_heartbeat(self, *known: Any, **named: Any) -> None:
        """Print nothing."""

    def on_trial_result(self, *known: Any, **named: Any) -> None:
        """Print nothing."""

    on_trial_complete = on_trial_error = on_trial_recover = on_trial_result
    on_checkpoint = on_trial_start = on_experiment_end = on_trial_result


@contextlib.contextmanager
def reporting(run_config: tune.RunConfig) -> Iterator[TuneReporterBase | None]:
    """Create the reporter that Tune would create itself; None if it needs none.

    Args:
        run_config: The sweep's configuration, which holds the reporter meanwhile.
    """
    prints_itself = not IS_NOTEBOOK and get_air_verbosity(run_config.verbose) is not None
    if prints_itself or run_config.progress_reporter is not None:
        yield None
        return
    set_verbosity(run_config.verbose)  # as Tune does before
    run_config.progress_reporter = reporter = _detect_reporter()
    try:
        yield reporter
    finally:
        run_config.progress_reporter = None


class _TerminalReporter(TuneTerminalReporter):
    """Tune's own reporter, which also shows validations."""

    progress: Callable[[], list[str]]
    columns: Sequence[str]

    def _get_heartbeat(
        self, trials: list[Trial], *sys_args: Any, force_full_output: bool = False
    ) -> tuple[list[str], _TrialTableData]:
        own = [*self.columns]
        inferred = _infer_user_metrics(trials, _MOST_INFERRED)
        others = [name for name in inferred if name not in own and not is_reserved(name)]
        self._inferred_metric = own + others[:4]
        (status, *rest), table = super()._get_heartbeat(
            trials, *sys_args, force_full_output=force_full_output
        )
        return [status, *self.progress(), *rest], table
