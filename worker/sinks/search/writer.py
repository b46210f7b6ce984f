"""Writes one partition, in a Spark task: rows become documents, of each the last one is kept, and they are sent.

Nothing is handed on but what the server refused, and what needs a document's earlier content, or an index to be emptied: that is
the driver's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.shared.wire.dead_letter import copied_position
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.table import Table
from pgsluice.worker.dead_letters.rejection import Rejection
from pgsluice.worker.sinks.abilities import no_pipeline
from pgsluice.worker.sinks.lines.json_lines import as_changes
from pgsluice.worker.sinks.search.bulk import Operation
from pgsluice.worker.sinks.search.bulk_delivery import Refused
from pgsluice.worker.sinks.search.definitions.altered_tables import AlteredBatch
from pgsluice.worker.sinks.search.document import DocumentForm, position_id
from pgsluice.worker.sinks.search.document_fold import At, DocumentFold
from pgsluice.worker.sinks.search.index_name import WRITE
from pgsluice.worker.sinks.search.options import SearchSinkSettings
from pgsluice.worker.sinks.search.search_receipt import SearchReceipt, receipt_of
from pgsluice.worker.sinks.search.task_session import Guide, SearchTaskSession, process_session
from pgsluice.worker.sinks.sink import Partition

HELD_BYTES = 16 * 1024 * 1024
"""The most bytes of documents that a task holds before it sends them."""

_SNAPSHOT = re.compile(r"([0-9A-F]{16})-.*")


@dataclass(frozen=True, slots=True)
class SearchWriter:
    """``PartitionWriter`` of the search sink. ``altered`` is the batch whose definitions are carried out, None for none yet.
    ``emptied`` are truncations of this batch that are carried out, by target. ``blames_first`` as in ``DocumentFold``."""

    settings: SearchSinkSettings
    guide: Guide
    altered: AlteredBatch | None = None
    emptied: Mapping[str, At] = field(default_factory=dict)
    blames_first: bool = False
    takes_deletes: ClassVar[bool] = True

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        """Yields one receipt, an encoded ``SearchReceipt``. What it does not name is in the indexes by then."""
        if partition.defines and (self.altered is None or partition.last_sequence not in self.altered.sequences):
            for _ in messages:
                pass
            yield SearchReceipt(is_unwritten=True).encode()
            return
        session = process_session(self.settings)
        fold = DocumentFold(_Forms(session, self.guide, self.altered), self.emptied, blames_first=self.blames_first)
        delivery = session.delivery()
        for message in messages:
            fold.add(message)
            if fold.bytes > HELD_BYTES and not fold.emptyings:
                delivery.deliver(fold.take())
        if not fold.emptyings:
            delivery.deliver(fold.take())
        session.store_history(self.guide.group, fold.definitions)
        refused = rejections_of(delivery.tally.refused, session, fold)
        left = {"patches": fold.patches(), "vacated": fold.vacated(), "emptyings": fold.emptyings}
        yield receipt_of(delivery.tally, session.nulled(), rejections=refused, **left).encode()

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        """Writes rows of a snapshot. A table that is copied again fills a generation that is not read yet."""
        session, guide = process_session(self.settings), replace(self.guide, copied=frozenset())
        delivery = session.delivery()
        filled: set[str] = set()
        replaced: list[tuple[Table, str]] = []
        held: list[Operation] = []
        size = 0
        for rows in copied:
            if rows.begins_run and not rows.mark.version:
                raise no_pipeline("a search worker", "an earlier version of pgsluice published them, without versions")
            if rows.mark.ends:
                replaced.append((rows.table, generation_of(rows)))
            elif rows.mark.run and not (rows.rows or rows.begins_run):
                continue  # a range that was ended without rows
            form = session.form_of(rows.table, guide, generation_of(rows), is_whole_later=rows.mark.replaces)
            if not rows.mark.run:
                filled.add(form.target.removesuffix(WRITE))
            held += copied_operations(form, rows)
            size += len(rows.data)
            if size > HELD_BYTES:
                delivery.deliver(held)
                held, size = [], 0
        delivery.deliver(held)
        refused = rejections_of(delivery.tally.refused, session, None)
        yield receipt_of(delivery.tally, session.nulled(), filled=sorted(filled), replaced=replaced, rejections=refused).encode()


@dataclass(frozen=True, slots=True)
class _Forms:
    session: SearchTaskSession
    guide: Guide
    altered: AlteredBatch | None

    def __call__(self, table: Table, at: At) -> DocumentForm:
        alias, steps = self.altered.steps_of(table, at) if self.altered is not None else ("", ())
        return self.session.altered_form(table, self.guide, alias, steps) if steps else self.session.form_of(table, self.guide)


def copied_operations(form: DocumentForm, rows: CopiedRows) -> list[Operation]:
    """Returns the operations. A copy's are older than every change of the table: its changes begin at the LSN of the
    snapshot."""
    changes = as_changes(rows)
    version = rows.mark.version or max(0, snapshot_lsn(rows.snapshot) - 1)
    ordinals = [copied_position(rows.sequence, row).ordinal for row in changes.change_indexes]
    if rows.deletes:
        gone = zip(form.ids(changes.new), ordinals, strict=True)
        return [Operation(form.target, row_id, version, ordinal, None) for row_id, ordinal in gone]
    documents = form.documents(changes.new, len(changes))
    if rows.table.key:
        ids = form.ids(changes.new)
        documents = form.keyed(changes.new, ids, documents)
    else:
        ids = [position_id(rows.mark.version, ordinal) for ordinal in ordinals]
    return [
        Operation(form.target, row_id, version, ordinal, document)
        for row_id, ordinal, document in zip(ids, ordinals, documents, strict=True)
    ]


def generation_of(rows: CopiedRows) -> str:
    """Returns the identity of the rows' generation, "" for the one that is read."""
    if not rows.mark.run:
        return rows.snapshot
    return f"{rows.snapshot}-{rows.mark.run}-{rows.mark.version}" if rows.mark.replaces else ""


def snapshot_lsn(snapshot: str) -> int:
    """Returns the LSN that the snapshot's id begins with; 0 without one."""
    match = _SNAPSHOT.fullmatch(snapshot)
    return int(match[1], 16) if match else 0


def rejections_of(refused: Sequence[Refused], session: SearchTaskSession, fold: DocumentFold | None) -> list[Rejection]:
    """``fold`` is None for copied rows."""
    fields = session.field_names() if refused else frozenset()
    return [rejection_of(each, fields, fold) for each in refused]


def rejection_of(refused: Refused, fields: frozenset[str], fold: DocumentFold | None) -> Rejection:
    """``fields`` are the indexes' field names: the server's reason may name a part of a row's value."""
    operation, answer = refused
    field_name = answer.field.partition(".")[0]  # a field of a field belongs to the top-level field
    about = f", field '{field_name}'" if field_name in fields else ""
    reason = answer.refusal(about)
    at = At(operation.version, operation.ordinal)
    if fold is None:
        return Rejection(Position(LSN(0), operation.ordinal), reason)
    blamed = fold.blamed(operation.target, operation.id, at)
    return Rejection(Position(LSN(blamed.version), blamed.ordinal), reason)
