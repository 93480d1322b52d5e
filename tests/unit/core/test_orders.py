"""Whatever the order in which validations end: the same history, and each score once, in order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.deliveries import take
from tunekit.core.delivery import Completion, Delivery
from tunekit.core.history import History
from tunekit.core.pool import Pool
from tunekit.core.validation import Attempt, Outcome, Request


@dataclass
class World:
    """Trials that report and save, validations that end as their number says, in some order."""

    script: dict[tuple[str, int], list[str]]
    order: random.Random
    limit: int | None
    retries: int
    pool: Pool = field(init=False)
    delivery: Delivery = field(default_factory=Delivery)
    history: History = field(default_factory=History)
    heard: dict[str, list[int]] = field(default_factory=dict)
    ended: dict[str, int | None] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self):
        self.pool = Pool(max_in_flight=self.limit, max_retries=self.retries)

    def report(self, trial: str, iteration: int) -> None:
        run = self.history.reported(trial, iteration)
        self.delivery.offered(trial, iteration)
        request = Request(trial, iteration, run, report={"iteration": iteration}, timeout_s=10.0)
        self.delivery.requested(request)
        for outcome in self.pool.submit(request, self.now):
            self.conclude(outcome)

    def let_one_go_on(self) -> None:
        """Start what may start, and let one of those in flight, any one, come to its end."""
        self.pool.start(capacity=2, now=self.now)
        attempt = self.order.choice(self.pool.in_flight())
        self.pool.began(attempt.id, self.now)
        self.now += self.order.random()
        outcome = self.end(attempt)
        if outcome is not None:
            self.conclude(outcome)

    def end(self, attempt: Attempt) -> Outcome | None:
        script = self.script[attempt.request.trial_id, attempt.request.iteration]
        what = script[min(attempt.number, len(script)) - 1]
        if what == "score":
            value = {"accuracy": attempt.request.iteration}
            return self.pool.returned(attempt.id, value, {"accuracy"}, self.now)
        if what == "nothing":
            return self.pool.returned(attempt.id, None, {"accuracy"}, self.now)
        if what == "raise":
            return self.pool.failed(attempt.id, "raised", "trace", self.now)
        self.now += 11.0
        cancelled, outcomes = self.pool.expire(self.now)
        assert cancelled == [attempt], "the others have not begun to run"
        return outcomes[0] if outcomes else None

    def conclude(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.history.ended(outcome)
        self.delivery.ended(outcome)
        self.take(outcome.request.trial_id)

    def take(self, trial: str) -> None:
        for step in take(self.delivery, trial):
            if isinstance(step, Completion):
                assert trial not in self.ended, "the end was delivered twice"
                self.ended[trial] = step.result and step.result["iteration"]
            else:
                assert trial not in self.ended, "a score came after the end"
                assert step.result == {"iteration": step.iteration, "accuracy": step.iteration}
                self.heard.setdefault(trial, []).append(step.iteration)


endings = st.lists(st.sampled_from(["score", "nothing", "raise", "hang"]), min_size=1, max_size=3)


@st.composite
def sweeps(draw):
    trials = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    script = {
        (f"t{n}", iteration): draw(endings)
        for n, length in enumerate(trials)
        for iteration in range(1, length + 1)
    }
    return script, draw(st.sampled_from([None, 1, 2, 5])), draw(st.integers(0, 2))


def play(script, limit, retries, seed) -> World:
    world = World(script, random.Random(seed), limit, retries)
    ahead = {trial: 0 for trial, _ in script}
    lengths = {trial: max(i for t, i in script if t == trial) for trial in ahead}
    while any(ahead[t] < lengths[t] for t in ahead) or not world.pool.idle:
        reporting = [t for t in ahead if ahead[t] < lengths[t]]
        if reporting and (world.pool.idle or world.order.random() < 0.5):
            trial = world.order.choice(reporting)
            ahead[trial] += 1
            world.report(trial, ahead[trial])
            if ahead[trial] == lengths[trial]:
                world.delivery.complete(trial)
                world.take(trial)
        elif not world.pool.idle:
            world.let_one_go_on()
    return world


@settings(max_examples=300, deadline=None)
@given(sweeps(), st.lists(st.integers(0, 2**32), min_size=2, max_size=4))
def test_any_order_delivers_each_score_once_in_order(sweep, seeds):
    script, limit, retries = sweep
    played = [play(script, limit, retries, seed) for seed in seeds]
    for world in played:
        assert len(world.outcomes) == len(script), "each request ends exactly once"
        validated = {
            (o.request.trial_id, o.request.iteration) for o in world.outcomes if o.validated
        }
        for trial in {trial for trial, _ in script}:
            mine = sorted(i for t, i in validated if t == trial)
            assert world.heard.get(trial, []) == mine
            assert world.ended[trial] == (mine[-1] if mine else None)
    rows = [
        {t: list(world.history.scores(t)) for t in {trial for trial, _ in script}}
        for world in played
    ]
    assert all(row == rows[0] for row in rows)
