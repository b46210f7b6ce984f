"""The lines of ``format: debezium``, as ``worker.sinks.lines.debezium_lines`` writes them."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from pgsluice.worker.sinks.lines.schemas.field_forms import Form, Row

SequenceText = Annotated[
    str, Form(r'^\[("[0-9]+"|null),("[0-9]+"|null)\]$', "Commit LSN and the change's number, by which all changes are sorted")
]


class DebeziumOrigin(TypedDict):
    """Origin of the change; times are 0 for a copied row."""

    version: str
    connector: Literal["postgresql"]
    name: str
    ts_ms: int
    snapshot: Literal["true", "false"]
    db: str
    sequence: SequenceText
    ts_us: int
    ts_ns: int
    schema: str
    table: str
    txId: int | None
    lsn: int | None
    xmin: None


class _Envelope(TypedDict):
    source: DebeziumOrigin
    transaction: None


class _DebeziumTransaction(TypedDict):
    ts_ms: int
    ts_us: int
    ts_ns: int


class DebeziumRead(_Envelope):
    """A row that a snapshot copied."""

    before: None
    after: Row
    op: Literal["r"]
    ts_ms: None
    ts_us: None
    ts_ns: None


class DebeziumCreate(_Envelope, _DebeziumTransaction):
    """A row that was inserted, or a row under its new key when an update changed the key."""

    before: None
    after: Row
    op: Literal["c"]


class DebeziumUpdate(_Envelope, _DebeziumTransaction):
    """A row that was updated: ``before`` is the old row, as far as it was sent."""

    before: Row | None
    after: Row
    op: Literal["u"]


class DebeziumDelete(_Envelope, _DebeziumTransaction):
    """A row that was deleted, or a row under its old key when an update changed the key."""

    before: Row
    after: None
    op: Literal["d"]


class DebeziumTruncate(_Envelope):
    """A table that was emptied, or, without times, is copied again."""

    before: None
    after: None
    op: Literal["t"]
    ts_ms: int | None
    ts_us: int | None
    ts_ns: int | None


DebeziumLine = DebeziumRead | DebeziumCreate | DebeziumUpdate | DebeziumDelete | DebeziumTruncate
