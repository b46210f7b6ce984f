"""Definitions in the stream, as the driver meets them before a batch that holds some is written, and gives them to a sink."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

from pgsluice.shared.rows.changes import DefinitionChange, MessageChanges, TableChanges, Truncation
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.worker.batches.change_reader import FETCH_MESSAGES, ChangeReader
from pgsluice.worker.batches.ownership import Ownership
from pgsluice.worker.sinks.sink import Receipt


@dataclass(frozen=True, slots=True)
class Arrival:
    """A definition in the message ``sequence``, whose transaction was committed at ``committed_at`` (microseconds since
    2000-01-01 UTC). ``is_copied`` as in ``DefinitionChange``."""

    sequence: int
    position: Position
    committed_at: int
    definition: PublishedDefinition
    is_copied: bool = False


def read_arrivals(reader: ChangeReader, spans: Sequence[tuple[int, int]], ownership: Ownership) -> Iterator[Arrival]:
    """Yields the arrivals in order. Each span is the first and the last sequence of a message. Raises as ``reader``
    does."""
    wanted = {last for _, last in spans}
    for first, last in _near(spans):
        for body in reader.bodies(first, last):
            if body.sequence in wanted:
                message = decode_changes(
                    body.data, first_sequence=body.first_sequence, sequence=body.sequence, first_ordinal=body.first_ordinal
                )
                yield from arrivals_of(message, ownership)


def _near(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Joins spans that are close to each other: one request reads them, and the messages between them."""
    found: list[tuple[int, int]] = []
    for first, last in spans:
        if found and first - found[-1][1] <= FETCH_MESSAGES:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def arrivals_of(message: MessageChanges, ownership: Ownership) -> Iterator[Arrival]:
    """Yields the definitions of the message, None for a forged one; omits those of another lane."""
    # a single kind: what is left of the others is no arrival
    left = {part.change_index: part for part in ownership.remainder(message).parts if isinstance(part, DefinitionChange)}
    for part in message.parts:
        match part:
            case DefinitionChange(definition=definition, change_index=index) if ownership.is_for(definition):
                transaction = next(each for each in message.transactions if each.first_change <= index < each.end_change)
                position, committed_at = transaction.position(index), transaction.committed_at
                is_copied = index not in left or left[index].is_copied
                yield Arrival(message.sequence, position, committed_at, definition, is_copied=is_copied)
            case DefinitionChange() | TableChanges() | Truncation():
                pass
            case unreachable:
                assert_never(unreachable)


def given_in_place(
    receipts: Iterable[Receipt], arrivals: Iterable[Arrival], give: Callable[[PublishedDefinition, Position], None]
) -> Iterator[Receipt]:
    """Yields ``receipts`` as they are; each definition is given before the receipt that covers its message."""
    waiting = deque(arrivals)
    for receipt in receipts:
        while waiting and waiting[0].sequence <= receipt.last_sequence:
            arrival = waiting.popleft()
            give(arrival.definition, arrival.position)
        yield receipt
