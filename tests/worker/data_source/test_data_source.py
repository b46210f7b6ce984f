"""The format "pgsluice" in a Spark session: real changes of a real source, over a real broker."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.wire.names import GroupNames
from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, succeed
from tests.servers import Database, NatsServer
from tests.worker.data_source.conftest import Feed, ids, images, instant, remove_up_to, run

LARGE = "INSERT INTO large SELECT i, repeat('x', 400) FROM generate_series({}, {}) AS i"
"""Of 2,000 rows: four messages."""


def test_a_batch_reads_every_change_in_commit_order_as_json(spark: SparkSession, feed: Feed) -> None:
    feed.publish("CREATE TABLE a (id int PRIMARY KEY, note text, total numeric)", "CREATE TABLE b (id int PRIMARY KEY)")
    feed.publish(
        "INSERT INTO a VALUES (1, 'first', 12.50); INSERT INTO b VALUES (7); INSERT INTO a VALUES (2, NULL, 'NaN')",
        "UPDATE a SET id = 3, total = 1 WHERE id = 2",
        "DELETE FROM a WHERE id = 1",
        "TRUNCATE a, b",
    )
    rows = feed.rows(spark)
    assert images(rows) == [
        ("INSERT", None, {"id": 1, "note": "first", "total": 12.50}),
        ("INSERT", None, {"id": 7}),
        ("INSERT", None, {"id": 2, "note": None, "total": "NaN"}),
        ("UPDATE", {"id": 2}, {"id": 3, "note": None, "total": 1}),
        ("DELETE", {"id": 1}, None),
        ("TRUNCATE", None, None),
        ("TRUNCATE", None, None),
    ]
    assert [(row.schema, row.table) for row in rows] == [("public", name) for name in "abaaaab"]
    assert [row.position.ordinal for row in rows] == [1, 2, 3, 1, 1, 1, 1]
    assert [tuple(row.position) for row in rows] == sorted(tuple(row.position) for row in rows)
    assert numbered_in_their_messages(rows[:-1])
    assert (rows[-1].sequence, rows[-1].number) == (rows[-2].sequence, rows[-2].number), "a TRUNCATE of two tables is one change"
    assert len({row.xid for row in rows}) == 4
    assert [row.position_text for row in rows] == [
        f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}:{ordinal}" for lsn, ordinal in (row.position for row in rows)
    ]
    assert all(timedelta() <= datetime.now(UTC) - instant(row.committed_at) < timedelta(minutes=5) for row in rows)
    assert [row.unchanged for row in rows] == [[]] * 7


def numbered_in_their_messages(rows: list[Row]) -> bool:
    """Whether each message's changes are numbered from 1 without a gap; which transactions share a message is open."""
    expected = [(1, 1)]
    for row in rows[1:]:
        sequence, number = expected[-1]
        expected.append((sequence, number + 1) if row.sequence == sequence else (sequence + 1, 1))
    return [(row.sequence, row.number) for row in rows] == expected


def test_an_unchanged_value_is_told_apart_from_null(spark: SparkSession, feed: Feed) -> None:
    feed.publish("CREATE TABLE t (id int PRIMARY KEY, large text, other text); ALTER TABLE t ALTER large SET STORAGE EXTERNAL")
    feed.publish("INSERT INTO t VALUES (1, repeat('x', 9000), NULL)", "UPDATE t SET other = 'y'", "UPDATE t SET large = NULL")
    assert images(feed.rows(spark))[1:] == [
        ("UPDATE", None, {"id": 1, "other": "y"}),
        ("UPDATE", None, {"id": 1, "large": None, "other": "y"}),
    ]
    for options in ({}, {"table": "t"}):
        assert [row.unchanged for row in feed.rows(spark, **options)] == [[], ["large"], []]
    assert [row.after.large for row in feed.rows(spark, table="t")][1:] == [None, None]


def test_a_whole_old_row_fills_in_what_was_not_sent(spark: SparkSession, feed: Feed) -> None:
    feed.publish(
        "CREATE TABLE t (id int PRIMARY KEY, large text, other text); ALTER TABLE t ALTER large SET STORAGE EXTERNAL;"
        "ALTER TABLE t REPLICA IDENTITY FULL"
    )
    feed.publish("INSERT INTO t VALUES (1, repeat('x', 9000), NULL)", "UPDATE t SET other = 'y'")
    for options in ({}, {"table": "t"}):
        row = feed.rows(spark, **options)[1]
        before, after = (
            (json.loads(row.before), json.loads(row.after)) if not options else (row.before.asDict(), row.after.asDict())
        )
        assert (before["other"], after["other"], row.unchanged) == (None, "y", [])
        assert before["large"] == after["large"] == "x" * 9000


def test_tables_are_chosen_by_patterns(spark: SparkSession, feed: Feed) -> None:
    feed.publish(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("order_a", "order_b", "other")))
    feed.publish(*(f"INSERT INTO {name} VALUES (1)" for name in ("order_a", "order_b", "other")), "TRUNCATE other, order_b")
    assert [row.table for row in feed.rows(spark, tables="public.order_*")] == ["order_a", "order_b", "order_b"]
    assert [row.table for row in feed.rows(spark, tables="other,order_a")] == ["order_a", "other", "other"]


def test_reading_begins_and_ends_at_sequences_between_transactions(spark: SparkSession, feed: Feed) -> None:
    feed.publish("CREATE TABLE large (id int PRIMARY KEY, filler text)")
    for start in (1, 2001, 4001):
        feed.publish(LARGE.format(start, start + 1999))
    rows = feed.rows(spark)
    last = rows[-1].sequence
    assert last >= 9
    by_transaction: dict[int, list[int]] = {}
    for row in rows:
        by_transaction.setdefault(row.xid, []).append(row.sequence)
    _, second, third = by_transaction.values()
    inside = second[1000]
    assert inside > second[0]
    assert ids(feed.rows(spark, from_=inside)) == list(range(2001, 6001))
    assert ids(feed.rows(spark, from_=third[0])) == list(range(4001, 6001))
    assert ids(feed.rows(spark, until=inside)) == list(range(1, 2001))
    assert ids(feed.rows(spark, until=second[-1])) == list(range(1, 4001))
    assert ids(feed.rows(spark, from_=second[0], until=second[-1])) == list(range(2001, 4001))
    assert ids(feed.rows(spark, from_=last + 1)) == []
    for options in ({"from_": last + 2}, {"until": last + 1}):
        with pytest.raises(PySparkException, match=f"there is no message {last + (2 if 'from_' in options else 1)} yet"):
            feed.rows(spark, **options)


def test_reading_begins_and_ends_at_times_of_commits(spark: SparkSession, feed: Feed) -> None:
    feed.publish("CREATE TABLE t (id int PRIMARY KEY)")
    for number in range(1, 4):
        feed.publish(f"INSERT INTO t VALUES ({number * 10})", f"INSERT INTO t VALUES ({number * 10 + 1})")
    rows = feed.rows(spark)
    times = [instant(row.committed_at) for row in rows]
    for number, time in enumerate(times):
        assert ids(feed.rows(spark, from_=time.isoformat())) == ids(rows)[number:]
        assert ids(feed.rows(spark, until=time.isoformat())) == ids(rows)[: number + 1]
    assert ids(feed.rows(spark, from_=times[1].isoformat(), until=times[3].isoformat())) == ids(rows)[1:4]
    assert ids(feed.rows(spark, until=(times[0] - timedelta(microseconds=1)).isoformat())) == []
    assert ids(feed.rows(spark, from_=(times[-1] + timedelta(microseconds=1)).isoformat())) == []
    assert ids(feed.rows(spark, from_=(times[0] - timedelta(days=1)).isoformat())) == ids(rows)


def test_a_stream_begins_at_a_time_and_goes_on_from_its_checkpoint(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    feed.publish("CREATE TABLE t (id int PRIMARY KEY)")
    feed.publish(*(f"INSERT INTO t VALUES ({number})" for number in range(1, 5)))
    time = instant(feed.rows(spark)[2].committed_at).isoformat()
    assert [ids(batch) for batch in run(feed.stream(spark, from_=time), tmp_path)] == [[3, 4]]
    assert run(feed.stream(spark, from_=time), tmp_path) == []
    feed.publish("INSERT INTO t SELECT generate_series(5, 6)")
    feed.publish("INSERT INTO t SELECT generate_series(7, 8)")
    assert [number for batch in run(feed.stream(spark, from_=time), tmp_path) for number in ids(batch)] == [5, 6, 7, 8]


def test_a_stream_follows_the_source_while_it_runs(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    feed.publish("CREATE TABLE t (id int PRIMARY KEY)")
    seen: list[Row] = []
    writer = feed.stream(spark, table="t").writeStream.foreachBatch(lambda batch, _: seen.extend(batch.collect()))
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        feed.publish("INSERT INTO t VALUES (1)")
        query.processAllAvailable()
        feed.publish("INSERT INTO t VALUES (2)")
        query.processAllAvailable()
    finally:
        query.stop()
    assert [row.after.id for row in seen] == [1, 2]


def test_small_batches_never_tear_a_transaction(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    feed.publish("CREATE TABLE large (id int PRIMARY KEY, filler text)")
    for start in (1, 2001):
        feed.publish(LARGE.format(start, start + 1999), f"DELETE FROM large WHERE id = {start}")
    batches = run(feed.stream(spark, batch_size=1), tmp_path / "messages")
    assert len(batches) >= 2
    changes = [Counter(row.xid for row in batch) for batch in batches]
    assert sorted(sum(changes, Counter()).values()) == [1, 1, 2000, 2000]
    assert sum(map(len, changes)) == 4
    assert len(run(feed.stream(spark, batch_bytes="1KiB"), tmp_path / "bytes")) == len(batches)
    assert [row for batch in batches for row in batch] == feed.rows(spark)


def test_removed_messages_are_missed_loudly(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    feed.publish("CREATE TABLE t (id int PRIMARY KEY)")
    feed.publish("INSERT INTO t VALUES (1)")
    run(feed.stream(spark), tmp_path)
    for number in range(2, 6):
        feed.publish(f"INSERT INTO t VALUES ({number})")
    remove_up_to(feed, 3)
    sentence = r"messages 2 to 3 of the stream were removed before this query read them: .*from=beginning \(or from=4\)"
    with pytest.raises(PySparkException, match=sentence):
        run(feed.stream(spark), tmp_path)
    with pytest.raises(PySparkException, match="messages 3 to 3 of the stream were removed"):
        feed.rows(spark, from_=3)
    assert ids(feed.rows(spark)) == [4, 5]
    assert ids(feed.rows(spark, from_=3, fail_on_data_loss=False)) == [4, 5]
    assert [ids(batch) for batch in run(feed.stream(spark, fail_on_data_loss=False), tmp_path)] == [[4, 5]]


def test_a_transaction_whose_beginning_was_removed_is_left_out(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    feed.publish("CREATE TABLE large (id int PRIMARY KEY, filler text)")
    feed.publish("INSERT INTO large VALUES (0, 'first')")
    run(feed.stream(spark), tmp_path)
    feed.publish(LARGE.format(1, 2000), "INSERT INTO large VALUES (2001, 'second')")
    feed.publish("INSERT INTO large VALUES (2002, 'third')")
    remove_up_to(feed, 3)
    assert ids(feed.rows(spark))[-1] == 2002
    rows = [row for batch in run(feed.stream(spark, fail_on_data_loss=False), tmp_path) for row in batch]
    assert ids(rows) == [2001, 2002]


def test_a_query_that_read_another_stream_says_so(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    feed.publish("CREATE TABLE t (id int PRIMARY KEY)")
    feed.publish("INSERT INTO t VALUES (1)")
    run(feed.stream(spark), tmp_path / "c")
    offsets = next(path for path in sorted((tmp_path / "c" / "offsets").iterdir()) if path.name == "0")
    *head, offset = offsets.read_text().splitlines()
    offsets.write_text("\n".join([*head, json.dumps(json.loads(offset) | {"stream": "another"})]))
    for checksum in (tmp_path / "c" / "offsets").glob(".*"):
        checksum.unlink()
    with pytest.raises(PySparkException, match="was created again since this query read it"):
        run(feed.stream(spark), tmp_path / "c")


def test_nothing_of_the_group_is_moved(
    spark: SparkSession, feed: Feed, source_database: Database, nats_server: NatsServer, tmp_path: Path
) -> None:
    feed.publish("CREATE TABLE t (id int PRIMARY KEY)")
    feed.publish("INSERT INTO t SELECT generate_series(1, 3)")
    succeed(apply(configuration(feed.group, source_database, None, nats_server), "stdout"))  # so that there is a position
    before = feed.ask(everything_kept)
    assert {"changes", "bucket"} <= before.keys()
    feed.rows(spark)
    feed.rows(spark, table="t", from_=1)
    run(feed.stream(spark), tmp_path / "c")
    assert feed.ask(everything_kept) == before


async def everything_kept(client: Client, stream: ChangeStream) -> dict[str, Any]:
    """The group's streams and how many consumers they have, with every message, the entries of the state bucket among them."""
    context, names = client.jetstream(), GroupNames(stream.name.removeprefix("pgsluice_").removesuffix("_changes"))
    kept: dict[str, Any] = {}
    for noun, name in (
        ("changes", names.changes_stream),
        ("snapshot", names.snapshot_stream),
        ("dead", names.dead_stream),
        ("bucket", f"KV_{names.bucket}"),
    ):
        try:
            state = (await context.stream_info(name)).state
        except NotFoundError:
            continue
        messages = [await message_at(context, name, number) for number in range(state.first_seq, state.last_seq + 1)]
        kept[noun] = ((state.messages, state.bytes, state.first_seq, state.last_seq, state.consumer_count), messages)
    return kept


async def message_at(context: JetStreamContext, stream: str, sequence: int) -> tuple[str | None, bytes | None] | None:
    try:
        message = await context.get_msg(stream, sequence)
    except NotFoundError:
        return None  # an entry that a newer one replaced
    return message.subject, message.data
