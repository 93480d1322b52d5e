"""Names of metrics in messages: those that a user chose, the most similar first."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tunekit.core.validation import RESERVED

#: The names that Tune and tunekit add to every report.
FILLED_IN = RESERVED | {
    "checkpoint_dir_name",
    "date",
    "episodes_this_iter",
    "episodes_total",
    "experiment_id",
    "experiment_tag",
    "hostname",
    "iterations_since_restore",
    "node_ip",
    "pid",
    "reported_at",
    "time_since_restore",
    "time_this_iter_s",
    "timesteps_since_restore",
    "timesteps_this_iter",
    "timesteps_total",
    "trainable_name",
}


def chosen(names: Iterable[str]) -> list[str]:
    """Return the names that are not filled in by Tune or tunekit, sorted.

    Example:
        >>> chosen(["pid", "loss", "config/lr", "training_iteration", "config", "eval/acc"])
        ['eval/acc', 'loss']
    """
    return sorted(n for n in names if n not in FILLED_IN and not n.startswith("config/"))


def meant(wanted: str, names: Iterable[str]) -> str | None:
    """Return the name that was probably meant; None if none is similar.

    Example:
        >>> meant("acuracy", ["loss", "accuracy"]), meant("f1", ["loss", "accuracy"])
        ('accuracy', None)
        >>> meant("accuracy", ["loss", "eval/accuracy"])
        'eval/accuracy'
    """
    known = sorted(names)
    near = difflib.get_close_matches(wanted, known, n=1)
    if near:
        return near[0]
    last = wanted.rsplit("/", 1)[-1]
    return next((name for name in known if name.rsplit("/", 1)[-1] == last), None)


def listed(names: Iterable[str], wanted: Iterable[str] = ()) -> str:
    """Return names as a list for messages, with those similar to ``wanted`` first.

    Example:
        >>> listed(["a", "loss", "accuracy"], ["acuracy"]), listed([])
        ("'accuracy', 'a', 'loss'", 'nothing')
    """
    known = sorted(names)
    near = [name for one in wanted for name in difflib.get_close_matches(one, known, n=3)]
    return ", ".join(map(repr, dict.fromkeys([*near, *known]))) or "nothing"
