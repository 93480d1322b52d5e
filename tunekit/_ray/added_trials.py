"""Create trials with given hyperparameters, in addition to those of the search algorithm."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.experiment.config_parser import _create_trial_from_spec
from ray.tune.search import BasicVariantGenerator, SearchAlgorithm, SearchGenerator
from ray.tune.search.variant_generator import format_vars

from tunekit._ray.compat import its
from tunekit._ray.searchers import fitting


def can_add(search_alg: SearchAlgorithm) -> bool:
    """Return whether trials can be added to those of a search algorithm.

    Example:
        >>> can_add(BasicVariantGenerator())
        True
    """
    return isinstance(search_alg, (SearchGenerator, BasicVariantGenerator))


def made(search_alg: SearchAlgorithm, trial_id: str, config: Mapping[str, Any]) -> Trial:
    """Return a trial with given hyperparameters, created as the search algorithm creates trials.

    Args:
        search_alg: A search algorithm for which :func:`can_add` is true.
        trial_id: The trial's ID.
        config: The searched hyperparameters, by flat name.
    """
    if isinstance(search_alg, SearchGenerator):
        spec, parser = its(search_alg, "_experiment").spec, its(search_alg, "_parser")
    else:
        own = its(search_alg, "_iterators")[-1]
        spec, parser = own.unresolved_spec, own.parser
    whole = copy.deepcopy(spec["config"])
    values = {}
    for name, value in config.items():
        *above, last = path = tuple(name.split("/"))
        part = whole
        for key in above:
            part = part.setdefault(key, {})
        # JSON has choices as texts or lists.
        part[last] = values[path] = (fitting(part.get(last), value) or [value])[0]
    return _create_trial_from_spec(
        {**spec, "config": whole},
        parser,
        evaluated_params={"/".join(path): value for path, value in values.items()},
        experiment_tag="_".join(filter(None, ["added", format_vars(values)])),
        trial_id=trial_id,
    )
