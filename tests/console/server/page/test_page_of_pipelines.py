"""SQL pipelines on the page: written, run, paused, cancelled, and never a row's value."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.console.server.page.browsed_group import aside
from tests.console.server.page.browsing import Visit, visiting
from tests.console.server.placed import Place, placed
from tests.console.server.served import Served
from tests.servers import NatsServer, PostgresServer

pytestmark = pytest.mark.page

YAML = "query: SELECT id, v FROM t\ntarget: analytics.t\nkey: [id]\nsource: shop\nsink: warehouse\n"
SCHEDULE = "schedule: '*/15 * * * *'\ntime-zone: Europe/Berlin\n"


@pytest.fixture(scope="module")
def place(nats_server: NatsServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with placed(nats_server, postgres, tmp_path_factory.mktemp("places"), "source_of_the_page") as begun:
        yield begun


@pytest.fixture(scope="module")
def served(place: Place) -> Served:
    return place.served


def test_a_pipeline_is_written_asked_to_run_and_deleted(visit: Visit, place: Place, group: str) -> None:
    page = visit.page
    visit.open("pipelines")
    page.get_by_role("button", name="New pipeline").click()
    page.get_by_label("Name", exact=True).fill(group)
    text = page.get_by_label("YAML, the keys of this pipeline as in a pipelines file")
    text.fill(YAML.replace("analytics.t", "public.users"))
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("may not fill public.users")).to_be_visible()
    text.fill(YAML + SCHEDULE)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name=group, exact=True)).to_be_visible()
    expect(page.get_by_text("This pipeline has not run yet.")).to_be_visible()
    expect(page.get_by_text("*/15 * * * * Europe/Berlin", exact=True)).to_be_visible()
    expect(page.get_by_text("no scheduler runs it")).to_be_visible()
    page.get_by_role("button", name="Preview a run").click()
    expect(page.get_by_text("9 rows in 1 batch")).to_be_visible()
    page.get_by_role("button", name="Run now").click()
    page.get_by_role("dialog").get_by_role("button", name="Run").click()
    requests = page.get_by_role("table", name="Requests")
    expect(requests).to_contain_text("run, by a user")
    with place.served.client() as client:
        [request] = client.get(f"/pipelines/{group}/runs").json()["requests"]
    assert aside(lambda: place.run(group, request["id"])) == 0
    row = page.get_by_role("table", name="Runs").get_by_role("row").nth(1)
    expect(row).to_contain_text(re.compile("1.*finished.*full.*9 of 9.*0"))
    expect(row).to_contain_text(re.compile(r"plan\s\S+\sm?s, read\s\S+\sm?s"))
    assert (visit.findings(), visit.overflow()) == ([], 0)
    page.get_by_role("button", name="Delete").click()
    page.get_by_label(f"Type {group} to confirm").fill(group)
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Pipelines")).to_be_visible()
    expect(page.get_by_role("link", name=group, exact=True)).to_have_count(0)


def test_what_is_left_of_a_run_is_paused_resumed_and_cancelled(visit: Visit, place: Place, group: str) -> None:
    page = visit.page
    with place.served.client() as client:
        place.put(client, group, "", query="SELECT id, 1 / (id - 5) AS v FROM t", **{"max-dead-letters": 0})
    assert aside(lambda: place.run(group)) != 0
    visit.open("pipelines", group)
    expect(page.get_by_role("table", name="Runs").get_by_text("failed", exact=True)).to_be_visible()
    assert visit.overflow() == 0
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("paused: no run starts")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.get_by_role("button", name="Cancel run 1").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the run").click()
    expect(page.get_by_role("table", name="Runs").get_by_text("cancelled", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Cancel run 1")).to_have_count(0)


def test_one_that_may_not_run_says_why(visit: Visit, place: Place, group: str) -> None:
    hostile = {"query": "SELECT 1 AS id", "target": "public.users", "key": ["id"], "host": "db.evil.example"}
    aside(lambda: place.administrator.put(group, hostile))
    visit.open("pipelines")
    expect(visit.page.get_by_role("row", name=group).first).to_be_visible()
    expect(visit.page.get_by_text("unknown key 'host'").first).to_be_visible()
    visit.open("pipelines", group)
    expect(visit.page.get_by_text("unknown key 'host'")).to_be_visible()
    expect(visit.page.get_by_role("button", name="Run now")).to_have_count(0)
    assert (visit.findings(), visit.overflow()) == ([], 0)


def test_whoever_was_slower_overwrites_nobody(visit: Visit, place: Place, group: str) -> None:
    page = visit.page
    with place.served.client() as client:
        place.put(client, group)
        visit.open("pipelines", group)
        page.get_by_role("button", name="Edit").click()
        assert place.put(client, group, client.get(f"/pipelines/{group}").headers["etag"], tasks=2).status_code == 200
        expect(page.get_by_text("Another user was faster")).to_be_visible()
        expect(page.get_by_role("button", name="Save")).to_be_disabled()
        page.get_by_role("button", name="Overwrite it").click()
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_label("the configuration", exact=True)).not_to_contain_text("tasks")


def test_a_viewer_looks_only(window: Browser, place: Place, group: str) -> None:
    with place.served.client() as client:
        place.put(client, group)
    place.served.token(f"looks-{group}", "viewer")
    with visiting(window, place.served) as visit:
        visit.log_in(f"looks-{group}")
        visit.open("pipelines", group)
        expect(visit.page.get_by_text("This pipeline has not run yet.")).to_be_visible()
        for name in ("Run now", "Edit", "Delete"):
            expect(visit.page.get_by_role("button", name=name)).to_have_count(0)
