"""``ray.tune.Tuner`` with validation alongside training."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import pyarrow.fs
from ray import tune
from ray.tune.schedulers import FIFOScheduler

from tunekit._ray.functions import (
    checkpointable_class,
    is_checkpointable_function,
    leave_resuming_to_tune,
    let_tell_of_resuming,
)
from tunekit._ray.interruption import ended_by_sigterm, without_advice
from tunekit._ray.progress import reporting, silenced
from tunekit._ray.tuner import (
    Settings,
    described_space,
    ended_soon,
    is_distributed,
    location_of,
    settings_of,
    space_of,
)
from tunekit.config import ValidationConfig, check_config
from tunekit.core.signatures import import_path
from tunekit.distributed import (
    check_saving,
    check_scheduler,
    run_config_of,
    trials_of,
    validation_config_of,
)
from tunekit.driver.callback import ValidationCallback
from tunekit.driver.checks import (
    check_folder,
    check_folder_of,
    check_reuse,
    check_run_config,
    check_trainable,
    check_tune_config,
)
from tunekit.driver.program import Program
from tunekit.driver.progress import Progress, above_the_status
from tunekit.driver.resources import leave_room_for_data, share_cluster
from tunekit.driver.restore import Restore
from tunekit.driver.results import ValidatedResults
from tunekit.driver.scheduler import ValidatedScheduler, check_combination, unwrapped
from tunekit.driver.snapshots import SavedState, cannot_write, saved_state
from tunekit.errors import ConfigError, RestoreError, SweepNotFoundError, TunekitError
from tunekit.journal.experiments import STATE_FILES, TUNER_FILE, path_problem
from tunekit.journal.journal import SERIES, Record, record_of
from tunekit.journal.lock import DriverLock
from tunekit.journal.paths import absolute, storage_at
from tunekit.journal.pickles import is_complete
from tunekit.journal.storage import Folder, folder_at
from tunekit.messages.advice import resume_advice
from tunekit.messages.log import showing_messages
from tunekit.messages.problems import Problems
from tunekit.policies import CheckpointPolicy, FunctionCheckpoints, by_default

logger = logging.getLogger(__name__)


def checkpointable(trainable: Any) -> Any:
    """Return a function trainable as a class that can save on demand.

    :class:`Tuner` does this itself; a plain ``ray.tune.Tuner`` needs it for functions that call
    :func:`tunekit.checkpoint_with`. Request checkpoints with a
    :class:`~tunekit.policies.CheckpointPolicy` there: ``checkpoint_frequency`` and
    ``checkpoint_at_end`` only work with :class:`Tuner`.

    Args:
        trainable: A function, or the name that one was registered under. Class trainables are
            returned unchanged.

    Raises:
        tunekit.errors.ConfigError: If it is not a trainable.

    Example:
        >>> def train(config): ...
        >>> checkpointable(train)._name
        'train'
    """
    problems = Problems("tunekit.checkpointable")
    if check_trainable(trainable, problems):
        problems.add("trainable is a trainer, which only tunekit.Tuner takes. Pass it there.")
    problems.raise_any()
    return checkpointable_class(trainable)


class Tuner(tune.Tuner):
    """Tune by validation scores: a ``ray.tune.Tuner`` that ranks, stops and searches by them.

    It takes the arguments of ``ray.tune.Tuner``. With a ``validation_config``, the checkpoints that
    trials save are validated while training continues, the scheduler and the search algorithm
    decide on validated results, and ``fit()`` returns a ``ray.tune.ResultGrid`` with the validated
    metrics. Functions can save on demand (:func:`tunekit.checkpoint_with`), so
    ``checkpoint_policy``, ``CheckpointConfig(checkpoint_frequency=...)`` and ``checkpoint_at_end``
    also work for them.

    Unless ``TuneConfig(max_concurrent_trials=...)`` is set, or trials validate in their own
    processes, the number of trials that train at once is limited so that ``max_in_flight``
    validations (by default one, or as many as there are evaluators) fit alongside, if the cluster
    has room for both. Paused trials do not count.

    A ``TorchTrainer``, or another data-parallel trainer from Ray Train, creates distributed trials.
    Each one is a run of the trainer, whose workers call ``ray.train.report`` and
    ``ray.train.get_checkpoint`` as usual. The workers live in the trial's placement group, so a
    trial starts only when all of them fit. They stay with their trial when PBT overwrites it or it
    resumes. Without a ``run_config`` here, the sweep uses the trainer's own; likewise for
    ``validation_config``. A plain one on the trainer validates the checkpoints whose reports
    request it.

    Each trial runs in its own process, as in Tune. ``TuneConfig(reuse_actors=True)`` runs it in the
    process of a trial that has paused or ended (a trainer's in that trial's workers, with their
    process group), which saves the start and the imports. A class needs a ``reset_config`` that
    replaces everything that depends on the configuration. A function is unpickled again and starts
    from scratch. For functions and trainers, the environment, the working directory, the random
    generators, torch's settings and unused CUDA memory are reset; other state, such as a module's
    variables, is not. If a trial fails in another trial's process, it continues in a new process,
    which does not count as a failure; from then on, all trials get new processes. New workers are
    always started for other resources, for trainers with ``datasets`` or ``RunConfig(callbacks=)``,
    and for backends other than torch's.

    Args:
        trainable: A function, a ``ray.tune.Trainable`` class, the name that one was registered
            under, a trainer, or a :class:`~tunekit.distributed.TrainerFactory`.
        param_space: The search space, as for ``ray.tune.Tuner``: a dict or an RLlib configuration.
            For a trainer it has ``"train_loop_config"`` and ``"scaling_config"`` (a
            ``ScalingConfig``, or a dict of the options to change), which override the trainer's
            own; ``"datasets"``; and ``"resume_from_checkpoint"``, which
            ``ray.train.get_checkpoint()`` returns at first.
        tune_config: As for ``ray.tune.Tuner``. ``metric`` may name one that only validation
            produces. The scheduler is wrapped, not changed. ``reuse_actors`` is described above.
        run_config: As for ``ray.tune.Tuner``. Its callbacks get validated results.
        validation_config: How to validate. Without one, nothing is validated. A plain
            ``ray.train.ValidationConfig`` is refused here.
        checkpoint_policy: When to save: a :class:`~tunekit.policies.CheckpointPolicy`, or any
            callback that sets ``should_checkpoint`` in ``on_trial_result``, in addition to what the
            trainable and ``CheckpointConfig`` request. Without any of these, if the trainable can
            save on demand, each trial saves at the iterations that ``when`` selects, until one of
            its reports requests or has a checkpoint.
            Not for trainers, whose workers decide when to save.

    Raises:
        tunekit.errors.ConfigError: If an argument is wrong; the message lists every mistake.
        tunekit.errors.AlreadyRunningError: If another driver is running a sweep of that name there.

    Example:
        >>> import ray.tune
        >>> import tunekit
        >>> def train(config):
        ...     tunekit.checkpoint_with(lambda directory: (directory / "w").write_text("0.5"))
        ...     for step in range(9):
        ...         ray.tune.report({"loss": 1 / (step + 1)})
        >>> def validate(checkpoint):
        ...     return {"accuracy": 0.9}
        >>> tuner = tunekit.Tuner(
        ...     train,
        ...     tune_config=ray.tune.TuneConfig(metric="accuracy", mode="max", num_samples=4),
        ...     validation_config=tunekit.ValidationConfig(fn=validate),
        ...     checkpoint_policy=tunekit.EveryIterations(3),
        ... )
    """

    def __init__(
        self,
        trainable: Any = None,
        *,
        param_space: dict[str, Any] | None = None,
        tune_config: tune.TuneConfig | None = None,
        run_config: tune.RunConfig | None = None,
        validation_config: ValidationConfig | None = None,
        checkpoint_policy: tune.Callback | None = None,
        **internal: Any,
    ):
        problems = Problems("Tuner")
        fix = "Pass a dict, or an RLlib configuration."
        param_space = problems.optional("param_space", space_of(param_space), dict, fix)
        distributed = check_trainable(trainable, problems, space=param_space)
        if distributed:
            if validation_config is None:
                validation_config = validation_config_of(trainable)
            run_config = run_config_of(trainable) if run_config is None else run_config
        config = check_config("validation_config", validation_config, problems)
        tune_config = check_tune_config(tune_config, problems)
        run_config = check_run_config(run_config, problems)
        fix = "Pass tunekit.EveryIterations(n), for example."
        policy = problems.optional("checkpoint_policy", checkpoint_policy, tune.Callback, fix)
        scheduler, search_alg = unwrapped(tune_config.scheduler), tune_config.search_alg
        if distributed:
            check_saving(policy, run_config, problems)
            check_scheduler(scheduler, problems)
        elif tune_config.reuse_actors and not problems:
            check_reuse(trainable, problems)
        if config is not None:
            check_combination(
                scheduler,
                config,
                reuse_actors=bool(tune_config.reuse_actors),
                search_alg=search_alg,
                problems=problems,
            )
        problems.raise_any()
        imported_from = import_path(trainable)
        if distributed:
            trainable = trials_of(trainable, config)
        trainable = checkpointable_class(trainable)
        if config is not None and not distributed:
            policy = policy or by_default(run_config, config.when)
        others = list(run_config.callbacks or [])
        # Policies get each report when it arrives; everything else gets validated results.
        callbacks = [one for one in others if isinstance(one, CheckpointPolicy)]
        others = [one for one in others if one not in callbacks]
        if policy is not None:
            callbacks.append(policy)
        if is_checkpointable_function(trainable):
            checkpoints = run_config.checkpoint_config
            frequency, at_end = checkpoints.checkpoint_frequency, checkpoints.checkpoint_at_end
            callbacks.append(FunctionCheckpoints(frequency or 0, bool(at_end)))
        if config is not None:
            validation = ValidationCallback(config)
            validation.program = Program(imported_from, described_space(param_space), is_owned=True)
            callbacks.append(validation)
            if not isinstance(tune_config.scheduler, ValidatedScheduler):
                tune_config.scheduler = ValidatedScheduler(tune_config.scheduler or FIFOScheduler())
        run_config.callbacks = [*callbacks, *others]
        if config is not None and run_config.name is not None:
            # Tune's Tuner writes its settings into the folder; a sweep there is restored from them.
            check_folder_of(run_config, imported_from, problems)
            problems.raise_any()
        super().__init__(
            trainable,
            param_space=param_space,
            tune_config=tune_config,
            run_config=run_config,
            **internal,
        )

    @classmethod
    @showing_messages()
    def restore(
        cls,
        path: str,
        trainable: Any,
        resume_unfinished: bool = True,
        resume_errored: bool = False,
        restart_errored: bool = False,
        param_space: dict[str, Any] | None = None,
        storage_filesystem: pyarrow.fs.FileSystem | None = None,
        validation_config: ValidationConfig | None = None,
        **internal: Any,
    ) -> Tuner:
        """Restore a sweep that was interrupted at any moment, in any way.

        Nothing runs twice and nothing is lost: pending validations run, Tune gets the results that
        it had not processed, trials continue from their newest checkpoint, and the scheduler and
        the searcher recover their state (``docs/how-it-works.md``).

        Args:
            path: The experiment's folder, as a local path or a URI such as ``s3://bucket/digits``.
                It may have been moved since.
            trainable: The trainable that the sweep was started with.
            resume_unfinished: Whether to continue unfinished trials; otherwise they end.
            resume_errored: Whether to continue failed trials from their newest checkpoint.
            restart_errored: Whether to restart failed trials from scratch instead.
            param_space: The search space again, if it has references to objects of the former Ray
                cluster: the same names, with new references.
            storage_filesystem: The filesystem of ``path``, if it is a custom one.
            validation_config: New settings for validation, such as a fixed function or more memory.
                ``when`` and ``on_pending`` must stay the same. What has failed since the last
                success is validated again; other scores and failures remain.
            **internal: As for ``ray.tune.Tuner.restore``.

        Returns:
            A Tuner whose :meth:`fit` continues the sweep.

        Raises:
            tunekit.errors.ConfigError: If an argument is wrong.
            tunekit.errors.SweepNotFoundError: If there is no experiment at ``path``, or none of its
                trials had started: a ``ConfigError``, and a ``FileNotFoundError`` as with
                ``ray.tune.Tuner``.
            tunekit.errors.AlreadyRunningError: If the sweep's driver is alive.
            tunekit.errors.JournalError: If the experiment's journal is damaged, or of another
                version.
            tunekit.errors.RestoreError: If the sweep's saved state or settings cannot be read, or
                the folder cannot be written to.
            OSError: If the storage cannot be read.

        Example:
            >>> Tuner.restore("/no/such/folder", lambda config: None)
            Traceback (most recent call last):
            tunekit.errors.SweepNotFoundError: Tuner.restore: path='/no/such/folder' has no tuner...
        """
        problems = Problems("Tuner.restore")
        distributed = check_trainable(trainable, problems)
        param_space = space_of(param_space)
        fix = "Pass a dict, or nothing."
        problems.optional("param_space", param_space, dict, fix)
        check_config("validation_config", validation_config, problems)
        resumes = {
            "resume_unfinished": resume_unfinished,
            "resume_errored": resume_errored,
            "restart_errored": restart_errored,
        }
        wrong = [
            name
            for name, value in resumes.items()
            if not problems.instance(name, value, bool, "Pass True or False.")
        ]
        if not wrong and resume_errored and restart_errored:
            problems.add(
                "resume_errored and restart_errored are both set, but a failed trial can only do "
                "one of them. Pass one."
            )
        folder = check_folder(path, storage_filesystem, problems)
        problems.raise_any()
        assert folder is not None  # otherwise, there is a problem
        given = os.fsdecode(path)
        path = absolute(given, storage_filesystem)
        with ExitStack() as stack:
            if folder.names(SERIES):
                lock = DriverLock(*storage_at(path, storage_filesystem))
                stack.callback(lock.release)
                try:
                    lock.claim()
                except OSError as error:
                    raise cannot_write(path, str(error)) from error
            found = _saved_sweep(folder, path)
            if found is None:
                problems.add(_restore_problem(given, storage_filesystem))
                raise problems.error(SweepNotFoundError)
            imported_from = import_path(trainable)
            if distributed:
                trainable = trials_of(trainable, None)
            record, state = found
            if state is not None:
                state.put_back(folder, record.events)
            try:
                restored = super().restore(
                    path,
                    checkpointable_class(trainable),
                    param_space=param_space,
                    storage_filesystem=storage_filesystem,
                    **resumes,
                    **internal,
                )
            except (pickle.UnpicklingError, EOFError, ImportError, AttributeError) as error:
                raise RestoreError(
                    f"{TUNER_FILE} in {path!r} cannot be read: {type(error).__name__}: {error}. It "
                    "holds the sweep's settings, which refer to your functions and classes by "
                    "name. Make these names importable, for example through an alias; if the file "
                    "is damaged, restore it from a copy."
                ) from error
            except ValueError as error:  # another trainable or search space
                raise ConfigError("Tuner.restore", [str(error)]) from error
            tuner = cls.__new__(cls)
            tuner.__dict__.update(restored.__dict__)
            validation = tuner.validation
            if validation_config is not None:
                _renew(validation, validation_config)
            if validation is not None:
                if distributed:
                    trainable.validate(wait=validation.config.on_pending == "wait")
                written = record.sessions[-1].get("trainable") if record.sessions else None
                program = validation.program
                program.trainable = imported_from or written or program.trainable
                if state is not None:
                    validation.restore = Restore(state.searcher_line)
            return tuner

    @classmethod
    def can_restore(
        cls, path: str, storage_filesystem: pyarrow.fs.FileSystem | None = None
    ) -> bool:
        """Return whether a folder has a sweep that :meth:`restore` can continue.

        False means that there is no progress to lose: no sweep, or one in which no trial had
        started. Nothing is written, and none of the sweep's code runs.

        Args:
            path: The experiment's folder, or a path that may be one.
            storage_filesystem: The filesystem of ``path``, if it is a custom one.

        Raises:
            tunekit.errors.ConfigError: If ``path`` is not a path.
            tunekit.errors.JournalError: If there is a sweep and its journal is damaged.
            tunekit.errors.RestoreError: If there is a sweep and its saved state cannot be read.

        Example:
            >>> Tuner.can_restore("/no/such/folder")
            False
        """
        problems = Problems("Tuner.can_restore")
        folder = check_folder(path, storage_filesystem, problems)
        problems.raise_any()
        return folder is not None and _saved_sweep(folder, os.fsdecode(path)) is not None

    @property
    def validation(self) -> ValidationCallback | None:
        """Return the sweep's validations, with their counts and times; None without any."""
        return _validation_of(settings_of(self))

    @showing_messages()
    def fit(self, *, progress: bool = False) -> tune.ResultGrid:
        """Run the sweep until its last trial and its last validation have ended.

        Without a ``validation_config``, this is ``ray.tune.Tuner.fit``. With one, the first Ctrl-C
        or SIGTERM ends the sweep within a few seconds, with everything recorded; the program's own
        SIGTERM handler stays in place. If the sweep ends unfinished, the command that continues it
        is logged.

        Args:
            progress: Whether to show the progress in a few lines instead of Tune's tables: a line
                for each trial that ends, one that always shows the current state (in a file: once a
                minute), and the best trials at the end. It goes to stderr, or to the notebook's
                cell. It needs a ``validation_config``.

        Returns:
            The results, with validated metrics in ``get_best_result()``, ``Result.metrics``
            and ``get_dataframe()`` (the newest validated values, and their iteration),
            ``metrics_dataframe`` (one row per iteration, NaN where it was not validated) and
            ``best_checkpoints`` (:class:`tunekit.driver.results.ValidatedResults`).

        Raises:
            tunekit.errors.ConfigError: If ``progress`` is not a bool or there is nothing to show,
                if it was called before, if a trial or a validation can
                never run on the cluster, or if no node for validations can read the results.
            tunekit.errors.RestoreError: If Tune cannot restore the sweep.
            tunekit.errors.MetricNotFoundError: If nothing produces the sweep's metric, unless all
                trials have failed: the results then have their errors.
            tunekit.errors.ValidationFailedError: If a validation fails and ``on_failure="raise"``,
                or if the first three fail for the same reason and it is ``"record"``.
            tunekit.errors.AlreadyRunningError: If another driver is running this sweep, or has
                taken it over.
        """
        settings = settings_of(self)
        validation = _validation_of(settings)
        problems = Problems("Tuner.fit")
        problems.instance("progress", progress, bool, "Pass True or False.")
        if progress and validation is None:
            problems.add("progress=True needs a validation_config. Pass one, or leave it out.")
        problems.raise_any()
        if validation is None:
            leave_resuming_to_tune(settings.trainable)
            leave_room_for_data(settings)
            with ended_soon() if is_distributed(settings.trainable) else nullcontext():
                return super().fit()
        with ExitStack() as stack:
            _begin(validation)
            stack.callback(validation.ledger.let_go)
            stack.callback(validation.executor.close)
            stack.enter_context(_logging_how_to_continue(settings, validation))
            share_cluster(settings, validation)
            let_tell_of_resuming(settings.trainable)
            if is_distributed(settings.trainable):
                stack.enter_context(ended_soon())
            if progress:
                validation.progress = Progress()
                stack.enter_context(silenced(settings.run_config))
                stack.enter_context(above_the_status())
                stack.callback(_close_progress, settings, validation)
            else:
                validation.reporter = stack.enter_context(reporting(settings.run_config))
            stack.enter_context(without_advice())
            how = partial(_how_to_continue, settings, validation)
            watch = validation.validator.ray_watch
            stack.enter_context(watch.watching(how, validation.ledger.close))
            stack.enter_context(ended_by_sigterm())
            return _results_of(super().fit(), validation)

    def get_results(self) -> tune.ResultGrid:
        """Return the results of a finished sweep, as :meth:`fit` does.

        Raises:
            RuntimeError: If the sweep has not been run.
        """
        results, validation = super().get_results(), self.validation
        return results if validation is None else _results_of(results, validation)


def _results_of(results: tune.ResultGrid, validation: ValidationCallback) -> ValidatedResults:
    state = validation.ledger.state
    names = state.required | state.history.names.keys()
    return ValidatedResults(results, validation.config.constraints, sorted(names))


def _begin(validation: ValidationCallback) -> None:
    """Record that the Tuner that made a sweep runs it; raise a ConfigError if it did before."""
    ledger = validation.ledger
    if ledger.folder is not None:
        raise ConfigError(
            "Tuner.fit",
            [
                "it was already called: a Tuner runs its sweep once. tuner.get_results() has "
                "the results. To continue the sweep:\n"
                f"{resume_advice(ledger.home.folder or 'PATH', validation.program.trainable)}\n"
                "For another sweep, make a new Tuner with another RunConfig(name=...)."
            ],
        )
    validation.is_run_by_owner = True


@contextmanager
def _logging_how_to_continue(settings: Settings, validation: ValidationCallback) -> Iterator[None]:
    """Log how to continue a sweep that started but has not ended, unless an error explains it."""
    explained = False
    try:
        yield
    except TunekitError:
        explained = True
        raise
    finally:
        if not (explained or validation.ledger.home.folder is None or validation.has_ended):
            logger.warning(
                "The sweep has not ended. Its progress is recorded; to continue it:\n%s",
                _how_to_continue(settings, validation),
            )


def _close_progress(settings: Settings, validation: ValidationCallback) -> None:
    home = validation.ledger.home.folder
    if validation.progress is not None and home is not None:
        validation.progress.close(location_of(settings, home))


def _how_to_continue(settings: Settings, validation: ValidationCallback) -> str:
    home, own = validation.ledger.home.folder, settings.run_config.storage_filesystem is not None
    path = "PATH" if home is None else location_of(settings, home)
    return resume_advice(path, validation.program.trainable, own_filesystem=own)


def _saved_sweep(folder: Folder, path: str) -> tuple[Record, SavedState | None] | None:
    """Return a sweep's journal, and its saved state if a trial has begun; None without a sweep.

    Raises:
        tunekit.errors.JournalError: If its journal is damaged or of a different version.
        tunekit.errors.RestoreError: If it has started but cannot be restored.
        OSError: If the storage cannot be read.
    """
    record = record_of(folder)
    state = saved_state(folder, record.events, path)
    names = folder.names("")
    of_tune = any(name.startswith(STATE_FILES) for name in names)
    if state is None and (folder.names(SERIES) or not of_tune):
        return None  # no trial had started
    whole = TUNER_FILE in names and is_complete(folder.read(TUNER_FILE))
    if not whole and (state is None or state.settings is None):
        raise RestoreError(
            f"The sweep in {path!r} cannot be restored: {TUNER_FILE} is "
            f"{'damaged' if TUNER_FILE in names else 'missing'}. It holds the settings of the "
            "sweep's Tuner. Restore it from a copy of the folder."
        )
    return record, state


def _restore_problem(path: str, filesystem: pyarrow.fs.FileSystem | None) -> str:
    """Return the problem with a path at which there is no sweep to continue."""
    storage, home = storage_at(path, filesystem)
    if TUNER_FILE in folder_at(storage, home).names(""):
        return (
            f"path={path!r} has a sweep in which no trial had started: its Tuner was created but "
            "not run, or the process ended first. Nothing is lost. Start it again with "
            "Tuner(...).fit()."
        )
    return (
        f"path={path!r} has no {TUNER_FILE}, which Tune writes when a Tuner is created, so it is "
        f"not an experiment's folder. It {path_problem(storage, home, path)}"
    )


def _renew(validation: ValidationCallback | None, new: ValidationConfig) -> None:
    """Replace the validation settings of a restored sweep.

    Raises:
        tunekit.errors.ConfigError: If the sweep cannot take them.
    """
    problems = Problems("Tuner.restore")
    if validation is None:
        problems.add(
            "validation_config is only for a sweep that was started with one, but this one was "
            "not. Leave it out, or start a new sweep with it."
        )
        raise problems.error()
    old = validation.config
    for name in ("when", "on_pending"):
        if getattr(new, name) != getattr(old, name):
            problems.add(
                f"validation_config.{name}={getattr(new, name)!r} differs from what the sweep has "
                f"used so far. Pass {name}={getattr(old, name)!r}."
            )
    problems.raise_any()
    # Its executor is made for the new ones.
    state = validation.__getstate__()
    validation.__setstate__({**state, "config": new, "given": (None, state["given"][1])})


def _validation_of(settings: Settings) -> ValidationCallback | None:
    return next((c for c in settings.callbacks if isinstance(c, ValidationCallback)), None)
