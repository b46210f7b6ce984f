"""A group's tables while it streams: orders are carried out, new tables join, and the publication is checked.

Orders are polled once a second: that is one small request to the broker, which needs no consumer that would have to be
created again after each of its outages, and a copy takes longer than a second anyway.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

from pgsluice.replicator.group_start import Run
from pgsluice.replicator.membership.dropped_tables import forget_dropped
from pgsluice.replicator.membership.order_execution import OrderExecution
from pgsluice.replicator.membership.publication_watch import PublicationWatch
from pgsluice.replicator.membership.table_changes import AppliedChanges, MembershipChanges
from pgsluice.replicator.source.source import Source
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.table_orders import ORDERS
from pgsluice.shared.errors import PgsluiceError, TransientError
from pgsluice.shared.process.retrying import RetryNews

LOOK_INTERVAL_S = 1.0

log = telemetry.logger(__name__)


class LiveMembership:
    """Call ``run`` in parallel to a session. ``look`` is set by code that learns of other tables."""

    def __init__(
        self,
        run: Run,
        bucket: StateBucket,
        source: Source,
        stream: ChangeStream,
        watch: PublicationWatch,
        changes: MembershipChanges,
        execution: OrderExecution,
        look: asyncio.Event,
    ) -> None:
        self._run = run
        self._bucket = bucket
        self._source = source
        self._stream = stream
        self._watch = watch
        self._changes = changes
        self._execution = execution
        self._look = look
        self._looked_at = time.monotonic()
        self._has_found = False
        """True if the wanted tables must be determined again: a check of the publication has ended since the last time."""
        self._has_looked = False
        """True if dropped tables must be forgotten: a check of the publication has ended since the last time."""
        self._news = RetryNews()
        self._reported: set[str] = set()

    async def run(self) -> None:
        """Runs until it is cancelled. Raises TerminalError when changes may be missing, TransientError when the source
        does not answer."""
        while True:
            if self._look.is_set() or time.monotonic() - self._looked_at >= self._run.settings.check_interval_s:
                await self._look_at_publication()
            try:
                if self._has_looked:
                    await forget_dropped(self._source, self._stream, self._watch, self._run.copy)
                    self._has_looked = False
                await self._follow_tables()
                await self._carry_out_orders()
            except PgsluiceError as error:  # the stream continues without it
                if self._news.is_due(error):
                    log.warning("tables do not join or leave now, trying again", reason=str(error))
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _follow_tables(self) -> None:
        """Does what is wanted and not done: by a new configuration, by the result of a check, by a session that ended
        in the middle, or because it is time to retry."""
        copy = self._run.copy
        due = [] if copy is None else [record.oid for record in copy.progress.errored if record.is_due(datetime.now(UTC))]
        settings, is_new = self._run.settings, self._run.is_configuration_new
        if is_new or self._has_found or due or (copy is not None and copy.held):
            self._report(await self._changes.apply(due), is_asked_for=is_new)
            self._has_found = False
            if self._run.settings is settings:  # or they were read again meanwhile
                self._run.is_configuration_new = False

    async def _carry_out_orders(self) -> None:
        try:
            orders = await ORDERS.load(self._bucket)
        except TransientError as error:
            log.debug("requests about tables cannot be read now", reason=str(error))  # others say that the broker is away
            return
        for order in orders.open:
            await self._execution.carry_out(order)

    async def _look_at_publication(self) -> None:
        """Compares the publication with the record, and has the wanted tables looked up again each time: another table may have
        taken a wanted name, or have come into an administrator's publication, without a trace in the record."""
        self._look.clear()
        self._looked_at = time.monotonic()
        await self._watch.verify()
        self._has_found = self._has_looked = True

    def _report(self, applied: AppliedChanges, *, is_asked_for: bool) -> None:
        """Reports each problem once, or again if it was just requested."""
        if is_asked_for:
            self._reported.clear()
        names = {table.oid: table.qualified_name for table in applied.wanted.tables}
        complaints: list[tuple[str, PgsluiceError]] = [(names.get(oid, ""), error) for oid, error in applied.refused.items()]
        complaints += [(table.qualified_name, error) for table, error in applied.wanted.unfit]
        complaints += [("", error) for error in applied.wanted.absent if is_asked_for]
        for table, error in complaints:
            if repr((table, error.fact)) not in self._reported:
                self._reported.add(repr((table, error.fact)))
                log.error("a table is not replicated", table=table or "-", reason=error.fact, remedy=error.remedy)
