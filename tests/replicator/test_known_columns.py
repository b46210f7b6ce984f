"""What a message says of its tables was true when its rows were written, whatever the catalog has become since."""

from __future__ import annotations

import asyncio
import random

import pytest

from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.pgoutput import decode_message
from pgsluice.shared.pgoutput.messages import Insert
from pgsluice.shared.wire.message import Descriptor, MessageHeaders, split_body
from pgsluice.shared.wire.table import Column, Table
from tests.group_reader import text
from tests.replicated_group import Group
from tests.replicator.test_replicator import process
from tests.servers import Database, NatsServer
from tests.waiting import wait_until

SWAP = "ALTER TABLE t RENAME a TO swapped; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME swapped TO b"
Inserted = dict[str, tuple[str, Column]]
"""Of each column its value, and what the message says of it."""


def inserted_rows(replication: Group) -> list[tuple[Table, Inserted]]:
    async def read() -> list[tuple[Table, Inserted]]:
        found: list[tuple[Table, Inserted]] = []
        async with connected(replication.nats, "test") as client:
            for message in await ChangeStream(client, replication.names).fetch(1, 10_000, 1 << 28):
                descriptor, frames = split_body(MessageHeaders.decode(message.headers).body([message.data]))
                tables = {table.oid: table for table in Descriptor.decode(descriptor).tables}
                for change in map(decode_message, frames):
                    if isinstance(change, Insert):
                        table = tables[change.relation_oid]
                        pairs = zip(table.columns, change.new, strict=True)
                        row = {column.name: (text(value).decode(), column) for column, value in pairs if value is not None}
                        found.append((table, row))
        return found

    return asyncio.run(read())


def numbers(row: Inserted) -> dict[str, int]:
    return {name: column.number for name, (_, column) in row.items()}


def insert_numbers(source: Database, also: str = "") -> None:
    """A row of ``t`` whose columns hold what their numbers are, before ``also`` happens in the same transaction."""
    columns = source.execute(
        "SELECT attname::text, attnum::int FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    names, values = ", ".join(name for name, _ in columns), ", ".join(f"'{number}'" for _, number in columns)
    source.execute(f"BEGIN; INSERT INTO t ({names}) VALUES ({values}); {also}; COMMIT")


@pytest.fixture
def keyless(replication: Group) -> Group:
    """Its table has columns ``a`` and ``b``, and no key, so that a row may be inserted again."""
    replication.source.execute("DROP TABLE t; CREATE TABLE t (a text, c text, b text); ALTER TABLE t REPLICA IDENTITY FULL")
    return replication


def test_a_row_written_before_columns_swapped_their_names_has_no_number_of_another_column(keyless: Group) -> None:
    keyless.replicate()
    insert_numbers(keyless.source)
    keyless.source.execute(SWAP)
    keyless.replicate()
    [(_, row)] = inserted_rows(keyless)
    assert numbers(row) == {"a": 0, "c": 2, "b": 0}


def test_a_table_that_was_never_altered_has_its_numbers_from_its_first_row_on(keyless: Group) -> None:
    """Those of a table that the row's own transaction made, too: nobody can have altered it between."""
    keyless.source.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    keyless.replicate(publication="everything")
    insert_numbers(keyless.source)
    keyless.source.execute(
        "BEGIN; CREATE TABLE later (id int PRIMARY KEY, b text NOT NULL); ALTER TABLE later REPLICA IDENTITY FULL;"
        " INSERT INTO later VALUES (1, '2'); COMMIT"
    )
    keyless.source.execute("INSERT INTO later VALUES (2, '2')")
    keyless.replicate(publication="everything", without_copy=("later",))
    before, *after = inserted_rows(keyless)
    assert numbers(before[1]) == {"a": 1, "c": 2, "b": 3}
    assert [numbers(row) for _, row in after] == [{"id": 1, "b": 2}] * 2
    assert [[column.not_null for column in table.columns] for table, _ in after] == [[True, True]] * 2
    assert [table.key for table, _ in after] == [(0,)] * 2


def test_a_primary_key_that_moved_to_another_column_is_not_that_of_earlier_rows(replication: Group) -> None:
    """With the identity FULL no message says which columns are the key, and the rows of two keys must not meet."""
    replication.source.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    replication.replicate()
    replication.source.execute("INSERT INTO t VALUES (1, 'x')")
    replication.source.execute("ALTER TABLE t RENAME id TO was; ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (v)")
    replication.source.execute("INSERT INTO t VALUES (1, 'y')")
    replication.source.execute("ALTER TABLE t RENAME v TO id")
    replication.replicate()
    (before, _), (after, _) = inserted_rows(replication)
    assert (before.key, after.key) == ((), ())


def test_numbers_come_back_while_the_replicator_runs_and_are_always_right(keyless: Group, nats_server: NatsServer) -> None:
    source = keyless.source
    with process(keyless, nats_server) as replicator:
        replicator.wait_for_log("replicating")
        insert_numbers(source)
        source.execute(SWAP)
        insert_numbers(source, SWAP)
        wait_until(lambda: len(inserted_rows(keyless)) == 2, what="the rows around the alterations")

        def is_known_again() -> bool:
            insert_numbers(source)
            return 0 not in numbers(inserted_rows(keyless)[-1][1]).values()

        wait_until(is_known_again, what="a row with all numbers", interval_s=0.2)
        replicator.terminate()
    for _, row in inserted_rows(keyless):
        assert all(column.number in (0, int(value)) for value, column in row.values())


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_altered_a_number_is_that_of_its_column_or_none(keyless: Group, nats_server: NatsServer, seed: int) -> None:
    choose, source = random.Random(seed), keyless.source

    def alteration() -> str:
        return choose.choice(
            [
                SWAP,
                "ALTER TABLE t DROP c; ALTER TABLE t ADD c text",
                "ALTER TABLE t RENAME c TO d; ALTER TABLE t RENAME a TO c; ALTER TABLE t RENAME d TO a",
                "SAVEPOINT s; ALTER TABLE t DROP a, ADD a text; RELEASE s",
                "SAVEPOINT s; ALTER TABLE t DROP b, ADD b text; ROLLBACK TO s",
            ]
        )

    keyless.replicate()
    for _ in range(4):
        for _ in range(choose.randrange(4)):
            insert_numbers(source, alteration() if choose.random() < 0.5 else "")
            source.execute(f"BEGIN; {alteration()}; COMMIT")
        with process(keyless, nats_server) as replicator:
            replicator.wait_for_log("replicating")
            for _ in range(8):
                insert_numbers(source, alteration() if choose.random() < 0.3 else "")
                if choose.random() < 0.3:
                    source.execute(f"BEGIN; {alteration()}; COMMIT")
            replicator.terminate()
    keyless.replicate()
    told = [(column.number, int(value)) for _, row in inserted_rows(keyless) for value, column in row.values()]
    assert len(told) > 90
    assert all(number in (0, value) for number, value in told)
    assert any(number for number, _ in told)  # how many depends on how far the replicator is behind
