"""Decisions about definitions, and columns that wait for one: records of the state bucket.

accepted         definitions that an operator declared done, by ``pgsluice ddl accept``; workers read it
held.<worker>    new columns that a worker leaves out of its rows until an operator decides (``new-columns: hold``)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.record import MalformedError, TimeText, malformed
from pgsluice.shared.broker.wishes import WishKey
from pgsluice.shared.wire.position import Position

KEPT = 500
"""Decisions, the newest ones: a definition is decided about when a worker has come to it."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """``worker`` is "" when it holds for every worker of the group."""

    position: str
    worker: str
    at: TimeText


@dataclass(frozen=True, slots=True)
class AcceptedRecord:
    """The decisions, oldest first."""

    acceptances: tuple[Acceptance, ...]


ACCEPTED = WishKey("accepted", AcceptedRecord(()))


@dataclass(frozen=True, slots=True)
class HeldColumn:
    """A column by the table's OID and ``attnum``. ``table`` and ``column`` are the names of the time when it came, with the
    definition at ``position``."""

    oid: int
    number: int
    table: str
    column: str
    position: str


@dataclass(frozen=True, slots=True)
class HeldRecord:
    columns: tuple[HeldColumn, ...]

    MALFORMED_REMEDY: ClassVar[str] = "delete the key: columns that were held pass from then on"


async def accept(bucket: StateBucket, positions: Iterable[Position], worker: str, at: str) -> None:
    """Adds to what was accepted before. Raises TransientError when NATS does not answer."""
    news = tuple(Acceptance(str(position), worker, at) for position in positions)
    await ACCEPTED.change(bucket, lambda found: AcceptedRecord((*found.acceptances, *news)[-KEPT:]))


async def accepted_by(bucket: StateBucket, worker: str) -> frozenset[Position]:
    """Returns the acceptances that apply to the worker."""
    accepted = await ACCEPTED.load(bucket)
    try:
        return frozenset(Position.parse(each.position) for each in accepted.acceptances if each.worker in ("", worker))
    except ValueError:
        raise malformed(ACCEPTED.key, bucket.described, MalformedError("it holds a malformed position")) from None


def held_key(worker: str) -> str:
    return f"held.{worker}"


async def load_held(bucket: StateBucket, worker: str) -> Collection[HeldColumn]:
    entry = await bucket.read(held_key(worker), HeldRecord)
    return () if entry is None else entry.value.columns


async def store_held(bucket: StateBucket, worker: str, columns: Collection[HeldColumn]) -> None:
    await bucket.put(held_key(worker), HeldRecord(tuple(columns)))
