"""Live pages agree with ``tunekit.load``, follow a sweep, and require the token."""

from __future__ import annotations

import html
import json
import re
import shutil
import socket
from collections.abc import Iterator
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
from tunekit.board.live import Catalogue, LiveSweep, ServedSweep
from tunekit.board.page import (
    render_index,
    render_panels,
    render_report,
    render_sections,
    report_data,
    script_json,
)
from tunekit.board.serve import HEADERS, Application
from tunekit.core.events import Reported
from tunekit.journal.journal import Journal
from tunekit.journal.storage import RemoteFolder
from tunekit.messages.problems import Problems

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


def entry_of(home: Path) -> ServedSweep:
    return ServedSweep("0" * 16, home.name, pyarrow.fs.LocalFileSystem(), str(home), str(home), 0.0)


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


def test_one_sweep_needs_no_list(journal, home, browsers):
    answer = browsers(home).get("/", cookie=f"tunekit={TOKEN}")
    assert (answer.status, answer.headers["location"]) == (307, f"/sweeps/{key_of(home)}")


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
    with pytest.raises(tunekit.errors.ConfigError, match=f"port={number} cannot be listened on"):
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
