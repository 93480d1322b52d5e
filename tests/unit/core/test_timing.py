from __future__ import annotations

from tunekit.core.timing import StartTimes


def test_what_a_trial_left_undone_is_not_measured():
    starts = StartTimes()
    starts.begins("a", 0.0)
    starts.ends("a")  # it failed, and starts again
    starts.begins("a", 50.0)
    starts.reported("a", 54.0)
    starts.reported("a", 90.0)  # nobody saw it begin
    assert starts.typical_s == 4.0


def test_the_newest_starts_count_and_none_is_below_zero():
    starts = StartTimes()
    for n in range(20):
        starts.begins("a", 0.0)
        starts.reported("a", 10.0 if n < 15 else 2.0)
    assert starts.typical_s == 2.0
    starts.trains("a", 0.0)
    starts.reported("a", 3.0)
    assert starts.typical_s == 0.0
