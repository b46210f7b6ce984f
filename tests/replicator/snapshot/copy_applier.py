"""A worker that only counts: it reads copied rows with a worker's own reader, in order, and reports where it is."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from types import TracebackType
from typing import Self

from nats.aio.client import Client

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.wire.snapshot_message import split_snapshot_body
from pgsluice.worker.batches.broker_connection import OwnConnection
from pgsluice.worker.batches.snapshot_reader import CopiedBody, SnapshotReader
from tests.waiting import wait_until

QUIET_S = 0.01


class CopyApplier:
    """Applies on a thread of its own until its context ends, at most ``batch`` messages at a time, with ``pause_s`` between.

    ``rows`` are lines of COPY text without their ends, by snapshot and oid, with how often each came.
    """

    def __init__(self, nats: NatsSettings, group: str, name: str = "w", *, batch: int = 1000, pause_s: float = QUIET_S) -> None:
        self._connection = OwnConnection(nats, group)
        self._name = name
        self._batch = batch
        self._pause_s = pause_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: BaseException | None = None
        self.rows: defaultdict[tuple[str, int], Counter[bytes]] = defaultdict(Counter)
        self.applied = 0

    def __enter__(self) -> Self:
        wait_until(lambda: self._connection.ask(self._report), what="the state bucket")
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()
        self._connection.close()
        if self._error is not None:
            raise self._error

    def apply_all(self) -> None:
        """Returns when everything is applied that the stream holds now."""
        last = self._connection.ask(self._last_sequence)
        wait_until(lambda: self._error or self.applied >= last, what=f"message {last} applied")

    def _run(self) -> None:
        try:
            reader = SnapshotReader(self._connection)
            while not self._end.wait(self._pause_s):
                last = min(self._connection.ask(self._last_sequence), self.applied + self._batch)
                if last > self.applied:
                    for body in reader.bodies(self.applied + 1, last):
                        self._apply(body)
                    self.applied = last
                    self._connection.ask(self._report)
        except BaseException as error:  # noqa: BLE001  raised where the context ends
            self._error = error

    def _apply(self, body: CopiedBody) -> None:
        _, text = split_snapshot_body(body.data)
        lines = bytes(text).split(b"\n")[:-1]
        assert len(lines) == body.headers.rows
        self.rows[body.headers.snapshot, body.headers.oid].update(lines)

    async def _last_sequence(self, client: Client) -> int:
        state = await SnapshotStream(client, self._connection.names).state()
        return 0 if state is None else state.last_sequence

    async def _report(self, client: Client) -> bool:
        bucket = StateBucket(client, self._connection.names)
        if await bucket.exists():
            await bucket.put(worker_key(self._name), WorkerReport(0, self.applied))
            return True
        return False
