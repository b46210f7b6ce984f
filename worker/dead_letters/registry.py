"""The dead letters of one worker, in the driver: the existing ones, the rows that they block, and new ones.

The stream is the only memory. It is read when the worker starts; after that this process is the only one that adds dead
letters, and it reads again (``refresh``) only while there are some: users may discard them or request a replay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import StrEnum

from nats.aio.client import Client

from pgsluice.shared import telemetry
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream, StoredLetter
from pgsluice.shared.broker.streams import ChangeStream, StreamState
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.dead_letter import DeadLetter
from pgsluice.shared.wire.message import Descriptor, split_body
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import Position
from pgsluice.worker.batches.ownership import Ownership
from pgsluice.worker.dead_letters.exclusions import Exclusions, RowKey, TableKey, touched_rows
from pgsluice.worker.dead_letters.letter import changes_of
from pgsluice.worker.dead_letters.rejection import BEHIND, RejectedChanges, Rejection, WriteAgain
from pgsluice.worker.dead_letters.task_report import TaskReport
from pgsluice.worker.event_loop import EventLoopThread

log = telemetry.logger(__name__)


class LetterState(StrEnum):
    """Why a dead letter exists, or its state: its change was refused; an earlier change of its row was; a replay was
    requested."""

    DEAD = "dead"
    BEHIND = "behind"
    REPLAYING = "replaying"


class DeadLetterRegistry:
    """Blocking calls over the worker's NATS connection; TransientError when JetStream does not answer."""

    def __init__(self, loop: EventLoopThread, client: Client, names: GroupNames, worker: str, limit: int) -> None:
        self.stream = DeadLetterStream(client, names)
        self._loop = loop
        self._model_streams = (names.changes_stream, names.snapshot_stream)
        self._changes = ChangeStream(client, names)
        self._worker = worker
        self.limit = limit
        self.published = 0
        """Number of dead letters that this process made."""
        self._letters: dict[Position, StoredLetter] = {}
        self._blocked: dict[TableKey, dict[RowKey, Position]] = {}
        self._rejected: dict[Position, str] = {}
        self._truncated: dict[int, Position] = {}
        self._seen: StreamState | None = None

    @property
    def stream_created(self) -> str:
        """Identifies the dead-letter stream; "" without one."""
        return self._seen.created if self._seen else ""

    @property
    def letters(self) -> Sequence[StoredLetter]:
        """The dead letters by position."""
        return [self._letters[position] for position in sorted(self._letters)]

    def states(self) -> Counter[LetterState]:
        """Returns the number of dead letters in each state. Any thread may call."""
        return Counter(map(_state, list(self._letters.values())))

    def load(self) -> None:
        """Reads the stream; discards everything known before, except the rejections of the current batch."""
        self._seen = self._loop.run(self.stream.state())
        self._letters, self._blocked = {}, {}
        letters, strays = self._loop.run(self.stream.contents(self._worker))
        for stored in letters:
            self._enter(stored)
        self._loop.run(self.stream.remove_messages(strays))
        self._expect([], removed=len(strays))

    def refresh(self) -> None:
        """Reads the stream again, when there are dead letters and the stream has changed."""
        if not self._letters:
            return
        if _identity(self._loop.run(self.stream.state())) != _identity(self._seen):
            self.load()

    def exclusions(self, ownership: Ownership) -> Exclusions:
        """Returns the changes that tasks leave out now. First removes dead letters that a later copy of their table
        makes obsolete."""
        self.refresh()
        if self._letters:
            self._remove(lambda stored: _is_in_copy(stored.letter, ownership), "their tables were copied since")
        copied = {position: stored.letter.reason for position, stored in self._letters.items() if stored.letter.is_copied}
        room = max(0, self.limit - len(self._letters))
        return Exclusions(copied | self._rejected, {table: dict(rows) for table, rows in self._blocked.items()}, room)

    def reject(self, rejections: Iterable[Rejection]) -> None:
        """Notes rejections of the current batch, which must be searched for these. Raises TerminalError when there is
        no room for them."""
        self._rejected |= {rejection.position: rejection.reason for rejection in rejections}
        new = [reason for position, reason in self._rejected.items() if position not in self._letters]
        if len(self._letters) + len(new) > self.limit:
            raise self._full(len(new), new[0])

    def take(self, reports: Sequence[TaskReport]) -> None:
        """Publishes what tasks took out and was not published yet. Raises RejectedChanges for what writers rejected, and
        WriteAgain when rows are blocked now that the batch's tasks did not know of."""
        taken_out = [letter for report in reports for letter in report.letters]
        letters = {letter.position: letter for letter in taken_out if letter.position not in self._letters}
        before = _copy(self._blocked)
        self._publish(list(letters.values()))
        for report in reports:
            for oid, position in report.truncated:
                self._truncated[oid] = max(position, self._truncated.get(oid, position))
        rejections = [rejection for report in reports for rejection in report.rejections]
        if rejections:
            raise RejectedChanges(rejections)
        if self._blocked != before:
            raise WriteAgain

    def check_found(self) -> None:
        """Raises TerminalError when a rejected change has no dead letter after the batch was searched."""
        lost = [position for position in self._rejected if position not in self._letters]
        if lost:
            raise TerminalError(
                f"a change at {lost[0]} was rejected, which is not in the batch",
                "this is a defect of the sink; nothing was applied, please report it",
            )

    def remove_truncated(self) -> None:
        """Removes dead letters of tables that the current batch truncates: their changes are obsolete at the source,
        too. Call it before the batch is applied, because the truncation would be forgotten after a crash; until then a
        replay has to wait anyway."""
        if self._truncated:
            truncated, self._truncated = self._truncated, {}
            self._remove(lambda stored: _is_truncated(stored.letter, truncated), "their tables were truncated since")

    def settle(self) -> None:
        """Notes that the current batch is applied."""
        self._rejected = {}

    def remove(self, letters: Sequence[StoredLetter]) -> None:
        """Removes dead letters from the stream that are applied, or superseded."""
        self._loop.run(self.stream.remove(letters))
        self._expect([], removed=sum(len(stored.all_sequences) for stored in letters))
        gone = {stored.letter.position for stored in letters}
        left = [stored for stored in self._letters.values() if stored.letter.position not in gone]
        self._letters, self._blocked = {}, {}
        for stored in left:
            self._enter(stored)

    def send_back(self, stored: StoredLetter, letter: DeadLetter) -> None:
        """Replaces ``stored`` by ``letter``, which waits for an operator again."""
        again = self._loop.run(self.stream.publish(letter))
        self._loop.run(self.stream.remove([stored]))
        self._expect(again.sequences, removed=len(stored.all_sequences))
        self._letters[letter.position] = again

    def withdraw(self, letters: Sequence[StoredLetter]) -> list[StoredLetter]:
        """Removes the places of ``letters``, none of which was applied there."""
        return [self._withdrawn(stored) for stored in letters]

    def _withdrawn(self, stored: StoredLetter) -> StoredLetter:
        self._loop.run(self.stream.remove_messages(stored.places))
        self._expect([], removed=len(stored.places))
        self._letters[stored.letter.position] = withdrawn = replace(stored, places=())
        return withdrawn

    def place(self, letters: Sequence[StoredLetter]) -> list[StoredLetter]:
        """Gives places to ``letters``, which are about to be applied in this sequence."""
        return [self._placed(stored) for stored in letters]

    def _placed(self, stored: StoredLetter) -> StoredLetter:
        place = self._loop.run(self.stream.place(stored.letter))
        self._expect([place])
        self._letters[stored.letter.position] = placed = replace(stored, places=(place,))
        return placed

    def _publish(self, letters: Sequence[DeadLetter]) -> None:
        if not letters:
            return
        if len(self._letters) + len(letters) > self.limit:
            raise self._full(len(letters), letters[0].reason)
        self._loop.run(self._ensure_stream())
        for letter in letters:
            stored = self._loop.run(self.stream.publish(letter))
            self._expect(stored.sequences)
            self._enter(stored)
        self.published += len(letters)
        first = letters[0]
        log.warning(
            "changes became dead letters",
            letters=len(letters),
            table=first.table,
            position=str(first.position),
            reason=first.reason,
        )

    def _expect(self, added: Sequence[int], removed: int = 0) -> None:
        """Notes this process's own change of the stream, which needs no new read unless another client added to it
        meanwhile."""
        if self._seen is not None and added and added[0] != self._seen.last_sequence + 1:
            self._seen = None
        if self._seen is not None:
            last_sequence = added[-1] if added else self._seen.last_sequence
            messages = self._seen.messages + len(added) - removed
            self._seen = replace(self._seen, messages=messages, last_sequence=last_sequence)

    async def _ensure_stream(self) -> None:
        changes = await self._changes.state()
        await self.stream.ensure_like(self._model_streams[0] if changes else self._model_streams[1])

    def _enter(self, stored: StoredLetter) -> None:
        letter = stored.letter
        self._letters[letter.position] = stored
        for table, key in touched_rows(changes_of(letter, stored.last_sequence)):
            rows = self._blocked.setdefault(table, {})
            rows[key] = min(letter.position, rows.get(key, letter.position))

    def _remove(self, is_meaningless: Callable[[StoredLetter], bool], because: str) -> None:
        meaningless = [stored for stored in self._letters.values() if is_meaningless(stored)]
        if meaningless:
            self.remove(meaningless)
            log.warning("dead letters are removed, for they mean nothing any more", letters=len(meaningless), because=because)

    def _full(self, new: int, reason: str) -> TerminalError:
        changes = "1 change" if new == 1 else f"{new} changes"
        return TerminalError(
            f"{changes} of worker '{self._worker}' cannot be applied (the first: {reason}); with {len(self._letters)}"
            f" existing dead letters, that is more than max-dead-letters ({self.limit})",
            "fix the cause and start again, or replay or discard dead letters ('pgsluice dead list'), or raise"
            " --max-dead-letters; nothing of the batch was applied",
        )


def _identity(state: StreamState | None) -> tuple[str, int, int] | None:
    """Identifies changes with whatever is added or removed."""
    return None if state is None else (state.created, state.last_sequence, state.messages)


def _state(stored: StoredLetter) -> LetterState:
    if stored.is_queued:
        return LetterState.REPLAYING
    return LetterState.BEHIND if stored.letter.reason.startswith(BEHIND) else LetterState.DEAD


def _copy(blocked: dict[TableKey, dict[RowKey, Position]]) -> dict[TableKey, dict[RowKey, Position]]:
    return {table: dict(rows) for table, rows in blocked.items()}


def _is_in_copy(letter: DeadLetter, ownership: Ownership) -> bool:
    """Returns whether the rows that a copy shows, or will show, hold the dead letter's change or replace it."""
    tables = Descriptor.decode(split_body(letter.body)[0]).tables
    if letter.is_copied:
        return not all(ownership.counts(table, letter.snapshot) for table in tables)
    return all(letter.position.commit_lsn < ownership.copied_before(table) for table in tables)


def _is_truncated(letter: DeadLetter, truncated: dict[int, Position]) -> bool:
    rows = list(touched_rows(changes_of(letter, 0)))
    return bool(rows) and all(table.oid in truncated and letter.position < truncated[table.oid] for table, _ in rows)
