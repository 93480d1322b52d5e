"""Live pages agree with ``tunekit.load``, follow a sweep, and require the token."""

from __future__ import annotations

import html
import json
import re
import shutil
import socket
import string
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.fs
import pytest
import ray.tune

import tunekit
from tests.contract.test_reading_matches_files import asha, grown, killed
from tests.support.asgi import Browser
from tests.support.fakes import FakeClock
from tests.support.readers import NOTHING, score, session, trial, tunekit_
from tunekit.board import serve
from tunekit.board.charts import draw_charts
from tunekit.board.live import LiveSweep
from tunekit.board.page import (
    render_index,
    render_panels,
    render_report,
    render_sections,
    report_data,
    script_json,
)
from tunekit.board.serve import HEADERS, Application
from tunekit.core.events import Reported, SessionClosed
from tunekit.core.timeline import Timeline
from tunekit.journal import journal as journals
from tunekit.journal.journal import Journal
from tunekit.journal.lock import DriverLock
from tunekit.journal.storage import RemoteFolder
from tunekit.messages.problems import Problems
from tunekit.reading import catalogue as catalogues
from tunekit.reading.catalogue import Catalogue, Entry
from tunekit.reading.load import Follower

TOKEN = "t0ken-" * 5


@pytest.fixture
def home(tmp_path) -> Path:
    return tmp_path / "sweeps/digits"


@pytest.fixture
def journal(home) -> Journal:
    journal = session(home)
    trial(journal, "a", 0.5, lr=0.1)
    trial(journal, "b", 0.7, lr=0.2)
    return journal


@pytest.fixture
def browsers() -> Iterator[Any]:
    opened: list[Browser] = []

    def browser(path: Path, host: str = "127.0.0.1:7007", **options: Any) -> Browser:
        app = Application(Catalogue([str(path)]), token=TOKEN, **options)
        opened.append(Browser(app, host))
        return opened[-1]

    yield browser
    for one in opened:
        one.close()


@pytest.fixture
def browser(journal, home, browsers) -> Browser:
    opened = browsers(home.parent)
    assert opened.get(f"/all?token={TOKEN}").status == 303
    return opened


def entry_of(home: Path) -> Entry:
    return Entry("0" * 16, home.name, pyarrow.fs.LocalFileSystem(), str(home), str(home), 0.0)


def key_of(home: Path) -> str:
    [key] = Catalogue([str(home)]).find()
    return key


# What it shows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [asha, killed], ids=["asha", "killed"])
def test_the_live_page_is_the_report_wherever_the_journal_is_cut(make, tmp_path):
    source, copy = make(tmp_path / "source").home, tmp_path / "copy"
    clock = FakeClock()
    live = LiveSweep(entry_of(copy), NOTHING, clock)
    for n, _ in enumerate(grown(source, copy, seed=3)):
        if n % 3 and n != 6:  # also several pieces at once
            continue
        for _ in range(3):  # its text, its charts, and its text with these
            clock.sleep(10)
            live.step()
        loaded = tunekit.load(copy)
        drawn = draw_charts(loaded)
        assert live.parts == render_sections(report_data(loaded, drawn))
        assert live.charts == {name: script_json(spec) for name, spec in drawn.items()}
        for trial_id, text in render_panels(loaded, loaded.trial_errors()).items():
            assert live.panel(trial_id) == text


def test_a_score_is_on_the_page_after_one_step(journal, home):
    clock = FakeClock()
    live = LiveSweep(entry_of(home), NOTHING, clock)
    live.first()
    assert "Best: trial <b>b</b>" in live.parts["summary"]
    news = live.news(live.version)
    assert news["charts"] and not news["parts"], "what a browser has is not sent again"
    live.step()
    score(journal, "a", 2, 0.9)
    version = live.version
    assert not live.news(version)["more"], "it was looked at just now"
    clock.sleep(0.5)
    news = live.news(version)
    assert "Best: trial <b>a</b>" in news["parts"]["summary"] and news["more"]
    assert 'data-value="0.9" class="best"' in news["parts"]["ranking"]


def test_reports_that_wait_are_counted(journal, home):
    for iteration in (2, 3):
        report = {"training_iteration": iteration}
        journal.append(Reported(time=1e9 + iteration, trial_id="b", report=report))
    live = LiveSweep(entry_of(home), NOTHING, FakeClock())
    live.first()
    assert "<b>2</b><span>unprocessed reports" in live.parts["summary"]
    row = next(row for row in live.parts["ranking"].split("<tr") if 'data-trial="b"' in row)
    assert '<td>1</td><td>2</td><td class="text">running' in row
    assert "Later reports that wait for scores: 2." in live.panel("b")
    assert "wait for scores" not in live.panel("a")


def test_a_damaged_journal_is_reported_until_it_is_whole_again(journal, home):
    clock = FakeClock()
    live = LiveSweep(entry_of(home), NOTHING, clock)
    [file] = (home / "journal").glob("*.jsonl")
    good = file.read_bytes()
    file.write_bytes(good + b"<script>\n")
    live.step()
    assert "is not as it was written" in live.trouble and "<script>" not in live.parts["summary"]
    file.write_bytes(good)
    clock.sleep(10)
    live.step()
    assert live.trouble == "" and "Best: trial" in live.parts["summary"]


def test_a_panel_has_what_loads_each_checkpoint(tmp_path):
    ran = asha(tmp_path)
    loaded = tunekit.load(ran.home)
    best = loaded.best()
    text = html.unescape(render_panels(loaded, {})[best.trial_id])
    loads = re.findall(r'data-copy="(ray\.tune\.Checkpoint\(.*?\))"', text)
    rows = loaded.validations[loaded.validations.trial_id == best.trial_id]
    assert len(loads) == len(rows) > 3
    found = [eval(one, {"ray": ray}).path for one in loads]
    assert sorted(found) == sorted(rows.checkpoint)
    row = next(row for row in text.split("<tr") if best.path in row)
    assert row.startswith(' class="winner"')


# The list of sweeps ----------------------------------------------------------------------------


def listed(catalogue: Catalogue) -> str:
    return render_index(catalogue.outlines())


def test_the_list_has_all_sweeps_below_a_folder_and_their_state(tmp_path):
    finished = asha(tmp_path / "finished").home
    trial(session(tmp_path / "deep/down/open"), "a", 0.25)
    (tmp_path / ".hidden").mkdir()
    shutil.copytree(finished, tmp_path / ".hidden/sweep")
    catalogue = Catalogue([str(tmp_path)])
    text = listed(catalogue)
    names = re.findall(
        r'<a href="/sweeps/[0-9a-f]{16}">(.*?)</a></td>\s*<td class="text">(.*?)</td>', text
    )
    assert sorted(names) == [
        ("deep/down/open", "running or killed"),
        ("finished/sweep", "finished"),
    ]
    best = tunekit.load(finished).best().score
    assert f'data-value="{best!r}"' in text and 'data-value="0.25"' in text
    # One that begins later appears; one that is deleted goes.
    shutil.rmtree(finished)
    trial(session(tmp_path / "new"), "a")
    text = listed(catalogue)
    assert "finished/sweep" not in text and ">new<" in text


def running(home: Path) -> Journal:
    """Begin a sweep whose driver is this process."""
    DriverLock(pyarrow.fs.LocalFileSystem(), str(home)).claim()
    return session(home)


@pytest.fixture
def read_lines(monkeypatch) -> list[int]:
    """The numbers of the lines that are read, in order."""
    numbers: list[int] = []
    read = journals._event

    def noted(line: bytes, *known: Any, **options: Any) -> Any:
        event = read(line, *known, **options)
        numbers.append(event.n)
        return event

    monkeypatch.setattr(journals, "_event", noted)
    return numbers


def test_the_list_reads_each_line_of_a_running_sweep_once(home, read_lines):
    journal, clock = running(home), FakeClock()
    trial(journal, "a", 0.5)
    catalogue = Catalogue([str(home.parent)], clock=clock)
    for value in (0.6, 0.7, 0.8):
        [row] = catalogue.outlines()
        score(journal, "a", round(10 * value), value)
        clock.sleep(10)
    [row] = catalogue.outlines()
    assert (row["state"], row["best"]["score"]) == ("running", 0.8)
    assert read_lines == list(range(2, journal.last + 1))


def test_requests_at_once_read_a_sweep_once(home, read_lines):
    journal = running(home)
    trial(journal, "a", 0.5)
    catalogue = Catalogue([str(home.parent)], clock=FakeClock())
    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda _: catalogue.outlines(), range(10)))
    assert all(row["best"]["score"] == 0.5 for [row] in found)
    assert read_lines == list(range(2, journal.last + 1))


def test_not_all_running_sweeps_are_kept_in_memory(tmp_path, read_lines, monkeypatch):
    monkeypatch.setattr(catalogues, "_MOST_FOLLOWED", 2)
    for name in "abc":
        trial(running(tmp_path / name), name, 0.5)
    clock = FakeClock()
    catalogue = Catalogue([str(tmp_path)], clock=clock)
    assert len(catalogue.outlines()) == 3
    first = len(read_lines)
    clock.sleep(10)
    assert [row["state"] for row in catalogue.outlines()] == ["running"] * 3
    assert len(read_lines) == first + first // 3, "one of them was read again"


def test_the_list_is_as_of_half_a_second_ago_at_most(home, monkeypatch):
    trial(running(home), "a", 0.5)
    clock, began = FakeClock(), list[float]()

    def outline(follower: Follower) -> dict[str, Any]:
        began.append(clock.monotonic())
        clock.sleep(3)
        return {"state": "running"}

    monkeypatch.setattr(catalogues, "outline", outline)
    catalogue = Catalogue([str(home.parent)], clock=clock)
    for _ in range(5):
        assert [row["state"] for row in catalogue.outlines()] == ["running"]
        clock.sleep(0.25)
    assert began == [0, 3.5, 7]


def test_a_sweep_that_ends_is_listed_with_its_end(home):
    journal, clock = running(home), FakeClock()
    trial(journal, "a", 0.5)
    catalogue = Catalogue([str(home.parent)], clock=clock)
    catalogue.outlines()
    journal.append(SessionClosed(time=1e9 + 9, finished=True))
    clock.sleep(10)
    assert [row["state"] for row in catalogue.outlines()] == ["finished"]


def fails_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the summary of one sweep fail, as a fault of tunekit's would."""
    summary = tunekit.Sweep.summary

    def fail(self: tunekit.Sweep) -> dict[str, Any]:
        return {"state": 1 / 0} if self.path.endswith(name) else summary(self)

    monkeypatch.setattr(tunekit.Sweep, "summary", fail)


def test_what_is_wrong_with_one_sweep_does_not_end_the_list(tmp_path, browsers, monkeypatch):
    for name in ("good", "odd"):
        trial(session(tmp_path / name), "a", 0.5)
    fails_for(monkeypatch, "odd")
    page = browsers(tmp_path).get("/all", cookie=f"tunekit={TOKEN}")
    assert page.status == 200 and "ZeroDivisionError" in page.text
    assert 'data-value="0.5"' in page.text
    result = tunekit_("list", tmp_path, "--json")
    rows = {row["name"]: row for row in json.loads(result.stdout)["sweeps"]}
    assert rows["good"]["best"]["score"] == 0.5
    assert rows["odd"]["state"] == "unreadable" and "ZeroDivisionError" in rows["odd"]["reason"]


def test_a_storage_that_fails_is_an_answer_in_words(browser, monkeypatch):
    def fail(*known: Any) -> Any:
        raise OSError("the bucket is gone")

    monkeypatch.setattr(catalogues, "sweeps_below", fail)
    for target in ("/", "/all"):
        answer = browser.get(target)
        assert answer.status == 503 and "the bucket is gone" in answer.text


def test_what_is_wrong_with_a_sweep_is_on_its_page(journal, home, monkeypatch):
    clock = FakeClock()
    with monkeypatch.context() as patch:
        fails_for(patch, home.name)
        live = LiveSweep(entry_of(home), NOTHING, clock)
        live.first()
        assert "ZeroDivisionError" in live.parts["summary"]
        live.step()
        assert "ZeroDivisionError" in live.news("")["trouble"]
    clock.sleep(10)
    live.step()
    assert live.trouble == "" and "Best: trial <b>b</b>" in live.parts["summary"]


def test_what_cannot_be_read_is_not_read_again_at_once(journal, home, monkeypatch):
    clock, polls = FakeClock(), list[float]()

    def fail(self: Follower) -> bool:
        polls.append(clock.monotonic())
        raise OSError("the storage is gone")

    monkeypatch.setattr(Follower, "poll", fail)
    live = LiveSweep(entry_of(home), NOTHING, clock)
    for _ in range(10):
        live.step()
        assert "the storage is gone" in live.trouble
        clock.sleep(0.125)
    assert polls == [0, 0.5, 1]


def test_what_could_not_be_added_is_read_again(journal, home, monkeypatch):
    follower = Follower(pyarrow.fs.LocalFileSystem(), str(home))
    follower.poll()
    score(journal, "a", 2, 0.9)
    with monkeypatch.context() as patch:
        patch.setattr(Timeline, "extend", lambda self, events: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            follower.poll()
    assert follower.poll() and follower.sweep.timeline.trials["a"].iteration == 2


def test_one_sweep_needs_no_list(journal, home, browsers):
    answer = browsers(home).get("/", cookie=f"tunekit={TOKEN}")
    assert (answer.status, answer.headers["location"]) == (307, f"/sweeps/{key_of(home)}")


@pytest.mark.parametrize("below", ["journal", "train_a", "train_a/checkpoint_000001", "gone"])
@pytest.mark.parametrize("command", ["serve", "list"])
def test_a_path_in_a_sweep_is_an_error_that_names_the_sweep(journal, home, command, below):
    (home / "train_a/checkpoint_000001").mkdir(parents=True)
    result = tunekit_(command, home / below)
    assert result.exit_code == 2
    assert f"is a part of a sweep, not the sweep's own folder. Pass {str(home)!r}" in result.stderr


def test_sweeps_in_the_folder_of_a_sweep_are_served(journal, home):
    trial(session(home / "inner/other"), "a")
    [entry] = Catalogue([str(home / "inner")]).find().values()
    assert entry.name == "other"
    assert Catalogue([str(home / "inner/other")]).find()


def test_what_cannot_be_served_is_said_at_once(tmp_path):
    with pytest.raises(tunekit.errors.ConfigError, match=r"(?s)no/such.*does not exist.*nosuch://"):
        Catalogue([str(tmp_path / "no/such"), "nosuch://x"])
    assert Catalogue([str(tmp_path)]).find() == {}


# Over HTTP -------------------------------------------------------------------------------------


def test_a_page_and_what_is_new_on_it(browser, journal, home):
    own = f"/sweeps/{key_of(home.parent)}"
    page = browser.get(own)
    assert page.status == 200 and "Best: trial <b>b</b>" in page.text
    version = re.search(r'data-version="(.*?)"', page.text)[1]
    score(journal, "a", 2, 0.9)
    parts: dict[str, str] = {}
    while "Best: trial <b>a</b>" not in parts.get("summary", ""):
        news = json.loads(browser.get(f"{own}/news?since={version}").text)
        parts = news["parts"]
    assert news["order"][:2] == ["summary", "ranking"] and news["trouble"] == ""
    while "validated" not in news["charts"]:
        news = json.loads(browser.get(f"{own}/news").text)
    points = json.loads(browser.get(f"{own}/chart?id=validated").text)["datasets"]["points"]
    assert {("a", 0.5), ("b", 0.7)} <= {(p["trial"], p["value"]) for p in points}
    assert "Trial <code>a</code>" in browser.get(f"{own}/trial?id=a").text


# Who is let in ---------------------------------------------------------------------------------


OTHER_SITE = {"sec_fetch_site": "cross-site"}
ELSEWHERE = "http://evil.example"
ACCESS = [
    # What another site loads is refused; a link of its may be followed.
    ({**OTHER_SITE, "sec_fetch_dest": "script"}, 403),
    ({**OTHER_SITE, "sec_fetch_dest": "iframe"}, 403),
    ({"sec_fetch_site": "same-site", "sec_fetch_dest": "empty"}, 403),
    ({**OTHER_SITE, "sec_fetch_dest": "document"}, 200),
    # So is a page of another origin, which may be another server of this machine.
    *(
        ({"origin": origin}, 403)
        for origin in (
            *(ELSEWHERE, "http://127.0.0.1:3000", "http://localhost:7007", "null"),
            *("127.0.0.1:7007", ["http://127.0.0.1:7007", ELSEWHERE]),
        )
    ),
    ({"origin": "http://127.0.0.1:7007"}, 200),
    ({"origin": "https://127.0.0.1:7007"}, 200),
    # A host that is not its own may be of a site that has this machine's address.
    *(
        ({"host": host}, 421)
        for host in (
            *("evil.example", "localhost.evil.example:7007", "localhost.", "localhost:7007:80"),
            *("evil.example@localhost", "[::1].evil.example", "10.0.0.5:7007", "gpu1", ""),
            ["127.0.0.1:7007", "evil.example"],
        )
    ),
    *(({"host": host}, 200) for host in ("localhost:8000", "127.0.0.1", "[::1]:9000", "LOCALHOST")),
]


@pytest.mark.parametrize(("headers", "status"), ACCESS, ids=str)
def test_which_requests_may_load_what(browser, headers, status, home):
    for target in ("/all", f"/sweeps/{key_of(home.parent)}/trial?id=a"):
        answer = browser.get(target, **headers)
        assert answer.status == status
    advice = {403: "Open the address", 421: "pass --host"}
    assert advice.get(status, "") in answer.text


def test_what_is_asked_to_listen_on_is_a_host_of_its_own(journal, home, browsers):
    named = browsers(home.parent, hosts=["Gpu1"])
    anywhere = browsers(home.parent, hosts=["gpu1"], any_address=True)
    cookie = f"tunekit={TOKEN}"
    for host, alone, any_address in [
        ("gpu1:7007", 200, 200),
        ("10.0.0.5:7007", 421, 200),
        ("[fd00::5]:7007", 421, 200),
        ("gpu1.evil.example", 421, 421),
    ]:
        assert named.get("/all", host=host, cookie=cookie).status == alone
        assert anywhere.get("/all", host=host, cookie=cookie).status == any_address


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(browser, method):
    """Not even by the server's own page; requests without an origin are refused."""
    assert browser.get("/all", method=method).status == 403
    assert browser.get("/all", method=method, origin="http://127.0.0.1:7007").status == 405


@pytest.mark.parametrize(
    "target",
    [
        "/sweeps/..",
        "/sweeps/../../etc/passwd",
        "/sweeps/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/sweeps/..%5c..%5cetc",
        "/sweeps/{home}",
        "/sweeps/digits",
        "/sweeps/{key}/../../etc/passwd",
        "/sweeps/{key}/trial?id=../../../etc/passwd",
        "/sweeps/{key}/trial?id=%00",
        "/sweeps/{key}/trial",
        "/sweeps/{key}/chart?id=../../summary",
        "/assets/../../etc/passwd",
        "/assets/..%2f..%2fsetup.cfg",
        "/journal/000001.jsonl",
        "/static/page.js",
    ],
)
def test_no_path_leads_anywhere(browser, home, target):
    named = target.format(home=str(home).replace("/", "%2f"), key=key_of(home.parent))
    assert browser.get(named).status == 404


def test_every_answer_says_that_it_stays_here(browser, home):
    key = key_of(home.parent)
    targets = ["/", "/all", f"/sweeps/{key}", f"/sweeps/{key}/trial?id=a", "/none"]
    answers = [*map(browser.get, targets)]
    browser.cookies = {}
    for answer in [*answers, browser.get("/")]:
        assert {name.lower() for name in HEADERS} <= set(answer.headers)
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_scripts_of_the_page_only_run_with_its_nonce(browser, home):
    pages = [browser.get(f"/sweeps/{key_of(home.parent)}") for _ in range(2)]
    nonces = [re.findall(r"'nonce-(.*?)'", p.headers["content-security-policy"]) for p in pages]
    assert nonces[0] != nonces[1] and len(set(nonces[0])) == 1
    for page, [nonce, _] in zip(pages, nonces, strict=True):
        policy = page.headers["content-security-policy"]
        assert "unsafe" not in policy and "*" not in policy
        for tag in re.findall(r"<(?:script|style)\b[^>]*>", page.text):
            assert f'nonce="{nonce}"' in tag or 'type="application/json"' in tag
        assert not re.search(r"<[^>]*\s(?:on\w+|style)=", page.text)
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page.text)


def test_a_token_opens_the_page_once_and_for_all(journal, home, browsers):
    browser = browsers(home.parent, "gpu1:7007", hosts=["gpu1"])
    assert browser.get("/all").status == 401
    assert browser.get(f"/all?token={TOKEN}x").status == 401
    assert browser.get("/all?token=").status == 401
    opened = browser.get(f"/all?token={TOKEN}&a=b")
    assert (opened.status, opened.headers["location"]) == (303, "/all?a=b")
    cookie = opened.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=lax" in cookie
    assert browser.get("/all").status == 200
    browser.cookies["tunekit"] = "other"
    assert browser.get("/all").status == 401


@pytest.mark.parametrize("path", ["//evil.example", "/%2Fevil.example", "/\\evil.example"])
def test_the_token_leads_to_no_other_site(journal, home, browsers, path):
    browser = browsers(home.parent)
    location = browser.get(f"{path}?token={TOKEN}").headers["location"]
    assert location == "/evil.example"


# Names that are up to no good ------------------------------------------------------------------

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'); alert(1); ('",
    "</script><script>alert(1)</script>",
    "../../../etc/passwd",
    "javascript:alert(1)",
    "{{ 7 * 7 }}",
    "=cmd|' /C calc'!A0",
    "a\u2028b\u202ec",
    "&lt;b&gt;",
]


def tags(text: str) -> set[str]:
    """The names of the tags and attributes that a browser sees."""

    class Parser(HTMLParser):
        found: set[str] = set()

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found = self.found | {tag, *(name for name, _ in attrs)}

    parser = Parser()
    parser.feed(text)
    return parser.found


@pytest.fixture(scope="module")
def harmless(tmp_path_factory) -> set[str]:
    """The tags and attributes of a page whose names are harmless."""
    return tags(shown(told(tmp_path_factory.mktemp("good"), "a")))


def told(folder: Path, name: str) -> tunekit.Sweep:
    """A sweep in whose every place there is a name."""
    journal = session(folder / "sweep")
    for n, one in enumerate((name, "b")):
        trial(journal, one, n / 10, **{one: one, "x": {one: [one]}})
        score(journal, one, 2, None, reason=f"raised {one}", error=one)
    return tunekit.load(folder / "sweep")


def shown(loaded: tunekit.Sweep) -> str:
    in_full = render_panels(loaded, dict.fromkeys(loaded.timeline.trials, "error"))
    return "".join(
        [*render_sections(report_data(loaded, draw_charts(loaded))).values(), *in_full.values()]
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text_and_closes_no_script(name, tmp_path, harmless):
    loaded = told(tmp_path, name)
    text, page = shown(loaded), render_report(loaded)
    assert tags(text) <= harmless | {"tr", "class"}
    assert html.escape(name) in text.replace("&#34;", "&quot;").replace("&#39;", "&#x27;")
    for data in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.S):
        json.loads(data)
    assert "<script>alert" not in page and "<img src=x" not in page


@pytest.mark.parametrize("name", ["<script>alert(1)</script>".replace("/", "_"), "a\"b'c", "a.."])
def test_a_hostile_name_of_a_sweep_is_text(name, tmp_path):
    trial(session(tmp_path / name), "a", 0.5)
    text = listed(Catalogue([str(tmp_path)]))
    assert "<script" not in text and html.unescape(text).count(name) == 1


# How it is started -----------------------------------------------------------------------------


def test_it_listens_on_this_machine_alone_and_takes_a_port_that_is_free(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        monkeypatch.setattr(serve, "PORT", number)
        problems = Problems("tunekit serve")
        listener = serve.listen("127.0.0.1", None, problems)
        assert listener is not None
        with listener:
            address, found = listener.getsockname()
            assert address == "127.0.0.1" and found != number
        assert serve.listen("127.0.0.1", number, problems) is None
    assert serve.listen("x" * 300, None, problems) is None
    says = f"(?s)port={number} cannot be listened on.*'xxx.* cannot be listened on"
    with pytest.raises(tunekit.errors.ConfigError, match=says):
        problems.raise_any()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_everybody_needs_the_token_that_is_printed(host, journal, home, monkeypatch):
    made: dict[str, Any] = {}

    def application(catalogue: Any, options: Any, **known: Any) -> None:
        made.update(known)

    monkeypatch.setattr(serve, "Application", application)
    monkeypatch.setattr(serve, "lower_priority", lambda: None)
    monkeypatch.setattr(serve.uvicorn.Server, "run", lambda self, sockets: None)
    monkeypatch.delenv(serve.TOKEN, raising=False)
    told: list[str] = []
    for _ in range(2):
        serve.serve([str(home)], host=host, port=0, ready=told.append)
    tokens = [address.partition("?token=")[2] for address in told]
    assert made["token"] == tokens[1]
    assert urlsplit(told[1]).hostname in made["hosts"] and "localhost" in made["hosts"]
    assert made["any_address"] == (host == "0.0.0.0")
    assert tokens[0] != tokens[1] and min(map(len, tokens)) >= 40
    monkeypatch.setenv(serve.TOKEN, "short")
    with pytest.raises(tunekit.errors.ConfigError, match="has 5 characters"):
        serve.serve([str(home)], host=host, port=0)


def started(home: Path, monkeypatch: pytest.MonkeyPatch, token: str) -> tuple[str, Application]:
    """Start a server, without serving; return the printed address, and what would answer."""
    made: list[Application] = []
    monkeypatch.setattr(serve, "Application", lambda *a, **k: made.append(Application(*a, **k)))
    monkeypatch.setattr(serve, "lower_priority", lambda: None)
    monkeypatch.setattr(serve.uvicorn.Server, "run", lambda self, sockets: None)
    monkeypatch.setenv(serve.TOKEN, token)
    printed: list[str] = []
    serve.serve([str(home)], port=0, ready=printed.append)
    return printed[0], made[0]


@pytest.mark.parametrize("odd", list(string.punctuation + " "))
def test_the_address_that_is_printed_lets_in_with_any_token(odd, journal, home, monkeypatch):
    address, app = started(home, monkeypatch, f"{odd}{'token' * 4}{odd}{odd}")
    browser = Browser(app)
    parts = urlsplit(address)
    opened = browser.get(f"/all?{parts.query}&a=b%26c")
    assert (opened.status, opened.headers["location"]) == (303, "/all?a=b%26c")
    assert not parts.fragment and browser.cookies
    assert browser.get("/all").status == 200
    browser.close()


@pytest.mark.parametrize("odd", ["\n", "\x7f", "\xe9", "\N{SNOWMAN}", "\udcff"])
def test_a_token_that_no_cookie_can_carry_is_refused(odd, journal, home, monkeypatch):
    with pytest.raises(tunekit.errors.ConfigError, match=r"TUNEKIT_SERVE_TOKEN.*ASCII.*secrets"):
        started(home, monkeypatch, "token" * 4 + odd)


def test_a_path_that_is_no_sweep_is_said_in_a_line(tmp_path):
    result = tunekit_("serve", tmp_path / "none")
    assert result.exit_code == 2 and "does not exist" in result.output


def test_it_writes_nothing(browser, home):
    def files() -> dict[str, tuple[int, int]]:
        found = home.parent.rglob("*")
        return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in found}

    before = files()
    key = key_of(home.parent)
    for target in ("/all", f"/sweeps/{key}", f"/sweeps/{key}/trial?id=a"):
        assert browser.get(target).status == 200
    assert browser.get(f"/sweeps/{key}/news").status == 200
    assert files() == before


def test_a_sweep_in_an_object_store_is_found_and_followed(s3, tmp_path):
    s3.make_bucket("served")
    folder = RemoteFolder(s3.filesystem(), "served/digits")
    journal = Journal(folder, about={"time": 1e9, "required": ["accuracy"], "mode": "max"})
    trial(journal, "a", 0.5, lr=0.1)
    assert folder.settle(60)
    catalogue = Catalogue([s3.uri("served")])
    [entry] = catalogue.find().values()
    clock = FakeClock()
    live = LiveSweep(entry, NOTHING, clock)
    clock.sleep(10)
    live.step()
    assert "Best: trial <b>a</b>" in live.parts["summary"] and live.trouble == ""
    trial(journal, "b", 0.9, lr=0.2)
    assert folder.settle(60)
    clock.sleep(10)
    live.step()
    assert "Best: trial <b>b</b>" in live.parts["summary"]
    # The driver is killed, and the sweep goes on in another file.
    again = RemoteFolder(s3.filesystem(), "served/digits")
    trial(Journal(again, begins=False), "c", 0.95)
    assert again.settle(60)
    clock.sleep(10)
    live.step()
    assert "<code>c</code>" in str(live.panel("c")) and live.trouble == ""
    [row] = catalogue.outlines(metric="accuracy", mode="max")
    assert row["entry"].name == "digits" and row["best"]["score"] == 0.95
    for one in (folder, again):
        one.close()
    # What is on this machine is served beside it.
    trial(session(tmp_path / "local"), "a")
    both = Catalogue([s3.uri("served"), str(tmp_path)]).find()
    assert {one.name for one in both.values()} == {"digits", "local"}
