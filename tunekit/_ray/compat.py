"""The versions of Ray that tunekit supports, and the private names that it uses."""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray._private.worker import global_worker

from tunekit.errors import UnsupportedRayError

__all__ = ["OLDEST", "TESTED", "check", "check_trainers", "in_worker", "its", "lacks", "missing"]

logger = logging.getLogger(__name__)

#: The oldest version that has everything tunekit needs: it passes callbacks the live result, and
#: has ``ray.train.ValidationConfig`` with time limits.
OLDEST = (2, 56)

#: The version that the tests ran with.
TESTED = "2.60.0"

#: The variable that keeps the old Ray Train, which has no validation.
_V2 = "RAY_TRAIN_V2_ENABLED"

#: All private names that tunekit uses, by module of Ray.
NEEDED = {
    "ray._private": "node.Node.is_head worker._global_node",
    "ray._private.state": "state.get_draining_nodes state.placement_group_table",
    "ray._private.worker": "global_worker",
    "ray._raylet": "InnerGcsClient.get_all_resource_usage",
    "ray.actor": "ActorHandle._get_local_state ActorMethod",
    "ray.air._internal.uri_utils": "URI",
    "ray.air.execution._internal.actor_manager": (
        "RayActorManager._actor_task_failed RayActorManager.get_actor_resources "
        "RayActorManager.live_actors RayActorManager.schedule_actor_task"
    ),
    "ray.air.execution._internal.event_manager": (
        "RayEventManager.discard_future RayEventManager.track_future"
    ),
    "ray.core.generated.gcs_pb2": "ActorTableData",
    "ray.train": "ValidationConfig ValidationTaskConfig",
    "ray.train._internal.checkpoint_manager": "_CheckpointManager.register_checkpoint",
    "ray.train._internal.session": (
        "_FutureTrainingResult _TrainingResult get_session _TrainSession "
        "_TrainSession.get_state _TrainSession.set_state"
    ),
    "ray.train._internal.storage": (
        "_delete_fs_path get_fs_and_path StorageContext.persist_current_checkpoint "
        "StorageContext._update_checkpoint_index"
    ),
    "ray.train.constants": "RAY_CHDIR_TO_TRIAL_DIR",
    "ray.tune.execution.placement_groups": "resource_dict_to_pg_factory",
    "ray.tune.execution.tune_controller": (
        "TrialRunnerWrapper TuneController._cleanup_cached_actors "
        "TuneController._mark_trial_to_checkpoint TuneController._maybe_add_actors "
        "TuneController._maybe_reuse_cached_actor TuneController._maybe_update_trial_queue "
        "TuneController._on_trial_reset TuneController._on_training_result "
        "TuneController._process_trial_failure "
        "TuneController._schedule_trial_actor TuneController._schedule_trial_stop "
        "TuneController._schedule_trial_train TuneController._unstage_trial_with_resources "
        "TuneController._set_trial_status "
        "TuneController._update_trial_queue TuneController._used_resources_string "
        "TuneController._wrapped TuneController.checkpoint TuneController.is_finished "
        "TuneController.pause_trial TuneController.resumed TuneController.save_to_dir "
        "TuneController.stop_trial"
    ),
    "ray.tune.experiment": (
        "Trial.get_json_state Trial.init_local_path Trial.on_checkpoint Trial.update_last_result"
    ),
    "ray.tune.experiment.config_parser": "_create_trial_from_spec",
    "ray.tune.experiment.trial": (
        "_TemporaryTrialState Trial.handle_error Trial.is_saving "
        "Trial.latest_checkpoint_result Trial.set_config Trial.set_experiment_tag "
        "Trial.should_recover Trial.update_resources"
    ),
    "ray.tune.experimental.output": (
        "DEFAULT_COLUMNS TuneTerminalReporter._get_heartbeat "
        "TuneTerminalReporter._heartbeat_threshold TuneTerminalReporter._start_block "
        "TuneTerminalReporter._wrap_headers TuneTerminalReporter.experiment_started "
        "TuneTerminalReporter.print_heartbeat _TrialTableData _get_trial_table_data "
        "get_air_verbosity"
    ),
    "ray.tune.logger": "JsonLoggerCallback._restore_from_remote",
    "ray.tune.progress_reporter": (
        "CLIReporter._progress_str IS_NOTEBOOK JupyterNotebookReporter._progress_html "
        "TrialProgressCallback TuneReporterBase._current_best_trial"
    ),
    "ray.tune.registry": "get_trainable_cls",
    "ray.tune.search": "SearchAlgorithm._finished",
    "ray.tune.search.variant_generator": "format_vars",
    "ray.tune.trainable.function_trainable": "FunctionTrainable.save_checkpoint wrap_function",
    "ray.tune.trainable.metadata": "_TrainingRunMetadata.update_metric",
    "ray.tune.trainable.trainable": "_DICT_CHECKPOINT_FILE_NAME",
    "ray.tune.tune": "_Config.to_dict",
    "ray.tune.utils": "unflattened_lookup",
    "ray.tune.utils.log": "has_verbosity",
    "ray.tune.utils.object_cache": (
        "_ObjectCache.decrease_max _ObjectCache.has_cached_object _ObjectCache.increase_max "
        "_ObjectCache.num_cached_objects"
    ),
    "ray.tune.utils.util": "SafeFallbackEncoder",
}

#: Names that only trainers' trials and validations use: slow to import, as slow as all of tunekit.
NEEDED_BY_TRAINERS = {
    "ray.train.v2._internal.callbacks.placement_group_callback": "PlacementGroupCleanerCallback",
    "ray.train.v2._internal.constants": "HEALTH_CHECK_INTERVAL_S_ENV_VAR",
    "ray.train.v2._internal.execution.callback": "ReportCallback.after_report WorkerGroupCallback",
    "ray.train.v2._internal.execution.context": "TrainContext TrainRunContext get_train_context",
    "ray.train.v2._internal.execution.controller": (
        "TrainController._poll_workers TrainController.get_training_failed_error "
        "TrainController.worker_group_cls"
    ),
    "ray.train.v2._internal.execution.failure_handling": "create_failure_policy",
    "ray.train.v2._internal.execution.scaling_policy": "create_scaling_policy",
    "ray.train.v2._internal.execution.storage": (
        "_exists_at_fs_path _list_at_fs_path delete_fs_path "
        "StorageContext.make_default_checkpoint_dir_name"
    ),
    "ray.train.v2._internal.execution.train_fn_utils": (
        "DistributedTrainFnUtils.get_checkpoint DistributedTrainFnUtils.report "
        "get_train_fn_utils set_train_fn_utils"
    ),
    "ray.train.v2._internal.execution.training_report": "_TrainingReport",
    "ray.train.v2._internal.execution.worker_group": (
        "WorkerGroupPollStatus WorkerGroup._create_placement_group "
        "WorkerGroup._create_workers WorkerGroup._worker_cls WorkerGroup.abort "
        "WorkerGroup.execute_async WorkerGroup.execute_single_async"
    ),
    "ray.train.v2._internal.execution.worker_group.placement_group_handle": (
        "DefaultPlacementGroupHandle"
    ),
    "ray.train.v2._internal.execution.worker_group.poll": "WorkerStatus",
    "ray.train.v2._internal.execution.worker_group.worker": "RayTrainWorker.poll_status",
    "ray.train.v2._internal.util": "ObjectRefWrapper construct_train_func",
    "ray.train.v2.api.data_parallel_trainer": "DataParallelTrainer._create_default_callbacks",
}


def missing(needed: Mapping[str, str] = NEEDED) -> list[str]:
    """Return the names that the installed Ray lacks.

    Example:
        >>> missing({"ray.tune": "Tuner Tuner.no_such_method"})
        ['ray.tune.Tuner.no_such_method']
    """
    lacking = []
    for module, names in needed.items():
        for dotted in names.split():
            try:
                found = importlib.import_module(module)
                for name in dotted.split("."):
                    found = getattr(found, name)
            except (ImportError, AttributeError):
                lacking.append(f"{module}.{dotted}")
    return lacking


def check(version: str = ray.__version__) -> None:
    """Raise if the installed Ray is too old, lacks a name or has its validation turned off.

    Warn if it is newer than the one that the tests ran with.

    A newer version that has every name is used: most releases change none of them. A later patch
    of the tested version does not count as newer.

    Raises:
        tunekit.errors.UnsupportedRayError: Says what is missing and which versions have it, or
            which variable is set.

    Example:
        >>> check("2.9.3")
        Traceback (most recent call last):
        tunekit.errors.UnsupportedRayError: Ray 2.9.3 is installed; tunekit needs 2.56 or newer...
    """
    if _minor(version) < OLDEST:
        raise UnsupportedRayError(f"Ray {version} is installed; {_advice()}")
    if (said := os.environ.get(_V2, "1")).lower() not in ("1", "true"):
        raise UnsupportedRayError(
            f"{_V2}={said} in the environment turns off the Ray Train that validates checkpoints, "
            f"which tunekit needs. Unset {_V2}, or set it to 1, before ray is imported."
        )
    lacking = missing()
    if lacking:
        raise lacks(lacking, version)
    if _minor(version) > _minor(TESTED):
        logger.warning(
            "Ray %s is newer than %s, the newest that tunekit was tested with. It has all that "
            "tunekit needs, and is used. If something goes wrong, try %s.",
            *(version, TESTED, _command()),
        )


def check_trainers() -> None:
    """Raise if the installed Ray lacks a name that only trials or validations by trainers need.

    Raises:
        tunekit.errors.UnsupportedRayError: Says what is missing and which versions have it.
    """
    if lacking := missing(NEEDED_BY_TRAINERS):
        raise lacks(lacking)


def _minor(version: str) -> tuple[int, ...]:
    """Return a version's major and minor number, which determine its interfaces."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def in_worker() -> bool:
    """Return whether Ray started this process for a task or an actor."""
    return bool(global_worker.mode == ray.WORKER_MODE)


def lacks(names: Iterable[str], version: str = ray.__version__) -> UnsupportedRayError:
    """Return an error that lists names that the installed Ray lacks, and a version that has them.

    Example:
        >>> raise lacks(["ray.tune.Tuner.no_such_method"], "2.99.0")
        Traceback (most recent call last):
        tunekit.errors.UnsupportedRayError: Ray 2.99.0 lacks ray.tune.Tuner.no_such_method; tune...
    """
    return UnsupportedRayError(f"Ray {version} lacks {', '.join(names)}; {_advice()}")


def _advice() -> str:
    oldest = ".".join(map(str, OLDEST))
    return (
        f"tunekit needs {oldest} or newer and was tested with {TESTED}. "
        f"Install it with: {_command()}"
    )


def _command() -> str:
    return f"pip install 'ray[tune,train,data]=={TESTED}'"


def its(thing: Any, name: str) -> Any:
    """Return a private attribute of an object, which cannot be checked at import."""
    try:
        return getattr(thing, name)
    except AttributeError:
        raise UnsupportedRayError(
            f"A {type(thing).__name__} of Ray {ray.__version__} has no {name}, which tunekit "
            f"reads; {_advice()}. If it is of a scheduler, ValidationConfig(when=1) also helps."
        ) from None
