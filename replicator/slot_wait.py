"""Waiting for a new slot, which itself waits for every transaction that has written and was open when it began.

The server says nothing while it waits. So another connection is asked, again and again, who they are; and after a limit the slot
is given up. The server drops what it made of it when the statement is cancelled (manual: a slot is ephemeral until it is
complete), and when it notices that nobody waits for the answer any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, LiteralString, TypeVar

from replicator.source import Source
from replicator.tasks import cancel
from shared import telemetry
from shared.errors import SlotTimeoutError, TransientError
from shared.settings import PostgresSettings

LOG_INTERVAL_S = 10.0
MOST_TOLD = 5

log = telemetry.logger(__name__)

T = TypeVar("T")

# Every transaction that has an id holds a lock on it, which every role may see. What pg_stat_activity says of others is null for
# a role that may not look into them.
_OPEN_TRANSACTIONS: LiteralString = """
    SELECT l.pid, p.gid, coalesce(p.database, a.datname)::text AS database, nullif(a.application_name, '') AS application,
           extract(epoch FROM clock_timestamp() - coalesce(p.prepared, a.xact_start))::int AS age_s
      FROM pg_locks l
      LEFT JOIN pg_stat_activity a ON a.pid = l.pid
      LEFT JOIN pg_prepared_xacts p ON p.transaction = l.transactionid
     WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
       AND l.pid IS DISTINCT FROM pg_backend_pid()
     ORDER BY age(l.transactionid) DESC
"""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction of the source. ``pid`` is None for a prepared one, which has a ``gid``; the rest is None when this role may
    not know it."""

    pid: int | None
    gid: str | None
    database: str | None
    application: str | None
    age_s: int | None

    def __str__(self) -> str:
        who = f"process {self.pid}" if self.gid is None else f"prepared transaction '{self.gid}'"
        facts = [f"database {self.database}"] if self.database else []
        facts += [f"application '{self.application}'"] if self.application else []
        facts += [f"open for {self.age_s} s"] if self.age_s is not None else []
        return f"{who} ({', '.join(facts) or 'of another role'})"


@dataclass(frozen=True, slots=True)
class SlotPatience:
    """``timeout_s`` bounds the wait; ``source`` is asked meanwhile."""

    source: PostgresSettings
    timeout_s: float


async def wait_for_slot(slot: str, creating: Coroutine[Any, Any, T], patience: SlotPatience) -> T:
    """What ``creating`` returns. Raises SlotTimeoutError, with the slot gone, when that takes too long."""
    timeout_s = patience.timeout_s
    began = time.monotonic()
    task = asyncio.ensure_future(creating)
    try:
        while True:
            rest_s = timeout_s - (time.monotonic() - began)
            done, _ = await asyncio.wait({task}, timeout=max(0.0, min(LOG_INTERVAL_S, rest_s)))
            if done:
                return task.result()
            told = await _who_is_open(patience.source)
            waited_s = round(time.monotonic() - began, 1)
            if waited_s >= timeout_s:
                raise _timeout(slot, timeout_s, told)
            log.warning("the new slot still waits for open transactions", slot=slot, waited_s=waited_s, transactions=told)
    finally:
        await cancel({task})


def _timeout(slot: str, timeout_s: float, told: str) -> SlotTimeoutError:
    return SlotTimeoutError(
        f"replication slot {slot} was not made within {timeout_s:g} s: the source waits for transactions that are open, {told}",
        "let them end, or end them with pg_terminate_backend or ROLLBACK PREPARED; then start again, with a longer slot-timeout"
        " where such transactions are usual",
    )


async def _who_is_open(settings: PostgresSettings) -> str:
    """The oldest open transactions, in words. No query text, which holds values."""
    try:
        source = await Source.connect(settings)
        try:
            found = await source.rows_of(OpenTransaction, "asking for open transactions", _OPEN_TRANSACTIONS)
        finally:
            await source.close()
    except TransientError as error:
        return f"which could not be asked for ({error.fact})"
    more = f" and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
    return ", ".join(map(str, found[:MOST_TOLD])) + more if found else "none that can be seen now"
