"""The best configuration over its seeds: as data, which JSON knows, and as text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tunekit.core.seeds import Ending, compare
from tunekit.core.words import (
    comparison_in_words,
    configuration_names,
    mean_in_words,
    number,
    setting,
)
from tunekit.reading.sweep import Sweep

__all__ = ["seeds_as_data", "seeds_as_lines"]

# So many seeds are listed; all are in the data.
_MOST = 20
_ENDINGS = {
    Ending.COMPLETE: "",
    Ending.STOPPED: ", stopped early",
    Ending.UNFINISHED: ", did not run its course",
}


def seeds_as_data(sweep: Sweep) -> dict[str, Any]:
    """Return what ``tunekit best --json`` says of the best configuration, and of the next.

    Args:
        sweep: A sweep whose seed is known, with at least one score.
    """
    best, *others = sweep.ranked_configurations()
    found = compare(best, others[0]) if others else None
    following = found and {**asdict(others[0]), **asdict(found), "apart": found.apart}
    return {"seed_param": sweep.seed_param, "configuration": asdict(best), "next": following}


def seeds_as_lines(sweep: Sweep) -> list[str]:
    """Return the same as a person reads it."""
    ranked = sweep.ranked_configurations()
    best, seed = ranked[0], str(sweep.seed_param)
    lines = [] if best.estimate is None else [f"  mean {mean_in_words(best.estimate)}"]
    for place, one in enumerate(best.repeats[:_MOST]):
        value = number(one.value, "no score")
        own = setting(one.hyperparameters.get(seed))
        left_out = "" if place < best.counted else ", not part of the mean"
        lines.append(
            f"  {seed} {own}: {value}, trial {one.trial_id}{_ENDINGS[one.ending]}{left_out}"
        )
    if len(best.repeats) > _MOST:
        lines.append(f"  and {len(best.repeats) - _MOST} more: --json has all")
    comparison = compare(best, ranked[1]) if len(ranked) > 1 else None
    if comparison is not None:
        name = configuration_names([one.hyperparameters for one in ranked])[1]
        lines.append(f"  The next configuration, {name}, is {comparison_in_words(comparison)}.")
    return lines
