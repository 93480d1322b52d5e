"""What another setting would have saved: by simulation of what is recorded."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule

import tunekit
from tests.sweeps import sweep
from tunekit.board.page.page import contents, render
from tunekit.core.words import duration
from tunekit.journal import session
from tunekit.lab.simulation.alternatives import AS_RUN, INLINE, alternatives

AT_DECISIONS = 'every="decision" with AtDecisions()'


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    """The sweeps of this file record that they ran on four CPUs."""
    monkeypatch.setattr(session, "_cluster", lambda: {"nodes": 1, "resources": {"CPU": 4.0}})


def loaded(folder, base=None, **options):
    base = base or ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)
    options = {"validation_s": lambda attempt: 2.0, "slots": 4, **options}
    ran = sweep(folder, base, param_space={"lr": tune.uniform(0, 1)}, **options)
    return tunekit.load(ran.home)


def test_a_sweep_is_simulated_as_it_was_run_and_with_what_could_have_been_set(tmp_path):
    found = alternatives(loaded(tmp_path, on_pending="continue"))
    assert list(found.by_setting) == [AS_RUN, 'on_pending="auto"', AT_DECISIONS, *INLINE]
    ran = found.by_setting[AS_RUN]
    assert found.took_s / 2 <= ran.makespan_s <= 2 * found.took_s
    assert (found.slots, found.validation_slots) == (4, 0)
    best = min(list(found.by_setting)[:3], key=lambda name: found.by_setting[name].makespan_s)
    saved = ran.makespan_s - found.by_setting[best].makespan_s
    assert best != AS_RUN and saved > 0
    assert f"{best} would have saved {duration(saved)}." in found.advice


def test_what_was_set_is_not_proposed(tmp_path):
    found = alternatives(loaded(tmp_path, on_pending="auto"))
    assert list(found.by_setting) == [AS_RUN, AT_DECISIONS, *INLINE]


def test_a_setting_that_saves_next_to_nothing_is_not_advised(tmp_path):
    found = alternatives(loaded(tmp_path))
    ran = found.by_setting[AS_RUN]
    same = {name: replace(ran, makespan_s=ran.makespan_s * 0.96) for name in found.by_setting}
    assert "none of these" in replace(found, by_setting={**same, AS_RUN: ran}).advice
    half = {**same, AT_DECISIONS: replace(ran, makespan_s=ran.makespan_s / 2), AS_RUN: ran}
    assert AT_DECISIONS in replace(found, by_setting=half).advice
    inline = {**same, "inline, every iteration": replace(ran, makespan_s=1.0), AS_RUN: ran}
    assert "none of these" in replace(found, by_setting=inline).advice


def test_nothing_is_said_of_what_cannot_be_simulated(tmp_path, monkeypatch):
    other = MedianStoppingRule(time_attr="training_iteration")
    assert alternatives(loaded(tmp_path / "a", other)) is None
    monkeypatch.setattr(session, "_cluster", lambda: {"nodes": 1, "resources": {"CPU": 1.0}})
    assert alternatives(loaded(tmp_path / "b")) is None, "one slot would have taken far longer"
    monkeypatch.setattr(session, "_cluster", lambda: None)
    unknown = loaded(tmp_path / "c")
    assert alternatives(unknown) is None
    assert unknown.summary()["training_busy"] is None


def test_nothing_is_said_where_reports_have_asked_for_validations(tmp_path):
    swept = loaded(tmp_path)
    assert alternatives(swept) is not None
    swept.sessions[-1]["validation"]["every"] = "requested"
    assert alternatives(swept) is None


def test_a_limit_of_the_sweep_holds_in_its_simulation(tmp_path, monkeypatch):
    # With the limit, the sweep would have taken nearly twice its time.
    monkeypatch.setattr(importlib.import_module(alternatives.__module__), "_FACTOR", 10)
    swept = loaded(tmp_path)
    free = alternatives(swept).by_setting[AS_RUN]
    swept.sessions[-1]["validation"]["max_in_flight"] = 2
    assert alternatives(swept).by_setting[AS_RUN].makespan_s > 1.2 * free.makespan_s


def test_the_report_says_what_late_scores_cost_and_what_would_help(tmp_path):
    swept = loaded(tmp_path, on_pending="continue")
    told, page = contents(swept)["alternatives"], render(swept)
    assert told.advice.replace('"', "&#34;") in page
    for setting in told.by_setting:
        assert f"<td>{setting}</td>".replace('"', "&#34;") in page
    summary = swept.summary()
    whole = 4 * (summary["last"] - summary["began"])
    assert summary["training_busy"] == pytest.approx(summary["trained_s"] / whole)
    assert summary["validation_busy"] == pytest.approx(summary["validations_ran_s"] / whole)
