"""All stages of a sweep's validations: the one that schedulers judge by, and the further ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from tunekit.clock import Clock
from tunekit.core.calls import name_of
from tunekit.core.events import Event
from tunekit.core.failures import HOPELESS
from tunekit.core.validation import Outcome, Pending, Request
from tunekit.evaluation.evaluation import Evaluation
from tunekit.scheduling.waiting import Waiting
from tunekit.stage import Stage
from tunekit.validating.cache import ValidationCache
from tunekit.validating.executor import Executor
from tunekit.validating.validator import Around, Validator

__all__ = ["Stages"]

logger = logging.getLogger(__name__)


class Stages:
    """Runs the further stages beside the first, with the resources that it leaves.

    Args:
        first: Runs the validations that schedulers judge by.
        stages: The further stages. Earlier ones go first.
        executors: Where their validations run, by name.
        clock: What to read the time from.
        emit: Called with each event, before it is acted on.
        conclude: Called with each outcome of a further stage, to record it and to act on it.
        waiting: Says what trials wait for, and which are to come. A stage that takes the same as a
            trial that has not begun waits for it: what it took meanwhile would delay that.
        over: Returns whether only validations are left to wait for: then a further stage starts one
            whether or not anything is free.
        cache: As of :class:`~tunekit.validating.validator.Validator`.
    """

    def __init__(
        self,
        first: Validator,
        stages: Sequence[Stage],
        executors: Mapping[str, Executor],
        clock: Clock,
        *,
        emit: Callable[[Event], None],
        conclude: Callable[[Outcome], None],
        waiting: Waiting,
        over: Callable[[], bool],
        cache: ValidationCache | None = None,
    ):
        self._first, self._all = first, [first]
        self._further: dict[str, Evaluation] = {}
        self._stages = {stage.name: stage for stage in stages}
        options: dict[str, Any] = {"emit": emit, "conclude": conclude, "cache": cache}
        for name, stage in self._stages.items():
            around = _Beside(list(self._all), waiting, over)
            further = Evaluation(stage, executors[name], clock, around=around, **options)
            self._all.append(further)
            self._further[name] = further

    @property
    def resources(self) -> dict[str, dict[str, float]]:
        """Return what one validation of each further stage takes, by the stage's name."""
        return {name: further.resources for name, further in self._further.items()}

    @property
    def idle(self) -> bool:
        """Return whether every validation of all stages has ended."""
        return all(validator.idle for validator in self._all)

    def task_config_of(self, stage: str) -> Any:
        """Return how a further stage is called, a ``ValidationTaskConfig``; None if it is gone."""
        return self._stages[stage].task_config if stage in self._stages else None

    def submit(self, request: Request) -> None:
        """Give a request that is in the journal to its stage."""
        if request.stage and request.stage not in self._further:
            reason = f"was not started: the settings have no stage {request.stage!r} any more"
            self._first.give_up(request, reason)
        else:
            self._further.get(request.stage, self._first).submit(request)

    def give_up(self, request: Request, reason: str) -> None:
        """End a request that cannot be run."""
        self._further.get(request.stage, self._first).give_up(request, reason)

    def drop(self, trial_id: str, reason: str) -> None:
        """Give up all validations of a trial."""
        for validator in self._all:
            validator.drop(trial_id, reason)

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

    def starved_s(self) -> float:
        """Return for how many seconds nothing that was started has got its resources; 0 if not."""
        busy = [validator for validator in self._all if not validator.idle]
        return min((validator.starved_s() for validator in busy), default=0.0)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return, by further stage, how many validations run, start, or wait to be started."""
        return {name: further.counts() for name, further in self._further.items()}

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

    def note_failure(self, outcome: Outcome, *, succeeded: bool) -> None:
        """Log, or count, a failure in a further stage; give the stage up if it is broken.

        Args:
            outcome: The failure.
            succeeded: Whether any validation of the stage has succeeded.
        """
        name, further = outcome.request.stage, self._further.get(outcome.request.stage)
        if further is None:
            return
        if succeeded:
            further.succeeded()
        if further.failed(outcome):
            logger.error(
                "Stage %r: it %s. Its first %d validations have failed alike, and none has "
                "succeeded: the stage is given up, and the sweep continues without it. Correct %s, "
                "and run `tunekit validate` for it.%s",
                name,
                outcome.reason or "failed",
                HOPELESS,
                name_of(self._stages[name].fn),
                f"\n{outcome.error}" if outcome.error else "",
            )


class _Beside(Around):
    """What a further stage leaves to others."""

    def __init__(
        self,
        earlier: Sequence[Validator],
        waiting: Waiting,
        over: Callable[[], bool],
    ):
        self._earlier, self._waiting, self._over = earlier, waiting, over

    def promised(self) -> Iterator[Mapping[str, float]]:
        """Yield the resources of trials and of validations of earlier stages that wait for them."""
        yield from self._waiting.promised()
        for validator in self._earlier:
            yield from validator.wanted()
        if not self._over():
            yield from self._waiting.to_come()

    def waits_for_room(self) -> bool:
        """Return whether others than further stages are waited for."""
        return not self._over()
