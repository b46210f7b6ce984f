"""What a walsender sends arrives whole, in order and once, whether we read it off the socket or libpq does."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from pgsluice.replicator.source.copy_both import LibpqCopyBoth, PlainCopyBoth, end_error
from pgsluice.replicator.source.copy_data import (
    COPY_DATA,
    FRAME_OFFSET,
    KIND_OFFSET,
    PASSED_OVER,
    XLOG_DATA,
    Keepalive,
    WantedMessages,
)
from pgsluice.replicator.source.walsender import WalSender
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import PgsluiceError, TransientError
from pgsluice.shared.wire.position import LSN, parse_lsn
from tests.replicator import frames
from tests.replicator.source.received import messages
from tests.replicator.source.scripted_walsender import COPY_BOTH, error, message, scripted_walsender
from tests.servers import Database, PostgresServer
from tests.servers.child import PrivateDirectory, unprivileged_user
from tests.servers.tls_proxy import TlsProxy
from tests.waiting import wait_until_async

WAYS = pytest.mark.parametrize("way", ["plain", "libpq"])


@pytest.fixture
def changes(source_database: Database) -> Database:
    """A table, its publication "p" and slots of both ways before its first change."""
    return prepared(source_database)


def prepared(source: Database) -> Database:
    source.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t")
    for way in ("plain", "libpq"):
        source.execute(f"SELECT pg_create_logical_replication_slot('{slot_of(way, source)}', 'pgoutput')")
    return source


def slot_of(way: str, source: Database) -> str:
    return f"{way}_{source.dbname}"


@asynccontextmanager
async def streaming(settings: PostgresSettings, slot: str, way: str = "plain") -> AsyncIterator[WalSender]:
    """``way`` is forced on a connection that could go the other one."""
    walsender = await WalSender.connect(settings)
    try:
        if way == "libpq":

            async def yes() -> bool:
                return True

            walsender._is_encrypted = yes  # type: ignore[method-assign]
        await walsender.start(slot, "p", LSN(0))
        yield walsender
    finally:
        await walsender.close()


async def frames_until(walsender: WalSender, is_end: Callable[[bytes], bool]) -> list[bytes]:
    """The pgoutput messages up to the one that ``is_end``, which is the last of what arrived. Raises why the stream ended."""
    found: list[bytes] = []
    async for sent in messages(walsender):
        if sent[0] != COPY_DATA:
            if sent[0] not in PASSED_OVER:
                raise end_error(sent)
        elif sent[KIND_OFFSET] == XLOG_DATA:
            found.append(sent[FRAME_OFFSET:])
            if is_end(found[-1]):
                break
        elif (keepalive := Keepalive.decode(sent[KIND_OFFSET:])).reply_requested:
            walsender.send_status(keepalive.wal_end, keepalive.wal_end, reply=False)
    return found


def commits(count: int) -> Callable[[bytes], bool]:
    left = iter(range(count - 1, -1, -1))
    return lambda frame: frame[:1] == b"C" and next(left) == 0


async def received(settings: PostgresSettings, slot: str, way: str, count: int) -> list[bytes]:
    async with streaming(settings, slot, way) as walsender:
        assert isinstance(walsender.stream, PlainCopyBoth if way == "plain" else LibpqCopyBoth)
        return await asyncio.wait_for(frames_until(walsender, commits(count)), 60)


def test_both_ways_give_the_same_bytes(changes: Database) -> None:
    with changes.connect() as connection:
        connection.execute("ALTER TABLE t SET (autovacuum_enabled = off)")  # which would have Relation messages sent again
        connection.execute("INSERT INTO t SELECT n, repeat('x', n % 500) FROM generate_series(1, 50000) n")
        connection.execute("DO $$BEGIN FOR n IN 1..2000 LOOP UPDATE t SET v = 'y' WHERE id = n; COMMIT; END LOOP; END$$")
        connection.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
        connection.execute("UPDATE t SET v = repeat('z', 3 << 20) WHERE id <= 3")
        connection.execute("TRUNCATE t")
    plain, libpq = (asyncio.run(received(changes.settings, slot_of(way, changes), way, 2003)) for way in ("plain", "libpq"))
    kinds = Counter(frame[:1] for frame in plain)
    assert (kinds[b"B"], kinds[b"I"], kinds[b"U"], kinds[b"T"], kinds[b"C"]) == (2003, 50_000, 2003, 1, 2003)
    assert plain == libpq


def test_a_unix_socket_is_read_too() -> None:
    directory = PrivateDirectory("socket", unprivileged_user())
    try:
        with PostgresServer({"unix_socket_directories": str(directory.path)}) as server:
            source = prepared(server.create_database("source"))
            source.execute("INSERT INTO t SELECT n, 'v' FROM generate_series(1, 20000) n")
            local = replace(source.settings, host=str(directory.path))
            found = asyncio.run(received(local, slot_of("plain", source), "plain", 1))
            assert len(found) == 20_003
    finally:
        directory.remove()


def test_what_is_encrypted_is_read_through_libpq(changes: Database, tmp_path: Path) -> None:
    """Here the server itself knows of no encryption: it ends in front of it."""
    authority, certificates = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(certificates)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    changes.execute("INSERT INTO t SELECT n, 'v' FROM generate_series(1, 20000) n")
    with TlsProxy(changes.server.port, certificates) as proxy:
        settings = replace(changes.settings, port=proxy.port, sslmode="verify-full", sslrootcert=str(tmp_path / "ca.pem"))

        async def receive() -> list[bytes]:
            async with streaming(settings, slot_of("libpq", changes)) as walsender:
                assert isinstance(walsender.stream, LibpqCopyBoth)
                return await asyncio.wait_for(frames_until(walsender, commits(1)), 60)

        assert len(asyncio.run(receive())) == 20_003


def confirmed_lsn(source: Database, slot: str) -> LSN:
    [(text,)] = source.execute("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", [slot])
    return parse_lsn(text)


@WAYS
def test_the_slot_is_confirmed_while_a_large_transaction_waits_for_us(changes: Database, way: str) -> None:
    slot = slot_of(way, changes)
    changes.execute("INSERT INTO t VALUES (0, 'first')")
    [(text,)] = changes.execute("SELECT pg_current_wal_insert_lsn()::text")
    changes.execute("INSERT INTO t SELECT n, repeat('v', 1000) FROM generate_series(1, 60000) n")

    async def confirm() -> None:
        async with streaming(changes.settings, slot, way) as walsender:
            await frames_until(walsender, commits(1))  # and nothing is read after it: the server's socket is full

            async def is_confirmed() -> bool:
                walsender.send_status(parse_lsn(text), parse_lsn(text), reply=False)
                return await asyncio.to_thread(confirmed_lsn, changes, slot) == parse_lsn(text)

            await wait_until_async(is_confirmed, what="the slot to be confirmed")

    asyncio.run(confirm())


async def end_of(settings: PostgresSettings, slot: str, way: str, end: Callable[[], object]) -> PgsluiceError:
    """Why the stream ended after ``end`` began to end it."""
    async with streaming(settings, slot, way) as walsender:
        await frames_until(walsender, commits(1))
        ending = asyncio.ensure_future(asyncio.to_thread(end))
        with pytest.raises(PgsluiceError) as raised:
            await asyncio.wait_for(frames_until(walsender, commits(1)), 120)
        await ending
        await use_ended(walsender)
        return raised.value


async def use_ended(walsender: WalSender) -> None:
    """As those do that have not heard yet of the end: they learn of it by an error of ours, or later."""
    if isinstance(walsender.stream, PlainCopyBoth):
        walsender.send_status(LSN(0), LSN(0), reply=True)  # why it ended is for the reader to say
    for use in (lambda: walsender.send_status(LSN(0), LSN(0), reply=True), walsender.stream.receive):
        with suppress(TransientError):
            use()
    with suppress(TransientError):
        await walsender.wait_readable()
    await walsender.finish(patience_s=60)


@WAYS
def test_a_walsender_that_is_terminated_says_so(changes: Database, way: str) -> None:
    slot = slot_of(way, changes)
    changes.execute("INSERT INTO t VALUES (1, 'v')")
    terminate = f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'"
    error = asyncio.run(end_of(changes.settings, slot, way, lambda: changes.execute(terminate)))
    assert type(error) is TransientError
    assert "replication failed: terminating connection due to administrator command (SQLSTATE 57P01)" in str(error)


@WAYS
@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (signal.SIGINT, "the server ended the replication stream"),
        (signal.SIGQUIT, "replication"),
        (signal.SIGKILL, "the replication connection broke"),
    ],
)
def test_a_server_that_stops_is_a_reason_to_try_again(way: str, number: int, sentence: str) -> None:
    with PostgresServer() as server:
        source = prepared(server.create_database("source"))
        source.execute("INSERT INTO t VALUES (1, 'v')")
        stop = server.kill if number == signal.SIGKILL else lambda: server.stop(number)
        error = asyncio.run(end_of(source.settings, slot_of(way, source), way, stop))
        assert type(error) is TransientError
        assert sentence in str(error)


@WAYS
def test_a_slot_that_is_not_there_or_in_use_is_told_before_the_stream(changes: Database, way: str) -> None:
    async def start(slot: str) -> str:
        with pytest.raises(PgsluiceError) as raised:
            async with streaming(changes.settings, slot, way):
                pass
        return str(raised.value)

    async def start_twice() -> str:
        async with streaming(changes.settings, slot_of(way, changes), way):
            return await start(slot_of(way, changes))

    assert "the replication slot is gone" in asyncio.run(start("nowhere"))
    assert "SQLSTATE 55006" in asyncio.run(start_twice())


def scripted(pieces: Sequence[bytes], count: int) -> list[bytes]:
    async def receive(settings: PostgresSettings) -> list[bytes]:
        async with streaming(settings, "slot") as walsender:
            return await asyncio.wait_for(frames_until(walsender, commits(count)), 120)

    with scripted_walsender(pieces) as settings:
        return asyncio.run(receive(settings))


TRANSACTION = [frames.begin(100), frames.insert(b"v"), frames.commit(100)]
STREAM = b"".join(map(frames.xlog_data, TRANSACTION))
NOTICE = message(b"N", b"SNOTICE\0\0")


def test_what_comes_with_the_answer_or_between_changes_is_not_lost() -> None:
    setting = message(b"S", b"TimeZone\0UTC\0")
    assert (
        scripted([NOTICE + COPY_BOTH + STREAM[:50], STREAM[50:] + setting + NOTICE[:3], NOTICE[3:] + STREAM], 2)
        == TRANSACTION * 2
    )


def test_the_stream_may_arrive_byte_by_byte() -> None:
    data = COPY_BOTH + STREAM + NOTICE + STREAM
    assert scripted([data[n : n + 1] for n in range(len(data))], 2) == TRANSACTION * 2


@pytest.mark.parametrize(
    ("last", "sentence"),
    [
        (error("57P01", "it is over"), "replication failed: it is over (SQLSTATE 57P01)"),
        (message(b"c", b""), "the server ended the replication stream"),
        (message(b"C", b"COPY 0\0"), "the server ended the replication stream"),
        (message(b"Z", b"I"), "the replication connection broke (the server sent a message of kind 0x5a)"),
        (b"?", "the replication connection broke (the server sent a message of kind 0x3f)"),
        (b"d\0\0\0\1", "the replication connection broke (the server sent a message of 1 bytes)"),
        (b"", "the replication connection broke (consuming input failed: server closed the connection unexpectedly"),
        (frames.xlog_data(b"I")[:20], "the replication connection broke (consuming input failed: server closed the connection"),
    ],
    ids=["error", "CopyDone", "CommandComplete", "another kind", "no kind", "no length", "nothing", "half a message"],
)
def test_what_ends_a_stream_is_told_after_everything_before_it(last: bytes, sentence: str) -> None:
    assert scripted([COPY_BOTH + STREAM + last], 1) == TRANSACTION
    with pytest.raises(TransientError) as raised:
        scripted([COPY_BOTH, STREAM + last], 2)
    assert sentence in str(raised.value)


WANTED = WantedMessages(b"ours", most_bytes=100, kept_bytes=20)


def logical(prefix: bytes, content: bytes) -> bytes:
    return xlog_data(b"M\1" + bytes(8) + prefix + b"\0" + len(content).to_bytes(4, "big") + content)


def xlog_data(frame: bytes) -> bytes:
    return message(b"d", b"w" + bytes(24) + frame)


SENT = [
    xlog_data(b"I" + b"a" * 300),
    logical(b"theirs", b"b" * 5000),
    logical(b"ours", b"c" * 100),
    logical(b"our", b"d" * 300),
    logical(b"ours", b"e" * 101),
    logical(b"ourselves", b""),
    logical(b"o" * 1000, b"f"),
    logical(b"ours", b"g" * 5000),
    xlog_data(b"I" + b"h" * 5000),
]


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 31, 64, 1000])
def test_unwanted_logical_messages_are_thrown_away_wherever_they_are_cut(
    piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsluice.replicator.source.copy_both.READ_BYTES", piece_bytes)
    with scripted_walsender([COPY_BOTH, *SENT, error("57P01", "bye")]) as settings:
        found = asyncio.run(taken(settings))
    frames = [each[FRAME_OFFSET:] for each in found if each[FRAME_OFFSET] != ord("M") or WANTED.has(each, 0)]
    rows = [sent[FRAME_OFFSET:] for sent in (SENT[0], SENT[-1])]
    contents = [frame.rpartition(b"ours\0")[2][4:] for frame in frames[1:-1]]
    assert [frames[0], frames[-1]] == rows
    assert [each.rstrip(each[:1]) for each in contents] == [b"", b"", b""]
    assert [len(each) for each in contents] in ([100, 20, 20], [100, 101, 20])  # one that is there whole is not cut
    assert all(int.from_bytes(frame[15:19], "big") == len(content) for frame, content in zip(frames[1:-1], contents, strict=True))
    assert all(len(each) <= 2 * piece_bytes for each in found if each[FRAME_OFFSET] == ord("M") and not WANTED.has(each, 0))


async def taken(settings: PostgresSettings) -> list[bytes]:
    """The messages that came."""
    walsender, found = await WalSender.connect(settings), list[bytes]()
    try:
        await walsender.start("slot", "p", LSN(0), wanted=WANTED)
        async for each in messages(walsender):
            if each[0] != COPY_DATA:
                break
            found.append(each)
    finally:
        await walsender.close()
    return found
