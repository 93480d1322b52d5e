"""Read a running, finished or crashed sweep as tables."""

from __future__ import annotations

import gc
import os
import posixpath
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow.fs

from tunekit._ray.storage import absolute, check_path, checkpoint_at, exists
from tunekit.config import ValidationConfig
from tunekit.core.constraints import Constraint
from tunekit.core.events import Event, Home
from tunekit.core.metrics import closest_name, flatten, format_names
from tunekit.core.ranking import Ranked, front_of, ranking_of
from tunekit.core.signatures import ValidationFunction, function_name
from tunekit.core.summaries import ScoredCheckpoint
from tunekit.core.timeline import Timeline
from tunekit.core.timing import Clock, Pace
from tunekit.errors import ConfigError, MetricNotFoundError, extra
from tunekit.following.best import best_requests
from tunekit.following.loop import Source, validate_all
from tunekit.following.record import (
    LATER,
    Recorder,
    began_of,
    later_records_in,
    name_problem,
    rows_of,
)
from tunekit.journal.experiments import path_problem
from tunekit.journal.journal import SERIES, JournalReader, Record
from tunekit.journal.lock import Driver, driver_of
from tunekit.journal.safe_files import is_inside
from tunekit.journal.storage import folder_at
from tunekit.messages.log import showing_messages
from tunekit.messages.problems import Problems
from tunekit.reading import tables
from tunekit.reading.findings import BestCheckpoint, best_json, summary_json
from tunekit.results.lineage import Lineage

if TYPE_CHECKING:
    with extra("optuna"):
        import optuna

# The largest share of the time that may be spent rereading files that are read as a whole.
_SHARE = 0.1
_TRIAL_ERROR = "error.txt"  # Tune writes this into the folder of a failed trial
# The end of that file has the last failure.
_MOST_ERROR_BYTES = 64 * 1024
_NO_FOLDER = "the sweep was not read from a folder. Use tunekit.load(path)."


class Sweep:
    """A sweep as tables, as returned by :func:`tunekit.load`.

    Each table is a ``pandas.DataFrame``, built on first access. Times are UTC timestamps; durations
    are in seconds, and their names end in ``_s``. Nested names are joined by ``/``, as in Tune:
    ``config/lr``. Missing values are NaN, NaT or None.

    Args:
        events: The events of the journal.
        sessions: The first line of each session.
        path: The experiment's folder, in its filesystem.
        filesystem: The filesystem of ``path``.
        source: The path or URI from which another process can load it; None if that also needs
            the filesystem.
        metric: The validated metric to rank by; by default the sweep's objective.
        mode: ``"min"`` or ``"max"``; by default the sweep's.
        driver: The driver that runs the sweep, or ran it until it was killed, if the lock
            names one.
        later: The sessions of its later validations.

    Example:
        >>> from tunekit.core.events import Processed, Reported, TrialAdded
        >>> sweep = Sweep([
        ...     TrialAdded(time=1e9, trial_id="a", config={"lr": 0.1}, folder="train_a"),
        ...     Reported(time=1e9 + 5, trial_id="a", report={"training_iteration": 1, "loss": 0.5}),
        ...     Processed(time=1e9 + 9, trial_id="a", id="a:0:1:1", iteration=1),
        ... ])
        >>> sweep.trials[["trial_id", "status", "iteration", "config/lr"]]
          trial_id   status  iteration  config/lr
        0        a  running          1        0.1
        >>> sweep.reports[["trial_id", "training_iteration", "loss"]]
          trial_id  training_iteration  loss
        0        a                   1   0.5
    """

    def __init__(
        self,
        events: Sequence[Event],
        sessions: Sequence[Mapping[str, Any]] = (),
        *,
        path: str = "",
        filesystem: pyarrow.fs.FileSystem | None = None,
        source: str | None = None,
        metric: str | None = None,
        mode: str | None = None,
        driver: Driver | None = None,
        later: Iterable[Record] = (),
    ):
        #: The driver that runs the sweep, or ran it until it was killed, if the lock names
        #: one.
        self.driver = driver
        #: The experiment's folder, in its filesystem.
        self.path = path
        self.filesystem = filesystem
        #: The path or URI from which another process can load it, if there is one.
        self.source = source
        #: How each session of the sweep was run: versions, settings, cluster.
        self.sessions = list(sessions)
        self._home = Home(path or None)
        newest = self.newest_session
        decided_by = newest.get("required") or []
        own = decided_by[0] if len(decided_by) == 1 else None
        #: The metrics that the sweep is ranked by, with their modes, if known.
        self.objectives: dict[str, str] = newest.get("objectives") or {}
        limits = (newest.get("validation") or {}).get("constraints") or []
        #: The constraints on scores.
        self.constraints = [Constraint(text) for text in limits]
        #: The metric that tables are ranked by, if there is one.
        self.metric: str | None = metric or own
        #: ``"min"`` or ``"max"``, if it is known.
        self.mode: str | None = mode or (newest.get("mode") if metric in (None, own) else None)
        rows = [
            {**row, "checkpoint": self._home.path(row["checkpoint"])}
            for row in rows_of(later, began_of(self.sessions))
        ]
        #: The same data as rows, without pandas.
        self.timeline = Timeline(
            map(self._home.located, events),
            own or self.metric,
            self.sessions,
            rows,
            self.constraints,
        )

    def extend(self, events: Sequence[Event]) -> None:
        """Add events that the newest session has written since.

        Tables are rebuilt on access. The metric to rank by does not change.

        Args:
            events: The new events.
        """
        for name, made in vars(type(self)).items():
            if isinstance(made, cached_property):
                vars(self).pop(name, None)
        self.timeline.extend(map(self._home.located, events))

    # Tables ------------------------------------------------------------------------------------

    @cached_property
    def trials(self) -> pd.DataFrame:
        """Return one row per trial, in the order in which they were added.

        Columns:

        - ``trial_id``; ``folder``: the name of its folder in the experiment's;
        - ``status``: ``"pending"`` (it has not reported), ``"running"``, ``"terminated"`` or
          ``"error"``; ``stopped``: whether the scheduler ended it; ``failures``: how many times it
          failed;
        - ``iteration``: the training iteration of its last result; ``unprocessed``: how many later
          reports wait for scores; ``generation``: how many times it was overwritten with other
          weights; ``by_hand``: whether it was stopped by hand;
        - ``best``, ``best_iteration``, ``best_generation``, ``best_checkpoint``: its best validated
          value of the metric, with the iteration, generation and path of that checkpoint;
        - ``last``, ``last_iteration``, ``last_generation``, ``last_checkpoint``: the same for its
          newest validated checkpoint;
        - ``validated``, ``not_validated``, ``pending``: how many of its validations ended with a
          score, ended without one, and have not ended;
        - ``trained_s``: seconds that it trained; ``waited_s``: seconds that it waited for
          scores;
        - ``added``, ``ended``: the times;
        - ``config/...``: its hyperparameters in its newest generation.
        """
        return tables.trials(self.timeline, self.ranking())

    @cached_property
    def reports(self) -> pd.DataFrame:
        """Return one row per trial, generation and iteration, in that order.

        A report gets a row when Tune processes it, together with its score if there is one.
        Iterations that a trial trained past a decision have no row.

        Columns:

        - ``trial_id``, ``tunekit/generation``, ``training_iteration``;
        - ``tunekit/runs``: how many times the trial has run the iteration; the row is
          from the newest run;
        - ``tunekit/time``: when the driver got the report;
        - the values that the trial reported, and those that Tune added (``time_this_iter_s``, ...);
        - the validated metrics of the checkpoint that was saved there, including those of later
          validations; NaN where none was validated. Values that training reports under the name of
          a validated metric are in ``tunekit/reported/...``.

        The trials' ``result.json``, ``progress.csv`` and ``Result.metrics_dataframe`` have the same
        rows, and one for every run of a repeated iteration.
        """
        return tables.reports(self.timeline)

    @cached_property
    def validations(self) -> pd.DataFrame:
        """Return one row per validation, in the order in which they were requested.

        Columns:

        - ``id``; ``trial_id``, ``generation``, ``iteration``: the origin of the checkpoint;
          ``run``: how many times the trial had run that iteration;
        - ``status``: ``"queued"`` (Ray does not have it yet), ``"starting"`` (Ray has it: it
          lacks resources, or its process is starting), ``"running"``, ``"validated"``,
          ``"failed"``, ``"timed_out"`` or ``"skipped"``; for a sweep that has crashed, the status
          at that time;
        - ``requested``, ``started``, ``ran_from``, ``ended``: the times; ``started`` is when Ray
          received the last attempt, ``ran_from`` when that attempt began to run;
        - ``attempts``: how many were started;
        - ``waited_s``: from the request to the last attempt; ``ran_s``: how long that attempt ran;
        - ``lag_s``: from the report to the end of its validation; ``lag_iterations``: how many
          iterations the trial reported meanwhile;
        - ``reason``, ``error``: why there is no score, and the traceback;
        - ``checkpoint``: the path of the checkpoint;
        - ``metrics/...``: the validated metrics.
        """
        return tables.validations(self.timeline.validations)

    @cached_property
    def later_validations(self) -> pd.DataFrame:
        """Return one row per checkpoint that was validated later, with :meth:`validate`.

        Columns:

        - ``name``: the prefix of its metrics' names; ``function``: the validation function;
        - ``id``, ``trial_id``, ``generation``, ``iteration``, ``run``, ``status``, ``requested``,
          ``started``, ``ran_from``, ``ended``, ``attempts``, ``waited_s``, ``ran_s``, ``reason``,
          ``error``, ``checkpoint``: as for ``validations``;
        - ``metrics/...``: the metrics, without the prefix. In ``reports`` they are next to the
          sweep's own, as ``name/...``.
        """
        return tables.validations(self.timeline.later, later=True)

    @cached_property
    def decisions(self) -> pd.DataFrame:
        """Return one row per decision of the scheduler, in order. (For exploits, see ``lineage``.)

        Columns:

        - ``time``; ``trial_id``;
        - ``generation``, ``iteration``: those of the validated checkpoint that was decided on;
        - ``decision``: ``"CONTINUE"``, ``"PAUSE"``, ``"STOP"``, or ``"NOOP"``, which leaves the
          trial as it is;
        - ``score``: that checkpoint's value of the sweep's objective, even if tables are ranked by
          another metric;
        - ``reached``: the iteration that the trial had reported by then.
        """
        return tables.decisions(self.timeline)

    @property
    def lineage(self) -> Lineage:
        """Return the exploits: which trials were overwritten with which checkpoints (PBT)."""
        return Lineage(self.timeline.state.ancestry)

    # Rankings and summaries --------------------------------------------------------------------

    def ranking(self) -> list[Ranked]:
        """Return the trials by their best validated score; trials without a score come last."""
        return self._ranked

    @cached_property
    def _ranked(self) -> list[Ranked]:
        return ranking_of(self.timeline, self.metric, self.mode)

    @property
    def newest_session(self) -> Mapping[str, Any]:
        """Return how the newest session was run; empty if there is none."""
        return self.sessions[-1] if self.sessions else {}

    def best(self, metric: str | None = None, mode: str | None = None) -> BestCheckpoint:
        """Return the best validated checkpoint of the sweep.

        Args:
            metric: A validated metric, by flat name; by default the sweep's.
            mode: ``"min"`` or ``"max"``; by default the sweep's.

        Raises:
            tunekit.errors.ConfigError: If an argument is wrong, or if one is missing and the
                sweep has no default for it.
            tunekit.errors.MetricNotFoundError: If no validation has produced the metric (yet).
            OSError: If the storage fails.

        Example:
            >>> Sweep([]).best("accuracy", "max")
            Traceback (most recent call last):
            tunekit.errors.MetricNotFoundError: No validation has ended with 'accuracy'...
        """
        problems = Problems("Sweep.best")
        metric, mode = self._goal(metric, mode, problems)
        problems.raise_any()
        best = self._first(ranking_of(self.timeline, metric, mode), metric)
        if best is None:
            names = self.timeline.names
            near = closest_name(metric, names)
            raise MetricNotFoundError(
                f"No validation has ended with {metric!r} as a number. "
                f"{f'Did you mean {near!r}? ' if near else ''}Validated metrics so far: "
                f"{format_names(names, [metric])}. Use one of these, or wait for the first "
                "validation to end."
            )
        return best

    def _first(self, ranked: Sequence[Ranked], metric: str) -> BestCheckpoint | None:
        """Return the best checkpoint in a ranking by a metric; None without a score."""
        if not ranked or ranked[0].best is None:
            return None
        return self._found(ranked[0].trial_id, ranked[0].best, metric)

    def pareto(self, metrics: Mapping[str, str] | None = None) -> list[BestCheckpoint]:
        """Return the checkpoints of the Pareto front: no other one is better in every metric.

        If the sweep has constraints and feasible checkpoints, only these count. The best by the
        first metric comes first, and ``score`` is the value of that metric.

        Args:
            metrics: Which values of which validated metrics are better, such as
                ``{"accuracy": "max", "latency_ms": "min"}``, by flat name; by default those of
                :class:`tunekit.schedulers.MOASHA`.

        Raises:
            tunekit.errors.ConfigError: If ``metrics`` is not of this form, or is missing and the
                sweep has a single metric or none.
            OSError: If the storage fails.

        Example:
            >>> Sweep([]).pareto({"accuracy": "max", "latency_ms": "min"})
            []
        """
        problems = Problems("Sweep.pareto")
        objectives = self.objectives if metrics is None else metrics
        problems.goals(objectives)
        problems.raise_any()
        first = next(iter(objectives))
        front = front_of(self.timeline, objectives)
        return [self._found(trial_id, scored, first) for trial_id, scored in front]

    def _found(self, trial_id: str, winning: ScoredCheckpoint, metric: str) -> BestCheckpoint:
        score, path = winning.value(metric), winning.checkpoint
        assert score is not None  # otherwise it would not be the best
        at, checkpoint = self.filesystem, None
        if at is not None and is_inside(at, self.path, path) and exists(at, path):
            checkpoint = checkpoint_at(path, at)
        config, violation = self.timeline.config_of(trial_id, winning.generation), winning.violation
        found, metrics = (trial_id, *winning.place), winning.metrics
        return BestCheckpoint(*found, metric, score, metrics, config, path, checkpoint, violation)

    @showing_messages()
    def validate(
        self,
        validation: ValidationConfig | ValidationFunction,
        checkpoints: int = 10,
        *,
        name: str | None = None,
        replace: bool = False,
    ) -> Sweep:
        """Validate the best checkpoints with another function; return the sweep, read again.

        The new metrics are shown next to the sweep's own, in the row of their checkpoint:
        ``best("robust/accuracy", "max")`` ranks by one of them. The sweep's decisions do not
        change. The scores are recorded next to the sweep's journal, so the sweep may be running, or
        be restored later.

        Validations run on Ray, which is started if necessary. Ctrl-C or SIGTERM ends them; to
        continue, call this again. A checkpoint that has a score of the same function under the same
        name is not validated again. Functions are distinguished only by name.

        Args:
            validation: A validation function, called as ``fn(checkpoint)``, or a
                :class:`~tunekit.ValidationConfig` with its arguments, resources, time limit and
                number of retries. Settings that concern training have no effect.
            checkpoints: A number n: the best kept checkpoint of each of the n best trials is
                validated. Better ones that no longer exist are reported.
            name: The prefix of the metrics' names: ``"robust"`` makes ``accuracy``
                ``robust/accuracy``. By default, the name of the function.
            replace: Whether to hide the earlier scores under this name: of another function, or of
                one whose code or arguments have changed since. They stay in the folder.

        Raises:
            tunekit.errors.ConfigError: If an argument is wrong, if none of the checkpoints is
                there, or if the sweep or other scores already have metrics of that name.
            tunekit.errors.ValidationFailedError: If the first three validations have failed for
                the same reason (unless ``on_failure="ignore"``), or the first with ``"raise"``.
            tunekit.errors.JournalError: If a journal is damaged or of a different version.
            OSError: If the storage fails.

        Example:
            >>> Sweep([]).validate(lambda checkpoint: {"accuracy": 0.9}, name="robust")
            Traceback (most recent call last):
            tunekit.errors.ConfigError: Sweep.validate: the sweep was not read from...
        """
        if self.filesystem is None:
            raise ConfigError("Sweep.validate", [_NO_FOLDER])
        config = validation
        if not isinstance(config, ValidationConfig):
            config = ValidationConfig(config)
        problems, newest = Problems("Sweep.validate"), _reread(self)
        name = function_name(config.fn).rsplit(".", 1)[-1] if name is None else name
        if problems.instance("name", name, str, "Pass 'robust', for example."):
            wrong = name_problem(name, newest.timeline)
            if wrong is not None:
                problems.add(f"name={name!r} {wrong}")
        problems.instance("replace", replace, bool, "Pass True or False.")
        requests = best_requests(
            newest.timeline,
            self.metric,
            self.mode,
            checkpoints,
            filesystem=self.filesystem,
            path=self.path,
            problems=problems,
        )
        recorder = Recorder(
            self.filesystem,
            self.path,
            config,
            {"sweep": began_of(newest.sessions), "name": name},
            call="Sweep.validate",
            series=f"{LATER}/{name}",
            otherwise="Pass another name, or replace=True (--replace) to hide them.",
        )
        validate_all(Source(requests), recorder, config, replace=replace)
        return _reread(self)

    def to_optuna(self, storage: Any = None, study_name: str | None = None) -> optuna.Study:
        """Return the sweep as an Optuna study, for Optuna's figures, importances and dashboard.

        - A trial's value is its validated score; its intermediate values are those of its
          checkpoints, by training iteration. Only validated metrics count. With several metrics
          (:class:`tunekit.schedulers.MOASHA`), it has a value for each, as of the checkpoint that
          is best by the first metric, and no intermediate values.
        - Constraint violations are stored where Optuna reads them for ``best_trial`` and
          ``best_trials``.
        - States: ``COMPLETE``; ``PRUNED``, if it was stopped early; ``FAIL``, if it failed or has
          no score; ``RUNNING``, if it has not ended. The study's ``best_trial`` is the best
          ``COMPLETE`` one, so :meth:`best` may find another.
        - Parameters: the searched hyperparameters, by flat name, as of the checkpoint whose score
          is the value. Their distributions are those of the ``param_space`` of ``tunekit.Tuner``,
          widened where values are outside of it (population based training). If that is not
          recorded, or the searcher defines the space, they are inferred from the values.
          Hyperparameters that are the same in all trials are in the study's user attribute
          ``constants``.
        - User attributes of a trial: ``trial_id``, ``generation``, ``iteration`` and all
          ``metrics`` of the checkpoint; ``exploits``, if it was overwritten with other weights.

        The study is a copy; later events of the sweep do not change it.

        Args:
            storage: Where to keep the study, as for ``optuna.create_study``: a URL such as
                ``"sqlite:///sweeps.db"``, or a storage; None: in memory.
            study_name: The study's name in the storage; by default that of the sweep's folder.

        Raises:
            tunekit.errors.ConfigError: If an argument is wrong, if one is missing and the sweep
                has no default for it, or if the storage has a study of that name.
            tunekit.errors.MissingExtraError: If optuna is not installed.

        Example:
            >>> from tunekit.core.events import TrialAdded
            >>> added = TrialAdded(time=1e9, trial_id="a", config={"lr": 0.1})
            >>> [trial] = Sweep([added], metric="accuracy", mode="max").to_optuna().trials
            >>> trial.state.name, trial.params
            ('RUNNING', {'lr': 0.1})
        """
        problems, objectives = Problems("Sweep.to_optuna"), self.objectives
        problems.optional("study_name", study_name, str, "Pass 'digits', for example.")
        if self.metric is not None or len(objectives) < 2:
            objectives = dict([self._goal(None, None, problems)])
        problems.raise_any()
        from tunekit.reading.optuna_study import study_of

        recorded = (session["space"] for session in reversed(self.sessions) if "space" in session)
        return study_of(
            self.timeline,
            objectives=objectives,
            space=next(recorded, {}),  # the searcher may define the space
            storage=storage,
            study_name=study_name or os.path.basename(self.path.rstrip("/")) or None,
        )

    def _goal(self, metric: str | None, mode: str | None, problems: Problems) -> tuple[str, str]:
        """Return the metric and the mode to rank by, by default the sweep's; add any problems."""
        problems.goal(metric, mode)
        problems.raise_any()
        names, known = self.timeline.names, self.mode if metric in (None, self.metric) else None
        metric, mode = metric or self.metric, mode or known
        if metric is None:
            problems.add(
                "metric is missing, and the sweep has no single objective. Pass the name of a "
                "validated metric."
            )
        if mode is None and metric is not None and names and metric not in names:
            near = closest_name(metric, names)
            problems.add(
                f"metric={metric!r} is not among the validated metrics. "
                f"{f'Did you mean {near!r}? ' if near else ''}Pass one of "
                f"{format_names(names, [metric])}, and the mode if it is not the sweep's metric."
            )
        elif mode is None:
            problems.add("mode is missing, and the sweep has none. Pass 'min' or 'max'.")
        return str(metric), str(mode)

    def trial_errors(self) -> dict[str, str]:
        """Return the last failure of each failed trial as Tune recorded it, by trial id.

        If it cannot be read, the text gives the reason.
        """
        found: dict[str, str] = {}
        if self.filesystem is None:
            return found
        folder = folder_at(self.filesystem, self.path)
        for trial in self.timeline.trials.values():
            if trial.failures:
                name = posixpath.join(trial.folder, _TRIAL_ERROR)
                try:
                    text = folder.read(name, -_MOST_ERROR_BYTES).decode(errors="replace").strip()
                except FileNotFoundError:
                    continue
                except OSError as error:
                    text = f"{name} cannot be read: {error}"
                found[trial.trial_id] = text
        return found

    def summary(self) -> dict[str, Any]:
        """Summarize the sweep in JSON types.

        - ``path``, ``metric``, ``mode``;
        - ``state``: ``"running"``, ``"killed"``, ``"interrupted"`` or ``"finished"``; ``"open"`` if
          it has not ended and no lock shows whether it is running or was killed;
        - ``driver``: the driver that runs the sweep, or ran it until it was killed: its
          ``host`` and ``pid``, and its last heartbeat (``heard``) in seconds since the epoch;
          None if no lock names one;
        - ``began``, ``last``: the times of the sweep's first and last event, in seconds since the
          epoch;
        - ``trials``, ``validations``: their number by status;
        - ``trained_s``, ``trials_waited_s``, ``validations_ran_s``: total seconds;
        - ``iterations``: how many were trained, counting every run; ``unprocessed``: how many
          reports wait for scores;
        - ``exploits``, ``sessions``: their numbers;
        - ``later``: later validations (:meth:`validate`): for each name the ``function``, the names
          of the ``metrics``, and the number of ``validations`` by status;
        - ``followed``: the folder whose checkpoints are evaluated (:func:`tunekit.follow`); None
          for a Tune sweep;
        - ``objectives``: the metrics that the scheduler ranks by, with their modes;
          ``constraints``: the constraints on scores, as text;
        - ``pareto``: the Pareto front of several objectives, as a list of entries like ``best``.
          Each also has its values of the ``objectives``. Empty with a single objective;
        - ``best``: trial, generation, iteration, score, path and configuration of the best
          checkpoint, as in :meth:`best`; None if there is none yet, or no metric to rank by.
        """
        best = self._first(self.ranking(), str(self.metric))
        front = self.pareto() if len(self.objectives) > 1 else ()

        def values_of(one: BestCheckpoint) -> dict[str, Any]:
            return {name: flatten(one.metrics)[name] for name in self.objectives}

        return {
            "path": self.path,
            "followed": self.newest_session.get("followed"),
            "sessions": len(self.sessions),
            "metric": self.metric,
            "mode": self.mode,
            "objectives": self.objectives,
            "constraints": [one.text for one in self.constraints],
            **summary_json(self.timeline, self.driver),
            "best": best and best_json(best),
            "pareto": [{**best_json(one), "objectives": values_of(one)} for one in front],
        }

    def __repr__(self) -> str:
        trials, validations = len(self.timeline.trials), len(self.timeline.validations)
        return f"Sweep({self.path!r}: {trials} trials, {validations} validations)"


@contextmanager
def _without_collections() -> Iterator[None]:
    """Disable the garbage collector: it takes half of the time if many objects are kept."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Follower:
    """Follow a sweep's journal, across restores and new sweeps in the same folder.

    Nothing is written.

    Args:
        filesystem: The storage that the sweep is in.
        path: The experiment's folder there.
        source: As for :class:`Sweep`.
        clock: The clock.
        **goal: ``metric`` and ``mode``, as for :func:`tunekit.load`.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from tunekit.core.events import TrialAdded
        >>> from tunekit.journal.journal import Journal
        >>> from tunekit.journal.storage import LocalFolder
        >>> home = tempfile.mkdtemp()
        >>> journal = Journal(LocalFolder(Path(home)))
        >>> follower = Follower(pyarrow.fs.LocalFileSystem(), home)
        >>> follower.poll(), len(follower.sweep.trials)
        (True, 0)
        >>> journal.append(TrialAdded(time=1e9, trial_id="a"))
        >>> follower.poll(), len(follower.sweep.trials)
        (True, 1)
        >>> follower.poll()
        False
    """

    def __init__(
        self,
        filesystem: pyarrow.fs.FileSystem,
        path: str,
        source: str | None = None,
        *,
        clock: Clock | None = None,
        **goal: Any,
    ):
        self._filesystem, self._path = filesystem, path
        self._folder = folder_at(filesystem, path)
        self._reader = JournalReader(self._folder)
        self._clock = clock or time
        self._options = {"path": path, "filesystem": filesystem, "source": source, **goal}
        self._later: list[Record] = []
        self._pace = Pace(_SHARE)
        #: The sweep as of the last call of :meth:`poll`.
        self.sweep = Sweep((), **self._options)

    @_without_collections()
    def poll(self) -> bool:
        """Read new events; return whether there were any.

        Raises:
            tunekit.errors.JournalError: If the journal is damaged or of a different version.
            OSError: If the storage fails. The next call continues where this one started.
        """
        # Read the lock first: a driver records the sweep's end before it releases the lock.
        driver = driver_of(self._filesystem, self._path, self._clock.time())
        later = self._read_later()
        record = self._reader.read()
        if not record.anew and (record.sessions or later is not self._later):
            self._reader.forget()  # new events may change how earlier ones are shown
            record = self._reader.read()
        changed = record.anew or bool(record.events) or _who(driver) != _who(self.sweep.driver)
        try:
            if record.anew:
                self.sweep = Sweep(record.events, record.sessions, later=later, **self._options)
            elif record.events:
                self.sweep.extend(record.events)
        except Exception:
            self._reader.forget()  # the next call reads all of them
            raise
        self.sweep.driver, self._later = driver, later
        return changed

    def _read_later(self) -> list[Record]:
        """Return the scores of later validations; the same objects if nothing has changed."""
        began = self._clock.monotonic()
        if not self._pace.is_ready(began):
            return self._later
        later = later_records_in(self._folder)
        self._pace.ran(began, self._clock.monotonic())
        return self._later if later == self._later else later


def _who(driver: Driver | None) -> tuple[str, bool] | None:
    return None if driver is None else (driver.token, driver.alive)


def load(
    path: str | Path,
    storage_filesystem: pyarrow.fs.FileSystem | None = None,
    *,
    metric: str | None = None,
    mode: str | None = None,
) -> Sweep:
    """Load a running, finished or crashed sweep.

    This only reads the journal in the experiment's folder; it does not start Ray, run the sweep's
    code or write anything. A running sweep is read as it is at that moment.

    Args:
        path: The experiment's folder, ``results.experiment_path``, or its URI, such as
            ``s3://bucket/digits``.
        storage_filesystem: The filesystem of ``path`` if it is a custom one
            (``results.filesystem``).
        metric: The validated metric to rank by, as a flat name (``"eval/accuracy"``); by default
            the sweep's objective.
        mode: ``"min"`` or ``"max"``; by default the sweep's.

    Raises:
        tunekit.errors.ConfigError: If an argument is wrong, or if the folder has no journal.
        tunekit.errors.JournalError: If the journal is damaged or of a different version.
        OSError: If the storage fails.

    Example:
        >>> load("/no/such/folder")
        Traceback (most recent call last):
        tunekit.errors.ConfigError: tunekit.load: path='/no/such/folder' does not exist...
    """
    problems = Problems("tunekit.load")
    found = check_path(path, storage_filesystem, problems)
    if found is not None and not folder_at(*found).names(SERIES):
        problems.add(f"path={os.fsdecode(path)!r} {path_problem(*found, os.fsdecode(path))}")
    problems.goal(metric, mode)
    problems.raise_any()
    assert found is not None  # otherwise an error was raised
    source = None if storage_filesystem is not None else absolute(os.fsdecode(path))
    follower = Follower(*found, source, metric=metric, mode=mode)
    follower.poll()
    return follower.sweep


def outline(follower: Follower) -> dict[str, Any]:
    """Return a short summary of a sweep, for a list of several.

    Args:
        follower: Follows the sweep; its new events are read first.

    Returns:
        Part of the summary: the ``state`` and so on. If the sweep cannot be read, the state is
        ``"unreadable"``, and there is a ``reason``.
    """
    try:
        follower.poll()
        summary = follower.sweep.summary()
    except Exception as error:  # of this sweep; others are still listed
        return {"state": "unreadable", "reason": f"{type(error).__name__}: {error}"}
    names = ("state", "began", "last", "metric", "mode", "trials", "validations", "best")
    return {name: summary[name] for name in names}


def _reread(sweep: Sweep) -> Sweep:
    """Read the sweep again, ranked by the same metric."""
    where = (sweep.path, sweep.filesystem) if sweep.source is None else (sweep.source,)
    return load(*where, metric=sweep.metric, mode=sweep.mode)
