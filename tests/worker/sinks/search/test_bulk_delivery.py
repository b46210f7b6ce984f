"""What the server cannot take now is sent again alone; what it never takes is told; a proxy stands in for a server in trouble."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import orjson
import pytest

from pgsluice.shared.errors import Cause, TerminalError, TransientError
from pgsluice.shared.process.retrying import Pauses
from pgsluice.testing.changes_builder import table
from pgsluice.worker.sinks.search.bulk import Operation
from pgsluice.worker.sinks.search.bulk_delivery import BulkDelivery, bulk_size
from pgsluice.worker.sinks.search.index import IndexCatalog
from pgsluice.worker.sinks.search.index_name import Generation
from pgsluice.worker.sinks.search.server_connection import ConnectionPool
from tests.search_servers import on_real_servers
from tests.servers.http_proxy import Cut, Exchange, HttpProxy, Refusal
from tests.servers.opensearch import SearchServer
from tests.worker.sinks.search.sinks import NO_OVERRIDES, search_settings

ORDERS = table("shop.orders", "id bigint", "note text")


class Trial:
    """A generation on the server, and a delivery to it through a proxy."""

    def __init__(self, server: SearchServer, proxy: HttpProxy, group: str) -> None:
        self.server, self.proxy = server, proxy
        self.settings = search_settings(proxy.url, group)
        self.pool = ConnectionPool(self.settings)
        self.threads = ThreadPoolExecutor(2)
        self.size = bulk_size(self.settings)
        self.generation: Generation = IndexCatalog(self.pool.mine(), self.settings, NO_OVERRIDES).ensured(ORDERS)

    def limit(self, **changed: Any) -> None:
        """Of deliveries from now on."""
        self.settings = replace(self.settings, **changed)
        self.pool.close()
        self.pool = ConnectionPool(self.settings)
        self.size = bulk_size(self.settings)

    def delivery(self, patience_s: float = 20.0) -> BulkDelivery:
        """It has the request size of those before it."""
        return BulkDelivery(self.settings, self.pool, self.threads, self.size, patience_s=patience_s, pauses=Pauses(0.01, 0.02))

    def operations(self, count: int) -> list[Operation]:
        target = self.generation.write_alias
        return [Operation(target, b'"%d"' % n, 1000, n, b'{"id":%d,"note":"n"}\n' % n) for n in range(count)]

    def count(self) -> int:
        return len(self.server.documents(self.generation.alias))

    def block(self, on: bool) -> None:
        self.server.ask("PUT", f"/{self.generation.name}/_settings", {"index": {"blocks.write": on}})

    def close(self) -> None:
        self.threads.shutdown()
        self.pool.close()


@pytest.fixture
def trial(search_server: SearchServer, group: str) -> Iterator[Trial]:
    with HttpProxy(search_server.port) as proxy:
        trial = Trial(search_server, proxy, group)
        yield trial
        trial.close()


@pytest.mark.parametrize(("status", "retried"), [(429, 20 + 2 * 10 + 2 * 5), (500, 100), (503, 100)])
def test_a_storm_of_refusals_is_waited_out(trial: Trial, status: int, retried: int) -> None:
    """To a server with too much to do half as much is sent at once."""
    begin = trial.proxy.arrived
    trial.proxy.before = lambda exchange: Refusal(status) if exchange.number <= begin + 5 else None
    delivery = trial.delivery()
    delivery.deliver(trial.operations(20))
    assert trial.count() == 20
    assert delivery.tally.outcomes["indexed"] == 20
    assert delivery.tally.outcomes["retried"] == retried


def test_a_request_whose_answer_is_lost_is_sent_again_and_changes_nothing(trial: Trial) -> None:
    begin = trial.proxy.arrived
    trial.proxy.after = lambda exchange: Cut() if exchange.number == begin + 1 else None
    delivery = trial.delivery()
    delivery.deliver(trial.operations(5))
    assert trial.server.documents(trial.generation.alias)["3"] == (1000, {"id": 3, "note": "n"})


@pytest.mark.parametrize(("status", "cause"), [(429, Cause.THROTTLED), (503, Cause.TARGET)])
def test_when_patience_ends_the_error_says_what_is_waited_for(trial: Trial, status: int, cause: Cause) -> None:
    trial.proxy.before = lambda exchange: Refusal(status)
    with pytest.raises(TransientError) as raised:
        trial.delivery(patience_s=0.05).deliver(trial.operations(3))
    assert raised.value.cause is cause


def test_an_index_that_may_not_be_written_is_waited_for_with_what_to_do(trial: Trial) -> None:
    trial.block(True)
    delivery = trial.delivery(patience_s=0.05)
    with pytest.raises(TransientError, match=r"may not be written now .*free disk space.*index\.blocks") as raised:
        delivery.deliver(trial.operations(3))
    assert raised.value.cause is Cause.DISK_FULL
    trial.block(False)
    trial.delivery().deliver(trial.operations(3))
    assert trial.count() == 3


def test_an_index_that_is_closed_is_waited_for(trial: Trial) -> None:
    """As one has to close it for some of its settings: what comes meanwhile is not refused for what it holds."""
    trial.server.ask("POST", f"/{trial.generation.name}/_close")
    delivery = trial.delivery(patience_s=0.05)
    with pytest.raises(TransientError, match=f"index '{trial.generation.name}' is closed: open it again") as raised:
        delivery.deliver(trial.operations(3))
    assert raised.value.cause is Cause.TARGET
    assert delivery.tally.refused == []
    trial.server.ask("POST", f"/{trial.generation.name}/_open")
    trial.delivery().deliver(trial.operations(3))
    assert trial.count() == 3


def test_only_what_was_not_taken_is_sent_again(trial: Trial) -> None:
    """The blocked index is another one than that of the rest."""
    other = IndexCatalog(trial.pool.mine(), trial.settings, NO_OVERRIDES).ensured(table("shop.free", "id bigint", "note text"))
    mixed = [*trial.operations(3), *(each._replace(target=other.write_alias) for each in trial.operations(4))]
    trial.block(True)
    delivery = trial.delivery(patience_s=0.05)
    with pytest.raises(TransientError):
        delivery.deliver(mixed)
    trial.block(False)
    assert delivery.tally.outcomes["indexed"] == 4
    assert delivery.tally.outcomes["retried"] % 3 == 0


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, "es_rejected_execution_exception"),
        (429, "circuit_breaking_exception"),
        (400, "rejected_execution_exception"),
        (500, "some_exception"),
        (503, "unavailable_shards_exception"),
    ],
)
def test_of_a_request_only_documents_that_cannot_be_taken_now_are_sent_again(trial: Trial, status: int, kind: str) -> None:
    """The proxy says of the others that they are stored, so the server never hears of them."""
    answer_once(trial, [(status, kind) if n % 5 == 2 else (201, "") for n in range(20)])
    delivery = trial.delivery()
    delivery.deliver(trial.operations(20))
    assert sorted(trial.server.documents(trial.generation.alias), key=int) == ["2", "7", "12", "17"]
    assert delivery.tally.outcomes == {"indexed": 20, "retried": 4}


@pytest.mark.parametrize(("status", "kind"), [(401, "security_exception"), (403, "security_exception"), (404, "missing")])
def test_what_is_wrong_with_one_document_and_no_fault_of_it_stops_the_worker(trial: Trial, status: int, kind: str) -> None:
    answer_once(trial, [(201, ""), (status, kind)])
    with pytest.raises(TerminalError, match=f"status {status} .{kind}"):
        trial.delivery().deliver(trial.operations(2))


def test_a_conflict_is_done_and_a_delete_of_nothing_too(trial: Trial) -> None:
    trial.delivery().deliver([each._replace(version=5000) for each in trial.operations(2)])
    older, missing = trial.operations(1)[0], trial.operations(9)[8]._replace(document=None)
    delivery = trial.delivery()
    delivery.deliver([older, missing])
    assert +delivery.tally.outcomes == {"stale": 1, "deleted": 1}
    assert {version for version, _ in trial.server.documents(trial.generation.alias).values()} == {5000}


def answer_once(trial: Trial, items: list[tuple[int, str]]) -> None:
    """In the server's place, to the next request."""
    number = trial.proxy.arrived + 1
    said = [{"index": {"status": status} | ({"error": {"type": kind}} if kind else {})} for status, kind in items]
    answer = Refusal(200, body=orjson.dumps({"errors": True, "items": said}))
    trial.proxy.before = lambda exchange: answer if exchange.number == number else None


@on_real_servers
def test_a_shard_that_is_nowhere_is_waited_for_and_the_next_requests_are_as_large(
    search_server: SearchServer, group: str
) -> None:
    """The server says so in time. By itself it would wait for a minute, longer than the request."""
    nowhere = {"index.routing.allocation.require._name": "nowhere"}
    index = {"settings": nowhere, "aliases": {group: {}}}
    search_server.ask("PUT", f"/{group}-1?wait_for_active_shards=0", index)
    with HttpProxy(search_server.port) as proxy:
        trial = Trial(search_server, proxy, f"{group}-other")
        trial.limit(timeout_s=4.0)
        operations = [each._replace(target=group) for each in trial.operations(50)]
        with pytest.raises(TransientError, match="unavailable_shards_exception") as raised:
            trial.delivery(patience_s=0.05).deliver(operations)
        assert raised.value.cause is Cause.TARGET
        search_server.ask("PUT", f"/{group}-1/_settings", dict.fromkeys(nowhere))
        arrived = proxy.arrived
        trial.delivery().deliver(operations)
        assert proxy.arrived == arrived + 1
        assert len(search_server.documents(group)) == 50
        trial.close()


def test_a_request_that_is_too_large_goes_in_halves_and_the_next_ones_are_no_larger(trial: Trial) -> None:
    sizes: list[int] = []

    def refuse(exchange: Exchange) -> Refusal | None:
        sizes.append(operations_in(exchange))
        return Refusal(413) if sizes[-1] > 4 else None

    trial.proxy.before = refuse
    trial.delivery().deliver(trial.operations(10))
    assert trial.count() == 10
    assert sorted(sizes) == [2, 2, 3, 3, 5, 5, 10]
    sizes.clear()
    trial.delivery().deliver(trial.operations(10))
    assert max(sizes) <= 4


def test_a_request_that_one_operation_spoils_goes_in_halves_and_the_next_ones_are_as_large(trial: Trial) -> None:
    """The server refuses all of a request that holds an id above 512 bytes."""
    sizes: list[int] = []

    def note(exchange: Exchange) -> None:
        sizes.append(operations_in(exchange))

    trial.proxy.before = note
    operations = trial.operations(8)
    operations[3] = operations[3]._replace(id=b'"%b"' % (b"x" * 600))
    delivery = trial.delivery()
    delivery.deliver(operations)
    assert trial.count() == 7
    assert [refused.operation.ordinal for refused in delivery.tally.refused] == [3]
    assert sorted(sizes) == [1, 1, 2, 2, 4, 4, 8]
    delivery.deliver(trial.operations(8))
    assert sizes[-1] == 8


def operations_in(exchange: Exchange) -> int:
    body = gzip.decompress(exchange.body) if exchange.body.startswith(b"\x1f\x8b") else exchange.body
    return body.count(b'"index"')


class SlowServer:
    """Gives no answer, before its client goes away, to a request with more than ``most`` operations."""

    def __init__(self, trial: Trial, most: int) -> None:
        self.held: list[int] = []
        self.answered: list[int] = []
        self._most = most
        self._never = threading.Event()
        trial.proxy.before = self._hold

    def _hold(self, exchange: Exchange) -> Cut | None:
        count = operations_in(exchange)
        (self.answered if count <= self._most else self.held).append(count)
        if count <= self._most:
            return None
        self._never.wait(60.0)
        return Cut()

    def close(self) -> None:
        self._never.set()


@pytest.mark.parametrize("connections", [1, 2])
def test_a_request_that_the_server_does_not_answer_in_time_goes_in_halves(trial: Trial, connections: int) -> None:
    """Though the batch comes again meanwhile, and the next one does not begin at the whole size."""
    trial.limit(timeout_s=0.5, connections=connections)
    server = SlowServer(trial, 30)
    for _ in range(20):
        with contextlib.suppress(TransientError):
            trial.delivery(patience_s=0.0).deliver(trial.operations(100))
            break
    assert trial.count() == 100
    assert server.held[0] == 100
    assert max(server.held[1:]) == 50
    server.close()


def test_a_server_that_gives_no_answer_is_not_sent_all_the_rest(trial: Trial) -> None:
    """Each request would take the whole time that it has."""
    trial.limit(timeout_s=0.2, batch_bytes=2000)
    server = SlowServer(trial, 0)
    with pytest.raises(TransientError, match="nothing within"):
        trial.delivery(patience_s=0.0).deliver(trial.operations(300))
    assert len(server.held) <= 4
    server.close()


def test_patience_begins_anew_with_each_document_that_is_taken(trial: Trial) -> None:
    """A batch that takes the server long is not sent again from its beginning for each request that fails."""
    trial.limit(batch_bytes=500)
    first = trial.proxy.arrived
    trial.proxy.before = lambda exchange: Refusal(503) if (exchange.number - first) % 3 == 0 else None
    trial.delivery(patience_s=0.0).deliver(trial.operations(100), in_turn=True)  # or the last request alone may be refused twice
    assert trial.count() == 100


@pytest.mark.parametrize("status", [408, 429, 504])
def test_a_node_that_has_too_much_to_do_gets_half_as_much(trial: Trial, status: int) -> None:
    sizes: list[int] = []

    def refuse(exchange: Exchange) -> Refusal | None:
        sizes.append(operations_in(exchange))
        return Refusal(status) if sizes[-1] > 30 else None

    trial.proxy.before = refuse
    trial.delivery().deliver(trial.operations(100))
    assert trial.count() == 100
    assert sorted(set(sizes))[-2:] == [50, 100]


def test_a_single_document_that_is_too_large_is_refused(trial: Trial) -> None:
    trial.proxy.before = lambda exchange: Refusal(413)
    delivery = trial.delivery()
    delivery.deliver(trial.operations(1))
    (refused,) = delivery.tally.refused
    assert refused.answer.status == 413


@pytest.mark.parametrize("status", [401, 403, 302])
def test_a_server_that_does_not_let_us_in_stops_the_worker(trial: Trial, status: int) -> None:
    trial.proxy.before = lambda exchange: Refusal(status)
    with pytest.raises(TerminalError, match=f"status {status}"):
        trial.delivery().deliver(trial.operations(3))


def test_an_index_that_was_removed_is_not_made_by_writing(trial: Trial) -> None:
    trial.server.ask("DELETE", f"/{trial.generation.name}")
    with pytest.raises(TerminalError, match="removed while it was written"):
        trial.delivery().deliver(trial.operations(3))
    assert not [name for name in trial.server.indices() if name.startswith(trial.generation.alias)]


def test_what_is_to_be_visible_is_found_when_it_is_delivered(trial: Trial) -> None:
    trial.limit(wait_visible=True)
    trial.delivery().deliver(trial.operations(3))
    assert trial.server.count(trial.generation.alias) == 3


def test_a_halted_delivery_waits_no_longer(trial: Trial) -> None:
    delivery = trial.delivery()
    delivery.halt()
    with pytest.raises(TransientError):
        delivery.deliver(trial.operations(3))
