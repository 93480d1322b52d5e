"""Check what users pass to a Tuner, before anything starts."""

from __future__ import annotations

import copy
import glob
import os
import posixpath
from typing import Any

from ray import train, tune
from ray.tune.schedulers import TrialScheduler, create_scheduler
from ray.tune.search import SearchAlgorithm, Searcher, create_searcher

from tunekit._ray.functions import can_be_reset, checkpointable_class
from tunekit._ray.tuner import is_trainer
from tunekit.distributed import TrainerFactory, check_trainer, is_tunes
from tunekit.driver.callback import ValidationCallback
from tunekit.journal.experiments import check_unused
from tunekit.journal.lock import DriverLock
from tunekit.journal.paths import absolute, check_filesystem, check_path, storage_at
from tunekit.journal.storage import Folder, folder_at
from tunekit.messages.advice import resume_advice
from tunekit.messages.problems import Problems


def check_name(given: str, name: str, problems: Problems) -> None:
    """Add a problem if Ray reads a sweep's name as a glob pattern, and so misses its files."""
    if glob.escape(name) != name:
        problems.add(
            f"{given}: {name!r} has one of * ? [. When Ray restores a sweep, it treats that as a "
            "pattern and does not find the files. Choose a name without it; an existing folder can "
            "be renamed, because no file in it contains its name."
        )


def check_folder_of(run_config: tune.RunConfig, trainable: str | None, problems: Problems) -> None:
    """Add a problem if the folder has a sweep that has not ended; raise if its driver is alive."""
    given, own = run_config.storage_filesystem, run_config.storage_filesystem is not None
    try:
        filesystem, home = storage_at(str(run_config.storage_path), given)
    except (OSError, ValueError):
        return  # Tune reports the problem
    home, path = (
        posixpath.join(str(one), run_config.name) for one in (home, run_config.storage_path)
    )
    DriverLock(filesystem, home).check_free()
    hint = resume_advice(path, trainable, own_filesystem=own)
    check_unused(folder_at(filesystem, home), hint, problems)


def check_folder(path: Any, filesystem: Any, problems: Problems) -> Folder | None:
    """Return the folder at a path that a user has passed; None if it cannot be reached."""
    found = check_path(path, filesystem, problems)
    if found is None:
        return None
    check_name(f"path={path!r}", os.path.basename(found[1].rstrip("/")), problems)
    return folder_at(*found)


def check_trainable(
    trainable: Any,
    problems: Problems,
    *,
    space: dict[str, Any] | None = None,
) -> bool:
    """Add the problems with a trainable; return whether its trials are distributed."""
    distributed = is_trainer(trainable) or isinstance(trainable, TrainerFactory)
    if distributed:
        check_trainer(trainable, space, problems)
    elif trainable is None:
        problems.add("trainable is missing. Pass a function or a ray.tune.Trainable class.")
    else:
        try:
            checkpointable_class(trainable)
        except Exception as error:  # whatever Tune raises
            problems.add(
                f"trainable={trainable!r} cannot be tuned: {str(error).rstrip('.')}. Pass a "
                "function of one argument, the configuration, or a ray.tune.Trainable class."
            )
    return distributed


def check_reuse(trainable: Any, problems: Problems) -> None:
    """Add a problem if a trial cannot run in the process of another one."""
    if not can_be_reset(checkpointable_class(trainable)):
        problems.add(
            f"tune_config.reuse_actors=True, but {getattr(trainable, '__name__', trainable)} has "
            "no reset_config, so its process cannot run another trial. Define "
            "reset_config(self, new_config): replace everything that depends on the "
            "configuration, the network and the optimizer too, and return True. Or leave out "
            "reuse_actors."
        )


def check_tune_config(given: Any, problems: Problems) -> tune.TuneConfig:
    """Return a copy with names replaced by objects, or the default; add its problems."""
    fix = "Pass ray.tune.TuneConfig(...)."
    config = copy.copy(problems.optional("tune_config", given, tune.TuneConfig, fix))
    if config is None:
        return tune.TuneConfig()
    if config.mode is not None:
        problems.choice("tune_config.mode", config.mode, ["min", "max"])
    for name, kinds, create, where in (
        ("scheduler", (TrialScheduler,), create_scheduler, "schedulers"),
        ("search_alg", (Searcher, SearchAlgorithm), create_searcher, "search"),
    ):
        value = getattr(config, name)
        if isinstance(value, str):
            try:
                setattr(config, name, create(value))
            except Exception as error:  # whatever its constructor raises
                problems.add(f"tune_config.{name}={value!r} cannot be created by name: {error}")
        else:
            fix = f"Pass one of ray.tune.{where}."
            problems.optional(f"tune_config.{name}", value, kinds, fix)
    return config


def check_run_config(given: Any, problems: Problems) -> tune.RunConfig:
    """Return a copy, or the default; add its problems."""
    if isinstance(given, train.RunConfig) and not is_tunes(given, tune.RunConfig):
        problems.add(
            "Pass run_config=ray.tune.RunConfig(...); this one is ray.train.RunConfig, which is "
            "for a trainer. name, storage_path and storage_filesystem are the same in both."
        )
        return tune.RunConfig()
    fix = "Pass ray.tune.RunConfig(...)."
    run_config = copy.copy(problems.optional("run_config", given, tune.RunConfig, fix))
    if run_config is None:
        return tune.RunConfig()
    for name, kind in (
        ("checkpoint_config", tune.CheckpointConfig),
        ("failure_config", tune.FailureConfig),
    ):
        value = getattr(run_config, name)
        if value is not None and not is_tunes(value, kind):
            problems.add(
                f"Pass RunConfig({name}=ray.tune.{kind.__name__}(...)); this one is a "
                f"{type(value).__module__}.{type(value).__name__}, which Tune does not know."
            )
    path, filesystem = run_config.storage_path, run_config.storage_filesystem
    if check_filesystem("run_config.storage_filesystem", filesystem, problems) and path is not None:
        fix = "Pass a local path, or a URI such as s3://bucket/digits."
        if check_path(path, filesystem, problems, "run_config.storage_path", fix) is not None:
            run_config.storage_path = absolute(os.fsdecode(path), filesystem)
    if isinstance(run_config.name, str):
        check_name("run_config.name", run_config.name, problems)
    fix = "Pass a list of ray.tune.Callback instances."
    callbacks = problems.optional("run_config.callbacks", run_config.callbacks, (list, tuple), fix)
    for index, callback in enumerate(callbacks or []):
        name = f"run_config.callbacks[{index}]"
        fix = "Pass ray.tune.Callback instances."
        problems.instance(name, callback, tune.Callback, fix)
        if isinstance(callback, ValidationCallback):
            problems.add(
                f"{name} is a ValidationCallback, but Tuner creates its own. Pass its settings as "
                "validation_config=, or use ray.tune.Tuner."
            )
    return run_config
