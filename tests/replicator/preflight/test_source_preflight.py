"""What is found of a source, beside the faults that ``tests/console/check/planted.py`` plants."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pgsluice.replicator.preflight.source_preflight import examine_source
from pgsluice.replicator.replicator import run
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.config.settings import ReplicatorSettings
from pgsluice.shared.preflight.finding import Finding, Severity
from tests.logged import fields_of
from tests.replicated_group import Group


def examine_all(replication: Group, settings: ReplicatorSettings) -> list[Finding]:
    async def look() -> list[Finding]:
        async with connected(replication.nats, "test") as client:
            return (await examine_source(settings, StateBucket(client, replication.names))).findings

    return asyncio.run(look())


def examine(replication: Group, settings: ReplicatorSettings) -> dict[str, Finding]:
    """Errors and warnings by their checks."""
    return {each.check: each for each in examine_all(replication, settings) if each.severity is not Severity.INFO}


@contextmanager
def roles(replication: Group, *names: str) -> Iterator[None]:
    for name in names:
        replication.source.execute(f'CREATE ROLE "{name}" LOGIN')
    try:
        yield
    finally:
        for name in names:
            replication.source.execute(f'DROP OWNED BY "{name}"; DROP ROLE "{name}"')


def test_at_rds_cures_are_those_of_rds_and_members_of_its_role_replicate(replication: Group) -> None:
    reader = f"reader_{uuid.uuid4().hex[:8]}"
    settings = replace(replication.settings(), source=replace(replication.source.settings, user=reader))
    with roles(replication, reader, "rds_superuser", "rds_replication"):
        found = examine(replication, settings)
        assert found["source-replication-role"].statements == (f'GRANT rds_replication TO "{reader}"',)
        assert "in the parameter group" in found["source-kept-wal"].remedy
        assert found["source-kept-wal"].statements == ()
        replication.source.execute(*found["source-replication-role"].statements)
        assert "source-replication-role" not in examine(replication, settings)


def test_a_running_group_is_fine_and_one_without_its_slot_is_not(replication: Group) -> None:
    replication.replicate()
    before = examine(replication, replication.settings())
    assert set(before) == {"source-kept-wal"}
    replication.source.execute("SELECT pg_drop_replication_slot(%s)", [replication.names.slot])
    found = examine(replication, replication.settings())
    assert "is gone" in found["group-source"].fact


def test_a_table_that_only_whole_rows_tell_apart_is_named_at_the_start_and_by_the_check(
    replication: Group, caplog: pytest.LogCaptureFixture
) -> None:
    replication.source.execute(
        "CREATE TABLE log (v text); ALTER TABLE log REPLICA IDENTITY FULL; ALTER TABLE t REPLICA IDENTITY FULL"
    )
    finding = examine(replication, replication.settings())["source-keyless-full"]
    assert finding.fact.startswith("public.log has REPLICA IDENTITY FULL and no primary key")
    assert finding.remedy.startswith("ALTER TABLE public.log ADD PRIMARY KEY")
    replication.replicate()
    [logged] = [fields_of(record)["fact"] for record in caplog.records if "updates of a table will be slow" in record.message]
    assert logged == finding.fact
    assert "source-keyless-full" not in examine(replication, replace(replication.settings(), publish=("insert",)))


def test_a_slot_that_nats_knows_nothing_of_is_found(replication: Group) -> None:
    replication.source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [replication.names.slot])
    assert "NATS knows nothing of group" in examine(replication, replication.settings())["group-source"].fact


def test_a_slot_of_another_plugin_is_found(replication: Group) -> None:
    replication.source.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [replication.names.slot])
    assert "uses plugin test_decoding" in examine(replication, replication.settings())["source-slot"].fact


def test_a_slot_that_another_group_left_is_found(replication: Group) -> None:
    replication.source.execute("SELECT pg_create_logical_replication_slot('pgsluice_left_over', 'pgoutput')")
    assert (
        "no client reads replication slot pgsluice_left_over" in examine(replication, replication.settings())["source-left"].fact
    )


def test_an_administrators_publication_is_cured_by_its_statements(replication: Group) -> None:
    source, settings = replication.source, replication.settings(publication="chosen", tables=("t", "u"), publish=("insert",))
    source.execute("CREATE TABLE u (id int PRIMARY KEY)")
    [creation] = examine(replication, settings)["source-publication"].statements
    assert creation.startswith('CREATE PUBLICATION "chosen" FOR TABLE')
    source.execute("CREATE PUBLICATION chosen FOR TABLE t WHERE (id > 0)")
    for statement in examine(replication, settings)["source-publication"].statements:
        source.execute(statement)
    assert "source-publication" not in examine(replication, settings)


@pytest.mark.parametrize(
    ("definition", "cure"),
    [
        ("(id int)", "FULL"),
        ("(id int, u int UNIQUE)", "FULL"),
        ("(id int NOT NULL, u int NOT NULL); CREATE UNIQUE INDEX k ON x (id)", "USING INDEX k"),
        ("(id int NOT NULL); CREATE UNIQUE INDEX k ON x (id) WHERE id > 0", "FULL"),
        ("(id int PRIMARY KEY DEFERRABLE)", "FULL"),
        ("(id int PRIMARY KEY); ALTER TABLE x REPLICA IDENTITY NOTHING", "DEFAULT"),
    ],
)
def test_the_cheapest_replica_identity_is_advised(replication: Group, definition: str, cure: str) -> None:
    replication.source.execute(f"CREATE TABLE x {definition}")
    finding = examine(replication, replication.settings())["source-replica-identity"]
    assert finding.statements == (f"ALTER TABLE public.x REPLICA IDENTITY {cure}",)
    replication.source.execute(*finding.statements)
    assert "source-replica-identity" not in examine(replication, replication.settings())


def test_a_table_that_is_not_there_is_found_beside_the_others(replication: Group) -> None:
    replication.source.execute("CREATE TABLE bare (id int)")
    found = examine(replication, replication.settings(tables=("nowhere", "bare")))
    assert "'public.nowhere' does not exist" in found["source-table"].fact
    assert "public.bare" in found["source-replica-identity"].fact


def test_a_source_on_another_machine_that_shows_no_certificate_is_found(replication: Group) -> None:
    settings = replication.settings()
    assert "source-unverified" not in examine(replication, settings)
    elsewhere = replace(settings, source=replace(settings.source, host="127.1"))  # this machine, which the name does not show
    assert examine(replication, elsewhere)["source-unverified"].severity is Severity.WARNING


def test_a_capture_in_a_schema_of_another_role_is_cured_by_what_a_person_chooses(replication: Group) -> None:
    settings = replication.settings(track_ddl=True)
    owner = f"owner_{uuid.uuid4().hex[:8]}"
    with roles(replication, owner):
        replication.source.execute(f"CREATE SCHEMA pgsluice AUTHORIZATION {owner}; GRANT CREATE ON SCHEMA pgsluice TO PUBLIC")
        found = examine_all(replication, settings)
        assert [each.severity for each in found if each.check == "source-capture-owner"] == [Severity.ERROR, Severity.ERROR]
        for choice in [choice for each in found if each.check == "source-capture-owner" for choice in each.choices]:
            replication.source.execute(choice)
        assert "source-capture-owner" not in examine(replication, settings)


def test_a_capture_that_only_an_administrator_can_install_is_printed_and_nothing_is_made_without_it(
    replication: Group,
) -> None:
    """The script is run line by line, as ``check --sql`` prints it."""
    settings = replication.settings(track_ddl=True)
    assert "source-capture" not in examine(replication, settings)
    plain = f"plain_{uuid.uuid4().hex[:8]}"
    database = replication.source.settings.dbname
    with roles(replication, plain):
        replication.source.execute(
            f"ALTER ROLE {plain} REPLICATION; GRANT CREATE ON DATABASE {database} TO {plain}; ALTER TABLE t OWNER TO {plain}"
        )
        try:
            settings = replace(settings, source=replace(settings.source, user=plain))
            finding = examine(replication, settings)["source-capture"]
            assert finding.severity is Severity.WARNING
            run(settings)
            assert replication.source.execute("SELECT to_regnamespace('pgsluice') IS NULL") == [(True,)]
            with replication.source.connect() as connection:
                for statement in finding.statements:
                    connection.execute(statement.replace("\n", " ").encode())
            assert "source-capture" not in examine(replication, settings)
            replication.source.execute("INSERT INTO t VALUES (1, 'a')")
            run(settings)
            replication.source.execute("ALTER TABLE t ADD c int; INSERT INTO t VALUES (2, 'a', 2)")
            run(settings)
            assert replication.audit().definitions >= 2
        finally:
            replication.source.execute(f"DROP OWNED BY {plain} CASCADE")


def test_who_may_emit_logical_messages_is_a_choice_after_which_the_group_goes_on(replication: Group) -> None:
    settings = replication.settings(track_ddl=True)
    assert "source-logical-messages" not in examine(replication, replication.settings())
    replication.replicate(track_ddl=True)
    finding = examine(replication, settings)["source-logical-messages"]
    assert finding.statements == ()
    try:
        for choice in finding.choices:
            replication.source.execute(choice)
        assert "source-logical-messages" not in examine(replication, settings)
        replication.source.execute("ALTER TABLE t ADD c int; INSERT INTO t VALUES (1, 'a', 2)")
        replication.replicate(track_ddl=True)
        assert replication.audit().rows == {"public.t insert": 1}
    finally:
        for choice in finding.choices:
            replication.source.execute(choice.replace("REVOKE", "GRANT").replace("FROM", "TO"))
