"""The page in a real browser, over groups whose records a test writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, ViewportSize, expect

from tests.console.server.page.browsed_group import BrowsedGroup, aside
from tests.console.server.page.browsing import NARROW, WIDE, Visit, visiting
from tests.console.server.served import Served
from tests.console.server.test_orders import letters_in
from tests.console.server.test_units import desired
from tests.servers import Database, NatsServer

pytestmark = pytest.mark.page

LIVE_MS = 2000


@pytest.fixture
def browsed(group: str, source_database: Database, nats_server: NatsServer) -> Iterator[BrowsedGroup]:
    """With a message in its stream, a replicator, and worker w, which has applied it."""
    source_database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    made = BrowsedGroup(group, source_database, nats_server)
    made.publish()
    made.publish("INSERT INTO t VALUES (1, 'a value')")
    made.apply_to(1)
    with made.running():
        yield made


def test_a_stranger_is_told_how_to_come_in_and_a_link_lets_one_in_once(window: Browser, served: Served) -> None:
    with visiting(window, served) as visit:
        visit.page.goto(served.address)
        expect(visit.page.get_by_role("heading", name="Log in with a link")).to_be_visible()
        expect(visit.page.get_by_text("pgsluice token link", exact=True)).to_be_visible()
        link = served.link()
        visit.page.goto(link)
        expect(visit.page.get_by_role("heading", name="Groups")).to_be_visible()
        expect(visit.page.get_by_text("live", exact=True)).to_be_visible()
    with visiting(window, served) as other:
        answer = other.page.goto(link)
        assert answer is not None
        assert answer.status == 401


def test_a_session_ends_with_its_token(window: Browser, served: Served) -> None:
    served.token("passing")
    with visiting(window, served) as visit:
        visit.log_in("passing")
        served.run_command("token", "revoke", "passing")
        visit.open("audit")
        expect(visit.page.get_by_role("heading", name="Log in with a link")).to_be_visible()


def test_a_lag_that_grows_is_seen_within_two_seconds(browsed: BrowsedGroup, visit: Visit) -> None:
    card = visit.page.get_by_role("article", name=f"Group {browsed.name}")
    lag = card.locator(".workers .lag")
    expect(card.get_by_text("running").first).to_be_visible()
    expect(lag).to_have_text("0 s")
    browsed.publish("INSERT INTO t VALUES (2, 'another')")
    expect(lag).not_to_have_text("0 s", timeout=LIVE_MS)
    expect(lag).to_have_text(re.compile(r"[2-9]\.\d s"))
    for number in (3, 4, 5):  # it is not looked at each second, and grows all the same
        expect(lag).to_have_text(re.compile(rf"[{number}-9]\.\d s"), timeout=LIVE_MS)
    browsed.apply_to(2)
    expect(lag).to_have_text("0 s", timeout=LIVE_MS)


def test_a_worker_is_paused_and_goes_on(browsed: BrowsedGroup, visit: Visit) -> None:
    page, group = visit.page, browsed.name
    visit.open("groups", group)
    page.get_by_role("button", name="Pause worker w").click()
    dialog = page.get_by_role("dialog", name="Pause worker w?")
    expect(dialog.get_by_text("The source is not delayed")).to_be_visible()
    dialog.get_by_label("Reason, for the audit").fill("a release")
    dialog.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status").get_by_text("Worker w will pause")).to_be_visible()
    expect(page.get_by_role("table", name="Processes").get_by_text("pausing")).to_be_visible(timeout=LIVE_MS)
    record = aside(lambda: desired(browsed.nats, group, "worker.w"))
    assert (record.state, record.by, record.reason) == ("paused", "admin", "a release")
    page.get_by_role("button", name="Resume worker w").click()
    expect(page.get_by_role("button", name="Pause worker w")).to_be_visible()
    assert aside(lambda: desired(browsed.nats, group, "worker.w")).state == "running"


def test_what_takes_something_away_says_so_and_wants_the_name(browsed: BrowsedGroup, visit: Visit) -> None:
    page, group = visit.page, browsed.name
    visit.open("groups", group)
    page.get_by_role("button", name="Pause the replicator").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("The source retains its WAL from now on")).to_be_visible()
    expect(dialog.get_by_text("not known here")).to_be_visible()
    confirm = dialog.get_by_role("button", name="Pause", exact=True)
    expect(confirm).to_be_disabled()
    dialog.get_by_label("Type replicator to confirm").fill("replicato")
    expect(confirm).to_be_disabled()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Pause the replicator")).to_be_focused()
    page.get_by_role("button", name="Stop worker w").click()
    page.get_by_label("Type w to confirm").fill("w")
    page.get_by_role("dialog").get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_role("table", name="Processes").get_by_text("stopping")).to_be_visible()


def test_letters_are_grouped_replayed_and_discarded(browsed: BrowsedGroup, visit: Visit) -> None:
    page, group = visit.page, browsed.name
    [first, second] = browsed.set_aside(1, 2)
    visit.open("groups", group, "letters")
    expect(page.get_by_role("heading", name="The target refuses it.")).to_be_visible()
    page.get_by_role("checkbox", name=f"Select {first} of w").check()
    page.get_by_role("button", name="Replay 1").click()
    page.get_by_role("dialog").get_by_role("button", name="Replay").click()
    expect(page.get_by_role("row", name=first).get_by_text("replay")).to_be_visible()
    assert aside(lambda: letters_in(browsed.nats, group)) == [(first, True), (second, False)]
    page.get_by_role("checkbox", name=f"Select {second} of w").check()
    page.get_by_role("button", name="Discard 1").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("1 change of public.t is removed permanently")).to_be_visible()
    expect(dialog.get_by_role("button", name="Discard")).to_be_disabled()
    dialog.get_by_label(f"Type {group} to confirm").fill(group)
    dialog.get_by_role("button", name="Discard").click()
    expect(page.get_by_role("row", name=second)).to_have_count(0)
    assert aside(lambda: letters_in(browsed.nats, group)) == [(first, True)]
    visit.open("audit")
    expect(page.get_by_role("row", name="dead discard").first).to_be_visible()


def test_a_row_is_traced_with_every_digit_and_nothing_in_it_is_markup(browsed: BrowsedGroup, visit: Visit) -> None:
    browsed.publish("INSERT INTO t VALUES (9007199254740993, '<img src=x onerror=alert(1)>')")
    page, group = visit.page, browsed.name
    visit.open("groups", group, "messages")
    page.locator("summary").last.click()
    expect(page.get_by_text("<img src=x onerror=alert(1)>")).to_be_visible()
    expect(page.get_by_text("9007199254740993", exact=True)).to_be_visible()
    page.get_by_role("link", name="Trace this row").click()
    expect(page.get_by_role("status").get_by_text("1 change of the row of public.t")).to_be_visible()
    expect(page.get_by_label("Value")).to_have_value("9007199254740993")
    visit.open("groups", group, "rules")
    page.get_by_label("Rules (YAML)").fill(
        "tables: {t: [{type: transform, column: v, parameters: {type: mask, mask_char: '*'}}]}"
    )
    page.get_by_role("button", name="Test", exact=True).click()
    expect(page.get_by_text("2 changes tested.")).to_be_visible()
    expect(page.get_by_text("passed").first).to_be_visible()
    expect(page.get_by_text("<**************************>").last).to_be_visible()


def test_whoever_may_not_see_values_or_order_anything_is_told(window: Browser, served: Served, browsed: BrowsedGroup) -> None:
    group = browsed.name
    served.token("onlooker")
    with visiting(window, served) as visit:
        visit.log_in("onlooker")
        visit.open("groups", group)
        expect(visit.page.get_by_role("table", name="Processes").get_by_text("None for a viewer").first).to_be_visible()
        expect(visit.page.get_by_role("button", name="Pause worker w")).to_have_count(0)
        visit.open("groups", group, "messages")
        expect(visit.page.get_by_text("this session may not see them")).to_be_visible()


def test_a_page_outlives_its_server(
    window: Browser, browsed: BrowsedGroup, nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    port, directory = free_port(nats_server, tmp_path_factory), tmp_path_factory.mktemp("outlived")
    with Served(nats_server.url, directory, listen=f"127.0.0.1:{port}") as served, visiting(window, served) as visit:
        visit.log_in()
        expect(visit.page.get_by_text("live", exact=True)).to_be_visible()
        served.kill()
        expect(visit.page.get_by_text("connection lost, connecting again")).to_be_visible()
        served.start()
        expect(visit.page.get_by_text("live", exact=True)).to_be_visible()
        lag = visit.page.get_by_role("article", name=f"Group {browsed.name}").locator(".workers .lag")
        expect(lag).to_have_text("0 s")
        browsed.publish("INSERT INTO t VALUES (2, 'another')")
        expect(lag).not_to_have_text("0 s", timeout=LIVE_MS)


def free_port(nats: NatsServer, directories: pytest.TempPathFactory) -> int:
    """That of a server that has ended."""
    with Served(nats.url, directories.mktemp("first")) as served:
        return int(served.address.rpartition(":")[2])


def test_what_another_origin_asks_is_refused(served: Served) -> None:
    evil = served.address.replace("127.0.0.1", "evil.example").removeprefix("http://")
    for headers in ({"Host": evil}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        for path in ("/", "/main.js", "/api/v1/groups"):
            assert httpx.get(f"{served.address}{path}", headers=headers).status_code == 403


def test_a_page_of_another_origin_gets_nothing(window: Browser, served: Served, nats_server: NatsServer, tmp_path: Path) -> None:
    """Another port is another origin, and the same site: only Origin tells it apart, and cookies come along."""
    with Served(nats_server.url, tmp_path) as other, visiting(window, served) as visit:
        visit.log_in()
        stranger = visit.page.context.new_page()
        stranger.goto(f"{other.address}/favicon.svg")
        asking = "url => fetch(url, {credentials: 'include', mode: 'no-cors'}).then(() => 'sent', () => 'refused')"
        assert stranger.evaluate(asking, f"{served.address}/api/v1/groups") == "refused"
        framing = (
            "url => new Promise(end => { const frame = document.createElementNS('http://www.w3.org/1999/xhtml', 'iframe');"
            " frame.src = url; frame.onload = () => end(frame.contentDocument === null);"
            " document.documentElement.append(frame); })"
        )
        assert stranger.evaluate(framing, served.address)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_every_view_is_accessible_and_fits_its_window(
    window: Browser, served: Served, browsed: BrowsedGroup, size: ViewportSize, theme: str
) -> None:
    browsed.set_aside(1, 2)
    with visiting(window, served, size, theme) as visit:
        visit.page.goto(served.address)
        visit.page.get_by_role("heading", name="Log in with a link").wait_for()
        found = {"login": (visit.findings(), visit.overflow())}
        visit.log_in()
        group = ("groups", browsed.name)
        found["overview"] = looked_at(visit, "article")
        found["group"] = looked_at(visit, "table", *group)
        found["document"] = looked_at(visit, "section", *group, "document")
        found["documents"] = looked_at(visit, "h1", "documents")
        found["worker"] = looked_at(visit, "dl", *group, "workers", "w")
        found["letters"] = looked_at(visit, "table", *group, "letters")
        found["messages"] = looked_at(visit, "ol.messages li", *group, "messages")
        found["trace"] = looked_at(visit, "form", *group, "trace")
        found["rules"] = looked_at(visit, "form", *group, "rules")
        found["audit"] = looked_at(visit, "table", "audit")
        visit.open(*group)
        visit.page.get_by_role("button", name="Stop worker w").click()
        found["dialog"] = (visit.findings(), visit.overflow())
    assert found == dict.fromkeys(found, ([], 0))


def looked_at(visit: Visit, content: str, *place: str) -> tuple[list[str], int]:
    """What axe finds, and how much the view is too wide."""
    visit.open(*place)
    visit.page.locator(f"main {content}").first.wait_for()
    for summary in visit.page.locator("summary").all()[:1]:
        summary.click()
    return visit.findings(), visit.overflow()
