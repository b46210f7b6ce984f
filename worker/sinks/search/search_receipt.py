"""The receipt of a partition: its documents are sent by then, except the work left to the driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.table import Table
from pgsluice.worker.dead_letters.refusals import Refusals
from pgsluice.worker.dead_letters.rejection import Rejection
from pgsluice.worker.sinks.search.bulk_delivery import Tally
from pgsluice.worker.sinks.search.document import document_of, read_fields
from pgsluice.worker.sinks.search.document_fold import At, Emptying, FormerId, Patch, Vacated
from pgsluice.worker.sinks.search.index_name import WRITE

_MOST_TIMES = 100


@dataclass(frozen=True, slots=True)
class SearchReceipt:
    """``rejections`` are what the server refused; the rest is stored. ``filled`` are the names of indexes that took copied rows.
    ``replaced`` are tables whose documents in the generation of that snapshot are whole, and take the place of all others.
    ``is_unwritten``: nothing was sent, because definitions are among the changes. ``taken`` and ``reasons`` as of a ``Tally``.
    ``outcomes`` and ``bulk_seconds`` are for metrics."""

    patches: Sequence[Patch] = ()
    vacated: Sequence[Vacated] = ()
    emptyings: Sequence[Emptying] = ()
    rejections: Sequence[Rejection] = ()
    filled: Sequence[str] = ()
    replaced: Sequence[tuple[Table, str]] = ()
    is_unwritten: bool = False
    taken: Sequence[str] = ()
    reasons: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    bulk_seconds: Sequence[float] = ()

    def encode(self) -> bytes:
        """Encodes as JSON."""
        return orjson.dumps(
            {
                "patches": list(map(_encode_patch, self.patches)),
                "vacated": [[each.target, each.id.decode(), *each.at] for each in self.vacated],
                "emptyings": [[each.table.encode(), *each.at] for each in self.emptyings],
                "rejections": [[*each.position, each.reason] for each in self.rejections],
                "filled": self.filled,
                "replaced": [[table.encode(), snapshot] for table, snapshot in self.replaced],
                "is_unwritten": self.is_unwritten,
                "taken": self.taken,
                "reasons": self.reasons,
                "outcomes": self.outcomes,
                "bulk_seconds": self.bulk_seconds,
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> SearchReceipt:
        """Raises WireError for bytes that ``encode`` does not make."""
        try:
            found: Any = orjson.loads(body)
            return cls(
                patches=list(map(_decode_patch, found["patches"])),
                vacated=[Vacated(target, row_id.encode(), At(*at)) for target, row_id, *at in found["vacated"]],
                emptyings=[Emptying(Table.decode(table), At(*at)) for table, *at in found["emptyings"]],
                rejections=[Rejection(Position(LSN(lsn), ordinal), why) for lsn, ordinal, why in found["rejections"]],
                filled=found["filled"],
                replaced=[(Table.decode(table), snapshot) for table, snapshot in found["replaced"]],
                is_unwritten=found["is_unwritten"],
                taken=found["taken"],
                reasons=found["reasons"],
                outcomes=found["outcomes"],
                bulk_seconds=found["bulk_seconds"],
            )
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise WireError(f"a receipt of the search sink is malformed ({type(error).__name__})") from None


def receipt_of(tally: Tally, nulled: int, **more: Any) -> SearchReceipt:
    """``more`` are further fields."""
    outcomes = dict(tally.outcomes) | ({"nulled": nulled} if nulled else {})
    reasons = {target: dict(why) for target, why in tally.reasons.items()}
    told = SearchReceipt(taken=sorted(tally.taken), reasons=reasons, outcomes=outcomes, **more)
    return replace(told, bulk_seconds=tally.bulk_seconds[:_MOST_TIMES])


def check_indexes(told: Sequence[SearchReceipt | Tally]) -> None:
    """Raises TransientError when an index refuses everything (``dead_letters.refusals``)."""
    taken = {target for each in told for target in each.taken}
    for target in {target: None for each in told for target in each.reasons}:
        refusals = Refusals()
        if target in taken:
            refusals.note_taken()
        for each in told:
            for reason, count in each.reasons.get(target, {}).items():
                refusals.note_refused(reason, count)
        remedy = "compare its mapping with the table; the server's log names the field"
        refusals.check(f"index '{target.removesuffix(WRITE)}'", remedy)


def summed(receipts: Iterable[SearchReceipt]) -> dict[str, int]:
    """Returns outcomes of all of them."""
    found: dict[str, int] = {}
    for receipt in receipts:
        for outcome, count in receipt.outcomes.items():
            found[outcome] = found.get(outcome, 0) + count
    return found


def _encode_patch(patch: Patch) -> list[Any]:
    former = [[each.id.decode(), each.since, each.until] for each in patch.former]
    known = document_of(patch.known).decode()
    return [patch.target, patch.id.decode(), *patch.at, *patch.blamed, patch.missing, known, patch.since, former]


def _decode_patch(found: list[Any]) -> Patch:
    target, row_id, version, ordinal, blamed_version, blamed_ordinal, missing, known, since, former = found
    return Patch(
        target,
        row_id.encode(),
        At(version, ordinal),
        At(blamed_version, blamed_ordinal),
        read_fields(known),
        tuple(missing),
        since,
        tuple(FormerId(each.encode(), first, until) for each, first, until in former),
    )
