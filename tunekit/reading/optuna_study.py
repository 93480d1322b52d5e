"""A sweep as a study of Optuna's, for its figures, its importances and its dashboard."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tunekit.core.parameters import CHOICE, INT, Parameter, choice, parameters_of
from tunekit.core.problems import Problems
from tunekit.core.study import StudyTrial
from tunekit.extras import extra

with extra("optuna"):
    import optuna
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

__all__ = ["distribution_of", "study_of"]


def study_of(
    trials: Sequence[StudyTrial],
    *,
    metric: str,
    mode: str,
    space: Mapping[str, Mapping[str, Any]],
    configs: Sequence[Mapping[str, Any]],
    storage: Any = None,
    study_name: str | None = None,
) -> optuna.Study:
    """Make a study of a sweep's trials.

    Args:
        trials: The trials.
        metric: What their values are, by flat name.
        mode: ``"min"`` or ``"max"``.
        space: The recorded search space, as for :func:`~tunekit.core.parameters.parameters_of`.
        configs: All hyperparameters that any trial had, likewise.
        storage: As for ``optuna.create_study``.
        study_name: Likewise.

    Raises:
        tunekit.errors.ConfigError: If the storage has a study of that name.
    """
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it logs each study that it makes
    try:
        study = optuna.create_study(
            storage=storage,
            study_name=study_name,
            direction="maximize" if mode == "max" else "minimize",
        )
    except optuna.exceptions.DuplicatedStudyError:
        problems = Problems("Sweep.to_optuna")
        problems.add(
            f"study_name={study_name!r} is in the storage already. Pass another study_name, or "
            f"delete that study first: optuna.delete_study(study_name={study_name!r}, "
            "storage=storage)."
        )
        problems.raise_any()
    finally:
        optuna.logging.set_verbosity(level)
    parameters = parameters_of(configs, space)
    distributions = {name: distribution_of(one) for name, one in parameters.items()}
    study.set_user_attr("metric", metric)
    constants = {
        name: value
        for config in configs
        for name, value in config.items()
        if name not in parameters
    }
    study.set_user_attr("constants", _plain(constants))
    study.add_trials([_frozen(one, parameters, distributions) for one in trials])
    return study


def distribution_of(parameter: Parameter) -> BaseDistribution:
    """Return Optuna's distribution of a hyperparameter.

    Example:
        >>> distribution_of(Parameter("lr", "float", 1e-4, 0.1, log=True))
        FloatDistribution(high=0.1, log=True, low=0.0001, step=None)
        >>> distribution_of(Parameter("width", "int", 8, 64, step=8))
        IntDistribution(high=64, log=False, low=8, step=8)
    """
    if parameter.kind == CHOICE:
        return CategoricalDistribution(parameter.choices)
    assert parameter.low is not None and parameter.high is not None  # as of all that are no choice
    # Optuna has no steps on a logarithmic scale.
    step = None if parameter.log else parameter.step
    low, high, log = parameter.low, parameter.high, parameter.log
    if parameter.kind == INT:
        return IntDistribution(int(low), int(high), log=log, step=int(step or 1))
    return FloatDistribution(low, high, log=log, step=step)


def _frozen(
    trial: StudyTrial,
    parameters: Mapping[str, Parameter],
    distributions: Mapping[str, BaseDistribution],
) -> optuna.trial.FrozenTrial:
    params = {
        name: choice(value) if parameters[name].kind == CHOICE else value
        for name, value in trial.hyperparameters.items()
        if name in parameters
    }
    return optuna.trial.FrozenTrial(
        number=-1,  # the storage counts them
        trial_id=-1,
        state=optuna.trial.TrialState[trial.state],
        value=trial.value,
        params=params,
        distributions={name: distributions[name] for name in params},
        intermediate_values=dict(trial.intermediate),
        user_attrs=_plain(trial.attributes),
        system_attrs={},
        datetime_start=datetime.fromtimestamp(trial.began),
        datetime_complete=None if trial.ended is None else datetime.fromtimestamp(trial.ended),
    )


def _plain(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same in what JSON knows; a storage keeps nothing else."""
    plain: dict[str, Any] = json.loads(json.dumps(known, default=str))
    return plain
