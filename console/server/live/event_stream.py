"""Server-sent events: a client is told of every group's newest view, and from then on of each that changes.

The format is that of the HTML standard (9.2); ``id`` is the newest number that the client has then, for whoever asks for later
ones alone. Views, not differences: one that was missed is made good by the next, and who comes again is told all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import orjson

from pgsluice.console.server.live.group_looks import GroupLooks, GroupView

HEARTBEAT_S = 15.0


@dataclass(frozen=True, slots=True)
class GroupGone:
    """The group's bucket is no more: it was dropped."""

    group: str


async def events(looks: GroupLooks, last_number: int, is_allowed: Callable[[], bool]) -> AsyncIterator[bytes]:
    """For ever, or until ``is_allowed`` says that the client's token has ended, which is asked before anything is sent."""
    number, known = last_number, set[str]()
    while is_allowed():
        views, changed = looks.views, asyncio.ensure_future(looks.changed())
        try:
            for group in sorted(known - {view.group for view in views}):
                yield _event("gone", number, GroupGone(group))
            for view in sorted(views, key=lambda view: view.number):
                if view.number > number:
                    number = view.number
                    yield _event("group", number, view)
            known = {view.group for view in views}
            done, _ = await asyncio.wait({changed}, timeout=HEARTBEAT_S)
            if not done:
                yield b": still here\n\n"
        finally:
            changed.cancel()


def _event(kind: str, number: int, content: GroupView | GroupGone) -> bytes:
    return b"event: %b\nid: %d\ndata: %b\n\n" % (kind.encode(), number, orjson.dumps(content))
