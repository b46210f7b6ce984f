"""A worker that dies at any of its requests to the search server: the next one leaves documents as they ought to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pgsluice.shared.broker.ledger import Phase
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import UNCHANGED
from pgsluice.testing.batch import apply, apply_copied
from pgsluice.testing.changes_builder import (
    copied,
    delete,
    insert,
    message,
    message_of,
    restart,
    table,
    transaction,
    truncate,
    update,
)
from pgsluice.worker.dead_letters.rejection import WriteAgain
from pgsluice.worker.sinks.search.sink import SearchSink
from tests.servers import NatsServer
from tests.servers.http_proxy import HttpProxy, Refusal
from tests.servers.opensearch import SearchServer
from tests.state_bucket import ensure_bucket
from tests.worker.sinks.search.indexed_table import IndexedTable

ITEMS = table("public.items", "id bigint", "note text", "body text")
FIRST, SECOND = "00000000000003E8-a", "0000000000001B58-b"

DEAD = Refusal(401, body=b'{"error":{"type":"security_exception"}}')
"""From the first of these on a worker does nothing any more."""


@dataclass(frozen=True)
class Step:
    """``do`` is one batch, or what comes between batches; it is done again when its process died."""

    do: Callable[[SearchSink], object]
    is_done: Callable[[SearchSink], bool]


def steps(place: IndexedTable) -> list[Step]:
    """A copy, changes of all kinds, and a copy again."""

    def batch(sequence: int, *partitions: object) -> Step:
        return Step(
            lambda sink: apply(sink, partitions),  # type: ignore[arg-type]
            lambda sink: sink.open().sequence >= sequence,
        )

    def rows(sequence: int, *messages: object) -> Step:
        return Step(
            lambda sink: apply_copied(sink, [messages]),  # type: ignore[list-item]
            lambda sink: sink.open().snapshot_sequence >= sequence,
        )

    def finished(snapshot: str, last: int) -> Step:
        def finish(sink: SearchSink) -> None:
            place.note(Phase.FINISHED_COPY, snapshot, last)
            sink.finish_copy()

        return Step(finish, lambda _: False)

    row: Callable[[int, bytes], tuple[bytes, bytes, bytes]] = lambda number, note: (b"%d" % number, note, b"large %d" % number)  # noqa: E731
    return [
        rows(1, copied(1, ITEMS, *(row(n, b"copied") for n in range(8)), snapshot=FIRST)),
        finished(FIRST, 1),
        batch(
            3,
            [message(2, update(ITEMS, b"1", b"x", UNCHANGED), delete(ITEMS, b"2", None, None), insert(ITEMS, *row(9, b"x")))],
            [message(3, update(ITEMS, b"11", b"y", UNCHANGED, old=(b"1", None, None)), insert(ITEMS, *row(2, b"y")))],
        ),
        batch(4, [message_of(4, transaction(4000, update(ITEMS, b"12", b"z", UNCHANGED, old=(b"3", None, None))))]),
        batch(6, [message(5, truncate(ITEMS)), message(6, insert(ITEMS, *row(1, b"new")), insert(ITEMS, *row(2, b"new")))]),
        rows(2, restart(2, ITEMS, snapshot=SECOND)),
        rows(3, copied(3, ITEMS, row(1, b"again"), row(2, b"again"), row(3, b"again"), snapshot=SECOND)),
        finished(SECOND, 3),
        batch(8, [message(8, update(ITEMS, b"1", b"last", UNCHANGED), delete(ITEMS, b"2", None, None))]),
    ]


EXPECTED = {
    "1": (8000, {"id": 1, "note": "last", "body": "large 1"}),
    "3": (6999, {"id": 3, "note": "again", "body": "large 3"}),
}


def test_a_worker_dies_at_each_of_its_requests_before_and_after_the_server_has_done_it(
    search_server: SearchServer, nats_server: NatsServer, group: str
) -> None:
    ensure_bucket(nats_server.settings(), group)
    place = IndexedTable(nats_server.settings(), group, search_server, ITEMS, {FIRST: 1000, SECOND: 7000})
    deaths = 0
    with HttpProxy(search_server.port) as proxy:
        for step in steps(place):
            deaths += die_often(step, place, proxy)
    assert place.documents() == EXPECTED
    assert deaths > 60


def die_often(step: Step, place: IndexedTable, proxy: HttpProxy) -> int:
    """A life ends at its first request, the next one with the first answer, then at its second, and so on, until one is long
    enough; how many ended before. Each begins with what is told by the position."""
    deaths = 0
    while True:
        sink = place.sink(proxy.url)
        if step.is_done(sink):
            return deaths
        end_at(proxy, proxy.arrived + 1 + deaths // 2, is_done=deaths % 2 == 1)
        try:
            until_written(step, sink)
            return deaths
        except TerminalError as error:
            assert "status 401" in error.fact  # noqa: PT017
            deaths += 1
        finally:
            end_at(proxy, 1 << 62, is_done=False)
            sink.close()


def until_written(step: Step, sink: SearchSink) -> None:
    while True:
        try:
            step.do(sink)
            return
        except WriteAgain:
            continue


def end_at(proxy: HttpProxy, number: int, *, is_done: bool) -> None:
    """From that request on nothing is done; that one itself is, if ``is_done``, and nobody hears of it."""
    proxy.before = lambda exchange: DEAD if exchange.number >= number + is_done else None
    proxy.after = lambda exchange: DEAD if exchange.number >= number else None
