"""Rows of a query that steps fail on, set aside by the task that reads them, and rows that the query itself fails on.

A dead letter names the row by its key, and holds nothing else of it: a replay makes the next run read the row again, as
it is then. It is stored before the message that skips the row. A row has one dead letter, whichever runs failed on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from nats.aio.client import Client

from pgsluice.replicator.snapshot.copy_task_messages import CopyParameters, RangeFailedError, RangeRequest, RangeStatus
from pgsluice.replicator.snapshot.range_reader import RowBlock, last_key
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream, StoredLetter
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.dead_letter import RUNS, DeadLetter, now, row_position
from pgsluice.shared.wire.message import Descriptor, encode_body
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import Position

_NO_CHANGE = encode_body(Descriptor(()).encode(), [])


class RowLetters:
    """Dead letters of rows by the run ``run`` of a pipeline, which users know as ``name``; it may have ``most``."""

    def __init__(self, client: Client, names: GroupNames, name: str, snapshot_id: str, run: int, most: int) -> None:
        self._stream = DeadLetterStream(client, names)
        self._model = names.snapshot_stream
        self._name = name
        self._snapshot_id = snapshot_id
        self._run = run
        self._most = most
        self._known: dict[Position, StoredLetter] | None = None

    async def store(self, rows: Sequence[tuple[str, str]]) -> None:
        """Stores dead letters; they are durable when it returns. ``rows`` are keys as JSON, and why. Raises
        TerminalError when there would be too many."""
        if rows and self._known is None:
            await self._stream.ensure_like(self._model)
            self._known = {stored.letter.position: stored for stored in await self._stream.letters(RUNS)}
        for row, reason in rows:
            assert self._known is not None
            await self._store(self._known, row, reason)

    async def _store(self, known: dict[Position, StoredLetter], row: str, reason: str) -> None:
        position = row_position(row)
        before = known.get(position)
        if before is not None and before.letter.sequence == self._run and not before.is_queued:
            return  # an earlier attempt of this run was here
        if before is None and len(known) >= self._most:
            raise self.too_many(reason)
        attempts = 1 if before is None else before.letter.attempts + 1
        letter = DeadLetter(RUNS, position, self._name, reason, now(), self._run, self._snapshot_id, attempts, _NO_CHANGE, row)
        known[position] = await self._stream.publish(letter)
        if before is not None:
            await self._stream.remove([before])

    def too_many(self, reason: str) -> TerminalError:
        """``reason`` is the last one's."""
        return TerminalError(
            f"{self._name} has more than {self._most} rows that cannot be processed; the last one: {reason}",
            "correct the query or the steps, replay or discard dead letters ('pgsluice dead'), or raise max-dead-letters of the"
            " pipeline",
        )


class DeadRows:
    """The dead letters of one range, whose keys are at ``key_fields`` of its rows."""

    def __init__(self, client: Client, parameters: CopyParameters, request: RangeRequest) -> None:
        names, snapshot_id, name = GroupNames(parameters.group), parameters.snapshot_id, request.pages.name
        self._letters = RowLetters(client, names, name, snapshot_id, request.mark.run, parameters.most_dead)
        self._fields = request.key_fields

    async def set_aside(self, block: RowBlock, failed: Sequence[tuple[int, str]]) -> None:
        """Stores dead letters; they are stored when it returns. ``failed`` are places in the block, with reasons.
        Raises RangeFailedError when there would be too many."""
        lines = block.data.split(b"\n") if failed else []
        try:
            await self._letters.store([(last_key(lines[place] + b"\n", self._fields), reason) for place, reason in failed])
        except TerminalError as error:
            raise RangeFailedError(RangeStatus.REFUSED, error) from None
