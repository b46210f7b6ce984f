"""A bucket that somebody removes while others use it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.errors import PgsluiceError
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
