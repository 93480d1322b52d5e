"""Every figure of ``tunekit.load`` and of the report is what the files themselves contain."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.fs
import pytest
import ray.tune.search
from ray import tune

import tunekit
from tests.support.events import ended, reported, saved
from tests.support.fakes import FakeClock
from tests.support.readers import session, validate_here
from tests.support.recordings import asha, grown, killed, pbt
from tests.support.seeds import seeds
from tests.support.sweeps import Plan, Ran, rows_of
from tunekit.board.page import render_report
from tunekit.core.events import Reported, TrialAdded
from tunekit.core.validation import Attempt
from tunekit.reading.load import Follower

TABLES = ("trials", "reports", "validations", "decisions")


@pytest.fixture(autouse=True)
def _without_vega(monkeypatch):
    """The script that draws charts takes seconds to build."""
    monkeypatch.setattr("tunekit.board.page.vega_script", lambda: "")


# What a line leaves out has its default.
DEFAULTS = {"generation": 0, "ranked": False, "decision": "CONTINUE", "finished": False}
DEFAULTS |= {"validates": False, "after_s": 0.0}


class Raw:
    """Read the files without any of tunekit's code."""

    def __init__(self, ran: Ran):
        self.home = ran.home
        [journal] = sorted((self.home / "journal").glob("*.jsonl"))
        lines = map(json.loads, journal.read_text().splitlines()[1:])
        self.lines = [{**DEFAULTS, **line} for line in lines]
        self.rows = {
            trial.trial_id: rows_of(trial)
            for trial in sorted(ran.trials, key=lambda trial: trial.trial_id)
        }

    def of(self, event: str) -> list[dict]:
        return [line for line in self.lines if line["event"] == event]

    def requests(self) -> dict[str, dict]:
        """By their names, the lines that request a validation, in order."""
        return {line["id"]: line for line in self.of("checkpoint_saved") if line["validates"]}

    def scores(self) -> dict[str, dict[tuple[int, int], float]]:
        """By trial, and by (generation, iteration), the scores that Tune has processed."""
        found: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
        processed = {line["id"] for line in self.of("processed")}
        for line in self.of("validation_ended"):
            trial, generation, iteration, _ = line["id"].rsplit(":", 3)
            if line["id"] in processed and line["status"] == "validated":
                found[trial][int(generation), int(iteration)] = line["metrics"]["accuracy"]
        return found

    def flat_scores(self) -> dict[tuple[str, int, int], float]:
        """The same, by (trial, generation, iteration)."""
        by_trial = self.scores().items()
        return {(trial, *place): of[place] for trial, of in by_trial for place in of}

    def reports(self, trial: str, generation: int, before: float = math.inf) -> dict[int, float]:
        """By iteration, the times of the reports of a generation before a line, in order."""
        return {
            line["report"]["training_iteration"]: line["time"]
            for line in self.of("reported")
            if (line["trial_id"], line["generation"]) == (trial, generation) and line["n"] < before
        }


@pytest.fixture(params=[asha, pbt], ids=["asha", "pbt"], scope="module")
def both(request, tmp_path_factory) -> tuple[Raw, tunekit.Sweep]:
    ran = request.param(tmp_path_factory.mktemp("both")).run()
    raw = Raw(ran)
    return raw, tunekit.load(raw.home)


def at(time: float) -> pd.Timestamp:
    return pd.to_datetime(time, unit="s", utc=True)


def test_trials_table_matches_the_journal_and_tunes_files(both):
    raw, loaded = both
    assert loaded.summary()["iterations"] == len(raw.of("reported"))
    table = loaded.trials.set_index("trial_id")
    assert list(table.index) == [line["trial_id"] for line in raw.of("trial_added")]
    configs = {line["trial_id"]: line["config"] for line in raw.of("trial_added")}
    configs |= {line["trial_id"]: line["config"] for line in raw.of("exploited")}
    generations = Counter(line["trial_id"] for line in raw.of("exploited"))
    stops = [line for line in raw.of("processed") if line["decision"] == "STOP"]
    stopped = {line["trial_id"] for line in stops if not line["finished"]}
    validated = Counter(
        line["id"].split(":")[0]
        for line in raw.of("validation_ended")
        if line["status"] == "validated"
    )
    for trial, scores in raw.scores().items():
        row, rows = table.loc[trial], raw.rows[trial]
        best = max(scores, key=lambda place: (scores[place], -place[0], -place[1]))
        last = max(scores)
        assert (row.best, row.best_generation, row.best_iteration) == (scores[best], *best)
        assert (row["last"], row.last_generation, row.last_iteration) == (scores[last], *last)
        assert row.iteration == rows[-1]["training_iteration"]
        assert (row.generation, row.stopped) == (generations[trial], trial in stopped)
        assert (row.status, row.validated, row.unprocessed) == ("terminated", validated[trial], 0)
        assert row["config/lr"] == configs[trial]["lr"]
        for name, (generation, iteration) in (("best", best), ("last", last)):
            saved = raw.requests()[f"{trial}:{generation}:{iteration}:1"]["checkpoint"]
            assert row[f"{name}_checkpoint"] == str(raw.home / saved.removeprefix("./"))
            assert Path(row[f"{name}_checkpoint"]).is_dir()
        waited = sum(line["seconds"] for line in raw.of("waited") if line["trial_id"] == trial)
        assert row.waited_s == pytest.approx(waited)
        [ended] = [line["time"] for line in raw.of("trial_ended") if line["trial_id"] == trial]
        assert row.ended == at(ended)


def test_validations_table_matches_the_journal(both):
    raw, loaded = both
    table, requests = loaded.validations.set_index("id"), raw.requests()
    assert list(table.index) == list(requests)
    ended = raw.of("validation_ended")
    for line in ended:
        row, name = table.loc[line["id"]], line["id"]
        if line["status"] == "skipped":  # it was trained past a decision
            assert name not in {one["id"] for one in raw.of("processed")}
            continue
        began = [one for one in raw.of("attempt_began") if one["id"] == name][-1]
        times = requests[name]["time"], began["time"] - began["after_s"], line["time"]
        assert (row.requested, row.started, row.ended) == tuple(map(at, times))
        known = line["status"], began["attempt"], line["ran_s"], line["metrics"]["accuracy"]
        assert (row.status, row.attempts, row.ran_s, row["metrics/accuracy"]) == known
        reports = raw.reports(row.trial_id, row.generation, line["n"])
        assert row.lag_s == pytest.approx(line["time"] - reports[row.iteration])
        assert row.lag_iterations == max(reports) - row.iteration
    assert loaded.summary()["validations"] == Counter(line["status"] for line in ended)


def test_decisions_table_matches_the_ranked_results_of_the_journal(both):
    raw, loaded = both
    ranked, scores = [line for line in raw.of("processed") if line["ranked"]], raw.flat_scores()
    assert len(loaded.decisions) == len(ranked) > 0
    for row, line in zip(loaded.decisions.itertuples(), ranked, strict=True):
        place = (line["trial_id"], line["generation"], line["iteration"])
        assert (row.trial_id, row.generation, row.iteration) == place
        assert (row.decision, row.score) == (line["decision"], scores[place])
        assert row.reached == max(raw.reports(*place[:2], line["n"])) >= row.iteration


def test_best_checkpoint_has_the_highest_processed_score_of_the_journal(both):
    raw, loaded = both
    best, scores = loaded.best(), raw.flat_scores()
    assert best.score == scores[best.trial_id, best.generation, best.iteration]
    assert best.score == max(scores.values()) and best.metrics == {"accuracy": best.score}
    assert best.checkpoint is not None and best.checkpoint.path == best.path


# The report ------------------------------------------------------------------------------------


def drawn(page: str) -> dict[str, dict[str, Any]]:
    """The charts of a page, as it has them."""
    pattern = r'<script type="application/json" data-chart="(\w+)">(.*?)</script>'
    return {name: json.loads(text) for name, text in re.findall(pattern, page, re.S)}


def test_report_ranking_matches_the_scores_of_the_journal(both):
    raw, loaded = both
    shown = re.findall(
        r'data-trial="(\w+)"><td>(\d+)</td>.*?data-value="([\d.]+)" class="best">([\d.]+)</td>'
        r'<td>(\d+)</td>\s*<td data-value="([\d.]+)" class="last">',
        render_report(loaded),
        re.S,
    )
    best = {trial: max(scores.values()) for trial, scores in raw.scores().items()}
    assert [trial for trial, *_ in shown] == sorted(best, key=lambda t: -best[t])
    assert [int(rank) for _, rank, *_ in shown] == list(range(1, len(best) + 1))
    for trial, _, exact, value, iteration, last in shown:
        scores = raw.scores()[trial]
        assert float(exact) == best[trial], "what is sorted by, and exported"
        assert float(value) == pytest.approx(best[trial], rel=1e-3)
        assert int(iteration) in {place[1] for place in scores if scores[place] == best[trial]}
        assert float(last) == scores[max(scores)]


def test_report_curves_match_the_journals_scores_and_tunes_losses(both):
    raw, loaded = both
    charts = drawn(render_report(loaded))
    names = {trial.rsplit("_", 1)[-1]: trial for trial in raw.rows}

    def shown(chart: str) -> dict[tuple[str, int, int], float]:
        points = charts[chart]["datasets"]["points"]
        return {(names[p["trial"]], p["generation"], p["iteration"]): p["value"] for p in points}

    assert shown("validated") == raw.flat_scores()
    assert shown("training0") == {
        (trial, row["tunekit/generation"], row["training_iteration"]): row["loss"]
        for trial, rows in raw.rows.items()
        for row in rows
    }


# Other sweeps ----------------------------------------------------------------------------------


def processed(loaded: tunekit.Sweep) -> dict[tuple[str, int], float]:
    """By trial and iteration, the scores in the table of reports."""
    table = loaded.reports.reindex(columns=["trial_id", "training_iteration", "accuracy"])
    return {(trial, n): score for trial, n, score in table.dropna().itertuples(index=False)}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3))
def test_scores_read_from_a_killed_sweep_stay_the_same_after_its_restore(tmp_path, seed):
    seen: list[tunekit.Sweep] = []

    def look(home: Path) -> None:
        seen.append(tunekit.load(home))
        render_report(seen[-1])

    ran = killed(tmp_path, seed, look)
    loaded = tunekit.load(ran.home)
    assert [one.summary()["state"] for one in seen] == ["killed"] * len(seen)
    assert loaded.summary()["state"] == "finished" and loaded.summary()["sessions"] > 1
    for before in seen:
        assert processed(before).items() <= processed(loaded).items()
    assert processed(loaded) == {
        (trial.trial_id, row["training_iteration"]): row["accuracy"]
        for trial in ran.trials
        for row in rows_of(trial)
    }
    assert not loaded.validations.duplicated(["trial_id", "generation", "iteration", "run"]).any()
    assert set(loaded.validations.status) <= {"validated", "skipped"}
    assert loaded.best().score == max(processed(loaded).values())


class WithSecret(ray.tune.search.Searcher):
    def __init__(self):
        super().__init__("accuracy", "max")
        self._api_key = "sk-secret"

    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {"lr": 0.1}

    def on_trial_complete(self, *args: Any, **known: Any) -> None: ...


def test_secrets_of_searcher_and_runtime_env_are_in_neither_journal_nor_report(tmp_path):
    remote = {"num_cpus": 2, "runtime_env": {"env_vars": {"KEY": "sk-secret"}}}
    plan = Plan(tmp_path, trials=1).validating(ray_remote_kwargs=remote)
    ran = plan.tuning(search_alg=WithSecret()).run()
    loaded = tunekit.load(ran.home)
    assert loaded.sessions[0]["validation"]["resources"] == {"num_cpus": 2}
    assert loaded.sessions[0]["search_alg"] == {"type": "WithSecret", "settings": {}}
    journal = "".join(file.read_text() for file in (ran.home / "journal").iterdir())
    assert "sk-secret" not in journal and "sk-secret" not in render_report(loaded)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_infinite_scores_are_neither_ranked_nor_drawn(tmp_path, mode):
    scores = [0.5, math.inf, 0.7, 0.7]
    ran = (
        Plan(tmp_path, trials=1)
        .validating(lambda a: {"accuracy": scores[int(a.request.trial_id[-1])]})
        .tuning(param_space={"lr": tune.grid_search([1, 1.0, 0.1, 5])}, mode=mode)
        .run()
    )
    loaded = tunekit.load(ran.home)
    ranked = [one.best_value for one in loaded.ranking()]
    assert ranked == [*sorted((0.5, 0.7, 0.7), reverse=mode == "max"), None]
    assert [one.rank for one in loaded.ranking()] == [1, 2, 3, None]
    for name, chart in drawn(render_report(loaded)).items():
        text = json.dumps(chart)
        assert "Infinity" not in text and "NaN" not in text, name


def two_metrics(attempt: Attempt) -> dict[str, Any]:
    return {"accuracy": 0.5, "error": {"top5": attempt.request.iteration / 10}}


def test_python_in_the_report_loads_the_best_checkpoint(tmp_path, monkeypatch):
    ran = Plan(tmp_path / "my sweeps", trials=2).validating(two_metrics).run()
    monkeypatch.chdir(tmp_path)
    filesystem = pyarrow.fs.LocalFileSystem()
    for options in (
        {},
        {"metric": "error/top5", "mode": "min"},
        {"storage_filesystem": filesystem},
    ):
        loaded = tunekit.load(ran.home, **options)
        [line] = re.findall(r"^best = (.*)$", html.unescape(render_report(loaded)), re.M)
        found = eval(line, {"tunekit": tunekit, "filesystem": filesystem})
        assert (found.score, found.path) == (loaded.best().score, loaded.best().path)


def test_sweep_is_ranked_by_another_metric_if_it_is_passed_with_its_mode(tmp_path):
    home = Plan(tmp_path, trials=2).validating(two_metrics).run().home
    assert set(tunekit.load(home).trials.best) == {0.5}
    other = tunekit.load(home, metric="error/top5", mode="min")
    assert set(other.trials.best) == {0.1} and set(other.trials["last"]) == {0.9}
    assert other.best().score == other.best("error/top5", "max").score / 9
    with pytest.raises(tunekit.errors.ConfigError, match="mode is missing"):
        tunekit.load(home).best("error/top5")


def test_report_of_a_sweep_without_metric_has_no_ranking_unless_one_is_passed(tmp_path):
    ran = Plan(tmp_path, trials=2).tuning(metric=None, mode=None).run()
    for options, places in (({}, []), ({"metric": "accuracy", "mode": "max"}, ["1", "2"])):
        page = render_report(tunekit.load(ran.home, **options))
        assert re.findall(r'data-trial="\w+"><td>(\d+)</td>', page) == places
        assert ("validated" in drawn(page)) == bool(options)


# A sweep that is followed is, at each moment, what load reads -----------------------------------


def same(one: tunekit.Sweep, other: tunekit.Sweep) -> None:
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name))
    assert one.summary() == other.summary()
    assert one.timeline.spans() == other.timeline.spans()
    assert [r.trial_id for r in one.ranking()] == [r.trial_id for r in other.ranking()]
    assert list(one.timeline.state.ancestry) == list(other.timeline.state.ancestry)
    assert one.sessions == other.sessions


@pytest.mark.parametrize(
    "make",
    [lambda folder: asha(folder).run(), lambda folder: pbt(folder).run(), killed],
    ids=["asha", "pbt", "killed"],
)
@pytest.mark.parametrize("seed", seeds(1))
def test_followed_sweep_equals_load_wherever_the_journal_is_cut(make, seed, tmp_path):
    source = make(tmp_path / "source").home
    follower = Follower(pyarrow.fs.LocalFileSystem(), str(tmp_path / "copy"), clock=FakeClock())
    steps = 0
    for _ in grown(source, tmp_path / "copy", seed):
        follower.poll()
        same(follower.sweep, tunekit.load(tmp_path / "copy"))
        steps += 1
    assert steps > 5 and not follower.poll()


@pytest.fixture
def follower(tmp_path) -> Follower:
    return Follower(pyarrow.fs.LocalFileSystem(), str(tmp_path), clock=FakeClock())


def test_followed_journal_is_read_again_after_it_was_replaced_cut_or_deleted(tmp_path, follower):
    for names in (["old"], ["a", "b"]):
        journal = session(tmp_path)
        for name in names:
            journal.append(TrialAdded(time=1e9, trial_id=name))
        assert follower.poll() and list(follower.sweep.timeline.trials) == names
    file = max((tmp_path / "journal").glob("*.jsonl"))
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:2]))
    assert follower.poll() and list(follower.sweep.timeline.trials) == ["a"]
    shutil.rmtree(tmp_path / "journal")
    assert follower.poll() and not follower.sweep.timeline.trials


def test_followed_journal_with_a_damaged_line_is_an_error_until_it_is_repaired(tmp_path, follower):
    journal = session(tmp_path)
    follower.poll()
    [file] = (tmp_path / "journal").glob("*.jsonl")
    whole = file.read_bytes()
    journal.append(TrialAdded(time=1e9, trial_id="a"))
    good = file.read_bytes()
    file.write_bytes(whole + b"{damaged}\n" + good[len(whole) :])
    for _ in range(2):
        with pytest.raises(tunekit.errors.JournalError, match="line 2"):
            follower.poll()
    file.write_bytes(good)
    assert follower.poll() and list(follower.sweep.timeline.trials) == ["a"]


def test_followed_sweep_takes_the_metric_of_its_newest_session(tmp_path, follower):
    report = {"training_iteration": 1, "loss": 3.0}
    session(tmp_path).append(Reported(time=1e9, trial_id="a", report=report))
    follower.poll()
    assert follower.sweep.metric == "accuracy"
    session(tmp_path, metric="loss", begins=False)
    assert follower.poll() and follower.sweep.metric == "loss"
    same(follower.sweep, tunekit.load(tmp_path))


def test_followed_sweep_shows_later_validations_of_its_checkpoints(tmp_path, monkeypatch):
    validate_here(monkeypatch)
    home = Plan(tmp_path, trials=1).run().home
    clock = FakeClock()
    follower = Follower(pyarrow.fs.LocalFileSystem(), str(home), clock=clock)
    follower.poll()
    tunekit.validate(tunekit.load(home), lambda checkpoint: {"accuracy": 0.5}, name="robust")
    clock.sleep(3600)
    assert follower.poll()
    assert "robust/accuracy" in follower.sweep.reports
    same(follower.sweep, tunekit.load(home))
    assert not follower.poll()


def test_best_says_that_no_result_with_a_validated_metric_was_processed():
    read = tunekit.Sweep([reported(1), saved(1, validates=True), ended(1)])
    assert set(read.timeline.names) == {"accuracy"}
    with pytest.raises(tunekit.errors.MetricNotFoundError) as caught:
        read.best("accuracy", "max")
    assert "'accuracy'" in str(caught.value) and "Did you mean" not in str(caught.value)
