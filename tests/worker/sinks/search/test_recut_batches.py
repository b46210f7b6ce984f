"""What a worker had begun when it died is cut otherwise by the next one: into other batches, and other partitions of them.

A value that was not sent may be in the index because of an earlier attempt only, under any key that its row had or has.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.wire.table import UNCHANGED
from pgsluice.testing.batch import Batch, apply, write
from pgsluice.testing.changes_builder import Change, delete, insert, message, table, update
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from pgsluice.worker.sinks.search.sink import SearchSink
from tests.servers.http_proxy import HttpProxy
from tests.servers.opensearch import SearchServer
from tests.worker.sinks.search.conftest import OpenSink
from tests.worker.sinks.search.test_killed import DEAD

ITEMS = table("shop.items", "id bigint", "note text", "body text")
HISTORIES = 3
TRANSACTIONS = 24


@dataclass
class Source:
    """Rows by id, each with the sequence of its last change, and the messages that tell of it."""

    rows: dict[int, tuple[int, str, str]] = field(default_factory=dict)
    messages: list[MessageChanges] = field(default_factory=list)

    def transaction(self, *changes: Callable[[int], Change]) -> MessageChanges:
        """Each is called with the sequence of the message."""
        sequence = len(self.messages) + 1
        self.messages.append(message(sequence, *[change(sequence) for change in changes]))
        return self.messages[-1]

    def insert(self, number: int) -> Callable[[int], Change]:
        def change(sequence: int) -> Change:
            self.rows[number] = sequence, "new", f"body {number} of {sequence}"
            return insert(ITEMS, *_texts(number, *self.rows[number][1:]))

        return change

    def note(self, number: int) -> Callable[[int], Change]:
        """The body is not sent."""
        return self.move(number, number)

    def move(self, before: int, after: int) -> Callable[[int], Change]:
        """The same under another key."""

        def change(sequence: int) -> Change:
            _, _, body = self.rows.pop(before)
            self.rows[after] = sequence, f"note {sequence}", body
            new = _texts(after, f"note {sequence}")
            return update(ITEMS, *new, UNCHANGED, old=None if before == after else (b"%d" % before, None, None))

        return change

    def replace(self, number: int) -> Callable[[int], Change]:
        """Body and all."""

        def change(sequence: int) -> Change:
            self.rows[number] = sequence, "whole", f"body {number} of {sequence}"
            return update(ITEMS, *_texts(number, *self.rows[number][1:]))

        return change

    def delete(self, number: int) -> Callable[[int], Change]:
        def change(_: int) -> Change:
            del self.rows[number]
            return delete(ITEMS, b"%d" % number, None, None)

        return change

    def documents(self) -> dict[str, tuple[int, dict[str, Any]]]:
        return {
            str(number): (1000 * sequence, {"id": number, "note": note, "body": body})
            for number, (sequence, note, body) in self.rows.items()
        }


def _texts(number: int, *texts: str) -> list[bytes]:
    return [b"%d" % number, *(text.encode() for text in texts)]


@dataclass
class Index:
    server: SearchServer
    proxy: HttpProxy
    open_sink: OpenSink
    group: str

    def documents(self) -> dict[str, tuple[int, dict[str, Any]]]:
        return self.server.documents(f"{self.group}_shop_items")

    def new_sink(self) -> SearchSink:
        """Each of its requests holds one document."""
        return self.open_sink(self.proxy.url, batch_bytes=1)

    def attempt(self, batch: Batch, number: int, *, is_done: bool) -> bool:
        """The worker dies at its request of that number, which the server has done by then or not; whether it came so far."""
        sink = self.new_sink()
        last = self.proxy.arrived + number
        self.proxy.before = lambda exchange: DEAD if exchange.number >= last + is_done else None
        self.proxy.after = lambda exchange: DEAD if exchange.number >= last else None
        try:
            apply(sink, batch)
            return False
        except TerminalError:
            return True
        finally:
            self.proxy.before = self.proxy.after = lambda _: None
            sink.close()


@pytest.fixture
def index(search_server: SearchServer, open_sink: OpenSink, group: str) -> Iterator[Index]:
    with HttpProxy(search_server.port) as proxy:
        yield Index(search_server, proxy, open_sink, group)


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_values_that_were_not_sent_follow_their_rows_however_often_batches_are_cut_anew(index: Index, seed: int) -> None:
    """No letter is made, at whichever requests attempts end."""
    choose = random.Random(seed)
    source = random_history(choose)
    applied = 0
    while applied < TRANSACTIONS:
        batch = random_cut(source.messages[applied:], choose)
        if not index.attempt(batch, choose.randint(1, 40), is_done=choose.random() < 0.5):
            applied = batch[-1][-1].sequence
    assert index.documents() == source.documents()


def random_history(choose: random.Random) -> Source:
    """A key that a row had is given to no other one."""
    source, numbers = Source(), itertools.count(1)
    source.transaction(*(source.insert(next(numbers)) for _ in range(6)))
    while len(source.messages) < TRANSACTIONS:
        number, between = choose.choice(sorted(source.rows)), next(numbers)
        kinds: list[list[Callable[[int], Change]]] = [
            [source.insert(between)],
            [source.replace(number)],
            [source.delete(number)] if len(source.rows) > 3 else [source.insert(between)],
            [source.note(number)],
            [source.note(number)],
            [source.move(number, between)],
            [source.move(number, between)],
            [source.move(number, between), source.move(between, next(numbers))],
        ]
        source.transaction(*choose.choice(kinds))
    return source


def random_cut(messages: list[MessageChanges], choose: random.Random) -> Batch:
    some = messages[: choose.randint(1, 12)]
    borders = sorted({0, len(some), *(choose.randint(0, len(some)) for _ in range(2))})
    return [some[low:high] for low, high in itertools.pairwise(borders)]


Script = Callable[[Source, int], list[MessageChanges]]
"""The transactions of a batch, on rows whose ids are the number and the one after it."""


def two_moves(source: Source, row: int) -> list[MessageChanges]:
    return [source.transaction(source.move(row, row + 2)), source.transaction(source.move(row + 2, row + 3))]


def moved_and_noted(source: Source, row: int) -> list[MessageChanges]:
    return [*two_moves(source, row), source.transaction(source.note(row + 3))]


def in_the_place_of_another(source: Source, row: int) -> list[MessageChanges]:
    """Whose document is newer."""
    replaced = source.transaction(source.delete(row + 1), source.move(row, row + 1))
    return [replaced, source.transaction(source.note(row + 1)), source.transaction(source.move(row + 1, row + 2))]


def replaced_by_another(source: Source, row: int) -> list[MessageChanges]:
    return [source.transaction(source.move(row, row + 2)), source.transaction(source.insert(row))]


@pytest.mark.parametrize(
    ("script", "first", "then"),
    [
        (two_moves, [0, 2], [0, 1, 2]),
        (moved_and_noted, [0, 1, 2, 3], [0, 3]),
        (moved_and_noted, [0, 1], [0, 3]),
        (in_the_place_of_another, [0, 1, 2, 3], [0, 2, 3]),
        (in_the_place_of_another, [0, 2, 3], [0, 3]),
        (replaced_by_another, [0, 2], [0, 2]),
    ],
)
def test_an_attempt_may_end_at_any_request(index: Index, script: Script, first: list[int], then: list[int]) -> None:
    """``first`` and ``then`` are the borders of partitions, before and after."""
    source = Source()
    died, number = True, 0
    while died:
        row, number = 100 * number + 1, number + 1
        apply(index.new_sink(), [[source.transaction(source.insert(row)), source.transaction(source.insert(row + 1))]])
        messages = script(source, row)
        died = index.attempt(cut(messages, first), number, is_done=True)
        apply(index.new_sink(), cut(messages, then))
        assert index.documents() == source.documents()
    assert number > 4


def cut(messages: list[MessageChanges], borders: list[int]) -> Batch:
    return [messages[low:high] for low, high in itertools.pairwise(borders)]


def test_a_key_that_another_row_gets_is_that_rows(index: Index) -> None:
    """In one transaction, and in several."""
    source = Source()
    apply(index.new_sink(), [[source.transaction(source.insert(1), source.insert(2), source.insert(3))]])
    batch = [
        [
            source.transaction(source.move(1, 11)),
            source.transaction(source.insert(1)),
            source.transaction(source.note(11)),
            source.transaction(source.move(2, 12), source.insert(2)),
            source.transaction(source.note(1), source.move(3, 13), source.move(12, 3), source.move(13, 12)),
            source.transaction(source.move(12, 14), source.insert(12), source.delete(12)),
        ]
    ]
    for _ in range(2):
        apply(index.new_sink(), batch)
        assert index.documents() == source.documents()


def test_a_value_whose_document_another_row_has_taken_over_is_not_made_up(index: Index) -> None:
    """The partition of the other row was written, and the worker died before it could complete this one."""
    source = Source()
    apply(index.new_sink(), [[source.transaction(source.insert(1))]])
    messages = [source.transaction(source.move(1, 2)), source.transaction(source.insert(1))]
    write(index.new_sink(), cut(messages, [0, 1, 2]))
    messages.append(source.transaction(source.note(2)))
    with pytest.raises(RejectedChanges) as raised:
        apply(index.new_sink(), [messages])
    assert [each.position.commit_lsn for each in raised.value.rejections] == [4000]
    assert index.documents().keys() == {"1"}
