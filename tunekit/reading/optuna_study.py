"""Export a sweep as an Optuna study, for Optuna's figures, importances and dashboard."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tunekit.core.metrics import finite_json, flatten
from tunekit.core.parameters import CHOICE, INT, Parameter, choice, parameters_of
from tunekit.core.summaries import TrialSummary
from tunekit.core.timeline import Timeline
from tunekit.core.values import describe_error
from tunekit.errors import ConfigError, extra

with extra("optuna"):
    import optuna
    from optuna import distributions
    from optuna.trial import TrialState

_EXPLOIT = ("generation", "reached", "donor_id", "donor_generation", "iteration", "score")


def study_of(
    timeline: Timeline,
    *,
    objectives: Mapping[str, str],
    space: Mapping[str, Mapping[str, Any]],
    storage: Any,
    study_name: str | None,
) -> optuna.Study:
    """Create a study of a sweep's trials.

    Args:
        timeline: The history of the sweep.
        objectives: The mode of each validated metric to rank by, by flat name.
        space: The recorded search space, as for :func:`~tunekit.core.parameters.parameters_of`.
        storage: As for ``optuna.create_study``.
        study_name: Likewise.

    Raises:
        tunekit.errors.ConfigError: If the storage cannot be used, or has a study of that name.
    """
    names, modes = list(objectives), list(objectives.values())
    metric, mode = names[0], modes[0]
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it logs each study that it makes
    try:
        study = optuna.create_study(
            storage=storage,
            study_name=study_name,
            directions=["maximize" if mode == "max" else "minimize" for mode in modes],
        )
    except Exception as error:  # whatever it and SQLAlchemy raise
        problem = (  # without the storage, which may have a password
            f"storage cannot be used: {describe_error(error).reason}. Pass a URL of SQLAlchemy, "
            "such as 'sqlite:////results/studies.db', or a storage of Optuna."
        )
        if isinstance(error, optuna.exceptions.DuplicatedStudyError):
            problem = (
                f"study_name={study_name!r} is in the storage already. Pass another study_name, or "
                f"delete that study first: optuna.delete_study(study_name={study_name!r}, "
                "storage=storage)."
            )
        raise ConfigError("Sweep.to_optuna", [problem]) from error
    finally:
        optuna.logging.set_verbosity(level)
    configs = [
        flatten(timeline.config_of(trial_id, generation))
        for trial_id, trial in timeline.trials.items()
        for generation in range(trial.generation + 1)
    ]
    parameters = parameters_of(configs, space)
    constants = {k: v for config in configs for k, v in config.items() if k not in parameters}
    study.set_user_attr("metric", metric if len(names) == 1 else names)
    study.set_user_attr("constants", _plain(constants))
    overwritten: dict[str, list[dict[str, Any]]] = {}
    for exploit in timeline.state.ancestry:
        known = {name: getattr(exploit, name) for name in _EXPLOIT}
        own = finite_json({**known, "config": flatten(exploit.config)})
        overwritten.setdefault(exploit.trial_id, []).append(own)
    for trial_id, trial in timeline.trials.items():
        scored = timeline.score(trial_id, metric, mode)
        found = [] if scored is None else [scored.value(name) for name in names]
        values = [value for value in found if value is not None]
        has_all = len(values) == len(names)
        generation = None if scored is None else scored.generation
        state = trial_state(trial, scored=has_all)
        attributes: dict[str, Any] = {"trial_id": trial_id, "generation": trial.generation}
        if scored is not None:
            metrics = finite_json(flatten(scored.metrics))
            attributes |= {"iteration": scored.iteration, "metrics": metrics}
        if trial_id in overwritten:
            attributes |= {"value_generation": generation, "exploits": overwritten[trial_id]}
        params = {
            name: choice(value) if parameters[name].kind == CHOICE else value
            for name, value in flatten(timeline.config_of(trial_id, generation)).items()
            if name in parameters
        }
        ended = None if state is TrialState.RUNNING else trial.ended
        violation = math.inf if scored is None else scored.violation
        study.add_trial(
            optuna.trial.FrozenTrial(
                number=-1,  # the storage counts them
                trial_id=-1,
                state=state,
                value=None,
                values=values if has_all and state is not TrialState.FAIL else None,
                params=params,
                distributions={name: distribution_of(parameters[name]) for name in params},
                intermediate_values={
                    one.iteration: own
                    for one in timeline.scores(trial_id)  # an iteration's newest generation counts
                    if len(names) == 1 and (own := one.value(metric)) is not None
                },
                user_attrs=_plain(attributes),
                system_attrs={"constraints": [violation]} if timeline.constraints else {},
                datetime_start=datetime.fromtimestamp(trial.added),
                datetime_complete=None if ended is None else datetime.fromtimestamp(ended),
            )
        )
    return study


def trial_state(trial: TrialSummary, *, scored: bool) -> TrialState:
    """Return a trial's state in a study.

    - ``FAIL``: it failed for good, or finished without a score;
    - ``RUNNING``: it has not ended;
    - ``PRUNED``: it was stopped early;
    - ``COMPLETE``: all others.

    Args:
        trial: The trial's summary.
        scored: Whether it has a validated value.

    Example:
        >>> stopped = TrialSummary("a", status="terminated", stopped=True)
        >>> trial_state(stopped, scored=True).name
        'PRUNED'
    """
    if trial.status == "error":
        return TrialState.FAIL
    if trial.status != "terminated":
        return TrialState.RUNNING
    if trial.stopped:
        return TrialState.PRUNED
    return TrialState.COMPLETE if scored else TrialState.FAIL


def distribution_of(parameter: Parameter) -> distributions.BaseDistribution:
    """Return Optuna's distribution of a hyperparameter.

    Example:
        >>> distribution_of(Parameter("lr", "float", 1e-4, 0.1, log=True))
        FloatDistribution(high=0.1, log=True, low=0.0001, step=None)
        >>> distribution_of(Parameter("width", "int", 8, 64))
        IntDistribution(high=64, log=False, low=8, step=1)
    """
    if parameter.kind == CHOICE:
        return distributions.CategoricalDistribution(parameter.choices)
    low, high, log = parameter.low, parameter.high, parameter.log
    assert low is not None and high is not None  # only choices have no limits
    if parameter.kind == INT:
        return distributions.IntDistribution(int(low), int(high), log=log)
    return distributions.FloatDistribution(low, high, log=log)


def _plain(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same values in JSON types, the only types that a storage keeps."""
    found: dict[str, Any] = json.loads(json.dumps(known, default=str))
    return found
