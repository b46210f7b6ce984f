"""A pipeline's runs on real servers, and a target that only counts: rows by key, as the stream brings them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nats.aio.client import Client

from pgsluice.replicator.pipelines.pipeline import Pipeline, RunMode
from pgsluice.replicator.pipelines.pipeline_run import RunPlan, plan, run
from pgsluice.replicator.pipelines.run_records import PipelineRecord, RunRecord, load_pipeline
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.config.connections import LogSettings
from pgsluice.shared.config.settings import PipelineSettings, PostgresSettings
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.process.retrying import DEFAULT_POLICY
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.snapshot_message import split_snapshot_body
from pgsluice.worker.batches.broker_connection import OwnConnection
from pgsluice.worker.batches.snapshot_reader import CopiedBody, SnapshotReader
from tests.servers import Database, NatsServer

TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, v text, updated_at timestamptz DEFAULT now())"


class PipelineUnderTest:
    """Reads public.t, which ``TABLE`` makes. ``change`` has it be another pipeline from then on."""

    def __init__(self, group: str, source: Database, nats: NatsServer) -> None:
        self.source = source
        self.settings = PipelineSettings(
            file="",
            log=LogSettings("INFO", "text"),
            nats=nats.settings(),
            source=source.settings,
            schema="public",
            stream=StreamSettings(1, (), 256 << 20, "none", 86_400.0),
            spark={"spark.master": "local[2]", "spark.driver.memory": "512m"},
            retry=DEFAULT_POLICY,
        )
        self.pipeline = Pipeline(
            name="ratings",
            group=group,
            query="SELECT id, v, updated_at FROM t",
            schema="public",
            table="copied",
            key=("id",),
            mode=RunMode.INCREMENTAL,
            incremental_key="updated_at",
        )

    def change(self, **fields: Any) -> None:
        self.pipeline = replace(self.pipeline, **fields)

    def change_role(self, role: str) -> None:
        source = replace(self.settings.source, user=role)
        assert isinstance(source, PostgresSettings)
        self.settings = replace(self.settings, source=source)

    def run(self, *, full: bool = False) -> RunRecord:
        return run(self.settings, self.pipeline, full=full, wait=False)

    def plan(self, *, full: bool = False) -> RunPlan:
        return plan(self.settings, self.pipeline, full=full)

    def record(self) -> PipelineRecord:
        """Of the pipeline, which has run."""

        async def load(client: Client) -> PipelineRecord | None:
            return await load_pipeline(StateBucket(client, GroupNames(self.pipeline.group)))

        connection = OwnConnection(self.settings.nats, self.pipeline.group)
        try:
            found = connection.ask(load)
        finally:
            connection.close()
        assert found is not None
        return found

    def bodies(self) -> list[CopiedBody]:
        """All that the stream holds."""
        connection = OwnConnection(self.settings.nats, self.pipeline.group)
        try:
            state = connection.ask(lambda client: SnapshotStream(client, connection.names).state())
            assert state is not None
            reader = SnapshotReader(connection)
            return list(reader.bodies(state.first_sequence, state.last_sequence)) if state.messages else []
        finally:
            connection.close()

    def lines(self) -> list[bytes]:
        """Rows in the stream, in its order."""
        found: list[bytes] = []
        for body in self.bodies():
            _, text = split_snapshot_body(body.data)
            found += bytes(text).split(b"\n")[:-1]
        return found

    def merged(self) -> dict[bytes, bytes]:
        """The target: the newest line of each key."""
        return {line.split(b"\t")[0]: line for line in self.lines()}

    def expected(self) -> dict[bytes, bytes]:
        """What the query gives now."""
        connection = self.source.connect()
        with connection, connection.cursor() as cursor:
            connection.execute("SET timezone = 'UTC'")
            with cursor.copy(f"COPY ({self.pipeline.query}) TO STDOUT".encode()) as copy:
                lines = b"".join(map(bytes, copy)).split(b"\n")[:-1]
        return {line.split(b"\t")[0]: line for line in lines}
