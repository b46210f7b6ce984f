"""The NATS sink when it publishes a derived group: raw group, rules, normalised group, and any sinks after that.

A message of the source's stream becomes at most one of the group's, with the state in its headers; large ones go in
chunks. Positions keep the source's commit LSNs, and count the remaining changes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from nats.aio.client import Client

from pgsluice.rules.transformation_files import load_transformation
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.change_retention import INTERVAL_S, newest_before
from pgsluice.shared.broker.stream_error import CLIENT_ERRORS
from pgsluice.shared.broker.streams import StoredMessage, StreamState
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import TransientError, UsageError
from pgsluice.shared.wire.message import MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.dead_letters.rejection import WriteAgain
from pgsluice.worker.sinks.nats.change_bodies import ChangeBody
from pgsluice.worker.sinks.nats.derived_group import DerivedEnd, DerivedGroup
from pgsluice.worker.sinks.nats.group_writer import GroupWriter, decode_bodies
from pgsluice.worker.sinks.nats.options import NatsSinkSettings
from pgsluice.worker.sinks.nats.outgoing import Outgoing, split_start
from pgsluice.worker.sinks.nats.published_state import PublishedPlace
from pgsluice.worker.sinks.nats.sink import HEADER_BYTES, NatsSink
from pgsluice.worker.sinks.nats.target_stream import TargetStream
from pgsluice.worker.sinks.sink import Applied, DefinitionUse, Lane, PartitionWriter, Receipt


class GroupSink(NatsSink):
    """Holds one body back until the next one comes or the batch ends, as ``NatsSink`` does a unit."""

    def __init__(self, settings: WorkerSettings, nats: NatsSinkSettings) -> None:
        super().__init__(settings, nats)
        self.definitions = DefinitionUse.PASSES_OVER
        self._names = GroupNames(nats.group)
        if nats.group == settings.group:
            raise UsageError("nats-group is the group that the worker reads", "use a separate group")
        self._settings = settings
        self._kept_s = nats.max_age_s
        """Retention in seconds; 0: unlimited. JetStream expires nothing here, because the newest message holds the
        position."""
        self._limits = replace(self._limits, max_age_s=0.0)
        self._looked_at = -INTERVAL_S
        """Time when messages were last removed, or none was old enough."""
        self._derived: DerivedGroup | None = None
        self._end = DerivedEnd()

    def place_names(self) -> None:
        """A group knows its tables by more than their names."""

    def writer(self) -> PartitionWriter:
        self._make_sure()
        place, end = self._place, self._end
        return GroupWriter(str(end.anchor), place.changes, place.copied, self._is_replay, end.is_open)

    def _new_stream(self, client: Client) -> TargetStream:
        source, bucket = StateBucket(client, GroupNames(self._settings.group)), StateBucket(client, self._names)
        self._derived = DerivedGroup(self._names, source, bucket, self._worker)
        return TargetStream(client, self._names.changes_stream, [self._names.changes_subject], "", self._limits)

    async def _check_owner(self, stream: TargetStream) -> None:
        assert self._derived is not None
        await self._derived.check_owner()
        await super()._check_owner(stream)

    async def _begun(self, stream: TargetStream) -> StreamState:
        """The bucket comes after the stream, as a replicator makes them: a worker waits for both."""
        assert self._derived is not None
        transformation = load_transformation(self._settings.rules_file, self._settings.routing_file)
        state = await stream.begin(is_atomic=False)
        await self._derived.begin(self._limits.stream, transformation)
        self._end = DerivedEnd()
        return state

    async def _let_expire(self, stream: TargetStream, last: StoredMessage | None) -> None:
        await super()._let_expire(stream, last)
        await self._remove_old(stream)

    async def _look_again(self, stream: TargetStream) -> None:
        """Checks the stream, and removes old messages: it may be full, and no other process makes room in it."""
        await super()._look_again(stream)
        self._looked_at = -INTERVAL_S
        await self._remove_old(stream)

    async def _remove_old(self, stream: TargetStream) -> None:
        """Removes expired messages, between transactions, but never the newest message."""
        now = time.monotonic()
        if not self._kept_s or now - self._looked_at < INTERVAL_S:
            return
        self._looked_at = now
        state, border = await stream.state(), datetime.now(UTC) - timedelta(seconds=self._kept_s)
        old = None if state is None else await newest_before(stream, border, state.first_sequence, self._end.settled - 1)
        message = None if old is None else await stream.message(old)
        if message is not None:
            await stream.purge_up_to(MessageHeaders.decode(message.headers).settled)

    def _note_end(self, last: StoredMessage | None) -> None:
        self._end = DerivedEnd() if last is None else DerivedEnd.of(last.sequence, last.headers)

    def _publish(self, receipts: Iterable[Receipt], stream_created: str) -> None:
        run, applied = self._loop_thread.run, self._place.applied
        lane, start, held = Lane.CHANGES, None, list[tuple[str, ChangeBody]]()
        for receipt in receipts:
            lane = receipt.lane
            if not self._place.applied.covers(receipt):
                start = self._place.start(lane) if start is None else start
                written_from, sections = split_start(receipt.body)
                if written_from != start:
                    raise WriteAgain
                for body in decode_bodies(sections):
                    run(self._publish_bodies(held, lane))
                    held = [body]
            applied = applied.after(receipt, stream_created)
        run(self._end_batch(held, applied, lane))

    async def _publish_bodies(self, held: list[tuple[str, ChangeBody]], lane: Lane) -> None:
        for place, body in held:
            if body.changes or self._end.is_open:
                await self._publish_body(body, self._place.through(place or self._place.start(lane), lane, 0))

    async def _end_batch(self, held: list[tuple[str, ChangeBody]], applied: Applied, lane: Lane) -> None:
        if applied == self._place.applied:
            return
        reached = self._place.at(applied, lane)
        bodies = [body for _, body in held if body.changes or self._end.is_open]
        await self._publish_body(bodies[0] if bodies else None, reached)
        await self._target.settled()
        await self._remove_old(self._target)
        assert self._derived is not None
        with contextlib.suppress(TransientError):  # the next batch reports it
            await self._derived.tell_tables()
        with contextlib.suppress(*CLIENT_ERRORS):  # waiting readers also poll
            assert self._client is not None
            await self._client.publish(self._names.bell_subject)

    async def _mark(self, place: PublishedPlace) -> None:
        await self._publish_body(None, place)
        await self._target.settled()

    async def _publish_body(self, body: ChangeBody | None, place: PublishedPlace) -> None:
        """Publishes a body. Until its last chunk is stored, the state is the one before."""
        assert self._client is not None
        assert self._derived is not None
        pieces = list(self._end.pieces(body, self._derived.id_prefix, self._client.max_payload - HEADER_BYTES))
        for number, (message, end) in enumerate(pieces, 1):
            reached = self._moved(place) if number == len(pieces) else self._state
            outgoing = Outgoing(self._names.changes_subject.encode(), *message[1:])
            await self._target.publish_alone(outgoing, reached.encode(self._target.sequence + 1))
            self._state, self._end = reached, end
