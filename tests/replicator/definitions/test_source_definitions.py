"""Tables as they were where their rows are, though the catalog is further on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random

import pytest
import pytest_asyncio

from pgsluice.replicator.definitions import source_definitions
from pgsluice.replicator.definitions.consequences import Consequences
from pgsluice.replicator.definitions.source_definitions import SourceDefinitions, Taken
from pgsluice.replicator.definitions.store import HistoryStore
from pgsluice.replicator.source.relation_catalog import RelationCatalog
from pgsluice.replicator.source.source import Source
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.definition_log import DefinitionLog, LoggedDefinition, load_log
from pgsluice.shared.broker.published_tables import SeenTables
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.pgoutput import decode_message
from pgsluice.shared.pgoutput.encoder import encode_message
from pgsluice.shared.pgoutput.messages import LogicalMessage, Relation, RelationColumn
from pgsluice.shared.wire.definition import DefinitionEvent, DefinitionMessage, TableDefined, TableDefinition, TableGone
from pgsluice.shared.wire.message import DDL_PREFIX
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import Table
from tests.servers import Database, NatsServer
from tests.worker.definitions.definitions_of import NOTE, TABLE, column, partition

pytestmark = pytest.mark.asyncio
TOKEN = "s3cret"
COMMITTED_AT = 1_000_000
SETTINGS = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 20, compression="none", retention_s=60)


def position(commit_lsn: int, ordinal: int) -> Position:
    return Position(LSN(commit_lsn), ordinal)


def emitted(event: DefinitionEvent, group: str, token: str = TOKEN) -> bytes:
    content = DefinitionMessage(token, event).encode()
    return encode_message(LogicalMessage(True, LSN(1), GroupNames(group).definitions_prefix, content))


def relation_of(table: TableDefinition) -> Relation:
    columns = tuple(RelationColumn(c.number in table.identity_columns, c.name, c.type_oid, c.typmod) for c in table.columns)
    return Relation(table.oid, table.schema, table.name, table.replica_identity, columns)


def published(taken: Taken | None) -> PublishedDefinition | None:
    assert taken is not None
    frame = taken.frame
    if frame is None:
        return None
    message = decode_message(frame)
    assert isinstance(message, LogicalMessage)
    assert message.prefix == DDL_PREFIX
    assert TOKEN.encode() not in frame
    assert b"n3w" not in frame
    definition = PublishedDefinition.decode(message.content)
    assert definition is not None
    return definition


class Sessions:
    """The source and the broker of a test; each ``begin`` is a session that knows what the bucket holds."""

    def __init__(self, settings: PostgresSettings, source: Source, bucket: StateBucket, group: str) -> None:
        self._settings = settings
        self.group = group
        self.bucket = bucket
        self._source = source
        self.token_now = TOKEN

    async def begin(self, token: str = TOKEN) -> SourceDefinitions:
        names, store = GroupNames(self.group), HistoryStore(self.bucket)
        catalog = RelationCatalog(self._source, names)
        histories, published_before = await store.load(), await store.load_log()
        seen = await SeenTables.load(self.bucket)
        consequences = Consequences(self._settings, None, frozenset, asyncio.Event())
        return SourceDefinitions(
            catalog, store, histories, published_before, names.definitions_prefix, token, consequences, seen, self._read_token
        )

    async def _read_token(self) -> str:
        return self.token_now


@pytest_asyncio.fixture
async def sessions(source_database: Database, nats_server: NatsServer, group: str) -> AsyncIterator[Sessions]:
    source_database.execute(f'CREATE PUBLICATION "{GroupNames(group).publication}"')
    source = await Source.connect(source_database.settings)
    async with connected(nats_server.settings(), "test") as client:
        bucket = StateBucket(client, GroupNames(group))
        await bucket.ensure(SETTINGS)
        yield Sessions(source_database.settings, source, bucket, group)
    await source.close()


XID = 700  # of a transaction that is long over

WIDER = replace(TABLE, columns=(*TABLE.columns, replace(column(3, "more"), type_name="character varying(7)")))


async def described(definitions: SourceDefinitions, table: TableDefinition, at: Position) -> Table:
    return await definitions.describe(relation_of(table), at, XID)


async def test_a_row_is_described_by_the_definition_before_it_also_when_a_session_goes_back(sessions: Sessions) -> None:
    definitions = await sessions.begin()
    first = published(
        await definitions.take(emitted(TableDefined("note", TABLE), sessions.group), position(100, 1), COMMITTED_AT)
    )
    second = published(
        await definitions.take(emitted(TableDefined("ALTER TABLE", WIDER), sessions.group), position(200, 2), COMMITTED_AT)
    )
    assert first == PublishedDefinition(TableDefined("note", TABLE), None)
    assert second == PublishedDefinition(TableDefined("ALTER TABLE", WIDER), TABLE)
    await definitions.flush(LSN(0))
    for session in (definitions, await sessions.begin()):
        earlier = await described(session, TABLE, position(200, 1))
        later = await described(session, WIDER, position(200, 3))
        assert [c.type_name for c in earlier.columns] == ["bigint", "text"]
        assert [(c.type_name, c.number) for c in later.columns] == [("bigint", 1), ("text", 2), ("character varying(7)", 3)]
        assert earlier.key == later.key == (0,)
        again = published(
            await session.take(emitted(TableDefined("ALTER TABLE", WIDER), sessions.group), position(200, 2), COMMITTED_AT)
        )
        assert again == second


async def test_what_the_slot_has_passed_is_forgotten_but_for_the_newest(sessions: Sessions) -> None:
    definitions = await sessions.begin()
    for commit_lsn in (100, 200, 300):
        table = replace(TABLE, filenode=commit_lsn)
        await definitions.take(emitted(TableDefined("ALTER TABLE", table), sessions.group), position(commit_lsn, 1), COMMITTED_AT)
    await definitions.flush(LSN(250))
    [history] = (await HistoryStore(sessions.bucket).load()).values()
    assert [version.position for version in history.versions] == [position(200, 1), position(300, 1)]


async def test_a_message_that_somebody_else_emitted_keeps_its_ordinal_and_says_nothing(sessions: Sessions) -> None:
    definitions = await sessions.begin()
    altered = TableDefined("ALTER TABLE", WIDER)
    forged = encode_message(LogicalMessage(True, LSN(1), GroupNames(sessions.group).definitions_prefix, b"DROP TABLE t"))
    for session in (definitions, definitions, await sessions.begin()):
        for ordinal, frame in enumerate((emitted(altered, sessions.group, token="guessed"), forged), 1):
            assert published(await session.take(frame, position(100, ordinal), COMMITTED_AT)) is None
        await session.flush(LSN(0))
        assert (await load_log(sessions.bucket)).forged.count == 2
    uncaptured = await sessions.begin(token="")
    assert published(await uncaptured.take(emitted(altered, sessions.group, token=""), position(100, 1), COMMITTED_AT)) is None
    await uncaptured.flush(LSN(0))
    assert await HistoryStore(sessions.bucket).load() == {}
    assert (await load_log(sessions.bucket)).forged.count == 2


async def test_messages_that_are_not_the_groups_are_none_of_its_changes(sessions: Sessions) -> None:
    definitions = await sessions.begin()
    event = TableGone("DROP TABLE", TABLE.oid, "public", "t")
    untransactional = LogicalMessage(False, LSN(1), GroupNames(sessions.group).definitions_prefix, b"")
    for frame in (emitted(event, "another"), encode_message(untransactional)):
        assert await definitions.take(frame, position(100, 1), COMMITTED_AT) is None
    await definitions.flush(LSN(0))
    assert await load_log(sessions.bucket) == DefinitionLog()


async def test_a_table_is_told_with_what_it_was_when_it_goes(sessions: Sessions) -> None:
    definitions = await sessions.begin()
    await definitions.take(emitted(TableDefined("note", TABLE), sessions.group), position(100, 1), COMMITTED_AT)
    gone = TableGone("DROP TABLE", TABLE.oid, "public", "t")
    assert published(
        await definitions.take(emitted(gone, sessions.group), position(200, 1), COMMITTED_AT)
    ) == PublishedDefinition(gone, TABLE)


async def test_the_catalog_speaks_where_nothing_was_told_or_something_else(sessions: Sessions, source_database: Database) -> None:
    source_database.execute("CREATE TABLE t (id bigint PRIMARY KEY, note text NOT NULL)")
    [(oid,)] = source_database.execute("SELECT 't'::regclass::oid::bigint")
    there = replace(TABLE, oid=oid)
    definitions = await sessions.begin()
    told_nothing = await described(definitions, there, position(100, 1))
    renamed = replace(there, columns=(there.columns[0], replace(NOTE, name="remark")))
    await definitions.take(emitted(TableDefined("ALTER TABLE", renamed), sessions.group), position(100, 1), COMMITTED_AT)
    told_otherwise = await described(definitions, there, position(200, 1))
    for table in (told_nothing, told_otherwise):
        assert [(c.name, c.not_null, c.number) for c in table.columns] == [("id", True, 1), ("note", True, 2)]


async def test_a_history_that_cannot_be_read_is_named_with_a_way_out(sessions: Sessions) -> None:
    await sessions.bucket.put("schema.16400", {"name": "public.t", "versions": "nonsense"})
    with pytest.raises(TerminalError, match=r"schema\.16400.*delete the key"):
        await sessions.begin()


async def test_what_is_published_is_in_the_log_before_and_once_whoever_goes_back(sessions: Sessions) -> None:
    """But for what a table was like to begin with, which altered nothing."""
    defaulted = replace(WIDER, columns=(*WIDER.columns[:2], replace(WIDER.columns[2], missing="secret")))
    for session in (await sessions.begin(), await sessions.begin()):
        await session.take(emitted(TableDefined("note", TABLE), sessions.group), position(100, 1), COMMITTED_AT)
        await session.take(emitted(TableDefined("ALTER TABLE", defaulted), sessions.group), position(200, 2), COMMITTED_AT)
        await session.flush(LSN(0))
        [logged] = (await load_log(sessions.bucket)).definitions
        assert logged == LoggedDefinition(
            position(200, 2),
            "2000-01-01T00:00:01+00:00",
            "ALTER TABLE",
            TABLE.oid,
            "public.t",
            ("added column more character varying(7)",),
        )


async def test_a_table_that_was_altered_and_not_told_of_is_counted_once(sessions: Sessions, source_database: Database) -> None:
    source_database.execute("CREATE TABLE t (id bigint PRIMARY KEY, note text)")
    [(oid,)] = source_database.execute("SELECT 't'::regclass::oid::bigint")
    there = replace(TABLE, oid=oid)
    renamed = replace(there, columns=(there.columns[0], replace(NOTE, name="remark")))
    for _ in range(2):
        session = await sessions.begin()
        await session.take(emitted(TableDefined("note", renamed), sessions.group), position(100, 1), COMMITTED_AT)
        await described(session, there, position(200, 1))
        await session.flush(LSN(0))
        assert (await load_log(sessions.bucket)).missed.count == 1


async def test_partitions_that_one_transaction_makes_are_one_definition_at_each_place_of_a_row(sessions: Sessions) -> None:
    definitions = await sessions.begin()
    root = replace(TABLE, kind="p")
    await definitions.take(emitted(TableDefined("note", root), sessions.group), position(100, 1), COMMITTED_AT)
    made = [partition(number, f"p{number}") for number in range(20_000, 20_500)]
    taken = []
    for ordinal, each in enumerate(made, start=1):
        ordinal += ordinal > 250  # a row comes between
        event = TableDefined("CREATE TABLE", replace(root, partitions=(each,), adds_partitions=True))
        taken.append(await definitions.take(emitted(event, sessions.group), position(200, ordinal), COMMITTED_AT))
    assert [each is not None and each.supersedes for each in taken] == [False, *[True] * 249, False, *[True] * 249]
    first, second = published(taken[249]), published(taken[499])
    assert first is not None
    assert second is not None
    assert (first.previous, second.previous) == (root, replace(root, partitions=tuple(made[:250])))
    assert second.event == TableDefined("CREATE TABLE", replace(root, partitions=tuple(made)))
    await definitions.flush(LSN(0))
    log = await load_log(sessions.bucket)
    assert [each.position for each in log.definitions] == [position(200, 250), position(200, 501)]
    again = (await HistoryStore(sessions.bucket).load())[root.oid]
    assert [version.position for version in again.versions] == [position(100, 1), position(200, 250), position(200, 501)]


async def test_a_history_that_no_message_can_hold_loses_its_oldest_versions(sessions: Sessions) -> None:
    definitions = await sessions.begin()
    random = Random(0)
    for version in range(1, 25):
        columns = tuple(column(n, random.randbytes(31).hex()) for n in range(1, 1601))
        event = TableDefined("ALTER TABLE", replace(TABLE, columns=columns, identity_columns=()))
        await definitions.take(emitted(event, sessions.group), position(100 * version, 1), COMMITTED_AT)
    await definitions.flush(LSN(0))
    kept = (await HistoryStore(sessions.bucket).load())[TABLE.oid].versions
    assert 0 < len(kept) < 24
    assert kept[-1].position == position(2400, 1)


async def test_a_capture_that_was_installed_anew_is_believed_and_so_is_what_the_earlier_one_told(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_definitions, "TOKEN_INTERVAL_S", 0.0)
    definitions = await sessions.begin()
    sessions.token_now = "n3w"
    for ordinal, (token, is_believed) in enumerate((("n3w", True), (TOKEN, True), ("guess", False), ("n3w", True)), start=1):
        event = TableDefined("ALTER TABLE", TABLE)
        taken = await definitions.take(emitted(event, sessions.group, token), position(100, ordinal), COMMITTED_AT)
        assert (published(taken) is not None) == is_believed
    await definitions.flush(LSN(0))
    assert (await load_log(sessions.bucket)).forged.count == 1
