"""Sweeps in virtual time, by recorded curves."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pandas as pd
import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler, PopulationBasedTraining

import tunekit
from tunekit._ray.local import _LocalActors
from tunekit.clock import FakeClock
from tunekit.core.events import (
    AttemptBegan,
    AttemptStarted,
    Event,
    Reported,
    TrialAdded,
    TrialEnded,
    ValidationEnded,
    ValidationRequested,
    Waited,
)
from tunekit.core.validation import Attempt, Request
from tunekit.lab.executor import Room, VirtualExecutor
from tunekit.lab.measured import Measured

LENGTH = 9


def table(seed: int = 0, trials: int = 18, length: int = LENGTH) -> pd.DataFrame:
    """Noisy curves that cross."""
    rng = random.Random(seed)
    rows = []
    for trial in range(trials):
        talent, speed = rng.random(), rng.uniform(0.2, 0.9)
        for i in range(1, length + 1):
            accuracy = talent * (1 - speed**i) + rng.gauss(0, 0.02)
            rows.append((f"t{trial}", i, accuracy, 1 - accuracy, rng.uniform(0.3, 0.5)))
    return pd.DataFrame(rows, columns=["trial", "training_iteration", "accuracy", "loss", "took"])


def judged(scheduler=None, **more) -> tune.TuneConfig:
    return tune.TuneConfig(metric="accuracy", mode="max", scheduler=scheduler, **more)


def asha() -> ASHAScheduler:
    return ASHAScheduler(
        max_t=LENGTH, grace_period=1, reduction_factor=3, time_attr="training_iteration"
    )


def validating(**settings) -> tunekit.ValidationConfig:
    return tunekit.ValidationConfig(fn=lambda checkpoint: {}, **settings)


def only_decisions(**settings) -> dict:
    return {
        "validation_config": validating(when="decisions", **settings),
        "checkpoint_policy": tunekit.AtDecisions(),
    }


def test_inline_each_iteration_takes_training_and_validation():
    ran = tunekit.lab.simulate(
        table(trials=4), tune_config=judged(), train_s=2, validate_s=1, slots=2, inline="every"
    )
    assert ran.makespan_s == pytest.approx(2 * LENGTH * 3)
    assert (ran.iterations, ran.validations) == (4 * LENGTH, 4 * LENGTH)
    assert ran.training_busy == pytest.approx(2 / 3)
    assert ran.validation_busy == pytest.approx(1 / 3)


def test_beside_training_a_sweep_takes_what_is_the_longer_of_the_two():
    options = {"tune_config": judged(), "train_s": 1, "slots": 4, "validation_slots": 4}
    quick = tunekit.lab.simulate(table(trials=4), validate_s=0.5, **options)
    slow = tunekit.lab.simulate(table(trials=4), validate_s=2, **options)
    assert quick.makespan_s == pytest.approx(LENGTH + 0.5, abs=0.01)
    # When training has ended, validations have its slots, too.
    assert LENGTH + 2 < slow.makespan_s < 2 * LENGTH


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("validate_s", [0.1, 0.4, 0.8])
def test_decisions_in_the_place_of_trials_are_those_of_validating_inline_at_rungs(seed, validate_s):
    options = {
        "tune_config": judged(asha()),
        "train_s": "took",  # no two reports at the same time
        "validate_s": validate_s,
        "slots": 4,
    }
    inline = tunekit.lab.simulate(table(seed), inline="decisions", **options)
    beside = tunekit.lab.simulate(table(seed), **options, **only_decisions())
    what = ["trial", "iteration", "score", "decision"]
    at_rungs = inline.decisions[inline.decisions.iteration.isin([1, 3, 9])]
    assert beside.decisions[what].values.tolist() == at_rungs[what].values.tolist()
    assert beside.makespan_s == pytest.approx(inline.makespan_s, rel=0.01)
    # At the end, when no trial is left to begin, one may train on in vain where places are idle.
    assert beside.iterations_after_stop <= 2
    assert beside.iterations - beside.iterations_after_stop == inline.iterations
    assert beside.best == inline.best


@pytest.mark.parametrize("scheduler", [asha, HyperBandScheduler])
@pytest.mark.parametrize("on_pending", ["auto", "wait", "continue"])
def test_every_checkpoint_has_an_outcome(scheduler, on_pending):
    kind = {} if scheduler is asha else {"max_t": LENGTH}
    ran = tunekit.lab.simulate(
        table(),
        tune_config=judged(scheduler(**kind)),
        validation_config=validating(on_pending=on_pending),
        slots=3,
    )
    assert ran.validations + ran.skipped == ran.iterations
    assert len(ran.scores) == ran.validations
    if on_pending == "wait":
        assert ran.iterations_after_stop == 0


def test_late_scores_cost_iterations_and_the_bound_limits_them():
    late = tunekit.lab.simulate(
        table(),
        tune_config=judged(asha()),
        validation_config=validating(on_pending="continue"),
        train_s=0.1,
        validate_s=5.0,
        slots=6,
        validation_slots=2,
    )
    assert late.iterations_after_stop > 0
    # Nobody is trained past the rung after the one whose score is pending.
    stopped = late.decisions[late.decisions.decision == "STOP"]
    assert (stopped.reached <= stopped.iteration * 3).all()


def test_what_was_not_recorded_is_counted():
    curves = table(trials=3)
    short = curves[(curves.trial != "t1") | (curves.training_iteration <= 4)]
    assert tunekit.lab.simulate(curves, tune_config=judged()).extrapolated == 0
    assert tunekit.lab.simulate(short, tune_config=judged()).extrapolated == LENGTH - 4


def test_trials_without_a_score_are_left_out():
    """As of a sweep that was interrupted before they had one."""
    curves = table(trials=4)
    curves.loc[curves["trial"] == "t1", "accuracy"] = float("nan")
    ran = tunekit.lab.simulate(curves, tune_config=judged())
    assert ran.iterations == 3 * LENGTH
    assert {score.trial for score in ran.scores} == {"t0", "t2", "t3"}
    curves["accuracy"] = "high"
    with pytest.raises(
        tunekit.errors.ConfigError, match="'accuracy' is not a column of curves with numb"
    ):
        tunekit.lab.simulate(curves, tune_config=judged())


def test_times_may_be_columns():
    curves = table(trials=1)
    ran = tunekit.lab.simulate(
        curves, tune_config=judged(), train_s="took", validate_s=0, slots=1, inline="every"
    )
    assert ran.makespan_s == pytest.approx(curves.took.sum())


def test_a_score_is_found_when_it_is_known_and_regret_is_what_it_falls_short():
    rows = [("a", 1, 0.1), ("a", 2, 0.5), ("b", 1, 0.2), ("b", 2, 0.3)]
    curves = pd.DataFrame(rows, columns=["trial", "training_iteration", "accuracy"])
    ran = tunekit.lab.simulate(
        curves, tune_config=judged(), train_s=1, validate_s=1, inline="every"
    )
    assert (ran.best, ran.best_score, ran.regret) == ("a", 0.5, 0.0)
    assert (ran.time_to(0.2), ran.time_to(0.4), ran.time_to(0.6)) == (2.0, 4.0, None)
    losing = tunekit.lab.simulate(
        curves,
        tune_config=judged(ASHAScheduler(max_t=2, grace_period=1, reduction_factor=2)),
        slots=1,
        inline="every",
    )
    assert losing.regret in (0.0, pytest.approx(0.2))


def beside_one_slot(trials: int, on_pending: str) -> tunekit.lab.Simulation:
    """One place for trials, and another for validations, which take as long as an iteration."""
    return tunekit.lab.simulate(
        table(trials=trials),
        tune_config=judged(asha(), reuse_actors=True),
        **only_decisions(on_pending=on_pending),
        train_s=1,
        validate_s=1,
        slots=1,
        validation_slots=1,
    )


def test_a_trial_trains_on_while_its_score_is_pending_where_nobody_could_use_its_place():
    stands, trains = beside_one_slot(1, "wait"), beside_one_slot(1, "auto")
    # It waits at the rungs 1 and 3, and both wait for the last score.
    assert stands.makespan_s == pytest.approx(LENGTH + 2 + 1, abs=0.01)
    assert trains.makespan_s == pytest.approx(LENGTH + 1, abs=0.01)
    assert list(trains.decisions["reached"]) == [2, 4, LENGTH]
    assert list(trains.decisions["decision"]) == list(stands.decisions["decision"])


def test_a_trial_does_not_train_on_where_another_could_use_its_place():
    first = beside_one_slot(2, "auto").decisions.iloc[0]
    assert (first["iteration"], first["reached"]) == (1, 1)


def first_decisions(start_s: float, validate_s: float, **options) -> list[float]:
    """When four trials are decided first, of which one trains at a time; two validate beside."""
    ran = tunekit.lab.simulate(
        table(trials=4),
        **{"tune_config": judged(asha()), **only_decisions(), **options},
        train_s=1,
        validate_s=validate_s,
        slots=1,
        validation_slots=2,
        start_s=start_s,
    )
    first = ran.decisions.drop_duplicates("trial")
    assert list(first["trial"]) == ["t0", "t1", "t2", "t3"]
    return list(first["time_s"])


def test_another_trial_starts_in_the_place_of_one_that_waits_for_longer():
    _, second, third, _ = first_decisions(start_s=0.5, validate_s=3)
    assert third - second < 3, "their validations overlap"


def test_no_trial_starts_in_the_place_of_one_that_waits_for_less():
    _, second, third, _ = first_decisions(start_s=4, validate_s=0.5)
    assert third - second == pytest.approx(4 + 1 + 0.5, abs=0.01)


def test_the_users_scheduler_is_not_changed():
    scheduler = asha()
    first = tunekit.lab.simulate(table(), tune_config=judged(scheduler))
    second = tunekit.lab.simulate(table(), tune_config=judged(scheduler))
    assert first == second


def test_who_lets_another_trial_go_on_in_its_place_pays_for_its_resume():
    options = {"tune_config": judged(asha(), reuse_actors=True), "slots": 3}
    options["validation_slots"] = 1
    free = tunekit.lab.simulate(table(), **options, **only_decisions(on_pending="wait"))
    dear = tunekit.lab.simulate(
        table(), **options, **only_decisions(on_pending="wait"), resume_s=3.0
    )
    assert dear.makespan_s > free.makespan_s + 3.0


@pytest.mark.parametrize(("reuses", "starts"), [(False, 4), (True, 1)])
def test_a_trial_that_gets_no_other_ones_process_starts_one(reuses, starts):
    ran = tunekit.lab.simulate(
        table(trials=4),
        tune_config=judged(reuse_actors=reuses),
        train_s=1,
        validate_s=0,
        slots=1,
        inline="every",
        start_s=5,
    )
    assert ran.makespan_s == pytest.approx(4 * LENGTH + starts * 5, abs=0.01)


def test_each_trial_after_the_first_goes_on_in_the_process_of_one_that_has_ended():
    ran = tunekit.lab.simulate(
        table(trials=5),
        tune_config=judged(reuse_actors=True),
        train_s=1,
        validate_s=0.01,
        slots=2,
        start_s=5,
    )
    assert ran.makespan_s == pytest.approx(5 + 3 * LENGTH, abs=0.5)


def test_a_trial_that_goes_on_in_a_kept_process_does_not_start_another(monkeypatch):
    starts, start = [], _LocalActors._start

    def starting(actors, actor, *known):
        starts.append(actor)
        return start(actors, actor, *known)

    monkeypatch.setattr(_LocalActors, "_start", starting)
    tunekit.lab.simulate(
        table(trials=5),
        tune_config=judged(asha(), reuse_actors=True),
        **only_decisions(evaluators=1),
        train_s=1,
        validate_s=2,
        slots=2,
        start_s=2,
    )
    assert len(starts) == 1, "the other slot is for validations"


def test_a_validation_starts_a_process_where_it_takes_longer_than_a_trial_may_stand_still():
    ran = tunekit.lab.simulate(
        table(trials=1),
        tune_config=judged(),
        train_s=4,
        validate_s=2,
        slots=1,
        validation_slots=1,
        start_s=1,
    )
    scores = [score.time_s for score in ran.scores]
    # The trial starts for 1 s and trains 4; its first validation, of which nothing is known, takes
    # 2 in its process. The next one starts another, which the others use.
    assert scores == pytest.approx(
        [7, 3 + 8 + 1 + 2] + [3 + 4 * i + 2 for i in range(3, LENGTH + 1)], abs=0.01
    )


def test_a_clone_goes_on_along_its_donors_curve():
    pbt = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": tune.uniform(0, 1)},
        log_config=False,
    )
    ran = tunekit.lab.simulate(table(trials=4), tune_config=judged(pbt), slots=4)
    assert ran.validations > 4 * LENGTH // 2


def test_a_swept_folder_is_played_with_its_own_times(tmp_path):
    from ray.tune.schedulers import FIFOScheduler

    from tests.sweeps import sweep

    ran = sweep(tmp_path, FIFOScheduler(), trials=3, slots=3, validation_s=lambda attempt: 0.5)
    again = tunekit.lab.simulate(tunekit.load(ran.home), train_s=1.0, slots=3, validation_slots=3)
    assert again.iterations == sum(ran.lengths().values())
    assert again.makespan_s == pytest.approx(ran.clock.monotonic(), rel=0.15)
    best = tunekit.load(ran.home).best()
    assert (again.best, again.best_score) == (best.trial_id, best.score)


# Recorded machines ------------------------------------------------------------------------------

START_S, OWN_START_S, IMPORT_S = 5.0, 1.0, 2.0


@dataclass
class Written:
    """A journal that is written line by line."""

    events: list[Event] = field(default_factory=list)
    gpus: int = 0

    def trial(self, name: str, added: float) -> None:
        takes = {"CPU": 1.0, "GPU": 1.0} if self.gpus else {"CPU": 1.0}
        self.events.append(TrialAdded(time=added, trial_id=name, folder=name, resources=takes))

    def report(self, name: str, iteration: int, time: float, pid: int | None = None) -> None:
        report = {"training_iteration": iteration, "iterations_since_restore": iteration}
        report |= {"time_this_iter_s": 1.0, "pid": hash(name) if pid is None else pid}
        self.events.append(Reported(time=time, trial_id=name, report=report))

    def validation(
        self, name: str, iteration: int, asked: float, began: float, ended: float
    ) -> None:
        own = f"{name}:0:{iteration}:1"
        self.events += [
            ValidationRequested(
                time=asked, id=own, trial_id=name, iteration=iteration, checkpoint="c"
            ),
            AttemptStarted(time=asked, id=own, attempt=1),
            AttemptBegan(time=began, id=own, attempt=1),
            ValidationEnded(
                time=ended,
                id=own,
                status="validated",
                metrics={"accuracy": iteration / 10},
                attempts=1,
                ran_s=ended - began,
            ),
        ]

    def waited(self, name: str, time: float, seconds: float) -> None:
        self.events.append(Waited(time=time, trial_id=name, seconds=seconds))

    def end(self, name: str, time: float) -> None:
        self.events.append(TrialEnded(time=time, trial_id=name))

    def sweep(self, cpus: int, scheduler: str = "FIFOScheduler", **validation) -> tunekit.Sweep:
        session = {
            "time": 0.0,
            "cluster": {"resources": {"CPU": float(cpus), "GPU": float(self.gpus)}},
            "judged": ["accuracy"],
            "mode": "max",
            "scheduler": {"type": scheduler},
            "validation": {"when": 1, "on_pending": "auto", "resources": {}, **validation},
        }
        return tunekit.Sweep(sorted(self.events, key=lambda event: event.time), [session])

    @property
    def last(self) -> float:
        return max(event.time for event in self.events)


def in_trials(cpus: int = 2, trials: int = 4, length: int = 3, gpus: int = 0) -> Written:
    """Trials that validate in their processes, in 0.1 s; the first one starts for 5 s."""
    written = Written(gpus=gpus)
    free = [0.0] * (gpus or cpus)
    for number in range(trials):
        now, name = min(free), f"t{number}"
        free.remove(now)
        written.trial(name, now)
        now += START_S + number  # each one's differs
        for iteration in range(1, length + 1):
            now += 1.0
            written.report(name, iteration, now)
            written.validation(name, iteration, now, now, now + 0.1)
            now += 0.1
            written.waited(name, now, 0.1)
        written.end(name, now)
        free.append(now)
    return written


def with_an_evaluator(trials: int = 3, length: int = 4) -> Written:
    """One trial at a time on two CPUs, and on the other one an evaluator, which is started once."""
    written, now, idle = Written(), 0.0, 0.0
    for number in range(trials):
        name = f"t{number}"
        written.trial(name, now)
        now += START_S
        for iteration in range(1, length + 1):
            now += 1.0
            written.report(name, iteration, now)
            first = number == 0 and iteration == 1
            began = max(idle, now) + (OWN_START_S if first else 0.0)
            idle = began + 0.5 + (IMPORT_S if first else 0.0)
            written.validation(name, iteration, now if first else began, began, idle)
        written.end(name, now)
    return written


@pytest.mark.parametrize(("cpus", "gpus"), [(1, 0), (2, 0), (4, 1)])
def test_a_small_machine_is_predicted(caplog, cpus, gpus):
    written = in_trials(cpus, gpus=gpus)
    ran = tunekit.lab.simulate(written.sweep(cpus))
    assert ran.makespan_s == pytest.approx(written.last, rel=0.01)
    assert (ran.iterations, ran.validations) == (12, 12)
    assert not caplog.records


def test_a_machine_with_an_evaluator_is_predicted(caplog):
    written = with_an_evaluator()
    ran = tunekit.lab.simulate(written.sweep(2, evaluators=1))
    assert ran.makespan_s == pytest.approx(written.last, rel=0.01)
    first_s = START_S + 1 + OWN_START_S + IMPORT_S + 0.5
    assert ran.scores[0].time_s == pytest.approx(first_s, abs=0.01)
    assert not caplog.records
    # On other CPUs, two trials run at once: starts are most of what there is to save.
    with_more = tunekit.lab.simulate(written.sweep(2, evaluators=1), slots=2, validation_slots=1)
    assert with_more.makespan_s < 0.8 * ran.makespan_s


def test_a_cold_validation_costs_the_start_of_its_process_and_what_it_imports():
    recorded = Measured(with_an_evaluator().sweep(2, evaluators=1))
    assert recorded.validation_start_s == pytest.approx(OWN_START_S)
    assert recorded.import_s == pytest.approx(IMPORT_S)
    assert recorded.validate_s("t0", 1) == pytest.approx(0.5)
    # In another stage of the sweep, nothing is known: the median of what is.
    assert recorded.validate_s("t0", 9) == pytest.approx(0.5)


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_start_counts_from_when_the_trial_could_start(cpus):
    """Where one may run at a time, that is not before the other one has ended."""
    written = Written()
    for name in ("a", "b"):
        written.trial(name, 0.0)
    written.report("a", 1, START_S + 1)
    written.end("a", 6.0)
    written.report("b", 1, 6.0 + START_S + 1)
    written.end("b", 12.0)
    recorded = Measured(written.sweep(cpus))
    assert [recorded.start_s(name) for name in "ab"] == [START_S, START_S]


def test_a_process_that_another_trial_had_was_not_started():
    written = Written()
    for name, since in (("a", 0.0), ("b", 6.0), ("c", 7.5)):
        written.trial(name, since)
    written.report("a", 1, START_S + 1, pid=1)
    written.end("a", 6.0)
    written.report("b", 1, 7.5, pid=1)
    written.end("b", 7.5)
    written.report("c", 1, 7.5 + START_S + 3, pid=2)
    recorded = Measured(written.sweep(1))
    assert recorded.reuses
    assert recorded.start_s("b") == pytest.approx(START_S + 1), "the median of the others"
    assert not Measured(in_trials().sweep(2)).reuses


def test_iterations_that_were_not_recorded_take_as_long_as_the_later_ones_that_were():
    """The first one may have imported what it needs."""
    written = Written()
    written.trial("a", 0.0)
    written.trial("b", 0.0)
    for iteration, time in ((1, 6.0), (2, 6.2), (3, 6.4)):
        written.report("a", iteration, time)
    written.report("b", 1, 6.0)
    recorded = Measured(written.sweep(2))
    assert recorded.train_s("a", 1) == 1.0
    assert recorded.train_s("a", 9) == recorded.train_s("b", 2) == pytest.approx(0.2)


def test_an_iteration_takes_what_lies_between_two_reports_without_what_its_trial_waited():
    """What Tune does between two of them, such as saving, is no part of what it says they took."""
    written = Written()
    written.trial("a", 0.0)
    written.report("a", 1, 6.0)
    written.waited("a", 9.0, 3.0)
    written.report("a", 2, 10.5)
    assert Measured(written.sweep(1)).train_s("a", 2) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"slots": 4}, "room for 4 trials and 0 more validations, not for 2"),
        ({"validation_slots": 1}, "room for 2 trials and 1 more validations"),
        (
            {"validation_config": lambda: validating(evaluators=1)},
            "validations start 1 processes, but none is recorded",
        ),
        (
            {"validation_config": lambda: validating(ray_remote_kwargs={"num_cpus": 2})},
            "validations take {'CPU': 2}, not {'CPU': 1}",
        ),
    ],
)
def test_what_goes_beyond_the_record_is_named_in_one_line(caplog, settings, told):
    settings = {name: one() if callable(one) else one for name, one in settings.items()}
    tunekit.lab.simulate(in_trials().sweep(2), **settings)
    [record] = caplog.records
    assert record.message.startswith("This simulation goes beyond the record: ")
    assert told in record.message


def test_what_was_not_trained_or_validated_is_named(caplog):
    curves = table(trials=3)
    curves.loc[(curves.trial == "t0") & (curves.training_iteration == 2), "accuracy"] = None
    short = curves[(curves.trial != "t1") | (curves.training_iteration <= 4)]
    tunekit.lab.simulate(short, tune_config=judged())
    [record] = caplog.records
    assert f"{LENGTH - 4} iterations were never trained; 1 checkpoints were never" in (
        record.message
    )


def test_a_scheduler_that_is_not_passed_is_missed(caplog):
    sweep = in_trials().sweep(2, scheduler="AsyncHyperBandScheduler")
    tunekit.lab.simulate(sweep)
    assert "FIFO replaces AsyncHyperBandScheduler" in caplog.text
    caplog.clear()
    tunekit.lab.simulate(sweep, tune_config=tune.TuneConfig(scheduler=asha()))
    assert not caplog.records


def test_validations_have_the_places_that_they_had(caplog):
    """Those of an evaluator were in no trial's process."""
    tunekit.lab.simulate(with_an_evaluator().sweep(2, evaluators=1), validation_config=validating())
    assert "validations run in the processes of trials, not in their own" in caplog.text


def test_a_sweep_is_simulated_where_it_was_validated():
    elsewhere = Measured(in_trials().sweep(2, where="elsewhere"))
    assert elsewhere.config.where == "elsewhere"
    assert not elsewhere.in_trials
    assert Measured(in_trials().sweep(2)).in_trials


@pytest.mark.parametrize(("where", "stands"), [("trial", True), ("auto", False)])
def test_where_starts_cost_nothing_trials_validate_if_they_are_asked_to(where, stands):
    ran = tunekit.lab.simulate(
        table(trials=1),
        tune_config=judged(),
        validation_config=validating(where=where),
        train_s=1,
        validate_s=1,
        slots=1,
        validation_slots=1,
    )
    assert ran.makespan_s == pytest.approx(LENGTH * 2 if stands else LENGTH + 1, abs=0.01)


def test_an_evaluator_holds_what_it_takes_until_others_need_it():
    clock, room = FakeClock(), Room({"CPU": 1}, {"CPU": 1}, {"CPU": 1})
    executor = VirtualExecutor(
        validating(evaluators=1), clock, room, lambda: 0, lambda attempt: {}, lambda attempt: 2.0
    )

    def run(iteration: int) -> None:
        executor.start(Attempt(Request("a", iteration), 1))
        executor.poll()
        clock.sleep(2.0)
        executor.poll()

    run(1)
    assert (room.for_trials, executor.capacity([])) == (0, 1)
    executor.spare(1)
    assert room.for_trials == 0
    executor.spare(0)
    assert room.for_trials == 1
    run(2)
    clock.sleep(29.0)
    executor.poll()
    assert room.for_trials == 0
    clock.sleep(1.0)
    executor.poll()
    assert room.for_trials == 1
    assert executor.started == 2


def test_all_mistakes_are_said_together():
    with pytest.raises(tunekit.errors.ConfigError) as caught:
        tunekit.lab.simulate(
            table().rename(columns={"accuracy": "score"}),
            tune_config=judged(),
            train_s="minutes",
            validate_s=-1,
            slots=0,
            inline="sometimes",
            resume_s=-2,
            start_s=float("inf"),
        )
    for part in (
        "metric='accuracy'",
        "'minutes'",
        "validate_s=-1",
        "slots=0",
        "'sometimes'",
        "-2",
        "start_s=inf",
    ):
        assert part in str(caught.value)
    with pytest.raises(tunekit.errors.ConfigError, match="no column 'trial'"):
        tunekit.lab.simulate(pd.DataFrame({"accuracy": [1.0]}), tune_config=judged())
    with pytest.raises(tunekit.errors.ConfigError, match="both are needed to rank trials"):
        tunekit.lab.simulate(table())
    with pytest.raises(tunekit.errors.ConfigError, match=r"curves=.* is of type list"):
        tunekit.lab.simulate([], tune_config=judged())
