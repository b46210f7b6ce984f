"""Facts about a group from the broker, read when a scrape asks for them: its streams, and its units.

For each unit: its desired state, its state, and the age of its process's last report.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from nats.aio.client import Client

from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream
from pgsluice.shared.broker.ledger import Ledger
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream, Stream
from pgsluice.shared.broker.unit_records import Desired
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.metrics import declared_metrics as metrics
from pgsluice.shared.metrics.asked_looks import AskedLooks
from pgsluice.shared.metrics.metric import Sample
from pgsluice.shared.units.found_units import known_units, read_units
from pgsluice.shared.units.unit_states import State, unit_state
from pgsluice.shared.wire.names import GroupNames

STALE_S = 35.0

log = telemetry.logger(__name__)


class GroupWatch:
    """Used on one event loop, except ``collect``. ``client`` returns the current connection, None without one."""

    def __init__(self, client: Callable[[], Client | None], names: GroupNames) -> None:
        self._client = client
        self._names = names
        self._found: list[Sample] = []
        self._found_at = 0.0
        self._looks = AskedLooks()

    def collect(self) -> list[Sample]:
        """Asks, so any thread but the loop's may call."""
        self._looks.ask()
        return self._found if time.monotonic() - self._found_at < STALE_S else []

    async def run(self) -> None:
        """Runs until it is cancelled."""
        wanted, loop = asyncio.Event(), asyncio.get_running_loop()
        self._looks.begin(lambda: loop.call_soon_threadsafe(wanted.set))
        try:
            while await wanted.wait():
                wanted.clear()
                with self._looks.answering():
                    await self._look()
        finally:
            self._looks.end()

    async def _look(self) -> None:
        client = self._client()
        try:
            if client is not None and client.is_connected:
                self._found = [*await self._streams(client), *await self._units(StateBucket(client, self._names))]
                self._found_at = time.monotonic()
        except PgsluiceError as error:  # errors that must end the process are reported by the session
            log.debug("the group cannot be looked at for metrics", reason=str(error))

    async def _streams(self, client: Client) -> list[Sample]:
        streams: dict[str, Stream] = {
            "changes": ChangeStream(client, self._names),
            "snapshot": SnapshotStream(client, self._names),
            "dead": DeadLetterStream(client, self._names),
        }
        samples = []
        for name, stream in streams.items():
            if (state := await stream.state()) is not None:
                samples += [
                    metrics.STREAM_BYTES.at(state.bytes, name),
                    metrics.STREAM_MAX_BYTES.at(state.max_bytes, name),
                    metrics.STREAM_MESSAGES.at(state.messages, name),
                ]
        return samples

    async def _units(self, bucket: StateBucket) -> list[Sample]:
        if not await bucket.exists():
            return []
        copy = await Ledger(bucket).load_snapshot()
        samples = []
        for facts in await read_units(bucket, await known_units(bucket), copy):
            unit, process = facts.unit, facts.process
            samples += metrics.STATE.one_of(unit_state(facts).state, State, unit)
            samples += metrics.DESIRED.one_of(facts.desired.state, Desired, unit)
            if process is not None and process.exit_code is None:
                samples.append(metrics.UNIT_SILENCE_SECONDS.at(facts.process_age_s, unit))
        return samples
