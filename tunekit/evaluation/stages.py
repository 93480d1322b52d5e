"""The further stages of a sweep: evaluations of the checkpoints that its events make due."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ray import tune
from ray.tune.experiment import Trial

from tunekit.clock import Clock
from tunekit.core.commands import Command
from tunekit.core.engine import Engine, Input
from tunekit.core.events import Event
from tunekit.core.stages import StageState
from tunekit.core.validation import Pending, Request, Status
from tunekit.evaluation.evaluation import Evaluation, Source
from tunekit.scheduling.waiting import Waiting
from tunekit.stage import Stage
from tunekit.validating.cache import ValidationCache
from tunekit.validating.executor import Executor
from tunekit.validating.validator import Validator

__all__ = ["Stages"]


class Stages:
    """Runs the further stages beside the first, with the resources that it leaves.

    They follow the events of the sweep, which knows nothing of them: it keeps the checkpoints that
    they say, and shows what they find. Their own events are in the sweep's journal, so that one
    order holds for all, and a restore that reads it knows what they knew.

    Args:
        first: Runs the validations that schedulers judge by.
        stages: The further stages. Earlier ones go first.
        executors: Where their validations run, by name.
        clock: What to read the time from.
        sweep: What is known of the sweep.
        trials: Its trials; others may be added.
        waiting: Says what trials wait for, and which are to come. A stage that takes the same as a
            trial that has not begun waits for it: what it took meanwhile would delay that.
        emit: Called with each event, before it is acted on.
        cache: As of :class:`~tunekit.validating.validator.Validator`.
    """

    def __init__(
        self,
        first: Validator,
        stages: Sequence[Stage],
        executors: Mapping[str, Executor],
        clock: Clock,
        *,
        sweep: Engine,
        trials: Mapping[str, Trial],
        waiting: Waiting,
        emit: Callable[[Event], None],
        cache: ValidationCache | None = None,
    ):
        self._all = [first]
        self._further: dict[str, Evaluation] = {}
        #: What each has to validate, and what came of it, by name.
        self.states: dict[str, StageState] = {}
        for stage in stages:
            state = self.states[stage.name] = StageState(stage.name, stage.every, sweep)
            source = _Sweep(stage, state, trials, waiting, list(self._all))
            further = Evaluation(
                stage, executors[stage.name], clock, source, emit=emit, cache=cache
            )
            self._all.append(further)
            self._further[stage.name] = further

    # What happens in the sweep ------------------------------------------------------------------

    def apply(self, event: Input) -> list[Command]:
        """Apply an event that the sweep has; return which checkpoints to keep, and what to show."""
        return [command for state in self.states.values() for command in state.apply(event)]

    def ask(self) -> None:
        """Request the validations that are owed."""
        for further in self._further.values():
            further.ask()

    def resume(self) -> None:
        """Validate what former sessions have left, once all that happened in them is applied."""
        for name, further in self._further.items():
            if self.states[name].counts[Status.VALIDATED]:
                further.succeeded()
            further.resume()

    def drop(self, trial_id: str, reason: str) -> None:
        """Give up all validations of a trial."""
        for validator in self._all:
            validator.drop(trial_id, reason)

    # What becomes of the validations ------------------------------------------------------------

    @property
    def resources(self) -> dict[str, dict[str, float]]:
        """Return what one validation of each further stage takes, by the stage's name."""
        return {name: further.resources for name, further in self._further.items()}

    @property
    def idle(self) -> bool:
        """Return whether every validation of all stages has ended."""
        return all(validator.idle for validator in self._all)

    def poll(self, *, at_once: bool = False) -> None:
        """Check what has become of the validations, and start those that may run."""
        for validator in self._all:
            validator.poll(at_once=at_once)

    def statuses(self) -> list[Pending]:
        """Return how far each request that has not ended has come."""
        return [pending for validator in self._all for pending in validator.statuses()]

    def awaited(self) -> Collection[Any]:
        """Return references to Ray objects; once one is ready, a :meth:`poll` is worthwhile."""
        return [reference for validator in self._all for reference in validator.awaited()]

    def summary(self, name: str) -> dict[str, int]:
        """Return how many of a further stage ended in each way, run, start, or wait to start."""
        ended = {status.value: self.states[name].counts[status] for status in Status}
        return {**ended, **self._further[name].counts()}

    def check_ray_with(self, check: Callable[[], None]) -> None:
        """Call ``check``, which raises if Ray itself is gone, before recording a failure."""
        for validator in self._all:
            validator.check_ray = check

    def close(self) -> None:
        """Cancel what has not ended; it stays pending until the sweep is restored."""
        for validator in self._all:
            validator.close()

    def free(self) -> None:
        """Give back what is kept for validations: nothing more will run."""
        for validator in self._all:
            validator.free()

    def conclude(self) -> None:
        """Log at the sweep's end the failures that were only counted."""
        for further in self._further.values():
            further.conclude()


class _Sweep(Source):
    """A sweep as a source: what a stage owes by its events. Trials and earlier stages go first."""

    def __init__(
        self,
        stage: Stage,
        state: StageState,
        trials: Mapping[str, Trial],
        waiting: Waiting,
        earlier: Sequence[Validator],
    ):
        super().__init__()
        self._task, self._state, self._trials = stage.task_config, state, trials
        self._waiting, self._earlier = waiting, earlier

    def wanted(self) -> list[Request]:
        """Return what is owed, and is not requested."""
        return [self._callable(request) for request in self._state.owed.values()]

    def unfinished(self) -> list[Request]:
        """Return what was requested, and has not ended."""
        return [self._callable(request) for request in self._state.unfinished.values()]

    def _callable(self, request: Request) -> Request:
        """Return a request with the arguments of its stage: what a report says is for the first."""
        filesystem = self._trials[request.trial_id].storage.storage_filesystem
        return replace(
            request,
            checkpoint=tune.Checkpoint(request.path, filesystem),
            kwargs=self._task.fn_kwargs or {},
            timeout_s=self._task.timeout_s,
        )

    def promised(self) -> Iterator[Mapping[str, float]]:
        """Yield the resources of trials and of validations of earlier stages that wait for them."""
        yield from self._waiting.promised()
        for validator in self._earlier:
            yield from validator.wanted()
        if self.waits_for_room():
            yield from self._waiting.to_come()

    def waits_for_room(self) -> bool:
        """Return whether others than further stages are waited for.

        In the end one is started whether or not anything is free.
        """
        return not (self._waiting.over() and self._earlier[0].idle)
