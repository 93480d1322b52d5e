"""Advice in messages: how to save checkpoints, choose a metric, make room, resume a sweep."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tunekit.core.metrics import closest_name, format_names, user_metrics

#: The key under which ``ray.tune.integration.ray_train.TuneReportCallback`` reports the path of a
#: checkpoint that a trainer's workers have saved; Tune does not get the checkpoint itself.
CHECKPOINT_PATH = "checkpoint_path"

NO_CHECKPOINT = (
    "Report checkpoints with tune.report(metrics, checkpoint=...), or register how to save with "
    "tunekit.checkpoint_with(save) and pass a checkpoint_policy."
)

_HAND_OVER = (
    "Pass the trainer itself, so that its checkpoints become the trial's:\n"
    "    tunekit.Tuner(TorchTrainer(train_loop, scaling_config=...),\n"
    '                  param_space={"train_loop_config": {...}}, ...)\n'
    "or, if other arguments depend on the trial too,\n"
    "    tunekit.Tuner(tunekit.distributed.TrainerFactory(lambda config: TorchTrainer(...)), ...)"
)


def trainer_advice(report: Mapping[str, Any]) -> str | None:
    """Return what to write instead of a function that runs a trainer; None for other reports.

    Example:
        >>> print(trainer_advice({"loss": 0.5, "checkpoint_path": "/results/checkpoint_1"}))
        checkpoint_path='/results/checkpoint_1' in a report, without a checkpoint: the function runs
        a Ray Train trainer and reports with TuneReportCallback, so Tune gets no checkpoint. Pass
        the trainer itself, so that its checkpoints become the trial's:
            tunekit.Tuner(TorchTrainer(train_loop, scaling_config=...),
                          param_space={"train_loop_config": {...}}, ...)
        or, if other arguments depend on the trial too,
            tunekit.Tuner(tunekit.distributed.TrainerFactory(lambda config: TorchTrainer(...)), ...)
        >>> trainer_advice({"loss": 0.5, "should_checkpoint": True, "checkpoint_path": "a"})
    """
    path = report.get(CHECKPOINT_PATH)
    if not isinstance(path, str) or report.get("should_checkpoint"):
        return None
    return (
        f"{CHECKPOINT_PATH}={path!r} in a report, without a checkpoint: the function runs a "
        "Ray Train trainer and reports with TuneReportCallback, so Tune gets no checkpoint. "
        f"{_HAND_OVER}"
    )


def checkpoint_advice(advice: str) -> str:
    """Return why nothing was validated, and how to fix it.

    Example:
        >>> checkpoint_advice("Save.")
        'No trial has saved a checkpoint, so nothing was validated. Save.'
    """
    return f"No trial has saved a checkpoint, so nothing was validated. {advice}"


def late_request_advice(trial_id: str, iteration: int) -> str:
    """Return why a checkpoint is not validated, and how to have it validated.

    Example:
        >>> late_request_advice("a", 3)
        'At iteration 3 of trial a, a callback set should_checkpoint in a result that had been ...'
    """
    return (
        f"At iteration {iteration} of trial {trial_id}, a callback set should_checkpoint in a "
        "result that had been validated or needed no validation. Such checkpoints are saved only "
        "where the trial has not trained on, and are not validated. Pass the callback as "
        "tunekit.Tuner(checkpoint_policy=...), or put it before the ValidationCallback."
    )


def resources_advice(trial_id: str, *, trials: int) -> str:
    """Return why a trial is paused for validations, and how to leave resources for them.

    Args:
        trial_id: The trial.
        trials: How many trials have resources.

    Example:
        >>> print(resources_advice("a", trials=3))
        Validations get no resources because the 3 running trials hold theirs while they wait for
        scores; trial a is paused to make room. Set max_concurrent_trials to less than 3.
        >>> print(resources_advice("a", trials=1))
        Validations get no resources because the only running trial holds what they need while it
        waits for a score; trial a is paused to make room. Reduce the resources of trials
        (tune.with_resources) or of validations (ray_remote_kwargs), or enlarge the cluster.
    """
    if trials > 1:
        why = f"the {trials} running trials hold theirs while they wait for scores"
        how = f"Set max_concurrent_trials to less than {trials}."
    else:
        why = "the only running trial holds what they need while it waits for a score"
        how = (
            "Reduce the resources of trials (tune.with_resources) or of validations "
            "(ray_remote_kwargs), or enlarge the cluster."
        )
    return (
        f"Validations get no resources because {why}; trial {trial_id} is paused to make room. "
        f"{how}"
    )


def reuse_advice(avoidable_s: float, total_s: float, *, compiles: bool = False) -> str | None:
    """Return how to avoid process starts; None if that would save at most a tenth of the time.

    Args:
        avoidable_s: The seconds that reused processes would save.
        total_s: The seconds that trials spent starting or training.
        compiles: Whether each process compiles what it imports, because nothing stores the result.

    Example:
        >>> reuse_advice(3.0, 30.0)
        >>> print(reuse_advice(12.4, 30.0))
        Starting a process for each trial took 12 of the 30 seconds that trials ran.
        TuneConfig(reuse_actors=True) would save them, on one condition: a function must keep no
        state in its process, and a class needs a reset_config that replaces everything that depends
        on the configuration.
        >>> print(reuse_advice(12.4, 30.0, compiles=True))
        Starting ... on the configuration. Each process also compiles all that it imports, because
        PYTHONDONTWRITEBYTECODE is set, as in many images. Unset it.
    """
    if avoidable_s <= 0.1 * total_s:
        return None
    return (
        f"Starting a process for each trial took {avoidable_s:.0f} of the {total_s:.0f} seconds "
        "that trials ran. TuneConfig(reuse_actors=True) would save them, on one condition: a "
        "function must keep no state in its process, and a class needs a reset_config that "
        "replaces everything that depends on the configuration."
        + compiles
        * (
            " Each process also compiles all that it imports, because PYTHONDONTWRITEBYTECODE is "
            "set, as in many images. Unset it."
        )
    )


def metric_advice(
    missing: Sequence[str], validated: Collection[str], result: Mapping[str, Any]
) -> str:
    """Return why a metric is unknown, and which one was probably intended.

    Args:
        missing: The metrics to rank by that neither validation nor training produces.
        validated: The metrics that validation has produced, by flat name.
        result: A validated result, flat, with the metrics that training reports.

    Example:
        >>> print(metric_advice(["acuracy"], ["accuracy"], {"accuracy": 0.9, "loss": 0.1}))
        The sweep ranks by 'acuracy', but neither validation nor training produces it. Did you mean
        'accuracy'? Validation returned 'accuracy'; training reported 'loss'. Use one of these as
        the metric, or return the missing one from the validation function.
    """
    training = user_metrics(name for name in result if name not in validated)
    near = [closest_name(name, [*validated, *training]) for name in missing]
    hint = f" Did you mean {near[0]!r}?" if near[0] is not None else ""
    return (
        f"The sweep ranks by {', '.join(map(repr, missing))}, but neither validation nor training "
        f"produces it.{hint} Validation returned {format_names(validated, missing)}; training "
        f"reported {format_names(training, missing)}. Use one of these as the metric, or return "
        "the missing one from the validation function."
    )


def resume_advice(path: str, trainable: str | None, *, own_filesystem: bool = False) -> str:
    """Return the command and the Python line that continue a sweep.

    Args:
        path: The sweep's folder, a local path or a URI.
        trainable: The trainable's import path, ``"module:name"``, or None.
        own_filesystem: Whether ``path`` is in a filesystem that the user passed, which the command
            line cannot reach.

    Example:
        >>> print(resume_advice("/results/digits", "train:train_digits"))
            tunekit resume /results/digits
        or, in Python:
            tunekit.Tuner.restore("/results/digits", train_digits).fit()
        >>> print(resume_advice("/my results/digits", None))
            tunekit resume '/my results/digits' --trainable FILE.py:NAME
        or, in Python:
            tunekit.Tuner.restore("/my results/digits", trainable).fit()
        >>> print(resume_advice("bucket/digits", None, own_filesystem=True))
            tunekit.Tuner.restore("bucket/digits", trainable, storage_filesystem=filesystem).fit()
    """
    name = "trainable" if trainable is None else trainable.rsplit(":", 1)[-1]
    also = ", storage_filesystem=filesystem" if own_filesystem else ""
    quoted = '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
    python = f"    tunekit.Tuner.restore({quoted}, {name}{also}).fit()"
    if own_filesystem:
        return python
    command = f"    tunekit resume {shlex.quote(path)}"
    command += " --trainable FILE.py:NAME" if trainable is None else ""
    return f"{command}\nor, in Python:\n{python}"
