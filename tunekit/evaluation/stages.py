"""Run the further stages of a sweep, which evaluate checkpoints as its events arrive."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ray import tune
from ray.tune.experiment import Trial

from tunekit.core.engine import Engine
from tunekit.core.failures import HOPELESS
from tunekit.core.pool import Pool
from tunekit.core.signatures import name_of
from tunekit.core.stages import StageState
from tunekit.core.validation import Outcome, Request, Status
from tunekit.evaluation.evaluation import Evaluation, Source
from tunekit.scheduling.waiting import Waiting
from tunekit.stage import Stage
from tunekit.validating.executor import Executor
from tunekit.validating.validator import Launch, Validator

logger = logging.getLogger(__name__)


class StageEvaluation(Evaluation):
    """Run a further stage of a sweep, driven by its events; no decision depends on the results.

    The sweep only keeps the checkpoints that a stage needs, and shows its results. The events of a
    stage are in the sweep's journal, so all events have one order, and a restore recovers the
    stage's state from the journal.

    Args:
        stage: The user's settings.
        *where: As for :class:`~tunekit.validating.validator.Validator`.
        engine: The state of the sweep.
        trials: Its trials; more may be added.
        earlier: The validators with priority: the sweep's own, and those of earlier stages.
        **options: As for :class:`~tunekit.evaluation.evaluation.Evaluation`.
    """

    def __init__(
        self,
        stage: Stage,
        *where: Any,
        engine: Engine,
        trials: Mapping[str, Trial],
        earlier: Sequence[Validator],
        **options: Any,
    ):
        #: The checkpoints to validate, and the results.
        self.state = StageState(stage.name, stage.every, engine)
        self._sweep = _Sweep(stage, self.state, trials, earlier)
        super().__init__(stage, *where, source=self._sweep, **options)
        self._of = f"Stage {stage.name!r}: "

    def follow(self, waiting: Waiting) -> None:
        """Set the source of the resources that waiting and future trials need; none until then.

        A stage that needs the same resources as a trial that has not begun waits for that trial;
        otherwise, it would delay the trial.
        """
        self._sweep.waiting = waiting

    def resume(self) -> None:
        """Run the validations that earlier sessions left, once their events are applied."""
        if self.state.backlog.counts[Status.VALIDATED]:
            self.succeeded()
        self.ask(again=True)

    def summary(self) -> dict[str, int]:
        """Return the number of validations by outcome, and by state for those in progress."""
        ended = {status.value: self.state.backlog.counts[status] for status in Status}
        return {**ended, **self.counts()}

    def given_up(self, outcome: Outcome) -> None:
        """Log that the stage is abandoned and the sweep continues."""
        logger.error(
            "%sit %s. The first %d validations failed alike, and none succeeded, so the sweep "
            "continues without this stage. Fix %s, and use it later with `tunekit validate`.%s",
            self._of,
            outcome.reason or "failed",
            HOPELESS,
            name_of(self._fn),
            f"\n{outcome.error}" if outcome.error else "",
        )


class _Sweep(Source):
    """Supply the validations that are due in a stage, after trials and earlier stages."""

    waiting: Waiting

    def __init__(
        self,
        stage: Stage,
        state: StageState,
        trials: Mapping[str, Trial],
        earlier: Sequence[Validator],
    ):
        super().__init__()
        self._task, self._state, self._trials = stage.task_config, state, trials
        self._earlier = earlier

    def wanted(self) -> list[Request]:
        """Return the requests that are due and have not been submitted."""
        return [self._callable(request) for request in self._state.backlog.owed.values()]

    def unfinished(self) -> list[Request]:
        """Return the requests that were submitted and have not ended."""
        return [self._callable(request) for request in self._state.backlog.unfinished.values()]

    def _callable(self, request: Request) -> Request:
        """Return a request with the stage's arguments, not those in the report."""
        filesystem = self._trials[request.trial_id].storage.storage_filesystem
        return replace(
            request,
            checkpoint=tune.Checkpoint(request.path, filesystem),
            kwargs=self._task.fn_kwargs or {},
            timeout_s=self._task.timeout_s,
        )

    def start(self, pool: Pool, executor: Executor, now: float) -> Iterator[Launch]:
        """Yield launches on resources that trials and earlier stages do not need.

        Once nothing else is left, one is launched even if no resources are free.
        """
        waits = not (self.waiting.over() and self._earlier[0].idle)
        capacity = executor.capacity(self._promised(waits)) if pool.needs_capacity else 0
        yield pool.start(capacity, now, waits=waits), {}

    def _promised(self, waits: bool) -> Iterator[Mapping[str, float]]:
        """Yield the resources of trials and of validations of earlier stages that wait for them."""
        yield from self.waiting.controller.promised()
        for validator in self._earlier:
            yield from validator.wanted()
        if waits:
            yield from self.waiting.to_come()
