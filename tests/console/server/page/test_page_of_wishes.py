"""What people want, on the page: documents with plan and conflicts, alerts that are set and silenced, drafts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from pgsluice.shared.alerts.alert_overrides import OVERRIDES, AlertOverrides
from pgsluice.shared.alerts.alert_state import ALERTS_KEY, AlertRecord, AlertsRecord
from pgsluice.shared.alerts.conditions import AlertName, AlertSeverity
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.worker_records import BatchesRecord, BatchRecord, batches_key
from pgsluice.shared.errors import Cause
from pgsluice.shared.subscriptions.subscription_records import (
    ReceiversRecord,
    ReceiverState,
    SubscriptionRecord,
    receivers_key,
    subscription_key,
)
from pgsluice.shared.wire.names import GroupNames
from tests.console.server.page.browsed_group import BrowsedGroup, aside
from tests.console.server.page.browsing import Visit, visiting
from tests.console.server.served import Served
from tests.console.server.strangers import write_document
from tests.console.server.test_alerts import alerting
from tests.console.server.test_orders import ask, publish_letters
from tests.servers import Database, NatsServer
from tests.servers.http_server import HttpServer

pytestmark = pytest.mark.page


@pytest.fixture
def written(served: Served, group: str) -> str:
    """A group that is a document alone."""
    with served.client() as client:
        text = f"group: {group}\ncheck-interval: 20s\nworkers: [lake=file]\n"
        assert client.put(f"/groups/{group}/document", json={"yaml": text}).status_code == 201
    return group


def put(served: Served, group: str, interval: str) -> None:
    """As somebody else applies, who has read what there is."""
    with served.client() as client:
        text = f"group: {group}\ncheck-interval: {interval}\nworkers: [lake=file]\n"
        assert client.put(f"/groups/{group}/document", json={"yaml": text}, headers={"If-Match": "*"}).status_code == 200


def shown(served: Served, group: str) -> str:
    with served.client() as client:
        return str(client.get(f"/groups/{group}/document").json()["yaml"])


def edit(page: Page, before: str, after: str) -> None:
    text = page.get_by_label("YAML, with secrets as references")
    text.fill(text.input_value().replace(before, after))


def test_a_document_alone_is_a_group_of_drafts(visit: Visit, written: str) -> None:
    card = visit.page.get_by_role("article", name=f"Group {written}")
    expect(card.get_by_text("draft").first).to_be_visible()
    expect(card.get_by_text("lake")).to_be_visible()
    visit.open("groups", written)
    expect(visit.page.get_by_text("No process of this group was started yet")).to_be_visible()
    row = visit.page.get_by_role("row", name="lake")
    expect(row.get_by_text("draft")).to_be_visible()
    expect(row.get_by_text("It was never started.")).to_be_visible()


def test_a_document_that_names_what_it_may_not_says_so(visit: Visit, nats_server: NatsServer, group: str) -> None:
    with ThreadPoolExecutor(1) as pool:  # the browser's loop runs in this one
        pool.submit(write_document, nats_server, group, group, user="${AWS_SECRET_ACCESS_KEY}").result()
    visit.open("groups", group, "document")
    expect(visit.page.get_by_role("alert").get_by_text("AWS_SECRET_ACCESS_KEY")).to_be_visible()


def test_a_document_is_planned_and_applied_with_its_history(visit: Visit, served: Served, written: str) -> None:
    page = visit.page
    visit.open("groups", written, "document")
    expect(page.get_by_label("the configuration", exact=True)).to_contain_text('check-interval: "20s"')
    page.get_by_role("button", name="Edit", exact=True).click()
    expect(page.get_by_role("button", name="Apply")).to_be_disabled()
    edit(page, '"20s"', '"30s"')
    page.get_by_role("button", name="Plan").click()
    change = page.get_by_role("table", name="Planned changes").get_by_role("row", name="check-interval")
    expect(change).to_contain_text(re.compile('"20s".*"30s"'))
    edit(page, '"30s"', '"40s"')
    expect(page.get_by_role("button", name="Apply")).to_be_disabled()
    page.get_by_role("button", name="Plan").click()
    page.get_by_role("button", name="Apply").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("1 setting of group")).to_contain_text("check-interval")
    dialog.get_by_label("Reason, for the audit").fill("slower is enough")
    dialog.get_by_role("button", name="Apply").click()
    expect(page.get_by_label("the configuration", exact=True)).to_contain_text('"40s"')
    assert '"40s"' in shown(served, written)
    history = page.get_by_role("table", name="History")
    expect(history.get_by_role("row")).to_have_count(3)
    history.get_by_role("button", name=re.compile("Show revision")).first.click()
    expect(page.get_by_role("table", name=re.compile("Changes of revision"))).to_contain_text('"20s"')


def test_whoever_was_slower_is_told_and_loses_nothing(visit: Visit, served: Served, written: str) -> None:
    page = visit.page
    visit.open("groups", written, "document")
    page.get_by_role("button", name="Edit", exact=True).click()
    edit(page, '["lake=file"]', '["lake=file", "mirror=postgres"]')
    page.get_by_role("button", name="Plan").click()
    page.get_by_role("button", name="Apply").click()
    put(served, written, "50s")  # while the question is open
    expect(page.get_by_text("Another user was faster")).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Apply").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert "mirror" not in shown(served, written)
    text = page.get_by_label("YAML, with secrets as references")
    expect(text).to_have_value(re.compile("mirror=postgres"))
    expect(page.get_by_role("button", name="Apply")).to_be_disabled()
    page.get_by_role("button", name="Continue from the current revision").click()
    page.get_by_role("button", name="Plan").click()
    changes = page.get_by_role("table", name="Planned changes")
    expect(changes.get_by_role("row", name="check-interval")).to_contain_text(re.compile('"50s".*"20s"'))
    edit(page, '"20s"', '"50s"')
    page.get_by_role("button", name="Plan").click()
    expect(changes.get_by_role("row")).to_have_count(2)
    page.get_by_role("button", name="Apply").click()
    page.get_by_role("dialog").get_by_role("button", name="Apply").click()
    expect(page.get_by_label("the configuration", exact=True)).to_contain_text("mirror=postgres")
    assert '"50s"' in shown(served, written)


def test_a_document_of_a_new_group_is_made_and_deleted(visit: Visit, served: Served, group: str) -> None:
    page = visit.page
    visit.open("documents")
    page.get_by_role("button", name="New configuration").click()
    page.get_by_label("YAML, with secrets as references").fill(f"group: {group}\npassword: m4rk3r\n")
    page.get_by_role("button", name="Plan").click()
    expect(page.get_by_text("holds a secret that is written out")).to_be_visible()
    page.get_by_label("YAML, with secrets as references").fill(f"group: {group}\npassword: ${{SOURCE_PASSWORD}}\n")
    page.get_by_role("button", name="Plan").click()
    page.get_by_role("button", name="Apply").click()
    page.get_by_role("dialog").get_by_role("button", name="Apply").click()
    expect(page.get_by_role("heading", name=group, exact=True)).to_be_visible()
    expect(page.get_by_label("the configuration", exact=True)).to_contain_text("${SOURCE_PASSWORD}")
    page.get_by_role("button", name="Delete").click()
    page.get_by_label(f"Type {group} to confirm").fill(group)
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No group with this name is on this NATS server")).to_be_visible()
    with served.client() as client:
        assert client.get(f"/groups/{group}/document").status_code == 404


def test_whoever_is_no_admin_plans_and_does_not_apply(window: Browser, served: Served, written: str) -> None:
    served.token("planner", "operator")
    with visiting(window, served) as visit:
        visit.log_in("planner")
        visit.open("groups", written, "document")
        visit.page.get_by_role("button", name="Edit", exact=True).click()
        edit(visit.page, '"20s"', '"30s"')
        visit.page.get_by_role("button", name="Plan").click()
        expect(visit.page.get_by_role("table", name="Planned changes")).to_be_visible()
        expect(visit.page.get_by_text("Only an admin can apply")).to_be_visible()
        expect(visit.page.get_by_role("button", name="Apply")).to_have_count(0)


@pytest.fixture
def browsed(group: str, source_database: Database, nats_server: NatsServer) -> Iterator[BrowsedGroup]:
    source_database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    made = BrowsedGroup(group, source_database, nats_server)
    made.publish()
    made.apply_to(0)
    with made.running():
        yield made


def keep(browsed: BrowsedGroup, key: str, record: Any) -> None:
    """What a process of the group writes."""
    aside(lambda: ask(browsed.nats, lambda client: StateBucket(client, GroupNames(browsed.name)).put(key, record)))


def overrides(browsed: BrowsedGroup) -> AlertOverrides:
    names = GroupNames(browsed.name)
    entry = aside(lambda: ask(browsed.nats, lambda client: StateBucket(client, names).read(OVERRIDES.key, AlertOverrides)))
    return AlertOverrides() if entry is None else entry.value


def test_alerts_are_set_and_silenced(browsed: BrowsedGroup, visit: Visit) -> None:
    now = datetime.now(UTC).isoformat()
    alert = AlertRecord(AlertName.LAG, "w", AlertSeverity.WARNING, "worker w is 400 s behind", "find the cause", now)
    keep(browsed, ALERTS_KEY, AlertsRecord("replicator h:1", 10.0, (alert,)))
    page = visit.page
    visit.open("groups", browsed.name)
    alerts = page.get_by_role("region", name="Alerts")
    expect(alerts.get_by_text("Worker w is 400 s behind.")).to_be_visible()
    expect(alerts.get_by_text("Alerts are sent by replicator h:1.")).to_be_visible()
    alerts.get_by_role("button", name="Change alerts").click()
    dialog = page.get_by_role("dialog", name="Change alerts")
    dialog.get_by_label("Lag of a worker above which an alert is raised").fill("900")
    dialog.get_by_label("Webhook, as a reference to a variable of the processes").fill("https://hooks.example.com/x")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert").get_by_text("webhook is no reference to a variable for alerts")).to_be_visible()
    dialog.get_by_label("Webhook, as a reference to a variable of the processes").fill("${ALERT_URL}")
    dialog.get_by_role("button", name="Save").click()
    expect(alerts.get_by_text("Sent to ${ALERT_URL}.")).to_be_visible()
    alerts.get_by_role("button", name="Silence lag, w").click()
    silencing = page.get_by_role("dialog", name="Silence lag, w?")
    silencing.get_by_role("combobox").select_option("4 hours")
    silencing.get_by_label("Reason").fill("a load")
    silencing.get_by_role("button", name="Silence").click()
    expect(alerts.get_by_role("list", name="Silences")).to_contain_text("by admin: a load")
    wanted = overrides(browsed)
    assert (wanted.lag_s, wanted.webhook, [each.subject for each in wanted.silences]) == (900.0, "${ALERT_URL}", ["w"])
    alerts.get_by_role("button", name="End the silence of lag").click()
    expect(alerts.get_by_role("list", name="Silences")).to_have_count(0)
    assert overrides(browsed).silences == ()


def test_a_test_of_alerts_is_sent_and_its_outcome_told(browsed: BrowsedGroup, visit: Visit) -> None:
    with HttpServer() as receiver, alerting(browsed.nats, browsed.name, receiver.url):
        visit.open("groups", browsed.name)
        alerts = visit.page.get_by_role("region", name="Alerts")
        alerts.get_by_role("button", name="Send a test").click()
        expect(alerts.get_by_role("status")).to_have_text("The webhook accepted the test.")
        assert [each["alert"] for request in receiver.requests for each in request.objects] == ["test"]


def test_a_worker_shows_its_newest_batches_and_what_held_them_up(browsed: BrowsedGroup, visit: Visit) -> None:
    now = datetime.now(UTC).isoformat()
    quick = BatchRecord(now, "changes", 1200, 0.4, 0.01, 0.2, 0.19)
    held = BatchRecord(now, "copied", 7, 0.2, 0.0, 0.1, 0.1, 3, 4.5, Cause.TARGET, "the target does not answer")
    keep(browsed, batches_key("w"), BatchesRecord(now, (quick, held)))
    page = visit.page
    visit.open("groups", browsed.name)
    page.get_by_role("table", name="Processes").get_by_role("link", name="w").click()
    expect(page.get_by_role("heading", name="Worker w")).to_be_visible()
    rows = page.get_by_role("table", name="Newest batches").get_by_role("row")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text(re.compile("snapshot rows.*2 failed attempts.*target.*The target does not answer"))
    expect(rows.nth(2)).to_contain_text("1,200")
    assert (visit.findings(), visit.overflow()) == ([], 0)


def test_what_waits_behind_a_letter_is_counted_and_listed(browsed: BrowsedGroup, visit: Visit) -> None:
    [first, second, third] = aside(lambda: publish_letters(browsed.nats, browsed.name, 1, 2, 3, row=5))
    page = visit.page
    visit.open("groups", browsed.name, "letters")
    page.get_by_role("button", name=f"2 changes blocked by {first}").click()
    dialog = page.get_by_role("dialog", name=f"Blocked by dead letter {first}")
    expect(dialog.get_by_text("2 blocked changes: 2 of public.t.")).to_be_visible()
    for position in (second, third):
        expect(dialog.get_by_role("row", name=position)).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("checkbox", name=f"Select {first} of w").check()
    page.get_by_role("button", name="Discard 1").click()
    expect(page.get_by_role("dialog").get_by_text("It blocks 2 later changes")).to_be_visible()


def test_a_subscription_is_shown_with_what_is_wrong_and_paused_and_resumed(visit: Visit, browsed: BrowsedGroup) -> None:
    origin, identifier = "https://hooks.example.com:443", "5f0c2e11a3b4c5d6"
    rules = "tables:\n  t:\n    - {type: filter, column: v, parameters: {operator: eq, value: paid}}\n"
    record = SubscriptionRecord("ann", "subscriptions", origin, f"{origin}/4711", table="t", rules=rules)
    failing = ReceiverState(3, "failing", "2026-01-31T12:00:00+00:00", 4, f"{origin} answered with status 500")

    async def write() -> None:
        async with connected(browsed.nats.settings(), "test") as client:
            bucket = StateBucket(client, GroupNames(browsed.name))
            await bucket.put(subscription_key(identifier), record)
            await bucket.put(receivers_key("subscriptions"), ReceiversRecord.of({}, {identifier: failing}))

    aside(lambda: asyncio.run(write()))
    visit.open("groups", browsed.name)
    row = visit.page.get_by_role("table", name="Subscriptions").get_by_role("row", name="hooks.example.com")
    expect(row).to_contain_text("answered with status 500")
    expect(row.locator(".badge")).to_have_text("failing")
    row.get_by_text("rules", exact=True).click()
    expect(row.get_by_text("operator: eq, value: paid")).to_be_visible()
    assert (visit.findings(), visit.overflow()) == ([], 0)
    row.get_by_role("button", name="Pause").click()
    expect(row.locator(".badge")).to_have_text("paused")
    row.get_by_role("button", name="Resume").click()
    expect(row.locator(".badge")).to_have_text("failing")
    expect(visit.page.get_by_text("4711")).to_have_count(0)
