"""What the target says of a statement of ours that takes long: it works on it, or has it wait for somebody.

A merge, or the key of a large table, may take minutes, and the thread that asked for it hears nothing before its end. So when a
call of the sink is under way for LOOK_INTERVAL_S another session looks, as often: a process that works is not to be mistaken for
one that stands still, nor the other way round.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg

from pgsluice.shared import telemetry
from pgsluice.shared.errors import Cause, PgsluiceError, TransientError
from pgsluice.shared.process.pulse import Pulse
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.postgres.target.connection import Connection, connect

LOOK_INTERVAL_S = 10.0

# Views of the manual's chapter "Monitoring Database Activity". A statement that waits for its client may be our own thread's
# fault, so only what has changed counts then.
_LOOK = """
    SELECT a.pid, a.query_start, c.bytes_processed,
           a.state = 'active' AND coalesce(a.wait_event_type, '') <> 'Client' AS is_busy,
           coalesce(a.wait_event_type = 'Lock', false) AS needs_lock,
           coalesce(a.wait_event = 'SyncRep', false) AS needs_standby,
           CASE WHEN a.wait_event_type = 'Lock' THEN pg_blocking_pids(a.pid) END AS blocked_by
      FROM pg_stat_activity a
      LEFT JOIN pg_stat_progress_copy c ON c.pid = a.pid
     WHERE a.pid = ANY(%s)
"""

log = telemetry.logger(__name__)


class _Found(NamedTuple):
    pid: int
    query_start: Any
    bytes_processed: int | None
    is_busy: bool | None
    needs_lock: bool
    needs_standby: bool
    blocked_by: list[int] | None

    @property
    def wait(self) -> str:
        """What it waits for; "" when it works."""
        if self.needs_lock:
            holders = ", ".join(map(str, self.blocked_by or ()))
            return f"a lock at the target, which process {holders} holds" if holders else "a lock at the target"
        return "a synchronous standby of the target" if self.needs_standby else ""


@dataclass(eq=False, slots=True)
class _Call:
    """Of the sink. ``cause`` is that of a wait for a lock."""

    pid: int
    cause: Cause
    began_at: float
    last: _Found | None = None


class StatementWatch:
    """Tells ``pulse``, which is the process's, or one that nobody looks at."""

    def __init__(self, settings: PostgresSinkSettings) -> None:
        self.pulse = Pulse()
        self._settings = settings
        self._lock = threading.Lock()
        self._calls: list[_Call] = []
        self._is_told = False
        """Whether the pulse was told of a wait that may not be over."""
        self._closing: threading.Event | None = None
        """Of the thread that looks; None without one."""

    @contextmanager
    def over(self, connection: Connection, cause: Cause = Cause.LOCK) -> Iterator[None]:
        """While the caller has statements run there. A lock that they wait for is told as ``cause``."""
        call = _Call(connection.info.backend_pid, cause, time.monotonic())
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
        """Nobody looks until something is watched again."""
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
                except (psycopg.Error, PgsluiceError) as error:  # what is not known is not told
                    log.debug("the target does not say what it does", reason=type(error).__name__)

    def _look(self, calls: list[_Call]) -> None:
        with connect(self._settings, "pgsluice watch") as connection:
            rows = connection.execute(_LOOK, [[call.pid for call in calls]]).fetchall()
        found = {row[0]: _Found(*row) for row in rows}
        for call in calls:
            with self._lock:
                if call in self._calls and (now := found.get(call.pid)) is not None:
                    self._tell(call, now)

    def _tell(self, call: _Call, now: _Found) -> None:
        before, call.last = call.last, now
        if wait := now.wait:
            self.pulse.waits(TransientError(f"waiting for {wait}", cause=call.cause if now.needs_lock else Cause.TARGET))
            self._is_told = True
        elif now.is_busy or (before is not None and before[:3] != now[:3]):
            self._end_wait()
            self.pulse.moved()

    def _end_wait(self) -> None:
        if self._is_told:
            self.pulse.progressed()
            self._is_told = False
