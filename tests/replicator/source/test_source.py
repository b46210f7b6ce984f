"""The start checks of the source, and what the descriptor learns from its catalog."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from pgsluice.replicator.replicator import run
from pgsluice.replicator.source.source import Source, read_partitions
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import PgsluiceError, TerminalError, TransientError, UsageError
from pgsluice.shared.wire.message import Descriptor, split_body
from pgsluice.shared.wire.table import Table
from tests.logged import fields_of
from tests.replicated_group import Group, replicator_settings
from tests.replicator.source.detaching import begin_detaching
from tests.servers import Database, NatsServer, PostgresServer


@pytest.fixture(scope="module")
def strict_server() -> Iterator[PostgresServer]:
    """With passwords, and room for one slot and one walsender."""
    with PostgresServer({"max_replication_slots": "1", "max_wal_senders": "1"}, password="secret") as server:
        yield server


def refusal(settings: PostgresSettings) -> PgsluiceError:
    async def connect() -> None:
        await (await Source.connect(settings)).check()

    with pytest.raises(PgsluiceError) as raised:
        asyncio.run(connect())
    assert "secret" not in str(raised.value)
    return raised.value


@pytest.mark.parametrize(
    ("field", "value", "kind", "text"),
    [
        ("password", "secret-but-wrong", TransientError, "password authentication failed.*check user and password"),
        ("user", "nobody", TransientError, "nobody.*check user and password"),
        ("dbname", "nowhere", UsageError, "nowhere.*check dbname"),
        ("port", 1, TransientError, "does not answer.*check host and port"),
        ("host", "host.invalid", TransientError, "does not answer"),
    ],
)
def test_a_connection_that_fails_says_why_and_what_to_check(
    strict_server: PostgresServer, field: str, value: Any, kind: type[PgsluiceError], text: str
) -> None:
    error = refusal(replace(strict_server.settings_for("postgres"), **{field: value}))
    assert isinstance(error, kind)
    assert re.search(text, str(error))


def test_wal_level_replica_is_refused() -> None:
    with PostgresServer({"wal_level": "replica"}) as server:
        error = refusal(server.settings_for("postgres"))
    assert isinstance(error, TerminalError)
    assert "wal_level" in error.fact
    assert "ALTER SYSTEM SET wal_level" in error.remedy


def test_a_role_that_may_not_replicate_is_refused(postgres: PostgresServer, source_database: Database) -> None:
    source_database.execute("CREATE ROLE plain LOGIN")
    try:
        error = refusal(replace(source_database.settings, user="plain"))
    finally:
        source_database.execute("DROP ROLE plain")
    assert isinstance(error, TerminalError)
    assert error.remedy == 'ALTER ROLE "plain" REPLICATION'


def test_full_replication_slots_are_named_with_the_setting(
    strict_server: PostgresServer, group: str, nats_server: NatsServer
) -> None:
    database = strict_server.create_database("slots_full")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("SELECT pg_create_physical_replication_slot('taken')")
    try:
        with pytest.raises(TerminalError, match=r"1 replication slots.*unused: taken.*SET max_replication_slots"):
            run(replicator_settings(group, database, nats_server.settings()))
    finally:
        database.execute("SELECT pg_drop_replication_slot('taken')")


def test_full_walsenders_are_waited_for_and_named_with_the_setting(
    strict_server: PostgresServer, group: str, nats_server: NatsServer
) -> None:
    database = strict_server.create_database("walsenders_full")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")

    with (
        psycopg.connect(strict_server.dsn(database.dbname), replication="database", autocommit=True),
        pytest.raises(TransientError, match="max_wal_senders"),
    ):
        run(replicator_settings(group, database, nats_server.settings(), connect_timeout_s=0.5))


def test_failover_slots_of_an_old_server_are_a_usage_error(replication: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsluice.replicator.source.slot.FAILOVER_SINCE", 99)
    with pytest.raises(UsageError, match="failover slots need PostgreSQL 99"):
        replication.replicate(failover=True)


def test_a_failover_slot_is_made_when_asked_for(replication: Group) -> None:
    replication.replicate(failover=True)
    query = "SELECT failover FROM pg_replication_slots WHERE slot_name = %s"
    assert replication.source.execute(query, [replication.names.slot]) == [(True,)]


def test_session_settings_of_role_and_database_do_not_shape_the_text(replication: Group) -> None:
    source = replication.source
    for setting in (
        "datestyle = 'German, DMY'",
        "timezone = 'Asia/Tokyo'",
        "bytea_output = 'escape'",
        "intervalstyle = 'iso_8601'",
        "extra_float_digits = -10",
        "statement_timeout = 100",
        "client_encoding = 'LATIN1'",
        "quote_all_identifiers = on",
        "standard_conforming_strings = off",
        "default_transaction_isolation = 'serializable'",
    ):
        source.execute(f'ALTER DATABASE "{source.dbname}" SET {setting}')
    with source.connect() as connection:
        connection.execute("SET statement_timeout = 0; SET client_encoding = 'UTF8'; SET standard_conforming_strings = on")
        connection.execute("CREATE TABLE shapes (id int PRIMARY KEY, d timestamptz, b bytea, i interval, f float8, s text)")
        row = "(1, '2026-01-31 12:00Z', '\\xff00', '1 day', 0.1::float8 + 0.2, 'grün €')"
        replication.replicate()
        connection.execute(f"INSERT INTO shapes VALUES {row}")
    replication.replicate()
    data = replication.last_message().data
    for text in ("2026-01-31 12:00:00+00", "\\xff00", "1 day", "0.30000000000000004", "grün €"):
        assert text.encode() in data


def test_a_time_limit_of_the_database_does_not_end_the_decoding_of_a_large_transaction(replication: Group) -> None:
    replication.replicate()
    replication.source.execute("INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, 100000) n")
    replication.source.execute(f"""ALTER DATABASE "{replication.source.dbname}" SET transaction_timeout = '100ms'""")
    replication.replicate()
    assert replication.audit().changes == 100_000


def test_money_is_sent_in_one_currency_whatever_the_database_sets(
    german: PostgresServer, nats_server: NatsServer, group: str
) -> None:
    source = german.create_database("shop")
    source.execute("CREATE TABLE prices (id int PRIMARY KEY, price money); ALTER DATABASE shop SET lc_monetary = 'de_DE.utf8'")
    replication = Group(group, source, nats_server.settings())
    replication.replicate()
    source.execute("INSERT INTO prices VALUES (1, 1234.5::numeric::money)")
    assert source.execute("SELECT price::text FROM prices") == [("1.234,50 €",)]
    replication.replicate()
    assert b"$1,234.50" in replication.last_message().data


def described(replication: Group) -> Table:
    [table] = Descriptor.decode(split_body(replication.last_message().data)[0]).tables
    return table


def test_the_descriptor_says_what_a_target_needs_to_make_the_table(replication: Group) -> None:
    source = replication.source
    source.execute("CREATE SCHEMA shop; CREATE TYPE shop.mood AS ENUM ('sad', 'happy')")
    source.execute(
        "CREATE TABLE shop.orders (note varchar(40), area int, number int GENERATED ALWAYS AS IDENTITY, "
        "price numeric(10,2) NOT NULL, mood shop.mood, double int GENERATED ALWAYS AS (area * 2) STORED, "
        "PRIMARY KEY (number, area))"
    )
    replication.replicate(schema="shop")
    source.execute("INSERT INTO shop.orders (note, area, price, mood) VALUES ('n', 1, 2, 'sad')")
    replication.replicate(schema="shop")
    table = described(replication)
    assert table.qualified_name == "shop.orders"
    assert [(c.name, c.type_name, c.not_null, c.primary_key_position, c.identity) for c in table.columns] == [
        ("note", "character varying(40)", False, None, ""),
        ("area", "integer", True, 2, ""),
        ("number", "integer", True, 1, "a"),
        ("price", "numeric(10,2)", True, None, ""),
        ("mood", "shop.mood", False, None, ""),
    ]


def test_a_table_that_is_gone_is_described_by_its_frame_alone(replication: Group) -> None:
    replication.source.execute("CREATE TABLE gone (id int PRIMARY KEY, v varchar(7))")
    replication.replicate()
    replication.source.execute("INSERT INTO gone VALUES (1, 'a')")
    replication.source.execute("DROP TABLE gone")
    replication.replicate(tables=("t",))
    table = described(replication)
    assert [(c.name, c.type_name, c.not_null, c.primary_key_position) for c in table.columns] == [
        ("id", "integer", False, None),
        ("v", "character varying(7)", False, None),
    ]


def test_a_type_that_is_another_since_is_that_of_the_frame(replication: Group) -> None:
    replication.source.execute("CREATE TABLE k (id int PRIMARY KEY, v varchar(7) NOT NULL)")
    replication.replicate()
    replication.source.execute("INSERT INTO k VALUES (1, 'a')")
    replication.source.execute("ALTER TABLE k ALTER v TYPE text")
    replication.replicate()
    assert [(c.name, c.type_name, c.not_null, c.primary_key_position) for c in described(replication).columns] == [
        ("id", "integer", True, 1),
        ("v", "character varying(7)", False, None),
    ]


def test_a_primary_key_that_is_another_since_the_change_is_left_out(replication: Group) -> None:
    replication.source.execute("CREATE TABLE k (id int PRIMARY KEY, u int NOT NULL)")
    replication.replicate()
    replication.source.execute("INSERT INTO k VALUES (1, 10)")
    replication.source.execute("ALTER TABLE k DROP CONSTRAINT k_pkey, ADD PRIMARY KEY (u, id)")
    replication.replicate()
    assert [(c.name, c.identity_key, c.primary_key_position) for c in described(replication).columns] == [
        ("id", True, None),
        ("u", False, None),
    ]
    replication.source.execute("INSERT INTO k VALUES (2, 20)")
    replication.replicate()
    assert [(c.name, c.identity_key, c.primary_key_position) for c in described(replication).columns] == [
        ("id", True, 2),
        ("u", True, 1),
    ]


def test_a_table_that_is_renamed_while_it_is_published_is_named(replication: Group, caplog: pytest.LogCaptureFixture) -> None:
    replication.replicate()
    for statement in ("INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t RENAME TO t2", "INSERT INTO t2 VALUES (2, 'b')"):
        replication.source.execute(statement)
    replication.replicate()
    [renamed] = [record for record in caplog.records if record.message.startswith("a published table was renamed")]
    assert fields_of(renamed) == {"was": "public.t", "now": "public.t2"}
    assert described(replication).qualified_name == "public.t2"


def test_a_column_that_was_added_between_two_rows_shows_in_the_second_message_only(replication: Group) -> None:
    replication.replicate()
    with replication.source.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO t VALUES (1, 'a')")
        connection.execute("ALTER TABLE t ADD COLUMN w int DEFAULT 7")
        connection.execute("INSERT INTO t VALUES (2, 'b', 8)")
        connection.commit()
    replication.replicate()
    assert replication.audit().changes == 2
    assert replication.stream_state().last_sequence == 2
    assert [column.name for column in described(replication).columns] == ["id", "v", "w"]


async def test_partitions_of_a_table_are_those_that_the_server_finds_below_it(source_database: Database) -> None:
    source_database.execute(
        "CREATE TABLE root (id int) PARTITION BY RANGE (id); CREATE TABLE plain (id int); CREATE TABLE child () INHERITS (plain);"
        "CREATE TABLE part PARTITION OF root FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);"
        "CREATE TABLE leaf PARTITION OF part FOR VALUES FROM (0) TO (5);"
        "CREATE TABLE other PARTITION OF root FOR VALUES FROM (10) TO (20);"
        "CREATE TABLE leaves PARTITION OF root FOR VALUES FROM (20) TO (30)"
    )
    begin_detaching(source_database, "root", "leaves")
    roots = [oid for (oid,) in source_database.execute("SELECT oid::bigint FROM pg_class WHERE relname IN ('root', 'part')")]
    source = await Source.connect(source_database.settings)
    try:
        found = await read_partitions(source, roots)
    finally:
        await source.close()
    for root in roots:
        below = "SELECT relid::bigint FROM pg_partition_tree(%s) WHERE relid <> %s ORDER BY relid"
        assert sorted(each.oid for each in found[root]) == [oid for (oid,) in source_database.execute(below, [root, root])]
    assert sorted(len(each) for each in found.values()) == [1, 3]
