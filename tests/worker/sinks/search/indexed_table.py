"""A table of a group without a replicator: what the ledger says of its copy, and what the search server has of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, Phase, SnapshotRecord, TableRecord, now
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.wire.names import GroupNames, replay_name
from pgsluice.shared.wire.position import format_lsn
from pgsluice.shared.wire.table import Table
from pgsluice.testing.batch import STREAM_CREATED
from pgsluice.worker.sinks.search.sink import SearchSink
from tests.servers.opensearch import SearchServer
from tests.worker.sinks.search.sinks import search_settings
from tests.worker.sinks.settings import worker_settings


@dataclass
class IndexedTable:
    """``lsns`` are those of snapshots. ``sinks`` are to be closed in the end."""

    nats: NatsSettings
    group: str
    server: SearchServer
    table: Table
    lsns: dict[str, int]
    sinks: list[SearchSink] = field(default_factory=list)

    @property
    def alias(self) -> str:
        return f"{self.group}_{self.table.schema}_{self.table.name}"

    def sink(
        self, url: str = "", keep_old_s: float = 86400.0, *, is_replay: bool = False, schema_index: str = "", **worker: Any
    ) -> SearchSink:
        """Of a process that has just started, or of a replay. ``worker`` are settings of a worker."""
        settings = replace(worker_settings(self.group, self.nats), **worker)
        settings = replace(settings, name=replay_name(settings.name)) if is_replay else settings
        sink = SearchSink(
            settings, search_settings(url or self.server.url, self.group, keep_old_s=keep_old_s, schema_index=schema_index)
        )
        self.sinks.append(sink)
        sink.open()
        return sink

    def note(self, phase: Phase, snapshot: str, last_sequence: int = 0) -> None:
        """What the ledger says of the table's copy from now on."""
        table, lsn = self.table, format_lsn(self.lsns[snapshot])
        state = CopyState.FINISHED if phase is Phase.FINISHED_COPY else CopyState.RUNNING
        whole = (now(), now(), last_sequence, "", "", STREAM_CREATED)

        async def store() -> None:
            async with connected(self.nats, "test") as client:
                ledger = Ledger(StateBucket(client, GroupNames(self.group)))
                await ledger.store_snapshot(SnapshotRecord(snapshot, lsn, state, CopyMode.COPY_AND_STREAM, *whole))
                record = TableRecord(
                    table.oid, table.schema, table.name, phase, now(), snapshot, lsn, last_sequence=last_sequence
                )
                await ledger.store_table(record)

        asyncio.run(store())

    def documents(self) -> dict[str, tuple[int, dict[str, Any]]]:
        """Those that searches find: version and fields."""
        return self.server.documents(self.alias)

    def notes(self) -> dict[str, tuple[int, str]]:
        """The same with one field."""
        return {key: (version, source["note"]) for key, (version, source) in self.documents().items()}

    def generations(self) -> list[int]:
        prefix = f"{self.alias}-"
        return [int(name.removeprefix(prefix)) for name in self.server.indices() if name.startswith(prefix)]

    def read(self) -> list[str]:
        """The indexes that have the alias."""
        return sorted(self.server.ask("GET", f"/_alias/{self.alias}"))
