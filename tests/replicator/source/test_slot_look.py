"""What a slot looks like now, asked again and again of a source that may be away."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from dataclasses import replace

from pgsluice.replicator.source.slot_look import SlotLook
from pgsluice.shared.process.listening import listen
from pgsluice.shared.wire.names import GroupNames
from tests.servers import Database

CREATE = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"


async def test_each_look_asks_anew_and_connects_again(source_database: Database, group: str) -> None:
    names = GroupNames(group)
    look = SlotLook(source_database.settings, names)
    assert await look.look() == (None, "")
    source_database.execute(CREATE, [names.slot])
    slot, problem = await look.look()
    assert slot is not None
    assert (slot.name, problem) == (names.slot, "")
    others = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    source_database.execute(others)
    slot, problem = await look.look()
    assert slot is None
    assert problem
    slot, problem = await look.look()
    assert slot is not None
    await look.close()


async def test_a_source_that_does_not_answer_is_left_alone_when_nobody_looks_any_more(
    source_database: Database, group: str
) -> None:
    with closing(listen("127.0.0.1", 0, "silent")) as silent:
        settings = replace(source_database.settings, host="127.0.0.1", port=silent.getsockname()[1])
        look, began_at = SlotLook(settings, GroupNames(group), patience_s=0.1), time.monotonic()
        assert await look.look() == (None, "the source has not answered yet")
        asking = asyncio.all_tasks()
        assert await look.look() == (None, "the source has not answered yet")
        assert asyncio.all_tasks() == asking, "one question for both looks"
        await look.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert time.monotonic() - began_at < 5
