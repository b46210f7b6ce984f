"""Requests that come again under one Idempotency-Key: done once, and answered as the first time.

A claim is written before a request is carried out, its answer afterwards. A server that dies in between leaves the
claim, and a repeated request is carried out again under the same id: the created object has that id, so it is created
once. The same key with another request is refused, since one of the two would be lost. An answer that is too long to be
kept is sent once, and the same request is carried out again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from weakref import WeakValueDictionary

from pgsluice.console.documents.control_bucket import ControlBucket
from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.shared import telemetry
from pgsluice.shared.broker.record import TimeText
from pgsluice.shared.errors import TerminalError

KEPT = timedelta(days=1)

_PREFIX = "answer."

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """A stored answer: ``body`` is JSON as it was sent."""

    status: int
    body: str
    etag: str = ""
    location: str = ""


@dataclass(frozen=True, slots=True)
class _Claim:
    """``request`` is the digest of verb, path and body. ``answer`` is unset until the request is done."""

    request: str
    at: TimeText
    answer: StoredAnswer | None = None


@dataclass(frozen=True, slots=True)
class RequestKey:
    """``who`` sent it: two who choose the same key do not meet. ``digest`` is of all that makes the request this one."""

    who: str
    key: str
    digest: str

    @property
    def id(self) -> str:
        """An id that is equal for each repetition, and for nothing else."""
        return hashlib.sha256(f"{self.who}\0{self.key}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


class RepeatedRequests:
    """The repeated requests of one bucket. Several servers may share it."""

    def __init__(self, bucket: ControlBucket) -> None:
        self._bucket = bucket
        self._turns = WeakValueDictionary[str, asyncio.Lock]()
        """A lock for each request, for as long as one has it or waits for it."""

    async def once(self, request: RequestKey, carry_out: Callable[[], Awaitable[StoredAnswer]]) -> StoredAnswer:
        """Carries the request out once; returns the first answer. A refusal leaves nothing, so the request can come
        again when it is corrected."""
        turn = self._turns.setdefault(request.id, asyncio.Lock())
        async with turn:
            return await self._once(request, carry_out)

    async def remove_old(self) -> None:
        """Forgets answers that are older than KEPT."""
        for key in await self._bucket.keys():
            if key.startswith(_PREFIX):
                entry = await self._bucket.read(key, _Claim)
                if entry is not None and _age(entry.value) > KEPT:
                    await self._bucket.purge(key)

    async def _once(self, request: RequestKey, carry_out: Callable[[], Awaitable[StoredAnswer]]) -> StoredAnswer:
        key = _PREFIX + request.id
        revision = await self._bucket.create(key, _Claim(request.digest, _now()))
        if revision is None:
            entry = await self._bucket.read(key, _Claim)
            if entry is not None and entry.value.request != request.digest:
                raise Problem(
                    ProblemKind.MALFORMED,
                    "this Idempotency-Key came with another request before",
                    "use a separate key for each request",
                    "Idempotency-Key",
                )
            if entry is not None and entry.value.answer is not None:
                return entry.value.answer
        try:
            answer = await carry_out()
        except BaseException:
            await self._bucket.purge(key)
            raise
        try:
            await self._bucket.put(key, _Claim(request.digest, _now(), answer))
        except TerminalError as error:  # it is too long for a record, mostly; what was asked for is done
            log.warning("an answer cannot be stored for repeated requests; it is sent without that", reason=str(error))
        return answer


def _age(claim: _Claim) -> timedelta:
    return datetime.now(UTC) - datetime.fromisoformat(claim.at)


def _now() -> str:
    return datetime.now(UTC).isoformat()
