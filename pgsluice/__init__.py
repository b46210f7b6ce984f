"""Replicates PostgreSQL through NATS JetStream and transforms the data on the way.

This docstring lists the public API. It changes only with a new major version, and the changelog lists each change. All other
packages and modules below ``pgsluice`` may move and change with any release.

    pgsluice.__version__        the installed version
    pgsluice.register(spark)    makes the format "pgsluice" known to a Spark session: spark.readStream.format("pgsluice")
    pgsluice.current_rows(df)   the current rows of a table, from a DataFrame of its changes

For the author of a sink, who writes ``pgsluice worker module:Class`` (see docs/how-to/own-sink.md):

    Sink, PartitionWriter       the classes to write: the half in the driver, and the half that is pickled into Spark's tasks
    TickingSink, RenumberedSink, CountingSink, PatientSink, TwoLaneSink
                                optional abilities of a sink, each with one more member
    WorkerSettings              the settings that the class gets, together with the user's options
    settings, read, Option, Kind
                                the declaration of these options
    Delivery, Partition, Receipt, Applied, NOTHING_APPLIED, MissedChanges
                                the arguments and results of the calls
    BucketPositions             keeps the position of a sink that has no better place for it
    MessageChanges              one decoded message: Transaction, and TableChanges or Truncation in order
    CopiedRows, as_changes      rows that a copy read, and the same as TableChanges
    INSERT, UPDATE, DELETE      the operations of TableChanges
    NO_OLD_ROW, OLD_KEY, OLD_ROW
                                the part of an old row that TableChanges holds
    row_changes, RowChange      both row by row, as Python values
    Table, Column, ReplicaIdentity
                                the table that the rows are of, and its columns
    Value, UNCHANGED            Postgres text as bytes, None for NULL, UNCHANGED for a value that was not sent
    Position, Rejection, RejectedChanges
                                the refusal of a change that can never be applied: it becomes a dead letter
    WriteAgain                  a commit's request for another pass over its batch at once
    UsageError, TransientError, TerminalError
                                the other errors of a sink; all are PgsluiceError. WireError: a value is not of its type
    encode_lines, encode_copied the JSON lines that ``worker stdout`` prints
    AlteredSink, DefinedSink, DefinitionUse
                                a sink's part when the source alters tables
    PublishedDefinition, TableDefinition, DefinedColumn
                                the definition of a table with its columns, and the one before it
    TableDefined, TablePublished, TableUnpublished, TableGone, TableRewritten, TypeDefined, DefinitionUnknown
                                the events that it may report
    differences_of              the differences between a definition and the one before it: a list of these
    TableRenamed, ColumnAdded, ColumnPublished, ColumnDropped, ColumnRenamed, TypeAltered, NotNullAltered, KeyAltered,
    PartitionAttached, PartitionDetached

For readers of lines, which have JSON Schemas too (see docs/reference/lines.md):

    JsonLine, FlatLine, PgFloLine, DebeziumLine
                                the types of a line in each format, after ``json.loads``

A name is imported when it is first used: ``import pgsluice`` itself loads nothing. The packages in this folder are links to the
folders of the repository, so that what is installed has one name.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgsluice.shared.config.declaration import read, settings
    from pgsluice.shared.config.kinds import Kind
    from pgsluice.shared.config.option import Option
    from pgsluice.shared.config.settings import WorkerSettings
    from pgsluice.shared.definitions.difference import (
        ColumnAdded,
        ColumnDropped,
        ColumnPublished,
        ColumnRenamed,
        KeyAltered,
        NotNullAltered,
        PartitionAttached,
        PartitionDetached,
        TableRenamed,
        TypeAltered,
        differences_of,
    )
    from pgsluice.shared.errors import PgsluiceError, TerminalError, TransientError, UsageError, WireError
    from pgsluice.shared.pgoutput.messages import NO_OLD_ROW, OLD_KEY, OLD_ROW
    from pgsluice.shared.rows.changes import (
        DELETE,
        INSERT,
        UPDATE,
        CopiedRows,
        MessageChanges,
        TableChanges,
        Transaction,
        Truncation,
    )
    from pgsluice.shared.wire.definition import (
        DefinedColumn,
        DefinitionUnknown,
        TableDefined,
        TableDefinition,
        TableGone,
        TablePublished,
        TableRewritten,
        TableUnpublished,
        TypeDefined,
    )
    from pgsluice.shared.wire.position import Position
    from pgsluice.shared.wire.published_definition import PublishedDefinition
    from pgsluice.shared.wire.table import UNCHANGED, Column, ReplicaIdentity, Table, Value
    from pgsluice.worker.data_source.current_rows import current_rows
    from pgsluice.worker.dead_letters.rejection import RejectedChanges, Rejection, WriteAgain
    from pgsluice.worker.positions.bucket import BucketPositions
    from pgsluice.worker.sinks.abilities import (
        AlteredSink,
        CountingSink,
        DefinedSink,
        PatientSink,
        RenumberedSink,
        TickingSink,
        TwoLaneSink,
    )
    from pgsluice.worker.sinks.lines.json_lines import as_changes, encode_copied, encode_lines
    from pgsluice.worker.sinks.lines.schemas.debezium_forms import DebeziumLine
    from pgsluice.worker.sinks.lines.schemas.flat_forms import FlatLine
    from pgsluice.worker.sinks.lines.schemas.json_forms import JsonLine
    from pgsluice.worker.sinks.lines.schemas.pg_flo_forms import PgFloLine
    from pgsluice.worker.sinks.sink import (
        NOTHING_APPLIED,
        Applied,
        DefinitionUse,
        Delivery,
        MissedChanges,
        Partition,
        PartitionWriter,
        Receipt,
        Sink,
    )
    from pgsluice.worker.sinks.typed_rows import RowChange, row_changes

    __version__: str

__all__ = [
    "DELETE",
    "INSERT",
    "NOTHING_APPLIED",
    "NO_OLD_ROW",
    "OLD_KEY",
    "OLD_ROW",
    "UNCHANGED",
    "UPDATE",
    "AlteredSink",
    "Applied",
    "BucketPositions",
    "Column",
    "ColumnAdded",
    "ColumnDropped",
    "ColumnPublished",
    "ColumnRenamed",
    "CopiedRows",
    "CountingSink",
    "DebeziumLine",
    "DefinedColumn",
    "DefinedSink",
    "DefinitionUnknown",
    "DefinitionUse",
    "Delivery",
    "FlatLine",
    "JsonLine",
    "KeyAltered",
    "Kind",
    "MessageChanges",
    "MissedChanges",
    "NotNullAltered",
    "Option",
    "Partition",
    "PartitionAttached",
    "PartitionDetached",
    "PartitionWriter",
    "PatientSink",
    "PgFloLine",
    "PgsluiceError",
    "Position",
    "PublishedDefinition",
    "Receipt",
    "RejectedChanges",
    "Rejection",
    "RenumberedSink",
    "ReplicaIdentity",
    "RowChange",
    "Sink",
    "Table",
    "TableChanges",
    "TableDefined",
    "TableDefinition",
    "TableGone",
    "TablePublished",
    "TableRenamed",
    "TableRewritten",
    "TableUnpublished",
    "TerminalError",
    "TickingSink",
    "Transaction",
    "TransientError",
    "Truncation",
    "TwoLaneSink",
    "TypeAltered",
    "TypeDefined",
    "UsageError",
    "Value",
    "WireError",
    "WorkerSettings",
    "WriteAgain",
    "__version__",
    "as_changes",
    "current_rows",
    "differences_of",
    "encode_copied",
    "encode_lines",
    "read",
    "register",
    "row_changes",
    "settings",
]

_MODULES = {
    "shared.config.declaration": ("read", "settings"),
    "shared.config.kinds": ("Kind",),
    "shared.config.option": ("Option",),
    "shared.config.settings": ("WorkerSettings",),
    "shared.definitions.difference": (
        *("TableRenamed", "ColumnAdded", "ColumnPublished", "ColumnDropped", "ColumnRenamed", "TypeAltered", "NotNullAltered"),
        *("KeyAltered", "PartitionAttached", "PartitionDetached", "differences_of"),
    ),
    "shared.errors": ("PgsluiceError", "TerminalError", "TransientError", "UsageError", "WireError"),
    "shared.pgoutput.messages": ("NO_OLD_ROW", "OLD_KEY", "OLD_ROW"),
    "shared.rows.changes": (
        *("DELETE", "INSERT", "UPDATE"),
        *("CopiedRows", "MessageChanges", "TableChanges", "Transaction", "Truncation"),
    ),
    "shared.wire.definition": (
        *("TableDefined", "TablePublished", "TableUnpublished", "TableGone", "TableRewritten", "TypeDefined"),
        *("DefinitionUnknown", "TableDefinition", "DefinedColumn"),
    ),
    "shared.wire.position": ("Position",),
    "shared.wire.published_definition": ("PublishedDefinition",),
    "shared.wire.table": ("UNCHANGED", "Column", "ReplicaIdentity", "Table", "Value"),
    "worker.dead_letters.rejection": ("RejectedChanges", "Rejection", "WriteAgain"),
    "worker.data_source.current_rows": ("current_rows",),
    "worker.positions.bucket": ("BucketPositions",),
    "worker.sinks.abilities": (
        *("CountingSink", "PatientSink", "RenumberedSink", "TickingSink", "TwoLaneSink", "AlteredSink", "DefinedSink"),
    ),
    "worker.sinks.lines.json_lines": ("as_changes", "encode_copied", "encode_lines"),
    "worker.sinks.lines.schemas.debezium_forms": ("DebeziumLine",),
    "worker.sinks.lines.schemas.flat_forms": ("FlatLine",),
    "worker.sinks.lines.schemas.json_forms": ("JsonLine",),
    "worker.sinks.lines.schemas.pg_flo_forms": ("PgFloLine",),
    "worker.sinks.sink": (
        *("NOTHING_APPLIED", "Applied", "Delivery", "MissedChanges", "Partition", "PartitionWriter", "Receipt"),
        *("Sink", "DefinitionUse"),
    ),
    "worker.sinks.typed_rows": ("RowChange", "row_changes"),
}
"""Modules of the names above, which a type checker reads and a program imports at their first use."""

_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}


def register(spark: SparkSession) -> None:
    """Makes ``spark.read.format("pgsluice")`` and ``spark.readStream.format("pgsluice")`` known to this session."""
    from pgsluice.worker.data_source.data_source import ChangeFeed

    spark.dataSource.register(ChangeFeed)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
