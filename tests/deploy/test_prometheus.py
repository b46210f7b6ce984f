"""A real Prometheus scrapes a real group: rules and dashboard work on what it stores, and alerts fire and resolve."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg
import pytest
import yaml

from pgsluice.shared.metrics.declared_metrics import METRICS
from tests.deploy.monitoring import LABELS, RULES, dashboard_queries, selected
from tests.deploy.prometheus_server import PrometheusServer, hurried
from tests.deploy.tools import tool
from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import Outcome, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess, PostgresServer
from tests.servers.child import HOST, free_port
from tests.servers.program import REPOSITORY
from tests.waiting import wait_until

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

START_DEADLINE_S, FIRE_DEADLINE_S, RESOLVE_DEADLINE_S = 120.0, 120.0, 180.0
SCRAPED_S = 60

SOMETIMES_ABSENT = {
    "pgsluice_slot_safe_wal_bytes",  # max_slot_wal_keep_size is not set
    "pgsluice_copy_snapshot_seconds",  # no copy is under way
    "pgsluice_source_oldest_transaction_seconds",  # no transaction is open
    "pgsluice_waiting",  # nothing fails
    "pgsluice_waiting_seconds",
    "pgsluice_filtered_changes_total",  # there are no rules
    "pgsluice_missing_rows",  # source and target are equal
    *(
        metric.name
        for metric in METRICS
        if metric.name.startswith(("pgsluice_search_", "pgsluice_subscription", "pgsluice_kafka_", "pgsluice_run_"))
    ),  # other sinks, and SQL pipelines
}
"""Without which a query may find nothing."""


@dataclass
class Watched:
    """A group that replicates a table, and who watches it."""

    source: Database
    target: Database
    worker: PgsluiceProcess
    keys: dict[str, object]
    addresses: list[str]
    prometheus: PrometheusServer
    since: float
    written: int = 0

    def write(self, note: str = "fine") -> None:
        self.written += 1
        self.source.execute(f"INSERT INTO t VALUES ({self.written}, '{note}')")

    def is_applied(self) -> bool:
        return bool(self.target.execute(f"SELECT FROM t WHERE id = {self.written}"))

    def dead(self, *arguments: str) -> None:
        keys = {key: self.keys[key] for key in ("group", "nats-url")}
        succeed(Outcome(PgsluiceProcess("dead", *arguments, config=keys), 30.0))


@pytest.fixture(scope="module")
def watched(postgres: PostgresServer, nats_server: NatsServer) -> Iterator[Watched]:
    tool("prometheus")
    name = f"watched_{uuid.uuid4().hex[:8]}"
    source, target = postgres.create_database(f"{name}_source"), postgres.create_database(f"{name}_target")
    source.execute("CREATE TABLE t (id int PRIMARY KEY, note text); INSERT INTO t VALUES (0, 'copied')")
    target.execute("CREATE TABLE t (id int PRIMARY KEY, note varchar(12))")
    keys = configuration(name, source, target, nats_server, **{"copy-and-stream": True, "target-lock-timeout": "1s"})
    addresses = [f"{HOST}:{free_port()}" for _ in range(2)]
    with ExitStack() as running:
        roles = (("replicator",), ("worker", "postgres"))
        _, worker = [
            running.enter_context(PgsluiceProcess(*role, config=keys, env={"PGSLUICE_METRICS_LISTEN": address}))
            for role, address in zip(roles, addresses, strict=True)
        ]
        prometheus = running.enter_context(PrometheusServer(addresses, hurried(RULES.read_text())))
        group = Watched(source, target, worker, keys, addresses, prometheus, time.time())
        wait_until(lambda: target.execute("SELECT FROM t"), deadline_s=START_DEADLINE_S, what="the copy")
        yield group
    for database in (source, target):
        database.drop()


def scrape_for_a_minute(group: Watched) -> None:
    """Under load all the time."""
    while time.time() < group.since + SCRAPED_S:
        group.write()
        wait_until(group.is_applied, deadline_s=FIRE_DEADLINE_S, what="the row")


def test_rules_load_and_the_dashboard_finds_what_it_asks_for(watched: Watched) -> None:
    scrape_for_a_minute(watched)
    prometheus = watched.prometheus
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert rules
    assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
    stored = {name for name in prometheus.ask("label/__name__/values") if name.startswith("pgsluice_")}
    assert stored <= LABELS.keys()
    assert {metric.name for metric in METRICS if not {metric.name, f"{metric.name}_count"} & stored} <= SOMETIMES_ABSENT
    for query in dashboard_queries():
        found = prometheus.ask("query_range", query=query, start=watched.since, end=time.time(), step=1)["result"]
        absent = {metric.name.removesuffix("_bucket") for metric in selected(query)} & SOMETIMES_ABSENT
        assert found or absent, query


def test_labels_of_what_is_stored_are_those_that_are_documented(watched: Watched) -> None:
    of_ours: dict[str, str | float] = {"match[]": '{__name__=~"pgsluice_.+"}', "start": watched.since}
    for series in watched.prometheus.ask("series", **of_ours):
        assert series.keys() - {"__name__"} <= LABELS[series["__name__"]], series


def test_the_health_check_of_the_compose_file_sees_who_is_ready(watched: Watched) -> None:
    command = yaml.safe_load((REPOSITORY / "docker" / "compose.yaml").read_text())["services"]["worker"]["healthcheck"]["test"]
    assert command[:3] == ["CMD", "python", "-c"]

    def is_ready(address: str) -> bool:
        asked = [sys.executable, "-c", command[3].replace("127.0.0.1:9464", address)]
        return subprocess.run(asked, capture_output=True).returncode == 0

    assert [is_ready(address) for address in watched.addresses] == [True, True]
    assert not is_ready(f"{HOST}:{free_port()}")


def check_texts(alert: dict[str, object], group: Watched) -> None:
    """They were made of what the alert has."""
    annotations = alert["annotations"]
    assert isinstance(annotations, dict)
    assert str(group.keys["group"]) in annotations["summary"]
    assert "<" not in "".join(annotations.values()), "a template that failed, or found no value"


def test_a_target_that_is_locked_is_told_and_its_end_too(watched: Watched) -> None:
    with psycopg.connect(watched.target.server.dsn(watched.target.dbname)) as locking:
        locking.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        watched.write()
        for name in ("PgsluiceWaiting", "PgsluiceApplyLag", "PgsluiceApplyStuck"):
            check_texts(watched.prometheus.wait_until_firing(name, FIRE_DEADLINE_S), watched)
        assert watched.prometheus.firing()["PgsluiceWaiting"][0]["labels"]["cause"] == "lock"
    wait_until(watched.is_applied, deadline_s=RESOLVE_DEADLINE_S, what="the row")
    for name in ("PgsluiceWaiting", "PgsluiceApplyLag", "PgsluiceApplyStuck"):
        watched.prometheus.wait_until_resolved(name, RESOLVE_DEADLINE_S)


def test_a_dead_letter_is_told_until_it_is_discarded(watched: Watched) -> None:
    watched.write("far too long for the target")
    alert = watched.prometheus.wait_until_firing("PgsluiceDeadLetters", FIRE_DEADLINE_S)
    check_texts(alert, watched)
    assert alert["labels"]["worker"] == "postgres"
    watched.dead("discard", "--all", "--yes")
    watched.prometheus.wait_until_resolved("PgsluiceDeadLetters", RESOLVE_DEADLINE_S)


def test_a_worker_that_is_killed_is_told_until_it_is_there_again(watched: Watched) -> None:
    watched.worker.kill()
    check_texts(watched.prometheus.wait_until_firing("PgsluiceProcessGone", FIRE_DEADLINE_S), watched)
    watched.worker.start()
    watched.prometheus.wait_until_resolved("PgsluiceProcessGone", RESOLVE_DEADLINE_S)
