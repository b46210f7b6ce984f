"""The contract of sinks, kept by the NATS sink."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.replicator_records import GROUP_KEY, GroupRecord
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.errors import TransientError
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.message import MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import NO_ANCHOR, Anchor
from pgsluice.shared.wire.table import ReplicaIdentity
from pgsluice.testing.batch import apply
from pgsluice.testing.changes_builder import insert, message_of, table, transaction
from pgsluice.testing.tried_batches import EVENTS, batch, counting_events, events, followed_accounts, position
from pgsluice.worker.sinks.lines.json_lines import encode_lines
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket
from tests.waiting import wait_until
from tests.worker.definitions.test_definition_changes import ALTERED
from tests.worker.sinks.contract import EXACTLY_ONCE, SinkContract
from tests.worker.sinks.nats.target import NatsDestination, TargetStreamReader


class JsonDestination(NatsDestination):
    def delivered(self) -> list[int]:
        return counting_events(self.reader.lines())

    def accounts(self) -> dict[int, str]:
        return followed_accounts(self.reader.lines())


class TestJson(SinkContract):
    kind = "nats"
    promises = EXACTLY_ONCE

    @pytest.fixture
    def destination(self, nats_server: NatsServer, group: str) -> JsonDestination:
        return JsonDestination(nats_server.settings(), group)


class GroupDestination(NatsDestination):
    """The change stream of a group that the worker publishes, as its workers decode it."""

    def __init__(self, nats: NatsSettings, group: str, **changed: Any) -> None:
        derived = f"{group}-next"
        super().__init__(nats, group)
        self._changed = {"group": derived} | changed
        self.reader = TargetStreamReader(nats, GroupNames(derived).changes_stream)

    @property
    def stream(self) -> str:
        return ""

    def changes(self) -> Iterator[dict[str, Any]]:
        """As JSON lines, of bodies whose headers follow each other."""
        before: Anchor | None = NO_ANCHOR
        for message in self.reader.stored():
            headers = MessageHeaders.decode(message.headers)
            assert headers.after == before
            before = headers.anchor
            ordinal = headers.first.ordinal
            decoded = decode_changes(
                message.data, first_sequence=message.sequence, sequence=message.sequence, first_ordinal=ordinal
            )
            yield from (json.loads(line) for line in encode_lines(decoded))

    def delivered(self) -> list[int]:
        ids: list[int] = []
        for line in self.changes():
            if line["table"] == "events":
                ids = [] if line["operation"] == "TRUNCATE" else [*ids, line["after"]["id"]]
        return ids

    def accounts(self) -> dict[int, str]:
        return followed_accounts(self.changes())


class TestGroup(SinkContract):
    kind = "nats"
    promises = EXACTLY_ONCE

    @pytest.fixture
    def destination(self, nats_server: NatsServer, group: str) -> GroupDestination:
        tell_group(nats_server.settings(), group)
        return GroupDestination(nats_server.settings(), group)


def tell_group(nats: NatsSettings, group: str) -> None:
    """What a replicator tells of its group."""
    names = GroupNames(group)
    record = GroupRecord(group, "7000000000000000001", 1, "shop", names.publication, 16384, names.slot, "0/1", "")

    async def tell() -> None:
        async with connected(nats, "test") as client:
            await StateBucket(client, names).put(GROUP_KEY, record)

    ensure_bucket(nats, group)
    asyncio.run(tell())


class TestExpiringStream(SinkContract):
    """Each batch leaves the position in a message that does not expire."""

    kind = "nats"
    promises = EXACTLY_ONCE

    @pytest.fixture
    def destination(self, nats_server: NatsServer, group: str) -> JsonDestination:
        changed: dict[str, Any] = {"max_age_s": 3600.0, "large_messages": "chunks"}
        return JsonDestination(nats_server.settings(), group, **changed)


@pytest.mark.parametrize("kind", [JsonDestination, GroupDestination])
def test_dead_letters_are_replayed_between_batches_and_both_places_stay(
    nats_server: NatsServer, group: str, kind: type[JsonDestination | GroupDestination]
) -> None:
    """Letters come in the order in which they were asked for; their positions were passed long ago."""
    tell_group(nats_server.settings(), group)
    destination = kind(nats_server.settings(), group)
    sink = destination.new_sink()
    sink.open()
    apply(sink, batch([2, 3]))
    first, second = (message_of(n, transaction(1000, insert(EVENTS, b"%d" % n, b"n"), first_ordinal=9 - n)) for n in (7, 8))
    for _ in range(2):
        replay = destination.new_sink(name="sink.replay")
        replay.open()
        assert apply(replay, [[first, second]], "dead letters").sequence == 8
        replay.close()
    with pytest.raises(TransientError, match="did not end where it was expected"):
        apply(sink, batch([4]))
    assert apply(sink, batch([4])) == position(4)
    assert destination.delivered() == [4, 5, 6, 7, 7, 8, 8, 9]
    sink.close()
    successor = destination.new_sink()
    assert successor.open() == position(4)
    successor.close()


def test_messages_that_become_too_old_go_and_the_position_stays_whoever_asked_for_that_and_when(
    nats_server: NatsServer, group: str
) -> None:
    destination = JsonDestination(nats_server.settings(), group)
    sink = destination.new_sink()
    sink.open()
    apply(sink, batch([1, 2]))
    sink.close()
    expiring = JsonDestination(nats_server.settings(), group, max_age_s=1.0)
    sink = expiring.new_sink()
    assert sink.open() == position(2)
    sink.close()
    wait_until(lambda: not destination.reader.messages(), deadline_s=60, what="an empty stream but for the position")
    sink = expiring.new_sink()
    assert sink.open() == position(2)
    apply(sink, batch([3]))
    assert destination.delivered() == events(3)[len(events(2)) :]
    sink.close()
    lasting = destination.new_sink()
    assert lasting.open() == position(3)
    lasting.close()


def test_a_groups_old_messages_go_but_for_the_newest_which_has_the_position(nats_server: NatsServer, group: str) -> None:
    tell_group(nats_server.settings(), group)
    destination = GroupDestination(nats_server.settings(), group, max_age_s=1.0)
    sink = destination.new_sink()
    sink.open()
    apply(sink, batch([1]))
    apply(sink, batch([2]))
    newest = destination.reader.stored()[-1]
    wait_until(lambda: datetime.now(UTC) - newest.stored_at > timedelta(seconds=2), deadline_s=60, what="old messages")
    sink.close()
    successor = destination.new_sink()
    assert successor.open() == position(2)
    assert [message.sequence for message in destination.reader.stored()] == [newest.sequence]
    apply(successor, batch([3]))
    successor.close()
    assert [message.sequence for message in destination.reader.stored()] == [newest.sequence, newest.sequence + 1]


def test_a_message_of_a_group_says_which_transaction_is_whole_also_when_another_is_open(
    nats_server: NatsServer, group: str
) -> None:
    tell_group(nats_server.settings(), group)
    destination = GroupDestination(nats_server.settings(), group)
    sink = destination.new_sink()
    sink.open()
    whole = transaction(1000, insert(EVENTS, b"1", b"n"))
    first, rest = (transaction(2000, insert(EVENTS, b"%d" % n, b"n"), first_ordinal=n - 1, commits=n == 3) for n in (2, 3))
    apply(sink, [[message_of(1, whole, first), message_of(2, rest)]])
    sink.close()
    headers = [MessageHeaders.decode(message.headers) for message in destination.reader.stored()]
    assert [(each.flushed, each.settled) for each in headers] == [(1000, 0), (2000, 2)]


def test_definitions_do_not_go_on_to_a_group_and_rows_after_them_say_what_their_table_is_like(
    nats_server: NatsServer, group: str
) -> None:
    tell_group(nats_server.settings(), group)
    destination = GroupDestination(nats_server.settings(), group)
    sink = destination.new_sink()
    sink.open()
    wider = table("public.events", "id bigint", "note text", "more bigint", key=(), identity=ReplicaIdentity.FULL)
    before = transaction(1000, insert(EVENTS, b"1", b"n"), commits=False)
    altered = transaction(1000, ALTERED, first_ordinal=2, commits=False)
    after = transaction(1000, insert(wider, b"2", b"n", b"7"), first_ordinal=3)
    apply(sink, [[message_of(n, part) for n, part in enumerate((before, altered, after), 1)]])
    sink.close()
    lines = list(destination.changes())
    assert [(line["position"], line["after"]) for line in lines] == [
        ("0/3E8:1", {"id": 1, "note": "n"}),
        ("0/3E8:2", {"id": 2, "note": "n", "more": 7}),
    ]
