"""People and processes that share a real bucket, one request after the other, in an order of the test's choice.

Each *actor* is a coroutine that stops before every request and after every write: there another one goes on instead, or it dies.
What is written is held against what its writer may write: ``Verb.sets``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from nats.aio.client import Client

from pgsluice.shared.broker.bucket import Entry, StateBucket
from pgsluice.shared.broker.record import Record, decode, encode
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.wire.names import GroupNames

Facts = Mapping[str, object]
"""What a record says, thing by thing."""

SKEW = ContextVar("SKEW", default=timedelta())
"""How far the clock of the actor is ahead."""


class SkewedTime(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> SkewedTime:
        return super().now(tz) + SKEW.get()


def skewed_now() -> str:
    return SkewedTime.now(UTC).isoformat()


@dataclass(frozen=True, slots=True)
class Known:
    """A kind of record: which facts it states."""

    kind: type[Record]
    facts: Callable[[Any], Facts]


@dataclass
class Actor:
    """``allows`` judges a change of one fact by this actor: its name, the value before and after."""

    name: str
    allows: Callable[[str, object, object], bool]
    skew: timedelta = timedelta()
    is_mortal: bool = True
    seen: dict[str, Facts] = field(default_factory=dict)
    """What it read last, by key."""
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _go: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    def start(self, play: Coroutine[Any, Any, None]) -> None:
        async def played() -> None:
            SKEW.set(self.skew)
            try:
                await self.turn()
                with contextlib.suppress(PgsluiceError, OSError):
                    await play
            finally:
                play.close()
                self._ready.set()

        self._task = asyncio.create_task(played(), name=self.name)

    async def turn(self) -> None:
        self._ready.set()
        await self._go.wait()
        self._go.clear()

    async def go_on(self) -> bool:
        """To its next request; False when it has come to its end. Raises what it raised."""
        assert self._task is not None
        await self._ready.wait()
        if not self._task.done():
            self._ready.clear()
            self._go.set()
            await self._ready.wait()
        if self._task.done():
            self._task.result()
        return not self._task.done()

    async def die(self) -> None:
        assert self._task is not None
        await self._ready.wait()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


class SharedBucket(StateBucket):
    """As one actor reaches it."""

    def __init__(self, client: Client, names: GroupNames, actor: Actor, history: History) -> None:
        super().__init__(client, names)
        self._actor = actor
        self._history = history

    async def get(self, key: str) -> Entry[bytes] | None:
        await self._actor.turn()
        entry = await super().get(key)
        self._actor.seen[key] = self._history.current(key)
        return entry

    async def put(self, key: str, value: Record | Mapping[str, Any]) -> int:
        await self._actor.turn()
        return await self._written(key, value, await super().put(key, value))

    async def create(self, key: str, value: Record | Mapping[str, Any]) -> int | None:
        await self._actor.turn()
        return await self._noted(key, value, await super().create(key, value))

    async def update(self, key: str, value: Record | Mapping[str, Any], revision: int) -> int | None:
        await self._actor.turn()
        return await self._noted(key, value, await super().update(key, value, revision))

    async def _noted(self, key: str, value: Record | Mapping[str, Any], revision: int | None) -> int | None:
        return None if revision is None else await self._written(key, value, revision)

    async def _written(self, key: str, value: Record | Mapping[str, Any], revision: int) -> int:
        self._history.note(self._actor, key, encode(value))
        await self._actor.turn()  # it may die before it hears that it was written
        return revision


class History:
    """What the bucket's records say, and that nobody changed what was not theirs to change."""

    def __init__(self, known: Callable[[str], Known | None]) -> None:
        self._known = known
        self._facts: dict[str, Facts] = {}

    def current(self, key: str) -> Facts:
        return self._facts.get(key, {})

    def begin(self, key: str, value: bytes) -> None:
        known = self._known(key)
        assert known is not None
        self._facts[key] = known.facts(decode(known.kind, value))

    def note(self, actor: Actor, key: str, value: bytes) -> None:
        known = self._known(key)
        if known is None:
            return
        before, after = self.current(key), known.facts(decode(known.kind, value))
        for name in {*before, *after}:
            was, becomes = before.get(name), after.get(name)
            assert was == becomes or actor.allows(name, was, becomes), f"{actor.name} changed {name}: {was} to {becomes}"
        self._facts[key] = after


async def play(actors: Sequence[Actor], choices: Sequence[int]) -> None:
    """Until all have ended: each choice says who goes on, or, when it is below 0, who dies."""
    left, turns = list(actors), iter(choices)
    while left:
        choice = next(turns, 0)
        actor = left[abs(choice) % len(left)]
        if choice < 0 and actor.is_mortal:
            await actor.die()
            left.remove(actor)
        elif not await actor.go_on():
            left.remove(actor)
