"""Text output: tables in aligned columns, and sizes with their unit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

_GAP = "  "


def format_columns(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> Iterator[str]:
    """Yields a line for the headings, then one for each row. ``numbers`` are the indexes of the columns that are set to
    the right; their headings stay at the left. The last column is as long as it is."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    yield _GAP.join(map(str.ljust, headings, widths)).rstrip()
    for row in rows:
        cells = (
            cell.rjust(width) if index in numbers else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield _GAP.join(cells).rstrip()


def format_bytes(count: int) -> str:
    """Formats in the largest binary unit that leaves a number of at least 1."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
