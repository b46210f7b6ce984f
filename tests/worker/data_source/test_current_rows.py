"""``pgsluice.current_rows``: what a table holds, of its changes as a notebook reads them, is what the source's table holds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StringType

import pgsluice
from pgsluice.shared.errors import UsageError
from pgsluice.worker.data_source.data_source import ChangeFeed, change_schema
from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import replicate, succeed
from tests.servers import Database, NatsServer
from tests.worker.data_source.conftest import Feed, remove_up_to

TABLE = """
CREATE TABLE {0} (id int PRIMARY KEY, large text, note text, total numeric(6, 2));
ALTER TABLE {0} ALTER large SET STORAGE EXTERNAL
"""
LARGE = "repeat('{}', 3000)"
"""Outside its row, so an update that leaves it as it is does not send it."""


def held(frame: DataFrame, key: tuple[str, ...] = ()) -> list[tuple[str | None, ...]]:
    """Every row as texts, by key; nothing of it is unknown."""
    rows = pgsluice.current_rows(frame, key).collect()
    assert [row.unchanged for row in rows] == [[]] * len(rows)
    return in_order(texts_of(row) for row in rows)


def texts_of(row: Row) -> tuple[str | None, ...]:
    beside: dict[str, str] = {} if row.as_text is None else row.as_text.after
    values = row.after.asDict().items()
    return tuple(beside.get(name, None if value is None else str(value)) for name, value in values)


def in_order(rows: Iterable[tuple[str | None, ...]]) -> list[tuple[str | None, ...]]:
    return sorted(rows, key=lambda row: [value or "" for value in row])


def at_source(feed: Feed, name: str) -> list[tuple[str | None, ...]]:
    columns = feed.source.execute(
        f"SELECT attname FROM pg_attribute WHERE attrelid = '{name}'::regclass AND attnum > 0 ORDER BY attnum"
    )
    texts = ", ".join(f"{column}::text" for (column,) in columns)
    return in_order(feed.source.execute(f"SELECT {texts} FROM {name}"))


def test_rows_are_there_as_moved_keys_deletes_and_nulls_left_them(spark: SparkSession, feed: Feed) -> None:
    feed.publish(TABLE.format("t"))
    feed.publish(
        *(f"INSERT INTO t VALUES ({n}, {LARGE.format(n)}, 'n{n}', {n})" for n in range(1, 8)),
        "UPDATE t SET id = 10, note = NULL WHERE id = 1",
        "UPDATE t SET note = 'kept' WHERE id = 2",
        "UPDATE t SET large = NULL WHERE id = 3",
        "DELETE FROM t WHERE id = 4",
        f"INSERT INTO t VALUES (4, NULL, 'again', 'NaN'), (1, {LARGE.format('x')}, 'new at an old key', NULL)",
        "UPDATE t SET id = 20 WHERE id = 10; UPDATE t SET id = 30, total = 'NaN' WHERE id = 20",
        "UPDATE t SET id = 40 WHERE id = 30",
        "UPDATE t SET id = -id WHERE id IN (5, 6); UPDATE t SET id = 6 WHERE id = -5; UPDATE t SET id = 5 WHERE id = -6",
        "UPDATE t SET id = 70 WHERE id = 7; DELETE FROM t WHERE id = 70",
    )
    assert held(feed.read(spark, table="t")) == at_source(feed, "t")


def test_a_row_keeps_a_value_that_no_update_sent_however_often_it_moved(spark: SparkSession, feed: Feed) -> None:
    feed.publish(TABLE.format("t"))
    feed.publish(f"INSERT INTO t SELECT n, {LARGE.format('v')} || n FROM generate_series(1, 3) AS n")
    for _ in range(9):
        feed.source.execute("UPDATE t SET id = id + 10 WHERE id % 10 <> 1; UPDATE t SET note = 'seen' WHERE id % 10 = 3")
    feed.publish()
    frame = feed.read(spark, table="t")
    assert held(frame) == at_source(feed, "t")
    begun = {row.position_text: row.after.id for row in frame.collect()}
    late = frame.where("operation <> 'INSERT'")
    unknown = {row.after.id: row.unchanged for row in pgsluice.current_rows(late).collect()}
    assert unknown == {92: ["large"], 93: ["large"]}
    newest = pgsluice.current_rows(frame).where("after.id = 92").collect()[0]
    assert (newest.operation, begun[newest.position_text]) == ("UPDATE", 92)


def test_what_stood_before_a_truncate_is_gone(spark: SparkSession, feed: Feed) -> None:
    feed.publish(TABLE.format("t"), TABLE.format("u"))
    feed.publish(
        f"INSERT INTO t VALUES (1, {LARGE.format('a')}), (2, 'b')",
        "INSERT INTO u VALUES (1, 'stays')",
        "TRUNCATE t; INSERT INTO t VALUES (2, NULL, 'after'); UPDATE t SET id = 1 WHERE id = 2",
        "TRUNCATE u; INSERT INTO u VALUES (1)",
        "TRUNCATE u",
    )
    assert held(feed.read(spark, table="t")) == at_source(feed, "t") != []
    assert held(feed.read(spark, table="u")) == at_source(feed, "u") == []


def test_an_old_row_that_is_whole_and_a_key_of_an_index_name_their_rows(spark: SparkSession, feed: Feed) -> None:
    feed.publish(
        TABLE.format("f") + "; ALTER TABLE f REPLICA IDENTITY FULL",
        "CREATE TABLE i (a int NOT NULL, b date NOT NULL, v text, CONSTRAINT k UNIQUE (b, a));"
        "ALTER TABLE i REPLICA IDENTITY USING INDEX k",
        "CREATE TABLE n (a int, v text); ALTER TABLE n REPLICA IDENTITY FULL",
    )
    feed.publish(
        f"INSERT INTO f VALUES (1, {LARGE.format('a')}, 'x'), (2, NULL, NULL)",
        "UPDATE f SET id = 3, note = NULL WHERE id = 1; UPDATE f SET total = 1 WHERE id = 2; DELETE FROM f WHERE id = 2",
        "INSERT INTO i VALUES (1, 'infinity', 'never'), (1, '-infinity', 'ever'), (1, '2026-01-31', 'once')",
        "UPDATE i SET v = 'x' WHERE b = 'infinity'; UPDATE i SET b = '2026-02-01' WHERE b = '-infinity'",
        "DELETE FROM i WHERE v = 'once'",
        "INSERT INTO n VALUES (1, 'x'), (2, 'y'); UPDATE n SET a = 3 WHERE a = 1",
    )
    for name in "fi":
        assert held(feed.read(spark, table=name)) == at_source(feed, name)
    frame = feed.read(spark, table="n")
    with pytest.raises(UsageError, match="nothing identifies a row of this table: give 'key'"):
        pgsluice.current_rows(frame)
    with pytest.raises(UsageError, match="the table has no column 'b': its columns are a, v"):
        pgsluice.current_rows(frame, ["b"])
    assert held(frame, ("a",)) == at_source(feed, "n")


def test_a_renamed_column_keeps_its_values_and_a_new_one_is_unknown_until_it_is_written(spark: SparkSession, feed: Feed) -> None:
    feed.publish(TABLE.format("t"))
    feed.publish(f"INSERT INTO t VALUES (1, {LARGE.format('a')}, NULL, 'NaN'), (2, {LARGE.format('b')}, NULL, NULL)")
    feed.source.execute(
        "ALTER TABLE t RENAME large TO big; ALTER TABLE t RENAME total TO sum; ALTER TABLE t ADD later int DEFAULT 7"
    )
    feed.publish("UPDATE t SET note = 'x' WHERE id = 2")
    rows = {row.after.id: row for row in pgsluice.current_rows(feed.read(spark, table="t")).collect()}
    expected = dict(zip((1, 2), at_source(feed, "t"), strict=True))
    assert rows[1].unchanged == ["later"]
    assert texts_of(rows[1])[:-1] == expected[1][:-1]
    assert (texts_of(rows[2]), rows[2].unchanged) == (expected[2], [])


def test_changes_that_do_not_say_what_is_asked_are_refused(spark: SparkSession, feed: Feed) -> None:
    feed.publish("CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL UNIQUE)")
    feed.publish("INSERT INTO t VALUES (1, 1), (2, 2)", "UPDATE t SET a = 3 WHERE a = 1", "DELETE FROM t WHERE a = 2")
    with pytest.raises(UsageError, match="one table with typed columns: read them with the option 'table'"):
        pgsluice.current_rows(feed.read(spark))
    with pytest.raises(UsageError, match="these changes are a stream, which has no end"):
        pgsluice.current_rows(feed.stream(spark, table="t"))
    with pytest.raises(PySparkException, match=r"does not contain the key of its row \(b\)"):
        pgsluice.current_rows(feed.read(spark, table="t"), ["b"]).collect()


class CopiedFeed(Feed):
    """Whose rows are copied before their changes come."""

    def copy(self, *flags: str) -> None:
        keys = configuration(self.group, self.source, None, self._nats_server)
        succeed(replicate(keys, "--copy-and-stream", *flags))

    def __init__(self, source: Database, nats: NatsServer, group: str) -> None:
        super().__init__(source, nats.settings(), group)
        self._nats_server = nats


def test_rows_of_the_copy_are_there_and_those_of_an_earlier_copy_do_not_count(
    spark: SparkSession, source_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    feed = CopiedFeed(source_database, nats_server, group)
    feed.source.execute(TABLE.format("t") + ";" + TABLE.format("other") + ";" + TABLE.format("empty"))
    feed.source.execute("INSERT INTO t SELECT n, repeat('x', 200) || n, NULL, n / 10 FROM generate_series(1, 5000) AS n")
    feed.source.execute(f"UPDATE t SET large = {LARGE.format('y')} WHERE id < 10; INSERT INTO other SELECT * FROM t LIMIT 100")
    feed.copy()
    feed.source.execute("UPDATE t SET id = -id, note = 'moved' WHERE id < 20; DELETE FROM t WHERE id > 4900")
    feed.publish("INSERT INTO empty VALUES (1)")
    frame = feed.read(spark, table="public.t", with_copy=True)
    kept = str(tmp_path / "changes")
    frame.write.parquet(kept)
    operations = dict(frame.groupBy("operation").count().collect())
    assert operations == {"RESTART": 1, "READ": 5000, "UPDATE": 19, "DELETE": 100}
    assert held(frame) == at_source(feed, "t")
    assert held(feed.read(spark, table="other", with_copy=True)) == at_source(feed, "other") != []
    assert held(feed.read(spark, table="empty", with_copy=True)) == at_source(feed, "empty") != []

    feed.source.execute("UPDATE t SET note = 'unseen' WHERE id = 100; DELETE FROM t WHERE id > 4000")
    feed.copy("--recopy", "t")
    feed.publish("UPDATE t SET id = 0 WHERE id = 100")
    newest = feed.read(spark, table="t", with_copy=True)
    assert held(newest) == at_source(feed, "t")
    both = spark.read.parquet(kept).union(newest).union(feed.read(spark, table="t"))
    assert held(both) == at_source(feed, "t"), "changes that were kept since an earlier copy do no harm"
    remove_up_to(feed, 2)
    with pytest.raises(PySparkException, match="changes that came since the table was copied were removed from the stream"):
        feed.read(spark, table="other", with_copy=True).count()


def test_what_a_copy_does_not_hold_is_never_passed_over(
    spark: SparkSession, source_database: Database, nats_server: NatsServer, group: str
) -> None:
    feed = CopiedFeed(source_database, nats_server, group)
    feed.source.execute(TABLE.format("t") + "; INSERT INTO t VALUES (1)")
    feed.publish()
    with pytest.raises(PySparkException, match="table 't' was never copied: leave 'with-copy' away, or have it copied"):
        feed.read(spark, table="t", with_copy=True).count()
    for options in ({}, {"table": "t", "from": 1}, {"table": "t", "fail_on_data_loss": False}):
        with pytest.raises(PySparkException, match="with-copy reads the whole of one table: name it"):
            feed.read(spark, with_copy=True, **options)
    with pytest.raises(UsageError, match=r"the option 'with-copy' is for spark\.read"):
        ChangeFeed(feed.options | {"table": "t", "with-copy": "true"}).streamReader(change_schema(StringType()))


KEYS = st.integers(1, 4)


@st.composite
def moves(draw: st.DrawFn) -> str:
    old, new = draw(KEYS), draw(KEYS)
    also = draw(st.sampled_from(["", ", note = 'moved'", ", large = NULL", f", large = {LARGE.format('m')}"]))
    return f"UPDATE t SET id = {new}{also} WHERE id = {old} AND NOT EXISTS (SELECT FROM t WHERE id = {new})"


@st.composite
def writes(draw: st.DrawFn) -> str:
    key = draw(KEYS)
    large = draw(st.sampled_from(["NULL", LARGE.format("a"), LARGE.format("b")]))
    forms = [
        f"INSERT INTO t VALUES ({key}, {large}, 'i{key}') ON CONFLICT DO NOTHING",
        f"UPDATE t SET large = {large} WHERE id = {key}",
        f"UPDATE t SET note = 'u', total = 'NaN' WHERE id <= {key}",
        f"UPDATE t SET note = NULL, total = {key} WHERE id = {key}",
        f"DELETE FROM t WHERE id = {key}",
        "UPDATE t SET id = -id; UPDATE t SET id = 5 + id",
        "TRUNCATE t",
    ]
    return draw(st.sampled_from(forms[:5] * 3 + forms))


HISTORIES = st.lists(st.lists(moves() | writes(), min_size=1, max_size=4).map("; ".join), min_size=1, max_size=12)


@pytest.fixture
def known(feed: Feed) -> Feed:
    """With a table that has had a row."""
    feed.publish(TABLE.format("t"))
    feed.publish("INSERT INTO t VALUES (1)")
    return feed


# Each takes a replicator's run and some Spark jobs.
@settings(max_examples=settings().max_examples // 5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=HISTORIES)
def test_any_history_leaves_the_rows_that_the_source_has(spark: SparkSession, known: Feed, history: list[str]) -> None:
    """One begins where the one before ended. Its changes may come in any order, and more than once."""
    known.publish(*history)
    frame = known.read(spark, table="t")
    assert held(frame.repartition(5).union(frame)) == at_source(known, "t")
