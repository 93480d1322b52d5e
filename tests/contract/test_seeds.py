"""Sweeps that repeat configurations with other seeds: tables, the command line and the report."""

from __future__ import annotations

import html
import json
import math
import random
import re
import statistics
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining
from ray.tune.search import Repeater
from ray.tune.search.optuna import OptunaSearch

import tunekit
from tests.sweeps import LENGTH, Counting, Endless, Ran, sweep
from tunekit.board.page import render
from tunekit.cli import commands
from tunekit.core.t_distribution import quantile
from tunekit.core.validation import Attempt

LRS, SEEDS = (0.1, 0.2, 0.3), (0, 1, 2, 3)
# The mean of the second is best, and a trial of the first.
SCORES = {
    0.1: (0.90, 0.30, 0.40, 0.40),
    0.2: (0.70, 0.74, 0.71, 0.73),
    0.3: (0.10, 0.20, 0.20, 0.10),
}


def score(attempt: Attempt) -> dict[str, Any]:
    """Return what a trial's seed comes to, the more the longer it was trained."""
    config = attempt.request.report["config"]
    whole = SCORES[config["lr"]][config["opt"]["seed"]]
    lacks = (LENGTH - attempt.request.iteration) / 100
    return {"accuracy": whole - lacks, "error": {"top5": 1 - whole + lacks}}


def run(
    folder: Path, base: Any = None, *, seed_param: str | None = "opt/seed", **options: Any
) -> Ran:
    space = {
        "lr": tune.grid_search(list(LRS)),
        "opt": {"seed": tune.grid_search(list(SEEDS)), "widths": [8, 8]},
    }
    known = {"trials": 1, "param_space": space, "validate": score, "seed_param": seed_param}
    return sweep(folder, base or FIFOScheduler(), **{**known, **options})


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> Path:
    return run(tmp_path_factory.mktemp("ended")).home


@pytest.fixture(scope="module")
def untold(tmp_path_factory) -> Path:
    """The same without a word of which one is the seed."""
    return run(tmp_path_factory.mktemp("untold"), seed_param=None).home


def tunekit_(*arguments: Any) -> Result:
    result = CliRunner().invoke(commands.tunekit, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


# The table ---------------------------------------------------------------------------------------


def check_table(table: pd.DataFrame) -> None:
    assert list(table["rank"]) == [1, 2, 3]
    assert list(table["config/lr"]) == [0.2, 0.1, 0.3]
    assert list(table["config/opt/widths"]) == [[8, 8]] * 3
    assert "config/opt/seed" not in table
    for row in table.itertuples():
        values = SCORES[table.loc[row.Index, "config/lr"]]
        half = quantile(3) * statistics.stdev(values) / 2
        assert (row.seeds, row.trials, row.complete) == (4, 4, 4)
        assert row.mean == pytest.approx(statistics.mean(values))
        assert row.std == pytest.approx(statistics.stdev(values))
        assert (row.low, row.high) == pytest.approx((row.mean - half, row.mean + half))


def test_the_journal_says_which_hyperparameter_is_the_seed(ended):
    loaded = tunekit.load(ended)
    assert (loaded.seed_param, loaded.has_seeds) == ("opt/seed", True)
    check_table(loaded.configurations())


def test_a_reader_may_say_it_too(untold):
    check_table(tunekit.load(untold, seed_param="opt/seed").configurations())
    assert tunekit.load(untold).seed_param is None and not tunekit.load(untold).has_seeds


def test_trials_are_named_from_best_to_worst(ended):
    loaded = tunekit.load(ended)
    trials = loaded.trials.set_index("trial_id")
    for row in loaded.configurations().itertuples():
        best = [trials.best[trial_id] for trial_id in row.trial_ids]
        assert best == sorted(best, reverse=True)
        assert (row.best_trial, row.worst_trial) == (row.trial_ids[0], row.trial_ids[-1])


def test_what_stands_for_a_trial_is_what_best_goes_by(tmp_path):
    def falls(attempt: Attempt) -> dict[str, float]:
        return {"accuracy": score(attempt)["accuracy"] - 0.5 * (attempt.request.iteration == 9)}

    loaded = tunekit.load(run(tmp_path, validate=falls).home)
    best, last = loaded.configurations(), loaded.configurations(scope="last")
    assert best["mean"][0] == pytest.approx(0.72 - 0.01)
    assert last["mean"][0] == pytest.approx(0.72 - 0.5)


def test_another_metric_and_mode_rank_otherwise(ended):
    table = tunekit.load(ended, metric="error/top5", mode="max").configurations()
    assert list(table["config/lr"]) == [0.3, 0.1, 0.2]
    other = tunekit.load(ended, metric="error/top5", mode="min")
    assert list(other.configurations()["config/lr"]) == [0.2, 0.1, 0.3]


def test_a_seed_that_no_trial_has_is_an_error_that_names_those_there_are(ended, untold):
    told = (
        r"seed_param='seed' is not a hyperparameter of any trial. Did you mean 'opt/seed'\? .*'lr'"
    )
    with pytest.raises(tunekit.errors.ConfigError, match=told):
        tunekit.load(ended, seed_param="seed")
    for call in (tunekit.load(untold).configurations, tunekit.load(untold).ranked_configurations):
        with pytest.raises(
            tunekit.errors.ConfigError, match=r"seed_param is missing.*'lr', 'opt/seed'"
        ):
            call()
    with pytest.raises(tunekit.errors.ConfigError, match="seed_param is missing"):
        tunekit.load(untold).best(by="configuration")
    with pytest.raises(tunekit.errors.ConfigError, match=r"(?s)scope='first'.*seed_param is miss"):
        tunekit.load(untold).configurations(scope="first")
    with pytest.raises(
        tunekit.errors.ConfigError, match="seed_param=0 is not the name of a hyperparameter"
    ):
        tunekit.load(ended, seed_param=0)


def test_the_best_is_that_of_the_best_configuration(ended, untold):
    loaded = tunekit.load(ended)
    best, luckiest = loaded.best(), loaded.best(by="trial")
    assert (best.config["lr"], best.score) == (0.2, 0.74)
    assert best.configuration.estimate.mean == pytest.approx(0.72)
    assert (luckiest.config["lr"], luckiest.score, luckiest.configuration) == (0.1, 0.9, None)
    assert tunekit.load(untold).best().score == 0.9
    summary = loaded.summary()
    assert summary["best"]["score"] == 0.74
    assert summary["seed_param"] == "opt/seed" and summary["configuration"]["seeds"] == 4
    assert summary["configuration"]["config"] == {"lr": 0.2, "opt/widths": [8, 8]}
    assert tunekit.load(untold).summary()["configuration"] is None


# Trials that did not run their course ------------------------------------------------------------


def asha(folder: Path, trainable: Any = Endless, **options: Any) -> tunekit.Sweep:
    base = ASHAScheduler(
        time_attr="training_iteration", max_t=LENGTH, grace_period=1, reduction_factor=2
    )
    ran = run(folder, base, trainable=trainable, on_pending="wait", **options)
    return tunekit.load(ran.home)


@pytest.mark.parametrize("trainable", [Counting, Endless])
def test_what_asha_stopped_at_a_rung_counts_and_leaves_no_interval(tmp_path, trainable):
    """A trial that reaches ``max_t`` is stopped, too, and has run its course."""
    loaded = asha(tmp_path, trainable)
    trials = loaded.trials.set_index("trial_id")
    stopped = trials[trials.iteration < LENGTH]
    assert len(stopped) and len(stopped) < len(trials)
    for row in loaded.configurations().itertuples():
        own = trials.loc[row.trial_ids]
        assert row.seeds == 4
        assert row.complete == sum(own.iteration >= LENGTH)
        assert row.mean == pytest.approx(own.best.mean())
        assert math.isnan(row.low) is (row.complete < 4)
    assert (loaded.configurations().complete < 4).any()


def test_without_a_recorded_limit_the_furthest_ran_their_course(tmp_path):
    loaded = asha(tmp_path)
    for session in loaded.sessions:
        session["scheduler"]["settings"].pop("max_t")
    furthest = loaded.trials.iteration.max()
    table = loaded.configurations()
    assert table.complete.sum() == sum(loaded.trials.iteration == furthest) > 0


def test_a_users_stopping_criterion_says_when_a_trial_has_run_its_course(tmp_path):
    loaded = tunekit.load(run(tmp_path, stop={"accuracy": 0.68}).home)
    assert loaded.trials.stopped.any() and loaded.trials.iteration.nunique() > 1
    assert set(loaded.configurations().complete) == {4}


def test_a_trial_that_failed_is_not_part_of_the_mean(tmp_path):
    class Fails(Counting):
        def step(self) -> dict[str, Any]:
            if self.config["lr"] == 0.2 and self.config["opt"]["seed"] == 1 and self.steps == 3:
                raise RuntimeError("out of memory")
            return super().step()

    loaded = tunekit.load(run(tmp_path, trainable=Fails).home)
    first = loaded.configurations().loc[0]
    assert (first["config/lr"], first.seeds, first.trials, first.complete) == (0.2, 3, 4, 3)
    assert first["mean"] == pytest.approx(statistics.mean([0.70, 0.71, 0.73]))
    assert first.low < first["mean"]


def test_a_sweep_that_has_not_ended_has_no_intervals(tmp_path):
    ran = run(tmp_path, run=False, validation_s=lambda attempt: 1.5)
    begun, scored = None, None
    while scored is None:
        with suppress(AssertionError):  # it is not over after so many steps
            ran.sweep.run(most=10)
        if (ran.home / "journal").is_dir():
            loaded = tunekit.load(ran.home)
            table = loaded.configurations()
            if len(loaded.trials) == 12 and table["rank"].isna().all():
                begun = table
            if len(table) == 3 and not table["rank"].isna().any():
                scored = table
    assert begun is not None and set(begun.seeds) == {0} and begun["mean"].isna().all()
    assert scored.low.isna().all() and set(scored.complete) == {0}
    assert "whether that is due to chance is unknown" in text_of(render(loaded))
    ran.sweep.run(most=50_000)
    check_table(tunekit.load(ran.home).configurations())


def test_a_trial_that_was_overwritten_is_no_repetition(tmp_path):
    base = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": list(LRS)},
        quantile_fraction=0.25,
    )
    loaded = tunekit.load(run(tmp_path, base, on_pending="wait").home)
    overwritten = set(loaded.trials.trial_id[loaded.trials.generation > 0])
    assert overwritten
    for row in loaded.configurations().itertuples():
        assert row.complete <= len(set(row.trial_ids) - overwritten)
        if not math.isnan(row.low):
            assert row.best_trial not in overwritten


# Repeater ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("set_index", [True, False])
def test_a_repeaters_index_is_the_seed(tmp_path, set_index):
    searcher = OptunaSearch({"lr": tune.uniform(0, 1)}, metric="accuracy", mode="max", seed=1)
    alg = tunekit.ValidatedSearcher(Repeater(searcher, repeat=3, set_index=set_index))

    def noisy(attempt: Attempt) -> dict[str, float]:
        return {"accuracy": random.Random(attempt.request.trial_id).random()}

    ran = sweep(tmp_path, FIFOScheduler(), trials=6, search_alg=alg, validate=noisy)
    loaded = tunekit.load(ran.home)
    if not set_index:
        assert loaded.seed_param is None
        return
    assert (
        loaded.seed_param == "__trial_index__"
        and loaded.sessions[0]["seed_param"] == loaded.seed_param
    )
    table = loaded.configurations()
    assert list(table.seeds) == list(table.trials) == [3, 3]
    assert [name for name in table if name.startswith("config/")] == ["config/lr"]
    assert "Configurations</h2>" in render(loaded)


# The command line --------------------------------------------------------------------------------


def test_best_prints_the_mean_and_what_the_seeds_say(ended, untold):
    printed = tunekit_("best", ended).stdout
    assert printed.startswith("accuracy 0.7400 (max): trial")
    half = quantile(3) * statistics.stdev(SCORES[0.2]) / 2
    interval = f"{0.72 - half:.4f} to {0.72 + half:.4f}"
    assert f"mean 0.7200 over 4 seeds (95 % interval {interval})" in printed
    assert [line.split(",")[0] for line in re.findall(r"opt/seed \d: .*", printed)] == [
        f"opt/seed {seed}: {SCORES[0.2][seed]:.4f}" for seed in (1, 3, 2, 0)
    ]
    assert "The next configuration, lr=0.1, is 0.2200 behind: given the seeds" in printed
    assert "can hardly be told apart (Welch's t-test, p = 0.2" in printed
    told = tunekit_("best", untold, "--seed-param", "opt/seed").stdout
    assert (
        told.replace(str(untold), str(ended)).split("\nin Python")[0].split("checkpoint")[0]
        == (printed.split("\nin Python")[0].split("checkpoint")[0])
    )
    luckiest = tunekit_("best", ended, "--by", "trial").stdout
    assert luckiest.startswith("accuracy 0.9000") and "over seeds" not in luckiest
    assert "over seeds" not in tunekit_("best", untold).stdout


@pytest.mark.parametrize("options", [(), ("--by", "trial")])
def test_the_line_of_python_loads_the_same_checkpoint(ended, untold, options):
    for path, more in ((ended, ()), (untold, ("--seed-param", "opt/seed"))):
        line = tunekit_("best", path, *options, *more).stdout.splitlines()[-1].strip()
        data = json.loads(tunekit_("best", path, *options, *more, "--json").stdout)
        assert eval(line, {"tunekit": tunekit}).path == data["checkpoint"]


def test_best_as_json_has_all_seeds_and_the_next_configuration(ended):
    known = json.loads(tunekit_("best", ended, "--json").stdout)
    own = known["configuration"]
    assert known["seed_param"] == "opt/seed" and own["hyperparameters"]["lr"] == 0.2
    mean = own["estimate"]
    assert mean["mean"] == pytest.approx(0.72) and mean["low"] < 0.72 < mean["high"]
    found = {one["hyperparameters"]["opt/seed"]: one["value"] for one in own["repeats"]}
    assert found == pytest.approx(dict(enumerate(SCORES[0.2])))
    assert own["counted"] == 4 and {one["ending"] for one in own["repeats"]} == {"complete"}
    assert known["next"]["hyperparameters"]["lr"] == 0.1 and known["next"]["apart"] is False
    assert known["next"]["margin"] == pytest.approx(0.22) and 0.05 < known["next"]["p"] < 1
    assert "configuration" not in json.loads(
        tunekit_("best", ended, "--by", "trial", "--json").stdout
    )


def test_a_name_that_is_none_ends_with_2(ended, untold):
    for command in ("best", "report"):
        result = tunekit_(command, ended, "--seed-param", "seed")
        assert result.exit_code == 2 and "Did you mean 'opt/seed'?" in result.stderr
    assert tunekit_("best", untold, "--by", "configuration").exit_code == 2


def test_status_has_the_best_mean(ended, untold):
    printed = tunekit_("status", ended).stdout
    assert re.search(r"^over seeds +best mean 0.7200 over 4 seeds .*: lr=0.2", printed, re.M)
    assert "over seeds" not in tunekit_("status", untold).stdout


# The report --------------------------------------------------------------------------------------


def text_of(page: str) -> str:
    body = page.partition("<script")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def charts_of(page: str) -> dict[str, Any]:
    pattern = r'<script type="application/json" data-chart="(\w+)">(.*?)</script>'
    return {name: json.loads(text) for name, text in re.findall(pattern, page, re.S)}


def test_the_report_ranks_configurations_and_then_trials(ended, untold):
    page = render(tunekit.load(ended))
    text = text_of(page)
    assert "Best: the configuration lr=0.2 , whose mean accuracy was 0.7200 over 4 seeds" in text
    assert "is 0.2200 behind: given the seeds, the two can hardly be told apart (Welch's" in text
    assert re.findall(r'<td class="mean">([\d.]+)</td>', page) == ["0.7200", "0.5000", "0.1500"]
    assert len(re.findall(r"data-trial=", page)) == 12, "the trials are there, too"
    said = html.unescape(re.search(r"^best = (.*)$", page, re.M).group(1))
    assert eval(said, {"tunekit": tunekit}).path == tunekit.load(ended).best().path
    plain = render(tunekit.load(untold))
    assert "Configurations</h2>" not in plain and "Best: trial" in plain


def test_a_clear_difference_is_said_to_be_one(tmp_path):
    def clear(attempt: Attempt) -> dict[str, float]:
        config = attempt.request.report["config"]
        return {"accuracy": config["lr"] + config["opt"]["seed"] / 1000}

    text = text_of(render(tunekit.load(run(tmp_path, validate=clear).home)))
    assert "is 0.1000 behind: the seeds tell the two apart (Welch's t-test, p < 0.001)" in text


def test_the_report_does_not_say_what_stopped_seeds_do_not(tmp_path):
    text = text_of(render(asha(tmp_path)))
    assert "whether that is due to chance is unknown, because not all of their trials are" in text


def test_a_seed_that_is_named_wrong_in_the_sweep_costs_no_report(tmp_path):
    loaded = tunekit.load(run(tmp_path, seed_param="sed").home)
    page = render(loaded)
    assert "Best: trial" in page and "Configurations</h2>" not in page
    assert "No trial has the hyperparameter <code>sed</code>" in page
    assert loaded.best().score == 0.9 and tunekit_("best", loaded.path).exit_code == 0
    assert tunekit_("status", loaded.path).exit_code == 0
    with pytest.raises(
        tunekit.errors.ConfigError, match="seed_param='sed' is not a hyperparameter of any trial"
    ):
        loaded.configurations()


def test_what_the_report_says_to_run_knows_another_seed(untold):
    loaded = tunekit.load(untold, seed_param="opt/seed")
    line = html.unescape(re.search(r"^best = (.*)$", render(loaded), re.M).group(1))
    assert eval(line, {"tunekit": tunekit}).path == loaded.best().path


def test_scores_that_are_infinite_are_ranked_and_not_drawn(tmp_path):
    def infinite(attempt: Attempt) -> dict[str, float]:
        config = attempt.request.report["config"]
        diverged = config["lr"] == 0.1 and config["opt"]["seed"] == 0
        return {"accuracy": -math.inf if diverged else config["lr"]}

    loaded = tunekit.load(run(tmp_path, validate=infinite).home)
    assert list(loaded.configurations()["config/lr"]) == [0.3, 0.2, 0.1]
    assert "Infinity" not in json.dumps(charts_of(render(loaded)))
