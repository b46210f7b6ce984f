"""Dead letters: a list, the content of one, and their replay or removal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from pgsluice.console.dead import BlockingLetter, LetterSelection, ListedLetter, ask_for_replay, blocking, listed, remove_letters
from pgsluice.console.server.access.principal import Role
from pgsluice.console.server.api.group_api import view_of
from pgsluice.console.server.endpoint_table import Answer, Call, Endpoint, Rows
from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.console.server.typed_json import Json
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream, StoredLetter
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.dead_letters.blocked_letters import BlockedLetters
from pgsluice.worker.dead_letters.letter import changes_of
from pgsluice.worker.sinks.lines.json_lines import encode_lines


@dataclass(frozen=True, slots=True)
class LetterQuery:
    """ "" is any. ``state`` is dead or replay."""

    worker: str = ""
    table: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class LetterList:
    """Dead letters by worker and position."""

    letters: tuple[ListedLetter, ...]


@dataclass(frozen=True, slots=True)
class BlockingList:
    """Dead letters by worker and position."""

    letters: tuple[BlockingLetter, ...]


@dataclass(frozen=True, slots=True)
class BehindList:
    """Dead letters that wait for ``letter``, by position; ``tables`` counts them by table."""

    letter: ListedLetter
    behind: tuple[ListedLetter, ...]
    tables: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ShownLetter:
    """``changes`` are JSON lines' objects, with the row's values."""

    letter: ListedLetter
    changes: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class PositionQuery:
    """``worker`` selects the dead letter, if several workers have one of that position."""

    position: str
    worker: str = ""


@dataclass(frozen=True, slots=True)
class LetterChoice:
    """Positions, or ``all``; of one ``worker``, or of any. ``reason`` is for the audit."""

    positions: tuple[str, ...] = ()
    all: bool = False
    worker: str = ""
    reason: str = ""


async def list_letters(call: Call) -> Answer:
    query = call.query
    letters = await (await _stream(call)).letters(query.worker or None)
    wanted = [each for each in blocking(letters) if query.table in ("", each.table) and query.state in ("", each.state)]
    return Answer(BlockingList(tuple(wanted)))


async def show_behind(call: Call) -> Answer:
    letters = await (await _stream(call)).letters(call.query.worker or None)
    stored = _named(letters, call.query)
    behind = tuple(map(listed, BlockedLetters(letters).behind(stored)))
    return Answer(BehindList(listed(stored), behind, Counter(each.table for each in behind)))


async def show_letter(call: Call) -> Answer:
    stored = _named(await (await _stream(call)).letters(call.query.worker or None), call.query)
    lines = [line for text in encode_lines(changes_of(stored.letter, stored.letter.sequence)) for line in text.splitlines()]
    return Answer(ShownLetter(listed(stored), tuple(map(orjson.Fragment, lines))))


def _named(letters: Sequence[StoredLetter], query: PositionQuery) -> StoredLetter:
    position = query.position
    found = [stored for stored in letters if str(stored.letter.position) == position]
    if not found:
        raise Problem(ProblemKind.NOT_FOUND, f"there is no dead letter {position}", "see the list; it may have been replayed")
    if len(found) > 1:
        raise Problem(ProblemKind.MALFORMED, f"several workers have a dead letter {position}", "name one of them", "worker")
    return found[0]


async def replay_letters(call: Call) -> Answer:
    asked = await ask_for_replay(await _stream(call), _selection(call))
    return Answer(LetterList(tuple(map(listed, asked))), target=_target(call))


async def discard_letters(call: Call) -> Answer:
    removed = await remove_letters(await _stream(call), _selection(call))
    return Answer(LetterList(tuple(map(listed, removed))), target=_target(call))


def _selection(call: Call) -> LetterSelection:
    return LetterSelection(call.body.worker, call.body.positions, call.body.all)


def _target(call: Call) -> str:
    what = "all" if call.body.all else ", ".join(call.body.positions)
    return f"{call.path['group']} {call.body.worker or 'any worker'}: {what}"


async def _stream(call: Call) -> DeadLetterStream:
    view = await view_of(call)
    return DeadLetterStream(call.parts.client, GroupNames(view.group))


ENDPOINTS = (
    Endpoint(
        "GET",
        "/groups/{group}/dead",
        "Dead letters without values, each with the number of changes that wait for it",
        Role.VIEWER,
        list_letters,
        answer=BlockingList,
        query=LetterQuery,
        rows=Rows.STAY,
    ),
    Endpoint(
        "GET",
        "/groups/{group}/dead/behind",
        "List the later changes of the same rows that wait for a dead letter",
        Role.VIEWER,
        show_behind,
        answer=BehindList,
        query=PositionQuery,
        rows=Rows.STAY,
    ),
    Endpoint(
        "GET",
        "/groups/{group}/dead/letter",
        "One dead letter, with its changes",
        Role.VIEWER,
        show_letter,
        answer=ShownLetter,
        query=PositionQuery,
        rows=Rows.ANSWERED,
    ),
    Endpoint(
        "POST",
        "/groups/{group}/dead/replay",
        "Ask workers to apply dead letters after all, and earlier ones of the same rows",
        Role.OPERATOR,
        replay_letters,
        answer=LetterList,
        status=202,
        body=LetterChoice,
        takes_key=True,
        rows=Rows.STAY,
    ),
    Endpoint(
        "POST",
        "/groups/{group}/dead/discard",
        "Remove dead letters permanently: their changes are never applied",
        Role.ADMIN,
        discard_letters,
        answer=LetterList,
        body=LetterChoice,
        takes_key=True,
        rows=Rows.STAY,
    ),
)
