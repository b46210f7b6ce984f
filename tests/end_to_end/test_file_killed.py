"""The worker dies again and again under load while it writes files; every change is in them once, in order."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgsluice.shared.wire.position import Position, parse_lsn
from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, succeed
from tests.end_to_end.random_load import RandomLoad
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.stream_audit import audit_stream

LONGEST_LIFE_S = 10.0
OPTIONS = {
    "lines": {"file-rotate-bytes": "300KB", "file-rotate-age": "4s"},
    "compressed": {"file-rotate-bytes": "50KB", "file-rotate-age": "4s", "file-compression": "zstd"},
    "parquet": {"file-rotate-bytes": "300KB", "file-rotate-age": "4s", "format": "parquet"},
}
"""Files are small and finished often, so that it dies in the middle of that too."""


class Found(NamedTuple):
    """The changes in one finished file, in its order."""

    path: str
    positions: list[Position]


def found_lines(directory: Path) -> Iterator[Found]:
    for path in sorted(directory.glob("*.jsonl*")):
        assert path.suffix != ".part", "a worker that has ended leaves no file in progress"
        data = path.read_bytes()
        if path.suffix == ".zst":
            data = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
        assert data.endswith(b"\n")
        yield Found(path.name, [position(json.loads(line)["position"]) for line in data.splitlines()])


def found_rows(directory: Path) -> Iterator[Found]:
    for path in sorted(directory.glob("*/*.parquet")):
        table = pq.read_table(path, columns=["_commit_lsn", "_ordinal"])
        found = [Position(*pair) for pair in zip(*(column.to_pylist() for column in table.columns), strict=True)]
        yield Found(str(path.relative_to(directory)), found)


def position(text: str) -> Position:
    lsn, _, ordinal = text.rpartition(":")
    return Position(parse_lsn(lsn), int(ordinal))


def kill_at_random(worker: PgsluiceProcess, kills: int, choose: random.Random) -> None:
    never = threading.Event()
    for _ in range(kills):
        never.wait(choose.uniform(3, LONGEST_LIFE_S))  # it takes about three seconds to come to its first batch
        worker.kill()
        worker.start()


def run_killing(
    source: Database,
    nats: NatsServer,
    group: str,
    directory: Path,
    options: str,
    kills: int,
    read: Callable[[Path], Iterator[Found]],
) -> None:
    seed = int(os.environ.get("KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    print(f"KILL_SEED={seed}")
    keys = configuration(group, source, None, nats) | {"file-output-dir": str(directory)} | OPTIONS[options]
    RandomLoad.create_tables(source)
    load = RandomLoad(source, seed)
    with PgsluiceProcess("replicator", config=keys) as replicator, PgsluiceProcess("worker", "file", config=keys) as worker:
        replicator.wait_for_log("replicating")
        with load:
            worker.wait_for_log("reading")
            kill_at_random(worker, kills, random.Random(seed))
            load.stop()
        worker.kill()
        replicator.terminate()
        assert replicator.wait() == 0
    succeed(apply(keys, "file"))
    audit = asyncio.run(audit_stream(nats.settings(), group))
    files = list(read(directory))
    changes = sorted(found for file in files for found in file.positions)
    print(f"{kills} kills, {load.transactions} transactions, {audit.changes} changes, {len(files)} files")
    assert all(first < second for file in files for first, second in itertools.pairwise(file.positions))
    assert all(first < second for first, second in itertools.pairwise(changes)), "a change is there twice"
    assert len(changes) == audit.changes
    assert audit.problems == []
    if options != "parquet":
        assert [found for file in files for found in file.positions] == changes


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("options", ["lines", "compressed"])
def test_killing_the_worker_thirty_times_loses_and_doubles_no_line(
    source_database: Database, nats_server: NatsServer, group: str, tmp_path: Path, options: str
) -> None:
    run_killing(source_database, nats_server, group, tmp_path, options, kills(), found_lines)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_killing_the_worker_thirty_times_loses_and_doubles_no_parquet_row(
    source_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    run_killing(source_database, nats_server, group, tmp_path, "parquet", kills(), found_rows)


def kills() -> int:
    return int(os.environ.get("KILLS", "30"))
