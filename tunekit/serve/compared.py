"""Sweeps that are served, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunekit.comparison import compare
from tunekit.core.comparison import distinct_names
from tunekit.follower import Follower
from tunekit.page.side_by_side import comparison_page
from tunekit.serve.catalogue import Place

__all__ = ["compared"]


def compared(places: Sequence[Place], options: Mapping[str, Any], live: Mapping[str, Any]) -> str:
    """Return the page that compares sweeps, as HTML.

    Args:
        places: The sweeps.
        options: The metric, mode and seed, as for :func:`tunekit.load`.
        live: As for :func:`~tunekit.page.page.shell`.

    Raises:
        tunekit.ConfigError: If they cannot be compared: see :func:`tunekit.compare`.
        tunekit.JournalError: If a journal is damaged.
        OSError: If a storage fails.
    """
    sweeps = []
    for place in places:
        follower = Follower(place.filesystem, place.path, place.source, **options)
        follower.poll()
        sweeps.append(follower.sweep)
    names = distinct_names([place.source for place in places])
    goal = {"metric": options.get("metric"), "mode": options.get("mode")}
    found = compare(sweeps, **goal, names=names)
    links = {name: f"/sweeps/{one.key}" for name, one in zip(names, places, strict=True)}
    return comparison_page(found, links, live)
