"""Tables that were dropped at the source: the replicator forgets them once neither stream holds anything of them.

A worker that reads a stream from its begin needs the ledger to know which changes a copy holds and which no worker
applies. A table without data in the streams needs no record. Only its name is kept: a target can hold its rows, and a
new table of that name is copied into an emptied one.
"""

from __future__ import annotations

from pgsluice.replicator.followed_tables import NEVER_LEFT
from pgsluice.replicator.membership.publication_watch import PublicationWatch
from pgsluice.replicator.snapshot.prepared_copy import PreparedCopy
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.source.tables import tables_of
from pgsluice.shared import telemetry
from pgsluice.shared.broker.ledger import Phase
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.wire.message import MessageHeaders
from pgsluice.shared.wire.position import LSN

log = telemetry.logger(__name__)


async def forget_dropped(source: Source, stream: ChangeStream, watch: PublicationWatch, copy: PreparedCopy | None) -> None:
    """Removes dropped tables from ledger and record. Raises TransientError when source or broker do not answer."""
    records = {} if copy is None else (await copy.ledger.load()).tables
    left = {entry.oid for entry in watch.membership.left}
    oids = left | {oid for oid, record in records.items() if record.phase is Phase.LEFT}
    gone = oids - {table.oid for table in await tables_of(source, oids)} if oids else set()
    if not gone:
        return
    begin, copied = await _begin_of(stream), 0 if copy is None else (await copy.stream_state()).first_sequence

    def is_over(oid: int) -> bool:
        """Returns whether the streams hold nothing of the table, and will not."""
        record, end = records.get(oid), watch.followed.end_of(oid)
        if record is not None and (record.phase is not Phase.LEFT or record.last_sequence >= copied):
            return False
        was_followed = oid in left or end != NEVER_LEFT or (record is not None and record.lsn != "")
        return not was_followed or end < begin

    over = set(filter(is_over, gone))
    if not over:
        return
    if copy is not None:
        await copy.forget([oid for oid in records if oid in over])
    names = {*await watch.forget_tables(over), *(records[oid].qualified_name for oid in over if oid in records)}
    log.info("dropped tables are forgotten: the streams hold nothing of them", tables=",".join(sorted(names)))


async def _begin_of(stream: ChangeStream) -> LSN:
    """Returns an LSN at which, or after which, every change in the stream commits."""
    state = await stream.state()
    first = None if state is None else await stream.message(state.first_sequence)
    return LSN(0) if first is None else MessageHeaders.decode(first.headers).first.commit_lsn
