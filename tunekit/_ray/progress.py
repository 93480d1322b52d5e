"""Add validations to Tune's progress output in a terminal or notebook.

Tune has two kinds of output. In a terminal, its own callback prints tables
(``ray.tune.experimental.output``). In a notebook, or with ``RAY_AIR_NEW_OUTPUT=0``, a
``ProgressReporter`` does this, and also prints the scheduler's summary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.experimental.output import (
    TuneTerminalReporter,
    _infer_user_metrics,
    _TrialTableData,
    get_air_verbosity,
)
from ray.tune.progress_reporter import IS_NOTEBOOK, TuneReporterBase, _detect_reporter
from ray.tune.utils.log import set_verbosity

from tunekit._ray.compat import become
from tunekit._ray.controller import Controller
from tunekit.core.metrics import VALIDATED_AT, is_reserved
from tunekit.core.state import State

# The metrics among which Tune looks for four to show; it counts those that are not shown, too.
_MOST_INFERRED = 100


class ProgressSource(Protocol):
    """Supply the status of a sweep's validations."""

    engine: State  #: the state of the sweep

    def progress(self) -> list[str]:
        """Return the status of the validations, line by line."""


def show(source: ProgressSource, controller: Controller, reporter: TuneReporterBase | None) -> None:
    """Show the status of validations, and the columns of validated metrics.

    Args:
        source: Supplies the status.
        controller: The sweep's controller.
        reporter: Tune's own reporter in a notebook.
    """
    for callback in controller.callbacks:
        if isinstance(callback, TuneTerminalReporter):
            become(callback, _TerminalReporter)  # Tune always creates its own reporter
            callback.source = source
    if reporter is not None:
        for name in _columns(source):
            reporter.add_metric_column(name)


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


def _columns(source: ProgressSource) -> list[str]:
    """Return the columns for validation, in order."""
    return [*sorted(source.engine.required), VALIDATED_AT]


class _TerminalReporter(TuneTerminalReporter):
    """Tune's own reporter, which also shows validations."""

    source: ProgressSource

    def _get_heartbeat(
        self, trials: list[Trial], *sys_args: Any, force_full_output: bool = False
    ) -> tuple[list[str], _TrialTableData]:
        own = _columns(self.source)
        inferred = _infer_user_metrics(trials, _MOST_INFERRED)
        others = [name for name in inferred if name not in own and not is_reserved(name)]
        self._inferred_metric = own + others[:4]
        (status, *rest), table = super()._get_heartbeat(
            trials, *sys_args, force_full_output=force_full_output
        )
        return [status, *self.source.progress(), *rest], table
