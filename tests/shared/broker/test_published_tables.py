"""What the replicator says of its tables in the state bucket, for workers to hold their rules against."""

from __future__ import annotations

from typing import Any

import pytest

from pgsluice.shared.broker.published_tables import TABLES_KEY, load_tables
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.message import Descriptor, split_body
from pgsluice.shared.wire.table import Table
from tests.replicated_group import Group
from tests.replicator.test_replicator import process
from tests.servers import NatsServer
from tests.waiting import wait_until


def recorded(group: Group) -> list[Table]:
    tables: Any = group.with_broker(lambda _, bucket: load_tables(bucket))
    assert isinstance(tables, list)
    return tables


def test_the_recorded_tables_are_those_that_messages_describe(replication: Group) -> None:
    replication.source.execute(
        "CREATE TABLE whole (a int, b numeric(10,2)); ALTER TABLE whole REPLICA IDENTITY FULL;"
        "CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL, c text);"
        "CREATE UNIQUE INDEX by_code ON by_index (code); ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_code;"
        "CREATE TABLE parts (id int, day date, PRIMARY KEY (day, id)) PARTITION BY RANGE (day);"
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')"
    )
    replication.replicate()
    replication.source.execute(
        "BEGIN; INSERT INTO t VALUES (1, 'a'); INSERT INTO whole VALUES (1, 2); INSERT INTO by_index VALUES (1, 'c', 'd');"
        "INSERT INTO parts VALUES (1, '2026-05-05'); COMMIT"
    )
    replication.replicate()
    described = Descriptor.decode(split_body(replication.last_message().data)[0]).tables
    assert sorted(recorded(replication), key=lambda table: table.name) == sorted(described, key=lambda table: table.name)
    assert replication.record(TABLES_KEY)["names"] == ["public.by_index", "public.parts", "public.t", "public.whole"]


def test_only_the_tables_of_the_group_are_recorded_and_a_later_start_records_anew(replication: Group) -> None:
    replication.source.execute("CREATE TABLE other (id int PRIMARY KEY)")
    replication.replicate(tables=("t",))
    assert [table.qualified_name for table in recorded(replication)] == ["public.t"]
    replication.replicate(without_copy=("other",))
    assert sorted(table.name for table in recorded(replication)) == ["other", "t"]


def test_a_table_that_is_altered_while_the_replicator_runs_is_recorded_with_the_first_row_of_it(
    replication: Group, nats_server: NatsServer
) -> None:
    with process(replication, nats_server) as replicator:
        replicator.wait_for_log("replicating")
        replication.source.execute("ALTER TABLE t ADD phone text; ALTER TABLE t RENAME v TO note; INSERT INTO t VALUES (1)")
        wait_until(lambda: replication.stream_state().messages, what="the row")
        [table] = recorded(replication)
        assert [column.name for column in table.columns] == ["id", "note", "phone"]

        def numbers() -> list[int]:
            replication.source.execute("INSERT INTO t SELECT max(id) + 1 FROM t")
            return [column.number for column in recorded(replication)[0].columns]

        wait_until(lambda: numbers() == [1, 2, 3], what="numbers of the columns", interval_s=0.2)


def test_a_record_that_somebody_else_wrote_is_not_believed(replication: Group) -> None:
    replication.replicate()
    replication.with_broker(lambda _, bucket: bucket.put(TABLES_KEY, {"names": [], "descriptors": "bm90IHppcHBlZA=="}))
    with pytest.raises(TerminalError, match=r"record tables of the state bucket .* is malformed"):
        recorded(replication)


def test_nothing_is_known_of_the_tables_before_a_replicator_started(replication: Group) -> None:
    replication.replicate()
    replication.with_broker(lambda _, bucket: bucket.delete(TABLES_KEY))
    assert replication.with_broker(lambda _, bucket: load_tables(bucket)) is None
