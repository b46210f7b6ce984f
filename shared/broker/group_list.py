"""Which groups are on a NATS account, for somebody who may have misspelt one."""

from __future__ import annotations

import nats.errors
import orjson
from nats.aio.client import Client

from pgsluice.shared.wire.names import GroupNames

_DEADLINE_S = 2.0


async def list_groups(client: Client) -> list[str]:
    """Their names, by the state buckets that are there; [] when NATS does not say, for one because this user may not ask."""
    prefix = GroupNames("x").bucket.removesuffix("x")
    request = orjson.dumps({"subject": "$KV.>"})
    try:
        answer = orjson.loads((await client.request("$JS.API.STREAM.NAMES", request, timeout=_DEADLINE_S)).data)
    except (nats.errors.Error, TimeoutError):
        return []
    buckets = [name.removeprefix("KV_") for name in answer.get("streams") or [] if name.startswith("KV_")]
    return sorted(name.removeprefix(prefix) for name in buckets if name.startswith(prefix))


def describe_groups(groups: list[str]) -> str:
    return f"groups on this NATS: {', '.join(groups)}" if groups else "no group was started on this NATS"
