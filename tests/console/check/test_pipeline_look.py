"""A check of pipelines tells what their runs would refuse, and who holds their windows open, before anything runs."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import uuid
from collections.abc import Mapping
from pathlib import Path

import psycopg
import pytest

from pgsluice.console.program import run
from pgsluice.replicator.preflight import query_findings
from tests.console.pipelines.administrator import GOOD, Administrator
from tests.servers import Database, NatsServer

TABLE = """
    CREATE SCHEMA shop;
    CREATE TABLE shop.t (id bigint PRIMARY KEY, v text, at timestamptz DEFAULT now(), n int)
"""
QUERY = "SELECT id, v, at, n FROM t"
PIPELINES: Mapping[str, Mapping[str, object]] = {
    "good": {},
    "syntax": {"query": "SELECT FROM WHERE"},
    "key": {"key": ["other"]},
    "target": {"target": "public.users"},
    "late": {"query": QUERY, "mode": "incremental", "incremental-key": "n"},
    "measured": {"query": QUERY, "mode": "incremental", "incremental-key": "at"},
}


def check(administrator: Administrator) -> tuple[int, list[dict[str, str]]]:
    keys = {"group": "g", "nats-url": administrator.nats.url, "pipelines-places": administrator.places}
    config = administrator.write("check.yaml", keys)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = run(["check", "--pipelines", "--json", "--config", config])
    assert code in (0, 1)
    return code, json.loads(printed.getvalue())["findings"]


def test_what_runs_would_refuse_is_found(nats_server: NatsServer, source_database: Database, tmp_path: Path, group: str) -> None:
    source_database.execute(TABLE)
    administrator = Administrator(nats_server, source_database, tmp_path)
    for name, change in PIPELINES.items():
        administrator.put(f"{group}-{name}", {**GOOD, **change})
    code, findings = check(administrator)
    of = {name: [each for each in findings if f"'{group}-{name}'" in each["fact"]] for name in PIPELINES}
    assert code == 1
    assert {name: [each["check"] for each in found] for name, found in of.items()} == {
        "good": [],
        "syntax": ["pipeline-query"],
        "key": ["pipeline-query"],
        "target": ["pipeline-refused"],
        "late": ["pipeline-query"],
        "measured": [],
    }
    assert "the delay of late rows cannot be measured" in of["late"][0]["fact"]
    assert "overlap" in of["late"][0]["remedy"]
    assert ("pipeline-role", "warning") in [(each["check"], each["severity"]) for each in findings]
    assert not administrator.has_stream(f"{group}-good")


def test_a_role_that_sees_no_transactions_of_others_is_told_what_to_grant(
    nats_server: NatsServer, source_database: Database, tmp_path: Path, group: str
) -> None:
    role = f"reader_{uuid.uuid4().hex[:8]}"
    source_database.execute(f"{TABLE}; CREATE ROLE {role} LOGIN")
    source_database.execute(f"GRANT USAGE ON SCHEMA shop TO {role}; GRANT SELECT ON shop.t TO {role}")
    try:
        administrator = Administrator(nats_server, source_database, tmp_path, role)
        administrator.put(group, {**GOOD, **PIPELINES["measured"]})
        _, findings = check(administrator)
        [found] = [each for each in findings if each["check"] == "pipeline-query" and role in each["fact"]]
        assert "GRANT pg_read_all_stats" in found["remedy"]
        assert "overlap: 10m" in found["remedy"]
        assert not [each for each in findings if each["check"] == "pipeline-role"]
    finally:
        source_database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_who_holds_the_window_open_is_told(source_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_findings, "LONG_S", 0.0)
    settings = source_database.settings
    with psycopg.connect(host=settings.host, port=settings.port, dbname=settings.dbname, user=settings.user) as holder:
        holder.execute("SELECT 1")
        found = asyncio.run(query_findings.role_findings(settings, "source 'shop'"))
        [window] = [each for each in found if each.check == "pipeline-window"]
        assert f"source 'shop': the transaction of pid {holder.info.backend_pid} is open since" in window.fact
