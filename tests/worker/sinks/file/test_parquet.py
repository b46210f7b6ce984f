"""Parquet files, read back with pyarrow: types, what a change becomes, and that nothing is there twice or half."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgsluice.shared.errors import TerminalError, TransientError, WireError
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.wire.definition import TableDefined
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import UNCHANGED, Column, ReplicaIdentity, Table, Value
from pgsluice.testing.batch import apply, apply_copied
from pgsluice.testing.changes_builder import (
    copied,
    delete,
    insert,
    message,
    message_of,
    restart,
    table,
    transaction,
    truncate,
    update,
)
from pgsluice.worker.sinks.file.formats import ROW_GROUP_BYTES
from pgsluice.worker.sinks.file.rows import arrow_type, directory_name
from tests.worker.definitions.definitions_of import ID, NOTE, TABLE, with_columns
from tests.worker.definitions.definitions_of import column as defined_column
from tests.worker.sinks.file.output import PREFIX, new_sink, parquet_rows
from tests.worker.sinks.file.small_disk import small_disk

COLUMNS = {
    "boolean": (16, -1),
    "bytea": (17, -1),
    "bigint": (20, -1),
    "smallint": (21, -1),
    "integer": (23, -1),
    "text": (25, -1),
    "oid": (26, -1),
    "json": (114, -1),
    "real": (700, -1),
    "float8": (701, -1),
    "date": (1082, -1),
    "timestamp": (1114, -1),
    "timestamptz": (1184, -1),
    "numeric": (1700, -1),
    "numeric(10,2)": (1700, (10 << 16 | 2) + 4),
    "numeric(38,0)": (1700, (38 << 16) + 4),
    "numeric(39,0)": (1700, (39 << 16) + 4),
    "numeric(3,-2)": (1700, (3 << 16 | (-2 & 0x7FF)) + 4),
    "numeric(2,3)": (1700, (2 << 16 | 3) + 4),
    "uuid": (2950, -1),
}
"""Type OID and typmod."""

ORDERS = table("shop.orders", "id bigint", "total numeric", "note text")
ORDERS_FULL = table("shop.orders", "id bigint", "total numeric", "note text", identity=ReplicaIdentity.FULL)
WIDER = with_columns(ID, NOTE, defined_column(3, "more"))
LINES = table("shop.lines", "order_id bigint", "line integer", "sku text", key=("line", "order_id"))


def column(type_name: str) -> Column:
    oid, typmod = COLUMNS[type_name]
    return Column("v", oid, type_name, typmod, False, None, False, "", "")


def values_table(type_name: str) -> Table:
    return replace(table("v", key=()), columns=(column(type_name),))


def written(directory: Path, *batches: MessageChanges) -> None:
    """Each message is a batch; the files are finished."""
    sink = new_sink(directory, file_format="parquet", compression="zstd")
    sink.open()
    for changes in batches:
        apply(sink, [[changes]])
    sink.close()


def read_back(directory: Path, type_name: str, *values: Value) -> tuple[pa.DataType, list[Any], list[Any]]:
    """The type of the column, its values, and ``_as_text``."""
    values_of = values_table(type_name)
    written(directory, message(1, *(insert(values_of, value) for value in values)))
    (path,) = (directory / "public.v").iterdir()
    rows = pq.read_table(path)
    return rows.schema.field("v").type, rows["v"].to_pylist(), rows["_as_text"].to_pylist()


@pytest.mark.parametrize(
    ("type_name", "kind", "texts", "expected"),
    [
        ("boolean", pa.bool_(), [b"t", b"f"], [True, False]),
        ("bytea", pa.binary(), [b"\\x", b"\\x00ff"], [b"", b"\x00\xff"]),
        ("smallint", pa.int16(), [b"-32768", b"32767"], [-32768, 32767]),
        ("integer", pa.int32(), [b"-2147483648", b"2147483647"], [-(2**31), 2**31 - 1]),
        ("bigint", pa.int64(), [b"-9223372036854775808", b"9223372036854775807"], [-(2**63), 2**63 - 1]),
        ("oid", pa.int64(), [b"0", b"4294967295"], [0, 2**32 - 1]),
        ("real", pa.float32(), [b"1.5", b"-Infinity", b"1e-05"], [1.5, float("-inf"), pytest.approx(1e-5)]),
        ("float8", pa.float64(), [b"5e-324", b"1.7976931348623157e+308", b"-0"], [5e-324, sys.float_info.max, -0.0]),
        ("date", pa.date32(), [b"0001-01-01", b"9999-12-31"], [date(1, 1, 1), date(9999, 12, 31)]),
        ("timestamp", pa.timestamp("us"), [b"2026-01-31 09:15:00.1"], [datetime(2026, 1, 31, 9, 15, 0, 100_000)]),
        (
            "timestamptz",
            pa.timestamp("us", "UTC"),
            [b"2026-01-31 09:15:00+00", b"1969-12-31 23:59:59.999999+00"],
            [datetime(2026, 1, 31, 9, 15, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)],
        ),
        ("numeric(10,2)", pa.decimal128(10, 2), [b"12.50", b"-99999999.99"], [Decimal("12.50"), Decimal("-99999999.99")]),
        ("numeric(38,0)", pa.decimal128(38, 0), [b"9" * 38, b"-1"], [Decimal("9" * 38), Decimal(-1)]),
        ("numeric(39,0)", pa.string(), [b"9" * 39], ["9" * 39]),
        ("numeric(3,-2)", pa.string(), [b"12300"], ["12300"]),
        ("numeric(2,3)", pa.string(), [b"0.012"], ["0.012"]),
        ("numeric", pa.string(), [b"NaN", b"1" * 1000], ["NaN", "1" * 1000]),
        ("text", pa.string(), [b"", 'quote " \\ \n \U0001f600'.encode()], ["", 'quote " \\ \n \U0001f600']),
        ("json", pa.string(), [b'{"a": 1}'], ['{"a": 1}']),
        ("uuid", pa.string(), [b"0e2c1a3e-1f6f-4e0c-9d4e-3c1f3f5f8f11"], ["0e2c1a3e-1f6f-4e0c-9d4e-3c1f3f5f8f11"]),
    ],
)
def test_a_column_has_the_type_of_its_source(
    tmp_path: Path, type_name: str, kind: pa.DataType, texts: list[bytes], expected: list[Any]
) -> None:
    assert read_back(tmp_path, type_name, None, *texts) == (kind, [None, *expected], [None] * (len(texts) + 1))


@pytest.mark.parametrize(
    ("type_name", "fits", "text"),
    [
        ("numeric(10,2)", b"1.00", "NaN"),
        ("numeric(10,2)", b"1.00", "-Infinity"),
        ("date", b"2026-01-31", "infinity"),
        ("date", b"2026-01-31", "0044-03-15 BC"),
        ("date", b"2026-01-31", "12026-01-31"),
        ("timestamp", b"2026-01-31 09:15:00", "-infinity"),
        ("timestamptz", b"2026-01-31 09:15:00+00", "0044-03-15 12:00:00+00 BC"),
    ],
)
def test_a_value_that_its_type_has_no_place_for_is_null_and_given_as_text(
    tmp_path: Path, type_name: str, fits: bytes, text: str
) -> None:
    _, values, as_text = read_back(tmp_path, type_name, fits, text.encode(), None)
    assert values[0] is not None
    assert values[1:] == [None, None]
    assert [value and json.loads(value) for value in as_text] == [None, {"v": text}, None]


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("bigint", b"1.5"),
        ("smallint", b"32768"),
        ("boolean", b"yes"),
        ("float8", b"x"),
        ("text", b"\xff"),
        ("bytea", b"\\xzz"),
        ("numeric(10,2)", b"1.234"),
        ("date", b"2026-13-01"),
    ],
)
def test_a_value_that_is_not_of_its_type_is_refused_without_showing_it(tmp_path: Path, type_name: str, value: bytes) -> None:
    with pytest.raises(WireError, match=r"public\.v\.v is not of its type") as raised:
        read_back(tmp_path, type_name, value)
    assert value.decode(errors="replace") not in str(raised.value)


@pytest.mark.parametrize("type_name", COLUMNS)
def test_a_null_is_null_in_every_type(tmp_path: Path, type_name: str) -> None:
    assert read_back(tmp_path, type_name, None) == (arrow_type(column(type_name)), [None], [None])


def test_a_change_stands_in_its_order_with_its_transaction(tmp_path: Path) -> None:
    changes = message_of(
        1,
        transaction(
            0x16_B374D848,
            insert(ORDERS, b"1", b"12.50", b"a"),
            insert(LINES, b"1", b"1", b"x"),
            update(ORDERS, b"1", b"13", None),
            delete(ORDERS, b"1", None, None),
            xid=731,
            committed_at=1_000_001,
        ),
    )
    written(tmp_path, changes)
    rows = parquet_rows(tmp_path, "shop.orders")
    assert [(row["_operation"], row["_position"], row["_commit_lsn"], row["_ordinal"]) for row in rows] == [
        ("INSERT", "16/B374D848:1", 0x16_B374D848, 1),
        ("UPDATE", "16/B374D848:3", 0x16_B374D848, 3),
        ("DELETE", "16/B374D848:4", 0x16_B374D848, 4),
    ]
    assert {(row["_xid"], row["_committed_at"]) for row in rows} == {(731, datetime(2000, 1, 1, 0, 0, 1, 1, tzinfo=UTC))}
    assert [(row["id"], row["total"], row["note"]) for row in rows] == [(1, "12.50", "a"), (1, "13", None), (1, None, None)]
    assert [row["_ordinal"] for row in parquet_rows(tmp_path, "shop.lines")] == [2]


def test_an_update_tells_the_old_row_as_far_as_it_was_sent(tmp_path: Path) -> None:
    written(
        tmp_path,
        message(
            1,
            update(LINES, b"7", b"2", b"x", old=(b"7", b"1", None)),
            insert(LINES, b"8", b"1", b"y"),
            delete(LINES, b"8", b"1", None),
        ),
    )
    moved, inserted, removed = parquet_rows(tmp_path, "shop.lines")
    assert json.loads(moved["_before"]) == {"order_id": 7, "line": 1}
    assert inserted["_before"] is removed["_before"] is None
    assert (removed["order_id"], removed["line"], removed["sku"]) == (8, 1, None)


def test_a_column_that_was_not_sent_is_null_and_named(tmp_path: Path) -> None:
    written(tmp_path, message(1, update(ORDERS, b"7", UNCHANGED, UNCHANGED), update(ORDERS, b"8", b"1", None)))
    first, second = parquet_rows(tmp_path, "shop.orders")
    assert (first["total"], first["note"], first["_unchanged"]) == (None, None, ["total", "note"])
    assert second["_unchanged"] is None


def test_a_column_that_was_not_sent_is_taken_from_the_old_row(tmp_path: Path) -> None:
    documents = table("shop.documents", "id text", "n bigint")
    written(
        tmp_path,
        message(1, update(ORDERS_FULL, b"7", b"2", UNCHANGED, old=(b"7", b"1", b"long"))),
        message(2, update(documents, UNCHANGED, b"2", old=(b"long", None))),
    )
    (order,) = parquet_rows(tmp_path, "shop.orders")
    assert (order["note"], order["_unchanged"]) == ("long", None)
    assert parquet_rows(tmp_path, "shop.documents")[0]["id"] == "long"


def test_a_truncate_is_a_row_of_each_of_its_tables(tmp_path: Path) -> None:
    written(tmp_path, message(1, insert(ORDERS, b"1", None, None), truncate(ORDERS, LINES), insert(ORDERS, b"2", None, None)))
    assert [(row["_operation"], row["id"]) for row in parquet_rows(tmp_path, "shop.orders")] == [
        ("INSERT", 1),
        ("TRUNCATE", None),
        ("INSERT", 2),
    ]
    assert [(row["_operation"], row["_ordinal"]) for row in parquet_rows(tmp_path, "shop.lines")] == [("TRUNCATE", 2)]


def test_copied_rows_name_their_snapshot(tmp_path: Path) -> None:
    sink = new_sink(tmp_path, file_format="parquet", compression="zstd")
    sink.open()
    apply_copied(sink, [[copied(1, ORDERS, (b"7", b"1", None), snapshot="first")]])
    apply_copied(sink, [[restart(2, ORDERS, snapshot="second")]])
    apply_copied(sink, [[copied(3, ORDERS, (b"7", b"2", b"a\tb"), snapshot="second")]])
    sink.close()
    rows = parquet_rows(tmp_path, "shop.orders")
    assert [(row["_operation"], row["_snapshot"], row["id"], row["total"]) for row in rows] == [
        ("READ", "first", 7, "1"),
        ("RESTART", "second", None, None),
        ("READ", "second", 7, "2"),
    ]
    assert all(row["_position"] is row["_ordinal"] is row["_committed_at"] is None for row in rows)


def test_many_batches_become_one_file_of_each_table(tmp_path: Path) -> None:
    written(tmp_path, *(message(n, insert(ORDERS, b"%d" % n, None, None)) for n in range(1, 50)))
    assert [path.name for path in (tmp_path / "shop.orders").iterdir()] == [f"{PREFIX}0000000001.parquet"]
    assert [row["id"] for row in parquet_rows(tmp_path, "shop.orders")] == list(range(1, 50))


def test_a_table_that_changed_has_a_file_of_each_definition(tmp_path: Path) -> None:
    wider = table("shop.orders", "id bigint", "total numeric", "note text", "more text")
    written(tmp_path, message(1, insert(ORDERS, b"1", None, None)), message(2, insert(wider, b"2", None, None, b"x")))
    assert sorted(path.name for path in (tmp_path / "shop.orders").iterdir()) == [
        f"{PREFIX}0000000001-2.parquet",
        f"{PREFIX}0000000001.parquet",
    ]
    rows = {row["id"]: row.get("more", "no such column") for row in parquet_rows(tmp_path, "shop.orders")}
    assert rows == {1: "no such column", 2: "x"}


def test_a_definition_begins_another_file_also_when_the_columns_are_called_the_same(tmp_path: Path) -> None:
    """The same sink, in one batch: a column is dropped, and made again under its name."""
    numbered = replace(ORDERS, columns=tuple(replace(each, number=number) for number, each in enumerate(ORDERS.columns, 1)))
    again = replace(numbered, columns=(*numbered.columns[:2], replace(numbered.columns[2], number=4)))
    altered = PublishedDefinition(TableDefined("ALTER TABLE", WIDER), TABLE)
    sink = new_sink(tmp_path, file_format="parquet", compression="zstd")
    sink.open()
    apply(
        sink,
        [
            [message(1, insert(numbered, b"1", None, b"old"))],
            [message(2, altered)],
            [message(3, insert(again, b"2", None, b"new"), insert(again, b"3", None, b"new"))],
        ],
    )
    sink.close()
    files = sorted((tmp_path / "shop.orders").iterdir(), key=lambda path: path.name, reverse=True)
    assert [path.name for path in files] == [f"{PREFIX}0000000001.parquet", f"{PREFIX}0000000001-2.parquet"]
    held = [pq.read_table(path) for path in files]
    assert [each.column("note").to_pylist() for each in held] == [["old"], ["new", "new"]]
    assert [each.schema.field("note").metadata[b"PARQUET:field_id"] for each in held] == [b"3", b"4"]


def test_tables_that_look_alike_are_kept_apart(tmp_path: Path) -> None:
    names = ["public.one", "public.other", "archive.one"]
    written(tmp_path, message(1, *(insert(table(name, "id bigint"), b"%d" % n) for n, name in enumerate(names))))
    assert [[row["id"] for row in parquet_rows(tmp_path, name)] for name in names] == [[0], [1], [2]]


def test_large_tables_have_several_row_groups(tmp_path: Path) -> None:
    """A reader works on row groups in parallel, and the driver holds one of them."""
    notes = table("notes", "note text", key=())
    note = b"x" * 1_000_000
    rows = 2 * ROW_GROUP_BYTES // len(note) + 10
    written(tmp_path, *(message(n, *(insert(notes, note) for _ in range(10))) for n in range(1, rows // 10 + 1)))
    (path,) = (tmp_path / "public.notes").iterdir()
    file = pq.ParquetFile(path)
    assert file.metadata.num_row_groups == 2
    assert file.metadata.num_rows == rows // 10 * 10


@pytest.mark.parametrize(
    ("schema", "name", "expected"),
    [
        ("public", "orders", "public.orders"),
        ("a.b", "c", "a%2Eb.c"),
        ("a", "../../etc", "a.%2E%2E%2F%2E%2E%2Fetc"),
        ("öffentlich", "Straße 1", "öffentlich.Straße%201"),
        ("a", "x=1%", "a.x%3D1%25"),
    ],
)
def test_a_table_has_a_directory_of_its_own_whatever_its_name(schema: str, name: str, expected: str) -> None:
    assert directory_name(schema, name) == expected


def test_a_table_with_a_column_of_ours_is_refused(tmp_path: Path) -> None:
    clash = table("public.clash", "id bigint", "_position text")
    with pytest.raises(TerminalError, match=r"public\.clash has a column '_position'.*column_mappings"):
        written(tmp_path, message(1, insert(clash, b"1", b"x")))


def test_a_full_disk_is_waited_for_while_files_are_made(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as leave:
        directory = tmp_path / "disk" / "out"
        sink = new_sink(directory, file_format="parquet", compression="none", rotate_bytes=1)
        sink.open()
        first, second = (
            [[message(n, insert(ORDERS, b"%d" % n, None, random.randbytes(100_000).hex().encode()))]] for n in (1, 2)
        )
        apply(sink, first)
        leave(500_000)  # enough for what the task leaves and for the rows, not for the file too
        with pytest.raises(TransientError, match=r"there is no room in .* \(No space left on device"):
            apply(sink, second)
        assert apply(sink, second).sequence == 2  # what the task left is gone, which is room enough
        sink.close()
        assert [row["id"] for row in parquet_rows(directory, "shop.orders")] == [1, 2]


def test_files_without_their_position_are_not_written_over(tmp_path: Path) -> None:
    written(tmp_path, message(1, insert(ORDERS, b"1", None, None)))
    (tmp_path / f"{PREFIX}position").unlink()
    with pytest.raises(TerminalError, match="but not its position file"):
        new_sink(tmp_path, file_format="parquet", compression="zstd").open()


def test_a_change_to_json_finishes_what_was_gathered(tmp_path: Path) -> None:
    sink = new_sink(tmp_path, file_format="parquet", compression="zstd")
    sink.open()
    apply(sink, [[message(1, insert(ORDERS, b"1", None, None))]])  # and dies without closing
    new_sink(tmp_path).open()
    assert [row["id"] for row in parquet_rows(tmp_path, "shop.orders")] == [1]


def test_tables_that_the_file_system_has_in_one_directory_lose_no_row(tmp_path: Path) -> None:
    """As two that differ in case alone, where it takes no notice of that."""
    orders, upper = table("shop.orders", "id bigint"), table("shop.ORDERS", "id bigint")
    (tmp_path / "shop.orders").mkdir()
    (tmp_path / "shop.ORDERS").symlink_to("shop.orders")
    written(tmp_path, message(1, insert(orders, b"1"), insert(upper, b"2")), message(2, insert(orders, b"3")))
    assert sorted(row["id"] for row in parquet_rows(tmp_path, "shop.orders")) == [1, 2, 3]


def test_names_that_are_too_long_for_a_directory_end_in_a_digest(tmp_path: Path) -> None:
    """Each byte of an identifier may take three in a path, and no directory's name has more than 255."""
    longest = [table(f"{'$' * 63}.{'$' * 62}{last}", "id bigint") for last in "ab"]
    written(tmp_path, message(1, *(insert(each, b"1") for each in longest)))
    names = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert len(names) == 2
    assert all(len(name.encode()) <= 255 and name.startswith("%24%24") for name in names)
    assert [parquet_rows(tmp_path, name)[0]["id"] for name in names] == [1, 1]
