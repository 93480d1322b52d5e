"""Read a running, finished or crashed sweep as tables."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow.fs

from tunekit.core.constraints import Constraint
from tunekit.core.events import Event, Home
from tunekit.core.metrics import closest_name, flatten, format_names
from tunekit.core.ranking import Ranked, front_of, ranking_of
from tunekit.core.summaries import ScoredCheckpoint
from tunekit.core.timeline import Timeline
from tunekit.errors import MetricNotFoundError, extra
from tunekit.journal.journal import Record
from tunekit.journal.lock import Driver
from tunekit.journal.paths import exists
from tunekit.journal.safe_files import is_inside
from tunekit.journal.storage import folder_at
from tunekit.messages.problems import Problems
from tunekit.reading.findings import BestCheckpoint, best_json, summary_json
from tunekit.reading.later import began_of, rows_of

if TYPE_CHECKING:
    import pandas

    from tunekit.reading.lineage import Lineage

    with extra("optuna"):
        import optuna

_TRIAL_ERROR = "error.txt"  # Tune writes this into the folder of a failed trial
# The end of that file has the last failure.
_MOST_ERROR_BYTES = 64 * 1024


def _tables() -> Any:
    """Return the module that builds tables; it imports pandas."""
    from tunekit.reading import tables

    return tables


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
    def trials(self) -> pandas.DataFrame:
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
        return _tables().trials(self.timeline, self.ranking())

    @cached_property
    def reports(self) -> pandas.DataFrame:
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
        return _tables().reports(self.timeline)

    @cached_property
    def validations(self) -> pandas.DataFrame:
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
        return _tables().validations(self.timeline.validations)

    @cached_property
    def later_validations(self) -> pandas.DataFrame:
        """Return one row per checkpoint that was validated later, with :func:`tunekit.validate`.

        Columns:

        - ``name``: the prefix of its metrics' names; ``function``: the validation function;
        - ``id``, ``trial_id``, ``generation``, ``iteration``, ``run``, ``status``, ``requested``,
          ``started``, ``ran_from``, ``ended``, ``attempts``, ``waited_s``, ``ran_s``, ``reason``,
          ``error``, ``checkpoint``: as for ``validations``;
        - ``metrics/...``: the metrics, without the prefix. In ``reports`` they are next to the
          sweep's own, as ``name/...``.
        """
        return _tables().validations(self.timeline.later, later=True)

    @cached_property
    def decisions(self) -> pandas.DataFrame:
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
        return _tables().decisions(self.timeline)

    @property
    def lineage(self) -> Lineage:
        """Return the exploits: which trials were overwritten with which checkpoints (PBT)."""
        from tunekit.reading.lineage import Lineage  # it imports pandas

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
            if metric in names:
                raise MetricNotFoundError(
                    f"{metric!r} was validated, but Tune has processed no result with it as a "
                    "number. Wait for the first one, or restore the sweep if it has ended."
                )
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
        at = self.filesystem
        if at is not None and not (is_inside(at, self.path, path) and exists(at, path)):
            at = None
        config, violation = self.timeline.config_of(trial_id, winning.generation), winning.violation
        found, metrics = (trial_id, *winning.place), winning.metrics
        return BestCheckpoint(*found, metric, score, metrics, config, path, at, violation)

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
            study_name=study_name or posixpath.basename(self.path.rstrip("/")) or None,
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
        - ``later``: later validations (:func:`tunekit.validate`): for each name the ``function``,
          the names of the ``metrics``, and the number of ``validations`` by status;
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

    def _repr_html_(self) -> str:
        """Return the sweep for a notebook's cell."""
        from tunekit.reading.cell import render  # it draws charts

        return render(self.summary(), self.ranking(), self.timeline)

    def __repr__(self) -> str:
        trials, validations = len(self.timeline.trials), len(self.timeline.validations)
        return f"Sweep({self.path!r}: {trials} trials, {validations} validations)"
