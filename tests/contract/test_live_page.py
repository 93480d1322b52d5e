"""Live pages equal the report, follow their sweep, require the token and change nothing."""

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
from tests.support.asgi import Browser
from tests.support.fakes import FakeClock
from tests.support.readers import NOTHING, score, session, trial, tunekit_
from tests.support.recordings import asha, grown, killed
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
def test_live_page_equals_the_report_wherever_the_journal_is_cut(make, tmp_path):
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


def best_of(parts: dict[str, str]) -> str:
    """The trial that the summary of a page names as the best."""
    return re.search(r'class="verdict">[^<]*<b>(\w+)</b>', parts["summary"])[1]


def test_live_page_sends_a_new_score_after_one_step_and_only_what_is_new(journal, home):
    clock = FakeClock()
    live = LiveSweep(entry_of(home), NOTHING, clock)
    live.first()
    assert best_of(live.parts) == "b"
    news = live.news(live.version)
    assert news["charts"] and not news["parts"], "what a browser has is not sent again"
    live.step()
    score(journal, "a", 2, 0.9)
    version = live.version
    assert not live.news(version)["more"], "it was looked at just now"
    clock.sleep(0.5)
    news = live.news(version)
    assert best_of(news["parts"]) == "a" and news["more"]
    assert 'data-value="0.9" class="best"' in news["parts"]["ranking"]


def test_live_page_counts_the_reports_whose_scores_are_pending(journal, home):
    for iteration in (2, 3):
        report = {"training_iteration": iteration}
        journal.append(Reported(time=1e9 + iteration, trial_id="b", report=report))
    live = LiveSweep(entry_of(home), NOTHING, FakeClock())
    live.first()
    assert "<b>2</b><span>unprocessed" in live.parts["summary"]
    row = next(row for row in live.parts["ranking"].split("<tr") if 'data-trial="b"' in row)
    assert '<td>1</td><td>2</td><td class="text">running' in row
    pending = [re.findall(r" scores: (\d+)", live.panel(trial_id)) for trial_id in "ab"]
    assert pending == [[], ["2"]]


def test_live_page_names_the_damaged_journal_file_until_it_is_repaired(journal, home):
    clock = FakeClock()
    live = LiveSweep(entry_of(home), NOTHING, clock)
    [file] = (home / "journal").glob("*.jsonl")
    good = file.read_bytes()
    file.write_bytes(good + b"<script>\n")
    live.step()
    assert file.name in live.trouble and "<script>" not in live.parts["summary"]
    file.write_bytes(good)
    clock.sleep(10)
    live.step()
    assert live.trouble == "" and best_of(live.parts) == "b"


def test_panel_of_a_trial_has_python_that_loads_each_of_its_checkpoints(tmp_path):
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


def test_list_page_has_each_visible_sweep_below_a_folder_with_state_and_best(tmp_path):
    finished = asha(tmp_path / "finished").home
    trial(session(tmp_path / "deep/down/open"), "a", 0.25)
    (tmp_path / ".hidden").mkdir()
    shutil.copytree(finished, tmp_path / ".hidden/sweep")
    catalogue = Catalogue([str(tmp_path)])
    text = listed(catalogue)
    names = re.findall(
        r'<a href="/sweeps/[0-9a-f]{16}">(.*?)</a></td>\s*<td class="text">(.*?)</td>', text
    )
    states = dict(names)
    assert states.keys() == {"deep/down/open", "finished/sweep"} and len(names) == 2
    assert states["finished/sweep"] == "finished" != states["deep/down/open"]
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


def test_list_page_reads_each_journal_line_of_a_running_sweep_once_until_its_end(home, read_lines):
    journal, clock = running(home), FakeClock()
    trial(journal, "a", 0.5)
    catalogue = Catalogue([str(home.parent)], clock=clock)
    for value in (0.6, 0.7, 0.8):
        catalogue.outlines()
        score(journal, "a", round(10 * value), value)
        clock.sleep(10)
    [row] = catalogue.outlines()
    assert (row["state"], row["best"]["score"]) == ("running", 0.8)
    journal.append(SessionClosed(time=1e9 + 9, finished=True))
    clock.sleep(10)
    assert [row["state"] for row in catalogue.outlines()] == ["finished"]
    assert read_lines == list(range(2, journal.last + 1))


def test_parallel_requests_read_each_journal_line_once(home, read_lines):
    journal = running(home)
    trial(journal, "a", 0.5)
    catalogue = Catalogue([str(home.parent)], clock=FakeClock())
    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda _: catalogue.outlines(), range(10)))
    assert all(row["best"]["score"] == 0.5 for [row] in found)
    assert read_lines == list(range(2, journal.last + 1))


def test_list_page_keeps_a_limited_number_of_followed_sweeps_in_memory(
    tmp_path, read_lines, monkeypatch
):
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


def test_list_page_reads_a_sweep_again_half_a_second_after_the_last_read(home, monkeypatch):
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


def fails_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the summary of one sweep fail, as a fault of tunekit's would."""
    summary = tunekit.Sweep.summary

    def fail(self: tunekit.Sweep) -> dict[str, Any]:
        return {"state": 1 / 0} if self.path.endswith(name) else summary(self)

    monkeypatch.setattr(tunekit.Sweep, "summary", fail)


def test_list_page_shows_why_a_sweep_cannot_be_summarized_and_all_other_sweeps(
    tmp_path, browsers, monkeypatch
):
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


def test_storage_failure_is_answered_with_status_503_and_its_reason(browser, monkeypatch):
    def fail(*known: Any) -> Any:
        raise OSError("the bucket is gone")

    monkeypatch.setattr(catalogues, "sweeps_below", fail)
    for target in ("/", "/all"):
        answer = browser.get(target)
        assert answer.status == 503 and "the bucket is gone" in answer.text


def test_live_page_shows_why_its_sweep_cannot_be_summarized_until_it_can(
    journal, home, monkeypatch
):
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
    assert live.trouble == "" and best_of(live.parts) == "b"


def test_live_page_retries_a_failed_read_after_half_a_second(journal, home, monkeypatch):
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


def test_server_of_a_single_sweep_redirects_to_its_page(journal, home, browsers):
    answer = browsers(home).get("/", cookie=f"tunekit={TOKEN}")
    assert (answer.status, answer.headers["location"]) == (307, f"/sweeps/{key_of(home)}")


@pytest.mark.parametrize("below", ["journal", "train_a", "train_a/checkpoint_000001", "gone"])
@pytest.mark.parametrize("command", ["serve", "list"])
def test_serve_and_list_of_a_path_inside_a_sweep_are_errors_that_name_the_sweep(
    journal, home, command, below
):
    (home / "train_a/checkpoint_000001").mkdir(parents=True)
    result = tunekit_(command, home / below)
    assert result.exit_code == 2
    assert repr(str(home)) in result.stderr


def test_sweep_inside_another_sweeps_folder_can_be_served(journal, home):
    trial(session(home / "inner/other"), "a")
    [entry] = Catalogue([str(home / "inner")]).find().values()
    assert entry.name == "other"
    assert Catalogue([str(home / "inner/other")]).find()


def test_serving_missing_paths_is_one_error_that_names_each(tmp_path):
    with pytest.raises(tunekit.errors.ConfigError, match=r"(?s)no/such.*nosuch://"):
        Catalogue([str(tmp_path / "no/such"), "nosuch://x"])
    assert Catalogue([str(tmp_path)]).find() == {}


# Over HTTP -------------------------------------------------------------------------------------


def test_page_news_chart_and_panel_are_served_as_the_journal_grows(browser, journal, home):
    own = f"/sweeps/{key_of(home.parent)}"
    page = browser.get(own)
    assert page.status == 200 and best_of({"summary": page.text}) == "b"
    version = re.search(r'data-version="(.*?)"', page.text)[1]
    score(journal, "a", 2, 0.9)
    news: dict[str, Any] = {"parts": {}}
    while "summary" not in news["parts"] or best_of(news["parts"]) != "a":
        news = json.loads(browser.get(f"{own}/news?since={version}").text)
    assert news["order"][:2] == ["summary", "ranking"] and news["trouble"] == ""
    while "validated" not in news["charts"]:
        news = json.loads(browser.get(f"{own}/news").text)
    points = json.loads(browser.get(f"{own}/chart?id=validated").text)["datasets"]["points"]
    assert {("a", 0.5), ("b", 0.7)} <= {(p["trial"], p["value"]) for p in points}
    assert "<code>a</code>" in browser.get(f"{own}/trial?id=a").text


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
def test_requests_from_other_sites_or_to_other_hosts_are_refused(browser, headers, status, home):
    for target in ("/all", f"/sweeps/{key_of(home.parent)}/trial?id=a"):
        answer = browser.get(target, **headers)
        assert answer.status == status
    assert status != 421 or "--host" in answer.text


def test_server_accepts_its_named_hosts_and_other_addresses_only_if_bound_to_all(
    journal, home, browsers
):
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
def test_http_methods_that_could_change_something_are_refused(browser, method):
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
def test_unknown_and_escaping_paths_are_answered_with_404(browser, home, target):
    named = target.format(home=str(home).replace("/", "%2f"), key=key_of(home.parent))
    assert browser.get(named).status == 404


def test_every_answer_has_the_security_headers(browser, home):
    key = key_of(home.parent)
    targets = ["/", "/all", f"/sweeps/{key}", f"/sweeps/{key}/trial?id=a", "/none"]
    answers = [*map(browser.get, targets)]
    browser.cookies = {}
    for answer in [*answers, browser.get("/")]:
        assert {name.lower() for name in HEADERS} <= set(answer.headers)
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_scripts_of_a_page_need_the_nonce_of_their_answer(browser, home):
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


def test_token_in_the_address_sets_a_cookie_without_which_requests_are_refused(
    journal, home, browsers
):
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
def test_redirect_after_the_token_stays_on_the_server(journal, home, browsers, path):
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
def test_hostile_names_of_trials_and_settings_are_escaped_in_pages_and_charts(
    name, tmp_path, harmless
):
    loaded = told(tmp_path, name)
    text, page = shown(loaded), render_report(loaded)
    assert tags(text) <= harmless | {"tr", "class"}
    assert html.escape(name) in text.replace("&#34;", "&quot;").replace("&#39;", "&#x27;")
    for data in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.S):
        json.loads(data)
    assert "<script>alert" not in page and "<img src=x" not in page


@pytest.mark.parametrize("name", ["<script>alert(1)<_script>", "a\"b'c", "a.."])
def test_hostile_name_of_a_sweep_is_escaped_on_the_list_page(name, tmp_path):
    trial(session(tmp_path / name), "a", 0.5)
    text = listed(Catalogue([str(tmp_path)]))
    assert "<script" not in text and html.unescape(text).count(name) == 1


# How it is started -----------------------------------------------------------------------------


def test_server_listens_on_localhost_and_on_a_free_port_unless_one_is_given(monkeypatch):
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
    with pytest.raises(tunekit.errors.ConfigError, match=f"(?s)port={number}.*'xxx"):
        problems.raise_any()


def started(
    home: Path, monkeypatch: pytest.MonkeyPatch, token: str = "", host: str = "127.0.0.1"
) -> tuple[str, dict[str, Any], Application]:
    """Start a server, without serving; return its printed address, its options and the server."""
    made: list[tuple[dict[str, Any], Application]] = []
    monkeypatch.setattr(
        serve, "Application", lambda *a, **known: made.append((known, Application(*a, **known)))
    )
    monkeypatch.setattr(serve, "lower_priority", lambda: None)
    monkeypatch.setattr(serve.uvicorn.Server, "run", lambda self, sockets: None)
    if token:
        monkeypatch.setenv(serve.TOKEN, token)
    else:
        monkeypatch.delenv(serve.TOKEN, raising=False)
    printed: list[str] = []
    serve.serve([str(home)], host=host, port=0, ready=printed.append)
    return printed[0], *made[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_server_prints_an_address_with_a_new_token_at_each_start(host, journal, home, monkeypatch):
    starts = [started(home, monkeypatch, host=host) for _ in range(2)]
    tokens = [address.partition("?token=")[2] for address, *_ in starts]
    assert tokens[0] != tokens[1] and min(map(len, tokens)) >= 40
    for (address, known, _), token in zip(starts, tokens, strict=True):
        assert known["token"] == token and "localhost" in known["hosts"]
        assert urlsplit(address).hostname in known["hosts"]
        assert known["any_address"] == (host == "0.0.0.0")


@pytest.mark.parametrize("odd", list(string.punctuation + " "))
def test_printed_address_opens_the_page_with_any_ascii_token(odd, journal, home, monkeypatch):
    address, _, app = started(home, monkeypatch, f"{odd}{'token' * 4}{odd}{odd}")
    browser = Browser(app)
    parts = urlsplit(address)
    opened = browser.get(f"/all?{parts.query}&a=b%26c")
    assert (opened.status, opened.headers["location"]) == (303, "/all?a=b%26c")
    assert not parts.fragment and browser.cookies
    assert browser.get("/all").status == 200
    browser.close()


@pytest.mark.parametrize(
    "token", ["short", *("token" * 4 + odd for odd in "\n\x7f\xe9\u2603\udcff")]
)
def test_token_that_is_short_or_that_a_cookie_cannot_carry_is_refused(
    token, journal, home, monkeypatch
):
    with pytest.raises(tunekit.errors.ConfigError, match=serve.TOKEN):
        started(home, monkeypatch, token)


def test_served_pages_write_nothing_into_the_sweeps_folder(browser, home):
    def files() -> dict[str, tuple[int, int]]:
        found = home.parent.rglob("*")
        return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in found}

    before = files()
    key = key_of(home.parent)
    for target in ("/all", f"/sweeps/{key}", f"/sweeps/{key}/trial?id=a"):
        assert browser.get(target).status == 200
    assert browser.get(f"/sweeps/{key}/news").status == 200
    assert files() == before


def test_sweep_in_an_object_store_is_listed_and_followed_over_its_restore(s3, tmp_path):
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
    assert best_of(live.parts) == "a" and live.trouble == ""
    trial(journal, "b", 0.9, lr=0.2)
    assert folder.settle(60)
    clock.sleep(10)
    live.step()
    assert best_of(live.parts) == "b"
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
