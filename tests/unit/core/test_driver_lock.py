from __future__ import annotations

import math

import pytest

from tunekit.core.driver_lock import BEAT_S, SILENT_S, Holder, alive_for_s

HOLDER = Holder("t", "gpu1", "gpu1|boot|ns", 50, born=7, since=0.0, beat=1000.0)


@pytest.mark.parametrize(("there", "left_s"), [(True, math.inf), (False, 0.0)])
@pytest.mark.parametrize("silent_s", [0.0, 1e5])
def test_on_its_own_machine_the_process_counts_and_not_the_clock(there, left_s, silent_s):
    assert alive_for_s(HOLDER, 1000.0 + silent_s, there=there) == left_s


def test_elsewhere_the_last_heartbeat_counts():
    assert alive_for_s(HOLDER, 1000.0 + SILENT_S - 1.0, there=None) == 1.0
    assert alive_for_s(HOLDER, 1000.0 + SILENT_S, there=None) == 0.0
    assert alive_for_s(HOLDER, 900.0, there=None) > 0.0, "its clock is ahead"
    assert SILENT_S >= 3 * BEAT_S


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"7", b'{"token": "t"}', b"\xff\xfe"])
def test_what_is_no_lock(data):
    assert Holder.decoded(data) is None
