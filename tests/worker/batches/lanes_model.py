"""A random group, whose tables are added, copied, rewritten and copied again while others change, and a worker that is killed.

Streams, ledger, planner, tasks and positions are the real ones. The source, the copies and the target are a few dictionaries: the
target's tables and the worker's position are moved together by a commit, or not at all when the worker is killed before it.

Two tables are followed from the beginning; after every commit the target must hold them as they were at one commit of the source.
Two more come and go; at the end everything must be equal. No change may be applied twice. Any of them is paused now and then.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from random import Random

from nats.aio.client import Client

from pgsluice.rules.transformation import Transformation
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import CopyState, Ledger, Phase, SnapshotRecord, TableRecord, now
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.shared.wire.message import MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, NO_ANCHOR, Anchor, Position, format_lsn
from pgsluice.shared.wire.snapshot_message import EXPECTED_LAST_SUBJECT_SEQUENCE_HEADER, SnapshotHeaders, encode_table
from pgsluice.shared.wire.table import Table
from pgsluice.testing.changes_builder import Change, delete, insert, table, transaction, update
from pgsluice.worker.batches.broker_connection import BrokerConnection, process_connection
from pgsluice.worker.batches.ownership import OwnershipLedger
from pgsluice.worker.batches.planner import BatchPlanner, Copies, LanePlaces, PlannedBatch, WakeUp
from pgsluice.worker.batches.planning import BatchLimit
from pgsluice.worker.batches.receipts import read_receipts
from pgsluice.worker.batches.task import PartitionTask
from pgsluice.worker.dead_letters.exclusions import Exclusions
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.sinks.lines import json_lines
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, Lane, Partition, Receipt
from tests.worker.encoded_changes import body_of
from tests.worker.published_copy import SETTINGS as SNAPSHOT_STREAM
from tests.worker.published_copy import snapshot_record
from tests.worker.published_stream import STREAM

FOLLOWED = (table("a", "id integer", "v text"), table("b", "id integer", "v text"))
ADDED = (table("t", "id integer", "v text"), table("u", "id integer", "v text"))
TABLES = {each.name: each for each in (*FOLLOWED, *ADDED)}
KEYS = 5
MOST_ATTEMPTS = 4
COMMITS_BEFORE = 6
"""A worker that has applied nothing waits for the copies."""
DRAIN_STEPS = 2000

Rows = dict[int, str]


class WrongError(AssertionError):
    """What the target holds is not what it should."""


@dataclass(frozen=True, slots=True)
class _LineWriter:
    """One receipt of JSON lines."""

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        yield b"".join(line for message in messages for line in json_lines.encode_lines(message))

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        yield b"".join(line for rows in copied for line in json_lines.encode_copied(rows))


@dataclass
class _Copy:
    """Of one table: ``left`` are the rows that are still to be published."""

    record: TableRecord
    left: list[tuple[int, str]] = field(default_factory=list)
    revision: int = 0


class Source:
    """The source and its replicator: each ``step`` does something at random. ``late`` is taken up by ``add_late`` alone."""

    def __init__(self, client: Client, group: str, random: Random, late: Table | None = None) -> None:
        self._late = late
        self.names = GroupNames(group)
        self.rows: dict[str, Rows] = {name: {} for name in TABLES}
        self.history: list[tuple[int, dict[str, Rows]]] = []
        self._client = client
        self._random = random
        self._changes = ChangeStream(client, self.names)
        self._snapshot = SnapshotStream(client, self.names)
        self._bucket = StateBucket(client, self.names)
        self._ledger = Ledger(self._bucket)
        self._round: SnapshotRecord = snapshot_record(CopyState.FINISHED)
        self._published = {each.name for each in FOLLOWED}
        self._copies: dict[str, _Copy] = {}
        self._lsn = 1000
        self._number = 0
        self._anchor = NO_ANCHOR
        self._bytes = 0
        self._before: dict[str, int] = {}
        self.sequence = 0
        self.copied_sequence = 0

    async def begin(self) -> None:
        for part in (self._changes, self._bucket):
            await part.ensure(STREAM)
        await self._snapshot.ensure(SNAPSHOT_STREAM)

    async def step(self) -> None:
        added = None if self._random.random() < 0.55 else self._random.choice(ADDED)
        if added is None or (added == self._late and added.name not in self._copies):
            await self.commit()
            return
        copy = self._copies.get(added.name)
        match None if copy is None else copy.record.phase:
            case None:
                await self._take_up(added)
            case Phase.INIT:
                await self._snapshot_or_wait(added)
            case Phase.DATA_SYNC:
                await self._copy_on(added)
            case Phase.ERRORED:
                await self._again(added)
            case _ if self._random.random() < 0.1:
                await self._again(added)

    async def add_late(self) -> None:
        """All at once: it is to be copied, is published, has a snapshot, and rows of it change."""
        if self._late is None or self._late.name in self._copies:
            return
        await self._take_up(self._late)
        self._published.add(self._late.name)
        await self._export(self._late)
        for _ in range(2 * KEYS):
            await self.commit()

    @property
    def copied(self) -> frozenset[str]:
        """Tables whose rows are all published, or will be."""
        return frozenset(name for name, copy in self._copies.items() if copy.record.phase is Phase.FINISHED_COPY)

    async def finish(self) -> None:
        """Every copy is finished, and some more is written."""
        for added in ADDED:
            copy = self._copies.get(added.name)
            if copy is None:
                continue
            if copy.record.phase is Phase.ERRORED:
                await self._again(added)
            if copy.record.phase is Phase.INIT:
                self._published.add(added.name)
                await self._export(added)
            while copy.record.phase is Phase.DATA_SYNC:
                await self._publish_rows(added)
        for _ in range(6):
            await self.commit()

    async def commit(self) -> None:
        self._lsn += self._random.randint(1, 3) * 16
        self._number += 1
        changes = [change for change in map(self._changed, range(self._random.randint(1, 3))) if change is not None]
        self.history.append((self._lsn, {each.name: dict(self.rows[each.name]) for each in FOLLOWED}))
        if changes:
            await self._publish_transaction(changes)

    def _changed(self, index: int) -> Change | None:
        """None for a table that is not published."""
        name, key = self._random.choice(list(TABLES)), self._random.randrange(KEYS)
        value, rows = f"{self._lsn}.{index}", self.rows[name]
        if key in rows and self._random.random() < 0.25:
            del rows[key]
            change = delete(TABLES[name], b"%d" % key, None)
        else:
            made = update if key in rows else insert
            rows[key] = value
            change = made(TABLES[name], b"%d" % key, value.encode())
        return change if name in self._published else None

    async def _publish_transaction(self, changes: list[Change]) -> None:
        committed_at = self._number * 1_000_000
        body = body_of(transaction(self._lsn, *changes, xid=self._number, committed_at=committed_at))
        self._bytes += len(body)
        first, last = Position(LSN(self._lsn), 1), Position(LSN(self._lsn), len(changes))
        after, self._anchor = self._anchor, Anchor(last, self._number, committed_at)
        self.sequence += 1
        headers = MessageHeaders(first, last, LSN(0), self.sequence, self._bytes, anchor=self._anchor, after=after)
        await self._client.jetstream().publish(self._changes.subject, body, headers=headers.encode())

    async def _take_up(self, added: Table) -> None:
        await self._note_round(CopyState.RUNNING)
        self._copies[added.name] = _Copy(TableRecord(added.oid, added.schema, added.name, Phase.INIT, now()))
        await self._store(added)

    async def _again(self, added: Table) -> None:
        copy = self._copies[added.name]
        if copy.record.attempt < MOST_ATTEMPTS:
            await self._note_round(CopyState.RUNNING)
            copy.record = copy.record.enter(Phase.INIT, snapshot="", lsn="", attempt=copy.record.attempt + 1, last_sequence=0)
            await self._store(added)

    async def _snapshot_or_wait(self, added: Table) -> None:
        self._published.add(added.name)
        if self._random.random() < 0.6:
            await self._export(added)

    async def _export(self, added: Table) -> None:
        copy = self._copies[added.name]
        copy.record = copy.record.enter(
            Phase.DATA_SYNC, snapshot=f"{added.name}{copy.record.attempt}", lsn=format_lsn(self._lsn + 1)
        )
        copy.left = list(self.rows[added.name].items())
        await self._store(added)
        await self._publish_copied(added, None, b"", 0)

    async def _copy_on(self, added: Table) -> None:
        chance, attempt = self._random.random(), self._copies[added.name].record.attempt
        if chance < 0.08 and attempt < MOST_ATTEMPTS:
            await self._again(added)
        elif chance < 0.12 and attempt < MOST_ATTEMPTS:
            self._copies[added.name].record = self._copies[added.name].record.enter(Phase.ERRORED)
            await self._store(added)
            await self._note_end()
        else:
            await self._publish_rows(added)

    async def _publish_rows(self, added: Table) -> None:
        """Some more of them; the copy is whole when none is left."""
        copy = self._copies[added.name]
        count = self._random.randint(1, KEYS)
        rows, copy.left = copy.left[:count], copy.left[count:]
        if rows:
            await self._publish_copied(added, 1, b"".join(b"%d\t%b\n" % (key, v.encode()) for key, v in rows), len(rows))
            return
        copy.record = copy.record.enter(Phase.FINISHED_COPY, last_sequence=self.copied_sequence)
        await self._store(added)
        await self._note_end()

    async def _publish_copied(self, added: Table, range_number: int | None, data: bytes, rows: int) -> None:
        record, revision = self._copies[added.name].record, self._copies[added.name].revision
        if range_number is None:
            subject = self.names.snapshot_begin_subject(record.snapshot, added.oid)
        else:
            subject = self.names.snapshot_range_subject(record.snapshot, added.oid, range_number)
        headers = SnapshotHeaders(
            record.snapshot, added.oid, record.attempt, range_number, 1, rows, rows, len(data), False, ledger_revision=revision
        )
        fenced = headers.encode() | {EXPECTED_LAST_SUBJECT_SEQUENCE_HEADER: str(self._before.get(subject, 0))}
        answer = await self._client.jetstream().publish(subject, encode_table(added) + data, headers=fenced)
        self._before[subject] = self.copied_sequence = answer.seq

    async def _store(self, added: Table) -> None:
        copy = self._copies[added.name]
        copy.revision = await self._ledger.store_table(copy.record)

    async def _note_end(self) -> None:
        if not any(copy.record.phase.is_waiting_for_copy for copy in self._copies.values()):
            await self._note_round(CopyState.FINISHED, self.copied_sequence)

    async def _note_round(self, state: CopyState, last_sequence: int = 0) -> None:
        self._round = replace(self._round, state=state, last_sequence=last_sequence)
        await self._ledger.store_snapshot(self._round)


class Worker:
    """Plans a batch, writes and commits it, or is killed before that. ``two_lanes`` as ``Copies`` has it."""

    def __init__(
        self, loop: EventLoopThread, client: Client, nats: NatsSettings, source: Source, random: Random, *, two_lanes: bool
    ) -> None:
        self.applied: Applied = NOTHING_APPLIED
        self.rows: dict[str, Rows] = {name: {} for name in TABLES}
        self.is_quiet = False
        self.source_share = 1.0
        """How much the source does while the worker is busy."""
        self._seen: dict[str, set[str]] = {name: set() for name in TABLES}
        self._loop = loop
        self._nats = nats
        self._source = source
        self._random = random
        self._ownership = OwnershipLedger(StateBucket(client, source.names))
        connection = BrokerConnection(source.names, loop, client)
        self._paused: set[int] = set()
        copies = Copies(self._unready, self._is_copy_finished, two_lanes, lambda: frozenset(self._paused))
        self._planner = BatchPlanner(connection, WakeUp(), BatchLimit(6, 1 << 20), None, copies)
        self.joins = 0

    def step(self) -> None:
        if not self.is_quiet and self._random.random() < 0.2:
            self._paused.symmetric_difference_update({self._random.choice(list(TABLES.values())).oid})
        plan = self._planner.next(LanePlaces.of(self.applied), 2, 0.0, self._random.choice(list(Lane)))
        if plan is None:
            return
        self._disturb(3)
        receipts = self._write(plan)
        self._disturb(2)
        if self.is_quiet or self._random.random() > 0.15:
            self._commit(receipts)
            if LanePlaces.of(self.applied) != plan.end:
                raise WrongError("a batch leads elsewhere than planned")

    def resume_all(self) -> None:
        self._paused.clear()

    def _unready(self, snapshot_sequence: int) -> frozenset[int]:
        """The end of the changes is known by then, the ledger not yet."""
        self._disturb(6)
        found = self._loop.run(self._ownership.unready(snapshot_sequence))
        if not found and self.applied.catch_up is None:  # or what comes now would be read again, whoever forgets it
            self._loop.run(self._source.add_late())
        return found

    def _is_copy_finished(self, snapshot_sequence: int) -> bool:
        return self.is_quiet or self._random.random() < 0.7

    def _disturb(self, most: int) -> None:
        for _ in range(0 if self.is_quiet else self._random.randint(0, most)):
            if self._random.random() < self.source_share:
                self._loop.run(self._source.step())

    def _write(self, plan: PlannedBatch) -> list[Receipt]:
        current, borders = self._loop.run(self._ownership.current()), dict(plan.start.borders)
        owned = replace(current, lane=plan.lane, cohort=plan.cohort, borders=borders)
        exclusions = Exclusions({}, {}, 1)
        task = PartitionTask(self._nats, self._source.names.group, "w", _LineWriter(), owned, exclusions, Transformation())
        answers = [answer for part in plan.ranges for answer in task(part)]
        return list(read_receipts(answers, self.applied, cohort=plan.cohort))

    def _commit(self, receipts: list[Receipt]) -> None:
        before = self.applied
        for receipt in receipts:
            if self.applied.covers(receipt):
                raise WrongError("a batch begins before what is applied")
            for line in receipt.body.splitlines():
                self._apply(json.loads(line))
            self.applied = self.applied.after(receipt, "created")
        self.joins += before.catch_up is not None and self.applied.catch_up is None
        if receipts[0].lane is Lane.CHANGES:
            self._check_followed()
        self.applied = Applied.decode(self.applied.encode())

    def _apply(self, line: dict[str, object]) -> None:
        name, operation, after = str(line["table"]), line["operation"], line["after"]
        if operation == "RESTART":
            self.rows[name].clear()
            self._seen[name].clear()
            return
        position = line["position"]
        if isinstance(position, str):
            if position in self._seen[name]:
                raise WrongError(f"the change {position} of {name} is applied twice")
            self._seen[name].add(position)
        key = line["key"]
        assert isinstance(key, dict)
        if isinstance(after, dict):
            self.rows[name][int(key["id"])] = str(after["v"])
        else:
            self.rows[name].pop(int(key["id"]), None)

    def _check_followed(self) -> None:
        expected: dict[str, Rows] = {each.name: {} for each in FOLLOWED}
        for lsn, rows in self._source.history:
            if lsn <= self.applied.commit_lsn:
                expected = rows
        behind = frozenset() if self.applied.catch_up is None else self.applied.catch_up.tables
        for name, expected_rows in expected.items():
            if TABLES[name].oid not in behind and self.rows[name] != expected_rows:
                raise WrongError(f"{name} is not as at a commit of the source")

    @property
    def is_done(self) -> bool:
        reached = (self.applied.sequence, self.applied.snapshot_sequence)
        return reached == (self._source.sequence, self._source.copied_sequence) and self.applied.catch_up is None


def run_group(
    loop: EventLoopThread,
    client: Client,
    nats: NatsSettings,
    group: str,
    seed: int,
    *,
    two_lanes: bool = True,
    late: Table | None = None,
) -> int:
    """How often a cohort joined the others. ``late`` is taken up right after the worker has read the ledger for a batch. Raises
    WrongError."""
    random = Random(seed)
    source = Source(client, group, random, late)
    loop.run(source.begin())
    worker = Worker(loop, client, nats, source, random, two_lanes=two_lanes)
    worker.is_quiet = True
    for _ in range(COMMITS_BEFORE):
        loop.run(source.commit())
    worker.step()
    worker.is_quiet = False
    worker.source_share = random.choice((0.1, 0.3, 1.0))  # a worker that is at the end of the stream, or far behind
    for _ in range(random.randint(30, 120)):
        if random.random() < 0.5:
            loop.run(source.step())
        else:
            worker.step()
    worker.is_quiet = True
    worker.resume_all()
    loop.run(source.finish())
    for _ in range(DRAIN_STEPS):
        if worker.is_done:
            break
        worker.step()
    else:
        raise WrongError("the worker does not reach the end")
    for name in TABLES:
        is_followed = name in {each.name for each in FOLLOWED} or name in source.copied
        if is_followed and worker.rows[name] != source.rows[name]:
            raise WrongError(f"{name} differs at the end")
    process_connection(nats, group).close()
    return worker.joins
