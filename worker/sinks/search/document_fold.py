"""Folds the changes of a partition to one operation for each document. Pure.

The entry of an id: the whole document, None when it is deleted, or a ``Patch``, when the last change left out unknown
values. A change of a key deletes one document and stores another. The server determines the newer operation by their
versions; only the sequence within a transaction, whose changes all have one version, must be kept here: a partition
holds whole transactions.

An id whose row left it without its values is ``Vacated``: its document may be the only one that has them, until the row
has been stored elsewhere. So the driver deletes it when everything else is done, and what another row puts there goes
by the driver too.

A TRUNCATE empties an index, which is the driver's. Until it has, changes before and after it in the batch would be
mixed: so the fold only returns its place. When the batch comes again it gets the finished ones (``emptied``), and
leaves out the changes before them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, assert_never

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.pgoutput.messages import NO_OLD_ROW, OLD_ROW
from pgsluice.shared.rows.changes import (
    DELETE,
    INSERT,
    UPDATE,
    DefinitionChange,
    MessageChanges,
    TableChanges,
    Transaction,
    Truncation,
)
from pgsluice.shared.rows.plain_rows import PlainRows
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import UNCHANGED, Table, Value
from pgsluice.worker.sinks.search.bulk import Operation
from pgsluice.worker.sinks.search.document import (
    DocumentForm,
    Fields,
    RowId,
    document_of,
    position_id,
    read_fields,
    rows_of,
)
from pgsluice.worker.sinks.search.mapping import KEY_FIELD


class At(NamedTuple):
    """Commit LSN and ordinal: the position of a change. The first is its version."""

    version: int
    ordinal: int


class Whole(NamedTuple):
    """The state of a document: its line, None when it is deleted."""

    version: int
    ordinal: int
    document: bytes | None


class FormerId(NamedTuple):
    """An id that a row had: documents there are the row's whose version is ``since`` or later, and earlier than ``until``."""

    id: RowId
    since: int
    until: int


@dataclass(frozen=True, slots=True)
class Patch:
    """A document of which only ``known`` is available. The fields ``missing`` are taken from the index, under its id
    with version ``since`` or later, or under one of the ``former`` ones, the oldest first; none is missing when it only
    must not be stored earlier. ``blamed`` is the change to name if it is refused. All ids and ``target`` as in
    ``Operation``."""

    target: str
    id: RowId
    at: At
    blamed: At
    known: Fields
    missing: tuple[str, ...]
    since: int = 0
    former: tuple[FormerId, ...] = ()


class Vacated(NamedTuple):
    """An id that its row left at that position, and that no other has got since."""

    target: str
    id: RowId
    at: At


@dataclass(frozen=True, slots=True)
class Emptying:
    """A TRUNCATE of ``table`` at that position."""

    table: Table
    at: At


class Defined(NamedTuple):
    """A definition, and when its transaction was committed."""

    at: At
    definition: PublishedDefinition
    committed_at: int


Entry = Whole | Patch


class DocumentFold:
    """Takes the messages of a partition in commit order. ``form_of`` returns the destination and form of a table's
    documents at a position. ``emptied`` are positions of truncations that are carried out, by target. ``blames_first``:
    of several changes of a document the first one is named when it is refused."""

    def __init__(
        self, form_of: Callable[[Table, At], DocumentForm], emptied: Mapping[str, At], *, blames_first: bool = False
    ) -> None:
        self._form_of = form_of
        self._emptied = emptied
        self._documents: dict[str, dict[RowId, Entry]] = {}
        self._left: dict[str, dict[RowId, At]] = {}
        """Ids, by target, that rows left without their values, and when."""
        self._firsts: dict[tuple[str, RowId], At] | None = {} if blames_first else None
        self.emptyings: list[Emptying] = []
        self.definitions: list[Defined] = []
        self.bytes = 0
        """Size of the documents that ``take`` would return, at most."""

    def add(self, message: MessageChanges) -> None:
        for part in message.parts:
            match part:
                case TableChanges():
                    self._add_changes(part, message.transactions)
                case Truncation():
                    for table in part.tables:
                        self._truncate(table, _at(message.transactions, part.change_index))
                case DefinitionChange(definition=definition, change_index=index):  # carried out before
                    committed_at = next(each.committed_at for each in message.transactions if index < each.end_change)
                    self.definitions.append(Defined(_at(message.transactions, index), definition, committed_at))
                case unreachable:
                    assert_never(unreachable)

    def take(self) -> list[Operation]:
        """Returns operations that can be sent, each document once. Patches stay."""
        operations = []
        for target, entries in self._documents.items():
            patches = {}
            for row_id, entry in entries.items():
                match entry:
                    case Whole(version, ordinal, document):
                        operations.append(Operation(target, row_id, version, ordinal, document))
                    case Patch():
                        patches[row_id] = entry
                    case unreachable:
                        assert_never(unreachable)
            self._documents[target] = patches  # type: ignore[assignment]
        self.bytes = 0
        return operations

    def patches(self) -> list[Patch]:
        """Returns patches for the driver; call it when everything was added and taken."""
        found = [patch for entries in self._documents.values() for entry in entries.values() for patch in _patch_of(entry)]
        return [replace(patch, blamed=self.blamed(patch.target, _first_id(patch), patch.at)) for patch in found]

    def vacated(self) -> list[Vacated]:
        """Returns documents that the driver must delete then."""
        return [
            Vacated(target, row_id, at)
            for target, left in self._left.items()
            for row_id, at in left.items()
            if row_id not in self._documents[target]
        ]

    def blamed(self, target: str, row_id: RowId, otherwise: At) -> At:
        """Returns the change to name when a document is refused."""
        return otherwise if self._firsts is None else self._firsts.get((target, row_id), otherwise)

    def _truncate(self, table: Table, at: At) -> None:
        target = self._form_of(table, at).target
        self._documents.pop(target, None)
        self._left.pop(target, None)
        if self._emptied.get(target, At(0, 0)) < at:
            self.emptyings.append(Emptying(table, at))

    def _add_changes(self, changes: TableChanges, transactions: Sequence[Transaction]) -> None:
        places = positions(changes, transactions)
        form = self._form_of(changes.table, places[0])
        emptied = self._emptied.get(form.target)
        if emptied is not None and places[0] < emptied:
            left = [row for row, at in enumerate(places) if at > emptied]
            if not left:
                return
            changes, places = changes.select(left), [places[row] for row in left]
        entries = self._documents.setdefault(form.target, {})
        if not changes.table.key:
            self._add_keyless(form, changes, places, entries)
            return
        unchanged = _has_unchanged(changes)
        if unchanged or changes.old is not None or DELETE in changes.operations or form.target in self._left:
            self._add_each(form, changes, places, entries)
            return
        ids = form.ids(changes.new)
        documents = form.keyed(changes.new, ids, form.documents(changes.new, len(changes)))
        self._note_all(form.target, ids, places)
        self.bytes += sum(map(len, documents))
        entries.update(zip(ids, [Whole(*at, document) for at, document in zip(places, documents, strict=True)], strict=True))

    def _add_keyless(self, form: DocumentForm, changes: TableChanges, places: Sequence[At], entries: dict[RowId, Entry]) -> None:
        if changes.operations.count(INSERT) != len(changes):
            raise TerminalError(
                f"an update or delete of table '{changes.table.qualified_name}' does not identify its document",
                "the table has no key, so rows can only be added: give the source table a primary key",
            )
        documents = form.documents(changes.new, len(changes))
        self.bytes += sum(map(len, documents))
        for at, document in zip(places, documents, strict=True):
            entries[position_id(*at)] = Whole(*at, document)

    def _add_each(self, form: DocumentForm, changes: TableChanges, places: Sequence[At], entries: dict[RowId, Entry]) -> None:
        rows = _DocumentRows(form, changes)
        self._note_all(form.target, [rows.old_ids[i] or rows.new_ids[i] or b"" for i in range(len(changes))], places)
        for row, at in enumerate(places):
            old_id, new_id = rows.old_ids[row], rows.new_ids[row]
            if new_id is None:
                assert old_id is not None
                self._put(form.target, entries, old_id, Whole(*at, None))
                continue
            moved_from = old_id if old_id is not None and old_id != new_id else None
            document = rows.documents[row]
            if document is None:
                self._patch(form, entries, rows.patch(row, new_id, at), moved_from)
                continue
            if moved_from is not None:
                self._put(form.target, entries, moved_from, Whole(*at, None))
            self._put(form.target, entries, new_id, Whole(*at, document))
            self.bytes += len(document)

    def _put(self, target: str, entries: dict[RowId, Entry], row_id: RowId, whole: Whole) -> None:
        """Puts a whole document, or its deletion, under its id."""
        left, at = self._left.get(target, {}), At(whole.version, whole.ordinal)
        if row_id not in left:
            entries[row_id] = whole
        elif whole.document is None:
            entries.pop(row_id, None)
            left[row_id] = at
        else:
            entries[row_id] = Patch(target, row_id, at, at, read_fields(whole.document), ())

    def _patch(self, form: DocumentForm, entries: dict[RowId, Entry], patch: Patch, moved_from: RowId | None) -> None:
        """Applies the patch to what is known of the row here, under its old id if it has another one now."""
        version, left = patch.at.version, self._left.get(form.target, {})
        before_id = patch.id if moved_from is None else moved_from
        before = entries.pop(before_id, None)
        since = next((each.since for each in _patch_of(before)), left.get(before_id, At(0, 0)).version)
        if moved_from is not None:
            left = self._left.setdefault(form.target, {})
            left[moved_from] = patch.at
        match before:
            case Whole(_, _, bytes() as document):
                merged = document_of(_over(read_fields(document), patch, form))
                self.bytes += len(merged)
                self._put(form.target, entries, patch.id, Whole(*patch.at, merged))
                return
            case Patch():
                missing = tuple(name for name in patch.missing if name in before.missing)
                patch = replace(patch, known=_over(before.known, patch, form), missing=missing, former=before.former)
            case Whole() | None:
                pass
            case unreachable:
                assert_never(unreachable)
        if moved_from is not None:
            patch = replace(patch, former=(*patch.former, FormerId(moved_from, since, version)))
        entries[patch.id] = replace(patch, since=since if moved_from is None else version)

    def _note_all(self, target: str, ids: Sequence[RowId], places: Sequence[At]) -> None:
        if self._firsts is not None:
            for row_id, at in zip(ids, places, strict=True):
                self._firsts.setdefault((target, row_id), at)


def _patch_of(entry: Entry | None) -> tuple[Patch, ...]:
    match entry:
        case Patch():
            return (entry,)
        case Whole() | None:
            return ()
        case unreachable:
            assert_never(unreachable)


def _first_id(patch: Patch) -> RowId:
    return patch.former[0].id if patch.former else patch.id


class _DocumentRows:
    """Rows of one part: ids before and after (None without one), and documents (None if a value is not known)."""

    def __init__(self, form: DocumentForm, changes: TableChanges) -> None:
        self._form = form
        count, operations, kinds = len(changes), changes.operations, changes.old_kinds
        columns = _completed(changes)
        self._columns = columns
        with_old = [i for i in range(count) if kinds is not None and kinds[i] != NO_OLD_ROW]
        with_new = [i for i in range(count) if operations[i] != DELETE]
        self.old_ids: list[RowId | None] = [None] * count
        self.new_ids: list[RowId | None] = [None] * count
        if with_old and changes.old is not None:
            self._spread(self.old_ids, with_old, form.ids(rows_of(changes.old, with_old)))
        for i in range(count):
            if operations[i] == DELETE and self.old_ids[i] is None:
                raise TerminalError(
                    f"a delete of table '{changes.table.qualified_name}' does not identify its row",
                    "give the source table a primary key, or a replica identity that holds its key",
                )
        self._spread(self.new_ids, with_new, form.ids(rows_of(columns, with_new)) if with_new else [])
        whole = [i for i in with_new if not any(column[i] is UNCHANGED for column in columns)]
        self.documents: list[bytes | None] = [None] * count
        if whole:
            chosen = rows_of(columns, whole)
            ids = [row_id for row_id in (self.new_ids[i] for i in whole) if row_id is not None]
            self._spread(self.documents, whole, form.keyed(chosen, ids, form.documents(chosen, len(whole))))

    def patch(self, row: int, row_id: RowId, at: At) -> Patch:
        values = [column[row] for column in self._columns]
        known, missing = self._form.known_fields(values)
        if row_id.startswith(b'"sha256:'):
            known |= read_fields(b'{"%b":%b}' % (KEY_FIELD.encode(), self._form.key_text(values)))
        return Patch(self._form.target, row_id, at, at, known, missing)

    @staticmethod
    def _spread(into: list[bytes | None], rows: Sequence[int], found: Sequence[bytes]) -> None:
        for row, each in zip(rows, found, strict=True):
            into[row] = each


def _completed(changes: TableChanges) -> Sequence[Sequence[Value]]:
    """Returns the new rows, with values of the old ones where they were not sent again, as far as the identity has
    them."""
    if changes.old is None or changes.old_kinds is None or not _has_unchanged(changes):
        return changes.new
    columns = [list(column) for column in changes.new]
    for i, column in enumerate(changes.table.columns):
        for row, value in enumerate(columns[i]):
            kind = changes.old_kinds[row]
            if value is UNCHANGED and (kind == OLD_ROW or (kind != NO_OLD_ROW and column.identity_key)):
                columns[i][row] = changes.old[i][row]
    return columns


def _has_unchanged(changes: TableChanges) -> bool:
    """Joining is the fastest way to ask: it fails on anything but bytes, and ``filter`` takes the NULLs out."""
    if isinstance(changes.new, PlainRows) or UPDATE not in changes.operations:
        return False
    try:
        for column in changes.new:
            b"".join(filter(None, column))  # type: ignore[arg-type]
    except TypeError:
        return True
    return False


def _over(before: Fields, patch: Patch, form: DocumentForm) -> dict[str, Any]:
    """Returns ``patch`` over earlier fields of the row, whose columns may be gone meanwhile."""
    return {name: value for name, value in before.items() if name in form.field_names} | patch.known


def positions(changes: TableChanges, transactions: Sequence[Transaction]) -> list[At]:
    """Returns the position of each row, in order."""
    places: list[At] = []
    if len(transactions) == 1:
        only = transactions[0]
        shift = only.first_ordinal - only.first_change
        return [At(only.commit_lsn, index + shift) for index in changes.change_indexes]
    remaining = iter(transactions)
    current = next(remaining)
    for index in changes.change_indexes:
        while index >= current.end_change:
            current = next(remaining)
        places.append(At(current.commit_lsn, current.first_ordinal + index - current.first_change))
    return places


def _at(transactions: Sequence[Transaction], change_index: int) -> At:
    return next(
        At(each.commit_lsn, each.first_ordinal + change_index - each.first_change)
        for each in transactions
        if each.first_change <= change_index < each.end_change
    )
