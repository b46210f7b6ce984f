"""A bucket that somebody removes while others use it, and one of a newer version."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.errors import PgsluiceError, TerminalError
from pgsluice.shared.wire.names import GroupNames
from tests.servers import NatsServer

CALLS: dict[str, Callable[[StateBucket], Awaitable[object]]] = {
    "get": lambda bucket: bucket.get("key"),
    "read_history": lambda bucket: bucket.read_history("key"),
    "keys": lambda bucket: bucket.keys(),
    "end": lambda bucket: bucket.end(),
    "age_s": lambda bucket: bucket.age_s("key"),
    "put": lambda bucket: bucket.put("key", {}),
    "create": lambda bucket: bucket.create("key", {}),
    "update": lambda bucket: bucket.update("key", {}, 1),
    "delete": lambda bucket: bucket.delete("key"),
    "purge": lambda bucket: bucket.purge("key"),
    "destroy": lambda bucket: bucket.destroy(),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_bucket_that_is_gone_is_no_defect(call: str, nats_server: NatsServer, group: str) -> None:
    """Either there is nothing, or an error says what to do."""
    names = GroupNames(group)
    async with connected(nats_server.settings(), "test") as client, connected(nats_server.settings(), "test") as other:
        bucket = StateBucket(client, names)
        await bucket.make(1)
        await bucket.put("key", {})
        await StateBucket(other, names).destroy()
        try:
            answer = await CALLS[call](bucket)
        except PgsluiceError as error:
            answer = str(error) if error.remedy else error
        assert not answer or bucket.described in str(answer)


@pytest.mark.parametrize("call", sorted(CALLS.keys() - {"read_history", "age_s"}))
async def test_a_bucket_of_a_newer_version_is_left_alone(call: str, nats_server: NatsServer, group: str) -> None:
    """Those two only read, and no process begins with them."""
    names = GroupNames(group)
    async with connected(nats_server.settings(), "test") as client:
        await StateBucket(client, names).make(1)
        stream = f"KV_{names.bucket}"
        config = (await client.jetstream().stream_info(stream)).config
        await client.jetstream().update_stream(config, metadata={"pgsluice-format": "2"})
        with pytest.raises(TerminalError, match=r"has format 2, and this version reads 1: .*: install that version again"):
            await CALLS[call](StateBucket(client, names))
        assert (await client.jetstream().stream_info(stream)).state.last_seq == 0
