"""The page over a group whose replicator and worker are real: what is ordered there is done."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, expect

from tests.console.server.page.browsing import Visit, visiting
from tests.console.server.served import Served
from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.end_to_end.once import replicate, succeed
from tests.servers import Database, NatsServer
from tests.waiting import wait_until

pytestmark = [pytest.mark.page, pytest.mark.timeout(600)]

START_MS = 120_000


@pytest.fixture
def keys(group: str, source_database: Database, target_database: Database, nats_server: NatsServer) -> dict[str, Any]:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    target_database.execute("CREATE TABLE t (id int PRIMARY KEY, note varchar(12))")
    return configuration(group, source_database, target_database, nats_server)


@pytest.fixture
def informed(keys: dict[str, Any], nats_server: NatsServer, tmp_path: Path) -> Iterator[Served]:
    """A server that has the group's document."""
    references = {"password": "${SOURCE_PASSWORD}", "target-password": "${TARGET_PASSWORD}"}
    env = {"SOURCE_PASSWORD": keys["password"], "TARGET_PASSWORD": keys["target-password"]}
    with Served(nats_server.url, tmp_path, env=env) as served:
        with served.client() as client:
            document = {"yaml": yaml.safe_dump(keys | references)}
            answer = client.put(f"/groups/{keys['group']}/document", json=document)
            assert answer.status_code == 201, answer.text
        yield served


@pytest.fixture
def known(window: Browser, informed: Served) -> Iterator[Visit]:
    with visiting(window, informed) as visit:
        visit.log_in()
        yield visit


def test_a_worker_rests_and_goes_on_and_a_letter_is_applied_after_all(
    known: Visit, keys: dict[str, Any], source_database: Database, target_database: Database
) -> None:
    page = known.page
    with GroupUnderTest(keys) as running:
        running.replicator.wait_for_log("replicating")
        known.open("groups", keys["group"])
        state = page.get_by_role("row", name="postgres").locator(".badge")
        expect(state).to_have_text("running", timeout=START_MS)
        page.get_by_role("button", name="Pause worker postgres").click()
        page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        expect(state).to_have_text("paused", timeout=START_MS)
        source_database.execute("INSERT INTO t VALUES (1, 'short'), (2, 'far too long for the target')")
        lag = page.locator(".workers .lag")
        expect(lag).to_have_text(re.compile(r"[2-9](\.\d)? s"))
        assert target_database.execute("SELECT count(*) FROM t") == [(0,)]
        page.get_by_role("button", name="Resume worker postgres").click()
        expect(state).to_have_text("running", timeout=START_MS)
        wait_until(lambda: target_database.execute("SELECT id FROM t") == [(1,)], deadline_s=60, what="the row that fits")
        page.get_by_role("link", name="Dead letters").click()
        expect(page.get_by_role("heading", name=re.compile("string data right truncation", re.IGNORECASE))).to_be_visible()
        target_database.execute("ALTER TABLE t ALTER note TYPE text")
        page.get_by_role("checkbox", name="Select all with this reason, 1 in total").check()
        page.get_by_role("button", name="Replay 1").click()
        page.get_by_role("dialog").get_by_role("button", name="Replay").click()
        expect(page.get_by_text("No dead letters")).to_be_visible(timeout=START_MS)
        assert target_database.execute("SELECT id FROM t ORDER BY id") == [(1,), (2,)]
        page.get_by_role("link", name="Trace a row").click()
        page.get_by_label("Table").fill("t")
        page.get_by_label("Value").fill("2")
        page.get_by_role("button", name="Trace", exact=True).click()
        expect(page.locator(".outcomes").get_by_text("applied", exact=True)).to_be_visible()


def test_the_sql_of_a_finding_is_copied_and_cures_it(known: Visit, keys: dict[str, Any], source_database: Database) -> None:
    succeed(replicate(keys))
    source_database.execute("CREATE TABLE keyless (v text)")
    page = known.page
    known.open("groups", keys["group"])
    page.get_by_role("button", name="Check", exact=True).click()
    finding = page.locator(".finding", has_text="without a primary key or replica identity: public.keyless")
    finding.get_by_role("button", name="Copy the SQL that fixes it").click(timeout=START_MS)
    with source_database.connect() as administrator:
        administrator.execute(page.evaluate("navigator.clipboard.readText()"))
    page.get_by_role("button", name="Check again").click()
    expect(finding).to_have_count(0, timeout=START_MS)
