"""Names of metrics: those that Tune and tunekit fill in, and those that a user chose."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: The key, in a report, of the number of times its trial had been overwritten with other weights.
GENERATION = "generation"
#: The key, in a report, of the iteration it belongs to (Tune's ``training_iteration``).
ITERATION = "training_iteration"
#: The key, in a trial's newest result, of the iteration whose checkpoint the score belongs to.
VALIDATED_ITERATION = "validated_iteration"
#: The key, in a row, of the name of its checkpoint's folder, which ``Result.from_path`` reads.
CHECKPOINT = "checkpoint_dir_name"
#: The key, in a row, of the number of times the iteration was run.
RUNS = "iteration_runs"
#: Where a row keeps a training metric whose name a validation also produces.
REPORTED = "reported"

#: The key in a result that says whether, and how, to validate the checkpoint of that result:
#: True, False, or a ``ray.train.ValidationTaskConfig``. A class trainable returns it from
#: ``step()``; a function passes ``validation=`` to :func:`tunekit.report` instead. It is removed
#: from the result before anything is logged.
VALIDATION_KEY = "tunekit_validation"

#: Names of a row that Tune or tunekit fill in themselves; a validation must not overwrite them.
RESERVED = frozenset(
    {
        *(GENERATION, ITERATION, REPORTED, RUNS, VALIDATED_ITERATION),
        "config",
        "done",
        "should_checkpoint",
        "time_total_s",
        "timestamp",
        "trial_id",
    }
)
#: The names that Tune and tunekit add to every report.
FILLED_IN = RESERVED | {
    CHECKPOINT,
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


def user_metrics(names: Iterable[str]) -> list[str]:
    """Return the names that are not filled in by Tune or tunekit, sorted.

    Example:
        >>> user_metrics(["pid", "loss", "config/lr", "training_iteration", "config", "eval/acc"])
        ['eval/acc', 'loss']
    """
    return sorted(n for n in names if n not in FILLED_IN and not n.startswith("config/"))


def closest_name(wanted: str, names: Iterable[str]) -> str | None:
    """Return the name that was probably meant; None if none is similar.

    Example:
        >>> closest_name("acuracy", ["loss", "accuracy"]), closest_name("f1", ["loss", "accuracy"])
        ('accuracy', None)
        >>> closest_name("accuracy", ["loss", "eval/accuracy"])
        'eval/accuracy'
    """
    known = sorted(names)
    near = difflib.get_close_matches(wanted, known, n=1)
    if near:
        return near[0]
    last = wanted.rsplit("/", 1)[-1]
    return next((name for name in known if name.rsplit("/", 1)[-1] == last), None)


def format_names(names: Iterable[str], wanted: Iterable[str] = ()) -> str:
    """Return names as a list for messages, with those similar to ``wanted`` first.

    Example:
        >>> format_names(["a", "loss", "accuracy"], ["acuracy"]), format_names([])
        ("'accuracy', 'a', 'loss'", 'nothing')
    """
    known = sorted(names)
    near = [name for one in wanted for name in difflib.get_close_matches(one, known, n=3)]
    return ", ".join(map(repr, dict.fromkeys([*near, *known]))) or "nothing"
