"""What may run is decided right before it runs: by the administrator's places, whoever wrote the document."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pgsluice.shared.errors import UsageError
from tests.console.pipelines.administrator import GOOD, Administrator
from tests.servers import Database, NatsServer, PostgresServer

HOSTILE: Mapping[str, tuple[Mapping[str, object], str]] = {
    "another source": ({"source": "payroll"}, "names source 'payroll'"),
    "a source's file": ({"source": "../secret.yaml"}, r"names source '\.\./secret\.yaml'"),
    "another sink": ({"sink": "lake"}, "names sink 'lake'"),
    "another target": ({"target": "public.users"}, "may not fill public.users"),
    "another module": ({"steps": [{"python": "antigravity:fly"}]}, "names module 'antigravity', which is not allowed"),
    "code": ({"steps": [{"python": "print(1)"}]}, "is not a function"),
    "a host": ({"host": "db.evil.example"}, "unknown key 'host'"),
    "a configuration": ({"config": "/tmp/mine.yaml"}, "unknown key 'config'"),
    "no source": ({"source": None}, "names no source"),
    "no sink": ({"sink": None}, "names no sink"),
    "a nested source": ({"source": {"host": "db.evil.example"}}, "source is not a single value"),
    "a key of two lines": ({"sink: lake\nhost": "x"}, "unknown key"),
    "a query of several": ({"query": ["SELECT 1", "SELECT 2"]}, "query is not a single value"),
}


@pytest.fixture(scope="module")
def source(postgres: PostgresServer) -> Iterator[Database]:
    database = postgres.create_database("source_of_the_catalog")
    yield database
    database.drop()


@pytest.fixture(scope="module")
def administrator(nats_server: NatsServer, source: Database, tmp_path_factory: pytest.TempPathFactory) -> Administrator:
    return Administrator(nats_server, source, tmp_path_factory.mktemp("catalog"))


def test_a_document_runs_with_what_its_places_say(administrator: Administrator, source: Database, group: str) -> None:
    administrator.put(group, GOOD)
    found = administrator.catalog(lambda catalog: catalog.find(group))
    assert found.settings.source.dbname == source.settings.dbname
    assert found.settings.nats == administrator.nats.settings()
    assert (found.pipeline.name, found.pipeline.group, found.pipeline.search_path) == (group, group, "shop")


@pytest.mark.parametrize("fault", HOSTILE)
def test_a_hostile_document_is_not_run(administrator: Administrator, group: str, fault: str) -> None:
    change, said = HOSTILE[fault]
    administrator.put(group, {**GOOD, **change})
    with pytest.raises(UsageError, match=said):
        administrator.catalog(lambda catalog: catalog.find(group))


def test_what_is_wrong_with_one_document_hinders_no_other(administrator: Administrator, group: str) -> None:
    administrator.put(f"{group}-bad", {"host": "db.evil.example"})
    administrator.put(f"{group}-good", GOOD)
    listed = {each.name: each for each in administrator.catalog(lambda catalog: catalog.all())}
    assert listed[f"{group}-bad"].problem is not None
    assert listed[f"{group}-good"].problem is None


def test_a_document_takes_neither_name_nor_group_of_another_pipeline(administrator: Administrator, group: str) -> None:
    mine = {key: value for key, value in GOOD.items() if key != "sink"}
    file = administrator.write("pipelines.yaml", {"pipelines": {f"{group}-a": {**mine, "group": f"{group}-g"}}})
    administrator.put(f"{group}-a", {**GOOD, "query": "SELECT secret AS id FROM t"})
    administrator.put(f"{group}-b", {**GOOD, "group": f"{group}-g"})
    listed = [each for each in administrator.catalog(lambda catalog: catalog.all(), file) if each.name.startswith(group)]
    assert [(each.name, each.document is None, str(each.problem or "")[:40]) for each in listed] == [
        (f"{group}-a", True, ""),
        (f"{group}-a", False, f"the file has a pipeline '{group}-a' too"[:40]),
        (f"{group}-b", False, f"pipeline '{group}-b' has the group of pipeline"[:40]),
    ]
    found = administrator.catalog(lambda catalog: catalog.find(f"{group}-a"), file)
    assert "secret" not in found.pipeline.query


def test_a_variable_of_the_servers_does_not_redirect_a_place(
    administrator: Administrator, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSLUICE_HOST", "elsewhere.example")
    administrator.put(group, GOOD)
    assert administrator.catalog(lambda catalog: catalog.find(group)).settings.source.host != "elsewhere.example"


def test_a_document_runs_as_a_command(administrator: Administrator, source: Database, group: str) -> None:
    source.execute("CREATE SCHEMA shop; CREATE TABLE shop.t AS SELECT n AS id, 'v' || n AS v FROM generate_series(1, 9) n")
    administrator.put(group, GOOD)
    code, said = administrator.run(group)
    assert (code, f"run 1 of {group}: 9 rows are in the stream of group {group}" in said) == (0, True), said
    assert administrator.has_stream(group)


def test_the_runner_refuses_a_hostile_document_and_reads_nothing(administrator: Administrator, group: str) -> None:
    """It asks the catalog, which refuses the others as well."""
    change, said = HOSTILE["another target"]
    administrator.put(group, {**GOOD, **change})
    code, told = administrator.run(group)
    assert (code, said in told) == (2, True), told
    administrator.put(group, GOOD)
    code, told = administrator.run(group, **{"pipelines-places": ""})
    assert (code, "the administrator has named none" in told) == (2, True), told
    assert not administrator.has_stream(group)


def test_a_document_is_run_by_no_role_that_may_do_more_than_read(
    nats_server: NatsServer, source: Database, group: str, tmp_path: Path
) -> None:
    """In a transaction that only reads it moves replication slots all the same."""
    user = f"replicating_{uuid.uuid4().hex[:8]}"
    source.execute(f"CREATE ROLE {user} LOGIN REPLICATION; GRANT pg_read_all_stats, pg_read_all_data TO {user}")
    source.execute("CREATE SCHEMA IF NOT EXISTS shop; CREATE TABLE shop.spied (id int PRIMARY KEY)")
    source.execute(f"SELECT pg_create_logical_replication_slot('{user}', 'pgoutput')")
    try:
        administrator = Administrator(nats_server, source, tmp_path, user)
        query = f"SELECT s.id FROM shop.spied s, pg_drop_replication_slot('{user}') d"
        administrator.put(group, {**GOOD, "query": query})
        code, said = administrator.run(group)
        assert (code, f"role '{user}' has REPLICATION" in said, "trusted: true" in said) == (2, True, True), said
        [(left,)] = source.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", [user])
        assert left == 1
    finally:
        source.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [user])
        source.execute(f"DROP TABLE shop.spied; DROP OWNED BY {user}; DROP ROLE {user}")
