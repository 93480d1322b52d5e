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
from tests.support.sweeps import LENGTH, Ran, SavesWhen, rows_of, sweep
from tunekit.board.page import render_report
from tunekit.core.events import Reported, TrialAdded
from tunekit.core.validation import Attempt
from tunekit.journal.journal import Journal
from tunekit.journal.storage import LocalFolder
from tunekit.reading.load import Follower

TABLES = ("trials", "reports", "validations", "decisions")


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

    def requests(self) -> list[dict]:
        return [line for line in self.of("checkpoint_saved") if line["validates"]]

    def before(self, n: int, event: str) -> list[dict]:
        return [line for line in self.of(event) if line["n"] < n]

    def scores(self) -> dict[str, dict[tuple[int, int], float]]:
        """By trial, and by (generation, iteration), the scores that Tune has processed."""
        found: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
        processed = {line["id"] for line in self.of("processed")}
        for line in self.of("validation_ended"):
            trial, generation, iteration, _ = line["id"].rsplit(":", 3)
            if line["id"] in processed and line["status"] == "validated":
                found[trial][int(generation), int(iteration)] = line["metrics"]["accuracy"]
        return found

    def reached(self, n: int, trial: str, generation: int) -> int:
        """The iteration that a trial had reported before a line."""
        reports = [
            line["report"]
            for line in self.before(n, "reported")
            if line["trial_id"] == trial and line.get("generation", 0) == generation
        ]
        return reports[-1]["training_iteration"]

    def reported_at(self, trial: str, generation: int, iteration: int) -> float:
        [time] = [
            line["time"]
            for line in self.of("reported")
            if line["trial_id"] == trial
            and line.get("generation", 0) == generation
            and line["report"]["training_iteration"] == iteration
        ]
        return time


@pytest.fixture(params=[asha, pbt], ids=["asha", "pbt"], scope="module")
def both(request, tmp_path_factory) -> tuple[Raw, tunekit.Sweep]:
    ran = request.param(tmp_path_factory.mktemp("both"))
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
        assert row.status == "terminated"
        assert row["config/lr"] == configs[trial]["lr"]
        assert (row.validated, row.unprocessed) == (validated[trial], 0)
        for name, place in (("best", best), ("last", last)):
            [saved] = [
                line["checkpoint"]
                for line in raw.requests()
                if line["id"].startswith(f"{trial}:{place[0]}:{place[1]}:")
            ]
            assert row[f"{name}_checkpoint"] == str(raw.home / saved.removeprefix("./"))
            assert Path(row[f"{name}_checkpoint"]).is_dir()
        waited = sum(line["seconds"] for line in raw.of("waited") if line["trial_id"] == trial)
        assert row.waited_s == pytest.approx(waited)
        [ended] = [line["time"] for line in raw.of("trial_ended") if line["trial_id"] == trial]
        assert row.ended == at(ended)


def test_validations_table_matches_the_journal(both):
    raw, loaded = both
    table = loaded.validations.set_index("id")
    assert list(table.index) == [line["id"] for line in raw.requests()]
    for line in raw.of("validation_ended"):
        row = table.loc[line["id"]]
        [requested] = [one for one in raw.requests() if one["id"] == line["id"]]
        if line["status"] == "skipped":  # it was trained past a decision
            assert line["id"] not in {one["id"] for one in raw.of("processed")}
            continue
        began = [one for one in raw.of("attempt_began") if one["id"] == line["id"]][-1]
        assert (row.requested, row.started, row.ended) == tuple(
            map(at, (requested["time"], began["time"] - began["after_s"], line["time"]))
        )
        assert (row.status, row.attempts, row.ran_s) == (
            line["status"],
            began["attempt"],
            line["ran_s"],
        )
        place = (row.trial_id, row.generation, row.iteration)
        assert row.lag_s == pytest.approx(line["time"] - raw.reported_at(*place))
        assert row.lag_iterations == raw.reached(line["n"], *place[:2]) - row.iteration
        assert row["metrics/accuracy"] == line["metrics"]["accuracy"]
    assert loaded.summary()["validations"] == Counter(
        line["status"] for line in raw.of("validation_ended")
    )


def test_decisions_table_matches_the_ranked_results_of_the_journal(both):
    raw, loaded = both
    ranked = [line for line in raw.of("processed") if line["ranked"]]
    assert len(loaded.decisions) == len(ranked) > 0
    scores = raw.scores()
    for (_, row), line in zip(loaded.decisions.iterrows(), ranked, strict=True):
        place = (line["trial_id"], line["generation"], line["iteration"])
        assert (row.trial_id, row.generation, row.iteration) == place
        assert (row.decision, row.score) == (line["decision"], scores[place[0]][place[1:]])
        assert row.reached == raw.reached(line["n"], *place[:2]) >= row.iteration


def test_best_checkpoint_has_the_highest_processed_score_of_the_journal(both):
    raw, loaded = both
    candidates = {
        (trial, *place): score
        for trial, scores in raw.scores().items()
        for place, score in scores.items()
    }
    best = loaded.best()
    place = (best.trial_id, best.generation, best.iteration)
    assert best.score == candidates[place] == max(candidates.values())
    assert best.metrics == {"accuracy": best.score}
    assert best.checkpoint is not None and best.checkpoint.path == best.path


# The report ------------------------------------------------------------------------------------


def drawn(page: str) -> dict[str, dict[str, Any]]:
    """The charts of a page, as it has them."""
    pattern = r'<script type="application/json" data-chart="(\w+)">(.*?)</script>'
    return {name: json.loads(text) for name, text in re.findall(pattern, page, re.S)}


def values(chart: dict[str, Any]) -> list[dict[str, Any]]:
    return chart["datasets"]["points"]


def ranks(page: str) -> list[str]:
    """The ranks in a page's table of trials."""
    return re.findall(r'data-trial="\w+"><td>(\d+)</td>', page)


def test_report_ranking_matches_the_scores_of_the_journal(both):
    raw, loaded = both
    page = render_report(loaded)
    best = {trial: max(scores.values()) for trial, scores in raw.scores().items()}
    shown = re.findall(
        r'data-trial="(\w+)"><td>(\d+)</td>.*?data-value="([\d.]+)" class="best">([\d.]+)</td>'
        r'<td>(\d+)</td>\s*<td data-value="([\d.]+)" class="last">',
        page,
        re.S,
    )
    assert [trial for trial, *_ in shown] == sorted(best, key=lambda t: -best[t])
    assert [int(rank) for _, rank, *_ in shown] == list(range(1, len(best) + 1))
    for trial, _, exact, value, iteration, last in shown:
        scores = raw.scores()[trial]
        assert float(exact) == best[trial], "what is sorted by, and exported"
        assert float(value) == pytest.approx(best[trial], rel=1e-3)
        assert scores[max(scores, key=lambda p: scores[p])] == best[trial]
        assert int(iteration) in {place[1] for place in scores if scores[place] == best[trial]}
        assert float(last) == scores[max(scores)]


def test_report_curves_match_the_journals_scores_and_tunes_losses(both):
    raw, loaded = both
    charts = drawn(render_report(loaded))
    names = {trial.rsplit("_", 1)[-1]: trial for trial in raw.rows}
    shown = {
        (names[p["trial"]], p["generation"], p["iteration"]): p["value"]
        for p in values(charts["validated"])
    }
    assert shown == {
        (trial, *place): score
        for trial, scores in raw.scores().items()
        for place, score in scores.items()
    }
    losses = {
        (names[p["trial"]], p["generation"], p["iteration"]): p["value"]
        for p in values(charts["training0"])
    }
    assert losses == {
        (trial, row["tunekit/generation"], row["training_iteration"]): row["loss"]
        for trial, rows in raw.rows.items()
        for row in rows
    }


# Other sweeps ----------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3))
def test_scores_read_from_a_killed_sweep_stay_the_same_after_its_restore(tmp_path, seed):
    seen: list[tunekit.Sweep] = []

    def look(home: Path) -> None:
        seen.append(tunekit.load(home))
        render_report(seen[-1])

    loaded = tunekit.load((ran := killed(tmp_path, seed, look)).home)
    assert [one.summary()["state"] for one in seen] == ["killed"] * len(seen)
    assert loaded.summary()["state"] == "finished" and loaded.summary()["sessions"] > 1
    # Nothing that could be read before is another thing now.
    for before in seen:
        scores = before.reports.dropna(subset="accuracy") if "accuracy" in before.reports else ()
        for _, row in scores.iterrows() if len(scores) else ():
            same = loaded.reports[
                (loaded.reports.trial_id == row.trial_id)
                & (loaded.reports.training_iteration == row.training_iteration)
            ]
            assert list(same.accuracy) == [row.accuracy]
    assert not loaded.validations.duplicated(["trial_id", "generation", "iteration", "run"]).any()
    assert set(loaded.validations.status) <= {"validated", "skipped"}
    for trial in ran.trials:
        rows = rows_of(trial)
        own = loaded.reports[loaded.reports.trial_id == trial.trial_id]
        assert list(own.training_iteration) == [row["training_iteration"] for row in rows]
        assert list(own.accuracy) == [row["accuracy"] for row in rows]
    best = max(score for scores in ran.processed().values() for score in scores.values())
    assert loaded.best().score == best


def test_journal_without_events_is_an_empty_sweep_with_a_report(tmp_path):
    Journal(LocalFolder(tmp_path)).close()
    loaded = tunekit.load(tmp_path)
    assert [len(getattr(loaded, name)) for name in TABLES] == [0, 0, 0, 0]
    assert list(loaded.trials.columns)[:3] == ["trial_id", "folder", "status"]
    assert loaded.summary()["best"] is None
    assert ranks(render_report(loaded)) == []


def test_secrets_of_searcher_and_runtime_env_are_in_neither_journal_nor_report(tmp_path):
    class Searcher(ray.tune.search.Searcher):
        def __init__(self):
            super().__init__("accuracy", "max")
            self._api_key = "sk-secret"

        def suggest(self, trial_id: str) -> dict[str, Any]:
            return {"lr": 0.1}

        def on_trial_complete(self, *args: Any, **known: Any) -> None: ...

    options = {"num_cpus": 2, "runtime_env": {"env_vars": {"KEY": "sk-secret"}}}
    ran = sweep(
        tmp_path,
        trials=1,
        search_alg=Searcher(),
        settings={"ray_remote_kwargs": options},
    )
    loaded = tunekit.load(ran.home)
    assert loaded.sessions[0]["validation"]["resources"] == {"num_cpus": 2}
    assert loaded.sessions[0]["search_alg"] == {"type": "Searcher", "settings": {}}
    journal = "".join(file.read_text() for file in (ran.home / "journal").iterdir())
    assert "sk-secret" not in journal and "sk-secret" not in render_report(loaded)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_infinite_scores_are_neither_ranked_nor_drawn(tmp_path, mode):
    scores = [0.5, math.inf, 0.7, 0.7]
    ran = sweep(
        tmp_path,
        trials=1,
        param_space={"lr": tune.grid_search([1, 1.0, 0.1, 5])},
        validate=lambda a: {"accuracy": scores[int(a.request.trial_id[-1])]},
        mode=mode,
    )
    loaded = tunekit.load(ran.home)
    ranked = [one.best_value for one in loaded.ranking()]
    assert ranked == [*sorted((0.5, 0.7, 0.7), reverse=mode == "max"), None]
    assert [one.rank for one in loaded.ranking()] == [1, 2, 3, None]
    for name, chart in drawn(render_report(loaded)).items():
        text = json.dumps(chart)
        assert "Infinity" not in text and "NaN" not in text, name


def test_python_in_the_report_loads_the_best_checkpoint(tmp_path, monkeypatch):
    ran = sweep(tmp_path / "my sweeps", trials=2, validate=two_metrics)
    monkeypatch.chdir(tmp_path)

    def said(**options: Any) -> tuple[tunekit.Sweep, list[str]]:
        loaded = tunekit.load(ran.home, **options)
        text = html.unescape(render_report(loaded))
        return loaded, re.findall(r"^best = (.*)$", text, re.M)

    for options in ({}, {"metric": "error/top5", "mode": "min"}):
        loaded, [line] = said(**options)
        found = eval(line, {"tunekit": tunekit})
        assert (found.score, found.path) == (loaded.best().score, loaded.best().path)
    assert f"tunekit.load({str(ran.home)!r})" in line and "'error/top5', 'min'" in line
    loaded, [line] = said(storage_filesystem=pyarrow.fs.LocalFileSystem())
    found = eval(line, {"tunekit": tunekit, "filesystem": pyarrow.fs.LocalFileSystem()})
    assert found.path == loaded.best().path


def test_ranking_by_another_metric_requires_its_mode(tmp_path):
    ran = sweep(tmp_path, trials=2, validate=two_metrics)
    loaded = tunekit.load(ran.home)
    assert (loaded.metric, loaded.mode) == ("accuracy", "max")
    assert loaded.best("error/top5", "min").score == loaded.best("error/top5", "max").score / 9
    with pytest.raises(tunekit.errors.ConfigError, match="mode"):
        loaded.best("error/top5")
    other = tunekit.load(ran.home, metric="error/top5", mode="min")
    assert set(other.trials.best) == {0.1} and set(other.trials["last"]) == {0.9}
    with pytest.raises(tunekit.errors.MetricNotFoundError, match="'accuracy', 'error/top5'"):
        loaded.best("loss", "min")


def test_report_of_a_sweep_without_metric_has_no_ranking_unless_one_is_passed(tmp_path):
    ran = sweep(tmp_path, trials=2, metric=None, mode=None)
    page = render_report(tunekit.load(ran.home))
    assert ranks(page) == [] and "validated" not in drawn(page)
    named = render_report(tunekit.load(ran.home, metric="accuracy", mode="max"))
    assert ranks(named) == ["1", "2"] and "validated" in drawn(named)


def two_metrics(attempt: Attempt) -> dict[str, Any]:
    return {"accuracy": 0.5, "error": {"top5": attempt.request.iteration / 10}}


def test_tunes_experiment_analysis_finds_the_best_validated_checkpoint(tmp_path):
    """As after ``tune.run``, which other libraries call."""
    ran = sweep(tmp_path, trials=1, settings={"when": 2})
    [trial] = ran.trials
    scores = ran.validated()[0]
    best = max(scores, key=scores.__getitem__)
    analysis = tune.ExperimentAnalysis(str(ran.home), trials=ran.trials)
    found = analysis.get_best_checkpoint(trial, "accuracy", "max")
    assert found.path.endswith(f"checkpoint_{best - 1:06d}")


def test_tunes_metric_analysis_averages_each_score_once(tmp_path):
    scores = {4: 0.9, 8: 0.1, 9: 0.1}
    ran = sweep(
        tmp_path,
        trials=1,
        policy=SavesWhen(lambda trial, result: result["training_iteration"] in scores),
        validate=lambda attempt: {"accuracy": scores[attempt.request.iteration]},
    )
    seen = ran.trials[0].metric_analysis
    assert seen["accuracy"]["avg"] == pytest.approx(sum(scores.values()) / 3)
    assert seen["loss"]["avg"] == pytest.approx(sum(1 / n for n in range(1, LENGTH + 1)) / LENGTH)


# A sweep that is followed is, at each moment, what load reads -----------------------------------


def same(one: tunekit.Sweep, other: tunekit.Sweep) -> None:
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name))
    assert one.summary() == other.summary()
    assert one.timeline.spans() == other.timeline.spans()
    assert [r.trial_id for r in one.ranking()] == [r.trial_id for r in other.ranking()]
    assert list(one.timeline.state.ancestry) == list(other.timeline.state.ancestry)
    assert one.sessions == other.sessions


@pytest.mark.parametrize("make", [asha, pbt, killed], ids=["asha", "pbt", "killed"])
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


def test_followed_sweep_is_replaced_by_a_new_one_in_its_folder(tmp_path, follower):
    for trial_id in ("old", "new"):
        session(tmp_path).append(TrialAdded(time=1e9, trial_id=trial_id))
        assert follower.poll() and list(follower.sweep.timeline.trials) == [trial_id]


def test_followed_journal_is_read_again_after_it_was_cut_or_deleted(tmp_path, follower):
    journal = session(tmp_path)
    for trial in ("a", "b"):
        journal.append(TrialAdded(time=1e9, trial_id=trial))
    follower.poll()
    [file] = (tmp_path / "journal").glob("*.jsonl")
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
    home = sweep(tmp_path, trials=1).home
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
