"""Settings of the copy: whether tables are copied and changes follow, and with which limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pgsluice.shared.config.declaration import read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError

COPY_AND_STREAM = "copy-and-stream"
MODES = ("stream", "copy", COPY_AND_STREAM)


def _earlier(mode: str) -> Option:
    """The switch that chose the mode before there was ``mode``, as in pg_flo."""
    return Option(mode, Kind.SWITCH, f"Earlier name of 'mode: {mode}'", "true", "false", instead=f"mode: {mode}")


@settings
class CopySettings:
    """Settings for copying existing rows; ``then_stream``: changes follow.

    ``workers_per_table`` and ``connections`` limit the tasks that copy at the same time, of one table and of all.
    ``recopy`` holds patterns of tables that are copied again from their first row.
    """

    then_stream: bool = read(
        Option(
            "mode",
            Kind.TEXT,
            "Mode: stream replicates changes continuously (the default), copy copies the existing rows (initial snapshot) and "
            "stops, copy-and-stream copies them and replicates every change after that",
            "copy-and-stream",
            choices=MODES,
        ),
        then=lambda mode: mode == COPY_AND_STREAM,
        otherwise=lambda values: values.switch(COPY_AND_STREAM),
    )
    EARLIER: ClassVar[tuple[Option, ...]] = tuple(map(_earlier, MODES))
    workers_per_table: int = read(
        Option(
            "max-copy-workers-per-table",
            Kind.NUMBER,
            "Most parallel tasks that copy one table",
            "4",
            "4",
            minimum=1,
            maximum=1024,
        )
    )
    connections: int = read(
        Option(
            "max-copy-connections",
            Kind.NUMBER,
            "Most parallel copy tasks for all tables together; each has a connection to the source",
            "8",
            "8",
            minimum=1,
            maximum=1024,
        )
    )
    range_bytes: int = read(
        Option(
            "copy-range-bytes",
            Kind.SIZE,
            "Part of a table that one task copies at once, in bytes of table pages",
            "64MiB",
            "64MiB",
            minimum=8 * 1024,
        )
    )
    retry_errored: bool = read(
        Option("retry-errored", Kind.SWITCH, "Retry tables whose initial snapshot failed", "true", "false")
    )
    recopy: tuple[str, ...] = read(
        Option(
            "recopy",
            Kind.LIST,
            "Tables to resync at this start, into emptied tables (patterns as in tables); give it once, as a flag",
            "orders",
        )
    )

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        named = {mode: values.named(mode) for mode in MODES if values.switch(mode)}
        if values.given("mode"):
            mode = values.text("mode")
            named = {mode: f"{values.named('mode')} {mode}"} | {each: text for each, text in named.items() if each != mode}
        if len(named) > 1:
            yield UsageError(
                f"several modes are given: {', '.join(named.values())}", "give 'mode' alone; a switch is taken back with =false"
            )
        if values.given("recopy") and not is_copying(values):
            remedy = "give 'mode: copy-and-stream' too, or remove it"
            yield UsageError(f"{values.named('recopy')} has no meaning without a copy", remedy)


def mode_of(values: Values) -> tuple[str, str]:
    """The mode that was chosen, and the option that chose it; "stream" and "" where none did."""
    if values.given("mode"):
        return values.text("mode"), "mode"
    return next(((mode, mode) for mode in MODES if values.switch(mode)), ("stream", ""))


def is_copying(values: Values) -> bool:
    mode, _ = mode_of(values)
    return mode != "stream"
