"""The content of a line: the one implementation of ``format`` and its options, for every sink that writes lines."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import assert_never

from pgsluice.shared.process.program_version import program_version
from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.worker.sinks.lines import debezium_lines, flat_lines, json_lines, pg_flo_lines
from pgsluice.worker.sinks.lines.debezium_lines import NO_SOURCE, DebeziumSource
from pgsluice.worker.sinks.lines.options import LineSettings
from pgsluice.worker.sinks.lines.presentation import ColumnCase, presented, presented_copy
from pgsluice.worker.sinks.sink import DefinitionUse


class LineShape(enum.Enum):
    """``value`` is how ``format`` spells it; FLAT is JSON with another layout."""

    JSON = "json"
    FLAT = "flat"
    PG_FLO = "pg-flo"
    DEBEZIUM = "debezium"


@dataclass(frozen=True, slots=True)
class LineEncoding:
    """Picklable. ``transactions`` and ``column_ids`` are for the shape JSON alone, ``source`` for DEBEZIUM."""

    shape: LineShape = LineShape.JSON
    transactions: bool = False
    column_ids: bool = False
    column_case: ColumnCase = ColumnCase.AS_IS
    include_before: bool = True
    source: DebeziumSource = NO_SOURCE

    @classmethod
    def of(cls, settings: LineSettings, group: str) -> LineEncoding:
        shape = LineShape.FLAT if settings.layout == "flat" and settings.shape == "json" else LineShape(settings.shape)
        return cls(
            shape,
            settings.transactions,
            settings.column_ids,
            ColumnCase(settings.column_case),
            settings.include_before,
            DebeziumSource(program_version(), settings.debezium_name or group, settings.debezium_database or group),
        )

    @property
    def tells_definitions(self) -> bool:
        return self.shape is not LineShape.DEBEZIUM

    @property
    def definitions(self) -> DefinitionUse:
        """The use of definitions by a sink that writes such lines."""
        return DefinitionUse.PASSES_ON if self.tells_definitions else DefinitionUse.PASSES_OVER

    def encode(self, message: MessageChanges) -> list[bytes]:
        """Like ``json_lines.encode_lines``."""
        message = presented(message, self.column_case, include_before=self.include_before)
        match self.shape:
            case LineShape.JSON:
                return json_lines.encode_lines(message, transactions=self.transactions, column_ids=self.column_ids)
            case LineShape.FLAT:
                return flat_lines.encode_lines(message)
            case LineShape.PG_FLO:
                return pg_flo_lines.encode_lines(message)
            case LineShape.DEBEZIUM:
                return debezium_lines.encode_lines(message, self.source)
            case unreachable:
                assert_never(unreachable)

    def encode_copied(self, copied: CopiedRows) -> list[bytes]:
        """Like ``json_lines.encode_copied``."""
        copied = presented_copy(copied, self.column_case)
        match self.shape:
            case LineShape.JSON:
                return json_lines.encode_copied(copied, column_ids=self.column_ids)
            case LineShape.FLAT:
                return flat_lines.encode_copied(copied)
            case LineShape.PG_FLO:
                return pg_flo_lines.encode_copied(copied)
            case LineShape.DEBEZIUM:
                return debezium_lines.encode_copied(copied, self.source)
            case unreachable:
                assert_never(unreachable)
