"""The manual requests that a running sweep accepts, and when."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    """The state of a trial, as far as manual requests depend on it."""

    ACTIVE = "is not paused by hand"  #: it may wait, or be paused by its scheduler
    PAUSED = "is paused by hand"
    ENDED = "has ended"  #: or it has been stopped, and is about to end


#: The requests, and the states of trials that they apply to; an added trial has no state yet.
ACTIONS: Mapping[str, frozenset[State]] = {
    "stop": frozenset({State.ACTIVE, State.PAUSED}),
    "pause": frozenset({State.ACTIVE}),
    "continue": frozenset({State.PAUSED}),
    "add": frozenset(),
}
_PAST = {"stop": "stopped", "pause": "paused", "continue": "continued"}
_MOST_NAMED = 10


def refusal(action: str, trial_id: str, states: Mapping[str, State]) -> str:
    """Return why a trial cannot be stopped, paused or continued; empty if it can.

    Args:
        action: ``"stop"``, ``"pause"`` or ``"continue"``.
        trial_id: The trial.
        states: The state of each trial of the sweep.

    Example:
        >>> states = {"a": State.ACTIVE, "b": State.ENDED, "c": State.ACTIVE}
        >>> refusal("pause", "a", states)
        ''
        >>> refusal("stop", "b", states)
        'trial b has ended; trials that can be stopped: a, c'
        >>> refusal("continue", "a", states)
        'trial a is not paused by hand; trials that can be continued: none'
    """
    state = states.get(trial_id)
    if state in ACTIONS[action]:
        return ""
    why = "is not in this sweep" if state is None else state.value
    able = [one for one, known in states.items() if known in ACTIONS[action]]
    named = ", ".join(able[:_MOST_NAMED]) or "none"
    if len(able) > _MOST_NAMED:
        named += f" and {len(able) - _MOST_NAMED} more"
    return f"trial {trial_id} {why}; trials that can be {_PAST[action]}: {named}"
