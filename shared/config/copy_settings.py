"""Settings of the copy: whether tables are copied and changes follow, and with which limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pgsluice.shared.config.declaration import read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError

MODES = ("stream", "copy", "copy-and-stream")


@settings
class CopySettings:
    """Settings for copying existing rows; ``then_stream``: changes follow.

    ``workers_per_table`` and ``connections`` limit the tasks that copy at the same time, of one table and of all.
    ``recopy`` holds patterns of tables that are copied again from their first row.
    """

    STREAM: ClassVar[Option] = Option(
        "stream", Kind.SWITCH, "Mode: replicate changes continuously (the default mode)", "true", "false"
    )
    COPY: ClassVar[Option] = Option(
        "copy", Kind.SWITCH, "Mode: copy the existing rows (initial snapshot), then stop", "false", "false"
    )
    then_stream: bool = read(
        Option(
            "copy-and-stream",
            Kind.SWITCH,
            "Mode: copy the existing rows (initial snapshot), and replicate every change after it",
            "false",
            "false",
        )
    )
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
        chosen = [values.named(mode) for mode in MODES if values.switch(mode)]
        if len(chosen) > 1:
            yield UsageError(
                f"several modes are given: {', '.join(chosen)}", "give one of them; a switch is taken back with =false"
            )
        if values.given("recopy") and not is_copying(values):
            yield UsageError(f"{values.named('recopy')} has no meaning without a copy", "give copy-and-stream too, or remove it")


def is_copying(values: Values) -> bool:
    return values.switch("copy") or values.switch("copy-and-stream")
