"""Carries out orders about a group's tables (``shared.broker.table_orders``) in the replicator that streams.

An order changes what is wanted, or names tables whose rows must be copied again; ``MembershipChanges`` does the rest. After
a replicator dies the next one repeats its last step: each step can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import assert_never

from pgsluice.replicator.group_start import Run
from pgsluice.replicator.membership.publication_watch import PublicationWatch
from pgsluice.replicator.membership.table_changes import AppliedChanges, FollowedTable, MembershipChanges
from pgsluice.replicator.source.tables import parse_member_pattern, parse_pattern
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import Ledger, Phase, TableRecord
from pgsluice.shared.broker.replicator_records import REPLICATOR_KEY, ReplicatorRecord
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.table_orders import OrderVerb, TableOrder, TableOutcome, note_done, note_taken, note_waiting
from pgsluice.shared.broker.table_selection import SELECTION, TableSelection, exact_text, qualified_text
from pgsluice.shared.broker.worker_records import read_reports
from pgsluice.shared.errors import PgsluiceError, TerminalError, UsageError
from pgsluice.shared.wire.position import LSN, parse_lsn
from pgsluice.shared.wire.table import TablePattern

_ONLY_STREAMS = "this group only streams, and copies no rows"
_COPY_INSTEAD = "run 'pgsluice drop' and start again with --mode copy-and-stream and an empty target"

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class _Behind:
    """The workers that have not applied what an order needs them to have applied."""

    workers: tuple[str, ...]


class OrderExecution:
    """The orders in one session."""

    def __init__(
        self, run: Run, bucket: StateBucket, stream: ChangeStream, watch: PublicationWatch, changes: MembershipChanges
    ) -> None:
        self._run = run
        self._bucket = bucket
        self._stream = stream
        self._watch = watch
        self._changes = changes

    async def carry_out(self, order: TableOrder) -> None:
        """Writes the outcome; an order that has to wait for workers stays open. Raises TransientError when source or
        broker do not answer: then carry it out again."""
        if not order.taken_at:
            log.info("a request about tables is executed", order=order.verb.value, tables=",".join(order.tables))
            if not await note_taken(self._bucket, order):
                return
        outcomes: list[TableOutcome] | _Behind
        try:
            outcomes = await self._outcomes(order)
        except (UsageError, TerminalError) as error:
            outcomes = [_outcome(text, error) for text in order.tables]
        if isinstance(outcomes, _Behind):
            await note_waiting(self._bucket, order, outcomes.workers)
            return
        await note_done(self._bucket, order, tuple(outcomes))
        for outcome in outcomes:
            (log.warning if outcome.is_refused else log.info)(
                "a request about a table is done",
                order=order.verb.value,
                table=outcome.table,
                outcome=outcome.text,
                **({"remedy": outcome.remedy} if outcome.remedy else {}),
            )

    async def _outcomes(self, order: TableOrder) -> list[TableOutcome] | _Behind:
        schema = self._run.settings.schema
        patterns = [parse_pattern(text, schema) for text in order.tables]
        members = [parse_member_pattern(text, schema) for text in order.tables]
        match order.verb:
            case OrderVerb.ADD:
                return await self._add(patterns, without_copy=order.without_copy)
            case OrderVerb.REMOVE:
                return await self._remove(patterns)
            case OrderVerb.RECOPY:
                return await self._recopy(members)
            case OrderVerb.RETRY:
                return await self._retry(members)
            case OrderVerb.FORGET:
                return await self._forget(patterns)
            case unreachable:
                assert_never(unreachable)

    async def _add(self, patterns: Sequence[TablePattern], *, without_copy: bool) -> list[TableOutcome]:
        outcomes, accepted = [], list[TablePattern]()
        for pattern in patterns:
            try:
                await self._changes.check_joining(pattern, without_copy=without_copy)
            except (UsageError, TerminalError) as error:
                outcomes.append(_outcome(qualified_text(pattern), error))
                continue
            accepted.append(pattern)
        if accepted:
            add = partial(TableSelection.add, without_copy=without_copy)
            await SELECTION.change(self._bucket, lambda selection: reduce(add, map(qualified_text, accepted), selection))
            applied = await self._changes.apply()
            for pattern in accepted:
                outcomes += self._joined(pattern, applied)
        return outcomes

    def _joined(self, pattern: TablePattern, applied: AppliedChanges) -> list[TableOutcome]:
        unfit = {
            table.qualified_name: error for table, error in applied.wanted.unfit if pattern.matches(table.schema, table.name)
        }
        outcomes = [_outcome(name, error) for name, error in unfit.items()]
        for table in applied.wanted.tables:
            if pattern.matches(table.schema, table.name):
                error = applied.refused.get(table.oid)
                outcomes.append(_outcome(table.qualified_name, error, self._state(table.oid)))
        if not outcomes:
            outcomes.append(_outcome(qualified_text(pattern), None, "fits no table yet; one that comes joins"))
        return outcomes

    def _state(self, oid: int) -> str:
        """Returns the ledger's state of a wanted table, in words."""
        record = None if self._run.copy is None else self._run.copy.progress.get(oid)
        if record is None:
            return "is replicated from now on" if oid in self._watch.membership.oids else "does not join yet"
        match record.phase:
            case Phase.INIT | Phase.DATA_SYNC:
                return "is followed from now on, and its rows are copied"
            case Phase.ERRORED:
                return f"could not be copied: {record.error}"
            case Phase.FINISHED_COPY | Phase.SYNC_WAIT | Phase.CATCHUP | Phase.READY:
                return "is replicated already"
            case Phase.LEFT:
                return "does not join yet"
            case unreachable:
                assert_never(unreachable)

    async def _remove(self, patterns: Sequence[TablePattern]) -> list[TableOutcome]:
        followed, selection, outcomes = await self._changes.followed(), await SELECTION.load(self._bucket), []
        meant: dict[int, FollowedTable] = {}
        texts = list[str]()
        for pattern in patterns:
            text, tables = qualified_text(pattern), [table for table in followed if table.is_meant_by(pattern)]
            if not tables and selection.remove(text).added == selection.added and pattern.is_name:
                outcomes.append(_outcome(text, UsageError("is not among the tables of this group", "see 'pgsluice tables list'")))
                continue
            texts.append(text)
            for table in tables:
                meant[table.oid] = table
                if not pattern.matches(table.schema, table.table):
                    texts.append(exact_text(table.schema, table.table))
        await SELECTION.change(self._bucket, lambda selection: reduce(TableSelection.remove, texts, selection))
        applied = await self._changes.apply()
        gone = "is not replicated any more; its rows at targets stay"
        return [*outcomes, *(_outcome(table.qualified_name, applied.refused.get(oid), gone) for oid, table in meant.items())]

    async def _recopy(self, patterns: Sequence[TablePattern]) -> list[TableOutcome]:
        return await self._copy_again(patterns, Phase.FINISHED_COPY, "is replicated, but not copied")

    async def _retry(self, patterns: Sequence[TablePattern]) -> list[TableOutcome]:
        return await self._copy_again(patterns, Phase.ERRORED, "is not errored")

    async def _copy_again(self, patterns: Sequence[TablePattern], phase: Phase, otherwise: str) -> list[TableOutcome]:
        """Copies tables that are in ``phase`` again; refuses others, unless a copy is coming anyway."""
        copy = self._run.copy
        if copy is None:
            error = UsageError(_ONLY_STREAMS, _COPY_INSTEAD)
            return [_outcome(_called(pattern), error) for pattern in patterns]
        outcomes, again = [], {}
        for pattern in patterns:
            meant = [record for record in copy.progress.records if record.phase is not Phase.LEFT and _is_of(record, pattern)]
            if not meant:
                error = UsageError("is not among the tables of this group", "see 'pgsluice tables list'")
                outcomes.append(_outcome(_called(pattern), error))
            for record in meant:
                if record.phase is phase:
                    again[record.oid] = record.qualified_name
                elif record.phase.is_waiting_for_copy:
                    outcomes.append(_outcome(record.qualified_name, None, "is being copied"))
                elif pattern.is_name:
                    refusal = UsageError(otherwise, "see 'pgsluice tables list'")
                    outcomes.append(_outcome(record.qualified_name, refusal))
            if meant and not pattern.is_name and not any(record.phase is phase for record in meant):
                outcomes.append(_outcome(pattern.text, None, f"fits {len(meant)} tables, each of which {otherwise}"))
        applied = await self._changes.apply(again)
        return [*outcomes, *(_outcome(name, applied.refused.get(oid), "is copied again") for oid, name in again.items())]

    async def _forget(self, patterns: Sequence[TablePattern]) -> list[TableOutcome] | _Behind:
        followed = [table for table in await self._changes.followed() if any(map(table.is_meant_by, patterns))]
        if followed:
            removed = await self._remove([TablePattern.parse(exact_text(table.schema, table.table)) for table in followed])
            if refused := [outcome for outcome in removed if outcome.is_refused]:
                return refused
        records = await self._left_records(patterns)
        left = [entry for entry in self._watch.membership.left if _is_meant(patterns, entry.schema, entry.table)]
        known = {(entry.schema, entry.table) for entry in records} | {(entry.schema, entry.table) for entry in left}
        places = [parse_lsn(lsn) for lsn in (*(record.lsn for record in records), *(entry.lsn for entry in left)) if lsn]
        copied = max((record.last_sequence for record in records), default=0)
        behind = await workers_behind(self._bucket, self._stream, max(places), copied) if places else ()
        if behind:
            return _Behind(behind)
        if self._run.copy is not None:
            await self._run.copy.forget([record.oid for record in records])
        else:
            for record in records:
                await Ledger(self._bucket).remove_table(record.oid)
        await self._watch.forget(lambda schema, table: _is_meant(patterns, schema, table))
        unknown = [pattern for pattern in patterns if not any(pattern.matches(*name) for name in known)]
        nothing = UsageError("is not known to this group", "see 'pgsluice tables list'")
        outcomes = [_outcome(qualified_text(pattern), nothing) for pattern in unknown]
        return [
            *outcomes,
            *(_outcome(".".join(name), None, "is forgotten; its rows at targets stay") for name in sorted(known)),
        ]

    async def _left_records(self, patterns: Sequence[TablePattern]) -> list[TableRecord]:
        records = (await Ledger(self._bucket).load()).tables.values()
        return [each for each in records if each.phase is Phase.LEFT and _is_meant(patterns, each.schema, each.table)]


async def workers_behind(bucket: StateBucket, stream: ChangeStream, lsn: LSN, snapshot_sequence: int) -> tuple[str, ...]:
    """Returns the workers that may still have to apply changes before ``lsn``, or copied rows up to ``snapshot_sequence``."""
    state, recorded = await stream.state(), await bucket.read(REPLICATOR_KEY, ReplicatorRecord)
    published = LSN(0) if recorded is None else parse_lsn(recorded.value.flushed_lsn)
    behind = []
    for worker, report in (await read_reports(bucket)).items():
        has_all = state is not None and published >= lsn and report.applied_in(state.created) >= state.last_sequence
        if report.snapshot_sequence < snapshot_sequence or not (has_all or parse_lsn(report.applied_lsn) >= lsn):
            behind.append(worker)
    return tuple(sorted(behind))


def _called(pattern: TablePattern) -> str:
    """Returns the pattern in words of its option; one without a schema matches tables of every schema."""
    return pattern.text if pattern.schema is None else qualified_text(pattern)


def _is_of(record: TableRecord, pattern: TablePattern) -> bool:
    return pattern.matches(record.schema, record.table)


def _is_meant(patterns: Iterable[TablePattern], schema: str, table: str) -> bool:
    return any(pattern.matches(schema, table) for pattern in patterns)


def _outcome(name: str, error: PgsluiceError | None, text: str = "") -> TableOutcome:
    """Returns the outcome for a table: ``text``, unless ``error`` is the reason for a refusal."""
    return TableOutcome(name, False, text) if error is None else TableOutcome(name, True, error.fact, error.remedy)
