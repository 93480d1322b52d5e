"""Those that wait are found as by looking through the whole row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tunekit.scheduling.proxies import Turns

names, waits = st.sampled_from("abcdef"), st.sampled_from(["pending", "paused", None])


@given(st.lists(st.tuples(st.booleans(), names, waits)))
def test_those_that_wait_are_those_that_a_look_at_all_would_find(events):
    turns = Turns()
    row: list[str] = []
    known: dict[str, str | None] = {}
    for comes, name, what in events:
        if comes:
            row = [one for one in row if one != name] + [name]
            turns.add(name, what)
        else:
            turns.put(name, what)
        if name in row:
            known[name] = what
        for group in ("pending", "paused"):
            assert list(turns.of(group)) == [one for one in row if known[one] == group]
