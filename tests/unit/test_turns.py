"""The first trial that waits is found as by looking through all of them."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from tunekit._ray.proxies import Proxies
from tunekit.core.reconcile import Desired

names, phases = st.sampled_from("abcdef"), st.sampled_from(Desired)


@given(st.lists(st.tuples(st.booleans(), names, phases)))
def test_the_first_that_waits_is_the_one_that_a_look_at_all_would_find(events):
    proxies, order = Proxies(), []
    trials = {name: SimpleNamespace(trial_id=name, status="PENDING") for name in "abcdef"}
    for comes, name, phase in events:
        if comes:
            order = [one for one in order if one != name] + [name]
            proxies.add(trials[name])
        proxies.of(trials[name]).phase = phase
        row = [proxies.by_id[one] for one in order]
        by_status = [[one for one in row if one.status == s] for s in ("PENDING", "PAUSED")]
        assert proxies.first_in_turn() == [*by_status[0], *by_status[1]][:1]
