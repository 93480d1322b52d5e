"""The cost of a sweep: hours of CPU and GPU, by use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from tunekit.core.events import (
    AttemptBegan,
    AttemptFailed,
    Event,
    SlotReleased,
    SlotTaken,
    ValidationEnded,
    Waited,
)

#: The uses of resources.
KINDS = ("training", "validation", "waiting")
#: The resources that are counted.
RESOURCES = ("CPU", "GPU")

_Amounts = Mapping[str, float]


@dataclass
class _Slot:
    """The resources of a trial.

    Attributes:
        resources: Its current or last resources.
        held: Whether the trial holds them.
        hosted: The validations that run in the trial's process.
        since: The time up to which it is accounted for.
        unsettled: The intervals held since the trial last waited for a score, with the resources.
            How long a trial waited is only known afterwards.
    """

    resources: _Amounts = field(default_factory=dict)
    held: bool = False
    hosted: set[str] = field(default_factory=set)
    since: float = 0.0
    unsettled: list[tuple[float, float, _Amounts]] = field(default_factory=list)


class Cost:
    """Adds up the resources that trials and validations held, event by event.

    A trial holds its slot from getting its resources until it pauses or ends. Its time counts as
    ``waiting`` while it waits for a score, as ``validation`` while a validation runs in its
    process, and otherwise as ``training``, including its start and its saves. Elsewhere, an attempt
    holds the resources of its task while it runs, even if it fails.

    Example:
        >>> cost = Cost()
        >>> for event in (
        ...     SlotTaken(time=0.0, trial_id="a", resources={"CPU": 2.0}),
        ...     AttemptBegan(time=3600.0, id="a:0:1:1", attempt=1, resources={"CPU": 1.0}),
        ...     ValidationEnded(time=5400.0, id="a:0:1:1", status="validated"),
        ...     Waited(time=5400.0, trial_id="a", seconds=900.0),
        ...     SlotReleased(time=5400.0, trial_id="a"),
        ... ):
        ...     cost.take(event)
        >>> cost.hours()["CPU"]
        {'training': 2.5, 'validation': 0.5, 'waiting': 0.5}
    """

    def __init__(self) -> None:
        self._last = 0.0
        self._slots: dict[str, _Slot] = defaultdict(_Slot)
        # The attempts that run elsewhere: the trial, the time up to which they are accounted for,
        # and their resources.
        self._running: dict[str, tuple[str, float, _Amounts]] = {}
        # By trial: seconds times amount.
        self._held: dict[str, dict[tuple[str, str], float]] = {}

    def take(self, event: Event) -> None:
        """Record an event."""
        self._last = now = event.time
        match event:
            case SlotTaken() | SlotReleased():
                slot = self._pass(event.trial_id, now)
                slot.held = isinstance(event, SlotTaken)
                if isinstance(event, SlotTaken):
                    slot.resources = event.resources
            case AttemptBegan():
                if event.in_trial:
                    self._pass(event.trial_id, now).hosted.add(event.id)
                else:
                    self._running[event.id] = (event.trial_id, now, event.resources)
            case AttemptFailed() | ValidationEnded():
                self._count_running(event.id, now)
                self._running.pop(event.id, None)
                if event.id in self._slots[event.trial_id].hosted:
                    self._pass(event.trial_id, now).hosted.discard(event.id)
            case Waited():
                slot, since = self._pass(event.trial_id, now), now - event.seconds
                for begin, end, held in slot.unsettled:
                    self._add(event.trial_id, "training", min(end, since) - begin, held)
                    self._add(event.trial_id, "waiting", end - max(begin, since), held)
                slot.unsettled.clear()

    def close(self) -> None:
        """End a session: nothing has been held since its last event."""
        self._pass_all()
        self._running.clear()
        for slot in self._slots.values():
            slot.held = False
            slot.hosted.clear()

    def hours(self, trial_id: str | None = None) -> dict[str, dict[str, float]]:
        """Return the hours of CPU and GPU until the last event, by use.

        Args:
            trial_id: The trial, with its validations; None: all.
        """
        self._pass_all()
        found: dict[tuple[str, str], float] = defaultdict(float)
        for one in list(self._slots) if trial_id is None else [trial_id]:
            for key, seconds in self._held.get(one, {}).items():
                found[key] += seconds
            for begin, end, held in self._slots[one].unsettled:
                for name in RESOURCES:
                    found["training", name] += (end - begin) * held.get(name, 0.0)
        return {name: {kind: found[kind, name] / 3600 for kind in KINDS} for name in RESOURCES}

    def _pass_all(self) -> None:
        for attempt in self._running:
            self._count_running(attempt, self._last)
        for trial_id in self._slots:
            self._pass(trial_id, self._last)

    def _pass(self, trial_id: str, now: float) -> _Slot:
        """Account for a slot's time until now."""
        slot = self._slots[trial_id]
        since, slot.since = slot.since, now
        if slot.hosted:
            self._add(trial_id, "validation", now - since, slot.resources)
        elif slot.held and now > since:  # a clock may be put back
            slot.unsettled.append((since, now, slot.resources))
        return slot

    def _count_running(self, validation: str, now: float) -> None:
        """Account for an attempt's time until now, if it runs elsewhere."""
        if validation in self._running:
            trial_id, since, held = self._running[validation]
            self._add(trial_id, "validation", now - since, held)
            self._running[validation] = (trial_id, now, held)

    def _add(self, trial_id: str, kind: str, seconds: float, held: _Amounts) -> None:
        own = self._held.setdefault(trial_id, defaultdict(float))
        for name in RESOURCES:
            own[kind, name] += max(0.0, seconds) * held.get(name, 0.0)


def hours_in_words(hours: float) -> str:
    """Return hours with one digit after the point, or two digits, down to a third of a second.

    Example:
        >>> [hours_in_words(hours) for hours in (2e-9, 0.0123, 6.0, 1234.5)]
        ['0', '0.012', '6.0', '1,234.5']
    """
    return f"{hours:,.1f}" if hours >= 1 else f"{round(hours, 4):.2g}"


def cost_in_words(cost: Mapping[str, Mapping[str, float]]) -> str:
    """Return the result of :meth:`Cost.hours` in words; empty if nothing was held.

    Example:
        >>> cost_in_words({"CPU": {"training": 1.6, "validation": 0.4, "waiting": 0.1}, "GPU": {}})
        '2.1 CPU hours: training 1.6, validation 0.4, waiting 0.1'
    """
    return "; ".join(
        f"{hours_in_words(sum(of.values()))} {name} hours: "
        + ", ".join(f"{kind} {hours_in_words(hours)}" for kind, hours in of.items())
        for name, of in cost.items()
        if any(of.values())
    )
