"""The versions of Ray that tunekit supports, and the private names that it uses."""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ray
from ray._private.worker import global_worker

from tunekit.errors import UnsupportedRayError

logger = logging.getLogger(__name__)

#: The oldest version that has everything tunekit needs: it passes the live result to callbacks, and
#: has ``ray.train.ValidationConfig`` with time limits.
OLDEST = (2, 56)

#: The version that the tests run with.
TESTED = "2.60.0"

#: The environment variable that turns Ray Train v2, which has validation, on or off.
_V2 = "RAY_TRAIN_V2_ENABLED"

#: All private names that tunekit uses, by Ray module or by ``module:class``.
NEEDED = {
    "ray._private": "node.Node.is_head worker._global_node",
    "ray._private.state:state": "get_draining_nodes placement_group_table",
    "ray._private.worker": "global_worker",
    "ray._raylet": "InnerGcsClient.get_all_resource_usage",
    "ray.actor": "ActorHandle._get_local_state",
    "ray.air._internal.uri_utils": "URI",
    "ray.air.execution._internal.actor_manager:RayActorManager": (
        "_actor_task_failed get_actor_resources schedule_actor_task"
    ),
    "ray.air.execution._internal.event_manager:RayEventManager": "discard_future track_future",
    "ray.core.generated.gcs_pb2": "ActorTableData",
    "ray.train": (
        "CheckpointConsistencyMode ReportedCheckpoint ReportedCheckpointStatus ValidationConfig "
        "ValidationTaskConfig"
    ),
    "ray.train._internal.checkpoint_manager": "_CheckpointManager.register_checkpoint",
    "ray.train._internal.session": "_FutureTrainingResult get_session _TrainingResult",
    "ray.train._internal.session:_TrainSession": "get_state _report_training_result set_state",
    "ray.train._internal.storage": "_delete_fs_path",
    "ray.train._internal.storage:StorageContext": (
        "persist_current_checkpoint _update_checkpoint_index"
    ),
    "ray.train.constants": "RAY_CHDIR_TO_TRIAL_DIR",
    "ray.tune.execution.tune_controller": "TrialRunnerWrapper",
    "ray.tune.execution.tune_controller:TuneController": (
        "checkpoint _checkpoint_trial_if_needed _cleanup_cached_actors _cleanup_trials "
        "is_finished _mark_trial_to_checkpoint _maybe_add_actors _maybe_cache_trial_actor "
        "_maybe_execute_queued_decision _maybe_reuse_cached_actor _maybe_update_trial_queue "
        "_on_saving_result _on_training_result _on_trial_reset _process_trial_failure "
        "_process_trial_result _process_trial_save _queue_decision _remove_actor resumed "
        "save_to_dir _schedule_trial_actor _schedule_trial_pause _schedule_trial_save "
        "_schedule_trial_stop _schedule_trial_task _schedule_trial_train _set_trial_status "
        "_stop_experiment_if_needed stop_trial _trial_task_failure "
        "_unstage_trial_with_resources _validate_result_metrics _wrapped"
    ),
    "ray.tune.experiment.trial:Trial": (
        "get_json_state handle_error init_local_path is_saving latest_checkpoint_result "
        "set_config should_recover"
    ),
    "ray.tune.experimental.output": (
        "get_air_verbosity _detect_reporter _infer_user_metrics _TrialTableData"
    ),
    "ray.tune.experimental.output:TuneTerminalReporter": "_get_heartbeat",
    "ray.tune.logger": "CSVLoggerCallback._setup_trial LoggerCallback._restore_from_remote",
    "ray.tune.progress_reporter": "IS_NOTEBOOK _detect_reporter",
    "ray.tune.registry": "get_trainable_cls",
    "ray.tune.search": "SearchAlgorithm._finished",
    "ray.tune.trainable.function_trainable": "FunctionTrainable.save_checkpoint wrap_function",
    "ray.tune.trainable.metadata": "_TrainingRunMetadata.update_metric",
    "ray.tune.trainable.trainable": "_DICT_CHECKPOINT_FILE_NAME",
    "ray.tune.tune": "_Config.to_dict",
    "ray.tune.utils.object_cache:_ObjectCache": (
        "decrease_max has_cached_object increase_max num_cached_objects"
    ),
}

#: The private attributes of a controller and its parts that exist only while it runs.
NEEDED_WHILE_RUNNING = (
    "_actor_cache _actor_manager._actor_task_events "
    "_actor_manager._live_actors_to_ray_actors_resources "
    "_actor_manager._resource_request_to_pending_actors _actor_to_trial _cached_trial_decisions "
    "_callbacks._callbacks _fail_fast _has_errored "
    "_insufficient_resources_manager._no_running_trials_since _iteration _live_trials "
    "_max_pending_trials _paused_trials _pending_trials _pending_trials_list "
    "_queued_trial_decisions "
    "_resetting_trials _resources_to_pending_trials _reuse_actors _running_trials "
    "_scheduler_alg _search_alg _session_str _staged_trials _stopper _stopping_actors _storage "
    "_trial_to_actor _trials"
)

#: Names that only trainers' trials and validations use. Importing them takes as long as importing
#: tunekit.
NEEDED_BY_TRAINERS = {
    "ray.train.v2._internal.callbacks.placement_group_callback": "PlacementGroupCleanerCallback",
    "ray.train.v2._internal.constants": "HEALTH_CHECK_INTERVAL_S_ENV_VAR",
    "ray.train.v2._internal.execution.callback": "ReportCallback.after_report WorkerGroupCallback",
    "ray.train.v2._internal.execution.context": "get_train_context TrainContext TrainRunContext",
    "ray.train.v2._internal.execution.controller:TrainController": (
        "get_training_failed_error _poll_workers worker_group_cls"
    ),
    "ray.train.v2._internal.execution.failure_handling": "create_failure_policy",
    "ray.train.v2._internal.execution.scaling_policy": "create_scaling_policy",
    "ray.train.v2._internal.execution.storage": "StorageContext.make_default_checkpoint_dir_name",
    "ray.train.v2._internal.execution.train_fn_utils": "get_train_fn_utils set_train_fn_utils",
    "ray.train.v2._internal.execution.train_fn_utils:DistributedTrainFnUtils": (
        "get_all_reported_checkpoints get_checkpoint report"
    ),
    "ray.train.v2._internal.execution.training_report": "_TrainingReport",
    "ray.train.v2._internal.execution.worker_group": "WorkerGroupPollStatus",
    "ray.train.v2._internal.execution.worker_group:WorkerGroup": (
        "abort _create_placement_group _create_workers execute_async _worker_cls"
    ),
    "ray.train.v2._internal.execution.worker_group.placement_group_handle": (
        "DefaultPlacementGroupHandle"
    ),
    "ray.train.v2._internal.execution.worker_group.poll": "WorkerStatus",
    "ray.train.v2._internal.execution.worker_group.worker": "RayTrainWorker.poll_status",
    "ray.train.v2._internal.util": "construct_train_func ObjectRefWrapper",
    "ray.train.v2.api.data_parallel_trainer": "DataParallelTrainer._create_default_callbacks",
}


def missing(needed: Mapping[str, str] = NEEDED) -> list[str]:
    """Return the names that the installed Ray lacks.

    Example:
        >>> missing({"ray.tune": "Tuner Tuner.no_such_method"})
        ['ray.tune.Tuner.no_such_method']
    """
    lacking = []
    for owner, names in needed.items():
        for name in names.split():
            try:
                pkgutil.resolve_name(f"{owner}.{name}" if ":" in owner else f"{owner}:{name}")
            except (ImportError, AttributeError):
                lacking.append(f"{owner}.{name}".replace(":", "."))
    return lacking


def check(version: str = ray.__version__) -> None:
    """Raise if the installed Ray is too old, lacks a name or has its validation turned off.

    A newer version that has every name is accepted, because most releases change none of them; a
    warning is logged, unless it is a patch release of the tested version.

    Raises:
        tunekit.errors.UnsupportedRayError: With the missing names and the versions that have them,
            or with the variable that is set.

    Example:
        >>> check("2.9.3")
        Traceback (most recent call last):
        tunekit.errors.UnsupportedRayError: Ray 2.9.3 is installed; tunekit needs 2.56 or newer...
    """
    if _minor(version) < OLDEST:
        raise UnsupportedRayError(f"Ray {version} is installed; {_advice()}")
    if (value := os.environ.get(_V2, "1")).lower() not in ("1", "true"):
        raise UnsupportedRayError(
            f"{_V2}={value} in the environment turns off Ray Train v2, which tunekit needs to "
            f"validate checkpoints. Unset {_V2}, or set it to 1, before ray is imported."
        )
    lacking = missing()
    if lacking:
        raise lacks(lacking, version)
    if _minor(version) > _minor(TESTED):
        logger.warning(
            "Ray %s is newer than %s, the newest that tunekit was tested with. It is used, because "
            "it has everything that tunekit needs. If something goes wrong, try %s.",
            *(version, TESTED, _command()),
        )


def check_trainers() -> None:
    """Raise if the installed Ray lacks a name that only trials or validations by trainers need.

    Raises:
        tunekit.errors.UnsupportedRayError: With the missing names and the versions that have them.
    """
    if lacking := missing(NEEDED_BY_TRAINERS):
        raise lacks(lacking)


def check_controller(controller: Any) -> None:
    """Raise if a running controller lacks an attribute.

    Raises:
        tunekit.errors.UnsupportedRayError: With the missing attributes and the versions that have
            them.
    """
    lacking = []
    for name in NEEDED_WHILE_RUNNING.split():
        try:
            operator.attrgetter(name)(controller)
        except AttributeError:
            lacking.append(f"TuneController.{name}")
    if lacking:
        raise lacks(lacking)


def _minor(version: str) -> tuple[int, ...]:
    """Return a version's major and minor number, which determine its interfaces."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def in_worker() -> bool:
    """Return whether Ray started this process to run a task or an actor."""
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


def private(thing: Any, name: str) -> Any:
    """Return a private attribute of an object, which cannot be checked at import."""
    try:
        return getattr(thing, name)
    except AttributeError:
        raise UnsupportedRayError(
            f"A {type(thing).__name__} of Ray {ray.__version__} has no {name}, which tunekit "
            f"reads; {_advice()}. For a scheduler, ValidationConfig(when=1) also helps."
        ) from None


def become(thing: Any, kind: type) -> None:
    """Change the class of an object that Ray has created to a subclass; it keeps its state.

    An object of any other class, such as a user's, is left as it is.
    """
    if issubclass(kind, type(thing)):
        thing.__class__ = kind


@contextlib.contextmanager
def overriding(owner: Any, **values: Any) -> Iterator[None]:
    """Change attributes of an object temporarily."""
    former = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in former.items():
            setattr(owner, name, value)
