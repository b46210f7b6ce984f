"""Dead letters of a pipeline's rows, as they were when a run began: which are read again, and which mean nothing after it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import orjson
from nats.aio.client import Client

from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream, StoredLetter
from pgsluice.shared.pipelines.run_records import RangeRecord, RunRecord
from pgsluice.shared.wire.dead_letter import RUNS
from pgsluice.shared.wire.names import GroupNames


@dataclass(frozen=True, slots=True)
class RunLetters:
    stream: DeadLetterStream
    letters: tuple[StoredLetter, ...]

    @classmethod
    async def read(cls, client: Client, names: GroupNames) -> RunLetters:
        stream = DeadLetterStream(client, names)
        return cls(stream, tuple(await stream.letters(RUNS)))

    @property
    def asked_again(self) -> tuple[RangeRecord, ...]:
        """Rows that users want to be read again. Their ranges have no numbers yet."""
        queued = [stored.letter.row for stored in self.letters if stored.is_queued]
        return tuple(RangeRecord(0, (), tuple(orjson.loads(row)), is_row=True, is_replayed=True) for row in queued)

    def without_dead(self, run: RunRecord, ranges: Sequence[RangeRecord]) -> list[RangeRecord]:
        """Returns ``ranges`` that are left of ``run``, without rows that it set aside already: it ended before it could
        note that."""
        dead = {tuple(orjson.loads(each.letter.row)) for each in self.letters if _is_dead_in(each, run)}
        return [each for each in ranges if not each.is_row or each.last not in dead]

    async def end(self, run: RunRecord) -> int:
        """Removes the dead letters of rows that ``run`` read again, after it has read all its rows. Returns the number
        of rows that it set aside itself."""
        current = await self.stream.letters(RUNS)
        await self.stream.remove([stored for stored in current if stored in self.letters and _is_read_again(stored, run)])
        return sum(stored.letter.sequence == run.number for stored in current)


def _is_dead_in(stored: StoredLetter, run: RunRecord) -> bool:
    return stored.letter.sequence == run.number and not stored.is_queued


def _is_read_again(stored: StoredLetter, run: RunRecord) -> bool:
    keys: Collection[tuple[str, ...]] = [each.last for each in run.ranges if each.is_row]
    return stored.letter.sequence != run.number and (run.is_full or tuple(orjson.loads(stored.letter.row)) in keys)
