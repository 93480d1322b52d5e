"""Live pages equal the report, follow their sweep, require the token and change nothing."""

from __future__ import annotations

import html
import json
import re
import shutil
import socket
import string
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
from tests.support.sweeps import Plan
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


def opened(path: Path, **options: Any) -> Browser:
    """A browser that has the token of the server of a folder."""
    browser = Browser(Application(Catalogue([str(path)]), token=TOKEN, **options))
    browser.cookies["tunekit"] = TOKEN
    return browser


@pytest.fixture
def browser(journal, home) -> Browser:
    return opened(home.parent)


def entry_of(home: Path) -> Entry:
    return Entry("0" * 16, home.name, pyarrow.fs.LocalFileSystem(), str(home), str(home), 0.0)


def key_of(home: Path) -> str:
    [key] = Catalogue([str(home)]).find()
    return key


def best_of(page: str) -> str:
    """The trial that the summary of a page names as the best."""
    return re.search(r'class="verdict">[^<]*<b>(\w+)</b>', page)[1]


# What it shows ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [lambda folder: asha(folder).run(), killed], ids=["asha", "killed"]
)
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


def test_live_page_counts_the_reports_whose_scores_are_pending(journal, home):
    for iteration in (2, 3):
        report = {"training_iteration": iteration}
        journal.append(Reported(time=1e9 + iteration, trial_id="b", report=report))
    live = LiveSweep(entry_of(home), NOTHING, FakeClock())
    live.first()
    [row] = re.findall(r'data-trial="b">.*?</tr>', live.parts["ranking"], re.S)
    assert '<td>1</td><td>2</td><td class="text">running' in row
    assert ["scores: 2" in live.panel(name) for name in "ab"] == [False, True]


def test_live_page_shows_why_it_cannot_be_read_and_retries_after_half_a_second(
    journal, home, monkeypatch
):
    clock, polls = FakeClock(), list[float]()

    def fail(self: Follower) -> bool:
        polls.append(clock.monotonic())
        raise OSError("<script>")

    live = LiveSweep(entry_of(home), NOTHING, clock)
    with monkeypatch.context() as patch:
        patch.setattr(Follower, "poll", fail)
        live.first()
        for _ in range(10):
            assert "<script>" in live.news("")["trouble"]
            clock.sleep(0.125)
    assert polls == [0, 0.5, 1]
    assert html.escape("<script>") in live.parts["summary"]
    clock.sleep(10)
    live.step()
    assert live.trouble == "" and best_of(live.parts["summary"]) == "b"


def test_panel_of_a_trial_has_python_that_loads_each_of_its_checkpoints(tmp_path):
    loaded = tunekit.load(Plan(tmp_path, trials=1).run().home)
    [panel] = render_panels(loaded, {}).values()
    loads = re.findall(r'data-copy="(ray\.tune\.Checkpoint\(.*?\))"', html.unescape(panel))
    found = [eval(one, {"ray": ray}).path for one in loads]
    assert found and sorted(found) == sorted(loaded.validations.checkpoint)


# The list of sweeps ----------------------------------------------------------------------------


def listed(catalogue: Catalogue) -> str:
    return render_index(catalogue.outlines())


def test_list_page_has_each_visible_sweep_below_a_folder_with_state_and_best(tmp_path):
    finished = Plan(tmp_path / "finished", trials=2).run().home
    trial(session(tmp_path / "deep/down/open"), "a", 0.25)
    shutil.copytree(finished, tmp_path / ".hidden/sweep")
    catalogue = Catalogue([str(tmp_path)])
    text = listed(catalogue)
    states = re.findall(
        r'<a href="/sweeps/[0-9a-f]{16}">(.*?)</a></td>\s*<td class="text">(.*?)</td>', text
    )
    assert sorted(states) == [
        ("deep/down/open", "running or killed"),
        ("finished/sweep", "finished"),
    ]
    for best in (tunekit.load(finished).best().score, 0.25):
        assert f'data-value="{best!r}"' in text
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


def test_list_page_reads_only_new_lines_of_a_running_sweep_half_a_second_after_the_last_read(
    home, read_lines, monkeypatch
):
    clock, began, outline = FakeClock(), list[float](), catalogues.outline

    def slow(follower: Follower) -> dict[str, Any]:
        began.append(clock.monotonic())
        clock.sleep(3)
        return outline(follower)

    monkeypatch.setattr(catalogues, "outline", slow)
    journal = running(home)
    trial(journal, "a", 0.5)
    catalogue = Catalogue([str(home.parent)], clock=clock)
    for value in (0.6, 0.7, 0.8):
        with ThreadPoolExecutor(10) as pool:  # however many requests come at once
            list(pool.map(lambda _: catalogue.outlines(), range(10)))
        score(journal, "a", round(10 * value), value)
        clock.sleep(0.5)
    [row] = catalogue.outlines()
    assert (row["state"], row["best"]["score"]) == ("running", 0.8)
    assert began == [0, 3.5, 7, 10.5]
    journal.append(SessionClosed(time=1e9 + 9, finished=True))
    clock.sleep(0.5)
    assert [row["state"] for row in catalogue.outlines()] == ["finished"]
    assert read_lines == list(range(2, journal.last + 1))


def test_list_page_shows_why_a_sweep_cannot_be_summarized_and_all_other_sweeps(
    tmp_path, monkeypatch
):
    summary = tunekit.Sweep.summary

    def fail(self: tunekit.Sweep) -> dict[str, Any]:
        return {"state": 1 / 0} if self.path.endswith("odd") else summary(self)

    monkeypatch.setattr(tunekit.Sweep, "summary", fail)
    for name in ("good", "odd"):
        trial(session(tmp_path / name), "a", 0.5)
    text = listed(Catalogue([str(tmp_path)]))
    assert "ZeroDivisionError" in text and 'data-value="0.5"' in text


def test_storage_failure_is_answered_with_status_503_and_its_reason(browser, monkeypatch):
    def fail(*known: Any) -> Any:
        raise OSError("the bucket is gone")

    monkeypatch.setattr(catalogues, "sweeps_below", fail)
    for target in ("/", "/all"):
        answer = browser.get(target)
        assert answer.status == 503 and "the bucket is gone" in answer.text


def test_server_of_a_single_sweep_redirects_to_its_page(journal, home):
    answer = opened(home).get("/")
    assert (answer.status, answer.headers["location"]) == (307, f"/sweeps/{key_of(home)}")


def test_serving_paths_inside_a_sweep_or_missing_ones_is_one_error_that_names_each(
    journal, home, tmp_path
):
    checkpoint = home / "train_a/checkpoint_000001"
    checkpoint.mkdir(parents=True)
    result = tunekit_("serve", checkpoint, tmp_path / "no/such", "nosuch://x")
    assert result.exit_code == 2
    assert all(named in result.stderr for named in (repr(str(home)), "no/such", "nosuch://"))


# Over HTTP -------------------------------------------------------------------------------------


def test_page_news_chart_and_panel_are_served_as_the_journal_grows(browser, journal, home):
    own = f"/sweeps/{key_of(home.parent)}"

    def news(since: str = "") -> Any:
        return json.loads(browser.get(f"{own}/news?since={since}").text)

    page = browser.get(own)
    assert page.status == 200 and best_of(page.text) == "b"
    version = re.search(r'data-version="(.*?)"', page.text)[1]
    assert not news(version)["parts"], "what a browser has is not sent again"
    score(journal, "a", 2, 0.9)
    parts = {"summary": page.text}
    while best_of(parts["summary"]) != "a":
        parts = news(version)["parts"] or parts
    assert 'data-value="0.9" class="best"' in parts["ranking"]
    while "validated" not in (last := news())["charts"]:
        pass
    assert last["order"][:2] == ["summary", "ranking"] and last["trouble"] == ""
    points = json.loads(browser.get(f"{own}/chart?id=validated").text)["datasets"]["points"]
    assert {("a", 0.5), ("b", 0.7)} <= {(p["trial"], p["value"]) for p in points}
    assert "<code>a</code>" in browser.get(f"{own}/trial?id=a").text


# Who is let in ---------------------------------------------------------------------------------

OWN, ELSEWHERE = "http://127.0.0.1:7007", "http://evil.example"
#: Requests of other sites' pages are refused, also of another server of this machine.
ORIGINS = {
    403: [ELSEWHERE, "http://127.0.0.1:3000", "http://localhost:7007", "null", [OWN, ELSEWHERE]],
    200: [OWN, "https://127.0.0.1:7007"],
}
#: A host that is not the server's own may be of a site that has this machine's address.
HOSTS = {
    421: [
        *("evil.example", "localhost.evil.example:7007", "evil.example@localhost", "localhost."),
        *("localhost:7007:80", "[::1].evil.example", "10.0.0.5:7007", ""),
        ["127.0.0.1:7007", "evil.example"],
    ],
    200: ["localhost:8000", "127.0.0.1", "[::1]:9000", "LOCALHOST"],
}
ACCESS: list[tuple[dict[str, Any], int]] = [
    *(({"origin": one}, status) for status, origins in ORIGINS.items() for one in origins),
    *(({"host": one}, status) for status, hosts in HOSTS.items() for one in hosts),
    # What another site loads is refused; a link of its may be followed.
    ({"sec_fetch_site": "cross-site", "sec_fetch_dest": "script"}, 403),
    ({"sec_fetch_site": "same-site", "sec_fetch_dest": "empty"}, 403),
    ({"sec_fetch_site": "cross-site", "sec_fetch_dest": "document"}, 200),
]


@pytest.mark.parametrize(("headers", "status"), ACCESS, ids=str)
def test_requests_from_other_sites_or_to_other_hosts_are_refused(browser, headers, status, home):
    for target in ("/all", f"/sweeps/{key_of(home.parent)}/trial?id=a"):
        answer = browser.get(target, **headers)
        assert answer.status == status
    assert status != 421 or "--host" in answer.text


@pytest.mark.parametrize("any_address", [False, True])
def test_server_accepts_its_named_hosts_and_other_addresses_only_if_bound_to_all(
    journal, home, any_address
):
    browser = opened(home.parent, hosts=["Gpu1"], any_address=any_address)
    assert browser.get("/all", host="gpu1:7007").status == 200
    assert browser.get("/all", host="gpu1.evil.example").status == 421
    for address in ("10.0.0.5:7007", "[fd00::5]:7007"):
        assert browser.get("/all", host=address).status == (200 if any_address else 421)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_http_methods_that_could_change_something_are_refused(browser, method):
    assert browser.get("/all", method=method).status == 403
    assert browser.get("/all", method=method, origin=OWN).status == 405


@pytest.mark.parametrize(
    "target",
    [
        "/sweeps/../../etc/passwd",
        "/sweeps/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/sweeps/{home}",
        "/sweeps/digits",
        "/sweeps/{key}/../../etc/passwd",
        "/sweeps/{key}/trial?id=../../../etc/passwd",
        "/sweeps/{key}/chart?id=../../summary",
        "/assets/..%2f..%2fsetup.cfg",
    ],
)
def test_unknown_and_escaping_paths_are_answered_with_404(browser, home, target):
    named = target.format(home=str(home).replace("/", "%2f"), key=key_of(home.parent))
    assert browser.get(named).status == 404


def test_every_answer_has_the_security_headers_and_no_request_changes_a_file(browser, home):
    def files() -> dict[Path, tuple[int, int]]:
        return {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in home.parent.rglob("*")}

    before, own = files(), f"/sweeps/{key_of(home.parent)}"
    for target in ("/", "/all", own, f"{own}/trial?id=a", f"{own}/news", "/none", "/no token"):
        if target == "/no token":
            browser.cookies = {}
        answer = browser.get(target)
        assert {name.lower() for name in HEADERS} <= set(answer.headers)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.status == 401 and files() == before


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


@pytest.mark.parametrize("target", ["/all", f"/all?token={TOKEN}x", "/all?token="])
@pytest.mark.parametrize("cookie", [None, "other"])
def test_request_without_the_right_token_or_cookie_is_refused(browser, target, cookie):
    browser.cookies = {} if cookie is None else {"tunekit": cookie}
    assert browser.get(target).status == 401


def test_token_in_the_address_is_replaced_by_a_cookie(browser):
    browser.cookies = {}
    answer = browser.get(f"/all?token={TOKEN}&a=b")
    assert (answer.status, answer.headers["location"]) == (303, "/all?a=b")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=lax" in cookie
    assert browser.get("/all").status == 200


@pytest.mark.parametrize("path", ["//evil.example", "/%2Fevil.example", "/\\evil.example"])
def test_redirect_after_the_token_stays_on_the_server(browser, path):
    browser.cookies = {}
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
    "a\u2028b\u202ec",
    "&lt;b&gt;",
]


class Tags(HTMLParser):
    """Find the names of the tags and attributes that a browser sees."""

    def __init__(self, page: str):
        super().__init__()
        self.found: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {tag, *(name for name, _ in attrs)}


def page_with(folder: Path, names: list[str]) -> str:
    """Everything that is shown of a sweep in whose every place there are these names."""
    journal = session(folder)
    for n, name in enumerate(names):
        trial(journal, name, n / 10, **{name: name, "x": {name: [name]}})
        score(journal, name, 2, None, reason=f"raised {name}", error=name)
    loaded = tunekit.load(folder)
    panels = render_panels(loaded, dict.fromkeys(names, "error"))
    return "".join([render_report(loaded), *panels.values()])


def test_hostile_names_of_trials_and_settings_are_escaped_in_pages_and_charts(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("tunekit.board.page.vega_script", lambda: "")  # it takes seconds to build
    page = page_with(tmp_path / "hostile", HOSTILE)
    harmless = page_with(tmp_path / "harmless", [f"n{n}" for n in range(len(HOSTILE))])
    assert Tags(page).found <= Tags(harmless).found
    text = page.replace("&#34;", "&quot;").replace("&#39;", "&#x27;")
    assert all(html.escape(name) in text for name in HOSTILE)
    assert "<script>alert" not in page and "<img src=x" not in page
    for data in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.S):
        json.loads(data)


def test_hostile_names_of_sweeps_are_escaped_on_the_list_page(tmp_path):
    names = ["<script>alert(1)<_script>", "a\"b'c", "a.."]
    for name in names:
        trial(session(tmp_path / name), "a", 0.5)
    text = listed(Catalogue([str(tmp_path)]))
    assert "<script" not in text
    assert [html.unescape(text).count(f">{name}<") for name in names] == [1, 1, 1]


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
) -> tuple[Any, Application]:
    """Start a server, without serving; return the address that it prints, and the server."""
    served: list[Application] = []
    printed: list[str] = []
    monkeypatch.setattr(serve, "lower_priority", lambda: None)
    monkeypatch.setattr(serve, "vega_script", lambda: "")
    monkeypatch.setattr(
        serve.uvicorn.Server, "run", lambda self, sockets: served.append(self.config.app)
    )
    monkeypatch.setenv(serve.TOKEN, token)
    serve.serve([str(home)], host=host, port=0, ready=printed.append)
    return urlsplit(printed[0]), served[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_printed_address_has_a_new_token_at_each_start_and_a_host_that_is_accepted(
    host, journal, home, monkeypatch
):
    starts = [started(home, monkeypatch, host=host) for _ in range(2)]
    tokens = [address.query.removeprefix("token=") for address, _ in starts]
    assert tokens[0] != tokens[1] and min(map(len, tokens)) >= 40
    for address, app in starts:
        others = 303 if host == "0.0.0.0" else 421
        for name, status in {address.netloc: 303, "localhost": 303, "10.0.0.5": others}.items():
            assert Browser(app, name).get(f"/?{address.query}").status == status


@pytest.mark.parametrize("odd", [" ", '"', ";", string.punctuation])
def test_printed_address_opens_the_page_with_any_ascii_token(odd, journal, home, monkeypatch):
    address, app = started(home, monkeypatch, f"{odd}{'token' * 4}{odd}{odd}")
    browser = Browser(app)
    answer = browser.get(f"/all?{address.query}&a=b%26c")
    assert (answer.status, answer.headers["location"]) == (303, "/all?a=b%26c")
    assert not address.fragment and browser.get("/all").status == 200


@pytest.mark.parametrize(
    "token", ["short", *("token" * 4 + odd for odd in "\n\x7f\xe9\u2603\udcff")]
)
def test_token_that_is_short_or_that_a_cookie_cannot_carry_is_refused(
    token, journal, home, monkeypatch
):
    with pytest.raises(tunekit.errors.ConfigError, match=serve.TOKEN):
        started(home, monkeypatch, token)


def test_sweeps_in_an_object_store_and_on_this_machine_are_listed_and_followed(s3, tmp_path):
    s3.make_bucket("served")
    about = {"time": 1e9, "required": ["accuracy"], "mode": "max"}
    folder = RemoteFolder(s3.filesystem(), "served/digits")
    journal = Journal(folder, about=about)
    trial(journal, "a", 0.5)
    assert folder.settle(60)
    trial(session(tmp_path / "local"), "a")
    entries = Catalogue([s3.uri("served"), str(tmp_path)]).find().values()
    remote, local = sorted(entries, key=lambda entry: entry.name)
    assert (remote.name, local.name) == ("digits", "local")
    clock = FakeClock()
    live = LiveSweep(remote, NOTHING, clock)
    live.first()
    for name, value in (("b", 0.9), ("c", 0.95)):
        trial(journal, name, value)
        assert folder.settle(60)
        clock.sleep(10)
        live.step()
        assert best_of(live.parts["summary"]) == name and live.trouble == ""
        # The driver is killed, and the sweep continues in another file.
        folder = RemoteFolder(s3.filesystem(), "served/digits")
        journal = Journal(folder, about=about, begins=False)
    [row] = Catalogue([s3.uri("served")]).outlines(metric="accuracy", mode="max")
    assert row["best"]["score"] == 0.95
