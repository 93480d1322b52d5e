"""The progress of a sweep in lines: one for each trial that ends, and one for the current state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tunekit.core.constraints import Constraint
from tunekit.core.events import Event, TrialEnded, TrialErrored
from tunekit.core.ranking import Ranked, ranking_of, short_names
from tunekit.core.timeline import Timeline
from tunekit.messages.formatting import (
    differing_names,
    format_duration,
    format_score,
    format_setting,
    printable,
)

#: How many trials are listed at the end.
_LISTED = 5
_WORDS = {"stopped": "stopped early", "terminated": "done", "error": "failed"}


class SweepProgress:
    """Follow a sweep's events, and put its progress into words.

    Args:
        metric: The validated metric to rank by; None if there are several.
        mode: ``"min"`` or ``"max"``.
        constraints: The constraints on scores.
        past: The events of earlier sessions, whose trials are not reported again.

    Example:
        >>> from tunekit.core.events import Reported, TrialAdded
        >>> progress = SweepProgress("accuracy", "max")
        >>> report = {"training_iteration": 3, "time_this_iter_s": 8.0}
        >>> progress.apply([
        ...     TrialAdded(time=1.0, trial_id="x_0"), TrialAdded(time=1.0, trial_id="x_1"),
        ...     Reported(time=9.0, trial_id="x_0", report=report),
        ...     TrialErrored(time=9.5, trial_id="x_0"),
        ... ])
        ['trial 0 failed at iteration 0, no score, after 8 s']
        >>> trials = {"running": 0, "waiting": 1, "starting": 0}
        >>> progress.status(11.0, trials, {"running": 1, "queued": 2}, total=4)
        '1 of 4 ended, 1 waiting | no score yet | 10 s | validations: 1 running, 2 queued'
    """

    def __init__(
        self,
        metric: str | None,
        mode: str | None,
        constraints: Sequence[Constraint] = (),
        past: Iterable[Event] = (),
    ):
        self._metric, self._mode = metric, mode
        self._timeline = Timeline(past, metric, constraints=constraints)
        self._ranked: list[Ranked] | None = None
        # When the first event was recorded, and when the newest trial ended.
        self._since: float | None = None
        self._newest: float | None = None

    def apply(self, events: Sequence[Event]) -> list[str]:
        """Add events; return a line for each trial that has ended."""
        if not events:
            return []
        self._since = self._since or events[0].time
        self._timeline.extend(events)
        self._ranked = None
        ended = [event for event in events if isinstance(event, TrialEnded | TrialErrored)]
        self._newest = ended[-1].time if ended else self._newest
        return [self._ended(event.trial_id) for event in ended]

    def _name(self, trial_id: str) -> str:
        # Within a sweep they differ only at the end; all of them would have to be compared.
        return next(iter(short_names([trial_id]).values()))

    def _ended(self, trial_id: str) -> str:
        trial = self._timeline.trials[trial_id]
        how = trial.shown_status
        best = self._timeline.score(trial_id, self._metric, self._mode) if self._mode else None
        score = "no score"
        if best is not None and self._metric is not None:
            value = format_score(best.value(self._metric), "-")
            score = f"best {self._metric} {value} at {best.iteration}"
        took = format_duration(trial.trained_s + trial.waited_s)
        return printable(
            f"trial {self._name(trial_id)} {_WORDS.get(how, how)} at iteration {trial.iteration}, "
            f"{score}, after {took}"
        )

    @property
    def ranking(self) -> list[Ranked]:
        """Return the trials, the best first."""
        if self._ranked is None:
            self._ranked = ranking_of(self._timeline, self._metric, self._mode)
        return self._ranked

    def status(
        self,
        now: float,
        trials: Mapping[str, int],
        validations: Mapping[str, int],
        *,
        total: int | None,
    ) -> str:
        """Return the current state in a line.

        Args:
            now: The time, in seconds since the epoch.
            trials: How many trials that have not ended do what.
            validations: The numbers of pending validations by status.
            total: How many trials there will be, if that is known.
        """
        ended = sum(trial.ended is not None for trial in self._timeline.trials.values())
        of = f" of {total}" if total else ""
        others = [f", {n} {name}" for name, n in trials.items() if n]
        pending = [f"{n} {name}" for name, n in validations.items() if n]
        spent = now - (self._since or now)
        parts = [
            f"{ended}{of} ended{''.join(others)}",
            self._best(),
            format_duration(spent) + self._rest(now, ended, total),
        ]
        if pending:  # last, because a narrow terminal cuts it off
            parts.append(f"validations: {', '.join(pending)}")
        return printable(" | ".join(parts))

    def _best(self) -> str:
        first = self.ranking[0] if self.ranking else None
        if first is None or first.best is None:
            return "no score yet"
        value = format_score(first.best_value, "-")
        return f"best {value} ({self._name(first.trial_id)}@{first.best.iteration})"

    def _rest(self, now: float, ended: int, total: int | None) -> str:
        """Return an estimate of the rest: as long for each trial as until the newest end."""
        if not total or ended < 2 or ended >= total or self._newest is None:
            return ""
        each = (self._newest - (self._since or self._newest)) / ended
        left = each * (total - ended) - (now - self._newest)
        return f", about {format_duration(max(each, left))} left"

    def closing(self, path: str) -> list[str]:
        """Return the best trials, and what to look at next.

        Args:
            path: The experiment's folder.
        """
        best = [one for one in self.ranking if one.best is not None]
        if not best:
            return [f"no trial has a score: tunekit status {path}"]
        varied = differing_names([one.hyperparameters for one in self.ranking])
        shown = best[:_LISTED]
        lines = [f"the best {len(shown)} of {len(self.ranking)} trials by {self._metric}:"]
        for one in shown:
            assert one.best is not None
            settings = (f"{n}={format_setting(one.hyperparameters.get(n))}" for n in varied)
            lines.append(
                f"{one.rank:>4}  {format_score(one.best_value, '-'):<8} trial "
                f"{self._name(one.trial_id)} at iteration {one.best.iteration}  "
                f"{' '.join(settings)}".rstrip()
            )
        return [*map(printable, lines), f"the learning curves: tunekit report {path} --open"]
