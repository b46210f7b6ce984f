"""``pgsluice trace``: every change of a row that the stream still holds, with its outcome at each worker.

A worker's answer is derived: from its position, its dead letters, and the current rules and routes. If its rules differ
from the ones known here, the answer says so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import assert_never

import orjson
from nats.aio.client import Client

from pgsluice.console.inspect.rules_trial import RuledChange, RuledChanges
from pgsluice.console.inspect.stream_bodies import StoredBody, read_bodies
from pgsluice.console.inspect.trial_steps import ChangeOutcome
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream, StoredLetter
from pgsluice.shared.broker.ledger import Ledger, LedgerContent, TableRecord
from pgsluice.shared.broker.streams import ChangeStream, StreamState
from pgsluice.shared.broker.worker_records import WorkerReport, read_reports
from pgsluice.shared.errors import UsageError
from pgsluice.shared.pgoutput.messages import NO_OLD_ROW
from pgsluice.shared.rows.changes import DELETE, DefinitionChange, MessageChanges, TableChanges, Transaction, Truncation
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import parse_lsn
from pgsluice.shared.wire.table import TablePattern, Value
from pgsluice.worker.sinks.lines.json_lines import encode_lines

SEARCHED_MESSAGES = 20_000
"""Number of messages searched back from the end of the stream, by default."""
MOST_CHANGES = 200

Try = Callable[[Sequence[MessageChanges]], Awaitable[RuledChanges]]
"""Returns what the rules and routes of the workers make of changes."""


class Outcome(StrEnum):
    """The outcome of a change at a worker."""

    APPLIED = "applied"
    WAITING = "waiting"
    COPIED = "in the copy"
    DROPPED = "dropped"
    DEAD = "dead"
    REPLAYING = "replaying"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class WorkerOutcome:
    """``detail`` is the rule that dropped it, the reason of the dead letter, the worker's lag, or the unknown fact."""

    worker: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TracedChange:
    """``change`` is a JSON line's object, with the row's values."""

    position: str
    operation: str
    sequence: int
    published_at: str
    committed_at: str
    xid: int
    workers: tuple[WorkerOutcome, ...]
    change: object


@dataclass(frozen=True, slots=True)
class Trace:
    """The changes, in commit order. Messages from ``searched_from`` to ``searched_to`` were read; ``is_whole``: the
    stream holds no earlier one. ``more``: there are earlier changes than those shown, which are the last MOST_CHANGES.
    ``copied``: whether a copy of the table is in the stream or was, and from which LSN on changes follow it ("" for a
    table without one)."""

    table: str
    changes: tuple[TracedChange, ...]
    searched_from: int
    searched_to: int
    is_whole: bool
    more: bool
    copied: str
    copy_lsn: str


@dataclass(frozen=True, slots=True)
class _FoundChange:
    """One change of the row, alone in a separate message."""

    sequence: int
    stored_at: datetime
    message: MessageChanges
    transaction: Transaction
    position: str

    @property
    def rows(self) -> TableChanges:
        (part,) = self.message.parts
        assert isinstance(part, TableChanges)
        return part


@dataclass(frozen=True, slots=True)
class RowKey:
    """``table`` names one table; ``values`` are texts as PostgreSQL writes them, by column. Any columns will do."""

    table: TablePattern
    values: Mapping[str, str]


async def trace_row(
    client: Client, names: GroupNames, key: RowKey, try_rules: Try, most_messages: int = SEARCHED_MESSAGES
) -> Trace:
    """Raises UsageError when there is no stream, or the table has no such column; TransientError; and what ``try_rules`` does."""
    stream, bucket = ChangeStream(client, names), StateBucket(client, names)
    state = await stream.state()
    if state is None:
        raise UsageError(f"group '{names.group}' has no stream of changes", "start its replicator, or correct the group's name")
    first = max(state.first_sequence, state.last_sequence - most_messages + 1)
    count, found = 0, deque[_FoundChange](maxlen=MOST_CHANGES)
    async for body in read_bodies(stream, first, state.last_sequence):
        for change in _changes_of(body, key):
            count += 1
            found.append(change)
    letters = await DeadLetterStream(client, names).letters()
    ledger = await Ledger(bucket).load()
    tried = await try_rules([change.message for change in found])
    teller = _Teller(await read_reports(bucket), letters, ledger, state, tried)
    record = _record(ledger, key.table)
    return Trace(
        table=found[-1].rows.table.qualified_name if found else key.table.text,
        changes=await asyncio.to_thread(lambda: tuple(teller.told(change, place) for place, change in enumerate(found))),
        searched_from=first,
        searched_to=state.last_sequence,
        is_whole=first <= state.first_sequence,
        more=count > MOST_CHANGES,
        copied="" if record is None else record.phase.value,
        copy_lsn="" if record is None else record.lsn,
    )


def _changes_of(body: StoredBody, key: RowKey) -> Iterator[_FoundChange]:
    """Yields changes in commit order."""
    rows = []
    for part in body.changes.parts:
        match part:
            case TableChanges(table=table):
                if key.table.matches(table.schema, table.name):
                    rows += [(part.change_indexes[row], part, row) for row in _matching_rows(part, key)]
            case Truncation() | DefinitionChange():
                pass
            case unreachable:
                assert_never(unreachable)
    for index, part, row in sorted(rows, key=lambda each: each[0]):
        transaction = next(each for each in body.changes.transactions if each.first_change <= index < each.end_change)
        message = replace(body.changes, parts=[part.select([row])])
        yield _FoundChange(body.sequence, body.stored_at, message, transaction, str(transaction.position(index)))


def _matching_rows(changes: TableChanges, key: RowKey) -> Iterator[int]:
    """Yields rows whose new or old image has these values. Raises UsageError for a column that the table does not have."""
    columns = {column.name: i for i, column in enumerate(changes.table.columns)}
    unknown = sorted(key.values.keys() - columns.keys())
    if unknown:
        raise UsageError(f"table {changes.table.qualified_name} has no column '{unknown[0]}'", f"it has {', '.join(columns)}")
    wanted = [(columns[name], text.encode()) for name, text in key.values.items()]
    for row, operation in enumerate(changes.operations):
        is_new = operation != DELETE and _fits([changes.new[i][row] for i, _ in wanted], wanted)
        has_old = changes.old is not None and changes.old_kinds is not None and changes.old_kinds[row] != NO_OLD_ROW
        if is_new or (has_old and changes.old is not None and _fits([changes.old[i][row] for i, _ in wanted], wanted)):
            yield row


def _fits(values: list[Value], wanted: list[tuple[int, bytes]]) -> bool:
    return all(value == text for value, (_, text) in zip(values, wanted, strict=True))


def _record(ledger: LedgerContent, pattern: TablePattern) -> TableRecord | None:
    return next((record for record in ledger.tables.values() if pattern.matches(record.schema, record.table)), None)


class _Teller:
    """Determines the outcome of each change at each worker."""

    def __init__(
        self,
        reports: Mapping[str, WorkerReport],
        letters: list[StoredLetter],
        ledger: LedgerContent,
        state: StreamState,
        tried: RuledChanges,
    ) -> None:
        self._reports = reports
        self._letters = {(each.letter.worker, str(each.letter.position)): each for each in letters}
        self._ledger = ledger
        self._state = state
        self._tried = tried

    def told(self, found: _FoundChange, place: int) -> TracedChange:
        """``place`` is the change's among the tried ones."""
        tried = self._tried.changes[place] if place < len(self._tried.changes) else None
        [line] = [line for text in encode_lines(found.message) for line in text.splitlines()]
        content = orjson.loads(line)
        return TracedChange(
            position=found.position,
            operation=content["operation"],
            sequence=found.sequence,
            published_at=found.stored_at.isoformat(),
            committed_at=content["committed_at"],
            xid=found.transaction.xid,
            workers=tuple(self._outcome(found, tried, name, report) for name, report in sorted(self._reports.items())),
            change=orjson.Fragment(line),
        )

    def _outcome(self, found: _FoundChange, tried: RuledChange | None, worker: str, report: WorkerReport) -> WorkerOutcome:
        letter = self._letters.get((worker, found.position))
        if letter is not None:
            return WorkerOutcome(worker, Outcome.REPLAYING if letter.is_queued else Outcome.DEAD, letter.letter.reason)
        if self._is_copied(found):
            return WorkerOutcome(worker, Outcome.COPIED, "the copy of its table holds this change")
        if report.stream_created != self._state.created:
            return WorkerOutcome(worker, Outcome.NOT_KNOWN, "it reports of another stream")
        behind = found.sequence - _passed(report, found.rows.table.oid)
        if behind > 0:
            return WorkerOutcome(worker, Outcome.WAITING, f"the worker is {behind} messages before it")
        return self._after_rules(tried, worker, report)

    def _is_copied(self, found: _FoundChange) -> bool:
        record = self._ledger.tables.get(found.rows.table.oid)
        return record is not None and bool(record.lsn) and found.transaction.commit_lsn < parse_lsn(record.lsn)

    def _after_rules(self, tried: RuledChange | None, worker: str, report: WorkerReport) -> WorkerOutcome:
        if not report.rules:
            return WorkerOutcome(worker, Outcome.APPLIED)
        if self._tried.hash != report.rules:
            return WorkerOutcome(worker, Outcome.NOT_KNOWN, "it has passed the worker, whose rules are not known here")
        if tried is None:
            return WorkerOutcome(worker, Outcome.NOT_KNOWN, "it has passed the worker, whose rules take long to be tried")
        match tried.outcome:
            case None:
                return WorkerOutcome(worker, Outcome.NOT_KNOWN, tried.detail)
            case ChangeOutcome.DROPPED:
                return WorkerOutcome(worker, Outcome.DROPPED, tried.detail)
            case ChangeOutcome.PASSED | ChangeOutcome.REJECTED:
                return WorkerOutcome(worker, Outcome.APPLIED)
            case unreachable:
                assert_never(unreachable)


def _passed(report: WorkerReport, oid: int) -> int:
    return report.catch_up_sequence if oid in report.catching_up else report.sequence
