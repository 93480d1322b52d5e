from __future__ import annotations

from dataclasses import replace

import pytest

from tunekit.core.driver_lock import BEAT_S, SILENT_S, Here, Holder, Standing, judge

HERE = Here("gpu1|boot|ns", pid=100, thread=101, threads={100, 101})
OTHER = Holder("t", "gpu1", "gpu1|boot|ns", 50, born=7, thread=51, since=0.0, beat=0.0)


def standing(holder, now=1e6, here=HERE, *, born=None, there=False):
    return judge(holder, here, now, born=born, there=there).standing


def test_no_lock_is_free():
    assert standing(None) is Standing.FREE


@pytest.mark.parametrize(
    ("there", "born", "held"),
    [
        (True, 7, True),
        (True, None, True),  # when it was started is not known here
        (True, 8, False),  # the number was given to another process
        (False, None, False),
    ],
)
@pytest.mark.parametrize("silent_s", [0.0, 1e5])
def test_on_its_own_machine_the_process_counts_and_not_the_clock(there, born, held, silent_s):
    holder = replace(OTHER, beat=1e6 - silent_s)
    assert standing(holder, there=there, born=born) is (Standing.HELD if held else Standing.STALE)


@pytest.mark.parametrize(
    ("thread", "held"),
    [
        (100, True),  # another thread that is alive: it may run a sweep
        (101, False),  # this one: it is here, so it runs none
        (102, False),  # one that has ended
    ],
)
def test_within_a_process_the_thread_counts(thread, held):
    holder = replace(OTHER, pid=HERE.pid, thread=thread)
    found = standing(holder, there=True, born=7)
    assert found is (Standing.HELD if held else Standing.STALE)


@pytest.mark.parametrize("place", ["gpu2|boot|ns", "gpu1|another boot|ns", "gpu1|boot|container"])
def test_elsewhere_the_last_heartbeat_counts(place):
    holder = replace(OTHER, place=place, beat=1000.0)
    late = judge(holder, HERE, 1000.0 + SILENT_S - 1.0, born=7, there=True)
    assert late.standing is Standing.HELD and late.left_s == 1.0
    assert standing(holder, 1000.0 + SILENT_S) is Standing.STALE
    assert standing(holder, 900.0) is Standing.HELD, "its clock is ahead"
    assert SILENT_S >= 3 * BEAT_S


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"7", b'{"token": "t"}', b"\xff\xfe"])
def test_what_is_no_lock(data):
    assert Holder.decoded(data) is None
