"""The rules that hold for every scheduler."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION

from tests.support.invariants import check_journal
from tests.support.journals import read
from tests.support.local_sweep import index_of
from tests.support.sweeps import Ran
from tunekit.core.validation import Attempt
from tunekit.journal.journal import events_in


def lags(seed: int, most: float) -> Callable[[Attempt], float]:
    """Validations that take between 0 and ``most`` seconds."""
    return lambda attempt: most * random.Random(f"{seed}/{attempt.id}").random()


def check_contract(ran: Ran) -> None:
    """Check the rules that always hold."""
    heard, scores = ran.heard, ran.processed()
    told = list(zip(heard.results, heard.generations, strict=True))
    assert set(heard.statuses) <= {Trial.RUNNING}, "as Tune promises its schedulers"
    removed = {e["trial_id"] for e in read(ran.home, "trial_ended") if e["removed"]}
    for trial in ran.trials:
        index = index_of(trial)
        places = heard.places(index)
        assert places == sorted(set(places)), "each once, in order"
        assert set(places) <= set(scores[index]), "validated results only"
        for (heard_index, iteration, score, _), generation in told:
            if heard_index == index:
                assert score == scores[index][generation, iteration], "with its own score"
        ends = [score for i, score in heard.ends if i == index]
        if trial.status == Trial.TERMINATED:
            newest = max(scores[index], default=None)
            decisions = [decision for i, *_, decision in heard.results if i == index]
            if trial.trial_id not in removed and (decisions[-1:], ends) != (["PAUSE"], [None]):
                assert ends == [newest and scores[index][newest]], "one end, with the newest score"
            stops = [at for i, at, _, decision in heard.results if (i, decision) == (index, "STOP")]
            assert stops in ([], [trial.last_result[TRAINING_ITERATION]]), "it ends where stopped"
            if newest:
                assert trial.last_result["accuracy"] == scores[index][newest]
                assert trial.last_result["tunekit/validated_at"] == newest[1]
        else:
            assert not ends
    assert len({i for i, _ in heard.ends}) == len(heard.ends)
    counts = ran.validation.summary()
    assert counts["running"] == counts["starting"] == counts["queued"] == 0
    check_journal(events_in(ran.home))
    assert not ran.sweep.controller._cached_trial_decisions, "no decision is left for a later save"
    assert not ran.sweep.controller.sweep.queues, "no report is left"
    for path in ran.validation.ledger.state.leases:
        assert path in {t.checkpoint.path for t in ran.trials if t.checkpoint}, "it is not needed"
        assert Path(path).exists()
