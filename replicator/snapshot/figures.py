"""How far a copy is and how fast: pure, no I/O."""

from __future__ import annotations

from dataclasses import dataclass

from replicator.snapshot.table_book import TableBook
from shared.ledger import Phase


@dataclass(frozen=True, slots=True)
class Figures:
    """``pages_done`` and ``pages_total`` are bytes of pages, ``bytes`` bytes of COPY text. Rates are those since the start."""

    tables: int
    tables_done: int
    tables_errored: int
    rows: int
    bytes: int
    pages_done: int
    pages_total: int
    elapsed_s: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def percent(self) -> float:
        return 100.0 * self.pages_done / self.pages_total if self.pages_total else 0.0

    @property
    def remaining_s(self) -> float | None:
        """None before anything is done."""
        if not self.pages_done:
            return None
        return self.elapsed_s * (self.pages_total - self.pages_done) / self.pages_done


def measure(book: TableBook, finished_before: frozenset[int], elapsed_s: float) -> Figures:
    """Figures of the tables that this run copies: those of ``finished_before`` are left out."""
    records = [record for record in book.records if record.oid not in finished_before]
    copied = [record for record in records if record.phase in (Phase.DATA_SYNC, Phase.FINISHED_COPY)]
    return Figures(
        tables=len(records),
        tables_done=sum(record.phase is Phase.FINISHED_COPY for record in records),
        tables_errored=sum(record.phase is Phase.ERRORED for record in records),
        rows=sum(record.rows for record in copied),
        bytes=sum(record.bytes for record in copied),
        pages_done=sum(book.copied_page_bytes(record.oid) for record in copied),
        pages_total=sum(record.bytes_total for record in copied),
        elapsed_s=elapsed_s,
    )
