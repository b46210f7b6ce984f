"""The columns of one table, typed: what the source holds is what Spark has."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

from pyspark.sql import SparkSession

from pgsluice.shared.broker.published_tables import load_tables
from tests.replicated_group import Group
from tests.replicator.test_replicator import process
from tests.servers import NatsServer
from tests.waiting import wait_until
from tests.worker.data_source.conftest import Feed, images, instant

TYPED = """
CREATE TYPE mood AS ENUM ('glad', 'sad');
CREATE TABLE typed (
    id bigint PRIMARY KEY, b boolean, i2 smallint, i4 integer, f4 real, f8 double precision, n numeric(12, 3), any_n numeric,
    t text, v varchar(9), c char(4), bytes bytea, d date, ts timestamp, tz timestamptz, time_of_day time, i interval, u uuid,
    j json, jb jsonb, m mood, i4s integer[], texts text[], ns numeric(6, 2)[], tzs timestamptz[], bs boolean[], blobs bytea[],
    moods mood[]
)
"""
VALUES = r"""
INSERT INTO typed VALUES (
    9223372036854775807, true, -32768, 2147483647, 1.5, 'NaN', -123456789.125, 123456789012345678901234567890.123456789,
    E'tab\tünï', 'v', 'c', '\x00ff', '2024-02-29', '0001-01-01 00:00:00', '9999-12-31 23:59:59.999999+00', '24:00:00',
    '1 day 02:00:00', '00000000-0000-0000-0000-000000000001', '{"a": [1, null]}', '{"b": 1}', 'sad', '{1,NULL,-3}',
    '{"a,b","NULL",NULL,"q\"q"}', '{1.50,NULL}', '{"2024-02-29 12:00:00+02"}', '{t,f,NULL}', '{"\\x00ff"}', '{glad}'
)
"""


def test_a_table_has_its_own_columns_typed(spark: SparkSession, feed: Feed) -> None:
    feed.publish(TYPED, "CREATE TABLE other (id int PRIMARY KEY)")
    feed.publish(VALUES, "INSERT INTO typed VALUES (1)", "INSERT INTO other VALUES (1)", "DELETE FROM typed WHERE id = 1")
    read = feed.read(spark, table="public.typed")
    kinds = dict(read.select("after.*").dtypes)
    assert [kinds[name] for name in ("id", "b", "i2", "i4", "f4", "f8")] == [
        "bigint",
        "boolean",
        "smallint",
        "int",
        "float",
        "double",
    ]
    assert [kinds[name] for name in ("n", "any_n", "bytes", "d", "ts", "tz")] == [
        *("decimal(12,3)", "string", "binary", "date", "timestamp_ntz", "timestamp")
    ]
    assert [kinds[name] for name in ("i4s", "ns", "tzs", "moods")] == [
        *("array<int>", "array<decimal(6,2)>", "array<timestamp>", "array<string>")
    ]
    full, sparse, deleted = read.collect()
    row = full.after.asDict()
    assert row.pop("f8") != row.get("f8", 0.0)  # NaN
    assert instant(row.pop("tz")) == datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)
    assert [instant(moment) for moment in row.pop("tzs")] == [datetime(2024, 2, 29, 10, tzinfo=UTC)]
    assert row == {
        "id": 2**63 - 1,
        "b": True,
        "i2": -32768,
        "i4": 2**31 - 1,
        "f4": 1.5,
        "n": Decimal("-123456789.125"),
        "any_n": "123456789012345678901234567890.123456789",
        "t": "tab\tünï",
        "v": "v",
        "c": "c   ",
        "bytes": bytearray(b"\x00\xff"),
        "d": date(2024, 2, 29),
        "ts": datetime(1, 1, 1),
        "time_of_day": "24:00:00",
        "i": "1 day 02:00:00",
        "u": "00000000-0000-0000-0000-000000000001",
        "j": '{"a": [1, null]}',
        "jb": '{"b": 1}',
        "m": "sad",
        "i4s": [1, None, -3],
        "texts": ["a,b", "NULL", None, 'q"q'],
        "ns": [Decimal("1.50"), None],
        "bs": [True, False, None],
        "blobs": [bytearray(b"\x00\xff")],
        "moods": ["glad"],
    }
    assert sparse.after.asDict() == {name: 1 if name == "id" else None for name in kinds}
    assert (sparse.before, deleted.after, deleted.before.id, deleted.operation) == (None, None, 1, "DELETE")


def test_columns_are_found_by_name_in_every_version_of_a_table(spark: SparkSession, feed: Feed) -> None:
    feed.publish("CREATE TABLE t (gone text, id int PRIMARY KEY)")
    feed.publish("INSERT INTO t VALUES ('old', 1)")
    feed.publish("ALTER TABLE t DROP gone; ALTER TABLE t ADD new bigint; INSERT INTO t VALUES (2, 20)")
    feed.publish()
    assert [row.after.asDict() for row in feed.rows(spark, table="t")] == [{"id": 1, "new": None}, {"id": 2, "new": 20}]
    assert [after for _, _, after in images(feed.rows(spark))] == [{"gone": "old", "id": 1}, {"id": 2, "new": 20}]


ODD_VALUES = {"n": ("numeric(6, 2)", "NaN"), "d": ("date", "infinity"), "a": ("int[]", "{{1,2},{3,4}}")}
"""By table: a type of Postgres, and a value that Spark's does not have."""


def test_a_value_that_a_type_does_not_have_is_beside_it_as_text(spark: SparkSession, feed: Feed) -> None:
    feed.publish(*(f"CREATE TABLE {name} (id int PRIMARY KEY, odd {kind})" for name, (kind, _) in ODD_VALUES.items()))
    feed.publish(*(f"INSERT INTO {name} VALUES (1, '{value}'), (2, NULL)" for name, (_, value) in ODD_VALUES.items()))
    for name, (_, value) in ODD_VALUES.items():
        odd, plain = feed.rows(spark, table=name)
        assert (odd.after.asDict(), odd.as_text.before, odd.as_text.after) == ({"id": 1, "odd": None}, None, {"odd": value})
        assert plain.as_text is None
    assert [row.as_text for row in feed.rows(spark)] == [None] * 6


def test_a_table_has_its_new_columns_and_names_while_the_replicator_goes_on(
    spark: SparkSession, feed: Feed, nats_server: NatsServer
) -> None:
    """Without a restart, and the rows from before are whole."""
    group = Group(feed.group, feed.source, feed.nats)
    feed.publish("CREATE TABLE t (id int PRIMARY KEY, note text)")
    feed.publish("INSERT INTO t VALUES (1, 'a')")
    with process(group, nats_server) as replicator:
        replicator.wait_for_log("replicating")
        feed.source.execute("INSERT INTO t VALUES (2, 'b')")
        wait_until(lambda: group.audit().rows["public.t insert"] == 2, what="the row before")
        old = feed.read(spark, table="t")
        feed.source.execute("ALTER TABLE t RENAME note TO remark; ALTER TABLE t ADD total bigint; ALTER TABLE t RENAME TO u")

        def is_known() -> bool:
            feed.source.execute("INSERT INTO u SELECT max(id) + 1, 'c', 7 FROM u")
            columns = group.with_broker(lambda _, bucket: load_tables(bucket))[0].columns
            return [column.number for column in columns] == [1, 2, 3]

        wait_until(is_known, what="the new column", interval_s=0.2)
        feed.source.execute("INSERT INTO u VALUES (0, 'd', 8)")
        [(there,)] = feed.source.execute("SELECT count(*) FROM u")
        wait_until(lambda: group.audit().changes == there, what="the last row")
        replicator.terminate()
    rows = [row.after.asDict() for row in feed.rows(spark, table="u")]
    assert rows[:2] == [{"id": 1, "remark": "a", "total": None}, {"id": 2, "remark": "b", "total": None}]
    assert rows[-1] == {"id": 0, "remark": "d", "total": 8}
    newest = old.collect()[-1]
    assert (newest.after.asDict(), newest.as_text.after) == ({"id": 0, "note": "d"}, {"total": "8"})
