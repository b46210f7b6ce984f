"""Watches long statements at the target: whether the server works on them, or they wait for another session.

A merge, or the key of a large table, may take minutes, and the calling thread gets no answer before its end. So when a
call of the sink is under way for LOOK_INTERVAL_S another session checks, as often: so a working process is not mistaken
for a stuck one, nor the other way round.

A connection may be lost without a signal to either end (a balancer acknowledges and forgets): then the server's session
waits for its client, and the client for an answer. The watch breaks off the client's wait. It ends such a session of an
earlier worker that holds the position.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psycopg
from psycopg.pq import TransactionStatus

from pgsluice.shared import telemetry
from pgsluice.shared.errors import Cause, PgsluiceError, TransientError
from pgsluice.shared.postgres.session_settings import CONNECT_TIMEOUT_S
from pgsluice.shared.process.pulse import Pulse
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.postgres.target.connection import (
    DRIVER_SESSION,
    TASK_SESSION,
    Connection,
    answering_within,
    break_off,
    connect,
)

LOOK_INTERVAL_S = 10.0

LOOKS_IN_VAIN = 3
"""Number of checks that find a session waiting for its client, unchanged, after which its client is considered
unreachable."""

# Views of the manual's chapter "Monitoring Database Activity". A statement that waits for its client may be this
# process's fault, so then only changes are relevant.
_LOOK = """
    SELECT a.pid, a.state_change, a.query_start, c.bytes_processed,
           a.state = 'active' AND coalesce(a.wait_event_type, '') <> 'Client' AS is_busy,
           coalesce(a.wait_event_type = 'Lock', false) AS needs_lock,
           coalesce(a.wait_event = 'SyncRep', false) AS needs_standby,
           coalesce(a.state LIKE 'idle%%' OR a.wait_event_type = 'Client', false) AS needs_client,
           CASE WHEN a.wait_event_type = 'Lock' THEN pg_blocking_pids(a.pid) END AS blocked_by
      FROM pg_stat_activity a
      LEFT JOIN pg_stat_progress_copy c ON c.pid = a.pid
     WHERE a.pid = ANY(%s)
"""
_OURS = f"{_LOOK} AND a.application_name = ANY(%s) AND a.usename = current_user"
_END = "SELECT pg_terminate_backend(%s)"

log = telemetry.logger(__name__)


class _WatchedSession(NamedTuple):
    pid: int
    state_change: Any
    query_start: Any
    bytes_processed: int | None
    is_busy: bool | None
    needs_lock: bool
    needs_standby: bool
    needs_client: bool
    blocked_by: list[int] | None

    @property
    def mark(self) -> tuple[Any, ...]:
        """Returns a value that changes with each statement, and with each part of one that copies."""
        return self[:4]

    @property
    def wait(self) -> str:
        """Returns what it waits for; "" when it works."""
        if self.needs_lock:
            holders = ", ".join(map(str, self.blocked_by or ()))
            return f"a lock at the target, which process {holders} holds" if holders else "a lock at the target"
        return "a synchronous standby of the target" if self.needs_standby else ""


@dataclass(slots=True)
class _Patience:
    """Counts checks of a session that waits for its client."""

    mark: tuple[Any, ...] = ()
    looks: int = 0

    def is_over(self, now: _WatchedSession, *, waits: bool) -> bool:
        """Returns whether the session is lost. ``waits``: the client waits for an answer, and has nothing to send."""
        goes_on = waits and now.needs_client
        self.looks = (self.looks + 1 if now.mark == self.mark else 1) if goes_on else 0
        self.mark = now.mark
        return self.looks >= LOOKS_IN_VAIN


@dataclass(eq=False, slots=True)
class _Call:
    """A call of the sink. ``cause`` is used for a wait for a lock. ``ends_own``: orphaned sessions of pgsluice that
    hold it are ended."""

    connection: Connection
    pid: int
    cause: Cause
    ends_own: bool
    began_at: float
    last: _WatchedSession | None = None
    patience: _Patience = field(default_factory=_Patience)
    holders: defaultdict[int, _Patience] = field(default_factory=lambda: defaultdict(_Patience))

    @property
    def waits(self) -> bool:
        """Returns whether this side waits for an answer."""
        return not self.connection.closed and self.connection.pgconn.transaction_status == TransactionStatus.ACTIVE


class StatementWatch:
    """Reports to ``pulse``, the process's, or an unused one."""

    def __init__(self, settings: PostgresSinkSettings) -> None:
        self.pulse = Pulse()
        self._settings = settings
        self._lock = threading.Lock()
        self._calls: list[_Call] = []
        self._is_told = False
        """True if the pulse has a wait that may not be over."""
        self._closing: threading.Event | None = None
        """Ends the watching thread; None without one."""

    @contextmanager
    def over(self, connection: Connection, cause: Cause = Cause.LOCK, *, ends_own: bool = False) -> Iterator[None]:
        """Watches while the caller has statements run there. A lock that they wait for is reported as ``cause``.
        ``ends_own``: only sessions of this worker, or of one that it follows, can hold it; one that waits for its
        client is ended."""
        call = _Call(connection, connection.info.backend_pid, cause, ends_own, time.monotonic())
        with self._lock:
            self._calls.append(call)
            if self._closing is None:
                self._closing = threading.Event()
                threading.Thread(target=self._run, args=[self._closing], name="pgsluice-statements", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._calls.remove(call)
                self._end_wait()

    def close(self) -> None:
        """Stops watching until the next statement."""
        with self._lock:
            if self._closing is not None:
                self._closing.set()
            self._closing = None

    def _run(self, closing: threading.Event) -> None:
        while not closing.wait(LOOK_INTERVAL_S):
            now = time.monotonic()
            long_ones = [call for call in list(self._calls) if now - call.began_at >= LOOK_INTERVAL_S]
            if long_ones:
                try:
                    self._look(long_ones)
                except (psycopg.Error, PgsluiceError) as error:  # an unknown state is not reported
                    log.debug("the target does not report its activity", reason=type(error).__name__)

    def _look(self, calls: list[_Call]) -> None:
        with connect(self._settings, "pgsluice watch") as connection, answering_within(CONNECT_TIMEOUT_S, connection):
            rows = connection.execute(_LOOK, [[call.pid for call in calls]]).fetchall()
            found = {row[0]: _WatchedSession(*row) for row in rows}
            for call in calls:
                if (now := found.get(call.pid)) is None:
                    continue
                with self._lock:
                    if call not in self._calls:
                        continue
                    self._tell(call, now)
                    is_lost = call.patience.is_over(now, waits=call.waits)
                    if is_lost:
                        log.warning(
                            "the target waits for this worker, which waits for it: the worker gives the connection up",
                            process=call.pid,
                        )
                        break_off(call.connection)
                if is_lost:
                    connection.execute(_END, [call.pid])
                elif call.ends_own and now.blocked_by:
                    self._end_own(connection, call, now.blocked_by)

    def _end_own(self, connection: Connection, call: _Call, holders: list[int]) -> None:
        for row in connection.execute(_OURS, [holders, [DRIVER_SESSION, TASK_SESSION]]).fetchall():
            holder = _WatchedSession(*row)
            if call.holders[holder.pid].is_over(holder, waits=True):
                log.warning(
                    "an earlier session of this worker holds the position and does not respond: the worker ends it",
                    process=holder.pid,
                )
                connection.execute(_END, [holder.pid])

    def _tell(self, call: _Call, now: _WatchedSession) -> None:
        before, call.last = call.last, now
        if wait := now.wait:
            self.pulse.waits(TransientError(f"waiting for {wait}", cause=call.cause if now.needs_lock else Cause.TARGET))
            self._is_told = True
        elif now.is_busy or (before is not None and before.mark != now.mark):
            self._end_wait()
            self.pulse.moved()

    def _end_wait(self) -> None:
        if self._is_told:
            self.pulse.progressed()
            self._is_told = False
