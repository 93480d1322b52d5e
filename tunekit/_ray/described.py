"""What a scheduler or a search algorithm was made with, as far as its attributes tell."""

from __future__ import annotations

from typing import Any

from ray.tune.search import SearchAlgorithm, SearchGenerator

__all__ = ["described", "innermost_searcher"]

_PLAIN = (bool, int, float, str)


def described(thing: Any) -> dict[str, Any]:
    """The type of a scheduler or searcher, and its plain settings.

    What it counts while it runs is among them, as it was then: from outside, the one cannot be told
    from the other.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler
        >>> known = described(ASHAScheduler(max_t=27))
        >>> known["type"], known["settings"]["max_t"]
        ('AsyncHyperBandScheduler', 27)
    """
    settings = {
        name.strip("_"): value
        for name, value in sorted(vars(thing).items())
        if isinstance(value, _PLAIN)
    }
    return {"type": type(thing).__name__, "settings": settings}


def innermost_searcher(search_alg: SearchAlgorithm) -> Any:
    """What suggests configurations, inside of what limits, repeats or hands them on."""
    found: Any = search_alg
    while isinstance(found, SearchGenerator) or hasattr(found, "searcher"):
        found = found.searcher
    return found
