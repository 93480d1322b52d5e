"""Whatever happens in a sweep, in any order, and however often its driver is killed."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.broken import broken, undelivered
from tests.seeds import SCHEDULES
from tunekit.core.commands import Ask, Command, Deliver, Notify, Validate
from tunekit.core.delivery import Completion, Scored
from tunekit.core.engine import Engine, JudgedBy
from tunekit.core.events import (
    CheckpointSaved,
    Chosen,
    Decided,
    EndDelivered,
    Event,
    Exploited,
    Happened,
    Reminded,
    Reported,
    ScoreDelivered,
    TrialEnded,
    TrialErrored,
    TrialFailed,
    TrialRetried,
    ValidationEnded,
    ValidationKey,
    ValidationRequested,
    Waited,
)
from tunekit.core.retention import for_clone, for_validation
from tunekit.core.validation import Request

TRIALS = "ab"
#: What is kept in an engine, and is no part of what it knows.
NOT_KNOWN = {"_commands", "_from_before"}


class Killed(Exception):
    """The driver has been killed."""


def step(method: Callable[..., None]) -> Callable[..., None]:
    """Let a rule draw what it needs, and let it be killed after any line that it writes."""

    @functools.wraps(method)
    def stepped(self: Sweep, data: Any) -> None:
        self.data, self.goes_on = data, False
        self.lines_left = data.draw(st.sampled_from([0] * 8 + [1, 2, 3]), "killed after lines")
        try:
            method(self)
        except Killed:
            self.restore()
        self.lines_left, self.goes_on = 0, True

    return rule(data=st.data())(stepped)


def known(engine: Engine) -> dict[str, Any]:
    """Return what an engine knows, to be compared."""
    for trial in TRIALS:
        engine.record(trial)
    return {name: _plain(one) for name, one in vars(engine).items() if name not in NOT_KNOWN}


def _plain(thing: Any) -> Any:
    if isinstance(thing, dict):
        return {key: _plain(one) for key, one in thing.items()}
    if isinstance(thing, list | tuple):
        return [_plain(one) for one in thing]
    if callable(thing):
        return None
    own = type(thing).__module__.startswith("tunekit") and not isinstance(thing, Happened)
    return _plain(vars(thing)) if own else thing


class Sweep(RuleBasedStateMachine):
    """Carries out what the engine says, and knows by itself what must come of it."""

    @initialize(when=st.sampled_from([1, 1, 2, "decisions"]), all_count=st.booleans())
    def begin(self, when: int | str, all_count: bool) -> None:
        self.when, self.all_count = when, all_count
        self.lines: list[Event] = []
        self.lines_left = 0
        self.iteration = dict.fromkeys(TRIALS, 0)
        self.checkpoints: dict[str, str] = {}
        self.used: dict[str, bool] = {}
        self.scores: dict[str, float | None] = {}
        # By trial: the names of what it has asked for, by place; a newer run replaces an older one.
        self.asked: dict[str, dict[tuple[int, int], str]] = {trial: {} for trial in TRIALS}
        self.never_due: set[str] = set()
        self.delivered: dict[str, list[tuple[int, int]]] = {trial: [] for trial in TRIALS}
        self.notified: dict[str, list[str]] = defaultdict(list)
        self.offered: set[tuple[str, int, int]] = set()
        self.stopped: set[str] = set()
        self.again: set[str] = set()
        self.begin_session()

    def begin_session(self) -> None:
        self.engine = Engine(self.when)
        self.engine.apply(JudgedBy(frozenset({"accuracy"}), self.all_count))

    # What the driver does ------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        self.lines.append(event)
        commands = self.engine.apply(event)
        assert list(broken(self.engine)) == [], event
        self.lines_left -= 1
        if self.lines_left == 0:
            raise Killed
        for command in commands:
            self.perform(command)

    def perform(self, command: Command) -> None:
        match command:
            case Ask(request):
                self.ask(request)
            case Validate(request):
                assert (
                    request.id in self.engine.backlog.unfinished and request.id not in self.scores
                )
            case Notify(outcome):
                self.notified[outcome.request.trial_id].append(outcome.request.id)
            case Deliver(trial):
                self.deliver(trial)

    def ask(self, request: Request) -> None:
        trial = request.trial_id
        self.asked[trial][request.place] = request.id
        if self.delivered[trial] and self.delivered[trial][-1] >= request.place:
            self.never_due.add(request.id)
        self.emit(ValidationRequested.of(request))

    def deliver(self, trial: str) -> None:
        while due := self.engine.delivery.due(trial):
            if isinstance(due, Completion):
                self.check_end(trial, due)
                self.emit(EndDelivered(trial_id=trial))
                continue
            self.check_due(trial, due)
            self.delivered[trial].append(due.request.place)
            decision = self.data.draw(st.sampled_from(["CONTINUE"] * 8 + ["PAUSE", "STOP"]))
            if decision == "STOP":
                self.stopped.add(trial)
            self.emit(ScoreDelivered.of(due.request, decision=decision))

    def restore(self) -> None:
        """Take the lines into another engine, which then knows what this one knew."""
        before = self.engine
        self.begin_session()
        self.lines_left = 0
        for event in self.lines:
            self.engine.apply(event)
        assert known(self.engine) == known(before)
        for trial in TRIALS:
            delivered = [
                one.place
                for one in self.lines
                if isinstance(one, ScoreDelivered) and one.trial_id == trial
            ]
            self.delivered[trial] = delivered
            self.back(trial)
        for command in self.engine.reconcile():
            self.perform(command)
        for trial in TRIALS:
            self.deliver(trial)

    def back(self, trial: str) -> None:
        """Let a trial start from its newest checkpoint, or from where its weights came from."""
        record, former = self.engine.record(trial), self.iteration[trial]
        generation = self.engine.ancestry.generation(trial)
        first = max(
            (
                one.iteration
                for one in self.lines
                if isinstance(one, Exploited)
                and (one.trial_id, one.generation) == (trial, generation)
            ),
            default=0,
        )
        saved = (0, 0) if record.saved is None else record.saved[:2]
        newest = saved[1] if saved[0] == generation and record.clone is None else first
        where = self.data.draw(st.sampled_from([newest, newest, first]), "starts at")
        self.iteration[trial] = where
        if former != where:
            self.again.add(trial)

    # What must be so -----------------------------------------------------------------------------

    def check_due(self, trial: str, due: Scored) -> None:
        request, delivered = due.request, self.delivered[trial]
        assert due.result["accuracy"] == self.scores[request.id]
        assert due.result["training_iteration"] == request.iteration
        assert trial not in self.stopped, "the scheduler has stopped it"
        offered = [one for one in self.offered if one[:2] == (trial, request.generation)]
        assert max(offered) >= (trial, *request.place), "it goes with the end of its trial"
        assert request.generation == self.engine.ancestry.generation(trial)
        assert not delivered or delivered[-1] < request.place, "out of order"
        for place, name in self.asked[trial].items():
            if place[0] != request.generation or place >= request.place or name in self.never_due:
                continue
            waits = self.all_count or self.used[name]
            assert name in self.scores or not waits, f"{name} has not ended"
            if self.scores.get(name) is not None and waits:
                assert place in delivered, f"{name} was passed over"

    def check_end(self, trial: str, due: Completion) -> None:
        engine, generation = self.engine, self.engine.ancestry.generation(trial)
        own = {p: name for p, name in self.asked[trial].items() if p[0] == generation}
        last = max(self.delivered[trial], default=(0, 0))
        waited = {name for place, name in own.items() if place > last}
        assert waited <= self.scores.keys(), "a validation has not ended"
        found = [self.scores.get(name) for _, name in sorted(own.items())]
        if trial not in self.again and self.all_count:
            newest = [score for score in found if score is not None][-1:]
            scored = {p for p, name in own.items() if self.scores.get(name) is not None}
            missed = {p for p in scored if (trial, *p) in self.offered} - {*self.delivered[trial]}
            assert trial in self.stopped or not missed, "a score was never delivered"
            assert newest == ([] if due.result is None else [due.result["accuracy"]])
        assert engine.delivery.completed(trial) and not engine.delivery.over(trial)

    @invariant()
    def what_is_needed_is_kept(self) -> None:
        engine = getattr(self, "engine", None)
        for name, request in {} if engine is None else self.unfinished().items():
            assert engine.leases.held(for_validation(name)) == request.path
            assert name not in self.scores, "both pending and ended"
        for trial in TRIALS if engine is not None else ():
            record, generation = engine.record(trial), engine.ancestry.generation(trial)
            if record.clone is not None:
                assert engine.leases.held(for_clone(trial, generation)) == record.clone
        assert engine is None or not undelivered(engine), "it is due"

    @invariant()
    def loggers_hear_of_each_once_in_order(self) -> None:
        for trial, names in getattr(self, "notified", {}).items():
            assert len(set(names)) == len(names)
            places = [ValidationKey.parse(name)[1:4] for name in names]
            assert trial in self.again or places == sorted(places)

    def teardown(self) -> None:
        """All ends: then nothing waits, and nothing is kept but what trials are restored from."""
        if not getattr(self, "goes_on", False):
            return
        self.lines_left = 0
        self.data = _Continue()
        for trial in TRIALS:
            if self.engine.record(trial).failed:
                self.emit(TrialRetried(trial_id=trial))
            self.end(trial)
        while unfinished := self.unfinished():
            self.validated(next(iter(unfinished)), 0.5)
        for trial in TRIALS:
            assert self.engine.delivery.over(trial) and not self.engine.delivery.waits(trial)
        clones = {self.engine.record(trial).clone for trial in TRIALS}
        assert set(self.engine.leases) == clones - {None}

    # What happens --------------------------------------------------------------------------------

    def unfinished(self) -> dict[str, Request]:
        return dict(self.engine.backlog.unfinished)

    def runs(self, trial: str) -> bool:
        return not self.engine.delivery.completed(trial) and not self.engine.record(trial).failed

    def end(self, trial: str, *, removed: bool = False) -> None:
        if not self.engine.delivery.completed(trial):
            self.emit(TrialEnded(trial_id=trial, removed=removed))
        self.deliver(trial)

    def validated(self, name: str, score: float | None) -> None:
        self.scores[name] = score
        if score is None:
            self.emit(ValidationEnded(id=name, status="failed"))
        else:
            self.emit(ValidationEnded(id=name, status="validated", metrics={"accuracy": score}))

    def report(self, trial: str, *, offered: bool) -> None:
        generation = self.engine.ancestry.generation(trial)
        self.iteration[trial] += 1
        report = {"training_iteration": self.iteration[trial], "generation": generation}
        place = (trial, generation, self.iteration[trial])
        self.offered = self.offered | {place} if offered else self.offered - {place}
        self.emit(Reported(trial_id=trial, report=report, offered=offered))

    def save(self, trial: str) -> None:
        iteration, generation = self.iteration[trial], self.engine.ancestry.generation(trial)
        run = self.engine.history.run_of(trial, iteration, generation)
        name = f"{trial}:{generation}:{iteration}:{run}"
        self.used[name] = self.data.draw(st.booleans(), "used")
        place = {"generation": generation, "iteration": iteration, "run": run}
        self.checkpoints[trial] = path = f"{trial}/{generation}/{iteration}/{run}"
        self.emit(
            CheckpointSaved(trial_id=trial, id=name, **place, checkpoint=path, used=self.used[name])
        )

    def one_of(self, trials: Iterable[str]) -> str | None:
        among = sorted(trials)
        return self.data.draw(st.sampled_from(among), "trial") if among else None

    def one_that_runs(self) -> str | None:
        return self.one_of(filter(self.runs, TRIALS))

    @step
    def a_trial_reports(self) -> None:
        if trial := self.one_that_runs():
            self.report(trial, offered=True)
            if self.data.draw(st.sampled_from([True, True, True, False]), "saves"):
                self.save(trial)

    @step
    def some_trials_report(self) -> None:
        for trial in filter(self.runs, TRIALS):
            self.report(trial, offered=True)
            self.save(trial)

    @step
    def a_validation_ends(self) -> None:
        if name := self.one_of(self.unfinished()):
            self.validated(name, self.data.draw(st.sampled_from([None, 0.1, 0.2, 0.3, 0.4])))

    @step
    def the_newest_validation_ends(self) -> None:
        if unfinished := self.unfinished():
            self.validated(list(unfinished)[-1], 0.5)

    @step
    def something_else_happens(self) -> None:
        often = [self.a_trial_fails, self.a_trial_fails, self.the_driver_is_killed]
        failed = [self.a_trial_that_failed_starts_again] * 3 + [
            self.a_trial_that_failed_is_given_up
        ]
        rare = [self.a_trial_ends] * 2 + [self.what_changes_little]
        if any(self.engine.record(trial).failed for trial in TRIALS):
            often += failed * 3
        self.data.draw(st.sampled_from([*often * 2, *rare]))()

    def a_trial_ends(self) -> None:
        trial = self.one_that_runs()
        how = self.data.draw(st.sampled_from(["done", "saves", "removed", "stopped"]))
        if not trial or self.iteration[trial] < 2:
            return
        if how in ("done", "saves"):
            self.report(trial, offered=False)
            if how == "saves":
                self.save(trial)
        elif how == "stopped":
            self.stopped.add(trial)
            self.emit(Decided(trial_id=trial, decision="STOP"))
            return  # it runs until Tune has stopped it
        else:
            self.stopped.add(trial)
        self.end(trial, removed=how == "removed")

    @step
    def a_trial_is_overwritten(self) -> None:
        trial = self.one_that_runs()
        donor = self.one_of(self.checkpoints.keys() - {trial})
        if not trial or not donor:
            return
        saved = self.engine.record(donor).saved
        assert saved is not None
        generation = self.engine.ancestry.generation(trial) + 1
        reached, self.iteration[trial] = self.iteration[trial], saved[1]
        self.emit(
            Exploited(
                trial_id=trial,
                generation=generation,
                reached=reached,
                donor_id=donor,
                donor_generation=saved[0],
                iteration=saved[1],
                checkpoint=self.checkpoints[donor],
            )
        )

    def a_trial_fails(self) -> None:
        trial = self.one_that_runs()
        if trial and trial not in self.stopped:
            self.emit(TrialFailed(trial_id=trial))

    def a_trial_that_failed_starts_again(self) -> None:
        if trial := self.one_of(one for one in TRIALS if self.engine.record(one).failed):
            self.back(trial)
            self.emit(TrialRetried(trial_id=trial))

    def a_trial_that_failed_is_given_up(self) -> None:
        if trial := self.one_of(one for one in TRIALS if self.engine.record(one).failed):
            self.stopped.add(trial)
            self.emit(TrialErrored(trial_id=trial))

    def what_changes_little(self) -> None:
        trial = self.data.draw(st.sampled_from(TRIALS))
        self.emit(Waited(trial_id=trial, seconds=1.0))
        self.emit(Reminded(trial_id=trial, iteration=1, decision="CONTINUE"))
        self.emit(Chosen(trial_id=trial, runs=True))

    def the_driver_is_killed(self) -> None:
        raise Killed


class _Continue:
    """Draws what lets all go on."""

    def draw(self, strategy: Any, label: str = "") -> Any:
        return "CONTINUE"


TestSweep = Sweep.TestCase
TestSweep.settings = settings(max_examples=150 * SCHEDULES, stateful_step_count=40, deadline=None)
