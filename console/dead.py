"""Commands of ``pgsluice dead`` for a group's dead letters. Only NATS is needed; the worker need not run.

A replay is a request, one message for each dead letter, and the worker applies them (``worker.dead_letters.replay``).
Dead letters stay where they are: a request that was interrupted, is given twice or comes late does no harm.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

import orjson

from pgsluice.console.columns import format_columns
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream, StoredLetter
from pgsluice.shared.broker.unit_records import worker_unit
from pgsluice.shared.config.settings import GroupSettings
from pgsluice.shared.errors import TerminalError, TransientError, UsageError
from pgsluice.shared.units.unit_wait import UnitWait, described
from pgsluice.shared.wire.dead_letter import RUNS
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.dead_letters.blocked_letters import BlockedLetters
from pgsluice.worker.dead_letters.letter import changes_of
from pgsluice.worker.sinks.lines.json_lines import encode_lines

_STAYS = "the request stays stored, and the worker replays them when it is started again"

log = telemetry.logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LetterSelection:
    """Dead letters of ``worker`` ("": of any) with these positions, or ``every`` one."""

    worker: str
    positions: tuple[str, ...]
    every: bool

    def of(self, letters: Sequence[StoredLetter]) -> list[StoredLetter]:
        """Raises UsageError when a position names no dead letter, or several workers'."""
        if self.every == bool(self.positions):
            raise UsageError("no dead letters are named", "give their positions, as 'pgsluice dead list' shows them, or --all")
        if self.every:
            return list(letters)
        named = [stored for stored in letters if str(stored.letter.position) in self.positions]
        missing = set(self.positions) - {str(stored.letter.position) for stored in named}
        if missing:
            raise UsageError(f"there is no dead letter {min(missing)}", "see 'pgsluice dead list'")
        workers = sorted({stored.letter.worker for stored in named})
        if len(workers) > 1:
            raise UsageError(f"workers {' and '.join(workers)} have such dead letters", "give --worker")
        return named


_HEADINGS = ("POSITION", "WORKER", "TABLE", "TIME", "STATE", "BEHIND", "REASON")


def list_letters(settings: GroupSettings, worker: str, *, as_json: bool) -> None:
    """Lists dead letters without row values. ``worker``: "" for all workers."""
    letters = _at_stream(settings, lambda stream: stream.letters(worker or None))
    if as_json:
        sys.stdout.writelines(orjson.dumps(each).decode() + "\n" for each in blocking(letters))
        return
    sys.stdout.writelines(f"{line}\n" for line in format_columns(_HEADINGS, [*map(_columns, blocking(letters))]))


def show(settings: GroupSettings, selection: LetterSelection) -> None:
    """Writes row values."""
    letters = _at_stream(settings, lambda stream: stream.letters(selection.worker or None))
    for stored in selection.of(letters):
        if stored.letter.row:  # of a pipeline's run: nothing but its key is kept
            shown = {"pipeline": stored.letter.table, "key": orjson.loads(stored.letter.row), "reason": stored.letter.reason}
            sys.stdout.buffer.write(orjson.dumps(shown) + b"\n")
        for line in encode_lines(changes_of(stored.letter, stored.letter.sequence)):
            sys.stdout.buffer.write(line)


def replay(settings: GroupSettings, selection: LetterSelection, wait_s: float) -> None:
    """Raises TransientError when the worker has not replayed them, or refused them again, within ``wait_s`` (0: returns at once),
    TerminalError when it no longer can."""
    asyncio.run(_replay(settings, selection, wait_s))


async def _replay(settings: GroupSettings, selection: LetterSelection, wait_s: float) -> None:
    names = GroupNames(settings.group)
    async with connected(settings.nats, f"pgsluice dead {names.group}") as client:
        stream = DeadLetterStream(client, names)
        asked = await ask_for_replay(stream, selection)
        log.info("replay is asked for", letters=len(asked))
        if wait_s:
            await _wait_for_outcome(stream, StateBucket(client, names), asked, wait_s)


def discard(settings: GroupSettings, selection: LetterSelection) -> None:
    async def remove(stream: DeadLetterStream) -> None:
        log.info("dead letters are removed", letters=len(await remove_letters(stream, selection)))

    _at_stream(settings, remove)


async def ask_for_replay(stream: DeadLetterStream, selection: LetterSelection) -> list[StoredLetter]:
    """Requests a replay of those dead letters, and of earlier ones of the same rows; returns all of them. May be
    repeated after an interruption. Raises UsageError for an invalid selection."""
    letters = await stream.letters(selection.worker or None)
    asked = BlockedLetters(letters).with_earlier(selection.of(letters))
    for stored in asked:
        if not stored.is_queued:
            await stream.ask(stored.letter)
    return asked


async def remove_letters(stream: DeadLetterStream, selection: LetterSelection) -> list[StoredLetter]:
    """Removes dead letters for good; returns them. Raises UsageError for an invalid selection."""
    letters = selection.of(await stream.letters(selection.worker or None))
    await stream.remove(letters)
    return letters


async def _wait_for_outcome(stream: DeadLetterStream, bucket: StateBucket, asked: Sequence[StoredLetter], wait_s: float) -> None:
    places = {(stored.letter.worker, stored.letter.position) for stored in asked}
    left: list[StoredLetter] = []

    async def look() -> Sequence[str] | None:
        nonlocal left
        left = [stored for stored in await stream.letters() if (stored.letter.worker, stored.letter.position) in places]
        if not left and await stream.state() is None:
            raise TerminalError(f"stream {stream.name} is gone, and the dead letters with it", "nothing is waited for any more")
        queued = {stored.letter.worker for stored in left if stored.is_queued}
        return sorted(worker_unit(worker) for worker in queued - {RUNS}) if queued else None

    wait = UnitWait(bucket, undone="and has not replayed the dead letters", stays=_STAYS, wait_s=wait_s)
    late = await wait.until(look)
    if late is None:
        log.info("replay came to an end", applied=len(places) - len(left), refused_again=len(left))
    elif late:
        raise TransientError(
            f"the replay has not come to an end in {wait_s:g} s: {described(late)}", "see that it runs; the request stays stored"
        )
    else:
        raise TransientError(
            f"the pipeline has read none of the rows again in {wait_s:g} s",
            "its next run does: 'pgsluice run'; the request stays stored",
        )


@dataclass(frozen=True, slots=True)
class ListedLetter:
    """The public facts of a dead letter: no row value. ``state`` is "dead" or "replay", ``sequence`` the message that
    its change came in."""

    position: str
    worker: str
    table: str
    time: str
    state: str
    reason: str
    copied: bool
    sequence: int
    attempts: int


@dataclass(frozen=True, slots=True)
class BlockingLetter(ListedLetter):
    """``behind`` counts the dead letters that wait for this one: later changes of its rows."""

    behind: int


def blocking(letters: Sequence[StoredLetter]) -> list[BlockingLetter]:
    """Returns the letters, each with the number of others that wait for it."""
    blocked = BlockedLetters(letters)
    return [BlockingLetter(**asdict(listed(stored)), behind=blocked.count_behind(stored)) for stored in letters]


def listed(stored: StoredLetter) -> ListedLetter:
    letter = stored.letter
    return ListedLetter(
        position=str(letter.position),
        worker=letter.worker,
        table=letter.table,
        time=letter.time,
        state=_state(stored),
        reason=letter.reason,
        copied=letter.is_copied,
        sequence=letter.sequence,
        attempts=letter.attempts,
    )


def _columns(letter: BlockingLetter) -> tuple[str, ...]:
    return letter.position, letter.worker, letter.table, letter.time, letter.state, str(letter.behind), letter.reason


def _state(stored: StoredLetter) -> str:
    return "replay" if stored.is_queued else "dead"


def _at_stream(settings: GroupSettings, work: Callable[[DeadLetterStream], Awaitable[T]]) -> T:
    async def answer() -> T:
        names = GroupNames(settings.group)
        async with connected(settings.nats, f"pgsluice dead {names.group}") as client:
            return await work(DeadLetterStream(client, names))

    return asyncio.run(answer())
