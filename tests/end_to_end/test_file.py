"""The file sink as a process: what is in the directory when it has ended, and that a file is finished while nothing comes."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.waiting import wait_until


def test_files_hold_one_json_line_per_change_in_commit_order(
    source_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    directory = tmp_path / "out"
    keys = configuration(group, source_database, None, nats_server, **{"file-output-dir": str(directory)})
    source_database.execute("CREATE TABLE a (id bigint PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, n numeric)")
    succeed(replicate(keys))
    source_database.execute("BEGIN; INSERT INTO a VALUES (1, 'x'); INSERT INTO b VALUES (1, 0.10); UPDATE a SET v = NULL; COMMIT")
    source_database.execute("INSERT INTO a SELECT i, repeat('y', 100) FROM generate_series(2, 20000) i")
    succeed(replicate(keys))
    outcome = succeed(apply(keys, "file"))
    assert "WARN" not in outcome.log
    source_database.execute("DELETE FROM b")
    succeed(replicate(keys))
    succeed(apply(keys, "file"))
    first, second = sorted(directory.glob("*.jsonl"))
    assert first.name == f"{group}.file.0000000001.jsonl"
    lines = [json.loads(line) for path in (first, second) for line in path.read_bytes().splitlines()]
    assert [line["operation"] for line in lines] == ["INSERT", "INSERT", "UPDATE", *["INSERT"] * 19_999, "DELETE"]
    assert [line["key"]["id"] for line in lines[3:-1]] == list(range(2, 20_001))
    assert {path.name for path in directory.iterdir()} == {
        first.name,
        second.name,
        f"{group}.file.position",
        f".{group}.file.lock",
    }


def test_copied_rows_and_changes_become_parquet_while_the_worker_runs(
    source_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    keys = configuration(group, source_database, None, nats_server)
    keys |= {"file-output-dir": str(tmp_path), "format": "parquet", "file-rotate-age": "1s", "copy-and-stream": True}
    source_database.execute("CREATE TABLE prices (id int PRIMARY KEY, price numeric(8,2), at timestamptz)")
    source_database.execute("INSERT INTO prices SELECT i, i / 100.0, '2026-01-31 09:15:00Z' FROM generate_series(1, 5000) i")
    with PgsluiceProcess("replicator", config=keys), PgsluiceProcess("worker", "file", config=keys) as worker:

        def rows() -> list[tuple[str, int, Decimal]]:
            tables = [pq.read_table(path) for path in sorted((tmp_path / "public.prices").glob("*.parquet"))]
            return [(row["_operation"], row["id"], row["price"]) for table in tables for row in table.to_pylist()]

        wait_until(lambda: len(rows()) == 5000, deadline_s=90, what="the file of the copied rows", interval_s=0.5)
        source_database.execute("UPDATE prices SET price = 0.5 WHERE id = 7")
        wait_until(lambda: len(rows()) == 5001, what="the file of the change", interval_s=0.5)
        assert rows()[-1] == ("UPDATE", 7, Decimal("0.50"))
        assert sorted(rows()[:-1]) == [("READ", i, Decimal(i) / 100) for i in range(1, 5001)]
        worker.terminate()
        assert worker.wait() == 0
