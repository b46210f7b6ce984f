"""Records as they are decoded, and what every reader of the state bucket does with one of another version, or of nobody's."""

from __future__ import annotations

import asyncio
import base64
import enum
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass

import orjson
import pytest
from nats.aio.client import Client

from pgsluice.console import status
from pgsluice.console.forget import run as forget
from pgsluice.replicator.group_start import read_record
from pgsluice.replicator.membership.membership import Membership, load_membership, store_membership
from pgsluice.replicator.retention import copied_by_all
from pgsluice.replicator.start_checks import check_streaming_alone
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.change_retention import AbsentWorkers, ChangeRetention
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.halt import check_halt, note_halt, read_halt
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, Phase, SnapshotRecord, TableRecord
from pgsluice.shared.broker.published_tables import is_text_unchecked, load_tables, store_tables
from pgsluice.shared.broker.record import MOST_UNPACKED_BYTES, LsnText, MalformedError, TimeText, decode, encode, pack, unpack
from pgsluice.shared.broker.replicator_records import GROUP_KEY, REPLICATOR_KEY, GroupRecord, ReplicatorRecord
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.worker_records import (
    LeaseRecord,
    PositionRecord,
    WorkerReport,
    lease_key,
    position_key,
    read_reports,
    worker_key,
)
from pgsluice.shared.config.settings import GroupSettings, LogSettings, StatusSettings
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import HistoryError, TerminalError
from pgsluice.shared.wire.message import MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.worker.batches.ownership import OwnershipLedger
from pgsluice.worker.positions.bucket import BucketPositions
from pgsluice.worker.positions.lease import Lease
from pgsluice.worker.positions.report import check_report
from pgsluice.worker.positions.target import find_drain_target
from pgsluice.worker.sinks.sink import NOTHING_APPLIED
from tests.replicated_group import Group
from tests.servers import NatsServer

NOW = "2026-01-31T12:00:00+00:00"
STREAM = StreamSettings(1, (), 1 << 20, "none", 0)
HEADERS = MessageHeaders(Position(LSN(1), 1), Position(LSN(1), 1), LSN(1), settled=1, total_bytes=1)


class Colour(enum.StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Part:
    count: int


@dataclass(frozen=True, slots=True)
class Whole:
    name: str
    colour: Colour
    lsn: LsnText
    at: TimeText | None = None
    parts: tuple[Part, ...] = ()
    pairs: tuple[tuple[bool, int], ...] = ()
    is_new: bool = False


WHOLE = Whole("a", Colour.RED, "0/1", NOW, (Part(1), Part(2)), ((True, 1),), is_new=True)


def test_a_record_is_decoded_as_it_was_encoded_and_unknown_fields_are_passed_over() -> None:
    assert decode(Whole, encode(WHOLE)) == WHOLE
    newer = asdict(WHOLE) | {"added": {"x": 1}, "parts": [{"count": 1, "added": 7}, {"count": 2}]}
    assert decode(Whole, orjson.dumps(newer)) == WHOLE


def test_fields_with_a_default_may_be_missing_and_an_empty_text_is_no_place_yet() -> None:
    assert decode(Whole, b'{"name": "a", "colour": "red", "lsn": ""}') == Whole("a", Colour.RED, "")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"nonsense", "it is not JSON"),
        (b"[1]", "it is not a JSON object"),
        (b'{"name": "a", "lsn": ""}', "colour is missing"),
        (b'{"name": 1, "colour": "red", "lsn": ""}', "name is not of type str"),
        (b'{"name": "a", "colour": "sour", "lsn": ""}', "colour has a value that is not known"),
        (b'{"name": "a", "colour": ["red"], "lsn": ""}', "colour has a value that is not known"),
        (b'{"name": "a", "colour": "red", "lsn": "zero"}', "lsn has a value that is not known"),
        (b'{"name": "a", "colour": "red", "lsn": "", "at": "now"}', "at has a value that is not known"),
        (b'{"name": "a", "colour": "red", "lsn": "", "parts": 1}', "parts is not of type tuple"),
        (b'{"name": "a", "colour": "red", "lsn": "", "parts": [1]}', r"parts\[0\] is not a JSON object"),
        (b'{"name": "a", "colour": "red", "lsn": "", "parts": [{"count": true}]}', r"parts\[0\]\.count is not of type int"),
        (b'{"name": "a", "colour": "red", "lsn": "", "pairs": [[true]]}', r"pairs\[0\] is not of type tuple"),
        (b'{"name": "a", "colour": "red", "lsn": "", "is_new": 1}', "is_new is not of type bool"),
    ],
)
def test_what_is_no_such_record_is_refused_with_the_field(value: bytes, reason: str) -> None:
    with pytest.raises(MalformedError, match=reason):
        decode(Whole, value)


def test_packed_content_is_unpacked_or_refused() -> None:
    assert unpack(pack([WHOLE])) == [asdict(WHOLE) | {"parts": [{"count": 1}, {"count": 2}], "pairs": [[True, 1]]}]
    for text in ("?", "bm90IHppcHBlZA==", pack(1)[:-6]):
        with pytest.raises(MalformedError):
            unpack(text)


def test_packed_content_that_grows_beyond_all_measure_takes_no_memory() -> None:
    packed = base64.b64encode(zlib.compress(b" " * (MOST_UNPACKED_BYTES + 1))).decode()
    assert len(packed) < MOST_UNPACKED_BYTES / 500
    with pytest.raises(MalformedError, match=f"more than {MOST_UNPACKED_BYTES} bytes"):
        unpack(packed)


@dataclass(frozen=True, slots=True)
class Place:
    """A group's broker, as a reader finds it."""

    client: Client
    nats: NatsServer
    group: str
    bucket: StateBucket

    @property
    def stream(self) -> ChangeStream:
        return ChangeStream(self.client, GroupNames(self.group))

    async def status(self) -> None:
        settings = StatusSettings(self.group, LogSettings("INFO", "text"), self.nats.settings(), None)
        await asyncio.to_thread(status.run, settings, as_json=True)

    async def position(self) -> None:
        positions = BucketPositions(self.nats.settings(), self.group, "w")
        try:
            await asyncio.to_thread(positions.load)
        finally:
            await asyncio.to_thread(positions.close)

    async def lease(self) -> None:
        lease = Lease(self.bucket, "w")
        await asyncio.wait_for(lease.acquire(lambda _: None), 120)
        await lease.release()

    async def forget(self) -> None:
        settings = GroupSettings(self.group, LogSettings("INFO", "text"), self.nats.settings())
        await asyncio.to_thread(forget, settings, "w", dead_letters=False)

    async def halt(self) -> None:
        with pytest.raises(HistoryError, match="the source went back"):
            await check_halt(self.bucket)


Read = Callable[[Place], Awaitable[object]]

MEMBERSHIP = Membership("p", 1, "7", ("insert",), True, (), "0/1", NOW)
SNAPSHOT = SnapshotRecord("s", "0/1", CopyState.RUNNING, CopyMode.COPY_AND_STREAM, NOW, "", 0, "7", "shop", "then")
READERS: dict[str, list[Read]] = {
    GROUP_KEY: [lambda place: read_record(place.bucket), Place.status],
    REPLICATOR_KEY: [Place.status],
    "publication": [lambda place: load_membership(place.bucket), Place.status],
    "tables": [lambda place: load_tables(place.bucket), lambda place: is_text_unchecked(place.bucket)],
    "halt": [lambda place: read_halt(place.bucket), Place.halt, Place.status],
    "snapshot": [
        lambda place: Ledger(place.bucket).load(),
        lambda place: OwnershipLedger(place.bucket).current(),
        lambda place: find_drain_target(place.client, GroupNames(place.group), "current"),
        Place.status,
    ],
    "table.17": [
        lambda place: Ledger(place.bucket).load(),
        lambda place: OwnershipLedger(place.bucket).current(),
        Place.status,
    ],
    worker_key("w"): [
        lambda place: read_reports(place.bucket),
        lambda place: ChangeRetention(place.stream, place.bucket, 0).purge(),
        lambda place: AbsentWorkers(place.stream, place.bucket).check(),
        lambda place: copied_by_all(place.bucket),
        Place.status,
    ],
    position_key("w"): [Place.position],
    lease_key("w"): [Place.lease, Place.forget],
}
EVERY_READER = [pytest.param(key, read, id=f"{key}-{i}") for key, readers in READERS.items() for i, read in enumerate(readers)]


@pytest.fixture
async def place(group: str, nats_server: NatsServer) -> AsyncIterator[Place]:
    """With every record there is, and one message for retention to look at."""
    async with connected(nats_server.settings(), "test") as client:
        made = Place(client, nats_server, group, StateBucket(client, GroupNames(group)))
        bucket = made.bucket
        await bucket.ensure(STREAM)
        state = await made.stream.ensure(STREAM)
        await client.jetstream().publish(made.stream.subject, b"x", headers=HEADERS.encode())
        record = GroupRecord(group, "7", 1, "shop", "p", 1, "slot", "0/1", NOW)
        await bucket.put(GROUP_KEY, record)
        await bucket.put(REPLICATOR_KEY, ReplicatorRecord("0/1", state.created, 0))
        await store_membership(bucket, MEMBERSHIP)
        await store_tables(bucket, [], "UTF8")
        await note_halt(bucket, HistoryError("the source went back", "bring it back"))
        await Ledger(bucket).store_snapshot(SNAPSHOT)
        await Ledger(bucket).store_table(TableRecord(17, "public", "t", Phase.FINISHED_COPY, NOW, "s", "0/1"))
        await bucket.put(worker_key("w"), WorkerReport(0, stream_created=state.created, updated_at=NOW))
        await bucket.put(position_key("w"), PositionRecord(0, "0/0", 0, state.created))
        await bucket.put(lease_key("w"), LeaseRecord("elsewhere", 1))
        yield made


@pytest.mark.parametrize(("key", "read"), [each for each in EVERY_READER if not str(each.id).startswith("lease")])
async def test_every_reader_passes_over_a_field_that_a_newer_version_added(place: Place, key: str, read: Read) -> None:
    entry = await place.bucket.get(key)
    assert entry is not None
    await place.bucket.put(key, orjson.loads(entry.value) | {"added_later": [{"x": None}]})
    await read(place)


@pytest.mark.parametrize("value", [b"not JSON", b"17", b"{}"])
@pytest.mark.parametrize(("key", "read"), EVERY_READER)
async def test_every_reader_refuses_what_is_no_record_with_a_sentence(place: Place, key: str, read: Read, value: bytes) -> None:
    bucket = await place.client.jetstream().key_value(place.bucket.name)
    await bucket.put(key, value)
    with pytest.raises(
        TerminalError, match=rf"record {key} of the state bucket {place.bucket.name} is malformed: .*: .+"
    ) as raised:
        await read(place)
    assert raised.value.exit_code == 70


async def test_a_worker_without_a_position_looks_at_its_report(place: Place) -> None:
    await place.bucket.put(worker_key("w"), {"sequence": "many"})
    with pytest.raises(TerminalError, match=r"record worker\.w .* sequence is not of type int"):
        await check_report(place.bucket, "w", NOTHING_APPLIED)


@pytest.mark.parametrize("key", [GROUP_KEY, REPLICATOR_KEY, "publication", "halt"])
def test_a_replicator_starts_beside_an_added_field_and_refuses_what_is_no_record(replication: Group, key: str) -> None:
    replication.replicate()

    async def put(bucket: StateBucket, corrupt: bool) -> None:
        entry = await bucket.get(key)
        content = {} if entry is None or corrupt else orjson.loads(entry.value) | {"added_later": 1}
        if corrupt or entry is not None:
            await bucket.put(key, content)

    replication.with_broker(lambda _, bucket: put(bucket, corrupt=False))
    replication.replicate()
    replication.with_broker(lambda _, bucket: put(bucket, corrupt=True))
    with pytest.raises(TerminalError, match=rf"record {key} of the state bucket .* is malformed: \w+ is missing"):
        replication.replicate()


def test_a_replicator_of_an_earlier_version_publishes_nothing_into_a_group_of_a_newer_one(replication: Group) -> None:
    replication.replicate()

    async def last_sequences(bucket: StateBucket, metadata: dict[str, str] | None = None) -> list[int]:
        jetstream, stream = bucket.client.jetstream(), f"KV_{bucket.name}"
        if metadata is not None:
            await jetstream.update_stream((await jetstream.stream_info(stream)).config, metadata=metadata)
        names = (stream, bucket.names.changes_stream)
        return [(await jetstream.stream_info(name)).state.last_seq for name in names]

    before = replication.with_broker(lambda _, bucket: last_sequences(bucket, {"pgsluice-format": "2"}))
    with pytest.raises(TerminalError, match=r"has format 2, and this version reads 1: .*: install that version again"):
        replication.replicate()
    assert replication.with_broker(lambda _, bucket: last_sequences(bucket)) == before


async def test_a_copy_of_another_form_is_refused_before_anything_is_streamed(place: Place) -> None:
    await place.bucket.put("snapshot", {"state": "running"})
    with pytest.raises(TerminalError, match="record snapshot of the state bucket"):
        await check_streaming_alone(place.bucket)
