"""What is kept of definitions: the newest, once each, whatever comes twice."""

from __future__ import annotations

import asyncio

import pytest

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.definition_log import (
    KEPT,
    MOST_BYTES,
    MOST_CHANGES,
    DefinitionLog,
    DefinitionLogRecord,
    DefinitionOutcome,
    LoggedDefinition,
    NotedOutcome,
    load_log,
    load_outcomes,
    shortened,
    store_log,
    store_outcomes,
)
from pgsluice.shared.definitions.definition_decisions import accept, accepted_by
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, Position
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket


def at(number: int) -> Position:
    return Position(LSN(number), 1)


def logged(number: int, words: str = "added column more text") -> LoggedDefinition:
    return LoggedDefinition(at(number), "2026-01-31T09:15:00+00:00", "ALTER TABLE", 16400, "public.t", (words,))


def test_the_newest_are_kept_once_each_in_the_order_of_positions() -> None:
    log = DefinitionLog()
    assert [log.note(logged(number)) for number in (3, 1, 2, 3, 1)] == [True, True, True, False, False]
    assert [each.position for each in log.definitions] == [at(1), at(2), at(3)]
    for number in range(4, KEPT + 10):
        log.note(logged(number))
    assert len(log.definitions) == KEPT
    assert not log.note(logged(1)), "what was let go does not come back"
    assert log.definitions[0].position == at(10)


def test_what_is_seen_again_is_counted_once() -> None:
    log = DefinitionLog()
    assert [log.forged.add(at(number)) for number in (5, 6, 5, 6, 7)] == [True, True, False, False, True]
    assert log.forged.count == 3


def test_many_changes_of_one_definition_are_shortened() -> None:
    assert shortened(["one"]) == ("one",)
    assert shortened(map(str, range(MOST_CHANGES + 3)))[MOST_CHANGES:] == ("and 3 more",)


@pytest.fixture
def bucket_of(nats_server: NatsServer, group: str) -> str:
    ensure_bucket(nats_server.settings(), group)
    return group


def test_records_come_back_as_they_were_written_and_stay_small(nats_server: NatsServer, bucket_of: str) -> None:
    large = DefinitionLog([logged(number, f"added column {hash(('x', number))} text") for number in range(1, KEPT + 1)])
    large.missed.add(at(3))
    outcomes = {at(1): NotedOutcome((DefinitionOutcome.APPLIED, DefinitionOutcome.KEPT), "2026-01-31T09:15:00+00:00")}

    async def round_trip() -> None:
        async with connected(nats_server.settings(), "test") as client:
            bucket = StateBucket(client, GroupNames(bucket_of))
            assert await load_log(bucket) == DefinitionLog()
            assert await load_outcomes(bucket, "w") == {}
            await store_log(bucket, large)
            assert await load_log(bucket) == large
            await store_outcomes(bucket, "w", outcomes)
            assert await load_outcomes(bucket, "w") == outcomes
            assert await load_outcomes(bucket, "other") == {}
            wide = DefinitionLog([logged(n, "".join(chr(97 + hash((n, i)) % 26) for i in range(1000))) for n in range(1, 200)])
            await store_log(bucket, wide)
            entry = await bucket.get("definitions")
            assert entry is not None
            assert len(entry.value) < MOST_BYTES + 1000
            kept = (await load_log(bucket)).definitions
            assert kept == wide.definitions[-len(kept) :]

    asyncio.run(round_trip())


def test_a_log_that_cannot_be_read_is_named_with_a_way_out(nats_server: NatsServer, bucket_of: str) -> None:
    async def read() -> None:
        async with connected(nats_server.settings(), "test") as client:
            bucket = StateBucket(client, GroupNames(bucket_of))
            await bucket.put("definitions", DefinitionLogRecord("", "nonsense"))
            with pytest.raises(TerminalError, match=r"record definitions of the state bucket .* is malformed.*delete the key"):
                await load_log(bucket)

    asyncio.run(read())


def test_what_is_accepted_holds_for_one_worker_or_for_all(nats_server: NatsServer, bucket_of: str) -> None:
    async def ask() -> None:
        async with connected(nats_server.settings(), "test") as client:
            bucket = StateBucket(client, GroupNames(bucket_of))
            assert await accepted_by(bucket, "a") == frozenset()
            await accept(bucket, [at(1), at(2)], "", "2026-01-31T09:15:00+00:00")
            await accept(bucket, [at(3)], "a", "2026-01-31T09:16:00+00:00")
            assert await accepted_by(bucket, "a") == {at(1), at(2), at(3)}
            assert await accepted_by(bucket, "b") == {at(1), at(2)}

    asyncio.run(ask())
