"""What a trial's story says: of one that waits, was overwritten, validated again, or has ended."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

import tunekit
from tests.contract.test_kills import asha as in_order
from tests.contract.test_kills import pbt, promotion
from tests.kills import Killed, bury, killed_after, run_killed
from tests.sweeps import Ran, sweep
from tunekit.cli import commands
from tunekit.core.events import Exploited, Reported, TrialAdded
from tunekit.core.story import story
from tunekit.journal.journal import events_in, record_of
from tunekit.journal.storage import LocalFolder


def asha(folder: Path, **options: Any) -> Ran:
    base = ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)
    return sweep(folder, base, trials=4, **options)


def stories(home: Path) -> dict[str, list[str]]:
    """Each trial's lines, without the first, which says when it began."""
    loaded = tunekit.load(home)
    return {
        trial_id: loaded.story(trial_id).splitlines()[1:] for trial_id in loaded.timeline.trials
    }


def without_times(lines: list[str]) -> list[str]:
    return [re.sub(r"^ +\+\S+ s  ", "", line) for line in lines]


def killed(folder: Path, writes: int, **options: Any) -> dict[str, list[str]]:
    with pytest.raises(Killed), killed_after(writes):
        asha(folder, **options)
    bury(folder / "sweep")
    return stories(folder / "sweep")


def test_a_trial_that_waits_for_a_late_score_says_for_which_and_why_that_is_late(tmp_path):
    told = killed(
        tmp_path, 67, on_pending="wait", validation_s=lambda attempt: 5.5, validation_slots=1
    )
    first, second, third, fourth = told.values()
    assert first == [
        "   +0.0 s  added",
        "   +1.0 s  iteration 1 reported, checkpoint saved, validation requested",
        "   +1.0 s  validation of iteration 1 runs",
        "   +6.5 s  validation of iteration 1 ended: accuracy 0.3778 (ran 5.5 s)",
        "   +6.5 s  score of iteration 1 delivered: CONTINUE",
        "   +6.5 s  has waited 5.5 s for scores",
        "   +7.5 s  iteration 2 reported, checkpoint saved, validation requested",
        "  +23.0 s  validation of iteration 2 runs",
        "  +28.5 s  validation of iteration 2 ended: accuracy 1.1982 (ran 5.5 s)",
        "  +28.5 s  score of iteration 2 delivered: CONTINUE",
        "  +28.5 s  has waited 21.0 s for scores",
        "  +29.5 s  iteration 3 reported, checkpoint saved, validation requested",
        "The sweep was killed: nothing runs until it is resumed. As last recorded:",
        "It waits for the score of iteration 3.",
        "  The validation of iteration 3 was requested 4 s ago, and is waiting.",
    ]
    assert second[-1] == "It trains."
    assert third[-2:] == [
        "It waits for the score of iteration 2.",
        "  The validation of iteration 2 was requested 15 s ago, and is waiting.",
    ]
    assert without_times(fourth)[-5:] == [
        "score of iteration 1 delivered: STOP",
        "has waited 22.0 s for scores",
        "ended",
        "its end was delivered to its scheduler",
        "It has ended.",
    ]


@pytest.mark.parametrize(
    ("make", "on_pending"),
    [
        (asha, "wait"),
        (asha, "wait-paused"),
        (asha, "wait-reused"),
        (pbt, "wait"),
        (promotion, "wait"),
    ],
)
def test_a_trial_waits_or_is_paused_in_its_story_whenever_it_is(tmp_path, make, on_pending):
    seen: set[str] = set()

    class Look(tune.Callback):
        def on_step_end(self, iteration: int, trials: list, **info: Any) -> None:
            record = record_of(LocalFolder(ran.home))
            for trial in trials:
                if not trial.last_result or trial.is_finished():
                    continue
                told = story(record.events, trial.trial_id, sessions=record.sessions)
                waits = ran.validation.waiting.waits(trial.trial_id) is not None
                assert ("It waits for the score of" in told) == waits, told
                paused = trial.status == Trial.PAUSED and not waits
                if paused and on_pending == "wait":
                    assert "Its scheduler has paused it" in told, told
                seen.add("waits" if waits else "is paused" if paused else "trains")

    options: dict[str, Any] = {"later_callbacks": (Look(),), "run": False}
    if make is not asha:
        del options["run"]
    late = {"validation_s": lambda attempt: 2.5 + attempt.request.iteration, "validation_slots": 2}
    ran = make(tmp_path, on_pending=on_pending, **late, **options)
    ran.sweep.run(most=50_000)
    assert seen >= {"waits", "trains"} and (make is asha or "is paused" in seen)


@pytest.mark.parametrize("on_pending", ["auto", "continue"])
def test_what_the_journal_does_not_record_is_not_guessed(tmp_path, on_pending):
    seen: set[str] = set()

    class Look(tune.Callback):
        def on_step_end(self, iteration: int, trials: list, **info: Any) -> None:
            record = record_of(LocalFolder(ran.home))
            for trial in trials:
                if not trial.last_result or trial.is_finished():
                    continue
                told = story(record.events, trial.trial_id, sessions=record.sessions)
                waits = ran.validation.waiting.waits(trial.trial_id)
                assert "It waits for the score of" not in told, told
                assert not waits or "It trains, or waits for the score of" in told, told
                seen.add("waits" if waits else "trains")

    late = {"validation_s": lambda attempt: 2.5 + attempt.request.iteration, "validation_slots": 2}
    ran = asha(tmp_path, on_pending=on_pending, later_callbacks=(Look(),), run=False, **late)
    ran.sweep.run(most=50_000)
    assert seen == {"waits", "trains"}


def test_a_trial_that_was_not_started_says_what_is_recorded_of_why():
    added = [
        TrialAdded(time=1.0, trial_id=trial_id, resources={"CPU": 2.0, "GPU": 0.5})
        for trial_id in ("a", "b")
    ]
    reported = Reported(time=2.0, trial_id="a", report={"training_iteration": 1})
    cluster = {"nodes": 1, "resources": {"CPU": 3.0}}
    told = story([*added, reported], "b", sessions=[{"cluster": cluster}])
    assert told.splitlines()[-1] == (
        "It waits to be started (trials that have started and not ended: 1; "
        "a trial takes 2 CPU, 0.5 GPU, and the cluster had 3 CPU, 0 GPU)."
    )


def test_a_trial_that_was_overwritten_says_with_what_and_which_it_was(tmp_path):
    pbt(tmp_path, "wait").sweep.run(most=50_000)
    told = stories(tmp_path / "sweep")
    exploits = [one for one in events_in(tmp_path / "sweep") if isinstance(one, Exploited)]
    assert exploits
    for one in exploits:
        lines, donors = without_times(told[one.trial_id]), without_times(told[one.donor_id])
        place = f"iteration {one.iteration}"
        place += f" of generation {one.donor_generation}" * bool(one.donor_generation)
        begins = f"{place}: generation {one.generation} begins"
        at = lines.index(f"overwritten with {one.donor_id}'s {begins}")
        assert any(line.startswith(f"score of {place} delivered: PAUSE") for line in donors)
        assert lines[at - 1] == "has waited 1.0 s for scores"
        assert lines[at + 1] == "resumed by its scheduler"
        following = f"iteration {one.iteration + 1} of generation {one.generation} reported"
        assert lines[at + 2].startswith(following)
        assert f"trial {one.trial_id} is overwritten with its {place}" in donors


def test_a_validation_that_fails_is_retried_and_its_reason_keeps_to_its_line(tmp_path):
    def validate(attempt: Any) -> dict[str, float]:
        if attempt.request.iteration == 3 or attempt.number == 1:
            raise RuntimeError("no disk\x1b[2J\n")
        return {"accuracy": 1.0}

    settings = {"max_retries": 1}
    sweep(tmp_path, FIFOScheduler(), trials=1, validate=validate, settings=settings)
    [lines] = map(without_times, stories(tmp_path / "sweep").values())
    retried = lines.index("validation of iteration 1 retried (attempt 2)")
    assert "validation of iteration 1 runs" in lines[:retried]
    assert "validation of iteration 1 ended: accuracy 1.0000 (ran 1.0 s)" in lines[retried:]
    [failed] = [line for line in lines if line.startswith("validation of iteration 3 failed")]
    assert r"RuntimeError: no disk\x1b[2J" in failed
    assert not any(line.startswith("score of iteration 3 ") for line in lines)
    assert "ended" in lines and lines[-1] == "It has ended."


def test_a_trial_that_fails_is_started_again_and_reports_share_a_line(tmp_path):
    options: dict[str, Any] = {"settings": {"when": "requested"}, "param_space": {"fail_at": 4}}
    policy = tunekit.EveryIterations(2)
    sweep(tmp_path, FIFOScheduler(), trials=1, max_failures=1, policy=policy, **options)
    [lines] = map(without_times, stories(tmp_path / "sweep").values())
    assert lines == [
        "added",
        "iterations 1 to 2 reported, checkpoint saved",
        "iteration 3 reported",
        "failed",
        "started again",
        "iterations 3 to 4 reported, checkpoint saved",
        "iterations 5 to 6 reported, checkpoint saved",
        "iterations 7 to 8 reported, checkpoint saved",
        "iteration 9 reported",
        "ended",
        "its end was delivered to its scheduler",
        "It has ended.",
    ]


def test_a_sweep_that_was_restored_says_so(tmp_path):
    def made(folder: Path, **options: Any) -> Ran:
        return in_order(folder, "wait", **options)

    run_killed(tmp_path, made, iter([60]))
    told = stories(tmp_path / "sweep").values()
    assert all(lines[-1] == "It has ended." for lines in told)
    assert any("the sweep was restored" in without_times(lines) for lines in told)


def test_the_command_prints_it_and_names_near_trials(tmp_path):
    asha(tmp_path)
    home = str(tmp_path / "sweep")
    trial_id, *_ = stories(Path(home))
    arguments = ["status", home, "--trial", trial_id]
    text = CliRunner().invoke(commands.tunekit, arguments).stdout
    assert text.splitlines()[1:] == stories(Path(home))[trial_id]
    known = json.loads(CliRunner().invoke(commands.tunekit, [*arguments, "--json"]).stdout)
    assert known == {"trial_id": trial_id, "state": "finished", "story": text.splitlines()}
    wrong = CliRunner().invoke(commands.tunekit, [*arguments[:-1], f"{trial_id}\x1b"])
    assert wrong.exit_code == 2 and wrong.stdout == ""
    hint = rf"'{trial_id}\x1b' is not a trial of this sweep. Did you mean {trial_id!r}?"
    assert hint in wrong.stderr and "\x1b" not in wrong.stderr
