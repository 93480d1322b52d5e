"""Run function trainables that can save on demand.

Tune's ``FunctionTrainable`` has only the checkpoint of its last report: a callback's
``should_checkpoint``, ``checkpoint_frequency`` and ``checkpoint_at_end`` do nothing or are
refused. The class below allows the function to register how to save. Tune calls ``save`` on the
actor's main thread while the function's thread is blocked in ``tune.report`` (or has returned), so
that the saved state is that of the report.
"""

from __future__ import annotations

import inspect
import logging
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import cloudpickle, tune
from ray.train._internal.session import _TrainingResult, _TrainSession, get_session
from ray.train.constants import CHECKPOINT_DIR_NAME
from ray.tune.registry import get_trainable_cls
from ray.tune.result import RESULT_DUPLICATE, TIME_THIS_ITER_S
from ray.tune.trainable import Trainable
from ray.tune.trainable.function_trainable import FunctionTrainable, wrap_function
from ray.tune.trainable.trainable import _DICT_CHECKPOINT_FILE_NAME

from tunekit._ray.asking import INQUIRY, ask_by, ask_by_report
from tunekit._ray.compat import become
from tunekit._ray.process_state import ProcessState
from tunekit.core.training_loops import Resumption, format_not_resumed
from tunekit.errors import NotResumedError

logger = logging.getLogger(__name__)

_SAVER = "tunekit_saver"
# The size limit, in bytes, of a function to pickle: a larger one contains data, not state.
_LARGEST = 1 << 20

#: The key in a report that records that the trial's function has asked for a checkpoint.
HAS_ASKED = "tunekit_has_asked"
#: The key in a report that records that the trial's function has registered how to save.
CAN_SAVE = "tunekit_can_save"

Save = Callable[[Path], object]


class NoSession(Exception):
    """This process has a Tune trial whose trainable cannot save on demand."""


class SaveError(RuntimeError):
    """A function's registered ``save`` raised the error that is the cause."""


class _Saver:
    """The ``save`` that this process's trial has registered."""

    save: Save | None = None


def register_saver(save: Save) -> None:
    """Register how to save this process's trial, if it has one.

    Raises:
        NoSession: If the trial's trainable was not made by :func:`checkpointable_class`.
    """
    if (session := get_session()) is not None:
        saver = session.get_state(_SAVER)
        if saver is None:
            raise NoSession
        saver.save = save


def lacks_saver() -> bool:
    """Return whether this process has a trial that has not registered how to save."""
    session = get_session()
    return session is not None and getattr(session.get_state(_SAVER), "save", None) is None


class _Session(_TrainSession):
    """A session that detects that the function asks for its checkpoint, in any thread."""

    resumption: Resumption

    @property
    def loaded_checkpoint(self) -> Any:
        self.resumption.asked()
        return self._loaded_checkpoint

    @loaded_checkpoint.setter
    def loaded_checkpoint(self, checkpoint: Any) -> None:
        self._loaded_checkpoint = checkpoint

    @classmethod
    def watch(cls, session: Any, resumption: Resumption) -> None:
        """Make an existing Ray session detect this."""
        checkpoint = session.__dict__.pop("loaded_checkpoint", None)
        become(session, cls)
        session.resumption, session.loaded_checkpoint = resumption, checkpoint


class _Checkpointable(FunctionTrainable):
    """Save with the registered function; resume from its checkpoint or fail."""

    # Tune refuses checkpoint_frequency and checkpoint_at_end for functions unless the trainable
    # handles them; tunekit.policies puts them back into each trial's settings.
    _handles_checkpoint_freq = True
    _handles_checkpoint_at_end = True
    # Whether a resumed function must ask for its checkpoint, however it saves.
    _must_resume = True
    # Whether HAS_ASKED and CAN_SAVE are added to reports, and a driver answers what it asks.
    _tells = False
    _last_training_result: Any

    def setup(self, config: dict[str, Any]) -> None:
        self._process_state = ProcessState()
        cell = _cell_of(type(self))
        self._anew = None if cell is None else _pickled(cell.cell_contents)
        super().setup(config)
        self._begin()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        if not super().reset_config(new_config):
            return False  # the previous trial's function has not ended
        if self._anew is not None:
            _cell_of(type(self)).cell_contents = cloudpickle.loads(self._anew)
        self._process_state.restore()  # releases objects that only the previous function held
        self._begin()
        return True

    def _begin(self) -> None:
        self._saver, self._resumption = _Saver(), Resumption()
        self._resumed_at, self._warned = 0, False
        # The seconds of this iteration before the loop has asked for its scores.
        self._asked_s = 0.0
        self._saved_iteration: int | None = None
        session = get_session()
        session.set_state(_SAVER, self._saver)
        _Session.watch(session, self._resumption)
        ask_by(ask_by_report if self._tells else None)

    def load_checkpoint(self, checkpoint_result: _TrainingResult) -> None:
        super().load_checkpoint(checkpoint_result)
        # Saving needs it, and a function with nothing left to do ends without a report.
        self._last_result = dict(checkpoint_result.metrics)
        self._saved_iteration = self._resumed_at = self.iteration
        self._resumption.resumed()

    def step(self) -> dict[str, Any]:
        reported, began = self._last_training_result, time.monotonic()
        result: dict[str, Any] = super().step()
        if INQUIRY in result:
            self._last_training_result = reported  # Tune saves it
            self._asked_s += time.monotonic() - began
            return result
        if self._asked_s:  # Tune would only count from the last inquiry on
            result.setdefault(TIME_THIS_ITER_S, self._asked_s + time.monotonic() - began)
            self._asked_s = 0.0
        # A function that has returned without a report has added no row.
        began_anew = RESULT_DUPLICATE not in result and not self._resumption.reported()
        if began_anew and (self._must_resume or self._saver.save is not None):
            raise NotResumedError(format_not_resumed(self.trial_name, self._resumed_at))
        if self._tells and self._resumption.has_asked:
            result[HAS_ASKED] = True
        if self._tells and self._saver.save is not None:
            result[CAN_SAVE] = True
        return result

    def save_checkpoint(self, checkpoint_dir: str = "") -> _TrainingResult:
        reported = super().save_checkpoint(checkpoint_dir)
        if reported.checkpoint is not None:
            self._saved_iteration = self.iteration
            return reported
        metrics = dict(reported.metrics)
        if self._saver.save is None and not self._warned:
            self._warned = True
            logger.warning(
                "A checkpoint of %s is due at iteration %d, but the function neither reported one "
                "nor registered how to save. Call tunekit.checkpoint_with(save) before the loop.",
                self.trial_name,
                self.iteration,
            )
        # Tune may ask twice for the same state.
        if self._saver.save is None or self._saved_iteration == self.iteration:
            return _TrainingResult(checkpoint=None, metrics=metrics)
        with tempfile.TemporaryDirectory(prefix="tunekit-checkpoint-") as folder:
            try:
                self._saver.save(Path(folder))
            except Exception as error:
                raised = traceback.format_exception_only(error)[-1].strip()
                raise SaveError(
                    f"At iteration {self.iteration}, the function passed to "
                    f"tunekit.checkpoint_with(save) raised {raised}"
                ) from error
            self._storage._update_checkpoint_index(metrics)
            checkpoint = self._storage.persist_current_checkpoint(
                tune.Checkpoint.from_directory(folder)
            )
        metrics[CHECKPOINT_DIR_NAME] = self._storage.checkpoint_dir_name
        # For tune.get_checkpoint(), as after a report with a checkpoint.
        get_session().loaded_checkpoint = checkpoint
        self._saved_iteration = self.iteration
        return _TrainingResult(checkpoint=checkpoint, metrics=metrics)


def checkpointable_class(trainable: Any) -> Any:
    """Return the class for a function trainable whose function may register how to save.

    Args:
        trainable: A function, a partial, another callable, a registered name, or a
            ``FunctionTrainable`` class. A class trainable (or its name) is returned as it is.
    """
    found = get_trainable_cls(trainable) if isinstance(trainable, str) else trainable
    if not isinstance(found, type):
        found = wrap_function(found)
    if not issubclass(found, FunctionTrainable):
        if not issubclass(found, Trainable):
            raise TypeError(f"{found!r} is not a Trainable")
        return trainable
    if issubclass(found, _Checkpointable):
        return found
    name = trainable if isinstance(trainable, str) else getattr(found, "_name", found.__name__)
    return type(found.__name__, (_Checkpointable, found), {"_name": name})


def leave_resuming_to_tune(trainable: Any) -> None:
    """Let a wrapped function start over after a failure, as Tune does.

    A function that registers how to save must still resume.
    """
    if is_checkpointable_function(trainable):
        trainable._must_resume = False


def let_tell_of_resuming(trainable: Any) -> None:
    """Include in a function's reports whether it can resume, and save when Tune asks."""
    if is_checkpointable_function(trainable):
        trainable._tells = True


def _cell_of(trainable: Any) -> Any:
    """Return the closure cell of the function in a class that Tune made for it, if any."""
    method = inspect.unwrap(trainable._trainable_func)  # in an actor, Ray wraps each method
    cells = zip(method.__code__.co_freevars, method.__closure__ or (), strict=True)
    return dict(cells).get("train_func")


def _pickled(function: Any) -> bytes | None:
    """Pickle a function before it runs, with its globals, unless they are those of a module.

    None if it cannot be pickled or is too large.
    """
    try:
        pickled = cloudpickle.dumps(function)
    except Exception:  # whatever its parts raise
        return None
    return pickled if len(pickled) <= _LARGEST else None


def can_be_reset(trainable: Any) -> bool:
    """Return whether a trainable's actors can be reused, because it overrides ``reset_config``.

    Example:
        >>> class Net(Trainable):
        ...     def reset_config(self, new_config):
        ...         return True
        >>> can_be_reset(Net), can_be_reset(Trainable)
        (True, False)
    """
    return _overrides(trainable, "reset_config") is not None


def _overrides(trainable: Any, method: str) -> Any:
    """Return the class of a trainable if it overrides a method of ``Trainable``, else None."""
    cls: Any = get_trainable_cls(trainable) if isinstance(trainable, str) else trainable
    own = isinstance(cls, type) and issubclass(cls, Trainable)
    return cls if own and getattr(cls, method) is not getattr(Trainable, method) else None


def can_be_saved(trainable: Any) -> bool:
    """Return whether a trainable is a class that can save.

    A function shows that it can by registering how.

    Example:
        >>> class Net(Trainable):
        ...     def save_checkpoint(self, checkpoint_dir):
        ...         return {"weights": [0.5]}
        >>> can_be_saved(Net), can_be_saved(Trainable)
        (True, False)
    """
    cls = _overrides(trainable, "save_checkpoint")
    return cls is not None and not issubclass(cls, FunctionTrainable)


def can_be_resumed(trainable: Any) -> bool:
    """Return whether a trainable is a class that can resume from a checkpoint.

    A function shows that it can by asking for one.

    Example:
        >>> class Net(Trainable):
        ...     def load_checkpoint(self, checkpoint):
        ...         self.weight = checkpoint["weight"]
        >>> class Stub(Trainable):
        ...     def load_checkpoint(self, checkpoint):
        ...         pass
        >>> can_be_resumed(Net), can_be_resumed(Stub), can_be_resumed(Trainable)
        (True, False, False)
    """
    cls = _overrides(trainable, "load_checkpoint")
    if cls is None or issubclass(cls, FunctionTrainable):
        return False
    code = getattr(cls.load_checkpoint, "__code__", None)
    return code is None or bool(set(code.co_names) - {"NotImplementedError"})


def is_checkpointable_function(trainable: Any) -> bool:
    """Return whether a trainable is a class that :func:`checkpointable_class` made."""
    return isinstance(trainable, type) and issubclass(trainable, _Checkpointable)


def saved_dict(checkpoint: Any) -> dict[str, Any] | None:
    """Return what a class trainable's ``save_checkpoint`` returned, if that was a dict.

    Only its file is fetched.
    """
    try:
        with checkpoint.filesystem.open_input_stream(
            f"{checkpoint.path}/{_DICT_CHECKPOINT_FILE_NAME}"
        ) as file:
            return dict(cloudpickle.loads(file.readall()))
    except FileNotFoundError:
        return None
