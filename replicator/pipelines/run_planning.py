"""Plans what a run reads, by the checkpoint, the open transactions and the rest of an earlier one. Changes nothing."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace

from pgsluice.replicator.pipelines.key_ranges import QuerySql, RowsWanted
from pgsluice.replicator.pipelines.late_rows import OpenTransactions, border_behind, is_time, measured_border
from pgsluice.replicator.pipelines.pipeline import RunMode, WriteMode
from pgsluice.replicator.pipelines.query_reader import Border, QueryReader, ranges_of
from pgsluice.replicator.pipelines.reconciliation import NO_RECONCILING, Reconciling
from pgsluice.replicator.tasks import run_until_all
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import now
from pgsluice.shared.errors import UsageError
from pgsluice.shared.pipelines.run_records import Key, PipelineRecord, RangeRecord, RunRecord, RunState, load_pipeline
from pgsluice.shared.pipelines.run_requests import RUN_REQUESTS


@dataclass(frozen=True, slots=True)
class Planned:
    """``run`` is not in ``record`` yet, or as it was left there."""

    record: PipelineRecord
    run: RunRecord

    def with_rows(self, rows: tuple[RangeRecord, ...]) -> Planned:
        """``rows`` are dead letters that are read again; a full run reads them anyhow, one that is taken up has its ranges."""
        run = self.run
        if run.is_full or run.attempt > 1:
            return self
        return Planned(self.record, replace(run, rows=run.rows + len(rows), ranges=run.ranges + rows))

    def with_ranges(self, ranges: list[RangeRecord]) -> Planned:
        """``ranges`` are all that is left to be read; they get numbers that no range had."""
        numbered = [replace(each, number=number) for number, each in enumerate(ranges, self.record.next_range)]
        record = replace(self.record, next_range=self.record.next_range + len(numbered))
        return Planned(record, replace(self.run, ranges=tuple(numbered)))


@dataclass(frozen=True, slots=True)
class WantedRun:
    full: bool
    request: str = ""
    reconciling: Reconciling = NO_RECONCILING
    begun: list[int] = field(default_factory=list)
    """The numbers of the runs that this call began or took up: one, unless a user runs something else meanwhile."""

    def is_for(self, run: RunRecord) -> bool:
        """Returns whether the run was begun for this request, so that it is taken up and not begun again."""
        return run.number in self.begun or bool(self.request and run.request == self.request)


@dataclass(frozen=True, slots=True)
class RunPlanning:
    """``reader`` and ``second``, over another connection, are under the run's snapshot. ``fingerprint`` is the pipeline's now."""

    reader: QueryReader
    second: QueryReader
    query: QuerySql
    transactions: OpenTransactions
    bucket: StateBucket
    fingerprint: str

    async def plan(self, asked: WantedRun) -> Planned:
        """Raises PgsluiceError with what a run would refuse."""
        full, pipeline = asked.full, self.query.pipeline
        record = await self._record()
        if record is None:
            record = PipelineRecord(pipeline.name, self.fingerprint, f"pipeline-{secrets.token_hex(4)}")
        elif record.fingerprint != self.fingerprint and not full:
            raise UsageError(
                f"pipeline '{pipeline.name}' has changed since its last run: its query, columns, key, target or source",
                "run it with --full: it reads all rows again, and removes none at the target",
            )
        left = record.unfinished
        is_same = record.fingerprint == self.fingerprint
        is_asked_again = left is not None and (not full or asked.is_for(left))
        replaces = pipeline.write is WriteMode.REPLACE
        if left is not None and is_same and is_asked_again and not replaces and not left.reconciles:
            if not pipeline.skips_nulls:
                await self.reader.check_nulls(self.query)
            attempt = left.attempt + 1
            run = replace(left, state=RunState.READING, attempt=attempt, finished_at="", reason="", request=asked.request)
            return Planned(record, run)
        if not is_same:  # should this run end early, the checkpoint of another query means nothing to the next
            record = replace(record, fingerprint=self.fingerprint, checkpoint=(), reread_from="")
        is_full = full or pipeline.mode is RunMode.FULL or not record.checkpoint
        return await self._begin(record, asked.request, is_full=is_full)

    async def _record(self) -> PipelineRecord | None:
        """Returns the record, without an unfinished run that a user cancelled."""
        record = await load_pipeline(self.bucket) if await self.bucket.exists() else None
        return None if record is None else record.with_cancelled((await RUN_REQUESTS.load(self.bucket)).cancelled_run)

    async def _begin(self, record: PipelineRecord, request: str, *, is_full: bool) -> Planned:
        pipeline, border = self.query.pipeline, ""
        if pipeline.incremental_key:
            border = await measured_border(self.reader, self.query, self.transactions, record.reread_from)
        wanted = RowsWanted() if is_full else await self._rows_since(record)
        if pipeline.write is WriteMode.APPEND:  # rows that can come late are read by a later run, with the late ones
            wanted = replace(wanted, before=border)
        if not pipeline.skips_nulls and wanted != RowsWanted():  # looking for the borders of all rows would find them
            await self.reader.check_nulls(self.query)
        borders = await self._borders(wanted)
        last = await self._furthest(borders, wanted, () if is_full else record.checkpoint)
        if pipeline.incremental_key and last and not is_time(self.query):
            border = await border_behind(self.reader, self.query, last[0])
        run = RunRecord(
            number=1 if record.newest is None else record.newest.number + 1,
            state=RunState.READING,
            is_full=is_full,
            started_at=now(),
            rows=borders[-1].rows if borders else 0,
            after=wanted.after,
            reread_from=wanted.reread_from,
            before=wanted.before,
            last=last,
            border=border,
            ranges=ranges_of(borders, pipeline, record.next_range),
            request=request,
            horizon_s=self.transactions.horizon_s if border and is_time(self.query) else None,
        )
        return Planned(record, run)

    async def _borders(self, wanted: RowsWanted) -> list[Border]:
        """Returns the borders. If a pipeline's key is not its whole cursor the server searches meanwhile for rows that
        share one: both take about as long, and together one core each."""
        found: list[Border] = []

        async def look() -> None:
            found.extend(await self.reader.borders(self.query, wanted))

        checks = [self.second.check_repeated(self.query, wanted)] if self.query.may_repeat else []
        await run_until_all([look(), *checks])
        return found

    async def _rows_since(self, record: PipelineRecord) -> RowsWanted:
        """Returns the rows after the checkpoint, and from an earlier place on if some can have come late."""
        rereads = record.reread_from and self.query.pipeline.write is WriteMode.MERGE
        if rereads and await self.reader.value(self.query.is_at_or_before(record.reread_from, record.checkpoint[0])):
            return RowsWanted(reread_from=record.reread_from)
        return RowsWanted(after=record.checkpoint)

    async def _furthest(self, borders: list[Border], wanted: RowsWanted, checkpoint: Key) -> Key:
        """Returns the checkpoint after this run, which never goes back. Rows after it are known to exist: two texts
        alone are compared in the database's order, which need not be the column's."""
        if not borders:
            return checkpoint
        key = borders[-1].key
        is_behind = not checkpoint or bool(wanted.after) or await self.reader.value(self.query.is_after(key, checkpoint))
        return key if is_behind else checkpoint
