"""Rows of one version of a table as documents, with their ids, a column at a time.

A row's id is the text of its key; the texts of a key of several columns are joined with ``/`` between them, and ``/``
and ``%`` in them as ``%2F`` and ``%25``. A text that the server refuses as an id (an empty one, or one above 512 bytes)
becomes ``sha256:`` and its digest, and the text is in the field ``_key``. A row without a key has its position for an
id: it is inserted once and never again touched.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import orjson

from pgsluice.shared.errors import TerminalError, WireError
from pgsluice.shared.wire.table import UNCHANGED, Table, Value
from pgsluice.worker.sinks.lines.json_rows import (
    NULL,
    JsonColumn,
    Kinds,
    json_column,
    lines_of_slots,
    object_slots,
    strings,
    whole_columns,
)
from pgsluice.worker.sinks.search.field_values import MAY_NULL
from pgsluice.worker.sinks.search.mapping import DEEPEST, KEY_FIELD, WHOLE_FIELD, TableMapping

LONGEST_ID_BYTES = 512
LONGEST_TERM = 32_766
"""The most bytes of a term that Lucene's IndexWriter takes."""
HASHED = b"sha256:"

_CUT = object()
_ZEROS = re.compile(rb":\[-?0(?:\.0+)?[,\]]")
"""The begin of an array of zeros."""

_KEPT_LEVELS = 100
"""Neither Python (about 1,000) nor orjson (254) reads and writes any depth; a search server takes 1,000."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NO_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')

Fields = dict[str, Any]
"""A document's, by name: orjson.Fragment, or what JSON means by it."""


@dataclass(frozen=True)
class DocumentForm:
    """The form of the documents of the generation whose write alias is ``target``."""

    mapping: TableMapping
    target: str
    nulled: list[int] = field(default_factory=lambda: [0], repr=False)
    """Number of values that were left out because JSON cannot represent them, in its only element."""

    @property
    def table(self) -> Table:
        return self.mapping.table

    @cached_property
    def field_names(self) -> frozenset[str]:
        """Names of the columns' fields in documents."""
        return frozenset(field.name for field in self.mapping.fields)

    @cached_property
    def _shape(self) -> Table:
        """The table with its columns called as the fields are, and a type for each that ``_kinds`` knows."""
        fields = self.mapping.fields
        columns = [replace(column, name=fields[i].name, type_oid=i) for i, column in enumerate(self.table.columns)]
        return replace(self.table, columns=tuple(columns))

    @cached_property
    def _kinds(self) -> Kinds:
        return {i: each.convert for i, each in enumerate(self.mapping.fields)}

    def documents(self, columns: Sequence[Sequence[Value]], count: int) -> list[bytes]:
        """Returns a line for each of ``count`` rows, in which every value is known. Raises WireError."""
        texts = whole_columns(self._shape, columns, self._kinds)
        assert texts is not None, "a row with unchanged values is no document"
        self._count_nulled(texts, columns)
        if not texts:
            return [b"{}\n"] * count
        slots = object_slots(self._shape, texts, range(len(texts)))
        return lines_of_slots([*slots, b"\n"], count)

    def known_fields(self, row: Sequence[Value]) -> tuple[Fields, tuple[str, ...]]:
        """Returns the known fields of one row, and the names of the other fields."""
        known: Fields = {}
        missing = []
        for column, value in zip(self._shape.columns, row, strict=True):
            if value is UNCHANGED:
                missing.append(column.name)
            elif value is None:
                known[column.name] = None
            else:
                (text,) = json_column(self._shape, column, [value], self._kinds).whole()
                known[column.name] = orjson.Fragment(text)
        return known, tuple(missing)

    def ids(self, columns: Sequence[Sequence[Value]]) -> list[RowId]:
        """Returns the ids of rows with a key, in order."""
        key = self.table.key
        parts = [self._key_texts(columns[i]) for i in key]
        if len(key) == 1:
            texts = parts[0]
        else:
            texts = [b"/".join(map(_escaped, values)) for values in zip(*parts, strict=True)]
        try:
            whole = list(strings(texts).whole())
        except UnicodeDecodeError:
            raise WireError(f"a key of {self.table.qualified_name} is not UTF-8", "correct the row") from None
        if all(0 < len(text) <= LONGEST_ID_BYTES for text in texts) and not any(text.startswith(HASHED) for text in texts):
            return whole
        return [_hashed(text) if _needs_hash(text) else json_text for text, json_text in zip(texts, whole, strict=True)]

    def keyed(self, columns: Sequence[Sequence[Value]], ids: Sequence[RowId], documents: list[bytes]) -> list[bytes]:
        """Returns ``documents`` with the keys whose ids are hashed."""
        hashed = [i for i, row_id in enumerate(ids) if row_id.startswith(b'"' + HASHED)]
        for i in hashed:
            documents[i] = with_field(documents[i], KEY_FIELD, self.key_text([column[i] for column in columns]))
        return documents

    def key_text(self, row: Sequence[Value]) -> bytes:
        """Returns the key of a hashed id, as JSON."""
        texts = [value if isinstance(value, bytes) else b"" for value in (row[i] for i in self.table.key)]
        return orjson.dumps((texts[0] if len(texts) == 1 else b"/".join(map(_escaped, texts))).decode())

    def _count_nulled(self, texts: Sequence[JsonColumn], columns: Sequence[Sequence[Value]]) -> None:
        for each, column, values in zip(self.mapping.fields, texts, columns, strict=True):
            if each.convert in MAY_NULL and not column.quote:
                self.nulled[0] += max(0, column.texts.count(NULL) - sum(value is None for value in values))

    def _key_texts(self, values: Sequence[Value]) -> list[bytes]:
        texts = [value for value in values if isinstance(value, bytes)]
        if len(texts) != len(values):
            raise TerminalError(
                f"a change of table '{self.table.qualified_name}' does not identify its row",
                "a part of its key was not sent, or is NULL: give the source table a primary key",
            )
        return texts


RowId = bytes
"""A JSON string, quotes included."""


def position_id(version: int, ordinal: int) -> RowId:
    """Returns the id of a row without a key, by the position of its insert."""
    return b'"%X/%X:%d"' % (version >> 32, version & 0xFFFFFFFF, ordinal)


def with_field(document: bytes, name: str, text: bytes) -> bytes:
    """Returns a document line with one field more."""
    separator = b"" if document == b"{}\n" else b","
    return document[:-2] + separator + orjson.dumps(name) + b":" + text + b"}\n"


def read_fields(document: bytes | str) -> Fields:
    """Reads the fields of a document line, or of an answer that holds some. Numbers keep every digit. Parts nested too
    deep to be written again stay text."""
    text = document if isinstance(document, str) else document.decode()
    try:
        found = _read(text, ())
        if text.count("[") + text.count("{") > _KEPT_LEVELS:
            orjson.dumps(found)
    except (RecursionError, orjson.JSONEncodeError):
        return _read(*_cut(text))
    return found


def _read(text: str, cut: Iterable[str]) -> Fields:
    """Reads JSON; ``cut`` replaces NaN, which JSON lacks."""
    rest = iter(cut)
    found: Fields = json.loads(
        text, parse_int=_integer, parse_float=_number, parse_constant=lambda _: orjson.Fragment(next(rest))
    )
    return found


def _cut(text: str) -> tuple[str, list[str]]:
    """Returns ``text`` with NaN for each value that is nested too deep, and those."""
    kept, cut = [], []
    level = begin = done = 0
    for token in _STRING_OR_BRACKET.finditer(text):
        if token[0] in "[{":
            level += 1
            begin = token.start() if level == _KEPT_LEVELS + 1 else begin
        elif token[0] in "]}":
            if level == _KEPT_LEVELS + 1:
                kept += [text[done:begin], "NaN"]
                cut.append(text[begin : token.end()])
                done = token.end()
            level -= 1
    return "".join([*kept, text[done:]]), cut


def document_of(fields: Mapping[str, Any]) -> bytes:
    """Returns the document as a line."""
    try:
        return orjson.dumps(fields) + b"\n"
    except orjson.JSONEncodeError:  # half a character, which PostgreSQL takes in a json, and Python too
        return orjson.dumps(_writable(fields)) + b"\n"


def _writable(value: Any) -> Any:
    """Returns the value with texts that are not UTF-8 as separate JSON."""
    match value:
        case dict():
            members = (b"%b:%b" % (json.dumps(name).encode(), orjson.dumps(_writable(each))) for name, each in value.items())
            return orjson.Fragment(b"{%b}" % b",".join(members))
        case list():
            return list(map(_writable, value))
        case str():
            return orjson.Fragment(json.dumps(value))
        case _:
            return value


def indexable_part(document: bytes) -> bytes | None:
    """Returns the line of a document that the server refused, without values that no index accepts: leaves of objects
    of more than LONGEST_TERM bytes with their path, and vectors of zeros, which have no direction. WHOLE_FIELD, which
    servers do not index, has these values as they are. None without such values, or if it has WHOLE_FIELD already."""
    if len(document) <= LONGEST_TERM and not _ZEROS.search(document):
        return None
    fields = read_fields(document)
    kept = {name: _indexable_value(value, len(name.encode())) for name, value in fields.items()}
    whole = {name: value for name, value in fields.items() if kept[name] != value}
    if not whole or WHOLE_FIELD in fields:
        return None
    return document_of(fields | {name: kept[name] for name in whole} | {WHOLE_FIELD: whole})


def with_whole_values(fields: Fields) -> Fields:
    """Returns the fields of a document that the server has stored, with the values of WHOLE_FIELD in their places."""
    whole = fields.get(WHOLE_FIELD)
    kept = {name: value for name, value in fields.items() if name != WHOLE_FIELD}
    return {name: whole.get(name, value) for name, value in kept.items()} if isinstance(whole, dict) else kept


def _indexable_value(value: Any, path_bytes: int) -> Any:
    """Returns the value of a field without what no index takes."""
    match value:
        case dict():
            return _indexable(value, path_bytes)
        case [_, *_] if all(_is_zero(each) for each in value):
            return None
        case _:
            return value


def _is_zero(value: Any) -> bool:
    """Returns whether ``value`` is the number zero, as ``read_fields`` gives numbers."""
    text = orjson.dumps(value) if isinstance(value, int | orjson.Fragment) and not isinstance(value, bool) else b"1"
    return float(text) == 0


def _indexable(value: Any, path_bytes: int) -> Any:
    """Returns ``value`` without leaves that are no terms; _CUT where it is one itself."""
    match value:
        case dict():
            below = ((name, _indexable(each, path_bytes + 1 + _bytes(name))) for name, each in value.items())
            return {name: each for name, each in below if each is not _CUT} if path_bytes <= LONGEST_TERM else _CUT
        case list():
            return [each for each in (_indexable(each, path_bytes) for each in value) if each is not _CUT]
        case str():
            return value if path_bytes + 1 + _bytes(value) <= LONGEST_TERM else _CUT
        case _:
            return value if path_bytes <= LONGEST_TERM else _CUT


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def is_too_deep(document: bytes) -> bool:
    """Returns whether a document line is nested more than DEEPEST levels deep."""
    if document.count(b"[") + document.count(b"{") <= DEEPEST:
        return False
    level = 0
    for bracket in _STRING.sub(b"", document).translate(None, _NO_BRACKETS):
        level += 1 if bracket in b"[{" else -1
        if level > DEEPEST:
            return True
    return False


def _integer(text: str) -> int | orjson.Fragment:
    value = int(text)
    return value if -(1 << 63) <= value < 1 << 63 and text != "-0" else orjson.Fragment(text)


def _number(text: str) -> orjson.Fragment:
    return orjson.Fragment(text)


def _escaped(text: bytes) -> bytes:
    return text.replace(b"%", b"%25").replace(b"/", b"%2F")


def _needs_hash(text: bytes) -> bool:
    return not 0 < len(text) <= LONGEST_ID_BYTES or text.startswith(HASHED)


def _hashed(text: bytes) -> RowId:
    return b'"%b%b"' % (HASHED, hashlib.sha256(text).hexdigest().encode())


def rows_of(columns: Sequence[Sequence[Value]], rows: Sequence[int]) -> list[list[Value]]:
    """Returns the columns with only these rows."""
    return [[column[row] for row in rows] for column in columns]


def each_row(columns: Sequence[Sequence[Value]], count: int) -> Iterator[tuple[Value, ...]]:
    return zip(*columns, strict=True) if columns else iter([()] * count)
