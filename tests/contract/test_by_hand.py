"""Trials are stopped, paused, continued and added by hand, whatever they are doing."""

from __future__ import annotations

import itertools
import json
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search import BasicVariantGenerator
from ray.tune.search.optuna import OptunaSearch

import tunekit
from tests.asking import Asks, AsksAtRandom, Script, answers, put, reached, scored
from tests.invariants import check_journal
from tests.kills import run_killed
from tests.schedulers import CASES, seed_all
from tests.seeds import SCHEDULES, seeds
from tests.serving import Browser
from tests.sweeps import Endless, Ran, quality, sweep
from tunekit.board.serve.app import Application
from tunekit.board.serve.catalogue import Catalogue
from tunekit.cli import commands
from tunekit.core.events import (
    Asked,
    Decided,
    Reported,
    ScoreDelivered,
    TrialAdded,
    TrialEnded,
    TrialErrored,
)
from tunekit.core.reconcile import Actual, Desired
from tunekit.driver.by_hand import ByHand
from tunekit.journal.journal import events_in
from tunekit.journal.requests import Request, ask, in_words

pytestmark = pytest.mark.sampled(2)

MODES = ["continue", "wait", "wait-paused", "wait-reused", "auto", "auto-beside"]
SCHEDULERS = ["fifo", "asha", "pbt", "pbt-sync", "hyperband", "promotion"]


@pytest.fixture(autouse=True)
def checked(monkeypatch):
    monkeypatch.setenv("TUNEKIT_CHECK", "1")


def run(folder: Path, *script: Any, scheduler: Any = None, **options: Any) -> Ran:
    known: dict[str, Any] = {
        "trials": 3,
        "trainable": Endless,
        "stop": {"training_iteration": 6},
        "more_callbacks": (Asks(folder / "sweep", list(script)),),
    }
    return sweep(folder, scheduler or FIFOScheduler(), **{**known, **options})


def told(ran: Ran) -> list[tuple[str, str]]:
    return [(one.action, one.refused) for one in answers(ran.home)]


def reports_after(events: list[Any], asked: Asked, until: tuple[str, ...]) -> int:
    """How often a trial has reported from a request on, until another one is granted or it ends."""
    count = 0
    for event in events[events.index(asked) + 1 :]:
        if getattr(event, "trial_id", None) != asked.trial_id:
            continue
        if isinstance(event, Asked) and event.action in until and not event.refused:
            break
        count += isinstance(event, Reported)
    return count


# Whatever is asked, whenever ---------------------------------------------------------------------


def granted(events: list[Any]) -> None:
    """Check that what was asked was granted or refused as the state of the trial says."""
    paused: set[str] = set()
    over: set[str] = set()
    for event in events:
        match event:
            case TrialEnded() | TrialErrored():
                over.add(event.trial_id)
            case ScoreDelivered(decision="STOP") | Decided(decision="STOP"):
                over.add(event.trial_id)
            case Asked(action="add"):
                assert not event.refused
            case Asked(action=action, trial_id=trial_id):
                is_paused = trial_id in paused - over
                wanted = trial_id not in over and is_paused == (action == "continue")
                if action == "stop":
                    wanted = trial_id not in over
                assert (not event.refused) == wanted, event
                if wanted:
                    (paused.add if action == "pause" else paused.discard)(trial_id)
                if wanted and action == "stop":
                    over.add(trial_id)


SEEN: set[tuple[str, Actual, Desired]] = set()


@pytest.mark.parametrize("on_pending", MODES)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_anything_can_be_asked_of_any_trial_at_any_time(tmp_path, monkeypatch, name, on_pending):
    case = CASES[name]
    if on_pending not in case.modes:
        pytest.skip("not with this scheduler")
    answer = ByHand._answer

    def noted(self: ByHand, request: str, data: bytes) -> Asked:
        asked = answer(self, request, data)
        if asked.action != "add":
            proxy = self.actions._proxies.by_id[asked.trial_id]
            SEEN.add((asked.action, proxy.doing, proxy.phase))
        return asked

    monkeypatch.setattr(ByHand, "_answer", noted)
    for seed in seeds(2, name, on_pending):
        seed_all(seed)
        folder = tmp_path / str(seed)
        ran = sweep(
            folder,
            case.make(folder / "policies"),
            on_pending=on_pending,
            trainable=Endless,
            seed=seed,
            slots=3,
            validation_s=lambda attempt: 1.7,
            more_callbacks=(AsksAtRandom(folder / "sweep", seed),),
            **({"trials": 5, "stop": {"training_iteration": 9}} | case.options()),
        )
        events = events_in(ran.home)
        check_journal(events)
        granted(events)
        asked = answers(ran.home)
        left = {path.stem for path in (ran.home / "requests").iterdir()}
        assert len({one.request for one in asked} - left) == len(asked) > 2
        assert all(trial.status == "TERMINATED" for trial in ran.trials)
        assert {one.trial_id for one in asked if one.action == "add"} <= {
            trial.trial_id for trial in ran.trials
        }
        for one in asked:
            if one.refused:
                continue
            if one.action == "stop":
                assert reports_after(events, one, ()) == 0
            if one.action == "pause":
                assert reports_after(events, one, ("continue", "stop")) <= 1


def test_all_states_of_a_trial_were_asked_about():
    """The test before has met each of them, if it has run."""
    if not SEEN:
        pytest.skip("alone, it has seen nothing")
    doing = {(action, at) for action, at, _ in SEEN}
    for action in ("stop", "pause", "continue"):
        for at in Actual:
            assert (action, at) in doing, (action, at)
        assert (action, Actual.PAUSED, Desired.PAUSED) in SEEN, "paused by its scheduler"


# What comes of it --------------------------------------------------------------------------------


@pytest.mark.parametrize("on_pending", MODES)
def test_a_trial_that_is_stopped_is_judged_by_its_last_score(tmp_path, on_pending):
    ran = run(
        tmp_path,
        (reached(1, 3), "stop", 1, {}),
        on_pending=on_pending,
        validation_s=lambda attempt: 4.0,
    )
    assert told(ran) == [("stop", "")]
    assert ran.lengths() == {0: 6, 1: 3, 2: 6}
    assert ran.heard.of(1)[-1:] == [3]
    [end] = [score for index, score in ran.heard.ends if index == 1]
    assert end == ran.validated()[1][3]
    shown = tunekit.load(ran.home).timeline.trials[ran.trials[1].trial_id]
    assert shown.shown_status == "stopped by hand" and shown.stopped


def test_a_trial_that_is_stopped_while_it_has_given_way_is_judged_by_its_last_score(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("tunekit.driver.by_hand._INTERVAL_S", 0.0)  # before its score is there
    ran = run(
        tmp_path,
        (lambda trials: reached(1, 3)(trials) and trials[1].status == "PAUSED", "stop", 1, {}),
        on_pending="wait-paused",
        validation_s=lambda attempt: 4.0,
    )
    assert told(ran) == [("stop", "")] and ran.lengths()[1] == 3
    assert ran.heard.of(1)[-1:] == [3]


def test_a_request_whose_file_is_there_again_is_not_done_again(tmp_path):
    """As if the driver was killed before it could delete it."""
    home = tmp_path / "sweep"

    class Again(tune.Callback):
        def on_trial_result(self, iteration: int, **info: Any) -> None:
            put(home, 1, "add")

    ran = run(tmp_path, more_callbacks=(Again(),))
    assert told(ran) == [("add", "")] and len(ran.trials) == 4


@pytest.mark.parametrize("on_pending", MODES)
def test_a_paused_trial_gives_its_slot_away_and_resumes_where_it_was(tmp_path, on_pending):
    ran = run(
        tmp_path,
        (reached(0, 2), "pause", 0, {}),
        (reached(1, 6), "continue", 0, {}),
        on_pending=on_pending,
        slots=1,
    )
    assert told(ran) == [("pause", ""), ("continue", "")]
    assert ran.lengths() == {0: 6, 1: 6, 2: 6}
    of = [e.trial_id for e in events_in(ran.home) if isinstance(e, Reported)]
    first, second = ran.trials[0].trial_id, ran.trials[1].trial_id
    assert of.index(second) < len(of) - 1 - of[::-1].index(first), "the slot was free meanwhile"
    iterations = [
        e.report["training_iteration"]
        for e in events_in(ran.home)
        if isinstance(e, Reported) and e.trial_id == first
    ]
    assert iterations == [1, 2, 3, 4, 5, 6], "none is lost, none is run twice"


def test_a_pending_trial_that_is_paused_does_not_start(tmp_path):
    waited = itertools.count()
    ran = run(
        tmp_path,
        (reached(0, 1), "pause", 1, {}),
        (lambda trials: trials[2].is_finished() and next(waited) > 20, "continue", 1, {}),
        slots=1,
    )
    events = events_in(ran.home)
    continued = [one.n for one in answers(ran.home) if one.action == "continue"]
    begun = [
        e.n for e in events if isinstance(e, Reported) and e.trial_id == ran.trials[1].trial_id
    ]
    assert continued[0] < begun[0]
    first = [e.trial_id for e in events_in(ran.home) if isinstance(e, Reported)]
    order = list(dict.fromkeys(first))
    assert order == [ran.trials[n].trial_id for n in (0, 2, 1)]


def test_a_scheduler_stops_a_trial_that_is_paused_by_hand(tmp_path):
    scheduler = ASHAScheduler(max_t=9, grace_period=1, reduction_factor=2)
    ran = run(
        tmp_path,
        (reached(0, 1), "pause", 0, {}),
        scheduler=scheduler,
        validate=lambda attempt: {"accuracy": -attempt.request.iteration + _worst(attempt)},
        validation_s=lambda attempt: 3.0 + 5.0 * (_worst(attempt) < 0),
    )
    assert told(ran) == [("pause", "")]
    trial = tunekit.load(ran.home).timeline.trials[ran.trials[0].trial_id]
    assert trial.shown_status == "stopped" and ran.lengths()[0] <= 2


def _worst(attempt: Any) -> float:
    return -100.0 if attempt.request.trial_id.endswith("00000") else 0.0


def test_a_sweep_whose_last_trials_are_paused_waits_and_says_so(tmp_path, caplog):
    shown: list[Any] = []
    waited = itertools.count()

    def while_paused(trials: dict[int, Any]) -> bool:
        if all(trials[n].is_finished() for n in (1, 2)) and trials[0].status == "PAUSED":
            known = tunekit.load(tmp_path / "sweep")
            shown[:] = [known.timeline.trials[trials[0].trial_id].shown_status]
            return next(waited) > 50
        return False

    with caplog.at_level(logging.WARNING, "tunekit"):
        ran = run(tmp_path, (reached(0, 2), "pause", 0, {}), (while_paused, "continue", 0, {}))
    said = [record.getMessage() for record in caplog.records if "by hand" in record.getMessage()]
    assert said == [
        "1 trial paused by hand: 00000_00000. No other trial runs: the sweep waits for "
        "`tunekit continue` or `tunekit stop`."
    ]
    assert shown == ["paused by hand"]
    assert ran.lengths() == {0: 6, 1: 6, 2: 6}


# Adding ------------------------------------------------------------------------------------------

SPACE = {"lr": tune.loguniform(1e-4, 1e-1), "net": {"width": tune.choice([8, (16, 16)])}, "n": 3}
LR = {"kind": "float", "low": 1e-4, "high": 1e-1, "log": True}


def adding(folder: Path, *configs: dict[str, Any], **options: Any) -> Ran:
    script = [(reached(0, 2), "add", 0, config) for config in configs]
    ran = run(folder, *script, param_space=SPACE, run=False, **options)
    ran.validation.searched = {
        "lr": LR,
        "net/width": {"kind": "choice", "choices": [8, "[16, 16]"]},
    }
    ran.sweep.run(most=50_000)
    return ran


def test_an_added_trial_is_one_like_the_others(tmp_path):
    ran = adding(tmp_path, {"lr": 0.05, "net": {"width": [16, 16]}, "n": 3})
    assert told(ran) == [("add", "")]
    added = ran.sweep.controller.get_trials()[-1]
    assert added.trial_id == "00000001" and len(ran.trials) == 4
    assert added.config == {"lr": 0.05, "net": {"width": (16, 16)}, "n": 3}
    assert added.last_result["training_iteration"] == 6 and added.status == "TERMINATED"
    recorded = [e for e in events_in(ran.home) if isinstance(e, TrialAdded)]
    assert [e.trial_id for e in recorded][-1] == "00000001"
    assert len(dict(ran.validation.history.scores("00000001"))) == 6


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"lr": 3, "net/width": 8}, "lr=3 is outside of 0.0001 to 0.1 (log)"),
        ({"lr": 0.01, "net/width": 9}, "net/width=9 is outside of 8, [16, 16]"),
        ({"lr": 0.01}, "net/width is missing"),
        ({"lr": 0.01, "net/width": 8, "n": 4}, "n is not searched: lr, net/width"),
        ({"rate": 1, "net": {"width": 8}}, "rate is not searched: lr, net/width; lr is missing"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(tmp_path, config, why):
    ran = adding(tmp_path, config)
    assert told(ran) == [("add", why)] and len(ran.trials) == 3


def test_a_searcher_is_not_told_of_a_trial_that_it_has_not_suggested(tmp_path):
    search = OptunaSearch({"lr": tune.uniform(0.0, 1.0)}, metric="accuracy", mode="max", seed=1)
    ran = run(
        tmp_path,
        (lambda trials: len(trials) > 1 and reached(1, 2)(trials), "add", 1, {"lr": 0.5}),
        search_alg=tunekit.ValidatedSearcher(search),
        metric=None,
        mode=None,
    )
    assert told(ran) == [("add", "")] and len(ran.trials) == 4
    assert len(search._ot_study.trials) == 3
    assert all(trial.status == "TERMINATED" for trial in ran.trials)


# Refusals ----------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused_with_what_can(tmp_path):
    done = lambda trials: trials[0].is_finished()  # noqa: E731
    ran = run(
        tmp_path,
        (reached(0, 2), "stop", 0, {}),
        *((done, action, 0, {}) for action in ("stop", "pause", "continue")),
        (done, "continue", 1, {}),
        (done, "pause", 1, {}),
        (done, "pause", 1, {}),
        (reached(2, 6), "continue", 1, {}),
    )
    ended = "trial 00000_00000 has ended; trials that can be "
    assert told(ran) == [
        ("stop", ""),
        ("stop", ended + "stopped: 00000_00001, 00000_00002"),
        ("pause", ended + "paused: 00000_00001, 00000_00002"),
        ("continue", ended + "continued: none"),
        (
            "continue",
            "trial 00000_00001 is not paused by hand; trials that can be continued: none",
        ),
        ("pause", ""),
        (
            "pause",
            "trial 00000_00001 is paused by hand; trials that can be paused: 00000_00002",
        ),
        ("continue", ""),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b'{"action": "delete"}',
        b'{"action": "add", "config": ' + b'{"a": ' * 200 + b"1" + b"}" * 201,
        b'{"action": "stop", "trial_id": "' + b"x" * 70_000 + b'"}',
    ],
)
def test_a_request_that_is_none_is_refused_and_removed(tmp_path, data):
    home = tmp_path / "sweep"
    name = f"{7:020d}-{7:08x}"

    class Writes(tune.Callback):
        def on_trial_result(self, iteration: int, **info: Any) -> None:
            put(home, 3, "stop", "nobody")
            (home / f"requests/{name}.json").write_bytes(data)
            (home / "requests/of-somebody-else.txt").write_text("?")

    ran = run(tmp_path, more_callbacks=(Writes(),))
    first, second = answers(home)[:2]
    assert first.refused.startswith("trial nobody is not in this sweep; trials that can be")
    assert second.request == name and second.refused
    assert "nobody" not in tunekit.load(home).timeline.trials
    assert [one.name for one in (home / "requests").iterdir()] == ["of-somebody-else.txt"]
    assert ran.lengths() == {0: 6, 1: 6, 2: 6}


def test_a_link_among_the_requests_is_not_followed(tmp_path):
    home, secret = tmp_path / "sweep", tmp_path / "secret.json"
    secret.write_text('{"action": "stop", "trial_id": "00000_00000"}')

    class Links(tune.Callback):
        def on_trial_result(self, iteration: int, **info: Any) -> None:
            (home / "requests").mkdir(exist_ok=True)
            path = home / f"requests/{7:020d}-{7:08x}.json"
            if not path.is_symlink():
                path.symlink_to(secret)

    ran = run(tmp_path, more_callbacks=(Links(),))
    assert ran.lengths() == {0: 6, 1: 6, 2: 6} and secret.exists()
    assert answers(home)[0].refused


# Who asks ----------------------------------------------------------------------------------------


def test_whoever_asks_reads_the_answer_in_the_journal(tmp_path):
    ran = run(tmp_path, run=False)
    trial_id, said = "00000_00001", []
    for _ in range(12):
        ran.sweep.step()
    filesystem = ran.sweep.controller._storage.storage_filesystem

    def asked(*request: Any, **config: Any) -> str:
        def sleep(seconds: float) -> None:
            ran.sweep.step()

        return in_words(ask(filesystem, str(ran.home), Request(*request, **config), sleep=sleep))

    said = [asked("pause", trial_id), asked("pause", trial_id), asked("continue", trial_id)]
    assert said == [
        f"Trial {trial_id} pauses at its next report.",
        f"Refused: trial {trial_id} is paused by hand; trials that can be paused: 00000_00000, "
        "00000_00002.",
        f"Trial {trial_id} continues.",
    ]
    late = ask(filesystem, str(ran.home), Request("stop", trial_id), sleep=lambda seconds: None)
    assert late is None and "The driver will answer" in in_words(late)
    ran.sweep.run(most=50_000)
    assert answers(ran.home)[-1].action == "stop" and not answers(ran.home)[-1].refused
    with pytest.raises(ValueError, match="no driver is running this sweep"):
        ask(filesystem, str(ran.home), Request("stop", trial_id))
    assert not list((ran.home / "requests").iterdir()), "nothing was asked"


# Killed ------------------------------------------------------------------------------------------


def asked_once(home: Path, script: Script) -> Callable[[], Asks]:
    """One who asks, who outlives the driver."""
    asks = Asks(home, script)

    class Outlives(Asks):
        def __init__(self) -> None:
            self.__dict__ = asks.__dict__

    return Outlives


def is_paused(trials: dict[int, Any]) -> bool:
    return any(trial.status == "PAUSED" for trial in trials.values())


def lengths(ran: Ran) -> dict[str, int]:
    return {one.trial_id: one.last_result["training_iteration"] for one in ran.trials}


def by_name(attempt: Any) -> dict[str, float]:
    """The score of a trial that may have been added, in whatever life."""
    number = int(attempt.request.trial_id.rsplit("_", 1)[-1], 16)
    return {"accuracy": quality(number, attempt.request.iteration)}


@pytest.mark.parametrize("on_pending", ["wait", "wait-paused"])
def test_killed_at_any_write_whatever_was_asked_is_done_once(tmp_path, on_pending, monkeypatch):
    """One trial at a time, and asked as a score ends: nothing depends on when that is."""
    monkeypatch.setattr("tunekit.driver.by_hand._INTERVAL_S", 0.0)
    script: Script = [
        (scored(0, 2), "pause", 0, {}),
        (is_paused, "continue", 0, {}),
        (scored(1, 3), "stop", 1, {}),
        (scored(2, 3), "stop", 1, {}),
        (scored(2, 5), "add", 2, {}),
    ]

    def run_it(folder: Path, lives: Iterator[int], torn: bool) -> tuple[Ran, int]:
        asks = asked_once(folder / "sweep", script)

        def made(folder: Path, **options: Any) -> Ran:
            generator = BasicVariantGenerator(max_concurrent=1)
            generator._uuid_prefix = "00000_"
            return run(
                folder,
                scheduler=ASHAScheduler(max_t=5, grace_period=1, reduction_factor=2),
                on_pending=on_pending,
                search_alg=generator,
                validate=by_name,
                slots=1,
                more_callbacks=(asks(),),
                listening=False,
                run=False,
                **options,
            )

        return run_killed(folder, made, lives, torn=torn)

    undisturbed, _ = run_it(tmp_path / "undisturbed", iter([]), False)
    expected = check_journal(events_in(undisturbed.home))
    assert [action for action, why in told(undisturbed) if not why] == [
        *("pause", "continue", "stop", "add")
    ]
    for at in itertools.count(step=5 if SCHEDULES == 1 else 1):
        ran, kills = run_it(tmp_path / str(at), iter([at]), bool(at % 2))
        lives = check_journal(events_in(ran.home))
        lives.running = expected.running = 0
        assert told(ran) == told(undisturbed), at
        assert lives == expected, at
        assert lengths(ran) == lengths(undisturbed), at
        if not kills:
            break
    assert at >= 60


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("on_pending", ["continue", "auto", "wait-reused"])
def test_killed_often_while_anything_is_asked(tmp_path, name, on_pending):
    case = CASES[name]
    if on_pending not in case.modes:
        pytest.skip("not with this scheduler")
    for seed in seeds(1, name, on_pending):
        draw, folder = random.Random(seed), tmp_path / str(seed)
        asks = AsksAtRandom(folder / "sweep", seed)

        class Outlives(AsksAtRandom):
            def __init__(self) -> None:
                self.__dict__ = asks.__dict__  # noqa: B023

        def made(folder: Path, **options: Any) -> Ran:
            seed_all(seed)  # noqa: B023
            return sweep(
                folder,
                case.make(folder / "policies"),
                on_pending=on_pending,
                trainable=Endless,
                seed=seed,  # noqa: B023
                slots=3,
                listening=False,
                run=False,
                more_callbacks=(Outlives(),),
                **({"trials": 5, "stop": {"training_iteration": 9}} | case.options()),
                **options,
            )

        lives = iter([draw.randrange(5, 200) for _ in range(3)])
        ran, _ = run_killed(folder, made, lives, torn=bool(seed % 2))
        events = events_in(ran.home)
        check_journal(events)
        granted(events)
        asked = answers(ran.home)
        assert len({one.request for one in asked}) == len(asked)
        assert all(trial.status == "TERMINATED" for trial in ran.trials)
        added = {one.trial_id for one in asked if one.action == "add"}
        assert added <= {trial.trial_id for trial in ran.trials}
        for one in asked:
            if one.action == "pause" and not one.refused:
                # What a trial trained after its last checkpoint, it trains again.
                assert reports_after(events, one, ("continue", "stop")) <= 1


# From a page -------------------------------------------------------------------------------------

TOKEN = "t0ken-" * 5
OWN = {"origin": "http://127.0.0.1:7007", "sec_fetch_site": "same-origin"}


class Page:
    """A browser at a sweep that runs as far as it is stepped."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, control: bool = True):
        self.ran = run(folder, run=False)
        for _ in range(12):
            self.ran.sweep.step()
        self.monkeypatch = monkeypatch
        app = Application(Catalogue([str(self.ran.home)]), token=TOKEN, control=control)
        self.browser = Browser(app)
        [key] = Catalogue([str(self.ran.home)]).look()
        self.at = f"/sweeps/{key}"

    def enter(self) -> Page:
        assert self.browser.get(f"/?token={TOKEN}").status == 303
        return self

    def post(self, body: Any, **headers: str) -> Any:
        """Post, while the sweep goes on."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        with self.monkeypatch.context() as patch:
            patch.setattr(
                "tunekit.journal.requests.ask.__kwdefaults__",
                {"patience_s": 5.0, "sleep": lambda seconds: self.ran.sweep.step()},
            )
            return self.browser.get(f"{self.at}/ask", "POST", body=data, **headers)

    def finish(self) -> list[tuple[str, str]]:
        self.ran.sweep.run(most=50_000)
        self.browser.close()
        return told(self.ran)


def test_a_page_asks_and_shows_the_answer(tmp_path, monkeypatch):
    page = Page(tmp_path, monkeypatch).enter()
    trial_id = "00000_00001"
    panel = page.browser.get(f"{page.at}/trial?id={trial_id}").text
    assert 'data-asks="pause"' in panel and 'data-asks="continue"' not in panel
    assert f'data-ask="{page.at}/ask"' in page.browser.get(page.at).text
    paused = page.post({"action": "pause", "trial_id": trial_id}, **OWN)
    assert (paused.status, paused.text) == (200, f"Trial {trial_id} pauses at its next report.")
    again = page.post({"action": "pause", "trial_id": trial_id}, **OWN)
    assert again.status == 409 and again.text.startswith(f"Refused: trial {trial_id} is paused")
    assert page.post({"action": "delete"}, **OWN).status == 409
    assert page.post(b"x" * 70_000, **OWN).status == 413
    page.post({"action": "stop", "trial_id": trial_id}, **OWN)
    assert [action for action, _ in page.finish()] == ["pause", "pause", "stop"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:8000", "sec_fetch_site": "same-site"},
        {"origin": "http://127.0.0.1:7007", "sec_fetch_site": "cross-site"},
        {
            "origin": "http://127.0.0.1:7007",
            "sec_fetch_site": "cross-site",
            "sec_fetch_dest": "document",
        },
        {**OWN, "host": "evil.example"},
    ],
)
def test_a_page_of_another_site_changes_nothing(tmp_path, monkeypatch, headers):
    page = Page(tmp_path, monkeypatch).enter()
    answer = page.post({"action": "stop", "trial_id": "00000_00001"}, **headers)
    assert answer.status in (403, 421)
    assert not (page.ran.home / "requests").exists() and page.finish() == []


def test_without_the_token_nothing_changes(tmp_path, monkeypatch):
    page = Page(tmp_path, monkeypatch)
    asked = {"action": "stop", "trial_id": "00000_00001"}
    assert page.post(asked, **OWN).status == 401
    assert page.post(asked, **OWN, cookie="tunekit=guessed").status == 401
    page.at += "/ask?token=" + TOKEN + "&"  # it is let in, and has asked nothing yet
    assert page.post(asked, **OWN).status == 303
    assert not (page.ran.home / "requests").exists() and page.finish() == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
def test_nothing_but_a_post_changes_anything(tmp_path, monkeypatch, method):
    page = Page(tmp_path, monkeypatch).enter()
    data = json.dumps({"action": "stop", "trial_id": "00000_00001"}).encode()
    assert page.browser.get(f"{page.at}/ask", method, body=data, **OWN).status == 405
    assert page.finish() == []


def test_without_control_there_is_nothing_to_ask(tmp_path, monkeypatch):
    page = Page(tmp_path, monkeypatch, control=False).enter()
    assert page.post({"action": "stop", "trial_id": "00000_00001"}, **OWN).status == 404
    assert "data-asks" not in page.browser.get(f"{page.at}/trial?id=00000_00001").text
    assert "data-ask=" not in page.browser.get(page.at).text
    assert page.finish() == []


# On the command line -----------------------------------------------------------------------------


def command(*arguments: Any) -> tuple[int, str]:
    result = CliRunner().invoke(commands.tunekit, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_the_commands_say_what_came_of_it(tmp_path, monkeypatch):
    ran = run(tmp_path, run=False)
    for _ in range(12):
        ran.sweep.step()
    monkeypatch.setattr(
        "tunekit.journal.requests.ask.__kwdefaults__",
        {"patience_s": 5.0, "sleep": lambda seconds: ran.sweep.step()},
    )
    one = ("--trial", "00000_00001")
    assert command("pause", ran.home, *one) == (
        0,
        "Trial 00000_00001 pauses at its next report.\n",
    )
    code, said = command("status", ran.home)
    assert code == 0 and "1 paused by hand" in said
    assert command("pause", ran.home, *one)[0] == 1
    assert command("continue", ran.home, *one) == (0, "Trial 00000_00001 continues.\n")
    code, said = command("add", ran.home, "--config", '{"lr": 1}')
    assert (code, said) == (1, "Error: Refused: lr is not searched: nothing is.\n")
    code, said = command("add", ran.home, "--config", "{}")
    assert code == 0 and said.endswith(" is added.\n")
    assert command("add", ran.home, "--config", "[1]")[0] == 2
    assert command("stop", ran.home, *one) == (0, "Trial 00000_00001 is stopped.\n")
    ran.sweep.run(most=50_000)
    code, said = command("status", ran.home)
    assert "1 stopped by hand" in said and "stopped by the scheduler" not in said
    code, said = command("stop", ran.home, *one)
    assert code == 2 and "no driver is running this sweep, so no request was sent" in said
    assert command("stop", tmp_path / "none", *one)[0] == 2
