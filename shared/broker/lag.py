"""How far a reader is behind the end of a group's stream of changes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from pgsluice.shared.broker.streams import ChangeStream, StreamState
from pgsluice.shared.wire.message import MessageHeaders


@dataclass(frozen=True, slots=True)
class Lag:
    """``bytes`` counts bodies, before compression, that were not read; the first of them was stored ``seconds`` ago (0: there are
    none). None of what is not known, because the reader is bound to another stream or its place in the stream is gone."""

    messages: int | None = None
    bytes: int | None = None
    seconds: float | None = None


UNKNOWN_LAG = Lag()
NO_LAG = Lag(0, 0, 0.0)


async def measure_lag(stream: ChangeStream, state: StreamState, sequence: int) -> Lag:
    """Between ``sequence`` and the end of ``stream``, whose state is ``state``."""
    behind = state.last_sequence - sequence
    if behind <= 0:
        return NO_LAG
    last, first_behind = await stream.message(state.last_sequence), await stream.message(sequence + 1)
    if last is None or first_behind is None:
        return Lag(behind)
    total = MessageHeaders.decode(last.headers).total_bytes
    before = MessageHeaders.decode(first_behind.headers).bytes_before(first_behind.data)
    return Lag(behind, total - before, max(0.0, (datetime.now(UTC) - first_behind.stored_at).total_seconds()))
