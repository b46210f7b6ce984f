"""Server-sent events: a client gets every group's newest view, and from then on each changed one.

The format is the HTML standard's (9.2); ``id`` is the newest number that the client has then, for a client that asks
only for later ones. Views, not differences: a missed one is repaired by the next, and a client that reconnects gets all
of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import orjson

from pgsluice.console.server.access.principal import Principal
from pgsluice.console.server.live.group_looks import GroupLooks, GroupView
from pgsluice.console.server.problem import Problem, ProblemKind

HEARTBEAT_S = 15.0
MOST_STREAMS = 16
"""The most streams that each token has open at once: a page has one in each window of its browser."""


@dataclass(frozen=True, slots=True)
class GroupGone:
    """The group's bucket is no more: it was dropped."""

    group: str


class EventStreams:
    """The streams of all clients, which get the same bytes. ``is_good`` returns whether a token and its session are
    still valid."""

    def __init__(self, looks: GroupLooks, is_good: Callable[[Principal], bool]) -> None:
        self.looks = looks
        self.is_good = is_good
        self._opened: Counter[str] = Counter()
        """The number of open streams by token."""
        self._written: dict[str, tuple[int, bytes]] = {}
        """Each group's newest view, as it is sent, with its number."""

    def open(self, who: Principal, last_number: int) -> EventStream:
        """Opens a stream of the groups that ``who`` may see. Raises Problem when the token has too many streams open already."""
        if self._opened[who.token] >= MOST_STREAMS:
            raise Problem(
                ProblemKind.TOO_MANY, f"'{who.name}' has {MOST_STREAMS} streams of events open", "close one, or use another token"
            )
        self._opened[who.token] += 1
        return EventStream(self, who, last_number)

    def close(self, who: Principal) -> None:
        self._opened[who.token] -= 1
        if not self._opened[who.token]:
            del self._opened[who.token]

    def text(self, view: GroupView) -> bytes:
        """Returns the text of the view, written once for all clients."""
        number, text = self._written.get(view.group, (-1, b""))
        if number != view.number:
            text = _event("group", view.number, view)
            self._written[view.group] = view.number, text
        return text

    def forget(self, group: str) -> None:
        self._written.pop(group, None)


class EventStream:
    """The stream of one client. Its owner closes it once."""

    def __init__(self, streams: EventStreams, who: Principal, last_number: int) -> None:
        self._streams = streams
        self._who = who
        self._last_number = last_number

    def close(self) -> None:
        self._streams.close(self._who)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yields events until the client's token or session has ended, which is checked before anything is sent."""
        number, known, looks = self._last_number, set[str](), self._streams.looks
        while self._streams.is_good(self._who):
            views, changed = [view for view in looks.views if self._who.sees(view.group)], asyncio.ensure_future(looks.changed())
            try:
                for group in sorted(known - {view.group for view in views}):
                    self._streams.forget(group)
                    yield _event("gone", number, GroupGone(group))
                for view in sorted(views, key=lambda view: view.number):
                    if view.number > number:
                        number = view.number
                        yield self._streams.text(view)
                known = {view.group for view in views}
                done, _ = await asyncio.wait({changed}, timeout=HEARTBEAT_S)
                if not done:
                    yield b": still here\n\n"
            finally:
                changed.cancel()


def _event(kind: str, number: int, content: GroupView | GroupGone) -> bytes:
    return b"event: %b\nid: %d\ndata: %b\n\n" % (kind.encode(), number, orjson.dumps(content))
