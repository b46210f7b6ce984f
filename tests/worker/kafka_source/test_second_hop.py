"""Postgres, NATS, Kafka, Postgres: the table at the end is the table at the beginning."""

from __future__ import annotations

import pytest

from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer
from tests.servers.kafka import RealKafka
from tests.servers.opensearch import FakeOpenSearch
from tests.worker.kafka_source.second_hop import first_hop, second_hop

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

TABLES = ["orders", "log"]
CREATE = """
    CREATE TABLE orders (id bigint PRIMARY KEY, note text, doc text);
    ALTER TABLE orders ALTER doc SET STORAGE EXTERNAL;
    CREATE TABLE log (line text);
    ALTER TABLE log REPLICA IDENTITY FULL
"""
FIRST = """
    INSERT INTO orders SELECT n, 'note ' || n, CASE WHEN n % 7 = 0 THEN repeat('x', 9000) || n END FROM generate_series(1, 700) n;
    INSERT INTO log SELECT 'line ' || n FROM generate_series(1, 20) n
"""
SECOND = """
    UPDATE orders SET note = NULL WHERE id % 5 = 0;
    UPDATE orders SET note = 'kept its document' WHERE id % 7 = 0;
    UPDATE orders SET id = id + 100000, doc = doc || 'y' WHERE id % 14 = 0;
    DELETE FROM orders WHERE id % 3 = 0 AND id < 100000;
    INSERT INTO orders SELECT n, 'again', NULL FROM generate_series(3, 30, 3) n;
    UPDATE log SET line = line || ' changed' WHERE line LIKE '%7';
    DELETE FROM log WHERE line LIKE '%3'
"""


def rows(database: Database, table: str) -> list[str]:
    return sorted(str(row) for row in database.execute(f"SELECT * FROM {table}"))


def test_the_target_is_the_source_after_both_hops(
    source_database: Database, target_database: Database, nats_server: NatsServer, real_kafka: RealKafka, group: str
) -> None:
    there = first_hop(group, source_database, nats_server, real_kafka)
    here = second_hop(group, TABLES, target_database, nats_server, real_kafka)
    source_database.execute(CREATE)
    target_database.execute(CREATE)
    succeed(replicate(there))
    source_database.execute(FIRST)
    succeed(replicate(there))
    succeed(apply(there, "kafka"))
    succeed(apply(here))
    assert rows(target_database, "orders") == rows(source_database, "orders")
    source_database.execute(SECOND)
    succeed(replicate(there))
    succeed(apply(there, "kafka"))
    succeed(apply(here))
    for table in TABLES:
        assert rows(target_database, table) == rows(source_database, table)


def test_an_index_behind_kafka_holds_what_the_table_holds(
    source_database: Database, nats_server: NatsServer, real_kafka: RealKafka, fake_opensearch: FakeOpenSearch, group: str
) -> None:
    index = group.replace("_", "-") + "-{table}"
    reached = {"search-url": [fake_opensearch.url], "search-allow-hosts": ["127.0.0.1"], "search-index": index}
    there = first_hop(group, source_database, nats_server, real_kafka, **{"copy-and-stream": True})
    here = second_hop(group, ["orders"], None, nats_server, real_kafka, **reached)
    source_database.execute(CREATE + ";" + FIRST)
    succeed(replicate(there))  # of rows that were there, a copy
    succeed(apply(there, "kafka"))
    succeed(apply(here, "search"))
    source_database.execute(SECOND)
    succeed(replicate(there))
    succeed(apply(there, "kafka"))
    succeed(apply(here, "search"))
    found = fake_opensearch.documents(index.format(table="orders")).values()
    documents = sorted((row["id"], row["note"], row["doc"]) for _, row in found)
    assert documents == sorted(source_database.execute("SELECT id, note, doc FROM orders"))
