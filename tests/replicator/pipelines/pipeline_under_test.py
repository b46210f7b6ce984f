"""A pipeline's runs on real servers, and a target that only counts: rows by key, as the stream brings them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from nats.aio.client import Client

from pgsluice.replicator.pipelines.pipeline import Pipeline, RunMode
from pgsluice.replicator.pipelines.pipeline_run import RunPlan, plan, run
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.pipelines.pipeline_settings import PipelineSettings
from pgsluice.shared.pipelines.run_records import PipelineRecord, RunRecord, load_pipeline
from pgsluice.shared.pipelines.run_requests import RUN_REQUESTS, RunRequests
from pgsluice.shared.process.retrying import DEFAULT_POLICY
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.snapshot_message import split_snapshot_body
from pgsluice.worker.batches.broker_connection import OwnConnection
from pgsluice.worker.batches.snapshot_reader import CopiedBody, SnapshotReader
from tests.servers import Database, NatsServer, PgsluiceProcess, PostgresServer
from tests.waiting import wait_until

T = TypeVar("T")

TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, v text, updated_at timestamptz DEFAULT now())"


class PipelineUnderTest:
    """Reads public.t, which ``TABLE`` makes. ``change`` has it be another pipeline from then on."""

    def __init__(self, group: str, source: Database, nats: NatsServer) -> None:
        self.source = source
        self.settings = PipelineSettings(
            nats=nats.settings(),
            source=source.settings,
            schema="public",
            stream=StreamSettings(1, (), 256 << 20, "none", 86_400.0),
            spark={"spark.master": "local[2]", "spark.driver.memory": "512m"},
            retry=DEFAULT_POLICY,
            steps_modules=("tests.replicator.pipelines.steps.example_*",),
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

    def kill(self, run: PgsluiceProcess) -> None:
        """Returns when the source, too, knows that it is gone: until then it holds the pipeline's lock for it."""
        run.kill()
        held = (
            "SELECT FROM pg_stat_activity WHERE application_name = 'pgsluice' AND datname = current_database() AND state = 'idle'"
            " AND pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')"
        )
        wait_until(lambda: not self.source.execute(held), what="the source misses the killed run")

    def change(self, **fields: Any) -> None:
        self.pipeline = replace(self.pipeline, **fields)

    def change_role(self, role: str) -> None:
        source = replace(self.settings.source, user=role)
        assert isinstance(source, PostgresSettings)
        self.settings = replace(self.settings, source=source)

    def run(self, *, full: bool = False, request: str = "") -> RunRecord:
        return run(self.settings, self.pipeline, full=full, wait=False, request=request)

    def plan(self, *, full: bool = False) -> RunPlan:
        return plan(self.settings, self.pipeline, full=full)

    def record(self) -> PipelineRecord:
        """Of the pipeline, which has run."""
        found = self.asked(load_pipeline)
        assert found is not None
        return found

    def requests(self) -> RunRequests:
        return self.asked(RUN_REQUESTS.load)

    def asked(self, call: Callable[[StateBucket], Coroutine[Any, Any, T]]) -> T:
        """What ``call`` gives of the pipeline's state bucket, which is there."""

        async def of_bucket(client: Client) -> T:
            return await call(StateBucket(client, GroupNames(self.pipeline.group)))

        connection = OwnConnection(self.settings.nats, self.pipeline.group)
        try:
            return connection.ask(of_bucket)
        finally:
            connection.close()

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


@contextmanager
def new_pipeline(server: PostgresServer, nats: NatsServer) -> Iterator[PipelineUnderTest]:
    """With a database and a group of its own."""
    name = uuid.uuid4().hex[:12]
    source = server.create_database(f"source_{name}")
    source.execute(TABLE)
    try:
        yield PipelineUnderTest(f"test-{name}", source, nats)
    finally:
        source.drop()
